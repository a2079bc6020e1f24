//! Requests that wait for an answer. Answers, deadlines, cancellation and the loss of a link all
//! end at the pending entry, whichever comes first.
//!
//! The key of an entry is the call's id on the wire. One sweep looks at all deadlines; a timer for
//! each ask would cost more than the ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::actor::Wire;
use crate::clock::Timestamp;
use crate::error::AskError;
use crate::id::{ActorId, ProcessId};
use crate::wire::codec;

/// Where the answer to one ask arrives.
#[derive(Debug)]
pub(crate) struct Slot<R> {
    actor: ActorId,
    state: Mutex<SlotState<R>>,
}

#[derive(Debug)]
enum SlotState<R> {
    Empty(Option<Waker>),
    Done(Result<R, AskError>),
    Taken,
}

impl<R> Slot<R> {
    pub(crate) fn new(actor: ActorId) -> Arc<Self> {
        Arc::new(Self {
            actor,
            state: Mutex::new(SlotState::Empty(None)),
        })
    }

    /// Settles the slot; the first outcome wins.
    pub(crate) fn set(&self, outcome: Result<R, AskError>) {
        let mut state = self.state.lock();
        if let SlotState::Empty(waker) = &mut *state {
            let waker = waker.take();
            *state = SlotState::Done(outcome);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Nobody will look at the outcome.
    pub(crate) fn abandon(&self) {
        *self.state.lock() = SlotState::Taken;
    }

    /// Whether nobody will look at the outcome.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(*self.state.lock(), SlotState::Taken)
    }

    pub(crate) const fn actor(&self) -> ActorId {
        self.actor
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<R, AskError>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Done(outcome) => Poll::Ready(outcome),
            SlotState::Empty(mut waker) => {
                match &mut waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                *state = SlotState::Empty(waker);
                Poll::Pending
            }
            SlotState::Taken => panic!("an ask was polled after it had finished"),
        }
    }
}

/// A slot of any type, for the table.
pub(crate) trait Waiter: Send + Sync {
    fn reply(&self, payload: &Bytes);
    fn fail(&self, error: AskError);
}

impl<R: Wire> Waiter for Slot<R> {
    fn reply(&self, payload: &Bytes) {
        self.set(codec::decode(payload).map_err(|error| AskError::BadReply {
            actor: self.actor,
            why: error.to_string(),
        }));
    }

    fn fail(&self, error: AskError) {
        self.set(Err(error));
    }
}

/// One request that waits.
pub(crate) struct Waiting {
    pub(crate) slot: Arc<dyn Waiter>,
    pub(crate) actor: ActorId,
    pub(crate) deadline: Timestamp,
    pub(crate) patience: Duration,
    /// The neighbour that the call was written to; `None` while it stays in this process.
    pub(crate) via: Option<ProcessId>,
}

struct Entry {
    generation: u32,
    waiting: Option<Waiting>,
}

#[derive(Default)]
struct Shard {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

const SHARDS: usize = 16;

/// The table of waiting requests of an engine.
#[derive(Default)]
pub(crate) struct Pending {
    shards: [Mutex<Shard>; SHARDS],
    live: AtomicUsize,
}

impl Pending {
    /// Adds a request and returns its key, which is never 0.
    pub(crate) fn insert(&self, waiting: Waiting) -> u64 {
        let shard_index = shard_of_thread();
        let mut shard = self.shards[shard_index].lock();
        self.live.fetch_add(1, Ordering::Relaxed);
        let index = match shard.free.pop() {
            Some(index) => {
                shard.entries[index as usize].waiting = Some(waiting);
                index
            }
            None => {
                shard.entries.push(Entry {
                    generation: 1,
                    waiting: Some(waiting),
                });
                (shard.entries.len() - 1) as u32
            }
        };
        let generation = shard.entries[index as usize].generation;
        key(shard_index, index, generation)
    }

    /// Takes a request out; `None` when something else has ended it already.
    pub(crate) fn take(&self, key: u64) -> Option<Waiting> {
        let (shard_index, index, generation) = parts(key);
        let mut shard = self.shards.get(shard_index)?.lock();
        let entry = shard.entries.get_mut(index as usize)?;
        if entry.generation != generation {
            return None;
        }
        let waiting = entry.waiting.take()?;
        // 28 bits of generation travel in the key; 0 is left out so that no key is 0.
        entry.generation = (generation % 0x0fff_fffe) + 1;
        shard.free.push(index);
        self.live.fetch_sub(1, Ordering::Relaxed);
        Some(waiting)
    }

    /// Notes which neighbour the call was written to.
    pub(crate) fn sent_via(&self, key: u64, via: ProcessId) {
        let (shard_index, index, generation) = parts(key);
        let mut shard = self.shards[shard_index].lock();
        if let Some(entry) = shard.entries.get_mut(index as usize)
            && entry.generation == generation
            && let Some(waiting) = &mut entry.waiting
        {
            waiting.via = Some(via);
        }
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Ends every request past its deadline. Returns those that had left the process, so that their
    /// receivers can be told to forget them.
    pub(crate) fn sweep(&self, now: Timestamp) -> Vec<(u64, Waiting)> {
        let expired = self.drain(|waiting| waiting.deadline <= now);
        for (_, waiting) in &expired {
            waiting.slot.fail(AskError::Timeout {
                actor: waiting.actor,
                waited: waiting.patience,
            });
        }
        expired
    }

    /// Takes out every request that `ends` is true for.
    pub(crate) fn drain(&self, ends: impl Fn(&Waiting) -> bool) -> Vec<(u64, Waiting)> {
        let mut ended = vec![];
        if self.len() == 0 {
            return ended;
        }
        for (shard_index, shard) in self.shards.iter().enumerate() {
            let keys: Vec<u64> = {
                let shard = shard.lock();
                (0u32..)
                    .zip(&shard.entries)
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
        let slot = Slot::<u32>::new(actor);
        let waiting = Waiting {
            slot: Arc::clone(&slot) as Arc<dyn Waiter>,
            actor,
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
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn a_sweep_ends_what_is_due_and_nothing_else() {
        let pending = Pending::default();
        let (early, waits) = waiting(10);
        pending.insert(waits);
        let (late, waits) = waiting(20);
        pending.insert(waits);
        assert_eq!(pending.sweep(Timestamp(10)).len(), 1);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(
            early.poll(&mut cx),
            Poll::Ready(Err(AskError::Timeout { .. }))
        ));
        assert!(late.poll(&mut cx).is_pending());
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn the_first_outcome_wins() {
        let (slot, _) = waiting(1);
        slot.set(Ok(1));
        slot.set(Ok(2));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(slot.poll(&mut cx), Poll::Ready(Ok(1))));
    }
}
