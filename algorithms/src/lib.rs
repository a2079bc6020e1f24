//! Models, objectives and tasks: pure numerics and decisions.

pub mod evaluation;
pub mod fetch;
pub mod generate;
pub mod groups;
pub mod model;
pub mod objective;
pub mod packing;
pub mod staleness;
pub mod task;
pub mod tokenizer;
pub mod train;
pub mod weights;
