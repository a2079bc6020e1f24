//! The part of a pass that is computed again on the way back.

use serde::{Deserialize, Serialize};

/// The part of a training pass that is computed again on the way back, in place of being kept until then (activation
/// recomputation, arXiv [1604.06174](https://arxiv.org/abs/1604.06174)). Gradients are the same to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing.
    #[default]
    Nothing,
    /// The feed-forward part of each layer, which makes the widest rows. Its last product is not made again.
    FeedForward,
    /// Each layer, of which its input alone is kept.
    Layers,
}
