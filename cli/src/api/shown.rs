//! Rows of the catalog as people see them.

use std::collections::HashMap;

use odeon_client::types;
use odeon_cluster::job::{Job, State};
use odeon_cluster::logs::{Read, Stream};
use odeon_cluster::tables::{NodeRow, NodeState, Tables};

/// Nodes, with how many drivers run on each.
pub(super) fn nodes(tables: &Tables) -> Vec<types::Node> {
    let mut drivers: HashMap<&str, u64> = HashMap::new();
    for attempt in tables.living_jobs().filter_map(Job::attempt) {
        *drivers.entry(&attempt.node).or_default() += 1;
    }
    let count = |row: &NodeRow| drivers.get(row.spec.name.as_str()).copied();
    let nodes = tables.nodes.values();
    nodes
        .map(|row| node(row, count(row).unwrap_or(0)))
        .collect()
}

fn node(row: &NodeRow, drivers: u64) -> types::Node {
    let (state, why) = match &row.state {
        NodeState::Up if row.drained => ("drained", None),
        NodeState::Up => ("up", None),
        NodeState::Left => ("left", None),
        NodeState::Lost { why } => ("lost", Some(why.clone())),
    };
    types::Node {
        name: row.spec.name.clone(),
        state: state.to_owned(),
        why,
        since_ms: row.since.0,
        address: row.spec.address.clone(),
        release: row.spec.release.clone(),
        cpus: row.spec.cpus,
        memory_bytes: row.spec.memory,
        devices: row.spec.devices.clone(),
        drivers,
        upgrades: row.spec.upgrades,
    }
}

/// A job, and what is in the way of its node, if anything.
pub(super) fn job(job: &Job, hindered: Option<&String>) -> types::Job {
    let attempt = match &job.state {
        State::Ended { attempt, .. } => attempt.as_ref(),
        _ => job.attempt(),
    };
    let (why, since, exit_code) = match &job.state {
        State::Waiting { why, .. } => (Some(why.clone()), job.submitted, None),
        State::Staging { attempt } => (hindered.cloned(), attempt.since, None),
        State::Running { since, .. } => (None, *since, None),
        State::Stopping { by, since, .. } => (Some(stopped_by(by, hindered)), *since, None),
        State::Ended { outcome, at, .. } => {
            (Some(outcome.to_string()), *at, Some(outcome.exit_code()))
        }
    };
    types::Job {
        id: job.id.to_string(),
        name: job.spec.name.clone(),
        namespace: job.spec.namespace.clone(),
        by: job.by.clone(),
        state: job.word().to_owned(),
        why,
        over: job.is_over(),
        exit_code,
        node: attempt.map(|attempt| attempt.node.clone()),
        pid: match job.state {
            State::Running { pid, .. } => Some(pid),
            _ => None,
        },
        submitted_ms: job.submitted.0,
        since_ms: since.0,
        begun_ms: attempt.map(|attempt| attempt.since.0),
        tries: job.tries,
        retries: job.spec.retries,
        priority: job.spec.priority,
        bundle: job.spec.bundle.to_string(),
        args: job.spec.args.clone(),
        env: job.spec.env.keys().cloned().collect(),
        hosts: job.spec.hosts.as_ref().map(|hosted| hosted.actor.clone()),
        earlier: job
            .earlier
            .iter()
            .map(|(attempt, outcome)| types::Earlier {
                attempt: attempt.number,
                node: attempt.node.clone(),
                outcome: outcome.to_string(),
            })
            .collect(),
    }
}

fn stopped_by(by: &str, hindered: Option<&String>) -> String {
    match hindered {
        Some(why) => format!("by {by}; {why}"),
        None => format!("by {by}"),
    }
}

pub(super) fn line(read: Read) -> types::Line {
    let Read { line, gone, lost } = read;
    let stream = match line.stream {
        Stream::Out => "out",
        Stream::Err => "err",
    };
    types::Line {
        at_ms: line.at.0,
        attempt: line.attempt,
        node: line.node,
        number: line.number,
        process: line.process,
        stream: stream.to_owned(),
        text: line.text,
        gone,
        lost,
    }
}
