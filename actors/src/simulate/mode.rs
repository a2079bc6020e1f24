//! The ways in which rollouts and trainer work together. See [`simulate`](super).

use serde::{Deserialize, Serialize};

use crate::engine::modelled::Delivery;
use crate::rl::rollout::Swap;

/// The way in which rollouts and trainer work together. See [`simulate`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In turn.
    Synchronous,
    /// One step apart.
    OneStep,
    /// One step apart, and the trainer begins with what is there.
    Stream,
    /// Interrupted.
    Partial,
    /// Drained.
    Drain,
    /// Drained and packed.
    Laminar,
    /// Two sets of weights at a time.
    Overlap,
}

impl Mode {
    /// Returns true when rollouts and trainer have cards of their own.
    pub(super) const fn is_apart(self) -> bool {
        !matches!(self, Self::Synchronous)
    }

    /// The oldest that a trajectory may be, in steps.
    pub(super) const fn staleness_max(self) -> u64 {
        match self {
            Self::Synchronous => 0,
            Self::OneStep | Self::Stream => 1,
            Self::Partial => 4,
            Self::Drain | Self::Laminar | Self::Overlap => u32::MAX as u64,
        }
    }

    pub(super) const fn swap(self) -> Swap {
        match self {
            Self::Synchronous | Self::OneStep | Self::Stream | Self::Drain | Self::Laminar => {
                Swap::Drain
            }
            Self::Partial => Swap::Interrupt,
            Self::Overlap => Swap::Overlap,
        }
    }

    /// The way of new weights to rollouts on so many machines.
    pub(super) const fn delivery(self, machines: u32) -> Delivery {
        match self {
            Self::Synchronous => Delivery::Colocated,
            Self::OneStep | Self::Stream | Self::Partial => Delivery::Broadcast(machines),
            Self::Drain | Self::Laminar | Self::Overlap => Delivery::Relays(machines),
        }
    }

    /// Batches that the trainer takes for one step with so many updates: with one, it waits for the
    /// whole of the step's prompts.
    pub(super) const fn batches(self, updates: u32) -> u32 {
        match self {
            Self::Stream => updates,
            _ => 1,
        }
    }
}
