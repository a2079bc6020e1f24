//! Parts of nodes that whole jobs have reserved: what is left of a node for the actors of one job. Pure.
//!
//! Of each kind (processor time, memory, devices) that a job has reserved anywhere, its actors get
//! what it has reserved on the node, and no more. Of a kind that it has not, they get what no other
//! job has reserved. Leases that are held stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use odeon_placement::{DeviceGrant, Isolation, Lease, Node, Process, Resource, Resources};

/// A part of a node that a job has reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReservation {
    /// The job, as its processes are known by.
    pub job: String,
    /// The node, by its name.
    pub node: String,
    /// Processor time, in thousandths of a core, and memory, in bytes.
    pub resources: Resources,
    /// The devices, by their numbers on the node.
    pub devices: Vec<u32>,
}

/// Reservations as a node knows them.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// Those of the whole cluster, as far as the node has heard.
    heard: Vec<JobReservation>,
    /// Those of jobs whose drivers run here and of which it has not heard yet.
    own: BTreeMap<String, Vec<JobReservation>>,
}

impl Reservations {
    /// Returns true where that is news.
    pub(super) fn hear(&mut self, all: Vec<JobReservation>) -> bool {
        // From here on the cluster knows better: a node with a part of it may be lost.
        self.own
            .retain(|job, _| !all.iter().any(|it| it.job == *job));
        let is_news = self.heard != all;
        self.heard = all;
        is_news
    }

    /// A job whose driver runs here has these, until the cluster says what it has; none when it is over.
    pub(super) fn set_own(&mut self, job: &str, reserved: Vec<JobReservation>) {
        match reserved.is_empty() {
            true => drop(self.own.remove(job)),
            false => drop(self.own.insert(job.to_owned(), reserved)),
        }
    }

    fn all(&self) -> impl Iterator<Item = &JobReservation> {
        let heard = self.heard.iter();
        let heard = heard.filter(|it| !self.own.contains_key(&it.job));
        heard.chain(self.own.values().flatten())
    }

    /// A node as the actors of a job see it: what they may not have is held by whoever may.
    pub(super) fn seen_by(&self, job: &str, node: Node) -> Node {
        let of_job: Vec<&JobReservation> = self.all().filter(|it| it.job == job).collect();
        let others = self
            .all()
            .filter(|it| it.job != job && it.node == node.name);
        let mut reserved: BTreeMap<&str, Vec<&JobReservation>> = BTreeMap::new();
        for it in others {
            reserved.entry(&it.job).or_default().push(it);
        }
        let mut leases = vec![];
        for (other, parts) in reserved {
            let held = held_by(&node, other);
            let mut resources = Resources::new();
            for resource in [Resource::Cpu, Resource::Memory] {
                if !has(&of_job, &resource) {
                    let all: u64 = parts.iter().map(|it| it.resources.get(&resource)).sum();
                    let left = all.saturating_sub(held.get(&resource));
                    resources = resources.with(resource, left);
                }
            }
            let devices = parts.iter().flat_map(|it| &it.devices).copied();
            let devices = devices.filter(|_| !has_devices(&of_job));
            let holder = format!("{other}, which has reserved it,");
            leases.extend(lease(&node, holder, resources, devices.collect()));
        }
        leases.extend(beyond(&node, job, &of_job));
        leases.into_iter().fold(node, Node::lease)
    }
}

/// The part of a node that a job with reservations has not reserved.
fn beyond(node: &Node, job: &str, of_job: &[&JobReservation]) -> Option<Lease> {
    let here = || of_job.iter().filter(|it| it.node == node.name);
    let (held, own) = (held_by_all(node), held_by(node, job));
    let mut resources = Resources::new();
    for resource in [Resource::Cpu, Resource::Memory] {
        if has(of_job, &resource) {
            let free = node
                .capacity
                .get(&resource)
                .saturating_sub(held.get(&resource));
            let reserved: u64 = here().map(|it| it.resources.get(&resource)).sum();
            let left = reserved.saturating_sub(own.get(&resource));
            resources = resources.with(resource, free.saturating_sub(left));
        }
    }
    let reserved: BTreeSet<u32> = here().flat_map(|it| it.devices.iter().copied()).collect();
    let devices = node.devices.iter().map(|device| device.index);
    let devices = devices.filter(|index| has_devices(of_job) && !reserved.contains(index));
    let holder = format!("what {job} has not reserved");
    lease(node, holder, resources, devices.collect())
}

fn has(reserved: &[&JobReservation], resource: &Resource) -> bool {
    reserved.iter().any(|it| it.resources.get(resource) > 0)
}

fn has_devices(reserved: &[&JobReservation]) -> bool {
    reserved.iter().any(|it| !it.devices.is_empty())
}

fn held_by(node: &Node, job: &str) -> Resources {
    let own = node.leases().filter(|lease| lease.job == job);
    own.fold(Resources::new(), plus)
}

fn held_by_all(node: &Node) -> Resources {
    node.leases().fold(Resources::new(), plus)
}

fn plus(mut sum: Resources, lease: &Lease) -> Resources {
    sum.add(&lease.resources);
    sum
}

/// A lease that keeps others away, and is nobody's to end. None of nothing.
fn lease(node: &Node, holder: String, resources: Resources, devices: Vec<u32>) -> Option<Lease> {
    if resources.is_empty() && devices.is_empty() {
        return None;
    }
    let grant = |index| DeviceGrant {
        index,
        milli: 1000,
        memory: u64::MAX,
    };
    Some(Lease {
        // It counts for no quota.
        job: String::new(),
        holder,
        rank: 0,
        node: node.name.clone(),
        process: Process::Existing(0),
        isolation: Isolation::Process,
        resources,
        devices: devices.into_iter().map(grant).collect(),
        device_set: None,
        priority: i32::MAX,
    })
}

#[cfg(test)]
mod tests {
    use odeon_placement::{Demand, Plan, View, solve};

    use super::*;

    fn node() -> Node {
        Node::new("a", Resources::new().cpu_milli(8000)).gpus(4, "H200", 80 << 30)
    }

    fn reserved(job: &str, cpu_milli: u64, devices: &[u32]) -> JobReservation {
        JobReservation {
            job: job.to_owned(),
            node: "a".to_owned(),
            resources: Resources::new().cpu_milli(cpu_milli),
            devices: devices.to_vec(),
        }
    }

    fn known(all: &[JobReservation]) -> Reservations {
        let mut reservations = Reservations::default();
        assert!(reservations.hear(all.to_vec()));
        assert!(!reservations.hear(all.to_vec()));
        reservations
    }

    fn solved(all: &Reservations, node: Node, demand: Demand) -> Result<Plan, String> {
        let job = demand.job.clone();
        let view = View::new([all.seen_by(&job, node)]);
        solve(&view, &[demand]).map_err(|refusal| refusal.to_string())
    }

    fn devices(plan: &Plan) -> Vec<u32> {
        let grants = plan.leases.iter().flat_map(|lease| &lease.devices);
        grants.map(|grant| grant.index).collect()
    }

    fn gpus(job: &str, count: u32) -> Demand {
        Demand::new(job, "actor", Resources::new()).gpus(count)
    }

    fn cores(job: &str, count: u64) -> Demand {
        Demand::new(job, "actor", Resources::new().cpu_milli(count * 1000))
    }

    #[test]
    fn actors_get_the_devices_that_their_job_has_reserved_and_no_others() {
        let all = known(&[reserved("s/j1.1", 0, &[2, 3])]);
        let plan = solved(&all, node(), gpus("s/j1.1", 2)).unwrap();
        assert_eq!(devices(&plan), [2, 3]);
        let why = solved(&all, node(), gpus("s/j1.1", 3)).unwrap_err();
        assert!(
            why.contains("what s/j1.1 has not reserved holds 2"),
            "{why}"
        );
        let plan = solved(&all, node(), gpus("s/j2.1", 2)).unwrap();
        assert_eq!(devices(&plan), [0, 1]);
        let why = solved(&all, node(), gpus("s/j2.1", 3)).unwrap_err();
        assert!(
            why.contains("s/j1.1, which has reserved it, holds 2"),
            "{why}"
        );
        // A part of a device that its owner uses in part is not free either.
        let held = View::new([node()]);
        let part = Demand::new("s/j1.1", "own", Resources::new()).gpu_milli(500);
        let view = View::new([all.seen_by("s/j1.1", node())]);
        let held = held.with(&solve(&view, &[part]).unwrap());
        let node = held.node("a").unwrap().clone();
        let part = Demand::new("s/j2.1", "actor", Resources::new()).gpu_milli(500);
        let plan = solved(&all, node, part).unwrap();
        assert!(devices(&plan) == [0] || devices(&plan) == [1]);
    }

    #[test]
    fn processors_that_a_job_has_reserved_are_for_its_actors() {
        let all = known(&[reserved("s/j1.1", 6000, &[]), reserved("s/j3.1", 1000, &[])]);
        assert!(solved(&all, node(), cores("s/j1.1", 6)).is_ok());
        assert!(solved(&all, node(), cores("s/j1.1", 7)).is_err());
        assert!(solved(&all, node(), cores("s/j2.1", 1)).is_ok());
        assert!(solved(&all, node(), cores("s/j2.1", 2)).is_err());
        // What its actors hold is a part of it.
        let view = View::new([node()]);
        let held = view.with(&solved(&all, node(), cores("s/j1.1", 4)).unwrap());
        let node = || held.node("a").unwrap().clone();
        assert!(solved(&all, node(), cores("s/j1.1", 2)).is_ok());
        assert!(solved(&all, node(), cores("s/j1.1", 3)).is_err());
        assert!(solved(&all, node(), cores("s/j2.1", 1)).is_ok());
        assert!(solved(&all, node(), cores("s/j2.1", 2)).is_err());
        // Of devices it has reserved none, so it gets what nobody has.
        let plan = solved(&all, node(), gpus("s/j1.1", 4)).unwrap();
        assert_eq!(devices(&plan).len(), 4);
    }

    #[test]
    fn the_driver_s_node_knows_from_the_beginning() {
        let mut all = Reservations::default();
        all.set_own("s/j1.1", vec![reserved("s/j1.1", 0, &[3])]);
        let plan = solved(&all, node(), gpus("s/j1.1", 1)).unwrap();
        assert_eq!(devices(&plan), [3]);
        all.hear(vec![reserved("s/j9.1", 0, &[0])]);
        assert!(solved(&all, node(), gpus("s/j2.1", 3)).is_err());
        // What is heard of it later counts once, and in place of that.
        all.hear(vec![reserved("s/j1.1", 0, &[2])]);
        let plan = solved(&all, node(), gpus("s/j1.1", 1)).unwrap();
        assert_eq!(devices(&plan), [2]);
        assert!(solved(&all, node(), gpus("s/j2.1", 3)).is_ok());
        all.set_own("s/j3.1", vec![reserved("s/j3.1", 0, &[3])]);
        assert!(solved(&all, node(), gpus("s/j2.1", 3)).is_err());
        all.set_own("s/j3.1", vec![]);
        assert!(solved(&all, node(), gpus("s/j2.1", 3)).is_ok());
    }
}
