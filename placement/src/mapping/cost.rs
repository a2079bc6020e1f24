//! The cost models that price a strategy of a model on devices.

use odeon_topology::DeviceModel;
use serde::{Deserialize, Serialize};

use super::{
    degrees::Degrees,
    pool::Pool,
    workload::{Model, Role, Task},
};

/// A model with a task, on devices of a pool: what a cost model prices.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The model.
    pub model: &'a Model,
    /// The task to price.
    pub task: &'a Task,
    /// Where the devices are, with their speed and links.
    pub pool: &'a Pool,
    /// The parallelism of the model on them.
    pub parallel: Degrees,
}

/// The price of generating a task's batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Time, seconds.
    pub seconds: f64,
    /// Batches in a row that the sequences are divided into, because of the cache's size.
    pub waves: u64,
    /// Memory of each device while it generates, beside what is resident, bytes.
    pub bytes: u64,
}

/// Prices models on devices. Devices of every kind come through the same arguments, so a mixed
/// cluster needs nothing special.
///
/// All times are finite and not negative. The same arguments give the same answer, and more free
/// memory never makes generating slower; the search relies on both.
pub trait CostModel {
    /// Memory of a device that models may use, bytes.
    fn usable_bytes(&self, device: &DeviceModel) -> u64;

    /// Memory of each device that the model takes as long as it lives there, bytes.
    fn resident_bytes(&self, model: &Model, role: Role, parallel: Degrees) -> u64;

    /// Time to train on, or score, the task's batch; seconds.
    fn seconds(&self, run: &Run<'_>) -> f64;

    /// Least memory of each device with which the task's batch can be generated, beside what is
    /// resident, bytes. `run` says how the model is spread while it generates, `resident` how its
    /// parameters lie otherwise.
    fn generation_bytes(&self, run: &Run<'_>, resident: Degrees) -> u64;

    /// The price of generating the task's batch within `free_bytes` of each device, which are at
    /// least the [`generation_bytes`](Self::generation_bytes). The answer's bytes are at most
    /// these.
    fn generation(&self, run: &Run<'_>, resident: Degrees, free_bytes: u64) -> Generation;
}
