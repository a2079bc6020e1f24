//! Standbys of ranks: how many there are to be, and which of them takes the number of which rank. Pure.

use std::collections::{BTreeMap, BTreeSet};

use odeon_algorithms::train::Sharing;
use odeon_diagnosis::standbys::{StandbyError, standbys};
use odeon_placement::TalkEnd;
use serde::{Deserialize, Serialize};

use super::places::talks;

/// The probability that a machine fails on a day of training, where a recipe tells none: the rate that the standbys of
/// ByteRobust follow (arXiv 2509.16293).
pub const MACHINE_FAULTS_DAILY: f64 = 0.0012;

/// The part of all days on which standbys by faults are enough.
const ENOUGH_DAYS: f64 = 0.99;

/// The number of standbys of a run, each with what one rank has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum StandbyCount {
    /// As many as a person says.
    Fixed(u32),
    /// For as many machines as fail on one day, on 99 of 100 days, if each fails with this probability: all ranks of a
    /// machine are lost with it.
    ByFaults {
        /// The probability; at least 0, below 1.
        daily: f64,
    },
}

impl StandbyCount {
    /// None at all.
    pub const NONE: Self = Self::Fixed(0);

    /// The number for ranks on these nodes.
    ///
    /// # Errors
    /// The probability is none.
    pub fn of(self, nodes: &BTreeMap<u32, String>) -> Result<u32, StandbyError> {
        let daily = match self {
            Self::Fixed(count) => return Ok(count),
            Self::ByFaults { daily } => daily,
        };
        let mut ranks: BTreeMap<&str, u32> = BTreeMap::new();
        for node in nodes.values() {
            *ranks.entry(node).or_default() += 1;
        }
        let failing = standbys(ranks.len() as u32, daily, ENOUGH_DAYS)?;
        Ok(failing * ranks.values().max().copied().unwrap_or(0))
    }
}

/// The standbys that take the numbers of lost ranks: pairs of a rank and a standby. `left` are the nodes of the ranks that
/// are left, `free` standbys with theirs.
///
/// Each takes the place in which it talks most to ranks of its own node. Tensor ranks stay on one node: where some of a
/// group are left the others come from there, and of a group that is lost as a whole all come from one node, or none.
pub(crate) fn replacements(
    lost: &BTreeSet<usize>,
    left: &BTreeMap<usize, String>,
    free: &BTreeMap<u32, String>,
    sharing: Sharing,
) -> Vec<(usize, u32)> {
    let (mut left, mut free) = (left.clone(), free.clone());
    let talks = talks(sharing);
    let mut taken = vec![];
    for first in (0..sharing.ranks()).step_by(sharing.tensor) {
        let unit = first..first + sharing.tensor;
        let wanted: Vec<usize> = lost.range(unit.clone()).copied().collect();
        let of_unit = left
            .range(unit.clone())
            .next()
            .map(|(_, node)| node.clone());
        let is_whole = wanted.len() == sharing.tensor;
        if wanted.is_empty() || of_unit.is_none() && !is_whole {
            continue;
        }
        // What the group talks with ranks that are on a node.
        let heard = |node: &str| -> u64 {
            let is_there = |rank: u32| left.get(&(rank as usize)).is_some_and(|it| it == node);
            let ends = talks.iter().filter_map(|talk| match talk.with {
                TalkEnd::Bundle(with) => Some((talk.bundle, with, u64::from(talk.weight))),
                TalkEnd::Node(_) => None,
            });
            let own = |rank: u32| unit.contains(&(rank as usize));
            let heard = ends.filter(|(a, b, _)| own(*a) && is_there(*b) || own(*b) && is_there(*a));
            heard.map(|(.., weight)| weight).sum()
        };
        let mut by_node: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (standby, node) in &free {
            by_node.entry(node).or_default().push(*standby);
        }
        let fits = |(node, standbys): &(&str, Vec<u32>)| match &of_unit {
            Some(own) => *node == own,
            None => standbys.len() >= wanted.len(),
        };
        let nodes = by_node.into_iter().filter(fits);
        // Of those that hear as much the one whose standby is oldest.
        let best =
            nodes.max_by_key(|(node, standbys)| (heard(node), std::cmp::Reverse(standbys[0])));
        let Some((node, standbys)) = best.map(|(node, standbys)| (node.to_owned(), standbys))
        else {
            continue;
        };
        for (rank, standby) in wanted.into_iter().zip(standbys) {
            free.remove(&standby);
            left.insert(rank, node.clone());
            taken.push((rank, standby));
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nodes(of: &[(usize, &str)]) -> BTreeMap<usize, String> {
        of.iter()
            .map(|(rank, node)| (*rank, (*node).to_owned()))
            .collect()
    }

    fn free(of: &[(u32, &str)]) -> BTreeMap<u32, String> {
        of.iter()
            .map(|(standby, node)| (*standby, (*node).to_owned()))
            .collect()
    }

    const fn sharing(copies: usize, stages: usize, tensor: usize) -> Sharing {
        Sharing {
            copies,
            stages,
            tensor,
            ..Sharing::ALONE
        }
    }

    /// SEMANTICS 205.
    #[test]
    fn a_rank_is_taken_by_the_standby_that_lies_nearest_to_those_it_talks_to() {
        // {dp: 2, pp: 2}: rank 1 talks to 0 each pass, and to 3 once a step.
        let left = nodes(&[(0, "a"), (2, "b"), (3, "b")]);
        let lost = BTreeSet::from([1]);
        let take = |of: &[(u32, &str)]| replacements(&lost, &left, &free(of), sharing(2, 2, 1));
        assert_eq!(take(&[(4, "c"), (5, "b"), (6, "a")]), [(1, 6)]);
        assert_eq!(take(&[(4, "c"), (5, "b")]), [(1, 5)]);
        assert_eq!(take(&[(7, "c"), (9, "b"), (8, "b")]), [(1, 8)]);
        assert_eq!(take(&[(4, "d"), (3, "e")]), [(1, 3)], "the oldest");
        assert_eq!(take(&[]), []);
    }

    /// SEMANTICS 205.
    #[test]
    fn tensor_ranks_stay_on_one_node() {
        let of = sharing(2, 1, 2);
        let left = nodes(&[(0, "a"), (1, "a"), (3, "b")]);
        let take = |lost: &[usize], left, standbys: &[(u32, &str)]| {
            replacements(&lost.iter().copied().collect(), left, &free(standbys), of)
        };
        assert_eq!(take(&[2], &left, &[(0, "c"), (1, "a")]), []);
        assert_eq!(take(&[2], &left, &[(0, "c"), (1, "b")]), [(2, 1)]);
        let whole = nodes(&[(0, "a"), (1, "a")]);
        assert_eq!(take(&[2, 3], &whole, &[(0, "c"), (1, "a")]), []);
        let pair = [(0, "c"), (1, "a"), (2, "c")];
        assert_eq!(take(&[2, 3], &whole, &pair), [(2, 0), (3, 2)]);
        // Of a group that is left somewhere that is not known nobody knows where it goes on.
        assert_eq!(take(&[2], &whole, &pair), []);
    }

    proptest! {
        /// SEMANTICS 205.
        #[test]
        fn each_standby_takes_one_lost_rank_and_groups_stay_together(
            copies in 1_usize..4,
            stages in 1_usize..3,
            tensor in 1_usize..3,
            places in prop::collection::vec((0_usize..3, any::<bool>()), 16),
            standbys in prop::collection::vec(0_usize..3, 0..8),
        ) {
            let of = sharing(copies, stages, tensor);
            let name = |node: usize| ["a", "b", "c"][node].to_owned();
            let (mut lost, mut left) = (BTreeSet::new(), BTreeMap::new());
            for rank in 0..of.ranks() {
                match places[rank].1 {
                    true => drop(lost.insert(rank)),
                    false => drop(left.insert(rank, name(places[rank - rank % tensor].0))),
                }
            }
            let free: BTreeMap<u32, String> = (0..).zip(standbys.iter().map(|node| name(*node))).collect();
            let taken = replacements(&lost, &left, &free, of);
            let ranks: BTreeSet<usize> = taken.iter().map(|(rank, _)| *rank).collect();
            let used: BTreeSet<u32> = taken.iter().map(|(_, standby)| *standby).collect();
            prop_assert!(ranks.is_subset(&lost) && ranks.len() == taken.len());
            prop_assert!(used.len() == taken.len() && used.iter().all(|it| free.contains_key(it)));
            let mut all = left;
            all.extend(taken.iter().map(|(rank, standby)| (*rank, free[standby].clone())));
            for (rank, node) in &all {
                let unit = rank - rank % tensor..rank - rank % tensor + tensor;
                prop_assert!(all.range(unit).all(|(_, other)| other == node));
            }
            if tensor == 1 {
                prop_assert_eq!(taken.len(), lost.len().min(free.len()), "none waits beside a lost rank");
            }
        }
    }

    /// SEMANTICS 205.
    #[test]
    fn standbys_by_faults_are_for_all_ranks_of_the_machines_that_fail() {
        let nodes = |machines: u32, ranks: u32| -> BTreeMap<u32, String> {
            let all = 0..machines * ranks;
            all.map(|rank| (rank, format!("n{}", rank / ranks)))
                .collect()
        };
        let rule = StandbyCount::ByFaults {
            daily: MACHINE_FAULTS_DAILY,
        };
        assert_eq!(rule.of(&nodes(1024, 8)), Ok(4 * 8));
        assert_eq!(
            [8, 9].map(|machines| rule.of(&nodes(machines, 2))),
            [Ok(0), Ok(2)]
        );
        assert_eq!(rule.of(&BTreeMap::new()), Ok(0));
        assert_eq!(StandbyCount::Fixed(3).of(&nodes(1, 2)), Ok(3));
        assert!(
            StandbyCount::ByFaults { daily: 1.0 }
                .of(&nodes(1, 1))
                .is_err()
        );
    }
}
