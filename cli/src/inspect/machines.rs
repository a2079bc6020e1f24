//! The numbers of machines: over time, and of those that do the same for a run beside each other.

use std::time::Duration;

use odeon_client::inspect as told;
use odeon_observe::bounds::FINE_POINTS;
use odeon_observe::machines::{AlikeMachines, HEAT_OVER, HeatColumn, MachinePart};
use odeon_observe::node::{Node, Process};
use odeon_observe::series::Sampled;

use super::dto::{Shown, rounded};

/// Points of a picture: as wide as it is drawn.
const POINTS_MAX: usize = 180;
/// Machines of a run that are told of: of more those that are furthest from the others.
const MACHINES_MAX: usize = 64;
/// Machines of a run up to which the course of each metric is told beside its mean.
const PICTURES_MAX: usize = 24;

impl Shown<'_> {
    /// Numbers of a node over the last quarter of an hour: of its machine, and of the ranks of each job there.
    pub(super) fn history_of(&self, node: &Node) -> Vec<told::Series> {
        let jobs = node.history.parts().filter_map(|part| match part {
            MachinePart::Job(job) => Some((part, format!(" of {job}"))),
            _ => None,
        });
        let parts = [(&MachinePart::Machine, String::new())];
        let parts = parts.into_iter().chain(jobs);
        parts
            .flat_map(|(part, of)| self.history_of_part(node, part, &of))
            .collect()
    }

    /// Numbers of a device over the last quarter of an hour.
    pub(super) fn history_of_device(&self, node: &Node, index: u32) -> Vec<told::Series> {
        self.history_of_part(node, &MachinePart::Device(index), "")
    }

    /// Numbers of a process over the last quarter of an hour.
    pub(super) fn history_of_process(&self, process: &Process) -> Vec<told::Series> {
        let node = self.seen.node(&process.node);
        let part = MachinePart::Process(process.id);
        node.map_or_else(Vec::new, |node| self.history_of_part(node, &part, ""))
    }

    pub(super) fn history_of_part(
        &self,
        node: &Node,
        part: &MachinePart,
        of: &str,
    ) -> Vec<told::Series> {
        let series = |(metric, series): (odeon::inspect::Metric, &Sampled)| told::Series {
            name: format!("{}{of}", metric.name()),
            title: format!("{}{of}", metric.title()),
            unit: metric.unit().to_owned(),
            points: self.points(series),
        };
        node.history.of(part).map(series).collect()
    }

    fn points(&self, series: &Sampled) -> Vec<(f64, f64)> {
        let from = self.now.before(Duration::from_secs(FINE_POINTS as u64));
        let points = series.between(from, self.now, POINTS_MAX);
        points.iter().map(super::view::point).collect()
    }

    /// The machines of a run that can be compared with others.
    pub(super) fn machines_of(&self, job: &str, alike: &[AlikeMachines]) -> Vec<told::RunMachines> {
        let own = alike
            .iter()
            .filter(|it| it.job == job && it.hosts.len() > 1);
        own.map(|it| self.machines(it)).collect()
    }

    fn machines(&self, alike: &AlikeMachines) -> told::RunMachines {
        let heat = alike.heat(self.seen, self.now);
        let machines = furthest(&heat, alike.hosts.len());
        let has_pictures = machines.len() <= PICTURES_MAX;
        let hosts: Vec<_> = alike.hosts.iter().collect();
        let machines = machines.into_iter().map(|place| {
            let (node, host) = hosts[place];
            let cells = heat.iter().map(|column| {
                let cell = column.cells.get(place)?.as_ref()?;
                let points = cell.points.iter().filter(|_| has_pictures);
                Some(told::MachineCell {
                    mean: rounded(cell.mean),
                    deviations: cell.deviations.map(rounded),
                    points: points.map(|it| rounded(*it)).collect(),
                })
            });
            told::RunMachine {
                node: node.clone(),
                ranks: host.ranks as u64,
                cells: cells.collect(),
            }
        });
        let metrics = heat.iter().map(|column| told::MachineMetric {
            name: column.metric.name().to_owned(),
            title: column.metric.title().to_owned(),
            unit: column.metric.unit().to_owned(),
            median: rounded(column.median),
        });
        told::RunMachines {
            stages: alike.stages.clone(),
            seconds: HEAT_OVER.as_secs_f64(),
            total: alike.hosts.len() as u64,
            machines: machines.collect(),
            metrics: metrics.collect(),
        }
    }
}

/// The places of the machines that are told of, in their order.
fn furthest(heat: &[HeatColumn], machines: usize) -> Vec<usize> {
    let far = |place: &usize| {
        let cells = heat
            .iter()
            .filter_map(|column| column.cells.get(*place)?.as_ref());
        cells
            .filter_map(|cell| Some(cell.deviations?.abs()))
            .fold(0.0, f64::max)
    };
    let mut places: Vec<usize> = (0..machines).collect();
    places.sort_by(|a, b| far(b).total_cmp(&far(a)));
    places.truncate(MACHINES_MAX);
    places.sort_unstable();
    places
}

#[cfg(test)]
mod tests {
    use odeon::inspect::Metric;
    use odeon_observe::machines::HeatCell;

    use super::*;

    #[test]
    fn of_many_machines_those_that_are_furthest_are_told_in_their_order() {
        let cell = |place: usize| HeatCell {
            mean: 1.0,
            deviations: Some(if place % 10 == 7 { -5.0 } else { 0.1 }),
            points: vec![],
        };
        let column = HeatColumn {
            metric: Metric::Compute,
            median: 1.0,
            cells: (0..1_500).map(|place| Some(cell(place))).collect(),
        };
        let told = furthest(&[column], 1_500);
        assert_eq!(told.len(), MACHINES_MAX);
        assert_eq!(told[..3], [7, 17, 27]);
        assert_eq!(furthest(&[], 3), [0, 1, 2]);
    }
}
