//! Engines that only think: what they do takes the time that a cost model says, and replies are as
//! long as a distribution says. The role actors around them are the real ones, under virtual time, so
//! that a graph can be tried at a size that no machine here has.
//!
//! A token here stands for [`quantum`](Modelled::quantum) tokens, since a thousand cards make more of
//! them than can be counted one by one.

use std::path::Path;
use std::time::Duration;

use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};

use super::{
    CacheUse, EvalStats, Progress, Response, RolloutEngine, RunState, Signals, StepStats,
    TrainEngine,
};
use crate::trajectory::{Batch, Order, SampleId};

/// What the engines of a simulated run cost. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Modelled {
    /// Lengths follow from it.
    pub seed: u64,
    /// How long replies are.
    pub lengths: Lengths,
    /// Tokens that one token here stands for.
    pub quantum: u32,
    /// Replies that a rollout works on at once.
    pub slots: usize,
    /// A decode step of one rollout, whatever its batch: the weights are read.
    pub step_s: f64,
    /// What each reply of the batch adds to it.
    pub reply_s: f64,
    /// What each token with keys and values adds to it: they are read.
    pub cached_s: f64,
    /// Taking in a token that was there before.
    pub prefill_s: f64,
    /// Taking in new weights.
    pub load_s: f64,
    /// Training on a token, with all cards of the trainer.
    pub train_s: f64,
    /// Handing over new weights.
    pub publish_s: f64,
    /// Keys and values of a token, bytes.
    pub token_bytes: u64,
    /// Bytes that a rollout has for them.
    pub cache_bytes: u64,
}

/// Lengths of replies, in tokens: a log-normal distribution, cut off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Lengths {
    /// Half of the replies are shorter.
    pub median: f64,
    /// Deviation of the logarithm: ln 10 / 2.326 makes the 99th percentile ten times the median.
    pub sigma: f64,
    /// The longest.
    pub most: f64,
}

impl Lengths {
    /// Of one sample, the same wherever it is made.
    fn of(&self, seed: u64, id: SampleId) -> f64 {
        let first = unit(mixed(seed ^ mixed(id.group ^ (u64::from(id.sample) << 44))));
        let second = unit(mixed(
            seed ^ mixed(!id.group ^ (u64::from(id.sample) << 44)),
        ));
        // Box and Muller 1958.
        let normal = (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos();
        (self.median * (self.sigma * normal).exp()).clamp(1.0, self.most)
    }
}

/// Above 0, at most 1.
fn unit(bits: u64) -> f64 {
    ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Spreads a number over all bits (SplitMix64, Steele et al. 2014).
const fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Time that was thought and not yet told of.
#[derive(Debug, Default)]
struct Thought(f64);

impl Thought {
    fn take(&mut self) -> Duration {
        Duration::from_secs_f64(std::mem::take(&mut self.0))
    }
}

/// Trains nothing; its weights are the number of steps.
#[derive(Debug)]
pub struct ModelledTrainer {
    model: Modelled,
    steps: u64,
    thought: Thought,
}

impl ModelledTrainer {
    /// A trainer before its first step.
    #[must_use]
    pub fn new(model: &Modelled) -> Self {
        Self {
            model: model.clone(),
            steps: 0,
            thought: Thought::default(),
        }
    }
}

impl TrainEngine for ModelledTrainer {
    fn warm_up(&mut self, _step: u64) -> Result<StepStats, Failure> {
        Ok(StepStats::default())
    }

    fn train(&mut self, batch: &Batch, _signals: &Signals) -> Result<StepStats, Failure> {
        let tokens: usize = batch.trajectories.iter().map(|it| it.response.len()).sum();
        let tokens = tokens as u64 * u64::from(self.model.quantum);
        self.thought.0 += tokens as f64 * self.model.train_s;
        self.steps += 1;
        Ok(StepStats {
            tokens,
            ..StepStats::default()
        })
    }

    fn evaluate(&mut self, _problems: usize) -> Result<EvalStats, Failure> {
        Ok(EvalStats::default())
    }

    fn reachable_flops(&self) -> Option<f64> {
        None
    }

    fn weight_bytes(&self) -> usize {
        8
    }

    fn write_weights(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        self.thought.0 += self.model.publish_s;
        out.copy_from_slice(&self.steps.to_le_bytes());
        Ok(())
    }

    fn save(&mut self, _: &Path, _: &Progress, _: &RunState) -> Result<(), Failure> {
        Ok(())
    }

    fn restore(&mut self, _folder: &Path) -> Result<Option<(Progress, RunState)>, Failure> {
        Ok(None)
    }

    fn takes(&mut self) -> Duration {
        self.thought.take()
    }
}

/// A reply under way.
#[derive(Debug)]
struct Reply {
    id: SampleId,
    /// Tokens here that were there when it was admitted, and those made since.
    begun: usize,
    made: usize,
    length: usize,
    prompt: usize,
}

impl Reply {
    /// Tokens with keys and values.
    fn cached(&self) -> usize {
        self.prompt + self.begun + self.made
    }

    fn response(&self, from: usize) -> Response {
        let tokens = self.made.saturating_sub(from);
        Response {
            id: self.id,
            tokens: vec![0; tokens],
            log_probs: vec![0.0; tokens],
        }
    }
}

/// Generates as many tokens as the distribution says, in the time that the model says.
#[derive(Debug)]
pub struct ModelledRollout {
    model: Modelled,
    active: Vec<Reply>,
    thought: Thought,
}

impl ModelledRollout {
    /// A rollout without weights.
    #[must_use]
    pub fn new(model: &Modelled) -> Self {
        Self {
            model: model.clone(),
            active: vec![],
            thought: Thought::default(),
        }
    }

    fn cached(&self) -> usize {
        self.active.iter().map(Reply::cached).sum()
    }
}

impl RolloutEngine for ModelledRollout {
    fn can_load(&self) -> bool {
        self.active.is_empty()
    }

    fn load(&mut self, _weights: &[u8]) -> Result<(), Failure> {
        self.thought.0 += self.model.load_s;
        Ok(())
    }

    fn free_slots(&self) -> usize {
        // What is under way grows: a tenth is left for that.
        let cache = self.cache();
        if cache.used > cache.capacity / 10 * 9 {
            return 0;
        }
        self.model.slots.saturating_sub(self.active.len())
    }

    fn active(&self) -> usize {
        self.active.len()
    }

    fn admit(&mut self, order: &Order) -> Result<(), Failure> {
        let quantum = self.model.quantum.max(1);
        let length = self.model.lengths.of(self.model.seed, order.id) / f64::from(quantum);
        let begun = order.partial.as_ref().map_or(0, |it| it.tokens.len());
        let prompt = order.prompt.len().div_ceil(quantum as usize);
        let taken_in = (prompt + begun) as f64 * f64::from(quantum);
        self.thought.0 += taken_in * self.model.prefill_s;
        self.active.push(Reply {
            id: order.id,
            begun,
            made: 0,
            length: (length.round() as usize).max(begun + 1),
            prompt,
        });
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Response>, Failure> {
        let (model, quantum) = (&self.model, f64::from(self.model.quantum));
        let cached = self.cached() as f64 * quantum;
        let step =
            model.step_s + self.active.len() as f64 * model.reply_s + cached * model.cached_s;
        self.thought.0 += quantum * step;
        for reply in &mut self.active {
            reply.made += 1;
        }
        let ended = |reply: &mut Reply| reply.begun + reply.made >= reply.length;
        let ended = self.active.extract_if(.., ended);
        Ok(ended.map(|reply| reply.response(0)).collect())
    }

    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure> {
        self.load(weights)?;
        let again = self.cached() as f64 * f64::from(self.model.quantum);
        self.thought.0 += again * self.model.prefill_s;
        Ok(())
    }

    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response> {
        let all = self.active.iter();
        all.map(|reply| reply.response(from(reply.id))).collect()
    }

    fn withdraw(&mut self) {
        self.active.clear();
    }

    fn cache(&self) -> CacheUse {
        let tokens = self.cached() as u64 * u64::from(self.model.quantum);
        CacheUse {
            used: tokens * self.model.token_bytes,
            capacity: self.model.cache_bytes,
        }
    }

    fn burst(&self) -> usize {
        1
    }

    fn takes(&mut self) -> Duration {
        self.thought.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reply_of_a_hundred_is_ten_times_as_long_as_the_median() {
        let lengths = Lengths {
            median: 1_000.0,
            sigma: 10_f64.ln() / 2.326,
            most: 1e9,
        };
        let ids =
            (0..4_000).flat_map(|group| (0..16).map(move |sample| SampleId { group, sample }));
        let mut all: Vec<f64> = ids.map(|id| lengths.of(7, id)).collect();
        all.sort_by(f64::total_cmp);
        let quantile = |part: f64| all[(part * all.len() as f64) as usize];
        assert!(
            (quantile(0.5) / 1_000.0 - 1.0).abs() < 0.02,
            "{}",
            quantile(0.5)
        );
        assert!(
            (quantile(0.99) / 10_000.0 - 1.0).abs() < 0.06,
            "{}",
            quantile(0.99)
        );
        let id = SampleId {
            group: 3,
            sample: 1,
        };
        assert_eq!(lengths.of(7, id), lengths.of(7, id));
        assert!(lengths.of(7, id) != lengths.of(8, id));
    }
}
