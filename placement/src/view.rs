//! The cluster as the solver sees it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use crate::{Isolation, Lease, Plan, Process, Resource, Resources};

/// A picture of all nodes at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    nodes: BTreeMap<String, Node>,
}

/// One node. What is free is what its leases leave of its capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Unique in the cluster.
    pub name: String,
    /// All that the node offers.
    pub capacity: Resources,
    /// Whether it takes new work.
    pub liveness: Liveness,
    /// What demands may select it by.
    pub labels: BTreeMap<String, String>,
    /// Leases granted on it.
    pub held: Vec<Held>,
    /// Worker processes on it.
    pub workers: Vec<Worker>,
    /// Most worker processes at a time.
    pub worker_limit: u32,
}

/// Whether a node takes new work; only a node that is up does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Liveness {
    /// In contact.
    #[default]
    Up,
    /// Going out of service; keeps what it has.
    Draining,
    /// Silent, not yet given up.
    Suspect,
    /// Given up.
    Lost,
}

/// A part of a node's capacity in someone's hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Who holds it.
    pub holder: String,
    /// How much.
    pub resources: Resources,
}

/// A worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Unique on its node.
    pub id: u64,
    /// The job it works for.
    pub job: String,
    /// Whether light actors of the job may join.
    pub isolation: Isolation,
}

impl View {
    /// A picture of these nodes. Of nodes with the same name, the last counts.
    pub fn new(nodes: impl IntoIterator<Item = Node>) -> Self {
        Self {
            nodes: nodes
                .into_iter()
                .map(|node| (node.name.clone(), node))
                .collect(),
        }
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// One node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// The picture after a plan was carried out, for placing several demands in a row. New workers
    /// get the next free numbers of their nodes; the real ones may get others.
    #[must_use]
    pub fn with(&self, plan: &Plan) -> Self {
        let mut view = self.clone();
        for (name, node) in &mut view.nodes {
            node.carry_out(plan.leases.iter().filter(|lease| lease.node == *name));
        }
        view
    }
}

impl Node {
    /// A node that is up and empty, without labels, with room for 64 workers.
    pub fn new(name: impl Into<String>, capacity: Resources) -> Self {
        Self {
            name: name.into(),
            capacity,
            liveness: Liveness::Up,
            labels: BTreeMap::new(),
            held: Vec::new(),
            workers: Vec::new(),
            worker_limit: 64,
        }
    }

    /// Sets the liveness.
    #[must_use]
    pub fn liveness(mut self, liveness: Liveness) -> Self {
        self.liveness = liveness;
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Adds a lease.
    #[must_use]
    pub fn held(mut self, holder: impl Into<String>, resources: Resources) -> Self {
        self.held.push(Held {
            holder: holder.into(),
            resources,
        });
        self
    }

    /// Adds a worker process.
    #[must_use]
    pub fn worker(mut self, id: u64, job: impl Into<String>, isolation: Isolation) -> Self {
        self.workers.push(Worker {
            id,
            job: job.into(),
            isolation,
        });
        self
    }

    /// Sets the most worker processes at a time.
    #[must_use]
    pub fn worker_limit(mut self, limit: u32) -> Self {
        self.worker_limit = limit;
        self
    }

    /// What is not held by anyone.
    #[must_use]
    pub fn free(&self) -> Resources {
        let mut used = Resources::new();
        self.held.iter().for_each(|held| used.add(&held.resources));
        self.capacity.less(&used)
    }

    /// Whether `holder` has a lease here.
    #[must_use]
    pub fn has_holder(&self, holder: &str) -> bool {
        self.held.iter().any(|held| held.holder == holder)
    }

    /// Who holds how much of `resource`, most first.
    #[must_use]
    pub fn holders_of(&self, resource: &Resource) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for held in &self.held {
            let sum = sums.entry(&held.holder).or_default();
            *sum = sum.saturating_add(held.resources.get(resource));
        }
        let mut holders: Vec<(String, u64)> = sums
            .into_iter()
            .filter(|(_, sum)| *sum > 0)
            .map(|(h, sum)| (h.into(), sum))
            .collect();
        holders.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
        holders
    }

    /// The worker that light actors of `job` share.
    pub(crate) fn shared_worker(&self, job: &str) -> Option<&Worker> {
        let shared = |w: &&Worker| w.job == job && w.isolation == Isolation::Shared;
        self.workers
            .iter()
            .filter(shared)
            .min_by_key(|worker| worker.id)
    }

    /// Worker processes that may still be started.
    pub(crate) fn free_workers(&self) -> u64 {
        u64::from(self.worker_limit).saturating_sub(self.workers.len() as u64)
    }

    fn carry_out<'l>(&mut self, leases: impl Iterator<Item = &'l Lease>) {
        let first = self
            .workers
            .iter()
            .map(|worker| worker.id + 1)
            .max()
            .unwrap_or(0);
        let mut started = BTreeSet::new();
        for lease in leases {
            let Lease {
                holder,
                resources,
                job,
                isolation,
                process,
                ..
            } = lease;
            self.held.push(Held {
                holder: holder.clone(),
                resources: resources.clone(),
            });
            if let Process::New(nth) = *process
                && started.insert(nth)
            {
                let (job, isolation) = (job.clone(), *isolation);
                self.workers.push(Worker {
                    id: first + u64::from(nth),
                    job,
                    isolation,
                });
            }
        }
    }
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
        })
    }
}
