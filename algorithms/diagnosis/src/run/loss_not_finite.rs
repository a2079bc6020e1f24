//! The loss of a rank is not a number, or infinite.

use super::event::{RunEvent, named};
use super::run_detector;
use crate::{Alert, Detector, Finding, Severity};

/// Finds ranks whose loss is not finite. One alone has a bad sample or a bad device; all together have bad
/// weights.
#[derive(Clone, Debug, Default)]
pub struct LossNotFinite {
    /// Ranks whose loss was not finite in the last step.
    bad: Vec<u32>,
    /// The last step.
    at: u64,
}

run_detector!(LossNotFinite, |it, at| !it.bad.is_empty() && at >= it.at);

impl Detector<RunEvent> for LossNotFinite {
    /// Answers ranks whose loss was finite in the step before, in one finding.
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        let RunEvent::Losses(losses) = seen else {
            return vec![];
        };
        if at <= self.at {
            return vec![];
        }
        self.at = at;
        let ranks = (0_u32..).zip(losses);
        let learns: Vec<(u32, f64)> = ranks
            .filter_map(|(rank, it)| Some((rank, (*it)?)))
            .collect();
        let bad = learns.iter().filter(|(_, loss)| !loss.is_finite());
        let bad: Vec<u32> = bad.map(|(rank, _)| *rank).collect();
        let before = std::mem::replace(&mut self.bad, bad.clone());
        let who: Vec<u32> = bad
            .iter()
            .copied()
            .filter(|it| !before.contains(it))
            .collect();
        if who.is_empty() {
            return vec![];
        }
        let (of, count) = (learns.len(), bad.len());
        let names: Vec<String> = who.iter().map(u32::to_string).collect();
        let ranks = if who.len() == 1 { "rank" } else { "ranks" };
        let cause = match count == of {
            true if of == 1 => "",
            true => ", like that of every rank: their weights are bad, or the data of all",
            false => ", and that of the others is: look at its batch, and at its device",
        };
        let sentence = format!(
            "the loss of {ranks} {} is not finite in step {at}{cause}",
            names.join(", ")
        );
        vec![Finding {
            who,
            cause: Alert {
                rule: "loss_not_finite",
                severity: Severity::Error,
                sentence,
                part: String::new(),
                evidence: vec![named(("ranks", count as f64)), named(("of", of as f64))],
            },
            since: at,
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 92.
    #[test]
    fn ranks_are_named_when_their_loss_stops_being_finite() {
        let mut detector = LossNotFinite::default();
        let mut told = |at, losses: &[f64]| {
            let losses = losses.iter().map(|loss| Some(*loss)).collect();
            let found = detector.observe(&RunEvent::Losses(losses), at);
            let told = found.iter();
            let told: Vec<_> = told
                .map(|it| (it.who.clone(), it.cause.sentence.clone()))
                .collect();
            told
        };
        let nan = f64::NAN;
        assert_eq!(told(1, &[1.0, 2.0, 3.0]), []);
        let one = "the loss of rank 1 is not finite in step 2, and that of the others is: look at its \
                   batch, and at its device";
        assert_eq!(told(2, &[1.0, nan, 3.0]), [(vec![1], one.to_owned())]);
        assert_eq!(told(3, &[1.0, nan, 3.0]), [], "it goes on");
        assert_eq!(told(3, &[nan, nan, 3.0]), [], "the step is known");
        let all = "the loss of ranks 0, 2 is not finite in step 4, like that of every rank: their weights are \
                   bad, or the data of all";
        let infinite = f64::INFINITY;
        assert_eq!(
            told(4, &[infinite, nan, nan]),
            [(vec![0, 2], all.to_owned())]
        );
        assert_eq!(told(5, &[1.0, 1.0, 1.0]), []);
        assert_eq!(told(6, &[nan, 1.0, 1.0]).len(), 1, "it begins anew");
        let alone = "the loss of rank 0 is not finite in step 8";
        assert_eq!(told(7, &[1.0]), []);
        assert_eq!(told(8, &[nan]), [(vec![0], alone.to_owned())]);
    }

    #[test]
    fn a_rank_that_had_nothing_to_learn_from_is_not_bad() {
        let mut detector = LossNotFinite::default();
        let losses = RunEvent::Losses(vec![None, Some(1.0)]);
        assert_eq!(detector.observe(&losses, 1), []);
        assert_eq!(detector.observe(&RunEvent::Losses(vec![]), 2), []);
    }
}
