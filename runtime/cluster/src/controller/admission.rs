//! Admission: which of the jobs that ask for resources begin now, and where. Pure.
//!
//! Jobs are asked about in the order in which they are to begin. The first that waits for room is
//! promised the earliest places that running jobs leave, by their time limits; those without one are
//! taken to end last, the oldest of them first, at no known time. Who comes after it goes ahead only
//!
//! - on what the promise does not need, or
//! - when its own time limit ends it before the promise is due; before a time is known, any with a
//!   time limit may.
//!
//! So what is let ahead never moves a promise back, except once, by one time limit at most, when the
//! last job without a limit ends that stood in its way. This is EASY backfilling (D. Lifka, The
//! ANL/IBM SP scheduling system, 1995) over several resources and nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use odeon_placement::{
    Affinity, Cause, Demand, Isolation, Lease, Liveness, Node, Plan, Process, Reason, Refusal,
    Resources, Share, View, solve,
};

use crate::job::{Job, JobId, State};
use crate::resources::Reservation;
use crate::tables::{Tables, devices_of};
use crate::unix::Unix;

/// Jobs that are looked at beyond the first that waits, so that a look stays short however many wait.
const LOOKS_MAX: usize = 1000;
/// Holders of which a refusal says since when.
const HOLDERS_TOLD: usize = 6;

/// The room of a cluster between jobs that hold a part of it.
#[derive(Debug)]
pub(super) struct Room<'a> {
    tables: &'a Tables,
    now: Unix,
    view: View,
    holders: Vec<Holder>,
    first: Option<Promise>,
    looks: usize,
    /// Set when a job went ahead of the promise.
    let_ahead: bool,
}

/// A job that holds a part of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    /// When its time limit ends it; the latest possible moment, if it has none.
    ends: Unix,
    since: Unix,
    job: JobId,
}

/// The end of a job that has no time limit.
const NEVER: Unix = Unix(u64::MAX);

/// The places that the first job which waits is to get.
#[derive(Debug)]
struct Promise {
    job: JobId,
    /// When at the latest; [`NEVER`] while that is not known.
    at: Unix,
    plan: Plan,
    /// The room at that time, without these places.
    after: View,
    /// The part that is free now and is not needed for them then.
    spare: View,
}

impl<'a> Room<'a> {
    /// The room that living jobs leave on the nodes that are up. Those that are silent, drained or
    /// refused take nobody.
    pub(super) fn of(tables: &'a Tables, doubted: &BTreeSet<&str>, now: Unix) -> Self {
        let mut nodes: BTreeMap<&str, Node> = BTreeMap::new();
        for row in tables.living_nodes() {
            let capacity = Resources::new()
                .cpu_milli(u64::from(row.spec.cpus) * 1000)
                .memory_bytes(row.spec.memory);
            let liveness = match (!row.takes_jobs(), doubted.contains(row.spec.name.as_str())) {
                (true, _) => Liveness::Draining,
                (false, true) => Liveness::Suspect,
                (false, false) => Liveness::Up,
            };
            let node = Node::new(&row.spec.name, capacity).liveness(liveness);
            // Drivers are counted elsewhere, and ranks are no processes yet.
            let mut node = node.worker_limit(u32::MAX);
            node.devices = devices_of(row);
            nodes.insert(&row.spec.name, node);
        }
        let mut holders = vec![];
        for job in tables.living_jobs() {
            let Some(attempt) = job.attempt().filter(|it| !it.reserved.is_empty()) else {
                continue;
            };
            holders.push(Holder {
                ends: end_of(job, now),
                since: attempt.held_since(),
                job: job.id,
            });
            for it in &attempt.reserved {
                let lives = tables.nodes.get(&it.node).map(|row| row.spec.boot) == Some(it.boot);
                if lives && let Some(node) = nodes.remove(it.node.as_str()) {
                    let lease = it.lease(job, &node.devices);
                    nodes.insert(&tables.nodes[&it.node].spec.name, node.lease(lease));
                }
            }
        }
        let mut view = View::new(nodes.into_values());
        for (name, quota) in &tables.namespaces {
            if let Some(quota) = quota.of_actors() {
                view.set_quota(format!("{name}/"), quota);
            }
        }
        Self {
            tables,
            now,
            view,
            holders,
            first: None,
            looks: 0,
            let_ahead: false,
        }
    }

    /// The nodes, and what is free of them.
    pub(super) const fn view(&self) -> &View {
        &self.view
    }

    /// The obstacle on one node for the part of a job that does not fit; none where it has room.
    pub(super) fn obstacle(&self, job: &Job, node: &str) -> Option<String> {
        let demands = job.spec.resources.demands(job);
        let refusal = solve(&self.view, &demands).err()?;
        let here = refusal.nodes().iter().find(|it| it.node == node)?;
        match here.reason {
            Reason::Others => None,
            _ => Some(here.to_string()),
        }
    }

    /// The parts of nodes that a job begins on now, its driver on none of `full`; none where it waits.
    /// Jobs are to come in the order in which they are to begin.
    pub(super) fn place(&mut self, job: &Job, full: &[&str]) -> Option<Vec<Reservation>> {
        let mut demands = job.spec.resources.demands(job);
        if let Some(driver) = demands.last_mut() {
            let full = full
                .iter()
                .map(|node| Affinity::NotNode((*node).to_owned()));
            driver.affinity.extend(full);
        }
        let Some(first) = &self.first else {
            return match solve(&self.view, &demands) {
                Ok(plan) => {
                    let plan = widest(&self.view, job, &demands, plan);
                    Some(self.grant(job, &plan))
                }
                Err(refusal) => {
                    if waits_for_room(&refusal) {
                        self.promise(job.id, &demands);
                    }
                    None
                }
            };
        };
        self.looks += 1;
        if self.looks > LOOKS_MAX || !may_fit(&self.view, &demands) {
            return None;
        }
        let Ok(plan) = solve(&self.view, &demands) else {
            return None;
        };
        let is_over = self.ends_before(job, first);
        match solve(&first.spare, &demands) {
            // The promise has its places again by then, and others may have them.
            Ok(plan) => {
                let plan = widest(&first.spare, job, &demands, plan);
                Some(match is_over {
                    true => self.grant_until(job, &plan),
                    false => self.grant(job, &plan),
                })
            }
            Err(_) if is_over => Some(self.grant_until(job, &plan)),
            Err(_) => None,
        }
    }

    /// The parts of nodes that a job which runs with too few ranks gets besides, of what the promise does
    /// not need; none where there is no room for one more.
    pub(super) fn extend(&mut self, job: &Job) -> Option<Vec<Reservation>> {
        let asked = &job.spec.resources;
        let known = self.tables.living_ranks(job);
        let lacks = asked.most().saturating_sub(known.len() as u32);
        if lacks == 0 {
            return None;
        }
        let room = self.first.as_ref().map_or(&self.view, |first| &first.spare);
        let demands = [asked.more(job, 1)];
        let one = solve(room, &demands).ok()?;
        let plan = most(room, &demands, one, 1..=lacks);
        let free = (0..asked.most()).filter(|rank| !known.contains(rank));
        let more = asked.reserved_more(&plan.leases, free, |node| self.boot(node));
        let leases = self.leases(job, &more);
        if let Some(first) = &mut self.first {
            first.after.grant(&leases);
        }
        self.take(job, &leases);
        Some(more)
    }

    /// Forgets the promise where jobs went ahead of it, and returns true then: with what these hold it may
    /// be of other places, never of later ones, and leave room for more. Those that wait are to be asked
    /// about again.
    pub(super) fn look_again(&mut self) -> bool {
        let again = std::mem::take(&mut self.let_ahead);
        if again {
            self.first = None;
        }
        again
    }

    /// Returns true where a job that begins now is over when the promise is due.
    fn ends_before(&self, job: &Job, first: &Promise) -> bool {
        job.spec.time_limit_s.is_some() && end_if_begun(job, self.now) <= first.at
    }

    /// The job has these places from now on, also when the promise is due.
    fn grant(&mut self, job: &Job, plan: &Plan) -> Vec<Reservation> {
        let reserved = self.reserved(job, plan);
        let leases = self.leases(job, &reserved);
        if let Some(first) = &mut self.first {
            first.after.grant(&leases);
        }
        self.take(job, &leases);
        reserved
    }

    /// The job has these places, and is over when the promise is due.
    fn grant_until(&mut self, job: &Job, plan: &Plan) -> Vec<Reservation> {
        let reserved = self.reserved(job, plan);
        let leases = self.leases(job, &reserved);
        self.take(job, &leases);
        reserved
    }

    fn take(&mut self, job: &Job, leases: &Plan) {
        self.view.grant(leases);
        self.holders.push(Holder {
            ends: end_if_begun(job, self.now),
            since: self.now,
            job: job.id,
        });
        if let Some(first) = &mut self.first {
            self.let_ahead = true;
            first.spare = spare(&self.view, first.job, &first.plan, &first.after);
        }
    }

    fn reserved(&self, job: &Job, plan: &Plan) -> Vec<Reservation> {
        let asked = &job.spec.resources;
        asked.reserved(&plan.leases, |node| self.boot(node))
    }

    /// The life of a node that runs.
    fn boot(&self, node: &str) -> u64 {
        let row = self.tables.nodes.get(node);
        row.map_or(0, |row| row.spec.boot)
    }

    fn leases(&self, job: &Job, reserved: &[Reservation]) -> Plan {
        let lease = |it: &Reservation| {
            let node = self.view.node(&it.node);
            it.lease(job, node.map_or(&[], |node| &node.devices))
        };
        Plan {
            leases: reserved.iter().map(lease).collect(),
        }
    }

    /// Promises a job the earliest places that those before it leave. Of one that never finds any,
    /// however many end, nothing is kept free.
    fn promise(&mut self, job: JobId, demands: &[Demand]) {
        let mut holders = self.holders.clone();
        holders.sort_unstable();
        let mut after = self.view.clone();
        for Holder { ends, job: of, .. } in holders {
            after.release(&of.to_string());
            let Ok(plan) = solve(&after, demands) else {
                continue;
            };
            after.grant(&plan);
            self.first = Some(Promise {
                job,
                at: ends,
                spare: spare(&self.view, job, &plan, &after),
                plan,
                after,
            });
            return;
        }
    }

    /// Why a job waits that was given nothing: for what, who has it and since when.
    pub(super) fn told(&self, job: &Job) -> String {
        let since = match job.state {
            State::Waiting {
                since: Some(since), ..
            } => since,
            _ => job.submitted,
        };
        let demands = job.spec.resources.demands(job);
        let before = self.first.as_ref().filter(|first| first.job != job.id);
        let room = before.map_or(&self.view, |first| &first.spare);
        let mut told = format!("since {since}: ");
        match solve(room, &demands) {
            Ok(_) => told += "no place for its driver, or its turn has not come",
            Err(refusal) => {
                told += &refusal.to_string();
                let held = self.since(&refusal);
                if !held.is_empty() {
                    told += &format!("; held since: {}", held.join(", "));
                }
            }
        }
        match (&self.first, before) {
            (_, Some(first)) => told += &format!("; {} comes before it", first.job),
            (None, None) => {}
            (Some(own), None) if own.at == NEVER => {
                told += "; it comes next, when those end that have no time limit";
            }
            (Some(own), None) => {
                told += &format!("; it comes next, by {} at the latest", own.at);
            }
        }
        told
    }

    /// Since when the jobs hold what they do that a refusal names.
    fn since(&self, refusal: &Refusal) -> Vec<String> {
        let holders = refusal.nodes().iter().flat_map(|node| match &node.reason {
            Reason::Busy { holders, .. }
            | Reason::DevicesBusy { holders, .. }
            | Reason::DeviceBusy { holders, .. } => holders.as_slice(),
            _ => &[],
        });
        let mut named = BTreeSet::new();
        let jobs = holders.filter_map(|(holder, _)| holder.parse::<JobId>().ok());
        let jobs = jobs.filter(|job| named.insert(*job));
        let known = jobs.filter_map(|id| {
            let since = self.tables.jobs.get(&id)?.attempt()?.held_since();
            Some(format!("{id} {since}"))
        });
        known.take(HOLDERS_TOLD).collect()
    }
}

/// The plan with as many ranks as there is room for, of a job for which there is room with the least.
fn widest(room: &View, job: &Job, demands: &[Demand], least: Plan) -> Plan {
    let asked = &job.spec.resources;
    most(room, demands, least, asked.ranks..=asked.most())
}

/// The plan with the largest of these numbers in the first gang that finds room; `least` is for the smallest.
fn most(room: &View, demands: &[Demand], least: Plan, numbers: RangeInclusive<u32>) -> Plan {
    let (mut best, mut low, mut high) = (least, *numbers.start(), *numbers.end());
    let mut demands = demands.to_vec();
    while low < high {
        let middle = high - (high - low) / 2;
        demands[0].gang = middle;
        match solve(room, &demands) {
            Ok(plan) => (best, low) = (plan, middle),
            Err(_) => high = middle - 1,
        }
    }
    best
}

/// Returns true where others have to end first, and nothing else is wrong.
fn waits_for_room(refusal: &Refusal) -> bool {
    matches!(&*refusal.cause, Cause::Room { .. }) && !refusal.is_hopeless()
}

/// Returns false where all nodes together have too little: most that wait are known by that.
fn may_fit(view: &View, demands: &[Demand]) -> bool {
    let (mut free, mut devices) = (Resources::new(), 0);
    for node in view.nodes().filter(|node| node.liveness == Liveness::Up) {
        free.add(node.free());
        devices += u64::from(node.free_devices());
    }
    let (mut asked, mut wanted) = (Resources::new(), 0);
    for demand in demands {
        for _ in 0..demand.gang {
            asked.add(&demand.bundle);
        }
        let each = match demand.devices.as_ref().map(|ask| &ask.share) {
            Some(Share::Whole(count)) => u64::from(*count),
            _ => 0,
        };
        wanted += each * u64::from(demand.gang);
    }
    let enough = asked.iter().all(|(resource, q)| free.get(&resource) >= q);
    enough && devices >= wanted
}

/// The part that is free now and is not needed for these places of `first` in the room `after`, in which they
/// are taken.
fn spare(now: &View, first: JobId, plan: &Plan, after: &View) -> View {
    let mut leases = vec![];
    for node in now.nodes() {
        let Some(later) = after.node(&node.name) else {
            continue;
        };
        let held: BTreeSet<u32> = node
            .leases()
            .flat_map(|lease| &lease.devices)
            .map(|grant| grant.index)
            .collect();
        let here = plan.leases.iter().filter(|lease| lease.node == node.name);
        let devices = here.flat_map(|lease| &lease.devices);
        let devices = devices.filter(|grant| !held.contains(&grant.index));
        let lease = Lease {
            job: String::new(),
            holder: format!("{first}, which comes before it,"),
            rank: 0,
            node: node.name.clone(),
            process: Process::Existing(0),
            isolation: Isolation::Process,
            resources: node.free().less(later.free()),
            devices: devices.copied().collect(),
            device_set: None,
            priority: i32::MAX,
        };
        if !lease.resources.is_empty() || !lease.devices.is_empty() {
            leases.push(lease);
        }
    }
    now.with(&Plan { leases })
}

/// When a job that holds something is over at the latest.
fn end_of(job: &Job, now: Unix) -> Unix {
    let ends = match (&job.state, job.attempt()) {
        (
            State::Stopping {
                since,
                updates: false,
                ..
            },
            _,
        ) => since.after(job.spec.grace()),
        // Its files are brought within its time.
        (_, Some(attempt)) => end_if_begun(job, attempt.held_since()),
        (_, None) => end_if_begun(job, now),
    };
    ends.max(now)
}

/// When a job that begins at this time is over at the latest.
fn end_if_begun(job: &Job, begun: Unix) -> Unix {
    let limit = job.spec.time_limit();
    limit.map_or(NEVER, |limit| begun.after(limit + job.spec.grace()))
}

#[cfg(test)]
mod tests;
