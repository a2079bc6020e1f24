//! The flags of `odeon simulate training`.

use odeon_algorithms::cost::training::{Recomputed, Shared};

use super::whole;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "With a model: the parts of a step in seconds, on the rank that computes longest. Without: utilisations \
                  in percent, tokens a second on a card, ratios and seconds, ours and theirs; see docs/parallel.md and docs/multimodal.md"
)]
pub(crate) struct TrainingArgs {
    /// Only this table; several times for several
    #[arg(long, value_enum, conflicts_with = "model")]
    pub(crate) table: Vec<PaperTable>,
    /// The model: gpt-175b, gpt-530b, llama3-8b, llama3-70b, gpt-oss-120b, or a folder with a config.json
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Cards
    #[arg(long, default_value_t = 8, requires = "model", value_parser = whole(u32::MAX.into()))]
    pub(crate) cards: usize,
    /// Their kind
    #[arg(long, value_enum, default_value = "h100", requires = "model")]
    pub(crate) card: CardKind,
    /// Cards of a tensor group
    #[arg(long, default_value_t = 1, requires = "model", value_parser = whole(1024))]
    pub(crate) tensor: usize,
    /// Stages of a pipeline
    #[arg(long, default_value_t = 1, requires = "model", value_parser = whole(1024))]
    pub(crate) stages: usize,
    /// Chunks of layers that each stage has
    #[arg(long, default_value_t = 1, requires = "model", value_parser = whole(1024))]
    pub(crate) chunks: usize,
    /// Sequences of a step; one micro-batch of each replica unless told otherwise
    #[arg(long, requires = "model", value_parser = whole(u32::MAX.into()))]
    pub(crate) batch: Option<usize>,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 8192, requires = "model", value_parser = whole(u32::MAX.into()))]
    pub(crate) sequence: usize,
    /// Sequences of a micro-batch
    #[arg(long, default_value_t = 1, requires = "model", value_parser = whole(u32::MAX.into()))]
    pub(crate) micro_batch: usize,
    /// The states that replicas share; with `all`, parameters are gathered layer by layer
    #[arg(long, value_enum, default_value = "optimizer", requires = "model")]
    pub(crate) share: SharedStates,
    /// What is computed again on the way back
    #[arg(long, value_enum, default_value = "nothing", requires = "model")]
    pub(crate) recompute: RecomputedPart,
    /// The system, by what it overlaps and fuses
    #[arg(long, value_enum, default_value = "megascale", requires = "model")]
    pub(crate) system: System,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The tables of papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PaperTable {
    Megascale,
    Ladder,
    Torchtitan,
    VescaleFsdp,
    StartUp,
    Bubbles,
    /// Encoders in bubbles, which takes some seconds: shown where it is named
    Optimus,
    /// Four places of an encoder with more and more pictures, which takes some seconds: shown where it is named
    Mix,
}

impl PaperTable {
    /// The tables that are shown where none is named.
    pub(crate) const QUICK: [Self; 6] = [
        Self::Megascale,
        Self::Ladder,
        Self::Torchtitan,
        Self::VescaleFsdp,
        Self::StartUp,
        Self::Bubbles,
    ];
}

/// The kinds of cards whose kernels and links are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CardKind {
    A100,
    H100,
    H800,
}

/// The systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum System {
    Megatron,
    /// Megatron's network as it is: no parallel block and no window
    Megascale,
    Fsdp2,
    Fsdp2Compiled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SharedStates {
    Nothing,
    Optimizer,
    All,
}

impl From<SharedStates> for Shared {
    fn from(shared: SharedStates) -> Self {
        match shared {
            SharedStates::Nothing => Self::Nothing,
            SharedStates::Optimizer => Self::Optimizer,
            SharedStates::All => Self::All,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RecomputedPart {
    Nothing,
    Half,
    Layers,
}

impl From<RecomputedPart> for Recomputed {
    fn from(part: RecomputedPart) -> Self {
        match part {
            RecomputedPart::Nothing => Self::Nothing,
            RecomputedPart::Half => Self::Half,
            RecomputedPart::Layers => Self::Layers,
        }
    }
}
