//! Steps that were computed twice, since their first gradient was not taken.

use std::collections::BTreeMap;

use super::event::{RankGradient, RepeatedStep, RunEvent, named};
use super::run_detector;
use crate::{Alert, Detector, Finding, Severity};

/// Says what was wrong with steps that were repeated: a rank whose own gradient was another the second time has a machine
/// that fails, for the same sums of the same numbers are the same but for rounding; one that was the same has bad
/// samples or weights (ByteRobust, arXiv 2509.16293, replays steps for that).
#[derive(Clone, Debug, Default)]
pub struct RepeatedSteps {
    /// The last step that was told of, with its rule and ranks: the same in the next step is not told.
    last: Option<(u64, &'static str, Vec<u32>)>,
}

run_detector!(RepeatedSteps, |it, at| it
    .last
    .as_ref()
    .is_some_and(|(last, ..)| at == *last || at == last + 1));

impl Detector<RunEvent> for RepeatedSteps {
    /// Answers one finding of a step, unless the step before had the same.
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        let RunEvent::Repeated(step) = seen else {
            return vec![];
        };
        let found = judged(step, at);
        let goes_on = self.last.as_ref().is_some_and(|(before, rule, who)| {
            (at == *before || at == before + 1) && *rule == found.cause.rule && *who == found.who
        });
        self.last = Some((at, found.cause.rule, found.who.clone()));
        if goes_on { vec![] } else { vec![found] }
    }
}

/// Ranks with both of their gradients.
type Numbered<'a> = Vec<(u32, &'a [RankGradient; 2])>;

/// The finding of a step.
fn judged(step: &RepeatedStep, at: u64) -> Finding<RunEvent> {
    let numbered = || (0_u32..).zip(&step.ranks);
    let other = numbered().filter(|(_, [first, again])| is_other(first.norm, again.norm));
    let other: Numbered<'_> = other.collect();
    let [first, again] = step.norms;
    let (rule, severity, who, sentence) = if !other.is_empty() {
        let why = corrupt(&other, at);
        ("gradient_corrupt", Severity::Error, other, why)
    } else if is_other(first, again) {
        let why = format!(
            "the sum of gradients of step {at} was another when it was computed again, with a norm of {} and then {}: \
             that of each rank was the same, so it went wrong between them",
            number(first),
            number(again),
        );
        ("gradient_corrupt", Severity::Error, vec![], why)
    } else if !first.is_finite() {
        let broken: Numbered<'_> = numbered()
            .filter(|(_, [first, _])| !first.norm.is_finite())
            .collect();
        let is_all = broken.is_empty() || broken.len() == step.ranks.len();
        let why = format!(
            "the gradient of {} of step {at} is not finite{}, and was the same when it was computed again: \
             its samples or the weights are bad",
            if is_all {
                "all ranks".to_owned()
            } else {
                ranks(&broken)
            },
            tensor(&broken)
        );
        let who = if is_all { vec![] } else { broken };
        ("gradient_not_finite", Severity::Error, who, why)
    } else {
        let largest = numbered().max_by(|a, b| a.1[0].norm.total_cmp(&b.1[0].norm));
        let why = format!(
            "the gradient of step {at} has a norm of {}, beyond {}, and was the same when it was computed again{}: \
             look at its samples",
            number(first),
            number(step.norm_max.unwrap_or(f64::INFINITY)),
            tensor(largest.as_slice())
        );
        ("gradient_spike", Severity::Warning, vec![], why)
    };
    let taken = match step.is_taken {
        true => "the second was taken",
        false => "the step changed nothing",
    };
    let evidence = [("norm", first), ("norm again", again)];
    let most = step.norm_max.map(|most| ("norm at most", most));
    Finding {
        who: who.into_iter().map(|(rank, _)| rank).collect(),
        cause: Alert {
            rule,
            severity,
            sentence: format!("{sentence}; {taken}"),
            part: String::new(),
            evidence: evidence
                .into_iter()
                .chain(most)
                .filter(|(_, number)| number.is_finite())
                .map(named)
                .collect(),
        },
        since: at,
    }
}

/// The sentence about ranks that computed another gradient the second time.
fn corrupt(other: &[(u32, &[RankGradient; 2])], at: u64) -> String {
    let (one, [was, is]) = other[0];
    let may_fail = match other.len() {
        1 => format!("the processor, memory or device of rank {one}"),
        _ => "their processors, memory or devices".to_owned(),
    };
    format!(
        "the gradient of {} of step {at} was another when it was computed again, with a norm of {} and then {}{}: \
         {may_fail} may fail",
        ranks(other),
        number(was.norm),
        number(is.norm),
        tensor(other),
    )
}

fn tensor(of: &[(u32, &[RankGradient; 2])]) -> String {
    let named = of.iter().find_map(|(_, [first, _])| first.tensor.as_ref());
    named.map_or(String::new(), |name| format!(", first at {name}"))
}

/// Norms that rounding does not explain: sums may be in another order the second time.
fn is_other(first: f64, again: f64) -> bool {
    match (first.is_finite(), again.is_finite()) {
        (true, true) => (first - again).abs() > 1e-3 * first.abs().max(again.abs()),
        (first, again) => first != again,
    }
}

fn ranks(of: &[(u32, &[RankGradient; 2])]) -> String {
    let names: Vec<String> = of.iter().map(|(rank, _)| rank.to_string()).collect();
    let noun = if of.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", names.join(", "))
}

fn number(number: f64) -> String {
    match number.abs() {
        size if !size.is_finite() => "no finite number".to_owned(),
        size if size == 0.0 || (1e-3..1e4).contains(&size) => format!("{number:.3}"),
        _ => format!("{number:.1e}"),
    }
}

/// The norms of the last steps, by which one that is far larger is known.
#[derive(Clone, Debug)]
pub struct UsualNorm {
    times: f64,
    norms: BTreeMap<u64, f64>,
}

impl UsualNorm {
    /// Norms of which so many times the median is far larger than usual.
    #[must_use]
    pub const fn new(times: f64) -> Self {
        Self {
            times,
            norms: BTreeMap::new(),
        }
    }

    /// Takes in the norm of the gradient that a step has taken.
    pub fn note(&mut self, step: u64, norm: f64) {
        if norm.is_finite() && norm > 0.0 {
            self.norms.insert(step, norm);
        }
        while self.norms.len() > NORMS_KEPT {
            self.norms.pop_first();
        }
    }

    /// Forgets steps after this one, which are made again.
    pub fn back_to(&mut self, step: u64) {
        self.norms.split_off(&(step + 1));
    }

    /// The largest norm that is not far larger than usual; `None` until eight steps are known, or for ever where nothing
    /// is too large.
    #[must_use]
    pub fn most(&self) -> Option<f64> {
        if self.norms.len() < NORMS_LEAST || self.times == 0.0 {
            return None;
        }
        let mut norms: Vec<f64> = self.norms.values().rev().take(NORMS).copied().collect();
        norms.sort_by(f64::total_cmp);
        Some(self.times * norms[norms.len() / 2])
    }
}

/// Steps whose median is usual.
const NORMS: usize = 32;
/// Steps that are kept: a run that goes back to its last checkpoint needs those before it.
const NORMS_KEPT: usize = 1024;
/// The fewest of them that tell anything.
const NORMS_LEAST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(first: f64, again: f64, tensor: Option<&str>) -> [RankGradient; 2] {
        let gradient = |norm, tensor: Option<&str>| RankGradient {
            norm,
            tensor: tensor.map(str::to_owned),
        };
        [gradient(first, tensor), gradient(again, None)]
    }

    fn step(norms: [f64; 2], ranks: Vec<[RankGradient; 2]>) -> RepeatedStep {
        RepeatedStep {
            norms,
            norm_max: Some(5.0),
            ranks,
            is_taken: norms[1] <= 5.0,
        }
    }

    fn told(detector: &mut RepeatedSteps, step: RepeatedStep, at: u64) -> Vec<(Vec<u32>, String)> {
        let found = detector.observe(&RunEvent::Repeated(step), at);
        let told = found.into_iter();
        told.map(|it| (it.who, format!("{}: {}", it.cause.rule, it.cause.sentence)))
            .collect()
    }

    /// SEMANTICS 169.
    #[test]
    fn who_computes_another_gradient_the_second_time_is_named_with_the_tensor() {
        let nan = f64::NAN;
        let mut detector = RepeatedSteps::default();
        let ranks = vec![
            rank(1.0, 1.0, None),
            rank(nan, 1.2, Some("model.layers.1.mlp.up_proj.weight")),
        ];
        let said = told(&mut detector, step([nan, 1.5], ranks), 7);
        let why = "gradient_corrupt: the gradient of rank 1 of step 7 was another when it was computed again, with a \
                   norm of no finite number and then 1.200, first at model.layers.1.mlp.up_proj.weight: the processor, \
                   memory or device of rank 1 may fail; the second was taken";
        assert_eq!(said, [(vec![1], why.to_owned())]);
        let ranks = vec![rank(3e35, 1.2, Some("a")), rank(1.0, 1.0, None)];
        let said = told(&mut detector, step([3e35, 1.5], ranks), 9);
        assert!(
            said[0].0 == [0] && said[0].1.contains("a norm of 3.0e35 and then 1.200"),
            "{said:?}"
        );
        // Rounding is no fault, and neither is what happens between them one of a rank.
        let ranks = vec![rank(1.0, 1.000_5, None), rank(1.0, 1.0, None)];
        let said = told(&mut detector, step([9.0, 1.5], ranks), 11);
        assert!(
            said[0].0.is_empty() && said[0].1.contains("so it went wrong between them"),
            "{said:?}"
        );
    }

    /// SEMANTICS 169.
    #[test]
    fn what_is_the_same_twice_is_of_samples_or_weights() {
        let nan = f64::NAN;
        let mut detector = RepeatedSteps::default();
        let bad = || vec![rank(1.0, 1.0, None), rank(nan, nan, Some("lm_head.weight"))];
        let said = told(&mut detector, step([nan, nan], bad()), 3);
        let why = "gradient_not_finite: the gradient of rank 1 of step 3 is not finite, first at lm_head.weight, and \
                   was the same when it was computed again: its samples or the weights are bad; the step changed nothing";
        assert_eq!(said, [(vec![1], why.to_owned())]);
        assert_eq!(
            told(&mut detector, step([nan, nan], bad()), 4),
            [],
            "it goes on"
        );
        assert_eq!(told(&mut detector, step([nan, nan], bad()), 6).len(), 1);
        let all = vec![rank(nan, nan, Some("a")), rank(nan, nan, Some("a"))];
        let said = told(&mut detector, step([nan, nan], all), 7);
        assert!(
            said[0].0.is_empty() && said[0].1.contains("of all ranks of step 7"),
            "{said:?}"
        );
        let spike = vec![rank(9.0, 9.0, Some("b")), rank(1.0, 1.0, None)];
        let said = told(&mut detector, step([9.1, 9.1], spike), 20);
        let why = "gradient_spike: the gradient of step 20 has a norm of 9.100, beyond 5.000, and was the same when it \
                   was computed again, first at b: look at its samples; the step changed nothing";
        assert_eq!(said, [(vec![], why.to_owned())]);
    }

    #[test]
    fn the_usual_norm_is_that_of_the_last_steps_that_were_not_taken_back() {
        let mut usual = UsualNorm::new(5.0);
        for step in 1..=7 {
            usual.note(step, 1.0);
        }
        assert_eq!(usual.most(), None);
        usual.note(8, f64::NAN);
        assert_eq!(usual.most(), None);
        usual.note(9, 1.0);
        assert_eq!(usual.most(), Some(5.0));
        for step in 10..60 {
            usual.note(step, 2.0);
        }
        assert_eq!(usual.most(), Some(10.0));
        // Those before are kept, so that enough of them are known still.
        usual.back_to(31);
        assert_eq!(usual.most(), Some(10.0));
        usual.back_to(9);
        assert_eq!(usual.most(), Some(5.0));
        usual.back_to(8);
        assert_eq!(usual.most(), None);
        let mut all = UsualNorm::new(0.0);
        (1..60).for_each(|step| all.note(step, 1.0));
        assert_eq!(all.most(), None);
    }
}
