//! The machines of a cluster: those of the job, standbys, those in repair and those that are free.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Counts of machines by their state, and what changes of itself.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    pub(super) active: u32,
    pub(super) standby: u32,
    /// On their way to be standbys.
    provisioning: u32,
    repair: u32,
    pub(super) free: u32,
    /// Standbys that there are to be.
    pool: u32,
    provision_seconds: f64,
    /// In milliseconds, so that they have an order.
    changes: BinaryHeap<Reverse<(u64, Change)>>,
    now: f64,
    /// Seconds of standbys, added up.
    pub(super) standby_seconds: f64,
}

/// What machines do of themselves. In the order in which they do it, of those at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// So many are repaired.
    Repaired(u32),
    /// One is a standby.
    Provisioned,
}

impl Fleet {
    /// A job of so many machines that runs, its standbys, and others that are free.
    pub(super) fn new(active: u32, pool: u32, free: u32, provision_seconds: f64) -> Self {
        Self {
            active,
            standby: pool,
            provisioning: 0,
            repair: 0,
            free,
            pool,
            provision_seconds,
            changes: BinaryHeap::new(),
            now: 0.0,
            standby_seconds: 0.0,
        }
    }

    /// All machines, whatever they do.
    #[cfg(test)]
    pub(super) const fn all(&self) -> u32 {
        self.active + self.standby + self.provisioning + self.repair + self.free
    }

    /// Takes machines out of the job for so many seconds.
    pub(super) fn evict(&mut self, machines: u32, seconds: f64) {
        let machines = machines.min(self.active);
        if machines > 0 {
            self.active -= machines;
            self.repair += machines;
            self.plan(seconds, Change::Repaired(machines));
        }
    }

    /// Gives the job standbys for as many machines as it lacks, and says how many it got.
    pub(super) fn wake(&mut self, wanted: u32) -> u32 {
        let woken = wanted.min(self.standby);
        self.standby -= woken;
        self.active += woken;
        self.replenish();
        woken
    }

    /// Gives the job free machines, if there are so many.
    pub(super) fn place(&mut self, wanted: u32) -> bool {
        let enough = self.free >= wanted;
        if enough {
            self.free -= wanted;
            self.active += wanted;
        }
        enough
    }

    /// When something changes next.
    pub(super) fn next_change(&self) -> Option<f64> {
        self.changes
            .peek()
            .map(|Reverse((at_ms, _))| *at_ms as f64 / 1e3)
    }

    /// Lets time pass until then.
    pub(super) fn advance(&mut self, now: f64) {
        while let Some(at) = self.next_change().filter(|at| *at <= now) {
            self.pass(at);
            match self.changes.pop() {
                Some(Reverse((_, Change::Repaired(machines)))) => {
                    self.repair -= machines;
                    self.free += machines;
                }
                Some(Reverse((_, Change::Provisioned))) => {
                    self.provisioning -= 1;
                    self.standby += 1;
                }
                None => {}
            }
            self.replenish();
        }
        self.pass(now);
    }

    fn pass(&mut self, now: f64) {
        let passed = (now - self.now).max(0.0);
        self.standby_seconds += passed * f64::from(self.standby);
        self.now = self.now.max(now);
    }

    /// Has free machines made standbys for those that are gone.
    fn replenish(&mut self) {
        while self.free > 0 && self.standby + self.provisioning < self.pool {
            self.free -= 1;
            self.provisioning += 1;
            self.plan(self.provision_seconds, Change::Provisioned);
        }
    }

    fn plan(&mut self, seconds: f64, change: Change) {
        // Later than now, so that time passes while somebody waits.
        let at_ms = ((self.now + seconds) * 1e3).ceil() as u64 + 1;
        self.changes.push(Reverse((at_ms, change)));
    }
}
