//! The next acts of the leader: a pure function of the tables, of how long nodes have been silent,
//! and of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::job::{Job, JobId, LONGEST_PAUSE, State};
use crate::tables::{NodeRow, NodeState, Tables, quota_full};
use crate::unix::Unix;

/// Bounds of the cluster that are the leader's to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The longest silence of a node that still gets jobs: one that is about to be lost should not
    /// cost them a try.
    pub doubted_after: Duration,
    /// The silence after which a node is lost.
    pub lost_after: Duration,
    /// The longest time that a voter may be gone before another node takes its seat.
    pub replaced_after: Duration,
    /// Drivers that run on one node at the same time.
    pub drivers_max: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            // Links that are idle beat every two seconds.
            doubted_after: Duration::from_millis(2500),
            // Beyond the detection of a lost link, so that a node which is linked again at once stays.
            lost_after: Duration::from_secs(15),
            // Longer than a machine takes to start again.
            replaced_after: Duration::from_secs(300),
            drivers_max: 64,
        }
    }
}

/// Something that the leader is to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// A node has been silent for too long.
    Lose {
        /// Which.
        node: String,
        /// Which life of it.
        boot: u64,
        /// For how long.
        silent: Duration,
    },
    /// A job gets a node.
    Assign {
        /// Which job.
        job: JobId,
        /// Which node.
        node: String,
        /// Which life of it.
        boot: u64,
    },
    /// A job cannot have one yet.
    Hold {
        /// Which job.
        job: JobId,
        /// The obstacle.
        why: String,
    },
    /// A node is to begin a try.
    Start {
        /// Which job.
        job: JobId,
        /// Which try.
        attempt: u32,
        /// Which node.
        node: String,
    },
    /// A node is to end a try.
    Stop {
        /// Which job.
        job: JobId,
        /// Which try.
        attempt: u32,
        /// Which node.
        node: String,
        /// Set where it may end in order.
        in_order: bool,
    },
}

/// The orders that are due. Nodes that nothing is known of are taken to be there: whoever leads
/// anew has heard of nobody yet, and counts from then on.
#[must_use]
pub fn plan(
    tables: &Tables,
    silent: &BTreeMap<String, Duration>,
    rules: &Rules,
    now: Unix,
) -> Vec<Order> {
    let mut orders = vec![];
    let mut doubted = BTreeSet::new();
    for row in tables.living_nodes() {
        let silent = silent.get(&row.spec.name).copied().unwrap_or_default();
        if silent > rules.doubted_after {
            doubted.insert(row.spec.name.as_str());
        }
        if silent > rules.lost_after {
            orders.push(Order::Lose {
                node: row.spec.name.clone(),
                boot: row.spec.boot,
                silent,
            });
        }
    }
    let mut load = Load::of(tables, &doubted);
    let mut waiting: Vec<&Job> = vec![];
    for job in tables.living_jobs() {
        match &job.state {
            State::Waiting { not_before, .. } if pauses(*not_before, now) => {}
            State::Waiting { .. } => waiting.push(job),
            State::Staging { attempt } => orders.push(Order::Start {
                job: job.id,
                attempt: attempt.number,
                node: attempt.node.clone(),
            }),
            State::Stopping {
                attempt, in_order, ..
            } => orders.push(Order::Stop {
                job: job.id,
                attempt: attempt.number,
                node: attempt.node.clone(),
                in_order: *in_order,
            }),
            State::Running { .. } | State::Ended { .. } => {}
        }
    }
    // Of equal priority, who came first.
    waiting.sort_by_key(|job| (std::cmp::Reverse(job.spec.priority), job.id));
    for job in waiting {
        match load.place(job, rules) {
            Ok(row) => orders.push(Order::Assign {
                job: job.id,
                node: row.spec.name.clone(),
                boot: row.spec.boot,
            }),
            Err(why) => {
                let known =
                    matches!(&job.state, State::Waiting { why: known, .. } if *known == why);
                if !known {
                    orders.push(Order::Hold { job: job.id, why });
                }
            }
        }
    }
    orders
}

/// The offer of a node to a job that waits for a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The node.
    pub node: String,
    /// Drivers that it may run beside those that it runs.
    pub free: usize,
    /// Number of drivers that it may run.
    pub most: usize,
    /// Why it does not take the job; `None` where nothing of its own stands in the way.
    pub why: Option<String>,
}

/// The offers of all nodes to a job, in the order of their names. Who is silent only the leader
/// knows.
#[must_use]
pub fn offers(tables: &Tables, job: &Job, rules: &Rules) -> Vec<Offer> {
    let load = Load::of(tables, &BTreeSet::new());
    let known = tables.nodes.values();
    let rows = known.filter(|row| !matches!(row.state, NodeState::Left));
    let offer = |row: &NodeRow| {
        let name = row.spec.name.as_str();
        let runs = load.nodes.get(name).map_or(0, |(_, drivers)| *drivers);
        let free = rules.drivers_max.saturating_sub(runs);
        let wanted = job.spec.node.as_deref().filter(|wanted| *wanted != name);
        let why = match (&row.state, wanted) {
            (NodeState::Lost { why }, _) => Some(format!("it is lost: {why}")),
            (NodeState::Left, _) => Some("it has left".to_owned()),
            (NodeState::Up, _) if row.drained => Some("it is drained".to_owned()),
            (NodeState::Up, Some(wanted)) => Some(format!("the job must run on `{wanted}`")),
            (NodeState::Up, None) if free == 0 => {
                Some("it runs as many drivers as it may".to_owned())
            }
            (NodeState::Up, None) => None,
        };
        Offer {
            node: name.to_owned(),
            free,
            most: rules.drivers_max,
            why,
        }
    };
    rows.map(offer).collect()
}

/// Returns true while a job is not to be begun anew yet. One that waits for longer than any does
/// was told so by a clock that goes before this one.
fn pauses(not_before: Option<Unix>, now: Unix) -> bool {
    let left = not_before.map(|moment| moment.since(now));
    left.is_some_and(|left| !left.is_zero() && left <= LONGEST_PAUSE)
}

/// The load: drivers by node, and jobs by namespace.
struct Load<'a> {
    tables: &'a Tables,
    /// Drivers by node that may get more.
    nodes: BTreeMap<&'a str, (&'a NodeRow, usize)>,
    /// Jobs with a node by namespace.
    namespaces: BTreeMap<&'a str, u32>,
}

impl<'a> Load<'a> {
    fn of(tables: &'a Tables, doubted: &BTreeSet<&str>) -> Self {
        let nodes = tables.living_nodes();
        let nodes = nodes.filter(|row| !row.drained && !doubted.contains(row.spec.name.as_str()));
        let mut load = Self {
            tables,
            nodes: nodes
                .map(|row| (row.spec.name.as_str(), (row, 0)))
                .collect(),
            namespaces: BTreeMap::new(),
        };
        for job in tables.living_jobs() {
            if let Some(attempt) = job.attempt() {
                load.count(job, &attempt.node);
            }
        }
        load
    }

    fn count(&mut self, job: &'a Job, node: &str) {
        if let Some((_, drivers)) = self.nodes.get_mut(node) {
            *drivers += 1;
        }
        *self.namespaces.entry(&job.spec.namespace).or_default() += 1;
    }

    /// The node of a waiting job: of those that it may run on the one with the fewest drivers.
    fn place(&mut self, job: &'a Job, rules: &Rules) -> Result<&'a NodeRow, String> {
        let namespace = &job.spec.namespace;
        let quota = self.tables.namespaces.get(namespace);
        if let Some(most) = quota.and_then(|quota| quota.running_max) {
            let running = self.namespaces.get(namespace.as_str()).copied();
            let running = running.unwrap_or(0);
            if running >= most {
                return Err(quota_full(namespace, running as usize));
            }
        }
        if let Some(wanted) = &job.spec.node
            && !self.nodes.contains_key(wanted.as_str())
        {
            return Err(self.why_not(wanted));
        }
        let may = |row: &NodeRow| job.spec.node.as_ref().is_none_or(|it| *it == row.spec.name);
        let candidates = self.nodes.values().filter(|(row, _)| may(row));
        let least = candidates.min_by_key(|(row, drivers)| (*drivers, row.number));
        let Some(&(row, drivers)) = least else {
            return Err("no node is up that may get jobs".to_owned());
        };
        if drivers >= rules.drivers_max {
            return Err(format!(
                "every node that it may run on runs {drivers} drivers, as many as it may; node \
                 `{}` is one of them",
                row.spec.name
            ));
        }
        self.count(job, &row.spec.name);
        Ok(row)
    }

    fn why_not(&self, wanted: &str) -> String {
        match self.tables.nodes.get(wanted) {
            None => {
                let known: Vec<_> = self
                    .tables
                    .nodes
                    .keys()
                    .map(|it| format!("`{it}`"))
                    .collect();
                format!(
                    "it must run on node `{wanted}`, which is not known; known are {}",
                    known.join(", ")
                )
            }
            Some(row) => {
                let how = match &row.state {
                    NodeState::Up if row.drained => "is drained",
                    NodeState::Up => "is silent",
                    NodeState::Left => "has left",
                    NodeState::Lost { .. } => "is lost",
                };
                format!("it must run on node `{wanted}`, which {how}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
