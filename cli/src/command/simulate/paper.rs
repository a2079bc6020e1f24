//! The numbers that Laminar (arXiv 2510.12633) reports, beside what was simulated.

use odeon_actors::simulate::{Kind, Mode, Outcome};

use super::said;
use super::table::{other, times};
use crate::figures;

pub(super) const HEADINGS: [&str; 3] = ["laminar", "here", "reported"];

/// A ratio over all sizes: on average, and the best.
struct Over {
    mean: f64,
    most: f64,
}

impl Over {
    fn of(ratios: &[f64]) -> Option<Self> {
        let most = ratios.iter().copied().reduce(f64::max)?;
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        Some(Self { mean, most })
    }

    fn told(&self) -> String {
        format!("{} mean, {} most", times(self.mean), times(self.most))
    }
}

/// Rows of what both say something about; none without `laminar`.
pub(super) fn compared(kind: Kind, outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let laminar: Vec<&Outcome> = outcomes
        .iter()
        .filter(|it| it.mode == Mode::Laminar)
        .collect();
    if laminar.is_empty() {
        return vec![];
    }
    let mut rows = vec![];
    let mut row = |what: &str, here: String, reported: &str| {
        rows.push(vec![what.to_owned(), here, reported.to_owned()]);
    };
    let ratios = |mode, of: fn(&Outcome) -> f64| -> Vec<f64> {
        let both = laminar
            .iter()
            .filter_map(|it| Some((it, other(outcomes, it, mode)?)));
        both.map(|(it, other)| of(it) / of(other)).collect()
    };
    for (mode, reported) in over(kind) {
        if let Some(over) = Over::of(&ratios(mode, |it| it.tokens_per_s)) {
            row(
                &format!("tokens/s over {}", said(&mode)),
                over.told(),
                reported,
            );
        }
    }
    if let Some(over) = Over::of(&ratios(Mode::Drain, |it| it.tokens_per_s)) {
        row("tokens/s with packing over without", over.told(), "1.26x");
        let with = mean(laminar.iter().map(|it| it.cache_filled));
        let without = outcomes.iter().filter(|it| it.mode == Mode::Drain);
        let without = mean(without.map(|it| it.cache_filled));
        let here = format!("{}, {}", figures::percent(without), figures::percent(with));
        row("cache in use without packing, with it", here, "72 %, 82 %");
    }
    let most = |of: fn(&Outcome) -> u64| laminar.iter().map(|it| of(it)).max().unwrap_or(0);
    let here = format!(
        "{:.1} mean, {} most",
        mean(laminar.iter().map(|it| it.inherent_mean)),
        most(|it| it.inherent_max)
    );
    row(
        "staleness of complete replies",
        here,
        "below 3, 4 most (7B, 64 cards)",
    );
    let here = format!(
        "{:.1} mean, {} most",
        mean(laminar.iter().map(|it| it.staleness_mean)),
        most(|it| it.staleness_max)
    );
    row("staleness of trained replies", here, "");
    for (model, reported) in [
        ("qwen2.5-7b", ""),
        ("qwen2.5-32b", "640 ms"),
        ("qwen2.5-72b", "1.4 s"),
    ] {
        let of_model = || laminar.iter().filter(|it| said(&it.model) == model);
        let stalls = || of_model().map(|it| it.publish_s * 1e3);
        let (Some(least), Some(most)) = (stalls().reduce(f64::min), stalls().reduce(f64::max))
        else {
            continue;
        };
        let here = format!("{} to {}", figures::span(least), figures::span(most));
        row(&format!("stall of the trainer, {model}"), here, reported);
        let rates = |of: fn(u32, u32) -> bool| {
            let best = of_model().reduce(|one, it| if of(it.gpus, one.gpus) { it } else { one });
            best.map(|it| (f64::from(it.gpus), it.tokens_per_s))
        };
        if let (Some((few, slow)), Some((many, fast))) =
            (rates(|it, one| it < one), rates(|it, one| it > one))
            && many > few
        {
            let what = format!("tokens/s a card on {many}, over {few}, {model}");
            row(
                &what,
                figures::percent(fast / slow * few / many),
                scaling(kind),
            );
        }
    }
    rows
}

/// Speed-ups over all sizes.
const fn over(kind: Kind) -> [(Mode, &'static str); 4] {
    let [synchronous, one_step, stream, partial] = match kind {
        Kind::Math => [
            "2.56x mean, 5.48x most",
            "1.98x mean",
            "1.93x mean",
            "1.39x mean",
        ],
        Kind::Tools => ["2.62x mean, 5.42x most", "", "", ""],
    };
    [
        (Mode::Synchronous, synchronous),
        (Mode::OneStep, one_step),
        (Mode::Stream, stream),
        (Mode::Partial, partial),
    ]
}

/// From the fewest to 1,024 cards.
const fn scaling(kind: Kind) -> &'static str {
    match kind {
        Kind::Math => "54 %",
        Kind::Tools => "47 %",
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), it| (sum + it, count + 1));
    sum / f64::from(count.max(1))
}
