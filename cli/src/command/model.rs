//! From a recipe to a plan, and from a name on the command line to a model.

pub(crate) mod check;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use odeon::{Needs, gib};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::compute::{
    ComputeSpec, ModelDescription, ModelSource, Sampler, Sampling, check_reward_model,
    is_checkpoint, latest_model, read_fields, read_model,
};
use odeon_actors::hybrid::workers::JudgeArgs;
use odeon_actors::hybrid::{Choice, HybridPlan};
use odeon_actors::recipe::{
    CostRule, CostSection, EnvironmentSection, LrSchedule, PlacementSection, Recipe, RecipeError,
    Source,
};
use odeon_actors::rl::cost::Harm;
use odeon_actors::rl::repack::RepackLimits;
use odeon_actors::rl::reward_model::LearnedReward;
use odeon_actors::rl::run::{Processes, Repack, RoleNeeds, RunPlan};
use odeon_actors::rl::store::StoreArgs;
use odeon_actors::rl::trainer::TrainPlan;
use odeon_algorithms::environment::{Environment, EnvironmentConfig};
use odeon_algorithms::fetch;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::Schedule;
use odeon_algorithms::weights::ModelFields;
use odeon_checkpoint::export::{Export, export};
use odeon_checkpoint::{Dtype, Opened, Which};
use odeon_diagnosis::run::Watch;
use odeon_gpu::{Any, Cpu, Device};
use odeon_placement::mapping::Mapping;
use tempfile::TempDir;

use super::mapping;
use super::run::{BASE, CHECKPOINT, RECIPE, REWARD_MODEL};
use crate::args::SamplerArgs;
use crate::print;
use crate::waiter::Waiter;

/// The folder that fetched models and data sets lie in; `ODEON_MODELS` names another.
pub(crate) fn models() -> PathBuf {
    std::env::var_os("ODEON_MODELS").map_or_else(|| PathBuf::from("models"), PathBuf::from)
}

/// The device that computes. The recipe was checked to name a device; whether it is there, the
/// process that opens it says.
fn device(recipe: &Recipe) -> Result<Device> {
    Ok(recipe.run.device.parse()?)
}

/// Everything that a run is made from.
pub(crate) fn plan(text: &Source, recipe: &Recipe) -> Result<RunPlan> {
    let folder = recipe.folder();
    let folder =
        std::path::absolute(&folder).with_context(|| format!("{} is no path", folder.display()))?;
    let (source, tokenizer) = policy(text, recipe)?;
    let config = source.config().map_err(|failure| anyhow!("{failure}"))?;
    let placed = recipe.placed(&config);
    let sharing = placed.map_err(|failure| anyhow!("{failure}"))?.sharing();
    let learned = learned(text, recipe, &folder, &tokenizer)?;
    let spec = ComputeSpec {
        source,
        tokenizer: tokenizer.clone(),
        task: recipe.task.clone(),
        programs: recipe.programs(),
        environment: recipe.environment.as_ref().map(EnvironmentSection::config),
        seed: recipe.run.seed,
        device: device(recipe)?,
        threads: recipe.processes.trainer_threads,
        deterministic: recipe.run.deterministic,
        products: recipe.run.products(),
        context: recipe.model.context,
        lora_rank: recipe.model.lora_rank,
        warmup_batch: recipe.warmup.batch,
        warmup_steps: recipe.warmup.steps,
        warmup_lr: recipe.warmup.lr,
        lr: recipe.rl.lr,
        schedule: schedule(recipe),
        optimizer: recipe.rl.optimizer,
        recompute: recipe.rl.recompute,
        offload: recipe.rl.offload,
        critic_lr: recipe.rl.critic_lr,
        epochs: recipe.rl.epochs,
        minibatches: recipe.rl.minibatches,
        pretrain: recipe.rl.pretrain,
        objective: recipe.rl.objective(),
        sampling: Sampling {
            temperature: recipe.rl.temperature,
            top_p: recipe.rl.top_p,
            response_max: recipe.rl.response_max,
        },
        weights: recipe.processes.weights,
        slots: recipe.processes.slots,
        base: folder.join(BASE),
        share: None,
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
            ledger: recipe.rl.ledger(),
        },
        rollout_engine: match recipe.rollout.served(&rollout) {
            Some(mut served) => {
                // Rollouts may stand in other folders than this process.
                served.weights_dir = std::path::absolute(&served.weights_dir)?;
                EngineSpec::Served(Box::new(served))
            }
            None => EngineSpec::Compute(Box::new(rollout)),
        },
        trainer_engine: EngineSpec::Compute(Box::new(spec)),
        sharing,
        recovery: recipe.recovery.policy(),
        rollouts: recipe.processes.rollouts,
        relays: recipe.processes.relays,
        forms: recipe.processes.forms(),
        swap: recipe.rl.swap,
        tell_every: TELL_EVERY,
        repack: (recipe.rl.repack_seconds > 0.0).then(|| Repack {
            period: Duration::from_secs_f32(recipe.rl.repack_seconds),
            limits: RepackLimits::new(u32::try_from(recipe.processes.slots).unwrap_or(u32::MAX)),
        }),
        processes: Processes::Own,
        needs: needs(&recipe.placement),
        reference: recipe.rl.kl > 0.0,
        programs: recipe.programs(),
        environment: recipe.acting(),
        learned,
        harm: recipe.cost.as_ref().map(|cost| match cost.rule {
            CostRule::Length => Harm::Length(recipe.rl.response_max),
            CostRule::Text => Harm::Text(cost.text.clone()),
        }),
        train: TrainPlan {
            warmup: recipe.warmup.steps,
            steps: recipe.rl.steps_in_all(),
            value_steps: recipe.rl.value_steps(),
            checkpoint_every: recipe.rl.checkpoint_every,
            publish_every: recipe.rl.publish_every,
            checkpoint: folder.join(CHECKPOINT),
            eval_problems: recipe.eval.problems,
            eval_every: recipe.eval.every,
            baseline: recipe.rl.baseline(),
            overlong: recipe.rl.overlong(),
            price: recipe.cost.as_ref().map(CostSection::price),
        },
        watch: Watch::new(recipe.rl.steps_in_all()),
    })
}

/// The reward that a recipe has learnt, with the model that it loads seen to be there and of use.
fn learned(
    text: &Source,
    recipe: &Recipe,
    folder: &Path,
    tokenizer: &Tokenizer,
) -> Result<Option<LearnedReward>> {
    let load = match &recipe.reward.load {
        None => None,
        Some(load) => {
            let wrong = |what: &str| text.error("reward", "load", what);
            let path = std::path::absolute(load).map_err(|error| wrong(&error.to_string()))?;
            let of_run = path.join(REWARD_MODEL);
            let path = if of_run.exists() { of_run } else { path };
            let kind = recipe.reward.kind.unwrap_or_default();
            check_reward_model(&path, kind, tokenizer.vocabulary())
                .map_err(|failure| wrong(&failure.to_string()))?;
            Some(path)
        }
    };
    Ok(recipe.reward.learned(folder.join(REWARD_MODEL), load))
}

/// The run of a recipe whose models are placed, by the mapping where it wants one; `None` for one that
/// is asynchronous.
pub(crate) fn placed(
    recipe: &Recipe,
    plan: &RunPlan,
    mapping: Option<&Mapping>,
) -> Option<HybridPlan> {
    let placement = match recipe.placement.models? {
        Choice::Auto => mapping::placement(mapping?),
        Choice::Arranged(arrangement) => arrangement.into(),
    };
    let EngineSpec::Compute(spec) = &plan.trainer_engine else {
        unreachable!("recipes are computed");
    };
    Some(HybridPlan {
        spec: ComputeSpec::clone(spec),
        judge: JudgeArgs {
            task: recipe.task.clone(),
            programs: plan.programs.clone(),
            seed: recipe.run.seed,
            tokenizer: plan.store.tokenizer.clone(),
            harm: plan.harm.clone(),
            learned: plan
                .learned
                .clone()
                .map(|learned| (learned, Box::new(ComputeSpec::clone(spec)))),
        },
        program: recipe.rl.program(),
        groups: recipe.rl.groups as u64,
        group_size: recipe.rl.group_size,
        placement,
        ranks: recipe.placement.ranks,
        sharing: plan.sharing,
        recovery: plan.recovery.clone(),
        needs: (plan.needs.trainer.clone(), plan.needs.scorer.clone()),
        reference: plan.reference,
        train: plan.train.clone(),
        watch: plan.watch.clone(),
    })
}

/// The interval at which rollouts say how far they are: a second of work is lost with one at most.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The resources that the processes of a recipe reserve.
fn needs(placement: &PlacementSection) -> RoleNeeds {
    let of = |gpus: u32, cpus: f64| {
        let mut needs = Needs::new();
        if gpus > 0 {
            needs = needs.gpus(gpus);
            if placement.device_memory_gib > 0 {
                needs = needs.device_memory(gib(placement.device_memory_gib));
            }
        }
        if cpus > 0.0 {
            needs = needs.cpus(cpus);
        }
        if !needs.is_empty() {
            needs = needs.wait_for_room(Duration::from_secs(placement.wait_seconds));
        }
        needs
    };
    RoleNeeds {
        trainer: of(placement.trainer_gpus, placement.trainer_cpus),
        scorer: of(placement.scorer_gpus, 0.0),
        rollout: of(placement.rollout_gpus, placement.rollout_cpus),
    }
}

/// The policy that a recipe names, seen to be there, to fit the task and to fit this machine.
fn policy(text: &Source, recipe: &Recipe) -> Result<(ModelSource, Tokenizer), RecipeError> {
    let model = &recipe.model;
    let Some(load) = &model.load else {
        let tokenizer = recipe.tokenizer();
        let config = model.config(tokenizer.vocabulary());
        check_memory(text, recipe, &Shape::new(recipe, &tokenizer))?;
        return Ok((ModelSource::Fresh(Box::new(config)), tokenizer));
    };
    let wrong = |error: anyhow::Error| text.error("model", "load", &format!("{error:#}"));
    let absolute = |path| std::path::absolute(path).context("no path");
    let path = find(load).and_then(absolute).map_err(wrong)?;
    let described = ModelDescription::read(&path);
    let described = described.map_err(|failure| wrong(anyhow!("{failure}")))?;
    let trains = described.trains();
    trains.map_err(|failure| wrong(anyhow!("{failure}")))?;
    tell(&described);
    let shape = Shape::of_fields(&described.fields);
    let tokenizer = described.tokenizer;
    text.fits(recipe, &tokenizer, shape.hidden, shape.context)?;
    text.shared_out(recipe, &described.fields.model_config())?;
    check_memory(text, recipe, &shape)?;
    Ok((ModelSource::Load(path), tokenizer))
}

/// Sizes that a model's description tells without its weights.
pub(crate) struct Shape {
    pub(super) hidden: usize,
    pub(super) context: usize,
    pub(super) layers: usize,
    pub(super) parameters: u64,
    /// Numbers that a rollout keeps of each token.
    pub(super) cache_per_token: u64,
}

impl Shape {
    /// Of the policy of a recipe that was checked.
    pub(crate) fn of(recipe: &Recipe, plan: &RunPlan) -> Result<Self> {
        match &recipe.model.load {
            Some(load) => Self::read(&find(load)?),
            None => Ok(Self::new(recipe, &plan.store.tokenizer)),
        }
    }

    /// Of a model that begins at random.
    fn new(recipe: &Recipe, tokenizer: &Tokenizer) -> Self {
        let model = &recipe.model;
        let head = model.hidden / model.heads;
        Self {
            hidden: model.hidden,
            context: model.context,
            layers: model.layers,
            parameters: model.parameters(tokenizer.vocabulary()),
            cache_per_token: 2 * (model.layers * model.kv_heads * head) as u64,
        }
    }

    /// From a `.gguf` file or a model folder.
    fn read(path: &Path) -> Result<Self> {
        let fields = read_fields(path).map_err(|failure| anyhow!("{failure}"))?;
        Ok(Self::of_fields(&fields))
    }

    fn of_fields(fields: &ModelFields) -> Self {
        let shapes = fields.tensor_shapes().into_iter();
        let elements = shapes.map(|(_, shape)| shape.iter().product::<usize>() as u64);
        Self {
            hidden: fields.hidden,
            context: fields.longest(),
            layers: fields.layers,
            parameters: elements.sum(),
            cache_per_token: (2 * fields.layers * fields.kv_heads * fields.head_width) as u64,
        }
    }
}

/// Refuses what this machine has no memory for. An estimate from below: activations come on top.
fn check_memory(text: &Source, recipe: &Recipe, shape: &Shape) -> Result<(), RecipeError> {
    let sharing = recipe.sharing();
    // Ranks that share a policy which is placed all generate.
    let rollouts = match recipe.placement.models {
        Some(_) if sharing.ranks() > 1 => sharing.ranks() as u64,
        _ => recipe.processes.rollouts as u64,
    };
    let critics = u64::from(recipe.rl.baseline().has_critic()) + u64::from(recipe.cost.is_some());
    let references = u64::from(recipe.rl.kl > 0.0);
    // Weights, gradient and two moments; adapters alone have few.
    let of_trainer = if recipe.model.lora_rank == 0 { 4 } else { 1 };
    // A server has them on a machine of its own; a rollout holds them while it hands them over.
    // All of it is trained, beside the policy that it learns from.
    let rewards = if recipe.reward.is_learnt() { 5 } else { 0 };
    let held = match sharing.zero.has_shards() {
        true => sharing.replicas(),
        false => sharing.copies,
    };
    let of_ranks = (of_trainer * (1 + critics) + references) * held as u64;
    let copies = of_ranks + rewards + 1 + rollouts;
    let slots = recipe.processes.slots as u64;
    let cache = match recipe.rollout.dialect() {
        Some(_) => 0,
        None => rollouts * slots * recipe.model.context as u64,
    };
    let cache_bytes = cache
        .saturating_mul(shape.cache_per_token)
        .saturating_mul(4);
    let weight_bytes = shape.parameters.saturating_mul(copies * 4);
    let bytes = cache_bytes.saturating_add(weight_bytes);
    let machine = rustix::system::sysinfo();
    let there = machine.totalram as u64 * u64::from(machine.mem_unit);
    if bytes <= there {
        return Ok(());
    }
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let what = format!(
        "needs {:.1} GB at least ({:.1} for weights, {:.1} for what rollouts remember), and this \
         machine has {:.1}: make the model, slots, rollouts or context smaller",
        gigabytes(bytes),
        gigabytes(weight_bytes),
        gigabytes(cache_bytes),
        gigabytes(there)
    );
    Err(if cache_bytes > weight_bytes {
        text.error("processes", "slots", &what)
    } else {
        text.error("model", "hidden", &what)
    })
}

/// The learning rate of the reinforcement after its peak; each step of a run has so many updates as
/// there are passes over a batch.
fn schedule(recipe: &Recipe) -> Schedule {
    match recipe.rl.schedule {
        LrSchedule::Constant => Schedule::Constant,
        LrSchedule::Cosine => Schedule::Cosine {
            steps: recipe.rl.steps * (recipe.rl.epochs * recipe.rl.minibatches) as u64,
            floor: 0.1,
        },
    }
}

/// Where a model lies: that of a fetched one's name, the newest of a run's folder, a checkpoint, a model folder,
/// or a `.gguf` file.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    if let Some(artefact) = fetch::Artefact::named(name) {
        let path = models().join(artefact.file);
        if !path.exists() {
            bail!(
                "{} is not here yet; run `odeon fetch {name}` first",
                path.display()
            );
        }
        // It is there, so this only checks its hash.
        return Ok(fetch::fetch(&artefact, &models())?);
    }
    let path = Path::new(name);
    let checkpoint = path.join(CHECKPOINT);
    if checkpoint.exists() {
        let latest = latest_model(&checkpoint).map_err(|failure| anyhow!("{failure}"))?;
        return latest.with_context(|| format!("{} has no checkpoint yet", path.display()));
    }
    let gguf = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    if gguf && !path.is_file() {
        bail!("{} is not there", path.display());
    }
    if gguf || is_checkpoint(path) || path.join("config.json").exists() {
        return Ok(path.to_owned());
    }
    // The cache of the Hugging Face Hub has the folders of a model's revisions in one of its own.
    let main = fs::read_to_string(path.join("refs/main")).unwrap_or_default();
    let snapshot = path.join("snapshots").join(main.trim());
    if !main.trim().is_empty() && snapshot.join("config.json").exists() {
        return Ok(snapshot);
    }
    if path.join("adapter_config.json").exists() {
        bail!(
            "{name} is an adapter and no model: merge it into its base, with `merge_and_unload()` of peft and \
             `save_pretrained`, and load what that writes"
        );
    }
    bail!(
        "`{name}` is no run with a checkpoint, no folder with config.json, no .gguf file, and no \
         name that `odeon fetch` knows"
    );
}

/// A model folder, or a checkpoint's model put into one for as long as this lives.
#[derive(Debug)]
pub(crate) struct ModelFolder {
    pub(crate) path: PathBuf,
    _exported: Option<TempDir>,
}

impl ModelFolder {
    /// The folder of what [`find`] has found, for those who read files.
    pub(crate) fn of(found: &Path) -> Result<Self> {
        if !is_checkpoint(found) {
            return Ok(Self {
                path: found.to_owned(),
                _exported: None,
            });
        }
        let exported = tempfile::tempdir().context("making a folder for the model")?;
        let path = exported.path().join("model");
        Waiter::with_threads()?.block_on(async {
            let opened = Opened::at(found).await?;
            let opened = opened.with_context(|| format!("{} was renamed", found.display()))?;
            let step = Which::Step(opened.entry().step);
            let options = Export {
                dtype: Some(Dtype::F32),
                ..Export::default()
            };
            export(opened.storage(), step, &path, &options).await?;
            anyhow::Ok(())
        })?;
        Ok(Self {
            path,
            _exported: Some(exported),
        })
    }
}

/// Tells what is odd in a model's files.
pub(crate) fn tell(described: &ModelDescription) {
    for note in &described.notes {
        print::say(format!("odd: {note}"));
    }
}

/// A model that answers.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) sampler: Sampler,
    /// Room for prompt and response, in tokens.
    pub(crate) context: usize,
}

/// Loads the model that a command names, to draw as it says.
pub(crate) fn load_sampler(args: &SamplerArgs, top_p: f32) -> Result<Loaded> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_p,
        response_max: args.response_max,
    };
    load(&args.model, sampling, args.threads, args.seed, None)
}

/// Loads a model for sampling, whose answers may call what the environment has.
pub(crate) fn load(
    name: &str,
    sampling: Sampling,
    threads: usize,
    seed: u64,
    environment: Option<EnvironmentConfig>,
) -> Result<Loaded> {
    let path = find(name)?;
    let fail = |failure| anyhow!("{failure}");
    let described = ModelDescription::read(&path).map_err(fail)?;
    tell(&described);
    let tokenizer = described.tokenizer;
    let loaded = read_model(&path).map_err(fail)?;
    // Positions may end; others go on, if worse and worse.
    let longest = loaded.fields.positions();
    let longest = longest.unwrap_or(usize::MAX);
    let model = loaded
        .into_model(Cpu::new(threads))
        .with_context(|| format!("{} cannot be run", path.display()))?;
    let context = CONTEXT_MAX.max(sampling.response_max * 2).min(longest);
    if sampling.response_max >= context {
        bail!(
            "{name} was made for {longest} tokens, which leave no room for a prompt beside {} new ones",
            sampling.response_max
        );
    }
    let mut sampler = Sampler::of(
        model.config().clone(),
        Any::Cpu(Cpu::new(threads)),
        sampling,
        tokenizer.ends().to_vec(),
        SLOTS,
        context,
    )
    .map_err(fail)?;
    sampler.load(model.flat()).map_err(fail)?;
    let environment = environment.map(|it| Environment::new(it, tokenizer.clone()));
    Ok(Loaded {
        tokenizer,
        sampler: sampler.seeded(seed).within(environment),
        context,
    })
}

/// The recipe of a run, from its folder.
pub(crate) fn recipe_of_run(name: &str) -> Option<Recipe> {
    Recipe::read(&Path::new(name).join(RECIPE)).ok()
}

/// Room for prompt and response when sampling by hand.
const CONTEXT_MAX: usize = 1024;

/// Prompts answered at once.
const SLOTS: usize = 16;
