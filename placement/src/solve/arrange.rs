//! Which of the nodes with room take how many bundles.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

use super::{Rules, Spot};
use crate::{Arrange, Isolation, Level};

/// Number of bundles that fit in all.
pub(super) fn fits(rules: &Rules<'_>, spots: &[Spot]) -> u32 {
    let counts = spots.iter().map(|spot| spot.count);
    match rules.demand.arrange {
        Arrange::StrictPack => counts.max().unwrap_or(0),
        _ => counts.fold(0, u32::saturating_add),
    }
    .min(rules.demand.gang)
}

/// The highest liking such that the gang fits on the spots liked so much; `None` if it does not fit.
pub(super) fn liking(rules: &Rules<'_>, spots: &[Spot]) -> Option<u64> {
    if rules.demand.preferences.is_empty() {
        return (fits(rules, spots) == rules.demand.gang).then_some(0);
    }
    let mut by_liking: BTreeMap<Reverse<u64>, (u64, u32)> = BTreeMap::new();
    for spot in spots {
        let (sum, most) = by_liking.entry(Reverse(spot.liking)).or_default();
        *sum += u64::from(spot.count);
        *most = spot.count.max(*most);
    }
    let gang = rules.demand.gang;
    let (mut sum, mut most) = (0, 0);
    by_liking
        .into_iter()
        .find_map(|(Reverse(liking), (count, largest))| {
            sum += count;
            most = largest.max(most);
            let fits = match rules.demand.arrange {
                Arrange::StrictPack => most >= gang,
                _ => sum >= u64::from(gang),
            };
            fits.then_some(liking)
        })
}

/// Bundles by spot, in the order of the topology. The gang must fit.
pub(super) fn arrange(rules: &Rules<'_>, spots: Vec<Spot>) -> Vec<(Spot, u32)> {
    let mut placed = match rules.demand.arrange {
        Arrange::Pack => pack(rules, spots),
        Arrange::StrictPack => tightest(rules, &spots, rules.demand.gang)
            .map(|spot| (spot, rules.demand.gang))
            .into_iter()
            .collect(),
        Arrange::Spread | Arrange::StrictSpread => spread(rules, &spots),
    };
    placed.sort_by_key(|(spot, _)| spot.at);
    placed
}

/// Fewest nodes; of those, nodes that are near each other.
fn pack(rules: &Rules<'_>, spots: Vec<Spot>) -> Vec<(Spot, u32)> {
    if let Some(spot) = tightest(rules, &spots, rules.demand.gang) {
        return vec![(spot, rules.demand.gang)];
    }
    let fewest = nodes_needed(rules, &mut spots.clone());
    for level in [Level::Rack, Level::Zone] {
        let mut groups: BTreeMap<_, Vec<Spot>> = BTreeMap::new();
        for spot in &spots {
            groups
                .entry(rules.view.group(level, spot.at))
                .or_default()
                .push(*spot);
        }
        if groups.len() == 1 {
            continue;
        }
        let enough = groups.into_values().filter_map(|mut group| {
            let needed = nodes_needed(rules, &mut group);
            let room: u64 = group.iter().map(|spot| u64::from(spot.count)).sum();
            (needed.is_some() && needed == fewest).then_some((room, group))
        });
        if let Some((_, group)) = enough.min_by_key(|(room, group)| (*room, group[0].at)) {
            return fill(rules, group);
        }
    }
    fill(rules, spots)
}

/// Number of the roomiest spots that the gang needs; they are sorted on the way.
fn nodes_needed(rules: &Rules<'_>, spots: &mut [Spot]) -> Option<usize> {
    spots.sort_by_key(|spot| (Reverse(spot.count), spot.at));
    let mut rest = rules.demand.gang;
    for (i, spot) in spots.iter().enumerate() {
        rest = rest.saturating_sub(spot.count);
        if rest == 0 {
            return Some(i + 1);
        }
    }
    None
}

/// The roomiest first, until the rest fits on one; of those, the tightest.
fn fill(rules: &Rules<'_>, mut spots: Vec<Spot>) -> Vec<(Spot, u32)> {
    spots.sort_by_cached_key(|spot| {
        (
            Reverse(spot.count),
            Reverse(spot.liking),
            wastes_devices(rules, spot),
            spot.at,
        )
    });
    let mut placed = Vec::new();
    let mut rest = rules.demand.gang;
    for (i, spot) in spots.iter().enumerate() {
        if spot.count >= rest {
            let last = tightest(rules, &spots[i..], rest);
            placed.extend(last.map(|last| (last, rest)));
            break;
        }
        placed.push((*spot, spot.count));
        rest -= spot.count;
    }
    placed
}

/// The spot with room for `count` on which least is left over.
fn tightest(rules: &Rules<'_>, spots: &[Spot], count: u32) -> Option<Spot> {
    let mut best: Option<(Key, &Spot)> = None;
    for spot in spots.iter().filter(|spot| spot.count >= count) {
        let class = Class::of(rules, spot);
        // Most nodes lose by their class, without a look at their loads.
        if best.as_ref().is_some_and(|(best, _)| class > best.class) {
            continue;
        }
        let key = Key::of(rules, class, spot, count);
        let better = |(best, _): &(Key, &Spot)| key.compare(best, Fullest) == Ordering::Less;
        if best.as_ref().is_none_or(better) {
            best = Some((key, spot));
        }
    }
    best.map(|(_, spot)| *spot)
}

/// One bundle at a time to the node that has the fewest of this gang, then the lowest load.
fn spread(rules: &Rules<'_>, spots: &[Spot]) -> Vec<(Spot, u32)> {
    let next = |at: usize, count: u32| Next {
        count,
        key: Key::of(rules, Class::of(rules, &spots[at]), &spots[at], count + 1),
        at,
    };
    let mut open: BinaryHeap<Next> = (0..spots.len()).map(|at| next(at, 0)).collect();
    let mut counts = vec![0; spots.len()];
    for _ in 0..rules.demand.gang {
        let Some(Next { at, .. }) = open.pop() else {
            break;
        };
        counts[at] += 1;
        if counts[at] < spots[at].count {
            open.push(next(at, counts[at]));
        }
    }
    let placed = spots.iter().copied().zip(counts);
    placed.filter(|(_, count)| *count > 0).collect()
}

/// The rank of a node, whatever its load; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    liking: Reverse<u64>,
    wastes_devices: bool,
    starts_worker: bool,
}

impl Class {
    pub(super) fn of(rules: &Rules<'_>, spot: &Spot) -> Self {
        let Rules { demand, .. } = *rules;
        let light = demand.devices.is_none();
        // A worker more is no cost beside an even load.
        let counts = light && matches!(demand.arrange, Arrange::Pack | Arrange::StrictPack);
        let isolated = demand.isolation == Isolation::Process;
        Self {
            liking: Reverse(spot.liking),
            wastes_devices: wastes_devices(rules, spot),
            starts_worker: counts && (isolated || !rules.has_light_worker(spot.at)),
        }
    }
}

/// The class of a node, and what shares of its devices and of its fullest resource are in use.
#[derive(Clone, Copy, Debug)]
struct Key {
    class: Class,
    devices: f64,
    resources: f64,
    at: usize,
}

/// The direction in which nodes are preferred: the full ones first, or the empty ones.
#[derive(Clone, Copy)]
enum Better {
    Fullest,
    Emptiest,
}
use Better::{Emptiest, Fullest};

impl Key {
    fn of(rules: &Rules<'_>, class: Class, spot: &Spot, count: u32) -> Self {
        let Rules { view, demand, .. } = *rules;
        let node = view.at(spot.at);
        let ask = demand.devices.as_ref();
        let each = ask.map_or(0, |ask| ask.count() * ask.milli());
        Self {
            class,
            devices: match each {
                0 => 0.0,
                each => node.device_load(u64::from(each) * u64::from(count)),
            },
            resources: node.free().load(&node.capacity, &demand.bundle, count),
            at: spot.at,
        }
    }

    fn compare(&self, other: &Self, better: Better) -> Ordering {
        let load = |a: f64, b: f64| match better {
            Fullest => b.total_cmp(&a),
            Emptiest => a.total_cmp(&b),
        };
        self.class
            .cmp(&other.class)
            .then_with(|| load(self.devices, other.devices))
            .then_with(|| load(self.resources, other.resources))
            .then(self.at.cmp(&other.at))
    }
}

/// Devices lie idle under demands that don't need any; such nodes come last.
fn wastes_devices(rules: &Rules<'_>, spot: &Spot) -> bool {
    rules.demand.devices.is_none() && rules.view.glance(spot.at).has_devices
}

/// A node that the next bundle may go to; the greatest is the best.
#[derive(Debug)]
struct Next {
    count: u32,
    key: Key,
    at: usize,
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_count = other.count.cmp(&self.count);
        by_count.then_with(|| other.key.compare(&self.key, Emptiest))
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Next {}
