//! Reinforcement-learning post-training, asynchronous per trajectory: see [`run`] for the graph.

pub(crate) mod advantages;
pub mod chain;
pub mod cost;
pub mod critic;
mod handing;
pub mod judge;
pub mod ledger;
pub mod memory;
pub mod packer;
pub mod prompt;
pub mod ranks;
pub mod referee;
pub mod reference;
pub mod relay;
pub mod relays;
pub mod repack;
pub mod report;
pub mod reward;
pub mod reward_model;
pub mod rollout;
pub mod run;
pub mod source;
pub mod store;
pub mod toolbox;
pub mod tools;
pub mod trainer;

use odeon::Job;

/// The actors of a run: what a program that starts one, and each of its worker processes, can host.
#[must_use]
pub fn job() -> Job {
    use crate::ranks::courier::Courier;

    use self::{
        cost::Cost, critic::Critic, packer::Packer, ranks::rank::ModelRank, reference::Reference,
        relay::Relay, relays::Relays, report::Monitor, reward::Reward, reward_model::RewardModel,
        rollout::Rollout, source::Source, store::SampleStore, tools::Tools, trainer::Trainer,
    };
    odeon::job![
        Cost,
        Courier,
        Critic,
        ModelRank,
        Monitor,
        Packer,
        Reference,
        Relay,
        Relays,
        Reward,
        RewardModel,
        Rollout,
        SampleStore,
        Source,
        Tools,
        Trainer
    ]
}
