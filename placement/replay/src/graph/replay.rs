//! The replay of a graph: begin and end of each operation, the use of lanes and memory, a critical path.

use std::collections::BTreeMap;
use std::fmt;

use super::{EventGraph, GraphError, Lane};
use crate::order::{ReplayOrder, Times, WaitingCircle};

/// The use of one lane, in seconds. Both make up the makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaneUse {
    /// The sum of its operations.
    pub busy_s: f64,
    /// The rest of the makespan.
    pub idle_s: f64,
}

/// The earliest run of a graph. Times are seconds from the begin of the first operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    begins_s: Vec<f64>,
    ends_s: Vec<f64>,
    makespan_s: f64,
    lanes: BTreeMap<Lane, LaneUse>,
    memory_max: BTreeMap<usize, u64>,
    critical_path: Vec<usize>,
}

impl Replay {
    /// The begin of each operation, by its number.
    #[must_use]
    pub fn begins_s(&self) -> &[f64] {
        &self.begins_s
    }

    /// The end of each operation, by its number.
    #[must_use]
    pub fn ends_s(&self) -> &[f64] {
        &self.ends_s
    }

    /// The end of the last operation; 0 for a graph without operations.
    #[must_use]
    pub const fn makespan_s(&self) -> f64 {
        self.makespan_s
    }

    /// The use of a lane; none if the graph has no such lane.
    #[must_use]
    pub fn lane(&self, lane: Lane) -> Option<LaneUse> {
        self.lanes.get(&lane).copied()
    }

    /// The use of all lanes, in order.
    pub fn lanes(&self) -> impl Iterator<Item = (Lane, LaneUse)> + '_ {
        self.lanes.iter().map(|(lane, used)| (*lane, *used))
    }

    /// The most bytes that a rank holds at once, 0 if it never takes any.
    ///
    /// What ends at an instant has given back before what begins then takes. Operations of no duration hold
    /// what they take together with all others of that instant.
    #[must_use]
    pub fn memory_max(&self, rank: usize) -> u64 {
        self.memory_max.get(&rank).copied().unwrap_or_default()
    }

    /// The numbers of operations of which each begins when the one before it ends, from 0 to the makespan.
    /// Each waits for the one before it, or follows it on its lane. It is one of the longest such chains.
    #[must_use]
    pub fn critical_path(&self) -> &[usize] {
        &self.critical_path
    }
}

/// Runs each operation as soon as its lane is free and all that it waits for is over.
pub(super) fn replay<N: fmt::Display>(graph: &EventGraph<N>) -> Result<Replay, GraphError> {
    let order = ReplayOrder::new(graph.operations.len(), arrows(graph));
    let order = order.map_err(|WaitingCircle(waits)| circle(graph, &waits))?;
    let mut run = Times::default();
    order.replay(|at| graph.operations[at].seconds, &mut run);
    let last =
        (0..run.ends_s.len()).reduce(|a, b| if run.ends_s[b] > run.ends_s[a] { b } else { a });
    let makespan_s = last.map_or(0.0, |last| run.ends_s[last]);
    if let Some(last) = last.filter(|_| !makespan_s.is_finite()) {
        let operation = &graph.operations[last];
        return Err(GraphError::TooLong {
            operation: operation.name.to_string(),
            lane: operation.lane,
        });
    }
    let mut lanes: BTreeMap<Lane, LaneUse> = BTreeMap::new();
    for operation in &graph.operations {
        lanes.entry(operation.lane).or_default().busy_s += operation.seconds;
    }
    for used in lanes.values_mut() {
        // A sum in another order may be a little more than the makespan.
        used.idle_s = (makespan_s - used.busy_s).max(0.0);
    }
    let mut critical_path = vec![];
    let mut next = last;
    while let Some(operation) = next {
        critical_path.push(operation);
        next = run.causes[operation].map(|cause| cause as usize);
    }
    critical_path.reverse();
    Ok(Replay {
        memory_max: memory_max(graph, &run)?,
        begins_s: run.begins_s,
        ends_s: run.ends_s,
        makespan_s,
        lanes,
        critical_path,
    })
}

/// The latest begin of each operation with which the makespan stays: the replay of the graph from its end.
pub(super) fn latest_begins_s<N: fmt::Display>(
    graph: &EventGraph<N>,
) -> Result<Vec<f64>, GraphError> {
    let makespan_s = replay(graph)?.makespan_s;
    let turned = arrows(graph).map(|(operation, over)| (over, operation));
    let order = ReplayOrder::new(graph.operations.len(), turned);
    let order = order.map_err(|WaitingCircle(waits)| circle(graph, &waits))?;
    let mut run = Times::default();
    order.replay(|at| graph.operations[at].seconds, &mut run);
    Ok(run.ends_s.iter().map(|end| makespan_s - end).collect())
}

/// What each operation waits for: the one before it on its lane, and all that it was told to.
fn arrows<N>(graph: &EventGraph<N>) -> impl Iterator<Item = (u32, u32)> + Clone {
    let on_lanes = (0..).zip(&graph.before);
    let on_lanes = on_lanes.filter_map(|(number, before)| before.map(|before| (number, before)));
    graph.arrows.iter().copied().chain(on_lanes)
}

/// A circle among the operations that still wait for others.
fn circle<N: fmt::Display>(graph: &EventGraph<N>, waits: &[u32]) -> GraphError {
    // For each of them one for which it waits and that waits itself.
    let mut held_by: Vec<Option<usize>> = vec![None; waits.len()];
    for (operation, over) in arrows(graph) {
        if waits[over as usize] > 0 {
            held_by[operation as usize] = Some(over as usize);
        }
    }
    let mut met = vec![None; waits.len()];
    let mut way = vec![];
    let mut next = waits.iter().position(|it| *it > 0);
    while let Some(at) = next {
        if let Some(first) = met[at] {
            way.drain(..first);
            break;
        }
        met[at] = Some(way.len());
        way.push(at);
        next = held_by[at];
    }
    let named = |at: usize| {
        let operation = &graph.operations[at];
        format!("`{}` ({})", operation.name, operation.lane)
    };
    GraphError::Circle {
        operations: way.into_iter().map(named).collect(),
    }
}

/// A change of a rank's memory.
struct Change {
    rank: usize,
    at_s: f64,
    /// The order of changes at one instant: 0 for what ends, 1 for what begins, 2 for what began and ended.
    phase: u8,
    operation: usize,
}

/// The most bytes of each rank.
fn memory_max<N: fmt::Display>(
    graph: &EventGraph<N>,
    run: &Times,
) -> Result<BTreeMap<usize, u64>, GraphError> {
    let mut changes = vec![];
    for (operation, it) in graph.operations.iter().enumerate() {
        let (rank, begin, end) = (it.lane.rank, run.begins_s[operation], run.ends_s[operation]);
        let mut change = |at_s, phase| {
            changes.push(Change {
                rank,
                at_s,
                phase,
                operation,
            });
        };
        if it.takes > 0 {
            change(begin, 1);
        }
        if it.frees > 0 {
            change(end, if end > begin { 0 } else { 2 });
        }
    }
    changes.sort_by(|a, b| {
        let times = || a.at_s.total_cmp(&b.at_s);
        let phases = || a.phase.cmp(&b.phase);
        a.rank.cmp(&b.rank).then_with(times).then_with(phases)
    });
    let (mut most, mut held, mut of) = (BTreeMap::new(), 0_u64, None);
    for change in changes {
        if of != Some(change.rank) {
            (of, held) = (Some(change.rank), 0);
        }
        let operation = &graph.operations[change.operation];
        let name = || operation.name.to_string();
        let lane = operation.lane;
        if change.phase == 1 {
            held = held.checked_add(operation.takes).ok_or_else(|| {
                let operation = name();
                GraphError::MemoryOverflow { operation, lane }
            })?;
            let most = most.entry(change.rank).or_insert(0);
            *most = held.max(*most);
        } else {
            held =
                held.checked_sub(operation.frees)
                    .ok_or_else(|| GraphError::MemoryBelowZero {
                        operation: name(),
                        lane,
                        frees: operation.frees,
                        held,
                    })?;
        }
    }
    Ok(most)
}
