//! Predicted seconds of a step, and the plans that one was chosen from.

use anyhow::Result;
use odeon_actors::recipe::{Arranged, CandidatePlan, PretrainRecipe};
use odeon_algorithms::cost::training::SharedStepTime;
use serde::Serialize;

use crate::figures;
use crate::print;

/// The prediction as it is told in JSON.
#[derive(Serialize)]
pub(super) struct PredictedTold {
    /// The card of each rank, or `processor`.
    machine: String,
    seconds: f64,
    parts: SharedStepTime,
}

impl PredictedTold {
    pub(super) fn of(recipe: &PretrainRecipe, time: SharedStepTime) -> Self {
        Self {
            machine: recipe.predicted_machine().card.name,
            seconds: time.seconds(),
            parts: time,
        }
    }
}

/// A row for each part of a step.
pub(super) fn show(recipe: &PretrainRecipe, time: SharedStepTime) -> Result<()> {
    let parts = [
        ("passes", time.compute_s),
        ("rows of tensor ranks", time.tensor_s),
        ("rows of context ranks", time.context_s),
        ("rows to experts and back", time.experts_s),
        ("messages between stages", time.stages_s),
        ("stages that wait", time.bubble_s),
        ("sums of gradients, and shards", time.data_s),
        ("the optimiser", time.update_s),
    ];
    let all = time.seconds();
    let row = |(part, seconds): (&str, f64)| {
        let share = format!("{:.1} %", 100.0 * seconds / all);
        vec![part.to_owned(), figures::span(seconds * 1e3), share]
    };
    let parts = parts.into_iter().filter(|(_, seconds)| *seconds > 0.0);
    let rows: Vec<Vec<String>> = parts.chain([("all", all)]).map(row).collect();
    print::table(&["part of a step", "predicted", "share"], &rows)?;
    let machine = recipe.predicted_machine();
    let threads = recipe.processes.threads as u64;
    print::line(match &*machine.card.name {
        "processor" => format!(
            "Predicted for {} a rank, with a core for each; nothing is measured.",
            figures::plural(threads, "compute thread")
        ),
        card => format!("Predicted for ranks with an {card} each; nothing is measured."),
    })?;
    Ok(())
}

/// One line about the plan that was chosen.
pub(in crate::command) fn chosen(choice: &Arranged) -> String {
    let best = &choice.fitting[0];
    format!(
        "the plan of {} that is predicted to be fastest: {} ({} a step)",
        figures::count(choice.accepted as u64),
        best.parallel.told(),
        figures::span(best.time.seconds() * 1e3)
    )
}

/// The best plans, those that do not fit, and why others are none.
pub(super) fn show_choice(choice: &Arranged) -> Result<()> {
    let rank = |candidate: &CandidatePlan, word: &str| {
        vec![
            candidate.parallel.told(),
            figures::span(candidate.time.seconds() * 1e3),
            figures::bytes(candidate.bytes as f64),
            word.to_owned(),
        ]
    };
    let fitting = choice.fitting.iter().enumerate();
    let fitting = fitting.map(|(at, it)| rank(it, if at == 0 { "chosen" } else { "" }));
    let too_large = choice.too_large.iter().take(TOO_LARGE_SHOWN);
    let too_large = too_large.map(|it| rank(it, "does not fit"));
    let rows: Vec<Vec<String>> = fitting.chain(too_large).collect();
    print::table(&["plan", "a step", "largest rank", ""], &rows)?;
    print::line(format!(
        "{} are accepted; each rank may have {}.",
        figures::plural(choice.accepted as u64, "plan"),
        figures::bytes(choice.memory as f64)
    ))?;
    let unshown = choice.too_large.len().saturating_sub(TOO_LARGE_SHOWN);
    if unshown > 0 {
        print::line(format!("{unshown} more that would be quicker do not fit."))?;
    }
    for refused in &choice.refused {
        print::line(format!(
            "{} cannot be, such as {}: {}",
            figures::plural(refused.count as u64, "plan"),
            refused.first.told(),
            refused.why
        ))?;
    }
    Ok(())
}

/// Plans that do not fit, of which no more are shown.
const TOO_LARGE_SHOWN: usize = 3;
