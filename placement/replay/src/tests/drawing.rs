//! Drawings of schedules.

use crate::{EventGraph, Lane, PipelineCosts, PipelineSchedule, StageCosts, draw};

fn drawn(schedule: &PipelineSchedule, costs: &PipelineCosts, width: usize) -> Vec<String> {
    let graph = schedule.graph(costs).unwrap();
    let replay = graph.replay().unwrap();
    draw(&graph, &replay, width)
}

fn uniform(stages: usize) -> PipelineCosts {
    PipelineCosts::uniform(stages, StageCosts::new(1.0, 1.0, 1.0), 0.0)
}

#[test]
fn zb_h1_is_drawn_with_weight_gradients_in_its_bubbles() {
    let schedule = PipelineSchedule::zero_bubble_h1(3, 4).unwrap();
    assert_eq!(
        drawn(&schedule, &uniform(3), 16),
        ["0 012..aA3bBcCdD", "1 .01.a2bA3cBdCD", "2 ..0a1b2cA3dBCD"]
    );
}

#[test]
fn each_column_is_one_second_where_there_is_room_for_all() {
    // A tenth micro-batch has the digit of the first, and costs may differ by stage.
    let schedule = PipelineSchedule::gpipe(2, 11).unwrap();
    let mut costs = uniform(2);
    costs.stages[1] = StageCosts::new(2.0, 0.5, 0.5);
    let lines = drawn(&schedule, &costs, 2 + 46);
    assert_eq!(
        lines,
        [
            "0 01234567890.............aabbccddeeffgghhiijjaa",
            "1 .0011223344556677889900abcdefghija............",
        ]
    );
}

#[test]
fn lines_have_the_width_that_is_given() {
    let schedule = PipelineSchedule::one_forward_one_backward(12, 30).unwrap();
    for width in [4, 5, 17, 80, 200] {
        let lines = drawn(&schedule, &uniform(12), width);
        assert_eq!(lines.len(), 12);
        assert!(lines.iter().all(|line| line.len() == width), "{width}");
        assert!(lines[3].starts_with(" 3 ") && lines[11].starts_with("11 "));
    }
    // One column of time at least.
    assert!(
        drawn(&schedule, &uniform(12), 0)
            .iter()
            .all(|line| line.len() == 4)
    );
}

#[test]
fn a_column_shows_what_has_most_of_its_time() {
    // Columns of three seconds. By seconds, rank 0 has 012 3.. ... .aa .bb .cc .dd, rank 1 .01 2.. ..a a3b b.c c.d
    // d..: of marks with equal shares the first is shown, and a bubble only where it has more.
    let schedule = PipelineSchedule::one_forward_one_backward(4, 4).unwrap();
    assert_eq!(
        drawn(&schedule, &uniform(4), 2 + 7),
        ["0 0..abcd", "1 0..abc.", "2 ..abcd.", "3 .abcd.."]
    );
}

#[test]
fn bubbles_are_drawn_in_proportion() {
    let schedule = PipelineSchedule::one_forward_one_backward(4, 8).unwrap();
    let lines = drawn(&schedule, &uniform(4), 2 + 330);
    for line in lines {
        let bubbles = line[2..].matches('.').count();
        // 9 of 33 seconds.
        assert_eq!(bubbles, 90, "{line}");
    }
}

#[test]
fn a_graph_without_passes_has_no_lines() {
    let graph = EventGraph::new();
    assert!(draw(&graph, &graph.replay().unwrap(), 80).is_empty());
    // Nothing costs anything.
    let schedule = PipelineSchedule::gpipe(2, 1).unwrap();
    let costs = PipelineCosts::uniform(2, StageCosts::default(), 0.0);
    assert_eq!(drawn(&schedule, &costs, 5), ["0 ...", "1 ..."]);
    let lanes = schedule.graph(&costs).unwrap();
    assert!(lanes.lanes().any(|lane| lane == Lane::receive(1)));
}
