//! Facts about nodes and jobs beside what is seen of them: what a cluster's catalog says.

use std::collections::BTreeMap;
use std::sync::Arc;

use odeon::System;
use odeon_client::inspect as told;
use odeon_cluster::Daemon;
use odeon_cluster::job::JobId;
use odeon_cluster::logs::archive::Archive;
use odeon_cluster::logs::{Begin, Cursor};
use odeon_cluster::startup::Startup;
use odeon_observe::Observer;
use parking_lot::Mutex;

use super::dto::{self, NodeFacts};
use super::lines::{Last, LinesOf};
use super::output_log::OutputLog;
use super::recorded_catalog::RecordedCatalog;
use crate::api::dto::jobs_seen;

/// Where it comes from.
#[derive(Clone, Debug)]
pub(crate) enum Facts {
    /// There is no catalog: one program, on one machine, and what its workers print.
    Standalone(OutputLog),
    /// A daemon's.
    Cluster(Arc<Daemon>),
    /// The facts that a recording holds, up to where it is.
    Recorded(Arc<Mutex<RecordedCatalog>>),
}

/// Lines, and where those begin that follow.
type Printed = (Vec<told::LogLine>, Cursor);

impl Facts {
    /// By the names of the nodes.
    pub(super) fn nodes(&self) -> BTreeMap<String, NodeFacts> {
        let daemon = match self {
            Self::Standalone(_) => return BTreeMap::new(),
            Self::Cluster(daemon) => daemon,
            Self::Recorded(recorded) => return recorded.lock().nodes.clone(),
        };
        let catalog = daemon.catalog();
        let (leader, voters) = (catalog.leader(), catalog.voters());
        let rows = catalog.nodes().into_iter();
        let fact = rows.map(|row| {
            let name = row.spec.name.clone();
            let fact = NodeFacts {
                address: row.spec.address.clone(),
                version: row.spec.release.clone(),
                leads: leader.as_ref() == Some(&name),
                votes: voters.contains(&name),
                drained: row.drained,
                refused: row.refused.as_ref().map(|ban| ban.why.clone()),
            };
            (name, fact)
        });
        fact.collect()
    }

    /// Jobs, the newest first.
    pub(super) fn jobs(&self) -> Vec<told::Job> {
        match self {
            Self::Standalone(_) => vec![],
            Self::Cluster(daemon) => jobs_seen(daemon),
            Self::Recorded(recorded) => recorded.lock().jobs.clone(),
        }
    }

    /// The start-up of a job, as far as its catalog knows it.
    pub(super) fn startup(&self, job: &str) -> Startup {
        let Self::Cluster(daemon) = self else {
            return Startup::default();
        };
        let found = job.parse().ok().and_then(|id: JobId| {
            let tables = daemon.catalog();
            tables.read(|tables| tables.jobs.get(&id).map(|job| job.startup.clone()))?
        });
        found.unwrap_or_default()
    }

    /// The lines that a job has printed from there on, and where those end; nothing where no lines
    /// are kept.
    pub(super) async fn lines_after(&self, job: &str, from: &Cursor) -> Option<Printed> {
        let Self::Cluster(daemon) = self else {
            return None;
        };
        let id = job.strip_prefix('j')?.parse().ok().map(JobId)?;
        let read = daemon.archive().read(id, from).await.ok()?.merged;
        let lines = read.lines.into_iter().map(dto::line).collect();
        Some((lines, read.next))
    }

    /// The last lines that were printed; nothing where none are kept.
    pub(super) async fn logs(&self, of: &LinesOf<'_>) -> Option<told::Logs> {
        let daemon = match self {
            Self::Standalone(output_log) => {
                let mut last = Last::new(of);
                last.add(output_log.after(0).0);
                return Some(last.logs());
            }
            Self::Cluster(daemon) => daemon,
            Self::Recorded(recorded) => return recorded.lock().logs(of),
        };
        let id = of.job.strip_prefix('j')?.parse().ok().map(JobId)?;
        let archive = daemon.archive();
        let mut begins = archive.logs().begins(id).ok()?;
        begins.retain(|begin| (begin.after.0 as f64) < of.before.at);
        // Twice as far back each time, until there are enough.
        let nearest = (0..).map(|power| (1 << power) - 1);
        let nearest = nearest.map_while(|at: usize| begins.get(at));
        for begin in nearest {
            let last = last_from(archive, id, begin, of).await?;
            if last.more {
                return Some(last.logs());
            }
        }
        let last = last_from(archive, id, &Begin::default(), of).await?;
        Some(last.logs())
    }

    /// Looks at what these are facts of, with an observer of its own, until the future is dropped.
    pub(super) async fn follow(&self, observer: &Observer, system: &System) {
        match self {
            Self::Cluster(daemon) => daemon.follow(observer.clone()).await,
            _ => observer.follow(system).await,
        }
    }

    pub(super) fn has_jobs(&self) -> bool {
        match self {
            Self::Standalone(_) => false,
            Self::Cluster(_) => true,
            Self::Recorded(recorded) => recorded.lock().has_jobs,
        }
    }
}

/// The last lines of a job of those that are read from there on.
async fn last_from<'a>(
    archive: &Archive,
    job: JobId,
    begin: &Begin,
    of: &'a LinesOf<'a>,
) -> Option<Last<'a>> {
    let (mut cursor, mut last) = (begin.cursor.clone(), Last::new(of));
    let after = begin.after.0 as f64;
    loop {
        let read = archive.read(job, &cursor).await.ok()?.merged;
        cursor = read.next;
        let lines: Vec<_> = read.lines.into_iter().map(dto::line).collect();
        // They come in the order of time.
        let is_over = lines.last().is_none_or(|line| line.at > of.before.at);
        // Of earlier ones not all are read.
        last.add(lines.into_iter().filter(|line| line.at > after));
        if is_over {
            return Some(last);
        }
    }
}
