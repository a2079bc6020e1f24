//! Tensors with placements on a mesh of ranks: what each rank holds, how it moves, and random numbers
//! that do not depend on it. As in veScale (arXiv 2509.07003, ragged shards of 2602.22437).
//!
//! ```text
//!  Sharding = name, Mesh, shape, one Placement for each dimension of the mesh     checked when made
//!     |
//!     |── LocalIndex                  local index <-> global index, in runs
//!     |      |── Drawing ── RandomStream          the numbers of one device, on any mesh
//!     |
//!     |── Redistribution              the cheapest steps from one Sharding to another: data
//!            |── Route ── SubMeshes               carried out by one rank over `odeon-collective`
//!            |── Emulator                         carried out for all ranks in one process, to the bit
//!
//!  Gradient ── reduced_together       few large reductions instead of many
//!  GroupBuffer                        one buffer for many parameters, of which each rank keeps a part
//! ```
//!
//! A program is written for one device, and says for each tensor which part each rank holds. All that
//! this means is found before the first step: which steps lead from one sharding to another, what each
//! rank copies and sends in them, which random numbers it draws. A step of a training carries that out
//! and decides nothing. Addends are never made by a redistribution, only by computing.
//!
//! # Example
//!
//! ```
//! use odeon_collective::{ElementType, Reduce};
//! use odeon_mesh::mesh;
//! use odeon_sharding::{Drawing, Placement, RandomStream, Redistribution, Sharding};
//!
//! let mesh = mesh! { fsdp: 2, tp: 4 };
//! // Rows are dealt out along `fsdp` as 3 to 1, columns along `tp`.
//! let ragged = Placement::Ragged { dims: 1, units: vec![3, 1] };
//! let weight = Sharding::new("wo", mesh.clone(), [8, 6], [ragged, Placement::Shard(1)])?;
//! let local = weight.local(6)?;
//! assert_eq!((local.shape(), local.offset()), (vec![2, 2], Some(vec![6, 4])));
//!
//! // All ranks draw what one device draws.
//! let mut numbers = [0.0; 4];
//! RandomStream::new(17).normal(&Drawing::new(&weight, 6)?, 0.0, 0.02, &mut numbers)?;
//! let mut whole = [0.0; 48];
//! let alone = Sharding::new("wo", mesh! {}, [8, 6], [])?;
//! RandomStream::new(17).normal(&Drawing::new(&alone, 0)?, 0.0, 0.02, &mut whole)?;
//! assert_eq!(numbers, [whole[40], whole[41], whole[46], whole[47]]);
//!
//! // The gradient is a sum over `fsdp`, of which each rank needs the part of its weight.
//! let gradient = weight.placed([Placement::Partial(Reduce::Sum), Placement::Shard(1)])?;
//! let plan = Redistribution::new(&gradient, &weight)?;
//! assert_eq!(plan.steps()[0].to_string(), "reduce-scatter (sum) along fsdp");
//! assert_eq!(plan.bytes(6, ElementType::F32), 12 * 4);
//! # Ok::<(), odeon_sharding::ShardingError>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `placement` | the part of a tensor that each rank along one dimension of a mesh holds |
//! | `sharding` | a named tensor on a mesh, checked when it is made |
//! | `index` | the exact map from local to global indices, in runs |
//! | `redistribution` | the steps from one sharding to another, as data, with what each rank sends |
//! | `search`, `exchange` | the cheapest way among shardings; the elements that ranks of a group give each other |
//! | `route` | one rank's way, carried out over communicators |
//! | `random` | random numbers of one device on any mesh: uniform, normal, masks |
//! | `normal` | quantiles of the normal distribution |
//! | `emulator` | collectives of several ranks in one process, to the bit |
//! | `gradients` | the reductions of a step's gradients: one by one, and together |
//! | `group_buffer` | the buffer of a group of parameters that ranks share: intervals, padding, each rank's part |
//! | `group_buffer/tensor`, `group_buffer/granularity` | its tensors and their blocks; blocks beside another cut |
//! | `group_buffer/planner`, `group_buffer/roots` | the shortest shard; the rank that orthogonalises each matrix |
//! | `group_buffer/error` | groups, blocks and matrices that cannot be |
//! | `error` | placements that cannot be, and acts that have no meaning |

#![forbid(unsafe_code)]

mod emulator;
mod error;
mod exchange;
mod gradients;
pub mod group_buffer;
mod index;
mod normal;
mod placement;
mod random;
mod redistribution;
mod route;
mod search;
mod sharding;
#[cfg(test)]
mod tests;

pub use emulator::Emulator;
pub use error::ShardingError;
pub use gradients::{Gradient, GradientReduction, reduced_apart, reduced_together};
pub use index::{IndexRun, LocalIndex};
pub use placement::Placement;
pub use random::{Drawing, RandomStream};
pub use redistribution::{Movement, Redistribution, RedistributionStep, Traffic};
pub use route::{Route, SubMeshes};
pub use sharding::Sharding;
