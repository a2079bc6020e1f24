//! Ranks of a gang that have failed, as diagnosis judges them.

use odeon::{Failure, FailureKind, ProgramEnd};
use odeon_diagnosis::gang::{FallenRank, FallenRankEnd, first_failure, lost_its_peer};

use super::output::SAID_LAST;

/// A rank that has failed.
#[derive(Clone, Debug)]
pub(super) struct Fallen {
    pub(super) rank: usize,
    /// The moment from which on its program was failing, in microseconds since 1970; unknown for one whose process or
    /// node was lost.
    pub(super) at_us: Option<u64>,
    pub(super) failure: Failure,
}

impl Fallen {
    fn seen(&self) -> FallenRank {
        let end = match self.failure.kind {
            FailureKind::Program(ProgramEnd::Code(code)) => FallenRankEnd::Code(code),
            FailureKind::Program(ProgramEnd::Signal(signal)) => FallenRankEnd::Signal(signal),
            _ => FallenRankEnd::Lost,
        };
        let words = self.failure.message.split_once(SAID_LAST);
        FallenRank {
            rank: self.rank,
            at_us: self.at_us,
            end,
            words: words.map_or_else(String::new, |(_, words)| words.to_owned()),
        }
    }

    /// Returns true where it failed since it lost a peer, as far as it says itself.
    pub(super) fn lost_its_peer(&self) -> bool {
        lost_its_peer(&self.seen())
    }
}

/// The rank that failed first.
pub(super) fn first(fallen: Vec<Fallen>) -> Option<Fallen> {
    let seen: Vec<_> = fallen.iter().map(Fallen::seen).collect();
    let rank = first_failure(&seen)?.rank;
    fallen.into_iter().find(|it| it.rank == rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_said_last_is_told_apart_from_how_it_ended() {
        let fallen = |rank, at_us, kind, words: &str| Fallen {
            rank,
            at_us,
            failure: Failure::new(kind, words),
        };
        let ended = |code| FailureKind::Program(ProgramEnd::Code(code));
        let reset = format!("`x` ended: exit status: 1{SAID_LAST}  Connection reset by peer");
        let reset = fallen(0, Some(10), ended(1), &reset);
        let quiet = fallen(
            2,
            Some(12),
            ended(1),
            "`connection reset` ended: exit status: 1",
        );
        assert!(reset.lost_its_peer() && !quiet.lost_its_peer());
        assert_eq!(first(vec![reset.clone(), quiet.clone()]).unwrap().rank, 2);
        let lost = fallen(4, None, FailureKind::NodeLost, "node `b` is lost");
        assert_eq!(first(vec![quiet, lost, reset]).unwrap().rank, 4);
    }
}
