//! The machine of a node: use of processors and memory, in all and by process, from `/proc`, and what else the kernel
//! counts of it.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Metric;
use super::counters::Counters;
use crate::base::clock::{Clock, Timestamp};

/// A machine at one look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineView {
    /// Its processors.
    pub cores: u32,
    /// The part of them that was in use since the look before; `None` at the first, or where the
    /// system does not tell.
    pub cpu: Option<f64>,
    /// Bytes of memory; 0 where the system does not tell.
    pub memory: u64,
    /// Bytes of it that are neither free nor only kept for quicker reading.
    pub memory_used: u64,
    /// Further numbers that the system tells of it: levels as they are, and counts up to now.
    #[serde(default)]
    pub metrics: Vec<(Metric, f64)>,
}

/// Processor time and memory that a process uses at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of memory that are its own or mapped by it, and present.
    pub resident: u64,
    /// Processors in use since the look before: 1 for one all the time.
    pub cpu: Option<f64>,
}

/// Reads both, and knows what it has read before.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Ticks in use, and all.
    machine: Option<(u64, u64)>,
    counters: Counters,
    /// By process: ticks, and when.
    processes: HashMap<u32, (u64, Timestamp)>,
}

/// The kernel counts processor time in hundredths of a second for those who read it here.
const TICK: Duration = Duration::from_millis(10);

impl Meter {
    pub(super) fn machine(&mut self) -> MachineView {
        let (memory, memory_used) = memory().unwrap_or_default();
        let ticks = fs::read_to_string("/proc/stat").ok();
        let ticks = ticks.and_then(|text| machine_ticks(&text));
        let before = std::mem::replace(&mut self.machine, ticks);
        let cpu = before
            .zip(ticks)
            .and_then(|((used, all), (now_used, now_all))| {
                let passed = now_all.checked_sub(all).filter(|passed| *passed > 0)?;
                Some(now_used.saturating_sub(used) as f64 / passed as f64)
            });
        let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32);
        MachineView {
            cores,
            cpu,
            memory,
            memory_used,
            metrics: self.counters.read(),
        }
    }

    pub(super) fn process(&mut self, pid: u32) -> Option<Usage> {
        let now = Clock::now();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (ticks, pages) = process_ticks(&stat)?;
        let before = self.processes.insert(pid, (ticks, now));
        let cpu = before.and_then(|(before, then)| {
            let passed = now.since(then).as_secs_f64();
            let used = ticks.saturating_sub(before) as f64 * TICK.as_secs_f64();
            (passed > 0.0).then(|| used / passed)
        });
        Some(Usage {
            resident: pages * rustix::param::page_size() as u64,
            cpu,
        })
    }

    /// Forgets processes that are gone.
    pub(super) fn keep(&mut self, present: &[u32]) {
        self.processes.retain(|pid, _| present.contains(pid));
    }
}

/// Ticks in use, and all, from the first line of `/proc/stat`.
fn machine_ticks(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|it| it.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guests are counted in user already.
    let all: u64 = ticks.iter().take(8).sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all - idle, all))
}

/// Ticks and pages of a process from `/proc/PID/stat`.
fn process_ticks(text: &str) -> Option<(u64, u64)> {
    // The name before it may hold anything, so count from its closing bracket.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((number(11)? + number(12)?, number(21)?))
}

/// Bytes of memory, and those in use.
fn memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    memory_of(&text)
}

fn memory_of(text: &str) -> Option<(u64, u64)> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    let (total, available) = (kib("MemTotal:")?, kib("MemAvailable:")?);
    Some((total << 10, total.saturating_sub(available) << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "cpu  10 1 9 70 10 0 0 0 5 0\ncpu0 5 1 4 35 5 0 0 0 2 0\n";
        assert_eq!(machine_ticks(stat), Some((20, 100)));
        let odd =
            "7 (a) b) R 1 7 7 0 -1 4 0 0 0 0 30 12 0 0 20 0 3 0 99 1000 55 18446744073709551615 1";
        assert_eq!(process_ticks(odd), Some((42, 55)));
        let memory = "MemTotal:       100 kB\nMemFree:   10 kB\nMemAvailable:   60 kB\n";
        assert_eq!(memory_of(memory), Some((100 << 10, 40 << 10)));
        for cut in ["", "cpu", "cpu  1 2"] {
            assert_eq!(machine_ticks(cut), None);
        }
        assert_eq!(process_ticks("7 (a) R 1"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let mut meter = Meter::default();
        let pid = std::process::id();
        assert!(
            meter
                .process(pid)
                .is_some_and(|usage| usage.resident > 0 && usage.cpu.is_none())
        );
        let machine = meter.machine();
        assert!(machine.memory > 0);
        let told: Vec<Metric> = machine.metrics.iter().map(|it| it.0).collect();
        for metric in [Metric::Load, Metric::MajorFaults, Metric::Retransmits] {
            assert!(told.contains(&metric), "{metric:?}: {told:?}");
        }
        meter.keep(&[]);
        assert!(meter.processes.is_empty());
    }
}
