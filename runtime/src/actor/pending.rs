//! Requests that wait for an answer. Answers, deadlines, cancellation and the loss of a link all
//! end at the pending entry, whichever comes first.
//!
//! The key of an entry is the call's id on the wire. One sweep looks at all deadlines; a timer for
//! each ask would cost more than the ask.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::id::{ActorId, ProcessId};
use crate::base::message::Wire;
use crate::base::trace::SpanContext;
use crate::net::wire::codec;

/// Where the answer to one ask arrives.
#[derive(Debug)]
pub(crate) struct Slot<R> {
    actor: ActorId,
    /// Beside the state, since every handler looks at it first: no lock.
    abandoned: AtomicBool,
    state: Mutex<SlotState<R>>,
}

#[derive(Debug)]
enum SlotState<R> {
    Empty(Waker),
    /// The outcome and when it came.
    Done(Result<R, AskError>, Timestamp),
    Taken,
}

impl<R> Slot<R> {
    /// A slot whose outcome wakes `waker`, without a first poll.
    pub(crate) fn new(actor: ActorId, waker: Waker) -> Arc<Self> {
        let state = Mutex::new(SlotState::Empty(waker));
        Arc::new(Self {
            actor,
            abandoned: AtomicBool::new(false),
            state,
        })
    }

    /// Settles the slot; the first outcome wins.
    pub(crate) fn set(&self, outcome: Result<R, AskError>, at: Timestamp) {
        let mut state = self.state.lock();
        if !matches!(*state, SlotState::Empty(_)) {
            return;
        }
        let before = std::mem::replace(&mut *state, SlotState::Done(outcome, at));
        drop(state);
        if let SlotState::Empty(waker) = before {
            waker.wake();
        }
    }

    /// Nobody will look at the outcome.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    /// Returns true if nobody will look at the outcome.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The outcome and when it came.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<(Result<R, AskError>, Timestamp)> {
        let mut state = self.state.lock();
        if let SlotState::Empty(waker) = &mut *state {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Done(outcome, at) => Poll::Ready((outcome, at)),
            SlotState::Empty(_) | SlotState::Taken => {
                panic!("an ask was polled after it had finished")
            }
        }
    }
}

/// A slot of any type, for the table.
pub(crate) trait Waiter: Send + Sync {
    fn reply(&self, payload: &Bytes, at: Timestamp);
    fn fail(&self, error: AskError);
}

impl<R: Wire> Waiter for Slot<R> {
    fn reply(&self, payload: &Bytes, at: Timestamp) {
        let outcome = codec::decode(payload).map_err(|error| AskError::BadReply {
            actor: self.actor,
            why: error.to_string(),
        });
        self.set(outcome, at);
    }

    fn fail(&self, error: AskError) {
        self.set(Err(error), Clock::now());
    }
}

/// The sender of a message: the actor whose handler runs, if one does, and its span.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Caller {
    pub(crate) actor: Option<ActorId>,
    pub(crate) span: SpanContext,
}

impl Caller {
    /// The actor, if it is one.
    pub(crate) const fn inside(&self) -> Option<ActorId> {
        self.actor
    }

    /// The actor, or the root of its process, which is this.
    pub(crate) fn actor(&self, process: ProcessId) -> ActorId {
        self.actor.unwrap_or_else(|| ActorId::root(process))
    }
}

/// Callers that wait for room on the way to an actor or for its next reply, for people to see.
#[derive(Default)]
pub(crate) struct Crowd {
    rows: Mutex<(u64, BTreeMap<u64, InCrowd>)>,
}

/// One who waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InCrowd {
    pub(crate) caller: Caller,
    pub(crate) actor: ActorId,
    pub(crate) message: &'static str,
    pub(crate) since: Timestamp,
    pub(crate) wait: WaitFor,
}

/// What somebody in a crowd waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Room on the way to the actor.
    Room,
    /// The next reply of a stream.
    Answer,
}

/// A wait for room or for a reply; over when it is dropped.
pub(crate) struct Queueing {
    crowd: Arc<Crowd>,
    number: u64,
}

impl Crowd {
    pub(crate) fn enter(self: &Arc<Self>, row: InCrowd) -> Queueing {
        let mut rows = self.rows.lock();
        rows.0 += 1;
        let number = rows.0;
        rows.1.insert(number, row);
        Queueing {
            crowd: Arc::clone(self),
            number,
        }
    }

    /// Looks at all who wait.
    pub(crate) fn each(&self, look: impl FnMut(&InCrowd)) {
        self.rows.lock().1.values().for_each(look);
    }
}

impl Drop for Queueing {
    fn drop(&mut self) {
        self.crowd.rows.lock().1.remove(&self.number);
    }
}

/// One request that waits.
pub(crate) struct Waiting {
    pub(crate) slot: Arc<dyn Waiter>,
    pub(crate) actor: ActorId,
    pub(crate) message: &'static str,
    pub(crate) caller: Caller,
    pub(crate) since: Timestamp,
    pub(crate) deadline: Timestamp,
    pub(crate) patience: Duration,
    /// The neighbour that the call was written to; `None` while it stays in this process.
    pub(crate) via: Option<ProcessId>,
}

impl Waiting {
    /// Its deadline has passed; the actors that wait for each other, in words.
    pub(crate) fn expire(&self, circle: String) {
        self.slot.fail(AskError::Timeout {
            actor: self.actor,
            waited: self.patience,
            circle,
        });
    }
}

struct Entry {
    generation: u32,
    waiting: Option<Waiting>,
}

/// One thread's part of the table, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    table: Mutex<Table>,
    /// The number of requests that wait: written under the lock, read without.
    live: AtomicUsize,
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The first generation of an entry, less one.
    before: u32,
}

impl Shard {
    fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }
}

impl Table {
    fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

const SHARDS: usize = 16;

/// The table of waiting requests of an engine.
#[derive(Default)]
pub(crate) struct Pending {
    shards: [Shard; SHARDS],
    /// Whoever sweeps waits for a first request.
    resting: AtomicBool,
    stirred: Notify,
}

impl Pending {
    /// Has keys begin somewhere else: those of the program before this one are not used again soon.
    pub(crate) fn begin_elsewhere(&self) {
        for shard in &self.shards {
            shard.table.lock().before = (crate::base::random::number() % 0x0fff_fffe) as u32;
        }
    }

    /// Adds a request and returns its key, which is never 0.
    pub(crate) fn insert(&self, waiting: Waiting) -> u64 {
        let shard_index = shard_of_thread();
        let shard = &self.shards[shard_index];
        let mut table = shard.table.lock();
        let index = match table.free.pop() {
            Some(index) => {
                table.entries[index as usize].waiting = Some(waiting);
                index
            }
            None => {
                let generation = table.before + 1;
                table.entries.push(Entry {
                    generation,
                    waiting: Some(waiting),
                });
                (table.entries.len() - 1) as u32
            }
        };
        let generation = table.entries[index as usize].generation;
        shard.live.store(table.len(), Ordering::Relaxed);
        // Whoever rests says so before it looks into each table, so one of us sees the other.
        let resting = self.resting.load(Ordering::Relaxed);
        drop(table);
        if resting {
            self.stir();
        }
        key(shard_index, index, generation)
    }

    /// Resolves when there is a request, or after [`Pending::stir`].
    pub(crate) async fn stirred(&self) {
        self.resting.store(true, Ordering::Relaxed);
        let live = |shard: &Shard| shard.table.lock().len() > 0;
        if !self.shards.iter().any(live) {
            self.stirred.notified().await;
        }
        self.resting.store(false, Ordering::Relaxed);
    }

    /// Wakes whoever waits for a first request.
    pub(crate) fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Takes a request out; `None` when something else has ended it already.
    pub(crate) fn take(&self, key: u64) -> Option<Waiting> {
        self.end(key, Option::take)
    }

    /// Drops a request, if nothing else has ended it already.
    pub(crate) fn forget(&self, key: u64) {
        // Where it lies: it is not small.
        self.end(key, |waiting| waiting.is_some().then(|| *waiting = None));
    }

    /// Ends a request by emptying its entry; `None` when that was empty.
    fn end<T>(&self, key: u64, empty: impl FnOnce(&mut Option<Waiting>) -> Option<T>) -> Option<T> {
        let (shard_index, index, generation) = parts(key);
        let shard = self.shards.get(shard_index)?;
        let mut table = shard.table.lock();
        let entry = table.entries.get_mut(index as usize)?;
        if entry.generation != generation {
            return None;
        }
        let ended = empty(&mut entry.waiting)?;
        // 28 bits of generation travel in the key; 0 is left out so that no key is 0.
        entry.generation = (generation % 0x0fff_fffe) + 1;
        table.free.push(index);
        shard.live.store(table.len(), Ordering::Relaxed);
        Some(ended)
    }

    /// Notes which neighbour the call was written to, or that it was not. Returns true if it still
    /// waits.
    pub(crate) fn sent_via(&self, key: u64, via: Option<ProcessId>) -> bool {
        let (shard_index, index, generation) = parts(key);
        let mut table = self.shards[shard_index].table.lock();
        match table.entries.get_mut(index as usize) {
            Some(Entry {
                generation: present,
                waiting: Some(waiting),
            }) if *present == generation => {
                waiting.via = via;
                true
            }
            _ => false,
        }
    }

    /// Returns true if at most one request waits. Looks at this thread's first, which says no when
    /// there is much to do.
    pub(crate) fn is_alone(&self) -> bool {
        let own = shard_of_thread();
        let (before, after) = self.shards.split_at(own);
        let mut waiting = 0;
        after.iter().chain(before).all(|shard| {
            waiting += shard.len();
            waiting <= 1
        })
    }

    /// Looks at every request.
    pub(crate) fn each(&self, mut look: impl FnMut(&Waiting)) {
        for shard in self.shards.iter().filter(|shard| shard.len() > 0) {
            let table = shard.table.lock();
            table
                .entries
                .iter()
                .filter_map(|entry| entry.waiting.as_ref())
                .for_each(&mut look);
        }
    }

    /// Takes out every request past its deadline. Whoever sweeps first tells the receivers of those
    /// that left the process to forget them, and then [`Waiting::expire`]s each: what its caller
    /// does next comes after the cancellation.
    pub(crate) fn sweep(&self, now: Timestamp) -> Vec<(u64, Waiting)> {
        self.drain(|waiting| waiting.deadline <= now)
    }

    /// Takes out every request that `ends` is true for.
    pub(crate) fn drain(&self, ends: impl Fn(&Waiting) -> bool) -> Vec<(u64, Waiting)> {
        let mut ended = vec![];
        for (shard_index, shard) in self.shards.iter().enumerate() {
            if shard.len() == 0 {
                continue;
            }
            let keys: Vec<u64> = {
                let table = shard.table.lock();
                (0u32..)
                    .zip(&table.entries)
                    .filter(|(_, entry)| entry.waiting.as_ref().is_some_and(&ends))
                    .map(|(index, entry)| key(shard_index, index, entry.generation))
                    .collect()
            };
            ended.extend(
                keys.into_iter()
                    .filter_map(|key| Some((key, self.take(key)?))),
            );
        }
        ended
    }
}

fn key(shard: usize, index: u32, generation: u32) -> u64 {
    (u64::from(generation) << 36) | (u64::from(index) << 4) | shard as u64
}

fn parts(key: u64) -> (usize, u32, u32) {
    ((key & 0xf) as usize, (key >> 4) as u32, (key >> 36) as u32)
}

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(deadline: u64) -> (Arc<Slot<u32>>, Waiting) {
        let actor = ActorId::root(ProcessId(1));
        let slot = Slot::<u32>::new(actor, Waker::noop().clone());
        let waiting = Waiting {
            slot: Arc::clone(&slot) as Arc<dyn Waiter>,
            actor,
            message: "m",
            caller: Caller::default(),
            since: Timestamp(0),
            deadline: Timestamp(deadline),
            patience: Duration::from_nanos(deadline),
            via: None,
        };
        (slot, waiting)
    }

    #[test]
    fn a_key_ends_one_request_once() {
        let pending = Pending::default();
        let first = pending.insert(waiting(10).1);
        assert!(pending.take(first).is_some());
        assert!(pending.take(first).is_none());
        let second = pending.insert(waiting(10).1);
        assert_ne!(first, second, "a slot that is used again has another key");
        assert!(pending.take(first).is_none());
        assert!(pending.take(0).is_none() && pending.take(u64::MAX).is_none());
        assert!(pending.is_alone());
        pending.insert(waiting(10).1);
        assert!(!pending.is_alone());
    }

    #[test]
    fn a_sweep_ends_what_is_due_and_nothing_else() {
        let pending = Pending::default();
        let (early, waits) = waiting(10);
        pending.insert(waits);
        let (late, waits) = waiting(20);
        pending.insert(waits);
        let due = pending.sweep(Timestamp(10));
        assert_eq!(due.len(), 1);
        due[0].1.expire(String::new());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(
            early.poll(&mut cx),
            Poll::Ready((Err(AskError::Timeout { .. }), _))
        ));
        assert!(late.poll(&mut cx).is_pending());
        assert_eq!(pending.sweep(Timestamp(20)).len(), 1);
    }

    #[test]
    fn the_first_outcome_wins() {
        let (slot, _) = waiting(1);
        slot.set(Ok(1), Timestamp(1));
        slot.set(Ok(2), Timestamp(2));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(
            slot.poll(&mut cx),
            Poll::Ready((Ok(1), Timestamp(1)))
        ));
    }
}
