//! Runs of hybrid control with real models in real processes: where the models are changes nothing,
//! and neither does a rank that is killed.

use std::path::Path;
use std::time::Duration;

use odeon::{Clock, Failure, Needs, ProcessId, System, WorkerMode};
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
use odeon_algorithms::model::{ModelConfig, Recompute};
use odeon_algorithms::objective::{
    Baseline, Blend, Gae, GroupBaseline, Lagrangian, Lambda, PolicyObjective,
};
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::Schedule;
use odeon_algorithms::weights::StoredType;
use odeon_diagnosis::run::Watch;
use odeon_tests::again;
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

/// The steps that a run tells of; after `kill`'s step a process of it is killed.
async fn steps(
    plan: &HybridPlan,
    kill: Option<u64>,
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
    let mut left = kill;
    let following = async {
        while let Some(report) = told.recv().await {
            if let Report::Step(step) = report {
                if left == Some(step.version) {
                    left = None;
                    assert!(system.admin().kill_worker(victim(&system)));
                }
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

/// A process of the run.
fn victim(system: &System) -> ProcessId {
    let workers = system.admin().workers();
    workers.last().expect("models have processes").0
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
            let steps = timeless(steps(&with(folder.path()), Some(at), None).await.unwrap());
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
