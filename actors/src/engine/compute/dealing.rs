//! The part of a rank in a batch that several ranks train on together. Pure.

use std::ops::Range;

use odeon::serde::{Deserialize, Serialize};
use odeon_algorithms::model::RankOf;
use odeon_algorithms::train::Sharing;

/// The place of a rank among those that share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RankPlace {
    /// The way in which they share it.
    pub sharing: Sharing,
    /// Which of them, from 0.
    pub rank: usize,
}

impl RankPlace {
    /// The only one.
    pub const ALONE: Self = Self {
        sharing: Sharing::ALONE,
        rank: 0,
    };

    /// True of the only one.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.sharing.ranks() == 1
    }

    /// Its place among those that have other sequences, each of which may be several ranks.
    #[must_use]
    pub const fn data(&self) -> RankOf {
        let Sharing {
            copies,
            experts,
            context,
            tensor,
            stages,
            ..
        } = self.sharing;
        RankOf::new(self.rank / (tensor * context * stages), copies * experts)
    }

    /// Its place among those that have other rows of the same sequences.
    #[must_use]
    pub const fn context(&self) -> RankOf {
        self.sharing.context_of(self.rank)
    }

    /// True of one rank of all that compute the same sequences: it has their scores, and tells them for all.
    #[must_use]
    pub const fn tells(&self) -> bool {
        let of_stage = self.sharing.of_stage();
        self.rank.is_multiple_of(of_stage)
            && self.rank / of_stage % self.sharing.stages + 1 == self.sharing.stages
    }

    /// True where ranks with other sequences wait for each other in passes, of which all have as many then.
    #[must_use]
    pub const fn waits_for_others(&self) -> bool {
        self.sharing.experts > 1 || self.sharing.zero.has_shards()
    }
}

/// The run of `part` that each of so many ranks has, by the tokens of a sequence of this number: runs follow each other,
/// and each ends where it has come closest to its share of all tokens. Some are empty where sequences are few.
pub(super) fn runs(
    part: Range<usize>,
    tokens: impl Fn(usize) -> usize,
    ranks: usize,
) -> Vec<Range<usize>> {
    let all: usize = part.clone().map(&tokens).sum();
    let (mut at, mut dealt) = (part.start, 0);
    let runs = (1..=ranks).map(|rank| {
        let begin = at;
        let until = all * rank / ranks;
        while at < part.end && (rank == ranks || 2 * dealt + tokens(at) <= 2 * until) {
            dealt += tokens(at);
            at += 1;
        }
        begin..at
    });
    runs.collect()
}

#[cfg(test)]
mod tests {
    use odeon_algorithms::train::ZeroStage;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each sequence is with one rank, in order, and no rank has more than its share and the longest sequence.
        #[test]
        fn runs_are_all_of_a_part_and_even(
            tokens in prop::collection::vec(0_usize..900, 0..60),
            from in 0_usize..30,
            ranks in 1_usize..9,
        ) {
            let part = from.min(tokens.len())..tokens.len();
            let dealt = runs(part.clone(), |at| tokens[at], ranks);
            prop_assert_eq!(dealt.len(), ranks);
            let mut at = part.start;
            let longest = tokens[part.clone()].iter().max().copied().unwrap_or(0);
            let share = tokens[part.clone()].iter().sum::<usize>().div_ceil(ranks);
            for run in dealt {
                prop_assert_eq!(run.start, at);
                at = run.end;
                let own: usize = tokens[run].iter().sum();
                prop_assert!(own <= share + longest);
            }
            prop_assert_eq!(at, part.end);
        }
    }

    #[test]
    fn one_rank_of_those_with_the_same_sequences_tells() {
        let sharing = Sharing {
            copies: 2,
            experts: 1,
            context: 2,
            tensor: 2,
            stages: 2,
            zero: ZeroStage::Off,
            ..Sharing::ALONE
        };
        let places = (0..16).map(|rank| RankPlace { sharing, rank });
        let telling: Vec<usize> = places.filter(RankPlace::tells).map(|it| it.rank).collect();
        assert_eq!(telling, [4, 12]);
        let data = |rank| RankPlace { sharing, rank }.data().rank;
        assert_eq!([0, 7, 8, 15].map(data), [0, 0, 1, 1]);
        assert!(RankPlace::ALONE.tells() && RankPlace::ALONE.is_alone());
    }
}
