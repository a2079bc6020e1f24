//! Machines that differ from those that do the same for a job.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::inspect::{Metric, MetricOf};
use odeon_diagnosis::machines::{Differs, MachineSamples, OddMachine};
use odeon_diagnosis::{Detector, Severity};

use super::{Finding, ODD_MACHINE, SECOND, finding, spoken};
use crate::bounds::{
    FINE_POINTS, ODD_MACHINE_EVERY, ODD_MACHINE_FOR, ODD_MACHINE_UNMEASURED, ODD_MACHINES_MIN,
};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;
use crate::machines::alike::{AlikeMachines, COMPARED};

/// Finds the machine that differs for minutes from those that host the same ranks of the same job, by the metrics of
/// [`COMPARED`]. A metric is judged at each tick, so that no tick takes long, however many machines there are.
#[derive(Debug)]
pub(super) struct OddMachines {
    rule: OddMachine,
    groups: Vec<Watched>,
    /// When they were judged by the first metric, and the next one by which they are.
    round: Date,
    next: usize,
    last: Date,
}

/// Machines that do the same, and what was found of them.
#[derive(Debug)]
struct Watched {
    of: AlikeMachines,
    /// Since when they are these.
    since: Date,
    /// Since when they run what they run beside these ranks.
    alone_since: Date,
    /// The machine that differs in each metric, by its place among [`COMPARED`].
    odd: BTreeMap<usize, Odd>,
}

/// A machine that differs in a metric.
#[derive(Debug)]
struct Odd {
    node: String,
    since: Date,
    cause: Differs,
}

impl Default for OddMachines {
    fn default() -> Self {
        Self {
            rule: OddMachine {
                lasting: ODD_MACHINE_FOR,
                machines_min: ODD_MACHINES_MIN,
                ongoing: true,
                ..OddMachine::default()
            },
            groups: vec![],
            round: Date::default(),
            next: 0,
            last: Date::default(),
        }
    }
}

impl Detector<ClusterView> for OddMachines {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        // A recording that is shown again from its begin is earlier than it was.
        if now < self.last {
            *self = Self::default();
        }
        self.last = now;
        if self.next == 0 && now.since(self.round) >= ODD_MACHINE_EVERY {
            self.round = now;
            self.regroup(seen, now);
            self.judge(seen, now);
        } else if self.next > 0 {
            self.judge(seen, now);
        }
        self.groups.iter().flat_map(Watched::told).collect()
    }
}

impl OddMachines {
    /// Finds who does the same now: those that did before go on.
    fn regroup(&mut self, seen: &ClusterView, now: Date) {
        let mut before = std::mem::take(&mut self.groups);
        let groups = seen.alike_machines().into_iter();
        for of in groups.filter(|it| it.hosts.len() >= ODD_MACHINES_MIN) {
            let known = before.iter().position(|it| it.of.hosts_the_ranks_of(&of));
            self.groups.push(match known {
                Some(known) => {
                    let mut known = before.swap_remove(known);
                    // What else runs there is no matter of what is measured of ranks.
                    if !known.of.runs_as(&of) {
                        known.alone_since = now;
                        known
                            .odd
                            .retain(|place, _| !is_of_machine(COMPARED[*place].0));
                    }
                    known.of = of;
                    known
                }
                None => Watched {
                    of,
                    since: now,
                    alone_since: now,
                    odd: BTreeMap::new(),
                },
            });
        }
    }

    /// Judges all by the next metric.
    fn judge(&mut self, seen: &ClusterView, now: Date) {
        let place = self.next;
        self.next = (place + 1) % COMPARED.len();
        for group in &mut self.groups {
            let odd = group.judged(&mut self.rule, seen, place, now);
            match odd {
                Some(odd) => drop(group.odd.insert(place, odd)),
                None => drop(group.odd.remove(&place)),
            }
        }
    }
}

impl Watched {
    /// The machine that differs in a metric at the moment.
    fn judged(
        &self,
        rule: &mut OddMachine,
        seen: &ClusterView,
        place: usize,
        now: Date,
    ) -> Option<Odd> {
        let (metric, margin) = COMPARED[place];
        // The second that goes on is not over, and what is measured in it may come later.
        let end = now.before(2 * SECOND);
        let longest = Duration::from_secs(FINE_POINTS as u64);
        let since = match is_of_machine(metric) {
            true => self.alone_since,
            false => self.since,
        };
        let from = end.before(longest).max(since);
        let count = end.since(from).as_secs() as usize;
        if end.since(from) < rule.lasting {
            return None;
        }
        let nodes = self.of.hosts.keys();
        let measured = nodes.filter_map(|node| {
            let values = self.of.seconds(seen, node, metric, from, count)?;
            is_measured(&values).then_some((node, values))
        });
        let (nodes, rows): (Vec<&String>, Vec<Vec<f32>>) = measured.unzip();
        if nodes.len() < rule.machines_min {
            return None;
        }
        let moments = 0..count;
        let values = moments.flat_map(|moment| rows.iter().map(move |row| row[moment]));
        let names = vec![metric.name().to_owned()];
        let samples = MachineSamples::new(names, nodes.len(), SECOND, values.collect());
        let samples = samples.ok()?.with_margins(&[margin]);
        let found = rule.observe(&samples, end.since(from)).pop()?;
        Some(Odd {
            node: (*nodes.get(*found.who.first()?)?).clone(),
            since: from.after(found.since),
            cause: found.cause,
        })
    }

    /// Each machine that differs, by the first metric in which it does.
    fn told(&self) -> Vec<Finding> {
        let mut nodes: BTreeMap<&str, Vec<(Metric, &Odd)>> = BTreeMap::new();
        for (place, odd) in &self.odd {
            let all = nodes.entry(&odd.node).or_default();
            all.push((COMPARED[*place].0, odd));
        }
        nodes
            .into_iter()
            .map(|(node, odd)| self.finding(node, &odd))
            .collect()
    }

    fn finding(&self, node: &str, odd: &[(Metric, &Odd)]) -> Finding {
        let (metric, first) = odd[0];
        let of = &first.cause;
        let others = odd[1..].iter().map(|(metric, _)| title(*metric));
        let others: Vec<String> = others.collect();
        let also = match others.join(", ") {
            none if none.is_empty() => none,
            some => format!("; it differs in {some}, too"),
        };
        let sentence = format!(
            "node {node} differs from the other {} that run the same ranks of {}: {} {} where their median is {}, \
             for {} (limit 3 robust standard deviations for {}){also}",
            self.of.hosts.len() - 1,
            self.of.job,
            title(metric),
            quantity(metric, of.value),
            quantity(metric, of.median),
            spoken(of.lasts),
            spoken(ODD_MACHINE_FOR),
        );
        let who = vec![Subject::Node(node.to_owned())];
        let since = odd.iter().map(|(_, it)| it.since).min();
        let since = since.unwrap_or(first.since);
        let mut told = finding(ODD_MACHINE, Severity::Warning, since, sentence, who);
        told.cause.evidence = odd
            .iter()
            .flat_map(|(metric, it)| {
                let name = metric.name();
                [
                    (name.to_owned(), f64::from(it.cause.value)),
                    (format!("{name} of the median"), f64::from(it.cause.median)),
                    (format!("{name} deviations"), f64::from(it.cause.deviation)),
                ]
            })
            .collect();
        told
    }
}

fn is_of_machine(metric: Metric) -> bool {
    metric.of() == MetricOf::Machine
}

/// Returns true where a machine was measured at the begin and at the end, and often enough between.
fn is_measured(values: &[f32]) -> bool {
    let most = ODD_MACHINE_UNMEASURED.as_secs() as usize;
    let mut unmeasured = 0;
    values.iter().all(|it| {
        unmeasured = if it.is_nan() { unmeasured + 1 } else { 0 };
        unmeasured < most
    })
}

/// A metric as a sentence names it.
fn title(metric: Metric) -> String {
    match metric {
        Metric::ProcessCpu => "processors of its ranks".to_owned(),
        Metric::DeviceBusy => "utilisation of its devices".to_owned(),
        Metric::Compute => "seconds of computing in a step".to_owned(),
        Metric::Exchange => "seconds of exchange in a step".to_owned(),
        Metric::Wait => "seconds of waiting for a batch".to_owned(),
        other => other.title().to_owned(),
    }
}

/// A number of a metric with its unit.
fn quantity(metric: Metric, value: f32) -> String {
    let value = f64::from(value);
    match metric.unit() {
        "s" => spoken(Duration::from_secs_f64(value.clamp(0.0, 1e9))),
        "share" => format!("{:.0} %", value * 100.0),
        "Hz" => format!("{:.0} MHz", value / 1e6),
        "" => format!("{value:.2}"),
        unit if unit.starts_with('/') => format!("{value:.1}{unit}"),
        unit => format!("{value:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use odeon::inspect::NodeSight;

    use super::*;
    use crate::machines::alike::tests::{at, look, sight_of, with_actor, with_step};

    const NODES: [&str; 4] = ["a", "b", "c", "d"];

    /// A node with one rank, which uses so many processors and takes so long for a step.
    fn rank(place: usize, cpu: f64, seconds: f64) -> NodeSight {
        let serial = 11 + place as u64;
        let sight = sight_of(NODES[place], &[(serial, cpu)]);
        let sight = with_actor(sight, serial, "pretrain.Rank");
        with_step(sight, serial, "compute", seconds)
    }

    /// Four nodes in a second, one of which is slow by so much.
    fn nodes(second: u64, slow: f64) -> Vec<NodeSight> {
        let one = |place: usize| {
            // Each is a little different, and jitters.
            let jitter = 0.01 * ((second * 7 + place as u64 * 3) % 5) as f64;
            let more = if place == 2 { slow } else { 1.0 };
            rank(
                place,
                0.5 + jitter,
                (0.2 + 0.0005 * place as f64 + 0.1 * jitter) * more,
            )
        };
        (0..4).map(one).collect()
    }

    /// Looks once a second from one to another, and what is found at its end.
    fn run(
        seen: &mut ClusterView,
        detector: &mut OddMachines,
        seconds: std::ops::Range<u64>,
        nodes: impl Fn(u64) -> Vec<NodeSight>,
    ) -> Vec<Finding> {
        let mut found = vec![];
        for second in seconds {
            look(seen, second, nodes(second));
            found = detector.observe(seen, at(second));
        }
        found
    }

    /// SEMANTICS 182.
    #[test]
    fn a_machine_that_becomes_slow_is_named_with_its_metric_and_since_when_until_it_is_not() {
        let (mut seen, mut detector) = (ClusterView::default(), OddMachines::default());
        let found = run(&mut seen, &mut detector, 0..400, |it| nodes(it, 1.0));
        assert_eq!(found, []);
        // Less than four minutes are not enough.
        let found = run(&mut seen, &mut detector, 400..620, |it| nodes(it, 1.4));
        assert_eq!(found, []);
        let found = run(&mut seen, &mut detector, 620..700, |it| nodes(it, 1.4));
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(one.who, [Subject::Node("c".to_owned())]);
        assert!(
            one.since.since(at(390)) < Duration::from_secs(20),
            "{:?}",
            one.since
        );
        let said = &one.cause.sentence;
        let begins = "node c differs from the other 3 that run the same ranks of j1: seconds of computing in a \
                      step 284 ms where their median is 203 ms, for ";
        assert!(said.starts_with(begins), "{said}");
        let evidence: Vec<&str> = one.cause.evidence.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(
            evidence,
            ["compute", "compute of the median", "compute deviations"]
        );
        // It is over when it is as quick as the others, but for a gap that might have gone on.
        let found = run(&mut seen, &mut detector, 700..780, |it| nodes(it, 1.0));
        assert_eq!(found, []);
    }

    /// SEMANTICS 183.
    #[test]
    fn machines_that_do_other_work_or_differ_by_what_does_not_matter_are_not_named() {
        let (mut seen, mut detector) = (ClusterView::default(), OddMachines::default());
        // Another stage on one, a loader beside another, and one that is 4 % slower.
        let others = |second: u64| {
            let mut all = nodes(second, 1.04);
            let last = with_actor(sight_of("d", &[(14, 0.5)]), 14, "pretrain.Rank");
            all[3] = with_step(last, 14, "last", 0.9);
            all[1].machine.cpu = Some(0.9);
            all[0].machine.cpu = Some(0.1);
            all[2].machine.cpu = Some(0.1);
            all[1] = with_actor(all[1].clone(), 99, "data.Loader");
            all
        };
        let found = run(&mut seen, &mut detector, 0..600, others);
        assert_eq!(found, []);
        // Two are too few, however different.
        let (mut seen, mut detector) = (ClusterView::default(), OddMachines::default());
        let two = |_| vec![rank(0, 0.9, 0.1), rank(1, 0.1, 0.9)];
        assert_eq!(run(&mut seen, &mut detector, 0..600, two), []);
    }

    #[test]
    fn ranks_that_began_anew_are_judged_anew() {
        let (mut seen, mut detector) = (ClusterView::default(), OddMachines::default());
        let odd = |second: u64| {
            let mut all = nodes(second, 1.0);
            all[1] = rank(1, 0.1, 0.2);
            all
        };
        let found = run(&mut seen, &mut detector, 0..300, odd);
        assert!(
            found[0]
                .cause
                .sentence
                .contains("processors of its ranks 0.10"),
            "{found:?}"
        );
        // Its next process does as the others.
        let next = |second: u64| {
            let mut all = nodes(second, 1.0);
            all[1] = sight_of("b", &[(42, 0.5)]);
            all[1] = with_step(
                with_actor(all[1].clone(), 12, "pretrain.Rank"),
                12,
                "compute",
                0.2,
            );
            all
        };
        let found = run(&mut seen, &mut detector, 300..330, next);
        assert_eq!(found, []);
    }
}
