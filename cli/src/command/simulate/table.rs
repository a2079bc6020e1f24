//! Simulated runs as rows.

use odeon_actors::simulate::{Lost, Mode, Outcome};

use super::said;
use crate::figures;

pub(super) const HEADINGS: [&str; 19] = [
    "model",
    "cards",
    "roll out",
    "each",
    "under way",
    "mode",
    "tokens/s",
    "speed-up",
    "step",
    "idle",
    "cache",
    "trainer idle",
    "stall",
    "wait",
    "stale",
    "most",
    "at end",
    "most",
    "emptied",
];

pub(super) fn rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let row = |outcome: &Outcome| {
        let synchronous = other(outcomes, outcome, Mode::Synchronous);
        let speed_up = synchronous.map_or_else(String::new, |synchronous| {
            times(outcome.tokens_per_s / synchronous.tokens_per_s)
        });
        vec![
            said(&outcome.model),
            outcome.gpus.to_string(),
            outcome.rollout_gpus.to_string(),
            outcome.replica_gpus.to_string(),
            outcome.under_way.to_string(),
            said(&outcome.mode),
            figures::short(outcome.tokens_per_s),
            speed_up,
            figures::span(outcome.step_s * 1e3),
            figures::percent(outcome.rollouts_idle),
            figures::percent(outcome.cache_filled),
            figures::percent(1.0 - outcome.trainer_busy),
            figures::span(outcome.publish_s * 1e3),
            figures::span(outcome.pull_s * 1e3),
            format!("{:.1}", outcome.staleness_mean),
            outcome.staleness_max.to_string(),
            format!("{:.1}", outcome.inherent_mean),
            outcome.inherent_max.to_string(),
            outcome.emptied.to_string(),
        ]
    };
    outcomes.iter().map(row).collect()
}

pub(super) const SEARCHED: [&str; 9] = [
    "as the file says",
    "cards",
    "mode",
    "roll out",
    "each",
    "under way",
    "tokens/s",
    "the best over it",
    "trials",
];

/// The settings of the file and what they make, beside the best that were found.
pub(super) fn searched(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let row = |outcome: &Outcome| {
        let searched = outcome.searched?;
        let written = searched.written;
        Some(vec![
            said(&outcome.model),
            outcome.gpus.to_string(),
            said(&outcome.mode),
            written.rollout_gpus.to_string(),
            written.replica_gpus.to_string(),
            written.under_way.to_string(),
            figures::short(written.tokens_per_s),
            times(outcome.tokens_per_s / written.tokens_per_s),
            searched.trials.to_string(),
        ])
    };
    outcomes.iter().filter_map(row).collect()
}

/// The cost of a machine's loss, in a sentence.
pub(super) fn lost(outcome: &Outcome, lost: &Lost) -> String {
    format!(
        "{} on {} cards, {}: a machine was lost after {}; {} complete tokens/s before, {} without \
         it, {} after; {} trained meanwhile, {} replies went on elsewhere, all rollouts generated again \
         after {}",
        said(&outcome.model),
        outcome.gpus,
        said(&outcome.mode),
        figures::span(lost.at_s * 1e3),
        figures::short(lost.before),
        figures::short(lost.during),
        figures::short(lost.after),
        figures::plural(lost.steps, "step"),
        figures::count(lost.reordered),
        figures::span(lost.recovered_s * 1e3),
    )
}

/// The run of another mode with the same model on as many cards.
pub(super) fn other<'a>(
    outcomes: &'a [Outcome],
    outcome: &Outcome,
    mode: Mode,
) -> Option<&'a Outcome> {
    let same = (outcome.model, outcome.gpus, mode);
    outcomes
        .iter()
        .find(|other| (other.model, other.gpus, other.mode) == same)
}

pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2}x")
}
