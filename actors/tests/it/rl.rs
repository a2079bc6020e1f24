//! The reinforcement-learning graph with scripted engines: kills in the middle of a run change
//! nothing about what is counted.

use std::time::Duration;

use odeon::{Clock, ProcessId, Supervision, System, WorkerMode};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::scripted::Script;
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::report::{Report, StepReport};
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::{Count, StoreArgs};
use odeon_actors::rl::trainer::TrainPlan;
use odeon_algorithms::objective::{Baseline, Gae, GroupBaseline, Lambda};
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use odeon_tests::again;

#[test]
fn worker_entry() {
    odeon_actors::rl::job().serve_if_worker();
}

const STEPS: u64 = 24;
const GROUPS: usize = 4;
const GROUP_SIZE: u32 = 4;

fn plan(
    checkpoint: &std::path::Path,
    staleness_max: u64,
    critic: bool,
    checkpoint_every: u64,
    stuck_after: Option<u64>,
) -> RunPlan {
    let script = Script {
        train: Duration::from_millis(3),
        token: Duration::from_micros(200),
        response: 3,
        slots: 8,
        pauses_at: None,
        stuck_after,
        replies: vec![],
        hold: None,
        journal: None,
    };
    let engine = EngineSpec::Scripted(script);
    RunPlan {
        store: StoreArgs {
            task: TaskSpec::Sums(SumsConfig::default()),
            seed: 1,
            tokenizer: Tokenizer::arithmetic(),
            ledger: LedgerConfig::new(GROUP_SIZE, GROUPS, staleness_max),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing: odeon_algorithms::train::Sharing::ALONE,
        recovery: LadderPolicy::default(),
        rollouts: 2,
        relays: 1,
        forms: Forms::Full,
        swap: Swap::Overlap,
        tell_every: Duration::from_secs(1),
        repack: None,
        processes: Processes::Own,
        needs: RoleNeeds::default(),
        reference: critic,
        programs: ProgramSpec::default(),
        environment: None,
        learned: None,
        harm: None,
        train: TrainPlan {
            warmup: 20,
            steps: STEPS,
            value_steps: 0,
            checkpoint_every,
            publish_every: 1,
            checkpoint: checkpoint.to_owned(),
            eval_problems: 10,
            eval_every: 0,
            baseline: match critic {
                true => Baseline::Critic(Gae {
                    gamma: 1.0,
                    lambda: Lambda::Fixed(0.95),
                    value_lambda: None,
                }),
                false => Baseline::Group(GroupBaseline::default()),
            },
            overlong: None,
            price: None,
        },
        watch: Watch::new(STEPS),
    }
}

fn process_of(run: &Run, role: &str) -> Option<ProcessId> {
    let mut roles = run.roles();
    let (_, _, process) = roles.find(|(known, ..)| known == role).expect("a role");
    process
}

/// Runs to the end; after the step `at` the process of a role is killed.
async fn run(staleness_max: u64, critic: bool, at: u64, role: Option<&str>) -> Vec<StepReport> {
    let folder = tempfile::tempdir().unwrap();
    let worker = again::worker(module_path!());
    let system = System::builder()
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap();
    // A trainer that is to be killed waits for that.
    let stuck_after = (role == Some("trainer")).then_some(at);
    // A critic that is to be killed has learnt more than it has saved.
    let checkpoint_every = if role == Some("critic") { STEPS } else { 4 };
    let plan = plan(
        folder.path(),
        staleness_max,
        critic,
        checkpoint_every,
        stuck_after,
    );
    let mut run = Run::start(&system, plan).await.unwrap();
    let mut steps = vec![];
    let mut killed = None;
    let mut resumed = 0;
    let following = async {
        loop {
            let report = run.reports.recv().await.expect("the monitor lives");
            match report {
                Report::Step(step) => {
                    if step.version >= at
                        && killed.is_none()
                        && let Some(role) = role
                    {
                        killed = process_of(&run, role);
                        assert!(system.admin().kill_worker(killed.expect("it runs")));
                    }
                    steps.push(step);
                }
                Report::Resumed { .. } => resumed += 1,
                Report::Finished(progress) => {
                    assert_eq!(progress.version, STEPS);
                    break;
                }
                _ => {}
            }
        }
    };
    Clock::timeout(Duration::from_secs(120), following)
        .await
        .expect("the run ends");
    if let Some(role) = role {
        assert_eq!(
            resumed,
            u64::from(matches!(role, "trainer" | "critic")),
            "a lost trainer resumes, and one whose critic was lost"
        );
        let another = async {
            while process_of(&run, role).is_none_or(|process| Some(process) == killed) {
                Clock::sleep(Duration::from_millis(5)).await;
            }
        };
        let another = Clock::timeout(Duration::from_secs(60), another).await;
        another.expect("it comes back in another process");
    }
    let counts = run.store.ask(Count).await.unwrap();
    let needed = STEPS * GROUPS as u64 * u64::from(GROUP_SIZE);
    assert!(counts.accepted >= needed, "{counts:?}");
    system.shutdown().await;
    steps
}

/// Each version is made once, or made again from the same batch after a checkpoint.
fn check(steps: &[StepReport], staleness_max: u64) {
    let versions: std::collections::BTreeSet<u64> = steps.iter().map(|s| s.version).collect();
    assert_eq!(versions.len() as u64, STEPS);
    for step in steps {
        assert!(step.staleness_max <= staleness_max, "{step:?}");
        let same = steps.iter().filter(|other| other.version == step.version);
        for other in same {
            assert_eq!(
                other.batch_checksum, step.batch_checksum,
                "another batch for a step"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_run_has_no_staleness() {
    check(&run(0, false, 0, None).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ppo_runs_with_critic_and_reference() {
    check(&run(2, true, 0, None).await, 2);
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_rollout_does_not_stop_the_run() {
    check(&run(2, false, 6, Some("rollout-0")).await, 2);
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_relay_does_not_stop_the_run() {
    check(&run(2, false, 6, Some("relay")).await, 2);
}

/// SEMANTICS 34, 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_trainer_goes_on_from_its_checkpoint() {
    let steps = run(2, false, 6, Some("trainer")).await;
    check(&steps, 2);
    assert!(
        steps.len() as u64 > STEPS,
        "the steps after its checkpoint come again"
    );
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_reference_is_asked_again() {
    let steps = run(2, true, 6, Some("reference")).await;
    check(&steps, 2);
    assert_eq!(steps.len() as u64, STEPS, "the trainer went on");
}

/// SEMANTICS 33, 34, 38.
/// The loss of a scripted critic is the number of steps that it has learnt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_critic_learns_what_it_had_lost_from_the_same_batches() {
    let steps = run(2, true, 6, Some("critic")).await;
    check(&steps, 2);
    assert!(steps.len() as u64 > STEPS, "both went back");
    for step in &steps {
        assert_eq!(step.critic_loss, Some(step.version as f64), "{step:?}");
    }
}

/// SEMANTICS 33.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critic_goes_back_with_a_killed_trainer() {
    let steps = run(2, true, 6, Some("trainer")).await;
    check(&steps, 2);
    assert!(steps.len() as u64 > STEPS, "both went back");
    for step in &steps {
        assert_eq!(step.critic_loss, Some(step.version as f64), "{step:?}");
    }
}

/// SEMANTICS 38, 78.
/// Rollouts are killed in turn until one was lost in the middle of replies that another with the same
/// weights goes on with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_rollout_has_begun_goes_on_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let worker = again::worker(module_path!());
    let patience = Duration::from_secs(120);
    // However many it takes.
    let system = System::builder()
        .supervision(Supervision::one_for_one().budget(1_000, patience))
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap();
    let mut plan = plan(folder.path(), 1_000, false, 1_000, None);
    let EngineSpec::Scripted(script) = &mut plan.rollout_engine else {
        unreachable!("it is a script");
    };
    script.token = Duration::from_millis(2);
    script.response = 60;
    plan.train.steps = 1_000_000;
    plan.swap = Swap::Drain;
    plan.tell_every = Duration::from_millis(5);
    let mut run = Run::start(&system, plan).await.unwrap();
    let following = async {
        for nth in 0.. {
            let mut steps = 0;
            while steps < 2 {
                let report = run.reports.recv().await.expect("the monitor lives");
                steps += usize::from(matches!(report, Report::Step(_)));
            }
            let counts = run.store.ask(Count).await.unwrap();
            if counts.tokens_kept > 0 {
                assert!(counts.reordered > 0);
                break;
            }
            // In the middle of replies of both.
            while run.store.ask(Count).await.unwrap().tokens_told < counts.tokens_told + 400 {}
            // One that is on its way back has no process.
            if let Some(process) = process_of(&run, &format!("rollout-{}", nth % 2)) {
                // It may have ended in that moment.
                let _ = system.admin().kill_worker(process);
            }
        }
    };
    let ended = Clock::timeout(patience, following).await;
    ended.expect("a reply goes on elsewhere");
    system.shutdown().await;
}
