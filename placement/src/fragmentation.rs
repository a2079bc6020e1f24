//! Room that is lost between leases, and which moves would win it back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Demand, Health, Liveness, Node, Plan, View, solve};

/// A measure of the free devices of one model: the bundles that fit, and those that could.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fragmentation {
    /// The model.
    pub model: String,
    /// Healthy cards on nodes that are up.
    pub devices: u32,
    /// Those in nobody's hands.
    pub free: u32,
    /// Those of which only a part is held.
    pub broken: u32,
    /// For bundles of one, two, four and more cards on one node, up to the largest node.
    pub fits: Vec<Fit>,
}

/// Room for bundles of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// Cards of a bundle, all on one node.
    pub size: u32,
    /// Bundles that fit now.
    pub fit: u32,
    /// Bundles that would fit if the free cards lay together.
    pub ideal: u32,
}

/// Measures the free devices of each model, in the order of their names.
#[must_use]
pub fn fragmentation(view: &View) -> Vec<Fragmentation> {
    let mut by_model: BTreeMap<&str, (Fragmentation, Vec<u32>, u32)> = BTreeMap::new();
    for node in view.nodes().filter(|node| node.liveness == Liveness::Up) {
        let mut on_node: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        for (device, left) in node.devices.iter().zip(node.left()) {
            if device.slice.is_some() || device.health != Health::Good {
                continue;
            }
            let (sum, ..) = by_model.entry(&device.model).or_insert_with(|| {
                let model = device.model.clone();
                let sum = Fragmentation {
                    model,
                    devices: 0,
                    free: 0,
                    broken: 0,
                    fits: Vec::new(),
                };
                (sum, Vec::new(), 0)
            });
            sum.devices += 1;
            sum.free += u32::from(!left.held);
            sum.broken += u32::from(left.held && left.milli > 0 && !left.in_set);
            let (all, free) = on_node.entry(&device.model).or_default();
            *all += 1;
            *free += u32::from(!left.held);
        }
        for (model, (all, free)) in on_node {
            if let Some((_, by_node, largest)) = by_model.get_mut(model) {
                by_node.push(free);
                *largest = all.max(*largest);
            }
        }
    }
    let told = by_model.into_values().map(|(mut sum, by_node, largest)| {
        let sizes = (0..u32::BITS).map(|power| 1 << power);
        let fit = |size: u32| Fit {
            size,
            fit: by_node.iter().map(|free| free / size).sum(),
            ideal: sum.free / size,
        };
        sum.fits = sizes.take_while(|size| *size <= largest).map(fit).collect();
        sum
    });
    told.collect()
}

/// Moves that would make room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defragmentation {
    /// Holders in the order in which they move, each with its new place.
    pub moves: Vec<(String, Plan)>,
    /// Bundles of the size that fit before.
    pub before: u32,
    /// Bundles of the size that fit after.
    pub after: u32,
}

/// Finds moves, at most `moves_max` holders, after which more bundles of `size` whole cards of a
/// model fit on one node each.
///
/// Only holders whose demand is given move, and none to where its demand does not allow. Node by
/// node, the one with the fewest cards in use first: a node is cleared as far as that makes room for
/// a bundle more, or left as it is.
#[must_use]
pub fn defragment(
    view: &View,
    model: &str,
    size: u32,
    demands: &[Demand],
    moves_max: usize,
) -> Defragmentation {
    let fit = |view: &View| {
        view.nodes()
            .map(|node| free_of(node, model) / size.max(1))
            .sum()
    };
    let before = fit(view);
    let mut after = view.clone();
    let mut moves: Vec<(String, Plan)> = Vec::new();
    let mut sources: Vec<(u32, &Node)> = view
        .nodes()
        .filter(|node| node.liveness == Liveness::Up)
        .map(|node| (all_of(node, model) - free_of(node, model), node))
        .filter(|(used, _)| *used > 0)
        .collect();
    sources.sort_by_key(|(used, _)| *used);
    for (_, node) in sources {
        let room = moves_max - moves.len();
        if let Some((cleared, view)) = clear(&after, &node.name, model, size, demands, room)
            && fit(&view) > fit(&after)
        {
            moves.extend(cleared);
            after = view;
        }
    }
    Defragmentation {
        moves,
        before,
        after: fit(&after),
    }
}

/// Moves holders off a node, the smallest first, until a bundle more fits on it.
fn clear(
    view: &View,
    name: &str,
    model: &str,
    size: u32,
    demands: &[Demand],
    moves_max: usize,
) -> Option<(Vec<(String, Plan)>, View)> {
    let node = view.node(name)?;
    let wanted = (free_of(node, model) / size.max(1) + 1) * size.max(1);
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for lease in node.leases().filter(|lease| !lease.devices.is_empty()) {
        *sizes.entry(&lease.holder).or_default() += 1;
    }
    let mut holders: Vec<(usize, &str)> = sizes.into_iter().map(|(who, n)| (n, who)).collect();
    holders.sort_unstable();
    let mut after = view.clone();
    let mut moves = Vec::new();
    for (_, holder) in holders {
        if after
            .node(name)
            .is_some_and(|node| free_of(node, model) >= wanted)
        {
            break;
        }
        let demand = demands.iter().find(|demand| demand.holder == holder)?;
        if moves.len() == moves_max {
            return None;
        }
        after.release(holder);
        let elsewhere = demand
            .clone()
            .require(crate::Affinity::NotNode(name.to_owned()));
        let plan = solve(&after, &[elsewhere]).ok()?;
        after.grant(&plan);
        moves.push((holder.to_owned(), plan));
    }
    let freed = after
        .node(name)
        .is_some_and(|node| free_of(node, model) >= wanted);
    freed.then_some((moves, after))
}

fn all_of(node: &Node, model: &str) -> u32 {
    let of = node.devices.iter().filter(|device| device.model == model);
    of.filter(|device| device.slice.is_none()).count() as u32
}

/// Whole cards of a model that can be leased.
fn free_of(node: &Node, model: &str) -> u32 {
    let free = node
        .devices
        .iter()
        .zip(node.left())
        .filter(|(device, left)| {
            let whole = device.model == model && device.slice.is_none();
            whole && device.health == Health::Good && !left.held
        });
    if node.liveness == Liveness::Up {
        free.count() as u32
    } else {
        0
    }
}

impl fmt::Display for Fragmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            model,
            devices,
            free,
            broken,
            fits,
        } = self;
        write!(f, "{model}: {free} of {devices} free")?;
        if *broken > 0 {
            write!(f, ", {broken} held in part")?;
        }
        for Fit { size, fit, ideal } in fits.iter().filter(|fit| fit.size > 1) {
            write!(f, "; of {size}: {fit} fit")?;
            if fit < ideal {
                write!(f, " of {ideal}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Defragmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (holder, plan) in &self.moves {
            let nodes: BTreeSet<&str> = plan.leases.iter().map(|lease| &*lease.node).collect();
            let nodes: Vec<&str> = nodes.into_iter().collect();
            writeln!(f, "move {holder} to {}", nodes.join(", "))?;
        }
        write!(f, "{} bundles fit, {} after it", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resources;

    fn named(name: &str, node: &str) -> Demand {
        let demand = Demand::new("job", name, Resources::new()).gpus(1);
        demand.prefer(crate::Affinity::Node(node.into()), 1)
    }

    /// Three nodes of four cards: two, one and three of them are held, and a part of another.
    fn scene() -> (View, Vec<Demand>) {
        let node = |name| Node::new(name, Resources::new()).gpus(4, "H200", 1 << 30);
        let mut view = View::new(["a", "b", "c"].map(node));
        let nodes = ["a", "a", "b", "c", "c"];
        let mut demands: Vec<Demand> = nodes
            .iter()
            .enumerate()
            .map(|(i, node)| named(&format!("h{i}"), node))
            .collect();
        demands.push(named("part", "c").gpu_milli(100));
        view.grant(&solve(&view, &demands).unwrap());
        (view, demands)
    }

    #[test]
    fn the_report_tells_what_fits_and_what_could() {
        let (view, _) = scene();
        let [report] = &fragmentation(&view)[..] else {
            panic!()
        };
        assert_eq!(
            report.to_string(),
            "H200: 6 of 12 free, 1 held in part; of 2: 2 fit of 3; of 4: 0 fit of 1"
        );
        assert_eq!(
            report.fits[0],
            Fit {
                size: 1,
                fit: 6,
                ideal: 6
            }
        );
        assert!(fragmentation(&View::default()).is_empty());
    }

    #[test]
    fn a_few_moves_make_room_for_a_larger_bundle() {
        let (view, demands) = scene();
        let made = defragment(&view, "H200", 4, &demands, 10);
        assert_eq!(made.to_string(), "move h2 to c\n0 bundles fit, 1 after it");
        // The moves hold when they are carried out one by one.
        let mut after = view.clone();
        for (holder, plan) in &made.moves {
            after.release(holder);
            after.grant(plan);
        }
        let four = Demand::new("job", "four", Resources::new()).gpus(4);
        assert!(solve(&view, std::slice::from_ref(&four)).is_err());
        assert!(solve(&after, &[four]).is_ok());
    }

    #[test]
    fn nobody_moves_for_nothing_or_against_its_demand() {
        let (view, mut demands) = scene();
        assert!(defragment(&view, "H200", 4, &demands, 0).moves.is_empty());
        assert!(defragment(&view, "H200", 1, &demands, 10).moves.is_empty());
        assert!(defragment(&view, "H200", 4, &[], 10).moves.is_empty());
        let pinned = demands.iter_mut();
        pinned.for_each(|demand| {
            let node = demand.preferences[0].0.clone();
            demand.affinity.push(node);
        });
        let made = defragment(&view, "H200", 4, &demands, 10);
        assert_eq!((made.moves.len(), made.before, made.after), (0, 0, 0));
    }
}
