//! The tracer, which keeps spans of a process: which of them, in rings that threads do not share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Outcome, Span, SpanContext};
use crate::base::clock::Timestamp;
use crate::base::sketch::{Sketch, Times};

/// Which spans are kept. It is decided where a trace begins and holds for all that follows from it,
/// in whichever process. What failed or took [`SLOW`] is kept in any case but [`Sampling::Off`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Sampling {
    /// None.
    Off,
    /// All.
    All,
    /// Of each thread's traces every n-th.
    OneIn(u32),
    /// All while a thread begins at most so many traces in a second, and so many of them else. The
    /// first of a burst are kept together, so that a quiet system shows everything.
    PerSecond(u32),
}

impl Default for Sampling {
    fn default() -> Self {
        Self::PerSecond(100)
    }
}

/// The duration from which a span is kept whatever the sampling.
pub const SLOW: Duration = Duration::from_millis(100);

/// Counts of traces and spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanCounts {
    /// Traces that began in this process.
    pub traces: u64,
    /// Those of them that are kept.
    pub traces_kept: u64,
    /// Spans that went into the ring.
    pub recorded: u64,
    /// Those of them that it has no room for any more.
    pub overwritten: u64,
}

impl SpanCounts {
    /// n of "one trace in n is kept"; 1 before the first.
    #[must_use]
    pub fn one_in(&self) -> f64 {
        if self.traces_kept == 0 {
            return 1.0;
        }
        self.traces as f64 / self.traces_kept as f64
    }
}

const SHARDS: usize = 8;

/// The finished spans of a process, and how long its asks took.
#[derive(Debug)]
pub(crate) struct Tracer {
    shards: [Shard; SHARDS],
    per_shard_max: usize,
    sampling: Sampling,
    /// Spans of programs that go on.
    open: Mutex<BTreeMap<u64, Span>>,
}

/// The part of some threads, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    ring: Mutex<Ring>,
    /// The rest of the budget, in thousandths of a trace, and when it was last added to.
    left: AtomicU64,
    filled: AtomicU64,
    traces: AtomicU64,
    kept: AtomicU64,
    /// Counts down to the next that is kept.
    skip: AtomicU32,
    asks: Sketch<AtomicU32>,
}

/// A full ring overwrites its oldest.
#[derive(Debug, Default)]
struct Ring {
    spans: Vec<Span>,
    oldest: usize,
    recorded: u64,
}

impl Ring {
    fn push(&mut self, span: Span, most: usize) {
        self.recorded += 1;
        if self.spans.len() < most {
            return self.spans.push(span);
        }
        self.spans[self.oldest] = span;
        self.oldest += 1;
        if self.oldest == most {
            self.oldest = 0;
        }
    }

    /// Up to `most` spans after the first `seen`, and how many of those are gone.
    fn after(&self, seen: u64, most: usize) -> (Vec<Span>, u64) {
        let first = self.recorded - self.spans.len() as u64;
        let lost = first.saturating_sub(seen);
        let skip = seen.saturating_sub(first) as usize;
        let (newer, older) = self.spans.split_at(self.oldest);
        let spans = older.iter().chain(newer).skip(skip).take(most);
        (spans.cloned().collect(), lost)
    }
}

/// The progress of a reader of a [`Tracer`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpanCursor([u64; SHARDS]);

impl Tracer {
    /// Rings for about `spans_max` spans; 0 keeps nothing.
    pub(crate) fn new(spans_max: usize, sampling: Sampling) -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
            per_shard_max: spans_max.div_ceil(SHARDS),
            sampling: if spans_max == 0 {
                Sampling::Off
            } else {
                sampling
            },
            open: Mutex::default(),
        }
    }

    /// Returns true if it keeps any.
    pub(crate) fn is_on(&self) -> bool {
        self.sampling != Sampling::Off
    }

    /// The context of a span that begins now, below another or, when that is empty, as the first of
    /// a trace.
    #[inline]
    pub(crate) fn begin(&self, parent: SpanContext, now: Timestamp) -> SpanContext {
        if !self.is_on() {
            return SpanContext::default();
        }
        if parent.trace_id != 0 && !parent.is_foreign() {
            return parent.child();
        }
        let shard = &self.shards[shard_of_thread()];
        let keeps = shard.keeps(self.sampling, now);
        add(&shard.traces, 1);
        add(&shard.kept, u64::from(keeps));
        // Below a span of somebody else the budget holds as well, or one trace that was begun elsewhere
        // would have all kept that a program does.
        let asked = parent.trace_id == 0 || parent.is_sampled();
        SpanContext {
            flags: u8::from(keeps && asked),
            ..parent.child()
        }
    }

    /// Returns true if a span is kept that ends now.
    #[inline]
    pub(crate) fn keeps(&self, context: SpanContext, outcome: Outcome, lasted: Duration) -> bool {
        if !self.is_on() {
            return false;
        }
        context.flags & 1 == 1 || outcome == Outcome::Failed || lasted >= SLOW
    }

    /// Keeps a span that [is to be](Tracer::keeps).
    pub(crate) fn record(&self, span: Span) {
        let shard = &self.shards[shard_of_thread()];
        shard.ring.lock().push(span, self.per_shard_max);
    }

    /// An ask has been answered.
    pub(crate) fn answered(&self, lasted: Duration) {
        if self.is_on() {
            let shard = &self.shards[shard_of_thread()];
            shard.asks.add(lasted.as_nanos() as u64);
        }
    }

    /// A span of a program that goes on; its end is its start.
    pub(crate) fn open(&self, span: Span) {
        self.open.lock().insert(span.context.span_id, span);
    }

    /// A span of a program that is over, or `None` when it is not kept.
    pub(crate) fn close(&self, span: u64) -> Option<Span> {
        self.open.lock().remove(&span)
    }

    /// The spans of programs that go on.
    pub(crate) fn going_on(&self) -> Vec<Span> {
        self.open.lock().values().cloned().collect()
    }

    /// The spans in the rings, oldest first.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut spans = vec![];
        for shard in &self.shards {
            spans.extend(shard.ring.lock().after(0, usize::MAX).0);
        }
        spans.sort_by_key(|span| (span.started, span.ended));
        spans
    }

    /// Up to `most` spans since the last time, and how many are missing between.
    pub(crate) fn since(&self, cursor: &mut SpanCursor, most: usize) -> (Vec<Span>, u64) {
        let (mut spans, mut lost) = (vec![], 0);
        for (shard, seen) in self.shards.iter().zip(&mut cursor.0) {
            let (more, gone) = shard.ring.lock().after(*seen, most - spans.len());
            *seen += gone + more.len() as u64;
            lost += gone;
            spans.extend(more);
        }
        (spans, lost)
    }

    /// Counts of all spans so far.
    pub(crate) fn counts(&self) -> SpanCounts {
        let mut counts = SpanCounts::default();
        for shard in &self.shards {
            counts.traces += shard.traces.load(Ordering::Relaxed);
            counts.traces_kept += shard.kept.load(Ordering::Relaxed);
            let ring = shard.ring.lock();
            counts.recorded += ring.recorded;
            counts.overwritten += ring.recorded - ring.spans.len() as u64;
        }
        counts
    }

    /// The times that asks took until their answers came.
    pub(crate) fn ask_times(&self) -> Times {
        let views = self.shards.iter().map(|shard| shard.asks.view());
        views.fold(Times::default(), |all, times| all.merge(&times))
    }
}

impl Shard {
    fn keeps(&self, sampling: Sampling, now: Timestamp) -> bool {
        match sampling {
            Sampling::Off => false,
            Sampling::All => true,
            Sampling::OneIn(n) => {
                let skip = self.skip.load(Ordering::Relaxed);
                let next = if skip == 0 {
                    n.saturating_sub(1)
                } else {
                    skip - 1
                };
                self.skip.store(next, Ordering::Relaxed);
                skip == 0
            }
            Sampling::PerSecond(most) => self.take(u64::from(most), now),
        }
    }

    /// Takes one of so many in a second, of which a second's worth may be saved.
    fn take(&self, most: u64, now: Timestamp) -> bool {
        let filled = self.filled.load(Ordering::Relaxed);
        let mut left = self.left.load(Ordering::Relaxed);
        let passed_us = now.0.saturating_sub(filled) / 1_000;
        let more = passed_us.min(1_000_000) * most / 1_000;
        if filled == 0 {
            left = most * 1_000;
        }
        if more > 0 || filled == 0 {
            left = (left + more).min(most * 1_000);
            self.filled.store(now.0.max(1), Ordering::Relaxed);
        }
        let keeps = left >= 1_000;
        let rest = if keeps { left - 1_000 } else { left };
        self.left.store(rest, Ordering::Relaxed);
        keeps
    }
}

/// Adds where few others do: what two threads add at once may count once.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::{ActorId, ProcessId};
    use crate::base::trace::SpanKind;

    fn span(at: u64) -> Span {
        Span {
            context: SpanContext::root(),
            parent: 0,
            kind: SpanKind::Handle,
            by: ActorId::root(ProcessId(1)),
            actor: ActorId::root(ProcessId(1)),
            message: "m".into(),
            queued: Timestamp(at),
            started: Timestamp(at),
            ended: Timestamp(at),
            outcome: Outcome::Ok,
            labels: vec![],
        }
    }

    #[test]
    fn a_full_ring_drops_its_oldest_and_counts_them() {
        let tracer = Tracer::new(SHARDS * 2, Sampling::All);
        let mut cursor = SpanCursor::default();
        tracer.record(span(0));
        assert_eq!(tracer.since(&mut cursor, 10).0.len(), 1);
        for at in 1..5 {
            tracer.record(span(at));
        }
        let counts = tracer.counts();
        assert_eq!((counts.recorded, counts.overwritten), (5, 3));
        let starts = |spans: &[Span]| spans.iter().map(|it| it.started.0).collect::<Vec<_>>();
        assert_eq!(starts(&tracer.spans()), [3, 4]);
        let (one, lost) = tracer.since(&mut cursor, 1);
        assert_eq!((starts(&one), lost), (vec![3], 2));
        let (rest, lost) = tracer.since(&mut cursor, 10);
        assert_eq!((starts(&rest), lost), (vec![4], 0));
        assert_eq!(tracer.since(&mut cursor, 10), (vec![], 0));
    }

    #[test]
    fn a_budget_keeps_a_burst_and_then_its_rate() {
        let tracer = Tracer::new(64, Sampling::PerSecond(10));
        let kept = |from: u64, to_ms: u64| {
            let roots = (from..to_ms).map(|ms| Timestamp(1 + ms * 1_000_000));
            let begun = roots.map(|at| tracer.begin(SpanContext::default(), at));
            begun.filter(|context| context.flags == 1).count()
        };
        assert_eq!(kept(0, 5), 5, "a quiet system shows everything");
        let rest = kept(5, 2_005);
        assert!((23..=26).contains(&rest), "5 were saved, 20 came: {rest}");
        assert!((tracer.counts().one_in() - 2_005.0 / (5 + rest) as f64).abs() < 1e-9);
    }

    #[test]
    fn below_a_span_of_somebody_else_the_budget_holds() {
        let tracer = Tracer::new(64, Sampling::OneIn(2));
        let given = SpanContext::root();
        let begun = [1, 2, 3].map(|at| tracer.begin(given.foreign(), Timestamp(at)));
        assert_eq!(begun.map(|it| it.flags), [1, 0, 1]);
        assert!(begun.iter().all(|it| it.trace_id == given.trace_id));
        assert_eq!(tracer.counts().traces, 3);
        let unasked = SpanContext { flags: 0, ..given };
        let all = Tracer::new(64, Sampling::All);
        assert_eq!(all.begin(unasked.foreign(), Timestamp(1)).flags, 0);
    }

    #[test]
    fn what_failed_or_was_slow_is_kept_whatever_the_sampling() {
        let tracer = Tracer::new(64, Sampling::OneIn(u32::MAX));
        let first = tracer.begin(SpanContext::default(), Timestamp(1));
        let other = tracer.begin(SpanContext::default(), Timestamp(1));
        assert_eq!((first.flags, other.flags), (1, 0));
        assert_eq!(
            tracer.begin(other, Timestamp(2)).flags,
            0,
            "it is inherited"
        );
        assert!(!tracer.keeps(other, Outcome::Ok, Duration::ZERO));
        assert!(tracer.keeps(other, Outcome::Ok, SLOW));
        assert!(tracer.keeps(other, Outcome::Failed, Duration::ZERO));
        let off = Tracer::new(0, Sampling::All);
        let none = off.begin(SpanContext::default(), Timestamp(1));
        assert!(!off.keeps(none, Outcome::Failed, SLOW));
    }
}
