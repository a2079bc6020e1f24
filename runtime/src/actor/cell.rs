//! The cell of an actor: the part of it that others reach while it runs, sleeps or waits for its
//! supervisor. One per hosted actor, the same over all its lives in one process.

pub(crate) mod mailbox;

use std::any::TypeId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::actor::actor_type::{ActorType, Method};
use crate::actor::engine::Engine;
use crate::actor::mail::Mail;
use crate::actor::placing::GrantedDevice;
use crate::actor::stats::{Running, Stats};
use crate::base::clock::Clock;
use crate::base::failure::Reason;
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::supervise::Orphans;
use crate::net::wire::Frame;

use mailbox::Mailbox;

/// An order of a supervisor.
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

/// The stage of an actor's life that it is in at the moment.
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

/// An actor to be hosted.
pub(crate) struct NewCell {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    pub(crate) incarnation: Incarnation,
    pub(crate) orphans: Orphans,
    pub(crate) devices: Vec<GrantedDevice>,
    pub(crate) hang_after: Option<Duration>,
}

/// The part of an actor that stays over its lives in a process.
pub(crate) struct ActorCell {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    pub(crate) engine: Arc<Engine>,
    pub(crate) actor: &'static ActorType,
    pub(crate) orphans: Orphans,
    /// The devices that it was granted.
    pub(crate) devices: Vec<GrantedDevice>,
    /// The longest time that a handler may run.
    pub(crate) hang_after: Option<Duration>,
    incarnation: AtomicU32,
    phase: AtomicU8,
    /// Room in the mailbox for senders of this process.
    pub(crate) admission: Admission,
    /// Messages of other processes in the mailbox.
    queued_remote: AtomicU32,
    /// Bytes of those.
    queued_bytes: AtomicU64,
    pub(crate) stats: Stats,
    /// Asks of remote callers that gave up while the message lay in the mailbox.
    withdrawn: Mutex<HashSet<(ProcessId, u64)>>,
    any_withdrawn: AtomicBool,
    control: Mutex<VecDeque<Control>>,
    /// The number of orders that wait, so that the loop can look before every message without the
    /// lock.
    orders: AtomicUsize,
    /// Wakes a handler that runs, or an actor that waits for its supervisor, when an order arrives.
    pub(crate) ordered: Notify,
    /// Tells taken out of the mailbox that remote senders have not been credited for.
    owed: Mutex<HashMap<ProcessId, u32>>,
    /// Set while there are any, so that asks can look without the lock.
    owes: AtomicBool,
    /// Set once by the host.
    mailbox: std::sync::OnceLock<Mailbox>,
}

/// Room in a mailbox: a counter, and a queue of those who wait while it is full.
pub(crate) struct Admission {
    most: u32,
    taken: AtomicU32,
    waiting: AtomicU32,
    /// That of who waits for room, one after the other in the order of arrival.
    turn: tokio::sync::Mutex<()>,
    room: Notify,
}

impl Admission {
    fn new(most: usize) -> Self {
        let most = u32::try_from(most).unwrap_or(u32::MAX / 2);
        Self {
            most,
            taken: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            turn: tokio::sync::Mutex::new(()),
            room: Notify::new(),
        }
    }

    /// For how many there is room.
    pub(crate) const fn most(&self) -> u32 {
        self.most
    }

    fn take(&self) -> bool {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
            .is_ok()
    }

    /// Takes room if there is some and nobody was there before.
    pub(crate) fn try_take(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0 && self.take()
    }

    pub(crate) fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        // Whoever waits counts itself before its last look at `taken`, so one of us sees the other.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.room.notify_one();
        }
    }

    /// Waits for room, in the order of arrival, and takes it.
    pub(crate) async fn wait(&self) {
        struct Waiting<'a>(&'a Admission);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.waiting.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(self);
        // Who looked in vain out of turn would go to the end of the row.
        let _turn = self.turn.lock().await;
        while !self.take() {
            self.room.notified().await;
        }
    }
}

impl fmt::Debug for ActorCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorCell")
            .field("id", &self.id)
            .field("actor", &self.actor.name)
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

impl ActorCell {
    pub(crate) fn new(engine: Arc<Engine>, actor: &'static ActorType, new: NewCell) -> Arc<Self> {
        let mailbox_messages_max = engine.limits.mailbox_messages_max;
        Arc::new(Self {
            id: new.id,
            parent: new.parent,
            engine,
            actor,
            orphans: new.orphans,
            devices: new.devices,
            hang_after: new.hang_after,
            incarnation: AtomicU32::new(new.incarnation),
            phase: AtomicU8::new(Phase::Starting as u8),
            admission: Admission::new(mailbox_messages_max),
            queued_remote: AtomicU32::new(0),
            queued_bytes: AtomicU64::new(0),
            stats: Stats::default(),
            withdrawn: Mutex::default(),
            any_withdrawn: AtomicBool::new(false),
            control: Mutex::default(),
            orders: AtomicUsize::new(0),
            ordered: Notify::new(),
            owed: Mutex::default(),
            owes: AtomicBool::new(false),
            mailbox: std::sync::OnceLock::new(),
        })
    }

    pub(crate) fn set_mailbox(&self, mailbox: Mailbox) {
        assert!(
            self.mailbox.set(mailbox).is_ok(),
            "a cell gets its mailbox once"
        );
    }

    /// Puts a message into the mailbox, or gives it back when the actor is over.
    pub(crate) fn push(&self, mail: Box<dyn Mail>) -> Result<(), Box<dyn Mail>> {
        match self.mailbox.get() {
            Some(mailbox) => mailbox.push(mail),
            None => Err(mail),
        }
    }

    /// True when its actor is of this type.
    pub(crate) fn hosts(&self, actor: TypeId) -> bool {
        self.actor.type_id == actor
    }

    /// Which of its type's methods this is; their number for a message that is none of them, since it
    /// never leaves its process.
    pub(crate) fn method_index(&self, id: u64, name: &'static str) -> usize {
        let methods = self.actor.methods;
        let known = methods.iter().position(|method| method.id == id);
        known.unwrap_or_else(|| {
            self.stats.note_local(name);
            methods.len()
        })
    }

    /// The handler that runs, with the name of its message.
    pub(crate) fn running(&self) -> Option<(&'static str, Running)> {
        let running = self.stats.running()?;
        let method = self.actor.methods.get(running.method);
        Some((
            method.map_or_else(|| self.stats.local(), |it| it.name),
            running,
        ))
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
        self.stats.change(Clock::now());
    }

    pub(crate) fn begin(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation, Ordering::Release);
        self.enter(Phase::Starting);
    }

    pub(crate) fn queued(&self) -> u32 {
        self.admission.taken.load(Ordering::Relaxed) + self.queued_remote.load(Ordering::Relaxed)
    }

    /// Bytes of the messages of other processes in the mailbox.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    /// A message went into the mailbox. A sender of this process has taken its room before.
    pub(crate) fn message_in(&self, sender: Sender) {
        if let Sender::RemoteAsk { bytes } | Sender::RemoteTell { bytes, .. } = sender {
            self.queued_remote.fetch_add(1, Ordering::Relaxed);
            self.queued_bytes.fetch_add(bytes.into(), Ordering::Relaxed);
        }
    }

    /// A message came out of the mailbox: gives its sender the room back.
    pub(crate) fn message_out(&self, sender: Sender) {
        // The actor's own loop counts; that a message lost elsewhere may be missed harms nobody.
        self.stats.take();
        let (bytes, process) = match sender {
            Sender::Local => return self.admission.give_back(),
            Sender::RemoteAsk { bytes } => (bytes, None),
            Sender::RemoteTell { process, bytes } => (bytes, Some(process)),
        };
        self.queued_bytes.fetch_sub(bytes.into(), Ordering::Relaxed);
        let left = self.queued_remote.fetch_sub(1, Ordering::Relaxed) - 1;
        if let Some(process) = process {
            self.owe(process);
        }
        if left == 0 && self.owes.load(Ordering::Relaxed) {
            self.settle(|_| true);
        }
    }

    /// Credits a remote sender of tells, a batch at a time; all senders at once when nothing else
    /// is queued.
    fn owe(&self, process: ProcessId) {
        let batch = (self.engine.limits.credit_messages / 4).max(1);
        let mut owed = self.owed.lock();
        let count = owed.entry(process).or_default();
        *count += 1;
        let full = *count >= batch;
        drop(owed);
        self.owes.store(true, Ordering::Relaxed);
        if full {
            self.settle(|to| to == process);
        }
    }

    /// Gives the chosen senders the credit that they are owed.
    fn settle(&self, chosen: impl Fn(ProcessId) -> bool) {
        let mut owed = self.owed.lock();
        let credit = |to, messages| {
            let frame = Frame::Credit {
                actor: self.id,
                host: self.engine.process,
                to,
                messages,
            };
            self.engine.send_to(to, &frame);
        };
        owed.extract_if(|to, _| chosen(*to))
            .for_each(|(to, messages)| credit(to, messages));
        self.owes.store(!owed.is_empty(), Ordering::Relaxed);
    }

    /// A remote caller has given up. If its message still lies in the mailbox, it will not be
    /// handled.
    pub(crate) fn withdraw(&self, from: ProcessId, call: u64) {
        let mut withdrawn = self.withdrawn.lock();
        let queued = self.queued() as usize;
        // It may have left the mailbox already. What has is forgotten when that runs empty, and
        // there may be some until then.
        let most = queued + self.engine.limits.credit_messages as usize;
        if queued > 0 && withdrawn.len() < most {
            withdrawn.insert((from, call));
            self.any_withdrawn.store(true, Ordering::Release);
        }
    }

    /// Returns true if the caller of a message in the mailbox has given up, and forgets that it
    /// has.
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
        let mut orders = self.control.lock();
        orders.push_back(control);
        self.orders.store(orders.len(), Ordering::Release);
        drop(orders);
        self.ordered.notify_one();
        if let Some(mailbox) = self.mailbox.get() {
            mailbox.ring();
        }
    }

    /// Drops it where it is, as the end of its process would. What drives it in another framework's
    /// thread is stopped instead.
    pub(crate) fn kill(&self) {
        if self.mailbox.get().is_some_and(Mailbox::kill) {
            self.enter(Phase::Over);
        } else {
            self.order(Control::Halt {
                reason: Reason::Unknown,
                keep_mail: false,
                done: None,
            });
        }
    }

    pub(crate) fn next_order(&self) -> Option<Control> {
        let mut orders = self.control.lock();
        let order = orders.pop_front();
        self.orders.store(orders.len(), Ordering::Release);
        order
    }

    /// Takes out the order of the supervisor's own family to end this life, and why.
    pub(crate) fn take_end(&self) -> Option<Reason> {
        let present = self.incarnation();
        let mut orders = self.control.lock();
        let ends = |order: &Control| match order {
            Control::End { incarnation, .. } => *incarnation == present,
            Control::Halt { .. } | Control::Start(_) => false,
        };
        let at = orders.iter().position(ends);
        let order = at.and_then(|at| orders.remove(at));
        self.orders.store(orders.len(), Ordering::Release);
        match order {
            Some(Control::End { reason, .. }) => Some(reason),
            _ => None,
        }
    }

    /// Returns true if it runs and has no orders, so that it may handle the next message.
    pub(crate) fn is_settled(&self) -> bool {
        self.orders.load(Ordering::Acquire) == 0 && self.phase() == Phase::Running
    }

    /// Returns true if the present life is ordered to end.
    pub(crate) fn halting(&self) -> bool {
        self.control.lock().iter().any(|control| match control {
            Control::Halt { .. } => true,
            Control::End { incarnation, .. } => *incarnation == self.incarnation(),
            Control::Start(_) => false,
        })
    }
}

/// The sender of a message, who gets the room in the mailbox back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// A sender of this process.
    Local,
    /// A remote ask gets its credit back with the reply.
    RemoteAsk {
        /// Of its payload.
        bytes: u32,
    },
    /// A remote tell is credited in batches.
    RemoteTell {
        process: ProcessId,
        /// Of its payload.
        bytes: u32,
    },
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::Admission;

    /// SEMANTICS 1.
    #[tokio::test]
    async fn who_waits_for_room_keeps_its_place_when_much_comes_at_once() {
        const MOST: usize = 3;
        let admission = Arc::new(Admission::new(MOST));
        while admission.try_take() {}
        let came = Arc::new(Mutex::new(vec![]));
        for number in 0..4 * MOST {
            let (admission, came) = (Arc::clone(&admission), Arc::clone(&came));
            drop(tokio::spawn(async move {
                admission.wait().await;
                came.lock().push(number);
            }));
        }
        tokio::task::yield_now().await;
        for left in 0..4 * MOST {
            admission.give_back();
            // Some leave together.
            if left % MOST == MOST - 1 {
                for _ in 0..4 * MOST {
                    tokio::task::yield_now().await;
                }
            }
        }
        assert_eq!(*came.lock(), (0..4 * MOST).collect::<Vec<_>>());
    }
}
