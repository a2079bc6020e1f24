//! A span as OTLP has it, with the attributes of the conventions for calls and for messages.

use odeon::telemetry::Label;
use odeon::trace::{FOLLOWS, SpanContext, SpanKind};
use odeon::{ActorId, ProcessId};
use odeon_observe::spans::Span;
use odeon_observe::{ClusterView, Date};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind as Told};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span as Sent, SpanFlags, Status};
use opentelemetry_semantic_conventions::attribute as names;

use crate::attributes::{count, label, number, text, texts};

/// The way in which a message came to its handler, and for a told one the sender's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// It was told, in this process, and waits for nothing.
    Told(ProcessId),
    /// It was asked, as far as is known.
    Asked,
}

/// A span with a kind, a parent and attributes. `why` is what is known of its failure.
pub(crate) fn sent(
    seen: &ClusterView,
    span: &Span,
    sender: Sender,
    why: Option<&str>,
    one_in: f64,
) -> Sent {
    let start = span.start;
    let end = span.end_or(start);
    let (kind, name, mut attributes) = match span.kind {
        SpanKind::Ask => (Told::Client, method(seen, span), call(seen, span)),
        SpanKind::Tell => (
            Told::Producer,
            format!("tell {}", method(seen, span)),
            message(seen, span, "send", "tell"),
        ),
        SpanKind::Handle if sender != Sender::Asked => (
            Told::Consumer,
            format!("process {}", method(seen, span)),
            message(seen, span, "process", "handle"),
        ),
        SpanKind::Handle => (Told::Server, method(seen, span), call(seen, span)),
        SpanKind::Copy => (Told::Client, span.name.to_string(), vec![]),
        _ => (Told::Internal, span.name.to_string(), vec![]),
    };
    let waited = start.since(span.queued);
    if span.kind == SpanKind::Handle {
        attributes.push(number("odeon.mailbox.wait_time", waited.as_secs_f64()));
    }
    actor(seen, span.actor, "odeon.actor", start, &mut attributes);
    if span.by != span.actor {
        actor(seen, span.by, "odeon.caller", start, &mut attributes);
    }
    let prefix = if span.kind == SpanKind::Copy {
        "odeon.copy."
    } else {
        ""
    };
    let before = span.labels.iter().find_map(|(name, value)| match value {
        Label::Text(text) if name == FOLLOWS => SpanContext::from_traceparent(text),
        _ => None,
    });
    let labels = span.labels.iter().filter(|(name, _)| name != FOLLOWS);
    attributes.extend(labels.map(|(name, value)| labelled(prefix, name, value)));
    if span.parent == 0 && one_in > 1.0 {
        attributes.push(number("odeon.sampled_one_in", one_in));
    }
    if !span.ok {
        // What failed is told in words; of kinds there is none that is known to be few.
        attributes.push(text(names::ERROR_TYPE, "_OTHER"));
    }
    let status = Status {
        code: match span.ok {
            true => StatusCode::Unset,
            false => StatusCode::Error,
        }
        .into(),
        message: why.filter(|_| !span.ok).unwrap_or_default().to_owned(),
    };
    Sent {
        trace_id: trace_id(span.context),
        span_id: span_id(span.id()),
        parent_span_id: match span.parent {
            0 => vec![],
            parent => span_id(parent),
        },
        flags: flags(span, sender),
        name,
        kind: kind.into(),
        start_time_unix_nano: start.0,
        end_time_unix_nano: end.0,
        attributes,
        links: before.into_iter().map(linked).collect(),
        status: Some(status),
        ..Sent::default()
    }
}

/// A span that has caused the first one of another trace.
fn linked(span: SpanContext) -> Link {
    Link {
        trace_id: trace_id(span),
        span_id: span_id(span.span_id),
        flags: u32::from(span.flags),
        ..Link::default()
    }
}

pub(crate) fn trace_id(context: SpanContext) -> Vec<u8> {
    context.trace_id.to_be_bytes().to_vec()
}

pub(crate) fn span_id(id: u64) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

/// Those of W3C, and whether the parent is of another process, where that is known.
fn flags(span: &Span, sender: Sender) -> u32 {
    let own = u32::from(span.context.flags & 0b11);
    match sender {
        Sender::Told(process) => {
            let remote = match process == span.process {
                true => 0,
                false => SpanFlags::ContextIsRemoteMask as u32,
            };
            own | SpanFlags::ContextHasIsRemoteMask as u32 | remote
        }
        Sender::Asked => own,
    }
}

fn type_of(seen: &ClusterView, id: ActorId) -> Option<&str> {
    seen.actors().get(id).map(|row| row.view.actor.as_str())
}

/// The type of whom a message is for, and the message.
fn method(seen: &ClusterView, span: &Span) -> String {
    match type_of(seen, span.actor) {
        Some(actor) => format!("{actor}/{}", span.name),
        None => span.name.to_string(),
    }
}

fn call(seen: &ClusterView, span: &Span) -> Vec<KeyValue> {
    vec![
        text(names::RPC_SYSTEM_NAME, "odeon"),
        text(names::RPC_METHOD, method(seen, span)),
    ]
}

fn message(seen: &ClusterView, span: &Span, kind: &str, name: &str) -> Vec<KeyValue> {
    let mut attributes = vec![
        text(names::MESSAGING_SYSTEM, "odeon"),
        text(names::MESSAGING_OPERATION_TYPE, kind),
        text(names::MESSAGING_OPERATION_NAME, name),
        text("odeon.message.name", &*span.name),
    ];
    if let Some(actor) = type_of(seen, span.actor) {
        attributes.push(text(names::MESSAGING_DESTINATION_NAME, actor));
    }
    attributes
}

/// Adds attributes that name an actor, as it was at a moment.
pub(crate) fn actor(
    seen: &ClusterView,
    id: ActorId,
    prefix: &str,
    at: Date,
    attributes: &mut Vec<KeyValue>,
) {
    if id.is_root() {
        return;
    }
    attributes.push(text(&format!("{prefix}.id"), id.to_string()));
    let Some(row) = seen.actors().get(id) else {
        return;
    };
    attributes.push(text(&format!("{prefix}.type"), row.view.actor.as_str()));
    if let Some(name) = &row.name {
        attributes.push(text(&format!("{prefix}.name"), name.as_str()));
    }
    if prefix != "odeon.actor" {
        return;
    }
    let lives = row.lives.iter().rev();
    let life = lives
        .clone()
        .find(|life| life.from <= at)
        .or_else(|| row.lives.front());
    if let Some(life) = life {
        attributes.push(count("odeon.actor.incarnation", life.number.into()));
    }
    let devices = &row.view.devices;
    if let [one] = devices.as_slice() {
        attributes.push(text(names::HW_ID, one.to_string()));
        attributes.push(text(names::HW_TYPE, "gpu"));
    } else if !devices.is_empty() {
        let all = devices.iter().map(u32::to_string);
        attributes.push(texts("odeon.device.ids", all));
    }
}

fn labelled(prefix: &str, name: &str, value: &Label) -> KeyValue {
    match prefix {
        "" => label(name, value),
        prefix => label(&format!("{prefix}{name}"), value),
    }
}
