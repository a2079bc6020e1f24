//! The graph of a run under virtual time: the real actors, engines that think.

use std::path::PathBuf;
use std::time::Duration;

use odeon::simulation::SimulationSpec;
use odeon::{Clock, System};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::modelled::{Delivery, Modelled, Prefixes};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::packer::{CountPacked, PackerCounts};
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::repack::RepackLimits;
use odeon_actors::rl::report::Report;
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, Repack, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::{Count, StoreArgs};
use odeon_actors::rl::trainer::TrainPlan;
use odeon_actors::simulate::{Mode as Way, Outcome as Simulated, Scenario};
use odeon_algorithms::cost::{Card, ModelSize};
use odeon_algorithms::objective::{Baseline, GroupBaseline};
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::workload::WorkloadSpec;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;

const STEPS: u64 = 12;
const SLOTS: usize = 32;

/// Each rollout has a card.
fn modelled() -> Modelled {
    Modelled {
        workload: WorkloadSpec::math(5),
        quantum: 16,
        card: Card::h800(),
        model: ModelSize::qwen2_5_7b(),
        rollout_gpus: 1,
        slots: SLOTS,
        trainer_gpus: 8,
        trainer_tensor: 2,
        updates: 1,
        delivery: Delivery::Relays(1),
        prefixes: Prefixes::Shared,
        starts: Duration::ZERO,
    }
}

/// The way in which rollouts change to newer weights, and the age that these may have.
#[derive(Clone, Copy)]
struct Mode {
    swap: Swap,
    repack: bool,
    staleness_max: u64,
}

fn plan(mode: Mode, rollouts: usize) -> RunPlan {
    let engine = EngineSpec::Modelled(Box::new(modelled()));
    RunPlan {
        store: StoreArgs {
            task: TaskSpec::Sums(SumsConfig::default()),
            seed: 7,
            tokenizer: Tokenizer::arithmetic(),
            ledger: LedgerConfig::new(8, 16, mode.staleness_max),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing: odeon_algorithms::train::Sharing::ALONE,
        recovery: LadderPolicy::default(),
        rollouts,
        relays: 1,
        forms: Forms::Full,
        swap: mode.swap,
        tell_every: Duration::from_secs(30),
        repack: mode.repack.then(|| Repack {
            period: Duration::from_secs(5),
            limits: RepackLimits::new(SLOTS as u32),
        }),
        processes: Processes::Shared,
        needs: RoleNeeds::default(),
        reference: false,
        programs: ProgramSpec::default(),
        environment: None,
        learned: None,
        harm: None,
        train: TrainPlan {
            warmup: 0,
            steps: STEPS,
            value_steps: 0,
            checkpoint_every: 1,
            publish_every: 1,
            checkpoint: PathBuf::new(),
            eval_problems: 1,
            eval_every: 0,
            baseline: Baseline::Group(GroupBaseline::default()),
            overlong: None,
            price: None,
        },
        watch: Watch::new(STEPS),
    }
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    /// Of virtual time.
    seconds: f64,
    /// Of each step.
    batches: Vec<(u32, u64, u64)>,
    packed: PackerCounts,
    duplicates: u64,
}

fn simulate(seed: u64, mode: Mode, rollouts: usize) -> Outcome {
    let spec = SimulationSpec::new(odeon_actors::rl::job()).nodes(1);
    System::simulated(seed, spec).run(async |world| {
        let begun = Clock::now();
        let mut run = Run::start(&world.nodes[0], plan(mode, rollouts))
            .await
            .expect("a run starts");
        let mut batches = vec![];
        let following = async {
            loop {
                match run.reports.recv().await.expect("the monitor lives") {
                    Report::Step(step) => {
                        batches.push((
                            step.batch_checksum,
                            step.response_tokens,
                            step.staleness_max,
                        ));
                    }
                    Report::Finished(_) => break,
                    _ => {}
                }
            }
        };
        // Of virtual time.
        let month = Duration::from_secs(30 * 86_400);
        let ended = Clock::timeout(month, following).await;
        ended.expect("the run ends");
        let packed = match run.packer {
            Some(packer) => packer.ask(CountPacked).await.expect("it answers"),
            None => PackerCounts::default(),
        };
        let counts = run.store.ask(Count).await.expect("it answers");
        Outcome {
            seconds: Clock::now().since(begun).as_secs_f64(),
            batches,
            packed,
            duplicates: counts.duplicates,
        }
    })
}

const LAMINAR: Mode = Mode {
    swap: Swap::Drain,
    repack: true,
    staleness_max: 1_000,
};

/// SEMANTICS 36.
#[test]
fn the_same_seed_gives_the_same_run() {
    let first = simulate(3, LAMINAR, 8);
    assert_eq!(first.batches.len() as u64, STEPS);
    assert_eq!(simulate(3, LAMINAR, 8), first);
}

/// The gain of each of the means against long tails, in the order in which they were found.
#[test]
fn a_run_without_barriers_takes_less_time_and_one_that_packs_still_less() {
    let synchronous = Mode {
        swap: Swap::Drain,
        repack: false,
        staleness_max: 0,
    };
    let drained = Mode {
        staleness_max: 1_000,
        ..synchronous
    };
    let [synchronous, drained, packed] =
        [synchronous, drained, LAMINAR].map(|mode| simulate(3, mode, 8));
    for outcome in [&synchronous, &drained, &packed] {
        assert_eq!(outcome.duplicates, 0);
    }
    assert!(synchronous.batches.iter().all(|(.., stale)| *stale == 0));
    assert!(packed.packed.moved > 0);
    assert!(
        packed.seconds < drained.seconds && drained.seconds < synchronous.seconds,
        "{} {} {}",
        packed.seconds,
        drained.seconds,
        synchronous.seconds
    );
}

/// 7B on one-card rollouts, half of the machines; a step is 64 prompts with 8 replies.
const SCENARIO: &str = r#"
[simulation]
name = "small"
seed = 3
card = "h800"
gpus = [32, 64]
iterations = 12
skip = 3
modes = ["laminar"]

[workload]
prompts = 64
group_size = 8
mini_batches = 4
kind = "math"

[[model]]
size = "qwen2.5-7b"
rollout_gpus = 1
trainer_tensor = 2
rollout_share = 0.5
in_flight = 1.0
"#;

fn simulated(text: &str, gpus: u32, way: Way) -> Simulated {
    let scenario = Scenario::parse(text).expect("it is a scenario");
    let outcome = scenario.run(&scenario.model[0], gpus, way);
    outcome.expect("it can be simulated")
}

#[test]
fn every_mode_keeps_its_staleness_and_one_without_barriers_is_the_quickest() {
    let bounds = [
        (Way::Synchronous, 0),
        (Way::OneStep, 1),
        (Way::Stream, 1),
        (Way::Partial, 4),
        (Way::Drain, u64::MAX),
        (Way::Laminar, u64::MAX),
        (Way::Overlap, u64::MAX),
    ];
    let outcomes = bounds.map(|(way, bound)| {
        let outcome = simulated(SCENARIO, 32, way);
        assert!(outcome.staleness_max <= bound, "{outcome:?}");
        assert_eq!(outcome.staleness.iter().sum::<u64>(), 9 * 64 * 8, "{way:?}");
        assert!(
            outcome.inherent_max <= outcome.staleness_max + 1,
            "{outcome:?}"
        );
        assert!(
            outcome.rollouts_busy + outcome.rollouts_idle <= 1.001,
            "{outcome:?}"
        );
        assert!((0.0..=1.0).contains(&outcome.cache_filled), "{outcome:?}");
        assert!(outcome.trainer_busy <= 1.0, "{outcome:?}");
        // With a bound, what is complete too late is made again.
        let bounded = (1..u64::MAX).contains(&bound);
        assert!(bounded || outcome.wasted == 0, "{outcome:?}");
        outcome
    });
    let rate = |way| {
        let mut all = outcomes.iter();
        let outcome = all.find(|it| it.mode == way);
        outcome.expect("all were simulated").tokens_per_s
    };
    for slower in [
        Way::Synchronous,
        Way::OneStep,
        Way::Stream,
        Way::Partial,
        Way::Drain,
    ] {
        assert!(rate(Way::Laminar) > rate(slower), "{slower:?}");
    }
    assert!(rate(Way::Stream) >= 0.98 * rate(Way::OneStep));
}

/// SEMANTICS 81.
#[test]
fn the_trainer_stands_still_as_long_however_many_rollouts_there_are() {
    let [few, many] = [32, 64].map(|gpus| simulated(SCENARIO, gpus, Way::Laminar));
    assert!(few.publish_s > 0.0);
    let apart = (few.publish_s - many.publish_s).abs();
    assert!(
        apart < 0.01 * few.publish_s,
        "{} {}",
        few.publish_s,
        many.publish_s
    );
}

/// SEMANTICS 36.
#[test]
fn training_goes_on_while_a_lost_machine_is_replaced_and_nothing_is_lost_with_it() {
    let text =
        format!("{SCENARIO}\n[failure]\nafter_step = 5\nrollouts = 8\nreplaced_seconds = 30.0\n");
    let text = text.replace("iterations = 12", "iterations = 24");
    let outcome = simulated(&text, 32, Way::Laminar);
    let lost = outcome.failure.expect("a machine was lost");
    assert!((30.0..60.0).contains(&lost.recovered_s), "{lost:?}");
    assert!(
        lost.during < lost.before && lost.during < lost.after,
        "{lost:?}"
    );
    assert!(lost.reordered > 0, "{lost:?}");
    assert_eq!(outcome.staleness.iter().sum::<u64>(), 21 * 64 * 8);
    assert_eq!(
        simulated(&text, 32, Way::Laminar),
        outcome,
        "the same file, the same loss"
    );
}
