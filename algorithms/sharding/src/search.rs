//! The cheapest way between two shardings: Dijkstra's, over those whose placements are of either side,
//! `Replicate`, or equal ragged shares. Pure.
//!
//! A transition changes some placements, and data moves inside the groups along some dimensions of the
//! mesh. It is possible when each group has all that its ranks need afterwards, which is found by
//! comparing the index maps: so cuts of one dimension by several dimensions of the mesh, uneven and
//! ragged ones need no rules of their own. As a rule there is a way: all that is cut is gathered, the last
//! cut first, and cut anew. Where there is none, that is an error, and never a plan without steps.

use std::collections::{BTreeMap, BTreeSet};

use odeon_collective::schedule::split;

use crate::exchange::{self, Held, total};
use crate::redistribution::{Movement, Traffic};
use crate::{Placement, Sharding};

/// A transition.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    /// Positions of dimensions of the mesh.
    pub(crate) dims: Vec<usize>,
    /// `None` when all ranks have already what they need.
    pub(crate) movement: Option<Movement>,
    pub(crate) from: Sharding,
    pub(crate) to: Sharding,
    pub(crate) sent: Vec<Traffic>,
    cost: Cost,
}

/// Elements in and out of the busiest rank, and the number of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    elements: usize,
    steps: usize,
}

/// A sharding with the maps of all ranks.
struct State {
    sharding: Sharding,
    maps: Vec<Held>,
}

impl State {
    fn new(sharding: Sharding) -> Self {
        let ranks = 0..sharding.mesh().len();
        let maps = ranks.map(|rank| Held::new(&sharding.index(rank)));
        Self {
            maps: maps.collect(),
            sharding,
        }
    }

    fn is_partial(&self, dim: usize) -> bool {
        matches!(self.sharding.placements()[dim], Placement::Partial(_))
    }
}

/// The transitions on the cheapest way; `None` where there is none. One tensor on one mesh, and no addends that
/// would have to be made.
pub(crate) fn cheapest(from: &Sharding, to: &Sharding) -> Option<Vec<Edge>> {
    let states = states(from, to);
    let position = |wanted: &Sharding| states.iter().position(|it| it.sharding == *wanted);
    let (start, goal) = (position(from)?, position(to)?);
    let mut costs = BTreeMap::from([(start, Cost::default())]);
    let mut ways: BTreeMap<usize, (usize, Edge)> = BTreeMap::new();
    let mut open = BTreeSet::from([(Cost::default(), start)]);
    let mut done = BTreeSet::new();
    while let Some((cost, at)) = open.pop_first() {
        if at == goal {
            break;
        }
        done.insert(at);
        for (next, state) in states.iter().enumerate() {
            if done.contains(&next) {
                continue;
            }
            let Some(edge) = edge(&states[at], state) else {
                continue;
            };
            let there = Cost {
                elements: cost.elements + edge.cost.elements,
                steps: cost.steps + edge.cost.steps,
            };
            if costs.get(&next).is_none_or(|known| there < *known) {
                costs.insert(next, there);
                ways.insert(next, (at, edge));
                open.insert((there, next));
            }
        }
    }
    let mut edges = vec![];
    let mut at = goal;
    while let Some((before, edge)) = ways.remove(&at) {
        edges.push(edge);
        at = before;
    }
    edges.reverse();
    (at == start).then_some(edges)
}

/// All shardings that a way may pass.
fn states(from: &Sharding, to: &Sharding) -> Vec<State> {
    let mut all: Vec<Vec<Placement>> = vec![vec![]];
    for (at, (before, after)) in from.placements().iter().zip(to.placements()).enumerate() {
        let mut choices: Vec<Placement> = vec![];
        let known = [before.clone(), after.clone(), Placement::Replicate];
        for choice in known.into_iter().chain(scattered(from, to, at)) {
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        }
        let longer = |start: &Vec<Placement>| {
            let with = |choice: &Placement| [&start[..], std::slice::from_ref(choice)].concat();
            choices.iter().map(with).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    // Some combinations cannot be, and no way passes them.
    let placed = all
        .into_iter()
        .filter_map(|placements| from.placed(placements).ok());
    placed.map(State::new).collect()
}

/// Equal ragged shares along a dimension of the mesh, for addends that go to slices of what another
/// dimension cuts too. The slices of slices that ranks need lie with ranks of other groups: so addends
/// are reduced to shares first, and only those travel.
fn scattered(from: &Sharding, to: &Sharding, at: usize) -> Option<Placement> {
    let dim = to.placements()[at].cut_dim()?;
    let all = from.placements().iter().chain(to.placements());
    let cuts = all
        .filter(|placement| placement.cut_dim() == Some(dim))
        .count();
    let is_partial = matches!(from.placements()[at], Placement::Partial(_));
    (is_partial && cuts > 1).then(|| Placement::Ragged {
        dims: from.shape().len(),
        units: vec![1; from.mesh().dims()[at].size],
    })
}

/// The transition between two shardings, in the smallest groups that have what they need.
fn edge(from: &State, to: &State) -> Option<Edge> {
    let dims = 0..from.sharding.placements().len();
    let differs = |dim: &usize| from.sharding.placements()[*dim] != to.sharding.placements()[*dim];
    let (changed, kept): (Vec<usize>, Vec<usize>) = dims.partition(differs);
    if changed.iter().any(|dim| to.is_partial(*dim)) {
        return None;
    }
    if changed.iter().any(|dim| from.is_partial(*dim)) {
        return reduced(from, to, changed);
    }
    let also: Vec<usize> = kept
        .into_iter()
        .filter(|dim| !from.is_partial(*dim))
        .collect();
    let mut subsets: Vec<usize> = (0..1 << also.len()).collect();
    subsets.sort_by_key(|subset: &usize| subset.count_ones());
    subsets.into_iter().find_map(|subset| {
        let added = also
            .iter()
            .enumerate()
            .filter(|(nth, _)| subset >> nth & 1 == 1);
        let dims = changed.iter().chain(added.map(|(_, dim)| dim)).copied();
        moved(from, to, dims.collect())
    })
}

fn names<'a>(state: &'a State, dims: &[usize]) -> Vec<&'a str> {
    let all = state.sharding.mesh().dims();
    dims.iter().map(|dim| &*all[*dim].name).collect()
}

fn groups(state: &State, dims: &[usize]) -> Vec<Vec<usize>> {
    state.sharding.mesh().groups(&names(state, dims))
}

fn maps<'a>(state: &'a State, group: &[usize]) -> Vec<&'a Held> {
    group.iter().map(|rank| &state.maps[*rank]).collect()
}

/// A transition in which addends are reduced along all of these dimensions, in one way.
fn reduced(from: &State, to: &State, dims: Vec<usize>) -> Option<Edge> {
    let Placement::Partial(reduce) = from.sharding.placements()[dims[0]] else {
        return None;
    };
    let alike = |dim: &usize| from.sharding.placements()[*dim] == Placement::Partial(reduce);
    if !dims.iter().all(alike) {
        return None;
    }
    let groups = groups(from, &dims);
    let whole = |group: &Vec<usize>| {
        let same = |rank: &usize| from.maps[*rank].same(&to.maps[*rank]);
        group.iter().all(same)
    };
    let parted = |group: &Vec<usize>| exchange::is_parted(&from.maps[group[0]], &maps(to, group));
    let mut sent = vec![Traffic::default(); from.maps.len()];
    let movement = if groups.iter().all(whole) {
        for group in &groups {
            let parts = split(from.maps[group[0]].count(), group.len());
            for (position, rank) in group.iter().enumerate() {
                sent[*rank] = all_reduce_traffic(&parts, position);
            }
        }
        (groups[0].len() > 1).then_some(Movement::AllReduce(reduce))
    } else if groups.iter().all(parted) {
        for rank in groups.iter().flatten() {
            let own = to.maps[*rank].count();
            sent[*rank].sums = from.maps[*rank].count() - own;
        }
        Some(Movement::ReduceScatter(reduce))
    } else {
        return None;
    };
    let busiest = sent.iter().map(|it| it.elements + it.sums).max();
    Some(made(from, to, dims, movement, sent, busiest.unwrap_or(0)))
}

fn all_reduce_traffic(parts: &[std::ops::Range<usize>], position: usize) -> Traffic {
    let all: usize = parts.iter().map(ExactSizeIterator::len).sum();
    let next = (position + 1) % parts.len();
    Traffic {
        sums: all - parts[position].len(),
        elements: all - parts[next].len(),
    }
}

/// A transition in which elements move inside the groups along these dimensions.
fn moved(from: &State, to: &State, dims: Vec<usize>) -> Option<Edge> {
    let groups = groups(from, &dims);
    let ranks = from.maps.len();
    let apart = from.sharding.is_apart(&names(from, &dims));
    let (mut out, mut into) = (vec![0; ranks], vec![0; ranks]);
    let (mut kept, mut gathered) = (true, true);
    for group in &groups {
        let (sources, targets) = (maps(from, group), maps(to, group));
        for (position, (rank, target)) in group.iter().zip(&targets).enumerate() {
            let pieces = exchange::given_to(&sources, target, apart, position)?;
            for (other, pieces) in group.iter().zip(pieces).filter(|(other, _)| *other != rank) {
                let elements = total(&pieces);
                out[*other] += elements;
                into[*rank] += elements;
                kept &= elements == 0;
            }
            gathered &= targets[0].same(target);
        }
    }
    if kept {
        let same = |rank: usize| from.maps[rank].same(&to.maps[rank]);
        let movement = (!(0..ranks).all(same)).then_some(Movement::Slice);
        let sent = vec![Traffic::default(); ranks];
        return Some(made(from, to, dims, movement, sent, 0));
    }
    if gathered {
        for group in &groups {
            let target = &to.maps[group[0]];
            let pieces = exchange::given(&maps(from, group), target, apart, 0..group.len())?;
            for (position, rank) in group.iter().enumerate() {
                let next = (position + 1) % group.len();
                out[*rank] = target.count() - total(&pieces[next]);
            }
        }
        into.clone_from(&out);
    }
    let movement = if gathered {
        Movement::AllGather
    } else {
        Movement::AllToAll
    };
    let busiest = out.iter().chain(&into).copied().max().unwrap_or(0);
    let sent = out
        .into_iter()
        .map(|elements| Traffic { elements, sums: 0 })
        .collect();
    Some(made(from, to, dims, Some(movement), sent, busiest))
}

fn made(
    from: &State,
    to: &State,
    dims: Vec<usize>,
    movement: Option<Movement>,
    sent: Vec<Traffic>,
    busiest: usize,
) -> Edge {
    let steps = usize::from(movement.is_some());
    Edge {
        dims,
        movement,
        from: from.sharding.clone(),
        to: to.sharding.clone(),
        sent,
        cost: Cost {
            elements: if steps == 0 { 0 } else { busiest },
            steps,
        },
    }
}
