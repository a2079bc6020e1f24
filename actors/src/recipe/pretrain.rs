//! A pretraining run as a file.

mod auto;
pub(super) mod parallel;
pub(super) mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use odeon::{Failure, Needs};
use odeon_algorithms::model::{LayerBlock, ModelConfig, Recompute, VisionConfig};
use odeon_algorithms::setting::{Chosen, spelled};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Footprint, Optimizer, Schedule, Sharing, TrainConfig};
use odeon_data::plan::{Budget, Mixture, PlanSpec, ScalingSpec};
use odeon_data::plane::{Changed, Constructors, DataPlan, Loaders, Processes};
use odeon_data::source::{Part, SourceSpec};
use odeon_diagnosis::run::{UsualNorm, Watch};
use odeon_gpu::Device;
use serde::{Deserialize, Serialize};

use super::{ModelSection, RankPlacement, RecoverySection, RunSection};
use crate::engine::compute::{ModelDescription, ModelSource, read_tokenizer};
use crate::pretrain::rank::Drill;
use crate::pretrain::verify::{Verification, first_steps};
use crate::pretrain::{GradientRules, HeldOut, PretrainPlan, data_mesh};
use crate::ranks::standbys::StandbyCount;

pub use auto::{Arranged, AutoPlan, CandidatePlan, ParallelChoice, PlannedCard, RefusedPlans};
pub use parallel::ParallelSection;
pub use place::PlaceSection;

/// A pretraining run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PretrainRecipe {
    /// Name, seed and place of the run.
    pub run: RunSection,
    /// The model: built from scratch, or loaded.
    pub model: ModelSection,
    /// The encoder of pictures, in a model that is built from scratch.
    pub vision: Option<VisionSection>,
    /// The tokenizer of the text.
    #[serde(default)]
    pub tokenizer: TokenizerSection,
    /// Number of steps, and settings of the optimiser and of checkpoints.
    pub pretrain: PretrainSection,
    /// Where samples come from.
    #[serde(rename = "source")]
    pub sources: Vec<SourceSpec>,
    /// Plan of the steps: their samples, and the distribution of these over ranks.
    pub plan: PlanSpec,
    /// Processes that read samples and build batches.
    #[serde(default)]
    pub data: DataSection,
    /// Processes that train.
    #[serde(default)]
    pub processes: RanksSection,
    /// Resources that these reserve.
    #[serde(default)]
    pub placement: RankPlacement,
    /// The things that ranks share.
    #[serde(default)]
    pub parallel: ParallelSection,
    /// The response to ranks that hold up the run.
    #[serde(default)]
    pub recovery: RecoverySection,
    /// Evaluation on held-out samples.
    #[serde(default)]
    pub eval: HeldOutSection,
    /// Faults that ranks commit on purpose, to try what follows.
    #[serde(default, rename = "drill", skip_serializing_if = "Vec::is_empty")]
    pub drills: Vec<Drill>,
}

/// `[vision]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VisionSection {
    /// Pixels along a patch.
    pub patch: usize,
    /// Width of the encoder.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads; must divide `hidden` into multiples of four.
    pub heads: usize,
    /// Inner width of the feed-forward part.
    pub ffn: usize,
}

impl Default for VisionSection {
    fn default() -> Self {
        Self {
            patch: 14,
            hidden: 64,
            layers: 2,
            heads: 4,
            ffn: 172,
        }
    }
}

impl VisionSection {
    const fn config(&self) -> VisionConfig {
        VisionConfig {
            patch: self.patch,
            dim: self.hidden,
            layers: self.layers,
            heads: self.heads,
            ffn: self.ffn,
        }
    }
}

/// `[tokenizer]`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerSection {
    /// A folder with `tokenizer.json`, or a GGUF file. Bytes without.
    pub load: Option<PathBuf>,
}

/// `[pretrain]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PretrainSection {
    /// Steps in all.
    pub steps: u64,
    /// Peak learning rate.
    #[serde(default = "default_lr")]
    pub lr: f32,
    /// Steps of linear warm-up.
    #[serde(default)]
    pub warmup: u64,
    /// The learning rate at the end of half a cosine, as a part of its peak; 1 keeps it.
    #[serde(default = "default_floor")]
    pub lr_floor: f32,
    /// Decay of matrices.
    #[serde(default = "default_decay")]
    pub weight_decay: f32,
    /// The largest norm of the gradient.
    #[serde(default = "default_clip")]
    pub clip: f32,
    /// The optimiser that moves the parameters.
    #[serde(default, deserialize_with = "spelled")]
    pub optimizer: Optimizer,
    /// Whoever finds the plan that `[parallel]` would say: `"auto"`, or a table of it with settings.
    #[serde(
        default,
        deserialize_with = "auto::chosen",
        skip_serializing_if = "Option::is_none"
    )]
    pub parallel: Option<ParallelChoice>,
    /// The part of passes that is computed again on the way back, in place of being kept.
    #[serde(default)]
    pub recompute: Recompute,
    /// Set where what layers keep for the way back waits in memory of the host.
    #[serde(default)]
    pub offload: bool,
    /// Share of numbers that are dropped of embedded rows, and of what each layer adds to them.
    #[serde(default)]
    pub dropout: f32,
    /// Weight of the loss of a head that predicts one token further (multi-token prediction); 0 makes none.
    #[serde(default)]
    pub mtp_weight: f32,
    /// Steps between two checkpoints.
    #[serde(default = "default_checkpoint_every")]
    pub checkpoint_every: u64,
    /// Steps between two checkpoints in the memory of ranks, from which they go on when one is lost; 0
    /// keeps none but those that go to the storage, too.
    #[serde(default)]
    pub memory_every: u64,
    /// Checkpoints that are kept.
    #[serde(default = "default_keep")]
    pub keep: usize,
    /// From how many times its median on a norm of the gradient is computed once more; 0 takes all that are finite.
    #[serde(default = "default_spike")]
    pub spike: f64,
    /// The rule for a gradient that is as large the second time.
    #[serde(default)]
    pub on_spike: OnSpike,
    /// Steps in a row that may change nothing; 0 for as many as there are.
    #[serde(default = "default_refused_max")]
    pub refused_max: u64,
}

/// Rules for a gradient that is far larger than usual, and the same when it is computed once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSpike {
    /// It changes the weights, clipped like others.
    #[default]
    Take,
    /// The step changes nothing.
    Skip,
}

/// `[data]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSection {
    /// Loaders at first: sources go around. Without, 1, and with `scaling` as many as what sources
    /// were measured to take asks for.
    pub loaders: Option<u32>,
    /// When sources get more loaders or fewer while the run goes on.
    pub scaling: Option<ScalingSpec>,
    /// Seconds that a step is expected to take, until that is measured.
    pub step_seconds: f64,
    /// Loaders that stand in for others.
    pub shadows: u32,
    /// Constructors; each serves an equal part of the ranks.
    pub constructors: u32,
    /// Megabytes of samples that each loader reads ahead.
    pub loader_megabytes: u64,
    /// Cells that each loader makes at a time.
    pub threads: usize,
    /// Processors that each loader and constructor reserves, on nodes with devices first.
    pub cpus: f64,
    /// Steps that are built before they are wanted.
    pub built_ahead: u64,
    /// Steps that are planned before they are built.
    pub planned_ahead: u64,
    /// Milliseconds that a loader may take before its shadow is asked, too.
    pub patience_ms: u64,
    /// Where indices are kept, and what files unpack to.
    pub cache: PathBuf,
    /// The rule for a run that goes on, and whose files are not those that it has read so far.
    pub changed: Changed,
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            loaders: None,
            scaling: None,
            step_seconds: 1.0,
            shadows: 0,
            constructors: 1,
            loader_megabytes: 64,
            threads: 1,
            cpus: 0.0,
            built_ahead: 2,
            planned_ahead: 4,
            patience_ms: 200,
            cache: PathBuf::from("models/cache"),
            changed: Changed::Refuse,
        }
    }
}

/// `[processes]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RanksSection {
    /// Ranks in all: each has batches of its own, unless several share a copy of the model.
    pub ranks: u32,
    /// Compute threads of each.
    pub threads: usize,
}

impl Default for RanksSection {
    fn default() -> Self {
        Self {
            ranks: 1,
            threads: 1,
        }
    }
}

/// `[eval]`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeldOutSection {
    /// Steps between two times that held-out samples are rated; 0 rates none.
    pub every: u64,
    /// Tokens of them.
    pub tokens: u64,
    /// One of so many blocks of each source is held out.
    pub one_of: u32,
}

const fn default_lr() -> f32 {
    1e-3
}

const fn default_floor() -> f32 {
    0.1
}

const fn default_decay() -> f32 {
    0.1
}

const fn default_clip() -> f32 {
    1.0
}

const fn default_checkpoint_every() -> u64 {
    50
}

const fn default_spike() -> f64 {
    5.0
}

const fn default_refused_max() -> u64 {
    20
}

const fn default_keep() -> usize {
    2
}

/// A thing that a pretraining recipe asks for and cannot have: the table, the field, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) table: &'static str,
    pub(super) field: &'static str,
    pub(super) what: String,
}

impl PretrainRecipe {
    /// The run's folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.run.out.join(&self.run.name)
    }

    /// Checks that it can be run, as far as the file tells.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let fault = |table, field, what: String| Err(Fault { table, field, what });
        if let Err(error) = self.run.device.parse::<Device>() {
            return fault("run", "device", error.to_string());
        }
        if let Err(what) = self.run.check_deterministic() {
            return fault("run", "deterministic", what);
        }
        if self.sources.is_empty() {
            return fault(
                "source",
                "",
                "a run needs at least one [[source]]".to_owned(),
            );
        }
        for source in &self.sources {
            if let Err(what) = source.check() {
                return fault("source", "", format!("source `{}`: {what}", source.name));
            }
            if source.context as usize > self.model.context {
                let what = format!(
                    "source `{}` has samples of up to {} tokens, and model.context is {}",
                    source.name, source.context, self.model.context
                );
                return fault("source", "context", what);
            }
        }
        if let Err(error) = self.plan.check() {
            return fault("plan", "", error.to_string());
        }
        self.check_vision()?;
        for (value, table, field) in [
            (self.pretrain.steps, "pretrain", "steps"),
            (
                self.pretrain.checkpoint_every,
                "pretrain",
                "checkpoint_every",
            ),
            (self.processes.ranks.into(), "processes", "ranks"),
            (self.data.loaders.unwrap_or(1).into(), "data", "loaders"),
            (self.data.constructors.into(), "data", "constructors"),
            (self.parallel.tp.into(), "parallel", "tp"),
            (self.parallel.cp.into(), "parallel", "cp"),
            (self.parallel.pp.into(), "parallel", "pp"),
            (self.parallel.pp_chunks.into(), "parallel", "pp_chunks"),
            (self.parallel.ep.into(), "parallel", "ep"),
        ] {
            if value == 0 {
                return fault(table, field, "at least 1 is needed".to_owned());
            }
        }
        self.check_model()?;
        if let Err(error) = self.pretrain.optimizer.check() {
            return fault("pretrain", "optimizer", error.to_string());
        }
        let dropout = self.pretrain.dropout;
        if !(0.0..1.0).contains(&dropout) {
            let what = format!("expected a number of at least 0 and below 1, found {dropout}");
            return fault("pretrain", "dropout", what);
        }
        if let Err((field, what)) = self.placement.check() {
            return fault("placement", field, what);
        }
        self.check_gradients()?;
        // As many as an arrangement finds are known later.
        let ranks = self.pretrain.parallel.as_ref();
        let ranks = ranks.map_or(self.processes.ranks, |_| u32::MAX);
        if let Err((field, what)) = self.recovery.standbys(ranks) {
            return fault("recovery", field, what);
        }
        self.check_choice()?;
        self.check_parallel()?;
        if self.eval.every > 0 && (self.eval.one_of < 2 || self.eval.tokens == 0) {
            let what = "held-out samples need eval.one_of of at least 2, and eval.tokens";
            return fault("eval", "one_of", what.to_owned());
        }
        Ok(())
    }

    /// Checks the rules for gradients, and the faults that are committed on purpose.
    fn check_gradients(&self) -> Result<(), Fault> {
        let fault = |table, field, what: String| Err(Fault { table, field, what });
        let spike = self.pretrain.spike;
        if !(spike == 0.0 || spike > 1.0 && spike.is_finite()) {
            let what = format!("expected 0, or a number above 1, found {spike}");
            return fault("pretrain", "spike", what);
        }
        for drill in &self.drills {
            if !(1..=self.pretrain.steps).contains(&drill.step) {
                let what = format!(
                    "step {} is none of pretrain.steps = {}, which count from 1",
                    drill.step, self.pretrain.steps
                );
                return fault("drill", "step", what);
            }
            // As many as an arrangement finds are known later; then a rank that is none commits nothing.
            if self.pretrain.parallel.is_none() && drill.rank >= self.processes.ranks {
                let what = format!(
                    "rank {} is none of processes.ranks = {}, which count from 0",
                    drill.rank, self.processes.ranks
                );
                return fault("drill", "rank", what);
            }
        }
        Ok(())
    }

    /// Checks that pictures find an encoder that reads them. What a loaded model reads is known
    /// when it is loaded.
    fn check_vision(&self) -> Result<(), Fault> {
        let fault = |table, field, what: String| Err(Fault { table, field, what });
        let Some(vision) = &self.vision else {
            let sees = self.sources.iter().find(|source| source.has_pictures());
            return match sees.filter(|_| self.model.load.is_none()) {
                None => Ok(()),
                Some(source) => fault(
                    "source",
                    "format",
                    format!(
                        "source `{}` has pictures, and the model reads none: it needs [vision]",
                        source.name
                    ),
                ),
            };
        };
        if self.model.load.is_some() {
            let what = "a model that is loaded brings its own encoder, or none";
            return fault("vision", "", what.to_owned());
        }
        if let Err(error) = vision.config().check() {
            return fault("vision", "", error.to_string());
        }
        let other = |source: &&SourceSpec| {
            source.has_pictures() && source.pictures.patch as usize != vision.patch
        };
        match self.sources.iter().find(other) {
            None => Ok(()),
            Some(source) => fault(
                "vision",
                "patch",
                format!(
                    "patches of {} pixels, and source `{}` has those of {}: let pictures.patch be \
                     the same",
                    vision.patch, source.name, source.pictures.patch
                ),
            ),
        }
    }

    /// The tokenizer of the text.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn tokenizer(&self) -> Result<Tokenizer, Failure> {
        match (&self.tokenizer.load, &self.model.load) {
            (Some(path), _) => read_tokenizer(path),
            (None, Some(model)) => read_tokenizer(Path::new(model)),
            (None, None) => Ok(Tokenizer::bytes()),
        }
    }

    /// The model that is loaded, where one is, beside the tokenizer of the text.
    ///
    /// # Errors
    /// It cannot be read, or has no row for a token that training writes.
    pub fn loaded(&self, tokenizer: &Tokenizer) -> Result<Option<ModelDescription>, Failure> {
        let Some(path) = &self.model.load else {
            return Ok(None);
        };
        let described = ModelDescription::beside(Path::new(path), tokenizer.clone())?;
        described.trains()?;
        let config = described.fields.model_config();
        let placed = self.placed_or_failed(&config)?;
        placed
            .shared_out(&config)
            .map_err(|why| self.cannot_share(&why))?;
        if self.pretrain.mtp_weight > 0.0 && !config.next_token {
            let what = "pretrain.mtp_weight is of a head that model.load does not have: a new model gets one";
            return Err(Failure::error(what));
        }
        let room = config.check_tokens(self.model.context);
        room.map_err(|error| {
            let (context, why) = (self.model.context, error.to_string());
            let why = why.trim_start_matches("model: ");
            Failure::error(format!("model.context = {context}: {why}"))
        })?;
        Ok(Some(described))
    }

    /// The model as it will be trained: described here, or loaded.
    ///
    /// # Errors
    /// The tokenizer or the model cannot be read.
    pub fn model_config(&self) -> Result<ModelConfig, Failure> {
        let tokenizer = self.tokenizer()?;
        Ok(match self.loaded(&tokenizer)? {
            Some(described) => described.fields.model_config(),
            None => self.fresh_config(&tokenizer),
        })
    }

    /// Checks that a new model can be what the file says.
    fn check_model(&self) -> Result<(), Fault> {
        let fault = |table, field, what: String| Err(Fault { table, field, what });
        if let Err((fields, what)) = self.model.check() {
            return fault("model", fields[0], what);
        }
        let mtp = self.pretrain.mtp_weight;
        if !(mtp >= 0.0 && mtp.is_finite()) {
            let what = format!("expected a number of at least 0, found {mtp}");
            return fault("pretrain", "mtp_weight", what);
        }
        let is_gelu = matches!(self.model.block, LayerBlock::Gelu(_));
        if mtp > 0.0 && (self.vision.is_some() || self.model.width.is_some() || is_gelu) {
            let what = "a head for one token further goes with no pictures, no virtual width and no block \"gelu\"";
            return fault("pretrain", "mtp_weight", what.to_owned());
        }
        if self.vision.is_some() && self.model.width.is_some() {
            let what =
                "features of pictures are as wide as a layer: a model of virtual width sees none";
            return fault("model", "width", what.to_owned());
        }
        Ok(())
    }

    fn fresh_config(&self, tokenizer: &Tokenizer) -> ModelConfig {
        ModelConfig {
            vision: self.vision.as_ref().map(VisionSection::config),
            next_token: self.pretrain.mtp_weight > 0.0,
            // One more stands for what pictures become.
            ..self
                .model
                .config(tokenizer.vocabulary() + usize::from(self.vision.is_some()))
        }
    }

    /// Settings of the optimiser.
    fn train(&self) -> TrainConfig {
        let PretrainSection {
            steps,
            lr,
            warmup,
            lr_floor,
            weight_decay,
            clip,
            optimizer,
            recompute,
            offload,
            mtp_weight,
            ..
        } = self.pretrain;
        TrainConfig {
            lr,
            warmup,
            schedule: match lr_floor {
                1.0 => Schedule::Constant,
                floor => Schedule::Cosine { steps, floor },
            },
            weight_decay,
            optimizer,
            clip: Some(clip),
            recompute,
            offload,
            next_token_weight: mtp_weight,
        }
    }

    /// The plan of the run, with its checkpoints in `checkpoint`.
    ///
    /// # Errors
    /// The tokenizer, the model or the device cannot be had.
    pub fn plan(&self, checkpoint: PathBuf) -> Result<PretrainPlan, Failure> {
        if self.pretrain.parallel.is_some() || !self.parallel.place.is_empty() {
            return self.arranged()?.0.plan(checkpoint);
        }
        let tokenizer = self.tokenizer()?;
        self.loaded(&tokenizer)?;
        let device = self.run.device.parse().map_err(Failure::error)?;
        let model = &self.model;
        let source = match &model.load {
            Some(path) => ModelSource::Load(PathBuf::from(path)),
            None => ModelSource::Fresh(Box::new(self.fresh_config(&tokenizer))),
        };
        let PretrainSection {
            steps,
            checkpoint_every,
            memory_every,
            keep,
            ..
        } = self.pretrain;
        let part = |held_out| match self.eval.one_of {
            0 => Part::All,
            one_of if held_out => Part::HeldOut { one_of },
            one_of => Part::AllBut { one_of },
        };
        let data = self.data_plan(&tokenizer, self.plan.clone(), part(false))?;
        let mut held_out = None;
        if self.eval.every > 0 {
            let mut spec =
                PlanSpec::mix(even(&self.plan.mixture), Budget::Tokens(self.eval.tokens));
            spec.microbatch = self.plan.microbatch;
            let mut data = self.data_plan(&tokenizer, spec, part(true))?;
            data.prefix = "held-out-".to_owned();
            data.constructors.count = 1;
            data.constructors.ahead = 1;
            data.planned_ahead = 1;
            data.loaders.shadows = 0;
            data.loaders.scaling = None;
            // What is rated is few: one reads it.
            data.loaders.sources = Some(vec![vec![0]; self.sources.len()]);
            held_out = Some(HeldOut {
                data,
                every: self.eval.every,
            });
        }
        Ok(PretrainPlan {
            source,
            seed: self.run.seed,
            device,
            threads: self.processes.threads,
            deterministic: self.run.deterministic,
            products: self.run.products(),
            context: model.context,
            tokenizer,
            train: self.train(),
            dropout: self.pretrain.dropout,
            gradients: GradientRules {
                usual: UsualNorm::new(self.pretrain.spike),
                takes_spikes: self.pretrain.on_spike == OnSpike::Take,
                refused_max: self.pretrain.refused_max,
                furthest: 0,
            },
            drills: self.drills.clone(),
            sharing: self.sharing(),
            watch: Watch::new(steps),
            steps,
            checkpoint_first: false,
            checkpoint_every,
            memory_every,
            checkpoint,
            keep,
            needs: self.placement.needs(),
            recovery: self.recovery.policy(),
            standbys: self.standbys()?,
            avoided: BTreeSet::new(),
            forbidden: vec![],
            data,
            held_out,
        })
    }

    /// The number of standbys of its ranks.
    fn standbys(&self) -> Result<StandbyCount, Failure> {
        let count = self.recovery.standbys(self.processes.ranks);
        count.map_err(|(field, what)| Failure::error(format!("recovery.{field}: {what}")))
    }

    /// The recipe with one rank that has the whole model, and all else as it is.
    #[must_use]
    pub fn of_one_rank(&self) -> Self {
        let mut one = self.clone();
        one.pretrain.parallel = None;
        // What passes read of parameters is no matter of ranks.
        one.parallel = ParallelSection {
            params: self.parallel.params,
            ..ParallelSection::default()
        };
        one.processes.ranks = 1;
        let RecoverySection { standbys, .. } = RecoverySection::default();
        (one.recovery.standbys, one.recovery.machine_faults_daily) = (standbys, None);
        one
    }

    /// Its first steps, by its ranks and by one rank, with checkpoints of both in a folder.
    ///
    /// # Errors
    /// The tokenizer, the model or the device cannot be had.
    pub fn verification(
        &self,
        steps: u64,
        tolerance: f64,
        folder: &Path,
    ) -> Result<Verification, Failure> {
        let one = self.of_one_rank();
        let whole = Footprint::of(&one.model_config()?, &one.train(), Sharing::ALONE, 0);
        let whole = whole.map_err(|why| one.cannot_share(&why))?;
        let (config, train, sharing) = (self.model_config()?, self.train(), self.sharing());
        let parts = (0..sharing.ranks()).map(|rank| {
            let own = Footprint::of(&config, &train, sharing, rank);
            own.map(|it| it.tensors)
                .map_err(|why| self.cannot_share(&why))
        });
        let steps_of = |recipe: &Self, name| {
            let checkpoint = folder.join(name);
            let plan = recipe.plan(checkpoint.clone())?;
            Ok::<_, Failure>(first_steps(&plan, steps, &checkpoint))
        };
        Ok(Verification {
            plan: steps_of(self, "plan")?,
            one: steps_of(&one, "one")?,
            parameters: whole.tensors.into_iter().map(|(name, _)| name).collect(),
            parts: parts.collect::<Result<_, _>>()?,
            tolerance,
        })
    }

    fn data_plan(
        &self,
        tokenizer: &Tokenizer,
        spec: PlanSpec,
        part: Part,
    ) -> Result<DataPlan, Failure> {
        let mesh = data_mesh(self.sharing())?;
        let section = &self.data;
        let sources = self.sources.iter().map(|source| SourceSpec {
            part,
            ..source.clone()
        });
        let loaders = section
            .loaders
            .or_else(|| section.scaling.is_none().then_some(1));
        let around = |loaders: u32| {
            let sources = 0..self.sources.len() as u32;
            sources.map(|source| vec![source % loaders]).collect()
        };
        let needs = || match section.cpus {
            0.0 => Needs::new(),
            cpus => Needs::new().cpus(cpus).prefer_accelerated(1),
        };
        Ok(DataPlan {
            prefix: String::new(),
            sources: sources.collect(),
            tokenizer: tokenizer.clone(),
            cache: section.cache.clone(),
            spec,
            // The run's own ranks take its place.
            mesh,
            state: None,
            earlier: BTreeMap::new(),
            loaders: Loaders {
                sources: loaders.map(around),
                scaling: section.scaling,
                step_seconds: section.step_seconds,
                shadows: section.shadows,
                bytes_max: section.loader_megabytes << 20,
                threads: section.threads,
                needs: needs(),
            },
            constructors: Constructors {
                count: section.constructors,
                ahead: section.built_ahead,
                needs: needs(),
            },
            planned_ahead: section.planned_ahead,
            patience: Duration::from_millis(section.patience_ms),
            processes: Processes::Own,
            changed: self.data.changed,
        })
    }
}

/// The same sources, each with as much of the whole.
fn even(mixture: &Mixture) -> Mixture {
    Mixture::even(mixture.sources.keys().cloned())
}
