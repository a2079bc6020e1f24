//! The next acts of the leader: a pure function of the tables, of how long nodes have been silent,
//! and of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use odeon::Timestamp;
use odeon_diagnosis::node::{Silence, SilenceLimits, Silent};
use odeon_diagnosis::{Action, FindingCause};
use odeon_placement::{Node, Resource};

use super::admission::Room;
use crate::job::{Job, JobId, LONGEST_PAUSE, State};
use crate::resources::{Bytes, Reservation};
use crate::tables::{NodeBan, NodeRow, NodeState, Tables, quota_full};
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

impl Rules {
    /// The detector of silent nodes of a leader that looks at least so often and begins now.
    #[must_use]
    pub const fn silence(&self, pause: Duration, now: Timestamp) -> Silence {
        let limits = SilenceLimits {
            unheard: self.doubted_after.saturating_add(pause),
            ..self.limits()
        };
        Silence::new(Duration::from_nanos(now.0), limits)
    }

    /// Judges a node that has been silent for so long; nothing while that is no reason to doubt it.
    #[must_use]
    pub fn judge(&self, silent_for: Duration) -> Option<Silent> {
        self.limits().judge(silent_for)
    }

    const fn limits(&self) -> SilenceLimits {
        SilenceLimits {
            doubted_after: self.doubted_after,
            unheard: self.doubted_after,
            lost_after: self.lost_after,
        }
    }
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
        /// The parts of nodes that it has to itself, where it asks for some.
        reserved: Vec<Reservation>,
    },
    /// A try that runs with fewer ranks than it may have gets more.
    Extend {
        /// Which job.
        job: JobId,
        /// Which try.
        attempt: u32,
        /// The parts of nodes that it has besides.
        more: Vec<Reservation>,
    },
    /// A job cannot have one yet.
    Hold {
        /// Which job.
        job: JobId,
        /// The obstacle.
        why: String,
    },
    /// A version has waited for long enough for a restart.
    Turn {
        /// Which job.
        job: JobId,
        /// Which version.
        to: u32,
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
        let Some(found) = rules.judge(silent) else {
            continue;
        };
        doubted.insert(row.spec.name.as_str());
        if found.action() == Action::LoseNode {
            orders.push(Order::Lose {
                node: row.spec.name.clone(),
                boot: row.spec.boot,
                silent,
            });
        }
    }
    for job in tables.living_jobs() {
        if let Some(turn) = job.turn_due(now) {
            let (job, to) = (job.id, turn.to);
            orders.push(Order::Turn { job, to });
        }
        match &job.state {
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
            State::Waiting { .. } | State::Running { .. } | State::Ended { .. } => {}
        }
    }
    let Judged { jobs, extended, .. } = judge(tables, &doubted, rules, now);
    orders.extend(extended);
    for (job, verdict) in jobs {
        match verdict {
            Ok((row, reserved)) => orders.push(Order::Assign {
                job: job.id,
                node: row.spec.name.clone(),
                boot: row.spec.boot,
                reserved,
            }),
            Err(why) => {
                let why = why.kept(job);
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

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Its namespace, its node, or that there is none.
    Other(String),
    /// Others have what it asks for.
    Room,
}

impl Obstacle {
    /// The words that are kept in the catalog: they change with the obstacle alone, not with each job
    /// that comes or goes.
    fn kept(self, job: &Job) -> String {
        match self {
            Self::Other(why) => why,
            Self::Room => format!(
                "it waits for room: it asks for {}; `odeon why {}` says what is in the way",
                job.spec.resources, job.id
            ),
        }
    }
}

/// A job that waits, and where it begins or why it does not.
type Verdict<'a> = (&'a Job, Result<(&'a NodeRow, Vec<Reservation>), Obstacle>);

/// A look at all jobs that want something.
struct Judged<'a> {
    /// The room that is left, where one asks for some.
    room: Option<Room<'a>>,
    /// The jobs that could begin now, in the order in which they do, and what becomes of each.
    jobs: Vec<Verdict<'a>>,
    /// Orders for jobs that run and get more ranks.
    extended: Vec<Order>,
}

/// Gives more ranks to the jobs that run with fewer than they may have: those with fewer than they need
/// before all that wait, the others behind.
fn extend(tables: &Tables, room: Option<&mut Room<'_>>, need: bool) -> Vec<Order> {
    let Some(room) = room else {
        return vec![];
    };
    let lacking = tables.living_jobs().filter(|job| {
        let ranks = tables.living_ranks(job).len() as u32;
        lacks_ranks(tables, job) && (ranks < job.spec.resources.ranks) == need
    });
    let orders = lacking.filter_map(|job| {
        let attempt = job.attempt()?.number;
        let (job, more) = (job.id, room.extend(job)?);
        Some(Order::Extend { job, attempt, more })
    });
    orders.collect()
}

/// Returns true for a job that runs with fewer ranks than it may have.
fn lacks_ranks(tables: &Tables, job: &Job) -> bool {
    let asked = &job.spec.resources;
    let is_elastic = asked.most() > asked.ranks;
    is_elastic
        && matches!(job.state, State::Running { .. })
        && tables.living_ranks(job).len() < asked.most() as usize
}

/// Looks at the jobs that could begin now and at those that run with too few ranks.
fn judge<'a>(tables: &'a Tables, doubted: &BTreeSet<&str>, rules: &Rules, now: Unix) -> Judged<'a> {
    let due = |job: &&Job| match &job.state {
        State::Waiting { not_before, .. } => job.awaits.is_empty() && !pauses(*not_before, now),
        _ => false,
    };
    let mut waiting: Vec<&Job> = tables.living_jobs().filter(due).collect();
    // Of equal priority, who came first.
    waiting.sort_by_key(|job| (std::cmp::Reverse(job.spec.priority), job.id));
    let mut load = Load::of(tables, doubted);
    let asks = waiting.iter().any(|job| !job.spec.resources.is_empty());
    let lacks = tables.living_jobs().any(|job| lacks_ranks(tables, job));
    let mut room = (asks || lacks).then(|| Room::of(tables, doubted, now));
    let mut extended = extend(tables, room.as_mut(), true);
    let judged = waiting.into_iter().map(|job| {
        let verdict = load.place(job, rules, room.as_mut());
        (job, verdict)
    });
    let mut judged: Vec<Verdict<'_>> = judged.collect();
    // To the end, so that the next look finds no more where nothing has changed.
    while room.as_mut().is_some_and(Room::look_again) {
        for (job, verdict) in &mut judged {
            if matches!(verdict, Err(Obstacle::Room)) {
                *verdict = load.place(job, rules, room.as_mut());
            }
        }
    }
    extended.extend(extend(tables, room.as_mut(), false));
    Judged {
        room,
        jobs: judged,
        extended,
    }
}

/// Why each job waits that does, in words of this moment. Who is silent only the leader knows.
#[must_use]
pub fn waits(tables: &Tables, rules: &Rules, now: Unix) -> BTreeMap<JobId, String> {
    let Judged { room, jobs, .. } = judge(tables, &BTreeSet::new(), rules, now);
    let told = |(job, verdict): Verdict<'_>| match (verdict.err()?, &room) {
        (Obstacle::Other(why), _) => Some((job.id, why)),
        (Obstacle::Room, Some(room)) => Some((job.id, room.told(job))),
        (Obstacle::Room, None) => None,
    };
    jobs.into_iter().filter_map(told).collect()
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
    /// The part of it that no job has reserved, in words; for a job that asks for some.
    pub room: Option<String>,
    /// Why it does not take the job; `None` where nothing of its own stands in the way.
    pub why: Option<String>,
}

/// The offers of all nodes to a job, in the order of their names. Who is silent only the leader
/// knows.
#[must_use]
pub fn offers(tables: &Tables, job: &Job, rules: &Rules) -> Vec<Offer> {
    let load = Load::of(tables, &BTreeSet::new());
    let asks = !job.spec.resources.is_empty();
    let room = asks.then(|| Room::of(tables, &BTreeSet::new(), Unix::default()));
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
            (NodeState::Up, _) if row.refused.is_some() => {
                let why = row.refused.as_ref().map(NodeBan::reason);
                Some(format!("it is refused: {}", why.unwrap_or_default()))
            }
            (NodeState::Up, Some(wanted)) => Some(format!("the job must run on `{wanted}`")),
            (NodeState::Up, None) if free == 0 => {
                Some("it runs as many drivers as it may".to_owned())
            }
            (NodeState::Up, None) => room.as_ref().and_then(|room| room.obstacle(job, name)),
        };
        let room = room.as_ref().and_then(|room| room.view().node(name));
        Offer {
            node: name.to_owned(),
            free,
            most: rules.drivers_max,
            room: room.map(free_of),
            why,
        }
    };
    rows.map(offer).collect()
}

/// The part of a node that nobody has reserved: `3 of 8 cpu, 2 of 16 GiB, 1 of 2 gpu`.
fn free_of(node: &Node) -> String {
    let of = |resource| (node.free().get(&resource), node.capacity.get(&resource));
    let ((cpu, cpus), (memory, all)) = (of(Resource::Cpu), of(Resource::Memory));
    let cores = |milli: u64| milli as f64 / 1000.0;
    let mut free = format!(
        "{} of {} cpu, {} of {}",
        cores(cpu),
        cores(cpus),
        Bytes(memory),
        Bytes(all)
    );
    if !node.devices.is_empty() {
        free += &format!(", {} of {} gpu", node.free_devices(), node.devices.len());
    }
    free
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
    /// Jobs with a node by the first of their array.
    arrays: BTreeMap<JobId, u32>,
}

impl<'a> Load<'a> {
    fn of(tables: &'a Tables, doubted: &BTreeSet<&str>) -> Self {
        let nodes = tables.living_nodes();
        let nodes =
            nodes.filter(|row| row.takes_jobs() && !doubted.contains(row.spec.name.as_str()));
        let mut load = Self {
            tables,
            nodes: nodes
                .map(|row| (row.spec.name.as_str(), (row, 0)))
                .collect(),
            namespaces: BTreeMap::new(),
            arrays: BTreeMap::new(),
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
        if let Some(array) = &job.array {
            *self.arrays.entry(array.first).or_default() += 1;
        }
    }

    /// The node of a waiting job, and what it has to itself of that and of others: of a job that asks
    /// for nothing, the one with the fewest drivers of those that it may run on.
    fn place(
        &mut self,
        job: &'a Job,
        rules: &Rules,
        room: Option<&mut Room<'_>>,
    ) -> Result<(&'a NodeRow, Vec<Reservation>), Obstacle> {
        let least = self.least(job, rules).map_err(Obstacle::Other)?;
        let Some(room) = room.filter(|_| !job.spec.resources.is_empty()) else {
            self.count(job, &least.spec.name);
            return Ok((least, vec![]));
        };
        let full = self.nodes.iter();
        let full = full.filter(|(_, (_, drivers))| *drivers >= rules.drivers_max);
        let full: Vec<&str> = full.map(|(name, _)| *name).collect();
        let reserved = room.place(job, &full).ok_or(Obstacle::Room)?;
        let driver = reserved
            .first()
            .and_then(|it| self.nodes.get(it.node.as_str()));
        let Some(&(row, _)) = driver else {
            let why = "the node that has room is not up any more".to_owned();
            return Err(Obstacle::Other(why));
        };
        self.count(job, &row.spec.name);
        Ok((row, reserved))
    }

    /// Of the nodes that a job may run on, the one with the fewest drivers.
    fn least(&self, job: &Job, rules: &Rules) -> Result<&'a NodeRow, String> {
        if let Some(array) = &job.array
            && let Some(most) = array.at_once
        {
            let running = self.arrays.get(&array.first).copied().unwrap_or(0);
            if running >= most {
                return Err(array.full(running as usize));
            }
        }
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
                    NodeState::Up if row.refused.is_some() => "is refused",
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
