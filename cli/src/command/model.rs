//! From a recipe to a plan, and from a name on the command line to a model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::compute::{
    ComputeSpec, ModelSource, Sampler, Sampling, build, latest_model, read_model, read_tokenizer,
};
use odeon_actors::recipe::{Algorithm, Recipe};
use odeon_actors::rl::run::RunPlan;
use odeon_actors::rl::store::StoreArgs;
use odeon_algorithms::fetch;
use odeon_algorithms::model::ModelConfig;
use odeon_algorithms::objective::{KlEstimator, KlPenalty, PolicyObjective, Reduction};
use odeon_algorithms::task::TaskSpec;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_gpu::Cpu;

/// The folder that fetched models and data sets lie in; `ODEON_MODELS` names another.
pub(crate) fn models() -> PathBuf {
    std::env::var_os("ODEON_MODELS").map_or_else(|| PathBuf::from("models"), PathBuf::from)
}

/// Everything that a run is made from.
pub(crate) fn plan(recipe: &Recipe) -> Result<RunPlan> {
    let folder = recipe.folder();
    let folder =
        std::path::absolute(&folder).with_context(|| format!("{} is no path", folder.display()))?;
    let (source, tokenizer) = policy(recipe)?;
    let spec = ComputeSpec {
        source,
        tokenizer: tokenizer.clone(),
        task: recipe.task.clone(),
        seed: recipe.run.seed,
        threads: recipe.processes.trainer_threads,
        context: recipe.model.context,
        lora_rank: recipe.model.lora_rank,
        warmup_batch: recipe.warmup.batch,
        warmup_steps: recipe.warmup.steps,
        warmup_lr: recipe.warmup.lr,
        lr: recipe.rl.lr,
        critic_lr: recipe.rl.critic_lr,
        epochs: recipe.rl.epochs,
        objective: objective(recipe),
        sampling: Sampling {
            temperature: recipe.rl.temperature,
            top_p: recipe.rl.top_p,
            response_max: recipe.rl.response_max,
        },
        slots: recipe.processes.slots,
        base: folder.join("base"),
    };
    let rollout = ComputeSpec {
        threads: recipe.processes.rollout_threads,
        ..spec.clone()
    };
    Ok(RunPlan {
        store: StoreArgs {
            task: recipe.task.clone(),
            seed: recipe.run.seed,
            tokenizer,
            group_size: recipe.rl.group_size,
            groups_per_batch: recipe.rl.groups,
            staleness_max: recipe.rl.staleness_max,
        },
        rollout_engine: EngineSpec::Compute(Box::new(rollout)),
        trainer_engine: EngineSpec::Compute(Box::new(spec)),
        rollouts: recipe.processes.rollouts,
        critic: recipe.rl.algorithm == Algorithm::Ppo,
        reference: recipe.rl.kl > 0.0,
        warmup: recipe.warmup.steps,
        steps: recipe.rl.steps,
        checkpoint_every: recipe.rl.checkpoint_every,
        checkpoint: folder.join("checkpoint"),
        eval_problems: recipe.eval.problems,
        eval_every: recipe.eval.every,
        gamma: recipe.rl.gamma,
        lambda: recipe.rl.lambda,
    })
}

fn policy(recipe: &Recipe) -> Result<(ModelSource, Tokenizer)> {
    let model = &recipe.model;
    let Some(load) = &model.load else {
        let tokenizer = Tokenizer::arithmetic();
        let config = ModelConfig {
            vocab: tokenizer.vocabulary(),
            dim: model.hidden,
            layers: model.layers,
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.hidden / model.heads,
            ffn: model.ffn,
            ..ModelConfig::default()
        };
        return Ok((ModelSource::Fresh(config), tokenizer));
    };
    let path = std::path::absolute(find(load)?)?;
    let tokenizer = read_tokenizer(&path).map_err(|failure| anyhow!("{failure}"))?;
    Ok((ModelSource::Load(path), tokenizer))
}

fn objective(recipe: &Recipe) -> PolicyObjective {
    PolicyObjective {
        clip_low: recipe.rl.clip_low,
        clip_high: recipe.rl.clip_high,
        kl: (recipe.rl.kl > 0.0).then_some(KlPenalty {
            coefficient: recipe.rl.kl,
            estimator: KlEstimator::K3,
        }),
        entropy_coefficient: recipe.rl.entropy,
        reduction: Reduction::TokenMean,
    }
}

/// Where a model lies: a fetched one's name, a run's folder, a model folder, or a `.gguf` file.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    if let Some(artefact) = fetch::Artefact::named(name) {
        let path = models().join(artefact.file);
        if !path.exists() {
            bail!(
                "{} is not here yet; run `odeon fetch {name}` first",
                path.display()
            );
        }
        return Ok(path);
    }
    let path = Path::new(name);
    let checkpoint = path.join("checkpoint");
    if checkpoint.exists() {
        let latest = latest_model(&checkpoint).map_err(|failure| anyhow!("{failure}"))?;
        return latest.with_context(|| format!("{} has no checkpoint yet", path.display()));
    }
    if path.join("config.json").exists() || path.extension().is_some_and(|e| e == "gguf") {
        return Ok(path.to_owned());
    }
    bail!(
        "`{name}` is no run with a checkpoint, no folder with config.json, no .gguf file, and no \
         name that `odeon fetch` knows"
    );
}

/// A model that answers.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) sampler: Sampler,
}

/// Loads a model for sampling.
pub(crate) fn load(name: &str, sampling: Sampling, threads: usize) -> Result<Loaded> {
    let path = find(name)?;
    let fail = |failure| anyhow!("{failure}");
    let tokenizer = read_tokenizer(&path).map_err(fail)?;
    let model = build(&read_model(&path).map_err(fail)?, Cpu::new(threads), false).map_err(fail)?;
    let context = CONTEXT_MAX.max(sampling.response_max * 2);
    let mut sampler = Sampler::of(
        model.config().clone(),
        Cpu::new(threads),
        sampling,
        tokenizer.eos(),
        SLOTS,
        context,
    )
    .map_err(fail)?;
    sampler.load(model.flat()).map_err(fail)?;
    Ok(Loaded { tokenizer, sampler })
}

/// The task of a run, from the recipe in its folder.
pub(crate) fn task_of_run(name: &str) -> Option<(TaskSpec, u64, usize)> {
    let recipe = Recipe::read(&Path::new(name).join(super::run::RECIPE)).ok()?;
    Some((recipe.task, recipe.run.seed, recipe.rl.response_max))
}

/// Room for prompt and response when sampling by hand.
const CONTEXT_MAX: usize = 1024;

/// Prompts answered at once.
const SLOTS: usize = 16;
