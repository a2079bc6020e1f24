//! Reinforcement learning in a few seconds: a tiny transformer, two rollout processes, a trainer, a
//! relay. Supervised steps teach it the form of sums, reward alone makes it better.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::compute::{
    ComputeSpec, Device, ModelSource, Precision, Sampling, policy_optimizer,
};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::report::Report;
use odeon_actors::rl::rollout::Swap;
use odeon_actors::rl::run::{Processes, RoleNeeds, Run, RunPlan};
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

fn plan(folder: &Path) -> RunPlan {
    let tokenizer = Tokenizer::arithmetic();
    let task = TaskSpec::Sums(SumsConfig {
        operands_min: 2,
        operands_max: 3,
        digits_max: 1,
        ..SumsConfig::default()
    });
    let model = ModelConfig {
        vocab: tokenizer.vocabulary(),
        dim: 64,
        layers: 2,
        head_dim: 16,
        ffn: 172,
        ..ModelConfig::default()
    };
    let spec = ComputeSpec {
        source: ModelSource::Fresh(Box::new(model)),
        tokenizer: tokenizer.clone(),
        task: task.clone(),
        programs: ProgramSpec::default(),
        environment: None,
        seed: 3,
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        context: 24,
        lora_rank: 0,
        warmup_batch: 64,
        warmup_steps: 100,
        warmup_lr: 3e-3,
        lr: 8e-4,
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
    };
    let engine = EngineSpec::Compute(Box::new(spec));
    RunPlan {
        store: StoreArgs {
            task,
            seed: 3,
            tokenizer,
            ledger: LedgerConfig::new(16, 48, 1),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing: Sharing::ALONE,
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
            warmup: 100,
            steps: 120,
            value_steps: 0,
            checkpoint_every: 120,
            publish_every: 1,
            checkpoint: folder.join("checkpoint"),
            eval_problems: 200,
            eval_every: 0,
            baseline: Baseline::Group(GroupBaseline::default()),
            overlong: None,
            price: None,
        },
        watch: Watch::new(120),
    }
}

fn main() -> Result<()> {
    odeon_actors::rl::job().run(async |system| {
        let folder = std::env::temp_dir().join(format!("odeon-rl-tiny-{}", std::process::id()));
        let mut run = Run::start(&system, plan(&folder)).await?;
        let mut rewards = vec![];
        loop {
            match run
                .reports
                .recv()
                .await
                .context("the run has lost its monitor")?
            {
                Report::Step(step) => rewards.push(step.reward),
                Report::Evaluated { version, stats } => {
                    println!("step {version}: {:.0} % right", 100.0 * stats.accuracy());
                }
                Report::Finished(_) => break,
                _ => {}
            }
        }
        std::fs::remove_dir_all(&folder)?;
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (first, last) = (mean(&rewards[..10]), mean(&rewards[rewards.len() - 10..]));
        println!("reward of sampled answers: {first:.2} at first, {last:.2} at last");
        ensure!(last > 1.3 * first, "the reward did not rise");
        Ok(())
    })
}
