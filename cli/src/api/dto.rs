//! Rows of the catalog as people see them.

use std::collections::HashMap;

use odeon_client::{inspect as seen, types};
use odeon_cluster::Daemon;
use odeon_cluster::controller::Offer;
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

/// The jobs of a cluster as its inspection shows them, the newest first.
pub(crate) fn jobs_seen(daemon: &Daemon) -> Vec<seen::Job> {
    let jobs = daemon.catalog().read(|tables| {
        let rows = tables.jobs.values().rev();
        rows.cloned().collect::<Vec<_>>()
    });
    let jobs = jobs.unwrap_or_default().into_iter();
    jobs.map(|row| {
        let mut seen = job_seen(job(&row, None));
        if let Some(refusal) = &mut seen.refusal {
            refusal.rows = daemon.offers(&row).into_iter().map(refused_by).collect();
        }
        seen
    })
    .collect()
}

/// A node in the table of why a job has no driver yet.
fn refused_by(offer: Offer) -> seen::NodeRefusal {
    seen::NodeRefusal {
        node: offer.node,
        asked: "1 driver".to_owned(),
        free: format!("{} of {} drivers", offer.free, offer.most),
        fits: offer.why.is_none(),
        why: offer
            .why
            .unwrap_or_else(|| "nothing on this node is in the way".to_owned()),
    }
}

fn job_seen(job: types::Job) -> seen::Job {
    let state = match job.state.as_str() {
        "waiting" => "queued",
        "staging" => "starting",
        "cancelled" => "stopped",
        "refused" | "lost" => "failed",
        other => other,
    };
    let mut phases = vec![("queued", Some(job.submitted_ms))];
    // When a try that is over began to run is not kept; that it ran is seen by its exit code.
    let began = match job.over && job.exit_code.is_some() {
        true => "running",
        false => "starting",
    };
    phases.push((began, job.begun_ms));
    let ran = (job.state == "running" || job.over).then_some(job.since_ms);
    phases.push((
        state,
        ran.filter(|_| state != "queued" && state != "starting"),
    ));
    let begun: Vec<_> = phases
        .into_iter()
        .filter_map(|(name, at)| Some((name, at?)))
        .collect();
    // Its end is none that lasts.
    let last = job.over.then_some(job.since_ms);
    let ends = begun.iter().skip(1).map(|(_, at)| Some(*at)).chain([last]);
    let phases = begun
        .iter()
        .zip(ends)
        .map(|((name, at), end)| seen::JobPhase {
            name: (*name).to_owned(),
            at: *at as f64,
            ms: end.map(|end| end.saturating_sub(*at) as f64),
        });
    let why = job.why.clone().unwrap_or_default();
    let waits = state == "queued" && !why.is_empty();
    seen::Job {
        phases: phases.collect(),
        refusal: waits.then(|| seen::Refusal {
            sentence: why.clone(),
            rows: vec![],
        }),
        exit: job.over.then(|| seen::Exit {
            sentence: why,
            code: job.exit_code,
            chain: job
                .earlier
                .iter()
                .map(|it| format!("try {}: {}", it.attempt, it.outcome))
                .collect(),
        }),
        state: state.to_owned(),
        id: job.id,
        name: job.name,
        namespace: job.namespace,
        since: job.since_ms as f64,
        submitted: job.submitted_ms as f64,
        by: job.by,
        priority: job.priority.into(),
        program: job
            .hosts
            .unwrap_or_else(|| format!("bundle {}", &job.bundle[..12.min(job.bundle.len())])),
        arguments: job.args,
        attempt: job.tries,
        attempts: job.retries + 1,
        node: job.node,
        actors: 0,
        needs: String::new(),
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
