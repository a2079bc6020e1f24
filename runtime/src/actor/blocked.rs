//! Threads that code of actors blocks: which, and since when.
//!
//! Each thread says whose code it polls, in a slot of its own. A thread outside of tokio (see
//! [`io_watchdog`](crate::actor::io_watchdog)) looks at the slots: one that has said the same for long is blocked.
//! A process of which all threads are cannot be looked at, so it tells its node.

pub(crate) mod protocol;
mod service;

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::actor::console::Console;
use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::clock::{Clock, Timestamp};
use crate::base::failure::ProcessExit;
use crate::base::id::{ActorId, ProcessId};

use protocol::{Blocking, BlockingReport};

/// An actor whose code blocks a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedThread {
    /// Where.
    pub process: ProcessId,
    /// Whose code.
    pub actor: ActorId,
    /// The name of its type.
    pub name: String,
    /// The message that it handles; empty where it handles none, as in a task.
    pub message: String,
    /// Since when, by the clock of its node.
    pub since: Timestamp,
}

/// The code that a thread polls.
#[derive(Debug, Default)]
struct ThreadSlot {
    /// Counts each time that code of an actor is entered or left.
    turns: AtomicU64,
    home: AtomicU64,
    /// 0 for none.
    serial: AtomicU64,
}

static SLOTS: Mutex<Vec<Weak<ThreadSlot>>> = Mutex::new(vec![]);

thread_local!(static SLOT: OnceCell<Arc<ThreadSlot>> = const { OnceCell::new() });

/// This thread polls code of this actor from now on, or of none. Returns the one before.
pub(crate) fn enter(actor: Option<ActorId>) -> Option<ActorId> {
    SLOT.with(|slot| {
        let slot = slot.get_or_init(|| {
            let slot = Arc::new(ThreadSlot::default());
            let mut slots = SLOTS.lock();
            slots.retain(|slot| slot.strong_count() > 0);
            slots.push(Arc::downgrade(&slot));
            slot
        });
        slot.turn(actor)
    })
}

/// Runs work that keeps its thread for long, while the other tasks of the process go on on other threads; in a
/// runtime of one thread they wait. It does not count as a blocked thread. The actor handles nothing else
/// meanwhile: what is to run beside its handlers goes to `tokio::task::spawn_blocking`.
///
/// ```
/// use odeon::prelude::*;
///
/// struct Fitter;
///
/// #[odeon::actor(name = "demo.Fitter")]
/// impl Fitter {
///     fn start(_: ()) -> Self {
///         Self
///     }
///
///     #[handler]
///     fn fit(&mut self, numbers: Vec<f64>) -> f64 {
///         odeon::block_in_place(|| numbers.iter().map(|x| x.exp()).sum())
///     }
/// }
/// ```
pub fn block_in_place<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(Option<ActorId>);
    impl Drop for Restore {
        fn drop(&mut self) {
            enter(self.0);
        }
    }
    let _restore = Restore(enter(None));
    let runtime = Handle::try_current();
    match runtime.map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

impl ThreadSlot {
    fn turn(&self, actor: Option<ActorId>) -> Option<ActorId> {
        // Only this thread writes, so what it reads is what it wrote.
        let before = self.actor();
        self.home
            .store(actor.map_or(0, |actor| actor.home.0), Ordering::Relaxed);
        self.serial
            .store(actor.map_or(0, |actor| actor.serial), Ordering::Relaxed);
        let turns = self.turns.load(Ordering::Relaxed);
        self.turns.store(turns + 1, Ordering::Release);
        before
    }

    fn actor(&self) -> Option<ActorId> {
        let serial = self.serial.load(Ordering::Relaxed);
        let home = ProcessId(self.home.load(Ordering::Relaxed));
        (serial != 0).then_some(ActorId { home, serial })
    }
}

/// The blocked threads of this process, and on a node those that its processes have told of.
#[derive(Default)]
pub(crate) struct BlockedThreads {
    watch: Mutex<Watch>,
    /// By process, on a node.
    told: Mutex<BTreeMap<ProcessId, Vec<BlockedThread>>>,
}

/// The state of whoever looks at the threads of this process.
#[derive(Default)]
struct Watch {
    /// The turn that each slot was seen at, and since when.
    seen: HashMap<usize, (u64, Timestamp)>,
    /// What was told last, and when.
    told: Vec<ActorId>,
    told_at: Timestamp,
}

impl BlockedThreads {
    /// Looks at all threads. To be called again and again, outside of tokio.
    pub(crate) fn look(&self, engine: &Arc<Engine>) {
        let now = Clock::now();
        let mut watch = self.watch.lock();
        let blocked = watch.blocked(now, engine.limits.blocked_after);
        // A slot is of the process, in which there may be several engines.
        let own = blocked.into_iter().filter_map(|(actor, since)| {
            let cell = engine.cells.get(&actor)?;
            let message = cell.running().map(|(message, _)| message);
            Some((actor, cell.actor.name, message.unwrap_or_default(), since))
        });
        let rows: Vec<_> = own.collect();
        let actors: Vec<ActorId> = rows.iter().map(|row| row.0).collect();
        let begun = rows.iter().filter(|row| !watch.told.contains(&row.0));
        for (actor, name, message, since) in begun {
            let lasts = now.since(*since);
            tracing::warn!(%actor, name, method = message, ?lasts, "an actor blocks a thread: use spawn_blocking, or block_in_place");
            let place = match *message {
                "" => "beside its handlers".to_owned(),
                message => format!("in {message}"),
            };
            engine.component::<Console>().say(format_args!(
                "actor {name} {actor} blocks a thread {place}, so far for {lasts:.1?}: use spawn_blocking, or odeon::block_in_place"
            ));
        }
        let again =
            !actors.is_empty() && now.since(watch.told_at) >= engine.limits.heartbeat_interval;
        if actors == watch.told && !again {
            return;
        }
        (watch.told, watch.told_at) = (actors, now);
        drop(watch);
        let report = rows
            .into_iter()
            .map(|(actor, name, message, since)| BlockingReport {
                actor,
                name: name.to_owned(),
                message: message.to_owned(),
                lasts: now.since(since),
            });
        let node = engine.uplink.get().copied().unwrap_or(engine.process);
        engine.tell::<Blocking>(node, &report.collect());
    }

    /// All on this node.
    pub(crate) fn told(&self) -> Vec<BlockedThread> {
        self.told.lock().values().flatten().cloned().collect()
    }

    /// A process has told of its own.
    fn hear(&self, process: ProcessId, report: Vec<BlockingReport>) {
        let now = Clock::now();
        let row = |row: BlockingReport| BlockedThread {
            process,
            actor: row.actor,
            name: row.name,
            message: row.message,
            since: Timestamp(now.0.saturating_sub(row.lasts.as_nanos() as u64)),
        };
        let rows: Vec<_> = report.into_iter().map(row).collect();
        let mut told = self.told.lock();
        match rows.is_empty() {
            true => told.remove(&process),
            false => told.insert(process, rows),
        };
    }
}

impl Watch {
    /// Actors that have held their thread for so long, and since when.
    fn blocked(&mut self, now: Timestamp, after: Duration) -> Vec<(ActorId, Timestamp)> {
        let slots: Vec<_> = SLOTS.lock().iter().filter_map(Weak::upgrade).collect();
        let mut seen = HashMap::with_capacity(slots.len());
        let mut blocked = vec![];
        for slot in slots {
            let turn = slot.turns.load(Ordering::Acquire);
            let actor = slot.actor();
            let place = Arc::as_ptr(&slot) as usize;
            let before = self.seen.get(&place).filter(|before| before.0 == turn);
            let since = before.map_or(now, |before| before.1);
            seen.insert(place, (turn, since));
            if let Some(actor) = actor.filter(|_| now.since(since) >= after) {
                blocked.push((actor, since));
            }
        }
        self.seen = seen;
        blocked.sort_unstable();
        blocked
    }
}

impl Component for BlockedThreads {
    fn process_down(&self, _: &Arc<Engine>, exit: &ProcessExit) {
        self.told.lock().remove(&exit.process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stays_in_an_actor_is_blocked_and_one_that_turns_is_not() {
        let actor = |serial| ActorId {
            home: ProcessId(u64::MAX),
            serial,
        };
        let at = |seconds: u64| Timestamp(seconds * 1_000_000_000);
        let after = Duration::from_secs(5);
        let mut watch = Watch::default();
        let own = |blocked: Vec<(ActorId, Timestamp)>| {
            let own = blocked
                .into_iter()
                .filter(|row| row.0.home == ProcessId(u64::MAX));
            own.collect::<Vec<_>>()
        };
        assert_eq!(enter(Some(actor(1))), None);
        for second in 10..15 {
            assert_eq!(own(watch.blocked(at(second), after)), []);
        }
        assert_eq!(own(watch.blocked(at(15), after)), [(actor(1), at(10))]);
        // A part of it that another has polled meanwhile.
        let before = enter(Some(actor(2)));
        assert_eq!(before, Some(actor(1)));
        enter(before);
        assert_eq!(own(watch.blocked(at(16), after)), []);
        assert_eq!(own(watch.blocked(at(21), after)), [(actor(1), at(16))]);
        // What is said to block does not count, and the actor is back after it.
        let computed = block_in_place(|| {
            assert_eq!(own(watch.blocked(at(22), after)), []);
            own(watch.blocked(at(28), after)).len()
        });
        assert_eq!(computed, 0);
        assert_eq!(own(watch.blocked(at(29), after)), []);
        assert_eq!(own(watch.blocked(at(34), after)), [(actor(1), at(29))]);
        enter(None);
        assert_eq!(own(watch.blocked(at(40), after)), []);
        assert_eq!(own(watch.blocked(at(60), after)), []);
    }
}
