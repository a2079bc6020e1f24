//! A pretraining run as a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use odeon::{Failure, Needs};
use odeon_algorithms::model::{ContextKind, ModelConfig, PartError, RankKind, VisionConfig};
use odeon_algorithms::setting::{Chosen, spelled};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Footprint, Optimizer, Schedule, Sharing, TrainConfig, ZeroStage};
use odeon_data::plan::{Axis, Budget, Mixture, PlanSpec, ScalingSpec};
use odeon_data::plane::{Changed, Constructors, DataPlan, Loaders, Processes};
use odeon_data::source::{Part, SourceSpec};
use odeon_diagnosis::run::Watch;
use odeon_gpu::Device;
use serde::{Deserialize, Serialize};

use super::{ModelSection, RankPlacement, RunSection};
use crate::engine::compute::{ModelDescription, ModelSource, read_tokenizer};
use crate::pretrain::{HeldOut, PretrainPlan, data_mesh};

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
    /// Evaluation on held-out samples.
    #[serde(default)]
    pub eval: HeldOutSection,
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

/// `[parallel]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelSection {
    /// The stage of ZeRO: 0 has all on each rank; of 1 each has a part of the optimiser's state; of 2 and 3 it keeps
    /// shards of that, of gradients and of parameters. These are gathered once a step (2), or layer by layer in each
    /// pass (3).
    pub zero: u8,
    /// Copies of the model that keep one set of shards together (hybrid sharding), with stages 2 and 3; 0: all.
    pub fsdp: u32,
    /// Ranks that each have some heads, inner columns and entries of the vocabulary (tensor parallelism).
    pub tp: u32,
    /// Ranks that each have some of the rows of a batch (context parallelism).
    pub cp: u32,
    /// The way in which these attend to each other's rows.
    pub cp_kind: ContextKind,
    /// Ranks that each have some of the experts, and batches of their own (expert parallelism).
    pub ep: u32,
}

impl Default for ParallelSection {
    fn default() -> Self {
        Self {
            zero: 0,
            fsdp: 0,
            tp: 1,
            cp: 1,
            cp_kind: ContextKind::Ulysses,
            ep: 1,
        }
    }
}

impl ParallelSection {
    /// Ranks of a copy of the model, which has all of its parameters and rows between them.
    fn of_copy(&self) -> u64 {
        [self.tp, self.cp, self.ep].map(u64::from).iter().product()
    }

    /// The fields that say so, with their values.
    fn spelled(&self) -> String {
        let fields = [("tp", self.tp), ("cp", self.cp), ("ep", self.ep)];
        let said = fields.iter().filter(|(_, ranks)| *ranks > 1);
        let said = said.map(|(field, ranks)| format!("parallel.{field} = {ranks}"));
        said.collect::<Vec<_>>().join(", ")
    }
}

/// The field of `[parallel]` that has ranks of a kind.
const fn field_of(kind: RankKind) -> &'static str {
    match kind {
        RankKind::Tensor => "tp",
        RankKind::Context => "cp",
        RankKind::Expert => "ep",
        RankKind::Shard => "zero",
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
            (self.parallel.ep.into(), "parallel", "ep"),
        ] {
            if value == 0 {
                return fault(table, field, "at least 1 is needed".to_owned());
            }
        }
        if let Err((fields, what)) = self.model.check() {
            return fault("model", fields[0], what);
        }
        if let Err(error) = self.pretrain.optimizer.check() {
            return fault("pretrain", "optimizer", error.to_string());
        }
        if let Err((field, what)) = self.placement.check() {
            return fault("placement", field, what);
        }
        self.check_parallel()?;
        if self.eval.every > 0 && (self.eval.one_of < 2 || self.eval.tokens == 0) {
            let what = "held-out samples need eval.one_of of at least 2, and eval.tokens";
            return fault("eval", "one_of", what.to_owned());
        }
        Ok(())
    }

    /// Checks that ranks can share what they are to share, as far as the file tells.
    fn check_parallel(&self) -> Result<(), Fault> {
        let ParallelSection {
            zero,
            tp,
            cp,
            cp_kind,
            ep,
            ..
        } = self.parallel;
        let fault = |field, what: String| {
            Err(Fault {
                table: "parallel",
                field,
                what,
            })
        };
        let of_copy = self.parallel.of_copy();
        let fields = [("tp", tp), ("cp", cp), ("ep", ep)];
        let first = fields.iter().find(|(_, ranks)| *ranks > 1);
        let first = first.map_or("tp", |(field, _)| field);
        let (ranks, said) = (self.processes.ranks, self.parallel.spelled());
        if !u64::from(ranks).is_multiple_of(of_copy) {
            let what = format!(
                "copies of the model on {of_copy} ranks each ({said}) cannot be made of processes.ranks = {ranks}: let \
                 that be a multiple of {of_copy}"
            );
            return fault(first, what);
        }
        if cp == 1 && cp_kind != ContextKind::Ulysses {
            let what = format!(
                "\"{cp_kind}\" is a way of ranks that share the rows of a batch, and parallel.cp = 1 makes none: let that \
                 be 2 or more"
            );
            return fault("cp_kind", what);
        }
        self.check_shards()?;
        if of_copy == 1 {
            return self.check_shares();
        }
        if zero == 1 && (tp > 1 || ep > 1) {
            let what = "ranks that have parts of the model (parallel.tp, parallel.ep) do not share the optimiser's state \
                        alone: 2 and 3 shard parameters, gradients and that";
            return fault("zero", what.to_owned());
        }
        if tp > 1 && matches!(self.pretrain.optimizer, Optimizer::Muon(_)) {
            let what = "\"muon\" moves matrices as a whole, and tensor ranks (parallel.tp) have parts of them: \
                        \"adamw\" and \"lion\" move each number by itself";
            return Err(Fault {
                table: "pretrain",
                field: "optimizer",
                what: what.to_owned(),
            });
        }
        let axis = self.plan.distribute.axis;
        if axis != Axis::Data && (tp > 1 || cp > 1) {
            let what = format!(
                "{} gives samples of their own to ranks that train on the same ({said}): \"data\" gives them to those \
                 that do not",
                match axis {
                    Axis::World => "\"world\"",
                    _ => "\"context\"",
                }
            );
            return Err(Fault {
                table: "plan.distribute",
                field: "axis",
                what,
            });
        }
        self.check_shares()
    }

    /// Checks that copies of the model can keep shards.
    fn check_shards(&self) -> Result<(), Fault> {
        let ParallelSection { zero, fsdp, .. } = self.parallel;
        let fault = |field, what: String| {
            Err(Fault {
                table: "parallel",
                field,
                what,
            })
        };
        let Some(stage) = ZeroStage::numbered(zero) else {
            let what = format!(
                "{zero} is no stage of ZeRO: 0 shares nothing, 1 the optimiser's state, 2 that and gradients and \
                 parameters between steps, 3 parameters within a step, too"
            );
            return fault("zero", what);
        };
        if !stage.has_shards() {
            return match fsdp {
                0 => Ok(()),
                _ => {
                    let what = format!(
                        "{fsdp} copies keep no shards together, since parallel.zero = {zero} makes none: let that be 2 \
                         or 3"
                    );
                    fault("fsdp", what)
                }
            };
        }
        let copies = u64::from(self.processes.ranks) / self.parallel.of_copy();
        if fsdp > 0 && !copies.is_multiple_of(u64::from(fsdp)) {
            let what = format!(
                "sets of shards that {fsdp} copies keep each cannot be made of {copies} copies of the model: let these \
                 be a multiple of {fsdp}"
            );
            return fault("fsdp", what);
        }
        if matches!(self.pretrain.optimizer, Optimizer::Muon(_)) {
            let what = format!(
                "\"muon\" moves matrices as a whole, and of shards (parallel.zero = {zero}) a rank has some rows: \
                 \"adamw\" and \"lion\" move each number by itself"
            );
            return Err(Fault {
                table: "pretrain",
                field: "optimizer",
                what,
            });
        }
        Ok(())
    }

    /// Checks that the ranks of a copy can share the model, where the file says it all.
    fn check_shares(&self) -> Result<(), Fault> {
        if self.model.load.is_some() {
            return Ok(());
        }
        // How many entries the vocabulary has is known when the tokenizer is read.
        let config = ModelConfig {
            vision: self.vision.as_ref().map(VisionSection::config),
            ..self.model.config(self.parallel.tp as usize)
        };
        self.shared_out(&config).map_err(|error| Fault {
            table: "parallel",
            field: field_of(error.kind()),
            what: error.to_string(),
        })
    }

    /// Checks that the ranks of a copy can share this model.
    fn shared_out(&self, config: &ModelConfig) -> Result<(), PartError> {
        let sharing = self.sharing();
        let part = config.part(sharing.place(0))?;
        part.check_context(sharing.context_kind, sharing.context)?;
        match sharing.zero.has_shards() {
            true => config.check_shards(sharing.copies_of_shards()),
            false => Ok(()),
        }
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
        self.shared_out(&config)
            .map_err(|why| self.cannot_share(&why))?;
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

    fn fresh_config(&self, tokenizer: &Tokenizer) -> ModelConfig {
        ModelConfig {
            vision: self.vision.as_ref().map(VisionSection::config),
            // One more stands for what pictures become.
            ..self
                .model
                .config(tokenizer.vocabulary() + usize::from(self.vision.is_some()))
        }
    }

    /// The way in which the ranks train the model together.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        let ParallelSection {
            zero,
            fsdp,
            tp,
            cp,
            cp_kind,
            ep,
        } = self.parallel;
        let whole = Sharing {
            experts: ep as usize,
            context: cp as usize,
            context_kind: cp_kind,
            tensor: tp as usize,
            zero: ZeroStage::numbered(zero).unwrap_or_default(),
            shards: Some(fsdp as usize).filter(|copies| *copies > 0),
            ..Sharing::ALONE
        };
        Sharing {
            copies: self.processes.ranks as usize / whole.of_copy(),
            ..whole
        }
    }

    fn cannot_share(&self, why: &PartError) -> Failure {
        let field = field_of(why.kind());
        let ParallelSection {
            zero, tp, cp, ep, ..
        } = self.parallel;
        let ranks = match why.kind() {
            RankKind::Tensor => tp,
            RankKind::Context => cp,
            RankKind::Expert => ep,
            RankKind::Shard => u32::from(zero),
        };
        Failure::error(format!("parallel.{field} = {ranks}: {why}"))
    }

    /// The memory of each rank and the sums of a step, but for the activations, which depend on the samples.
    ///
    /// # Errors
    /// The tokenizer or the model cannot be read, or the ranks cannot share it.
    pub fn footprints(&self) -> Result<Vec<Footprint>, Failure> {
        let config = self.model_config()?;
        let (train, sharing) = (self.train(), self.sharing());
        let of = |rank| Footprint::of(&config, &train, sharing, rank);
        let all = (0..self.processes.ranks as usize).map(of);
        let all: Result<_, _> = all.collect();
        all.map_err(|why| self.cannot_share(&why))
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
        }
    }

    /// The plan of the run, with its checkpoints in `checkpoint`.
    ///
    /// # Errors
    /// The tokenizer, the model or the device cannot be had.
    pub fn plan(&self, checkpoint: PathBuf) -> Result<PretrainPlan, Failure> {
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
            context: model.context,
            tokenizer,
            train: self.train(),
            sharing: self.sharing(),
            watch: Watch::new(steps),
            steps,
            checkpoint_every,
            memory_every,
            checkpoint,
            keep,
            needs: self.placement.needs(),
            data,
            held_out,
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
