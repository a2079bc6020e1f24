//! The role actors and the workloads that are graphs of them.
//!
//! [`rl`] is reinforcement-learning post-training: rollouts, reward, sample store, trainer, relay,
//! critic and reference, each a supervised actor. [`engine`] is what computes for them, and
//! [`recipe`] a run as a file.
//!
//! [`exec`] hosts programs that are none of Odeon as actors.
//!
//! The crate knows actors and algorithms. It does not know HTTP, but for the status line that tells
//! whether a hosted server is ready, or terminals.

#![forbid(unsafe_code)]

pub mod engine;
pub mod exec;
pub mod packed;
pub mod recipe;
pub mod rl;
pub mod simulate;
pub mod trajectory;

/// All actors of this crate: what a program that uses any of them, and each of its worker processes,
/// can host.
#[must_use]
pub fn job() -> odeon::Job {
    use exec::{Exec, Gang};
    use rl::{
        critic::Critic, reference::Reference, relay::Relay, relays::Relays, report::Monitor,
        reward::Reward, rollout::Rollout, source::Source, store::SampleStore, trainer::Trainer,
    };
    odeon::job![
        Critic,
        Exec,
        Gang,
        Monitor,
        Reference,
        Relay,
        Relays,
        Reward,
        Rollout,
        SampleStore,
        Source,
        Trainer
    ]
}
