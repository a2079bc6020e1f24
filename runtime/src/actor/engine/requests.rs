//! The questions of an engine to the services of others that wait for an answer.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::base::failure::Failure;
use crate::base::id::ProcessId;
use crate::base::id_map::IdMap;
use crate::net::service::{self, Answered, Service};
use crate::net::wire::FrameError;

/// The questions that are under way, by number. None has the number 0, which asks for no answer.
#[derive(Default)]
pub(crate) struct Requests {
    waiting: IdMap<u64, Waiting>,
    last: AtomicU64,
}

/// A question that waits for its answer.
pub(super) struct Waiting {
    pub(super) to: ProcessId,
    pub(super) settle: Settle,
}

/// A question that was sent, with the channel of its answer, which closes when the engine that was
/// asked is gone.
pub(super) struct Sent<S: Service> {
    pub(super) number: u64,
    pub(super) answered: oneshot::Receiver<Answered<S>>,
}

/// Reads an answer and gives it to whoever asked.
pub(super) type Settle =
    Box<dyn FnOnce(Result<Bytes, Failure>) -> Result<(), FrameError> + Send + Sync>;

impl Requests {
    /// Has numbers begin somewhere else: answers to the program before this one may still come.
    pub(crate) fn begin_elsewhere(&self) {
        let last = crate::base::random::number() >> 1;
        self.last.store(last, Ordering::Relaxed);
    }

    pub(super) fn enter<S: Service>(&self, to: ProcessId) -> (u64, oneshot::Receiver<Answered<S>>) {
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

    pub(super) fn forget(&self, number: u64) {
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

    /// The question that an answer is for, which waits no more.
    pub(super) fn take(&self, number: u64) -> Option<Waiting> {
        self.waiting.remove(&number).map(|(_, waiting)| waiting)
    }
}
