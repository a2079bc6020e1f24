//! Promises of a run about weights and checkpoints.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use odeon::{
    Clock, Failure, FailureKind, GrantedDevice, Limits, Ref, System, Timestamp, WorkerMode,
};
use odeon_actors::engine::compute::{
    ComputeSpec, Device, ModelSource, Precision, Sampling, latest_model, policy_optimizer,
    read_model,
};
use odeon_actors::engine::scripted::Script;
use odeon_actors::engine::{
    EngineSpec, Progress, Response, RolloutEngine, RunState, Signals, StepStats, TrainEngine,
};
use odeon_actors::packed::{Packed, PackedBatch};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::cost::Harm;
use odeon_actors::rl::critic::{Critic, CriticArgs, Learn, SaveCritic, Values};
use odeon_actors::rl::ledger::{Greedy, LedgerConfig, Uniform};
use odeon_actors::rl::packer::CountPacked;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::repack::RepackLimits;
use odeon_actors::rl::report::{Report, StepReport};
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, Repack, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::{Count, StoreArgs, Take, Taken};
use odeon_actors::rl::trainer::TrainPlan;
use odeon_actors::trajectory::{
    Batch, Decode, Observed, Order, Partial, SampleId, Trajectory, Used, Version,
};
use odeon_algorithms::model::{ModelConfig, Recompute};
use odeon_algorithms::objective::{
    Baseline, Gae, GroupBaseline, Lagrangian, Lambda, Overlong, PolicyObjective,
};
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Lion, Optimizer, Schedule};
use odeon_algorithms::weights::StoredType;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use odeon_gpu::Cpu;

const STEPS: u64 = 12;
const STALENESS_MAX: u64 = 1;

/// The longest time that the machine may take for a run.
const PATIENCE: Duration = Duration::from_secs(120);

/// The next report of a run that began then.
async fn next_report(run: &mut Run, begun: Timestamp) -> Report {
    let left = PATIENCE.saturating_sub(Clock::now().since(begun));
    assert!(!left.is_zero(), "the run goes on and on");
    let report = Clock::timeout(left, run.reports.recv()).await;
    report.expect("the run goes on").expect("it has a monitor")
}

fn plan(checkpoint: &Path, steps: u64) -> RunPlan {
    let script = Script {
        train: Duration::from_millis(4),
        token: Duration::from_millis(1),
        response: 3,
        slots: 4,
        pauses_at: None,
        stuck_after: None,
        replies: vec![],
        hold: None,
        journal: None,
    };
    RunPlan {
        store: StoreArgs {
            task: TaskSpec::Sums(SumsConfig::default()),
            seed: 7,
            tokenizer: Tokenizer::arithmetic(),
            ledger: LedgerConfig::new(4, 2, STALENESS_MAX),
        },
        rollout_engine: EngineSpec::Scripted(script.clone()),
        trainer_engine: EngineSpec::Scripted(script),
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
        reference: false,
        programs: ProgramSpec::default(),
        environment: None,
        learned: None,
        harm: None,
        train: TrainPlan {
            warmup: 0,
            steps,
            value_steps: 0,
            checkpoint_every: 1_000,
            publish_every: 1,
            checkpoint: checkpoint.to_owned(),
            eval_problems: 1,
            eval_every: 0,
            baseline: Baseline::LeaveOneOut,
            overlong: None,
            price: None,
        },
        watch: Watch::new(steps),
    }
}

/// Starts a run of so many steps, all of its actors in this process.
async fn start(checkpoint: &Path, steps: u64) -> (System, Run) {
    start_plan(plan(checkpoint, steps)).await
}

async fn start_plan(plan: RunPlan) -> (System, Run) {
    let system = system().await;
    let run = Run::start(&system, plan).await.expect("a run starts");
    (system, run)
}

async fn system() -> System {
    // Who waits for an actor that is lost need not do so for long.
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(100);
    System::builder()
        .limits(limits)
        .job(odeon_actors::rl::job())
        .workers(WorkerMode::InProcess)
        .start()
        .await
        .expect("a system starts")
}

async fn batch_of(run: &Run, step: u64) -> Option<Batch> {
    let take = Take {
        step,
        consumer: run.trainer.narrow(),
    };
    let taken = run.store.ask(take).await.expect("the store answers");
    match taken.expect("there is room for the batch") {
        Taken::Batch(packed) => Some(packed.unpack().await.expect("it is here")),
        Taken::Later | Taken::NoBook => None,
    }
}

/// SEMANTICS 31, 32.
/// A scripted rollout writes the number of its weights as every token, so a trajectory shows which
/// weights made it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_trajectory_comes_from_one_version_and_trains_while_it_is_fresh() {
    let folder = tempfile::tempdir().unwrap();
    let (system, mut run) = start(folder.path(), STEPS).await;
    let (mut counted, mut versions, mut finished) = (HashSet::new(), HashSet::new(), None);
    let begun = Clock::now();
    while finished.is_none() {
        match next_report(&mut run, begun).await {
            Report::Step(step) => {
                // Kept until the step is safe, which the last one of this run is at once.
                let Some(batch) = batch_of(&run, step.version).await else {
                    continue;
                };
                assert_eq!(
                    batch_of(&run, step.version)
                        .await
                        .unwrap_or_else(|| batch.clone()),
                    batch
                );
                for trajectory in &batch.trajectories {
                    let made = trajectory.version;
                    assert!(
                        trajectory
                            .response
                            .iter()
                            .all(|token| u64::from(*token) == made),
                        "{trajectory:?} mixes versions"
                    );
                    assert!(
                        step.version - 1 - made <= STALENESS_MAX,
                        "{trajectory:?} is old"
                    );
                    assert!(counted.insert(trajectory.id), "{trajectory:?} came twice");
                    versions.insert(made);
                }
            }
            Report::Finished(progress) => finished = Some(progress),
            _ => {}
        }
    }
    assert_eq!(
        finished,
        Some(Progress {
            warmup: 0,
            version: STEPS
        })
    );
    assert!(
        versions.len() > 1,
        "the rollouts took new weights: {versions:?}"
    );
    system.shutdown().await;
}

/// A run whose driver ended goes on where its last checkpoint was.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_goes_on_from_the_checkpoint_of_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    for steps in [3, 6] {
        let (system, mut run) = start(folder.path(), steps).await;
        let mut trained = vec![];
        let finished = async {
            loop {
                match run.reports.recv().await.unwrap() {
                    Report::Step(step) => trained.push(step.version),
                    Report::Finished(progress) => return progress,
                    _ => {}
                }
            }
        };
        let finished = tokio::time::timeout(Duration::from_secs(60), finished).await;
        let finished = finished.unwrap_or_else(|_| panic!("stuck after the steps {trained:?}"));
        assert_eq!(finished.version, steps);
        assert_eq!(
            trained,
            (steps - 2..=steps).collect::<Vec<_>>(),
            "no step twice"
        );
        system.shutdown().await;
    }
}

/// SEMANTICS 38.
/// Whoever is asked again by all of those who have lost it may be lost again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_whose_store_cannot_go_on_ends_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path(), STEPS);
    // It divides by this at its first order.
    plan.store.ledger.groups_per_batch = 0;
    let (system, _run) = start_plan(plan).await;
    let failed = tokio::time::timeout(Duration::from_secs(60), system.failed()).await;
    let failure = failed.expect("the run does not hang");
    assert!(failure.to_string().contains("divide by zero"), "{failure}");
    system.shutdown().await;
}

pub(crate) fn tiny(base: &Path, lora_rank: usize, seed: u64) -> EngineSpec {
    let tokenizer = Tokenizer::arithmetic();
    let config = ModelConfig {
        vocab: tokenizer.vocabulary(),
        dim: 16,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        head_dim: 8,
        ffn: 24,
        ..ModelConfig::default()
    };
    EngineSpec::Compute(Box::new(ComputeSpec {
        source: ModelSource::Fresh(Box::new(config)),
        tokenizer,
        task: TaskSpec::Sums(SumsConfig::default()),
        programs: ProgramSpec::default(),
        environment: None,
        seed,
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        context: 24,
        lora_rank,
        warmup_batch: 4,
        warmup_steps: 4,
        warmup_lr: 1e-3,
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
        slots: 2,
        base: base.to_owned(),
        share: None,
    }))
}

/// State of a run beside its weights.
pub(crate) fn run_state() -> RunState {
    let mut used = Used::first(5);
    used.add(7);
    RunState {
        used,
        price: Some(0.1),
    }
}

/// SEMANTICS 35.
#[test]
fn a_checkpoint_that_was_not_finished_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, base) = (folder.path().join("checkpoint"), folder.path().join("base"));
    let spec = tiny(&base, 0, 1);
    let mut trainer = spec.trainer().unwrap();
    assert_eq!(trainer.restore(&checkpoint).unwrap(), None);
    let safe = Progress {
        warmup: 2,
        version: 0,
    };
    for step in 1..=2 {
        trainer.warm_up(step).unwrap();
    }
    trainer.save(&checkpoint, &safe, &run_state()).unwrap();
    let expected = weights(trainer.as_mut());

    // A crash while the next one is written: a part of its files, and no manifest.
    let torn = checkpoint.join("00000002-step-3");
    std::fs::create_dir_all(&torn).unwrap();
    std::fs::write(torn.join("rank-00000-000.safetensors"), b"half of").unwrap();

    let mut again = spec.trainer().unwrap();
    assert_eq!(
        again.restore(&checkpoint).unwrap(),
        Some((safe, run_state()))
    );
    assert!(
        weights(again.as_mut()) == expected,
        "the weights of the checkpoint"
    );

    // What was torn does not hinder the same checkpoint, and goes; the older one stays.
    let next = Progress {
        warmup: 3,
        version: 0,
    };
    let loss = again.warm_up(3).unwrap().loss;
    assert_eq!(
        trainer.warm_up(3).unwrap().loss,
        loss,
        "it goes on as if nothing had happened"
    );
    again.save(&checkpoint, &next, &run_state()).unwrap();
    assert_eq!(
        spec.trainer().unwrap().restore(&checkpoint).unwrap(),
        Some((next, run_state()))
    );
    let left = std::fs::read_dir(&checkpoint).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort_unstable();
    assert_eq!(left, ["00000001-step-2", "00000003-step-3"]);
}

/// The reference is the policy after all supervised steps, not after those of a first checkpoint.
#[test]
fn a_checkpoint_among_the_supervised_steps_is_not_taken_for_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, base) = (folder.path().join("checkpoint"), folder.path().join("base"));
    let spec = tiny(&base, 0, 1);
    let mut trainer = spec.trainer().unwrap();
    for warmup in 1..=4 {
        assert!(!base.exists(), "written after step {}", warmup - 1);
        trainer.warm_up(warmup).unwrap();
        let progress = Progress { warmup, version: 0 };
        trainer.save(&checkpoint, &progress, &run_state()).unwrap();
    }
    let saved = read_model(&base).unwrap().into_model(Cpu::new(1)).unwrap();
    let bytes = saved.flat().iter().flat_map(|weight| weight.to_le_bytes());
    assert!(bytes.eq(weights(trainer.as_mut())));
}

pub(crate) fn weights(trainer: &mut dyn TrainEngine) -> Vec<u8> {
    let mut bytes = vec![0; trainer.weight_bytes()];
    trainer.write_weights(&mut bytes).expect("there is room");
    bytes
}

fn order(group: u64, sample: u32) -> Order {
    Order {
        id: SampleId { group, sample },
        prompt: Tokenizer::arithmetic().encode("1+2=").expect("a sum"),
        problem: group,
        decode: Decode::Sampled,
        partial: None,
    }
}

fn next_of(rollout: &mut dyn RolloutEngine) -> Response {
    loop {
        if let Some(response) = rollout.step().expect("a token").pop() {
            return response;
        }
    }
}

/// Weights that training has made, one after the other.
fn versions_of(spec: &EngineSpec) -> [Vec<u8>; 3] {
    let mut trainer = spec.trainer().unwrap();
    [1, 2, 3].map(|step| {
        for _ in 0..5 {
            trainer.warm_up(step).unwrap();
        }
        weights(trainer.as_mut())
    })
}

/// SEMANTICS 31.
/// A free slot begins with the newest weights at once, and what is under way ends with its own.
#[test]
fn a_slot_keeps_the_weights_that_its_trajectory_began_with() {
    let folder = tempfile::tempdir().unwrap();
    let spec = tiny(&folder.path().join("base"), 0, 1);
    let versions = versions_of(&spec);
    let alone = |version: usize, sample| {
        let mut rollout = spec.rollout().unwrap();
        rollout.load(&versions[version]).unwrap();
        rollout.admit(&order(0, sample)).unwrap();
        next_of(rollout.as_mut())
    };
    let mut long = (0..).filter(|sample| alone(0, *sample).tokens.len() > 2);
    let (first, second) = (long.next().unwrap(), long.next().unwrap());
    assert_ne!(alone(0, second), alone(1, second));

    let mut rollout = spec.rollout().unwrap();
    rollout.load(&versions[0]).unwrap();
    rollout.admit(&order(0, first)).unwrap();
    assert_eq!(rollout.step().unwrap(), []);
    assert!(rollout.can_load());
    rollout.load(&versions[1]).unwrap();
    rollout.admit(&order(0, second)).unwrap();
    assert!(!rollout.can_load(), "both sets of weights are in use");
    assert_eq!((rollout.active(), rollout.free_slots()), (2, 0));
    let mut ended = vec![];
    while ended.iter().all(|r: &Response| r.id.sample != first) {
        ended.extend(rollout.step().unwrap());
    }
    assert!(rollout.can_load(), "the first weights are in use no more");
    rollout.load(&versions[2]).unwrap();
    while rollout.active() > 0 {
        ended.extend(rollout.step().unwrap());
    }
    ended.sort_by_key(|response| response.id);
    assert_eq!(ended, [alone(0, first), alone(1, second)]);
    rollout.admit(&order(0, first)).unwrap();
    assert_eq!(next_of(rollout.as_mut()), alone(2, first));
}

/// SEMANTICS 90.
#[test]
fn a_reply_that_waits_for_its_tool_goes_on_with_the_weights_that_it_was_begun_with() {
    let folder = tempfile::tempdir().unwrap();
    let spec = tiny(&folder.path().join("base"), 0, 1);
    let versions = versions_of(&spec);
    let answered = |sample| {
        let begun = Partial {
            version: 1,
            life: 1,
            tokens: vec![1, 2],
            log_probs: vec![-0.5, -0.5],
            ..Partial::default()
        };
        Order {
            partial: Some(begun),
            ..order(0, sample)
        }
    };
    let alone = |version: usize, sample| {
        let mut rollout = spec.rollout().unwrap();
        rollout.load(&versions[version]).unwrap();
        rollout.admit(&answered(sample)).unwrap();
        next_of(rollout.as_mut())
    };
    let mut differs = (0..100).filter(|sample| alone(0, *sample) != alone(1, *sample));
    let order = answered(differs.next().expect("the weights differ"));
    let mut rollout = spec.rollout().unwrap();
    rollout.load(&versions[0]).unwrap();
    rollout.pause(order.id);
    rollout.load(&versions[1]).unwrap();
    assert!(!rollout.can_load(), "the first weights are waited with");
    rollout.resume(&order).unwrap();
    assert_eq!(next_of(rollout.as_mut()), alone(0, order.id.sample));
    assert!(rollout.can_load(), "they are in use no more");
}

/// One step of the reinforcement on what the present weights answer.
pub(crate) fn reinforce(spec: &EngineSpec, trainer: &mut dyn TrainEngine, step: u64) -> StepStats {
    reinforce_with(spec, trainer, step, step - 1)
}

/// The same with replies that say that these weights made them.
fn reinforce_with(
    spec: &EngineSpec,
    trainer: &mut dyn TrainEngine,
    step: u64,
    version: Version,
) -> StepStats {
    let mut rollout = spec.rollout().expect("a rollout");
    rollout.load(&weights(trainer)).expect("its own weights");
    let mut trajectories = vec![];
    for sample in 0..4 {
        let order = order(step, sample);
        rollout.admit(&order).expect("a free slot");
        let response = next_of(rollout.as_mut());
        trajectories.push(Trajectory {
            id: order.id,
            version,
            last_version: version,
            life: 1,
            last_life: 1,
            prompt: order.prompt,
            response: response.tokens,
            log_probs: response.log_probs,
            observed: Observed::default(),
            waited: Duration::ZERO,
            problem: step,
            reward: 0.0,
            correct: false,
            cost: 0.0,
        });
    }
    let signs = [1.0, -1.0, 0.5, -0.5];
    let advantages = trajectories.iter().zip(signs);
    let signals = Signals {
        reference: vec![],
        advantages: advantages
            .map(|(trajectory, sign)| vec![sign; trajectory.response.len()])
            .collect(),
    };
    let batch = Batch {
        step,
        trajectories,
        group_size: 4,
        ..Batch::default()
    };
    trainer.train(&batch, &signals).expect("a step")
}

#[test]
fn a_step_tells_how_far_generation_is_from_training() {
    let folder = tempfile::tempdir().unwrap();
    let gap = |weights: StoredType, made: Version, deterministic: bool| {
        let EngineSpec::Compute(mut spec) = tiny(&folder.path().join("base"), 0, 1) else {
            panic!("it computes");
        };
        spec.weights = weights;
        spec.deterministic = deterministic;
        let spec = EngineSpec::Compute(spec);
        let mut trainer = spec.trainer().unwrap();
        reinforce_with(&spec, trainer.as_mut(), 2, made).sampling_gap
    };
    let same = gap(StoredType::F32, 1, false).expect("replies of the present weights");
    assert!(same < 1e-5, "{same}");
    let rounded = gap(StoredType::Bf16, 1, false).expect("replies of the present weights");
    assert!(same < rounded && rounded < 0.1, "{same} {rounded}");
    assert_eq!(gap(StoredType::F32, 0, false), None, "all are older");
    // SEMANTICS 117.
    assert_eq!(gap(StoredType::F32, 1, true), Some(0.0), "to the bit");
}

/// SEMANTICS 35.
/// With adapters the checkpoint shows merged weights, from which alone nobody could go on.
#[test]
fn a_resumed_trainer_makes_the_same_steps_to_the_bit_with_and_without_adapters() {
    const WARMUP: u64 = 4;
    for lora_rank in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let (checkpoint, base) = (folder.path().join("checkpoint"), folder.path().join("base"));
        let spec = tiny(&base, lora_rank, 1);
        let mut trainer = spec.trainer().unwrap();
        let first = weights(trainer.as_mut());
        // Stopped among the supervised steps, right after them, and in the reinforcement.
        let stops = [(2, 0), (WARMUP, 0), (WARMUP, 2)];
        let mut progress = Progress::default();
        let advance = |trainer: &mut dyn TrainEngine, progress: &mut Progress| {
            if progress.warmup < WARMUP {
                progress.warmup += 1;
                trainer.warm_up(progress.warmup).unwrap()
            } else {
                progress.version += 1;
                reinforce(&spec, trainer, progress.version)
            }
        };
        for (warmup, version) in stops {
            let stop = Progress { warmup, version };
            while progress != stop {
                advance(trainer.as_mut(), &mut progress);
            }
            trainer.save(&checkpoint, &progress, &run_state()).unwrap();
            let mut resumed = spec.trainer().unwrap();
            assert_eq!(
                resumed.restore(&checkpoint).unwrap(),
                Some((stop, run_state()))
            );
            assert!(weights(resumed.as_mut()) == weights(trainer.as_mut()));
            assert!(weights(resumed.as_mut()) != first);
            let mut again = progress;
            for _ in 0..4 {
                let undisturbed = advance(trainer.as_mut(), &mut progress);
                assert_eq!(advance(resumed.as_mut(), &mut again), undisturbed);
            }
            assert!(weights(resumed.as_mut()) == weights(trainer.as_mut()));
            // The next stop may lie before where both have come to.
            trainer = spec.trainer().unwrap();
            (progress, _) = trainer.restore(&checkpoint).unwrap().unwrap();
        }
        // What others read is the policy itself.
        trainer.save(&checkpoint, &progress, &run_state()).unwrap();
        let shown = read_model(&latest_model(&checkpoint).unwrap().unwrap()).unwrap();
        let shown = shown.into_model(Cpu::new(1)).unwrap();
        let bytes = shown.flat().iter().flat_map(|weight| weight.to_le_bytes());
        assert!(bytes.eq(weights(trainer.as_mut())));
    }
}

/// SEMANTICS 35.
#[test]
fn a_checkpoint_of_another_run_is_refused_and_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, base) = (folder.path().join("checkpoint"), folder.path().join("base"));
    let mut trainer = tiny(&base, 3, 1).trainer().unwrap();
    let progress = Progress {
        warmup: 1,
        version: 0,
    };
    trainer.warm_up(1).unwrap();
    trainer.save(&checkpoint, &progress, &run_state()).unwrap();
    let refused = |lora_rank, seed| {
        let mut other = tiny(&base, lora_rank, seed).trainer().unwrap();
        other.restore(&checkpoint).unwrap_err().to_string()
    };
    let error = refused(2, 1);
    assert!(error.contains("adapters of rank 3"), "{error}");
    let error = refused(0, 1);
    assert!(error.contains("this trainer has no adapters"), "{error}");
    let error = refused(3, 2);
    assert!(error.contains("put the model back"), "{error}");
    let shown = checkpoint.join("00000001-step-1").display().to_string();
    assert!(error.contains(&shown), "{error}");
    // Nothing of it was taken where it was refused.
    let whole = tiny(&base, 0, 1);
    let mut other = whole.trainer().unwrap();
    let before = weights(other.as_mut());
    other.restore(&checkpoint).unwrap_err();
    assert!(weights(other.as_mut()) == before);

    // The supervised steps have an optimiser of their own.
    let checkpoint = folder.path().join("reinforced");
    let with = |optimizer| {
        let EngineSpec::Compute(mut spec) = tiny(&base, 0, 1) else {
            panic!("it computes");
        };
        spec.optimizer = optimizer;
        EngineSpec::Compute(spec)
    };
    let spec = with(policy_optimizer());
    let mut trainer = spec.trainer().unwrap();
    reinforce(&spec, trainer.as_mut(), 1);
    let progress = Progress {
        warmup: 0,
        version: 1,
    };
    trainer.save(&checkpoint, &progress, &run_state()).unwrap();
    let mut other = with(Optimizer::Lion(Lion::default())).trainer().unwrap();
    let error = other.restore(&checkpoint).unwrap_err().to_string();
    let words = "the state is of AdamW, and this trainer uses Lion";
    assert!(error.contains(words), "{error}");
}

/// SEMANTICS 35, 38.
#[test]
fn a_damaged_checkpoint_is_refused_and_the_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, base) = (folder.path().join("checkpoint"), folder.path().join("base"));
    let spec = tiny(&base, 3, 1);
    let mut trainer = spec.trainer().unwrap();
    trainer.warm_up(1).unwrap();
    let progress = Progress {
        warmup: 1,
        version: 0,
    };
    trainer.save(&checkpoint, &progress, &run_state()).unwrap();
    let files = std::fs::read_dir(checkpoint.join("00000001-step-1")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 4, "{files:?}");
    for file in files {
        // What others read of a model is none of the trainer's.
        let whole = std::fs::read(&file).unwrap();
        let mut bent = whole.clone();
        let last = bent.len() - 2;
        bent[last] ^= 1;
        std::fs::write(&file, &bent).unwrap();
        match spec.trainer().unwrap().restore(&checkpoint) {
            Ok(restored) => {
                assert_eq!(restored, Some((progress, run_state())));
                read_model(&latest_model(&checkpoint).unwrap().unwrap()).unwrap_err();
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(&file.display().to_string()), "{error}");
            }
        }
        std::fs::write(&file, &whole).unwrap();
    }
    let tensors = checkpoint.join("00000001-step-1/rank-00000-000.safetensors");
    let bytes = std::fs::read(&tensors).unwrap();
    std::fs::write(&tensors, &bytes[..bytes.len() / 2]).unwrap();
    let error = spec.trainer().unwrap().restore(&checkpoint).unwrap_err();
    let error = error.to_string();
    for words in [
        &*tensors.display().to_string(),
        "the file ends here",
        "from a copy",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

/// Four replies to one sum, those of a step.
pub(crate) fn batch(step: u64) -> Batch {
    let trajectories = (0..4).map(|sample| {
        let order = order(step, sample);
        Trajectory {
            id: order.id,
            version: step - 1,
            last_version: step - 1,
            life: 1,
            last_life: 1,
            prompt: order.prompt,
            response: vec![((step + u64::from(sample)) % 10) as u32; 2],
            log_probs: vec![0.0; 2],
            observed: Observed::default(),
            waited: Duration::ZERO,
            problem: step,
            reward: 0.0,
            correct: false,
            cost: 0.0,
        }
    });
    Batch {
        step,
        trajectories: trajectories.collect(),
        group_size: 4,
        ..Batch::default()
    }
}

/// A critic, asked as a trainer does.
struct Rated {
    system: System,
    critic: Ref<Critic>,
}

impl Rated {
    /// A life of it.
    async fn start(engine: &EngineSpec, checkpoint: &Path) -> Self {
        let system = system().await;
        let args = CriticArgs {
            engine: engine.clone(),
            ranks: None,
            name: "critic".to_owned(),
            checkpoint: checkpoint.to_owned(),
        };
        let critic = system.spawn::<Critic>(args).await.expect("it starts");
        Self { system, critic }
    }

    fn batch(&self, step: u64) -> PackedBatch {
        let batch = batch(step);
        PackedBatch::pack(&self.system.blobs(), &batch).expect("there is room")
    }

    async fn values(&self, step: u64) -> Result<Vec<Vec<f32>>, Failure> {
        let values = Values(self.batch(step));
        let values = self.critic.ask(values).await.expect("an answer")?;
        Ok(values.unpack().await.expect("it is here"))
    }

    /// Values before a step, and the loss of learning it.
    async fn learn(&self, step: u64) -> (Vec<Vec<f32>>, f64) {
        let values = self.values(step).await.expect("values");
        let returns = vec![vec![1.0 / step as f32; 2]; 4];
        let learn = || Learn {
            batch: self.batch(step),
            returns: Packed::pack(&self.system.blobs(), &returns).expect("there is room"),
        };
        let loss = self.critic.ask(learn()).await.expect("an answer");
        // The answer may have been lost.
        assert_eq!(self.critic.ask(learn()).await.expect("an answer"), loss);
        (values, loss.expect("a loss"))
    }

    async fn save(&self, step: u64) -> Result<(), Failure> {
        self.critic.ask(SaveCritic(step)).await.expect("an answer")
    }
}

/// Both kinds of engine, with a folder.
fn critics() -> impl Iterator<Item = (EngineSpec, tempfile::TempDir)> {
    [true, false].into_iter().map(|compute| {
        let folder = tempfile::tempdir().expect("a folder");
        let spec = match compute {
            true => tiny(&folder.path().join("base"), 0, 1),
            false => plan(folder.path(), STEPS).trainer_engine,
        };
        (spec, folder)
    })
}

/// SEMANTICS 33.
/// The critic saves first, and the trainer may be lost before it does as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critic_that_saved_what_the_trainer_lost_goes_back_to_its_checkpoint_before() {
    for (engine, folder) in critics() {
        let checkpoint = folder.path().join("critic");
        let critic = Rated::start(&engine, &checkpoint).await;
        let mut undisturbed = vec![];
        for step in 1..=6 {
            undisturbed.push(critic.learn(step).await);
            if step % 2 == 0 {
                critic.save(step).await.unwrap();
                critic.save(step).await.unwrap();
            }
        }
        assert_ne!(undisturbed[4].0, undisturbed[5].0);
        // The trainer comes back at step 4, and is lost again.
        for step in [5, 6, 5] {
            assert_eq!(critic.learn(step).await, undisturbed[step as usize - 1]);
        }
        critic.system.shutdown().await;

        // Nor is what it had saved at step 6 taken by its next life.
        let critic = Rated::start(&engine, &checkpoint).await;
        critic.values(6).await.unwrap_err();
        for step in [5, 6] {
            assert_eq!(critic.learn(step).await, undisturbed[step as usize - 1]);
        }
        critic.save(6).await.unwrap();
        // A trainer that has no checkpoint begins anew.
        for step in 1..=2 {
            assert_eq!(critic.learn(step).await, undisturbed[step as usize - 1]);
        }
        critic.system.shutdown().await;
        let critic = Rated::start(&engine, &checkpoint).await;
        critic.values(2).await.unwrap_err();
        assert_eq!(critic.learn(1).await, undisturbed[0]);
        critic.system.shutdown().await;
    }
}

/// SEMANTICS 38.
/// It may be found damaged long after the start, when critic and trainer go back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_checkpoint_of_a_critic_is_fatal_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let engine = tiny(&folder.path().join("base"), 0, 1);
    let checkpoint = folder.path().join("critic");
    let critic = Rated::start(&engine, &checkpoint).await;
    critic.learn(1).await;
    critic.save(1).await.unwrap();
    critic.learn(2).await;
    let state = checkpoint.join("00000001-step-1/rank-00000-000.safetensors");
    let bytes = std::fs::read(&state).unwrap();
    std::fs::write(&state, &bytes[..bytes.len() / 2]).unwrap();
    let failure = critic.values(2).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Fatal);
    let told = failure.to_string();
    assert!(told.contains(&state.display().to_string()), "{told}");
    assert!(!told.contains("the trainer's state"), "{told}");
    critic.system.shutdown().await;
}

/// SEMANTICS 33.
/// Else the trainer's checkpoint had no counterpart, and every life of it were refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critic_that_was_lost_does_not_save_less_than_the_trainer() {
    for (engine, folder) in critics() {
        let checkpoint = folder.path().join("critic");
        let critic = Rated::start(&engine, &checkpoint).await;
        critic.learn(1).await;
        critic.save(1).await.unwrap();
        critic.learn(2).await;
        critic.system.shutdown().await;
        let critic = Rated::start(&engine, &checkpoint).await;
        let refused = critic.save(2).await.unwrap_err();
        assert_eq!(refused.kind, FailureKind::Error, "the trainer goes back");
        assert!(refused.message.contains("came back"), "{refused}");
        critic.learn(2).await;
        critic.save(2).await.unwrap();
        critic.system.shutdown().await;
    }
}

#[test]
fn an_engine_keeps_to_what_its_role_was_granted() {
    let granted = GrantedDevice {
        ordinal: 1,
        index: 6,
        model: "H200".to_owned(),
        memory: 40 << 30,
        milli: 500,
    };
    let spec = || tiny(Path::new("base"), 0, 1);
    let EngineSpec::Compute(held) = spec().within("critic", &[granted]) else {
        panic!("it computes");
    };
    let share = held.share.expect("it has one");
    assert_eq!((share.role.as_str(), share.device), ("critic", 1));
    assert_eq!(share.bytes, 40 << 30);
    let EngineSpec::Compute(free) = spec().within("critic", &[]) else {
        panic!("it computes");
    };
    assert_eq!(free.share, None, "nothing was granted, so it is as it was");
}

/// SEMANTICS 78.
#[test]
fn a_reply_goes_on_with_another_rollout_as_if_nothing_had_happened() {
    let folder = tempfile::tempdir().unwrap();
    let EngineSpec::Compute(mut spec) = tiny(folder.path(), 0, 1) else {
        unreachable!("it is a real one");
    };
    spec.sampling.response_max = 12;
    let spec = EngineSpec::Compute(spec);
    let weights = weights(spec.trainer().unwrap().as_mut());
    let rollout = || {
        let mut rollout = spec.rollout().unwrap();
        rollout.load(&weights).unwrap();
        rollout
    };
    for sample in 0..8 {
        let order = order(1, sample);
        let mut undisturbed = rollout();
        undisturbed.admit(&order).unwrap();
        let whole = next_of(undisturbed.as_mut());
        for steps in 1..whole.tokens.len() {
            let mut first = rollout();
            first.admit(&order).unwrap();
            for _ in 0..steps {
                assert!(first.step().unwrap().is_empty());
            }
            assert!(first.cache().used > 0);
            let begun = first.under_way(&|_| 0).pop().expect("it is under way");
            let rest = first.under_way(&|_| 1).pop().expect("it is under way");
            assert_eq!(rest.tokens, begun.tokens[1..]);
            first.withdraw();
            assert_eq!((first.active(), first.cache().used), (0, 0));

            let mut second = rollout();
            let partial = Partial {
                version: 0,
                life: 1,
                tokens: begun.tokens.clone(),
                log_probs: begun.log_probs.clone(),
                ..Partial::default()
            };
            let order = Order {
                partial: Some(partial),
                ..order.clone()
            };
            second.admit(&order).unwrap();
            let rest = next_of(second.as_mut());
            assert_eq!([begun.tokens, rest.tokens].concat(), whole.tokens);
            assert_eq!([begun.log_probs, rest.log_probs].concat(), whole.log_probs);
        }
    }
}

/// SEMANTICS 31, 78.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replies_of_rollouts_that_are_packed_together_are_whole_and_of_one_version() {
    // Replies of 3 to 66 tokens: the longest keep a rollout for long with few others.
    const GROUP: u32 = 64;
    const SLOTS: u32 = 24;
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path(), 1_000_000);
    let EngineSpec::Scripted(script) = &mut plan.rollout_engine else {
        unreachable!("it is a script");
    };
    script.slots = SLOTS as usize;
    let shortest = script.response;
    plan.store.ledger = LedgerConfig::new(GROUP, 1, 50);
    plan.rollouts = 3;
    plan.swap = Swap::Drain;
    plan.tell_every = Duration::from_millis(5);
    plan.repack = Some(Repack {
        period: Duration::from_millis(10),
        limits: RepackLimits::new(SLOTS),
    });
    let (system, mut run) = start_plan(plan).await;
    let packer = run.packer.expect("there is one");
    let mut seen = HashSet::new();
    let mut steps = 0;
    let begun = Clock::now();
    loop {
        let Report::Step(step) = next_report(&mut run, begun).await else {
            continue;
        };
        let Some(batch) = batch_of(&run, step.version).await else {
            continue;
        };
        for reply in &batch.trajectories {
            assert!(seen.insert(reply.id), "{:?} twice", reply.id);
            let whole = shortest + reply.id.sample as usize;
            assert_eq!(reply.response, vec![reply.version as u32; whole]);
            assert_eq!(reply.log_probs.len(), whole);
        }
        steps += 1;
        let packed = packer.ask(CountPacked).await.unwrap();
        if steps >= 20 && packed.moved > 0 {
            assert!(packed.emptied > 0);
            break;
        }
    }
    let counts = run.store.ask(Count).await.unwrap();
    assert!(counts.handed_in > 0);
    assert_eq!(counts.duplicates, 0);
    system.shutdown().await;
}

/// SEMANTICS 31.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_interrupted_trajectory_says_its_first_and_its_last_version() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path(), 1_000_000);
    let EngineSpec::Scripted(script) = &mut plan.rollout_engine else {
        unreachable!("it is a script");
    };
    // Several steps of the trainer long.
    script.response = 60;
    plan.store.ledger = LedgerConfig::new(4, 2, 1_000);
    plan.swap = Swap::Interrupt;
    let (system, mut run) = start_plan(plan).await;
    let mut mixed = false;
    let begun = Clock::now();
    while !mixed {
        let Report::Step(step) = next_report(&mut run, begun).await else {
            continue;
        };
        let Some(batch) = batch_of(&run, step.version).await else {
            continue;
        };
        for reply in &batch.trajectories {
            let made: Vec<u64> = reply.response.iter().map(|it| u64::from(*it)).collect();
            assert!(made.is_sorted(), "{made:?}");
            assert_eq!(made.first(), Some(&reply.version));
            assert_eq!(made.last(), Some(&reply.last_version));
            mixed |= reply.version < reply.last_version;
        }
    }
    system.shutdown().await;
}

/// SEMANTICS 32.
/// Stream generation: with weights that are handed over every so many steps, replies are only ever of
/// those, and no older than what was said.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn weights_that_are_handed_over_every_few_steps_make_all_the_replies() {
    const EVERY: u64 = 3;
    const STALENESS_MAX: u64 = 2 * EVERY - 1;
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path(), STEPS);
    plan.train.publish_every = EVERY;
    plan.store.ledger.staleness_max = STALENESS_MAX;
    let steps = steps_of(plan).await;
    assert_eq!(steps.len() as u64, STEPS);
    for step in steps {
        let trains = step.version - 1;
        for (age, count) in (0..).zip(&step.staleness) {
            let made = *count == 0 || (trains - age).is_multiple_of(EVERY);
            assert!(made, "step {}: {:?}", step.version, step.staleness);
        }
        assert!(step.staleness_max <= STALENESS_MAX);
        let all: u64 = step.staleness.iter().sum();
        assert_eq!(all, 8, "each of its replies is counted once");
    }
}

/// All steps of a run up to its end, in the order of their versions, each once.
async fn steps_of(plan: RunPlan) -> Vec<StepReport> {
    let (system, mut run) = start_plan(plan).await;
    let mut steps = vec![];
    let following = async {
        while let Some(report) = run.reports.recv().await {
            match report {
                Report::Step(step) => steps.push(StepReport {
                    seconds: 0.0,
                    publish_seconds: 0.0,
                    ..step
                }),
                Report::Finished(_) => break,
                _ => {}
            }
        }
    };
    let ended = Clock::timeout(PATIENCE, following).await;
    ended.expect("the run ends");
    system.shutdown().await;
    steps
}

/// SEMANTICS 77.
/// Groups that are left out, greedy replies, critics that learn first, prices and updates with parts
/// of a batch: all of it goes on as if nothing had happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_run_that_goes_on_makes_the_same_steps_to_the_bit() {
    let gae = Gae {
        gamma: 1.0,
        lambda: Lambda::LengthAdaptive { alpha: 0.4 },
        value_lambda: Some(1.0),
    };
    let price = Lagrangian {
        multiplier: 0.5,
        rate: 0.3,
        limit: 0.4,
    };
    let group = Baseline::Group(GroupBaseline::default());
    let refilled = Uniform::Refilled { rounds: 4 };
    let algorithms = [
        ("dapo", group, refilled, Greedy::No, None),
        ("remax", Baseline::Greedy, Uniform::Kept, Greedy::Yes, None),
        (
            "vapo",
            Baseline::Critic(gae),
            Uniform::Kept,
            Greedy::No,
            None,
        ),
        (
            "safe_rlhf",
            Baseline::Critic(gae),
            Uniform::Kept,
            Greedy::No,
            Some(price),
        ),
    ];
    for (name, baseline, uniform, greedy, price) in algorithms {
        let plan = |folder: &Path, steps: u64| {
            let EngineSpec::Compute(mut spec) = tiny(&folder.join("base"), 0, 1) else {
                unreachable!("it is a real one");
            };
            spec.minibatches = 2;
            spec.pretrain = 0.1;
            // Rewards differ with it: a model of this size is never right.
            spec.task = TaskSpec::Sums(SumsConfig {
                format_reward: 0.5,
                ..SumsConfig::default()
            });
            let engine = EngineSpec::Compute(spec.clone());
            let mut plan = plan(&folder.join("checkpoint"), steps);
            plan.store.task = spec.task;
            plan.store.ledger = LedgerConfig {
                uniform,
                greedy,
                ..LedgerConfig::new(4, 2, 0)
            };
            plan.rollout_engine = engine.clone();
            plan.trainer_engine = engine;
            plan.train.warmup = 4;
            plan.train.value_steps = if baseline.has_critic() { 2 } else { 0 };
            plan.train.checkpoint_every = 3;
            plan.train.baseline = baseline;
            plan.train.overlong = Some(Overlong { limit: 4, cache: 2 });
            plan.train.price = price;
            plan.harm = price.map(|_| Harm::Length(4));
            plan
        };
        let whole = tempfile::tempdir().unwrap();
        let undisturbed = steps_of(plan(whole.path(), 6)).await;
        assert_eq!(undisturbed.len(), 6);
        let parts = tempfile::tempdir().unwrap();
        let mut steps = steps_of(plan(parts.path(), 3)).await;
        steps.extend(steps_of(plan(parts.path(), 6)).await);
        assert_eq!(steps, undisturbed, "{name}");
        let model = |folder: &Path| {
            let model = latest_model(&folder.join("checkpoint")).unwrap().unwrap();
            read_model(&model).unwrap()
        };
        assert!(model(whole.path()) == model(parts.path()), "{name}");
        if matches!(uniform, Uniform::Refilled { .. }) {
            assert!(steps.iter().any(|step| step.uniform_groups > 0), "{name}");
        }
    }
}
