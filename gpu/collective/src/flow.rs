//! Flows: how far a call of a rank has got, told while it is under way to whoever records it.
//!
//! A call counts what its rank has *produced* (ready to leave), *sent* (taken by the transport) and what the other
//! side has *taken*: always produced >= sent >= taken (arXiv 2509.03018). Over messages these are bytes, heads
//! included, over windows rounds. The place where the three part says who holds the call up.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::CollectiveCall;

/// Hears of each call of a rank. It is called where numbers are moved, so it must not wait, lock or allocate.
pub trait FlowRecorder: Send + Sync + fmt::Debug {
    /// A call begins: its number among the calls of all ranks, or of the pair, from 1; itself; and the bytes of its
    /// larger buffer on this rank.
    fn begin(&mut self, sequence: u64, call: &CollectiveCall, bytes: u64);

    /// The call has got so far.
    fn advance(&mut self, progress: &FlowProgress);

    /// The call has ended, for good or with a fault.
    fn end(&mut self, completed: bool);
}

/// The progress of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowProgress {
    /// The rank that is sent to; nobody in particular where ranks share windows.
    pub to: Option<u32>,
    /// The rank that is waited for; nobody in particular where ranks share windows.
    pub from: Option<u32>,
    /// Bytes or rounds that are ready to leave.
    pub produced: u64,
    /// Of these, what the transport has taken.
    pub sent: u64,
    /// Of these, what the other side has taken.
    pub taken: u64,
}

/// The stage of a call under way, by its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FlowStage {
    /// Produced and not sent, though all that was sent is taken: the sender holds it up.
    Sending,
    /// Produced and not sent, since what was sent is not taken: the other side holds it up.
    Blocked,
    /// All is sent and some is not taken; the rank waits for others.
    Untaken,
    /// All is sent and taken; the rank waits for others.
    Waiting,
}

impl FlowStage {
    /// All stages, in order.
    pub const ALL: [Self; 4] = [Self::Sending, Self::Blocked, Self::Untaken, Self::Waiting];
}

impl FlowProgress {
    /// The stage. Windows are written and shown in one go, so whoever is in a round waits for the others.
    #[must_use]
    pub const fn stage(&self) -> FlowStage {
        match self.to {
            None => FlowStage::Waiting,
            Some(_) if self.produced > self.sent && self.sent > self.taken => FlowStage::Blocked,
            Some(_) if self.produced > self.sent => FlowStage::Sending,
            Some(_) if self.sent > self.taken => FlowStage::Untaken,
            Some(_) => FlowStage::Waiting,
        }
    }
}

/// The kind of group that a flow belongs to, in at most eight bytes: the name of the dimension along which the group lies,
/// such as `tp`. Groups of one label and size do the same in each step.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FlowLabel(u64);

impl FlowLabel {
    /// The first eight bytes of a name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 8];
        for (byte, of_name) in bytes.iter_mut().zip(name.bytes()) {
            *byte = of_name;
        }
        Self(u64::from_le_bytes(bytes))
    }

    /// The label as a word, for memory that others read.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The label of a word.
    #[must_use]
    pub const fn of_word(word: u64) -> Self {
        Self(word)
    }
}

impl fmt::Display for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.to_le_bytes();
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        f.write_str(&String::from_utf8_lossy(name))
    }
}

/// The owner of a rank: two numbers by which the process and the rank's actor are found.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FlowMember {
    /// The home of the actor.
    pub home: u64,
    /// Its number there.
    pub serial: u64,
}

/// Where a rank does collectives: one of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FlowPlace {
    /// The owner of the rank.
    pub member: FlowMember,
    /// The group, as [`Membership::gang`](crate::Membership::gang).
    pub group: u64,
    /// Its label.
    pub label: FlowLabel,
    /// The rank in the group.
    pub rank: u32,
    /// The number of ranks of the group.
    pub world: u32,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallState {
    /// It has not ended.
    UnderWay,
    /// It has ended with its result.
    Completed,
    /// It has ended with a fault.
    Failed,
}

/// A call of a rank at a moment. Times are nanoseconds since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The rank, in its group.
    pub place: FlowPlace,
    /// The state of the call.
    pub state: CallState,
    /// The number of the call, of all ranks or of the pair, from 1.
    pub sequence: u64,
    /// The call.
    pub call: CollectiveCall,
    /// Bytes of its larger buffer.
    pub bytes: u64,
    /// When it began.
    pub began: u64,
    /// The moment: of its end, where it has ended.
    pub at: u64,
    /// The progress that it had made.
    pub progress: FlowProgress,
}

/// The last call of a rank in a group, and counts of all before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCall {
    /// The call as it stands.
    pub record: FlowRecord,
    /// Calls of all ranks that this one has begun.
    pub launched: u64,
    /// Calls that have ended with a result, those of pairs too.
    pub completed: u64,
    /// Nanoseconds for which the thread that called was ready to run and had no processor.
    pub starved: u64,
}

/// The part of a process's records that was not read before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowReading {
    /// The moment of reading.
    pub at: u64,
    /// When the process last looked after its calls under way, which it does every 100 ms while it runs.
    pub beat: u64,
    /// The number of times that it has done so.
    pub beats: u64,
    /// New records, the oldest first.
    pub records: Vec<FlowRecord>,
    /// Records that were overwritten before they were read, or could not be written, so far.
    pub lost: u64,
    /// The last call in each group; with the number 0 where there was none yet.
    pub last: Vec<LastCall>,
}

/// A call under way with whoever records it; nobody where nothing is recorded.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    recorder: Option<&'a mut (dyn FlowRecorder + 'static)>,
    progress: FlowProgress,
}

impl<'a> Recording<'a> {
    pub(super) const fn new(recorder: Option<&'a mut (dyn FlowRecorder + 'static)>) -> Self {
        Self {
            recorder,
            progress: FlowProgress {
                to: None,
                from: None,
                produced: 0,
                sent: 0,
                taken: 0,
            },
        }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// Changes the progress and tells it.
    pub(super) fn advance(&mut self, change: impl FnOnce(&mut FlowProgress)) {
        if let Some(recorder) = &mut self.recorder {
            change(&mut self.progress);
            recorder.advance(&self.progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_where_the_counts_part_is_the_stage() {
        let stage = |produced, sent, taken| {
            let progress = FlowProgress {
                to: Some(1),
                from: Some(2),
                produced,
                sent,
                taken,
            };
            progress.stage()
        };
        assert_eq!(stage(9, 4, 4), FlowStage::Sending);
        assert_eq!(stage(9, 4, 2), FlowStage::Blocked);
        assert_eq!(stage(9, 9, 2), FlowStage::Untaken);
        assert_eq!(stage(9, 9, 9), FlowStage::Waiting);
        let rounds = FlowProgress {
            produced: 2,
            sent: 2,
            taken: 1,
            ..FlowProgress::default()
        };
        assert_eq!(rounds.stage(), FlowStage::Waiting);
    }

    #[test]
    fn labels_are_the_front_of_names() {
        assert_eq!(FlowLabel::new("tp").to_string(), "tp");
        assert_eq!(FlowLabel::new("replicated").to_string(), "replicat");
        let label = FlowLabel::new("dp");
        assert_eq!(FlowLabel::of_word(label.word()), label);
    }
}
