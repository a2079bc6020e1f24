//! Models, objectives and tasks: pure numerics and decisions.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `model`, `model/*` | decoder-only transformers over the fused operations; `model/vision` encodes pictures as a pass of its own, `model/arithmetic` counts what a batch costs |
//! | `train` | gradients over packed batches, applied with AdamW or Muon |
//! | `generate`, `generate/*` | sampling with continuous batching; `blocks` of keys and values that sequences share, and `slots`: who gets rows and who waits for blocks, both pure |
//! | `objective` | losses with their gradients, advantages and rewards. Pure |
//! | `signs` | what steps show of a run that goes wrong. Pure |
//! | `task`, `task/*` | problems with exact checkers: a `task/source` gives each `task/problem` and its `task/verdict`; `task/maths` compares mathematics by normal forms, `task/code` has programs run against tests |
//! | `environment` | turns in which a reply calls a tool. Pure |
//! | `tokenizer` | text to token ids and back |
//! | `weights`, `weights/merge` | model files; the weighted sum of several models |
//! | `fetch` | published models and data sets, pinned by checksum |
//! | `parallel` | how a model is cut over ranks, and the copies from one layout to another. Pure |
//! | `balance` | items of known cost into bins, so that the largest is small. Pure |
//! | `cost`, `workload` | how long engines take on cards that are not here; how long their work is, for simulation |

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
