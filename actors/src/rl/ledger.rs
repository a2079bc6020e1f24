//! The book of a run's trajectories: which are ordered, finished, waiting and consumed. Pure.
//!
//! - A trajectory is counted once: a second report of the same sample is refused.
//! - A batch belongs to its step. Taking the same step again gives the same batch, so a trainer
//!   that comes back from a checkpoint replays exactly what it had lost. Batches are kept until the
//!   step is durable.
//! - Orders of a rollout that is gone, or hands them in, are given out again. What there is of
//!   their replies is kept: a rollout with the weights that made it goes on there. When nobody has
//!   these any more, the reply begins anew.
//! - Orders are given out only while their trajectories can still be trained within the staleness
//!   bound; with bound 0 this is synchronous training.
//! - With dynamic sampling a complete group whose rewards are all equal is left out, and the next
//!   prompt takes its place at once (DAPO, arXiv 2503.14476). With staleness bound 0, which groups
//!   make a batch follows from the rewards alone, whoever is quick.
//! - A run that goes on begins no group that it has used before.
//! - A book that is lost is followed by another, which is told where the trainer is and adopts what
//!   rollouts say that they work on.

pub mod sampler;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use odeon::Shape;
use odeon::serde::{Deserialize, Serialize};

use self::sampler::{Candidate, Sampler, SamplerSpec};
use crate::trajectory::{Batch, Decode, GreedyReply, Partial, SampleId, Trajectory, Used, Version};

/// The bounds of a [`Ledger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct LedgerConfig {
    /// Samples of each prompt.
    pub group_size: u32,
    /// Prompts in a batch.
    pub groups_per_batch: usize,
    /// The most optimiser steps that may lie between the weights that made a trajectory and the
    /// weights that it trains.
    pub staleness_max: u64,
    /// The rule for groups whose rewards are all equal.
    pub uniform: Uniform,
    /// The rule for greedy replies: none, or one in each group beside its samples.
    pub greedy: Greedy,
    /// Which complete groups a batch takes, when there are more than it needs.
    pub sampler: SamplerSpec,
}

/// The rule for a group whose rewards are all equal: it says nothing about what was better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum Uniform {
    /// It is trained on.
    #[default]
    Kept,
    /// It is left out and another prompt is tried, up to a bound: a task that is far too easy or too
    /// hard would be tried for ever.
    Refilled {
        /// Times the prompts of a batch that are tried for it, before uniform groups are kept after
        /// all.
        rounds: u32,
    },
}

/// The rule for greedy replies: none, or one in each group beside its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum Greedy {
    /// No.
    #[default]
    No,
    /// Its last sample is one: not trained on, but what the others are compared with.
    Yes,
}

impl LedgerConfig {
    /// Groups of so many samples, of which so many make a batch, in the order of completion; all
    /// groups stay.
    #[must_use]
    pub const fn new(group_size: u32, groups_per_batch: usize, staleness_max: u64) -> Self {
        Self {
            group_size,
            groups_per_batch,
            staleness_max,
            uniform: Uniform::Kept,
            greedy: Greedy::No,
            sampler: SamplerSpec::Fifo,
        }
    }

    /// Replies to order for a group.
    fn orders(&self) -> u32 {
        self.group_size + u32::from(self.greedy == Greedy::Yes)
    }

    /// The choice of the tokens of a sample: sampled or greedy.
    #[must_use]
    pub const fn decode(&self, sample: u32) -> Decode {
        if sample < self.group_size {
            Decode::Sampled
        } else {
            Decode::Greedy
        }
    }
}

/// The outcome of the report of a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is in.
    Accepted,
    /// It was in already, or was never ordered.
    Duplicate,
    /// Too old: its sample is ordered again.
    Stale,
}

/// The orders and trajectories of one run, with the state of each.
#[derive(Debug)]
pub struct Ledger {
    config: LedgerConfig,
    sampler: Arc<dyn Sampler>,
    /// Steps that the trainer has finished.
    trained: Version,
    /// Batches given out and not durable, by step.
    batches: BTreeMap<u64, Batch>,
    next_group: u64,
    /// The first group that was begun after the last batch was taken.
    batch_begins: u64,
    /// The prompts that were trained on or left out.
    used: Used,
    /// Groups left out since the last batch was taken.
    left_out: u64,
    /// Samples that nobody works on.
    open: VecDeque<SampleId>,
    /// The rollout that works on each sample.
    working: HashMap<SampleId, u64>,
    /// Tokens so far of replies that have not ended.
    partials: HashMap<SampleId, Partial>,
    groups: BTreeMap<u64, Vec<Trajectory>>,
    /// Trajectories of all of them.
    rows: usize,
    /// Complete groups in the order of completion.
    complete: VecDeque<u64>,
    /// Groups before this one may have been begun in a book that is lost.
    begun_before: u64,
    counts: Counts,
}

/// Numbers that a ledger has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Counts {
    /// Trajectories accepted, less those that were too old in the end or left out.
    pub accepted: u64,
    /// Reports refused, since the trajectory was there already.
    pub duplicates: u64,
    /// Trajectories that were too old to train and were made again.
    pub stale: u64,
    /// Trajectories of groups that were left out, since their rewards were all equal.
    pub uniform: u64,
    /// Orders given out again after their rollout was lost.
    pub reordered: u64,
    /// Orders that one rollout has handed in for others to go on with.
    pub handed_in: u64,
    /// Tokens of replies under way that were told of.
    pub tokens_told: u64,
    /// Tokens that were there already when their order was given out again.
    pub tokens_kept: u64,
    /// Orders of a book that was lost, that rollouts go on with in the next.
    pub adopted: u64,
    /// Samples that were begun in a book that was lost and that nobody has any more: they are made
    /// anew.
    pub lost: u64,
    /// Steps that the trainer had finished after the weights of those accepted when they came, over
    /// all of them: their inherent staleness (Laminar, arXiv 2510.12633).
    pub inherent_staleness: u64,
    /// The most of one.
    pub inherent_staleness_max: u64,
}

/// A rollout that asks for orders.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// Which rollout.
    pub rollout: u64,
    /// The weights with which it begins replies; `None` when it begins none and only goes on with
    /// what others have begun.
    pub begins_with: Option<Version>,
    /// The weights that it has, with which it can go on.
    pub holds: &'a [Version],
    /// The weights that rollouts have, and how many have them.
    pub held: &'a BTreeMap<Version, usize>,
    /// Tokens of what there is already of its orders, about: they come in one message.
    pub tokens_max: usize,
}

/// Trajectories and samples in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Trajectories that have come and are not in a batch yet.
    pub rows: usize,
    /// Trajectories for which there is room at a time: those of a batch that is made while others
    /// are trained on.
    pub most: usize,
    /// Those of complete groups, which a batch may take.
    pub complete: usize,
    /// Samples that rollouts work on.
    pub working: usize,
}

impl Ledger {
    /// Trajectories and samples that are in it.
    #[must_use]
    pub fn fill(&self) -> Fill {
        let group = self.config.orders() as usize;
        let batches = self.config.staleness_max as usize + 1;
        Fill {
            rows: self.rows,
            most: group * self.config.groups_per_batch * batches,
            complete: self.complete.len() * group,
            working: self.working.len(),
        }
    }

    /// An empty book.
    #[must_use]
    pub fn new(config: LedgerConfig) -> Self {
        Self::with_sampler(config, Arc::new(config.sampler))
    }

    /// An empty book with a sampler of the caller's, in the place of the one that the bounds name: for
    /// programs with a store of their own. Whatever it chooses, a batch has complete groups that are
    /// fresh enough, each once and as many as it should.
    #[must_use]
    pub fn with_sampler(config: LedgerConfig, sampler: Arc<dyn Sampler>) -> Self {
        Self {
            config,
            sampler,
            trained: 0,
            batches: BTreeMap::new(),
            next_group: 0,
            batch_begins: 0,
            used: Used::default(),
            left_out: 0,
            open: VecDeque::new(),
            working: HashMap::new(),
            partials: HashMap::new(),
            groups: BTreeMap::new(),
            rows: 0,
            complete: VecDeque::new(),
            begun_before: 0,
            counts: Counts::default(),
        }
    }

    /// A new book, for a trainer that goes on after this step, when these prompts were used. What
    /// was in this one is lost, but for what it has counted.
    pub fn begin_anew(&mut self, version: Version, used: Used) {
        let mut counts = self.counts;
        counts.accepted -= self.rows as u64;
        *self = Self {
            trained: version,
            next_group: used.below,
            batch_begins: used.below,
            used,
            begun_before: self.next_group,
            counts,
            ..Self::with_sampler(self.config, Arc::clone(&self.sampler))
        };
    }

    /// Returns true when a trainer that goes on after this step gets the same batches again, as far
    /// as there were any.
    #[must_use]
    pub fn repeats_from(&self, version: Version) -> bool {
        let newest = self.newest_step();
        version <= newest && (version + 1..=newest).all(|step| self.batches.contains_key(&step))
    }

    /// A rollout works on a sample that it was given by the book before this one, or has it judged.
    /// Returns true if it is the rollout's, and counts when it is reported: not when it is used,
    /// too old, another's, or there already.
    pub fn adopt(&mut self, rollout: u64, id: SampleId, begun: Partial) -> bool {
        self.begun_before = self.begun_before.max(id.group + 1);
        let orders = self.config.orders();
        let foreign = begun.version > self.newest_step() || self.is_stale(begun.version);
        if id.sample >= orders || self.used.has(id.group) || foreign {
            return false;
        }
        let group = self.groups.entry(id.group).or_insert_with(|| {
            let others = (0..orders).map(|sample| SampleId { sample, ..id });
            self.open.extend(others);
            vec![]
        });
        let reported = group.iter().any(|known| known.id == id);
        if reported || self.working.get(&id).is_some_and(|who| *who != rollout) {
            return false;
        }
        self.open.retain(|open| *open != id);
        if self.working.insert(id, rollout).is_none() {
            self.counts.adopted += 1;
        }
        if !begun.tokens.is_empty() {
            self.partials.insert(id, begun);
        }
        true
    }

    /// All who were there have said what they work on: what else there was in the book before is
    /// lost. Returns how many samples that were.
    pub fn settle(&mut self) -> u64 {
        let orders = u64::from(self.config.orders());
        let mut lost = 0;
        for group in self.used.below..std::mem::take(&mut self.begun_before) {
            if !self.used.has(group) {
                let come = self.groups.get(&group).map_or(0, Vec::len);
                let working = self.working.keys().filter(|id| id.group == group).count();
                lost += orders.saturating_sub((come + working) as u64);
            }
        }
        self.counts.lost += lost;
        lost
    }

    /// Groups begun and not given out in a batch.
    fn groups_in_flight(&self) -> usize {
        self.groups.len()
    }

    /// Gives out up to `most` samples: first replies that it can go on with, then new ones.
    ///
    /// A group begun now will be trained at the earliest after the groups before it: it is only
    /// begun when that is within the staleness bound of the asker's weights.
    pub fn order(&mut self, asker: Asker<'_>, most: usize) -> Vec<SampleId> {
        let (mut given, mut tokens) = (vec![], 0);
        let mut left = VecDeque::new();
        while let Some(id) = self.open.pop_front() {
            if given.len() < most && tokens < asker.tokens_max && self.suits(id, asker) {
                tokens += self.partials.get(&id).map_or(0, |it| it.tokens.len());
                given.push(id);
            } else {
                left.push_back(id);
            }
        }
        self.open = left;
        if let Some(version) = asker.begins_with {
            while given.len() < most
                && let Some(group) = self.begin_group(version)
            {
                for sample in 0..self.config.orders() {
                    let id = SampleId { group, sample };
                    if given.len() < most {
                        given.push(id);
                    } else {
                        self.open.push_back(id);
                    }
                }
            }
        }
        for id in &given {
            self.working.insert(*id, asker.rollout);
            let kept = self
                .partials
                .get(id)
                .map_or(0, |partial| partial.tokens.len());
            self.counts.tokens_kept += kept as u64;
        }
        given
    }

    /// Returns true when a sample that nobody works on is for this rollout. What nobody can go on
    /// with any more is forgotten.
    fn suits(&mut self, id: SampleId, asker: Asker<'_>) -> bool {
        if let Some(partial) = self.partials.get(&id) {
            if asker.holds.contains(&partial.version) && !self.is_stale(partial.version) {
                return true;
            }
            if asker.held.contains_key(&partial.version) && !self.is_stale(partial.version) {
                return false;
            }
            self.partials.remove(&id);
        }
        let begins = asker.begins_with;
        begins.is_some_and(|version| !self.is_stale(version))
    }

    /// Samples that nobody works on.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The tokens so far of a reply.
    #[must_use]
    pub fn partial(&self, id: SampleId) -> Option<&Partial> {
        self.partials.get(&id)
    }

    /// A rollout has come on with a reply: these are its tokens from the `from`th on. What does not
    /// join what is there is left out, and so is what it does not work on.
    pub fn came_on(&mut self, rollout: u64, id: SampleId, from: usize, more: &Partial) {
        if self.working.get(&id) != Some(&rollout) {
            return;
        }
        let partial = self.partials.entry(id).or_insert_with(|| Partial {
            version: more.version,
            life: more.life,
            ..Partial::default()
        });
        if partial.version == more.version && partial.tokens.len() == from {
            partial.append(more);
            self.counts.tokens_told += more.tokens.len() as u64;
        }
    }

    /// A rollout has ended a reply that nobody can train on: it is made again, if it was the rollout's.
    pub fn refuse(&mut self, rollout: u64, id: SampleId) {
        if self.working.get(&id) == Some(&rollout) {
            self.working.remove(&id);
            self.partials.remove(&id);
            self.open.push_front(id);
        }
    }

    /// A rollout hands in what it does not want to end itself.
    pub fn hand_in(&mut self, rollout: u64, ids: &[SampleId]) {
        for id in ids.iter().rev() {
            if self.working.get(id) == Some(&rollout) {
                self.working.remove(id);
                self.open.push_front(*id);
                self.counts.handed_in += 1;
            }
        }
    }

    /// The step whose batch is the next to be made.
    #[must_use]
    pub fn next_step(&self) -> u64 {
        self.newest_step() + 1
    }

    /// The newest step with a batch, or trained.
    fn newest_step(&self) -> Version {
        let taken = self.batches.keys().next_back().copied();
        taken.unwrap_or(self.trained).max(self.trained)
    }

    /// Returns true when a reply of these weights could not be trained on any more.
    fn is_stale(&self, version: Version) -> bool {
        self.newest_step().saturating_sub(version) > self.config.staleness_max
    }

    fn begin_group(&mut self, version: Version) -> Option<u64> {
        // The batch in the trainer's hands is counted as trained: its successor is the next.
        let batches_ahead = (self.groups_in_flight() / self.config.groups_per_batch) as u64;
        let trains_at = self.newest_step() + batches_ahead;
        if trains_at.saturating_sub(version) > self.config.staleness_max {
            return None;
        }
        // Some may have been adopted.
        while self.used.has(self.next_group) || self.groups.contains_key(&self.next_group) {
            self.next_group += 1;
        }
        let group = self.next_group;
        self.next_group += 1;
        self.groups.insert(group, vec![]);
        Some(group)
    }

    /// A rollout reports a finished trajectory.
    pub fn report(&mut self, trajectory: Trajectory) -> Admission {
        let id = trajectory.id;
        let too_old = self.is_stale(trajectory.version);
        let Some(group) = self.groups.get_mut(&id.group) else {
            self.counts.duplicates += 1;
            return Admission::Duplicate;
        };
        if id.sample >= self.config.orders() || group.iter().any(|known| known.id == id) {
            self.counts.duplicates += 1;
            return Admission::Duplicate;
        }
        let was_open = !self.working.contains_key(&id);
        self.working.remove(&id);
        self.partials.remove(&id);
        if too_old {
            self.counts.stale += 1;
            if !was_open {
                self.open.push_back(id);
            }
            return Admission::Stale;
        }
        if was_open {
            // It was ordered again after its rollout was thought lost, and arrived after all.
            self.open.retain(|open| *open != id);
        }
        let inherent = self.trained.saturating_sub(trajectory.version);
        self.counts.inherent_staleness += inherent;
        let most = &mut self.counts.inherent_staleness_max;
        *most = inherent.max(*most);
        group.push(trajectory);
        self.rows += 1;
        self.counts.accepted += 1;
        if group.len() == self.config.orders() as usize {
            group.sort_by_key(|trajectory| trajectory.id);
            let samples = &group[..self.config.group_size as usize];
            let first = samples[0].reward;
            if samples.iter().all(|sample| sample.reward == first) && !self.keeps_uniform(id.group)
            {
                self.leave_out(id.group);
            } else {
                self.complete.push_back(id.group);
            }
        }
        Admission::Accepted
    }

    /// Returns true when a group without a difference stays. It depends on the group's number and
    /// not on how many were left out by now, so that the order in which groups end does not matter.
    const fn keeps_uniform(&self, group: u64) -> bool {
        match self.config.uniform {
            Uniform::Kept => true,
            Uniform::Refilled { rounds } => {
                group >= self.batch_begins + rounds as u64 * self.config.groups_per_batch as u64
            }
        }
    }

    fn leave_out(&mut self, group: u64) {
        let left_out = self.groups.remove(&group).unwrap_or_default().len();
        self.rows -= left_out;
        let left_out = left_out as u64;
        self.counts.accepted -= left_out;
        self.counts.uniform += left_out;
        self.left_out += 1;
        self.used.add(group);
    }

    /// The batch of a step, when enough groups are complete. The same step always gives the same
    /// batch.
    pub fn take(&mut self, step: u64) -> Option<Batch> {
        if let Some(batch) = self.batches.get(&step) {
            return Some(batch.clone());
        }
        if step != self.next_step() {
            return None;
        }
        if self.complete.len() < self.config.groups_per_batch {
            return None;
        }
        self.drop_stale_groups(step - 1);
        if self.complete.len() < self.config.groups_per_batch {
            return None;
        }
        let taken = self.choose();
        self.complete.retain(|group| !taken.contains(group));
        let (mut trajectories, mut greedy) = (vec![], vec![]);
        for group in taken {
            self.used.add(group);
            let samples = self.groups.remove(&group).unwrap_or_default();
            self.rows -= samples.len();
            for trajectory in samples {
                match self.config.decode(trajectory.id.sample) {
                    Decode::Sampled => trajectories.push(trajectory),
                    Decode::Greedy => greedy.push(GreedyReply {
                        reward: trajectory.reward,
                        tokens: trajectory.response.len(),
                    }),
                }
            }
        }
        let batch = Batch {
            step,
            trajectories,
            group_size: self.config.group_size,
            greedy,
            uniform: std::mem::take(&mut self.left_out),
            used: self.used.clone(),
        };
        self.batch_begins = self.next_group;
        self.batches.insert(step, batch.clone());
        Some(batch)
    }

    /// The groups of the next batch. There are as many as it takes.
    fn choose(&self) -> BTreeSet<u64> {
        let count = self.config.groups_per_batch;
        let candidates = self.complete.iter().map(|group| {
            let replies = self.groups.get(group).map_or(&[][..], Vec::as_slice);
            let samples = replies.len().min(self.config.group_size as usize);
            Candidate::of(*group, &replies[..samples])
        });
        let candidates: Vec<Candidate> = candidates.collect();
        let chosen = self.sampler.choose(&candidates, count);
        let mut seen = HashSet::new();
        let positions = chosen.into_iter().chain(0..candidates.len());
        let groups = positions
            .filter(|at| seen.insert(*at))
            .filter_map(|at| candidates.get(at));
        // Whoever was quick, the same groups make the same batch.
        groups.take(count).map(|it| it.group).collect()
    }

    /// Groups that waited too long are generated again with newer weights.
    fn drop_stale_groups(&mut self, version: Version) {
        let too_old = |trajectory: &Trajectory| {
            version.saturating_sub(trajectory.version) > self.config.staleness_max
        };
        let mut again = BTreeSet::new();
        for (group, trajectories) in &mut self.groups {
            let before = trajectories.len();
            trajectories.retain(|trajectory| {
                let old = too_old(trajectory);
                if old {
                    again.insert(trajectory.id);
                }
                !old
            });
            if trajectories.len() < before {
                self.complete.retain(|complete| complete != group);
            }
        }
        self.rows -= again.len();
        self.counts.stale += again.len() as u64;
        self.counts.accepted -= again.len() as u64;
        self.open.extend(again);
    }

    /// The trainer has finished a step.
    pub fn trained(&mut self, version: Version) {
        self.trained = self.trained.max(version);
    }

    /// The weights after `version` steps are safe on disk: earlier batches are not needed again.
    pub fn durable(&mut self, version: Version) {
        self.trained(version);
        self.batches = self.batches.split_off(&(version + 1));
    }

    /// A rollout is gone: its orders are open again. Returns how many.
    pub fn rollout_lost(&mut self, rollout: u64) -> usize {
        let mut lost: Vec<_> = self
            .working
            .iter()
            .filter(|(_, who)| **who == rollout)
            .map(|(id, _)| *id)
            .collect();
        lost.sort_unstable();
        for id in lost.iter().rev() {
            self.working.remove(id);
            self.open.push_front(*id);
        }
        self.counts.reordered += lost.len() as u64;
        lost.len()
    }

    /// Its bounds.
    #[must_use]
    pub const fn config(&self) -> &LedgerConfig {
        &self.config
    }

    /// Numbers that it has counted so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::trajectory::Observed;

    fn trajectory(id: SampleId, version: Version) -> Trajectory {
        Trajectory {
            id,
            version,
            last_version: version,
            life: 1,
            last_life: 1,
            prompt: vec![],
            response: vec![],
            log_probs: vec![],
            observed: Observed::default(),
            waited: Duration::ZERO,
            problem: id.group,
            reward: 0.0,
            correct: false,
            cost: 0.0,
        }
    }

    /// Orders for a rollout with one set of weights, which nobody else has.
    fn ask(ledger: &mut Ledger, rollout: u64, version: Version, most: usize) -> Vec<SampleId> {
        let asker = Asker {
            rollout,
            begins_with: Some(version),
            holds: &[version],
            held: &BTreeMap::from([(version, 1)]),
            tokens_max: 64,
        };
        ledger.order(asker, most)
    }

    const CONFIG: LedgerConfig = LedgerConfig::new(3, 2, 1);

    #[test]
    fn with_bound_zero_orders_stop_at_one_batch() {
        let mut ledger = Ledger::new(LedgerConfig {
            staleness_max: 0,
            ..CONFIG
        });
        let orders = ask(&mut ledger, 1, 0, 100);
        assert_eq!(orders.len(), 6);
        for id in orders {
            assert_eq!(ledger.report(trajectory(id, 0)), Admission::Accepted);
        }
        assert_eq!(ledger.take(1).unwrap().trajectories.len(), 6);
        assert!(
            ask(&mut ledger, 1, 0, 100).is_empty(),
            "the old weights may not begin the next batch"
        );
        ledger.trained(1);
        assert_eq!(ask(&mut ledger, 1, 1, 100).len(), 6);
    }

    /// SEMANTICS 34.
    #[test]
    fn a_step_taken_again_gives_the_same_batch_until_it_is_durable() {
        let mut ledger = Ledger::new(CONFIG);
        for id in ask(&mut ledger, 1, 0, 100) {
            ledger.report(trajectory(id, 0));
        }
        let first = ledger.take(1).unwrap();
        assert_eq!(ledger.take(1), Some(first));
        assert_eq!(ledger.take(3), None, "no step may be left out");
        ledger.durable(1);
        assert_eq!(ledger.take(1), None);
    }

    const REFILLED: LedgerConfig = LedgerConfig {
        uniform: Uniform::Refilled { rounds: 3 },
        staleness_max: 0,
        ..CONFIG
    };

    /// A reply whose reward follows from its number and the seed: of four groups, about one has
    /// replies of different rewards.
    fn judged(id: SampleId, version: Version, seed: u64) -> Trajectory {
        let luck = (id.group ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62;
        let right = match luck {
            0 => true,
            1 => id.sample == 0,
            _ => false,
        };
        Trajectory {
            reward: f32::from(u8::from(right)),
            ..trajectory(id, version)
        }
    }

    /// The next batch, when rollouts end what they do in an order that the chooser gives.
    fn synchronous_step(
        ledger: &mut Ledger,
        version: Version,
        seed: u64,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Batch {
        let mut hands = vec![];
        loop {
            hands.extend(ask(ledger, 1, version, 1 + choose(4)));
            if !hands.is_empty() {
                let id = hands.swap_remove(choose(hands.len()));
                ledger.report(judged(id, version, seed));
            }
            if let Some(batch) = ledger.take(version + 1) {
                ledger.trained(version + 1);
                ledger.durable(version + 1);
                return batch;
            }
        }
    }

    fn chooser(mut state: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        }
    }

    #[test]
    fn a_greedy_reply_is_compared_with_and_not_trained_on() {
        let mut ledger = Ledger::new(LedgerConfig {
            greedy: Greedy::Yes,
            ..CONFIG
        });
        let orders = ask(&mut ledger, 1, 0, 8);
        let greedy = |id: &SampleId| ledger.config.decode(id.sample) == Decode::Greedy;
        assert_eq!(orders.iter().filter(|id| greedy(id)).count(), 2);
        for id in orders {
            let reward = (10 * id.group + u64::from(id.sample)) as f32;
            let reply = Trajectory {
                reward,
                ..trajectory(id, 0)
            };
            assert_eq!(ledger.report(reply), Admission::Accepted);
        }
        let batch = ledger.take(1).unwrap();
        let samples: Vec<f32> = batch.trajectories.iter().map(|it| it.reward).collect();
        assert_eq!(samples, [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
        let greedy: Vec<f32> = batch.greedy.iter().map(|it| it.reward).collect();
        assert_eq!(greedy, [3.0, 13.0]);
    }

    /// SEMANTICS 78.
    #[test]
    fn a_reply_goes_on_where_its_weights_are_and_begins_anew_when_they_are_nowhere() {
        let mut ledger = Ledger::new(CONFIG);
        let ids = ask(&mut ledger, 1, 0, 3);
        let begin = |tokens: Vec<u32>| Partial {
            version: 0,
            life: 1,
            log_probs: vec![-0.5; tokens.len()],
            tokens,
            ..Partial::default()
        };
        ledger.came_on(1, ids[0], 0, &begin(vec![7, 8]));
        ledger.came_on(1, ids[0], 2, &begin(vec![9]));
        ledger.came_on(1, ids[0], 2, &begin(vec![1, 1]));
        ledger.came_on(2, ids[1], 0, &begin(vec![5]));
        assert_eq!(ledger.partial(ids[0]).unwrap().tokens, [7, 8, 9]);
        assert_eq!(ledger.partial(ids[1]), None, "2 does not work on it");
        ledger.rollout_lost(1);

        // One with newer weights begins replies; while another has the old ones, it leaves this to it.
        let held = BTreeMap::from([(0, 1), (1, 1)]);
        let newer = Asker {
            rollout: 2,
            begins_with: Some(1),
            holds: &[1],
            held: &held,
            tokens_max: 64,
        };
        assert_eq!(ledger.order(newer, 2), ids[1..]);
        let continues = Asker {
            rollout: 3,
            begins_with: None,
            holds: &[0],
            held: &held,
            tokens_max: 64,
        };
        assert_eq!(ledger.order(continues, 5), ids[..1], "and nothing new");
        assert_eq!(ledger.counts().tokens_kept, 3);
        ledger.hand_in(2, &ids[1..]);
        ledger.hand_in(3, &ids[..1]);
        ledger.hand_in(3, &ids[1..]);
        assert_eq!(
            ledger.counts().handed_in,
            3,
            "nobody hands in what others have"
        );
        // Nobody has the old weights any more.
        assert_eq!(ask(&mut ledger, 2, 1, 3), ids);
        assert_eq!(ledger.partial(ids[0]), None, "it begins anew");
    }

    /// SEMANTICS 76.
    #[test]
    fn a_task_that_is_never_learnt_is_tried_so_often_and_then_trained_on_as_it_is() {
        let mut ledger = Ledger::new(REFILLED);
        let mut given = 0;
        let batch = loop {
            let orders = ask(&mut ledger, 1, 0, 1);
            given += orders.len();
            for id in orders {
                ledger.report(trajectory(id, 0));
            }
            if let Some(batch) = ledger.take(1) {
                break batch;
            }
        };
        assert_eq!(batch.uniform, 6, "three rounds of two prompts");
        assert_eq!(given, 3 * (6 + 2));
        assert_eq!(batch.used, Used::first(8));
        assert_eq!(ledger.counts().uniform, 18);
        assert_eq!(ledger.counts().accepted, 6);
    }

    proptest! {
        /// SEMANTICS 76.
        #[test]
        fn uniform_groups_are_left_out_and_who_is_quick_does_not_matter(
            seed in any::<u64>(),
            quick in any::<u64>(),
            stop in 0u64..6,
        ) {
            let mut first = Ledger::new(REFILLED);
            let mut second = Ledger::new(REFILLED);
            let (mut in_order, mut other) = (chooser(1), chooser(quick));
            let mut begins = 0;
            for version in 0..6 {
                if version == stop {
                    // The second run is stopped and goes on from its checkpoint.
                    let used = second.used.clone();
                    second = Ledger::new(REFILLED);
                    second.begin_anew(version, used);
                }
                let batch = synchronous_step(&mut first, version, seed, &mut in_order);
                prop_assert_eq!(&synchronous_step(&mut second, version, seed, &mut other), &batch);
                for group in batch.trajectories.chunks(3) {
                    let uniform = group.iter().all(|it| it.reward == group[0].reward);
                    let tried_enough = group[0].id.group >= begins + 3 * 2;
                    prop_assert!(!uniform || tried_enough, "{:?}", group);
                }
                begins = batch.used.below;
                prop_assert!(batch.used.beyond.is_empty());
            }
        }

        /// SEMANTICS 76.
        #[test]
        fn a_run_that_goes_on_begins_no_prompt_twice_and_leaves_none_out(
            seed in any::<u64>(),
            stops in prop::collection::vec(1usize..40, 1..6),
        ) {
            let config = LedgerConfig { staleness_max: 2, ..REFILLED };
            let mut ledger = Ledger::new(config);
            let mut choose = chooser(seed);
            let (mut version, mut used) = (0, Used::default());
            let mut trained: HashSet<u64> = HashSet::new();
            for stop in stops {
                let mut hands = vec![];
                for _ in 0..stop {
                    hands.extend(ask(&mut ledger, 1, version, 5));
                    for _ in 0..choose(6) {
                        if !hands.is_empty() {
                            let id = hands.swap_remove(choose(hands.len()));
                            ledger.report(judged(id, version, seed));
                        }
                    }
                    if let Some(batch) = ledger.take(version + 1) {
                        for group in batch.trajectories.chunks(3) {
                            prop_assert!(trained.insert(group[0].id.group), "twice");
                            prop_assert!(batch.used.has(group[0].id.group));
                        }
                        version += 1;
                        used = batch.used;
                        ledger.trained(version);
                    }
                }
                // Killed: what was on its way is lost, and begun again.
                ledger = Ledger::new(config);
                ledger.begin_anew(version, used.clone());
                let next = ask(&mut ledger, 1, version, 1);
                prop_assert_eq!(next[0].group, used.below);
                ledger = Ledger::new(config);
                ledger.begin_anew(version, used.clone());
            }
        }

        /// SEMANTICS 77.
        #[test]
        fn in_a_synchronous_run_all_samplers_make_the_same_batches(
            seed in any::<u64>(),
            quick in any::<u64>(),
        ) {
            let with = |sampler| LedgerConfig { sampler, ..REFILLED };
            let mut all = SAMPLERS.map(|sampler| (Ledger::new(with(sampler)), chooser(quick)));
            for version in 0..4 {
                let batches = all.iter_mut().map(|(ledger, choose)| {
                    synchronous_step(ledger, version, seed, choose)
                });
                let batches: Vec<Batch> = batches.collect();
                for batch in &batches {
                    prop_assert_eq!(batch, &batches[0]);
                }
            }
        }

        /// SEMANTICS 32, 33, 34, 38, 78.
        /// Whatever rollouts, trainer and sampler do, and whenever the book or the trainer is lost,
        /// batches are whole, nothing is counted twice, nothing trained is too old, and the run always
        /// can go on.
        #[test]
        fn every_sample_is_counted_once_and_the_run_goes_on(
            actions in prop::collection::vec((0u8..50, 0u64..3), 1..400),
            staleness_max in 0u64..3,
            sampler in sampler(),
        ) {
            let config = LedgerConfig { staleness_max, ..CONFIG };
            let mut world = World::new(config, sampler);
            for (action, who) in actions {
                match action {
                    0..=9 => world.ask(who),
                    10..=29 => { world.report(who); }
                    30..=33 => world.come_on(who),
                    34 => world.hand_in(who),
                    // It may have gone on, and what it ends may still arrive.
                    35 => { world.ledger.rollout_lost(who); }
                    36 => world.save(),
                    37 => world.lose_trainer(),
                    38 => world.lose_book(who),
                    39 => {
                        world.lose_book(who);
                        world.lose_trainer();
                    }
                    _ => { world.train(); }
                }
            }
            // One rollout that does all that is asked of it finishes three more steps.
            for who in 0..3 {
                world.ledger.rollout_lost(who);
            }
            let goal = world.version() + 3;
            for _ in 0..1_000 {
                if world.version() >= goal {
                    break;
                }
                world.ask(9);
                while world.report(9) {}
                world.train();
            }
            prop_assert!(world.version() >= goal, "stuck at {}", world.version());
        }
    }

    const SAMPLERS: [SamplerSpec; 4] = [
        SamplerSpec::Fifo,
        SamplerSpec::Freshest,
        SamplerSpec::Oldest,
        SamplerSpec::Spread,
    ];

    /// One of those that there are, or one that keeps to no rule.
    fn sampler() -> impl Strategy<Value = Arc<dyn Sampler>> {
        let known = prop::sample::select(SAMPLERS.to_vec());
        let known = known.prop_map(|sampler| Arc::new(sampler) as Arc<dyn Sampler>);
        let unruly = prop::collection::vec(0usize..9, 0..5);
        let unruly = unruly.prop_map(|said| Arc::new(Unruly(said)) as Arc<dyn Sampler>);
        prop_oneof![4 => known, 1 => unruly]
    }

    /// Says the same whatever there is.
    #[derive(Debug)]
    struct Unruly(Vec<usize>);

    impl Sampler for Unruly {
        fn choose(&self, _complete: &[Candidate], _count: usize) -> Vec<usize> {
            self.0.clone()
        }
    }

    /// A book, and who deals with it.
    struct World {
        config: LedgerConfig,
        sampler: Arc<dyn Sampler>,
        ledger: Ledger,
        /// Samples that each rollout works on, and with which weights.
        hands: HashMap<u64, Vec<(SampleId, Version, Weights)>>,
        /// The batches of the steps that the present weights come from.
        trained: Vec<Batch>,
        /// Of these, how many are safe.
        saved: usize,
        /// The weights of each version, also of those that come again after a loss.
        weights: Vec<Weights>,
    }

    /// A number for all batches that weights come from.
    type Weights = u64;

    impl World {
        fn new(config: LedgerConfig, sampler: Arc<dyn Sampler>) -> Self {
            let mut world = Self {
                config,
                ledger: Ledger::with_sampler(config, Arc::clone(&sampler)),
                sampler,
                hands: HashMap::new(),
                trained: vec![],
                saved: 0,
                weights: vec![],
            };
            world.weights.push(world.weights_after(0));
            world
        }

        fn version(&self) -> Version {
            self.trained.len() as u64
        }

        /// The weights that so many of the present batches make: the same batches make the same.
        fn weights_after(&self, steps: usize) -> Weights {
            let mut hasher = DefaultHasher::new();
            for batch in &self.trained[..steps] {
                for reply in &batch.trajectories {
                    (reply.id, reply.version).hash(&mut hasher);
                }
            }
            hasher.finish()
        }

        fn hands(&mut self, who: u64) -> &mut Vec<(SampleId, Version, Weights)> {
            self.hands.entry(who).or_default()
        }

        fn ask(&mut self, who: u64) {
            let version = self.version();
            let orders = ask(&mut self.ledger, who, version, 4);
            for partial in orders.iter().filter_map(|id| self.ledger.partial(*id)) {
                assert_eq!(partial.version, version);
            }
            let weights = self.weights_after(self.trained.len());
            let given = orders.into_iter().map(|id| (id, version, weights));
            self.hands(who).extend(given);
        }

        fn report(&mut self, who: u64) -> bool {
            let Some((id, made, weights)) = self.hands(who).pop() else {
                return false;
            };
            // The store takes nothing that was made with weights which the trainer has lost.
            if self.is_of_run(made, weights) {
                let reply = judged(id, made, 3);
                self.ledger.report(reply.clone());
                let again = self.ledger.report(reply);
                assert_ne!(again, Admission::Accepted);
            }
            true
        }

        /// Returns true when the present weights come from these, or the same batches will make
        /// them again.
        fn is_of_run(&self, version: Version, weights: Weights) -> bool {
            let known = self.weights.get(version as usize);
            known == Some(&weights)
        }

        fn come_on(&mut self, who: u64) {
            // As far as it knows.
            for (id, made, weights) in self.hands(who).clone() {
                if !self.is_of_run(made, weights) {
                    continue;
                }
                let from = self.ledger.partial(id).map_or(0, |it| it.tokens.len());
                self.ledger.came_on(who, id, from, &begun(made, who));
            }
        }

        fn hand_in(&mut self, who: u64) {
            let ids: Vec<_> = self.hands(who).drain(..).map(|(id, ..)| id).collect();
            self.ledger.hand_in(who, &ids);
        }

        fn train(&mut self) -> bool {
            let version = self.version();
            let Some(batch) = self.ledger.take(version + 1) else {
                return false;
            };
            let before = self.trained.iter().flat_map(|batch| &batch.trajectories);
            let before: HashSet<SampleId> = before.map(|reply| reply.id).collect();
            let (size, groups) = (
                self.config.group_size as usize,
                self.config.groups_per_batch,
            );
            assert_eq!(batch.trajectories.len(), size * groups);
            for group in batch.trajectories.chunks(size) {
                let whole = (0..).zip(group);
                let whole = whole
                    .map(|(sample, it)| (it.id.group, it.id.sample) == (group[0].id.group, sample));
                assert!(whole.into_iter().all(|fits| fits), "{group:?}");
            }
            assert_eq!(self.ledger.take(version + 1).as_ref(), Some(&batch));
            for reply in &batch.trajectories {
                assert!(!before.contains(&reply.id), "{:?} twice", reply.id);
                assert!(version - reply.version <= self.config.staleness_max);
            }
            self.trained.push(batch);
            let weights = self.weights_after(self.trained.len());
            match self.weights.get(self.trained.len()) {
                Some(known) => assert_eq!(*known, weights, "another batch for a step"),
                None => self.weights.push(weights),
            }
            self.ledger.trained(self.version());
            true
        }

        fn save(&mut self) {
            self.saved = self.trained.len();
            self.ledger.durable(self.version());
        }

        fn used(&self) -> Used {
            self.trained
                .last()
                .map(|it| it.used.clone())
                .unwrap_or_default()
        }

        /// It comes back from its checkpoint.
        fn lose_trainer(&mut self) {
            self.trained.truncate(self.saved);
            if !self.ledger.repeats_from(self.version()) {
                self.begin_anew(|_| true);
            }
        }

        /// All but one of the rollouts say what they work on.
        fn lose_book(&mut self, silent: u64) {
            self.ledger = Ledger::with_sampler(self.config, Arc::clone(&self.sampler));
            self.begin_anew(|who| who != silent);
        }

        fn begin_anew(&mut self, speaks: impl Fn(u64) -> bool) {
            let (version, used) = (self.version(), self.used());
            self.ledger.begin_anew(version, used);
            self.weights.truncate(self.trained.len() + 1);
            for (who, hands) in self.hands.clone() {
                for (id, made, weights) in hands {
                    if speaks(who) && self.is_of_run(made, weights) {
                        self.ledger.adopt(who, id, begun(made, who));
                    }
                }
            }
            self.ledger.settle();
        }
    }

    /// A token of a reply.
    fn begun(version: Version, who: u64) -> Partial {
        Partial {
            version,
            life: 1,
            tokens: vec![who as u32],
            log_probs: vec![0.0],
            ..Partial::default()
        }
    }

    /// SEMANTICS 38.
    #[test]
    fn a_book_that_follows_a_lost_one_goes_on_with_what_rollouts_have_and_makes_the_rest_anew() {
        let mut before = Ledger::new(CONFIG);
        let first = ask(&mut before, 1, 0, 6);
        let second = ask(&mut before, 2, 0, 3);
        for id in &first[..3] {
            before.report(trajectory(*id, 0));
        }
        // Lost with the book: the first group. 1 has the second, and 2 says nothing of the third but
        // for one sample.
        let mut ledger = Ledger::new(CONFIG);
        ledger.begin_anew(0, Used::default());
        let part = |tokens: Vec<u32>, version| Partial {
            version,
            life: 1,
            log_probs: vec![0.0; tokens.len()],
            tokens,
            ..Partial::default()
        };
        for id in &first[3..] {
            assert!(ledger.adopt(1, *id, part(vec![4, 5], 0)));
            assert!(ledger.adopt(1, *id, part(vec![4, 5], 0)), "said twice");
        }
        assert!(ledger.adopt(2, second[1], part(vec![], 0)));
        assert!(!ledger.adopt(1, second[1], part(vec![], 0)), "it is 2's");
        assert!(
            !ledger.adopt(1, second[0], part(vec![], 1)),
            "of no weights"
        );
        assert_eq!(ledger.settle(), 3 + 2);
        assert_eq!(ledger.settle(), 0, "counted once");
        let counts = ledger.counts();
        assert_eq!((counts.adopted, counts.lost), (4, 5));
        // What is open comes first, then the group of which nobody has anything.
        let orders = ask(&mut ledger, 3, 0, 100);
        assert_eq!(
            orders[..5],
            [second[0], second[2], first[0], first[1], first[2]]
        );
        // A lost rollout's part is not: it was told of.
        ledger.rollout_lost(1);
        assert_eq!(ask(&mut ledger, 3, 0, 3), first[3..]);
        assert_eq!(ledger.partial(first[3]).map(|it| it.tokens.len()), Some(2));
        // What the trainer has used comes to nobody again.
        let mut ledger = Ledger::new(CONFIG);
        ledger.begin_anew(1, Used::first(2));
        assert!(!ledger.adopt(1, first[0], part(vec![], 1)));
        assert_eq!(ledger.settle(), 0);
        assert_eq!(ask(&mut ledger, 1, 1, 1)[0].group, 2);
    }

    /// SEMANTICS 34.
    #[test]
    fn a_trainer_goes_back_in_the_same_book_as_far_as_its_batches_are_there() {
        let mut ledger = Ledger::new(CONFIG);
        for version in 0..3 {
            for id in ask(&mut ledger, 1, version, 6) {
                ledger.report(trajectory(id, version));
            }
            assert!(ledger.take(version + 1).is_some());
            ledger.trained(version + 1);
        }
        assert!((0..=3).all(|version| ledger.repeats_from(version)));
        assert!(!ledger.repeats_from(4), "nobody was there yet");
        ledger.durable(2);
        assert!(!ledger.repeats_from(1));
        assert!(ledger.repeats_from(2));
        ledger.begin_anew(3, Used::first(6));
        assert!(!ledger.repeats_from(2), "those were in the book before");
    }
}
