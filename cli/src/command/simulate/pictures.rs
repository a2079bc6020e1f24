//! Simulated runs as pictures.

use odeon_actors::simulate::{Mode, ModelName, Moment, Outcome};

use super::said;
use super::table::other;
use crate::plot::{Axis, Bars, Figure, Line, Lines, side_by_side};

/// All pictures, each with the word for its subject: throughput has no word of its own.
pub(super) fn all(outcomes: &[Outcome]) -> Vec<(&'static str, String)> {
    let figures = [
        ("", throughput(outcomes)),
        ("cache", cache(outcomes)),
        ("staleness", staleness(outcomes)),
        ("failure", failure(outcomes)),
    ];
    let some = figures
        .into_iter()
        .filter(|(_, figures)| !figures.is_empty());
    some.map(|(of, figures)| (of, side_by_side(&figures)))
        .collect()
}

/// For each model, throughput over cards, a line for each mode.
fn throughput(outcomes: &[Outcome]) -> Vec<Figure> {
    let figure = |model: ModelName| {
        let of_model = || outcomes.iter().filter(move |it| it.model == model);
        let cards = Axis::new("cards").doubling();
        let tokens = Axis::new("trained tokens").unit("per second");
        let lines = Lines::new(said(&model), cards, tokens);
        let modes = distinct(of_model().map(|it| it.mode)).into_iter();
        let lines = modes.fold(lines, |lines, mode| {
            let points = of_model().filter(|it| it.mode == mode);
            let points = points.map(|it| (f64::from(it.gpus), it.tokens_per_s));
            lines.line(Line::new(said(&mode), points))
        });
        Figure::from(lines)
    };
    distinct(outcomes.iter().map(|it| it.model))
        .into_iter()
        .map(figure)
        .collect()
}

/// For each model on the fewest cards, how full caches are, with packing and without.
fn cache(outcomes: &[Outcome]) -> Vec<Figure> {
    let figure = |with: &Outcome| -> Option<Figure> {
        let without = other(outcomes, with, Mode::Drain)?;
        let time = Axis::new("time").unit("seconds");
        let filled = Axis::new("cache in use").unit("%").within(0.0, 100.0);
        let title = format!("{} on {} cards", said(&with.model), with.gpus);
        let line = |name, outcome: &Outcome| {
            let points = smooth(outcome, |it| 100.0 * it.cache_filled);
            Line::new(name, points)
        };
        let lines = Lines::new(title, time, filled);
        let lines = lines.line(line("without packing", without));
        Some(lines.line(line("with packing", with)).into())
    };
    fewest(outcomes).into_iter().filter_map(figure).collect()
}

/// For each model, how old replies were when they were trained, a series for each number of cards.
fn staleness(outcomes: &[Outcome]) -> Vec<Figure> {
    let laminar = || outcomes.iter().filter(|it| it.mode == Mode::Laminar);
    let figure = |model: ModelName| {
        let of_model = || laminar().filter(move |it| it.model == model);
        let most = of_model().map(|it| it.staleness.len()).max().unwrap_or(0);
        let steps = (0..most).map(|steps| steps.to_string());
        let part = Axis::new("of all replies").unit("%");
        let title = format!("{}, laminar", said(&model));
        let bars = Bars::new(title, "steps between weights and training", part, steps);
        let bars = of_model().fold(bars, |bars, it| {
            let all = it.staleness.iter().sum::<u64>().max(1) as f64;
            let parts = it.staleness.iter().map(|count| 100.0 * *count as f64 / all);
            bars.series(format!("{} cards", it.gpus), parts)
        });
        Figure::from(bars)
    };
    distinct(laminar().map(|it| it.model))
        .into_iter()
        .map(figure)
        .collect()
}

/// For each run that lost a machine, the part of its rollouts that generate, and what is trained.
fn failure(outcomes: &[Outcome]) -> Vec<Figure> {
    let figure = |outcome: &Outcome| -> Option<Figure> {
        let lost = outcome.failure?;
        let time = Axis::new("time since the loss").unit("seconds");
        let busy = Axis::new("rollouts that generate").unit("%");
        let title = format!(
            "{} on {} cards, {}",
            said(&outcome.model),
            outcome.gpus,
            said(&outcome.mode)
        );
        let points = outcome.timeline.iter();
        let points = points.map(|it| (it.at_s - lost.at_s, 100.0 * it.busy));
        let around = points.filter(|(at, _)| at.abs() <= 2.5 * lost.recovered_s);
        let line = Line::new("rollouts", around);
        Some(
            Lines::new(title, time, busy.within(0.0, 100.0))
                .line(line)
                .into(),
        )
    };
    outcomes.iter().filter_map(figure).collect()
}

/// The runs with packing on the fewest cards, one for each model.
fn fewest(outcomes: &[Outcome]) -> Vec<&Outcome> {
    let laminar = || outcomes.iter().filter(|it| it.mode == Mode::Laminar);
    let models = distinct(laminar().map(|it| it.model)).into_iter();
    models
        .filter_map(|model| {
            let of_model = laminar().filter(|it| it.model == model);
            of_model.min_by_key(|it| it.gpus)
        })
        .collect()
}

/// Means over so many moments that a line has some [`POINTS`].
fn smooth(outcome: &Outcome, of: impl Fn(&Moment) -> f64) -> Vec<(f64, f64)> {
    let each = outcome.timeline.len().div_ceil(POINTS).max(1);
    let chunks = outcome.timeline.chunks(each);
    let point = |chunk: &[Moment]| {
        let mean = chunk.iter().map(&of).sum::<f64>() / chunk.len() as f64;
        (chunk[chunk.len() / 2].at_s, mean)
    };
    chunks.map(point).collect()
}

/// Each once, in the order in which they come.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(vec![], |mut kept, one| {
        if !kept.contains(&one) {
            kept.push(one);
        }
        kept
    })
}

const POINTS: usize = 150;
