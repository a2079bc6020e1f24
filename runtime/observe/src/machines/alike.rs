//! Machines that do the same for a job, and so can be compared with each other.

use std::collections::{BTreeMap, BTreeSet};

use odeon::inspect::{Metric, MetricOf};
use odeon::{ActorId, ProcessId};
use odeon_diagnosis::machines::Margin;

use super::history::MachinePart;
use crate::SYSTEM_JOB;
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::series::Sampled;

/// The metrics by which machines are compared, in the order in which one that differs is named: what is lost on the
/// way, then use and power, as Minder (arXiv 2411.01791) puts them, then the parts of steps and what is seldom the
/// first to show. Each with the difference that matters: less is a property of a machine rather than a fault.
pub const COMPARED: [(Metric, Margin); 15] = [
    (Metric::RdmaRetries, margin(5.0, 1.0)),
    (Metric::Retransmits, margin(20.0, 1.0)),
    (Metric::NetErrors, margin(5.0, 1.0)),
    (Metric::PcieReplays, margin(1.0, 1.0)),
    (Metric::ProcessCpu, margin(0.25, 0.25)),
    (Metric::DeviceBusy, margin(0.1, 0.1)),
    (Metric::Power, margin(20.0, 0.1)),
    (Metric::Clock, margin(5e7, 0.1)),
    (Metric::Compute, margin(0.001, 0.05)),
    (Metric::Exchange, margin(0.005, 0.25)),
    (Metric::Wait, margin(0.005, 0.25)),
    (Metric::MajorFaults, margin(50.0, 1.0)),
    (Metric::Cpu, margin(0.15, 0.25)),
    (Metric::Load, margin(4.0, 0.5)),
    (Metric::Temperature, margin(15.0, 0.2)),
];

const fn margin(absolute: f32, relative: f32) -> Margin {
    Margin { absolute, relative }
}

/// The number that each rank records of the stage that it computes: which that is says what ranks do the same.
const STAGE_SECONDS: &str = "train.stage_s";

/// Nodes that host the same ranks of a job: as many of the same stages, and of other jobs likewise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlikeMachines {
    /// The job.
    pub job: String,
    /// The stages of its ranks on each node, by their names.
    pub stages: Vec<String>,
    /// The nodes, by name.
    pub hosts: BTreeMap<String, Host>,
}

/// The ranks of a job on a node, with their processes and devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Ranks.
    pub ranks: usize,
    /// Their processes.
    pub processes: BTreeSet<ProcessId>,
    /// Their devices, by number.
    pub devices: BTreeSet<u32>,
    /// Set where the node runs what most of the nodes run that it is compared with, beside these ranks, too: else
    /// numbers of the whole machine tell of that.
    pub runs_the_same: bool,
}

impl AlikeMachines {
    /// Returns true where the same nodes host the same ranks in the same processes, whatever else they run.
    #[must_use]
    pub fn hosts_the_ranks_of(&self, other: &Self) -> bool {
        let ranks = |of: &Self| {
            let hosts = of.hosts.iter().map(|(node, host)| {
                let parts = (host.ranks, host.processes.clone(), host.devices.clone());
                (node.clone(), parts)
            });
            hosts.collect::<BTreeMap<_, _>>()
        };
        self.job == other.job && self.stages == other.stages && ranks(self) == ranks(other)
    }

    /// Returns true where as many of the same nodes run the same beside these ranks.
    #[must_use]
    pub fn runs_as(&self, other: &Self) -> bool {
        let run = |of: &Self| {
            of.hosts
                .values()
                .map(|it| it.runs_the_same)
                .collect::<Vec<_>>()
        };
        run(self) == run(other)
    }
}

/// The ranks on one node, by job, their supervisor and stage.
type Ranks = BTreeMap<(String, ActorId, String), Host>;

/// How many actors of each job and kind a node hosts.
type Hosted<'a> = BTreeMap<(&'a str, &'a str), usize>;

/// A job, and how many ranks of which role a node hosts of all jobs.
type Kind<'a> = (&'a str, Vec<(&'a (String, ActorId, String), usize)>);

impl ClusterView {
    /// Nodes that host ranks, those together that host the same.
    #[must_use]
    pub fn alike_machines(&self) -> Vec<AlikeMachines> {
        let mut nodes: BTreeMap<&str, Ranks> = BTreeMap::new();
        let of_stages = self.recorded().filter(|it| it.name == STAGE_SECONDS);
        for it in of_stages {
            let actor = self.actors().get(it.actor);
            let living = actor.filter(|row| row.ended.is_none());
            let (Some(row), Some(stage), Some(_)) = (living, it.label("stage"), it.rank()) else {
                continue;
            };
            let role = (row.job.clone(), row.view.parent, stage.to_string());
            let ranks = nodes.entry(&row.node).or_default();
            let host = ranks.entry(role).or_default();
            host.ranks += 1;
            host.processes.insert(row.view.process);
            host.devices.extend(&row.view.devices);
        }
        // By job, and what the node hosts of all jobs.
        let mut groups: BTreeMap<Kind<'_>, BTreeMap<String, Host>> = BTreeMap::new();
        for (node, ranks) in &nodes {
            let hosted: Vec<_> = ranks
                .iter()
                .map(|(role, host)| (role, host.ranks))
                .collect();
            let jobs: BTreeSet<&str> = ranks.keys().map(|(job, ..)| job.as_str()).collect();
            for job in jobs {
                let own = ranks.iter().filter(|((of, ..), _)| of == job);
                let mut all = Host::default();
                for (_, host) in own {
                    all.ranks += host.ranks;
                    all.processes.extend(&host.processes);
                    all.devices.extend(&host.devices);
                }
                let group = groups.entry((job, hosted.clone())).or_default();
                group.insert((*node).to_owned(), all);
            }
        }
        let others = self.beside_ranks();
        let groups = groups.into_iter().map(|((job, hosted), mut hosts)| {
            mark_usual(&mut hosts, &others);
            let own = hosted.iter().filter(|((of, ..), _)| of == job);
            AlikeMachines {
                job: job.to_owned(),
                stages: own.map(|((.., stage), _)| stage.clone()).collect(),
                hosts,
            }
        });
        groups.collect()
    }

    /// How many living actors of each job and kind a node hosts, but for those of the system.
    fn beside_ranks(&self) -> BTreeMap<&str, Hosted<'_>> {
        let mut nodes: BTreeMap<&str, Hosted<'_>> = BTreeMap::new();
        let living = self.actors().iter().filter(|row| row.ended.is_none());
        for row in living.filter(|row| row.job != SYSTEM_JOB) {
            let kinds = nodes.entry(&row.node).or_default();
            *kinds.entry((&row.job, &row.view.actor)).or_default() += 1;
        }
        nodes
    }
}

/// Marks the hosts whose actors are those of most.
fn mark_usual(hosts: &mut BTreeMap<String, Host>, actors: &BTreeMap<&str, Hosted<'_>>) {
    let mut kinds: BTreeMap<Option<&Hosted<'_>>, usize> = BTreeMap::new();
    for node in hosts.keys() {
        *kinds.entry(actors.get(node.as_str())).or_default() += 1;
    }
    let most = kinds.iter().max_by_key(|(_, count)| **count);
    let most = most.map(|(kind, _)| *kind);
    for (node, host) in hosts {
        host.runs_the_same = most == Some(actors.get(node.as_str()));
    }
}

impl AlikeMachines {
    /// A metric of a node over some seconds: of the ranks' devices the mean, of their processes the sum. None where it
    /// was not measured at all, or says more of what else runs there.
    #[must_use]
    pub fn seconds(
        &self,
        seen: &ClusterView,
        node: &str,
        metric: Metric,
        from: Date,
        count: usize,
    ) -> Option<Vec<f32>> {
        let host = self.hosts.get(node)?;
        let history = &seen.node(node)?.history;
        let parts: Vec<MachinePart> = match metric.of() {
            MetricOf::Machine => host
                .runs_the_same
                .then_some(MachinePart::Machine)
                .into_iter()
                .collect(),
            MetricOf::Device => host
                .devices
                .iter()
                .map(|it| MachinePart::Device(*it))
                .collect(),
            MetricOf::Process => host
                .processes
                .iter()
                .map(|it| MachinePart::Process(*it))
                .collect(),
            MetricOf::Ranks => vec![MachinePart::Job(self.job.clone())],
        };
        let series = parts.iter().map(|part| history.get(part, metric));
        let series: Vec<&Sampled> = series.collect::<Option<_>>()?;
        let (first, others) = series.split_first()?;
        let mut sum: Vec<f32> = first.seconds(from, count).collect();
        for other in others {
            for (sum, value) in sum.iter_mut().zip(other.seconds(from, count)) {
                *sum += value;
            }
        }
        if metric.of() == MetricOf::Device {
            let devices = series.len() as f32;
            sum.iter_mut().for_each(|it| *it /= devices);
        }
        sum.iter().any(|it| !it.is_nan()).then_some(sum)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use odeon::inspect::{
        ActorView, MachineView, NodeSight, ProcessKind, ProcessSight, Sight, Times, Usage,
    };
    use odeon::telemetry::{Label, Point};
    use odeon::{Phase, Timestamp};

    use super::*;

    pub(crate) fn at(second: u64) -> Date {
        Date((1_000_000 + second) * 1_000_000_000)
    }

    /// A node with workers of a job, each of which uses so many processors.
    pub(crate) fn sight_of(node: &str, workers: &[(u64, f64)]) -> NodeSight {
        let worker = |(process, cpu): &(u64, f64)| ProcessSight {
            sight: Sight {
                process: ProcessId(*process),
                job: "j1".to_owned(),
                at: Timestamp(0),
                anew: false,
                actors: vec![],
                gone: vec![],
                hosted: 0,
                waits: vec![],
                waits_left_out: 0,
                spans: vec![],
                spans_lost: 0,
                going_on: vec![],
                span_counts: odeon::trace::SpanCounts::default(),
                ask_times: Times::default(),
                news: vec![],
                news_from: 0,
                news_lost: 0,
                points: vec![],
                points_from: 0,
                points_lost: 0,
                dead_letters: 0,
                blob_bytes: 0,
                flow_log: None,
                more: false,
                more_spans: false,
            },
            pid: Some(*process as u32),
            usage: Some(Usage {
                resident: 1 << 20,
                cpu: Some(*cpu),
            }),
            kind: ProcessKind::Worker,
            ahead: 0,
            ahead_error: Duration::ZERO,
        };
        NodeSight {
            node: node.to_owned(),
            process: ProcessId(node.bytes().map(u64::from).sum::<u64>() * 1_000),
            at: Timestamp(0),
            unix_nanos: 0,
            processes: workers.iter().map(worker).collect(),
            silent: vec![],
            blocked: vec![],
            links: vec![],
            hardware: None,
            machine: MachineView::default(),
            flows: vec![],
            names: None,
        }
    }

    /// Adds an actor to the first worker of a node.
    pub(crate) fn with_actor(mut sight: NodeSight, serial: u64, kind: &str) -> NodeSight {
        let own = &mut sight.processes[0].sight;
        own.actors.push(ActorView {
            id: actor(serial),
            parent: ActorId::root(ProcessId(1)),
            actor: kind.to_owned(),
            process: own.process,
            incarnation: 1,
            phase: Phase::Running,
            queued: 0,
            room: 9,
            queued_bytes: 0,
            handled: 1,
            failed: 0,
            busy: 0,
            waited: 0,
            changed: Timestamp(0),
            running: None,
            devices: vec![],
        });
        own.hosted += 1;
        sight
    }

    /// Has the rank of this serial record the seconds of a step.
    pub(crate) fn with_step(
        mut sight: NodeSight,
        serial: u64,
        stage: &str,
        seconds: f64,
    ) -> NodeSight {
        let labels = vec![
            ("rank".into(), Label::Int(serial as i64)),
            ("stage".into(), stage.to_owned().into()),
        ];
        sight.processes[0].sight.points.push(Point {
            at: Timestamp(0),
            actor: actor(serial),
            name: STAGE_SECONDS.into(),
            value: seconds,
            labels: labels.into_iter().collect(),
        });
        sight
    }

    fn actor(serial: u64) -> ActorId {
        ActorId {
            home: ProcessId(1),
            serial,
        }
    }

    /// Takes in looks of a second.
    pub(crate) fn look(seen: &mut ClusterView, second: u64, sights: Vec<NodeSight>) {
        for sight in sights {
            let own = (Timestamp(0), at(second));
            seen.look(sight, own, Some((0, Duration::ZERO)));
        }
    }

    #[test]
    fn nodes_are_alike_that_host_as_many_ranks_of_the_same_stages() {
        let mut seen = ClusterView::default();
        let rank = |node: &str, serial: u64, stage: &str| {
            let sight = with_actor(sight_of(node, &[(serial, 0.5)]), serial, "pretrain.Rank");
            with_step(sight, serial, stage, 0.1)
        };
        let two = with_actor(rank("d", 14, "pp 0"), 15, "pretrain.Rank");
        let sights = vec![
            rank("a", 11, "pp 0"),
            rank("b", 12, "pp 0"),
            rank("c", 13, "pp 1"),
            with_step(two, 15, "pp 0", 0.1),
            with_actor(rank("e", 16, "pp 0"), 17, "data.Loader"),
        ];
        look(&mut seen, 1, sights);
        let groups = seen.alike_machines();
        let told: Vec<_> = groups
            .iter()
            .map(|it| {
                (
                    it.stages.join(","),
                    it.hosts.keys().cloned().collect::<String>(),
                )
            })
            .collect();
        let expect = [("pp 0", "abe"), ("pp 0", "d"), ("pp 1", "c")];
        let expect = expect.map(|(stage, nodes)| (stage.to_owned(), nodes.to_owned()));
        assert_eq!(told, expect);
        let hosts = &groups[0].hosts;
        assert!(hosts["a"].runs_the_same && hosts["b"].runs_the_same);
        assert!(!hosts["e"].runs_the_same);
        let of = |node, metric| groups[0].seconds(&seen, node, metric, at(1), 1);
        assert_eq!(of("a", Metric::ProcessCpu), Some(vec![0.5]));
        assert_eq!(of("e", Metric::Compute), Some(vec![0.1]));
        assert_eq!(of("a", Metric::Power), None);
        assert_eq!(groups[1].hosts["d"].ranks, 2);
    }
}
