//! Credit: how many messages of this process may lie unhandled at each actor of other processes.
//!
//! An ask gives its credit back when it ends. What tells have used comes back from the process that
//! hosts the actor, and what was out there when that process was lost never does; so the row of an
//! actor remembers its host, and a new row begins when that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::base::id::{ActorId, ProcessId};
use crate::base::id_map::IdMap;

/// The room that is left for messages to actors of other processes.
pub(crate) struct Credits {
    most: usize,
    rows: IdMap<ActorId, Arc<Credit>>,
}

/// The room that is left for messages to one actor.
pub(crate) struct Credit {
    most: usize,
    left: Semaphore,
    /// The number of senders that wait for some, and whose turn it is.
    waiting: AtomicU32,
    turn: tokio::sync::Mutex<()>,
    /// The process that hosts the actor, as far as is known; 0 while it is not.
    host: AtomicU64,
    /// Set if it was asked for since the last sweep.
    used: AtomicBool,
}

/// The outcome of a wait for credit.
pub(crate) enum Waited {
    /// With some.
    Taken,
    /// There is no way to the actor.
    NoWay,
    /// This row has ended: look for another.
    Ended,
}

impl Credit {
    fn new(most: usize) -> Self {
        Self {
            most,
            left: Semaphore::new(most),
            waiting: AtomicU32::new(0),
            turn: tokio::sync::Mutex::new(()),
            host: AtomicU64::new(0),
            used: AtomicBool::new(true),
        }
    }

    /// Takes some for a message, if there is some and nobody was there before.
    pub(crate) fn try_take(&self) -> bool {
        let free = self.waiting.load(Ordering::SeqCst) == 0;
        free && self.left.try_acquire().is_ok_and(|permit| {
            permit.forget();
            true
        })
    }

    /// Waits until all who were there before have theirs, until there is `room` on the way, which
    /// tells whether there is a way at all, and for some to take.
    pub(crate) async fn wait(&self, room: impl Future<Output = bool>) -> Waited {
        struct Waiting<'a>(&'a AtomicU32);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        let _turn = self.turn.lock().await;
        if !room.await {
            return Waited::NoWay;
        }
        match self.left.acquire().await {
            Ok(permit) => {
                permit.forget();
                Waited::Taken
            }
            Err(_closed) => Waited::Ended,
        }
    }

    /// Some came back; never more than was given out, also when it comes back twice.
    pub(crate) fn give_back(&self, messages: usize) {
        let out = self.most.saturating_sub(self.left.available_permits());
        self.left.add_permits(out.min(messages));
    }

    fn is_lost_with(&self, process: ProcessId) -> bool {
        let host = self.host.load(Ordering::Acquire);
        // Where nobody has said who hosts the actor, it may be anybody.
        host == 0 || host == process.0
    }
}

impl Credits {
    pub(super) fn new(most: u32) -> Self {
        Self {
            most: most as usize,
            rows: IdMap::default(),
        }
    }

    /// The row of an actor.
    pub(crate) fn of(&self, actor: ActorId) -> Arc<Credit> {
        if let Some(credit) = self.rows.get(&actor) {
            credit.used.store(true, Ordering::Relaxed);
            return Arc::clone(&credit);
        }
        let new = || Arc::new(Credit::new(self.most));
        Arc::clone(&self.rows.entry(actor).or_insert_with(new))
    }

    /// An actor has taken messages out of its mailbox. `host` is its process, or 0 when another had
    /// to refuse them.
    pub(crate) fn returned(&self, actor: ActorId, host: ProcessId, messages: u32) {
        if let Some(credit) = self.rows.get(&actor) {
            credit.host.store(host.0, Ordering::Release);
            credit.give_back(messages as usize);
        }
    }

    /// A process is gone, and what was out there will not come back. Whoever waits looks again.
    pub(super) fn lose(&self, process: ProcessId) {
        self.end(|actor, credit| actor.home == process || credit.is_lost_with(process));
    }

    /// A way to other processes is gone with what was on it.
    pub(super) fn lose_way(&self) {
        self.end(|_, _| true);
    }

    /// An actor is gone.
    pub(super) fn forget(&self, actor: ActorId) {
        if let Some((_, credit)) = self.rows.remove(&actor) {
            credit.left.close();
        }
    }

    fn end(&self, lost: impl Fn(ActorId, &Credit) -> bool) {
        self.rows.retain(|actor, credit| {
            let lost = lost(*actor, credit);
            if lost {
                credit.left.close();
            }
            !lost
        });
    }

    /// Drops the rows that nobody has used since the last sweep and that have nothing out.
    pub(super) fn sweep(&self) {
        self.rows.retain(|_, credit| {
            let used = credit.used.swap(false, Ordering::Relaxed);
            // Nobody can take one while the map is locked, so one that only the map holds is idle.
            used || Arc::strong_count(credit) > 1 || credit.left.available_permits() < credit.most
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: ProcessId = ProcessId(1);
    const NEAR: ProcessId = ProcessId(2);
    const FAR: ProcessId = ProcessId(3);

    fn actor(serial: u64) -> ActorId {
        ActorId { home: HOME, serial }
    }

    fn taken(credits: &Credits, actor: ActorId) -> usize {
        let credit = credits.of(actor);
        credit.most - credit.left.available_permits()
    }

    /// SEMANTICS 4.
    #[test]
    fn a_lost_process_takes_the_credit_that_was_out_there_and_no_other() {
        let credits = Credits::new(8);
        let (near, far, unknown) = (actor(1), actor(2), actor(3));
        for id in [near, far, unknown] {
            for _ in 0..3 {
                assert!(credits.of(id).try_take());
            }
        }
        credits.returned(near, NEAR, 1);
        credits.returned(far, FAR, 1);
        credits.lose(NEAR);
        assert_eq!(
            [near, far, unknown].map(|id| taken(&credits, id)),
            [0, 2, 0]
        );
        credits.lose(HOME);
        assert_eq!(taken(&credits, far), 0);
    }

    #[test]
    fn credit_that_comes_back_twice_is_worth_no_more() {
        let credits = Credits::new(2);
        let old = credits.of(actor(1));
        assert!(old.try_take() && old.try_take() && !old.try_take());
        credits.lose_way();
        let new = credits.of(actor(1));
        assert!(new.try_take());
        old.give_back(2);
        credits.returned(actor(1), NEAR, 2);
        assert_eq!(new.left.available_permits(), 2);
    }

    #[test]
    fn rows_out_of_use_are_dropped_and_others_are_not() {
        let credits = Credits::new(2);
        let (idle, out, held) = (actor(1), actor(2), actor(3));
        credits.of(idle);
        assert!(credits.of(out).try_take());
        let _held = credits.of(held);
        credits.sweep();
        assert_eq!(credits.rows.len(), 3, "all were used just now");
        credits.sweep();
        assert!(!credits.rows.contains_key(&idle));
        assert!(credits.rows.contains_key(&out) && credits.rows.contains_key(&held));
    }
}
