//! Which bundle of a gang goes where, so that those that talk much are near each other.
//!
//! Finding the least sum is hard (it is quadratic assignment), so this is a search: from what packing gives and from
//! growing the gang around what is placed, single units move and change places as long as that helps. A gang of few
//! units is solved exactly.

use std::collections::BTreeMap;

use super::arrange::Class;
use super::{Rules, Spot};
use crate::{Level, TalkEnd, View};

/// Bundles of each spot by their numbers, in the order of the topology; `packed` is what packing gives.
pub(super) fn bundles(
    rules: &Rules<'_>,
    spots: &[Spot],
    packed: &[(Spot, u32)],
) -> Vec<(Spot, Vec<u32>)> {
    let unit = rules.demand.unit.max(1);
    let of_all = |packed: &[(Spot, u32)]| {
        let mut next = 0..;
        let numbers = packed
            .iter()
            .map(|(spot, count)| (*spot, next.by_ref().take(*count as usize).collect()));
        numbers.collect()
    };
    if rules.demand.talks.is_empty() || spots.len() < 2 {
        return of_all(packed);
    }
    // A node that packing would rather leave to others is not taken for being near.
    let worst = packed.iter().map(|(spot, _)| Class::of(rules, spot)).max();
    let open = spots
        .iter()
        .filter(|spot| Some(Class::of(rules, spot)) <= worst);
    let rooms: Vec<Room> = open
        .map(|spot| Room {
            spot: *spot,
            free: spot.count / unit,
        })
        .collect();
    let units = Units::of(rules);
    let by_room = |packed: &[(Spot, u32)]| {
        let mut of = vec![];
        for (spot, count) in packed {
            let room = rooms.iter().position(|room| room.spot.at == spot.at);
            let room = room.unwrap_or_default();
            of.extend(std::iter::repeat_n(room, (count / unit) as usize));
        }
        of
    };
    let Some(best) = Search::best(rules.view, &rooms, &units, &by_room(packed)) else {
        return of_all(packed);
    };
    let mut placed: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (number, room) in (0u32..).zip(best) {
        let first = number * unit;
        placed
            .entry(rooms[room].spot.at)
            .or_default()
            .extend(first..first + unit);
    }
    let spot = |at: usize| rooms.iter().map(|room| room.spot).find(|it| it.at == at);
    let placed = placed.into_iter();
    placed
        .filter_map(|(at, bundles)| Some((spot(at)?, bundles)))
        .collect()
}

/// Distance of two nodes: how many levels a message leaves.
fn distance(view: &View, a: usize, b: usize) -> u64 {
    let same = |level| view.group(level, a) == view.group(level, b);
    let left = [Level::Node, Level::Rack, Level::Zone]
        .into_iter()
        .filter(|level| !same(*level));
    left.count() as u64
}

/// A spot, and how many units it takes.
#[derive(Clone, Copy, Debug)]
struct Room {
    spot: Spot,
    free: u32,
}

/// The units of a gang: bundles that lie on one node.
#[derive(Debug)]
struct Units {
    /// With which others each talks, and how much.
    talks: Vec<Vec<(usize, u64)>>,
    /// With which nodes.
    nodes: Vec<Vec<(usize, u64)>>,
}

impl Units {
    fn of(rules: &Rules<'_>) -> Self {
        let demand = rules.demand;
        let unit = demand.unit.max(1);
        let count = (demand.gang / unit) as usize;
        let mut talks = vec![BTreeMap::<usize, u64>::new(); count];
        let mut nodes = talks.clone();
        for talk in &demand.talks {
            let own = (talk.bundle / unit) as usize;
            let weight = u64::from(talk.weight);
            match &talk.with {
                TalkEnd::Bundle(other) => {
                    let other = (other / unit) as usize;
                    if own != other {
                        *talks[own].entry(other).or_default() += weight;
                        *talks[other].entry(own).or_default() += weight;
                    }
                }
                TalkEnd::Node(name) => {
                    let at = rules.view.nodes().position(|node| node.name == *name);
                    if let Some(at) = at {
                        *nodes[own].entry(at).or_default() += weight;
                    }
                }
            }
        }
        let lists = |of: Vec<BTreeMap<usize, u64>>| -> Vec<Vec<(usize, u64)>> {
            of.into_iter().map(|it| it.into_iter().collect()).collect()
        };
        Self {
            talks: lists(talks),
            nodes: lists(nodes),
        }
    }

    const fn len(&self) -> usize {
        self.talks.len()
    }
}

/// A search for places of units.
struct Search<'a> {
    units: &'a Units,
    /// Distances of rooms.
    between: Vec<Vec<u64>>,
    /// What each unit has to each room by the nodes that it talks with.
    fixed: Vec<Vec<u64>>,
    free: Vec<u32>,
}

/// A room of each unit.
type Places = Vec<usize>;

impl<'a> Search<'a> {
    /// The best places that are found; `None` where the gang is too large to look for any.
    fn best(view: &View, rooms: &[Room], units: &'a Units, packed: &[usize]) -> Option<Places> {
        if units.len() > UNITS_MAX {
            return None;
        }
        let at = |room: &Room| room.spot.at;
        let between = rooms.iter().map(|a| {
            let to = rooms.iter().map(|b| distance(view, at(a), at(b)));
            to.collect()
        });
        let fixed = units.nodes.iter().map(|nodes| {
            let to = |room: &Room| {
                let all = nodes.iter();
                all.map(|(node, weight)| weight * distance(view, at(room), *node))
                    .sum()
            };
            rooms.iter().map(to).collect()
        });
        let search = Self {
            units,
            between: between.collect(),
            fixed: fixed.collect(),
            free: rooms.iter().map(|room| room.free).collect(),
        };
        let mut of_packed = vec![0; rooms.len()];
        packed.iter().for_each(|room| of_packed[*room] += 1);
        let starts = [
            packed.to_vec(),
            search.grown(&of_packed),
            search.grown(&search.free),
        ];
        let improved = starts.into_iter().map(|start| search.improved(start));
        // The first of the best: where nothing is gained, packing has its way.
        let best = improved.min_by_key(|places| (search.cost(places), nodes_of(places)))?;
        Some(match search.is_small() {
            true => search.exact(best),
            false => best,
        })
    }

    /// The cost of a unit in a room, without the one that it changes places with.
    fn at(&self, places: &[usize], unit: usize, room: usize, but: Option<usize>) -> u64 {
        let others = self.units.talks[unit].iter();
        let others = others.filter(|(other, _)| Some(*other) != but && places[*other] != NOWHERE);
        let own = others.map(|(other, weight)| weight * self.between[room][places[*other]]);
        self.fixed[unit][room] + own.sum::<u64>()
    }

    fn cost(&self, places: &[usize]) -> u64 {
        let units = 0..self.units.len();
        let of = |unit: usize| {
            let own = self.at(places, unit, places[unit], None);
            // Each pair is met twice.
            own + self.fixed[unit][places[unit]]
        };
        units.map(of).sum::<u64>() / 2
    }

    /// Places in these rooms, from the first unit on: next comes who talks most with those that are placed, to where
    /// that costs least.
    fn grown(&self, rooms: &[u32]) -> Places {
        let count = self.units.len();
        let mut free = rooms.to_vec();
        let mut places = vec![NOWHERE; count];
        let pull = self.units.nodes.iter();
        let pull = pull.map(|nodes| nodes.iter().map(|(_, weight)| weight).sum());
        let mut pull: Vec<u64> = pull.collect();
        for _ in 0..count {
            let open = (0..count).filter(|unit| places[*unit] == NOWHERE);
            let Some(unit) = open.max_by_key(|unit| (pull[*unit], std::cmp::Reverse(*unit))) else {
                break;
            };
            let open = (0..free.len()).filter(|room| free[*room] > 0);
            // Of those that cost as much one that is begun, then the roomiest.
            let key = |room: &usize| {
                let is_whole = free[*room] == rooms[*room];
                let cost = self.at(&places, unit, *room, None);
                (cost, is_whole, std::cmp::Reverse(free[*room]))
            };
            let Some(room) = open.min_by_key(key) else {
                break;
            };
            places[unit] = room;
            free[room] -= 1;
            for (other, weight) in &self.units.talks[unit] {
                pull[*other] += weight;
            }
        }
        places
    }

    /// Moves single units, and has two change places, as long as that costs less.
    fn improved(&self, mut places: Places) -> Places {
        let mut free = self.free.clone();
        places.iter().for_each(|room| free[*room] -= 1);
        for _ in 0..PASSES_MAX {
            let mut has_gained = false;
            for unit in 0..places.len() {
                let here = places[unit];
                let own = self.at(&places, unit, here, None);
                if own == 0 {
                    continue;
                }
                // Of two that gain by changing places one is better off.
                let rooms = (0..free.len()).map(|room| self.at(&places, unit, room, None));
                let rooms: Vec<u64> = rooms.collect();
                let moves = (0..free.len()).filter(|room| free[*room] > 0);
                let moves = moves.map(|room| (own.saturating_sub(rooms[room]), room, None));
                let swaps = (0..places.len()).filter(|other| rooms[places[*other]] < own);
                let swaps = swaps.map(|other| {
                    let there = places[other];
                    let before = self.at(&places, unit, here, Some(other))
                        + self.at(&places, other, there, Some(unit));
                    let after = self.at(&places, unit, there, Some(other))
                        + self.at(&places, other, here, Some(unit));
                    (before.saturating_sub(after), there, Some(other))
                });
                let best = moves.chain(swaps).max_by_key(|(gain, ..)| *gain);
                let Some((1.., room, other)) = best else {
                    continue;
                };
                has_gained = true;
                places[unit] = room;
                match other {
                    Some(other) => places[other] = here,
                    None => {
                        free[here] += 1;
                        free[room] -= 1;
                    }
                }
            }
            if !has_gained {
                break;
            }
        }
        places
    }

    /// Returns true where all places can be tried.
    fn is_small(&self) -> bool {
        let rooms = self.free.len() as u64;
        let tries = rooms.checked_pow(self.units.len() as u32);
        tries.is_some_and(|tries| tries <= TRIES_MAX)
    }

    /// The best of all places, or these where none is better. Places that cost too much already are not looked at.
    fn exact(&self, known: Places) -> Places {
        let mut best = (self.cost(&known), nodes_of(&known), known);
        let mut places = vec![NOWHERE; self.units.len()];
        self.try_all(0, 0, &mut places, &mut self.free.clone(), &mut best);
        best.2
    }

    fn try_all(
        &self,
        unit: usize,
        cost: u64,
        places: &mut Places,
        free: &mut [u32],
        best: &mut (u64, usize, Places),
    ) {
        if cost > best.0 {
            return;
        }
        if unit == places.len() {
            let nodes = nodes_of(places);
            if (cost, nodes) < (best.0, best.1) {
                *best = (cost, nodes, places.clone());
            }
            return;
        }
        for room in 0..free.len() {
            if free[room] == 0 {
                continue;
            }
            free[room] -= 1;
            let own = self.at(places, unit, room, None);
            places[unit] = room;
            self.try_all(unit + 1, cost + own, places, free, best);
            places[unit] = NOWHERE;
            free[room] += 1;
        }
    }
}

/// Number of rooms that are used.
fn nodes_of(places: &[usize]) -> usize {
    let mut used = places.to_vec();
    used.sort_unstable();
    used.dedup();
    used.len()
}

/// The room of a unit that has none yet.
const NOWHERE: usize = usize::MAX;
/// The most units of a gang that is searched for: the time grows with their square.
const UNITS_MAX: usize = 1 << 11;
/// The most places that are all tried.
const TRIES_MAX: u64 = 1 << 16;
/// The most looks at all units.
const PASSES_MAX: usize = 16;
