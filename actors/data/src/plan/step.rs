//! The plan of a step.

use serde::{Deserialize, Serialize};

use crate::sample::SampleId;

use super::fetch::FetchPlan;

/// The samples that a step trains on, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct StepPlan {
    /// The step, from 0.
    pub step: u64,
    /// Samples in all buckets.
    pub samples: u32,
    /// Tokens in all buckets.
    pub tokens: u64,
    /// Tokens that are predicted: all but the first of each sample. A loss that is summed over
    /// tokens and divided by this number has the same gradients wherever samples are placed. Where
    /// masks leave tokens out, those who make batches add up what they leave.
    pub predicted: u64,
    /// For each source the pass that it is in after this step.
    pub epochs: Vec<u32>,
    /// The most tokens that a micro-batch has, but for one that holds a single longer sample.
    pub cap_tokens: u32,
    /// The longest sample that this step wants, in tokens; a longer one is here only because too
    /// many were waiting.
    pub length_max: Option<u32>,
    /// For each place along the axis of the plan its micro-batches, equally many in all.
    pub buckets: Vec<Bucket>,
    /// For each rank the pictures that it encodes; empty where pictures are encoded with their
    /// samples.
    pub encoder: Vec<EncoderShare>,
    /// The ranks that fetch, and those that they feed.
    pub fetch: FetchPlan,
}

/// The work of one place along the axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Bucket {
    /// In the order in which they are worked on.
    pub microbatches: Vec<Microbatch>,
}

/// Samples that are computed together, packed one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Microbatch {
    /// In the order in which they are packed. None where a bucket has fewer samples than
    /// micro-batches: its rank takes part with nothing.
    pub samples: Vec<SampleId>,
    /// Tokens of all.
    pub tokens: u32,
    /// The cost of them, in the unit of the plan's cost.
    pub cost: u64,
}

/// A picture of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct PictureRef {
    /// The sample.
    pub sample: SampleId,
    /// Which of its pictures, from 0.
    pub nth: u32,
    /// Its patches.
    pub patches: u32,
    /// The bucket that its features go to.
    pub bucket: u32,
    /// The micro-batch there.
    pub microbatch: u32,
}

/// Pictures that one rank encodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct EncoderShare {
    /// Those whose features are needed first come first.
    pub pictures: Vec<PictureRef>,
    /// The cost of them, in the unit of the plan's cost.
    pub cost: u64,
}

impl Bucket {
    /// The cost of its micro-batches.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.microbatches.iter().map(|batch| batch.cost).sum()
    }

    /// Tokens of its micro-batches.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let tokens = |batch: &Microbatch| u64::from(batch.tokens);
        self.microbatches.iter().map(tokens).sum()
    }

    /// Its samples.
    pub fn samples(&self) -> impl Iterator<Item = SampleId> + '_ {
        let all = self.microbatches.iter();
        all.flat_map(|batch| batch.samples.iter().copied())
    }
}

impl StepPlan {
    /// The sample set, in ascending order.
    #[must_use]
    pub fn sample_set(&self) -> Vec<SampleId> {
        let mut all: Vec<SampleId> = self.buckets.iter().flat_map(Bucket::samples).collect();
        all.sort_unstable();
        all
    }

    /// Number of micro-batches of each bucket.
    #[must_use]
    pub fn microbatches(&self) -> usize {
        self.buckets.first().map_or(0, |b| b.microbatches.len())
    }

    /// The costliest bucket over the mean one.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        let costs: Vec<u64> = self.buckets.iter().map(Bucket::cost).collect();
        odeon_algorithms::balance::imbalance(&costs)
    }
}
