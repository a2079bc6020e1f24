//! Rows of the catalog as people see them.

use std::collections::HashMap;

use odeon_client::{inspect as seen, types};
use odeon_cluster::Daemon;
use odeon_cluster::controller::Offer;
use odeon_cluster::daemon::{JobStacks, ProgramStack};
use odeon_cluster::doctor::Check;
use odeon_cluster::fact::ArrayAct;
use odeon_cluster::job::array::ArrayTask;
use odeon_cluster::job::version::{Version, VersionState};
use odeon_cluster::job::{Attempt, Job, Outcome, State};
use odeon_cluster::logs::{Read, Stream};
use odeon_cluster::resources;
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
    let (state, why) = match (&row.state, &row.refused) {
        (NodeState::Up, Some(ban)) => {
            let why = format!("is refused by {}: {}", ban.by, ban.reason());
            ("refused", Some(why))
        }
        (NodeState::Up, None) if row.drained => ("drained", None),
        (NodeState::Up, None) => ("up", None),
        (NodeState::Left, _) => ("left", None),
        (NodeState::Lost { why }, _) => ("lost", Some(why.clone())),
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
        unlimited: row.spec.unlimited.clone(),
        low_disk: row.spec.low_disk.clone(),
        refusals: row.refusals,
        over_refusals: row.over_refusals,
    }
}

fn allotment(it: resources::Allotment) -> types::Allotment {
    types::Allotment {
        cpu_milli: it.cpu_milli,
        memory_bytes: it.memory_bytes,
        devices: it.devices,
        device_memory_bytes: it.device_memory_bytes,
    }
}

fn allotment_of(it: types::Allotment) -> resources::Allotment {
    resources::Allotment {
        cpu_milli: it.cpu_milli,
        memory_bytes: it.memory_bytes,
        devices: it.devices,
        device_memory_bytes: it.device_memory_bytes,
    }
}

/// The resources of a job as the catalog has them.
pub(super) fn resources_of(asked: types::JobResources) -> resources::JobResources {
    resources::JobResources {
        driver: allotment_of(asked.driver),
        ranks: asked.ranks,
        ranks_max: asked.ranks_max.unwrap_or(0),
        rank: allotment_of(asked.rank),
    }
}

fn reservation(it: &resources::Reservation) -> types::Reservation {
    types::Reservation {
        node: it.node.clone(),
        rank: it.rank,
        allotment: allotment(it.allotment),
        devices: it.devices.clone(),
        in_words: it.allotment.to_string(),
    }
}

/// A job, and what is in the way of its node or of its begin, if anything.
pub(super) fn job(job: &Job, hindered: Option<&String>) -> types::Job {
    let asked = job.spec.resources;
    let asks = (!asked.is_empty()).then_some(asked);
    // A driver that asks for nothing beside its ranks has nothing to itself.
    let reserved = job.attempt().into_iter().flat_map(|it| &it.reserved);
    let reserved = reserved.filter(|it| !it.allotment.is_empty());
    let attempt = match &job.state {
        State::Ended { attempt, .. } => attempt.as_ref(),
        _ => job.attempt(),
    };
    let (why, since, exit_code) = match &job.state {
        State::Waiting { why, since, .. } => {
            let why = hindered.unwrap_or(why).clone();
            (Some(why), since.unwrap_or(job.submitted), None)
        }
        State::Staging { attempt } => (hindered.cloned(), attempt.since, None),
        State::Running { since, .. } => (None, *since, None),
        State::Stopping {
            by, since, updates, ..
        } => {
            let why = match (updates, job.versions.next()) {
                (true, Some(turn)) => with(&format!("goes over to {turn}"), hindered),
                _ => with(&format!("by {by}"), hindered),
            };
            (Some(why), *since, None)
        }
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
        earlier: job.earlier.iter().map(earlier).collect(),
        resources: asks.map(|asked| types::JobResources {
            driver: allotment(asked.driver),
            ranks: asked.ranks,
            ranks_max: (asked.ranks_max > 0).then_some(asked.ranks_max),
            rank: allotment(asked.rank),
        }),
        asks: asks.map(|asked| asked.to_string()),
        reserved: reserved.map(reservation).collect(),
        time_limit_s: job.spec.time_limit_s,
        unkept_lines: job.unkept_lines,
        after: job.awaits.iter().map(ToString::to_string).collect(),
        array: job.array.as_ref().map(array_task),
        grace_s: job.spec.grace_s,
        idle_limit_s: job.spec.idle_limit_s,
        version: job.version(),
        versions: versions(job),
    }
}

fn earlier((attempt, outcome): &(Attempt, Outcome)) -> types::Earlier {
    types::Earlier {
        attempt: attempt.number,
        node: attempt.node.clone(),
        outcome: outcome.to_string(),
    }
}

/// The versions that are kept of a job.
fn versions(job: &Job) -> Vec<types::JobVersion> {
    let all = job.versions.all().iter();
    all.map(|it| version(job, it)).collect()
}

fn version(job: &Job, it: &Version) -> types::JobVersion {
    let next = job.versions.next().filter(|turn| turn.to == it.number);
    let (state, failed) = match &it.state {
        VersionState::Waiting => ("waiting", None),
        VersionState::Starting => ("starting", None),
        VersionState::AtWork => ("at work", None),
        VersionState::Failed { why } => ("failed", Some(why.clone())),
    };
    types::JobVersion {
        number: it.number,
        state: state.to_owned(),
        failed,
        before: it.before,
        next: next.is_some(),
        due_ms: next.and_then(|turn| turn.due).map(|due| due.0),
        by: it.by.clone(),
        why: it.why.clone(),
        at_ms: it.at.0,
        bundle: it.program.bundle.to_string(),
        args: it.program.args.clone(),
    }
}

fn array_task(task: &ArrayTask) -> types::ArrayTask {
    types::ArrayTask {
        name: task.name.clone(),
        first: task.jobs().start().to_string(),
        last: task.jobs().end().to_string(),
        count: task.count,
        index: task.index,
        at_once: task.at_once,
    }
}

/// An act on an array as the catalog has it.
pub(super) const fn array_act(act: types::ArrayAct) -> ArrayAct {
    match act {
        types::ArrayAct::Cancel => ArrayAct::Cancel,
        types::ArrayAct::Stop => ArrayAct::Stop,
        types::ArrayAct::Kill => ArrayAct::Kill,
        types::ArrayAct::Retry => ArrayAct::Retry,
    }
}

/// The jobs of a cluster as its inspection shows them, the newest first.
pub(crate) fn jobs_seen(daemon: &Daemon) -> Vec<seen::Job> {
    let jobs = daemon.catalog().read(|tables| {
        let rows = tables.jobs.values().rev();
        rows.cloned().collect::<Vec<_>>()
    });
    let waits = daemon.waits();
    let jobs = jobs.unwrap_or_default().into_iter();
    jobs.map(|row| {
        let mut seen = job_seen(job(&row, waits.get(&row.id)));
        if let Some(refusal) = &mut seen.refusal {
            refusal.rows = daemon
                .offers(&row)
                .into_iter()
                .map(|offer| refused_by(&row, offer))
                .collect();
        }
        seen
    })
    .collect()
}

/// A node in the table of why a job has no driver yet.
fn refused_by(job: &Job, offer: Offer) -> seen::NodeRefusal {
    let drivers = format!("{} of {} drivers", offer.free, offer.most);
    seen::NodeRefusal {
        node: offer.node,
        asked: match job.spec.resources.is_empty() {
            true => "1 driver".to_owned(),
            false => job.spec.resources.to_string(),
        },
        free: match offer.room {
            Some(room) => format!("{room}, {drivers}"),
            None => drivers,
        },
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
        "updating" => "stopping",
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
    let needs = needs_of(&job);
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
        program: job.hosts.unwrap_or_else(|| {
            let bundle = format!("bundle {}", &job.bundle[..12.min(job.bundle.len())]);
            match job.versions.is_empty() {
                true => bundle,
                false => format!("version {}, {bundle}", job.version),
            }
        }),
        arguments: job.args,
        attempt: job.tries,
        attempts: job.retries + 1,
        node: job.node,
        actors: 0,
        needs,
    }
}

/// The resources that a job asks for and where it has them, in words.
fn needs_of(job: &types::Job) -> String {
    let Some(asks) = &job.asks else {
        return String::new();
    };
    let mut nodes: Vec<&str> = job.reserved.iter().map(|it| it.node.as_str()).collect();
    nodes.dedup();
    match nodes.is_empty() {
        true => asks.clone(),
        false => format!("{asks}, reserved on {}", nodes.join(", ")),
    }
}

/// What is done, and what is in its way.
fn with(done: &str, hindered: Option<&String>) -> String {
    match hindered {
        Some(why) => format!("{done}; {why}"),
        None => done.to_owned(),
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
        changes: line.changes,
        gone,
        lost,
    }
}

/// A check of a machine as the API has it.
pub(crate) fn check(check: Check) -> types::MachineCheck {
    types::MachineCheck {
        what: check.what,
        fitness: check.fitness.word().to_owned(),
        found: check.found,
        advice: check.advice,
    }
}

pub(super) fn stacks(stacks: JobStacks, at_ms: u64) -> types::Stacks {
    let silent = stacks.silent.into_iter();
    types::Stacks {
        at_ms,
        programs: stacks.programs.into_iter().map(program).collect(),
        silent: silent
            .map(|(node, why)| types::SilentNode { node, why })
            .collect(),
    }
}

fn program(taken: ProgramStack) -> types::StackOfProgram {
    let (threads, why) = match taken.threads {
        Ok(threads) => (threads, None),
        Err(why) => (vec![], Some(why)),
    };
    let threads = threads.into_iter().map(|it| types::StackOfThread {
        name: it.thread,
        frames: it
            .frames
            .into_iter()
            .map(|frame| types::CodePlace {
                function: frame.function,
                file: frame.file,
                line: frame.line,
            })
            .collect(),
    });
    types::StackOfProgram {
        rank: taken.rank.map(|rank| rank as u64),
        node: taken.node,
        pid: taken.pid,
        threads: threads.collect(),
        why,
    }
}
