//! The leader's part: it sees which nodes are silent and which jobs need something, and has done what
//! [`plan`] says; who votes, [`voters`] says. Every node runs one; it acts while the node leads.

mod admission;
pub mod plan;
pub mod voters;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, System, Timestamp};
use odeon_diagnosis::Detector;
use odeon_diagnosis::node::{Silence, Silent, WatchedNode};
use tokio::task::JoinHandle;

use crate::agent;
use crate::catalog::{Catalog, WriteError};
use crate::fact::Fact;
use crate::folder::Folder;
use crate::job::{Event, JobId};
use crate::tables::NodeState;
use crate::unix::Unix;
use crate::voting;

pub use plan::{Offer, Order, Rules, offers, waits};

/// The pause between two looks at the tables when nothing changes.
const PAUSE: Duration = Duration::from_millis(500);
/// The rest after a look, in multiples of the time that it took.
const RESTS: u32 = 4;
/// The time that a node has to act on an order before it is told again.
const AGAIN: Duration = Duration::from_secs(5);

/// The part of a node that gives orders to the others while it leads.
#[derive(Debug)]
pub(crate) struct Controller {
    system: System,
    node: String,
    catalog: Catalog,
    folder: Arc<Folder>,
    rules: Rules,
    /// Of the other nodes, as long as this one leads.
    silence: Option<Silence>,
    /// Orders that nodes were told, and when.
    told: BTreeMap<Order, Timestamp>,
    /// The change of the voters that is under way, and since when.
    changing: Option<(JoinHandle<()>, Timestamp)>,
}

impl Controller {
    pub(crate) fn new(
        system: System,
        node: String,
        catalog: Catalog,
        folder: Arc<Folder>,
        rules: Rules,
    ) -> Self {
        Self {
            system,
            node,
            catalog,
            folder,
            rules,
            silence: None,
            told: BTreeMap::new(),
            changing: None,
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
                if self.silence.is_none() {
                    self.call_all();
                }
                let looked = self.act().await;
                // In a large cluster a look takes a while, and each write calls for one.
                Clock::sleep(looked * RESTS).await;
            } else {
                self.silence = None;
                self.told.clear();
            }
        }
    }

    /// Looks, and has done what is to be done. Returns the time that the look took.
    async fn act(&mut self) -> Duration {
        let now = Clock::now();
        let Some(silent) = self.look(now) else {
            tracing::warn!("this node did not run for a while, and listens anew who is there");
            self.call_all();
            return Duration::ZERO;
        };
        self.change_voters(now, &silent);
        let rules = &self.rules;
        let orders = self
            .catalog
            .read(|tables| plan::plan(tables, &silent, rules, Unix::now()));
        let orders = orders.unwrap_or_default();
        let looked = Clock::now().since(now);
        self.told.retain(|order, _| orders.contains(order));
        let ordered = orders.iter().filter_map(|order| match order {
            Order::Start { job, .. } | Order::Stop { job, .. } => Some(*job),
            _ => None,
        });
        self.catalog.keep_hindered(&ordered.collect());
        for order in orders {
            let fresh = self.told.get(&order);
            if fresh.is_some_and(|at| now.since(*at) < AGAIN) {
                continue;
            }
            self.told.insert(order.clone(), now);
            if self.carry_out(order).await == Next::Look {
                break;
            }
        }
        looked
    }

    /// Begins the next change of the voters, if one is due and none is under way. One that has failed
    /// is begun again after a while.
    fn change_voters(&mut self, now: Timestamp, silent: &BTreeMap<String, Duration>) {
        if let Some((task, since)) = &self.changing {
            let failed_just_now = task.is_finished() && now.since(*since) < PAUSE;
            if !task.is_finished() || failed_just_now {
                return;
            }
        }
        let Some(standing) = self.catalog.standing() else {
            return;
        };
        let rules = &self.rules;
        let change = self
            .catalog
            .read(|tables| voters::next(tables, &standing, silent, rules, Unix::now()));
        if let Some(change) = change.flatten() {
            let (system, catalog) = (self.system.clone(), self.catalog.clone());
            let folder = Arc::clone(&self.folder);
            let shown = format!("{change:?}");
            let task = tokio::spawn(async move {
                match voting::carry_out(&system, &catalog, &folder, &standing, change).await {
                    Ok(()) => tracing::info!(shown, "the voters have changed"),
                    Err(why) => tracing::warn!(shown, why, "the voters have not changed yet"),
                }
            });
            self.changing = Some((task, now));
        }
    }

    /// Asks every node for a sign of life: whoever leads anew knows of nobody whether he is there.
    fn call_all(&self) {
        for row in self.catalog.nodes() {
            let (catalog, name) = (self.catalog.clone(), row.spec.name);
            if row.state == NodeState::Up && name != self.node {
                tokio::spawn(async move { catalog.call(&name).await });
            }
        }
    }

    /// The nodes that are silent, see [`silent`].
    fn look(&mut self, now: Timestamp) -> Option<BTreeMap<String, Duration>> {
        let links = self.system.admin().links().into_iter();
        let links = links.filter(|link| !link.is_worker);
        let mut heard: BTreeMap<String, Duration> =
            links.map(|link| (link.node, link.silent_for)).collect();
        heard.insert(self.node.clone(), Duration::ZERO);
        let nodes = self.catalog.nodes();
        let up = nodes.iter().filter(|row| row.state == NodeState::Up);
        let up = up.map(|row| WatchedNode {
            name: row.spec.name.clone(),
            life: (row.spec.boot, row.since.0),
            silent_for: heard.get(&row.spec.name).copied(),
        });
        let up: Vec<WatchedNode> = up.collect();
        let silence = self
            .silence
            .get_or_insert_with(|| self.rules.silence(PAUSE, now));
        silent(silence, &up, now)
    }

    /// Facts are written one after the other; orders to nodes do not wait for each other.
    async fn carry_out(&self, order: Order) -> Next {
        let shown = format!("{order:?}");
        let (system, catalog) = (self.system.clone(), self.catalog.clone());
        let outcome = match order {
            Order::Lose {
                node,
                boot,
                silent: silent_for,
            } => {
                let lost_after = self.rules.lost_after;
                let why = Silent {
                    silent_for,
                    lost_after,
                }
                .to_string();
                self.write(Fact::NodeLost { node, boot, why }).await
            }
            Order::Assign {
                job,
                node,
                boot,
                reserved,
            } => {
                let event = Event::Assigned {
                    node,
                    boot,
                    reserved,
                };
                self.happened(job, event).await
            }
            Order::Extend { job, attempt, more } => {
                let event = Event::Extended { attempt, more };
                self.happened(job, event).await
            }
            Order::Turn { job, to } => self.happened(job, Event::TurnDue { to }).await,
            Order::Hold { job, why } => self.happened(job, Event::Held { why }).await,
            Order::Start { job, node, .. } => {
                let row = self.catalog.read(|tables| tables.jobs.get(&job).cloned());
                if let Some(row) = row.flatten() {
                    tokio::spawn(async move {
                        let told = agent::order_start(&system, &node, row).await;
                        catalog.set_hindered(job, told.clone());
                        note(&shown, told);
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
                    let told = agent::order_stop(&system, &node, job, attempt, in_order).await;
                    catalog.set_hindered(job, told.clone());
                    note(&shown, told);
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

/// The nodes that are silent for too long to get work, and for how long; `None` when this one did not run
/// for a while, so that it has to listen first.
pub fn silent(
    silence: &mut Silence,
    nodes: &[WatchedNode],
    now: Timestamp,
) -> Option<BTreeMap<String, Duration>> {
    let found = silence.observe(nodes, Duration::from_nanos(now.0));
    let silent = found.into_iter().flat_map(|found| {
        let silent_for = found.cause.silent_for;
        found.who.into_iter().map(move |name| (name, silent_for))
    });
    (!silence.is_deaf()).then(|| silent.collect())
}

/// The next act of the controller after an order.
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
