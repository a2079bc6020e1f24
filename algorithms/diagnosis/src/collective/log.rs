//! The log of a rank's calls, and the words in which it tells others of them.

use std::collections::VecDeque;

use odeon_collective::{CALL_BYTES, CollectiveCall, Membership, Operation};

/// Calls that a rank remembers. Ranks that differ by more are told apart by their digests.
const RECENT: usize = 64;
/// Of these, how many it tells.
const TOLD: usize = 32;
/// Digests that a rank remembers: how far it may be ahead and still know of a difference.
const DIGESTS: usize = 4096;
const ENTRY_BYTES: usize = 8 + CALL_BYTES + 16;
/// The most bytes of an encoded [`RankWord`].
pub const WORD_BYTES_MAX: usize = 64 + (TOLD + 1) * ENTRY_BYTES;

/// A call, as one rank tells another of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEntry {
    /// The number among the calls of all ranks, or among those of the pair.
    pub sequence: u64,
    /// The call.
    pub call: CollectiveCall,
    /// Elements of an all-to-all to the other rank, and from it.
    pub parts: (u64, u64),
}

/// Returns true for a call of two ranks alone.
#[must_use]
pub const fn is_pair(call: &CollectiveCall) -> bool {
    matches!(call.operation, Operation::Send | Operation::Receive)
}

/// A call, as its own rank remembers it.
#[derive(Clone, Debug)]
pub struct Record {
    /// The number among the calls of all ranks, or among those of the pair.
    pub sequence: u64,
    /// The call.
    pub call: CollectiveCall,
    /// For each rank, of an all-to-all.
    parts: Vec<(u64, u64)>,
}

impl Record {
    /// The same, as another rank is told of it.
    #[must_use]
    pub fn for_rank(&self, rank: usize) -> CallEntry {
        CallEntry {
            sequence: self.sequence,
            call: self.call,
            parts: self.parts.get(rank).copied().unwrap_or_default(),
        }
    }
}

/// The log of this rank's calls.
#[derive(Debug)]
pub struct Log {
    /// Calls of all ranks.
    pub begun: u64,
    /// Sends to each rank, and receives from it.
    pub pairs: Vec<(u64, u64)>,
    recent: VecDeque<Record>,
    /// A hash of all calls of all ranks, after each of the last of them.
    digests: VecDeque<u64>,
}

impl Log {
    /// That of a rank of a world of so many which has called nothing.
    #[must_use]
    pub fn new(world: usize) -> Self {
        Self {
            begun: 0,
            pairs: vec![(0, 0); world],
            recent: VecDeque::new(),
            digests: VecDeque::from([0xcbf2_9ce4_8422_2325]),
        }
    }

    /// The number that a call will have.
    #[must_use]
    pub fn next(&self, call: &CollectiveCall) -> u64 {
        let pair = self.pairs.get(call.peer as usize).copied();
        let (sends, receives) = pair.unwrap_or_default();
        1 + match call.operation {
            Operation::Send => sends,
            Operation::Receive => receives,
            _ => self.begun,
        }
    }

    /// A call that is not added: the forming of the communicator, which has the number 0.
    #[must_use]
    pub fn forming(call: CollectiveCall) -> Record {
        Record {
            sequence: 0,
            call,
            parts: vec![],
        }
    }

    /// Adds a call.
    ///
    /// # Panics
    /// When the peer of a send or a receive is no rank of the world.
    pub fn add(&mut self, call: CollectiveCall, parts: Vec<(u64, u64)>) -> Record {
        let sequence = self.next(&call);
        match call.operation {
            Operation::Send => self.pairs[call.peer as usize].0 = sequence,
            Operation::Receive => self.pairs[call.peer as usize].1 = sequence,
            _ => {
                self.begun = sequence;
                let digest = call.encode().iter().fold(self.digest(), |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
                });
                if self.digests.len() == DIGESTS {
                    self.digests.pop_front();
                }
                self.digests.push_back(digest);
            }
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        let record = Record {
            sequence,
            call,
            parts,
        };
        self.recent.push_back(record.clone());
        record
    }

    fn digest(&self) -> u64 {
        self.digests.back().copied().unwrap_or_default()
    }

    /// The hash after this many calls of all ranks, where it is remembered.
    #[must_use]
    pub fn digest_after(&self, begun: u64) -> Option<u64> {
        let back = usize::try_from(self.begun.checked_sub(begun)?).ok()?;
        let at = self.digests.len().checked_sub(1 + back)?;
        self.digests.get(at).copied()
    }

    /// The last call of all ranks.
    #[must_use]
    pub fn last(&self) -> Option<CallEntry> {
        let mut together = self.recent.iter().rev().filter(|r| !is_pair(&r.call));
        together.next().map(|record| record.for_rank(usize::MAX))
    }

    /// The state of this rank, as told to another one.
    ///
    /// # Panics
    /// When the other is no rank of the world.
    #[must_use]
    pub fn word(&self, to: usize, waiting: Option<&Record>, leaving: bool) -> RankWord {
        let of_theirs = |r: &&Record| !is_pair(&r.call) || r.call.peer as usize == to;
        let mut recent: Vec<CallEntry> = self
            .recent
            .iter()
            .rev()
            .filter(of_theirs)
            .take(TOLD)
            .map(|record| record.for_rank(to))
            .collect();
        recent.reverse();
        let (sends, receives) = self.pairs[to];
        RankWord {
            begun: self.begun,
            digest: self.digest(),
            sends,
            receives,
            leaving,
            waiting: waiting.map(|record| record.for_rank(to)),
            recent,
        }
    }
}

/// The state of a rank, as it tells another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankWord {
    /// Its calls of all ranks.
    pub begun: u64,
    /// A hash of them.
    pub digest: u64,
    /// Its sends to the one that it tells.
    pub sends: u64,
    /// Its receives from the one that it tells.
    pub receives: u64,
    /// Set when it calls no more.
    pub leaving: bool,
    /// Its first call that has not ended.
    pub waiting: Option<CallEntry>,
    /// Its last calls, in which the one that it tells has a part.
    pub recent: Vec<CallEntry>,
}

/// Why a word is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There was something new.
    Beat,
    /// It wants to hear as much in return.
    Question,
    /// It was asked.
    Answer,
}

impl RankWord {
    /// As it stands on the wire: at most [`WORD_BYTES_MAX`] bytes.
    #[must_use]
    pub fn encode(&self, kind: Kind, membership: &Membership) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend(membership.gang.to_le_bytes());
        out.extend(membership.generation.to_le_bytes());
        out.push(match kind {
            Kind::Beat => 1,
            Kind::Question => 2,
            Kind::Answer => 3,
        });
        out.push(u8::from(self.leaving) | u8::from(self.waiting.is_some()) << 1);
        for number in [self.begun, self.digest, self.sends, self.receives] {
            out.extend(number.to_le_bytes());
        }
        for entry in self.waiting.iter().chain(&self.recent) {
            out.extend(entry.sequence.to_le_bytes());
            out.extend(entry.call.encode());
            out.extend(entry.parts.0.to_le_bytes());
            out.extend(entry.parts.1.to_le_bytes());
        }
        out
    }

    /// The inverse of [`Self::encode`].
    ///
    /// # Errors
    /// The flaw of bytes that are no word of this gang.
    pub fn decode(bytes: &[u8], membership: &Membership) -> Result<(Kind, Self), &'static str> {
        const SHORT: &str = "it ends too early";
        let mut rest = bytes;
        let gang = number(&mut rest).ok_or(SHORT)?;
        let generation = number(&mut rest).ok_or(SHORT)?;
        if (gang, generation) != (membership.gang, membership.generation) {
            return Err("it speaks for another gang");
        }
        let [kind, flags] = taken::<2>(&mut rest).ok_or(SHORT)?;
        let kind = match kind {
            1 => Kind::Beat,
            2 => Kind::Question,
            3 => Kind::Answer,
            _ => return Err("it is of no kind that there is"),
        };
        let mut next = || number(&mut rest).ok_or(SHORT);
        let (begun, digest, sends, receives) = (next()?, next()?, next()?, next()?);
        let mut entries = vec![];
        while !rest.is_empty() {
            entries.push(entry(&mut rest).ok_or("it holds what is no call")?);
        }
        let waits = flags & 2 != 0;
        if waits && entries.is_empty() {
            return Err(SHORT);
        }
        let recent = entries.split_off(usize::from(waits));
        Ok((
            kind,
            Self {
                begun,
                digest,
                sends,
                receives,
                leaving: flags & 1 != 0,
                waiting: entries.pop(),
                recent,
            },
        ))
    }
}

fn taken<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    taken(rest).map(u64::from_le_bytes)
}

fn entry(rest: &mut &[u8]) -> Option<CallEntry> {
    Some(CallEntry {
        sequence: number(rest)?,
        call: CollectiveCall::decode(&taken(rest)?)?,
        parts: (number(rest)?, number(rest)?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use odeon_collective::{Algorithm, ElementType, Topology};

    fn call(operation: Operation, peer: u32, count: u64) -> CollectiveCall {
        CollectiveCall {
            operation,
            element: ElementType::F32,
            reduce: None,
            algorithm: Algorithm::Direct,
            peer,
            count,
            layout: 0,
        }
    }

    fn membership() -> Membership {
        Membership {
            rank: 0,
            generation: 3,
            gang: 9,
            topology: Topology::one_node(3),
        }
    }

    #[test]
    fn words_travel_and_stay_within_their_bound() {
        let mut log = Log::new(3);
        for i in 0..200 {
            log.add(call(Operation::AllReduce, 0, i), vec![]);
            log.add(call(Operation::Send, 1, i), vec![]);
            log.add(
                call(Operation::AllToAll, 0, 0),
                vec![(i, 0), (i, 1), (i, 2)],
            );
        }
        let waiting = log.add(call(Operation::Receive, 2, 5), vec![]);
        for (to, sends, receives) in [(1, 200, 0), (2, 0, 1)] {
            let word = log.word(to, Some(&waiting), true);
            assert_eq!(
                (word.begun, word.sends, word.receives),
                (400, sends, receives)
            );
            assert!(
                word.recent
                    .iter()
                    .all(|e| !is_pair(&e.call) || e.call.peer as usize == to)
            );
            let bytes = word.encode(Kind::Question, &membership());
            assert!(bytes.len() <= WORD_BYTES_MAX, "{}", bytes.len());
            assert_eq!(
                RankWord::decode(&bytes, &membership()),
                Ok((Kind::Question, word))
            );
        }
        let stranger = Membership {
            generation: 4,
            ..membership()
        };
        let bytes = log.word(1, None, false).encode(Kind::Beat, &stranger);
        assert!(RankWord::decode(&bytes, &membership()).is_err());
    }

    #[test]
    fn digests_of_the_same_calls_are_equal_and_of_others_not() {
        let (mut one, mut other) = (Log::new(2), Log::new(2));
        for i in 0..5000 {
            one.add(call(Operation::AllReduce, 0, i), vec![]);
            other.add(
                call(Operation::AllReduce, 0, if i == 4500 { 0 } else { i }),
                vec![],
            );
            // Of two alone: the others do not know of it.
            other.add(call(Operation::Send, 1, i), vec![]);
        }
        assert_eq!(one.digest_after(4500), other.digest_after(4500));
        assert_ne!(one.digest_after(4501), other.digest_after(4501));
        assert_ne!(one.digest_after(5000), other.digest_after(5000));
        assert_eq!(one.digest_after(100), None, "forgotten");
        assert_eq!(one.digest_after(5001), None, "yet to come");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(tail in prop::collection::vec(any::<u8>(), 0..300)) {
            let head = Log::new(3).word(1, None, false).encode(Kind::Beat, &membership());
            for at in [0, 16, head.len()] {
                let bytes = [&head[..at], &tail].concat();
                drop(RankWord::decode(&bytes, &membership()));
            }
        }
    }
}
