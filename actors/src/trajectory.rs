//! Data that travels between the role actors of a reinforcement-learning run.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

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
    /// The choice of its tokens: sampled or greedy.
    pub decode: Decode,
    /// The tokens that it has already.
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
    /// Log-probability of each token that was sampled under these weights, in nats.
    pub log_probs: Vec<f32>,
    /// Which tokens were not sampled.
    pub observed: Observed,
}

impl Partial {
    /// Its end from a token on.
    #[must_use]
    pub fn since(&self, from: usize) -> Self {
        let from = from.min(self.tokens.len());
        Self {
            version: self.version,
            life: self.life,
            tokens: self.tokens[from..].to_vec(),
            log_probs: self.log_probs[self.observed.sampled(from)..].to_vec(),
            observed: self.observed.since(from),
        }
    }

    /// Goes on with more of it.
    pub fn append(&mut self, more: &Self) {
        self.observed.append(&more.observed, self.tokens.len());
        self.tokens.extend(&more.tokens);
        self.log_probs.extend(&more.log_probs);
    }
}

/// Which tokens of a reply a tool has written and not the policy, by their numbers from 0: what was
/// observed at each turn, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Observed(Vec<Range<usize>>);

impl Observed {
    /// Adds the tokens that a tool wrote at one more turn.
    pub fn push(&mut self, tokens: Range<usize>) {
        if !tokens.is_empty() {
            self.0.push(tokens);
        }
    }

    /// Number of times that a tool has written something.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.0.len()
    }

    /// Tokens that a tool has written.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    /// Returns true when a tool has written this token.
    #[must_use]
    pub fn has(&self, token: usize) -> bool {
        self.0.iter().any(|range| range.contains(&token))
    }

    /// The first token behind all that a tool has written.
    #[must_use]
    pub fn end(&self) -> usize {
        self.0.last().map_or(0, |range| range.end)
    }

    /// Number of tokens that the policy has sampled, among the first `of`.
    #[must_use]
    pub fn sampled(&self, of: usize) -> usize {
        let before = |range: &Range<usize>| range.end.min(of).saturating_sub(range.start);
        of - self.0.iter().map(before).sum::<usize>()
    }

    /// The same of a reply's end from a token on.
    fn since(&self, from: usize) -> Self {
        let later = self.0.iter().filter(|range| range.end > from);
        Self(
            later
                .map(|range| range.start.saturating_sub(from)..range.end - from)
                .collect(),
        )
    }

    /// The same of an end that begins at a token.
    fn append(&mut self, end: &Self, at: usize) {
        for range in &end.0 {
            let range = range.start + at..range.end + at;
            match self.0.last_mut() {
                // It was cut in two.
                Some(last) if last.end == range.start => last.end = range.end,
                _ => self.0.push(range),
            }
        }
    }
}

/// The choice of the tokens of a reply.
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
    /// The life of the trainer that made the weights of its last token.
    pub last_life: Incarnation,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The response, with its end token when it ended by itself.
    pub response: Vec<u32>,
    /// Log-probability of each response token that was sampled under the weights that made it, in nats:
    /// there is none for what was observed.
    pub log_probs: Vec<f32>,
    /// Which response tokens were not sampled.
    pub observed: Observed,
    /// Time that it waited for its tool, where it ended.
    pub waited: Duration,
    /// The problem's number in the task's training split.
    pub problem: u64,
    /// From 0 to 1; set by the reward actor.
    pub reward: f32,
    /// Set when the answer is right.
    pub correct: bool,
    /// The harm that it does, where a run looks for that; set by the cost actor.
    pub cost: f32,
}

impl Trajectory {
    /// Response tokens that the policy has sampled: those that there is something to learn of.
    #[must_use]
    pub fn sampled(&self) -> usize {
        self.observed.sampled(self.response.len())
    }
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

/// Reward and length of a greedy reply.
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

    /// Returns true when this one is used.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reply of turns, each of so many tokens that were sampled and so many that were observed.
    /// Tokens that were sampled are even, and so are their log-probabilities.
    fn reply(turns: &[(usize, usize)]) -> Partial {
        let mut reply = Partial::default();
        for (sampled, observed) in turns {
            for _ in 0..*sampled {
                let next = reply.tokens.len() as u32 * 2;
                reply.tokens.push(next);
                reply.log_probs.push(next as f32);
            }
            let from = reply.tokens.len();
            let written = (from..from + observed).map(|at| at as u32 * 2 + 1);
            reply.tokens.extend(written);
            reply.observed.push(from..from + observed);
        }
        reply
    }

    proptest! {
        /// Wherever a reply is cut, its parts make it up again, and each has the log-probabilities of
        /// what was sampled of it.
        #[test]
        fn a_reply_that_is_told_in_parts_is_whole_again(
            turns in prop::collection::vec((0usize..4, 0usize..4), 0..5),
            cuts in prop::collection::vec(0usize..40, 0..4),
        ) {
            let whole = reply(&turns);
            let mut cuts = cuts;
            cuts.push(whole.tokens.len());
            cuts.sort_unstable();
            let mut told = Partial::default();
            for cut in cuts {
                let known = told.tokens.len();
                let end = cut.min(whole.tokens.len());
                let mut part = whole.since(known);
                // Only so much was there by then.
                let sampled = whole.observed.sampled(end) - whole.observed.sampled(known.min(end));
                part.tokens.truncate(end.saturating_sub(known));
                part.log_probs.truncate(sampled);
                part.observed.0.retain_mut(|range| {
                    range.end = range.end.min(part.tokens.len());
                    range.start < range.end
                });
                told.append(&part);
            }
            prop_assert_eq!(&told.tokens, &whole.tokens);
            prop_assert_eq!(&told.log_probs, &whole.log_probs);
            for at in 0..whole.tokens.len() {
                prop_assert_eq!(told.observed.has(at), whole.tokens[at] % 2 == 1);
                prop_assert_eq!(told.observed.has(at), whole.observed.has(at));
            }
            prop_assert_eq!(told.observed.tokens(), whole.observed.tokens());
            let sampled = whole.tokens.iter().filter(|token| *token % 2 == 0).count();
            prop_assert_eq!(whole.observed.sampled(whole.tokens.len()), sampled);
        }
    }
}
