//! The spans that were seen, by when they came: a bounded store that forgets the oldest.
//!
//! The daemons' own actors leave some hundred spans for each job. They have a ring of their own, so that
//! they do not push out those of people's programs, and a daemon's memory does not grow by them.

mod ring;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use odeon::inspect::{ActorView, WaitKind};
use odeon::telemetry::Labels;
use odeon::trace::{Outcome, SpanContext, SpanKind};
use odeon::{ActorId, ProcessId};

use crate::bounds::{SPANS_MAX, SYSTEM_SPANS_MAX};
use crate::date::{Date, Shift};
use crate::waits::Wait;
use ring::Ring;

/// A span with dates.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its context.
    pub context: SpanContext,
    /// The span that caused it; 0 for none.
    pub parent: u64,
    /// The kind of work that it covers.
    pub kind: SpanKind,
    /// Its name.
    pub name: Arc<str>,
    /// The actor that did it.
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
    /// Set where it went well.
    pub ok: bool,
    /// Labels that say what it is about.
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

    /// Returns true where any of it lies between two moments.
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
    /// Number of spans that were lost.
    pub lost: u64,
}

/// Whose work a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// That of a job.
    Job,
    /// That of the system itself: of a daemon's own actors.
    System,
}

/// Spans that were seen and are kept no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Number of spans that were forgotten.
    pub spans: u64,
    /// When the last of them ended: what ended later is there.
    pub to: Date,
}

/// The spans that were seen.
#[derive(Clone, Debug)]
pub struct Spans {
    of_jobs: Ring,
    of_system: Ring,
    /// Number of spans that have ended, forgotten ones too.
    told: u64,
    /// By process, as of its last look.
    going_on: HashMap<ProcessId, Vec<Span>>,
    /// By process, what its actors are at.
    under_way: HashMap<ProcessId, UnderWay>,
    gaps: VecDeque<Gap>,
    names: HashMap<Arc<str>, ()>,
}

/// Handlers that run, and asks that have no answer yet: they leave a span of their own when they are
/// over.
#[derive(Clone, Debug, Default)]
struct UnderWay {
    handlers: BTreeMap<ActorId, Span>,
    asks: Vec<Span>,
}

/// Gaps that are remembered.
const GAPS_MAX: usize = 1_000;
/// Different names that are shared; the others are kept one by one.
const NAMES_MAX: usize = 10_000;

impl Default for Spans {
    fn default() -> Self {
        Self {
            of_jobs: Ring::new(SPANS_MAX),
            of_system: Ring::new(SYSTEM_SPANS_MAX),
            told: 0,
            going_on: HashMap::new(),
            under_way: HashMap::new(),
            gaps: VecDeque::new(),
            names: HashMap::new(),
        }
    }
}

impl Spans {
    /// Those that have ended: the system's own, then those of jobs, each as they came.
    pub fn ended(&self) -> impl DoubleEndedIterator<Item = &Span> {
        self.of_system.iter().chain(self.of_jobs.iter())
    }

    /// Number of spans that have ended, forgotten ones too.
    #[must_use]
    pub const fn told(&self) -> u64 {
        self.told
    }

    /// Those of jobs that were forgotten since there is no room for more; `None` while all are kept.
    #[must_use]
    pub fn forgotten(&self) -> Option<Forgotten> {
        self.of_jobs.forgotten()
    }

    /// Those that came after so many, each with its number, in the order of these. A number that is left
    /// out is of a span that is forgotten.
    pub fn after(&self, told: u64) -> impl Iterator<Item = (u64, &Span)> {
        let mut system = self.of_system.after(told).peekable();
        let mut jobs = self.of_jobs.after(told).peekable();
        std::iter::from_fn(move || match (system.peek(), jobs.peek()) {
            (Some(one), Some(other)) if one.0 > other.0 => jobs.next(),
            (Some(_), _) => system.next(),
            (None, _) => jobs.next(),
        })
    }

    /// Those that go on.
    pub fn going_on(&self) -> impl Iterator<Item = &Span> {
        let under_way = self.under_way.values();
        let under_way = under_way.flat_map(|it| it.handlers.values().chain(&it.asks));
        self.going_on.values().flatten().chain(under_way)
    }

    /// All of which a part lies between two moments.
    pub fn between(&self, from: Date, to: Date) -> impl Iterator<Item = &Span> {
        let all = self.ended().chain(self.going_on());
        all.filter(move |span| span.touches(from, to))
    }

    /// Where some are missing.
    pub fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.gaps.iter()
    }

    /// One span.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Span> {
        let mut all = self.ended().rev().chain(self.going_on());
        all.find(|span| span.id() == id)
    }

    pub(crate) fn add(
        &mut self,
        span: odeon::trace::Span,
        process: ProcessId,
        whose: Whose,
        shift: Shift,
    ) {
        let span = self.dated(span, process, shift, true);
        self.keep(span, whose);
    }

    fn keep(&mut self, span: Span, whose: Whose) {
        self.told += 1;
        let ring = match whose {
            Whose::Job => &mut self.of_jobs,
            Whose::System => &mut self.of_system,
        };
        ring.keep(self.told, span);
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

    /// Takes in the handler that an actor runs, as its process shows it.
    pub(crate) fn handles(&mut self, view: &ActorView, shift: Shift) {
        let Some(running) = &view.running else {
            return self.rests(view.id, view.process);
        };
        let since = shift.date(running.since);
        let span = Span {
            context: SpanContext {
                span_id: running.span,
                ..SpanContext::default()
            },
            parent: 0,
            kind: SpanKind::Handle,
            name: self.shared(&running.message),
            by: view.id,
            actor: view.id,
            process: view.process,
            queued: since,
            start: since,
            end: None,
            ok: true,
            labels: vec![],
        };
        let own = self.under_way.entry(view.process).or_default();
        own.handlers.insert(view.id, span);
    }

    /// An actor handles nothing any more.
    pub(crate) fn rests(&mut self, actor: ActorId, process: ProcessId) {
        if let Some(own) = self.under_way.get_mut(&process) {
            own.handlers.remove(&actor);
        }
    }

    /// Takes in the asks that the actors of a process wait for.
    pub(crate) fn asks(&mut self, process: ProcessId, waits: &[Wait]) {
        let asks = waits.iter().filter(|wait| wait.how == WaitKind::Answer);
        let asks = asks.map(|wait| Span {
            context: SpanContext {
                span_id: number_of(wait),
                ..SpanContext::default()
            },
            parent: 0,
            kind: SpanKind::Ask,
            name: self.shared(&wait.message),
            by: wait.who,
            actor: wait.on,
            process,
            queued: wait.since,
            start: wait.since,
            end: None,
            ok: true,
            labels: vec![],
        });
        let asks = asks.collect();
        self.under_way.entry(process).or_default().asks = asks;
    }

    /// A process is gone: what was under way there has failed.
    pub(crate) fn cut(&mut self, process: ProcessId, whose: Whose, now: Date) {
        let programs = self.going_on.remove(&process).unwrap_or_default();
        let own = self.under_way.remove(&process).unwrap_or_default();
        let handlers = own.handlers.into_values();
        for span in programs.into_iter().chain(handlers).chain(own.asks) {
            let end = Some(now.max(span.start));
            let failed = Span {
                end,
                ok: false,
                ..span
            };
            self.keep(failed, whose);
        }
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

/// A number for the span of an ask that goes on, the same at each look.
fn number_of(wait: &Wait) -> u64 {
    let about = (wait.who, wait.on, wait.since, &wait.message);
    BuildHasherDefault::<DefaultHasher>::default().hash_one(about) | 1
}

#[cfg(test)]
mod tests {
    use odeon::inspect::RunningView;
    use odeon::{Phase, Timestamp};

    use super::*;

    fn view(actor: ActorId, running: Option<(&str, u64)>) -> ActorView {
        ActorView {
            id: actor,
            parent: ActorId::root(actor.home),
            actor: "T".to_owned(),
            process: ProcessId(7),
            incarnation: 1,
            phase: Phase::Running,
            queued: 0,
            room: 1,
            queued_bytes: 0,
            handled: 0,
            failed: 0,
            busy: 0,
            waited: 0,
            changed: Timestamp(0),
            running: running.map(|(message, since)| RunningView {
                message: message.to_owned(),
                since: Timestamp(since),
                span: since | 1,
            }),
            devices: vec![],
        }
    }

    #[test]
    fn of_more_spans_than_are_kept_it_is_said_how_many_are_forgotten_and_what_is_there() {
        let shift = Shift::new(Timestamp(0), Date(0));
        let span = |number: u64| odeon::trace::Span {
            context: SpanContext {
                trace_id: 1,
                span_id: number + 1,
                flags: 1,
            },
            parent: 0,
            kind: SpanKind::Handle,
            message: "M".into(),
            by: ActorId::root(ProcessId(7)),
            actor: ActorId::root(ProcessId(7)),
            queued: Timestamp(number),
            started: Timestamp(number),
            // One of the first lasts long.
            ended: Timestamp(if number == 1 { 900 } else { number + 1 }),
            outcome: Outcome::Ok,
            labels: vec![],
        };
        let mut spans = Spans::default();
        for number in 0..SPANS_MAX as u64 {
            spans.add(span(number), ProcessId(7), Whose::Job, shift);
        }
        assert_eq!(spans.forgotten(), None);
        for number in 0..3 {
            let number = SPANS_MAX as u64 + number;
            spans.add(span(number), ProcessId(7), Whose::Job, shift);
        }
        let forgotten = spans.forgotten().unwrap();
        assert_eq!((forgotten.spans, forgotten.to), (3, Date(900)));
        let first = spans
            .ended()
            .find(|it| it.end.is_some_and(|end| end > forgotten.to));
        assert_eq!(
            first.unwrap().end,
            Some(Date(901)),
            "all that ended later are there"
        );
    }

    #[test]
    fn what_the_system_does_pushes_out_nothing_of_jobs_and_is_told_in_the_same_line() {
        let shift = Shift::new(Timestamp(0), Date(0));
        let mut spans = Spans::default();
        let add = |spans: &mut Spans, number: u64, whose| {
            let actor = ActorId::root(ProcessId(7));
            let span = odeon::trace::Span {
                context: SpanContext {
                    trace_id: 1,
                    span_id: number,
                    flags: 1,
                },
                parent: 0,
                kind: SpanKind::Handle,
                message: "M".into(),
                by: actor,
                actor,
                queued: Timestamp(number),
                started: Timestamp(number),
                ended: Timestamp(number),
                outcome: Outcome::Ok,
                labels: vec![],
            };
            spans.add(span, ProcessId(7), whose, shift);
        };
        // Every fifth is of a job, until the system's ring has forgotten a thousand.
        let all = (SYSTEM_SPANS_MAX as u64 + 1_000) * 5 / 4;
        for number in 1..=all {
            let whose = match number % 5 {
                0 => Whose::Job,
                _ => Whose::System,
            };
            add(&mut spans, number, whose);
        }
        assert_eq!((spans.told(), spans.forgotten()), (all, None));
        let numbers: Vec<u64> = spans.after(0).map(|(number, _)| number).collect();
        // The first thousand of the system's are gone: four in each five of the first 1,250.
        let expected = (1..=all).filter(|it| it % 5 == 0 || *it > 1_250);
        assert_eq!(numbers, expected.collect::<Vec<_>>());
        assert!(spans.after(0).all(|(number, span)| span.id() == number));
        assert_eq!(spans.after(all - 3).count(), 3);
        assert_eq!(spans.after(all).count(), 0);
        assert_eq!(spans.ended().count(), numbers.len());
        assert!(spans.get(5).is_some() && spans.get(6).is_none());
    }

    /// A span that goes on is seen while it goes on, and has failed when its process is gone.
    #[test]
    fn a_handler_and_what_it_asks_are_spans_before_they_are_over() {
        let (process, shift) = (ProcessId(7), Shift::new(Timestamp(0), Date(0)));
        let [one, other] = [1, 2].map(|serial| ActorId {
            home: process,
            serial,
        });
        let ask = Wait {
            who: one,
            on: other,
            how: WaitKind::Answer,
            message: "Get".to_owned(),
            since: Date(20),
            in_handler: true,
        };
        let mut spans = Spans::default();
        spans.handles(&view(one, Some(("Step", 10))), shift);
        spans.handles(&view(other, Some(("Get", 30))), shift);
        spans.asks(process, std::slice::from_ref(&ask));
        let names = |spans: &Spans| {
            let mut names: Vec<_> = spans.going_on().map(|it| (it.start.0, it.kind)).collect();
            names.sort_by_key(|it| it.0);
            names
        };
        let [handle, ask_kind] = [SpanKind::Handle, SpanKind::Ask];
        assert_eq!(names(&spans), [(10, handle), (20, ask_kind), (30, handle)]);
        assert!(spans.between(Date(15), Date(16)).all(|it| it.by == one));
        // The same at the next look, with the same number; the other has answered.
        let number = spans
            .going_on()
            .find(|it| it.kind == ask_kind)
            .map(Span::id);
        spans.asks(process, std::slice::from_ref(&ask));
        spans.handles(&view(other, None), shift);
        assert_eq!(names(&spans), [(10, handle), (20, ask_kind)]);
        assert!(spans.get(number.unwrap()).is_some());
        spans.cut(process, Whose::Job, Date(50));
        assert_eq!(spans.going_on().count(), 0);
        assert!(spans.ended().all(|it| !it.ok && it.end == Some(Date(50))));
        assert_eq!(spans.ended().count(), 2);
    }
}
