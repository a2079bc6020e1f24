//! Choice of the rank that failed first, of those that end at about the same time.
//!
//! A rank closes its connections some time before its process is seen to end, so a peer that this surprises may well
//! be seen to end before it. Times alone therefore do not say who was first: what a rank ended with and what it said
//! last come before them.

/// A rank that has ended without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallenRank {
    /// Its number.
    pub rank: usize,
    /// The moment from which on it was failing, in microseconds since 1970: that of its last error on standard error,
    /// else of its end. Unknown for one whose process or node was lost.
    pub at_us: Option<u64>,
    /// The manner.
    pub end: FallenRankEnd,
    /// Its last lines on standard error; empty where it said nothing.
    pub words: String,
}

/// The manner in which a rank has ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallenRankEnd {
    /// Its process or its node was lost, or it was ended for a reason that is known.
    Lost,
    /// Its program ended with this code.
    Code(i32),
    /// A signal ended its program.
    Signal(i32),
}

/// The cause of a failure, as far as what is seen of the rank alone tells; the likeliest to have been first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// One of its own.
    Own,
    /// It failed in a call by which it speaks to its peers.
    Call,
    /// It says that a peer was gone, or did not answer in time.
    Peer,
}

impl FallenRank {
    fn cause(&self) -> Cause {
        match self.end {
            FallenRankEnd::Lost => Cause::Own,
            FallenRankEnd::Signal(SIGPIPE) => Cause::Peer,
            // Libraries that watch over calls abort the process when a peer is gone, and say so.
            FallenRankEnd::Signal(signal) if signal != SIGABRT => Cause::Own,
            FallenRankEnd::Signal(_) | FallenRankEnd::Code(_) => of_words(&self.words),
        }
    }

    /// Returns true for an end that no exception makes which nobody expected: a signal, another exit code than that of
    /// such an exception, or not a word about it.
    fn is_on_purpose(&self) -> bool {
        self.end != FallenRankEnd::Code(UNCAUGHT) || self.words.trim().is_empty()
    }
}

/// The rank that failed first: one that did not fail for the loss of another where there is one, and of those the
/// earliest. A process or a node that is lost comes before what programs make of that. The order in which they are
/// given plays no part.
#[must_use]
pub fn first_failure(fallen: &[FallenRank]) -> Option<&FallenRank> {
    let cause = fallen.iter().map(FallenRank::cause).min()?;
    let of_cause = || fallen.iter().filter(|it| it.cause() == cause);
    let begun = of_cause().map(|it| it.at_us).min()?;
    let is_near = |it: &&FallenRank| match (begun, it.at_us) {
        (Some(begun), Some(at)) => at - begun <= NEAR_US,
        (None, at) => at.is_none(),
        (Some(_), None) => false,
    };
    let near = of_cause().filter(is_near);
    near.min_by_key(|it| (!it.is_on_purpose(), it.at_us, it.rank))
}

/// Returns true where a rank says that it failed since a peer was gone, or in a call to its peers: another one that is
/// to blame may be heard of later.
#[must_use]
pub fn lost_its_peer(fallen: &FallenRank) -> bool {
    fallen.cause() != Cause::Own
}

/// The cause by the last lines: what they say of a peer, or the call of the innermost frame that a Python traceback
/// shows.
fn of_words(words: &str) -> Cause {
    let words = words.to_lowercase();
    if PEER_LOST.iter().any(|it| words.contains(it)) {
        return Cause::Peer;
    }
    let frame = words.rsplit_once("file \"").map(|(_, frame)| frame);
    let source = frame.and_then(|frame| frame.lines().nth(1));
    match source {
        Some(source) if PEER_CALLS.iter().any(|it| source.contains(it)) => Cause::Call,
        _ => Cause::Own,
    }
}

/// What the libraries by which ranks speak say of a peer that is gone, or that does not answer.
const PEER_LOST: [&str; 23] = [
    "connection reset",
    "connectionreset",
    "connection closed",
    "connection aborted",
    "connectionaborted",
    "connection refused",
    "connectionrefused",
    "connection was closed",
    "closed the connection",
    "broken pipe",
    "brokenpipe",
    "remote process exited",
    "remote end closed",
    "peer closed",
    "closed by peer",
    "closed by remote",
    "socket closed",
    "eoferror",
    "incompletereaderror",
    "ncclremoteerror",
    "watchdog caught collective operation timeout",
    "timed out waiting",
    "socket timeout",
];

/// Calls by which ranks speak to each other, as source lines have them.
const PEER_CALLS: [&str; 17] = [
    "recv(",
    "recv_into(",
    "recvmsg(",
    ".send(",
    "sendall(",
    ".accept(",
    ".connect(",
    "create_connection(",
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "broadcast(",
    "barrier(",
    "irecv(",
    "isend(",
];

/// Ends within this time of the earliest are at the same time as far as anybody can tell: the interpreter of a program
/// closes connections when it begins to end, and takes so long for the rest on a machine under load.
const NEAR_US: u64 = 300_000;
/// The exit code of a program that an exception ends which nobody catches.
const UNCAUGHT: i32 = 1;
const SIGABRT: i32 = 6;
const SIGPIPE: i32 = 13;

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop, prop_assert_eq};
    use proptest::{prop_oneof, proptest};

    use super::*;

    const RESET: &str = "ConnectionResetError: [Errno 104] Connection reset by peer";
    const IN_A_CALL: &str = "Traceback (most recent call last):\n  File \"t.py\", line 9, in step\n    \
                             total = int(peer.recv(64))\nValueError: invalid literal for int(): b''";
    const OWN: &str = "Traceback (most recent call last):\n  File \"t.py\", line 4, in loss\n    \
                       raise RuntimeError('bad batch')\nRuntimeError: bad batch";

    fn fallen(rank: usize, at_us: u64, end: FallenRankEnd, words: &str) -> FallenRank {
        FallenRank {
            rank,
            at_us: Some(at_us),
            end,
            words: words.to_owned(),
        }
    }

    fn code(rank: usize, at_us: u64, words: &str) -> FallenRank {
        fallen(rank, at_us, FallenRankEnd::Code(1), words)
    }

    #[test]
    fn whoever_only_lost_its_peer_did_not_fail_first() {
        let check = |fallen: &[FallenRank], expect| {
            assert_eq!(
                first_failure(fallen).map(|it| it.rank),
                expect,
                "{fallen:?}"
            );
        };
        check(&[], None);
        let quiet = fallen(2, 12_000, FallenRankEnd::Code(3), "");
        let reset = code(0, 10_000, RESET);
        check(&[reset.clone(), quiet.clone()], Some(2));
        check(
            &[code(1, 13_000, OWN), quiet.clone(), reset.clone()],
            Some(2),
        );
        // An exception of one's own long before comes first.
        check(
            &[
                code(1, 13_000, OWN),
                fallen(2, 900_000, FallenRankEnd::Code(3), ""),
            ],
            Some(1),
        );
        check(&[code(3, 9_000, IN_A_CALL), code(1, 12_000, OWN)], Some(1));
        // An abort says itself whether it was for a peer.
        let abort = |words| fallen(0, 10_000, FallenRankEnd::Signal(6), words);
        check(
            &[
                abort("NCCL error: remote process exited"),
                code(1, 12_000, OWN),
            ],
            Some(1),
        );
        check(
            &[abort("free(): invalid pointer"), code(1, 12_000, IN_A_CALL)],
            Some(0),
        );
        let piped = fallen(0, 10_000, FallenRankEnd::Signal(13), "");
        check(
            &[piped, fallen(1, 11_000, FallenRankEnd::Signal(9), "")],
            Some(1),
        );
        // Where all have only lost each other, time tells.
        check(&[code(1, 13_000, RESET), reset.clone()], Some(0));
        let lost = FallenRank {
            at_us: None,
            ..fallen(4, 0, FallenRankEnd::Lost, "")
        };
        check(&[quiet, lost, reset], Some(4));
    }

    /// The end of a rank for a cause of its own.
    fn culprit() -> impl Strategy<Value = (FallenRankEnd, &'static str)> {
        prop_oneof![
            Just((FallenRankEnd::Code(1), OWN)),
            Just((FallenRankEnd::Code(1), "")),
            Just((FallenRankEnd::Code(3), "no more memory")),
            Just((FallenRankEnd::Signal(9), "")),
            Just((FallenRankEnd::Signal(11), "step 3")),
        ]
    }

    fn victim() -> impl Strategy<Value = (FallenRankEnd, &'static str)> {
        prop_oneof![
            Just((FallenRankEnd::Code(1), RESET)),
            Just((FallenRankEnd::Code(1), "peer closed the connection")),
            Just((FallenRankEnd::Code(1), IN_A_CALL)),
            Just((FallenRankEnd::Code(7), "EOFError")),
            Just((
                FallenRankEnd::Signal(6),
                "terminate called: Connection closed by peer"
            )),
            Just((FallenRankEnd::Signal(13), "")),
        ]
    }

    proptest! {
        /// SEMANTICS 158.
        #[test]
        fn the_culprit_is_named_in_every_order_and_whenever_ends_are_seen(
            at in 0usize..8,
            cause in culprit(),
            victims in prop::collection::vec((victim(), any::<u16>()), 1..7),
            own_delay in any::<u16>(),
            order in any::<prop::sample::Index>(),
        ) {
            let mut ranks: Vec<_> = victims.into_iter().map(|((end, words), delay)| (end, words, delay)).collect();
            let at = at.min(ranks.len());
            ranks.insert(at, (cause.0, cause.1, own_delay));
            let mut fallen: Vec<_> = ranks
                .into_iter()
                .enumerate()
                .map(|(rank, (end, words, delay))| fallen(rank, u64::from(delay), end, words))
                .collect();
            let turns = order.index(fallen.len());
            for _ in 0..2 {
                fallen.rotate_left(turns);
                prop_assert_eq!(first_failure(&fallen).map(|it| it.rank), Some(at));
                fallen.reverse();
            }
        }
    }

    #[test]
    fn all_orders_of_four_that_end_name_the_same() {
        let four = [
            code(0, 10_000, RESET),
            code(1, 9_000, IN_A_CALL),
            fallen(2, 12_000, FallenRankEnd::Code(1), ""),
            fallen(3, 9_500, FallenRankEnd::Signal(13), ""),
        ];
        for first in 0..4 {
            for second in 0..3 {
                for third in 0..2 {
                    let mut left: Vec<_> = four.to_vec();
                    let order = [
                        left.remove(first),
                        left.remove(second),
                        left.remove(third),
                        left.remove(0),
                    ];
                    assert_eq!(first_failure(&order).map(|it| it.rank), Some(2));
                }
            }
        }
    }
}
