//! Which models share which devices, and how each is spread over them.
//!
//! ```text
//!  Workload (models, stages) ─┐
//!  Pools (devices, links)    ─┼─ map ─> Mapping (sets of models, devices, strategies, seconds)
//!  CostModel (prices)        ─┘    └──> MappingError (what is wrong with the input)
//! ```
//!
//! [`map`] is the automatic mapping of HybridFlow (arXiv 2409.19256), made exact. It considers all
//! set partitions of the models, all allotments of devices to the sets, and all strategies of the
//! models in each set that fit into memory together. An iteration takes, summed over its stages,
//! the time of the slowest set; a set takes the sum over its models that have work in the stage.
//! The mapping with the least time is the answer; of equals that with the fewest devices, then that
//! with the fewest sets, then the one found first. The search goes by names, so the order in which
//! models and pools are listed has no influence.
//!
//! - A set lives in one pool. It gets a power of two of devices that divides a node, or whole
//!   nodes; devices may stay idle. So more devices never make the answer slower.
//! - A model's parameters, and what trains them, stay on its devices; what its generation needs
//!   (gathered parameters, cache) is there only while it generates, in the memory that all the
//!   resident states leave. Generation has a strategy of its own, with smaller groups.
//! - Times are those of a [`CostModel`]: [`Analytic`], or one that was measured. Weights that
//!   travel between sets are not priced.
//!
//! The paper fixes each model's strategy by its own least time and then sums; here a strategy that
//! is slower but smaller stays in the race as long as nothing is better in every stage and in
//! memory, since colocated models compete for memory and a set that waits at a stage's end does
//! not profit from being fast.
//!
//! # What it costs
//!
//! Branches whose bound is no better than the best mapping so far are not even priced, and each
//! set's prices on a number of devices are kept. In release on one core of a shared machine, PPO's
//! four models of 7B take 24 ms on 128 devices, 24 to 29 ms on two pools of 64, alike or not, and
//! 0.22 s on 512; six models on 128 take 0.2 s, eight (the most) 1.5 s.
//!
//! # Example
//!
//! ```
//! use odeon_placement::mapping::{Analytic, Batch, Model, Pool, Task, Workload, map};
//! use odeon_topology::DeviceModel;
//!
//! let a100 = DeviceModel::a100();
//! let batch = Batch::new(1024, 1024, 1024);
//! let seven = |name| Model::new(name, 7_000_000_000, 32, 4096);
//! let workload = Workload::new([seven("actor"), seven("reference")])
//!     .stage("generate", [Task::generate("actor", batch)])
//!     .stage("prepare", [Task::forward("reference", batch)])
//!     .stage("train", [Task::train("actor", batch, 8)]);
//! let mapping = map(&workload, &[Pool::new("a", a100, 16)], &Analytic::default())?;
//! assert_eq!(mapping.sets.len(), 1); // They share all 16 devices.
//! let actor = mapping.of("actor").unwrap();
//! let generation = actor.generation.as_ref().unwrap();
//! assert!(generation.size("tp") <= actor.mesh.size("tp"));
//! # Ok::<(), odeon_placement::mapping::MappingError>(())
//! ```

mod analytic;
mod answer;
mod cost;
mod degrees;
mod error;
mod pool;
mod pricing;
mod room;
mod search;
mod workload;

pub use analytic::Analytic;
pub use answer::{Mapping, Placed, Searched, Set};
pub use cost::{CostModel, Generation, Run};
pub use degrees::Degrees;
pub use error::MappingError;
pub use pool::Pool;
pub use workload::{Batch, Model, Role, Stage, Task, Work, Workload};

use pricing::{Memo, Pricing};
use search::Search;

/// Finds the mapping with the least predicted time of an iteration.
///
/// # Errors
///
/// The input is not valid, the models do not fit, or the cost model gave something that is not a
/// time; the error says which and where.
pub fn map(
    workload: &Workload,
    pools: &[Pool],
    cost: &dyn CostModel,
) -> Result<Mapping, MappingError> {
    map_with(workload, pools, cost, Memo::Kept)
}

fn map_with(
    workload: &Workload,
    pools: &[Pool],
    cost: &dyn CostModel,
    memo: Memo,
) -> Result<Mapping, MappingError> {
    workload.check()?;
    workload::unique("pool", pools.iter().map(|pool| &pool.name))?;
    pools.iter().try_for_each(Pool::check)?;
    if pools.iter().all(|pool| pool.devices == 0) {
        return Err(MappingError::NoDevices);
    }
    Search::new(Pricing::new(workload, pools, cost, memo)).run()
}

#[cfg(test)]
mod tests;
