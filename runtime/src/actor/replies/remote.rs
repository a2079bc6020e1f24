//! The reading end of a stream that another process writes.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde_bytes::ByteBuf;
use tokio::sync::oneshot;

use super::protocol::{Batch, StreamEnd, StreamHandle, StreamRequest, Streaming};
use super::shelf::{Origin, Shelf};
use crate::actor::engine::Engine;
use crate::base::error::AskError;
use crate::base::failure::{Down, Failure, FailureKind, Reason};
use crate::base::id::ActorId;
use crate::base::message::Wire;
use crate::net::service::Answered;
use crate::net::wire::codec;

/// A stream of another process. While the replies of one batch are read, the next is on its way.
pub(super) struct Remote<T> {
    engine: Arc<Engine>,
    origin: Arc<Origin>,
    handle: StreamHandle,
    replies: VecDeque<ByteBuf>,
    /// Brings the next batch.
    asked: Option<oneshot::Receiver<Answered<Streaming>>>,
    /// The end behind the replies that are here.
    end: Option<StreamEnd>,
    item: PhantomData<fn() -> T>,
}

impl<T> Remote<T> {
    /// A stream whose handle has come to this process.
    pub(super) fn arrived(engine: &Arc<Engine>, handle: StreamHandle) -> Self {
        let origin = engine.component::<Shelf>().origin(handle.process);
        engine.tell::<Streaming>(handle.process, &StreamRequest::Arrived(handle.number));
        Self {
            engine: Arc::clone(engine),
            origin,
            handle,
            replies: VecDeque::new(),
            asked: None,
            end: None,
            item: PhantomData,
        }
    }

    pub(super) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whose replies these are.
    pub(super) const fn actor(&self) -> ActorId {
        self.handle.actor
    }

    fn take(&mut self, batch: Batch) {
        self.replies.extend(batch.replies);
        self.end = batch.end;
    }

    /// The process that writes it has ended, or there is no way to it.
    fn lost(&self) -> StreamEnd {
        let exit = self.origin.exit.get();
        let failure = exit.map_or_else(
            || {
                Failure::new(
                    FailureKind::NodeLost,
                    "no way leads to its process any more",
                )
            },
            |exit| exit.clone().into(),
        );
        StreamEnd::Died(Down {
            id: self.handle.actor,
            incarnation: 0,
            reason: Reason::Failed(failure),
        })
    }

    fn error(&self, why: String) -> AskError {
        AskError::BadReply {
            actor: self.handle.actor,
            why,
        }
    }
}

impl<T: Wire> Remote<T> {
    pub(super) fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, AskError>>> {
        loop {
            if self.asked.is_none() && self.end.is_none() {
                let next = StreamRequest::Next(self.handle.number);
                let process = self.handle.process;
                self.asked = self.engine.begin_request::<Streaming>(process, &next);
                if self.asked.is_none() {
                    self.end = Some(self.lost());
                }
            }
            if let Some(reply) = self.replies.pop_front() {
                let reply = codec::decode(&reply).map_err(|error| self.error(error.to_string()));
                return Poll::Ready(Some(reply));
            }
            if let Some(asked) = &mut self.asked {
                match Pin::new(asked).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(Ok(batch))) => self.take(batch),
                    Poll::Ready(Ok(Err(failure))) => {
                        self.end = Some(StreamEnd::BadReply(failure.to_string()));
                    }
                    Poll::Ready(Err(_)) => self.end = Some(self.lost()),
                }
                self.asked = None;
                continue;
            }
            return Poll::Ready(match self.end.clone() {
                None | Some(StreamEnd::Finished) => None,
                Some(StreamEnd::Died(down)) => Some(Err(AskError::Died(down))),
                Some(StreamEnd::BadReply(why)) => Some(Err(self.error(why))),
                Some(StreamEnd::Unknown) => {
                    let why = "nobody had begun to read the stream in time";
                    Some(Err(self.error(why.to_owned())))
                }
            });
        }
    }
}

impl<T> Drop for Remote<T> {
    fn drop(&mut self) {
        if self.end.is_none() {
            let over = StreamRequest::Drop(self.handle.number);
            self.engine.tell::<Streaming>(self.handle.process, &over);
        }
    }
}
