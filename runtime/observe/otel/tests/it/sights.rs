//! Looks at processes and nodes that nobody runs.

use std::time::Duration;

use odeon::inspect::{MachineView, NodeSight, ProcessKind, ProcessSight, Sight, Times};
use odeon::trace::SpanCounts;
use odeon::{ProcessId, Timestamp};

/// A process that shows nothing.
pub(crate) fn sight(process: ProcessId, job: &str) -> Sight {
    Sight {
        process,
        job: job.to_owned(),
        at: Timestamp(1),
        anew: false,
        actors: vec![],
        gone: vec![],
        hosted: 0,
        waits: vec![],
        waits_left_out: 0,
        spans: vec![],
        spans_lost: 0,
        going_on: vec![],
        span_counts: SpanCounts::default(),
        ask_times: Times::default(),
        news: vec![],
        news_from: 0,
        news_lost: 0,
        points: vec![],
        points_from: 0,
        points_lost: 0,
        dead_letters: 0,
        blob_bytes: 0,
        flow_log: None,
        more: false,
        more_spans: false,
    }
}

pub(crate) fn process(sight: Sight, kind: ProcessKind) -> ProcessSight {
    ProcessSight {
        sight,
        pid: Some(7),
        usage: None,
        kind,
        ahead: 0,
        ahead_error: Duration::ZERO,
    }
}

/// A node, whose first process it is itself.
pub(crate) fn node(name: &str, processes: Vec<ProcessSight>) -> NodeSight {
    NodeSight {
        node: name.to_owned(),
        process: processes[0].sight.process,
        at: Timestamp(1),
        unix_nanos: 1_000_000_000_000,
        processes,
        silent: vec![],
        blocked: vec![],
        links: vec![],
        hardware: None,
        machine: MachineView::default(),
        flows: vec![],
        names: None,
    }
}
