//! What travels between the role actors of a reinforcement-learning run.

use odeon::Shape;
use odeon::serde::{Deserialize, Serialize};

/// The number of optimiser steps behind a set of weights; 0 before the first.
pub type Version = u64;

/// Which sample of which group a trajectory is. A group holds all samples of one prompt.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Shape,
)]
#[serde(crate = "odeon::serde")]
pub struct SampleId {
    /// The prompt: counts up over the run.
    pub group: u64,
    /// Which sample of the group, from 0.
    pub sample: u32,
}

/// An order to generate one trajectory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Order {
    /// Which trajectory.
    pub id: SampleId,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The problem's number in the task's training split, for the reward.
    pub problem: u64,
}

/// A finished trajectory. All its tokens come from one version of the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Trajectory {
    /// Which one.
    pub id: SampleId,
    /// The weights that made it.
    pub version: Version,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The response, with its end token when it ended by itself.
    pub response: Vec<u32>,
    /// Log-probability of each response token under the weights that made it, in nats.
    pub log_probs: Vec<f32>,
    /// The problem's number in the task's training split.
    pub problem: u64,
    /// From 0 to 1; set by the reward actor.
    pub reward: f32,
    /// Whether the answer is right.
    pub correct: bool,
}

/// A training batch: complete groups, in a fixed order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Batch {
    /// The optimiser step that it belongs to, from 1.
    pub step: u64,
    /// All samples of a group lie together.
    pub trajectories: Vec<Trajectory>,
    /// Samples in each group.
    pub group_size: u32,
}
