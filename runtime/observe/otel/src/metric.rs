//! Every number that is exported: what it is called, what it counts, what tells its series apart.

use opentelemetry_semantic_conventions::metric as names;

/// A number that is exported.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name; that of the semantic conventions where they have one.
    pub name: &'static str,
    /// Its kind: the way in which it behaves.
    pub kind: MetricKind,
    /// Its unit, as UCUM writes it.
    pub unit: &'static str,
    /// Whose it is.
    pub of: Of,
    /// The labels that tell its series apart, beside whose they are.
    pub labels: &'static [&'static str],
    /// Its meaning, in words.
    pub about: &'static str,
}

/// The way in which a number behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It goes up.
    Counter,
    /// It goes up and down, and those of several series can be added.
    UpDownCounter,
    /// It is as it is; adding says nothing.
    Gauge,
    /// Counts of values up to each of some sizes, and their sum.
    Histogram,
}

impl MetricKind {
    /// The word of the conventions.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::UpDownCounter => "updowncounter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Whose a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All actors of a type in a process. In Prometheus, of a type, node and job.
    Actors,
    /// A process.
    Process,
    /// A node; told with its first process.
    Node,
    /// The export itself.
    Export,
}

impl Of {
    /// Whose, in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Actors => "actors of a type",
            Self::Process => "process",
            Self::Node => "node",
            Self::Export => "the export",
        }
    }
}

const fn of(
    of: Of,
    kind: MetricKind,
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    about: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        unit,
        of,
        labels,
        about,
    }
}

use self::MetricKind::{Counter, Gauge, Histogram, UpDownCounter};
use self::Of::{Actors, Export, Node, Process};

/// The label with the type of an actor.
pub(crate) const TYPE: &str = "odeon.actor.type";
const STATE: &str = "odeon.actor.state";
const HW: &[&str] = &["hw.id", "hw.name"];
const HW_STATUS: &[&str] = &["hw.id", "hw.name", "hw.type", "hw.state"];
const PEER: &[&str] = &["odeon.peer.name"];
const SENT: &[&str] = &["otel.component.type", "error.type"];
const WAITS: &[&str] = &["otel.component.type"];

pub(crate) const HANDLED: Metric = of(
    Actors,
    Counter,
    "odeon.actor.messages.handled",
    "{message}",
    &[TYPE],
    "Messages that handlers have taken",
);
pub(crate) const FAILED: Metric = of(
    Actors,
    Counter,
    "odeon.actor.messages.failed",
    "{message}",
    &[TYPE],
    "Handlers that ended with a failure",
);
pub(crate) const RESTARTS: Metric = of(
    Actors,
    Counter,
    "odeon.actor.restarts",
    "{restart}",
    &[TYPE],
    "Lives that actors have begun after their first",
);
pub(crate) const BUSY: Metric = of(
    Actors,
    Counter,
    "odeon.actor.busy_time",
    "s",
    &[TYPE],
    "Time in handlers that have ended",
);
pub(crate) const WAITED: Metric = of(
    Actors,
    Counter,
    "odeon.actor.mailbox.wait_time",
    "s",
    &[TYPE],
    "Time that handled messages lay in mailboxes",
);
pub(crate) const COUNT: Metric = of(
    Actors,
    UpDownCounter,
    "odeon.actor.instances",
    "{actor}",
    &[TYPE, STATE],
    "Actors by what they are at",
);
pub(crate) const QUEUED: Metric = of(
    Actors,
    UpDownCounter,
    "odeon.actor.mailbox.messages",
    "{message}",
    &[TYPE],
    "Messages in mailboxes",
);
pub(crate) const DEEPEST: Metric = of(
    Actors,
    Gauge,
    "odeon.actor.mailbox.deepest",
    "{message}",
    &[TYPE],
    "Messages in the fullest mailbox",
);
pub(crate) const CPU: Metric = of(
    Process,
    Gauge,
    names::PROCESS_CPU_UTILIZATION,
    "1",
    &[],
    "Part of the node's processors in use",
);
pub(crate) const MEMORY: Metric = of(
    Process,
    UpDownCounter,
    names::PROCESS_MEMORY_USAGE,
    "By",
    &[],
    "Memory that is present",
);
pub(crate) const ASK: Metric = of(
    Process,
    Histogram,
    "odeon.ask.duration",
    "s",
    &[],
    "How long asks took, from the message to its answer",
);
pub(crate) const DEAD: Metric = of(
    Process,
    Counter,
    "odeon.dead_letters",
    "{message}",
    &[],
    "Messages without an answer that nobody handled",
);
pub(crate) const BLOBS: Metric = of(
    Process,
    UpDownCounter,
    "odeon.blob.memory.usage",
    "By",
    &[],
    "Bytes in blobs that it owns",
);
pub(crate) const TRACES: Metric = of(
    Process,
    Counter,
    "odeon.trace.started",
    "{trace}",
    &[],
    "Traces that began in it",
);
pub(crate) const KEPT: Metric = of(
    Process,
    Counter,
    "odeon.trace.kept",
    "{trace}",
    &[],
    "Those of them that are sampled",
);
pub(crate) const SPANS: Metric = of(
    Process,
    Counter,
    "odeon.span.recorded",
    "{span}",
    &[],
    "Spans that it has recorded",
);
pub(crate) const LOST: Metric = of(
    Process,
    Counter,
    "odeon.span.lost",
    "{span}",
    &[],
    "Spans that were overwritten before anybody saw them",
);
pub(crate) const UP: Metric = of(
    Node,
    Gauge,
    "odeon.node.up",
    "{node}",
    &[],
    "1 while the node shows itself, 0 when it is silent or gone",
);
pub(crate) const NODE_CPU: Metric = of(
    Node,
    Gauge,
    names::SYSTEM_CPU_UTILIZATION,
    "1",
    &[],
    "Part of the processors in use",
);
pub(crate) const CORES: Metric = of(
    Node,
    UpDownCounter,
    names::SYSTEM_CPU_LOGICAL_COUNT,
    "{cpu}",
    &[],
    "Processors",
);
pub(crate) const NODE_MEMORY: Metric = of(
    Node,
    UpDownCounter,
    names::SYSTEM_MEMORY_USAGE,
    "By",
    &["system.memory.state"],
    "Memory in use",
);
pub(crate) const NODE_LIMIT: Metric = of(
    Node,
    UpDownCounter,
    names::SYSTEM_MEMORY_LIMIT,
    "By",
    &[],
    "Memory there is",
);
pub(crate) const PENDING: Metric = of(
    Node,
    UpDownCounter,
    "odeon.placement.pending",
    "{demand}",
    &[],
    "Demands that wait for room",
);
pub(crate) const CLOCK: Metric = of(
    Node,
    Gauge,
    "odeon.clock.error",
    "s",
    &[],
    "How far its clock may be from what is assumed",
);
pub(crate) const TRIP: Metric = of(
    Node,
    Gauge,
    "odeon.link.round_trip",
    "s",
    PEER,
    "Time of a message to another node and back, at best",
);
pub(crate) const RESUMED: Metric = of(
    Node,
    Counter,
    "odeon.link.resumed",
    "{connection}",
    PEER,
    "How often the link went on over another connection",
);
pub(crate) const LINK_SENT: Metric = of(
    Node,
    Counter,
    "odeon.link.sent",
    "By",
    PEER,
    "Bytes that were sent over the link, with what was sent again",
);
pub(crate) const UNSENT: Metric = of(
    Node,
    UpDownCounter,
    "odeon.link.queued",
    "By",
    PEER,
    "Bytes that wait to be sent, apart from bulk",
);
pub(crate) const GPU_LIMIT: Metric = of(
    Node,
    UpDownCounter,
    names::HW_GPU_MEMORY_LIMIT,
    "By",
    HW,
    "Memory of a device, where it is known",
);
pub(crate) const GPU_GRANTED: Metric = of(
    Node,
    UpDownCounter,
    "odeon.device.memory.granted",
    "By",
    HW,
    "Memory of a device that actors were granted, where it is known",
);
pub(crate) const GPU_LEASES: Metric = of(
    Node,
    UpDownCounter,
    "odeon.device.leases",
    "{lease}",
    HW,
    "Leases on a device",
);
pub(crate) const GPU_USED: Metric = of(
    Node,
    UpDownCounter,
    names::HW_GPU_MEMORY_USAGE,
    "By",
    HW,
    "Memory of a device that is allocated, where its driver tells",
);
pub(crate) const GPU_BUSY: Metric = of(
    Node,
    Gauge,
    names::HW_GPU_UTILIZATION,
    "1",
    HW,
    "Part of the time that a device computed, where its driver tells",
);
pub(crate) const GPU_HEAT: Metric = of(
    Node,
    Gauge,
    names::HW_TEMPERATURE,
    "Cel",
    HW,
    "Temperature of a device, where its driver tells",
);
pub(crate) const GPU_POWER: Metric = of(
    Node,
    Gauge,
    names::HW_POWER,
    "W",
    HW,
    "What the board of a device draws, where its driver tells",
);
pub(crate) const GPU_STATUS: Metric = of(
    Node,
    UpDownCounter,
    names::HW_STATUS,
    "1",
    HW_STATUS,
    "1 for the state that a device is in: ok, or failed when it is out of service",
);
pub(crate) const NEWS_LOST: Metric = of(
    Export,
    Counter,
    "odeon.event.lost",
    "{event}",
    &[],
    "Events that were overwritten before they were seen",
);
pub(crate) const POINTS_LOST: Metric = of(
    Export,
    Counter,
    "odeon.recorded.lost",
    "{number}",
    &[],
    "Recorded numbers that were overwritten, or for which there are too many series",
);
pub(crate) const SENT_SPANS: Metric = of(
    Export,
    Counter,
    names::OTEL_SDK_EXPORTER_SPAN_EXPORTED,
    "{span}",
    SENT,
    "Spans whose export is over; with `error.type` those that did not arrive",
);
pub(crate) const SENT_LOGS: Metric = of(
    Export,
    Counter,
    names::OTEL_SDK_EXPORTER_LOG_EXPORTED,
    "{log_record}",
    SENT,
    "Log records whose export is over",
);
pub(crate) const SENT_POINTS: Metric = of(
    Export,
    Counter,
    names::OTEL_SDK_EXPORTER_METRIC_DATA_POINT_EXPORTED,
    "{data_point}",
    SENT,
    "Data points whose export is over",
);
pub(crate) const WAITING: Metric = of(
    Export,
    UpDownCounter,
    "odeon.export.queued",
    "By",
    WAITS,
    "Bytes that wait to be sent",
);

/// All of them.
pub const METRICS: &[&Metric] = &[
    &HANDLED,
    &FAILED,
    &RESTARTS,
    &BUSY,
    &WAITED,
    &COUNT,
    &QUEUED,
    &DEEPEST,
    &CPU,
    &MEMORY,
    &ASK,
    &DEAD,
    &BLOBS,
    &TRACES,
    &KEPT,
    &SPANS,
    &LOST,
    &UP,
    &NODE_CPU,
    &CORES,
    &NODE_MEMORY,
    &NODE_LIMIT,
    &PENDING,
    &CLOCK,
    &TRIP,
    &RESUMED,
    &LINK_SENT,
    &UNSENT,
    &GPU_LIMIT,
    &GPU_GRANTED,
    &GPU_LEASES,
    &GPU_USED,
    &GPU_BUSY,
    &GPU_HEAT,
    &GPU_POWER,
    &GPU_STATUS,
    &NEWS_LOST,
    &POINTS_LOST,
    &SENT_SPANS,
    &SENT_LOGS,
    &SENT_POINTS,
    &WAITING,
];

/// The table of [`METRICS`] as documentation shows it.
#[must_use]
pub fn table() -> String {
    use std::fmt::Write as _;
    let mut text = "| name | in Prometheus | type | unit | of | labels | says |\n\
                    | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for metric in METRICS {
        let labels: Vec<_> = metric.labels.iter().map(|it| format!("`{it}`")).collect();
        // Writing into a String does not fail.
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} | `{}` | {} | {} | {} |",
            metric.name,
            crate::prometheus::family_of(metric.name, metric.unit, metric.kind),
            metric.kind.word(),
            metric.unit,
            metric.of.word(),
            labels.join(", "),
            metric.about
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ODEON_WRITE_GOLDEN=1` writes it anew.
    #[test]
    fn the_documented_table_is_that_of_the_code() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/exported-metrics.md"
        );
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("| name |").unwrap();
        let after = rest.split_once("\n\n").map_or("", |(_, after)| after);
        let now = format!("{before}{}\n{after}", table());
        if std::env::var_os("ODEON_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        assert_eq!(
            text, now,
            "run it with ODEON_WRITE_GOLDEN=1 and look at what changed"
        );
    }

    #[test]
    fn names_are_told_apart_in_both_worlds() {
        let mut names: Vec<_> = METRICS.iter().map(|it| it.name.to_owned()).collect();
        let family = |it: &&Metric| crate::prometheus::family_of(it.name, it.unit, it.kind);
        names.extend(METRICS.iter().map(family));
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
