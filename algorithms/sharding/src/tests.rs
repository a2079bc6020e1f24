//! Tests over many meshes, shapes and placements.

pub(crate) mod any;
pub(crate) mod gang;
mod index;
mod redistribution;
mod refusals;
