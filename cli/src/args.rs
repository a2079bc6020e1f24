//! Every flag, once.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// An actor runtime for training large models.
#[derive(Debug, Parser)]
#[command(name = "odeon", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a recipe, or continue it from its checkpoint
    Run(RunArgs),
    /// Answer held-out problems with a checkpoint and count what is right
    Eval(EvalArgs),
    /// Continue prompts with a checkpoint
    Generate(GenerateArgs),
    /// Talk to a checkpoint, line by line
    Chat(ChatArgs),
    /// Get a model or data set by name and check its hash
    Fetch(FetchArgs),
    /// List the processes of a run
    Ps(PsArgs),
    /// Kill a process of a run with SIGKILL, to see that the run survives
    Kill(KillArgs),
    /// Measure what the runtime costs, against the bare parts it is made of
    Bench(BenchArgs),
}

#[derive(Debug, clap::Args)]
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
    /// Begin anew: remove what an earlier run of this name has left
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
    /// `sums`, `sums-spoken`, `countdown` or `gsm8k`; the run's own task when it is a run
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// How many problems
    #[arg(long, default_value_t = 200)]
    pub(crate) problems: usize,
    /// The longest response, in tokens
    #[arg(long, default_value_t = 256)]
    pub(crate) response_max: usize,
    /// Compute threads
    #[arg(long, default_value_t = default_threads())]
    pub(crate) threads: usize,
    /// Print this many answers
    #[arg(long, default_value_t = 5)]
    pub(crate) show: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// A run's folder, a model folder, a .gguf file, or a fetched model's name
    pub(crate) model: String,
    /// What to continue
    #[arg(required = true)]
    pub(crate) prompts: Vec<String>,
    /// The longest response, in tokens
    #[arg(long, default_value_t = 64)]
    pub(crate) response_max: usize,
    /// 0 takes the likeliest token
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Compute threads
    #[arg(long, default_value_t = default_threads())]
    pub(crate) threads: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// A run's folder, a model folder, a .gguf file, or a fetched model's name
    pub(crate) model: String,
    /// The longest reply, in tokens
    #[arg(long, default_value_t = 256)]
    pub(crate) response_max: usize,
    /// 0 takes the likeliest token
    #[arg(long, default_value_t = 0.7)]
    pub(crate) temperature: f32,
    /// Compute threads
    #[arg(long, default_value_t = default_threads())]
    pub(crate) threads: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FetchArgs {
    /// `smollm2` or `gsm8k`; all names without one
    pub(crate) name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// The run's folder
    pub(crate) run: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KillArgs {
    /// The run's folder
    pub(crate) run: PathBuf,
    /// `trainer`, `relay`, `rollout-0`, ...
    pub(crate) role: String,
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
