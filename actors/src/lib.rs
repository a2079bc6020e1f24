//! The role actors and the workloads that are graphs of them.
//!
//! [`pretrain`] is ranks that train on what a data plane (`odeon_data`) deals out, with checkpoints
//! that load in any layout (`odeon_checkpoint`).
//! [`rl`] is reinforcement-learning post-training: rollouts, reward, sample store, trainer, relay,
//! critic and reference, each a supervised actor. [`hybrid`] runs the same algorithms as programs over
//! groups of workers. [`engine`] is what computes for them, and
//! [`recipe`] a run as a file.
//!
//! [`exec`] hosts programs that are none of Odeon as actors. [`sandbox`] runs those that nobody
//! trusts, to their end and within limits.
//!
//! The crate knows actors and algorithms, and of HTTP what [`engine::served`] asks servers of others and
//! the status line that tells whether a hosted server is ready. It does not know terminals.

#![forbid(unsafe_code)]

pub mod engine;
pub mod exec;
pub mod hybrid;
pub mod packed;
pub mod pretrain;
pub mod recipe;
pub mod rl;
pub mod sandbox;
pub mod simulate;
pub mod trajectory;

/// All actors of this crate: what a program that uses any of them, and each of its worker processes,
/// can host.
#[must_use]
pub fn job() -> odeon::Job {
    use exec::{Exec, Gang};
    use hybrid::resharding::ReshardWorker;
    use hybrid::workers::{CriticWorker, Estimator, PolicyWorker, ReferenceWorker, RewardWorker};
    use odeon_data::{
        client::DataClient, constructor::DataConstructor, ledger::Ledger, loader::ShadowLoader,
        loader::SourceLoader, planner::Planner,
    };
    use pretrain::{courier::Courier, rank::PretrainRank};
    use rl::{
        cost::Cost, critic::Critic, packer::Packer, reference::Reference, relay::Relay,
        relays::Relays, report::Monitor, reward::Reward, reward_model::RewardModel,
        rollout::Rollout, source::Source, store::SampleStore, tools::Tools, trainer::Trainer,
    };
    odeon::job![
        Cost,
        Courier,
        Critic,
        CriticWorker,
        DataClient,
        DataConstructor,
        Estimator,
        Exec,
        Gang,
        Ledger,
        Monitor,
        Packer,
        Planner,
        PolicyWorker,
        PretrainRank,
        Reference,
        ReferenceWorker,
        Relay,
        Relays,
        ReshardWorker,
        Reward,
        RewardModel,
        RewardWorker,
        Rollout,
        SampleStore,
        ShadowLoader,
        Source,
        SourceLoader,
        Tools,
        Trainer
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// An actor that is left out of it could be spawned here and not be asked from another process.
    #[test]
    fn the_job_of_this_crate_hosts_all_that_its_graphs_are_made_of() {
        let all: BTreeSet<_> = super::job().actors().collect();
        for part in [super::rl::job(), super::hybrid::job(), odeon_data::job()] {
            let left_out: Vec<_> = part.actors().filter(|it| !all.contains(it)).collect();
            assert!(left_out.is_empty(), "{left_out:?}");
        }
    }
}
