//! Curves of training runs that go wrong, as the run that judges its own steps records it.

use std::time::Duration;

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding, problem_rule};
use crate::cluster_view::{ClusterView, Recorded};
use crate::date::Date;
use crate::event::Subject;

/// The step from which on the curves of a run go wrong, with the label `rule`, the label `severity`, which is `error` or
/// `warning`, and the text `what`; zero when it is over.
const SERIES: &str = "run.finding";

/// Finds living runs whose curves go wrong: the rules of [`odeon_diagnosis::run`].
#[derive(Clone, Copy, Debug)]
pub(super) struct RunCurves;

impl Detector<ClusterView> for RunCurves {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        let told = seen.recorded().filter(|it| it.name == SERIES);
        told.filter_map(|it| of_run(seen, it, now)).collect()
    }
}

/// Time for which what is over is found still: steps may take milliseconds.
const SHOWN: Duration = Duration::from_secs(15);

fn of_run(seen: &ClusterView, it: &Recorded, now: Date) -> Option<Finding> {
    let process = seen.process(it.actor.home);
    if process.is_some_and(|process| process.ended.is_some()) {
        return None;
    }
    let label = |name: &str| {
        let found = it.labels.iter().find(|(known, _)| known == name);
        found.map(|(_, label)| label.to_string())
    };
    let rule = problem_rule(&label("rule")?)?;
    let over = it.points.iter().rev().take_while(|(.., step)| *step <= 0.0);
    let (ended, count) = over.fold((None, 0), |(_, count), (at, ..)| (Some(*at), count + 1));
    if ended.is_some_and(|ended| now.since(ended) >= SHOWN) {
        return None;
    }
    let wrong = it.points.iter().rev().skip(count);
    let (since, ..) = *wrong.take_while(|(.., step)| *step > 0.0).last()?;
    let severity = match label("severity").as_deref() {
        Some("error") => Severity::Error,
        _ => Severity::Warning,
    };
    let who = vec![Subject::Process(it.actor.home)];
    Some(finding(rule.name, severity, since, it.what.clone()?, who))
}

#[cfg(test)]
mod tests {
    use odeon::ProcessId;
    use odeon::telemetry::{Label, Labels};

    use super::*;

    /// SEMANTICS 204.
    #[test]
    fn a_curve_that_goes_wrong_is_a_problem_until_the_run_says_that_it_does_not() {
        let run = odeon::ActorId::root(ProcessId(7));
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let mut record = |second: u64, rule: &str, since: f64| {
            let text = |text: &str| Label::from(text.to_owned());
            let labels: Labels = vec![
                ("rule".into(), text(rule)),
                ("severity".into(), text("warning")),
                ("what".into(), text("replies have become short")),
            ];
            seen.record(SERIES.to_owned(), run, labels, at(second), since);
            RunCurves.observe(&seen, at(second))
        };
        assert_eq!(record(1, "length_collapse", 0.0), []);
        record(2, "length_collapse", 40.0);
        let found = record(3, "length_collapse", 40.0);
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((one.cause.rule, one.since), ("length_collapse", at(2)));
        assert_eq!(one.cause.sentence, "replies have become short");
        assert_eq!(
            record(4, "unheard_of", 1.0).len(),
            1,
            "a rule that is known nowhere is none"
        );
        // For a while after its end people see it still: its steps may have taken milliseconds.
        assert_eq!(record(5, "length_collapse", 0.0).len(), 1);
        assert_eq!(record(19, "length_collapse", 0.0)[0].since, at(2));
        assert_eq!(record(20, "length_collapse", 0.0), []);
    }
}
