//! When a handler answers: with what it returns, or later, while its actor goes on.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;

/// A reply that comes later. A `#[handler]` that returns `Later<R>` has the reply `R`; it gives back
/// its actor at once, and whoever has asked hears when the work is done.
///
/// The work has what it was given and nothing of the actor. It goes on when the actor ends; a panic
/// in it is the answer to the one question and ends nobody.
///
/// ```
/// use odeon::Later;
///
/// struct Files;
///
/// #[odeon::actor(name = "demo.Files")]
/// impl Files {
///     fn start(_: ()) -> Self {
///         Self
///     }
///
///     /// Reads a file; others are read meanwhile.
///     #[handler]
///     fn read(&mut self, path: String) -> Later<Result<String, String>> {
///         Later::new(async move {
///             let text = tokio::fs::read_to_string(path).await;
///             text.map_err(|error| error.to_string())
///         })
///     }
/// }
/// ```
pub struct Later<R> {
    work: BoxFuture<'static, R>,
}

impl<R> Later<R> {
    /// Makes a reply that comes later from the future that resolves to it.
    pub fn new(work: impl Future<Output = R> + Send + 'static) -> Self {
        Self {
            work: Box::pin(work),
        }
    }
}

impl<R> Future for Later<R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        self.work.as_mut().poll(cx)
    }
}

impl<R> fmt::Debug for Later<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").finish_non_exhaustive()
    }
}

/// The answer to a message: the reply itself, or a future that gives it.
#[derive(Debug)]
pub enum Answer<R> {
    /// The reply.
    Now(R),
    /// Where it comes from.
    Later(Later<R>),
}
