//! Questions to the services of other engines, and the answers to theirs. A question of an engine to
//! itself is served like any other, without a link.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::Engine;
use super::requests::{Sent, Waiting};
use crate::actor::service_row::{LateAnswer, Served, ServiceRow};
use crate::base::clock::Clock;
use crate::base::failure::Failure;
use crate::base::id::ProcessId;
use crate::net::link::Link;
use crate::net::service::{self, Answered, Question, Service};
use crate::net::wire::{Frame, FrameError, ServiceId};

impl Engine {
    /// Asks another engine, or this one; `None` when it is gone before it answered, or time is up.
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
        let sent = self.send_question::<S>(number, to, request);
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
        self.send_question::<S>(0, to, request);
    }

    /// Sends a question on its way, if there is one.
    fn send_question<S: Service>(&self, request: u64, to: ProcessId, body: &S::Request) -> bool {
        if to == self.process {
            self.ask_itself(Question {
                request,
                from: to,
                service: S::ID,
                body: service::encode(body).into(),
            });
            return true;
        }
        let link = self.next_link(to);
        link.is_some_and(|link| link.push(&self.question::<S>(request, to, body), true))
    }

    fn ask_itself(&self, question: Question) {
        if let Err(error) = self.this().serve(question) {
            tracing::error!(%error, "an engine cannot read its own question");
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
        if request != 0 && to == self.process {
            let waiting = self.requests.take(request);
            if let Some(Err(error)) = waiting.map(|waiting| (waiting.settle)(result)) {
                tracing::error!(%error, "an engine cannot read its own answer");
            }
        } else if request != 0 {
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
        match self.requests.take(request) {
            Some(Waiting { to, settle }) => settle(result).or_else(|error| blame(came, to, error)),
            // Whoever asked has stopped waiting.
            None => Ok(()),
        }
    }

    pub(super) fn service(&self, id: ServiceId) -> Result<&'static ServiceRow, FrameError> {
        let row = self.services.get(usize::from(id.0));
        row.ok_or(FrameError::UnknownService(id.0))
    }

    /// Has a service take a question of another engine.
    ///
    /// # Errors
    /// No service can read it. Whoever asked has been told.
    pub(super) fn serve(self: &Arc<Self>, question: Question) -> Result<(), FrameError> {
        let (request, from) = (question.request, question.from);
        let served = self.service(question.service).and_then(|row| {
            let served = row.serve(self, &question)?;
            Ok((row.name, served))
        });
        match served {
            Ok((_, Served::AtOnce)) => Ok(()),
            Ok((name, Served::Later(answer))) => {
                self.serve_later(name, question, answer);
                Ok(())
            }
            Err(error) => {
                self.answer(request, from, Err(Failure::error(&error)));
                Err(error)
            }
        }
    }

    /// Answers a question to a service of this name, as soon as it can.
    fn serve_later(
        self: &Arc<Self>,
        service: &'static str,
        question: Question,
        answer: BoxFuture<'static, Option<LateAnswer>>,
    ) {
        let Some((number, question)) = self.serving.begin(service, question) else {
            return;
        };
        let engine = Arc::clone(self);
        self.spawn_task(async move {
            let answer = answer.await;
            let is_refusal = answer.as_ref().is_some_and(|answer| answer.is_refusal);
            let Some(question) = engine.serving.end(number, question, is_refusal) else {
                return;
            };
            if let Some(answer) = answer {
                engine.answer(question.request, question.from, Ok(answer.body));
            }
        });
    }

    /// Begins the questions that were kept.
    pub(crate) fn serve_kept(self: &Arc<Self>, kept: Vec<Question>) {
        for question in kept {
            let from = question.from;
            if let Err(error) = self.serve(question) {
                // It was read before, by a program of the same version.
                tracing::error!(process = %from, %error, "a question that was kept cannot be read");
            }
        }
    }

    /// Returns true while this engine is about to become another program.
    pub(crate) fn is_held(&self) -> bool {
        self.serving.is_held()
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
