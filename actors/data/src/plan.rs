//! Plans: which samples a step has, who gets them, and what that costs. Pure: metadata in, plans out.
//!
//! ```text
//!  CellMeta ──hear──> Planning ──plan──> StepPlan
//!                        │ mix: the source that is owed most gives its next sample
//!                        v
//!                      Graph: drawn ─distribute─> bucketed ─balance─> micro-batched ─> sliced
//! ```
//!
//! [`Planning`] decides in two parts. First the *sample set* of a step is drawn: it follows from the
//! mixture, the budget and the lengths alone. Then [`Graph`] places the set on the ranks of a
//! [`Mesh`](odeon_mesh::Mesh). Neither the mesh, nor costs, nor the order in which cells are heard have any part
//! in the first, so a run that goes on with another number of ranks sees the same samples in the
//! same steps, and balancing moves work without changing gradients beyond rounding: a loss is
//! summed over tokens and divided by [`StepPlan::predicted`].
//!
//! ```
//! use odeon_data::plan::{
//!     Axis, Budget, CellMeta, Mixture, PlanSpec, Planning, Quadratic,
//!     SourceShape, Waiting,
//! };
//! use odeon_data::sample::{SampleId, SampleMeta};
//! use odeon_mesh::{DP, Mesh, TP};
//!
//! let spec = PlanSpec::mix(Mixture::even(["web", "books"]), Budget::Samples(4))
//!     .distribute(Axis::Data, None)
//!     .cost(Quadratic { linear: 24_576.0, square: 1.0 })
//!     .broadcast_at(TP);
//! let sources = ["web", "books"].map(|name| SourceShape { name: name.into(), cells: 8 });
//! let mesh = Mesh::new([(DP, 2), (TP, 2)])?;
//! let mut planning = Planning::new(spec, &sources, mesh)?;
//! let plan = loop {
//!     match planning.plan() {
//!         Ok(plan) => break plan,
//!         // A loader would be asked for what it has there.
//!         Err(Waiting::Cell(cell)) => {
//!             let sample = |nth| SampleMeta {
//!                 id: SampleId { source: cell.source, epoch: cell.epoch, cell: cell.cell, nth },
//!                 tokens: 100 + nth,
//!                 patches: vec![],
//!                 bytes: 400,
//!             };
//!             planning.hear(CellMeta::of(cell, (0..10).map(sample).collect()))?;
//!         }
//!         Err(other) => panic!("{other}"),
//!     }
//! };
//! assert_eq!((plan.samples, plan.buckets.len()), (4, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cell;
mod cost;
mod draw;
mod fetch;
mod graph;
pub mod iteration;
mod mixture;
mod pack;
mod partition;
mod planning;
mod scaling;
mod schedule;
mod spec;
mod state;
mod step;

#[cfg(test)]
mod tests;

pub use cell::{CellError, CellMeta, CellName, SAMPLE_TOKENS_MAX, SourceShape};
pub use cost::{CostSpec, Quadratic};
pub use fetch::{Axis, Feed, Fetch, FetchPlan, Slice, Slicing};
pub use graph::{Edge, Graph, Lineage, Node, Primitive};
pub use partition::{LoaderCaps, LoaderPreset, Part, PartitionError, Profile, partition};
pub use planning::{Heard, Passed, Planning, Waiting};
pub use scaling::{Dealing, Look, Reshard, Roster, Scaler, Scaling, ScalingSpec};
pub use schedule::Schedule;
pub use spec::{
    Ahead, AtEnd, Budget, ContextSpec, Curriculum, Distribute, EncoderSpec, Method, MicrobatchSpec,
    MixedSource, Mixture, PlanError, PlanSpec, Unit,
};
pub use state::{PlanState, SourceState};
pub use step::{Bucket, EncoderShare, Microbatch, PictureRef, StepPlan};
