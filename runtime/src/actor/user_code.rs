//! Code of an actor's author under way: `start`, `stop`, handlers, and the work they leave for later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;

use crate::actor::cell::ActorCell;
use crate::actor::task_context::{Current, Entered};
use crate::base::clock::Clock;
use crate::base::failure::{Failure, FailureKind};
use crate::base::trace::SpanContext;

/// A run of user code. Its panics are failures; what it sends and spawns comes from its actor.
pub(crate) struct UserCode<'a, T: 'a> {
    pub(crate) future: BoxFuture<'a, T>,
    /// Put in place while it is polled.
    pub(crate) surroundings: &'a mut Option<Current>,
    /// Its name, for people.
    pub(crate) place: &'static str,
    /// The span that its log lies in.
    pub(crate) log: tracing::Span,
}

impl<T> Future for UserCode<'_, T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _entered = Entered::new(this.surroundings);
        let _logging = this.log.enter();
        let future = this.future.as_mut();
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(Failure::from_panic(payload.as_ref(), this.place))),
        }
    }
}

impl<'a, T: 'a> Drop for UserCode<'a, T> {
    fn drop(&mut self) {
        // What is logged while its values are dropped lies in its span, too.
        let _logging = self.log.enter();
        self.future = Box::pin(std::future::pending());
    }
}

impl<T> UserCode<'_, T> {
    /// Runs it to its end. It is dropped when the supervisor has ordered the end of this life and the
    /// grace is over.
    pub(crate) async fn heeding_orders(mut self, cell: &ActorCell) -> Result<T, Failure> {
        // Most handlers finish in one poll; only the others pay for listening to orders.
        let first = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut self).poll(cx))).await;
        match first {
            Poll::Ready(result) => result,
            Poll::Pending => Box::pin(self.go_on(cell)).await,
        }
    }

    /// The rest of a run that did not finish at once.
    async fn go_on(mut self, cell: &ActorCell) -> Result<T, Failure> {
        loop {
            let ordered = cell.ordered.notified();
            if cell.halting() {
                break;
            }
            tokio::select! {
                biased;
                result = &mut self => return result,
                () = ordered => {}
            }
        }
        // The order stays in the queue; put the wake-up back for the loop that obeys it.
        cell.ordered.notify_one();
        let (grace, place) = (cell.engine.limits.stop_grace, self.place);
        Clock::timeout(grace, self).await.unwrap_or_else(|| {
            Err(Failure::new(
                FailureKind::Hang,
                format!(
                    "{place} did not finish within {grace:?} of the order to stop, and was dropped"
                ),
            ))
        })
    }
}

/// Prepares surroundings for user code of an actor.
pub(crate) fn surround(
    surroundings: &mut Option<Current>,
    cell: &Arc<ActorCell>,
    context: SpanContext,
) {
    match surroundings {
        Some(Current::Actor { span, .. }) => *span = context,
        other => {
            *other = Some(Current::Actor {
                cell: Arc::clone(cell),
                span: context,
            });
        }
    }
}
