//! The end of an actor, in order.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use crate::actor::task_context;
use crate::base::clock::Clock;
use crate::base::error::AskError;
use crate::base::id::ActorId;

/// The end of an actor, in order. Await it.
#[must_use = "a stop is ordered when it is awaited"]
pub struct Stop {
    id: ActorId,
    timeout: Option<Duration>,
    /// Ordered, and not yet over.
    ending: Option<BoxFuture<'static, Result<(), AskError>>>,
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stop({})", self.id)
    }
}

impl Stop {
    pub(super) const fn new(id: ActorId) -> Self {
        Self {
            id,
            timeout: None,
            ending: None,
        }
    }

    /// Waits at most this long; then the answer is [`AskError::Timeout`], and the end goes on.
    /// Without it the wait is as long as the end takes, which [`Limits::stop_grace`] bounds for
    /// each actor below.
    ///
    /// [`Limits::stop_grace`]: crate::Limits
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn order(&self) -> BoxFuture<'static, Result<(), AskError>> {
        let Self { id, timeout, .. } = *self;
        let Some(engine) = task_context::engine_for(id.home) else {
            return Box::pin(std::future::ready(Err(task_context::no_engine())));
        };
        let (tell, told) = oneshot::channel();
        let stopping = Arc::clone(&engine);
        // A task of its own: what has begun to end must not stay half ended. The order is given at
        // once, so that what the caller does next comes after it.
        engine.begin_task(async move {
            let outcome = stopping.stop_actor(id).await;
            // Whoever ordered it may have stopped waiting.
            let _ = tell.send(outcome);
        });
        Box::pin(async move {
            let told = async { told.await.unwrap_or(Err(AskError::Unreachable(id))) };
            match timeout {
                None => told.await,
                Some(waited) => Clock::timeout(waited, told)
                    .await
                    .unwrap_or_else(|| Err(AskError::timeout(id, waited))),
            }
        })
    }
}

impl Future for Stop {
    type Output = Result<(), AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut ending = self.ending.take().unwrap_or_else(|| self.order());
        let poll = ending.as_mut().poll(cx);
        self.ending = Some(ending);
        poll
    }
}
