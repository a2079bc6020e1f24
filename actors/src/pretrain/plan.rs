//! The settings that a pretraining run is made from.

use std::collections::BTreeSet;
use std::path::PathBuf;

use odeon::Needs;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Sharing, TrainConfig};
use odeon_data::plane::DataPlan;
use odeon_diagnosis::ladder::{Forbidden, LadderPolicy};
use odeon_diagnosis::run::Watch;
use odeon_gpu::{Device, Precision};

use super::gradients::GradientRules;
use super::rank::{Drill, RankArgs};
use crate::engine::compute::ModelSource;
use crate::ranks::standbys::StandbyCount;

/// Settings that a run is made from.
#[derive(Clone, Debug)]
pub struct PretrainPlan {
    /// The first weights.
    pub source: ModelSource,
    /// The seed of new weights, and of dropout.
    pub seed: u64,
    /// The device that computes.
    pub device: Device,
    /// Compute threads of each rank, on the processor.
    pub threads: usize,
    /// Set for sums of forward passes in one order, on the processor.
    pub deterministic: bool,
    /// To what factors of products are rounded, those of attention among them.
    pub products: Precision,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// The tokenizer of the text.
    pub tokenizer: Tokenizer,
    /// The optimiser.
    pub train: TrainConfig,
    /// Share of numbers that are dropped in passes that learn; at least 0, below 1.
    pub dropout: f32,
    /// Gradients that are taken, and what follows where one is not.
    pub gradients: GradientRules,
    /// Faults that ranks commit on purpose.
    pub drills: Vec<Drill>,
    /// The way in which the ranks train the model together, at first: there may be other copies later.
    pub sharing: Sharing,
    /// Steps in all.
    pub steps: u64,
    /// Set where the ranks are kept as they are before the first step, too.
    pub checkpoint_first: bool,
    /// Steps between two checkpoints.
    pub checkpoint_every: u64,
    /// Steps between two that ranks keep in memory, each what it has and what its neighbour has;
    /// 0 keeps no others than those of the storage.
    pub memory_every: u64,
    /// Where they are.
    pub checkpoint: PathBuf,
    /// Number of checkpoints that are kept.
    pub keep: usize,
    /// Resources that each rank reserves on its node.
    pub needs: Needs,
    /// The response to ranks that hold up the others, or are lost.
    pub recovery: LadderPolicy,
    /// Nodes that ranks were not to be placed on in the tries before.
    pub avoided: BTreeSet<String>,
    /// Number of standbys for ranks that are lost.
    pub standbys: StandbyCount,
    /// Actions about ranks that a person has forbidden in the tries before.
    pub forbidden: Vec<Forbidden>,
    /// Plan of the data to train on. Its mesh is that of the ranks.
    pub data: DataPlan,
    /// Samples that are rated without learning from them, and the steps at which that happens.
    pub held_out: Option<HeldOut>,
    /// The detectors of the run; they have seen what the run told before.
    pub watch: Watch,
}

impl PretrainPlan {
    /// The arguments of the first rank; others differ in their number alone.
    pub(super) fn rank_args(&self, sharing: Sharing) -> RankArgs {
        RankArgs {
            rank: 0,
            standby: None,
            sharing,
            source: self.source.clone(),
            seed: self.seed,
            device: self.device,
            threads: self.threads,
            deterministic: self.deterministic,
            products: self.products,
            context: self.context,
            tokenizer: self.tokenizer.clone(),
            train: self.train.clone(),
            dropout: self.dropout,
            drills: self.drills.clone(),
            checkpoint: self.checkpoint.clone(),
            keep: self.keep,
        }
    }
}

/// Samples that nobody learns from.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// Where they are from. Its first step is what is rated.
    pub data: DataPlan,
    /// Steps between two times that they are rated, beside the first and the last step.
    pub every: u64,
}
