//! Records of how far the collectives of a process have got, in memory that outlives it as long as a reader maps it.
//!
//! ```text
//!  head      when the process last beat, how often, and the number of the next record
//!  slots     one for each communicator: its last call as it stands, changed by the thread that calls
//!  ring      records: one at the end of each call, and one every 100 ms of each call under way
//! ```
//!
//! Whoever calls stores words and never waits, locks or allocates. A thread of the process, the *beat*, looks at all
//! slots every 100 ms and writes the records of calls under way, so that a process that is stopped falls silent, and one
//! that is busy does not. The oldest records are overwritten, which readers count.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use odeon_collective::{
    Algorithm, CALL_BYTES, CallState, CollectiveCall, ElementType, FlowLabel, FlowMember,
    FlowPlace, FlowProgress, FlowReading, FlowRecord, FlowRecorder, LastCall, Operation,
};
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::MapError;
use crate::mapping::Mapping;
use crate::slab::{Purpose, SharedName, create_shared, open_shared};

/// The pause between two records of a call under way.
const BEAT: Duration = Duration::from_millis(100);
/// Communicators of a process that are recorded at a time; further ones are not.
const SLOTS: usize = 64;
/// Records that are kept.
const RECORDS: u64 = 2048;

const WORD: usize = 8;
/// Words of the head.
const NEXT: usize = 0;
const DROPPED: usize = 1;
const LAST_BEAT: usize = 8;
const BEATS: usize = 9;
const HEAD_WORDS: usize = 16;
/// Words that a slot and a record share: what a call is, and how far it has got.
const MEMBER: usize = 0;
const GROUP: usize = 2;
const PLACE: usize = 3;
const LABEL: usize = 4;
const SEQUENCE: usize = 5;
const CALL: usize = 6;
const BYTES: usize = 9;
const BEGAN: usize = 10;
const AT: usize = 11;
const STATE: usize = 12;
const PEERS: usize = 13;
const PRODUCED: usize = 14;
const SENT: usize = 15;
const TAKEN: usize = 16;
const CALL_WORDS: usize = 17;
/// Further words of a slot.
const OWNED: usize = 17;
const TURN: usize = 18;
const LAUNCHED: usize = 19;
const COMPLETED: usize = 20;
const THREAD: usize = 21;
const STARVED: usize = 22;
const SLOT_WORDS: usize = 24;
/// The further word of a record: its number and one, or that it is being written.
const STAMP: usize = 17;
const RECORD_WORDS: usize = 18;
const WRITING: u64 = u64::MAX;

const SLOTS_AT: usize = HEAD_WORDS;
const RING_AT: usize = SLOTS_AT + SLOTS * SLOT_WORDS;
const LOG_BYTES: usize =
    ((RING_AT + RECORDS as usize * RECORD_WORDS) * WORD).next_multiple_of(4096);

const _: () = assert!(CALL_BYTES == 3 * WORD);

/// States of a call, as words.
const UNDER_WAY: u64 = 1;
const ENDED: u64 = 2;
const FAILED: u64 = 3;

/// The words of a log.
#[derive(Debug)]
struct Words(Mapping);

impl Words {
    fn word(&self, at: usize) -> &AtomicU64 {
        self.0.word(at * WORD)
    }

    fn slot(&self, slot: usize, word: usize) -> &AtomicU64 {
        self.word(SLOTS_AT + slot * SLOT_WORDS + word)
    }

    fn record(&self, number: u64, word: usize) -> &AtomicU64 {
        self.word(RING_AT + (number % RECORDS) as usize * RECORD_WORDS + word)
    }

    /// The call of a slot as it stands; `None` where it is just beginning, or nobody owns the slot.
    fn call(&self, slot: usize) -> Option<[u64; CALL_WORDS]> {
        let turn = self.slot(slot, TURN).load(Ordering::Acquire);
        if self.slot(slot, OWNED).load(Ordering::Relaxed) == 0 || !turn.is_multiple_of(2) {
            return None;
        }
        let mut words = [0; CALL_WORDS];
        // From the last to the first: what is taken was sent, and what is sent was produced.
        for (at, word) in words.iter_mut().enumerate().rev() {
            *word = self.slot(slot, at).load(Ordering::Acquire);
        }
        fence(Ordering::Acquire);
        (self.slot(slot, TURN).load(Ordering::Relaxed) == turn).then_some(words)
    }

    /// Writes a record over the oldest.
    fn append(&self, words: &[u64; CALL_WORDS]) {
        let number = self.word(NEXT).fetch_add(1, Ordering::AcqRel);
        let stamp = self.record(number, STAMP);
        let before = stamp.load(Ordering::Relaxed);
        let free = before != WRITING
            && stamp
                .compare_exchange(before, WRITING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !free {
            // Another thread is a whole ring behind, at the same record.
            self.word(DROPPED).fetch_add(1, Ordering::Relaxed);
            return;
        }
        for (at, word) in words.iter().enumerate() {
            self.record(number, at).store(*word, Ordering::Relaxed);
        }
        stamp.store(number + 1, Ordering::Release);
    }

    /// A record that is whole.
    fn read(&self, number: u64) -> Option<FlowRecord> {
        let stamp = || self.record(number, STAMP).load(Ordering::Acquire);
        if stamp() != number + 1 {
            return None;
        }
        let mut words = [0; CALL_WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.record(number, at).load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        if stamp() != number + 1 {
            return None;
        }
        decode(&words)
    }

    /// Looks after all calls under way.
    fn beat(&self) {
        let at = machine_time();
        for slot in 0..SLOTS {
            let Some(mut words) = self.call(slot) else {
                continue;
            };
            if let Some(starved) = starved(self.slot(slot, THREAD).load(Ordering::Relaxed)) {
                self.slot(slot, STARVED).store(starved, Ordering::Relaxed);
            }
            if words[STATE] == UNDER_WAY {
                words[AT] = at;
                self.append(&words);
            }
        }
        self.word(LAST_BEAT).store(at, Ordering::Release);
        self.word(BEATS).fetch_add(1, Ordering::Release);
    }
}

/// The records of this process. When it is dropped its beat ends; readers keep what they have mapped.
pub struct FlowLog {
    words: Arc<Words>,
    name: FlowLogName,
    _fd: OwnedFd,
    /// The beat ends when this is gone.
    _beats: mpsc::Sender<()>,
}

/// The name by which a process of the same machine reads a [`FlowLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowLogName {
    /// Process that writes it.
    pub owner_pid: u32,
    /// The descriptor in that process.
    pub fd: i32,
    /// Random identity, also part of the memfd's name.
    pub log: u64,
}

impl FlowLog {
    /// An empty log of this process, which beats from now on.
    ///
    /// # Errors
    /// The system gives no memory, descriptor or thread.
    pub fn create() -> io::Result<Self> {
        let (fd, mapping, name) = create_shared(Purpose::Flows, LOG_BYTES)?;
        let words = Arc::new(Words(mapping));
        words.beat();
        let (beats, over) = mpsc::channel::<()>();
        let of_beat = Arc::clone(&words);
        thread::Builder::new()
            .name("odeon-flows".to_owned())
            .spawn(move || {
                while over.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                    of_beat.beat();
                }
            })?;
        Ok(Self {
            words,
            name: FlowLogName {
                owner_pid: name.owner_pid,
                fd: name.fd,
                log: name.id,
            },
            _fd: fd,
            _beats: beats,
        })
    }

    /// The name by which others read it, while it or its process is there.
    #[must_use]
    pub const fn name(&self) -> FlowLogName {
        self.name
    }

    /// The recorder of a communicator; `None` where too many are recorded already.
    #[must_use]
    pub fn writer(&self, place: FlowPlace) -> Option<FlowWriter> {
        let free = |slot: &usize| {
            let owned = self.words.slot(*slot, OWNED);
            owned
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let slot = (0..SLOTS).find(free)?;
        let writer = FlowWriter {
            words: Arc::clone(&self.words),
            slot,
        };
        writer.change(|set| {
            for word in 0..CALL_WORDS {
                set(word, 0);
            }
            for word in [LAUNCHED, COMPLETED, THREAD, STARVED] {
                set(word, 0);
            }
            set(MEMBER, place.member.home);
            set(MEMBER + 1, place.member.serial);
            set(GROUP, place.group);
            set(PLACE, pair(place.rank, place.world));
            set(LABEL, place.label.word());
            let now = machine_time();
            set(BEGAN, now);
            set(AT, now);
            set(PEERS, pair(NOBODY, NOBODY));
        });
        Some(writer)
    }
}

impl fmt::Debug for FlowLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowLog")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Records the calls of one communicator. When it is dropped its last call is forgotten; records stay.
#[derive(Debug)]
pub struct FlowWriter {
    words: Arc<Words>,
    slot: usize,
}

impl FlowWriter {
    fn word(&self, word: usize) -> &AtomicU64 {
        self.words.slot(self.slot, word)
    }

    /// Changes words that belong together: whoever reads them meanwhile sees that.
    fn change(&self, change: impl FnOnce(&mut dyn FnMut(usize, u64))) {
        let turn = self.word(TURN).load(Ordering::Relaxed);
        self.word(TURN).store(turn + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change(&mut |word, value| self.word(word).store(value, Ordering::Relaxed));
        self.word(TURN).store(turn + 2, Ordering::Release);
    }
}

impl FlowRecorder for FlowWriter {
    fn begin(&mut self, sequence: u64, call: &CollectiveCall, bytes: u64) {
        let encoded = call.encode();
        let now = machine_time();
        let launched = self.word(LAUNCHED).load(Ordering::Relaxed);
        let of_pair = matches!(call.operation, Operation::Send | Operation::Receive);
        self.change(|set| {
            set(SEQUENCE, sequence);
            for (at, word) in encoded.chunks_exact(WORD).enumerate() {
                let mut bytes = [0; WORD];
                bytes.copy_from_slice(word);
                set(CALL + at, u64::from_le_bytes(bytes));
            }
            set(BYTES, bytes);
            set(BEGAN, now);
            set(AT, now);
            set(STATE, UNDER_WAY);
            set(PEERS, pair(NOBODY, NOBODY));
            set(PRODUCED, 0);
            set(SENT, 0);
            set(TAKEN, 0);
            set(LAUNCHED, launched + u64::from(!of_pair));
            set(THREAD, this_thread());
        });
    }

    fn advance(&mut self, progress: &FlowProgress) {
        let FlowProgress { to, from, .. } = *progress;
        let peers = pair(to.unwrap_or(NOBODY), from.unwrap_or(NOBODY));
        self.word(PEERS).store(peers, Ordering::Release);
        self.word(PRODUCED)
            .store(progress.produced, Ordering::Release);
        self.word(SENT).store(progress.sent, Ordering::Release);
        self.word(TAKEN).store(progress.taken, Ordering::Release);
    }

    fn end(&mut self, completed: bool) {
        let completions = self.word(COMPLETED).load(Ordering::Relaxed);
        let state = if completed { ENDED } else { FAILED };
        let now = machine_time();
        self.change(|set| {
            set(AT, now);
            set(STATE, state);
            set(COMPLETED, completions + u64::from(completed));
        });
        if let Some(words) = self.words.call(self.slot) {
            self.words.append(&words);
        }
    }
}

impl Drop for FlowWriter {
    fn drop(&mut self) {
        self.word(OWNED).store(0, Ordering::Release);
    }
}

/// Reads the log of another process, also after that has ended.
#[derive(Debug)]
pub struct FlowReader {
    words: Words,
    next: u64,
    lost: u64,
}

impl FlowReader {
    /// Opens a log, from the oldest record that is there.
    ///
    /// # Errors
    /// [`MapError`]: the process is gone, or the name means something else.
    pub fn open(name: &FlowLogName) -> Result<Self, MapError> {
        let shared = SharedName {
            owner_pid: name.owner_pid,
            fd: name.fd,
            id: name.log,
        };
        let words = Words(open_shared(Purpose::Flows, shared, LOG_BYTES)?);
        let next = words.word(NEXT).load(Ordering::Acquire);
        Ok(Self {
            words,
            next: next.saturating_sub(RECORDS),
            lost: 0,
        })
    }

    /// Reads what is there and was not read before. Disturbs nobody.
    pub fn read(&mut self) -> FlowReading {
        let load = |word: usize| self.words.word(word).load(Ordering::Acquire);
        let (beat, beats) = (load(LAST_BEAT), load(BEATS));
        let end = load(NEXT);
        let begin = self.next.max(end.saturating_sub(RECORDS));
        self.lost += begin - self.next;
        self.next = end;
        let mut records = vec![];
        for number in begin..end {
            match self.words.read(number) {
                Some(record) => records.push(record),
                None => self.lost += 1,
            }
        }
        let last = (0..SLOTS).filter_map(|slot| {
            let record = decode(&self.words.call(slot)?)?;
            let word = |word: usize| self.words.slot(slot, word).load(Ordering::Relaxed);
            Some(LastCall {
                record,
                launched: word(LAUNCHED),
                completed: word(COMPLETED),
                starved: word(STARVED),
            })
        });
        FlowReading {
            at: machine_time(),
            beat,
            beats,
            records,
            lost: self.lost,
            last: last.collect(),
        }
    }
}

/// The call of a communicator that has not called.
const NO_CALL: CollectiveCall = CollectiveCall {
    operation: Operation::Barrier,
    element: ElementType::F32,
    reduce: None,
    algorithm: Algorithm::Direct,
    peer: 0,
    count: 0,
    layout: 0,
};

/// No rank in particular.
const NOBODY: u32 = u32::MAX;

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

fn decode(words: &[u64; CALL_WORDS]) -> Option<FlowRecord> {
    let mut call = [0; CALL_BYTES];
    for (bytes, word) in call.chunks_exact_mut(WORD).zip(&words[CALL..]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let peer = |rank: u32| (rank != NOBODY).then_some(rank);
    Some(FlowRecord {
        place: FlowPlace {
            member: FlowMember {
                home: words[MEMBER],
                serial: words[MEMBER + 1],
            },
            group: words[GROUP],
            label: FlowLabel::of_word(words[LABEL]),
            rank: words[PLACE] as u32,
            world: (words[PLACE] >> 32) as u32,
        },
        state: match words[STATE] {
            UNDER_WAY => CallState::UnderWay,
            ENDED => CallState::Completed,
            FAILED => CallState::Failed,
            _ if words[SEQUENCE] == 0 => CallState::Completed,
            _ => return None,
        },
        sequence: words[SEQUENCE],
        call: match words[SEQUENCE] {
            0 => NO_CALL,
            _ => CollectiveCall::decode(&call)?,
        },
        bytes: words[BYTES],
        began: words[BEGAN],
        at: words[AT],
        progress: FlowProgress {
            to: peer(words[PEERS] as u32),
            from: peer((words[PEERS] >> 32) as u32),
            produced: words[PRODUCED],
            sent: words[SENT],
            taken: words[TAKEN],
        },
    })
}

/// Nanoseconds since the machine was started, the same in all of its processes.
fn machine_time() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The system's number of this thread.
fn this_thread() -> u64 {
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(gettid().as_raw_nonzero().get() as u64);
    }
    NUMBER.get()
}

/// Nanoseconds for which a thread of this process was ready to run and had no processor.
fn starved(thread: u64) -> Option<u64> {
    let times = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    times.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests;
