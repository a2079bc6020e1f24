//! What is known of nodes and jobs beside what is seen of them: what a cluster's catalog says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use odeon_client::inspect as told;
use odeon_cluster::Daemon;
use odeon_cluster::job::JobId;
use odeon_cluster::logs::Cursor;

use super::shown;

/// Where it comes from.
#[derive(Clone, Debug)]
pub(crate) enum Facts {
    /// There is no catalog: one program, on one machine.
    Alone,
    /// A daemon's.
    Cluster(Arc<Daemon>),
}

/// What the catalog says of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeFacts {
    pub(super) address: String,
    pub(super) version: String,
    pub(super) leads: bool,
    pub(super) votes: bool,
    pub(super) drained: bool,
}

impl Facts {
    /// By the names of the nodes.
    pub(super) fn nodes(&self) -> BTreeMap<String, NodeFacts> {
        let Self::Cluster(daemon) = self else {
            return BTreeMap::new();
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
        let Self::Cluster(daemon) = self else {
            return vec![];
        };
        crate::api::jobs_seen(daemon)
    }

    /// The last lines that a job has printed before a moment; nothing where no lines are kept.
    pub(super) async fn logs(&self, job: &str, before: f64, limit: usize) -> Option<told::Logs> {
        let Self::Cluster(daemon) = self else {
            return None;
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

    pub(super) const fn has_jobs(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
