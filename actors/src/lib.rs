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
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `rl`, `rl/run`, `rl/run/roles` | the types of actors that a run has; their graph; each of them spawned with its arguments. Every role is a file of its own in `rl` |
//! | `rl/store`, `rl/store/lives`, `rl/prompt` | the actor around the ledger; how others hear that it began anew; prompts as models read them |
//! | `rl/ledger`, `rl/ledger/sampler` | the book of trajectories and of replies under way; which complete groups a batch takes. Pure |
//! | `rl/trainer`, `rl/critic`, `rl/reference`, `rl/advantages`, `rl/report` | training; from rewards to an advantage for each token (pure); what a run tells |
//! | `rl/ranks`, `rl/ranks/rank`, `rl/memory` | roles whose models several ranks share, as their actors see them; one of these ranks; the memory of each, before a run |
//! | `rl/source`, `rl/relay`, `rl/relays` | the trainer's end of the chain of weights; a relay; the actor that watches over the relays |
//! | `rl/chain`, `rl/chain/*` | the chain along which relays hand weights on: one of its members (`member`), with the weights that it has (`inbox`) and sends (`forwarding`); weights in chunks with checksums (`manifest`), of the best length (`chunks`), some of them as changes (`delta`); a new relay at the head (`election`). Pure |
//! | `rl/handing` | a member of that chain with its bytes |
//! | `rl/rollout`, `rl/rollout/*` | generating without a barrier; when newer weights are taken (`swapping`), what goes to the store for orders (`store_exchange`), replies that wait for their rewards (`judging`) or for their tool (`calling`) |
//! | `rl/repack`, `rl/repack/*` | which rollouts hand the rest of their work to others: when to plan that (`trigger`), how many requests keep a device busy (`roofline`), the check of a move right before it is made (`fit`). Pure |
//! | `rl/packer` | the actor that has them do it |
//! | `rl/reward`, `rl/reward_model`, `rl/cost` | rewards by a checker or by a model that has learnt to judge; the price of harm |
//! | `rl/referee`, `rl/judge` | judging a reply of any task; programs, so many at a time |
//! | `rl/tools`, `rl/toolbox` | the actor that answers calls of replies; what it runs for them |
//! | `engine` | the traits between roles and arithmetic |
//! | `engine/compute`, `engine/compute/*` | real models: the policy in training (`trainer`), and while it generates (`rollout`); reference and critic (`score`); the model of rewards (`reward`); the steps of all that train (`step`), and their ranks (`peers`); a batch in rows (`rows`), of which ranks have a part each (`dealing`), and what each gives of the weights (`parcels`); how fast a device can be (`peak`) |
//! | `engine/compute/state`, `engine/compute/checkpoint`, `engine/compute/damaged`, `engine/compute/legacy_checkpoint` | an optimiser as tensors of a checkpoint; checkpoints of trainers and critics; which of them cannot be gone on from; those of the layout before |
//! | `engine/compute/stored`, `engine/compute/model_folder`, `engine/compute/description` | models out of checkpoints; models into folders that others read; what a model's files say, and what is odd in them |
//! | `engine/compute/first_weights` | what a rank keeps of a model, out of files or drawn |
//! | `engine/scripted` | a clockwork in their place: fixed costs, and weights that are a counter |
//! | `engine/modelled`, `engine/modelled/*` | predicted costs in their place, under virtual time: generation (`rollout`) and the tokens in its cache (`cache`, pure) |
//! | `engine/served`, `engine/served/*` | servers of others: what vLLM and SGLang are asked and say (`dialect`), events out of bytes (`events`), remedies for a loss (`retry`), these three pure; `client` speaks, `folder` has weights on their way |
//! | `packed`, `trajectory`, `number` | rows in shared memory; data that travels between roles; numbers of reports that may be none |
//! | `going_on` | findings of a run's own steps that go on, for those who look on |
//! | `hybrid`, `hybrid/*` | the same algorithms as one program over groups of workers: a run from its checkpoint on (`run`), one step of it (`program`), what it asks of its workers (`calls`, `workers`), how these are made and seated (`house`), what people order about their ranks (`recoveries`), `rows` by reference, the `weights` of a policy that ranks share, `resharding` between training and generation; from verdicts to advantages (`estimator`) and which models share processes (`placement`), both pure |
//! | `ranks`, `ranks/*` | ranks that share a model, whatever they train on: the groups in which they add up and exchange (`formed`, `seats`, `gangs`), where they are (`places`), how they begin (`meeting`), letters between them while they train (`courier`), a sign that they have one storage (`mark`), which standby takes whose number (`standbys`, pure), the replay of steps by which the faulty one of several nodes is found (`group_test`, `replay`), and what they tell of themselves and of a step (`metrics`, `trained`) |
//! | `pretrain`, `pretrain/run`, `pretrain/seats`, `pretrain/meshes`, `pretrain/rank`, `pretrain/rank/results` | the program over the ranks; who has which place in a life; ranks as the data plane sees them; one of them, and its part of a step |
//! | `pretrain/work`, `pretrain/pictures`, `pretrain/gradients`, `pretrain/checkpoint`, `pretrain/report` | the part of a rank in a step; who encodes which picture and where its features are (pure); which gradients are taken (pure); where data goes on in a checkpoint; what a run tells |
//! | `pretrain/plan`, `pretrain/before`, `pretrain/batches` | what a run is made from; what is left of the last life of the ranks; who waits for a batch |
//! | `pretrain/standbys` | those that wait to take the numbers of lost ranks |
//! | `pretrain/verify`, `pretrain/compare` | the first steps of a run by its ranks and by one; what two such runs differ in (pure) |
//! | `recipe`, `recipe/*` | the file of a run: what an algorithm's name stands for (`algorithm`), pretraining (`pretrain`), the plan of its ranks where it leaves that open (`pretrain/auto`) and what they reserve (`placement`), sources, tools, sandbox, and the check of it all |
//! | `simulate`, `simulate/*` | runs at the size of a cluster: the file (`scenario`), how rollouts and trainer work together (`mode`), who has which cards (`split`, `plan`), what is followed (`measure`); the best setting of a mode: what to try next (`search`, pure), trying it (`tuning`); months under faults (`faults`) |
//! | `exec`, `exec/*` | programs that are none of Odeon: what one is started with (`spec`), its processes (`process`), its output, when it is ready (`probe`), the variables of ranks (`rank`, pure), whether it waits for somebody (`waiting`), many ranks of one program (`gang`), and which of them failed first (`blame`, pure) |
//! | `room` | the wait of groups for places that they had and lost |
//! | `sandbox`, `sandbox/*` | untrusted programs in namespaces within limits: tools of the system, and a guard that ends everything when its process dies |

#![forbid(unsafe_code)]

pub mod engine;
pub mod exec;
mod going_on;
pub mod hybrid;
mod number;
pub mod packed;
pub mod pretrain;
pub mod ranks;
pub mod recipe;
pub mod rl;
mod room;
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
    use pretrain::rank::PretrainRank;
    use ranks::{courier::Courier, desk::RecoveryDesk, replay::ReplayRank};
    use rl::{
        cost::Cost, critic::Critic, packer::Packer, ranks::rank::ModelRank, reference::Reference,
        relay::Relay, relays::Relays, report::Monitor, reward::Reward, reward_model::RewardModel,
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
        ModelRank,
        Monitor,
        Packer,
        Planner,
        PolicyWorker,
        PretrainRank,
        RecoveryDesk,
        Reference,
        ReferenceWorker,
        Relay,
        Relays,
        ReplayRank,
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
