//! How long an iteration takes, from what a plan's pieces cost.
//!
//! ```text
//!  iteration = max over buckets of [ encode + sum of micro-batches + (stages - 1) * the longest ]
//! ```
//!
//! A pipeline works on one micro-batch after the other, and fills and drains at the pace of the
//! longest. All buckets meet at the reduction of gradients. Communication is not counted, and a
//! sample's cost is cut evenly over the ranks that share it.

use super::cost::Quadratic;
use super::step::{Bucket, PictureRef, StepPlan};
use super::tree::{Axis, Dimension, PlaceTree};

/// Where an iteration's time goes, in units of cost on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Iteration {
    /// Until the last bucket is done.
    pub time: f64,
    /// What it would be if every rank were busy all the time.
    pub ideal: f64,
    /// Encoding, in the bucket or on the rank where it takes longest.
    pub encode: f64,
}

/// The time of a plan's iteration.
///
/// Where the plan shares pictures among all ranks, encoding ends when the slowest has ended, since
/// features go everywhere. Where it does not, `pictures` are those of each bucket, which the ranks of
/// the bucket encode in turn; see [`pictures_of`].
#[must_use]
pub fn iteration(plan: &StepPlan, picture: Quadratic, pictures: &[Vec<u32>]) -> Iteration {
    let tree = &plan.fetch.tree;
    let ranks = f64::from(tree.ranks());
    let buckets = f64::from(tree.buckets(plan.fetch.axis).max(1));
    let stages = f64::from(tree.size(Dimension::Pipeline));
    // Ranks that share one stage of one bucket's work.
    let width = ranks / buckets / stages;
    let backbone = |bucket: &Bucket| {
        let times = bucket.microbatches.iter();
        let times = times.map(|batch| batch.cost as f64 / (stages * width));
        let (sum, longest) = times.fold((0.0, 0.0f64), |(sum, most), t| (sum + t, most.max(t)));
        sum + (stages - 1.0) * longest
    };
    let local: Vec<f64> = pictures
        .iter()
        .map(|patches| {
            let costs: Vec<u64> = patches.iter().map(|n| picture.of(*n)).collect();
            let dealt = odeon_algorithms::balance::deal(&costs, (ranks / buckets) as usize);
            dealt.makespan() as f64
        })
        .collect();
    let shared = plan.encoder.iter().map(|share| share.cost as f64);
    let shared = shared.fold(0.0, f64::max);
    let encode = |bucket: usize| {
        if plan.encoder.is_empty() {
            local.get(bucket).copied().unwrap_or(0.0)
        } else {
            shared
        }
    };
    let times = plan.buckets.iter().enumerate();
    let time = times
        .map(|(at, bucket)| encode(at) + backbone(bucket))
        .fold(0.0, f64::max);
    let encoded: f64 = if plan.encoder.is_empty() {
        let costs = pictures.iter().flatten().map(|n| picture.of(*n) as f64);
        costs.sum()
    } else {
        plan.encoder.iter().map(|share| share.cost as f64).sum()
    };
    let computed: f64 = plan.buckets.iter().map(|bucket| bucket.cost() as f64).sum();
    Iteration {
        time,
        ideal: (computed + encoded) / ranks,
        encode: (0..plan.buckets.len()).map(encode).fold(0.0, f64::max),
    }
}

/// The patches of each bucket's pictures, from a plan that shares them among ranks.
#[must_use]
pub fn pictures_of(plan: &StepPlan) -> Vec<Vec<u32>> {
    let mut all: Vec<PictureRef> = plan
        .encoder
        .iter()
        .flat_map(|share| share.pictures.iter().copied())
        .collect();
    all.sort_by_key(|p| (p.bucket, p.microbatch, p.sample, p.nth));
    let mut buckets = vec![vec![]; plan.buckets.len()];
    for picture in all {
        buckets[picture.bucket as usize].push(picture.patches);
    }
    buckets
}

/// How many connections feed the ranks of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Every rank to every loader.
    pub direct: u64,
    /// Every rank to one constructor, and every constructor to every loader.
    pub constructed: u64,
    /// The same where ranks that work on the same tokens are fed by the first of them.
    pub broadcast: u64,
    /// The most that one constructor or loader has, in the last of these.
    pub most: u64,
}

/// Connections with so many loaders, and one constructor for so many clients.
#[must_use]
pub fn connections(tree: &PlaceTree, loaders: u64, clients_each: u64) -> Connections {
    let ranks = u64::from(tree.ranks());
    let fetching =
        u64::from(tree.buckets(Axis::Context)) * u64::from(tree.size(Dimension::Pipeline));
    let constructors = ranks.div_ceil(clients_each.max(1));
    let fed = fetching.div_ceil(constructors.max(1));
    Connections {
        direct: loaders * ranks,
        constructed: loaders * constructors + ranks,
        broadcast: loaders * constructors + fetching,
        most: (loaders + fed).max(constructors),
    }
}
