//! The time of an iteration, from what a plan's pieces cost.
//!
//! ```text
//!  iteration = encode + max over buckets of the pipeline's time
//!  pipeline  = sum of micro-batches + (stages - 1) * the longest     (where stages are equal)
//! ```
//!
//! A stage begins a micro-batch when it has ended the one before, and the stage before has ended
//! this one; that is all that is modelled of a pipeline, and for equal stages it is the formula
//! above. Backward passes take a multiple of forward passes and stretch everything alike. All
//! buckets meet at the reduction of gradients. Communication is not counted, and a micro-batch is
//! cut evenly over the ranks of a stage.

use odeon_algorithms::balance::deal;
use odeon_mesh::{Mesh, PP};

use super::cost::Quadratic;
use super::fetch::Axis;
use super::step::{PictureRef, StepPlan};

/// Where pictures are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// By the first stage of the pipeline, micro-batch by micro-batch, as if the encoder were layers
    /// below the backbone.
    FirstStage,
    /// By all ranks of the bucket, in turn, before its pipeline begins.
    Bucket,
    /// By all ranks as the plan shares them. The pipelines begin when the slowest has ended, since
    /// features go everywhere.
    Shared,
}

/// Where an iteration's time goes, in units of cost on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Iteration {
    /// Until the last bucket is done.
    pub time: f64,
    /// The time it would take if every rank were busy all the time.
    pub ideal: f64,
}

/// The time of the iteration of a plan that shares pictures among ranks (so that it has them), if
/// they are encoded in this way.
#[must_use]
pub fn iteration(plan: &StepPlan, picture: Quadratic, encoding: Encoding) -> Iteration {
    let mesh = &plan.fetch.mesh;
    let ranks = mesh.len() as f64;
    let of_bucket = ranks / f64::from(plan.fetch.axis.buckets(mesh).max(1));
    let stages = mesh.size(PP);
    let width = of_bucket / stages as f64;
    let pictures = pictures_of(plan);
    let shared = plan.encoder.iter().map(|share| share.cost as f64);
    let slowest = shared.clone().fold(0.0, f64::max);
    let mut time = 0.0f64;
    for (bucket, pictures) in plan.buckets.iter().zip(&pictures) {
        let costs =
            |patches: &[u32]| -> Vec<u64> { patches.iter().map(|n| picture.of(*n)).collect() };
        let before = match encoding {
            Encoding::FirstStage => 0.0,
            Encoding::Bucket => {
                deal(&costs(&pictures.concat()), of_bucket as usize).makespan() as f64
            }
            Encoding::Shared => slowest,
        };
        // When each stage has ended the micro-batch that was last.
        let mut ended = vec![before; stages];
        for (batch, pictures) in bucket.microbatches.iter().zip(pictures) {
            let each = batch.cost as f64 / of_bucket;
            let mut here = before;
            for (stage, ended) in ended.iter_mut().enumerate() {
                let more = match encoding {
                    Encoding::FirstStage if stage == 0 => {
                        costs(pictures).iter().sum::<u64>() as f64 / width
                    }
                    _ => 0.0,
                };
                here = ended.max(here) + each + more;
                *ended = here;
            }
        }
        time = time.max(ended.last().copied().unwrap_or(before));
    }
    let computed: f64 = plan.buckets.iter().map(|bucket| bucket.cost() as f64).sum();
    Iteration {
        time,
        ideal: (computed + shared.sum::<f64>()) / ranks,
    }
}

/// For each bucket and micro-batch the patches of its pictures, from a plan that shares them among
/// ranks.
#[must_use]
pub fn pictures_of(plan: &StepPlan) -> Vec<Vec<Vec<u32>>> {
    let mut all: Vec<PictureRef> = plan
        .encoder
        .iter()
        .flat_map(|share| share.pictures.iter().copied())
        .collect();
    all.sort_by_key(|p| (p.bucket, p.microbatch, p.sample, p.nth));
    let empty = vec![vec![]; plan.microbatches()];
    let mut buckets = vec![empty; plan.buckets.len()];
    for picture in all {
        buckets[picture.bucket as usize][picture.microbatch as usize].push(picture.patches);
    }
    buckets
}

/// Numbers of connections that feed the ranks of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Every rank to every loader.
    pub direct: u64,
    /// Every rank to one constructor, and every constructor to every loader.
    pub constructed: u64,
    /// The same where of the ranks that work on the same tokens of a stage one fetches.
    pub broadcast: u64,
    /// The most that one constructor or loader has, in the last of these.
    pub most: u64,
}

/// Connections with so many loaders, and one constructor for so many clients.
#[must_use]
pub fn connections(mesh: &Mesh, loaders: u64, clients_each: u64) -> Connections {
    let ranks = mesh.len() as u64;
    let stages = mesh.size(PP) as u64;
    let fetching = u64::from(Axis::Context.buckets(mesh)) * stages;
    let constructors = ranks.div_ceil(clients_each.max(1));
    let fed = fetching.div_ceil(constructors.max(1));
    Connections {
        direct: loaders * ranks,
        constructed: loaders * constructors + ranks,
        broadcast: loaders * constructors + fetching,
        most: (loaders + fed).max(constructors),
    }
}
