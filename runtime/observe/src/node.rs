//! Nodes and processes as they are seen.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use odeon::inspect::{BlockedThread, LinkView, MachineView, NodeView, ProcessKind, Times, Usage};
use odeon::trace::SpanCounts;
use odeon::{ActorId, ProcessId};

use crate::date::Date;
use crate::machines::history::MachineHistory;

/// A process as it is seen.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number in the cluster.
    pub id: ProcessId,
    /// The node that it is on.
    pub node: String,
    /// The operating system's number.
    pub pid: Option<u32>,
    /// Its kind: node, driver or worker.
    pub kind: ProcessKind,
    /// The job that it works for.
    pub job: String,
    /// When it was first seen.
    pub started: Date,
    /// When it was gone.
    pub ended: Option<Date>,
    /// Counts of the spans that it has recorded.
    pub spans: SpanCounts,
    /// Spans that were overwritten before anybody saw them.
    pub spans_lost: u64,
    /// The times that its asks took.
    pub ask_times: Times,
    /// The times of those asks of the last minute.
    pub recent_asks: Recent,
    /// Messages without an answer that nobody handled.
    pub dead_letters: u64,
    /// Spans that there had been when it was first seen.
    pub(crate) spans_before: u64,
    /// The actor that it hosts or has hosted, if it is one alone: what it is for.
    pub(crate) only: Option<ActorId>,
    /// Why it was lost, if it was.
    pub(crate) lost: Option<String>,
    /// Bytes in blobs that it owns.
    pub blob_bytes: u64,
    /// Number of actors that it has.
    pub hosted: u32,
    /// The largest error that its clock may have.
    pub clock_error: Duration,
    /// Its use of its machine, where the system tells.
    pub usage: Option<Usage>,
}

impl Process {
    /// Spans that there have been since it is seen.
    pub(crate) const fn spans_here(&self) -> u64 {
        self.spans.recorded.saturating_sub(self.spans_before)
    }
}

/// The times that things took within the last minute.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// The times counted up to each of some moments, oldest first: one more than a minute ago, and
    /// those after it.
    marks: VecDeque<(Date, Times)>,
    times: Times,
}

/// The length of time that [`Recent`] reaches back, and the distance of its moments.
const WINDOW: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(5);

impl Recent {
    /// The times themselves.
    #[must_use]
    pub const fn times(&self) -> &Times {
        &self.times
    }

    /// Of what is first seen now, all of it.
    pub(crate) fn new(at: Date, all: &Times) -> Self {
        Self {
            marks: VecDeque::from([(at, Times::default())]),
            times: all.clone(),
        }
    }

    /// The same later on, when there have been so many in all.
    pub(crate) fn go_on(mut self, at: Date, all: &Times) -> Self {
        while self
            .marks
            .get(1)
            .is_some_and(|mark| at.since(mark.0) >= WINDOW)
        {
            self.marks.pop_front();
        }
        let base = self.marks.front().and_then(|mark| all.since(&mark.1));
        match base {
            Some(times) => self.times = times,
            None => self.marks.clear(),
        }
        let last = self.marks.back();
        if last.is_none_or(|mark| at.since(mark.0) >= STEP) {
            self.marks.push_back((at, all.clone()));
        }
        self
    }
}

/// The flow over a link: a count of bytes at a moment, or of something else, and the rate up to then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    at: Date,
    bytes: u64,
    /// In bytes, or of what else is counted, a second; `None` at first.
    pub rate: Option<f64>,
}

/// Counts are compared over no less.
const APART: Duration = Duration::from_millis(900);

impl Flow {
    /// A link that has sent so many bytes so far.
    pub(crate) const fn new(at: Date, bytes: u64) -> Self {
        Self {
            at,
            bytes,
            rate: None,
        }
    }

    /// When bytes were last counted.
    pub(crate) const fn at(&self) -> Date {
        self.at
    }

    /// The same link later on. One that has sent less has begun anew.
    pub(crate) fn go_on(self, at: Date, bytes: u64) -> Self {
        let passed = at.since(self.at);
        match bytes.checked_sub(self.bytes) {
            None => Self::new(at, bytes),
            Some(_) if passed < APART => self,
            Some(more) => Self {
                at,
                bytes,
                rate: Some(more as f64 / passed.as_secs_f64()),
            },
        }
    }
}

/// A node as it is seen.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The process that it is.
    pub process: ProcessId,
    /// When it was first seen, in its present life.
    pub since: Date,
    /// When it was last seen.
    pub seen: Date,
    /// It is known to be gone.
    pub gone: Option<Date>,
    /// Its links to other nodes.
    pub links: Vec<LinkView>,
    /// The flows that it sends to its peers, by their processes.
    pub sending: BTreeMap<ProcessId, Flow>,
    /// Its resources, their holders, and those who wait for them.
    pub hardware: Option<NodeView>,
    /// By how many nanoseconds its machine's date is ahead of the observer's, and how sure that is;
    /// `None` for the observer's own.
    pub clock: Option<(i64, Duration)>,
    /// The view of its machine.
    pub machine: MachineView,
    /// Its numbers, second by second.
    pub history: MachineHistory,
    /// Threads of its processes that actors block, and since when.
    pub blocked: Vec<(BlockedThread, Date)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many asks of one length.
    fn asks(count: u16) -> Times {
        serde_json::from_value(serde_json::json!({"first": 9, "counts": [count]})).unwrap()
    }

    #[test]
    fn what_is_a_minute_old_is_not_recent() {
        let at = |seconds: u64| Date(seconds * 1_000_000_000);
        // Ten a second for ten seconds, then one every ten.
        let mut recent = Recent::new(at(1), &asks(10));
        for second in 2..=10 {
            recent = recent.go_on(at(second), &asks(10 * second as u16));
        }
        assert_eq!(recent.times().count(), 100);
        for tens in 2..=20 {
            recent = recent.go_on(at(10 * tens), &asks(99 + tens as u16));
        }
        assert_eq!(recent.times().count(), 6);
        // Those of old have faded: what is known goes on until there is more to compare with.
        recent = recent.go_on(at(201), &asks(60));
        assert_eq!(recent.times().count(), 6);
        recent = recent.go_on(at(202), &asks(61));
        assert_eq!(recent.times().count(), 1);
    }
}
