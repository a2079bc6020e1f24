//! `[placement]` of a pretraining run: what its ranks reserve.

use std::time::Duration;

use odeon::{Needs, gib};
use serde::{Deserialize, Serialize};

/// `[placement]`: the resources that each rank has to itself. Without any, all ranks are processes of the
/// node that runs the recipe.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RankPlacement {
    /// Devices of each rank.
    pub rank_gpus: u32,
    /// Processor time of each rank, in cores.
    pub rank_cpus: f64,
    /// Memory that each of the devices must have.
    pub device_memory_gib: u64,
    /// The longest time that the ranks may wait for what they reserve, in seconds.
    pub wait_seconds: u64,
}

impl Default for RankPlacement {
    fn default() -> Self {
        Self {
            rank_gpus: 0,
            rank_cpus: 0.0,
            device_memory_gib: 0,
            wait_seconds: 60,
        }
    }
}

impl RankPlacement {
    /// The first field that asks for what cannot be, and why.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if !self.rank_cpus.is_finite() || self.rank_cpus < 0.0 {
            let what = format!(
                "{} cores are no processor time: expected 0 or more",
                self.rank_cpus
            );
            return Err(("rank_cpus", what));
        }
        match self.device_memory_gib > 0 && self.rank_gpus == 0 {
            true => {
                let what = "memory of devices is asked for with them: let rank_gpus be 1 or more";
                Err(("device_memory_gib", what.to_owned()))
            }
            false => Ok(()),
        }
    }

    /// The same, as each rank asks for it.
    pub fn needs(&self) -> Needs {
        let mut needs = Needs::new();
        if self.rank_gpus > 0 {
            needs = needs.gpus(self.rank_gpus);
            if self.device_memory_gib > 0 {
                needs = needs.device_memory(gib(self.device_memory_gib));
            }
        }
        if self.rank_cpus > 0.0 {
            needs = needs.cpus(self.rank_cpus);
        }
        match needs.is_empty() {
            true => needs,
            false => needs.wait_for_room(Duration::from_secs(self.wait_seconds)),
        }
    }
}
