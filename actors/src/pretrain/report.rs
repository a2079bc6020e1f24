//! Reports of a pretraining run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rank::{Origin, SourcePart};

/// Events of a run, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Report {
    /// The ranks went on from a checkpoint, or from the begin where there is none.
    Resumed {
        /// Which life of the ranks this is, from 1.
        life: u32,
        /// Steps that are done.
        steps: u64,
        /// Number of ranks.
        ranks: u32,
        /// Where they were kept.
        from: Origin,
        /// Seconds since the life before was over, where one was lost.
        seconds: Option<f64>,
    },
    /// A step is done.
    Step(StepReport),
    /// Held-out samples were rated.
    Evaluated {
        /// Steps that were done then.
        steps: u64,
        /// Nats per predicted token over all sources.
        #[serde(with = "crate::number")]
        loss: f64,
        /// The same of each source.
        #[serde(with = "crate::number::each")]
        sources: BTreeMap<String, f64>,
    },
    /// A detector has found something. Nothing is done about it.
    Finding {
        /// The step that shows it.
        step: u64,
        /// The rule that found it: see [`odeon_diagnosis::run`].
        rule: String,
        /// The ranks that are to blame; none where it is the run as a whole.
        ranks: Vec<u32>,
        /// The finding, in words.
        why: String,
    },
    /// A checkpoint is durable.
    Saved {
        /// Steps that are in it.
        steps: u64,
        /// Seconds for which the ranks stood still.
        blocked_seconds: f64,
        /// Seconds until it was durable.
        seconds: f64,
        /// Its bytes.
        bytes: u64,
        /// Seconds that the first rank spent in each stage, from the first to the last.
        stages: Vec<(String, f64)>,
    },
    /// Ranks keep a checkpoint in their memory.
    Copied {
        /// Steps that are in it.
        steps: u64,
        /// Seconds for which the ranks stood still.
        blocked_seconds: f64,
    },
    /// A source has other loaders.
    Rescaled {
        /// Steps that were done then.
        steps: u64,
        /// The source.
        source: String,
        /// Number of its loaders from now on.
        loaders: u32,
    },
    /// All steps are done.
    Finished {
        /// Number of steps.
        steps: u64,
    },
    /// It was asked to stop, and has saved.
    Halted {
        /// Steps that are done.
        steps: u64,
    },
}

/// A step in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Steps that are done with it: the first is 1.
    pub step: u64,
    /// Nats per predicted token.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// Norm of the gradient before clipping.
    #[serde(with = "crate::number")]
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Tokens of all ranks.
    pub tokens: u64,
    /// Samples of all ranks.
    pub samples: u64,
    /// Floating point operations of all ranks.
    pub flops: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// The longest that a rank waited for its batch.
    pub wait_seconds: f64,
    /// The longest that a rank computed.
    pub compute_seconds: f64,
    /// The longest over the mean computing time of the ranks.
    pub imbalance: f64,
    /// Samples and tokens from each source, by name.
    pub sources: BTreeMap<String, SourcePart>,
    /// A hash of what all ranks trained on.
    pub digest: String,
}
