//! The flags of `odeon simulate faults`.

use std::path::PathBuf;

use super::SetArgs;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "ETTR is the effective training time ratio: the part of all time in which steps were made that were not \
                  made before. See docs/robustness.md for every field, where its default comes from, and what ByteRobust \
                  reports beside what is simulated"
)]
pub(crate) struct FaultsArgs {
    /// The scenario, a TOML file such as recipes/faults-9600.toml
    pub(crate) scenario: PathBuf,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// Only this policy, by its name; several times for several
    #[arg(long)]
    pub(crate) policy: Vec<String>,
    /// Tell what the last policy owes to each constant: the ratio with half of it and with twice as much
    #[arg(long)]
    pub(crate) sensitivity: bool,
    /// A folder for the numbers, as JSON, and the pictures, as SVG
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
