//! Division of the work of a save or a load among ranks. Pure: the same state of all ranks gives
//! the same plan, wherever it is made.
//!
//! ```text
//!  Local of each rank ─> Census (those that are alike once) ─┬─> plan::save: who writes which box
//!                                                            └─> plan::load: who reads which blocks,
//!                          Manifest ─────────────────────────┘   and gives what of them to whom
//! ```

pub(crate) mod census;
pub mod load;
pub mod save;
mod tree;

pub use self::census::Census;
pub use self::tree::Tree;
