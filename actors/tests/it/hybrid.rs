//! Runs of hybrid control with real models in real processes: where the models are changes nothing,
//! and neither does a rank that is killed.

use std::path::Path;
use std::time::Duration;

use odeon::telemetry::Labels;
use odeon::{Clock, Failure, Needs, System, WorkerMode};
use odeon_actors::engine::compute::{
    ComputeSpec, Device, ModelSource, Precision, Sampling, policy_optimizer,
};
use odeon_actors::engine::{RewardKind, RewardModelSpec};
use odeon_actors::hybrid::workers::JudgeArgs;
use odeon_actors::hybrid::{Arrangement, Desk, HybridPlan, Placement, Program};
use odeon_actors::rl::cost::Harm;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::report::{Report, StepReport};
use odeon_actors::rl::reward_model::LearnedReward;
use odeon_actors::rl::trainer::TrainPlan;
use odeon_algorithms::model::{LayerBlock, ModelConfig, Moe, Recompute};
use odeon_algorithms::objective::{
    Baseline, Blend, Gae, GroupBaseline, Lagrangian, Lambda, PolicyObjective,
};
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Schedule, Sharing, ZeroStage};
use odeon_algorithms::weights::StoredType;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use odeon_tests::again;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{mpsc, watch};

#[test]
fn worker_entry() {
    odeon_actors::hybrid::job().serve_if_worker();
}

const STEPS: u64 = 4;

fn plan(folder: &Path, program: Program, ranks: usize) -> HybridPlan {
    let tokenizer = Tokenizer::arithmetic();
    let task = TaskSpec::Sums(SumsConfig {
        operands_max: 2,
        digits_max: 1,
        ..SumsConfig::default()
    });
    let model = ModelConfig {
        vocab: tokenizer.vocabulary(),
        dim: 32,
        layers: 1,
        head_dim: 16,
        ffn: 64,
        ..ModelConfig::default()
    };
    let critic = Baseline::Critic(Gae {
        gamma: 1.0,
        lambda: Lambda::Fixed(0.95),
        value_lambda: None,
    });
    HybridPlan {
        spec: ComputeSpec {
            source: ModelSource::Fresh(Box::new(model)),
            tokenizer: tokenizer.clone(),
            task: task.clone(),
            programs: ProgramSpec::default(),
            environment: None,
            seed: 5,
            device: Device::Cpu,
            threads: 1,
            deterministic: false,
            products: Precision::F32,
            context: 24,
            lora_rank: 0,
            warmup_batch: 32,
            warmup_steps: 120,
            warmup_lr: 3e-3,
            lr: 8e-4,
            schedule: Schedule::Constant,
            optimizer: policy_optimizer(),
            recompute: Recompute::Nothing,
            offload: false,
            critic_lr: 1e-3,
            epochs: 1,
            minibatches: 2,
            pretrain: 0.0,
            objective: PolicyObjective::default(),
            sampling: Sampling {
                temperature: 1.0,
                top_p: 1.0,
                response_max: 4,
            },
            weights: StoredType::F32,
            slots: 8,
            base: folder.join("base"),
            share: None,
        },
        judge: JudgeArgs {
            task,
            programs: ProgramSpec::default(),
            seed: 5,
            tokenizer,
            harm: (program == Program::SafeRlhf).then_some(Harm::Length(4)),
            learned: None,
        },
        program,
        groups: 4,
        group_size: 5,
        placement: Arrangement::Colocated.into(),
        ranks,
        sharing: Sharing::ALONE,
        recovery: LadderPolicy::default(),
        needs: (Needs::new(), Needs::new()),
        reference: true,
        train: TrainPlan {
            warmup: 120,
            steps: STEPS,
            value_steps: 0,
            checkpoint_every: 2,
            publish_every: 1,
            checkpoint: folder.join("checkpoint"),
            eval_problems: 10,
            eval_every: 0,
            baseline: match program {
                Program::Ppo | Program::SafeRlhf => critic,
                Program::Remax => Baseline::Greedy,
                Program::Grpo | Program::Dapo { .. } => Baseline::Group(GroupBaseline::default()),
            },
            overlong: None,
            price: (program == Program::SafeRlhf).then_some(Lagrangian {
                multiplier: 0.5,
                limit: 0.5,
                rate: 0.1,
            }),
        },
        watch: Watch::new(STEPS),
    }
}

async fn system() -> System {
    let worker = again::worker(module_path!());
    let system = System::builder().workers(WorkerMode::Processes(worker));
    system.start().await.unwrap()
}

/// The step after which a process is killed, or stopped: who supervises it has to end it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Killed(u64),
    Stopped(u64),
}

/// The steps that a run tells of, which loses a process after one of them.
async fn steps(
    plan: &HybridPlan,
    lost: Option<Lost>,
    stop: Option<u64>,
) -> Result<Vec<StepReport>, Failure> {
    let system = system().await;
    let (reports, mut told) = mpsc::unbounded_channel();
    let (halt, halted) = watch::channel(false);
    let desk = Desk {
        reports,
        members: watch::channel(vec![]).0,
        halt: halted,
    };
    let run = odeon_actors::hybrid::run(&system, plan, desk);
    let mut steps = vec![];
    let mut left = lost;
    let following = async {
        while let Some(report) = told.recv().await {
            if let Report::Step(step) = report {
                left = left.filter(|lost| !lose(&system, *lost, step.version));
                if stop == Some(step.version) {
                    halt.send_replace(true);
                }
                steps.push(step);
            }
        }
    };
    let both = async { tokio::join!(run, following).0 };
    let ended = Clock::timeout(Duration::from_secs(300), both).await;
    let ended = ended.expect("the run ends");
    system.shutdown().await;
    ended?;
    assert_eq!(left, None, "it was killed");
    Ok(steps)
}

/// Takes a process from the run behind its step; answers whether it has.
fn lose(system: &System, lost: Lost, step: u64) -> bool {
    let workers = system.admin().workers();
    let (process, pid) = *workers.last().expect("models have processes");
    match lost {
        Lost::Killed(at) if at == step => system.admin().kill_worker(process),
        Lost::Stopped(at) if at == step => {
            let pid = Pid::from_raw(pid as i32).expect("it has a number");
            kill_process(pid, Signal::STOP).is_ok()
        }
        _ => false,
    }
}

/// The part that must not change: all but times.
fn timeless(steps: Vec<StepReport>) -> Vec<StepReport> {
    let timeless = |step| StepReport {
        seconds: 0.0,
        ..step
    };
    steps.into_iter().map(timeless).collect()
}

/// SEMANTICS 86.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_makes_the_same_steps_colocated_split_and_standalone() {
    for program in [Program::Ppo, Program::SafeRlhf, Program::Remax] {
        let mut runs = vec![];
        for arrangement in [
            Arrangement::Colocated,
            Arrangement::Split,
            Arrangement::Standalone,
        ] {
            let folder = tempfile::tempdir().unwrap();
            let plan = HybridPlan {
                placement: arrangement.into(),
                ..plan(folder.path(), program, 2)
            };
            runs.push(timeless(steps(&plan, None, None).await.unwrap()));
        }
        assert_eq!(runs[0].len() as u64, STEPS);
        let learns = |step: &StepReport| step.stats.grad_norm > 0.0;
        assert!(runs[0].iter().all(learns), "{program:?}: {:?}", runs[0]);
        assert_eq!(runs[0], runs[1], "{program:?}: split");
        assert_eq!(runs[0], runs[2], "{program:?}: standalone");
    }
}

/// SEMANTICS 87.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_train_together_train_as_one() {
    for program in [Program::Grpo, Program::Ppo] {
        let mut runs = vec![];
        let apart = Placement::from(Arrangement::Standalone).ranks("critic", 1);
        let apart = apart.ranks("reference", 3);
        for (ranks, placement) in [
            (1, Arrangement::Colocated.into()),
            (3, Arrangement::Colocated.into()),
            (2, apart),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut plan = plan(folder.path(), program, ranks);
            plan.placement = placement;
            // With several, other rows are in each.
            plan.spec.minibatches = 1;
            runs.push(steps(&plan, None, None).await.unwrap());
        }
        // The first step has the same replies; its loss and gradient are the same to rounding.
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * a.abs().max(1e-2);
        let one = &runs[0][0];
        for several in runs[1..].iter().map(|steps| &steps[0]) {
            assert_eq!(one.batch_checksum, several.batch_checksum);
            assert!(
                near(one.stats.loss, several.stats.loss),
                "{one:?} {several:?}"
            );
            assert!(
                near(one.stats.grad_norm, several.stats.grad_norm),
                "{one:?} {several:?}"
            );
            assert!(
                near(one.stats.entropy, several.stats.entropy),
                "{one:?} {several:?}"
            );
            assert_eq!(one.stats.tokens, several.stats.tokens);
            assert!(one.stats.grad_norm > 0.0, "it learns");
            match (one.critic_loss, several.critic_loss) {
                (Some(one), Some(several)) => assert!(near(one, several), "{one} {several}"),
                (None, None) => assert_eq!(program, Program::Grpo),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// SEMANTICS 88.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_loses_a_rank_goes_on_and_makes_the_same_steps() {
    for (program, arrangement) in [
        (Program::Ppo, Arrangement::Standalone),
        (Program::Dapo { refill: 3 }, Arrangement::Colocated),
    ] {
        let with = |folder: &Path| HybridPlan {
            placement: arrangement.into(),
            ..plan(folder, program, 2)
        };
        let folder = tempfile::tempdir().unwrap();
        let calm = timeless(steps(&with(folder.path()), None, None).await.unwrap());
        for at in [1, 2, 3] {
            let folder = tempfile::tempdir().unwrap();
            let lost = Some(Lost::Killed(at));
            let steps = timeless(steps(&with(folder.path()), lost, None).await.unwrap());
            for step in steps {
                assert_eq!(
                    step,
                    calm[step.version as usize - 1],
                    "killed after step {at}"
                );
            }
        }
    }
}

/// SEMANTICS 77.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placed_run_that_was_stopped_goes_on_where_it_was() {
    let calm = tempfile::tempdir().unwrap();
    let plan_of = |folder: &Path| plan(folder, Program::SafeRlhf, 2);
    let calm = timeless(steps(&plan_of(calm.path()), None, None).await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let before = steps(&plan_of(folder.path()), None, Some(1)).await.unwrap();
    assert!(before.len() < calm.len(), "it was stopped");
    let after = steps(&plan_of(folder.path()), None, None).await.unwrap();
    let whole = timeless([before, after].concat());
    assert_eq!(whole, calm);
}

/// SEMANTICS 91.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placed_judges_read_what_one_of_them_has_learnt() {
    let mut all = vec![];
    for arrangement in [Arrangement::Colocated, Arrangement::Standalone] {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(folder.path(), Program::Grpo, 2);
        let learned = LearnedReward {
            model: RewardModelSpec {
                kind: RewardKind::Pairwise,
                steps: 20,
                batch: 16,
                lr: 3e-3,
                load: None,
                folder: folder.path().join("reward-model"),
            },
            blend: Blend { model: 0.5 },
        };
        plan.judge.learned = Some((learned, Box::new(plan.spec.clone())));
        plan.placement = arrangement.into();
        let steps = timeless(steps(&plan, None, None).await.unwrap());
        assert_eq!(steps.len() as u64, STEPS);
        assert!(steps.iter().all(|step| step.reward != step.accuracy));
        all.push(steps);
    }
    assert_eq!(all[0], all[1], "wherever they are");
}

/// A plan whose models can be cut in all ways, shared by ranks like this.
fn shared(folder: &Path, program: Program, sharing: Sharing) -> HybridPlan {
    let mut plan = plan(folder, program, sharing.ranks());
    let ModelSource::Fresh(config) = &mut plan.spec.source else {
        unreachable!("it is new");
    };
    (
        config.layers,
        config.heads,
        config.kv_heads,
        config.head_dim,
    ) = (2, 4, 4, 8);
    if sharing.experts > 1 {
        config.block = LayerBlock::Moe(Moe {
            experts: 4,
            experts_per_token: 2,
        });
    }
    plan.train.warmup = 40;
    plan.spec.warmup_steps = 40;
    plan.sharing = sharing;
    plan
}

/// Ranks that share models, in all ways of which each has a part of its own in it.
const TP2: Sharing = Sharing {
    tensor: 2,
    ..Sharing::ALONE
};
const FSDP2: Sharing = Sharing {
    copies: 2,
    zero: ZeroStage::Parameters,
    ..Sharing::ALONE
};
const PP2: Sharing = Sharing {
    stages: 2,
    ..Sharing::ALONE
};
const DP2_TP2: Sharing = Sharing {
    copies: 2,
    tensor: 2,
    ..Sharing::ALONE
};
const EP2: Sharing = Sharing {
    experts: 2,
    ..Sharing::ALONE
};

/// Checks that steps are the same but for rounding.
fn same(plan: &str, one: &[StepReport], other: &[StepReport]) {
    assert_eq!(one.len(), other.len(), "{plan}");
    for (one, other) in one.iter().zip(other) {
        let numbers = |step: &StepReport| {
            let stats = &step.stats;
            let of_batch = [step.reward, step.accuracy, step.cost, step.response_mean];
            let of_step = [
                stats.loss,
                stats.grad_norm,
                stats.entropy,
                stats.approximate_kl,
            ];
            let critic = step.critic_loss.unwrap_or_default();
            [of_batch, of_step, [stats.tokens as f64, critic, 0.0, 0.0]].concat()
        };
        let near = |(a, b): (f64, f64)| (a - b).abs() <= 1e-4 * a.abs().max(1e-2);
        let both = numbers(one).into_iter().zip(numbers(other));
        assert!(both.clone().all(near), "{plan}: {one:?} {other:?}");
        assert!(one.stats.grad_norm > 0.0, "it learns");
    }
}

/// SEMANTICS 197.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_whose_models_ranks_share_makes_the_steps_of_one() {
    let colocated = Arrangement::Colocated;
    for (program, plans) in [
        (
            Program::SafeRlhf,
            vec![
                ("tp2", TP2, colocated),
                ("fsdp2", FSDP2, Arrangement::Split),
                ("pp2", PP2, Arrangement::Standalone),
                ("dp2 x tp2", DP2_TP2, colocated),
            ],
        ),
        (Program::Ppo, vec![("ep2", EP2, colocated)]),
    ] {
        let mut one = vec![];
        for (name, sharing, arrangement) in plans {
            let plan_of = |folder: &Path| HybridPlan {
                placement: arrangement.into(),
                ..shared(folder, program, sharing)
            };
            let of = async |change: &dyn Fn(&mut HybridPlan)| {
                let folder = tempfile::tempdir().unwrap();
                let mut plan = plan_of(folder.path());
                change(&mut plan);
                steps(&plan, None, None).await.unwrap()
            };
            if one.is_empty() {
                let alone =
                    |plan: &mut HybridPlan| (plan.ranks, plan.sharing) = (1, Sharing::ALONE);
                one = of(&alone).await;
                assert_eq!(one.len() as u64, STEPS);
            }
            same(name, &one, &of(&|_| {}).await);
        }
    }
}

/// SEMANTICS 222.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_share_a_placed_policy_tell_their_place_memory_and_steps() {
    let folder = tempfile::tempdir().unwrap();
    let plan = shared(folder.path(), Program::Grpo, TP2);
    let system = system().await;
    let (reports, mut told) = mpsc::unbounded_channel();
    let (_halting, halt) = watch::channel(false);
    let desk = Desk {
        reports,
        members: watch::channel(vec![]).0,
        halt,
    };
    let run = odeon_actors::hybrid::run(&system, &plan, desk);
    let mut seen = system.admin().watch();
    let mut points = vec![];
    let following = async {
        while let Some(report) = told.recv().await {
            // Both ranks have told of a step before it is told of.
            if matches!(&report, Report::Step(step) if step.version == 2) {
                let node = seen.look(Duration::from_secs(60)).await;
                assert_eq!(node.silent, []);
                let all = node.processes.into_iter();
                points.extend(all.flat_map(|process| process.sight.points));
            }
        }
    };
    let both = async { tokio::join!(run, following).0 };
    let ended = Clock::timeout(Duration::from_secs(300), both).await;
    ended.expect("the run ends").unwrap();
    system.shutdown().await;
    let label = |labels: &Labels, name: &str| {
        let label = labels.iter().find(|(it, _)| it == name);
        label.map(|(_, label)| label.to_string())
    };
    for rank in 0..2 {
        let of = |name: &str| {
            let own = points.iter().filter(|point| point.name == name);
            own.filter(|point| label(&point.labels, "rank") == Some(rank.to_string()))
                .collect::<Vec<_>>()
        };
        let place = of("train.rank");
        assert_eq!(
            label(&place[0].labels, "mesh").as_deref(),
            Some("{dp: 1, tp: 2}")
        );
        assert!(of("train.memory_bytes").len() >= 5, "{points:?}");
        // Supervised steps, and two of the reinforcement.
        let steps: Vec<_> = (1..=42).map(|step| Some(step.to_string())).collect();
        for name in ["train.stage_s", "train.exchange_s", "train.wait_s"] {
            let told = of(name)
                .into_iter()
                .map(|point| label(&point.labels, "step"));
            assert_eq!(told.collect::<Vec<_>>(), steps, "{name}");
        }
        assert!(of("train.stage_s").iter().all(|point| point.value > 0.0));
    }
}

/// SEMANTICS 197.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_goes_on_with_other_ranks_and_with_the_same_numbers_when_one_that_shares_is_lost()
{
    let calm = tempfile::tempdir().unwrap();
    let plan = |folder: &Path, sharing| shared(folder, Program::Ppo, sharing);
    let calm = timeless(steps(&plan(calm.path(), TP2), None, None).await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let lost = steps(&plan(folder.path(), TP2), Some(Lost::Killed(3)), None).await;
    for step in timeless(lost.unwrap()) {
        assert_eq!(step, calm[step.version as usize - 1]);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut stopped = plan(folder.path(), TP2);
    stopped.recovery.patience = Duration::from_secs(3);
    let stopped = steps(&stopped, Some(Lost::Stopped(1)), None).await;
    for step in timeless(stopped.unwrap()) {
        assert_eq!(step, calm[step.version as usize - 1]);
    }
    let folder = tempfile::tempdir().unwrap();
    let before = steps(&plan(folder.path(), FSDP2), None, Some(2)).await;
    let before = before.unwrap();
    let after = steps(&plan(folder.path(), TP2), None, None).await.unwrap();
    assert!(!after.is_empty(), "it was stopped");
    same("fsdp2, then tp2", &calm, &[before, after].concat());
}

/// SEMANTICS 197.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn judges_ask_ranks_that_share_what_was_learnt() {
    let mut all = vec![];
    for sharing in [Sharing::ALONE, TP2] {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = shared(folder.path(), Program::Grpo, sharing);
        let learned = LearnedReward {
            model: RewardModelSpec {
                kind: RewardKind::Scalar,
                steps: 20,
                batch: 16,
                lr: 3e-3,
                load: None,
                folder: folder.path().join("reward-model"),
            },
            blend: Blend { model: 0.5 },
        };
        plan.judge.learned = Some((learned, Box::new(plan.spec.clone())));
        let steps = steps(&plan, None, None).await.unwrap();
        assert!(steps.iter().all(|step| step.reward != step.accuracy));
        all.push(steps);
    }
    same("tp2", &all[0], &all[1]);
}
