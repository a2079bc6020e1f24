//! The one mesh of ranks: named dimensions with their sizes, and the groups of ranks along them.
//!
//! Whoever cuts work over ranks says it with a [`Mesh`]: groups of actors, layouts of models, the data
//! plane, placement, recipes and checkpoints. Ranks count through the dimensions in row-major order: the
//! last one changes fastest, so that its neighbours are next to one another.
//!
//! | name | cuts |
//! | --- | --- |
//! | [`PP`] | layers, stage by stage |
//! | [`DP`] | samples: each rank has its own, and the whole model |
//! | [`FSDP`] | samples, and the parameters that are gathered when they are needed |
//! | [`CP`] | one sequence, slice by slice |
//! | [`TP`] | matrices |
//! | [`EP`] | experts |
//!
//! Other names are as good. This crate knows no actors, devices or models.
//!
//! # Example
//!
//! ```
//! use odeon_mesh::{DP, PP, TP, at, mesh};
//!
//! let mesh = mesh! { dp: 2, pp: 2, tp: 4 };
//! assert_eq!(mesh.len(), 16);
//! // The ranks that share the layers of rank 5, and those that have its part of the model.
//! assert_eq!(mesh.group(5, &[TP])?, [4, 5, 6, 7]);
//! assert_eq!(mesh.group(5, &[DP])?, [5, 13]);
//! // One replica is a mesh of its own, and can be cut in another way.
//! let (replica, ranks) = mesh.slice(&at!(dp = 1))?;
//! assert_eq!((replica.to_string(), ranks[0]), ("{pp: 2, tp: 4}".to_owned(), 8));
//! let flat = replica.flatten(&[PP, TP], "ranks")?;
//! assert_eq!(flat.to_string(), "{ranks: 8}");
//! assert_eq!(replica.split(TP, &[("micro", 2), (TP, 2)])?.to_string(), "{pp: 2, micro: 2, tp: 2}");
//! # Ok::<(), odeon_mesh::MeshError>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `mesh` | the mesh: its dimensions, sub-meshes, ranks by number and by coordinates |
//! | `rank` | one rank, which knows its mesh; coordinates along some dimensions |
//! | `group` | the ranks along some dimensions; dimensions that are joined or split |
//! | `error` | meshes and coordinates that cannot be |

#![forbid(unsafe_code)]

mod error;
mod group;
mod mesh;
mod rank;
#[cfg(test)]
mod tests;

pub use error::MeshError;
pub use mesh::{Dim, Mesh};
pub use rank::{At, Coordinate, Rank};

/// Pipeline parallelism: each rank along it has some of the layers.
pub const PP: &str = "pp";
/// Data parallelism: each rank along it has samples of its own and the whole model.
pub const DP: &str = "dp";
/// Fully sharded data parallelism: each rank along it has samples of its own and a part of each parameter.
pub const FSDP: &str = "fsdp";
/// Context parallelism: each rank along it has some of the tokens of a sequence.
pub const CP: &str = "cp";
/// Tensor parallelism: each rank along it has a part of each matrix.
pub const TP: &str = "tp";
/// Expert parallelism: each rank along it has some of the experts.
pub const EP: &str = "ep";

/// A [`Mesh`]: `mesh! { dp: 2, tp: 4 }`. Panics when a size is 0 or a name comes twice; sizes that
/// a user gives go through [`Mesh::new`].
#[macro_export]
macro_rules! mesh {
    ($($name:ident : $size:expr),* $(,)?) => {{
        let dims: Vec<(&str, usize)> = vec![$((stringify!($name), $size)),*];
        match $crate::Mesh::new(dims) {
            Ok(mesh) => mesh,
            Err(error) => panic!("{error}"),
        }
    }};
}

/// Coordinates: `at!(dp = 0, tp = -1)`. Negative ones count from the end.
#[macro_export]
macro_rules! at {
    ($($name:ident = $at:expr),* $(,)?) => {
        $crate::At::new([$((stringify!($name), $crate::Coordinate::from($at))),*])
    };
}
