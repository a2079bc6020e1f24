//! One fake device: who uses it, what is wrong with it.

use odeon_topology::DeviceModel;
use std::collections::BTreeMap;
use std::time::Duration;

use super::space::Space;
use super::{FOREIGN_PROCESS, Strike};
use crate::fault::{FaultKind, GpuFault, Remedy, XID_LOST, xid_remedy};
use crate::inventory::{EccCounts, XIDS_MAX, Xid};

#[derive(Debug)]
pub(super) struct Card {
    /// Name of the element.
    pub(super) name: String,
    /// Number on its machine.
    pub(super) device: u32,
    pub(super) model_name: String,
    pub(super) model: DeviceModel,
    pub(super) space: Space,
    processes: BTreeMap<u32, Process>,
    /// Trouble of everybody, since when.
    broken: Option<(Duration, FaultKind)>,
    pub(super) slow: f64,
    pub(super) ecc: EccCounts,
    pub(super) xids: Vec<Xid>,
    /// When the copies that were begun are done.
    pub(super) busy_until: Duration,
    operations: u64,
    /// Faults to come, each with the operation before which it strikes.
    counted: Vec<(u64, Strike)>,
}

/// A process on a device. It stays listed while it lives or its memory is held.
#[derive(Debug, Default)]
struct Process {
    contexts: u32,
    poison: Option<(Duration, FaultKind)>,
    hung: Option<Duration>,
    killed: bool,
}

/// The fate of an operation that would end at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Ends,
    NeverEnds,
    Fails(GpuFault),
}

impl Card {
    pub(super) fn new(name: &str, device: u32, model_name: &str, model: DeviceModel) -> Self {
        Self {
            name: name.to_owned(),
            device,
            model_name: model_name.to_owned(),
            space: Space::new(model.memory_bytes),
            model,
            processes: BTreeMap::new(),
            broken: None,
            slow: 1.0,
            ecc: EccCounts::default(),
            xids: vec![],
            busy_until: Duration::ZERO,
            operations: 0,
            counted: vec![],
        }
    }

    pub(super) fn script(&mut self, operation: u64, what: Strike) {
        self.counted.push((operation, what));
    }

    /// Counts an operation, lets happen what is scripted for it, and says whether it can begin.
    pub(super) fn begin(&mut self, now: Duration, process: u32) -> Result<(), GpuFault> {
        self.operations += 1;
        let number = self.operations;
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.counted)
            .into_iter()
            .partition(|(operation, _)| *operation <= number);
        self.counted = later;
        for (_, what) in due {
            self.strike(now, what);
        }
        self.usable(process)
    }

    /// Checks that a process can use the device.
    pub(super) fn usable(&self, process: u32) -> Result<(), GpuFault> {
        let poison = self.processes.get(&process).and_then(|it| it.poison);
        match self.broken.or(poison) {
            Some((_, kind)) => Err(GpuFault::new(self.device, kind)),
            None => Ok(()),
        }
    }

    /// The device's own trouble.
    pub(super) fn health(&self) -> Result<(), GpuFault> {
        match self.broken {
            Some((_, kind)) => Err(GpuFault::new(self.device, kind)),
            None => Ok(()),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.broken, Some((_, FaultKind::Lost)))
    }

    /// The fate of an operation of a process that would end at this time: the trouble that came
    /// first decides.
    pub(super) fn fate(&self, process: u32, end: Duration) -> Fate {
        let known = self.processes.get(&process);
        let failed = [self.broken, known.and_then(|it| it.poison)]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
            .filter(|(at, _)| *at < end);
        let hung = known.and_then(|it| it.hung).filter(|at| *at < end);
        match (failed, hung) {
            (Some((at, _)), Some(hung)) if hung < at => Fate::NeverEnds,
            (Some((_, kind)), _) => Fate::Fails(GpuFault::new(self.device, kind)),
            (None, Some(_)) => Fate::NeverEnds,
            (None, None) => Fate::Ends,
        }
    }

    /// A process opens a context; `false` when it was killed and is still there.
    pub(super) fn enter(&mut self, process: u32) -> bool {
        let known = self.processes.entry(process).or_default();
        if !known.killed {
            known.contexts += 1;
        }
        !known.killed
    }

    /// A process closes a context. One that is broken stays so.
    pub(super) fn leave(&mut self, process: u32) {
        if let Some(known) = self.processes.get_mut(&process) {
            known.contexts = known.contexts.saturating_sub(1);
            let sound = known.poison.is_none() && known.hung.is_none() && !known.killed;
            if known.contexts == 0 && sound {
                self.processes.remove(&process);
            }
        }
    }

    /// A process dies; its memory stays held. Returns true if it was here, if only by its memory,
    /// and not dead yet.
    pub(super) fn kill(&mut self, process: u32) -> bool {
        let here = self.processes.contains_key(&process) || self.space.holds(process);
        if !here || self.is_killed(process) {
            return false;
        }
        let known = self.processes.entry(process).or_default();
        known.killed = true;
        known.contexts = 0;
        true
    }

    pub(super) fn is_killed(&self, process: u32) -> bool {
        self.processes.get(&process).is_some_and(|it| it.killed)
    }

    /// The memory of a dead process is free at last.
    pub(super) fn bury(&mut self, process: u32) {
        self.processes.remove(&process);
        self.space.give_all(process);
    }

    /// Processes that hold a context or memory, and how much.
    pub(super) fn holders(&self) -> BTreeMap<u32, u64> {
        let mut holders = self.space.shares();
        for (process, known) in &self.processes {
            if known.contexts > 0 {
                holders.entry(*process).or_default();
            }
        }
        holders
    }

    pub(super) fn strike(&mut self, now: Duration, what: Strike) {
        match what {
            Strike::Xid(code) => self.report(now, code),
            Strike::Sticky => self.poison(now, FaultKind::Sticky),
            Strike::Ecc => {
                self.ecc.uncorrected += 1;
                self.broken.get_or_insert((now, FaultKind::Ecc));
            }
            Strike::Oom => self.space.take_all(FOREIGN_PROCESS),
            Strike::Hang => {
                for process in self.processes.values_mut() {
                    process.hung.get_or_insert(now);
                }
            }
            Strike::Slow(factor) => self.slow = factor,
            Strike::Lost => self.report(now, XID_LOST),
        }
    }

    pub(super) fn repair(&mut self) {
        self.broken = None;
        self.slow = 1.0;
        self.ecc = EccCounts::default();
        self.xids.clear();
        self.space.give_all(FOREIGN_PROCESS);
    }

    fn report(&mut self, now: Duration, code: u64) {
        self.xids.push(Xid { code: Some(code) });
        let excess = self.xids.len().saturating_sub(XIDS_MAX);
        self.xids.drain(..excess);
        let kind = FaultKind::Xid { code };
        match xid_remedy(code) {
            // Gone is gone, whatever was wrong before.
            _ if code == XID_LOST => self.broken = Some((now, FaultKind::Lost)),
            Remedy::ReplaceProcess => self.poison(now, kind),
            _ => {
                self.broken.get_or_insert((now, kind));
            }
        }
    }

    fn poison(&mut self, now: Duration, kind: FaultKind) {
        for process in self.processes.values_mut() {
            process.poison.get_or_insert((now, kind));
        }
    }
}
