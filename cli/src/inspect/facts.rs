//! What is known of nodes and jobs beside what is seen of them: what a cluster's catalog says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use odeon::System;
use odeon_client::inspect as told;
use odeon_cluster::Daemon;
use odeon_cluster::job::JobId;
use odeon_cluster::logs::Cursor;
use odeon_observe::Observer;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::noted::Noted;
use super::shown;

/// Where it comes from.
#[derive(Clone, Debug)]
pub(crate) enum Facts {
    /// There is no catalog: one program, on one machine.
    Alone,
    /// A daemon's.
    Cluster(Arc<Daemon>),
    /// What a recording holds of them, up to where it is.
    Noted(Arc<Mutex<Noted>>),
}

/// What the catalog says of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeFacts {
    pub(super) address: String,
    pub(super) version: String,
    pub(super) leads: bool,
    pub(super) votes: bool,
    pub(super) drained: bool,
}

/// Lines, and where those begin that follow.
type Printed = (Vec<told::LogLine>, Cursor);

impl Facts {
    /// By the names of the nodes.
    pub(super) fn nodes(&self) -> BTreeMap<String, NodeFacts> {
        let daemon = match self {
            Self::Alone => return BTreeMap::new(),
            Self::Cluster(daemon) => daemon,
            Self::Noted(noted) => return noted.lock().nodes.clone(),
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
            };
            (name, fact)
        });
        fact.collect()
    }

    /// Jobs, the newest first.
    pub(super) fn jobs(&self) -> Vec<told::Job> {
        match self {
            Self::Alone => vec![],
            Self::Cluster(daemon) => crate::api::jobs_seen(daemon),
            Self::Noted(noted) => noted.lock().jobs.clone(),
        }
    }

    /// What a job has printed from there on, and where that ends; nothing where no lines are kept.
    pub(super) async fn lines_after(&self, job: &str, from: &Cursor) -> Option<Printed> {
        let Self::Cluster(daemon) = self else {
            return None;
        };
        let id = job.strip_prefix('j')?.parse().ok().map(JobId)?;
        let read = daemon.archive().read(id, from).await.ok()?.merged;
        let lines = read.lines.into_iter().map(shown::line).collect();
        Some((lines, read.next))
    }

    /// The last lines that a job has printed before a moment; nothing where no lines are kept.
    pub(super) async fn logs(&self, job: &str, before: f64, limit: usize) -> Option<told::Logs> {
        let daemon = match self {
            Self::Alone => return None,
            Self::Cluster(daemon) => daemon,
            Self::Noted(noted) => return noted.lock().logs(job, before, limit),
        };
        let id = job.strip_prefix('j')?.parse().ok().map(JobId)?;
        let archive = daemon.archive();
        let (mut cursor, mut lines, mut more) = (Cursor::default(), VecDeque::new(), false);
        loop {
            let read = archive.read(id, &cursor).await.ok()?.merged;
            if read.lines.is_empty() {
                break;
            }
            cursor = read.next;
            for line in read
                .lines
                .into_iter()
                .filter(|it| (it.line.at.0 as f64) < before)
            {
                if lines.len() == limit {
                    lines.pop_front();
                    more = true;
                }
                lines.push_back(shown::line(line));
            }
        }
        Some(told::Logs {
            lines: lines.into(),
            more,
        })
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
            Self::Alone => false,
            Self::Cluster(_) => true,
            Self::Noted(noted) => noted.lock().has_jobs,
        }
    }
}
