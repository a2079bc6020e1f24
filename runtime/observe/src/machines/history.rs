//! The numbers of a node over time, as they were measured of its parts.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ProcessId;
use odeon::inspect::{DeviceReading, Metric, NodeSight};
use odeon::telemetry::Labels;

use crate::bounds::FINE_POINTS;
use crate::date::Date;
use crate::node::Flow;
use crate::series::Sampled;

/// The part of a node that something was measured of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachinePart {
    /// The machine.
    Machine,
    /// A device, by its number.
    Device(u32),
    /// A process.
    Process(ProcessId),
    /// The ranks of a job there.
    Job(String),
}

/// The numbers of a node over time, those of its machine, its devices, its processes and the ranks on it.
#[derive(Clone, Debug, Default)]
pub struct MachineHistory {
    series: BTreeMap<(MachinePart, Metric), Sampled>,
    /// Counts, of which the rates are kept.
    counts: BTreeMap<(MachinePart, Metric), Flow>,
    swept: Date,
}

/// The numbers that ranks record of their steps, in seconds, with the label `rank`.
const STEPS: [(&str, Metric); 3] = [
    ("train.stage_s", Metric::Compute),
    ("train.exchange_s", Metric::Exchange),
    ("train.wait_s", Metric::Wait),
];

/// Numbers of processes and jobs go when nothing was measured for as long as they are kept by the second.
const KEPT: Duration = Duration::from_secs(FINE_POINTS as u64);
/// It is looked so often which these are.
const SWEEP: Duration = Duration::from_secs(60);

impl MachineHistory {
    /// A number of a part.
    #[must_use]
    pub fn get(&self, part: &MachinePart, metric: Metric) -> Option<&Sampled> {
        self.series.get(&(part.clone(), metric))
    }

    /// All numbers of a part, in the order of [`Metric::ALL`].
    pub fn of<'a>(&'a self, part: &'a MachinePart) -> impl Iterator<Item = (Metric, &'a Sampled)> {
        let all = Metric::ALL.iter();
        all.filter_map(|metric| Some((*metric, self.get(part, *metric)?)))
    }

    /// The parts of which something was measured.
    pub fn parts(&self) -> impl Iterator<Item = &MachinePart> {
        let mut before = None;
        let parts = self.series.keys().map(|(part, _)| part);
        parts.filter(move |part| before.replace(*part) != Some(*part))
    }

    /// The count of numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Returns true where nothing was measured yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Takes in a look at the node, whose links send so. Numbers that are new are taken in as long as there is room for
    /// so many in all; how many were left out is returned.
    pub(crate) fn note_look(
        &mut self,
        at: Date,
        sight: &NodeSight,
        sending: &BTreeMap<ProcessId, Flow>,
        room: usize,
    ) -> u64 {
        if at.since(self.swept) >= SWEEP {
            self.sweep(at);
        }
        let mut taker = Taker {
            history: self,
            at,
            room,
            left_out: 0,
        };
        taker.machine(sight, sending);
        let readings = sight.hardware.as_ref().map(|view| view.readings.as_slice());
        for reading in readings.unwrap_or_default() {
            taker.device(reading);
        }
        for process in &sight.processes {
            if let Some(usage) = process.usage {
                let part = MachinePart::Process(process.sight.process);
                taker.take(&part, Metric::Resident, Some(usage.resident as f64));
                taker.take(&part, Metric::ProcessCpu, usage.cpu);
            }
        }
        taker.left_out
    }

    /// Takes in a number that an actor of the node recorded for a job, if it is of a rank's step.
    pub(crate) fn note_step(&mut self, at: Date, job: &str, of: (&str, &Labels), value: f64) {
        let (name, labels) = of;
        let known = STEPS.iter().find(|(known, _)| *known == name);
        let is_of_rank = labels.iter().any(|(label, _)| label == "rank");
        if let Some((_, metric)) = known.filter(|_| is_of_rank) {
            let key = (MachinePart::Job(job.to_owned()), *metric);
            self.series.entry(key).or_default().add(at, value);
        }
    }

    fn sweep(&mut self, at: Date) {
        self.swept = at;
        self.series.retain(|(part, _), series| match part {
            MachinePart::Machine | MachinePart::Device(_) => true,
            MachinePart::Process(_) | MachinePart::Job(_) => {
                series.last().is_some_and(|(last, _)| at.since(last) < KEPT)
            }
        });
    }
}

/// A look on its way into a history.
struct Taker<'a> {
    history: &'a mut MachineHistory,
    at: Date,
    room: usize,
    left_out: u64,
}

impl Taker<'_> {
    fn machine(&mut self, sight: &NodeSight, sending: &BTreeMap<ProcessId, Flow>) {
        let machine = &sight.machine;
        let memory = (machine.memory > 0).then_some(machine.memory_used as f64);
        let rates = sending.values().filter_map(|flow| flow.rate);
        let sent = rates.fold(None, |sum: Option<f64>, it| Some(sum.unwrap_or(0.0) + it));
        let resumed = sight.links.iter().map(|link| u64::from(link.resumed));
        let resumed = (!sight.links.is_empty()).then(|| resumed.sum::<u64>() as f64);
        let part = MachinePart::Machine;
        self.take(&part, Metric::Cpu, machine.cpu);
        self.take(&part, Metric::Memory, memory);
        self.take(&part, Metric::LinkSent, sent);
        self.take(&part, Metric::LinkResumed, resumed);
        for (metric, value) in &machine.metrics {
            self.take(&part, *metric, Some(*value));
        }
    }

    fn device(&mut self, reading: &DeviceReading) {
        let part = MachinePart::Device(reading.index);
        let memory = reading.memory_used.value().map(|it| *it as f64);
        let celsius = reading.celsius.value().map(|it| f64::from(*it));
        let clocks = reading.clocks.value();
        let replays = reading.pcie_replays.value().map(|it| *it as f64);
        self.take(&part, Metric::DeviceBusy, reading.busy.value().copied());
        self.take(&part, Metric::DeviceMemory, memory);
        self.take(&part, Metric::Power, reading.watts.value().copied());
        self.take(&part, Metric::Temperature, celsius);
        self.take(&part, Metric::Clock, clocks.map(|it| it.0));
        self.take(&part, Metric::MemoryClock, clocks.map(|it| it.1));
        self.take(&part, Metric::PcieReplays, replays);
    }

    /// A value of now, if it was measured: a count is taken as its rate since it was last counted.
    fn take(&mut self, part: &MachinePart, metric: Metric, value: Option<f64>) {
        let Some(value) = value.filter(|it| it.is_finite()) else {
            return;
        };
        let key = (part.clone(), metric);
        let is_new = !self.history.series.contains_key(&key);
        if is_new && self.history.series.len() >= self.room {
            self.left_out += 1;
            return;
        }
        let value = match metric.counts_up() {
            false => Some(value),
            true => {
                let count = value as u64;
                let flow = self.history.counts.get(&key);
                let flow = flow.map_or_else(
                    || Flow::new(self.at, count),
                    |flow| flow.go_on(self.at, count),
                );
                self.history.counts.insert(key.clone(), flow);
                flow.rate.filter(|_| flow.at() == self.at)
            }
        };
        if let Some(value) = value {
            let series = self.history.series.entry(key).or_default();
            series.add(self.at, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use odeon::inspect::{MachineView, Usage};
    use odeon::telemetry::Label;

    use super::*;
    use crate::machines::alike::tests::{at, sight_of};

    fn look(history: &mut MachineHistory, second: u64, sent: f64, room: usize) -> u64 {
        let mut sight = sight_of("a", &[(7, 0.5)]);
        sight.machine = MachineView {
            cpu: Some(0.25),
            metrics: vec![(Metric::Load, 2.0), (Metric::Sent, sent)],
            ..MachineView::default()
        };
        history.note_look(at(second), &sight, &BTreeMap::new(), room)
    }

    /// SEMANTICS 181.
    #[test]
    fn levels_and_rates_of_each_second_are_kept_and_the_rest_is_counted() {
        let mut history = MachineHistory::default();
        for second in 0..10 {
            assert_eq!(look(&mut history, second, 100.0 * second as f64, 99), 0);
        }
        let value = |part: &MachinePart, metric| {
            let series: &Sampled = history.get(part, metric).unwrap();
            series.seconds(at(0), 10).collect::<Vec<f32>>()
        };
        assert_eq!(value(&MachinePart::Machine, Metric::Load), [2.0; 10]);
        let sent = value(&MachinePart::Machine, Metric::Sent);
        assert!(sent[0].is_nan() && sent[1..] == [100.0; 9], "{sent:?}");
        let process = MachinePart::Process(ProcessId(7));
        assert_eq!(value(&process, Metric::ProcessCpu), [0.5; 10]);
        let parts: Vec<_> = history.parts().cloned().collect();
        assert_eq!(parts, [MachinePart::Machine, process]);

        // Of a counter that began anew nothing is made up, and what has no room is counted.
        look(&mut history, 10, 5.0, 99);
        let sent = history.get(&MachinePart::Machine, Metric::Sent).unwrap();
        assert_eq!(sent.last().map(|it| it.0), Some(at(9)));
        let mut full = MachineHistory::default();
        assert_eq!(look(&mut full, 0, 0.0, 2), 3);
    }

    #[test]
    fn numbers_of_what_is_over_go_after_a_quarter_of_an_hour() {
        let mut history = MachineHistory::default();
        look(&mut history, 0, 0.0, 99);
        let labels = vec![("rank".to_owned().into(), Label::Int(3))];
        let labels: Labels = labels.into_iter().collect();
        history.note_step(at(1), "j1", ("train.stage_s", &labels), 0.5);
        history.note_step(at(1), "j1", ("train.loss", &labels), 0.5);
        history.note_step(at(1), "j1", ("train.wait_s", &Labels::default()), 0.5);
        let job = MachinePart::Job("j1".to_owned());
        assert_eq!(history.of(&job).count(), 1);
        let mut other = sight_of("a", &[]);
        other.machine.cpu = Some(0.5);
        history.note_look(at(800), &other, &BTreeMap::new(), 99);
        assert_eq!(history.of(&job).count(), 1);
        history.note_look(at(1_000), &other, &BTreeMap::new(), 99);
        let parts: Vec<_> = history.parts().cloned().collect();
        assert_eq!(parts, [MachinePart::Machine]);
        assert!(Usage::default().cpu.is_none());
    }
}
