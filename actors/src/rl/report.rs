//! How a run goes: what the trainer tells, and the actor in the driver that passes it on.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Clock, Failure, Timestamp, actor, message};
use tokio::sync::mpsc;

use crate::engine::{EvalStats, Progress, StepStats};
use crate::trajectory::{Batch, Trajectory, Version};

/// News of a run.
#[message(name = "run.Report")]
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Supervised steps were done.
    Warmup {
        /// How many in all.
        step: u64,
        /// The last of them.
        stats: StepStats,
    },
    /// An optimiser step was done.
    Step(StepReport),
    /// Held-out problems were answered.
    Evaluated {
        /// By these weights.
        version: Version,
        /// The result.
        stats: EvalStats,
    },
    /// A checkpoint is safe.
    Saved(Progress),
    /// The trainer has come back from a checkpoint.
    Resumed {
        /// Which life of it.
        incarnation: u32,
        /// Where it goes on.
        progress: Progress,
    },
    /// All steps are done.
    Finished(Progress),
    /// The run was stopped in order, and can go on from here.
    Halted(Progress),
}

/// One optimiser step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct StepReport {
    /// The version that it made.
    pub version: Version,
    /// CRC-32 of the ids and versions of the batch's trajectories: a step that is repeated after a
    /// loss has the same.
    pub batch_checksum: u32,
    /// Mean reward of the batch.
    pub reward: f64,
    /// Part of the batch that was right.
    pub accuracy: f64,
    /// Mean staleness of its trajectories, in steps.
    pub staleness_mean: f64,
    /// The largest.
    pub staleness_max: u64,
    /// Mean response length, in tokens.
    pub response_mean: f64,
    /// Response tokens of the batch.
    pub response_tokens: u64,
    /// What the optimiser did.
    pub stats: StepStats,
    /// The critic's loss, when there is one.
    pub critic_loss: Option<f64>,
    /// Seconds from the batch to the published weights.
    pub seconds: f64,
}

impl StepReport {
    pub(super) fn new(
        version: Version,
        batch: &Batch,
        stats: StepStats,
        critic_loss: Option<f64>,
        begun: Timestamp,
    ) -> Self {
        let count = batch.trajectories.len().max(1) as f64;
        let staleness = |made: Version| (version - 1).saturating_sub(made);
        let all = &batch.trajectories;
        let mut checksum = crc32fast::Hasher::new();
        for Trajectory { id, version, .. } in all {
            for number in [id.group, u64::from(id.sample), *version] {
                checksum.update(&number.to_le_bytes());
            }
        }
        let response_tokens = all.iter().map(|t| t.response.len() as u64).sum();
        Self {
            version,
            batch_checksum: checksum.finalize(),
            reward: all.iter().map(|t| f64::from(t.reward)).sum::<f64>() / count,
            accuracy: all.iter().filter(|t| t.correct).count() as f64 / count,
            staleness_mean: all.iter().map(|t| staleness(t.version)).sum::<u64>() as f64 / count,
            staleness_max: all.iter().map(|t| staleness(t.version)).max().unwrap_or(0),
            response_mean: response_tokens as f64 / count,
            response_tokens,
            stats,
            critic_loss,
            seconds: Clock::now().since(begun).as_secs_f64(),
        }
    }
}

/// Listeners in this process, by the number that a [`Monitor`] is made from. A channel cannot be an
/// actor's argument, since arguments travel.
static DESKS: LazyLock<Mutex<HashMap<u64, mpsc::UnboundedSender<Report>>>> =
    LazyLock::new(Mutex::default);

/// Opens a desk that a [`Monitor`] with this number reports to. The number of reports of a run is
/// bounded by its steps.
#[must_use]
pub fn open_desk(number: u64) -> mpsc::UnboundedReceiver<Report> {
    let (sender, receiver) = mpsc::unbounded_channel();
    DESKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(number, sender);
    receiver
}

/// Passes reports on to the driver's desk. Lives in the driver.
#[derive(Debug)]
pub struct Monitor {
    desk: u64,
}

#[actor(name = "run.Monitor")]
impl Monitor {
    async fn start(desk: u64) -> Result<Self, Failure> {
        Ok(Self { desk })
    }

    #[handler(message = Report)]
    fn report(&mut self, report: Report) {
        let desks = DESKS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(desk) = desks.get(&self.desk) {
            // A driver that listens no more has ended the run.
            let _ = desk.send(report);
        }
    }
}

/// How long asks between the actors of a run may take: a training step on a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);
