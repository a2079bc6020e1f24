//! Bytes that `send = "changes"` saves: the model of `recipes/rl-sums.toml` learns for some steps,
//! and what its trainer hands to the relay is counted, at several learning rates.
//!
//! ```sh
//! cargo bench -p odeon-actors --bench changes
//! ```

#![allow(clippy::print_stdout, reason = "its table is what it is for")]

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use odeon::{Clock, Ref, System};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::compute::{
    ComputeSpec, Device, ModelSource, Precision, Sampling, policy_optimizer,
};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::chain::delta::Word;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::relay::Latest;
use odeon_actors::rl::report::Report;
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::source::{CountHanded, HandingCounts, Source};
use odeon_actors::rl::store::StoreArgs;
use odeon_actors::rl::trainer::TrainPlan;
use odeon_algorithms::model::{ModelConfig, Recompute};
use odeon_algorithms::objective::{Baseline, GroupBaseline, PolicyObjective};
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Schedule, Sharing};
use odeon_algorithms::weights::StoredType;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;

const WARMUP: u64 = 80;
/// The first versions are whole, and no part of what is counted.
const BEFORE: u64 = 4;
const STEPS: u64 = 24;
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    odeon_actors::rl::job().run(run)
}

async fn run(system: System) -> anyhow::Result<()> {
    println!("| learning rate | weights | of their bytes travel |");
    println!("| --- | --- | --- |");
    let bf16 = (StoredType::Bf16, Word::Two);
    let f32 = (StoredType::F32, Word::Four);
    for (lr, (weights, word)) in [
        (6e-4, bf16),
        (1e-4, bf16),
        (1e-5, bf16),
        (1e-6, bf16),
        (1e-6, f32),
    ] {
        let HandingCounts { whole, travelled } = measure(&system, lr, weights, word).await?;
        let part = 100.0 * travelled as f64 / whole as f64;
        println!("| {lr:e} | {weights:?} | {part:.1} % |");
    }
    Ok(())
}

/// Trains for some steps at this learning rate, and counts the bytes sent for their versions.
async fn measure(
    system: &System,
    lr: f32,
    weights: StoredType,
    word: Word,
) -> anyhow::Result<HandingCounts> {
    let folder = tempfile::tempdir()?;
    let plan = plan(folder.path(), lr, weights, word);
    let mut run = Run::start(system, plan).await?;
    let mut before = HandingCounts::default();
    loop {
        match run.reports.recv().await.context("the monitor lives")? {
            Report::Step(step) if step.version == BEFORE => {
                before = handed(system, &run, step.version).await?;
            }
            Report::Finished(progress) => {
                let all = handed(system, &run, progress.version).await?;
                let mut actors = vec![run.trainer.id()];
                actors.extend(run.rollouts.iter().map(Ref::id));
                actors.extend(run.relays.iter().map(Ref::id));
                for actor in actors {
                    system.admin().stop_actor(actor, STOPPED_WITHIN).await?;
                }
                return Ok(HandingCounts {
                    whole: all.whole - before.whole,
                    travelled: all.travelled - before.travelled,
                });
            }
            _ => {}
        }
    }
}

/// Counts of the bytes that the trainer has handed on, once the relay has this version or a later
/// one.
async fn handed(system: &System, run: &Run, version: u64) -> anyhow::Result<HandingCounts> {
    loop {
        let latest = run.relays[0].ask(Latest).await?;
        if latest.is_some_and(|it| it.edition.version() >= version) {
            break;
        }
        Clock::sleep(Duration::from_millis(5)).await;
    }
    let actors = system.admin().actors().await;
    let source = actors
        .iter()
        .find(|view| view.actor == "rl.Source" && view.parent == run.trainer.id());
    let id = source.context("the trainer has a source")?.id;
    // Nobody but the trainer has its address.
    let source: Ref<Source> = serde_json::from_value(serde_json::json!([id, 0]))?;
    Ok(source.ask(CountHanded).await?)
}

fn plan(folder: &Path, lr: f32, weights: StoredType, word: Word) -> RunPlan {
    let tokenizer = Tokenizer::arithmetic();
    let task = TaskSpec::Sums(SumsConfig {
        operands_min: 3,
        operands_max: 3,
        digits_max: 1,
        ..SumsConfig::default()
    });
    let model = ModelConfig {
        vocab: tokenizer.vocabulary(),
        dim: 128,
        layers: 3,
        heads: 4,
        kv_heads: 4,
        head_dim: 32,
        ffn: 344,
        ..ModelConfig::default()
    };
    let engine = EngineSpec::Compute(Box::new(ComputeSpec {
        source: ModelSource::Fresh(Box::new(model)),
        tokenizer: tokenizer.clone(),
        task: task.clone(),
        programs: ProgramSpec::default(),
        environment: None,
        seed: 7,
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        context: 32,
        lora_rank: 0,
        warmup_batch: 64,
        warmup_steps: WARMUP,
        warmup_lr: 2e-3,
        lr,
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
        weights,
        slots: 64,
        base: folder.join("base"),
        share: None,
    }));
    RunPlan {
        store: StoreArgs {
            task,
            seed: 7,
            tokenizer,
            ledger: LedgerConfig::new(16, 64, 1),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing: Sharing::ALONE,
        recovery: LadderPolicy::default(),
        rollouts: 2,
        relays: 1,
        forms: Forms::Changes(word),
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
            warmup: WARMUP,
            steps: STEPS,
            value_steps: 0,
            checkpoint_every: STEPS,
            publish_every: 1,
            checkpoint: folder.join("checkpoint"),
            eval_problems: 1,
            eval_every: 0,
            baseline: Baseline::Group(GroupBaseline::default()),
            overlong: None,
            price: None,
        },
        watch: Watch::new(STEPS),
    }
}
