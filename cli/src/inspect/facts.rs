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
use super::prints::Prints;
use super::shown;

/// Where it comes from.
#[derive(Clone, Debug)]
pub(crate) enum Facts {
    /// There is no catalog: one program, on one machine, and what its workers print.
    Alone(Prints),
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
            Self::Alone(_) => return BTreeMap::new(),
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
            Self::Alone(_) => vec![],
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

    /// The last lines that were printed; nothing where none are kept.
    pub(super) async fn logs(&self, of: &LinesOf<'_>) -> Option<told::Logs> {
        let daemon = match self {
            Self::Alone(prints) => {
                let mut last = Last::new(of);
                last.add(prints.after(0).0);
                return Some(last.logs());
            }
            Self::Cluster(daemon) => daemon,
            Self::Noted(noted) => return noted.lock().logs(of),
        };
        let id = of.job.strip_prefix('j')?.parse().ok().map(JobId)?;
        let archive = daemon.archive();
        let (mut cursor, mut last) = (Cursor::default(), Last::new(of));
        loop {
            let read = archive.read(id, &cursor).await.ok()?.merged;
            if read.lines.is_empty() {
                return Some(last.logs());
            }
            cursor = read.next;
            last.add(read.lines.into_iter().map(shown::line));
        }
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
            Self::Alone(_) => false,
            Self::Cluster(_) => true,
            Self::Noted(noted) => noted.lock().has_jobs,
        }
    }
}

/// Which lines are asked for.
pub(super) struct LinesOf<'a> {
    /// Those of this job; all of a program that is alone.
    pub(super) job: &'a str,
    /// What this process of it printed, where one is chosen: its number, and its node where that is
    /// needed to tell it from others.
    pub(super) process: Option<(&'a str, &'a str)>,
    /// Those before this moment.
    pub(super) before: f64,
    /// No more than these.
    pub(super) limit: usize,
}

/// The last lines that are asked for, of those that come by.
pub(super) struct Last<'a> {
    of: &'a LinesOf<'a>,
    lines: VecDeque<told::LogLine>,
    more: bool,
}

impl<'a> Last<'a> {
    pub(super) const fn new(of: &'a LinesOf<'a>) -> Self {
        Self {
            of,
            lines: VecDeque::new(),
            more: false,
        }
    }

    pub(super) fn add(&mut self, lines: impl IntoIterator<Item = told::LogLine>) {
        let of = self.of;
        let by = |line: &told::LogLine| {
            of.process.is_none_or(|(process, node)| {
                let here = line.node.is_empty() || line.node == node;
                line.process == process && here
            })
        };
        let asked = lines.into_iter();
        for line in asked.filter(|line| line.at < of.before && by(line)) {
            if self.lines.len() == of.limit {
                self.lines.pop_front();
                self.more = true;
            }
            self.lines.push_back(line);
        }
    }

    pub(super) fn logs(self) -> told::Logs {
        told::Logs {
            lines: self.lines.into(),
            more: self.more,
            none_kept: None,
        }
    }
}
