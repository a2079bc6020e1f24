//! Reinforcement-learning post-training, asynchronous per trajectory: see [`run`] for the graph.

pub mod critic;
pub mod ledger;
pub mod reference;
pub mod relay;
pub mod report;
pub mod reward;
pub mod rollout;
pub mod run;
pub mod store;
pub mod trainer;
