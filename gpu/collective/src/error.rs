//! Calls as ranks tell each other of them, and why one failed.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use super::element::{ElementType, Reduce};
use super::schedule::Algorithm;

/// An operation with its arguments, as a rank asked for it. The ranks of a gang compare theirs
/// before they move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct CollectiveCall {
    /// The operation.
    pub operation: Operation,
    /// With elements of which type.
    pub element: ElementType,
    /// The reduction, where there is one.
    pub reduce: Option<Reduce>,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The root of a broadcast, the other rank of a send or receive; else 0.
    pub peer: u32,
    /// Elements of the larger buffer.
    pub count: u64,
    /// A hash of the elements of each rank, where these may differ; else 0.
    pub layout: u64,
}

impl CollectiveCall {
    /// The [`layout`](Self::layout) of a call with so many elements of each rank; never 0.
    #[must_use]
    pub fn layout_of(counts: &[usize]) -> u64 {
        // FNV-1a.
        counts.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, count| {
            (hash ^ *count as u64).wrapping_mul(0x0100_0000_01b3)
        }) | 1
    }
}

/// An operation that ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Operation {
    /// Every rank gets the reduction of all.
    AllReduce,
    /// Every rank gets the elements of all, in rank order.
    AllGather,
    /// Every rank gets its part of the reduction.
    ReduceScatter,
    /// Every rank gets the root's elements.
    Broadcast,
    /// Every rank gets from each other what that has for it.
    AllToAll,
    /// Every rank knows that all others have come here.
    Barrier,
    /// One rank gives to another.
    Send,
    /// One rank takes from another.
    Receive,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all-to-all",
            Self::Barrier => "barrier",
            Self::Send => "send",
            Self::Receive => "receive",
        })
    }
}

impl fmt::Display for CollectiveCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if self.operation == Operation::Barrier {
            return Ok(());
        }
        if let Some(reduce) = self.reduce {
            write!(f, " ({reduce})")?;
        }
        write!(f, " of {} {}", self.count, self.element)?;
        match self.operation {
            Operation::Broadcast | Operation::Receive => write!(f, " from rank {}", self.peer),
            Operation::Send => write!(f, " to rank {}", self.peer),
            _ if self.layout != 0 => write!(f, " in parts {:04x}", self.layout & 0xffff),
            _ => Ok(()),
        }
    }
}

/// A failure between ranks. It is the same on every rank that hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// These ranks did not take part before the deadline. They may be slow, stuck, or elsewhere in
    /// their program.
    Missing {
        /// In rank order.
        ranks: Vec<usize>,
        /// The time that somebody waited for them.
        waited: Duration,
    },
    /// A rank is gone: its process ended, its connection broke, or it gave up its membership.
    Lost {
        /// The rank that is gone.
        rank: usize,
        /// The reason, as far as it is known.
        why: String,
    },
    /// Ranks called different things, or the same in another order.
    Mismatch {
        /// Their calls with rank and number, as far as whoever found it knows; in rank order.
        calls: Vec<(usize, u64, CollectiveCall)>,
    },
    /// A rank speaks for another generation of the gang. Nothing of it was read.
    Stale {
        /// The rank that speaks for it.
        rank: usize,
        /// The generation that it speaks for.
        theirs: u64,
        /// The generation of whoever found it.
        ours: u64,
    },
    /// Bytes that came over the transport are no message of this protocol.
    Garbled {
        /// From whom.
        rank: usize,
        /// The error in it.
        why: String,
    },
    /// A rank's device, or the library that moves numbers between devices, failed. No other rank is
    /// known to be the cause.
    Device {
        /// Whose.
        rank: usize,
        /// In the words of whatever failed.
        why: String,
    },
}

impl Fault {
    /// The ranks at fault, as far as they are known: missing, lost, stale or garbled ones, and
    /// the one whose device failed. Of a mismatch, all whose calls are known.
    #[must_use]
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Self::Missing { ranks, .. } => ranks.clone(),
            Self::Lost { rank, .. }
            | Self::Stale { rank, .. }
            | Self::Garbled { rank, .. }
            | Self::Device { rank, .. } => vec![*rank],
            Self::Mismatch { calls } => calls.iter().map(|(rank, ..)| *rank).collect(),
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            Self::Missing { .. } => {
                "look where those ranks are, or give slow ones a longer deadline; \
                 then make a new communicator"
            }
            Self::Lost { .. } => "restart the gang and make a new communicator",
            Self::Mismatch { .. } => {
                "all ranks must call the same in the same order; \
                 mend the program and make a new communicator"
            }
            Self::Stale { .. } => {
                "a member of the past must be ended, or given the new communicator"
            }
            Self::Garbled { .. } => "check the link to that rank, and make a new communicator",
            Self::Device { .. } => {
                "look at that rank's device and its links, and make a new communicator"
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { ranks, waited } => {
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                write!(f, "{noun} {} did not come within {waited:?}", list(ranks))
            }
            Self::Lost { rank, why } => write!(f, "rank {rank} is lost: {why}"),
            Self::Mismatch { calls } => {
                f.write_str("the ranks called different things:")?;
                for (index, (rank, sequence, call)) in calls.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma} rank {rank} {call} as number {sequence}")?;
                }
                Ok(())
            }
            Self::Stale { rank, theirs, ours } => write!(
                f,
                "rank {rank} speaks for generation {theirs}, and this is generation {ours}"
            ),
            Self::Garbled { rank, why } => {
                write!(
                    f,
                    "rank {rank} sent what is no message of a collective: {why}"
                )
            }
            Self::Device { rank, why } => write!(f, "the device of rank {rank} failed: {why}"),
        }
    }
}

fn list(ranks: &[usize]) -> String {
    let texts: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// A fault, and who found it where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The rank that found it.
    pub by: usize,
    /// The number of its call, counted from 1; that of the pair for a send or receive.
    pub sequence: u64,
    /// The call that the rank had made.
    pub call: CollectiveCall,
    /// The failure that it found.
    pub fault: Fault,
}

/// Why a collective failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The gang failed during this call. The buffers hold unspecified numbers, other ranks fail as
    /// well, and the communicator is broken: it answers [`CollectiveError::Broken`] from now on.
    #[error("{0}")]
    Failed(Box<Failed>),
    /// An earlier call failed, so that the ranks no longer agree on where they are. Nothing was
    /// moved. Make a new communicator.
    #[error("the communicator is broken since an earlier call: {first}")]
    Broken {
        /// The first failure.
        first: Box<Failed>,
    },
    /// The arguments do not fit. Nothing was moved and the communicator is as before; the other
    /// ranks wait for this one until it calls rightly.
    #[error("{operation} on rank {rank} was refused: {why}")]
    Misuse {
        /// This rank.
        rank: usize,
        /// The operation that was called.
        operation: Operation,
        /// The argument that does not fit, and what would.
        why: String,
    },
}

impl CollectiveError {
    /// The failure between ranks; `None` for a misuse.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Failed(failed) | Self::Broken { first: failed } => Some(&failed.report.fault),
            Self::Misuse { .. } => None,
        }
    }
}

/// The failure of a gang as one rank sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// This rank.
    pub rank: usize,
    /// The generation of the gang.
    pub generation: u64,
    /// The number of the call here, counted from 1.
    pub sequence: u64,
    /// The call that failed here.
    pub call: CollectiveCall,
    /// The failure, as the first who found it told.
    pub report: Report,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            generation,
            sequence,
            call,
            report,
        } = self;
        write!(
            f,
            "{call} on rank {rank} (number {sequence}, generation {generation}) failed: {}",
            report.fault
        )?;
        if report.by != *rank {
            write!(f, ", as rank {} found in its {}", report.by, report.call)?;
        }
        write!(f, "; {}", report.fault.advice())
    }
}

/// Bytes of an encoded [`CollectiveCall`].
pub const CALL_BYTES: usize = 24;
/// The most bytes of an encoded [`Report`].
pub const REPORT_BYTES_MAX: usize = 1024;
/// Ranks, calls and characters of a report beyond these are left out on the wire.
const RANKS_MAX: usize = 64;
const CALLS_MAX: usize = 16;
const TEXT_MAX: usize = 256;

impl CollectiveCall {
    /// As it stands on the wire: little-endian, [`CALL_BYTES`] of them.
    #[must_use]
    pub fn encode(&self) -> [u8; CALL_BYTES] {
        let mut out = [0; CALL_BYTES];
        out[0] = match self.operation {
            Operation::AllReduce => 1,
            Operation::AllGather => 2,
            Operation::ReduceScatter => 3,
            Operation::Broadcast => 4,
            Operation::AllToAll => 5,
            Operation::Barrier => 6,
            Operation::Send => 7,
            Operation::Receive => 8,
        };
        out[1] = match self.element {
            ElementType::F32 => 1,
            ElementType::Bf16 => 2,
        };
        out[2] = match self.reduce {
            None => 0,
            Some(Reduce::Sum) => 1,
            Some(Reduce::Mean) => 2,
            Some(Reduce::Max) => 3,
            Some(Reduce::Min) => 4,
        };
        out[3] = match self.algorithm {
            Algorithm::Direct => 1,
            Algorithm::Ring => 2,
            Algorithm::Tree => 3,
            Algorithm::Hierarchical => 4,
        };
        out[4..8].copy_from_slice(&self.peer.to_le_bytes());
        out[8..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.layout.to_le_bytes());
        out
    }

    /// The inverse of [`Self::encode`]; `None` for bytes that are no call.
    #[must_use]
    pub fn decode(bytes: &[u8; CALL_BYTES]) -> Option<Self> {
        let mut read = Reader(bytes);
        Some(Self {
            operation: match read.u8()? {
                1 => Operation::AllReduce,
                2 => Operation::AllGather,
                3 => Operation::ReduceScatter,
                4 => Operation::Broadcast,
                5 => Operation::AllToAll,
                6 => Operation::Barrier,
                7 => Operation::Send,
                8 => Operation::Receive,
                _ => return None,
            },
            element: match read.u8()? {
                1 => ElementType::F32,
                2 => ElementType::Bf16,
                _ => return None,
            },
            reduce: match read.u8()? {
                0 => None,
                1 => Some(Reduce::Sum),
                2 => Some(Reduce::Mean),
                3 => Some(Reduce::Max),
                4 => Some(Reduce::Min),
                _ => return None,
            },
            algorithm: match read.u8()? {
                1 => Algorithm::Direct,
                2 => Algorithm::Ring,
                3 => Algorithm::Tree,
                4 => Algorithm::Hierarchical,
                _ => return None,
            },
            peer: u32::from_le_bytes(read.take()?),
            count: u64::from_le_bytes(read.take()?),
            layout: u64::from_le_bytes(read.take()?),
        })
    }
}

impl Report {
    /// As it stands on the wire, at most [`REPORT_BYTES_MAX`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        let rank = |out: &mut Vec<u8>, rank: usize| out.extend((rank as u32).to_le_bytes());
        let text = |out: &mut Vec<u8>, text: &str| {
            let mut end = text.len().min(TEXT_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            out.extend((end as u16).to_le_bytes());
            out.extend(&text.as_bytes()[..end]);
        };
        rank(&mut out, self.by);
        out.extend(self.sequence.to_le_bytes());
        out.extend(self.call.encode());
        match &self.fault {
            Fault::Missing { ranks, waited } => {
                out.push(1);
                out.extend((waited.as_millis() as u64).to_le_bytes());
                let ranks = &ranks[..ranks.len().min(RANKS_MAX)];
                out.extend((ranks.len() as u16).to_le_bytes());
                for missing in ranks {
                    rank(&mut out, *missing);
                }
            }
            Fault::Lost { rank: lost, why } => {
                out.push(2);
                rank(&mut out, *lost);
                text(&mut out, why);
            }
            Fault::Mismatch { calls } => {
                out.push(3);
                let calls = &calls[..calls.len().min(CALLS_MAX)];
                out.extend((calls.len() as u16).to_le_bytes());
                for (caller, sequence, call) in calls {
                    rank(&mut out, *caller);
                    out.extend(sequence.to_le_bytes());
                    out.extend(call.encode());
                }
            }
            Fault::Stale {
                rank: stale,
                theirs,
                ours,
            } => {
                out.push(4);
                rank(&mut out, *stale);
                out.extend(theirs.to_le_bytes());
                out.extend(ours.to_le_bytes());
            }
            Fault::Garbled { rank: from, why } => {
                out.push(5);
                rank(&mut out, *from);
                text(&mut out, why);
            }
            Fault::Device { rank: whose, why } => {
                out.push(6);
                rank(&mut out, *whose);
                text(&mut out, why);
            }
        }
        out
    }

    /// The inverse of [`Self::encode`]; `None` for bytes that are no report.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut read = Reader(bytes);
        let by = read.rank()?;
        let sequence = u64::from_le_bytes(read.take()?);
        let call = CollectiveCall::decode(&read.take()?)?;
        let fault = match read.u8()? {
            1 => {
                let waited = Duration::from_millis(u64::from_le_bytes(read.take()?));
                let count = usize::from(u16::from_le_bytes(read.take()?)).min(RANKS_MAX);
                let ranks = (0..count).map(|_| read.rank()).collect::<Option<_>>()?;
                Fault::Missing { ranks, waited }
            }
            2 => Fault::Lost {
                rank: read.rank()?,
                why: read.text()?,
            },
            3 => {
                let count = usize::from(u16::from_le_bytes(read.take()?)).min(CALLS_MAX);
                let mut call = || {
                    let (rank, sequence) = (read.rank()?, u64::from_le_bytes(read.take()?));
                    Some((rank, sequence, CollectiveCall::decode(&read.take()?)?))
                };
                let calls = (0..count).map(|_| call()).collect::<Option<_>>()?;
                Fault::Mismatch { calls }
            }
            4 => Fault::Stale {
                rank: read.rank()?,
                theirs: u64::from_le_bytes(read.take()?),
                ours: u64::from_le_bytes(read.take()?),
            },
            5 => Fault::Garbled {
                rank: read.rank()?,
                why: read.text()?,
            },
            6 => Fault::Device {
                rank: read.rank()?,
                why: read.text()?,
            },
            _ => return None,
        };
        Some(Self {
            by,
            sequence,
            call,
            fault,
        })
    }
}

/// Takes from the front of bytes that may end too early.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn rank(&mut self) -> Option<usize> {
        self.take().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn a_call() -> CollectiveCall {
        CollectiveCall {
            operation: Operation::AllReduce,
            element: ElementType::Bf16,
            reduce: Some(Reduce::Mean),
            algorithm: Algorithm::Ring,
            peer: 7,
            count: 1 << 40,
            layout: 3,
        }
    }

    #[test]
    fn reports_travel_and_stay_within_their_bound() {
        let faults = [
            Fault::Missing {
                ranks: vec![1, 5],
                waited: Duration::from_millis(1500),
            },
            Fault::Lost {
                rank: 3,
                why: "its process ended".to_owned(),
            },
            Fault::Mismatch {
                calls: vec![
                    (0, 4, a_call()),
                    (
                        2,
                        5,
                        CollectiveCall {
                            count: 1,
                            ..a_call()
                        },
                    ),
                ],
            },
            Fault::Stale {
                rank: 2,
                theirs: 4,
                ours: 5,
            },
            Fault::Garbled {
                rank: 1,
                why: "Länge".to_owned(),
            },
            Fault::Device {
                rank: 0,
                why: "unhandled system error".to_owned(),
            },
        ];
        for fault in faults {
            let report = Report {
                by: 9,
                sequence: 77,
                call: a_call(),
                fault,
            };
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        let long = [
            Fault::Missing {
                ranks: (0..1000).collect(),
                waited: Duration::MAX,
            },
            Fault::Lost {
                rank: 0,
                why: "ä".repeat(1000),
            },
            Fault::Mismatch {
                calls: vec![(0, 0, a_call()); 1000],
            },
        ];
        for fault in long {
            let bytes = Report {
                by: 9,
                sequence: 77,
                call: a_call(),
                fault,
            }
            .encode();
            assert!(bytes.len() <= REPORT_BYTES_MAX, "{}", bytes.len());
            assert!(Report::decode(&bytes).is_some());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(report) = Report::decode(&bytes) {
                prop_assert!(report.encode().len() <= REPORT_BYTES_MAX);
            }
        }
    }

    #[test]
    fn an_error_says_who_what_and_what_to_do() {
        let fault = Fault::Missing {
            ranks: vec![2],
            waited: Duration::from_secs(3),
        };
        let report = Report {
            by: 1,
            sequence: 12,
            call: a_call(),
            fault,
        };
        let failed = Failed {
            rank: 0,
            generation: 4,
            sequence: 12,
            call: a_call(),
            report,
        };
        let error = CollectiveError::Failed(Box::new(failed.clone()));
        let text = error.to_string();
        for part in [
            "all-reduce (mean)",
            "rank 0",
            "number 12",
            "generation 4",
            "rank 2",
            "3s",
            "rank 1 found",
            "new communicator",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let broken = CollectiveError::Broken {
            first: Box::new(failed),
        };
        assert_eq!(broken.fault(), error.fault());
        assert!(broken.to_string().contains("rank 2"));
    }
}
