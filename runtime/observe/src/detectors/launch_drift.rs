//! Machines of a job that come to their exchanges at more and more different times.

use odeon::inspect::Metric;
use odeon_diagnosis::machines::{Drifts, LaunchDrift, StepSeconds};
use odeon_diagnosis::{Detector, Severity};

use super::rules::LAUNCH_DRIFT;
use super::{Finding, SECOND, finding};
use crate::bounds::{FINE_POINTS, LAUNCH_DRIFT_EVERY};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;
use crate::machines::alike::AlikeMachines;

/// Finds jobs whose machines wait longer and longer for the last of them, though they compute as long as before and none
/// of them is the last all the time. Machines that host the same ranks are judged together.
#[derive(Debug, Default)]
pub(super) struct LaunchDrifts {
    rule: LaunchDrift,
    watched: Vec<Watched>,
    last: Date,
}

/// Machines that do the same.
#[derive(Debug)]
struct Watched {
    of: AlikeMachines,
    /// Since when they are these.
    since: Date,
    /// What was found of them, and since when.
    found: Option<(Drifts, Date)>,
}

impl Detector<ClusterView> for LaunchDrifts {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        // A recording that is shown again from its begin is earlier than it was.
        if now < self.last || now.since(self.last) >= LAUNCH_DRIFT_EVERY {
            if now < self.last {
                self.watched.clear();
            }
            self.last = now;
            self.judge(seen, now);
        }
        self.watched.iter().filter_map(Watched::told).collect()
    }
}

impl LaunchDrifts {
    fn judge(&mut self, seen: &ClusterView, now: Date) {
        let mut before = std::mem::take(&mut self.watched);
        let least = self.rule.machines_min;
        let groups = seen.alike_machines().into_iter();
        for of in groups.filter(|it| it.hosts.len() >= least) {
            let known = before.iter().position(|it| it.of.hosts_the_ranks_of(&of));
            let since = known.map_or(now, |known| before.swap_remove(known).since);
            let seconds = of.steps(seen, since, now);
            let found = seconds.and_then(|(steps, from)| {
                let found = self.rule.observe(&steps, now.since(from)).pop()?;
                Some((found.cause, from.after(found.since)))
            });
            self.watched.push(Watched { of, since, found });
        }
    }
}

impl AlikeMachines {
    /// The seconds of their steps as far back as they are kept by the second, and since when these are.
    fn steps(&self, seen: &ClusterView, since: Date, now: Date) -> Option<(StepSeconds, Date)> {
        // The second that goes on is not over, and what is measured in it may come later.
        let end = now.before(2 * SECOND);
        let from = end.before(SECOND * FINE_POINTS as u32).max(since);
        let count = end.since(from).as_secs() as usize;
        let of = |metric| {
            let nodes = self.hosts.keys();
            let rows = nodes.map(|node| self.seconds(seen, node, metric, from, count));
            let rows: Vec<Vec<f32>> = rows.collect::<Option<_>>()?;
            let moments = (0..count).flat_map(|moment| rows.iter().map(move |row| row[moment]));
            Some(moments.collect::<Vec<f32>>())
        };
        let (compute, exchange) = (of(Metric::Compute)?, of(Metric::Exchange)?);
        let steps = StepSeconds::new(self.hosts.len(), SECOND, compute, &exchange);
        Some((steps.ok()?, from))
    }
}

impl Watched {
    fn told(&self) -> Option<Finding> {
        let (cause, since) = self.found.as_ref()?;
        let sentence = format!(
            "{} machines of {} drift apart: they {cause}",
            self.of.hosts.len(),
            self.of.job
        );
        let who = vec![Subject::Job(self.of.job.clone())];
        let mut told = finding(LAUNCH_DRIFT, Severity::Warning, *since, sentence, who);
        told.cause.evidence = [
            ("wait_s", cause.now),
            ("wait_s before", cause.before),
            ("step_s", cause.step),
            ("last most often", cause.most_often_last),
        ]
        .map(|(name, number)| (name.to_owned(), f64::from(number)))
        .to_vec();
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use odeon::inspect::NodeSight;

    use super::*;
    use crate::machines::alike::tests::{at, look, sight_of, with_actor, with_step};

    const NODES: [&str; 4] = ["a", "b", "c", "d"];

    /// A node whose rank computes for so long, and then exchanges.
    fn rank(place: usize, compute: f64, exchange: f64) -> NodeSight {
        let serial = 11 + place as u64;
        let sight = with_actor(
            sight_of(NODES[place], &[(serial, 0.5)]),
            serial,
            "pretrain.Rank",
        );
        let mut sight = with_step(sight, serial, "compute", compute);
        let points = &mut sight.processes[0].sight.points;
        let mut exchanged = points[0].clone();
        (exchanged.name, exchanged.value) = ("train.exchange_s".into(), exchange);
        points.push(exchanged);
        sight
    }

    /// Four nodes in a second, of which each in turn comes so much later than the others.
    fn nodes(second: u64, late: f64) -> Vec<NodeSight> {
        let last = (second * 7 % 4) as usize;
        let waits = |place: usize| if place == last { 0.05 } else { 0.05 + late };
        (0..4).map(|place| rank(place, 0.4, waits(place))).collect()
    }

    /// Looks once a second for so long, and what is found in the end.
    fn run(late: impl Fn(f64) -> f64) -> Vec<Finding> {
        let (mut seen, mut detector) = (ClusterView::default(), LaunchDrifts::default());
        let mut found = vec![];
        for second in 0..840 {
            look(
                &mut seen,
                second,
                nodes(second, late(second as f64 / 840.0)),
            );
            found = detector.observe(&seen, at(second));
        }
        found
    }

    /// SEMANTICS 208.
    #[test]
    fn a_job_whose_machines_wait_longer_and_longer_for_another_one_each_time_is_a_problem() {
        let found = run(|part| 0.005 + 0.1 * part);
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(one.who, [Subject::Job("j1".to_owned())]);
        let says = "4 machines of j1 drift apart: they wait 65 ms of a step of 533 ms for the last of them to exchange, 17 \
                    ms 10 min before; they compute as long as then, and no machine is last more often than in 25 % of \
                    the steps";
        assert_eq!(one.cause.sentence, says);
        assert_eq!(run(|_| 0.03), []);
    }
}
