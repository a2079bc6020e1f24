//! Problems, or what looks like one: rules over what is seen, each with its threshold in the
//! sentence.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::inspect::BlockedThread;
use odeon::telemetry::Label;
use odeon::trace::SpanKind;
use odeon::{ActorId, ProcessId};
use serde::{Deserialize, Serialize};

use crate::actor::{Actor, State};
use crate::bounds::{
    CIRCLE_STANDS, CLOCK_ERROR, COPIES_LATELY, COPY_NOISE, COPY_STRAGGLES, DEVICE_FULL,
    MAILBOX_FULL, MAILBOX_FULL_FOR, PENDING, RESTARTS, RESTARTS_WITHIN, SLOW_LINK,
    STRAGGLER_LATELY, STRAGGLER_RANKS, STRAGGLER_STEPS, STRAGGLES, STUCK, SUSPECT,
};
use crate::cluster_view::{ClusterView, Copied, blob_of};
use crate::date::Date;
use crate::event::{Severity, Subject};

/// Which rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Alert {
    /// Actors wait for each other and nobody can wake them.
    Deadlock,
    /// Actors have failed for good.
    ActorFailed,
    /// A node is gone.
    NodeDown,
    /// An actor is started again and again.
    RestartLoop,
    /// An actor blocks a thread of its process.
    BlockedThread,
    /// A handler runs for very long.
    StuckHandler,
    /// Somebody waits for room on the nodes.
    Pending,
    /// Actors wait for each other, though one of them may go on.
    WaitsInCircle,
    /// A rank, or a copy of a blob, takes much longer than the others.
    Straggler,
    /// The memory of a device is nearly full.
    DeviceMemory,
    /// A mailbox is nearly full.
    MailboxFull,
    /// Nothing has come from a node for a while.
    NodeSuspect,
    /// A link between nodes is slow, or was broken.
    SlowLink,
    /// Spans were overwritten before anybody saw them.
    EventsDropped,
    /// Clocks are not known well enough.
    ClockError,
}

impl Alert {
    /// Its name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadlock => "deadlock",
            Self::ActorFailed => "actor_failed",
            Self::NodeDown => "node_down",
            Self::RestartLoop => "restart_loop",
            Self::BlockedThread => "blocked_thread",
            Self::StuckHandler => "stuck_handler",
            Self::Pending => "pending",
            Self::WaitsInCircle => "waits_in_circle",
            Self::Straggler => "straggler",
            Self::DeviceMemory => "device_memory",
            Self::MailboxFull => "mailbox_full",
            Self::NodeSuspect => "node_suspect",
            Self::SlowLink => "slow_link",
            Self::EventsDropped => "events_dropped",
            Self::ClockError => "clock_error",
        }
    }

    const fn severity(self) -> Severity {
        match self {
            Self::Deadlock | Self::ActorFailed | Self::NodeDown | Self::RestartLoop => {
                Severity::Error
            }
            _ => Severity::Warning,
        }
    }
}

/// Something that is wrong at the moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// By which rule.
    pub lint: Alert,
    /// Its severity.
    pub severity: Severity,
    /// Number of things that it is about.
    pub count: usize,
    /// The problem in words, with the threshold.
    pub sentence: String,
    /// Since when, as far as is known.
    pub since: Date,
    /// The things that it is about, the first few.
    pub subjects: Vec<Subject>,
}

/// The name of the number that ranks record of the stages of their steps, in seconds, with the
/// labels `rank` and `stage`.
const STAGE_SECONDS: &str = "train.stage_s";
/// Things that a problem names.
const SUBJECTS_MAX: usize = 8;

fn problem(alert: Alert, since: Date, sentence: String, subjects: Vec<Subject>) -> Problem {
    Problem {
        lint: alert,
        severity: alert.severity(),
        count: subjects.len().max(1),
        sentence,
        since,
        subjects: subjects.into_iter().take(SUBJECTS_MAX).collect(),
    }
}

/// A time as people say it: `41 s`, `3 min`.
#[must_use]
pub fn spoken(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 0.001 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3_600.0),
    }
}

/// All that is wrong, the worst first.
#[must_use]
pub fn problems(seen: &ClusterView, now: Date) -> Vec<Problem> {
    let mut found = vec![];
    found.extend(circles(seen, now));
    found.extend(failed(seen));
    found.extend(restart_loops(seen, now));
    found.extend(blocked(seen, now));
    found.extend(stuck(seen, now));
    found.extend(pending(seen));
    found.extend(stragglers(seen, now));
    found.extend(slow_copies(seen, now));
    found.extend(full_devices(seen, now));
    found.extend(full_mailboxes(seen, now));
    found.extend(nodes(seen, now));
    found.extend(links(seen, now));
    found.extend(dropped(seen, now));
    found.sort_by_key(|problem| (std::cmp::Reverse(problem.severity), problem.lint));
    found
}

fn title(seen: &ClusterView, id: ActorId) -> String {
    seen.title_of(id)
}

fn circles(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    let circles = seen.waits().circles().into_iter();
    circles
        .filter(move |it| now.since(it.since) >= CIRCLE_STANDS)
        .map(move |circle| {
            let mut names: Vec<_> = circle.actors.iter().map(|id| title(seen, *id)).collect();
            names.extend(names.first().cloned());
            let (alert, what) = match circle.is_deadlock {
                true => (
                    Alert::Deadlock,
                    "deadlock: each waits for the next and nobody can wake them",
                ),
                false => (
                    Alert::WaitsInCircle,
                    "these wait for each other, though one may go on",
                ),
            };
            let stands = spoken(now.since(circle.since));
            let sentence = format!("{} — {what}, for {stands} (limit 1 s)", names.join(" > "));
            let subjects = circle.actors.iter().map(|id| Subject::Actor(*id)).collect();
            problem(alert, circle.since, sentence, subjects)
        })
}

/// The failed, put together by type and what they say.
fn failed(seen: &ClusterView) -> impl Iterator<Item = Problem> {
    let mut groups: BTreeMap<(String, String), Vec<&Actor>> = BTreeMap::new();
    for row in seen
        .actors()
        .iter()
        .filter(|row| row.state == State::Failed)
    {
        let why = row.ended.as_ref().map_or("", |ended| &ended.sentence);
        let key = (row.view.actor.clone(), why.to_owned());
        groups.entry(key).or_default().push(row);
    }
    groups.into_iter().map(|((kind, why), mut rows)| {
        rows.sort_by_key(|row| row.since);
        let who = match rows.as_slice() {
            [one] => one.title(),
            many => format!("{} actors of type {kind}", many.len()),
        };
        let since = rows[0].since;
        let subjects = rows.iter().map(|row| Subject::Actor(row.id())).collect();
        problem(
            Alert::ActorFailed,
            since,
            format!("{who} failed and does not run any more: {why}"),
            subjects,
        )
    })
}

fn restart_loops(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    let lately = now.before(RESTARTS_WITHIN);
    let rows = seen.actors().iter();
    rows.filter_map(move |row| {
        let often = row.restarts_since(lately);
        let loops = often >= RESTARTS && row.ended.is_none();
        loops.then(|| {
            let why = row.lives.iter().rev().find_map(|life| life.cause.as_deref());
            let why = why.unwrap_or("no reason was told");
            let sentence = format!(
                "{} began anew {often} times within 60 s (limit {RESTARTS}), the last time because {why}",
                row.title()
            );
            problem(Alert::RestartLoop, row.since, sentence, vec![Subject::Actor(row.id())])
        })
    })
}

/// Threads that actors block, of nodes that are there.
fn blocked_threads(seen: &ClusterView) -> impl Iterator<Item = &(BlockedThread, Date)> {
    let nodes = seen.nodes().filter(|node| node.gone.is_none());
    nodes.flat_map(|node| &node.blocked)
}

fn blocked(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    blocked_threads(seen).map(move |(thread, since)| {
        let title = match seen.actors().get(thread.actor) {
            Some(row) => row.title(),
            None => thread.name.clone(),
        };
        let place = match thread.message.as_str() {
            "" => "beside its handlers".to_owned(),
            message => format!("in {message}"),
        };
        let sentence = format!(
            "{title} has blocked a thread of its process for {} {place}; others may wait for it (limit 5 s)",
            spoken(now.since(*since)),
        );
        problem(Alert::BlockedThread, *since, sentence, vec![Subject::Actor(thread.actor)])
    })
}

fn stuck(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    let rows = seen.actors().iter();
    rows.filter_map(move |row| {
        let (running, since) = (row.running()?, row.running_since?);
        let lasts = now.since(since);
        if lasts < STUCK || blocked_threads(seen).any(|(it, _)| it.actor == row.id()) {
            return None;
        }
        let (chain, _) = seen.waits().chain(row.id());
        let on = match chain.first() {
            Some(wait) => format!(
                ", for {} of that waiting for {} (ask {})",
                spoken(now.since(wait.since)),
                title(seen, wait.on),
                wait.message
            ),
            None => String::new(),
        };
        let sentence = format!(
            "{} has handled one {} for {}{on} (limit 10 s)",
            row.title(),
            running.message,
            spoken(lasts)
        );
        Some(problem(
            Alert::StuckHandler,
            since,
            sentence,
            vec![Subject::Actor(row.id())],
        ))
    })
}

fn pending(seen: &ClusterView) -> impl Iterator<Item = Problem> {
    let here = seen.nodes().filter(|node| node.gone.is_none());
    let waiting = here.filter_map(|node| Some((node, node.hardware.as_ref()?)));
    waiting.flat_map(move |(node, hardware)| {
        let late = hardware.waiting.iter().filter(|it| it.waited >= PENDING);
        late.map(move |waiting| {
            let sentence = format!("{} has no place yet: {waiting} (limit 5 s)", waiting.holder);
            let known = waiting.actors.iter();
            let known = known.filter(|id| seen.actors().get(**id).is_some());
            let mut subjects: Vec<_> = known.map(|id| Subject::Actor(*id)).collect();
            // Who has never run is not seen anywhere else.
            let job = seen.job_waiting(waiting).rsplit('/').next();
            let job = job.unwrap_or_default();
            if let Some((number, _try)) = job.split_once('.') {
                subjects.push(Subject::Job(number.to_owned()));
            }
            problem(
                Alert::Pending,
                node.seen.before(waiting.waited),
                sentence,
                subjects,
            )
        })
    })
}

fn full_mailboxes(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    let rows = seen.actors().iter();
    rows.filter_map(move |row| {
        let (fill, since) = (row.fill()?, row.full_since?);
        if fill < MAILBOX_FULL || now.since(since) < MAILBOX_FULL_FOR {
            return None;
        }
        let sentence = format!(
            "the mailbox of {} has held {} of {} messages or nearly so for {} (limit 80 % for 5 s)",
            row.title(),
            row.view.queued,
            row.view.room,
            spoken(now.since(since))
        );
        Some(problem(
            Alert::MailboxFull,
            since,
            sentence,
            vec![Subject::Actor(row.id())],
        ))
    })
}

fn full_devices(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    let nodes = seen.nodes().filter(|node| node.gone.is_none());
    let views = nodes.filter_map(|node| Some((node, node.hardware.as_ref()?)));
    views.flat_map(move |(node, view)| {
        view.readings.iter().filter_map(move |reading| {
            let mut devices = view.node.devices.iter();
            let device = devices.find(|device| device.index == reading.index)?;
            let used = *reading.memory_used.value()?;
            let part = used as f64 / device.memory as f64;
            if device.memory == 0 || part < DEVICE_FULL {
                return None;
            }
            let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
            let sentence = format!(
                "device {} of node {} has {:.1} of {:.1} GiB in use, {:.0} % (limit 95 %)",
                device.index,
                node.name,
                gib(used),
                gib(device.memory),
                part * 100.0
            );
            let subject = Subject::Device(node.name.clone(), device.index);
            Some(problem(Alert::DeviceMemory, now, sentence, vec![subject]))
        })
    })
}

/// The last value that a rank recorded of a stage: the mean of its last steps, and when.
struct Pace<'a> {
    rank: &'a Label,
    actor: ActorId,
    seconds: f64,
    at: Date,
}

/// Ranks that take much longer for a stage of their steps than the others of their group, as they
/// record it under `train.stage_s`.
fn stragglers(seen: &ClusterView, now: Date) -> Vec<Problem> {
    let mut groups: BTreeMap<(ActorId, String), Vec<Pace<'_>>> = BTreeMap::new();
    for it in seen.recorded().filter(|it| it.name == STAGE_SECONDS) {
        let label = |name: &str| {
            let found = it.labels.iter().find(|(known, _)| known == name);
            found.map(|(_, label)| label)
        };
        let (Some(rank), Some(stage)) = (label("rank"), label("stage")) else {
            continue;
        };
        let living = seen
            .actors()
            .get(it.actor)
            .filter(|row| row.ended.is_none());
        let (Some(row), Some((at, ..))) = (living, it.points.back()) else {
            continue;
        };
        let last = it.points.iter().rev().take(STRAGGLER_STEPS);
        let last: Vec<_> = last.map(|(.., seconds)| *seconds).collect();
        let pace = Pace {
            rank,
            actor: it.actor,
            seconds: last.iter().sum::<f64>() / last.len() as f64,
            at: *at,
        };
        let group = (row.view.parent, stage.to_string());
        groups.entry(group).or_default().push(pace);
    }
    let groups = groups.into_iter();
    let problems = groups.flat_map(|((_, stage), paces)| behind(seen, now, &stage, paces));
    problems.collect()
}

/// Those of one group and stage that take too long.
fn behind(seen: &ClusterView, now: Date, stage: &str, mut paces: Vec<Pace<'_>>) -> Vec<Problem> {
    // One that has stopped recording is not at work any more.
    paces.retain(|pace| now.since(pace.at) < STRAGGLER_LATELY);
    if paces.len() < STRAGGLER_RANKS {
        return vec![];
    }
    let mut seconds: Vec<_> = paces.iter().map(|pace| pace.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let late = paces
        .iter()
        .filter(|pace| pace.seconds > median * STRAGGLES);
    late.map(|pace| {
        let spoken = |seconds: f64| spoken(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
        let sentence = format!(
            "rank {} ({}) takes {} for {stage} where the median of {} ranks takes {} (limit 2 times \
             the median, over {STRAGGLER_STEPS} steps)",
            pace.rank,
            title(seen, pace.actor),
            spoken(pace.seconds),
            paces.len(),
            spoken(median)
        );
        let subject = vec![Subject::Actor(pace.actor)];
        problem(Alert::Straggler, pace.at, sentence, subject)
    })
    .collect()
}

/// Copies of a blob that take much longer than the others of the same: a slow way, or a slow node.
fn slow_copies(seen: &ClusterView, now: Date) -> Vec<Problem> {
    let mut blobs: BTreeMap<String, Vec<(ProcessId, Date, Duration)>> = BTreeMap::new();
    let lately = seen.copies().filter(|it| now.since(it.at) < COPIES_LATELY);
    for Copied { blob, to, at, took } in lately {
        let copies = blobs.entry(blob.clone()).or_default();
        copies.push((*to, *at, *took));
    }
    let going_on = seen.spans().going_on();
    for span in going_on.filter(|span| span.kind == SpanKind::Copy) {
        let copies = blobs.entry(blob_of(&span.labels)).or_default();
        copies.push((span.process, now, now.since(span.start)));
    }
    let mut found = vec![];
    for mut copies in blobs.into_values().filter(|it| it.len() >= STRAGGLER_RANKS) {
        copies.sort_by_key(|(.., took)| *took);
        let median = copies[copies.len() / 2].2;
        let limit = median.mul_f64(COPY_STRAGGLES).max(COPY_NOISE);
        for (to, at, took) in copies.iter().filter(|(.., took)| *took > limit) {
            let node = seen.process(*to).map_or("?", |process| &process.node);
            let sentence = format!(
                "a copy to {node} takes {} where the median of {} copies of the same blob takes {} \
                 (limit 4 times the median)",
                spoken(*took),
                copies.len(),
                spoken(median)
            );
            let subject = vec![Subject::Process(*to)];
            found.push(problem(Alert::Straggler, *at, sentence, subject));
        }
    }
    // Of one process the last.
    found.sort_by_key(|it| (it.subjects.clone(), std::cmp::Reverse(it.since)));
    found.dedup_by_key(|it| it.subjects.clone());
    found
}

fn nodes(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    seen.nodes().filter_map(move |node| {
        let subject = vec![Subject::Node(node.name.clone())];
        if let Some(gone) = node.gone {
            let sentence = format!("node {} is gone", node.name);
            return Some(problem(Alert::NodeDown, gone, sentence, subject));
        }
        let silent = now.since(node.seen);
        (silent >= SUSPECT).then(|| {
            let told = spoken(silent);
            let sentence = format!(
                "nothing has come from node {} for {told} (limit 3 s)",
                node.name
            );
            problem(Alert::NodeSuspect, node.seen, sentence, subject)
        })
    })
}

fn links(seen: &ClusterView, now: Date) -> impl Iterator<Item = Problem> {
    let mut found = vec![];
    for node in seen.nodes().filter(|node| node.gone.is_none()) {
        let subject = || vec![Subject::Node(node.name.clone())];
        for link in &node.links {
            if link.round_trip.is_some_and(|trip| trip > SLOW_LINK) {
                let trip = spoken(link.round_trip.unwrap_or_default());
                let sentence = format!(
                    "the link from {} to {} takes {trip} there and back (limit 100 ms)",
                    node.name, link.node
                );
                found.push(problem(Alert::SlowLink, now, sentence, subject()));
            }
        }
        if let Some((_, error)) = node.clock.filter(|(_, error)| *error > CLOCK_ERROR) {
            let sentence = format!(
                "the clock of {} is known to {} only (limit 10 ms), so what nodes did may be shown in \
                 another order",
                node.name,
                spoken(error)
            );
            found.push(problem(Alert::ClockError, now, sentence, subject()));
        }
    }
    found.into_iter()
}

fn dropped(seen: &ClusterView, now: Date) -> Option<Problem> {
    let (lost, processes) = seen.lost_lately(now);
    (lost > 0).then(|| {
        let sentence = format!(
            "{lost} spans of the last minute were overwritten before they were read: the timeline has \
             gaps, states and counters do not"
        );
        let subjects = processes.into_iter().map(Subject::Process).collect();
        problem(Alert::EventsDropped, now, sentence, subjects)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_takes_much_longer_than_those_of_the_same_blob_is_named() {
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let mut copy = |blob: &str, to: u64, ms: u64| {
            seen.note_copy(Copied {
                blob: blob.to_owned(),
                to: ProcessId(to),
                at: at(100),
                took: Duration::from_millis(ms),
            });
        };
        for (to, ms) in [(1, 90), (2, 100), (3, 110), (4, 441), (5, 439)] {
            copy("weights", to, ms);
        }
        // Two are too few to compare, and what is quick is noise.
        copy("other", 6, 10);
        copy("other", 7, 5_000);
        for (to, ms) in [(1, 1), (2, 1), (8, 150)] {
            copy("small", to, ms);
        }
        let slow = |now| slow_copies(&seen, now);
        let found = slow(at(101));
        let subjects: Vec<_> = found.iter().flat_map(|it| it.subjects.clone()).collect();
        assert_eq!(subjects, [Subject::Process(ProcessId(4))], "{found:?}");
        for part in ["441 ms", "5 copies", "takes 110 ms", "limit 4 times"] {
            assert!(found[0].sentence.contains(part), "{}", found[0].sentence);
        }
        assert_eq!(slow(at(161)).len(), 0, "a minute later it is history");
    }
}
