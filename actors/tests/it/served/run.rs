//! Whole runs whose replies servers make.

use std::path::Path;
use std::time::Duration;

use odeon::{Clock, Limits, System, WorkerMode};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::served::{Dialect, ServedSpec};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::report::{Report, StepReport};
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::StoreArgs;
use odeon_actors::rl::trainer::TrainPlan;
use odeon_algorithms::objective::Baseline;
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;

use super::server::{Fault, Server, Setup};
use super::{BOTH, CONTEXT, compute, config, patience};

const STEPS: u64 = 3;

/// A synchronous run of two rollouts, which compute or have these servers.
fn plan(folder: &Path, servers: Option<(Dialect, &[Server; 2])>, swap: Swap) -> RunPlan {
    let mut spec = compute(&folder.join("base"));
    // Rewards differ with it: a model of this size is never right.
    spec.task = TaskSpec::Sums(SumsConfig {
        format_reward: 0.5,
        ..SumsConfig::default()
    });
    spec.lr = 1e-2;
    spec.sampling.response_max = 4;
    let rollout_engine = match servers {
        None => EngineSpec::Compute(Box::new(spec.clone())),
        Some((dialect, servers)) => EngineSpec::Served(Box::new(ServedSpec {
            dialect,
            urls: servers.iter().map(Server::url).collect(),
            api_key_env: None,
            weights_dir: folder.join("weights"),
            patience: patience(),
            compute: spec.clone(),
        })),
    };
    RunPlan {
        store: StoreArgs {
            task: spec.task.clone(),
            seed: 7,
            tokenizer: spec.tokenizer.clone(),
            ledger: LedgerConfig::new(4, 4, 0),
        },
        rollout_engine,
        trainer_engine: EngineSpec::Compute(Box::new(spec)),
        programs: ProgramSpec::default(),
        sharing: odeon_algorithms::train::Sharing::ALONE,
        recovery: LadderPolicy::default(),
        rollouts: 2,
        relays: 1,
        forms: Forms::Full,
        swap,
        tell_every: Duration::from_secs(1),
        repack: None,
        processes: Processes::Own,
        needs: RoleNeeds::default(),
        reference: false,
        environment: None,
        learned: None,
        harm: None,
        train: TrainPlan {
            warmup: 2,
            steps: STEPS,
            value_steps: 0,
            checkpoint_every: 1_000,
            publish_every: 1,
            checkpoint: folder.join("checkpoint"),
            eval_problems: 1,
            eval_every: 0,
            baseline: Baseline::LeaveOneOut,
            overlong: None,
            price: None,
        },
        watch: Watch::new(STEPS),
    }
}

async fn steps_of(plan: RunPlan) -> Vec<StepReport> {
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(100);
    let system = System::builder()
        .limits(limits)
        .job(odeon_actors::rl::job())
        .workers(WorkerMode::InProcess)
        .start()
        .await
        .unwrap();
    let mut run = Run::start(&system, plan).await.unwrap();
    let mut steps = vec![];
    let following = async {
        while let Some(report) = run.reports.recv().await {
            match report {
                Report::Step(step) => steps.push(step),
                Report::Finished(_) => break,
                _ => {}
            }
        }
    };
    let ended = Clock::timeout(Duration::from_secs(120), following).await;
    ended.expect("the run ends");
    system.shutdown().await;
    steps
}

/// SEMANTICS 83.
/// Tokens, rewards and losses are those of rollouts that compute, step by step: so each step was
/// sampled with the weights of the one before, and its log-probabilities are the trainer's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_with_servers_makes_the_steps_of_one_that_generates_itself() {
    let own = tempfile::tempdir().unwrap();
    let want = steps_of(plan(own.path(), None, Swap::Drain)).await;
    assert_eq!(want.len() as u64, STEPS);
    for (dialect, swap) in BOTH.into_iter().zip([Swap::Drain, Swap::Interrupt]) {
        let folder = tempfile::tempdir().unwrap();
        let start = || Server::start(Setup::new(dialect, &config(), CONTEXT));
        let servers = [start(), start()];
        let got = steps_of(plan(folder.path(), Some((dialect, &servers)), swap)).await;
        for (got, want) in got.iter().zip(&want) {
            let told = |step: &StepReport| (step.batch_checksum, step.response_tokens, step.reward);
            assert_eq!(told(got), told(want), "{dialect}");
            let (got, want) = (&got.stats, &want.stats);
            assert!((got.loss - want.loss).abs() < 1e-4, "{got:?} {want:?}");
            assert!(got.approximate_kl.abs() < 1e-4, "{got:?}");
        }
        assert_eq!(got.len(), want.len());
        let updates = servers.iter().map(|it| it.counts().updates as u64);
        assert!(
            updates.sum::<u64>() >= STEPS,
            "whoever makes replies has the newest weights"
        );
    }
}

/// SEMANTICS 83.
/// What time does not mend ends a rollout in the middle of its replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replies_that_a_server_has_refused_are_made_all_the_same() {
    let own = tempfile::tempdir().unwrap();
    let want = steps_of(plan(own.path(), None, Swap::Drain)).await;
    let folder = tempfile::tempdir().unwrap();
    let start = || Server::start(Setup::new(Dialect::Vllm, &config(), CONTEXT));
    let servers = [start(), start()];
    servers[1].fail(&[Fault::Status(400)]);
    let plan = plan(folder.path(), Some((Dialect::Vllm, &servers)), Swap::Drain);
    let got = steps_of(plan).await;
    let told = |steps: &[StepReport]| -> Vec<_> {
        let told = steps.iter();
        told.map(|step| (step.batch_checksum, step.response_tokens))
            .collect()
    };
    assert_eq!(told(&got), told(&want));
    assert_eq!(got.len() as u64, STEPS);
}
