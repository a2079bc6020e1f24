//! Parallel layouts of a model, and resharding it from one to another. Pure.
//!
//! ```text
//!  Llama, TensorSpec ─> ModelSpec ─┐
//!  Mesh {dp, pp, tp}              ─┼─> Shards of each rank: boxes in one buffer
//!  Mesh {pp, tp}, Grouping        ─┘        │
//!                                           ├─ Reshard: train <-> generate, the same ranks
//!                                           └─ between: anything to anything
//!                                                 └─> Transfer: a box between two buffers
//! ```
//!
//! A [`ModelSpec`] says of each tensor along which dimension tensor ranks cut it, and which stage
//! of a pipeline has it. A mesh numbers ranks; what a rank has of a model are [`Shards`],
//! boxes ([`Region`]) that lie in one buffer of the rank. [`Reshard`] is the 3D-HybridEngine of
//! HybridFlow (arXiv 2409.19256), and the two engines it is compared with: [`Groups`]
//! says who generates together, a [`Plan`] what a rank copies from whom, and what that costs.
//! [`between`] does the same for any two placements, by intersecting boxes.
//!
//! A [`Transfer`] says where its bytes lie in the sender's buffer ([`Window::ranges`]), where they
//! belong, and how to copy them in the fewest pieces ([`Transfer::runs`], [`copy_box`]). A shard in
//! the buffer of another layout grows and shrinks where it is ([`spread`], [`condense`]), and
//! [`Reshard::exchanges`] says in which order ranks give and take.
//!
//! Not here: moving bytes between processes, which `odeon_actors::hybrid::resharding` does, and what
//! a network does with its part of a tensor.
//! Parts are not padded; where sizes do not divide, they differ by a unit ([`Cut`]).
//!
//! # What it costs
//!
//! For a model of 72B parameters in 963 tensors on 1,024 ranks (`{dp: 32, pp: 4, tp: 8}` to `{tp: 8}`), in release on one
//! core of a shared machine: the plan of one rank takes 0.4 ms for HybridFlow, 2 ms for
//! DeepSpeed-Chat and 3 ms for HybridFlow-V. [`between`] plans all ranks at once: a million copies
//! in less than a second and 0.4 GB. Nothing is kept for each pair of ranks.
//!
//! # Example
//!
//! Eight ranks train as two replicas of four tensor ranks, and generate in tensor groups of two:
//!
//! ```
//! use odeon_algorithms::model::LayerBlock;
//! use odeon_algorithms::parallel::{Engine, Llama, Reshard};
//! use odeon_mesh::mesh;
//!
//! let model = Llama {
//!     layers: 2,
//!     hidden: 64,
//!     intermediate: 128,
//!     block: LayerBlock::default(),
//!     heads: 8,
//!     kv_heads: 4,
//!     head_width: 8,
//!     vocabulary: 256,
//!     element_bytes: 2,
//!     tied: false,
//!     qkv_bias: false,
//!     out_bias: false,
//!     mlp_bias: false,
//!     head_norms: false,
//!     value_head: false,
//! };
//! let (training, generation) = (mesh! { dp: 2, tp: 4 }, mesh! { tp: 2 });
//! let reshard = Reshard::new(model.spec()?, &training, &generation, Engine::HybridFlow)?;
//! assert_eq!(reshard.groups().tensor_group(0)?, [0, 2]);
//! assert_eq!(reshard.groups().micro_data_group(0)?, [0, 1]);
//!
//! // Rank 0 gets a quarter of the model from rank 1, and keeps nothing twice.
//! let plan = reshard.plan(0)?;
//! let norms = 5 * 64 * 2; // Every rank has them.
//! let cut = reshard.model().bytes() - norms;
//! assert_eq!(plan.cost.received_bytes, cut / 4);
//! assert_eq!(plan.cost.peak_bytes, cut / 2 + norms);
//! assert_eq!(plan.cost.redundant_bytes, 0);
//!
//! // Each rank fills its buffer from those of its group.
//! let buffers: Vec<Vec<u8>> = (0..8)
//!     .map(|rank| Ok(vec![rank; reshard.training(rank.into())?.bytes()]))
//!     .collect::<Result<_, Box<dyn std::error::Error>>>()?;
//! let mut gathered = vec![0; plan.cost.peak_bytes];
//! for transfer in &plan.gather {
//!     transfer.apply(&buffers[transfer.sender(0)], &mut gathered)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod between;
mod exchange;
mod grouping;
mod holders;
mod in_place;
mod layout;
mod llama;
mod region;
mod reshard;
mod shard;
mod spec;
mod transfer;
mod window;

pub use between::{Transfers, between};
pub use exchange::Exchange;
pub use grouping::{Grouping, Groups};
pub use in_place::{condense, spread};
pub use layout::LayoutError;
pub use llama::Llama;
pub use region::{Region, Span};
pub use reshard::{Cost, Engine, Plan, Reshard, ReshardError};
pub use shard::{CutError, Part, Shard, Shards};
pub use spec::{Cut, Home, ModelSpec, SpecError, TensorSpec};
pub use transfer::{Origin, Transfer};
pub use window::{ByteRun, Window, WindowError, copy_box};

#[cfg(test)]
mod tests;
