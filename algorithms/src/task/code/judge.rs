//! Verdicts on a reply, by the outcomes of its trials.

use serde::{Deserialize, Serialize};

use super::{
    super::verdict::{Reason, Verdict},
    trial::{Passes, Trial, TrialOutcome},
};

/// The reward of a program that passes some tests but not all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credit {
    /// Nothing. The first test that fails decides, and no more are run.
    #[default]
    AllOrNothing,
    /// The fraction of tests that it passes.
    Fraction,
}

/// Why there is no verdict. Nothing is known about the reply: judge it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unjudged {
    /// A program could not be run.
    #[error("test {test} could not be run: {why}")]
    NotStarted {
        /// The test, counted from 1.
        test: usize,
        /// The reason.
        why: String,
    },
    /// Trials are left that could change the verdict.
    #[error("only {run} of {of} tests were run, which does not decide: run the others, too")]
    Undecided {
        /// Number of tests that were run.
        run: usize,
        /// Number of tests in all.
        of: usize,
    },
}

/// Returns true when a program printed what it should: line by line, without white space at the
/// ends of lines and without empty lines at the end. Everything else counts, and numbers are text.
#[must_use]
pub fn same_output(printed: &[u8], expected: &[u8]) -> bool {
    lines(printed).eq(lines(expected))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.trim_ascii_end().split(|byte| *byte == b'\n');
    lines.map(<[u8]>::trim_ascii_end)
}

pub(super) fn decided(credit: Credit, trials: &[Trial], outcomes: &[TrialOutcome]) -> bool {
    let not_started = |outcome: &TrialOutcome| matches!(outcome, TrialOutcome::NotStarted(_));
    outcomes.len() >= trials.len()
        || outcomes.iter().any(not_started)
        || credit == Credit::AllOrNothing && first_failed(trials, outcomes).is_some()
}

pub(super) fn verdict(
    credit: Credit,
    trials: &[Trial],
    outcomes: &[TrialOutcome],
) -> Result<Verdict, Unjudged> {
    let of = trials.len();
    for (at, outcome) in outcomes.iter().enumerate() {
        if let TrialOutcome::NotStarted(why) = outcome {
            let why = why.clone();
            return Err(Unjudged::NotStarted { test: at + 1, why });
        }
    }
    if of == 0 || !decided(credit, trials, outcomes) {
        let run = outcomes.len().min(of);
        return Err(Unjudged::Undecided { run, of });
    }
    let Some(first) = first_failed(trials, outcomes) else {
        return Ok(Verdict::correct());
    };
    let both = trials.iter().zip(outcomes);
    let passed = both
        .filter(|(trial, outcome)| trial.passes(outcome))
        .count();
    let reward = match credit {
        Credit::AllOrNothing => 0.0,
        Credit::Fraction => passed as f64 / of as f64,
    };
    let why = match &outcomes[first] {
        TrialOutcome::Exited { code: 0, .. } => "it printed something else".to_owned(),
        outcome => outcome.to_string(),
    };
    let detail = format!("test {} of {of}: {why}", first + 1);
    Ok(Verdict::incorrect(
        reward,
        Reason::TestFailed { passed, detail },
    ))
}

fn first_failed(trials: &[Trial], outcomes: &[TrialOutcome]) -> Option<usize> {
    let mut both = trials.iter().zip(outcomes);
    both.position(|(trial, outcome)| !trial.passes(outcome))
}

impl Trial {
    /// Returns true when this outcome passes the test.
    #[must_use]
    pub fn passes(&self, outcome: &TrialOutcome) -> bool {
        let TrialOutcome::Exited { code: 0, stdout } = outcome else {
            return false;
        };
        match &self.passes {
            Passes::Output(expected) => same_output(stdout, expected.as_bytes()),
            Passes::Exactly(expected) => stdout == expected.as_bytes(),
        }
    }
}
