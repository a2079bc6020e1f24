//! Results of a rank in a step.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::Shape;
use odeon::serde::{Deserialize, Serialize};
use odeon_algorithms::model::GradientLook;
use odeon_algorithms::model::ShardTime;

/// Results of a rank in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Trained {
    /// The loss of the whole step: nats per predicted token.
    pub loss: f64,
    /// The loss of a head that predicts one token further, by the same tokens; 0 where there is none.
    pub next_token_loss: f64,
    /// The model's own loss over the part of this rank; `None` where that predicts nothing.
    pub own_loss: Option<f64>,
    /// Norm of the whole gradient before clipping.
    pub grad_norm: f64,
    /// Set where it changed the weights.
    pub is_taken: bool,
    /// The own gradient of this rank.
    pub gradient: OwnGradient,
    /// The first try, where its gradient was not taken and the step was computed once more.
    pub first_try: Option<FirstTry>,
    /// Learning rate.
    pub lr: f64,
    /// Tokens of this rank.
    pub tokens: u64,
    /// Floating point operations of this rank, as the shape of the model asks for them.
    pub flops: f64,
    /// Samples of this rank from each source.
    pub sources: BTreeMap<u16, SourcePart>,
    /// Seconds for which it waited for its batch.
    pub wait_seconds: f64,
    /// Seconds of passes and of the update.
    pub compute_seconds: f64,
    /// Seconds of adding up and exchanging with the others: counts, features, rows, gradients and losses. On a card what is still
    /// queued of the backward pass is waited for here.
    pub reduce_seconds: f64,
    /// Bytes of shards that were copied before and behind gathers of parameters, beside what these write themselves.
    pub gather_copies: u64,
    /// The same of sums of gradients.
    pub sum_copies: u64,
    /// Time in which shards were gathered and added up, beside passes or while these waited.
    pub moving: Duration,
    /// Time for which passes waited for that.
    pub moving_waits: Duration,
    /// A hash of what was trained on.
    pub digest: [u8; 32],
}

/// The gradient of one rank, before that of others is added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct OwnGradient {
    /// The sum of its squares.
    pub squares: f64,
    /// The tensor at which it went wrong, where it did.
    pub tensor: Option<String>,
}

impl From<GradientLook> for OwnGradient {
    fn from(look: GradientLook) -> Self {
        Self {
            squares: look.squares,
            tensor: look.worst.map(|worst| worst.name),
        }
    }
}

/// The gradient of a step that was not taken at first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct FirstTry {
    /// Norm of the whole gradient.
    pub grad_norm: f64,
    /// The own gradient of the rank.
    pub gradient: OwnGradient,
}

impl Trained {
    /// The time of gathers and sums of shards.
    pub(crate) const fn moves(&self) -> ShardTime {
        ShardTime {
            moving: self.moving,
            waited: self.moving_waits,
        }
    }
}

/// Samples and tokens that a source gave to a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct SourcePart {
    /// Samples.
    pub samples: u64,
    /// Tokens.
    pub tokens: u64,
    /// Nats of its predicted tokens, added up.
    #[serde(with = "crate::number")]
    pub nats: f64,
    /// Predicted tokens.
    pub predicted: u64,
}

impl SourcePart {
    /// Adds what another rank has.
    pub(crate) fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.tokens += other.tokens;
        self.nats += other.nats;
        self.predicted += other.predicted;
    }

    /// Nats of a predicted token.
    pub(crate) fn mean_loss(&self) -> f64 {
        self.nats / self.predicted.max(1) as f64
    }
}
