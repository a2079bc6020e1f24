//! From drawn samples to ranks, with the way that each sample took.

use crate::sample::{SampleId, SampleMeta};
use odeon_mesh::{CP, Mesh};

use super::cost::Quadratic;
use super::fetch::{Axis, Feed, FetchPlan, Slice, Slicing};
use super::pack;
use super::spec::{EncoderSpec, Method, MicrobatchSpec};
use super::step::{Bucket, EncoderShare, Microbatch, PictureRef, StepPlan};

/// The samples of a step on their way to ranks: states of samples, and what led from one to the
/// next.
///
/// Each primitive is a method that takes the graph and gives it back with one layer more. What a
/// primitive that was not called would have said has a default: the data axis, a cost of one for
/// each token, no balancing, micro-batches of 8,192 tokens, and every rank fetches.
#[derive(Clone, Debug)]
pub struct Graph {
    samples: Vec<SampleMeta>,
    group: Option<u32>,
    costs: Vec<u64>,
    cap: u32,
    /// For each bucket its micro-batches, as places in `samples`.
    packed: Option<Vec<Vec<Vec<usize>>>>,
    encoder: Vec<EncoderShare>,
    fetch: FetchPlan,
}

/// A state of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Node {
    /// A sample in the step's set.
    Drawn(SampleId),
    /// A sample that has a bucket.
    Bucketed(SampleId, u32),
    /// A micro-batch of a bucket.
    Microbatched {
        /// The bucket.
        bucket: u32,
        /// Which of its micro-batches.
        microbatch: u32,
    },
    /// A part of each sequence of a micro-batch.
    Sliced {
        /// The bucket.
        bucket: u32,
        /// Which of its micro-batches.
        microbatch: u32,
        /// The part.
        slice: Slice,
    },
}

/// The operation that was done to samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Primitive {
    /// A bucket was chosen.
    Distribute,
    /// A micro-batch was chosen.
    Balance,
    /// Sequences were cut over context-parallel ranks.
    Slice,
}

/// One state came from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The earlier.
    pub from: Node,
    /// The later.
    pub to: Node,
    /// The operation between them.
    pub by: Primitive,
}

/// The way of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// When it was drawn, counted from the step's first.
    pub drawn: usize,
    /// The cost of the sample.
    pub cost: u64,
    /// Its bucket.
    pub bucket: u32,
    /// Its micro-batch there.
    pub microbatch: u32,
    /// Its place in the micro-batch.
    pub slot: u32,
    /// The ranks that work on it, each with its part and how it comes by it.
    pub ranks: Vec<(u32, Slice, Feed)>,
}

impl Graph {
    /// The samples that a mixture drew, in that order.
    #[must_use]
    pub fn mix(mesh: &Mesh, samples: Vec<SampleMeta>) -> Self {
        let costs = samples.iter().map(|s| u64::from(s.tokens)).collect();
        Self {
            samples,
            group: None,
            costs,
            cap: MicrobatchSpec::default().tokens,
            packed: None,
            encoder: vec![],
            fetch: FetchPlan {
                mesh: mesh.clone(),
                axis: Axis::Data,
                broadcast_at: vec![],
                slicing: Slicing::default(),
            },
        }
    }

    /// Gives each place along the axis a bucket, balanced in groups of so many.
    #[must_use]
    pub fn distribute(mut self, axis: Axis, group: Option<u32>) -> Self {
        self.fetch.axis = axis;
        self.group = group;
        self
    }

    /// Cuts sequences over context-parallel ranks in this way.
    #[must_use]
    pub fn slicing(mut self, slicing: Slicing) -> Self {
        self.fetch.slicing = slicing;
        self
    }

    /// Takes this for the cost of a sample.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&SampleMeta) -> u64) -> Self {
        self.costs = self.samples.iter().map(cost).collect();
        self
    }

    /// Chooses buckets so that their costs are alike, and in each bucket micro-batches. All buckets
    /// have equally many.
    #[must_use]
    pub fn balance(mut self, method: Method, microbatch: MicrobatchSpec) -> Self {
        let buckets = self.fetch.axis.buckets(&self.fetch.mesh) as usize;
        let chosen = method.partition_in(self.group, &self.costs, buckets);
        let tokens: Vec<u64> = self.samples.iter().map(|s| u64::from(s.tokens)).collect();
        self.cap = microbatch.tokens;
        self.packed = Some(pack::microbatches(
            &chosen.bins,
            &tokens,
            &self.costs,
            method,
            microbatch,
        ));
        self
    }

    /// Shares the pictures among all ranks, apart from where their samples are.
    #[must_use]
    pub fn encode(mut self, encoder: EncoderSpec, cost: Quadratic) -> Self {
        let mut graph = self.balanced();
        let mut pictures = vec![];
        for (place, bucket, microbatch, _) in graph.places() {
            let sample = &graph.samples[place];
            for (nth, patches) in (0..).zip(&sample.patches) {
                pictures.push(PictureRef {
                    sample: sample.id,
                    nth,
                    patches: *patches,
                    bucket,
                    microbatch,
                });
            }
        }
        // Those whose features are needed first come first in each share.
        pictures.sort_by_key(|p| (p.microbatch, p.bucket, p.sample, p.nth));
        let costs: Vec<u64> = pictures.iter().map(|p| cost.of(p.patches)).collect();
        let ranks = graph.fetch.mesh.len();
        let shared = encoder.method.partition_in(encoder.group, &costs, ranks);
        let shares = shared.bins.iter().zip(&shared.loads);
        graph.encoder = shares
            .map(|(share, cost)| EncoderShare {
                pictures: share.iter().map(|picture| pictures[*picture]).collect(),
                cost: *cost,
            })
            .collect();
        self = graph;
        self
    }

    /// Lets the first rank along the dimension alone fetch, and feed the others.
    #[must_use]
    pub fn broadcast_at(mut self, dimension: &str) -> Self {
        let known = &mut self.fetch.broadcast_at;
        if !known.iter().any(|other| other == dimension) {
            known.push(dimension.to_owned());
        }
        self
    }

    /// The plan.
    #[must_use]
    pub fn compile(self, step: u64) -> StepPlan {
        let graph = self.balanced();
        let microbatch = |items: &Vec<usize>| Microbatch {
            samples: items.iter().map(|item| graph.samples[*item].id).collect(),
            tokens: items.iter().map(|item| graph.samples[*item].tokens).sum(),
            cost: items.iter().map(|item| graph.costs[*item]).sum(),
        };
        let packed = graph.packed.iter().flatten();
        let buckets = packed.map(|bucket| Bucket {
            microbatches: bucket.iter().map(microbatch).collect(),
        });
        let tokens = || graph.samples.iter().map(|sample| sample.tokens);
        StepPlan {
            step,
            samples: graph.samples.len() as u32,
            tokens: tokens().map(u64::from).sum(),
            predicted: tokens().map(|n| u64::from(n.saturating_sub(1))).sum(),
            epochs: vec![],
            cap_tokens: graph.cap,
            length_max: None,
            buckets: buckets.collect(),
            encoder: graph.encoder,
            fetch: graph.fetch,
        }
    }

    /// The way of each sample to its micro-batch and the parts of it, in the order of buckets.
    #[must_use]
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = vec![];
        let parts = match self.fetch.axis {
            Axis::Data => self.fetch.mesh.size(CP) as u32,
            Axis::Context | Axis::World => 1,
        };
        for (place, bucket, microbatch, slot) in self.places() {
            let id = self.samples[place].id;
            let (drawn, bucketed) = (Node::Drawn(id), Node::Bucketed(id, bucket));
            let batched = Node::Microbatched { bucket, microbatch };
            edges.push(Edge {
                from: drawn,
                to: bucketed,
                by: Primitive::Distribute,
            });
            edges.push(Edge {
                from: bucketed,
                to: batched,
                by: Primitive::Balance,
            });
            if slot == 0 && parts > 1 {
                edges.extend((0..parts).map(|part| Edge {
                    from: batched,
                    to: Node::Sliced {
                        bucket,
                        microbatch,
                        slice: Slice { part, of: parts },
                    },
                    by: Primitive::Slice,
                }));
            }
        }
        edges
    }

    /// The way of one sample; `None` where it is not of the step, or has no micro-batch yet.
    #[must_use]
    pub fn lineage(&self, id: SampleId) -> Option<Lineage> {
        let drawn = self.samples.iter().position(|sample| sample.id == id)?;
        let found = self.places().find(|(place, ..)| *place == drawn)?;
        let (_, bucket, microbatch, slot) = found;
        let (mesh, axis) = (&self.fetch.mesh, self.fetch.axis);
        let works = (0..(mesh.len() as u32)).filter(|rank| axis.bucket(mesh, *rank) == bucket);
        Some(Lineage {
            drawn,
            cost: self.costs[drawn],
            bucket,
            microbatch,
            slot,
            ranks: works
                .map(|rank| (rank, axis.slice(mesh, rank), self.fetch.of(rank)))
                .collect(),
        })
    }

    /// Each sample's place, bucket, micro-batch and slot.
    fn places(&self) -> impl Iterator<Item = (usize, u32, u32, u32)> + '_ {
        let buckets = (0..).zip(self.packed.iter().flatten());
        buckets.flat_map(|(bucket, batches)| {
            (0..).zip(batches).flat_map(move |(microbatch, items)| {
                let slots = (0..).zip(items);
                slots.map(move |(slot, place)| (*place, bucket, microbatch, slot))
            })
        })
    }

    fn balanced(self) -> Self {
        if self.packed.is_some() {
            self
        } else {
            self.balance(Method::None, MicrobatchSpec::default())
        }
    }
}
