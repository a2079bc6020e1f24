//! Flags about the versions of a job.

use std::path::PathBuf;
use std::time::Duration;

use super::resources::span;
use super::{ClusterArgs, SetArgs};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The job keeps its places and its turn: its processes end in order, as by `odeon stop`, and those of the new \
                  version begin where they were. A run of a recipe ends its step, saves, and goes on from there. A version \
                  that fails before it was at work goes back to the one before by itself. What cannot change while it goes \
                  on is refused before anything stops. `odeon job show JOB` lists its versions"
)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The job: j1, j2, ..., or a name, which is that of the newest job with it
    pub(crate) job: String,
    /// The program and its arguments as of `odeon submit`, or a recipe; what it runs already, unless told otherwise. Of a
    /// gang the program of its ranks
    #[arg(value_name = "PROGRAM [ARGS]")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// A file or folder that it finds in its folder, at the same path or as NAME; with a program
    #[arg(long, value_name = "[NAME=]PATH", requires = "words")]
    pub(crate) file: Vec<String>,
    /// A variable beside those that it has, or in their place: NAME=VALUE, or NAME to pass on that of this shell
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// A file with such variables, a line each
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Say why, for those who see it
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) why: String,
    /// Wait for the next restart that comes anyway, for so long at most, a day unless told otherwise: `12h`, `30m`
    #[arg(
        long,
        value_name = "TIME",
        value_parser = span,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "24h"
    )]
    pub(crate) lazy: Option<Duration>,
    /// Do not wait until it runs
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The job as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Where a version waits for a restart, that is taken back, and nothing ends. `odeon job show JOB` lists the \
                  versions that are kept"
)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The job: j1, j2, ..., or a name, which is that of the newest job with it
    pub(crate) job: String,
    /// The version; the one before, unless told otherwise
    #[arg(long, value_name = "VERSION")]
    pub(crate) to: Option<u32>,
    /// Say why, for those who see it
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) why: String,
    /// Do not wait until it runs
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The job as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
