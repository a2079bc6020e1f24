//! Numbers that a rank records for people who look on: its place on the mesh, its memory, and the seconds of its steps.
//!
//! | name | labels | value |
//! | --- | --- | --- |
//! | `train.rank` | `rank`, `mesh`, and of a pipeline `schedule` | its number |
//! | `train.memory_bytes` | `rank`, `of` | bytes of parameters, gradients, the optimiser, and what is gathered, as settings ask for them; and of activations, as passes have held them |
//! | `train.stage_s` | `rank`, `stage` | seconds in which it computed |
//! | `train.exchange_s` | `rank` | seconds of adding up and exchanging with others, for whom it waits there |
//! | `train.wait_s` | `rank` | seconds for which it waited for its batch |

use std::ops::AddAssign;
use std::time::Duration;

use odeon::{Clock, Failure, Timestamp, telemetry};
use odeon_algorithms::model::ModelConfig;
use odeon_algorithms::train::{Footprint, PipelineKind, Sharing, TrainConfig};
use odeon_mesh::{Mesh, PP};

use super::start::RankStart;

/// What stays the same is told again after so long, to those who have begun to look since.
const EVERY: Duration = Duration::from_secs(10);

/// The seconds of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepSeconds {
    /// In which it computed.
    pub(crate) compute: f64,
    /// Of adding up and exchanging with others.
    pub(crate) exchange: f64,
    /// For which it waited for its batch.
    pub(crate) wait: f64,
}

impl AddAssign for StepSeconds {
    fn add_assign(&mut self, other: Self) {
        self.compute += other.compute;
        self.exchange += other.exchange;
        self.wait += other.wait;
    }
}

/// A rank as it tells of itself.
#[derive(Debug)]
pub(crate) struct RankMetrics {
    rank: u32,
    mesh: Mesh,
    /// The order of its passes, of a pipeline.
    schedule: Option<PipelineKind>,
    /// Bytes by what they are of.
    memory: Vec<(&'static str, usize)>,
    /// When it told its place and memory last.
    told: Timestamp,
    start: RankStart,
}

impl RankMetrics {
    /// A rank whose memory is not known yet, in which of its lives. Its place is told at once.
    ///
    /// # Errors
    /// There is no such mesh.
    pub(crate) fn new(rank: u32, sharing: Sharing, life: u32) -> Result<Self, Failure> {
        let mesh = sharing.mesh();
        let told = Self {
            rank,
            mesh: mesh.map_err(|error| Failure::error(error).fatal())?,
            schedule: (sharing.stages > 1).then_some(sharing.schedule),
            memory: vec![],
            told: Clock::now(),
            start: RankStart::begun(rank, life),
        };
        told.tell_place();
        Ok(told)
    }

    /// Takes in the model, and tells the memory that it has for it.
    ///
    /// # Errors
    /// The model cannot be shared so.
    pub(crate) fn of_model(
        mut self,
        config: &ModelConfig,
        train: &TrainConfig,
        sharing: Sharing,
    ) -> Result<Self, Failure> {
        let footprint = Footprint::of(config, train, sharing, self.rank as usize);
        let footprint = footprint.map_err(|error| Failure::error(error).fatal())?;
        self.memory = vec![
            ("parameters", footprint.parameters),
            ("gradients", footprint.gradients),
            ("optimizer", footprint.optimizer),
            ("gathered", footprint.gathered),
        ];
        self.tell_memory();
        Ok(self)
    }

    /// Tells that it has loaded a checkpoint, or that there was none.
    pub(crate) fn restored(&mut self) {
        self.start.restored();
    }

    /// Tells the seconds of a step, the first of which is 0, and the bytes of activations that its passes have held so
    /// far, at most.
    pub(crate) fn tell(&mut self, step: u64, seconds: StepSeconds, activations: usize) {
        self.start.stepped();
        let of_activations = ("activations", activations);
        match self
            .memory
            .iter_mut()
            .find(|(of, _)| *of == of_activations.0)
        {
            Some(known) if *known == of_activations => {}
            known => {
                match known {
                    Some(known) => *known = of_activations,
                    None => self.memory.push(of_activations),
                }
                tell_bytes(self.rank, of_activations);
            }
        }
        let now = Clock::now();
        if now.since(self.told) >= EVERY {
            self.told = now;
            self.tell_place();
            self.tell_memory();
        }
        let told = |name, seconds| {
            let number = telemetry::gauge(name, seconds).with("rank", self.rank);
            number.with("step", step + 1).with("unit", "s")
        };
        let computed = told("train.stage_s", seconds.compute);
        computed.with("stage", self.stage()).record();
        told("train.exchange_s", seconds.exchange).record();
        told("train.wait_s", seconds.wait).record();
    }

    /// The name of what it computes in a step: ranks with the same layers are compared with each other.
    fn stage(&self) -> String {
        match self.mesh.size(PP) {
            1 => "compute".to_owned(),
            _ => format!(
                "compute (pp {})",
                self.mesh.coordinate(self.rank as usize, PP)
            ),
        }
    }

    fn tell_place(&self) {
        let place = telemetry::gauge("train.rank", f64::from(self.rank)).with("rank", self.rank);
        let place = place.with("mesh", self.mesh.to_string());
        match self.schedule {
            Some(kind) => place.with("schedule", kind.word()).record(),
            None => place.record(),
        }
    }

    fn tell_memory(&self) {
        for kind in &self.memory {
            tell_bytes(self.rank, *kind);
        }
    }
}

fn tell_bytes(rank: u32, (of, bytes): (&'static str, usize)) {
    let number = telemetry::gauge("train.memory_bytes", bytes as f64);
    let number = number.with("rank", rank).with("of", of);
    number.with("unit", "bytes").record();
}
