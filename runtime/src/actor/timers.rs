//! Timers: messages and calls that an actor gives itself, once or again and again.
//!
//! A timer is a [task](ActorTask) that sleeps, asks its own actor and sleeps again. As an ask that nobody waits
//! for any more is withdrawn, what a timer has sent is gone with its life or when it is cancelled, and the
//! next tick is not sent before the actor has handled the last.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::actor::act::Act;
use crate::actor::handler::{Actor, Context};
use crate::actor::request::{Ask, HandledBy};
use crate::actor::tasks::ActorTask;
use crate::base::clock::{Clock, Timestamp};
use crate::base::id::Ref;
use crate::base::message::Message;
use crate::base::trace::SpanContext;

/// How long a tick may wait in the mailbox: until its life ends.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl<A: Actor> Context<A> {
    /// Begins work beside the handlers of this actor. It ends with this life: it is dropped where it waits
    /// next, before the actor's `stop`. What it sends comes from this actor and belongs to the trace of
    /// the handler that has begun it; a panic in it ends the life as a failure. In a simulation it has the
    /// simulated time and network.
    ///
    /// It has what it is given and nothing of the actor's state: it may tell the actor what it has found.
    ///
    /// ```
    /// # use odeon::prelude::*;
    /// # struct Reader(usize);
    /// #[odeon::actor(name = "demo.Reader")]
    /// impl Reader {
    ///     fn start(path: String, cx: &mut Context<Self>) -> Self {
    ///         let me = cx.me();
    ///         cx.spawn_task(async move {
    ///             let bytes = tokio::fs::read(path).await.unwrap_or_default();
    ///             me.tell(Has { bytes: bytes.len() }).await.ok();
    ///         });
    ///         Self(0)
    ///     }
    ///
    ///     #[handler]
    ///     fn has(&mut self, bytes: usize) {
    ///         self.0 = bytes;
    ///     }
    /// }
    /// ```
    pub fn spawn_task(&self, work: impl Future<Output = ()> + Send + 'static) -> ActorTask {
        let span = SpanContext::current();
        self.tasks
            .begin(&self.cell, self.incarnation, span, Box::pin(work))
    }

    /// Sends this actor a message after a while, in this life of it alone.
    ///
    /// ```
    /// # use odeon::prelude::*;
    /// # struct Lease;
    /// #[odeon::actor(name = "demo.Lease")]
    /// impl Lease {
    ///     fn start(_: (), cx: &mut Context<Self>) -> Self {
    ///         cx.after(Duration::from_secs(30), Expire);
    ///         Self
    ///     }
    ///
    ///     #[handler]
    ///     fn expire(&mut self, cx: &mut Context<Self>) {
    ///         cx.stop();
    ///     }
    /// }
    /// ```
    pub fn after<M: HandledBy<A>>(&self, delay: Duration, message: M) -> ActorTask {
        let asking = self.this_life().ask(message);
        self.once(delay, asking)
    }

    /// Calls this actor after a while, in this life of it alone, as a message would.
    pub fn after_with(
        &self,
        delay: Duration,
        act: impl FnOnce(&mut A, &mut Self) + Send + 'static,
    ) -> ActorTask {
        let asking = Act::new(act).ask(&self.cell, self.incarnation);
        self.once(delay, asking)
    }

    /// Sends this actor a message again and again, for the first time after one period. A tick that is
    /// due while the last one has not been handled is left out. It belongs to this life of the actor: the
    /// next one begins its own.
    ///
    /// ```
    /// # use odeon::prelude::*;
    /// # struct Heart(u64);
    /// #[odeon::actor(name = "demo.Heart")]
    /// impl Heart {
    ///     fn start(_: (), cx: &mut Context<Self>) -> Self {
    ///         cx.every(Duration::from_secs(1), Beat);
    ///         Self(0)
    ///     }
    ///
    ///     #[handler]
    ///     fn beat(&mut self) {
    ///         self.0 += 1;
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    /// When the period is zero.
    pub fn every<M: HandledBy<A> + Clone + Sync>(&self, period: Duration, message: M) -> ActorTask {
        let me = self.this_life();
        self.repeat(period, move || me.ask(message.clone()))
    }

    /// Calls this actor again and again, as [`every`](Self::every) sends a message.
    ///
    /// # Panics
    /// When the period is zero.
    pub fn every_with(
        &self,
        period: Duration,
        act: impl FnMut(&mut A, &mut Self) + Send + 'static,
    ) -> ActorTask {
        let act = Arc::new(Mutex::new(act));
        let (cell, life) = (Arc::clone(&self.cell), self.incarnation);
        self.repeat(period, move || {
            let act = Arc::clone(&act);
            let act = Act::new(move |actor: &mut A, cx: &mut Self| (act.lock())(actor, cx));
            act.ask(&cell, life)
        })
    }

    fn once<M: Message>(&self, delay: Duration, asking: Ask<M>) -> ActorTask {
        self.timer(async move {
            Clock::sleep(delay).await;
            // Whoever could not be reached any more is over.
            let _ = asking.timeout(FOR_EVER).await;
        })
    }

    fn repeat<M: Message>(
        &self,
        period: Duration,
        asking: impl Fn() -> Ask<M> + Send + Sync + 'static,
    ) -> ActorTask {
        assert!(!period.is_zero(), "a timer needs a period: zero is none");
        let begun = Clock::now();
        self.timer(async move {
            let mut due = begun.after(period);
            loop {
                Clock::sleep(due.left(Clock::now())).await;
                if asking().timeout(FOR_EVER).await.is_err() {
                    return;
                }
                due = next(begun, period, Clock::now());
            }
        })
    }

    /// A task of no trace: each tick begins one.
    fn timer(&self, work: impl Future<Output = ()> + Send + 'static) -> ActorTask {
        let none = SpanContext::default();
        self.tasks
            .begin(&self.cell, self.incarnation, none, Box::pin(work))
    }

    fn this_life(&self) -> Ref<A> {
        Ref::from_id(self.cell.id, self.incarnation)
    }
}

/// The first tick after `now` of those that are due every period since `begun`.
fn next(begun: Timestamp, period: Duration, now: Timestamp) -> Timestamp {
    let period = period.as_nanos().max(1);
    let passed = now.since(begun).as_nanos() / period;
    let nanos = u64::try_from((passed + 1) * period).unwrap_or(u64::MAX);
    begun.after(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The next tick lies ahead, by one period at most, and on the grid of the first.
        #[test]
        fn ticks_keep_their_beat(begun in 0_u64..1 << 40, period in 1_u64..1 << 36, late in 0_u64..1 << 42) {
            let (begun, now) = (Timestamp(begun), Timestamp(begun + late));
            let next = next(begun, Duration::from_nanos(period), now);
            prop_assert!(next > now && next.0 - now.0 <= period);
            prop_assert_eq!((next.0 - begun.0) % period, 0);
        }
    }
}
