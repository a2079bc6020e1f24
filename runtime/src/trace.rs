//! Spans: who sent what to whom, when it ran, and how it ended, in a bounded ring per process.
//!
//! Every ask and tell opens a span; the handler's span is its child, also in another process, since
//! the W3C trace context travels in every call. Recording never waits: a full ring drops its oldest
//! span and counts it.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BufMut, Bytes};
use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::id::ActorId;
use crate::random;

/// The W3C trace context of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanContext {
    /// 16 bytes, the same for everything that one root caused.
    pub trace_id: u128,
    /// 8 bytes, of this span.
    pub span_id: u64,
    /// Bit 0: sampled.
    pub flags: u8,
}

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
    #[must_use]
    pub fn child(self) -> Self {
        if self.trace_id == 0 {
            Self::root()
        } else {
            let [span] = random::quick();
            Self {
                span_id: span | 1,
                ..self
            }
        }
    }

    /// The span that the calling task handles now; empty outside of handlers.
    #[must_use]
    pub fn current() -> Self {
        crate::current::span()
    }

    /// The header form: `00-<trace>-<span>-<flags>`.
    #[must_use]
    pub fn traceparent(self) -> String {
        format!(
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id, self.span_id, self.flags
        )
    }

    /// Reads the header form.
    #[must_use]
    pub fn from_traceparent(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = parts.next()?;
        let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
        if version.len() != 2 || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
            return None;
        }
        let context = Self {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        };
        (version != "ff" && context.trace_id != 0 && context.span_id != 0).then_some(context)
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

/// What a span covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// From `ask` to its answer, at the caller.
    Ask,
    /// From `tell` to acceptance, at the caller.
    Tell,
    /// One run of a handler.
    Handle,
}

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Ok,
    /// With an error or a panic.
    Failed,
}

/// One finished span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its own context.
    pub context: SpanContext,
    /// The span that caused it; 0 for a root.
    pub parent: u64,
    /// What it covers.
    pub kind: SpanKind,
    /// The actor that it concerns.
    pub actor: ActorId,
    /// The message's name.
    pub message: &'static str,
    /// When the message was sent (ask, tell) or taken into the mailbox (handle).
    pub queued: Timestamp,
    /// When the handler started; equals `queued` for asks and tells.
    pub started: Timestamp,
    /// When it was over.
    pub ended: Timestamp,
    /// How it ended.
    pub outcome: Outcome,
}

const SHARDS: usize = 8;

/// The ring of finished spans of a process.
#[derive(Debug)]
pub struct Tracer {
    shards: [Mutex<Shard>; SHARDS],
    per_shard_max: usize,
}

/// The spans of some threads. A full shard overwrites its oldest.
#[derive(Debug, Default)]
struct Shard {
    spans: Vec<Span>,
    oldest: usize,
    recorded: u64,
}

impl Tracer {
    /// A ring for about `spans_max` spans; 0 records nothing.
    #[must_use]
    pub fn new(spans_max: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            per_shard_max: spans_max.div_ceil(SHARDS),
        }
    }

    pub(crate) fn record(&self, span: Span) {
        if self.per_shard_max == 0 {
            return;
        }
        let mut shard = self.shards[shard_of_thread()].lock();
        shard.recorded += 1;
        if shard.spans.len() < self.per_shard_max {
            return shard.spans.push(span);
        }
        let oldest = shard.oldest;
        shard.spans[oldest] = span;
        shard.oldest = if oldest + 1 == self.per_shard_max {
            0
        } else {
            oldest + 1
        };
    }

    /// The spans in the ring, oldest first.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = self
            .shards
            .iter()
            .flat_map(|shard| shard.lock().spans.clone())
            .collect();
        spans.sort_by_key(|span| (span.started, span.ended));
        spans
    }

    /// How many spans were recorded, and how many of them have been overwritten.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.shards
            .iter()
            .fold((0, 0), |(recorded, dropped), shard| {
                let shard = shard.lock();
                let gone = shard.recorded - shard.spans.len() as u64;
                (recorded + shard.recorded, dropped + gone)
            })
    }
}

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_survives_the_round_trip() {
        let context = SpanContext::root();
        assert_eq!(
            SpanContext::from_traceparent(&context.traceparent()),
            Some(context)
        );
        for bad in [
            "",
            "00-0-0-0",
            "00-00000000000000000000000000000000-0000000000000000-01",
        ] {
            assert_eq!(SpanContext::from_traceparent(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_full_ring_drops_its_oldest_and_counts_them() {
        let tracer = Tracer::new(SHARDS * 2);
        for i in 0..5 {
            tracer.record(Span {
                context: SpanContext::root(),
                parent: 0,
                kind: SpanKind::Handle,
                actor: ActorId::root(crate::ProcessId(1)),
                message: "m",
                queued: Timestamp(i),
                started: Timestamp(i),
                ended: Timestamp(i),
                outcome: Outcome::Ok,
            });
        }
        assert_eq!(tracer.counts(), (5, 3));
        assert_eq!(
            tracer
                .spans()
                .iter()
                .map(|s| s.started.0)
                .collect::<Vec<_>>(),
            [3, 4]
        );
    }
}
