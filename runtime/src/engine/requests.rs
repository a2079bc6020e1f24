//! Questions of this engine to the services of others, while they wait for an answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Engine, IdMap};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::id::ProcessId;
use crate::link::Link;
use crate::service::{self, Answered, Service};
use crate::wire::{Frame, FrameError};

/// The questions that are under way, by number. None has the number 0, which asks for no answer.
#[derive(Default)]
pub(super) struct Requests {
    waiting: IdMap<u64, Waiting>,
    last: AtomicU64,
}

/// A question that waits for its answer.
struct Waiting {
    to: ProcessId,
    settle: Settle,
}

/// A question that was sent, with the channel of its answer, which closes when the engine that was
/// asked is gone.
pub(super) struct Sent<S: Service> {
    number: u64,
    answered: oneshot::Receiver<Answered<S>>,
}

/// Reads an answer and gives it to whoever asked.
type Settle = Box<dyn FnOnce(Result<Bytes, Failure>) -> Result<(), FrameError> + Send + Sync>;

impl Requests {
    /// Has numbers begin somewhere else: answers to the program before this one may still come.
    pub(super) fn begin_elsewhere(&self) {
        let last = crate::random::number() >> 1;
        self.last.store(last, Ordering::Relaxed);
    }

    fn enter<S: Service>(&self, to: ProcessId) -> (u64, oneshot::Receiver<Answered<S>>) {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (tell, told) = oneshot::channel();
        let settle: Settle = Box::new(move |result: Result<Bytes, Failure>| {
            let outcome = match result {
                Ok(body) => Ok(service::decode(S::ID, "answer", &body)?),
                Err(failure) => Err(failure),
            };
            // Whoever asked may have stopped waiting.
            let _ = tell.send(outcome);
            Ok(())
        });
        self.waiting.insert(number, Waiting { to, settle });
        (number, told)
    }

    fn forget(&self, number: u64) {
        self.waiting.remove(&number);
    }

    /// A process is gone. Whoever has asked it hears that by the end of the channel.
    pub(super) fn process_down(&self, process: ProcessId) {
        self.waiting.retain(|_, waiting| waiting.to != process);
    }

    /// Nobody answers any more.
    pub(super) fn close(&self) {
        self.waiting.clear();
    }
}

impl Engine {
    /// Asks another engine; `None` when it is gone before it answered, or time is up.
    pub(crate) async fn request<S: Service>(
        &self,
        to: ProcessId,
        request: &S::Request,
        patience: Option<Duration>,
    ) -> Option<S::Answer> {
        let sent = self.ask_service::<S>(to, request)?;
        self.answer_to(sent, patience).await
    }

    /// Waits for the answer to a question; `None` when whoever was asked is gone before, or time is up.
    pub(super) async fn answer_to<S: Service>(
        &self,
        sent: Sent<S>,
        patience: Option<Duration>,
    ) -> Option<S::Answer> {
        let Sent { number, answered } = sent;
        let outcome = match patience {
            Some(patience) => Clock::timeout(patience, answered)
                .await
                .and_then(Result::ok),
            None => answered.await.ok(),
        };
        self.requests.forget(number);
        outcome?.map_or_else(S::failed, Some)
    }

    /// Sends a question to another engine. The answer's channel closes when that engine is gone;
    /// `None` when there is no way to it.
    pub(crate) fn begin_request<S: Service>(
        &self,
        to: ProcessId,
        request: &S::Request,
    ) -> Option<oneshot::Receiver<Answered<S>>> {
        self.ask_service::<S>(to, request).map(|sent| sent.answered)
    }

    /// The same, for an answer that is waited for as long as patience lasts.
    pub(super) fn ask_service<S: Service>(
        &self,
        to: ProcessId,
        request: &S::Request,
    ) -> Option<Sent<S>> {
        // Before the way is looked for, so that its loss ends the question too.
        let (number, answered) = self.requests.enter::<S>(to);
        let sent = self
            .next_link(to)
            .is_some_and(|link| link.push(&self.question::<S>(number, to, request), true));
        if !sent {
            self.requests.forget(number);
        }
        sent.then_some(Sent { number, answered })
    }

    /// Queues a question, behind what waits for the link already and before what follows.
    pub(super) fn queue_request<S: Service>(
        &self,
        link: &Link,
        to: ProcessId,
        request: &S::Request,
    ) -> oneshot::Receiver<Answered<S>> {
        let (number, answered) = self.requests.enter::<S>(to);
        link.push(&self.question::<S>(number, to, request), false);
        answered
    }

    /// Sends another engine a question that is not answered, if there is a way to it.
    pub(crate) fn tell<S: Service>(&self, to: ProcessId, request: &S::Request) {
        if let Some(link) = self.next_link(to) {
            link.push(&self.question::<S>(0, to, request), true);
        }
    }

    fn question<S: Service>(&self, request: u64, to: ProcessId, body: &S::Request) -> Frame {
        Frame::Request {
            request,
            from: self.process,
            to,
            service: S::ID,
            body: service::encode(body),
        }
    }

    /// Answers a question of another engine, unless it was told alone.
    pub(crate) fn answer(&self, request: u64, to: ProcessId, result: Result<Bytes, Failure>) {
        if request != 0 {
            let answer = Frame::Answer {
                request,
                to,
                result,
            };
            self.send_to(to, &answer);
        }
    }

    /// Gives an answer to whoever waits for it.
    ///
    /// # Errors
    /// It cannot be read, and the neighbour has made it itself.
    pub(super) fn take_answer(
        &self,
        came: &Link,
        request: u64,
        result: Result<Bytes, Failure>,
    ) -> Result<(), FrameError> {
        match self.requests.waiting.remove(&request) {
            Some((_, Waiting { to, settle })) => {
                settle(result).or_else(|error| blame(came, to, error))
            }
            // Whoever asked has stopped waiting.
            None => Ok(()),
        }
    }
}

/// Ends the link to the process that made a frame which cannot be read. A neighbour that only passed
/// it on is not at fault.
pub(super) fn blame(came: &Link, maker: ProcessId, error: FrameError) -> Result<(), FrameError> {
    if came.peer == maker {
        return Err(error);
    }
    tracing::error!(process = %maker, %error, "a process sent what no service can read");
    Ok(())
}
