//! The spans that were seen, by when they came: a bounded store that forgets the oldest.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use odeon::telemetry::Labels;
use odeon::trace::{Outcome, SpanContext, SpanKind};
use odeon::{ActorId, ProcessId};

use crate::bounds::SPANS_MAX;
use crate::date::{Date, Shift};

/// A span with dates.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its context.
    pub context: SpanContext,
    /// The span that caused it; 0 for none.
    pub parent: u64,
    /// What it covers.
    pub kind: SpanKind,
    /// What it is called.
    pub name: Arc<str>,
    /// Who did it.
    pub by: ActorId,
    /// Whom it concerns.
    pub actor: ActorId,
    /// In which process.
    pub process: ProcessId,
    /// When the message was sent or came.
    pub queued: Date,
    /// When it began.
    pub start: Date,
    /// When it was over; `None` while it goes on.
    pub end: Option<Date>,
    /// Whether it went well.
    pub ok: bool,
    /// What it is about.
    pub labels: Labels,
}

impl Span {
    /// Its own number.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.context.span_id
    }

    /// When it was over; now, if it goes on.
    #[must_use]
    pub fn end_or(&self, now: Date) -> Date {
        self.end.unwrap_or(now).max(self.start)
    }

    /// Whether any of it lies between two moments.
    #[must_use]
    pub fn touches(&self, from: Date, to: Date) -> bool {
        self.start <= to && self.end.is_none_or(|end| end >= from)
    }

    /// A label's text.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<String> {
        let label = self.labels.iter().find(|(it, _)| it == name);
        label.map(|(_, value)| value.to_string())
    }
}

/// Spans that are missing: between these dates so many were lost in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Where.
    pub process: ProcessId,
    /// The look before.
    pub from: Date,
    /// The look that missed them.
    pub to: Date,
    /// How many.
    pub lost: u64,
}

/// The spans that were seen.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    ended: VecDeque<Span>,
    /// How many have ended, forgotten ones too.
    told: u64,
    /// By process, as of its last look.
    going_on: HashMap<ProcessId, Vec<Span>>,
    gaps: VecDeque<Gap>,
    names: HashMap<Arc<str>, ()>,
}

/// Gaps that are remembered.
const GAPS_MAX: usize = 1_000;
/// Different names that are shared; the others are kept one by one.
const NAMES_MAX: usize = 10_000;

impl Spans {
    /// Those that have ended, as they came.
    pub fn ended(&self) -> impl DoubleEndedIterator<Item = &Span> {
        self.ended.iter()
    }

    /// How many have ended, forgotten ones too.
    #[must_use]
    pub const fn told(&self) -> u64 {
        self.told
    }

    /// Those that came after so many, and how many of them are forgotten already.
    pub fn after(&self, told: u64) -> (impl Iterator<Item = &Span>, u64) {
        let forgotten = self.told - self.ended.len() as u64;
        let skip = told.saturating_sub(forgotten).min(self.ended.len() as u64) as usize;
        (self.ended.range(skip..), forgotten.saturating_sub(told))
    }

    /// Those that go on.
    pub fn going_on(&self) -> impl Iterator<Item = &Span> {
        self.going_on.values().flatten()
    }

    /// All of which a part lies between two moments.
    pub fn between(&self, from: Date, to: Date) -> impl Iterator<Item = &Span> {
        let all = self.ended.iter().chain(self.going_on());
        all.filter(move |span| span.touches(from, to))
    }

    /// Where some are missing.
    pub fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.gaps.iter()
    }

    /// One span.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Span> {
        let all = self.ended.iter().rev().chain(self.going_on());
        all.into_iter().find(|span| span.id() == id)
    }

    pub(crate) fn add(&mut self, span: odeon::trace::Span, process: ProcessId, shift: Shift) {
        let span = self.dated(span, process, shift, true);
        if self.ended.len() == SPANS_MAX {
            self.ended.pop_front();
        }
        self.told += 1;
        self.ended.push_back(span);
    }

    pub(crate) fn go_on(
        &mut self,
        spans: Vec<odeon::trace::Span>,
        process: ProcessId,
        shift: Shift,
    ) {
        let dated = spans.into_iter();
        let dated: Vec<_> = dated
            .map(|it| self.dated(it, process, shift, false))
            .collect();
        match dated.is_empty() {
            true => self.going_on.remove(&process),
            false => self.going_on.insert(process, dated),
        };
    }

    pub(crate) fn miss(&mut self, gap: Gap) {
        if self.gaps.len() == GAPS_MAX {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
    }

    fn dated(
        &mut self,
        span: odeon::trace::Span,
        process: ProcessId,
        shift: Shift,
        over: bool,
    ) -> Span {
        Span {
            context: span.context,
            parent: span.parent,
            kind: span.kind,
            name: self.shared(&span.message),
            by: span.by,
            actor: span.actor,
            process,
            queued: shift.date(span.queued),
            start: shift.date(span.started),
            end: over.then(|| shift.date(span.ended)),
            ok: span.outcome == Outcome::Ok,
            labels: span.labels,
        }
    }

    /// One copy for all that are called so.
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some((shared, ())) = self.names.get_key_value(name) {
            return Arc::clone(shared);
        }
        let shared: Arc<str> = name.into();
        if self.names.len() < NAMES_MAX {
            self.names.insert(Arc::clone(&shared), ());
        }
        shared
    }
}
