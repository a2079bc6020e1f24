//! The seats of a rank in the groups that it belongs to.

use odeon::Shape;
use odeon::group::Seat;
use odeon::serde::{Deserialize, Serialize};

/// Seats of a rank, which it takes to train with the others. A seat is absent where its group would be of one rank,
/// unless that is the only one there is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct RankSeats {
    /// Among those with other samples or rows.
    pub data: Option<Seat>,
    /// Among all ranks, where matrices are shared.
    pub all: Option<Seat>,
    /// Among those of `data` that have the same experts, where these are shared.
    pub same_experts: Option<Seat>,
    /// Among those that each have a part of every matrix.
    pub tensor: Option<Seat>,
    /// Among those that each have some of the experts.
    pub experts: Option<Seat>,
    /// Among those that each have some of the rows of a batch.
    pub context: Option<Seat>,
    /// Among those that keep shards of the same tensors.
    pub shards: ShardSeats,
    /// Among those that keep the same shard.
    pub replicas: Option<Seat>,
    /// In its pipeline.
    pub pipeline: PipelineSeats,
}

/// The seats of a rank in a pipeline, see [`RankSeats`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct PipelineSeats {
    /// Among all of its ranks.
    pub all: Option<Seat>,
    /// Among the first and the last, which both have the embedding where it is the head, too.
    pub tied: Option<Seat>,
    /// Beside the rank that gets its rows.
    pub rows_out: Option<Seat>,
    /// Beside the rank that it gets rows from.
    pub rows_in: Option<Seat>,
    /// Beside the rank that gets its gradients.
    pub gradients_out: Option<Seat>,
    /// Beside the rank that it gets gradients from.
    pub gradients_in: Option<Seat>,
}

/// The seats of a rank among those that keep shards of the same tensors, see [`RankSeats`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct ShardSeats {
    /// Of those that every rank has.
    pub everywhere: Option<Seat>,
    /// Of those of which ranks have the same part.
    pub data: Option<Seat>,
    /// Of those of the same experts.
    pub experts: Option<Seat>,
}
