//! Long runs under faults: months of a job on thousands of cards, event by event, with and without what a system has
//! against faults. Pure: nothing runs, and the same file and seed give the same numbers.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `faults/scenario` | the file, its defaults and its checks |
//! | `faults/class` | the classes of incidents |
//! | `faults/rungs` | the ladder: what is tried next |
//! | `faults/restart` | seconds of restarts, by their kind and the number of machines |
//! | `faults/fleet` | machines that run, stand by, are repaired and are free |
//! | `faults/job` | one run, event by event |
//! | `faults/sums`, `faults/outcome` | what a run comes to, and all seeds of a policy |
//! | `faults/sensitivity` | where constants come from, and what results owe to them |
//! | `faults/draws` | chance, by what it is for |

mod class;
mod draws;
mod fleet;
mod job;
mod outcome;
mod restart;
mod rungs;
mod scenario;
mod sensitivity;
mod sums;
#[cfg(test)]
mod tests;

use odeon_diagnosis::standbys::StandbyError;

pub use self::class::{ClassSection, FaultClass};
pub use self::outcome::{FaultOutcome, OverSeeds, ReportedResolution, ResolutionRow};
pub use self::restart::{ReplacedMachines, RestartKind, RestartRow, RestartSection};
pub use self::rungs::Rung;
pub use self::scenario::{
    Between, CheckpointingSection, FaultPolicy, FaultScenario, FaultedRunSection, FleetSection,
    LadderSection,
};
pub use self::sensitivity::{ConstantOrigin, SensitivityRow};
pub use self::sums::{RatioPoint, RunPhase};

use self::job::JobRun;

impl FaultScenario {
    /// The results of a policy, over all seeds.
    #[must_use]
    pub fn outcome(&self, policy: &FaultPolicy) -> FaultOutcome {
        let classes = self.classes();
        let seeds = self.simulation.seeds.iter();
        let runs: Vec<_> = seeds
            .map(|seed| JobRun::new(self, &classes, policy, *seed).run())
            .collect();
        FaultOutcome::of(self, &classes, policy, &runs)
    }

    /// Mean seconds of restarts of jobs of some sizes, beside what the paper reports.
    ///
    /// # Errors
    /// Machines fail with a rate that is none, which files with such are refused for.
    pub fn restarts(&self) -> Result<Vec<RestartRow>, StandbyError> {
        self.restart.sizes(&ReplacedMachines {
            daily: self.simulation.machine_faults_daily,
            quantile: self.fleet.standby_quantile,
            switch_share: self.fleet.switch_share,
            switch_machines: self.fleet.switch_machines.unwrap_or(32),
        })
    }
}
