//! Roles of a run whose models several ranks share: they say and learn what one process does, whatever the plan, and
//! come back with all of their ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use odeon::{Clock, ProcessId, Ref, Supervision, System, WorkerMode};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::compute::{ComputeSpec, ModelSource};
use odeon_actors::packed::{Packed, PackedBatch};
use odeon_actors::ranks::desk::{
    OrderRecovery, RecoveryDesk, RecoveryOrder, ShowRecovery, desk_name,
};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::critic::{Critic, CriticArgs, Learn, SaveCritic, Values};
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::ranks::RanksPlan;
use odeon_actors::rl::reference::{LogProbs, Reference, ReferenceArgs};
use odeon_actors::rl::report::Report;
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::StoreArgs;
use odeon_actors::rl::trainer::TrainPlan;
use odeon_actors::trajectory::Batch;
use odeon_algorithms::model::{ContextKind, LayerBlock, ModelConfig, Moe, StageLayers};
use odeon_algorithms::objective::{Baseline, Gae, Lambda};
use odeon_algorithms::train::{Sharing, ZeroStage};
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use odeon_tests::again;
use rustix::process::{Pid, Signal, kill_process};

use crate::versions::{batch, tiny};

#[test]
fn worker_entry() {
    odeon_actors::rl::job().serve_if_worker();
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Plans of two to eight ranks: each cut by itself, and mixtures.
fn plans() -> Vec<(&'static str, Sharing)> {
    let of = Sharing::ALONE;
    vec![
        ("dp2", Sharing { copies: 2, ..of }),
        (
            "zero1",
            Sharing {
                copies: 2,
                zero: ZeroStage::Optimizer,
                ..of
            },
        ),
        (
            "fsdp2, gathered once",
            Sharing {
                copies: 2,
                zero: ZeroStage::Gradients,
                ..of
            },
        ),
        (
            "fsdp2",
            Sharing {
                copies: 2,
                zero: ZeroStage::Parameters,
                ..of
            },
        ),
        ("tp2", Sharing { tensor: 2, ..of }),
        ("cp2", Sharing { context: 2, ..of }),
        (
            "ring of 2",
            Sharing {
                context: 2,
                context_kind: ContextKind::Ring,
                ..of
            },
        ),
        (
            "pp2 of three layers and one",
            Sharing {
                stages: 2,
                layers: StageLayers::new(&[3, 1]),
                ..of
            },
        ),
        (
            "pp2 of 2 chunks x dp2",
            Sharing {
                copies: 2,
                stages: 2,
                chunks: 2,
                ..of
            },
        ),
        (
            "tp2 x fsdp2",
            Sharing {
                copies: 2,
                tensor: 2,
                zero: ZeroStage::Parameters,
                ..of
            },
        ),
        (
            "pp2 x cp2 x tp2",
            Sharing {
                context: 2,
                tensor: 2,
                stages: 2,
                ..of
            },
        ),
    ]
}

/// A model that all of these plans can share.
pub(crate) fn spec(folder: &Path, experts: bool) -> ComputeSpec {
    let EngineSpec::Compute(spec) = tiny(&folder.join("base"), 0, 1) else {
        unreachable!("it computes");
    };
    let ModelSource::Fresh(config) = spec.source.clone() else {
        unreachable!("it is new");
    };
    let mut config = ModelConfig {
        layers: 4,
        heads: 4,
        kv_heads: 4,
        head_dim: 4,
        ..*config
    };
    if experts {
        config.block = LayerBlock::Moe(Moe {
            experts: 4,
            experts_per_token: 2,
        });
    }
    ComputeSpec {
        source: ModelSource::Fresh(Box::new(config)),
        ..*spec
    }
}

/// Replies of many lengths: one has hardly any tokens, and one most.
pub(crate) fn replies(step: u64) -> Batch {
    let mut batch = batch(step);
    let mut more = batch.trajectories.clone();
    batch.trajectories.append(&mut more);
    for (at, trajectory) in batch.trajectories.iter_mut().enumerate() {
        let length = [1, 7, 2, 3, 12, 5, 1, 4][at];
        trajectory.response = (0..length)
            .map(|token| (token + step as u32) % 11)
            .collect();
        trajectory.log_probs = vec![-1.0; length as usize];
    }
    batch
}

pub(crate) async fn system() -> System {
    let worker = again::worker(module_path!());
    System::builder()
        .supervision(Supervision::one_for_one().budget(20, PATIENCE))
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap()
}

fn ranks(sharing: Sharing) -> Option<RanksPlan> {
    (sharing.ranks() > 1).then(|| RanksPlan {
        sharing,
        needs: odeon::Needs::new(),
        recovery: LadderPolicy::default(),
    })
}

async fn critic(
    system: &System,
    spec: &ComputeSpec,
    sharing: Sharing,
    folder: &Path,
) -> Ref<Critic> {
    let args = CriticArgs {
        engine: EngineSpec::Compute(Box::new(spec.clone())),
        ranks: ranks(sharing),
        name: "critic".to_owned(),
        checkpoint: folder.join("critic"),
    };
    system.spawn::<Critic>(args).isolated().await.unwrap()
}

/// Values before a step, and the loss of learning it.
async fn learnt(system: &System, critic: Ref<Critic>, step: u64) -> (Vec<Vec<f32>>, f64) {
    let batch = replies(step);
    let packed = PackedBatch::pack(&system.blobs(), &batch).unwrap();
    let values = critic
        .ask(Values(packed.clone()))
        .timeout(PATIENCE)
        .await
        .unwrap();
    let values = values.unwrap().unpack().await.unwrap();
    let returns = batch.trajectories.iter().enumerate().map(|(at, it)| {
        let token = |token| (at as f32 - 3.0) / (step as f32 + token as f32);
        (0..it.response.len()).map(token).collect::<Vec<f32>>()
    });
    let learn = Learn {
        batch: packed,
        returns: Packed::pack(&system.blobs(), &returns.collect::<Vec<_>>()).unwrap(),
    };
    let loss = critic.ask(learn).timeout(PATIENCE).await.unwrap();
    (values, loss.unwrap())
}

pub(crate) fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-4 * one.abs().max(1e-2)
}

fn same(plan: &str, one: &[Vec<f32>], other: &[Vec<f32>]) {
    let lengths = |all: &[Vec<f32>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(one), lengths(other), "{plan}");
    for (one, other) in one.iter().flatten().zip(other.iter().flatten()) {
        assert!(
            close(f64::from(*one), f64::from(*other)),
            "{plan}: {one} {other}"
        );
    }
}

async fn logprobs(
    system: &System,
    spec: &ComputeSpec,
    sharing: Sharing,
    folder: &Path,
) -> Vec<Vec<f32>> {
    let args = ReferenceArgs {
        engine: EngineSpec::Compute(Box::new(spec.clone())),
        ranks: ranks(sharing),
        folder: folder.to_owned(),
    };
    let reference = system.spawn::<Reference>(args).isolated().await.unwrap();
    let packed = PackedBatch::pack(&system.blobs(), &replies(1)).unwrap();
    let told = reference
        .ask(LogProbs(packed))
        .timeout(PATIENCE)
        .await
        .unwrap();
    let told = told.unwrap().unpack().await.unwrap();
    reference.stop().await.unwrap();
    told
}

/// SEMANTICS 141.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_of_a_reference_and_of_a_critic_say_and_learn_what_one_does() {
    for experts in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path(), experts);
        let system = system().await;
        let said = logprobs(&system, &spec, Sharing::ALONE, folder.path()).await;
        let alone = critic(&system, &spec, Sharing::ALONE, &folder.path().join("alone")).await;
        let mut expected = vec![];
        for step in 1..=3 {
            expected.push(learnt(&system, alone, step).await);
        }
        let mut all = plans();
        if experts {
            all = vec![
                (
                    "ep2",
                    Sharing {
                        experts: 2,
                        ..Sharing::ALONE
                    },
                ),
                (
                    "ep2 x fsdp2",
                    Sharing {
                        copies: 2,
                        experts: 2,
                        zero: ZeroStage::Parameters,
                        ..Sharing::ALONE
                    },
                ),
                (
                    "pp2 x ep2 x cp2",
                    Sharing {
                        experts: 2,
                        context: 2,
                        stages: 2,
                        ..Sharing::ALONE
                    },
                ),
            ];
        }
        for (plan, sharing) in all {
            same(
                plan,
                &said,
                &logprobs(&system, &spec, sharing, folder.path()).await,
            );
            let folder = folder.path().join(plan);
            let critic = critic(&system, &spec, sharing, &folder).await;
            for (step, (values, loss)) in (1..).zip(&expected) {
                let learnt = learnt(&system, critic, step).await;
                same(plan, values, &learnt.0);
                assert!(
                    close(*loss, learnt.1),
                    "{plan}, step {step}: {loss} {}",
                    learnt.1
                );
            }
            critic.stop().await.unwrap();
        }
        system.shutdown().await;
    }
}

/// SEMANTICS 141.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critic_goes_on_from_a_checkpoint_of_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path(), false);
    let system = system().await;
    let alone = critic(&system, &spec, Sharing::ALONE, &folder.path().join("alone")).await;
    let mut expected = vec![];
    for step in 1..=4 {
        expected.push(learnt(&system, alone, step).await);
    }
    let of = Sharing::ALONE;
    let plans = [
        Sharing {
            copies: 2,
            zero: ZeroStage::Parameters,
            ..of
        },
        Sharing { tensor: 2, ..of },
        of,
        Sharing {
            stages: 2,
            copies: 2,
            ..of
        },
    ];
    for (step, (values, loss)) in (1..).zip(&expected) {
        let sharing = plans[step as usize - 1];
        let critic = critic(&system, &spec, sharing, folder.path()).await;
        let learnt = learnt(&system, critic, step).await;
        same(&format!("step {step}"), values, &learnt.0);
        assert!(close(*loss, learnt.1), "step {step}: {loss} {}", learnt.1);
        let saved = critic
            .ask(SaveCritic(step))
            .timeout(PATIENCE)
            .await
            .unwrap();
        saved.unwrap();
        critic.stop().await.unwrap();
    }
    system.shutdown().await;
}

const STEPS: u64 = 4;

/// A run with all roles that learn or rate.
fn run_plan(folder: &Path, sharing: Sharing) -> RunPlan {
    let spec = ComputeSpec {
        minibatches: 2,
        pretrain: 0.1,
        ..spec(folder, false)
    };
    let engine = EngineSpec::Compute(Box::new(spec.clone()));
    RunPlan {
        store: StoreArgs {
            task: spec.task.clone(),
            seed: 7,
            tokenizer: spec.tokenizer.clone(),
            ledger: LedgerConfig::new(4, 2, 0),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing,
        recovery: LadderPolicy::default(),
        rollouts: 1,
        relays: 1,
        forms: Forms::Full,
        swap: Swap::Overlap,
        tell_every: Duration::from_secs(1),
        repack: None,
        processes: Processes::Own,
        needs: RoleNeeds::default(),
        reference: true,
        programs: spec.programs.clone(),
        environment: None,
        learned: None,
        harm: None,
        train: TrainPlan {
            warmup: spec.warmup_steps,
            steps: STEPS,
            value_steps: 0,
            checkpoint_every: 1,
            publish_every: 1,
            checkpoint: folder.join("checkpoint"),
            eval_problems: 3,
            eval_every: 2,
            baseline: Baseline::Critic(Gae {
                gamma: 1.0,
                lambda: Lambda::Fixed(0.95),
                value_lambda: None,
            }),
            overlong: None,
            price: None,
        },
        watch: Watch::new(STEPS),
    }
}

/// Everything of a run that does not depend on who computes it, in numbers.
#[derive(Debug, Default)]
struct Told {
    numbers: Vec<f64>,
    batches: Vec<u32>,
    correct: BTreeMap<u64, u64>,
    /// Lives of the trainer after its first.
    resumed: u32,
    /// What is forbidden about its ranks at the last step.
    forbidden: Vec<(String, String)>,
}

/// A person forbids something about the ranks of the trainer.
async fn forbid(system: &System) {
    let desk = desk_name("trainer");
    let desk = system.lookup::<RecoveryDesk>(&desk).await.unwrap();
    let order = OrderRecovery {
        order: RecoveryOrder::Forbid("evict_node".to_owned()),
        by: "ann".to_owned(),
        why: String::new(),
    };
    let ordered = system.scope(desk.ask(order).into_future()).await;
    ordered.unwrap().unwrap();
}

async fn forbidden(system: &System) -> Vec<(String, String)> {
    let desk = desk_name("trainer");
    let desk = system.lookup::<RecoveryDesk>(&desk).await.unwrap();
    let shown = system
        .scope(desk.ask(ShowRecovery).into_future())
        .await
        .unwrap();
    let all = shown.forbidden.into_iter();
    all.map(|(action, by, _)| (action, by)).collect()
}

/// The process that is killed, or stopped, when the second step is told.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// That of a role.
    Role(&'static str),
    /// That of a rank, by its number among all: of the critic, the reference and the trainer.
    Rank(usize),
    /// The same, which is stopped: who supervises it has to end it.
    Stopped(usize),
}

fn lose(system: &System, run: &Run, lost: Lost) {
    let of_roles: BTreeMap<String, ProcessId> = run
        .roles()
        .filter_map(|(role, _, process)| Some((role, process?)))
        .collect();
    let process = match lost {
        Lost::Role(role) => of_roles[role],
        Lost::Rank(rank) | Lost::Stopped(rank) => {
            let workers = system.admin().workers();
            let mut ranks: Vec<ProcessId> =
                workers.into_iter().map(|(process, _)| process).collect();
            ranks.retain(|process| of_roles.values().all(|of_role| of_role != process));
            ranks.sort();
            ranks[rank]
        }
    };
    if matches!(lost, Lost::Stopped(_)) {
        let workers = system.admin().workers();
        let (_, pid) = workers.into_iter().find(|it| it.0 == process).unwrap();
        let pid = Pid::from_raw(pid as i32).unwrap();
        return kill_process(pid, Signal::STOP).unwrap();
    }
    assert!(system.admin().kill_worker(process), "{lost:?}");
}

/// Runs to the end.
async fn told(sharing: Sharing, lost: Option<Lost>) -> Told {
    let folder = tempfile::tempdir().unwrap();
    let system = system().await;
    let mut plan = run_plan(folder.path(), sharing);
    if matches!(lost, Some(Lost::Stopped(_))) {
        plan.recovery.patience = Duration::from_secs(3);
    }
    let mut run = Run::start(&system, plan).await.unwrap();
    let (mut told, mut workers) = (Told::default(), 0);
    let mut steps = BTreeSet::new();
    let following = async {
        loop {
            match run.reports.recv().await.expect("the monitor lives") {
                Report::Warmup { step, stats } if steps.is_empty() => {
                    told.numbers
                        .extend([step as f64, stats.loss, stats.grad_norm]);
                }
                Report::Step(step) => {
                    // One that is made again is the same.
                    if !steps.insert(step.version) {
                        continue;
                    }
                    let stats = &step.stats;
                    told.numbers
                        .extend([stats.loss, stats.grad_norm, stats.entropy]);
                    told.numbers
                        .extend([stats.approximate_kl, stats.tokens as f64]);
                    told.numbers.extend(step.critic_loss);
                    told.batches.push(step.batch_checksum);
                    if step.version == 2
                        && let Some(lost) = lost
                    {
                        forbid(&system).await;
                        workers = system.admin().workers().len();
                        lose(&system, &run, lost);
                    } else if step.version == STEPS && lost.is_some() {
                        told.forbidden = forbidden(&system).await;
                    }
                }
                Report::Evaluated { version, stats } => {
                    told.correct.insert(version, stats.correct);
                }
                Report::Resumed { .. } => told.resumed += 1,
                Report::Finished(_) => break,
                _ => {}
            }
        }
        // Nobody is left of lives that are over.
        while lost.is_some() && system.admin().workers().len() != workers {
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let followed = Clock::timeout(PATIENCE, following).await;
    let now = system.admin().workers();
    assert!(
        followed.is_some(),
        "the run ends, with as many processes as before: {told:?}, {workers} processes before, and {now:?}"
    );
    system.shutdown().await;
    told
}

fn check(plan: &str, one: &Told, other: &Told) {
    assert_eq!(one.batches, other.batches, "{plan}");
    assert_eq!(one.correct, other.correct, "{plan}");
    assert_eq!(one.numbers.len(), other.numbers.len(), "{plan}");
    for (at, (one, other)) in one.numbers.iter().zip(&other.numbers).enumerate() {
        assert!(close(*one, *other), "{plan}, number {at}: {one} {other}");
    }
}

/// SEMANTICS 141.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_models_ranks_share_makes_the_steps_of_one() {
    let alone = told(Sharing::ALONE, None).await;
    let some = [
        "zero1",
        "fsdp2",
        "tp2",
        "ring of 2",
        "pp2 of three layers and one",
    ];
    for (plan, sharing) in plans().into_iter().filter(|(plan, _)| some.contains(plan)) {
        check(plan, &alone, &told(sharing, None).await);
    }
}

/// SEMANTICS 141, 178, 198. What a person forbids holds as long as the process of the role does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_with_the_same_numbers_whichever_rank_is_lost() {
    let sharing = Sharing {
        tensor: 2,
        ..Sharing::ALONE
    };
    let undisturbed = told(sharing, None).await;
    for lost in [
        Lost::Role("trainer"),
        Lost::Rank(0),
        Lost::Rank(3),
        Lost::Rank(5),
        Lost::Stopped(5),
    ] {
        let told = told(sharing, Some(lost)).await;
        assert_eq!(told.numbers, undisturbed.numbers, "{lost:?}");
        let forbidden = match lost {
            Lost::Role(_) => vec![],
            _ => vec![("evict_node".to_owned(), "ann".to_owned())],
        };
        assert_eq!(told.forbidden, forbidden, "{lost:?}");
        check(&format!("{lost:?}"), &undisturbed, &told);
    }
}
