//! What travels between the role actors of a reinforcement-learning run.

use std::collections::BTreeSet;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Incarnation, Shape};

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Order {
    /// Which trajectory.
    pub id: SampleId,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The problem's number in the task's training split, for the reward.
    pub problem: u64,
    /// How its tokens are chosen.
    pub decode: Decode,
    /// What there is of it already.
    pub partial: Option<Partial>,
}

/// The begin of a reply: where another rollout with the same weights goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Partial {
    /// The weights that made it.
    pub version: Version,
    /// The life of the trainer that made these weights.
    pub life: Incarnation,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities under these weights, in nats.
    pub log_probs: Vec<f32>,
}

/// How the tokens of a reply are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub enum Decode {
    /// Drawn, as the run says.
    #[default]
    Sampled,
    /// The likeliest each time: what the group's samples are compared with.
    Greedy,
}

/// A finished trajectory. All its tokens come from one version of the weights, unless rollouts are
/// [interrupted](crate::rl::rollout::Swap::Interrupt).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Trajectory {
    /// Which one.
    pub id: SampleId,
    /// The weights that made it; of several, those that made its first token.
    pub version: Version,
    /// The weights that made its last token.
    pub last_version: Version,
    /// The life of the trainer that made the weights of its first token.
    pub life: Incarnation,
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
    /// The harm that it does, where a run looks for that; set by the cost actor.
    pub cost: f32,
}

/// A training batch: complete groups, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Batch {
    /// The optimiser step that it belongs to, from 1.
    pub step: u64,
    /// All samples of a group lie together.
    pub trajectories: Vec<Trajectory>,
    /// Samples in each group.
    pub group_size: u32,
    /// For each group its greedy reply; empty where none was ordered.
    pub greedy: Vec<GreedyReply>,
    /// Groups left out since the batch before, since their rewards were all equal.
    pub uniform: u64,
    /// The prompts that are used when this batch is.
    pub used: Used,
}

/// What there is to know of a greedy reply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct GreedyReply {
    /// Its reward.
    pub reward: f32,
    /// Its length.
    pub tokens: usize,
}

/// Which prompts a run has used: trained on, or left out. The others are still to come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Used {
    /// All before this one.
    pub below: u64,
    /// And these after it: groups end out of order.
    pub beyond: BTreeSet<u64>,
}

impl Used {
    /// The first so many.
    #[must_use]
    pub const fn first(prompts: u64) -> Self {
        Self {
            below: prompts,
            beyond: BTreeSet::new(),
        }
    }

    /// Whether this one is.
    #[must_use]
    pub fn has(&self, prompt: u64) -> bool {
        prompt < self.below || self.beyond.contains(&prompt)
    }

    /// One more.
    pub fn add(&mut self, prompt: u64) {
        if prompt >= self.below {
            self.beyond.insert(prompt);
        }
        while self.beyond.remove(&self.below) {
            self.below += 1;
        }
    }
}
