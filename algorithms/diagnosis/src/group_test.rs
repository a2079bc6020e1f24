//! The faulty one among many machines, found by replaying steps on groups of them.
//!
//! A job is replayed on `n` groups of `m` machines, each a small job of its own with the tensor and pipeline sizes of the
//! whole one. The first round groups machine `x` by `x div m`, the second by `x mod n`, and all groups of a round replay
//! at the same time. The machine in the group that fails in both rounds is the culprit (dual-phase replay of ByteRobust,
//! arXiv 2509.16293). So two rounds are enough where halving takes `log2` of all machines, as long as `m <= n`.
//!
//! The test is for one fault that shows whenever it is replayed. Of two faulty machines up to four are suspected, and one
//! that does not show in a round leaves nobody, which the verdict says. Two of which each shows in another round alone can
//! put the blame on a third.
//!
//! ```
//! use odeon_diagnosis::group_test::{GroupTest, ReplayVerdict};
//!
//! let test = GroupTest::new(24, 4)?;
//! let verdict = test.replay(|_, machines| machines.contains(&13));
//! assert_eq!(verdict, ReplayVerdict::Culprit(13));
//! # Ok::<(), odeon_diagnosis::group_test::GroupTestError>(())
//! ```

mod judged;

pub use judged::{JudgedReplays, ReplayEnd, ReplayedGroup};

/// A test of machines `0..machines` by two rounds of replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTest {
    machines: u32,
    per_group: u32,
}

/// A round of replays, by the way in which it groups machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplayRound {
    /// Machine `x` is in group `x div m`: neighbours are together.
    Neighbours,
    /// Machine `x` is in group `x mod n`: neighbours are apart.
    Strided,
}

impl ReplayRound {
    /// Both rounds, in their order.
    pub const ALL: [Self; 2] = [Self::Neighbours, Self::Strided];

    /// Its number, from 1.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Neighbours => 1,
            Self::Strided => 2,
        }
    }
}

/// The outcome of both rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayVerdict {
    /// One machine alone was in failing groups of both rounds.
    Culprit(u32),
    /// Several were: there are several faults, or groups are too large to tell. In the order of their numbers.
    Suspects(Vec<u32>),
    /// In one of the rounds no group failed, so the fault did not show.
    Unseen,
}

impl ReplayVerdict {
    /// The machines that are suspected.
    #[must_use]
    pub fn suspects(&self) -> &[u32] {
        match self {
            Self::Culprit(machine) => std::slice::from_ref(machine),
            Self::Suspects(machines) => machines,
            Self::Unseen => &[],
        }
    }
}

impl GroupTest {
    /// Rounds of replays that it takes, whatever the number of machines.
    pub const ROUNDS: u32 = 2;
    /// The fewest machines that two rounds tell apart: of fewer each group is one, or all.
    pub const MACHINES_MIN: u32 = 4;

    /// A test of so many machines in groups of `per_group`: a multiple of the machines of one pipeline.
    ///
    /// # Errors
    /// Groups of that size do not divide the machines.
    pub fn new(machines: u32, per_group: u32) -> Result<Self, GroupTestError> {
        match per_group > 0 && machines > 0 && machines.is_multiple_of(per_group) {
            true => Ok(Self {
                machines,
                per_group,
            }),
            false => Err(GroupTestError {
                machines,
                per_group,
            }),
        }
    }

    /// A test of any number of machines, in groups of `largest` at most that are no larger than their number. Where no such
    /// size divides the machines, the last group of the first round and some of the second are smaller than others.
    /// Nothing for fewer than [`Self::MACHINES_MIN`].
    #[must_use]
    pub fn among(machines: u32, largest: u32) -> Option<Self> {
        if machines < Self::MACHINES_MIN {
            return None;
        }
        let most = machines.isqrt().min(largest).max(2);
        let divides = (2..=most).rev().find(|it| machines.is_multiple_of(*it));
        Some(Self {
            machines,
            per_group: divides.unwrap_or(most),
        })
    }

    /// Groups of a round.
    #[must_use]
    pub const fn groups(self) -> u32 {
        self.machines.div_ceil(self.per_group)
    }

    /// Returns true when two failing groups have one machine in common at most: groups are no larger than their number.
    #[must_use]
    pub const fn is_unique(self) -> bool {
        self.per_group <= self.groups()
    }

    /// The group of a machine in a round.
    #[must_use]
    pub const fn group_of(self, round: ReplayRound, machine: u32) -> u32 {
        match round {
            ReplayRound::Neighbours => machine / self.per_group,
            ReplayRound::Strided => machine % self.groups(),
        }
    }

    /// The machines of a group in a round, in the order of their numbers.
    #[must_use]
    pub fn members(self, round: ReplayRound, group: u32) -> Vec<u32> {
        match round {
            ReplayRound::Neighbours => {
                let end = (group + 1) * self.per_group;
                (group * self.per_group..end.min(self.machines)).collect()
            }
            ReplayRound::Strided => (group..self.machines)
                .step_by(self.groups() as usize)
                .collect(),
        }
    }

    /// Replays all groups of both rounds, and says who is suspected. `fails` is given a round and the machines of one of its
    /// groups, and says if the replay on them failed.
    pub fn replay(self, mut fails: impl FnMut(ReplayRound, &[u32]) -> bool) -> ReplayVerdict {
        let mut failed = |round| -> Vec<u32> {
            (0..self.groups())
                .filter(|group| fails(round, &self.members(round, *group)))
                .collect()
        };
        let [near, strided] = ReplayRound::ALL.map(&mut failed);
        self.verdict(&near, &strided)
    }

    /// The verdict of two rounds, of each of which these groups failed.
    #[must_use]
    pub fn verdict(self, neighbours: &[u32], strided: &[u32]) -> ReplayVerdict {
        if neighbours.is_empty() || strided.is_empty() {
            return ReplayVerdict::Unseen;
        }
        let near = neighbours
            .iter()
            .flat_map(|group| self.members(ReplayRound::Neighbours, *group));
        let mut suspects: Vec<u32> = near
            .filter(|machine| strided.contains(&self.group_of(ReplayRound::Strided, *machine)))
            .collect();
        suspects.sort_unstable();
        match suspects.as_slice() {
            // Groups of the two rounds that have no machine in common failed for two reasons.
            [] => ReplayVerdict::Unseen,
            [machine] => ReplayVerdict::Culprit(*machine),
            _ => ReplayVerdict::Suspects(suspects),
        }
    }
}

/// Rounds that halving takes to find one machine among so many, where both halves replay at the same time.
#[must_use]
pub const fn halving_rounds(machines: u32) -> u32 {
    match machines {
        0 | 1 => 0,
        _ => (machines - 1).ilog2() + 1,
    }
}

/// Groups that do not divide the machines. No test was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "groups of {per_group} machines do not divide {machines}: expected a size that divides them"
)]
pub struct GroupTestError {
    /// All machines.
    pub machines: u32,
    /// Those of a group.
    pub per_group: u32,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SIZES: [u32; 10] = [24, 32, 48, 64, 100, 128, 256, 360, 512, 1024];

    /// Every way to group so many machines.
    fn tests(machines: u32) -> impl Iterator<Item = GroupTest> {
        (1..=machines).filter_map(move |per_group| GroupTest::new(machines, per_group).ok())
    }

    fn has(bad: &[u32]) -> impl Fn(ReplayRound, &[u32]) -> bool {
        move |_, machines| machines.iter().any(|machine| bad.contains(machine))
    }

    /// SEMANTICS 171.
    #[test]
    fn one_faulty_machine_is_the_only_suspect_wherever_groups_are_no_larger_than_their_number() {
        for machines in SIZES {
            for test in tests(machines) {
                let mut all_alone = true;
                // Beyond some hundred machines each seventh is enough: the groups repeat.
                let step = if machines > 128 { 7 } else { 1 };
                for bad in (0..machines).step_by(step) {
                    let near = [test.group_of(ReplayRound::Neighbours, bad)];
                    let strided = [test.group_of(ReplayRound::Strided, bad)];
                    let verdict = test.verdict(&near, &strided);
                    assert!(verdict.suspects().contains(&bad), "{test:?}: {bad}");
                    all_alone &= verdict == ReplayVerdict::Culprit(bad);
                }
                assert_eq!(all_alone, test.is_unique(), "{test:?}");
            }
        }
        let suspects = |per_group| {
            let test = GroupTest::new(24, per_group).unwrap();
            test.replay(has(&[13])).suspects().len()
        };
        assert_eq!((suspects(4), suspects(6)), (1, 2));
    }

    /// SEMANTICS 171.
    #[test]
    fn each_round_has_every_machine_once() {
        for test in SIZES.into_iter().flat_map(tests) {
            for round in ReplayRound::ALL {
                let mut seen = BTreeSet::new();
                for group in 0..test.groups() {
                    let members = test.members(round, group);
                    assert_eq!(members.len(), test.per_group as usize, "{test:?}");
                    for machine in members {
                        assert_eq!(test.group_of(round, machine), group, "{test:?}");
                        assert!(seen.insert(machine), "{test:?}: {machine}");
                    }
                }
                assert_eq!(seen.len(), test.machines as usize, "{test:?}");
            }
        }
    }

    /// SEMANTICS 171.
    #[test]
    fn of_two_faulty_machines_both_are_suspected_and_four_at_most() {
        let test = GroupTest::new(64, 8).unwrap();
        let mut crowds = BTreeSet::new();
        for one in 0..64 {
            for other in 0..one {
                let verdict = test.replay(has(&[one, other]));
                let suspects = verdict.suspects();
                assert!(
                    suspects.contains(&one) && suspects.contains(&other),
                    "{one}, {other}: {verdict:?}"
                );
                crowds.insert(suspects.len());
            }
        }
        // Two where they share a group of one round.
        assert_eq!(crowds.into_iter().collect::<Vec<_>>(), [2, 4]);
    }

    /// SEMANTICS 171.
    #[test]
    fn a_fault_that_does_not_show_in_a_round_leaves_nobody_suspected() {
        let test = GroupTest::new(64, 8).unwrap();
        for hidden in ReplayRound::ALL {
            let verdict = test.replay(|round, machines| round != hidden && machines.contains(&9));
            assert_eq!(verdict, ReplayVerdict::Unseen);
        }
        // It shows in both rounds with the square of the probability with which it shows in one.
        let shown = (0..400u32).filter(|it| {
            let [near, strided] = [it / 20 < 18, it % 20 < 18];
            let verdict = test.replay(|round, machines| {
                let shows = if round == ReplayRound::Strided {
                    strided
                } else {
                    near
                };
                shows && machines.contains(&9)
            });
            assert!([&[][..], &[9]].contains(&verdict.suspects()));
            verdict == ReplayVerdict::Culprit(9)
        });
        assert_eq!(shown.count(), 400 * 81 / 100);
        // Each of two shows in another round: the machine that both groups have is innocent.
        let verdict = test.replay(|round, machines| match round {
            ReplayRound::Neighbours => machines.contains(&9),
            ReplayRound::Strided => machines.contains(&30),
        });
        assert_eq!(verdict, ReplayVerdict::Culprit(14));
    }

    #[test]
    fn two_rounds_are_fewer_than_halving_takes() {
        let halving = [1, 2, 3, 24, 64, 1024].map(halving_rounds);
        assert_eq!(halving, [0, 1, 2, 5, 6, 10]);
        assert!(
            SIZES
                .iter()
                .all(|it| halving_rounds(*it) > GroupTest::ROUNDS)
        );
    }

    /// SEMANTICS 209.
    #[test]
    fn any_number_of_machines_from_four_on_is_told_apart() {
        assert_eq!(GroupTest::among(3, 8), None);
        let sizes = |machines| {
            let test = GroupTest::among(machines, 8).unwrap();
            (test.per_group, test.groups())
        };
        let all = [4, 5, 6, 7, 8, 9, 12, 13, 64, 1024].map(sizes);
        let expected = [
            (2, 2),
            (2, 3),
            (2, 3),
            (2, 4),
            (2, 4),
            (3, 3),
            (3, 4),
            (3, 5),
            (8, 8),
            (8, 128),
        ];
        assert_eq!(all, expected);
        for machines in 4..=200 {
            let test = GroupTest::among(machines, 8).unwrap();
            assert!(test.is_unique(), "{test:?}");
            for round in ReplayRound::ALL {
                let groups = (0..test.groups()).map(|group| test.members(round, group));
                let mut all: Vec<u32> = groups.flatten().collect();
                all.sort_unstable();
                assert_eq!(all, (0..machines).collect::<Vec<_>>(), "{test:?}");
            }
            for bad in 0..machines {
                assert_eq!(test.replay(has(&[bad])), ReplayVerdict::Culprit(bad));
            }
        }
    }

    #[test]
    fn groups_that_do_not_divide_the_machines_are_refused() {
        for (machines, per_group) in [(24, 5), (24, 0), (0, 4), (4, 8)] {
            assert!(GroupTest::new(machines, per_group).is_err());
        }
        let told = GroupTest::new(24, 5).unwrap_err().to_string();
        assert_eq!(
            told,
            "groups of 5 machines do not divide 24: expected a size that divides them"
        );
    }
}
