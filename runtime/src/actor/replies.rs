//! Streams of replies: one message, many answers, one after the other as the caller takes them.
//!
//! ```text
//!  handler ── cx.replies(stream) ──> ReplyStream ── the answer to the ask ──> the caller
//!                │ a task of this life                                          │ next().await
//!                └─ ReplySender ── room for a few ──────────────────────────────┘ in one process
//!                └─ ReplySender ── room ── Shelf <── Next / Batch ── Remote ────┘ between two
//! ```
//!
//! Whoever reads pulls: the writer waits when the room is full, so a slow reader slows it down and nothing
//! piles up. A stream belongs to one life of its actor: when that ends first, the reader hears how.

pub(crate) mod life;
pub(crate) mod protocol;
mod remote;
mod service;
mod shelf;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::mpsc;

use crate::actor::engine::Engine;
use crate::actor::handler::{Actor, Context};
use crate::actor::pending::{Caller, InCrowd, Queueing, WaitFor};
use crate::actor::request::HandledBy;
use crate::actor::task_context;
use crate::base::clock::Clock;
use crate::base::error::AskError;
use crate::base::failure::{Failure, FailureKind, Reason};
use crate::base::id::{ActorId, ProcessId, Ref};
use crate::base::message::{Message, Wire};
use crate::base::shape::{self, Shape};

use life::{Ending, Local, StreamLife};
use protocol::StreamHandle;
use remote::Remote;
pub(crate) use shelf::Shelf;

/// Replies that may wait for their reader, of a stream that [`Context::replies`] has made.
const ROOM: usize = 16;

/// Replies that come one after the other: the answer of a handler that has many. Its reader pulls; whoever
/// writes waits while it does not.
///
/// Whoever drops it ends the work behind it. It is read by one reader, the one that it was answered to.
///
/// ```
/// use odeon::prelude::*;
///
/// struct Counter;
///
/// #[odeon::actor(name = "demo.Counter")]
/// impl Counter {
///     fn start(_: ()) -> Self {
///         Self
///     }
///
///     #[handler]
///     fn count(&mut self, to: u64, cx: &mut Context<Self>) -> ReplyStream<u64> {
///         cx.replies(futures::stream::iter(1..=to))
///     }
/// }
///
/// # async fn read(counter: Ref<Counter>) -> Result<u64, AskError> {
/// let mut sum = 0;
/// let mut numbers = counter.ask_stream(Count { to: 100 });
/// while let Some(number) = numbers.next().await {
///     sum += number?;
/// }
/// # Ok(sum)
/// # }
/// ```
///
/// A handler that may fail before it has anything to say returns `Result<ReplyStream<T>, E>`; ask for that
/// with [`Ref::ask`].
#[must_use = "a stream that nobody reads makes its writer wait, and one that is dropped ends it"]
pub struct ReplyStream<T> {
    /// In a lock, since it is taken out when it is encoded.
    source: Mutex<Source<T>>,
    message: &'static str,
    waiting: Option<Queueing>,
}

/// Where replies come from.
enum Source<T> {
    /// The answer to the ask, which is on its way.
    Asked(BoxFuture<'static, Result<ReplyStream<T>, AskError>>),
    /// A writer in this process.
    Local(Local<T>),
    /// Another process.
    Remote(Remote<T>),
    /// A stream that has reached a process without a system.
    Adrift,
    Over,
}

/// The writing end of a [`ReplyStream`]. Dropping it ends the stream in order, unless that comes with the end
/// of the actor's life or a panic: then the reader hears of that.
pub struct ReplySender<T> {
    replies: mpsc::Sender<T>,
    life: Arc<StreamLife>,
}

/// Nobody reads the stream any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads this stream any more")]
pub struct NoReader;

impl<T: Send> ReplySender<T> {
    /// Adds a reply, as soon as there is room.
    ///
    /// # Errors
    /// Nobody reads any more.
    pub async fn send(&self, reply: T) -> Result<(), NoReader> {
        self.replies.send(reply).await.map_err(|_| NoReader)
    }

    /// Resolves when nobody reads any more.
    pub async fn closed(&self) {
        self.replies.closed().await;
    }
}

impl<T> ReplySender<T> {
    /// Adds a reply, or gives it back where there is no room now or nobody reads any more.
    ///
    /// # Errors
    /// The reply.
    pub fn try_send(&self, reply: T) -> Result<(), T> {
        use mpsc::error::TrySendError::{Closed, Full};
        self.replies
            .try_send(reply)
            .map_err(|(Full(reply) | Closed(reply))| reply)
    }

    /// Returns true when nobody reads any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.replies.is_closed()
    }
}

impl<T> fmt::Debug for ReplySender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplySender")
            .field("of", &self.life.cell.id)
            .finish_non_exhaustive()
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return self.life.end(Ending::Finished);
        }
        // What panics inside of the actor ends its life, and its failure is the reason.
        if Caller::now().actor != Some(self.life.cell.id) {
            let panic = Failure::new(FailureKind::Panic, "the writer of the stream panicked");
            self.life.end(Ending::Died(Reason::Failed(panic)));
        }
    }
}

impl<A: Actor> Context<A> {
    /// Answers with a stream. Its items are made in a task of this life ([`Context::spawn_task`]), as far ahead
    /// as the reader has room; the task ends when nobody reads any more.
    pub fn replies<T: Wire>(
        &self,
        replies: impl Stream<Item = T> + Send + 'static,
    ) -> ReplyStream<T> {
        let (sender, stream) = self.reply_channel(ROOM);
        self.spawn_task(async move {
            let mut replies = std::pin::pin!(replies);
            loop {
                let next = tokio::select! {
                    biased;
                    () = sender.closed() => None,
                    next = replies.next() => next,
                };
                let Some(reply) = next else { return };
                if sender.send(reply).await.is_err() {
                    return;
                }
            }
        });
        stream
    }

    /// Both ends of a stream of replies with room for so many, for an actor that writes as things happen: it
    /// keeps the sender, and answers with the stream.
    ///
    /// # Panics
    /// When there is room for none.
    pub fn reply_channel<T: Wire>(&self, room: usize) -> (ReplySender<T>, ReplyStream<T>) {
        assert!(room > 0, "a stream of replies needs room for one");
        let (sender, replies) = mpsc::channel(room);
        let life = Arc::new(StreamLife::new(&self.cell, self.incarnation));
        self.tasks.streams.add(&life);
        let stream = ReplyStream::of(Source::Local(Local {
            replies,
            life: Arc::clone(&life),
        }));
        let sender = ReplySender {
            replies: sender,
            life,
        };
        (sender, stream)
    }
}

impl<A: 'static> Ref<A> {
    /// Sends a message whose answer is a stream, and reads that. An ask that fails is the first and last item.
    /// The time until the stream begins is bounded as that of [`Ref::ask`]; each wait for a reply is not.
    pub fn ask_stream<M, T>(&self, message: M) -> ReplyStream<T>
    where
        M: HandledBy<A> + Message<Reply = ReplyStream<T>>,
        T: Wire,
    {
        let asked = Source::Asked(Box::pin(self.ask(message)));
        ReplyStream {
            message: M::NAME,
            ..ReplyStream::of(asked)
        }
    }
}

impl<T> ReplyStream<T> {
    fn of(source: Source<T>) -> Self {
        Self {
            source: Mutex::new(source),
            message: "the next reply",
            waiting: None,
        }
    }
}

impl<T: Wire> ReplyStream<T> {
    /// The next reply; `None` after the last one. After an error there is none: the actor died, or its process
    /// or node was lost, with some replies unread.
    pub async fn next(&mut self) -> Option<Result<T, AskError>> {
        std::future::poll_fn(|cx| self.poll_reply(cx)).await
    }

    fn poll_reply(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Result<T, AskError>>> {
        loop {
            match self.source.get_mut() {
                Source::Asked(asked) => match ready!(asked.as_mut().poll(cx)) {
                    Ok(mut stream) => *self.source.get_mut() = stream.take_source(),
                    Err(error) => return self.end(Some(error)),
                },
                Source::Local(local) => match local.replies.poll_recv(cx) {
                    Poll::Ready(Some(reply)) => return self.give(reply),
                    Poll::Ready(None) => {
                        let over = Arc::clone(&local.life).over();
                        let end =
                            Box::pin(
                                async move { over.await.map_or(Ok(Self::of(Source::Over)), Err) },
                            );
                        *self.source.get_mut() = Source::Asked(end);
                    }
                    Poll::Pending => return self.wait(),
                },
                Source::Remote(remote) => match remote.poll_reply(cx) {
                    Poll::Ready(Some(Ok(reply))) => return self.give(reply),
                    Poll::Ready(Some(Err(error))) => return self.end(Some(error)),
                    Poll::Ready(None) => return self.end(None),
                    Poll::Pending => return self.wait(),
                },
                Source::Adrift => return self.end(Some(AskError::NoSystem)),
                Source::Over => return self.end(None),
            }
        }
    }

    fn take_source(&mut self) -> Source<T> {
        std::mem::replace(self.source.get_mut(), Source::Over)
    }

    fn give(&mut self, reply: T) -> Poll<Option<Result<T, AskError>>> {
        self.waiting = None;
        Poll::Ready(Some(Ok(reply)))
    }

    fn end(&mut self, error: Option<AskError>) -> Poll<Option<Result<T, AskError>>> {
        self.waiting = None;
        self.take_source();
        Poll::Ready(error.map(Err))
    }

    /// Waits, where people can see it.
    fn wait(&mut self) -> Poll<Option<Result<T, AskError>>> {
        if self.waiting.is_none()
            && let Some((engine, actor)) = self.writer()
        {
            self.waiting = Some(engine.crowd.enter(InCrowd {
                caller: Caller::now(),
                actor,
                message: self.message,
                since: Clock::now(),
                wait: WaitFor::Answer,
            }));
        }
        Poll::Pending
    }

    fn writer(&mut self) -> Option<(Arc<Engine>, ActorId)> {
        match self.source.get_mut() {
            Source::Local(local) => Some((Arc::clone(&local.life.cell.engine), local.life.cell.id)),
            Source::Remote(remote) => Some((Arc::clone(remote.engine()), remote.actor())),
            Source::Asked(_) | Source::Adrift | Source::Over => None,
        }
    }
}

impl<T: Wire> Stream for ReplyStream<T> {
    type Item = Result<T, AskError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.poll_reply(cx)
    }
}

// Replies are never polled.
impl<T> Unpin for ReplyStream<T> {}

impl<T> fmt::Debug for ReplyStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyStream").finish_non_exhaustive()
    }
}

impl<T: Shape> Shape for ReplyStream<T> {
    const SHAPE: u64 = shape::mix(shape::name("odeon.ReplyStream"), T::SHAPE);
}

impl<T: Wire> Serialize for ReplyStream<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let source = std::mem::replace(&mut *self.source.lock(), Source::Over);
        match source {
            Source::Local(local) => shelf::put(local).serialize(serializer),
            _ => Err(S::Error::custom(
                "a stream of replies is read once, by whoever it was answered to",
            )),
        }
    }
}

impl<'de, T: Wire> Deserialize<'de> for ReplyStream<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let handle = StreamHandle::deserialize(deserializer)?;
        if handle.process == ProcessId(0) {
            return Err(D::Error::custom("a stream of replies of no process"));
        }
        Ok(Self::of(match task_context::engine_for(handle.process) {
            Some(engine) => Source::Remote(Remote::arrived(&engine, handle)),
            None => Source::Adrift,
        }))
    }
}
