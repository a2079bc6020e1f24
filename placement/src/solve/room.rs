//! Counts of the bundles that each node can take, and the reasons that stop the next one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use crate::device::Health;
use crate::refusal::{NodeRefusal, Reason};
use crate::view::{Glance, Group, Left, Mask, bits};
use crate::{
    Affinity, Arrange, Demand, Device, DeviceAsk, Isolation, Level, Liveness, Node, Resource,
    Resources, Share, View,
};

/// A node with room, or some devices of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    /// The node, by its place in the view.
    pub(crate) at: usize,
    /// Devices that may be used.
    pub(crate) mask: Mask,
    /// Bundles that fit, no more than asked for.
    pub(crate) count: u32,
    /// Weight of the preferences that it meets.
    pub(crate) liking: u64,
}

/// A demand with all that is looked up once: where its neighbours are, and its workers.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    pub(super) view: &'a View,
    pub(super) demand: &'a Demand,
    required: Vec<Test<'a>>,
    preferred: Vec<(Test<'a>, u32)>,
    light_workers: &'a [Option<u64>],
    /// By kind of device, whether it will do.
    accepted: Vec<bool>,
    /// True to see the nodes without their leases and workers.
    idle: bool,
    /// Most bundles of the demand on one node.
    most: u32,
}

/// An affinity with its holder looked up.
#[derive(Debug)]
struct Test<'a> {
    affinity: &'a Affinity,
    /// For a holder: the groups that it lies in.
    groups: HashSet<Group>,
}

impl<'a> Test<'a> {
    fn new(view: &View, affinity: &'a Affinity) -> Self {
        let groups = match affinity {
            Affinity::Near(holder, level) | Affinity::Apart(holder, level) => {
                groups_of(view, holder, *level)
            }
            _ => HashSet::new(),
        };
        Self { affinity, groups }
    }

    /// The devices of a node that pass, or why the node does not.
    fn pass(&self, view: &View, at: usize) -> Result<Mask, Reason> {
        let node = view.at(at);
        let all = node.all_devices();
        match self.affinity {
            Affinity::Node(wanted) if node.name != *wanted => Err(Reason::NotTheNode {
                wanted: wanted.clone(),
            }),
            Affinity::NotNode(avoided) if node.name == *avoided => Err(Reason::Avoided),
            Affinity::Label(key, wanted) if node.labels.get(key) != Some(wanted) => {
                Err(Reason::Label {
                    key: key.clone(),
                    wanted: wanted.clone(),
                    found: node.labels.get(key).cloned(),
                })
            }
            Affinity::Accelerated if node.devices.is_empty() => Err(Reason::NotAccelerated),
            Affinity::Near(holder, level) => {
                let mask = self.inside(view, at, *level);
                let near = mask.ok_or_else(|| Reason::NotNear {
                    holder: holder.clone(),
                    level: *level,
                });
                near.map(|mask| mask & all)
            }
            Affinity::Apart(holder, level) => match self.inside(view, at, *level) {
                None => Ok(all),
                Some(mask) if *level > Level::Node && mask != all => Ok(all & !mask),
                Some(_) => Err(Reason::NotApart {
                    holder: holder.clone(),
                    level: *level,
                }),
            },
            _ => Ok(all),
        }
    }

    /// The devices of a node inside the holder's groups; `None` if the node is outside.
    fn inside(&self, view: &View, at: usize, level: Level) -> Option<Mask> {
        if level <= Level::Node {
            let inside = self.groups.contains(&view.group(level, at));
            return inside.then_some(Mask::MAX);
        }
        let node = view.at(at);
        let devices = bits(node.all_devices());
        let inside = devices.filter(|&i| {
            let group = view.device_group(level, at, i);
            self.groups.contains(&group)
        });
        let mask = inside.fold(0, |mask: Mask, i| mask | 1 << i);
        (mask != 0).then_some(mask)
    }
}

/// The groups of a level that a holder has leases in.
fn groups_of(view: &View, holder: &str, level: Level) -> HashSet<Group> {
    let mut groups = HashSet::new();
    for at in view.places_of(holder) {
        if level <= Level::Node {
            groups.insert(view.group(level, at));
            continue;
        }
        let node = view.at(at);
        let leases = node.leases().filter(|lease| lease.holder == holder);
        for grant in leases.flat_map(|lease| &lease.devices) {
            let i = node.devices.iter().position(|d| d.index == grant.index);
            groups.extend(i.map(|i| view.device_group(level, at, i)));
        }
    }
    groups
}

impl<'a> Rules<'a> {
    pub(crate) fn new(view: &'a View, demand: &'a Demand) -> Self {
        let test = |affinity| Test::new(view, affinity);
        Self {
            view,
            demand,
            required: demand.affinity.iter().map(test).collect(),
            preferred: demand
                .preferences
                .iter()
                .map(|(a, w)| (test(a), *w))
                .collect(),
            light_workers: view.light_workers(&demand.job),
            accepted: view
                .kinds()
                .iter()
                .map(|kind| demand.accepts(kind))
                .collect(),
            idle: false,
            most: match demand.arrange {
                Arrange::StrictSpread => demand.gang.min(1),
                _ => demand.gang,
            },
        }
    }

    /// The same as if nobody were there: without leases and workers, and without requirements on
    /// where others are, who come and go.
    pub(crate) fn idle(view: &'a View, demand: &'a Demand) -> Self {
        let mut rules = Self::new(view, demand);
        rules
            .required
            .retain(|test| !test.affinity.is_about_others());
        rules.preferred.clear();
        rules.light_workers = &[];
        rules.idle = true;
        rules
    }

    fn free(&self, node: &'a Node) -> &'a Resources {
        if self.idle {
            &node.capacity
        } else {
            node.free()
        }
    }

    fn left(&self, node: &Node, i: usize) -> Left {
        if self.idle {
            Left::all_of(&node.devices[i])
        } else {
            node.left()[i]
        }
    }

    fn free_workers(&self, node: &Node) -> u32 {
        if self.idle {
            node.worker_limit
        } else {
            node.free_workers()
        }
    }

    /// The devices among these that can be leased whole now.
    pub(crate) fn open(&self, node: &Node, mask: Mask) -> Mask {
        let held = if self.idle { 0 } else { node.held() };
        mask & node.usable(&self.accepted) & !held
    }

    /// The devices among these that can be leased in part now, with how many bundles fit on each.
    pub(crate) fn parts(&self, node: &'a Node, mask: Mask) -> impl Iterator<Item = (usize, u32)> {
        let usable = bits(mask & node.usable(&self.accepted));
        let parts = usable.map(|i| (i, self.parts_left(node, i)));
        parts.filter(|(_, parts)| *parts > 0)
    }

    fn parts_left(&self, node: &Node, i: usize) -> u32 {
        let (device, left) = (&node.devices[i], self.left(node, i));
        // A device that is leased whole has no time left, and one that is a set must stay one.
        if left.milli == 0 || left.in_set {
            return 0;
        }
        let milli = self.demand.devices.as_ref().map_or(0, DeviceAsk::milli);
        let memory = self.demand.memory_of(device);
        let by_time = left.milli.checked_div(milli).unwrap_or(u32::MAX);
        let by_memory = left.memory.checked_div(memory).unwrap_or(u64::MAX);
        let by_memory = u32::try_from(by_memory).unwrap_or(u32::MAX);
        by_time.min(by_memory).min(self.demand.gang)
    }

    /// All nodes with room, in the order of the topology.
    pub(crate) fn spots(&self) -> Vec<Spot> {
        let [cpu, memory] = self.demand.bundle.common();
        // One light bundle without requirements is decided at a glance.
        let light = self.demand.devices.is_none() && self.demand.bundle.is_common();
        let simple = light && self.required.is_empty() && self.most == 1;
        let spot = |at| {
            let glance = self.view.glance(at);
            let [free_cpu, free_memory] = glance.free;
            let fits = glance.up && free_cpu >= cpu && free_memory >= memory;
            let (mask, count) = match fits || self.idle {
                false => return None,
                true if simple && !self.idle => (0, u32::from(self.staffs(at, glance))),
                true => {
                    let mask = self.suits(at).ok()?;
                    (mask, self.count(at, mask))
                }
            };
            let liked = self.preferred.iter();
            let liked = liked.filter(|(test, _)| test.pass(self.view, at).is_ok());
            (count > 0).then(|| Spot {
                at,
                mask,
                count,
                liking: liked.map(|(_, weight)| u64::from(*weight)).sum(),
            })
        };
        (0..self.view.nodes().len()).filter_map(spot).collect()
    }

    /// Returns true when a light bundle finds a process.
    fn staffs(&self, at: usize, glance: Glance) -> bool {
        let joins = self.demand.isolation == Isolation::Shared && self.has_light_worker(at);
        glance.takes_worker || joins
    }

    /// The devices of a node that the demand may use, or what rules the node out altogether,
    /// whatever its room.
    pub(crate) fn suits(&self, at: usize) -> Result<Mask, Reason> {
        let node = self.view.at(at);
        if node.liveness != Liveness::Up {
            return Err(Reason::NotUp(node.liveness));
        }
        let mut mask = node.all_devices();
        for test in &self.required {
            mask &= test.pass(self.view, at)?;
        }
        Ok(mask)
    }

    /// Number of bundles that fit on a node with these devices, where those that belong together do.
    pub(crate) fn count(&self, at: usize, mask: Mask) -> u32 {
        let count = self.single(at, mask);
        count - count % self.demand.unit.max(1)
    }

    /// Number of bundles that fit on a node with these devices, each for itself.
    fn single(&self, at: usize, mask: Mask) -> u32 {
        let node = self.view.at(at);
        let by_resources = self.free(node).times(&self.demand.bundle, self.most);
        match &self.demand.devices {
            // What most nodes fail at comes first.
            _ if by_resources == 0 => 0,
            Some(ask) => by_resources.min(self.by_devices(at, ask, mask)),
            None => by_resources.min(self.by_workers(at)),
        }
    }

    fn by_workers(&self, at: usize) -> u32 {
        let node = self.view.at(at);
        match self.demand.isolation {
            Isolation::Process => self.free_workers(node),
            Isolation::Shared if self.has_light_worker(at) => u32::MAX,
            Isolation::Shared if self.free_workers(node) > 0 => u32::MAX,
            Isolation::Shared => 0,
        }
    }

    fn by_devices(&self, at: usize, ask: &DeviceAsk, mask: Mask) -> u32 {
        let node = self.view.at(at);
        match ask.share {
            Share::Whole(each) => {
                let open = self.open(node, mask);
                let Some(level) = ask.within.filter(|level| *level > Level::Node) else {
                    return open.count_ones() / each;
                };
                let mut groups: BTreeMap<Group, u32> = BTreeMap::new();
                for i in bits(open) {
                    let group = self.view.device_group(level, at, i);
                    *groups.entry(group).or_default() += 1;
                }
                groups.into_values().map(|count| count / each).sum()
            }
            Share::Slice(_) => self.open(node, mask).count_ones(),
            Share::Part(_) => {
                let parts = self.parts(node, mask).map(|(_, parts)| parts);
                parts.fold(0, u32::saturating_add)
            }
        }
    }

    /// Returns true when the job's light actors have a worker on the node already.
    pub(crate) fn has_light_worker(&self, at: usize) -> bool {
        self.light_workers.get(at).is_some_and(Option::is_some)
    }
}

impl Demand {
    /// Returns true when a device is of the kind asked for, whoever holds it.
    pub(crate) fn accepts(&self, device: &Device) -> bool {
        let Some(ask) = &self.devices else {
            return false;
        };
        let model = ask.models.is_empty() || ask.models.contains(&device.model);
        let slice = match &ask.share {
            Share::Slice(profile) => device.slice.as_ref() == Some(profile),
            _ => device.slice.is_none(),
        };
        model && slice && device.memory >= ask.memory.unwrap_or(0)
    }

    /// Memory that a bundle gets of a device.
    pub(crate) fn memory_of(&self, device: &Device) -> u64 {
        let ask = self.devices.as_ref();
        let memory = ask.and_then(|ask| ask.memory);
        match ask.map(|ask| &ask.share) {
            Some(Share::Part(milli)) => memory.unwrap_or_else(|| {
                // At most the memory of the device, since a part is less than the whole.
                (u128::from(device.memory) * u128::from(*milli) / 1000) as u64
            }),
            _ if self.device_set.is_some() => memory.unwrap_or(device.memory),
            _ => device.memory,
        }
    }
}

/// For each node what stops the next bundle, those nearest to a fit first.
pub(crate) fn why_not(rules: &Rules<'_>) -> Vec<NodeRefusal> {
    let view = rules.view;
    let mut nodes: Vec<NodeRefusal> = (0..view.nodes().len())
        .map(|at| {
            let (room_for, reason) = match rules.suits(at) {
                Err(reason) => (0, reason),
                Ok(mask) => {
                    let count = rules.single(at, mask);
                    (count, shortage(rules, at, mask, count))
                }
            };
            NodeRefusal {
                node: view.at(at).name.clone(),
                room_for,
                reason,
            }
        })
        .collect();
    nodes.sort_by_cached_key(|node| (Reverse(node.room_for), node.reason.distance()));
    nodes
}

/// The reason that stops the next bundle on a node that suits.
fn shortage(rules: &Rules<'_>, at: usize, mask: Mask, count: u32) -> Reason {
    let (node, demand) = (rules.view.at(at), rules.demand);
    if count >= rules.most {
        return Reason::Others;
    }
    if let Some(ask) = &demand.devices
        && rules.by_devices(at, ask, mask) <= count
    {
        return device_shortage(rules, ask, at, mask, count);
    }
    let Some((resource, times)) = node.free().tightest(&demand.bundle) else {
        return too_many_workers(node);
    };
    if times > u64::from(count) {
        return too_many_workers(node);
    }
    let (asked, capacity) = (demand.bundle.get(&resource), node.capacity.get(&resource));
    if capacity < asked {
        return Reason::TooSmall {
            resource,
            asked,
            capacity,
        };
    }
    let taken = asked.saturating_mul(u64::from(count));
    Reason::Busy {
        free: node.free().get(&resource).saturating_sub(taken),
        holders: node.holders_of(&resource),
        resource,
        asked,
        capacity,
    }
}

fn device_shortage(
    rules: &Rules<'_>,
    ask: &DeviceAsk,
    at: usize,
    mask: Mask,
    count: u32,
) -> Reason {
    let (node, demand) = (rules.view.at(at), rules.demand);
    let quarantined = |i: &usize| node.devices[*i].health != Health::Good;
    let of_kind: Vec<usize> = bits(mask)
        .filter(|&i| demand.accepts(&node.devices[i]))
        .collect();
    let healthy = of_kind.iter().filter(|i| !quarantined(i)).count() as u32;
    let out = of_kind.iter().find(|i| quarantined(i)).map(|&i| {
        let device = &node.devices[i];
        (device.index, device.health.to_string())
    });
    let open = rules.open(node, mask);
    let free = open.count_ones().saturating_sub(count * ask.count());
    if of_kind.is_empty() && mask != 0 {
        let mut found: Vec<String> = bits(mask).map(|i| node.devices[i].told()).collect();
        found.sort();
        found.dedup();
        return Reason::OtherDevices { found };
    }
    if healthy < ask.count() {
        return Reason::TooFewDevices {
            asked: ask.count(),
            have: healthy,
            quarantined: out,
        };
    }
    match ask.share {
        // Enough in number, but not in one group.
        Share::Whole(each) if free >= each && ask.within.is_some() => Reason::NotTogether {
            asked: each,
            free,
            level: ask.within.unwrap_or(Level::Node),
        },
        Share::Whole(_) | Share::Slice(_) => Reason::DevicesBusy {
            free,
            have: healthy,
            holders: node.device_holders(),
            quarantined: out,
        },
        Share::Part(_) => {
            let best = of_kind.iter().filter(|i| !quarantined(i));
            let best = best.max_by_key(|&&i| {
                let left = node.left()[i];
                (
                    left.milli >= ask.milli(),
                    left.memory,
                    left.milli,
                    Reverse(i),
                )
            });
            let best = best.copied().unwrap_or_default();
            let (device, left) = (&node.devices[best], node.left()[best]);
            Reason::DeviceBusy {
                device: device.index,
                free_milli: left.milli,
                free_memory: left.memory,
                memory: device.memory,
                holders: node.holders_of_device(device.index),
            }
        }
    }
}

fn too_many_workers(node: &Node) -> Reason {
    let mut jobs: BTreeMap<&str, u32> = BTreeMap::new();
    for worker in node.workers.iter().filter(|w| w.devices.is_empty()) {
        *jobs.entry(&worker.job).or_default() += 1;
    }
    let mut jobs: Vec<_> = jobs
        .into_iter()
        .map(|(job, n)| (job.to_owned(), n))
        .collect();
    jobs.sort_by_key(|(_, count)| Reverse(*count));
    Reason::Workers {
        limit: node.worker_limit,
        jobs,
    }
}

impl Affinity {
    /// Returns true when it is about the place of another holder, who may come and go.
    pub(crate) fn is_about_others(&self) -> bool {
        matches!(self, Self::Near(..) | Self::Apart(..))
    }
}

impl Reason {
    /// A resource of a node that others hold, for callers outside of this module.
    pub(crate) fn busy(node: &Node, resource: Resource, asked: u64) -> Self {
        Self::Busy {
            free: node.free().get(&resource),
            holders: node.holders_of(&resource),
            capacity: node.capacity.get(&resource),
            resource,
            asked,
        }
    }
}
