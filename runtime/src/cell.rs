//! The cell of an actor: the part of it that others reach while it runs, sleeps or waits for its
//! supervisor. One per hosted actor, the same over all its lives in one process.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::engine::Engine;
use crate::failure::Reason;
use crate::id::{ActorId, Incarnation, ProcessId};
use crate::registry::{ActorType, Method};
use crate::wire::{Frame, Orphans};

/// What a supervisor orders.
pub(crate) enum Control {
    /// Begin this life.
    Start(Incarnation),
    /// End this life and no later one: a child failed beyond mending, or what the actor wraps
    /// ended.
    End {
        incarnation: Incarnation,
        reason: Reason,
    },
    /// End the present life. With `keep_mail` the mailbox waits for another; else the actor is
    /// over.
    Halt {
        reason: Reason,
        keep_mail: bool,
        done: Option<oneshot::Sender<()>>,
    },
}

/// What an actor does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Phase {
    /// `start` runs.
    Starting = 0,
    /// It handles messages.
    Running = 1,
    /// A life has ended, and the supervisor has not decided or the back-off is not over.
    Waiting = 2,
    /// It will not come back.
    Over = 3,
}

/// See the module.
pub(crate) struct Cell {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    pub(crate) engine: Arc<Engine>,
    pub(crate) actor: &'static ActorType,
    pub(crate) orphans: Orphans,
    incarnation: AtomicU32,
    phase: AtomicU8,
    /// Room in the mailbox for senders of this process.
    pub(crate) admission: Semaphore,
    /// Messages in the mailbox, of all senders.
    queued: AtomicU32,
    handled: AtomicU64,
    /// Asks of remote callers that gave up while the message lay in the mailbox.
    withdrawn: Mutex<HashSet<(ProcessId, u64)>>,
    any_withdrawn: AtomicBool,
    control: Mutex<VecDeque<Control>>,
    /// Wakes the actor's loop when an order arrives.
    pub(crate) ordered: Notify,
    /// Tells taken out of the mailbox that remote senders have not been credited for.
    owed: Mutex<HashMap<ProcessId, u32>>,
    /// The typed sending end, set once by the host.
    mailbox: std::sync::OnceLock<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell")
            .field("id", &self.id)
            .field("actor", &self.actor.name)
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

impl Cell {
    pub(crate) fn new(
        engine: Arc<Engine>,
        id: ActorId,
        parent: ActorId,
        incarnation: Incarnation,
        actor: &'static ActorType,
        orphans: Orphans,
    ) -> Arc<Self> {
        let mailbox_messages_max = engine.limits.mailbox_messages_max;
        Arc::new(Self {
            id,
            parent,
            engine,
            actor,
            orphans,
            incarnation: AtomicU32::new(incarnation),
            phase: AtomicU8::new(Phase::Starting as u8),
            admission: Semaphore::new(mailbox_messages_max),
            queued: AtomicU32::new(0),
            handled: AtomicU64::new(0),
            withdrawn: Mutex::default(),
            any_withdrawn: AtomicBool::new(false),
            control: Mutex::default(),
            ordered: Notify::new(),
            owed: Mutex::default(),
            mailbox: std::sync::OnceLock::new(),
        })
    }

    pub(crate) fn set_mailbox(&self, mailbox: Box<dyn Any + Send + Sync>) {
        assert!(
            self.mailbox.set(mailbox).is_ok(),
            "a cell gets its mailbox once"
        );
    }

    pub(crate) fn mailbox<T: Any>(&self) -> Option<&T> {
        self.mailbox.get()?.downcast_ref()
    }

    pub(crate) fn method(&self, id: u64) -> Option<&'static Method> {
        self.actor.methods.iter().find(|method| method.id == id)
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation.load(Ordering::Acquire)
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Starting,
            1 => Phase::Running,
            2 => Phase::Waiting,
            _ => Phase::Over,
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub(crate) fn begin(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation, Ordering::Release);
        self.enter(Phase::Starting);
    }

    pub(crate) fn queued(&self) -> u32 {
        self.queued.load(Ordering::Relaxed)
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Takes room in the mailbox for a sender of this process, if there is some.
    pub(crate) fn try_admit(&self) -> bool {
        match self.admission.try_acquire() {
            Ok(permit) => {
                permit.forget();
                true
            }
            Err(_) => false,
        }
    }

    /// A message went into the mailbox.
    pub(crate) fn message_in(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// A message came out of the mailbox: gives its sender the room back.
    pub(crate) fn message_out(&self, sender: Sender) {
        let left = self.queued.fetch_sub(1, Ordering::Relaxed) - 1;
        self.handled.fetch_add(1, Ordering::Relaxed);
        match sender {
            Sender::Local => self.admission.add_permits(1),
            Sender::RemoteAsk => {}
            Sender::RemoteTell(process) => self.owe(process, left == 0),
        }
    }

    /// Credits a remote sender of tells, a batch at a time; at once when nothing else is queued.
    fn owe(&self, process: ProcessId, idle: bool) {
        let batch = (self.engine.limits.credit_messages / 4).max(1);
        let mut owed = self.owed.lock();
        *owed.entry(process).or_default() += 1;
        if idle {
            for (to, messages) in owed.drain() {
                self.engine.send_to(
                    to,
                    &Frame::Credit {
                        actor: self.id,
                        to,
                        messages,
                    },
                );
            }
        } else if let Some(count) = owed.get_mut(&process)
            && *count >= batch
        {
            let messages = std::mem::take(count);
            self.engine.send_to(
                process,
                &Frame::Credit {
                    actor: self.id,
                    to: process,
                    messages,
                },
            );
        }
    }

    /// A remote caller has given up. If its message still lies in the mailbox, it will not be
    /// handled.
    pub(crate) fn withdraw(&self, from: ProcessId, call: u64) {
        let mut withdrawn = self.withdrawn.lock();
        // What is not in the mailbox any more is forgotten when that runs empty.
        if withdrawn.len() < self.queued() as usize {
            withdrawn.insert((from, call));
            self.any_withdrawn.store(true, Ordering::Release);
        }
    }

    /// Whether the caller of a message in the mailbox has given up.
    pub(crate) fn take_withdrawn(&self, from: ProcessId, call: u64) -> bool {
        if !self.any_withdrawn.load(Ordering::Acquire) {
            return false;
        }
        let mut withdrawn = self.withdrawn.lock();
        let found = withdrawn.remove(&(from, call));
        if self.queued() <= 1 {
            withdrawn.clear();
        }
        self.any_withdrawn
            .store(!withdrawn.is_empty(), Ordering::Release);
        found
    }

    pub(crate) fn order(&self, control: Control) {
        self.control.lock().push_back(control);
        self.ordered.notify_one();
    }

    pub(crate) fn next_order(&self) -> Option<Control> {
        self.control.lock().pop_front()
    }

    /// Whether the present life is ordered to end.
    pub(crate) fn halting(&self) -> bool {
        self.control
            .lock()
            .iter()
            .any(|control| matches!(control, Control::Halt { .. }))
    }
}

/// Who gets the room in the mailbox back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// A sender of this process.
    Local,
    /// A remote ask gets its credit back with the reply.
    RemoteAsk,
    /// A remote tell is credited in batches.
    RemoteTell(ProcessId),
}
