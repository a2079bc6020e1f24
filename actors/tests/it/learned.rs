//! Rewards that are learnt: a model that judges replies beside the checker, in a process of its own,
//! and what shows when it is followed for too long.

use std::path::Path;
use std::time::Duration;

use odeon::{Clock, System, WorkerMode};
use odeon_actors::engine::compute::{
    ComputeSpec, Device, ModelSource, Precision, Sampling, policy_optimizer,
};
use odeon_actors::engine::scripted::Script;
use odeon_actors::engine::{EngineSpec, Learnt, RewardKind, RewardModelSpec};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::report::{Report, StepReport};
use odeon_actors::rl::reward_model::LearnedReward;
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::{Count, StoreArgs, Take, Taken};
use odeon_actors::rl::trainer::TrainPlan;
use odeon_algorithms::model::{ModelConfig, Recompute};
use odeon_algorithms::objective::{Baseline, Blend, GroupBaseline, PolicyObjective};
use odeon_algorithms::task::{Split, SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Schedule, Sharing};
use odeon_algorithms::weights::StoredType;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use odeon_tests::again;

#[test]
fn worker_entry() {
    odeon_actors::rl::job().serve_if_worker();
}

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Sums of one digit each.
fn sums(operands_max: usize) -> TaskSpec {
    TaskSpec::Sums(SumsConfig {
        operands_max,
        digits_max: 1,
        ..SumsConfig::default()
    })
}

fn spec(folder: &Path, task: TaskSpec, warmup_steps: u64) -> ComputeSpec {
    let tokenizer = Tokenizer::arithmetic();
    let model = ModelConfig {
        vocab: tokenizer.vocabulary(),
        dim: 64,
        layers: 2,
        head_dim: 16,
        ffn: 172,
        ..ModelConfig::default()
    };
    ComputeSpec {
        source: ModelSource::Fresh(Box::new(model)),
        tokenizer,
        task,
        environment: None,
        programs: ProgramSpec::default(),
        seed: 5,
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        context: 32,
        lora_rank: 0,
        warmup_batch: 32,
        warmup_steps,
        warmup_lr: 3e-3,
        lr: 1e-3,
        schedule: Schedule::Constant,
        optimizer: policy_optimizer(),
        recompute: Recompute::Nothing,
        offload: false,
        critic_lr: 1e-3,
        epochs: 1,
        minibatches: 1,
        pretrain: 0.0,
        objective: PolicyObjective::default(),
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            response_max: 4,
        },
        weights: StoredType::F32,
        slots: 64,
        base: folder.join("base"),
        share: None,
    }
}

fn learned(folder: &Path, kind: RewardKind, steps: u64, model: f32) -> LearnedReward {
    LearnedReward {
        model: RewardModelSpec {
            kind,
            steps,
            batch: 32,
            lr: 3e-3,
            load: None,
            folder: folder.join("reward-model"),
        },
        blend: Blend { model },
    }
}

fn plan(
    folder: &Path,
    engine: EngineSpec,
    task: TaskSpec,
    (warmup, steps): (u64, u64),
    learned: LearnedReward,
) -> RunPlan {
    RunPlan {
        store: StoreArgs {
            task,
            seed: 5,
            tokenizer: Tokenizer::arithmetic(),
            ledger: LedgerConfig::new(8, 16, 1),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing: Sharing::ALONE,
        recovery: LadderPolicy::default(),
        rollouts: 1,
        relays: 1,
        forms: Forms::Full,
        swap: Swap::Overlap,
        tell_every: Duration::from_secs(1),
        repack: None,
        processes: Processes::Own,
        needs: RoleNeeds::default(),
        reference: false,
        programs: ProgramSpec::default(),
        environment: None,
        learned: Some(learned),
        harm: None,
        train: TrainPlan {
            warmup,
            steps,
            value_steps: 0,
            checkpoint_every: steps,
            publish_every: 1,
            checkpoint: folder.join("checkpoint"),
            eval_problems: 50,
            eval_every: 0,
            baseline: Baseline::Group(GroupBaseline::default()),
            overlong: None,
            price: None,
        },
        watch: Watch::new(steps),
    }
}

fn computed(folder: &Path, task: TaskSpec, steps: (u64, u64), learned: LearnedReward) -> RunPlan {
    let spec = spec(folder, task.clone(), steps.0);
    let engine = EngineSpec::Compute(Box::new(spec));
    plan(folder, engine, task, steps, learned)
}

async fn system() -> System {
    let worker = again::worker(module_path!());
    let system = System::builder().workers(WorkerMode::Processes(worker));
    system.start().await.unwrap()
}

/// The reports that a run told.
#[derive(Debug, Default)]
struct Told {
    learnt: Vec<Learnt>,
    steps: Vec<StepReport>,
    findings: Vec<(u64, String)>,
}

impl Told {
    fn hear(&mut self, report: Report) {
        match report {
            Report::RewardModel(learnt) => self.learnt.push(learnt),
            Report::Step(step) => self.steps.push(step),
            Report::Finding { version, rule, .. } => self.findings.push((version, rule)),
            _ => {}
        }
    }

    /// Means of the first and of the last steps.
    fn means(&self, of: fn(&StepReport) -> f64) -> (f64, f64) {
        let mean = |steps: &[StepReport]| steps.iter().map(of).sum::<f64>() / steps.len() as f64;
        let (first, last) = (&self.steps[..5], &self.steps[self.steps.len() - 5..]);
        (mean(first), mean(last))
    }
}

/// Runs to the end. After the step `kill` the process of the reward model is killed.
async fn run(plan: RunPlan, kill: Option<u64>) -> Told {
    let system = system().await;
    let mut run = Run::start(&system, plan).await.unwrap();
    let mut told = Told::default();
    let mut left = kill;
    let following = async {
        loop {
            let report = run.reports.recv().await.expect("the monitor lives");
            if matches!(report, Report::Finished(_)) {
                break;
            }
            if let Report::Step(step) = &report
                && left.is_some_and(|at| step.version >= at)
            {
                left = None;
                let role = run.roles().find(|(role, ..)| role == "reward-model");
                let (_, _, process) = role.expect("it has a process of its own");
                assert_ne!(process, Some(system.process()));
                assert!(system.admin().kill_worker(process.expect("it runs")));
            }
            told.hear(report);
        }
    };
    let followed = Clock::timeout(PATIENCE, following).await;
    followed.expect("the run ends");
    assert_eq!(left, None, "it was killed");
    system.shutdown().await;
    told
}

/// SEMANTICS 91.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reward_model_learns_and_is_followed_also_when_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let learned = learned(folder.path(), RewardKind::Scalar, 300, 1.0);
    let told = run(
        computed(folder.path(), sums(2), (100, 40), learned),
        Some(10),
    )
    .await;
    let first = told.learnt[0];
    assert_eq!((first.kind, first.steps), (RewardKind::Scalar, 300));
    // One that has learnt nothing has a loss of ln 2. How much of it holds for other problems differs from
    // seed to seed, in so small a model.
    assert!(first.loss < 0.65, "{first:?}");
    // The next life has read what the one before had learnt.
    assert_eq!(told.learnt, [first, first]);
    let reward = told.means(|it| it.reward);
    assert!(reward.1 > reward.0 + 0.02, "{reward:?}");
    // What is right is the checker's word, whoever says what is trained on.
    let counted = |step: &StepReport| (128.0 * step.accuracy).fract() == 0.0;
    assert!(
        told.steps
            .iter()
            .all(|it| counted(it) && it.reward != it.accuracy)
    );
}

/// A model that has learnt a little knows a wrong reply of the policy as it was, and not of the policy
/// that follows it: that makes replies which the model likes and which are wrong. SEMANTICS 92.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reward_that_is_followed_too_far_is_hacked_and_that_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let learned = learned(folder.path(), RewardKind::Pairwise, 200, 1.0);
    let told = run(computed(folder.path(), sums(3), (100, 120), learned), None).await;
    let (reward, right) = (told.means(|it| it.reward), told.means(|it| it.accuracy));
    assert!(reward.1 > reward.0 + 0.05, "{reward:?}");
    assert!(right.1 < right.0 + 0.05, "{right:?}");
    let hacked = |(_, sign): &(u64, String)| sign == "reward_hacking";
    assert!(told.findings.iter().any(hacked), "{told:?}");
}

/// SEMANTICS 91.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_reply_earns_what_both_say_also_when_the_model_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script {
        train: Duration::from_millis(3),
        token: Duration::from_micros(200),
        response: 1,
        slots: 8,
        stuck_after: None,
        hold: None,
        replies: (0..40).map(|n| vec![3 + n % 10]).collect(),
        pauses_at: None,
        journal: None,
    };
    let engine = EngineSpec::Scripted(script);
    let learned = learned(folder.path(), RewardKind::Scalar, 1, 0.25);
    let mut rates = engine.reward_model(&learned.model).unwrap();
    let task = sums(2).build().unwrap();
    let tokenizer = Tokenizer::arithmetic();
    // No batch is given up: none of these steps is the last, or has a checkpoint.
    let plan = plan(folder.path(), engine, sums(2), (10, 1_000_000), learned);
    let system = system().await;
    let mut run = Run::start(&system, plan).await.unwrap();
    let (mut checked, mut right, mut killed) = (0, 0, false);
    let following = async {
        loop {
            let report = run.reports.recv().await.expect("the monitor lives");
            let Report::Step(step) = report else {
                continue;
            };
            if step.version > 20 {
                break;
            }
            if step.version >= 5 && !killed {
                killed = true;
                let role = run.roles().find(|(role, ..)| role == "reward-model");
                assert!(
                    system
                        .admin()
                        .kill_worker(role.unwrap().2.expect("it runs"))
                );
            }
            let take = Take {
                step: step.version,
                consumer: run.trainer.narrow(),
            };
            let taken = run.store.ask(take).await.unwrap().unwrap();
            let Taken::Batch(packed) = taken else {
                panic!("it is kept: {taken:?}");
            };
            let batch = packed.unpack().await.unwrap();
            for reply in &batch.trajectories {
                let rate = rates.rate(std::slice::from_ref(reply)).unwrap()[0];
                let problem = task.problem(5, Split::Train, reply.problem);
                let text = tokenizer.decode(&reply.response).unwrap();
                let verdict = task.reward(&problem, &text);
                assert_eq!(reply.correct, verdict.correct);
                let both = 0.75 * verdict.reward as f32 + 0.25 * rate;
                assert_eq!(reply.reward, both, "{reply:?}");
                checked += 1;
                right += usize::from(reply.correct);
            }
        }
    };
    let followed = Clock::timeout(PATIENCE, following).await;
    followed.expect("the run ends");
    assert!(killed);
    assert_eq!(checked, 20 * 16 * 8);
    assert!(right > 0 && right < checked, "{right} of {checked}");
    assert_eq!(run.store.ask(Count).await.unwrap().duplicates, 0);
    system.shutdown().await;
}
