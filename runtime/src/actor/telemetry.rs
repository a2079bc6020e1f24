//! Telemetry of programs about their own work: numbers over time, and spans of their own.
//!
//! ```
//! # fn step() -> f64 { 0.5 }
//! use odeon::telemetry;
//!
//! let span = telemetry::span("train step").with("version", 7);
//! telemetry::gauge("rl.reward", step()).with("step", 7).record();
//! span.end();
//! ```
//!
//! Inside an actor they belong to it. Outside of a system nothing is kept. Names are lower case with
//! dots, units are part of the documentation of a name. Both are bounded: what nobody has read in
//! time is overwritten and counted.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::actor::task_context::{self, Entered};
use crate::base::clock::{Clock, Timestamp};
use crate::base::id::ActorId;
use crate::base::recent::Recent;
use crate::base::trace::{Outcome, Span, SpanContext, SpanKind};

pub use crate::base::trace::{Label, Labels};

/// A number at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// When, by the clock of the process.
    pub at: Timestamp,
    /// The actor that says so; the root of the process outside of actors.
    pub actor: ActorId,
    /// The name of the metric.
    pub name: Cow<'static, str>,
    /// Its value.
    pub value: f64,
    /// Of what.
    pub labels: Labels,
}

/// The numbers of a process that nobody has read yet.
pub(crate) struct Points(Recent<Point>);

impl Points {
    /// None yet, and at most so many at any time.
    pub(crate) fn new(most: usize) -> Self {
        Self(Recent::new(most))
    }
}

impl Component for Points {}

impl Engine {
    /// The numbers that programs say about their work.
    pub(crate) fn points(&self) -> &Recent<Point> {
        &self.component::<Points>().0
    }
}

/// A number to be [recorded](Gauge::record).
#[derive(Debug)]
#[must_use = "it is kept when it is recorded"]
pub struct Gauge {
    name: &'static str,
    value: f64,
    labels: Labels,
}

/// A number as it is now.
pub const fn gauge(name: &'static str, value: f64) -> Gauge {
    Gauge {
        name,
        value,
        labels: vec![],
    }
}

impl Gauge {
    /// Says what it is of.
    pub fn with(mut self, name: &'static str, label: impl Into<Label>) -> Self {
        self.labels.push((name.into(), label.into()));
        self
    }

    /// Keeps it, with the time.
    pub fn record(self) {
        let Some((engine, actor)) = task_context::speaker() else {
            return;
        };
        engine.points().add(Point {
            at: Clock::now(),
            actor,
            name: self.name.into(),
            value: self.value,
            labels: self.labels,
        });
    }
}

/// A piece of a program's work that goes on; over when it is ended or dropped.
#[derive(Debug)]
#[must_use = "a span that is dropped at once covers nothing"]
pub struct OpenSpan {
    /// Where it is kept until then, if anywhere.
    kept: Option<(Arc<Engine>, Span)>,
    failed: bool,
    shortest: Duration,
}

/// Runs a future below a span of somebody else, such as the one that a request has brought: what it
/// begins belongs to that trace, and is kept when that is sampled, within the budget of this process.
pub async fn below<F: Future>(span: SpanContext, future: F) -> F::Output {
    within(span.foreign(), future).await
}

/// Runs a future with this span in the place of the present one.
async fn within<F: Future>(span: SpanContext, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let mut home = Some(task_context::below(span));
        let _entered = Entered::new(&mut home);
        future.as_mut().poll(cx)
    })
    .await
}

/// Begins a span of the program, below the one of the handler that runs.
pub fn span(name: &'static str) -> OpenSpan {
    covering(SpanKind::User, name, vec![], SpanContext::current())
}

/// A span of the program that began before, when its begin is known only now: of work that is measured first.
pub fn span_from(name: &'static str, began: Timestamp) -> OpenSpan {
    let parent = SpanContext::current();
    covering_from(SpanKind::User, name, vec![], parent, began)
}

/// Begins a span of the program where no handler runs: below the span that the program was started
/// for, if it was for one.
pub fn first_span(name: &'static str) -> OpenSpan {
    let current = SpanContext::current();
    let given = || SpanContext::given().map_or(current, SpanContext::foreign);
    let parent = if current.is_empty() { given() } else { current };
    covering(SpanKind::User, name, vec![], parent)
}

/// Begins a span of this kind.
pub(crate) fn covering(
    kind: SpanKind,
    name: &'static str,
    labels: Labels,
    parent: SpanContext,
) -> OpenSpan {
    covering_from(kind, name, labels, parent, Clock::now())
}

/// The same of one that began then.
fn covering_from(
    kind: SpanKind,
    name: &'static str,
    labels: Labels,
    parent: SpanContext,
    began: Timestamp,
) -> OpenSpan {
    let speaker = task_context::speaker().filter(|(engine, _)| engine.tracer.is_on());
    let kept = speaker.map(|(engine, actor)| {
        let span = Span {
            context: engine.tracer.begin(parent, began),
            parent: parent.span_id,
            kind,
            by: actor,
            actor,
            message: name.into(),
            queued: began,
            started: began,
            ended: began,
            outcome: Outcome::Ok,
            labels,
        };
        engine.tracer.open(span.clone());
        (engine, span)
    });
    OpenSpan {
        kept,
        failed: false,
        shortest: Duration::ZERO,
    }
}

impl OpenSpan {
    /// Says what it is about.
    pub fn with(mut self, name: &'static str, label: impl Into<Label>) -> Self {
        self.set(name, label);
        self
    }

    /// Says what it is about, also while it goes on.
    pub fn set(&mut self, name: &'static str, label: impl Into<Label>) {
        if let Some((engine, span)) = &mut self.kept {
            span.labels.push((name.into(), label.into()));
            engine.tracer.open(span.clone());
        }
    }

    /// Runs a future as part of it: what that begins is below it, in the same trace. Where nothing is traced the
    /// future runs alone.
    pub async fn around<F: Future>(&self, future: F) -> F::Output {
        match &self.kept {
            Some((_, span)) => within(span.context, future).await,
            None => future.await,
        }
    }

    /// Forgets it at its end if it was shorter than this and has not failed. While it is open it is shown.
    pub fn kept_from(mut self, shortest: Duration) -> Self {
        self.shortest = shortest;
        self
    }

    /// The context that others need to have their spans below it; empty when nothing is traced.
    #[must_use]
    pub fn context(&self) -> SpanContext {
        let kept = self.kept.as_ref();
        kept.map_or_else(SpanContext::default, |(_, span)| span.context)
    }

    /// Ends it without success.
    pub fn fail(mut self) {
        self.failed = true;
    }

    /// Ends it.
    pub fn end(self) {
        drop(self);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let Some((engine, mut span)) = self.kept.take() else {
            return;
        };
        engine.tracer.close(span.context.span_id);
        span.ended = Clock::now();
        if self.failed {
            span.outcome = Outcome::Failed;
        }
        let lasted = span.ended.since(span.started);
        if lasted < self.shortest && !self.failed {
            return;
        }
        if engine.tracer.keeps(span.context, span.outcome, lasted) {
            engine.tracer.record(span);
        }
    }
}
