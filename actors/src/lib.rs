//! The role actors and the workloads that are graphs of them.
//!
//! [`rl`] is reinforcement-learning post-training: rollouts, reward, sample store, trainer, relay,
//! critic and reference, each a supervised actor. [`engine`] is what computes for them, and
//! [`recipe`] a run as a file.
//!
//! The crate knows actors and algorithms. It does not know HTTP or terminals.

#![forbid(unsafe_code)]

pub mod engine;
pub mod packed;
pub mod recipe;
pub mod rl;
pub mod trajectory;
