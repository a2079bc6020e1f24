//! Strategies to spread models over devices, and the cost models that price them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DeviceModel, Model, Pool, Role, Task};

/// Degrees of parallelism: one model over `data * tensor * pipeline` devices.
///
/// Shown as `pipeline-tensor-data`: `1-8-2` are two replicas of eight devices each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parallel {
    /// Replicas, each with its part of the batch.
    pub data: u32,
    /// Devices that share each layer; all in one node.
    pub tensor: u32,
    /// Groups of layers, one after the other.
    pub pipeline: u32,
}

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
    pub parallel: Parallel,
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
    fn resident_bytes(&self, model: &Model, role: Role, parallel: Parallel) -> u64;

    /// Time to train on, or score, the task's batch; seconds.
    fn seconds(&self, run: &Run<'_>) -> f64;

    /// Least memory of each device with which the task's batch can be generated, beside what is
    /// resident, bytes. `run` says how the model is spread while it generates, `resident` how its
    /// parameters lie otherwise.
    fn generation_bytes(&self, run: &Run<'_>, resident: Parallel) -> u64;

    /// The price of generating the task's batch within `free_bytes` of each device, which are at
    /// least the [`generation_bytes`](Self::generation_bytes). The answer's bytes are at most
    /// these.
    fn generation(&self, run: &Run<'_>, resident: Parallel, free_bytes: u64) -> Generation;
}

impl Parallel {
    /// Number of devices.
    #[must_use]
    pub fn devices(self) -> u32 {
        self.data * self.shards()
    }

    /// Devices of one replica, each with its share of the parameters.
    #[must_use]
    pub fn shards(self) -> u32 {
        self.tensor * self.pipeline
    }

    /// All ways to spread a model of `layers` over exactly `devices` of the pool, fewest shards
    /// first: tensor groups are parts of a node (or all of it), pipelines have at most a stage for
    /// each layer, replicas take the rest.
    pub(super) fn over(pool: &Pool, devices: u32, layers: u32) -> Vec<Self> {
        let tensors = pool
            .allotments()
            .into_iter()
            .filter(|&tensor| tensor <= pool.devices_per_node && devices.is_multiple_of(tensor));
        let mut found: Vec<Self> = tensors
            .flat_map(|tensor| {
                let groups = devices / tensor;
                divisors(groups)
                    .filter(move |&pipeline| pipeline <= layers)
                    .map(move |pipeline| Self {
                        data: groups / pipeline,
                        tensor,
                        pipeline,
                    })
            })
            .collect();
        found.sort_by_key(|parallel| (parallel.shards(), parallel.pipeline));
        found
    }

    /// All ways to spread the model over the same devices while it generates, fewest shards first:
    /// each group splits into equal ones, so that a device keeps the shard that it has and gathers
    /// only from neighbours.
    pub(super) fn while_generating(self) -> Vec<Self> {
        let mut found: Vec<Self> = divisors(self.tensor)
            .flat_map(|tensor| {
                divisors(self.pipeline).map(move |pipeline| Self {
                    data: self.devices() / (tensor * pipeline),
                    tensor,
                    pipeline,
                })
            })
            .collect();
        found.sort_by_key(|parallel| (parallel.shards(), parallel.pipeline));
        found
    }
}

impl fmt::Display for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}-{}-{}", self.pipeline, self.tensor, self.data);
        f.pad(&text)
    }
}

fn divisors(number: u32) -> impl Iterator<Item = u32> {
    (1..=number).filter(move |&divisor| number.is_multiple_of(divisor))
}
