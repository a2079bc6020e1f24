//! Models, objectives and tasks: pure numerics and decisions.

pub mod balance;
pub mod cost;
pub mod environment;
pub mod fetch;
pub mod generate;
pub mod model;
pub mod objective;
pub mod parallel;
pub mod signs;
pub mod task;
pub mod tokenizer;
pub mod train;
pub mod weights;
pub mod workload;
