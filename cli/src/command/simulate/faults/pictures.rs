//! Months under faults as pictures.

use odeon_actors::simulate::faults::{FaultOutcome, RatioPoint, RestartRow, RunPhase};

use super::super::said;
use super::Compared;
use crate::plot::{Axis, Bars, Figure, Line, Lines, side_by_side};

/// All pictures, each with the word for its subject.
pub(super) fn all(compared: &Compared) -> Vec<(&'static str, String)> {
    let outcomes = &compared.outcomes;
    let ettr = [
        cumulative(outcomes),
        sliding(outcomes),
        first_days(outcomes),
    ];
    vec![
        ("ettr", side_by_side(&ettr)),
        ("phases", side_by_side(&[phases(outcomes)])),
        ("restarts", side_by_side(&[restarts(&compared.restarts)])),
    ]
}

fn percent(label: &str) -> Axis {
    Axis::new(label).unit("%").within(0.0, 100.0)
}

fn days() -> Axis {
    Axis::new("time").unit("days")
}

/// The ratio since the beginning.
fn cumulative(outcomes: &[FaultOutcome]) -> Figure {
    let after = |it: &&RatioPoint| it.day >= 1.0;
    let all = outcomes
        .iter()
        .flat_map(|it| it.cumulative.iter().filter(after));
    let least = all
        .map(|it| 10.0 * (10.0 * it.ratio).floor())
        .fold(90.0, f64::min);
    let axis = Axis::new("ETTR").unit("%").within(least, 100.0);
    let lines = Lines::new("since the beginning", days(), axis);
    let line = |lines: Lines, outcome: &FaultOutcome| {
        // Of the first hours chance says too much.
        let points = outcome.cumulative.iter().filter(after);
        let points = points.map(|it| (it.day, 100.0 * it.ratio));
        lines.line(Line::new(&outcome.policy.name, points))
    };
    outcomes.iter().fold(lines, line).into()
}

/// The first policy and the last.
fn ends(outcomes: &[FaultOutcome]) -> Vec<&FaultOutcome> {
    match outcomes {
        [] => vec![],
        [one] => vec![one],
        [first, .., last] => vec![first, last],
    }
}

/// The ratio of an hour: its mean over stretches, and its least and most in each.
fn sliding(outcomes: &[FaultOutcome]) -> Figure {
    let lines = Lines::new("over an hour: mean, least, most", days(), percent("ETTR"));
    let line = |lines: Lines, outcome: &FaultOutcome| {
        let each = outcome.sliding.len().div_ceil(STRETCHES).max(1);
        let stretches: Vec<(f64, Vec<f64>)> = outcome
            .sliding
            .chunks(each)
            .map(|chunk| {
                let ratios = chunk.iter().map(|it| 100.0 * it.ratio);
                (chunk[chunk.len() / 2].day, ratios.collect())
            })
            .collect();
        let runs = stretches.iter().map(|(day, all)| (*day, all.as_slice()));
        lines.line(Line::spread(&outcome.policy.name, runs))
    };
    ends(outcomes).into_iter().fold(lines, line).into()
}

/// The ratio of each hour of the first days.
fn first_days(outcomes: &[FaultOutcome]) -> Figure {
    let lines = Lines::new("over an hour, first week", days(), percent("ETTR"));
    let line = |lines: Lines, outcome: &FaultOutcome| {
        let is_first = |it: &&RatioPoint| it.day <= 7.0;
        let points = outcome.sliding.iter().take_while(is_first);
        let points = points.map(|it| (it.day, 100.0 * it.ratio));
        lines.line(Line::new(&outcome.policy.name, points))
    };
    ends(outcomes).into_iter().fold(lines, line).into()
}

/// What is not productive, by policy.
fn phases(outcomes: &[FaultOutcome]) -> Figure {
    let part = Axis::new("of all time").unit("%");
    let lost = RunPhase::ALL.into_iter().skip(1);
    let bars = Bars::new(
        "not productive",
        "phase",
        part,
        lost.clone().map(|it| said(&it)),
    );
    let series = |bars: Bars, outcome: &FaultOutcome| {
        let of = |phase: RunPhase| outcome.phases.get(&phase).map_or(0.0, |it| it.mean);
        let parts = lost.clone().map(|phase| 100.0 * of(phase));
        bars.series(&outcome.policy.name, parts)
    };
    outcomes.iter().fold(bars, series).into()
}

/// Restarts over machines, ours and those that are reported.
fn restarts(rows: &[RestartRow]) -> Figure {
    let machines = Axis::new("machines").doubling();
    let lines = Lines::new(
        "restart",
        machines,
        Axis::new("time").unit("seconds").doubling(),
    );
    let line = |name: &str, of: fn(&RestartRow) -> f64| {
        let points = rows.iter().map(|it| (f64::from(it.machines), of(it)));
        Line::new(name, points)
    };
    lines
        .line(line("requeue", |it| it.requeue_s))
        .line(line("requeue, reported", |it| it.reported_requeue_s))
        .line(line("standbys", |it| it.standby_s))
        .line(line("in place", |it| it.in_place_s))
        .line(line("in place, reported", |it| it.reported_in_place_s))
        .into()
}

const STRETCHES: usize = 90;
