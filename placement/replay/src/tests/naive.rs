//! A slow simulation of graphs, by a clock and lanes that look for work at each instant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use crate::{EventGraph, Lane, Replay};

/// Begin and end of each operation, in seconds; none if some never begin.
pub(super) fn simulate<N: Display>(graph: &EventGraph<N>) -> Option<Vec<(f64, f64)>> {
    let operations = graph.operations();
    let mut queues: BTreeMap<Lane, Vec<usize>> = BTreeMap::new();
    for (number, operation) in operations.iter().enumerate().rev() {
        queues.entry(operation.lane).or_default().push(number);
    }
    let mut waits: Vec<Vec<usize>> = vec![vec![]; operations.len()];
    for (operation, over) in graph.arrows() {
        waits[operation].push(over);
    }
    let mut times: Vec<Option<(f64, f64)>> = vec![None; operations.len()];
    let (mut now, mut running, mut over) = (0.0, BTreeMap::<Lane, usize>::new(), BTreeSet::new());
    loop {
        let mut changed = true;
        while changed {
            changed = false;
            running.retain(|_, number| {
                let ends = times[*number].unwrap().1 <= now;
                if ends {
                    over.insert(*number);
                    changed = true;
                }
                !ends
            });
            for (lane, queue) in &mut queues {
                let Some(next) = queue.last().copied() else {
                    continue;
                };
                if !running.contains_key(lane) && waits[next].iter().all(|it| over.contains(it)) {
                    times[next] = Some((now, now + operations[next].seconds));
                    running.insert(*lane, next);
                    queue.pop();
                    changed = true;
                }
            }
        }
        let ends = running.values().map(|number| times[*number].unwrap().1);
        match ends.min_by(f64::total_cmp) {
            Some(end) => now = end,
            None => break,
        }
    }
    times.into_iter().collect()
}

/// The most bytes of a rank, counted anew at each begin.
pub(super) fn memory_max<N: Display>(
    graph: &EventGraph<N>,
    times: &[(f64, f64)],
    rank: usize,
) -> u64 {
    let of_rank = || {
        let operations = graph.operations().iter().zip(times);
        operations.filter(|(operation, _)| operation.lane.rank == rank)
    };
    let held_at = |now: f64| {
        let held = of_rank().map(|(operation, (begin, end))| {
            let takes = if *begin <= now { operation.takes } else { 0 };
            let is_over = *end < now || (*end == now && end > begin);
            i128::from(takes) - i128::from(if is_over { operation.frees } else { 0 })
        });
        held.sum::<i128>()
    };
    let most = of_rank().map(|(_, (begin, _))| held_at(*begin)).max();
    most.unwrap_or_default().try_into().unwrap()
}

/// Asserts that a replay is what the simulation finds, and that its critical path is one.
pub(super) fn assert_replay<N: Display>(graph: &EventGraph<N>, replay: &Replay) {
    let times = simulate(graph).unwrap();
    let replayed = replay
        .begins_s()
        .iter()
        .copied()
        .zip(replay.ends_s().iter().copied());
    assert_eq!(replayed.collect::<Vec<_>>(), times);
    let makespan = times.iter().map(|it| it.1).fold(0.0, f64::max);
    assert_eq!(replay.makespan_s(), makespan);
    for rank in graph.lanes().map(|lane| lane.rank) {
        assert_eq!(replay.memory_max(rank), memory_max(graph, &times, rank));
    }
    for (lane, used) in replay.lanes() {
        let operations = graph.operations().iter().filter(|it| it.lane == lane);
        let busy: f64 = operations.map(|it| it.seconds).sum();
        assert_eq!(used.busy_s, busy);
        assert!((used.idle_s - (makespan - busy)).abs() <= 1e-9 * makespan.max(1.0));
    }
    assert_critical_path(graph, replay);
}

fn assert_critical_path<N: Display>(graph: &EventGraph<N>, replay: &Replay) {
    let arrows: BTreeSet<_> = graph.arrows().collect();
    let path = replay.critical_path();
    let mut now = 0.0;
    for (at, number) in path.iter().enumerate() {
        assert_eq!(replay.begins_s()[*number], now, "a gap before {number}");
        now += graph.operations()[*number].seconds;
        let Some(before) = at.checked_sub(1).map(|at| path[at]) else {
            continue;
        };
        let lane = graph.operations()[*number].lane;
        let neighbour = (0..*number).rfind(|it| graph.operations()[*it].lane == lane);
        let follows = neighbour == Some(before) || arrows.contains(&(*number, before));
        assert!(follows, "{number} does not wait for {before}");
    }
    assert_eq!(now, replay.makespan_s());
}
