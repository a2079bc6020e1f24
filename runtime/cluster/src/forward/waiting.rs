//! The lines of this node's processes that wait for a voter to keep them. Pure: time comes as an
//! argument.
//!
//! Each try of a job has a bounded queue. When it is full, whoever reads the output of its processes
//! waits, so the pipe fills up and the process is slowed. When no voter has kept anything for a while,
//! the oldest lines make room instead, so no process hangs for good; a reader misses their numbers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use odeon::Timestamp;
use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::logs::{LogLine, Stream};
use crate::unix::Unix;

/// A try of a job.
pub(crate) type Try = (JobId, u32);

/// A line as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Printed {
    pub(crate) at: Unix,
    pub(crate) process: String,
    pub(crate) stream: Stream,
    pub(crate) text: String,
    pub(crate) changes: bool,
}

/// The queues of lines, one for each try, which take turns.
#[derive(Debug)]
pub(crate) struct Waiting {
    node: String,
    sender: u64,
    queues: BTreeMap<Try, Queue>,
    /// Whose turn it was last.
    turn: Option<Try>,
    /// Since when lines wait and none was kept.
    unkept_since: Option<Timestamp>,
}

/// The output that one try has printed here.
#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// The number of the next line.
    next: u64,
    /// The time of the last.
    at: Unix,
    /// Lines under way.
    leaving: usize,
    /// Outputs that are open.
    open: usize,
    /// When something was read of them last.
    read: Timestamp,
    /// The last words of the driver on its standard error.
    said: String,
    /// Since when the end of the try waits for its output.
    ending: Option<Timestamp>,
    /// Set once nothing more of it begins here.
    over: bool,
    /// Lines that have made room for others before anybody kept them.
    dropped: u64,
}

/// The part of a queue that the next program of this process has to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct QueueEstate {
    of: Try,
    lines: Vec<LogLine>,
    next: u64,
    at: Unix,
    said: String,
}

/// The name of the driver of a job among its processes.
pub(crate) const DRIVER: &str = "driver";
/// Characters of a driver's last words that are told with its end.
const SAID_CHARS_MAX: usize = 400;
/// Bytes of one try that wait here at most.
pub(crate) const WAITING_BYTES_MAX: usize = 4 << 20;
/// The longest time that a process is held up while no voter keeps anything.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(30);
/// Bytes of one message.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of one try in a message, while others wait.
const SHARE_BYTES: usize = 64 << 10;
/// The cost of a line beside its text, in bytes.
const LINE_OVERHEAD: usize = 128;
/// The longest wait for the last lines of ended processes: what they have started may hold their
/// outputs open.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// The longest wait of an end for lines while no voter keeps any.
const KEEP_PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait of an end for lines at all.
const SETTLE_MAX: Duration = Duration::from_secs(60);

impl Waiting {
    pub(crate) fn new(node: &str, sender: u64) -> Self {
        Self {
            node: node.to_owned(),
            sender,
            queues: BTreeMap::new(),
            turn: None,
            unkept_since: None,
        }
    }

    /// The queues as the next program of this process has to know them, with the lines that were
    /// leaving and may not have been kept.
    pub(super) fn handoff(&self, leaving: &[(JobId, LogLine)]) -> Vec<QueueEstate> {
        let queues = self.queues.iter().map(|(of, queue)| {
            let own = |it: &&(JobId, LogLine)| (it.0, it.1.attempt) == *of;
            let before = leaving.iter().filter(own).map(|(_, line)| line.clone());
            QueueEstate {
                of: *of,
                lines: before.chain(queue.lines.iter().cloned()).collect(),
                next: queue.next,
                at: queue.at,
                said: queue.said.clone(),
            }
        });
        queues.collect()
    }

    /// Goes on with what the program before this one in this process has left.
    pub(super) fn inherit(&mut self, queues: Vec<QueueEstate>, now: Timestamp) {
        for handoff in queues {
            let queue = self.queues.entry(handoff.of).or_default();
            queue.bytes = handoff.lines.iter().map(cost_of).sum();
            queue.lines = handoff.lines.into();
            queue.next = handoff.next;
            queue.at = handoff.at;
            queue.said = handoff.said;
            if !queue.lines.is_empty() {
                self.unkept_since.get_or_insert(now);
            }
        }
    }

    /// A process has so many outputs.
    pub(crate) fn open(&mut self, of: Try, outputs: usize, now: Timestamp) {
        let queue = self.queues.entry(of).or_default();
        queue.open += outputs;
        queue.read = now;
    }

    /// An output has ended.
    pub(crate) fn closed(&mut self, of: Try) {
        if let Some(queue) = self.queues.get_mut(&of) {
            queue.open = queue.open.saturating_sub(1);
        }
        self.sweep(of);
    }

    /// Returns true while an output of a try is open.
    pub(crate) fn is_open(&self, of: Try) -> bool {
        self.queues.get(&of).is_some_and(|queue| queue.open > 0)
    }

    /// The last words of the driver of a try on its standard error, if it runs here.
    pub(crate) fn said(&self, of: Try) -> Option<String> {
        let queue = self.queues.get(&of)?;
        Some(queue.said.clone()).filter(|said| !said.is_empty())
    }

    /// The number of lines that a try has printed here.
    pub(crate) fn lines(&self, of: Try) -> u64 {
        self.queues.get(&of).map_or(0, |queue| queue.next)
    }

    /// Lines of a try that no voter keeps: those that have made room, and those that still wait.
    pub(crate) fn unkept(&self, of: Try) -> u64 {
        let queue = self.queues.get(&of);
        queue.map_or(0, |it| it.dropped + (it.lines.len() + it.leaving) as u64)
    }

    /// No process of a try begins here any more.
    pub(crate) fn over(&mut self, of: Try) {
        if let Some(queue) = self.queues.get_mut(&of) {
            queue.over = true;
        }
        self.sweep(of);
    }

    /// Forgets a try of which nothing can come any more.
    fn sweep(&mut self, of: Try) {
        if self
            .queues
            .get(&of)
            .is_some_and(|it| it.over && it.open == 0 && it.is_empty())
        {
            self.queues.remove(&of);
        }
    }

    /// Takes a line, or gives it back with how long to wait at most before it is taken for certain.
    pub(crate) fn push(
        &mut self,
        of: Try,
        printed: Printed,
        now: Timestamp,
    ) -> Result<(), (Printed, Duration)> {
        let queue = self.queues.entry(of).or_default();
        queue.read = now;
        let bytes = printed.text.len() + LINE_OVERHEAD;
        while queue.bytes + bytes > WAITING_BYTES_MAX && !queue.lines.is_empty() {
            let waited = self
                .unkept_since
                .map_or(Duration::ZERO, |since| now.since(since));
            if waited < STALL_MAX {
                return Err((printed, STALL_MAX.saturating_sub(waited)));
            }
            queue.pop();
            queue.dropped += 1;
        }
        queue.at = printed.at.max(queue.at);
        if printed.process == DRIVER && printed.stream == Stream::Err && !printed.text.is_empty() {
            queue.said = printed.text.chars().take(SAID_CHARS_MAX).collect();
        }
        queue.lines.push_back(LogLine {
            attempt: of.1,
            sender: self.sender,
            number: queue.next,
            at: queue.at,
            node: self.node.clone(),
            process: printed.process,
            stream: printed.stream,
            text: printed.text,
            changes: printed.changes,
        });
        queue.bytes += bytes;
        queue.next += 1;
        self.unkept_since.get_or_insert(now);
        Ok(())
    }

    /// Lines to be kept next, of each try in turn. They are under way from now on.
    pub(crate) fn next_batch(&mut self) -> Vec<(JobId, LogLine)> {
        let mut batch = vec![];
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(of) = self.whose_turn()
            && let Some(queue) = self.queues.get_mut(&of)
        {
            self.turn = Some(of);
            let mut share = 0;
            while share < SHARE_BYTES
                && let Some((line, cost)) = queue.pop()
            {
                share += cost;
                queue.leaving += 1;
                batch.push((of.0, line));
            }
            bytes += share;
        }
        batch
    }

    /// The try with lines that comes after the last one.
    fn whose_turn(&self) -> Option<Try> {
        let waits = |(of, queue): (&Try, &Queue)| (!queue.lines.is_empty()).then_some(*of);
        let behind = self.turn.and_then(|last| {
            let behind = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
            self.queues.range(behind).find_map(waits)
        });
        behind.or_else(|| self.queues.iter().find_map(waits))
    }

    /// The lines that were under way are kept.
    pub(crate) fn kept(&mut self, now: Timestamp) {
        for queue in self.queues.values_mut() {
            queue.leaving = 0;
        }
        let waits = self.queues.values().any(|queue| !queue.lines.is_empty());
        self.unkept_since = waits.then_some(now);
        let over: Vec<Try> = self
            .queues
            .iter()
            .filter(|(_, it)| it.over)
            .map(|(of, _)| *of)
            .collect();
        for of in over {
            self.sweep(of);
        }
    }

    /// The longest wait before looking again whether all that a try has printed here is kept, now
    /// that its processes are gone; `None` once there is nothing to wait for. There is an end to
    /// it.
    pub(crate) fn unsettled(&mut self, of: Try, now: Timestamp) -> Option<Duration> {
        let queue = self.queues.get_mut(&of)?;
        let ending = *queue.ending.get_or_insert(now);
        let left = |patience: Duration, since: Timestamp| {
            Some(patience.saturating_sub(now.since(since))).filter(|left| !left.is_zero())
        };
        let in_all = left(SETTLE_MAX, ending)?;
        let next = match self.unkept_since {
            Some(since) if !queue.is_empty() => left(KEEP_PATIENCE, since)?,
            _ if queue.open > 0 => left(OUTPUT_PATIENCE, queue.read.max(ending))?,
            _ => return None,
        };
        Some(next.min(in_all))
    }
}

/// The cost of a line, in bytes.
const fn cost_of(line: &LogLine) -> usize {
    line.text.len() + LINE_OVERHEAD
}

impl Queue {
    fn pop(&mut self) -> Option<(LogLine, usize)> {
        let line = self.lines.pop_front()?;
        let bytes = cost_of(&line);
        self.bytes -= bytes;
        Some((line, bytes))
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.leaving == 0
    }
}

#[cfg(test)]
mod tests;
