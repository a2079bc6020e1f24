//! The table of docs/parallel.md: `cargo test -p odeon-replay bubble_table -- --nocapture` prints it.

use crate::{PipelineCosts, PipelineSchedule, ScheduleError, StageCosts};

fn row(
    name: &str,
    schedule: Result<PipelineSchedule, ScheduleError>,
    stage: StageCosts,
) -> (f64, usize) {
    let schedule = schedule.unwrap();
    // A chunk has its part of a rank's layers.
    let part = |seconds: f64| seconds / schedule.chunks() as f64;
    let stage = StageCosts::new(
        part(stage.forward_s),
        part(stage.input_gradient_s),
        part(stage.weight_gradient_s),
    );
    let costs = PipelineCosts::uniform(schedule.stages(), stage, 0.0);
    let summary = schedule.summary(&costs).unwrap();
    let in_flight = summary.ranks.iter().map(|rank| rank.in_flight_max).max();
    let in_flight = in_flight.unwrap();
    let of_ranks = in_flight as f64 / schedule.chunks() as f64;
    let percent = 100.0 * summary.bubble_share;
    print!("| {name} {percent:.1} % | {of_ranks} ");
    (percent, in_flight)
}

#[test]
fn bubble_table() {
    let stage = StageCosts::new(1.0, 1.0, 1.0);
    for (p, m) in [(4, 8), (4, 32), (8, 8), (8, 32)] {
        println!("p {p}, m {m}");
        let costs = PipelineCosts::uniform(p, stage, 0.0);
        let gpipe = row("gpipe", PipelineSchedule::gpipe(p, m), stage);
        let one = row(
            "1f1b",
            PipelineSchedule::one_forward_one_backward(p, m),
            stage,
        );
        let two = row("v2", PipelineSchedule::interleaved(p, m, 2), stage);
        let four = row("v4", PipelineSchedule::interleaved(p, m, 4), stage);
        let h1 = row("h1", PipelineSchedule::zero_bubble_h1(p, m), stage);
        let half = row(
            "half",
            PipelineSchedule::zero_bubble(&costs, m, p / 2),
            stage,
        );
        println!();
        assert_eq!((gpipe.1, one.1, h1.1, half.1), (m, p, p, p / 2));
        assert!((gpipe.0 - one.0).abs() < 1e-9 && one.0 > two.0 && two.0 > four.0);
        assert!(h1.0 < one.0 && h1.0 < half.0);
    }
}
