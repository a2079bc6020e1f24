//! Notes in a recording beside what is observed: the catalog of a cluster, the lines of its jobs,
//! and what actors did with each kind of message.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use odeon::inspect::MethodView;
use odeon::{ActorId, Clock, ProcessId, System};
use odeon_client::inspect as told;
use odeon_cluster::logs::Cursor;
use odeon_observe::Observer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::dto::{NodeFacts, is_system};
use super::facts::Facts;
use super::lines::{Last, LinesOf};

/// As of some moment of a recording.
#[derive(Debug, Default)]
pub(crate) struct RecordedCatalog {
    pub(super) has_jobs: bool,
    pub(super) nodes: BTreeMap<String, NodeFacts>,
    pub(super) jobs: Vec<told::Job>,
    lines: BTreeMap<String, VecDeque<told::LogLine>>,
    methods: BTreeMap<String, Vec<MethodView>>,
}

/// The contents of a catalog.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Catalog {
    nodes: BTreeMap<String, NodeFacts>,
    jobs: Vec<told::Job>,
}

/// Lines that a job has printed, or a program that is alone.
#[derive(Debug, Serialize, Deserialize)]
struct Lines {
    /// Empty for a program that is alone.
    job: String,
    lines: Vec<told::LogLine>,
}

/// The work of an actor by kind of message.
#[derive(Debug, Serialize, Deserialize)]
struct Methods {
    actor: String,
    methods: Vec<MethodView>,
}

/// The kinds of notes.
const CATALOG: &str = "catalog";
const LINES: &str = "lines";
const METHODS: &str = "methods";

/// The interval between looks for something new.
const PAUSE: Duration = Duration::from_secs(1);
/// Actors that are asked each time what they did; the others have their turn later.
const ASKED_MAX: usize = 32;
/// Lines that are kept of a job.
const LINES_MAX: usize = 10_000;

impl RecordedCatalog {
    /// Takes a note in.
    pub(super) fn take(&mut self, about: &str, json: &str) {
        fn read<T: DeserializeOwned>(json: &str) -> Option<T> {
            let read = serde_json::from_str(json);
            read.map_err(
                |error| tracing::warn!(%error, "a note of the recording is not understood"),
            )
            .ok()
        }
        match about {
            CATALOG => {
                let Some(catalog) = read::<Catalog>(json) else {
                    return;
                };
                (self.nodes, self.jobs, self.has_jobs) = (catalog.nodes, catalog.jobs, true);
            }
            LINES => {
                let Some(lines) = read::<Lines>(json) else {
                    return;
                };
                let known = self.lines.entry(lines.job).or_default();
                known.extend(lines.lines);
                while known.len() > LINES_MAX {
                    known.pop_front();
                }
            }
            METHODS => {
                for it in read::<Vec<Methods>>(json).unwrap_or_default() {
                    self.methods.insert(it.actor, it.methods);
                }
            }
            // Of a newer release: what is not shown here is not missed.
            _ => {}
        }
    }

    /// The last lines of a job, or of the program that was alone.
    pub(super) fn logs(&self, of: &LinesOf<'_>) -> Option<told::Logs> {
        let known = self.jobs.iter().any(|it| it.id == of.job);
        if !known && !of.job.is_empty() {
            return None;
        }
        let mut last = Last::new(of);
        last.add(self.lines.get(of.job).into_iter().flatten().cloned());
        Some(last.logs())
    }

    /// The work of an actor by kind of message, as of when it was last asked.
    pub(super) fn methods(&self, actor: ActorId) -> Vec<MethodView> {
        let known = self.methods.get(&actor.to_string());
        known.cloned().unwrap_or_default()
    }
}

/// Notes what is to be seen beside what is observed, for as long as the observer records.
pub(super) async fn note(observer: Observer, facts: Facts, system: System) {
    let (mut catalog, mut cursors) = (Catalog::default(), HashMap::new());
    let (mut last, mut printed) = (None, 0);
    while observer.recorded().is_some() {
        if let Facts::Cluster(_) = facts {
            let now = Catalog {
                nodes: facts.nodes(),
                jobs: facts.jobs(),
            };
            if now != catalog {
                tell(&observer, CATALOG, &now);
                catalog = now;
            }
            for job in &catalog.jobs {
                let cursor = cursors
                    .entry(job.id.clone())
                    .or_insert_with(Cursor::default);
                if let Some((lines, next)) = facts.lines_after(&job.id, cursor).await {
                    *cursor = next;
                    if !lines.is_empty() {
                        let job = job.id.clone();
                        tell(&observer, LINES, &Lines { job, lines });
                    }
                }
            }
        }
        if let Facts::Standalone(output_log) = &facts {
            let (lines, all) = output_log.after(printed);
            printed = all;
            if !lines.is_empty() {
                let job = String::new();
                tell(&observer, LINES, &Lines { job, lines });
            }
        }
        let turn = turn(&observer, &mut last);
        let mut asked = vec![];
        for (actor, process) in turn {
            if let Some(methods) = system.admin().methods_of(actor, process).await {
                let actor = actor.to_string();
                asked.push(Methods { actor, methods });
            }
        }
        if !asked.is_empty() {
            tell(&observer, METHODS, &asked);
        }
        Clock::sleep(PAUSE).await;
    }
}

/// Those whose turn it is: the next after the last, of those that this node can ask.
fn turn(observer: &Observer, last: &mut Option<ActorId>) -> Vec<(ActorId, ProcessId)> {
    let mut here: Vec<_> = observer.read(|seen| {
        let own = |name: &str| seen.node(name).is_some_and(|node| node.clock.is_none());
        let living = seen.actors().iter().filter(|it| it.ended.is_none());
        let here = living.filter(|it| !is_system(it) && own(&it.node));
        here.map(|it| (it.id(), it.view.process)).collect()
    });
    here.sort_unstable();
    let next = here.partition_point(|(id, _)| last.is_some_and(|last| *id <= last));
    here.rotate_left(next);
    here.truncate(ASKED_MAX);
    *last = here.last().map(|(id, _)| *id);
    here
}

fn tell<T: Serialize>(observer: &Observer, about: &str, what: &T) {
    match serde_json::to_string(what) {
        Ok(json) => observer.note(about, &json),
        Err(error) => tracing::warn!(%error, about, "this is not part of the recording"),
    }
}
