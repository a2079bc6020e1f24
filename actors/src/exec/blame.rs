//! Choice of the rank that failed first, of those that end at about the same time. Pure.

use odeon::{Failure, FailureKind};

/// A rank that has failed.
#[derive(Clone, Debug)]
pub(super) struct Fallen {
    pub(super) rank: usize,
    /// When its program ended, in microseconds since 1970; unknown for one whose process or node was
    /// lost.
    pub(super) at_us: Option<u64>,
    pub(super) failure: Failure,
}

impl Fallen {
    /// Returns true where it has failed since another rank was gone, as far as its last words tell.
    fn lost_its_peer(&self) -> bool {
        let words = self.failure.message.to_lowercase();
        matches!(self.failure.kind, FailureKind::Program(_))
            && PEER_LOST.iter().any(|it| words.contains(it))
    }
}

/// The rank that failed first: one that did not fail for the loss of another, and of those the
/// earliest. A process or a node that is lost comes before what programs make of that.
pub(super) fn first(fallen: Vec<Fallen>) -> Option<Fallen> {
    fallen
        .into_iter()
        .min_by_key(|it| (it.lost_its_peer(), it.at_us, it.rank))
}

/// What the libraries by which ranks speak say of a peer that is gone.
const PEER_LOST: [&str; 10] = [
    "connection reset",
    "connectionreset",
    "connection closed",
    "connection refused",
    "connectionrefused",
    "broken pipe",
    "brokenpipe",
    "remote process exited",
    "peer closed",
    "socket closed",
];

#[cfg(test)]
mod tests {
    use odeon::ProgramEnd;

    use super::*;

    fn fallen(rank: usize, at_us: u64, words: &str) -> Fallen {
        Fallen {
            rank,
            at_us: Some(at_us),
            failure: Failure::new(FailureKind::Program(ProgramEnd::Code(1)), words),
        }
    }

    #[test]
    fn whoever_only_lost_its_peer_did_not_fail_first() {
        let check = |fallen: Vec<Fallen>, expect| {
            assert_eq!(first(fallen).map(|it| it.rank), expect);
        };
        check(vec![], None);
        let quiet = fallen(2, 12, "`x` ended: exit status: 3");
        let reset = fallen(
            0,
            10,
            "it said last:\n  ConnectionResetError: [Errno 104] Connection reset by peer",
        );
        check(vec![reset.clone(), quiet.clone()], Some(2));
        check(
            vec![fallen(1, 13, "assert"), quiet.clone(), reset.clone()],
            Some(2),
        );
        // One that says nothing of a peer may have lost it all the same: then time tells.
        check(
            vec![fallen(3, 11, "exit status: 1"), quiet.clone()],
            Some(3),
        );
        let lost = Fallen {
            at_us: None,
            failure: Failure::new(FailureKind::NodeLost, "node `b` is lost"),
            ..fallen(4, 0, "")
        };
        check(vec![quiet, lost, reset], Some(4));
    }
}
