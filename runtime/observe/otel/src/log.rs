//! An event as a record of OTLP.

use odeon::trace::SpanContext;
use odeon_observe::event::{Event, Severity, Subject};
use odeon_observe::{ClusterView, Date};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use opentelemetry_semantic_conventions::attribute as names;

use crate::attributes::{said, text, texts};
use crate::span::{self, span_id, trace_id};

/// The record of an event; `span` is the one in which it happened, where that is known.
pub(crate) fn record(
    seen: &ClusterView,
    event: &Event,
    span: Option<SpanContext>,
    now: Date,
) -> LogRecord {
    let (number, word) = match event.severity {
        Severity::Info => (SeverityNumber::Info, "INFO"),
        Severity::Warning => (SeverityNumber::Warn, "WARN"),
        Severity::Error => (SeverityNumber::Error, "ERROR"),
    };
    let mut attributes = vec![];
    match &event.subject {
        Some(Subject::Actor(id)) => {
            span::actor(seen, *id, "odeon.actor", event.at, &mut attributes);
        }
        Some(Subject::Node(node)) => attributes.push(text("odeon.node.name", node.as_str())),
        Some(Subject::Device(node, index)) => {
            attributes.push(text("odeon.node.name", node.as_str()));
            attributes.push(text(names::HW_ID, index.to_string()));
            attributes.push(text(names::HW_TYPE, "gpu"));
        }
        Some(Subject::Job(job)) => attributes.push(text("odeon.job.id", job.as_str())),
        Some(Subject::Process(process)) => {
            let process = crate::resource::instance(*process);
            attributes.push(text("odeon.process.id", process));
        }
        _ => {}
    }
    if let Some((first, causes)) = event.chain.split_first() {
        attributes.push(text(names::EXCEPTION_MESSAGE, first.as_str()));
        attributes.push(text(names::EXCEPTION_TYPE, "odeon.Failure"));
        if !causes.is_empty() {
            attributes.push(texts("odeon.failure.causes", causes.iter().cloned()));
        }
    }
    LogRecord {
        time_unix_nano: event.at.0,
        observed_time_unix_nano: now.0,
        severity_number: number.into(),
        severity_text: word.to_owned(),
        body: Some(said(event.sentence.as_str())),
        attributes,
        flags: span.map_or(0, |span| u32::from(span.flags & 0b11)),
        trace_id: span.map_or_else(Vec::new, trace_id),
        span_id: span.map_or_else(Vec::new, |span| span_id(span.span_id)),
        event_name: format!("odeon.{}", event.kind.word()),
        ..LogRecord::default()
    }
}
