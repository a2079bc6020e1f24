//! The book of a run's trajectories: which are ordered, finished, waiting and consumed. Pure.
//!
//! - A trajectory is counted once: a second report of the same sample is refused.
//! - A batch belongs to its step. Taking the same step again gives the same batch, so a trainer
//!   that comes back from a checkpoint replays exactly what it had lost. Batches are kept until the
//!   step is durable.
//! - Orders of a rollout that is gone are given out again.
//! - Orders are given out only while their trajectories can still be trained within the staleness
//!   bound; with bound 0 this is synchronous training.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::trajectory::{Batch, SampleId, Trajectory, Version};

/// The bounds of a [`Ledger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Samples of each prompt.
    pub group_size: u32,
    /// Prompts in a batch.
    pub groups_per_batch: usize,
    /// The most optimiser steps that may lie between the weights that made a trajectory and the
    /// weights that it trains.
    pub staleness_max: u64,
}

/// What became of a reported trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is in.
    Accepted,
    /// It was in already, or was never ordered.
    Duplicate,
    /// Too old: its sample is ordered again.
    Stale,
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    config: LedgerConfig,
    /// Steps that the trainer has finished.
    trained: Version,
    /// Batches given out and not durable, by step.
    batches: BTreeMap<u64, Batch>,
    next_group: u64,
    /// Samples that nobody works on.
    open: VecDeque<SampleId>,
    /// Who works on what.
    working: HashMap<SampleId, u64>,
    groups: BTreeMap<u64, Vec<Trajectory>>,
    /// Complete groups in the order of completion.
    complete: VecDeque<u64>,
    /// Trajectories accepted, less those that were too old in the end.
    counted: u64,
    /// Reports refused as duplicates.
    refused: u64,
    /// Trajectories too old to train.
    stale: u64,
}

/// How full a ledger is, in samples.
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
    /// How full it is.
    #[must_use]
    pub fn fill(&self) -> Fill {
        let group = self.config.group_size as usize;
        let batches = self.config.staleness_max as usize + 1;
        Fill {
            rows: self.groups.values().map(Vec::len).sum(),
            most: group * self.config.groups_per_batch * batches,
            complete: self.complete.len() * group,
            working: self.working.len(),
        }
    }

    /// An empty book.
    #[must_use]
    pub fn new(config: LedgerConfig) -> Self {
        Self {
            config,
            trained: 0,
            batches: BTreeMap::new(),
            next_group: 0,
            open: VecDeque::new(),
            working: HashMap::new(),
            groups: BTreeMap::new(),
            complete: VecDeque::new(),
            counted: 0,
            refused: 0,
            stale: 0,
        }
    }

    /// Groups begun and not given out in a batch.
    fn groups_in_flight(&self) -> usize {
        self.groups.len()
    }

    /// Gives out up to `most` samples to a rollout that has the weights of `version`.
    ///
    /// A group begun now will be trained at the earliest after the groups before it: it is only
    /// begun when that is within the staleness bound of `version`.
    pub fn order(&mut self, rollout: u64, version: Version, most: usize) -> Vec<SampleId> {
        let mut given = vec![];
        while given.len() < most {
            if self.open.is_empty() && !self.begin_group(version) {
                break;
            }
            let Some(id) = self.open.pop_front() else {
                break;
            };
            self.working.insert(id, rollout);
            given.push(id);
        }
        given
    }

    fn begin_group(&mut self, version: Version) -> bool {
        // The batch in the trainer's hands is counted as trained: its successor is the next.
        let taken = self
            .batches
            .keys()
            .next_back()
            .copied()
            .unwrap_or(self.trained);
        let batches_ahead = (self.groups_in_flight() / self.config.groups_per_batch) as u64;
        let trains_at = taken.max(self.trained) + batches_ahead;
        if trains_at.saturating_sub(version) > self.config.staleness_max {
            return false;
        }
        let group = self.next_group;
        self.next_group += 1;
        self.groups.insert(group, vec![]);
        self.open
            .extend((0..self.config.group_size).map(|sample| SampleId { group, sample }));
        true
    }

    /// A rollout reports a finished trajectory.
    pub fn report(&mut self, trajectory: Trajectory) -> Admission {
        let id = trajectory.id;
        let next = self
            .batches
            .keys()
            .next_back()
            .copied()
            .unwrap_or(self.trained);
        let Some(group) = self.groups.get_mut(&id.group) else {
            self.refused += 1;
            return Admission::Duplicate;
        };
        if id.sample >= self.config.group_size || group.iter().any(|known| known.id == id) {
            self.refused += 1;
            return Admission::Duplicate;
        }
        let was_open = !self.working.contains_key(&id);
        self.working.remove(&id);
        if next.saturating_sub(trajectory.version) > self.config.staleness_max {
            self.stale += 1;
            if !was_open {
                self.open.push_back(id);
            }
            return Admission::Stale;
        }
        if was_open {
            // It was ordered again after its rollout was thought lost, and arrived after all.
            self.open.retain(|open| *open != id);
        }
        group.push(trajectory);
        self.counted += 1;
        if group.len() == self.config.group_size as usize {
            group.sort_by_key(|trajectory| trajectory.id);
            self.complete.push_back(id.group);
        }
        Admission::Accepted
    }

    /// The batch of a step, when enough groups are complete. The same step always gives the same
    /// batch.
    pub fn take(&mut self, step: u64) -> Option<Batch> {
        if let Some(batch) = self.batches.get(&step) {
            return Some(batch.clone());
        }
        let last = self
            .batches
            .keys()
            .next_back()
            .copied()
            .unwrap_or(self.trained);
        if step != last + 1 {
            return None;
        }
        self.drop_stale_groups(step - 1);
        if self.complete.len() < self.config.groups_per_batch {
            return None;
        }
        let mut trajectories = vec![];
        for group in self.complete.drain(..self.config.groups_per_batch) {
            trajectories.extend(self.groups.remove(&group).unwrap_or_default());
        }
        let batch = Batch {
            step,
            trajectories,
            group_size: self.config.group_size,
        };
        self.batches.insert(step, batch.clone());
        Some(batch)
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
        self.stale += again.len() as u64;
        self.counted -= again.len() as u64;
        self.open.extend(again);
    }

    /// The trainer has finished a step, or goes on after an earlier run's.
    pub fn trained(&mut self, version: Version) {
        // An earlier run has used the first prompts.
        if self.next_group == 0 {
            self.next_group = version * self.config.groups_per_batch as u64;
        }
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
        lost.len()
    }

    /// Trajectories accepted, reports refused as duplicates, and trajectories too old to train.
    #[must_use]
    pub const fn counts(&self) -> (u64, u64, u64) {
        (self.counted, self.refused, self.stale)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn trajectory(id: SampleId, version: Version) -> Trajectory {
        Trajectory {
            id,
            version,
            prompt: vec![],
            response: vec![],
            log_probs: vec![],
            problem: id.group,
            reward: 0.0,
            correct: false,
        }
    }

    const CONFIG: LedgerConfig = LedgerConfig {
        group_size: 3,
        groups_per_batch: 2,
        staleness_max: 1,
    };

    #[test]
    fn with_bound_zero_orders_stop_at_one_batch() {
        let mut ledger = Ledger::new(LedgerConfig {
            staleness_max: 0,
            ..CONFIG
        });
        let orders = ledger.order(1, 0, 100);
        assert_eq!(orders.len(), 6);
        for id in orders {
            assert_eq!(ledger.report(trajectory(id, 0)), Admission::Accepted);
        }
        assert_eq!(ledger.take(1).unwrap().trajectories.len(), 6);
        assert!(
            ledger.order(1, 0, 100).is_empty(),
            "the old weights may not begin the next batch"
        );
        ledger.trained(1);
        assert_eq!(ledger.order(1, 1, 100).len(), 6);
    }

    /// SEMANTICS 34.
    #[test]
    fn a_step_taken_again_gives_the_same_batch_until_it_is_durable() {
        let mut ledger = Ledger::new(CONFIG);
        for id in ledger.order(1, 0, 100) {
            ledger.report(trajectory(id, 0));
        }
        let first = ledger.take(1).unwrap();
        assert_eq!(ledger.take(1), Some(first));
        assert_eq!(ledger.take(3), None, "no step may be left out");
        ledger.durable(1);
        assert_eq!(ledger.take(1), None);
    }

    proptest! {
        /// SEMANTICS 32, 33.
        /// Whatever rollouts and trainer do, nothing is counted twice, nothing trained is too old,
        /// and the run always can go on.
        #[test]
        fn every_sample_is_counted_once_and_the_run_goes_on(
            actions in prop::collection::vec((0u8..8, 0u64..3), 1..300),
            staleness_max in 0u64..3,
        ) {
            let config = LedgerConfig { staleness_max, ..CONFIG };
            let mut ledger = Ledger::new(config);
            let mut version = 0;
            let mut hands: HashMap<u64, Vec<(SampleId, Version)>> = HashMap::new();
            let mut trained = HashSet::new();
            let train = |ledger: &mut Ledger, version: &mut u64, trained: &mut HashSet<SampleId>| {
                if let Some(batch) = ledger.take(*version + 1) {
                    for trajectory in &batch.trajectories {
                        assert!(trained.insert(trajectory.id), "{:?} twice", trajectory.id);
                        assert!(*version - trajectory.version <= config.staleness_max);
                    }
                    *version += 1;
                    ledger.trained(*version);
                    ledger.durable(*version);
                    return true;
                }
                false
            };
            for (action, who) in actions {
                match action {
                    0..=2 => {
                        let orders = ledger.order(who, version, 4);
                        hands.entry(who).or_default().extend(orders.iter().map(|id| (*id, version)));
                    }
                    3..=4 => {
                        if let Some((id, made)) = hands.entry(who).or_default().pop() {
                            ledger.report(trajectory(id, made));
                            prop_assert_ne!(ledger.report(trajectory(id, made)), Admission::Accepted);
                        }
                    }
                    5 => {
                        // Lost, but its trajectories may still arrive.
                        ledger.rollout_lost(who);
                    }
                    _ => {
                        train(&mut ledger, &mut version, &mut trained);
                    }
                }
            }
            // One rollout that does all that is asked of it finishes three more steps.
            for who in 0..3 {
                ledger.rollout_lost(who);
            }
            let goal = version + 3;
            for _ in 0..1_000 {
                if version >= goal {
                    break;
                }
                for id in ledger.order(9, version, 4) {
                    ledger.report(trajectory(id, version));
                }
                train(&mut ledger, &mut version, &mut trained);
            }
            prop_assert!(version >= goal, "stuck at {version}");
        }
    }
}
