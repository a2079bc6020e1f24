//! Services: questions that engines ask each other, and notices that they give their neighbours.
//!
//! ```text
//!  engine.request::<S>(to, ..) ── Request { service: S::ID, body } ──> row of S ── S::serve
//!            ^                                                                        │
//!            └──────────────── Answer { result } <── asked.answer(..) ────────────────┘
//! ```
//!
//! A service is one kind of question with one kind of answer. It lives with what it is about: types in
//! `protocol`, which those who ask stand on, and what is done for them in `service` (see [`crate::actor::service_row`]).
//! Frames know a service by its number, and the engine by its row in the list of services that a
//! system starts it with ([`crate::services`]): neither imports any.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::base::failure::Failure;
use crate::base::id::ProcessId;
use crate::net::wire::{Frame, FrameError, ServiceId, codec};

/// A kind of question with one kind of answer.
pub(crate) trait Service: Sized + 'static {
    /// Its number: its place in the list of services.
    const ID: ServiceId;
    /// The name that people give to a question.
    const NAME: &'static str;
    /// The questions. Some may be told alone, and are not answered.
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// The answer to each of them.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// The answer to a question that did not get to the service. Without one, whoever asked hears of
    /// it as of a process that is gone.
    fn failed(failure: Failure) -> Option<Self::Answer> {
        let _ = failure;
        None
    }
}

/// A notice that a service gives a neighbour, in order with its questions.
pub(crate) trait Notice: Serialize + DeserializeOwned + 'static {
    /// The service that it is of.
    const SERVICE: ServiceId;

    /// Its frame.
    fn frame(&self) -> Frame {
        Frame::Notice {
            service: Self::SERVICE,
            body: encode(self),
        }
    }
}

/// The answer to a question, or why the question did not get to the service.
pub(crate) type Answered<S> = Result<<S as Service>::Answer, Failure>;

/// A question of another engine as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) request: u64,
    pub(crate) from: ProcessId,
    pub(crate) service: ServiceId,
    #[serde(with = "serde_bytes")]
    pub(crate) body: Vec<u8>,
}

/// Gives the bytes of a question, an answer or a notice.
pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    let bytes = codec::encode(value).expect("the runtime's own types can be encoded");
    bytes.into()
}

/// Reads something of a service from a frame of this kind.
///
/// # Errors
/// The bytes are nothing of the service.
pub(crate) fn decode<T: DeserializeOwned>(
    service: ServiceId,
    kind: &'static str,
    body: &[u8],
) -> Result<T, FrameError> {
    codec::decode(body).map_err(|error| malformed(service, kind, &error.0))
}

pub(crate) fn malformed(service: ServiceId, kind: &'static str, why: &str) -> FrameError {
    FrameError::Malformed {
        kind,
        why: format!("of service {}: {why}", service.0),
    }
}
