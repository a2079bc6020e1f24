//! The cluster as the solver sees it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::device::Health;
use odeon_topology::Links;

use crate::{Device, Isolation, Lease, Level, Plan, Process, Resources};

mod node;

pub(crate) use node::{Glance, Left, Mask, bits};
pub use node::{Liveness, Node, Worker};

/// A picture of all nodes at one moment, with what is free kept beside what is held, so that
/// placing costs a walk over the nodes and nothing else.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Picture", into = "Picture")]
pub struct View {
    /// In the order of the topology: by zone, rack and name, numbers in names by their value.
    nodes: Vec<Node>,
    /// Of each node what most decisions look at, side by side in memory.
    glances: Vec<Glance>,
    places: HashMap<String, usize>,
    /// By holder, the nodes (by place) of its leases and how many.
    holders: BTreeMap<String, BTreeMap<usize, u32>>,
    /// By job, the number of the worker that light actors have on each node (by place).
    light_workers: HashMap<String, Vec<Option<u64>>>,
    /// Names of NVLink domains by number.
    domains: Vec<String>,
    /// Kinds of devices by number: one of each.
    kinds: Vec<Device>,
    quotas: BTreeMap<String, Quota>,
    links: Links,
}

/// Returns true when `of` stands for this job: it is the job's name, or it ends with `/` and the
/// name begins with it.
pub(crate) fn covers(of: &str, job: &str) -> bool {
    of == job || of.ends_with('/') && job.starts_with(of)
}

/// The most that one job may hold at a time; or all jobs of a namespace together, whose name is
/// `namespace/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Only the resources named here are limited.
    pub resources: Resources,
    /// Devices in thousandths; parts and slices count as what they are of a card.
    pub gpu_milli: Option<u64>,
}

/// The serialised part of a view; the rest follows from it.
#[derive(Debug, Serialize, Deserialize)]
struct Picture {
    nodes: Vec<Node>,
    #[serde(default)]
    quotas: BTreeMap<String, Quota>,
    #[serde(default)]
    links: Links,
}

impl From<Picture> for View {
    fn from(picture: Picture) -> Self {
        let mut view = Self::new(picture.nodes);
        view.quotas = picture.quotas;
        view.links = picture.links;
        view
    }
}

impl From<View> for Picture {
    fn from(view: View) -> Self {
        Self {
            nodes: view.nodes,
            quotas: view.quotas,
            links: view.links,
        }
    }
}

impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        let rest = self.quotas == other.quotas && self.links == other.links;
        rest && self.nodes == other.nodes
    }
}

impl View {
    /// A picture of these nodes. Of nodes with the same name, the last counts.
    pub fn new(nodes: impl IntoIterator<Item = Node>) -> Self {
        let by_name: HashMap<String, Node> = nodes
            .into_iter()
            .map(|node| (node.name.clone(), node))
            .collect();
        let mut view = Self {
            nodes: by_name.into_values().collect(),
            ..Self::default()
        };
        view.nodes.sort_by_cached_key(node::order);
        view.index();
        view
    }

    /// All nodes, in the order of the topology.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.nodes.iter()
    }

    /// One node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.places.get(name).map(|&at| &self.nodes[at])
    }

    /// Adds a node, or puts it in the place of the one with its name.
    pub fn put(&mut self, node: Node) {
        match self.places.get(&node.name) {
            Some(&at) => self.nodes[at] = node,
            None => self.nodes.push(node),
        }
        self.nodes.sort_by_cached_key(node::order);
        self.index();
    }

    /// Takes a node and all leases on it out of the picture.
    pub fn remove(&mut self, name: &str) -> Option<Node> {
        let node = self.places.get(name).map(|&at| self.nodes.remove(at));
        self.index();
        node
    }

    /// Changes what a node says of itself (liveness, labels, the health of its devices) and tells
    /// whether there is such a node.
    pub fn update(&mut self, name: &str, change: impl FnOnce(&mut Node)) -> bool {
        let Some(mut node) = self.node(name).cloned() else {
            return false;
        };
        change(&mut node);
        self.put(node);
        true
    }

    /// Sets the links between its parts.
    #[must_use]
    pub fn with_links(mut self, links: Links) -> Self {
        self.links = links;
        self
    }

    /// The links between its parts.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Limits what a job may hold.
    pub fn set_quota(&mut self, job: impl Into<String>, quota: Quota) {
        self.quotas.insert(job.into(), quota);
    }

    /// The limits of jobs that have any.
    #[must_use]
    pub fn quotas(&self) -> &BTreeMap<String, Quota> {
        &self.quotas
    }

    /// All leases, node by node.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.nodes.iter().flat_map(Node::leases)
    }

    /// Carries out a plan: its leases are held from now on. New workers get the next free numbers of
    /// their nodes; the real ones may get others.
    ///
    /// # Panics
    /// If the plan names a node that is not in the picture.
    pub fn grant(&mut self, plan: &Plan) {
        let mut started = HashMap::new();
        for lease in &plan.leases {
            let at = self.places[&lease.node];
            let node = &mut self.nodes[at];
            if let Process::New(nth) = lease.process {
                let id = *started
                    .entry((at, nth))
                    .or_insert_with(|| node.start_worker(lease));
                node.grant(Lease {
                    process: Process::Existing(id),
                    ..lease.clone()
                });
                if lease.devices.is_empty() && lease.isolation == Isolation::Shared {
                    self.note_light_worker(&lease.job.clone(), at, id);
                }
            } else {
                node.grant(lease.clone());
            }
            self.glances[at] = self.nodes[at].glance();
            let holder = self.holders.entry(lease.holder.clone()).or_default();
            *holder.entry(at).or_default() += 1;
        }
    }

    /// The picture after a plan was carried out.
    #[must_use]
    pub fn with(&self, plan: &Plan) -> Self {
        let mut view = self.clone();
        view.grant(plan);
        view
    }

    /// Gives back all that a holder has. Its worker processes stay, for others of the job.
    pub fn release(&mut self, holder: &str) -> Vec<Lease> {
        let nodes = self.holders.remove(holder).unwrap_or_default();
        let nodes = nodes.into_keys();
        let mut released = Vec::new();
        for at in nodes {
            released.extend(self.nodes[at].release(holder));
            self.glances[at] = self.nodes[at].glance();
        }
        released
    }

    /// Places (positions in [`nodes`](Self::nodes)) where a holder has leases.
    pub(crate) fn places_of(&self, holder: &str) -> impl Iterator<Item = usize> {
        let places = self.holders.get(holder).into_iter();
        places.flat_map(|nodes| nodes.keys().copied())
    }

    /// The worker that light actors of `job` share on each node.
    pub(crate) fn light_workers(&self, job: &str) -> &[Option<u64>] {
        self.light_workers.get(job).map_or(&[], Vec::as_slice)
    }

    fn note_light_worker(&mut self, job: &str, at: usize, id: u64) {
        let nodes = self.nodes.len();
        let workers = match self.light_workers.get_mut(job) {
            Some(workers) => workers,
            None => self.light_workers.entry(job.to_owned()).or_default(),
        };
        workers.resize(nodes, None);
        workers[at] = Some(workers[at].map_or(id, |least| least.min(id)));
    }

    /// One device of each kind that there is.
    pub(crate) fn kinds(&self) -> &[Device] {
        &self.kinds
    }

    /// The node at a place, at a glance.
    pub(crate) fn glance(&self, place: usize) -> Glance {
        self.glances[place]
    }

    /// The node at a place.
    pub(crate) fn at(&self, place: usize) -> &Node {
        &self.nodes[place]
    }

    /// The holdings of a job, or of a whole namespace that is named `namespace/`: resources, and
    /// devices in thousandths. Roles that share a device count once.
    #[must_use]
    pub fn held_by_job(&self, job: &str) -> (Resources, u64) {
        let mut sum = Resources::new();
        let mut milli = 0;
        for node in &self.nodes {
            let mut sets = Vec::new();
            for lease in node.leases().filter(|lease| covers(job, &lease.job)) {
                sum.add(&lease.resources);
                for grant in &lease.devices {
                    let shared = lease.device_set.is_some();
                    if shared && sets.contains(&grant.index) {
                        continue;
                    }
                    if shared {
                        sets.push(grant.index);
                    }
                    milli += u64::from(grant.milli);
                }
            }
        }
        (sum, milli)
    }

    fn index(&mut self) {
        self.places.clear();
        self.holders.clear();
        self.light_workers.clear();
        let mut light = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.recount();
            self.places.insert(node.name.clone(), at);
            for lease in node.leases() {
                let holder = self.holders.entry(lease.holder.clone()).or_default();
                *holder.entry(at).or_default() += 1;
            }
            for worker in &node.workers {
                if worker.isolation == Isolation::Shared && worker.devices.is_empty() {
                    light.push((worker.job.clone(), at, worker.id));
                }
            }
        }
        for (job, at, id) in light {
            self.note_light_worker(&job, at, id);
        }
        self.glances = self.nodes.iter().map(Node::glance).collect();
        self.number_groups();
    }
}

/// Which group of a level something lies in; equal groups are the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    Cluster,
    Zone(u32),
    Rack(u32),
    Node(usize),
    Numa(usize, u32),
    Switch(usize, u32),
    Nvlink(u32),
    Device(usize, u32),
    /// A device whose place at this level is not known: it is near nobody.
    Alone(usize, u32),
}

impl View {
    /// Zones and racks get numbers in the order of the topology, NVLink domains in that of their
    /// first device.
    fn number_groups(&mut self) {
        let (mut zone, mut rack) = (0, 0);
        let mut domains: HashMap<String, u32> = HashMap::new();
        self.domains.clear();
        self.kinds.clear();
        for at in 0..self.nodes.len() {
            if let Some(before) = at.checked_sub(1) {
                let (before, node) = (&self.nodes[before], &self.nodes[at]);
                let moved = before.zone != node.zone;
                zone += u32::from(moved);
                rack += u32::from(moved || before.rack != node.rack);
            }
            let node = &mut self.nodes[at];
            (node.zone_number, node.rack_number) = (zone, rack);
            let names = node.devices.iter().map(|device| device.nvlink.as_ref());
            let number = |name: &String| {
                let next = self.domains.len() as u32;
                *domains.entry(name.clone()).or_insert_with(|| {
                    self.domains.push(name.clone());
                    next
                })
            };
            let mut number = number;
            node.domains = names.map(|name| name.map(&mut number)).collect();
            node.kinds.clear();
            for (i, device) in node.devices.iter().enumerate().take(Mask::BITS as usize) {
                let known = self.kinds.iter().position(|kind| kind.is_like(device));
                let kind = known.unwrap_or_else(|| {
                    self.kinds.push(device.clone());
                    self.kinds.len() - 1
                });
                match node.kinds.iter_mut().find(|(number, _)| *number == kind) {
                    Some((_, mask)) => *mask |= 1 << i,
                    None => node.kinds.push((kind, 1 << i)),
                }
            }
        }
    }

    /// The group of a level down to the node that a node lies in.
    pub(crate) fn group(&self, level: Level, at: usize) -> Group {
        let node = &self.nodes[at];
        match level {
            Level::Cluster => Group::Cluster,
            Level::Zone => Group::Zone(node.zone_number),
            Level::Rack => Group::Rack(node.rack_number),
            _ => Group::Node(at),
        }
    }

    /// The group of any level that a device (by position) lies in.
    pub(crate) fn device_group(&self, level: Level, at: usize, i: usize) -> Group {
        let node = &self.nodes[at];
        let device = &node.devices[i];
        match level {
            Level::Numa => Group::Numa(at, device.numa),
            Level::Switch => match device.switch {
                Some(switch) => Group::Switch(at, switch),
                None => Group::Alone(at, device.card),
            },
            Level::Nvlink => match node.domains[i] {
                Some(domain) => Group::Nvlink(domain),
                None => Group::Alone(at, device.card),
            },
            Level::Device => Group::Device(at, device.card),
            _ => self.group(level, at),
        }
    }

    /// The name of a group for people.
    pub(crate) fn group_name(&self, group: &Group) -> String {
        let node = |at: &usize| &self.nodes[*at].name;
        match group {
            Group::Cluster => "the cluster".into(),
            Group::Zone(zone) => {
                let of = self.nodes.iter().find(|node| node.zone_number == *zone);
                let name = of.and_then(|node| node.zone.as_deref());
                format!("zone {}", name.unwrap_or("(unnamed)"))
            }
            Group::Rack(rack) => {
                let of = self.nodes.iter().find(|node| node.rack_number == *rack);
                let name = of.and_then(|node| node.rack.as_deref());
                format!("rack {}", name.unwrap_or("(unnamed)"))
            }
            Group::Node(at) => node(at).clone(),
            Group::Numa(at, numa) => format!("NUMA node {numa} of {}", node(at)),
            Group::Switch(at, switch) => format!("PCIe switch {switch} of {}", node(at)),
            Group::Nvlink(domain) => format!("NVLink domain {}", self.domains[*domain as usize]),
            Group::Device(at, card) | Group::Alone(at, card) => {
                format!("device {card} of {}", node(at))
            }
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("good"),
            Self::Quarantined(reason) => write!(f, "quarantined: {reason}"),
        }
    }
}
