//! Frames: everything that one process can say to another.
//!
//! A frame is a `u32` length of what follows, one byte of kind, and a body, all little-endian.
//! Calls, replies, credit and cancellation have a fixed layout, since they are frequent; the rest
//! is rare and goes through the codec. Of a service ([`crate::net::service`]) a frame knows the number
//! and nothing else: the bytes of its questions, answers and notices are opaque here.

pub mod codec;

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::error::AskError;
use crate::base::failure::{Failure, ProcessExit};
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::trace::SpanContext;
use crate::net::session::Marks;

/// Raised when a frame's layout or meaning changes, that of what a service says in one, or that of what one
/// program of a process leaves to the next (`HandoffState`, and what a daemon adds to it). Peers with
/// different versions refuse each other, and a node does not become a program of another.
pub(crate) const VERSION: u32 = 15;

/// Room for a frame's own fields beside the message it carries.
const HEAD_BYTES_MAX: usize = 4096;

/// A frame from one process to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frame {
    /// The first frame in both directions.
    Hello(Hello),
    /// A message for an actor.
    Call(Call),
    /// The answer to a call.
    Reply {
        call: u64,
        to: ProcessId,
        result: Result<Bytes, AskError>,
    },
    /// The caller gave up: do not start the handler.
    Cancel {
        call: u64,
        from: ProcessId,
        to: ActorId,
    },
    /// The actor has taken this many messages of this sender out of its mailbox, in process `host`;
    /// 0 when they never got there.
    Credit {
        actor: ActorId,
        host: ProcessId,
        to: ProcessId,
        messages: u32,
    },
    /// A question of one engine to a service of another; not to be answered when its number is 0.
    Request {
        request: u64,
        from: ProcessId,
        to: ProcessId,
        service: ServiceId,
        body: Bytes,
    },
    /// Its answer, or why the question did not get to the service.
    Answer {
        request: u64,
        to: ProcessId,
        result: Result<Bytes, Failure>,
    },
    /// News of the net for everybody.
    Fact(Fact),
    /// A notice of a service for a neighbour.
    Notice { service: ServiceId, body: Bytes },
    /// A piece of a blob, or of what a rank sends; travels behind everything else.
    Chunk(Chunk),
    /// A sign of life, with the times of the speaker's clock and of what it last heard.
    Beat(Beat),
    /// Among calls that have a stream of their own: what follows was sent after this many questions,
    /// facts and notices.
    After(u64),
    /// So much of each stream of the session has been taken in, and need not be kept.
    Taken(Marks),
    /// The session is over, and why. The last frame.
    Over(String),
    /// The beginning of a stream that the leading side opens.
    Opening(Opening),
}

/// The number of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceId(pub(crate) u16);

/// The times that a round trip is measured with, in nanoseconds of the clocks of either side; 0 for
/// one that there is none of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    /// When this one left, by the speaker's clock.
    pub(crate) sent: u64,
    /// When the last one that the speaker has heard left, by the listener's clock.
    pub(crate) echo: u64,
    /// When that came, by the speaker's clock.
    pub(crate) heard: u64,
}

/// Why a stream was opened, beside the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It carries calls or bulk of the link that this connection becomes.
    Carries,
    /// A question: there is a session of this number between us already; do you keep it?
    Keeps(u64),
    /// The answers to that.
    Kept,
    Unknown,
}

/// The speaker's greeting, with its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) process: ProcessId,
    pub(crate) job: String,
    pub(crate) node: String,
    /// Processes that can be reached through the speaker, and over how many links from there.
    pub(crate) carries: Vec<(ProcessId, u8)>,
    /// Names that the speaker's node keeps.
    pub(crate) names: Vec<NameRow>,
    /// The session that the connection shall carry.
    pub(crate) session: Passage,
}

/// The part of a hello about the session that its connection belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Passage {
    /// Nothing: there is none, or it is for the other side to say.
    #[default]
    Unsaid,
    /// It begins, under this number.
    Begins(u64),
    /// It goes on.
    Resumes(Resumption),
    /// It is not known here, or not any more.
    Unknown,
}

/// Where a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resumption {
    pub(crate) session: u64,
    /// Which of the connections that were tried; a later one counts.
    pub(crate) attempt: u64,
    /// Bytes of each stream that the speaker has taken in.
    pub(crate) taken: Marks,
}

/// A message for an actor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The pending entry at the sender; 0 for a tell.
    pub(crate) call: u64,
    pub(crate) from: ProcessId,
    pub(crate) to: ActorId,
    /// The process that hosts the actor, as its home said; 0 when the call has not been there.
    pub(crate) at: ProcessId,
    pub(crate) fence: Incarnation,
    pub(crate) method: u64,
    /// The time left until the deadline.
    pub(crate) budget: Duration,
    pub(crate) trace: SpanContext,
    pub(crate) payload: Bytes,
}

/// A piece of a blob, or of what a rank sends to one of another node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chunk {
    /// The transfer that it belongs to, as its receiver knows it.
    pub(crate) transfer: u64,
    pub(crate) to: ProcessId,
    pub(crate) index: u64,
    /// CRC-32 of the bytes.
    pub(crate) checksum: u32,
    pub(crate) bytes: Bytes,
}

/// A name and who has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameRow {
    /// The job that the name is in, or the namespace of one that is detached.
    pub(crate) job: String,
    pub(crate) name: String,
    pub(crate) id: ActorId,
    pub(crate) actor: String,
    /// The names and ids of the messages that it takes.
    pub(crate) messages: Vec<(String, u64)>,
}

/// News of the net for everybody.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Fact {
    /// A process has joined; it is reached through whoever says so, over so many links.
    ProcessUp { process: ProcessId, hops: u8 },
    /// A process is not reached through the speaker any more.
    ProcessDown(ProcessExit),
    /// The speaker is leaving in order.
    Leaving,
    /// A process has ended, and its number never comes back.
    ProcessEnded(ProcessExit),
}

/// Bytes that are no frame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Longer than any frame may be.
    #[error("a frame of {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its announced length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A kind that this version does not know.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A service that this version does not have.
    #[error("unknown service {0}")]
    UnknownService(u16),
    /// The body ends early, goes on too long or cannot be read.
    #[error("a malformed {kind} frame: {why}")]
    Malformed {
        /// Which kind.
        kind: &'static str,
        /// The fault, in words.
        why: String,
    },
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const CALL: u8 = 2;
    pub(super) const REPLY: u8 = 3;
    pub(super) const CANCEL: u8 = 4;
    pub(super) const CREDIT: u8 = 5;
    pub(super) const REQUEST: u8 = 6;
    pub(super) const ANSWER: u8 = 7;
    pub(super) const FACT: u8 = 8;
    pub(super) const BEAT: u8 = 9;
    pub(super) const AFTER: u8 = 10;
    pub(super) const CHUNK: u8 = 11;
    pub(super) const TAKEN: u8 = 12;
    pub(super) const OVER: u8 = 13;
    pub(super) const OPENING: u8 = 14;
    pub(super) const NOTICE: u8 = 15;
}

impl Frame {
    /// Returns true if it overtakes waiting calls: everything but calls, replies and bulk.
    pub(crate) const fn is_control(&self) -> bool {
        !matches!(
            self,
            Self::Call(_) | Self::Reply { .. } | Self::Cancel { .. } | Self::Chunk(_)
        )
    }

    /// Returns true if it belongs to the connection alone: it is not sent again over another one.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::Beat(_) | Self::Taken(_))
    }

    /// Returns true if calls that are sent after it must not overtake it: it may say where they go.
    pub(crate) const fn binds_calls(&self) -> bool {
        matches!(
            self,
            Self::Request { .. } | Self::Fact(_) | Self::Notice { .. }
        )
    }

    /// Appends the frame.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        let start = out.len();
        out.put_u32_le(0);
        match self {
            Self::Call(call) => {
                out.reserve(96 + call.payload.len());
                out.put_u8(kind::CALL);
                out.put_u64_le(call.call);
                out.put_u64_le(call.from.0);
                put_actor(out, call.to);
                out.put_u64_le(call.at.0);
                out.put_u32_le(call.fence);
                out.put_u64_le(call.method);
                out.put_u64_le(call.budget.as_micros() as u64);
                call.trace.put(out);
                out.put_slice(&call.payload);
            }
            Self::Reply { call, to, result } => {
                out.put_u8(kind::REPLY);
                out.put_u64_le(*call);
                out.put_u64_le(to.0);
                put_result(out, result);
            }
            Self::Cancel { call, from, to } => {
                out.put_u8(kind::CANCEL);
                out.put_u64_le(*call);
                out.put_u64_le(from.0);
                put_actor(out, *to);
            }
            Self::Credit {
                actor,
                host,
                to,
                messages,
            } => {
                out.put_u8(kind::CREDIT);
                put_actor(out, *actor);
                out.put_u64_le(host.0);
                out.put_u64_le(to.0);
                out.put_u32_le(*messages);
            }
            Self::Request {
                request,
                from,
                to,
                service,
                body,
            } => {
                out.put_u8(kind::REQUEST);
                out.put_u64_le(*request);
                out.put_u64_le(from.0);
                out.put_u64_le(to.0);
                out.put_u16_le(service.0);
                out.put_slice(body);
            }
            Self::Answer {
                request,
                to,
                result,
            } => {
                out.put_u8(kind::ANSWER);
                out.put_u64_le(*request);
                out.put_u64_le(to.0);
                put_result(out, result);
            }
            Self::Notice { service, body } => {
                out.put_u8(kind::NOTICE);
                out.put_u16_le(service.0);
                out.put_slice(body);
            }
            Self::Hello(hello) => {
                out.put_u8(kind::HELLO);
                put_coded(out, hello);
            }
            Self::Fact(fact) => {
                out.put_u8(kind::FACT);
                put_coded(out, fact);
            }
            Self::Chunk(chunk) => {
                chunk.put_head(out);
                out.put_slice(&chunk.bytes);
            }
            Self::Beat(beat) => {
                out.put_u8(kind::BEAT);
                out.put_u64_le(beat.sent);
                out.put_u64_le(beat.echo);
                out.put_u64_le(beat.heard);
            }
            Self::After(told) => {
                out.put_u8(kind::AFTER);
                out.put_u64_le(*told);
            }
            Self::Taken(marks) => {
                out.put_u8(kind::TAKEN);
                for mark in marks {
                    out.put_u64_le(*mark);
                }
            }
            Self::Over(why) => {
                out.put_u8(kind::OVER);
                put_coded(out, why);
            }
            Self::Opening(opening) => {
                let (tag, session) = match opening {
                    Opening::Carries => (0, 0),
                    Opening::Keeps(session) => (1, *session),
                    Opening::Kept => (2, 0),
                    Opening::Unknown => (3, 0),
                };
                out.put_u8(kind::OPENING);
                out.put_u8(tag);
                out.put_u64_le(session);
            }
        }
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Takes one frame off the front of `input`; `None` when it is not complete yet.
    ///
    /// # Errors
    /// The bytes are no frame; the link they came over cannot be trusted any more.
    pub(crate) fn decode(
        input: &mut BytesMut,
        message_bytes_max: usize,
    ) -> Result<Option<Self>, FrameError> {
        let Some(head) = input.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        let limit = message_bytes_max.saturating_add(HEAD_BYTES_MAX);
        if length > limit {
            return Err(FrameError::TooLarge {
                bytes: length,
                limit,
            });
        }
        if input.len() < 4 + length {
            return Ok(None);
        }
        input.advance(4);
        let body = input.split_to(length).freeze();
        Self::decode_body(body).map(Some)
    }

    fn decode_body(mut body: Bytes) -> Result<Self, FrameError> {
        let malformed = |kind| move |why: String| FrameError::Malformed { kind, why };
        let short = |kind| {
            move |_: bytes::TryGetError| FrameError::Malformed {
                kind,
                why: TOO_EARLY.to_owned(),
            }
        };
        let kind = body.try_get_u8().map_err(short("empty"))?;
        match kind {
            kind::CALL => Self::decode_call(body).map_err(short("call")),
            kind::REPLY => {
                let short = short("reply");
                let call = body.try_get_u64_le().map_err(short)?;
                let to = ProcessId(body.try_get_u64_le().map_err(short)?);
                let result = get_result(body, "reply")?;
                Ok(Self::Reply { call, to, result })
            }
            kind::CANCEL => {
                let cancel = Self::decode_cancel(&mut body).map_err(short("cancel"))?;
                ended(cancel, &body, "cancel")
            }
            kind::CREDIT => {
                let credit = Self::decode_credit(&mut body).map_err(short("credit"))?;
                ended(credit, &body, "credit")
            }
            kind::REQUEST => {
                let short = short("request");
                let request = body.try_get_u64_le().map_err(short)?;
                let from = ProcessId(body.try_get_u64_le().map_err(short)?);
                let to = ProcessId(body.try_get_u64_le().map_err(short)?);
                let service = ServiceId(body.try_get_u16_le().map_err(short)?);
                Ok(Self::Request {
                    request,
                    from,
                    to,
                    service,
                    body,
                })
            }
            kind::ANSWER => {
                let short = short("answer");
                let request = body.try_get_u64_le().map_err(short)?;
                let to = ProcessId(body.try_get_u64_le().map_err(short)?);
                let result = get_result(body, "answer")?;
                Ok(Self::Answer {
                    request,
                    to,
                    result,
                })
            }
            kind::HELLO => codec::decode(&body)
                .map(Self::Hello)
                .map_err(|e| malformed("hello")(e.0)),
            kind::FACT => codec::decode(&body)
                .map(Self::Fact)
                .map_err(|e| malformed("fact")(e.0)),
            kind::NOTICE => {
                let service = ServiceId(body.try_get_u16_le().map_err(short("notice"))?);
                Ok(Self::Notice { service, body })
            }
            kind::CHUNK => Self::decode_chunk(body).map_err(short("chunk")),
            kind::BEAT => {
                let [sent, echo, heard] = get_three(&mut body).map_err(short("beat"))?;
                ended(Self::Beat(Beat { sent, echo, heard }), &body, "beat")
            }
            kind::AFTER => {
                let told = body.try_get_u64_le().map_err(short("after"))?;
                ended(Self::After(told), &body, "after")
            }
            kind::TAKEN => {
                let marks = get_three(&mut body).map_err(short("taken"))?;
                ended(Self::Taken(marks), &body, "taken")
            }
            kind::OVER => codec::decode(&body)
                .map(Self::Over)
                .map_err(|e| malformed("over")(e.0)),
            kind::OPENING => {
                let short = short("opening");
                let tag = body.try_get_u8().map_err(short)?;
                let session = body.try_get_u64_le().map_err(short)?;
                let opening = match tag {
                    0 => Opening::Carries,
                    1 => Opening::Keeps(session),
                    2 => Opening::Kept,
                    3 => Opening::Unknown,
                    _ => return Err(malformed("opening")(format!("unknown reason {tag}"))),
                };
                ended(Self::Opening(opening), &body, "opening")
            }
            other => Err(FrameError::UnknownKind(other)),
        }
    }

    fn decode_call(mut body: Bytes) -> Result<Self, bytes::TryGetError> {
        Ok(Self::Call(Call {
            call: body.try_get_u64_le()?,
            from: ProcessId(body.try_get_u64_le()?),
            to: get_actor(&mut body)?,
            at: ProcessId(body.try_get_u64_le()?),
            fence: body.try_get_u32_le()?,
            method: body.try_get_u64_le()?,
            budget: Duration::from_micros(body.try_get_u64_le()?),
            trace: SpanContext::get(&mut body)?,
            payload: body,
        }))
    }

    fn decode_cancel(body: &mut Bytes) -> Result<Self, bytes::TryGetError> {
        let call = body.try_get_u64_le()?;
        let from = ProcessId(body.try_get_u64_le()?);
        Ok(Self::Cancel {
            call,
            from,
            to: get_actor(body)?,
        })
    }

    fn decode_chunk(mut body: Bytes) -> Result<Self, bytes::TryGetError> {
        Ok(Self::Chunk(Chunk {
            transfer: body.try_get_u64_le()?,
            to: ProcessId(body.try_get_u64_le()?),
            index: body.try_get_u64_le()?,
            checksum: body.try_get_u32_le()?,
            bytes: body,
        }))
    }

    fn decode_credit(body: &mut Bytes) -> Result<Self, bytes::TryGetError> {
        let actor = get_actor(body)?;
        let host = ProcessId(body.try_get_u64_le()?);
        let to = ProcessId(body.try_get_u64_le()?);
        Ok(Self::Credit {
            actor,
            host,
            to,
            messages: body.try_get_u32_le()?,
        })
    }
}

impl Chunk {
    /// Appends everything of the frame but the bytes, so that those can be written from where they
    /// lie.
    pub(crate) fn encode_head(&self, out: &mut BytesMut) {
        let start = out.len();
        out.put_u32_le(0);
        self.put_head(out);
        let length = (out.len() - start - 4 + self.bytes.len()) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn put_head(&self, out: &mut BytesMut) {
        out.put_u8(kind::CHUNK);
        out.put_u64_le(self.transfer);
        out.put_u64_le(self.to.0);
        out.put_u64_le(self.index);
        out.put_u32_le(self.checksum);
    }
}

/// Why a body that is cut short is none.
const TOO_EARLY: &str = "it ends too early";

/// A frame whose whole body has been read.
fn ended(frame: Frame, rest: &Bytes, kind: &'static str) -> Result<Frame, FrameError> {
    if rest.is_empty() {
        Ok(frame)
    } else {
        Err(FrameError::Malformed {
            kind,
            why: format!("it goes on for {} bytes", rest.len()),
        })
    }
}

fn put_actor(out: &mut BytesMut, id: ActorId) {
    out.put_u64_le(id.home.0);
    out.put_u64_le(id.serial);
}

fn get_three(body: &mut Bytes) -> Result<[u64; 3], bytes::TryGetError> {
    Ok([
        body.try_get_u64_le()?,
        body.try_get_u64_le()?,
        body.try_get_u64_le()?,
    ])
}

fn get_actor(body: &mut Bytes) -> Result<ActorId, bytes::TryGetError> {
    Ok(ActorId {
        home: ProcessId(body.try_get_u64_le()?),
        serial: body.try_get_u64_le()?,
    })
}

/// Bytes for whoever waits for them, or the reason why there are none.
fn put_result<E: Serialize>(out: &mut BytesMut, result: &Result<Bytes, E>) {
    match result {
        Ok(payload) => {
            out.put_u8(0);
            out.put_slice(payload);
        }
        Err(error) => {
            out.put_u8(1);
            put_coded(out, error);
        }
    }
}

fn get_result<E: DeserializeOwned>(
    mut body: Bytes,
    kind: &'static str,
) -> Result<Result<Bytes, E>, FrameError> {
    let malformed = |why| FrameError::Malformed { kind, why };
    let tag = body.try_get_u8();
    match tag.map_err(|_| malformed(TOO_EARLY.to_owned()))? {
        0 => Ok(Ok(body)),
        1 => codec::decode(&body)
            .map(Err)
            .map_err(|error| malformed(error.0)),
        tag => Err(malformed(format!("unknown outcome {tag}"))),
    }
}

fn put_coded<T: Serialize>(out: &mut BytesMut, value: &T) {
    let bytes = codec::encode(value).expect("the runtime's own types can be encoded");
    out.put_slice(&bytes);
}

#[cfg(test)]
pub(crate) mod draw;
#[cfg(test)]
mod tests;
