//! The graph of a run under virtual time: the real actors, engines that think.

use std::path::PathBuf;
use std::time::Duration;

use odeon::simulation::SimulationSpec;
use odeon::{Clock, System};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::modelled::{Delivery, Modelled};
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
use odeon_algorithms::cost::{Card, ModelSize};
use odeon_algorithms::objective::{Baseline, GroupBaseline};
use odeon_algorithms::signs::Watch;
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::workload::WorkloadSpec;

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
        delivery: Delivery::Relays(1),
    }
}

/// How rollouts change to newer weights, and how old these may be.
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

/// What came of a run.
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

/// What each of the means against long tails is worth, in the order in which they were found.
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
