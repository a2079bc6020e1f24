//! The solver. All bundles of a demand are equal, so counting how many each node can take is exact.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::refusal::Cause;
use crate::view::{Group, Mask, bits, covers};
use crate::{Demand, DemandError, Isolation, Level, Quota, Refusal, Resources, View};

mod arrange;
mod device_set;
mod lay;
mod near;
mod room;

use room::Spot;
pub(crate) use room::{Rules, why_not};

/// Where each bundle of one or more demands goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// One for each bundle, demand by demand, in the order of ranks.
    ///
    /// Ranks follow the order of the topology: zone, rack, node by name (numbers by value), and on a
    /// node its devices by NUMA node, switch, NVLink domain and number. So ranks that follow each
    /// other are as near as the places of their gang allow. Of a gang that says who
    /// [talks](Demand::talks) with whom that holds on each node, and ranks that talk much are near.
    pub leases: Vec<Lease>,
}

/// A bundle's right to a part of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The job that it belongs to.
    pub job: String,
    /// The name of its holder.
    pub holder: String,
    /// Which bundle of the gang.
    pub rank: u32,
    /// The node.
    pub node: String,
    /// The process on that node.
    pub process: Process,
    /// The isolation of the process: shared within the job, or for this bundle alone.
    pub isolation: Isolation,
    /// The resources that it gives a right to, without devices.
    pub resources: Resources,
    /// The devices, in the order of the topology.
    #[serde(default)]
    pub devices: Vec<DeviceGrant>,
    /// The set that the devices are shared as.
    #[serde(default)]
    pub device_set: Option<String>,
    /// Of its demand.
    #[serde(default)]
    pub priority: i32,
}

/// A right to a device, or to a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceGrant {
    /// The [`index`](crate::Device::index) of the device on its node.
    pub index: u32,
    /// Share of its time, in thousandths.
    pub milli: u32,
    /// Part of its memory, in bytes.
    pub memory: u64,
}

/// The process that a bundle runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// The running worker with this [`id`](crate::Worker::id).
    Existing(u64),
    /// The n-th new worker that this plan starts on the node; bundles with the same number share
    /// it.
    New(u32),
}

/// Finds places for all of `demands`, or says why there are none.
///
/// Deterministic: no clock, no input, no chance. For a single demand it is exact: a refusal means
/// that no placement meets it. Several demands are placed one after the other, higher priorities
/// first, else as listed; one that finds no room any more moves to the front of its priority and
/// the rest try again, so a refusal of several means that none of these orders worked.
///
/// # Errors
///
/// A [`Refusal`] that names for each node the first thing in the way and who holds it.
pub fn solve(view: &View, demands: &[Demand]) -> Result<Plan, Refusal> {
    match demands {
        [demand] => solve_one(view, demand),
        _ => solve_in_turn(view, demands),
    }
}

fn solve_in_turn(view: &View, demands: &[Demand]) -> Result<Plan, Refusal> {
    let mut order: Vec<&Demand> = demands.iter().collect();
    let mut names = BTreeSet::new();
    if let Some(twice) = order.iter().find(|demand| !names.insert(&demand.holder)) {
        let error = DemandError::Twice(twice.holder.clone());
        return Err(Refusal::of(twice, Cause::Invalid(error)));
    }
    order.sort_by_key(|demand| std::cmp::Reverse(demand.priority));
    let mut moved = BTreeSet::new();
    let mut furthest: Option<(usize, Refusal)> = None;
    loop {
        match in_this_order(view, &order) {
            Ok(mut plans) => {
                let plans = demands
                    .iter()
                    .filter_map(|demand| plans.remove(&*demand.holder));
                let leases = plans.flat_map(|plan| plan.leases).collect();
                return Ok(Plan { leases });
            }
            Err((at, refusal)) => {
                let class = |demand: &&Demand| demand.priority == order[at].priority;
                let front = order.iter().position(class).unwrap_or(at);
                let again = front < at && moved.insert(&order[at].holder);
                // The order that placed most tells best what is missing.
                let placed = furthest.as_ref().map(|(placed, _)| *placed);
                if placed.is_none_or(|placed| at > placed) {
                    furthest = Some((at, refusal));
                }
                if again {
                    order[front..=at].rotate_right(1);
                } else if let Some((_, refusal)) = furthest {
                    return Err(refusal);
                }
            }
        }
    }
}

/// The plans by holder, or which demand was refused and why.
fn in_this_order<'d>(
    view: &View,
    demands: &[&'d Demand],
) -> Result<BTreeMap<&'d str, Plan>, (usize, Refusal)> {
    let mut view = view.clone();
    let mut plans = BTreeMap::new();
    for (at, demand) in demands.iter().enumerate() {
        let plan = solve_one(&view, demand).map_err(|refusal| (at, refusal))?;
        view.grant(&plan);
        plans.insert(&*demand.holder, plan);
    }
    Ok(plans)
}

fn solve_one(view: &View, demand: &Demand) -> Result<Plan, Refusal> {
    if let Err(error) = demand.check() {
        return Err(Refusal::of(demand, Cause::Invalid(error)));
    }
    if let Some(cause) = over_quota(view, demand) {
        return Err(Refusal::of(demand, cause));
    }
    if demand.gang == 0 {
        return Ok(Plan::default());
    }
    let rules = Rules::new(view, demand);
    if let Some(holder) = device_set::first_holder(view, demand) {
        return device_set::join(view, demand, &rules, &holder);
    }
    let spots = rules.spots();
    let mut groups = groups(&rules, spots);
    let feasible = groups.iter().enumerate().filter_map(|(i, (_, spots))| {
        let liking = arrange::liking(&rules, spots)?;
        let leftover = spots.iter().map(|spot| u64::from(spot.count)).sum::<u64>();
        Some((std::cmp::Reverse(liking), leftover, i))
    });
    // The first of the best: groups come in the order of the topology.
    match feasible.min() {
        Some((std::cmp::Reverse(liking), _, best)) => {
            let (_, mut spots) = groups.swap_remove(best);
            // A node may have no room in the group, though it has some elsewhere.
            spots.retain(|spot| spot.liking >= liking && spot.count > 0);
            let packed = arrange::arrange(&rules, spots.clone());
            Ok(lay::plan(&rules, &near::bundles(&rules, &spots, &packed)))
        }
        None => Err(refuse(&rules, &groups)),
    }
}

/// The places, by the group that the whole gang must lie in.
fn groups(rules: &Rules<'_>, spots: Vec<Spot>) -> Vec<(Group, Vec<Spot>)> {
    let Rules { view, demand, .. } = *rules;
    let Some(level) = demand.within.filter(|level| *level > Level::Cluster) else {
        return vec![(Group::Cluster, spots)];
    };
    let mut groups: BTreeMap<Group, Vec<Spot>> = BTreeMap::new();
    for spot in spots {
        if level <= Level::Node {
            groups
                .entry(view.group(level, spot.at))
                .or_default()
                .push(spot);
            continue;
        }
        let mut masks: BTreeMap<Group, Mask> = BTreeMap::new();
        for device in bits(spot.mask) {
            let group = view.device_group(level, spot.at, device);
            *masks.entry(group).or_default() |= 1 << device;
        }
        for (group, mask) in masks {
            let spot = Spot {
                mask,
                count: rules.count(spot.at, mask),
                ..spot
            };
            groups.entry(group).or_default().push(spot);
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, spots)| spots.first().map(|spot| spot.at));
    groups
}

/// The first quota that a demand would exceed: of its job, or of what its job is in.
fn over_quota(view: &View, demand: &Demand) -> Option<Cause> {
    let quotas = view.quotas().iter();
    let mut bounding = quotas.filter(|(of, _)| covers(of, &demand.job));
    bounding.find_map(|(of, quota)| over(view, demand, of, quota))
}

fn over(view: &View, demand: &Demand, of: &str, quota: &Quota) -> Option<Cause> {
    let (held, milli) = view.held_by_job(of);
    let gang = u64::from(demand.gang);
    let over = quota.resources.iter().find_map(|(resource, limit)| {
        let asked = demand.bundle.get(&resource).saturating_mul(gang);
        let held = held.get(&resource);
        (asked > 0 && held.saturating_add(asked) > limit).then(|| Cause::Quota {
            job: of.to_owned(),
            resource: resource.to_string(),
            limit: resource.quantity(limit).to_string(),
            held: resource.quantity(held).to_string(),
            asked: resource.quantity(asked).to_string(),
        })
    });
    over.or_else(|| {
        let limit = quota.gpu_milli?;
        let devices = demand.devices.as_ref()?;
        // Who joins a device set takes no further device.
        let joins = device_set::first_holder(view, demand).is_some();
        let each = u64::from(devices.count()) * u64::from(devices.milli());
        let asked = if joins { 0 } else { each.saturating_mul(gang) };
        let told = |milli| crate::resources::thousandths(milli).to_string();
        (asked > 0 && milli.saturating_add(asked) > limit).then(|| Cause::Quota {
            job: of.to_owned(),
            resource: "gpu".into(),
            limit: told(limit),
            held: told(milli),
            asked: told(asked),
        })
    })
}

fn refuse(rules: &Rules<'_>, groups: &[(Group, Vec<Spot>)]) -> Refusal {
    let Rules { view, demand, .. } = *rules;
    let best = groups
        .iter()
        .max_by_key(|(_, spots)| arrange::fits(rules, spots));
    let would_fit = best.map_or(0, |(_, spots)| arrange::fits(rules, spots));
    let idle = Rules::idle(view, demand);
    let idle_groups = self::groups(&idle, idle.spots());
    let fits_idle = |(_, spots): &(Group, Vec<Spot>)| arrange::fits(&idle, spots) >= demand.gang;
    let group = best
        .filter(|(group, _)| *group != Group::Cluster)
        .map(|(group, _)| view.group_name(group));
    Refusal::of(
        demand,
        Cause::Room {
            would_fit,
            hopeless: !idle_groups.iter().any(fits_idle),
            group,
            nodes: why_not(rules),
        },
    )
}

#[cfg(test)]
mod tests;
