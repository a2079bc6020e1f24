//! Replies that call a tool: what they say and who wrote it, with rollouts and tool actors that are
//! lost in the middle, with calls that do not end, and a small model that learns it.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use odeon::{Clock, Failure, ProcessId, System, WorkerMode};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::compute::{
    ComputeSpec, Device, ModelSource, Precision, Sampling, policy_optimizer,
};
use odeon_actors::engine::scripted::Script;
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::packer::CountPacked;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::repack::RepackLimits;
use odeon_actors::rl::report::Report;
use odeon_actors::rl::rollout::{CountTokens, Look, Swap};
use odeon_actors::rl::run::{Acting, Processes, Repack, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::{Count, StoreArgs, Take, Taken};
use odeon_actors::rl::tools::CountCalls;
use odeon_actors::rl::trainer::TrainPlan;
use odeon_actors::trajectory::{Batch, Observed, Trajectory};
use odeon_algorithms::environment::{EnvironmentConfig, Latency, Tool};
use odeon_algorithms::model::{ModelConfig, Recompute};
use odeon_algorithms::objective::{Baseline, GroupBaseline, PolicyObjective};
use odeon_algorithms::task::{SumsConfig, SumsForm, TaskSpec};
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
const PATIENCE: Duration = Duration::from_secs(120);
const SLOTS: usize = 4;
/// Replies that a rollout of so many slots holds at most.
const HELD: u32 = 16;

/// The replies of a group's samples in the end, and which part of them a tool has written: two
/// calls; none; a mark that closes no call; a call that has no answer.
const REPLIES: [(&str, &[[usize; 2]]); 4] = [
    ("<1+2>3;<3+4>7;7", &[[5, 7], [12, 14]]),
    ("5", &[]),
    ("<9-4>5;5>5", &[[5, 7]]),
    ("<1+>?;<2>2;2", &[[4, 6], [9, 11]]),
];

fn latency(median_ms: f64, sigma: f64) -> Latency {
    Latency {
        median_ms,
        sigma,
        max_ms: 1e9,
    }
}

/// A run of so many rollouts whose samples say this.
fn plan(checkpoint: &Path, replies: &[(&str, &[[usize; 2]])], latency: Latency) -> RunPlan {
    let tokenizer = Tokenizer::arithmetic();
    let encode = |text: &str| tokenizer.encode(text).unwrap();
    let engine = EngineSpec::Scripted(Script {
        train: Duration::from_millis(20),
        token: Duration::from_micros(200),
        response: 1,
        slots: SLOTS,
        pauses_at: encode(">").first().copied(),
        stuck_after: None,
        hold: None,
        replies: replies.iter().map(|(text, _)| encode(text)).collect(),
        journal: None,
    });
    RunPlan {
        store: StoreArgs {
            task: TaskSpec::Sums(SumsConfig::default()),
            seed: 1,
            tokenizer,
            ledger: LedgerConfig::new(replies.len() as u32, 2, 1_000),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing: Sharing::ALONE,
        recovery: LadderPolicy::default(),
        rollouts: 2,
        relays: 1,
        forms: Forms::Full,
        swap: Swap::Overlap,
        tell_every: Duration::from_millis(5),
        repack: None,
        processes: Processes::Own,
        needs: RoleNeeds::default(),
        reference: false,
        programs: ProgramSpec::default(),
        environment: Some(Acting {
            environment: EnvironmentConfig::of(Tool::Calculator),
            latency,
            response_max: 64,
        }),
        learned: None,
        harm: None,
        train: TrainPlan {
            warmup: 0,
            steps: 1_000_000,
            value_steps: 0,
            checkpoint_every: 1_000_000,
            publish_every: 1,
            checkpoint: checkpoint.to_owned(),
            eval_problems: 1,
            eval_every: 0,
            baseline: Baseline::Group(GroupBaseline::default()),
            overlong: None,
            price: None,
        },
        watch: Watch::new(1_000_000),
    }
}

async fn system(workers: WorkerMode) -> System {
    let builder = System::builder().job(odeon_actors::rl::job());
    builder.workers(workers).start().await.unwrap()
}

fn processes() -> WorkerMode {
    WorkerMode::Processes(again::worker(module_path!()))
}

fn process_of(run: &Run, role: &str) -> Option<ProcessId> {
    let mut roles = run.roles();
    roles.find(|(known, ..)| known == role).expect("a role").2
}

/// The batch of the next step that is done.
async fn next(run: &mut Run) -> Batch {
    loop {
        let report = Clock::timeout(PATIENCE, run.reports.recv()).await;
        let report = report.expect("the run goes on").expect("it has a monitor");
        let Report::Step(step) = report else {
            continue;
        };
        let take = Take {
            step: step.version,
            consumer: run.trainer.narrow(),
        };
        let taken = run.store.ask(take).await.unwrap().unwrap();
        let Taken::Batch(packed) = taken else {
            panic!("it is kept: {taken:?}");
        };
        return packed.unpack().await.unwrap();
    }
}

/// Sees that a reply is whole, and that its tokens are known for who wrote them.
fn check(reply: &Trajectory) {
    let (text, written) = REPLIES[reply.id.sample as usize % REPLIES.len()];
    let said = Tokenizer::arithmetic().decode(&reply.response).unwrap();
    assert_eq!(said, text, "{reply:?}");
    let mut observed = Observed::default();
    for [from, to] in written {
        observed.push(*from..*to);
    }
    assert_eq!(reply.observed, observed, "{reply:?}");
    assert_eq!(reply.log_probs.len(), reply.sampled(), "{reply:?}");
}

/// Sees that the replies of a batch are whole and come once.
fn check_all(batch: &Batch, seen: &mut HashSet<odeon_actors::trajectory::SampleId>) {
    for reply in &batch.trajectories {
        check(reply);
        assert!(seen.insert(reply.id), "{reply:?} came twice");
    }
}

/// SEMANTICS 90.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_answered_and_each_token_is_known_for_who_wrote_it() {
    for swap in [Swap::Overlap, Swap::Drain, Swap::Interrupt] {
        let folder = tempfile::tempdir().unwrap();
        let plan = RunPlan {
            swap,
            ..plan(folder.path(), &REPLIES, latency(5.0, 1.0))
        };
        let system = system(WorkerMode::InProcess).await;
        let mut run = Run::start(&system, plan).await.unwrap();
        let (mut seen, mut versions) = (HashSet::new(), HashSet::new());
        let begun = Clock::now();
        while versions.len() < 4 {
            assert!(Clock::now().since(begun) < PATIENCE, "{versions:?}");
            let batch = next(&mut run).await;
            check_all(&batch, &mut seen);
            versions.extend(batch.trajectories.iter().map(|it| it.version));
            let calls = |it: &&Trajectory| it.observed.turns() > 0;
            let mut calling = batch.trajectories.iter().filter(calls);
            assert!(calling.all(|it| !it.waited.is_zero()), "{batch:?}");
        }
        assert_eq!(run.store.ask(Count).await.unwrap().duplicates, 0);
        system.shutdown().await;
    }
}

/// SEMANTICS 90, 78.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_rollout_was_waiting_for_comes_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path(), &REPLIES, latency(60.0, 0.0));
    plan.swap = Swap::Drain;
    let system = system(processes()).await;
    let mut run = Run::start(&system, plan).await.unwrap();
    let tools = run.tools.expect("there is one");
    let mut seen = HashSet::new();
    let following = async {
        for nth in 0.. {
            for _ in 0..2 {
                check_all(&next(&mut run).await, &mut seen);
            }
            let counts = run.store.ask(Count).await.unwrap();
            let calls = tools.ask(CountCalls).await.unwrap();
            if counts.tokens_kept > 0 && calls.again > 0 {
                assert!(counts.reordered > 0);
                break;
            }
            // In the middle of calls.
            let made = calls.made + 2;
            while tools.ask(CountCalls).await.unwrap().made < made {}
            let told = run.store.ask(Count).await.unwrap().tokens_told + 12;
            while run.store.ask(Count).await.unwrap().tokens_told < told {}
            // One that is on its way back has no process, and one may have ended in that moment.
            if let Some(process) = process_of(&run, &format!("rollout-{}", nth % 2)) {
                let _ = system.admin().kill_worker(process);
            }
        }
    };
    let ended = Clock::timeout(PATIENCE, following).await;
    ended.expect("another asks for the same answer");
    system.shutdown().await;
}

/// SEMANTICS 90.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_tool_actor_was_asked_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), &REPLIES, latency(30.0, 1.0));
    let system = system(WorkerMode::InProcess).await;
    let mut run = Run::start(&system, plan).await.unwrap();
    let tools = run.tools.expect("there is one");
    let mut seen = HashSet::new();
    for _ in 0..3 {
        check_all(&next(&mut run).await, &mut seen);
        // In the middle of calls of its present life.
        let calling = async { while tools.ask(CountCalls).await.map_or(0, |it| it.made) < 2 {} };
        let called = Clock::timeout(PATIENCE, calling).await;
        called.expect("its present life is called");
        let why = Failure::error("somebody asked for it");
        system
            .admin()
            .fail_actor(tools.id(), why, PATIENCE)
            .await
            .unwrap();
    }
    for _ in 0..3 {
        check_all(&next(&mut run).await, &mut seen);
    }
    assert_eq!(run.store.ask(Count).await.unwrap().duplicates, 0);
    system.shutdown().await;
}

/// SEMANTICS 90.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_call_holds_up_no_generation_until_there_are_too_many() {
    let folder = tempfile::tempdir().unwrap();
    // No call ends within the test.
    let mut plan = plan(folder.path(), &REPLIES[..2], latency(1e8, 0.0));
    plan.rollouts = 1;
    let system = system(WorkerMode::InProcess).await;
    let run = Run::start(&system, plan).await.unwrap();
    let rollout = run.rollouts[0];
    let filling = async {
        loop {
            let load = rollout.ask(Look).await.unwrap();
            assert!(load.running <= HELD, "{load:?}");
            if load.calling == HELD {
                return load;
            }
        }
    };
    let load = Clock::timeout(PATIENCE, filling).await;
    let load = load.expect("replies that wait have no slots");
    assert_eq!((load.running, load.waiting), (HELD, 0));
    // The others of their groups were made meanwhile.
    let counted = rollout.ask(CountTokens).await.unwrap();
    assert!(counted.trajectories + 1 >= u64::from(HELD), "{counted:?}");
    let handed_in =
        async { while run.store.ask(Count).await.unwrap().accepted < counted.trajectories {} };
    let handed_in = Clock::timeout(PATIENCE, handed_in).await;
    handed_in.expect("those that have ended");
    system.shutdown().await;
}

/// SEMANTICS 90, 78.
/// Rollouts of which all replies wait are packed together too, and who takes them in waits for the same
/// answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_wait_are_packed_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path(), &REPLIES, latency(20.0, 1.5));
    plan.rollouts = 3;
    plan.swap = Swap::Drain;
    plan.repack = Some(Repack {
        period: Duration::from_millis(10),
        limits: RepackLimits::new(SLOTS as u32 * 4),
    });
    let system = system(WorkerMode::InProcess).await;
    let mut run = Run::start(&system, plan).await.unwrap();
    let (packer, tools) = (
        run.packer.expect("there is one"),
        run.tools.expect("so is it"),
    );
    let mut seen = HashSet::new();
    let following = async {
        loop {
            check_all(&next(&mut run).await, &mut seen);
            let packed = packer.ask(CountPacked).await.unwrap();
            let calls = tools.ask(CountCalls).await.unwrap();
            if packed.moved > 0 && calls.again > 0 {
                break;
            }
        }
    };
    let ended = Clock::timeout(PATIENCE, following).await;
    ended.expect("a reply goes on elsewhere");
    let counts = run.store.ask(Count).await.unwrap();
    assert!(counts.handed_in > 0);
    assert_eq!(counts.duplicates, 0);
    system.shutdown().await;
}

/// A small model that has seen few worked solutions learns to call its calculator and to say what it
/// answers, from rewards and from worked solutions beside them, of which it learns no answer of the tool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_model_learns_to_use_its_calculator() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::arithmetic();
    let task = TaskSpec::Sums(SumsConfig {
        form: SumsForm::Tool,
        digits_max: 1,
        ..SumsConfig::default()
    });
    let config = ModelConfig {
        vocab: tokenizer.vocabulary(),
        dim: 64,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        head_dim: 16,
        ffn: 128,
        ..ModelConfig::default()
    };
    let acting = Acting {
        environment: EnvironmentConfig::of(Tool::Calculator),
        latency: latency(1.0, 1.0),
        response_max: 16,
    };
    let engine = EngineSpec::Compute(Box::new(ComputeSpec {
        source: ModelSource::Fresh(Box::new(config)),
        tokenizer,
        task: task.clone(),
        programs: ProgramSpec::default(),
        environment: Some(acting.environment),
        seed: 1,
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        context: 24,
        lora_rank: 0,
        warmup_batch: 32,
        warmup_steps: 120,
        warmup_lr: 2e-3,
        lr: 2e-3,
        schedule: Schedule::Constant,
        optimizer: policy_optimizer(),
        recompute: Recompute::Nothing,
        offload: false,
        critic_lr: 1e-3,
        epochs: 1,
        minibatches: 1,
        pretrain: 1.0,
        objective: PolicyObjective::default(),
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            response_max: acting.response_max,
        },
        weights: StoredType::F32,
        slots: 16,
        base: folder.path().join("base"),
        share: None,
    }));
    let mut plan = plan(folder.path(), &REPLIES, acting.latency);
    plan.rollout_engine = engine.clone();
    plan.trainer_engine = engine;
    plan.store.task = task;
    // Whoever is quick, the steps are the same.
    plan.store.ledger = LedgerConfig::new(4, 8, 0);
    plan.environment = Some(acting);
    plan.train.warmup = 120;
    plan.train.steps = 60;
    plan.train.eval_problems = 200;
    let system = system(WorkerMode::InProcess).await;
    let mut run = Run::start(&system, plan).await.unwrap();
    let (mut right, mut turns) = (vec![], 0.0);
    loop {
        let report = Clock::timeout(PATIENCE, run.reports.recv()).await;
        match report.expect("the run goes on").expect("it has a monitor") {
            Report::Evaluated { stats, .. } => right.push(stats.accuracy()),
            Report::Step(step) => turns = step.turns_mean,
            Report::Finished(_) => break,
            _ => {}
        }
    }
    assert!(right[0] < 0.4 && right[1] > right[0] + 0.4, "{right:?}");
    assert!(turns > 0.5, "it calls: {turns}");
    system.shutdown().await;
}
