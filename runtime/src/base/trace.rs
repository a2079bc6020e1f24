//! Spans: who sent what to whom, when it ran, and how it ended, in bounded rings.
//!
//! Every ask and tell opens a span; the handler's span is its child, also in another process, since
//! the W3C trace context travels in every call. [`Sampling`] says which are kept. Recording never
//! waits: a full ring drops its oldest span and counts it.

mod label;
mod tracer;

use std::borrow::Cow;

use bytes::{Buf, BufMut, Bytes};
use serde::{Deserialize, Serialize};

use crate::base::clock::Timestamp;
use crate::base::id::ActorId;
use crate::base::random;

pub use label::{Label, Labels};
pub use tracer::{SLOW, Sampling, SpanCounts};
pub(crate) use tracer::{SpanCursor, Tracer};

/// The W3C trace context of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanContext {
    /// 16 bytes, the same for everything that one root caused.
    pub trace_id: u128,
    /// 8 bytes, of this span.
    pub span_id: u64,
    /// Bit 0: sampled.
    pub flags: u8,
}

/// The variable in which a program is told the span that it is started for, in the header form.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// Of the flags those that W3C gives a meaning: sampled, and random.
const KNOWN_FLAGS: u8 = 0b11;
/// Of the flags those that count how many tells lie between the first span of a trace and this one,
/// and one of them.
const TELLS: u8 = 0b0111_1100;
const ONE_TELL: u8 = 0b0000_0100;
/// The label of a span that begins a trace because the trace before it ends there: the span that has
/// caused it, in the header form.
pub const FOLLOWS: &str = "follows";
/// The mark of a span that no system of Odeon has begun. It stays in its process: a child has none.
const FOREIGN: u8 = 0b1000_0000;

impl SpanContext {
    /// A new root span.
    #[must_use]
    pub fn root() -> Self {
        let [high, low, span] = random::quick();
        let trace_id = (u128::from(high) << 64) | u128::from(low);
        Self {
            trace_id,
            span_id: span | 1,
            flags: 1,
        }
    }

    /// A new span caused by this one; a root when this one is empty.
    #[inline]
    #[must_use]
    pub fn child(self) -> Self {
        if self.trace_id == 0 {
            Self::root()
        } else {
            let [span] = random::quick();
            Self {
                span_id: span | 1,
                flags: self.flags & (KNOWN_FLAGS | TELLS),
                ..self
            }
        }
    }

    /// The same as the span of a tell.
    pub(crate) const fn told(self) -> Self {
        Self {
            flags: self.flags + if self.is_far() { 0 } else { ONE_TELL },
            ..self
        }
    }

    /// Returns true if so many tells lie before it that its trace is to end: actors that tell each
    /// other to go on do so for ever.
    pub(crate) const fn is_far(self) -> bool {
        self.flags & TELLS == TELLS
    }

    /// The span that this program was started for, as [`TRACEPARENT`] says it, if it does.
    #[must_use]
    pub fn given() -> Option<Self> {
        let text = std::env::var(TRACEPARENT).ok()?;
        let given = Self::from_traceparent(&text);
        if given.is_none() {
            tracing::warn!(
                text,
                "{TRACEPARENT} is no W3C trace context and does not count"
            );
        }
        given
    }

    /// Returns true if there is no span.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.trace_id == 0
    }

    /// Returns true if whoever began the trace has it recorded.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & 1 == 1
    }

    /// The same as a span that no system of Odeon has begun.
    pub(crate) const fn foreign(self) -> Self {
        Self {
            flags: self.flags | FOREIGN,
            ..self
        }
    }

    pub(crate) const fn is_foreign(self) -> bool {
        self.flags & FOREIGN != 0
    }

    /// The header form: `00-<trace>-<span>-<flags>`.
    #[must_use]
    pub fn traceparent(self) -> String {
        format!(
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id,
            self.span_id,
            self.flags & KNOWN_FLAGS
        )
    }

    /// Reads the header form. Versions after the first may have more parts, which do not count.
    #[must_use]
    pub fn from_traceparent(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut hex = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
            let number = part.bytes().all(is_hex);
            number
                .then(|| u128::from_str_radix(part, 16).ok())
                .flatten()
        };
        let (version, trace_id) = (hex(2)?, hex(32)?);
        let (span_id, flags) = (hex(16)?, hex(2)?);
        let more = parts.next().is_some();
        let context = Self {
            trace_id,
            span_id: u64::try_from(span_id).ok()?,
            flags: u8::try_from(flags).ok()? & KNOWN_FLAGS,
        };
        let known = version != 0xff && (version != 0 || !more);
        (known && context.trace_id != 0 && context.span_id != 0).then_some(context)
    }

    pub(crate) fn put(self, out: &mut impl BufMut) {
        out.put_u128_le(self.trace_id);
        out.put_u64_le(self.span_id);
        out.put_u8(self.flags);
    }

    pub(crate) fn get(body: &mut Bytes) -> Result<Self, bytes::TryGetError> {
        Ok(Self {
            trace_id: body.try_get_u128_le()?,
            span_id: body.try_get_u64_le()?,
            flags: body.try_get_u8()?,
        })
    }
}

/// The operation that a span covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SpanKind {
    /// From `ask` to its answer, at the caller.
    Ask,
    /// From `tell` to acceptance, at the caller.
    Tell,
    /// One run of a handler.
    Handle,
    /// A [span](crate::actor::telemetry::span) that a program opens itself.
    User,
    /// A blob of another node that is copied to this one; with the labels `bytes`, `owner` (a
    /// process) and `blob`, its number there.
    Copy,
    /// A collective operation of a rank, from its call until it returns; with the labels `bytes` (of
    /// the rank's own part), `rank` and `world`. One that takes long at one rank alone has waited
    /// there for the others.
    Collective,
}

/// The outcome of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// As it should.
    Ok,
    /// With an error or a panic.
    Failed,
}

impl Outcome {
    /// The outcome of something that went well, or did not.
    pub(crate) const fn of(ok: bool) -> Self {
        if ok { Self::Ok } else { Self::Failed }
    }
}

/// One span, finished unless it is said to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Its own context.
    pub context: SpanContext,
    /// The span that caused it; 0 for a root.
    pub parent: u64,
    /// The operation that it covers.
    pub kind: SpanKind,
    /// The actor that did it; the root of its process outside of actors.
    pub by: ActorId,
    /// The actor that it concerns: whom the message is for.
    pub actor: ActorId,
    /// The message's name, or what the program calls it.
    pub message: Cow<'static, str>,
    /// When the message was sent (ask, tell) or taken into the mailbox (handle).
    pub queued: Timestamp,
    /// When the handler started; equals `queued` for asks and tells.
    pub started: Timestamp,
    /// When it was over.
    pub ended: Timestamp,
    /// The outcome.
    pub outcome: Outcome,
    /// The labels that the program has given it.
    pub labels: Labels,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_are_counted_up_to_the_end_of_a_trace() {
        let root = SpanContext::root();
        let (mut span, mut tells) = (root, 0);
        while !span.is_far() {
            span = span.child().told();
            tells += 1;
        }
        assert_eq!(tells, 31);
        assert_eq!(span.told(), span);
        assert_eq!(
            (span.trace_id, span.flags & KNOWN_FLAGS),
            (root.trace_id, 1)
        );
        assert!(span.traceparent().ends_with("-01"));
    }

    #[test]
    fn a_traceparent_survives_the_round_trip() {
        let context = SpanContext::root();
        assert_eq!(
            SpanContext::from_traceparent(&context.traceparent()),
            Some(context)
        );
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        for bad in [
            String::new(),
            "00-0-0-0".to_owned(),
            "00-00000000000000000000000000000000-0000000000000000-01".to_owned(),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-+{}-{span}-01", &trace[1..]),
        ] {
            assert_eq!(SpanContext::from_traceparent(&bad), None, "{bad}");
        }
        let later = SpanContext::from_traceparent(&format!("01-{trace}-{span}-ff-more"));
        assert_eq!(
            later.map(|it| it.flags),
            Some(3),
            "what is unknown is left out"
        );
        let foreign = context.foreign();
        assert_eq!(foreign.traceparent(), context.traceparent());
        assert!(foreign.is_foreign() && !foreign.child().is_foreign());
    }
}
