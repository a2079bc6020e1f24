//! Services as an engine has them: each serves the questions of its type, and stands without its types
//! in a row.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::actor::engine::Engine;
use crate::base::id::ProcessId;
use crate::net::link::Link;
use crate::net::service::{Notice, Question, Service, decode, encode, malformed};
use crate::net::wire::{FrameError, ServiceId};

/// A service that answers on the task of the link, where frames come in order. For an answer that
/// takes longer it begins a task of its own.
pub(crate) trait Serve: Service {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, request: Self::Request);
}

/// A service whose answers take a while, each in a task. A node that is about to become another
/// program waits for those that are under way, and keeps the questions that come.
pub(crate) trait ServeLater: Service {
    /// Gives the answer, or `None` when nobody waits for one. It does nothing before it is polled.
    fn answer(
        engine: Arc<Engine>,
        from: ProcessId,
        request: Self::Request,
    ) -> impl Future<Output = Option<Self::Answer>> + Send;

    /// Returns true if an answer says that nothing was done, so that the next program may try again.
    fn is_refusal(answer: &Self::Answer) -> bool {
        let _ = answer;
        false
    }
}

/// A notice that an engine takes in.
pub(crate) trait Hear: Notice {
    /// Takes it in, from the neighbour that the link leads to.
    fn hear(self, engine: &Arc<Engine>, link: &Arc<Link>);
}

/// Whoever waits for an answer.
pub(crate) struct Asked<S> {
    request: u64,
    pub(crate) from: ProcessId,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Asked<S> {
    /// Sends the answer, if the question was not told alone.
    pub(crate) fn answer(self, engine: &Engine, answer: &S::Answer) {
        engine.answer(self.request, self.from, Ok(encode(answer)));
    }
}

/// The fate of a question that came.
pub(crate) enum Served {
    /// The service has taken it.
    AtOnce,
    /// Its answer takes a while, and has not been begun.
    Later(BoxFuture<'static, Option<LateAnswer>>),
}

/// The answer to a question that took a while.
pub(crate) struct LateAnswer {
    pub(crate) body: Bytes,
    /// Nothing was done.
    pub(crate) is_refusal: bool,
}

type ServeFn = fn(&Arc<Engine>, &Question) -> Result<Served, FrameError>;
type HearFn = fn(&Arc<Engine>, &Arc<Link>, &[u8]) -> Result<(), FrameError>;

/// A service without its types, as the engine lists it.
#[derive(Clone, Copy)]
pub(crate) struct ServiceRow {
    pub(crate) id: ServiceId,
    pub(crate) name: &'static str,
    serve: ServeFn,
    hear: HearFn,
}

impl ServiceRow {
    /// One that answers on the task of the link.
    pub(crate) const fn at_once<S: Serve>() -> Self {
        Self::new::<S>(serve_at_once::<S>)
    }

    /// One whose answers take a while.
    pub(crate) const fn later<S: ServeLater>() -> Self {
        Self::new::<S>(serve_later::<S>)
    }

    const fn new<S: Service>(serve: ServeFn) -> Self {
        Self {
            id: S::ID,
            name: S::NAME,
            serve,
            hear: hear_none::<S>,
        }
    }

    /// The same, with its notices.
    pub(crate) const fn with_notices<N: Hear>(self) -> Self {
        assert!(N::SERVICE.0 == self.id.0, "notices of another service");
        Self {
            hear: hear::<N>,
            ..self
        }
    }

    /// Has the service take a question.
    ///
    /// # Errors
    /// The question cannot be read.
    pub(crate) fn serve(
        &self,
        engine: &Arc<Engine>,
        question: &Question,
    ) -> Result<Served, FrameError> {
        (self.serve)(engine, question)
    }

    /// Has the service take a notice in.
    ///
    /// # Errors
    /// It cannot be read, or the service gives none.
    pub(crate) fn hear(
        &self,
        engine: &Arc<Engine>,
        link: &Arc<Link>,
        body: &[u8],
    ) -> Result<(), FrameError> {
        (self.hear)(engine, link, body)
    }
}

fn serve_at_once<S: Serve>(
    engine: &Arc<Engine>,
    question: &Question,
) -> Result<Served, FrameError> {
    let request = decode(S::ID, "request", &question.body)?;
    let asked = Asked {
        request: question.request,
        from: question.from,
        service: PhantomData,
    };
    S::serve(engine, asked, request);
    Ok(Served::AtOnce)
}

fn serve_later<S: ServeLater>(
    engine: &Arc<Engine>,
    question: &Question,
) -> Result<Served, FrameError> {
    let request = decode(S::ID, "request", &question.body)?;
    let answering = S::answer(Arc::clone(engine), question.from, request);
    let answering = answering.map(|answer| {
        answer.map(|answer| LateAnswer {
            body: encode(&answer),
            is_refusal: S::is_refusal(&answer),
        })
    });
    Ok(Served::Later(answering.boxed()))
}

fn hear<N: Hear>(engine: &Arc<Engine>, link: &Arc<Link>, body: &[u8]) -> Result<(), FrameError> {
    decode::<N>(N::SERVICE, "notice", body)?.hear(engine, link);
    Ok(())
}

fn hear_none<S: Service>(
    _engine: &Arc<Engine>,
    _link: &Arc<Link>,
    _body: &[u8],
) -> Result<(), FrameError> {
    Err(malformed(S::ID, "notice", "it gives none"))
}
