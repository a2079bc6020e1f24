//! Graphs: what is refused, what is found, and replays against a slow simulation.

use proptest::prelude::*;

use super::naive;
use crate::{EventGraph, GraphError, GraphOperation, Lane, LaneStream, LaneUse};

fn operation(name: &str, lane: Lane, seconds: f64) -> GraphOperation {
    GraphOperation::new(name, lane, seconds)
}

/// A rank computes twice and sends the first result to another, which computes with it.
fn two_ranks() -> (EventGraph, [usize; 4]) {
    let mut graph = EventGraph::new();
    let first = graph
        .add(operation("first", Lane::compute(0), 2.0).taking(100))
        .unwrap();
    let second = graph
        .add(
            operation("second", Lane::compute(0), 1.5)
                .taking(50)
                .freeing(150),
        )
        .unwrap();
    let send = graph.add(operation("send", Lane::send(0), 0.5)).unwrap();
    let third = graph
        .add(operation("third", Lane::compute(1), 4.0))
        .unwrap();
    graph.wait(send, first).unwrap();
    graph.wait(third, send).unwrap();
    (graph, [first, second, send, third])
}

#[test]
fn a_send_does_not_hold_up_what_is_computed_behind_it() {
    let (graph, [first, second, send, third]) = two_ranks();
    let replay = graph.replay().unwrap();
    assert_eq!(replay.begins_s(), [0.0, 2.0, 2.0, 2.5]);
    assert_eq!(replay.ends_s(), [2.0, 3.5, 2.5, 6.5]);
    assert_eq!(replay.makespan_s(), 6.5);
    assert_eq!(replay.critical_path(), [first, send, third]);
    assert!(!replay.critical_path().contains(&second));
    let used = |busy_s, idle_s| Some(LaneUse { busy_s, idle_s });
    assert_eq!(replay.lane(Lane::compute(0)), used(3.5, 3.0));
    assert_eq!(replay.lane(Lane::send(0)), used(0.5, 6.0));
    assert_eq!(replay.lane(Lane::receive(0)), None);
    assert_eq!((replay.memory_max(0), replay.memory_max(1)), (150, 0));
    naive::assert_replay(&graph, &replay);
}

#[test]
fn a_graph_without_operations_is_over_at_once() {
    let replay = EventGraph::<String>::new().replay().unwrap();
    assert_eq!(
        (replay.makespan_s(), replay.critical_path().len()),
        (0.0, 0)
    );
}

#[test]
fn what_ends_gives_back_before_what_begins_then_takes() {
    let mut graph = EventGraph::new();
    let lane = Lane::compute(3);
    graph
        .add(operation("a", lane, 1.0).taking(7).freeing(7))
        .unwrap();
    graph
        .add(operation("b", lane, 1.0).taking(5).freeing(5))
        .unwrap();
    assert_eq!(graph.replay().unwrap().memory_max(3), 7);
    // At one instant nothing says which comes first, so that all is held together.
    graph
        .add(operation("c", lane, 0.0).taking(6).freeing(6))
        .unwrap();
    graph
        .add(operation("d", lane, 0.0).taking(6).freeing(6))
        .unwrap();
    let replay = graph.replay().unwrap();
    assert_eq!(replay.memory_max(3), 12);
    naive::assert_replay(&graph, &replay);
}

#[test]
fn durations_that_are_none_are_refused_with_their_operation() {
    let mut graph = EventGraph::new();
    for (seconds, said) in [(-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let error = graph
            .add(operation("w", Lane::compute(2), seconds))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "operation `w` on rank 2 compute lasts {said} s: give a finite number, 0 or more"
            )
        );
    }
    assert!(graph.operations().is_empty());
    let too_long =
        |graph: &mut EventGraph| graph.add(operation("long", Lane::compute(0), f64::MAX));
    too_long(&mut graph).unwrap();
    assert!(graph.replay().is_ok());
    too_long(&mut graph).unwrap();
    let lane = Lane::compute(0);
    let operation = "long".to_owned();
    assert_eq!(graph.replay(), Err(GraphError::TooLong { operation, lane }));
}

#[test]
fn an_operation_that_is_not_there_is_refused() {
    let (mut graph, [first, ..]) = two_ranks();
    for (operation, over) in [(first, 4), (4, first), (first, usize::MAX)] {
        let error = graph.wait(operation, over).unwrap_err();
        let unknown = operation.max(over);
        assert_eq!(
            error,
            GraphError::UnknownOperation {
                operation: unknown,
                operations: 4
            }
        );
    }
    assert_eq!(graph.arrows().count(), 2);
}

#[test]
fn a_circle_is_named() {
    let (mut graph, [first, _, _, third]) = two_ranks();
    graph.wait(first, third).unwrap();
    assert_eq!(
        graph.replay().unwrap_err().to_string(),
        "operations wait for each other in a circle: `first` (rank 0 compute) waits for `third` (rank 1 compute) \
         waits for `send` (rank 0 send) waits for `first` (rank 0 compute): take one of these arrows out, or change \
         the order of a lane"
    );
    // One that only waits for a circle is not in it, and the order of a lane makes one.
    let mut graph = EventGraph::new();
    let lane = |stream| Lane { rank: 0, stream };
    let outside = graph
        .add(operation("outside", lane(LaneStream::Collective), 1.0))
        .unwrap();
    let early = graph
        .add(operation("early", lane(LaneStream::Compute), 1.0))
        .unwrap();
    let late = graph
        .add(operation("late", lane(LaneStream::Compute), 1.0))
        .unwrap();
    graph.wait(outside, late).unwrap();
    graph.wait(early, late).unwrap();
    let Err(GraphError::Circle { operations }) = graph.replay() else {
        panic!("no circle");
    };
    assert_eq!(
        operations,
        ["`late` (rank 0 compute)", "`early` (rank 0 compute)"]
    );
    // One that waits for itself.
    let mut graph = EventGraph::new();
    let own = graph
        .add(operation("own", lane(LaneStream::Send), 1.0))
        .unwrap();
    graph.wait(own, own).unwrap();
    let Err(GraphError::Circle { operations }) = graph.replay() else {
        panic!("no circle");
    };
    assert_eq!(operations, ["`own` (rank 0 send)"]);
}

#[test]
fn memory_that_nobody_took_is_not_given_back() {
    let mut graph = EventGraph::new();
    graph
        .add(operation("takes", Lane::compute(1), 1.0).taking(10))
        .unwrap();
    graph
        .add(operation("frees", Lane::compute(1), 1.0).freeing(11))
        .unwrap();
    assert_eq!(
        graph.replay().unwrap_err().to_string(),
        "operation `frees` on rank 1 compute gives back 11 bytes when rank 1 holds 10: have the operations before it \
         take what it gives back"
    );
    let mut graph = EventGraph::new();
    for _ in 0..2 {
        graph
            .add(operation("all", Lane::compute(1), 1.0).taking(u64::MAX))
            .unwrap();
    }
    let (operation, lane) = ("all".to_owned(), Lane::compute(1));
    assert_eq!(
        graph.replay(),
        Err(GraphError::MemoryOverflow { operation, lane })
    );
}

/// Operations by lane and quarters of a second, and arrows by the places of both ends.
type Described = (
    Vec<(usize, u8, u8)>,
    Vec<(prop::sample::Index, prop::sample::Index)>,
);

fn described() -> impl Strategy<Value = Described> {
    let operations = prop::collection::vec((0..4_usize, 0..5_u8, 0..9_u8), 1..40);
    let arrow = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (operations, prop::collection::vec(arrow, 0..50))
}

fn graph(described: &Described, only_back: bool) -> EventGraph {
    let (operations, arrows) = described;
    let mut graph = EventGraph::new();
    for (number, (lane, quarters, bytes)) in operations.iter().enumerate() {
        let stream = if lane % 2 == 0 {
            LaneStream::Compute
        } else {
            LaneStream::Send
        };
        let lane = Lane {
            rank: lane / 2,
            stream,
        };
        let operation = operation(&number.to_string(), lane, f64::from(*quarters) / 4.0);
        // Later ones give back a part of what they take.
        let (takes, frees) = (u64::from(*bytes) * 2, u64::from(*bytes));
        graph.add(operation.taking(takes).freeing(frees)).unwrap();
    }
    for (a, b) in arrows {
        let (a, b) = (a.index(operations.len()), b.index(operations.len()));
        if !only_back {
            graph.wait(a, b).unwrap();
        } else if a != b {
            graph.wait(a.max(b), a.min(b)).unwrap();
        }
    }
    graph
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_is_what_lanes_do_that_look_for_work(described in described()) {
        let graph = graph(&described, true);
        naive::assert_replay(&graph, &graph.replay().unwrap());
    }

    #[test]
    fn a_circle_is_found_where_lanes_get_stuck(described in described()) {
        let graph = graph(&described, false);
        match (graph.replay(), naive::simulate(&graph)) {
            (Ok(replay), Some(_)) => naive::assert_replay(&graph, &replay),
            (Err(GraphError::Circle { operations }), None) => {
                let number = |it: &String| it.split('`').nth(1).unwrap().parse::<usize>().unwrap();
                let circle: Vec<_> = operations.iter().map(number).collect();
                let arrows: Vec<_> = graph.arrows().collect();
                let next = circle.iter().cycle().skip(1);
                for (waits, over) in circle.iter().zip(next) {
                    let lane = graph.operations()[*waits].lane;
                    let before = (0..*waits).rfind(|it| graph.operations()[*it].lane == lane);
                    prop_assert!(before == Some(*over) || arrows.contains(&(*waits, *over)));
                }
            }
            (replay, simulated) => prop_assert!(false, "{replay:?} where lanes find {simulated:?}"),
        }
    }
}
