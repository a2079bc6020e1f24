//! The leader's part: it sees which nodes are silent and which jobs need something, and has done what
//! [`plan`] says. Every node runs one; it acts while the node leads.

pub mod plan;

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::{Clock, System, Timestamp};

use crate::agent;
use crate::catalog::{Catalog, WriteError};
use crate::fact::Fact;
use crate::job::{Event, JobId};
use crate::tables::NodeState;

pub use plan::{Order, Rules};

/// How often the tables are looked at when nothing changes.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a node has to act on an order before it is told again.
const AGAIN: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Keeper {
    system: System,
    node: String,
    catalog: Catalog,
    rules: Rules,
    /// When each node was last seen, as long as this node leads.
    seen: BTreeMap<String, Timestamp>,
    /// Orders that nodes were told, and when.
    told: BTreeMap<Order, Timestamp>,
}

impl Keeper {
    pub(crate) fn new(system: System, node: String, catalog: Catalog, rules: Rules) -> Self {
        Self {
            system,
            node,
            catalog,
            rules,
            seen: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Acts while this node leads, for ever.
    pub(crate) async fn run(mut self) {
        let mut changes = None;
        loop {
            if changes.is_none() {
                changes = self.catalog.changes();
            }
            match &mut changes {
                Some(changed) => {
                    let waited = Clock::timeout(PAUSE, changed.changed()).await;
                    if matches!(waited, Some(Err(_))) {
                        // The node does not vote any more.
                        changes = None;
                        Clock::sleep(PAUSE).await;
                    }
                }
                None => Clock::sleep(PAUSE).await,
            }
            if self.catalog.leads() {
                self.act().await;
            } else {
                self.seen.clear();
                self.told.clear();
            }
        }
    }

    async fn act(&mut self) {
        let now = Clock::now();
        let silent = self.look(now);
        let rules = &self.rules;
        let orders = self
            .catalog
            .read(|tables| plan::plan(tables, &silent, rules));
        let orders = orders.unwrap_or_default();
        self.told.retain(|order, _| orders.contains(order));
        for order in orders {
            let fresh = self.told.get(&order);
            if fresh.is_some_and(|at| now.since(*at) < AGAIN) {
                continue;
            }
            self.told.insert(order.clone(), now);
            if self.carry_out(order).await == Next::Look {
                return;
            }
        }
    }

    /// How long each node has been silent.
    fn look(&mut self, now: Timestamp) -> BTreeMap<String, Duration> {
        let mut heard: BTreeMap<String, Duration> = BTreeMap::new();
        for link in self
            .system
            .links()
            .into_iter()
            .filter(|link| !link.is_worker)
        {
            heard.insert(link.node, link.silent_for);
        }
        heard.insert(self.node.clone(), Duration::ZERO);
        let nodes = self.catalog.nodes();
        let up = nodes.iter().filter(|row| row.state == NodeState::Up);
        let mut silent = BTreeMap::new();
        for row in up {
            let name = row.spec.name.clone();
            let seen = self.seen.entry(name.clone()).or_insert(now);
            if heard.contains_key(&name) {
                *seen = now;
            }
            silent.insert(name, now.since(*seen));
        }
        self.seen.retain(|name, _| silent.contains_key(name));
        silent
    }

    /// Facts are written one after the other; orders to nodes do not wait for each other.
    async fn carry_out(&self, order: Order) -> Next {
        let shown = format!("{order:?}");
        let system = self.system.clone();
        let outcome = match order {
            Order::Lose { node, boot, silent } => {
                let why = format!("nothing was heard from it for {} s", silent.as_secs());
                self.write(Fact::NodeLost { node, boot, why }).await
            }
            Order::Assign { job, node, boot } => {
                self.happened(job, Event::Assigned { node, boot }).await
            }
            Order::Hold { job, why } => self.happened(job, Event::Held { why }).await,
            Order::Start { job, node, .. } => {
                let row = self.catalog.read(|tables| tables.jobs.get(&job).cloned());
                if let Some(row) = row.flatten() {
                    tokio::spawn(async move {
                        note(&shown, agent::order_start(&system, &node, row).await);
                    });
                }
                return Next::Order;
            }
            Order::Stop {
                job,
                attempt,
                node,
                in_order,
            } => {
                tokio::spawn(async move {
                    let told = agent::order_stop(&system, &node, job, attempt, in_order);
                    note(&shown, told.await);
                });
                return Next::Order;
            }
        };
        let next = match &outcome {
            Ok(()) | Err(WriteError::Refused(_)) => Next::Order,
            // Time has passed, and another may lead: the next orders would come of an old look.
            Err(_) => Next::Look,
        };
        note(&shown, outcome.map_err(|error| error.to_string()));
        next
    }

    async fn happened(&self, job: JobId, event: Event) -> Result<(), WriteError> {
        self.write(Fact::Job { job, event }).await
    }

    async fn write(&self, fact: Fact) -> Result<(), WriteError> {
        self.catalog.write_leading(fact).await.map(drop)
    }
}

/// What the keeper does after an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The next order.
    Order,
    /// It looks again.
    Look,
}

fn note(order: &str, outcome: Result<(), String>) {
    if let Err(why) = outcome {
        tracing::debug!(order, why, "an order was not carried out yet");
    }
}
