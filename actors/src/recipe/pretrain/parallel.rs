//! The way in which ranks of a pretraining run share its model, as a file says it.

use odeon::Failure;
use odeon_algorithms::model::{ContextKind, ModelConfig, PartError, RankKind, StageLayers};
use odeon_algorithms::train::{
    Footprint, MicroBatches, Optimizer, PipelineKind, Sharing, TrainConfig, ZeroStage,
};
use odeon_data::plan::{Axis, Budget, PlanSpec};
use odeon_gpu::Precision;
use serde::{Deserialize, Serialize};

use super::place::{PlaceFault, PlaceSection, parameters, place_table, stages_of};
use super::{Fault, PretrainRecipe, VisionSection};

/// Layers that may be gathered ahead at most.
const PREFETCH_MAX: u32 = 256;

/// `[parallel]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelSection {
    /// The stage of ZeRO: 0 has all on each rank; of 1 each has a part of the optimiser's state; of 2 and 3 it keeps
    /// shards of that, of gradients and of parameters. These are gathered once a step (2), or layer by layer in each
    /// pass (3).
    pub zero: u8,
    /// Copies of the model that keep one set of shards together (hybrid sharding), with stages 2 and 3; 0: all.
    pub fsdp: u32,
    /// To what parameters are rounded before passes read them: bf16 is how shards are gathered, and ranks that have whole
    /// parameters have a rounded copy. The optimiser changes numbers of 32 bits.
    pub params: Precision,
    /// Layers of shards that are gathered while one is computed, and of which gradients are added up meanwhile.
    pub prefetch: u32,
    /// Ranks that each have some heads, inner columns and entries of the vocabulary (tensor parallelism).
    pub tp: u32,
    /// Ranks that each have some of the rows of a batch (context parallelism).
    pub cp: u32,
    /// The way in which these attend to each other's rows.
    pub cp_kind: ContextKind,
    /// Ranks that each have some of the experts, and batches of their own (expert parallelism).
    pub ep: u32,
    /// Ranks that each have some of the layers (pipeline parallelism).
    pub pp: u32,
    /// Stages of each of these, which are neighbours in turn (interleaved).
    pub pp_chunks: u32,
    /// The order of their passes.
    pub pp_schedule: PipelineKind,
    /// Layers of each stage, in their order; none: as many as of any other, or one more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<u32>,
    /// Where parameters are to be, by patterns of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub place: Vec<PlaceSection>,
}

impl Default for ParallelSection {
    fn default() -> Self {
        Self {
            zero: 0,
            fsdp: 0,
            params: Precision::F32,
            prefetch: 1,
            tp: 1,
            cp: 1,
            cp_kind: ContextKind::Ulysses,
            ep: 1,
            pp: 1,
            pp_chunks: 1,
            pp_schedule: PipelineKind::OneForwardOneBackward,
            stages: vec![],
            place: vec![],
        }
    }
}

impl ParallelSection {
    /// Ranks of a copy of the model, which has all of its parameters and rows between them.
    fn of_copy(&self) -> u64 {
        let ranks = [self.tp, self.cp, self.ep, self.pp].map(u64::from);
        ranks.into_iter().fold(1, u64::saturating_mul)
    }

    /// The way in which so many ranks share the model.
    pub(crate) fn sharing(&self, ranks: u32) -> Sharing {
        let &Self {
            zero,
            fsdp,
            params,
            prefetch,
            tp,
            cp,
            cp_kind,
            ep,
            pp,
            pp_chunks,
            pp_schedule,
            ..
        } = self;
        let whole = Sharing {
            stages: pp as usize,
            chunks: pp_chunks as usize,
            layers: match self.stages.is_empty() {
                true => None,
                false => StageLayers::new(&self.stage_lengths()),
            },
            schedule: pp_schedule,
            experts: ep as usize,
            context: cp as usize,
            context_kind: cp_kind,
            tensor: tp as usize,
            zero: ZeroStage::numbered(zero).unwrap_or_default(),
            shards: Some(fsdp as usize).filter(|copies| *copies > 0),
            params,
            ahead: prefetch as usize,
            ..Sharing::ALONE
        };
        Sharing {
            copies: ranks as usize / whole.of_copy(),
            ..whole
        }
    }

    /// The fields that are not as they are without a table, as the table says them.
    #[must_use]
    pub fn told(&self) -> String {
        let usual = Self::default();
        let numbers = [
            ("pp", self.pp, usual.pp),
            ("pp_chunks", self.pp_chunks, usual.pp_chunks),
            ("ep", self.ep, usual.ep),
            ("cp", self.cp, usual.cp),
            ("tp", self.tp, usual.tp),
            ("zero", self.zero.into(), usual.zero.into()),
            ("fsdp", self.fsdp, usual.fsdp),
            ("prefetch", self.prefetch, usual.prefetch),
        ];
        let others = numbers.into_iter().filter(|(_, own, usual)| own != usual);
        let mut told: Vec<String> = others
            .map(|(name, own, _)| format!("{name} = {own}"))
            .collect();
        if self.cp_kind != usual.cp_kind {
            told.push(format!("cp_kind = \"{}\"", self.cp_kind));
        }
        if self.params == Precision::Bf16 {
            told.push("params = \"bf16\"".to_owned());
        }
        if self.pp_schedule != usual.pp_schedule {
            told.push(format!("pp_schedule = \"{}\"", self.pp_schedule.word()));
        }
        if !self.stages.is_empty() {
            told.push(format!("stages = {:?}", self.stages));
        }
        if !self.place.is_empty() {
            told.push("place".to_owned());
        }
        match told.is_empty() {
            true => "a copy of the model on each rank".to_owned(),
            false => told.join(", "),
        }
    }

    /// Layers of each stage, as they are told; none where they are even.
    fn stage_lengths(&self) -> Vec<usize> {
        self.stages.iter().map(|it| *it as usize).collect()
    }

    /// The fields that say so, with their values.
    fn spelled(&self) -> String {
        let fields = [
            ("tp", self.tp),
            ("cp", self.cp),
            ("ep", self.ep),
            ("pp", self.pp),
        ];
        let said = fields.iter().filter(|(_, ranks)| *ranks > 1);
        let said = said.map(|(field, ranks)| format!("parallel.{field} = {ranks}"));
        said.collect::<Vec<_>>().join(", ")
    }

    /// Checks that so many ranks, whose number a field says, can share a model like this, whatever it is, with an
    /// optimiser that is named in a table.
    pub(in crate::recipe) fn check(
        &self,
        (field_of_ranks, ranks): (&str, u32),
        (table, optimizer): (&'static str, &Optimizer),
    ) -> Result<(), Fault> {
        let &Self {
            zero,
            tp,
            cp,
            cp_kind,
            ep,
            pp,
            ..
        } = self;
        let fault = |field, what: String| {
            Err(Fault {
                table: "parallel",
                field,
                what,
            })
        };
        let of_copy = self.of_copy();
        let fields = [("tp", tp), ("cp", cp), ("ep", ep), ("pp", pp)];
        let first = fields.iter().find(|(_, ranks)| *ranks > 1);
        let first = first.map_or("tp", |(field, _)| field);
        let said = self.spelled();
        if !u64::from(ranks).is_multiple_of(of_copy) {
            let what = format!(
                "copies of the model on {of_copy} ranks each ({said}) cannot be made of {field_of_ranks} = {ranks}: let \
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
        self.check_stages()?;
        self.check_shards(ranks)?;
        if of_copy == 1 {
            return Ok(());
        }
        if zero == 1 && (tp > 1 || ep > 1 || pp > 1) {
            let what = "ranks that have parts of the model (parallel.tp, ep, pp) do not share the optimiser's state \
                        alone: 2 and 3 shard parameters, gradients and that";
            return fault("zero", what.to_owned());
        }
        if tp > 1 && !optimizer.is_elementwise() {
            let moves = match optimizer {
                Optimizer::Adam8bit(_) => "\"adam8bit\" has scales of tiles of matrices",
                _ => "\"muon\" moves matrices as a whole",
            };
            let what = format!(
                "{moves}, and tensor ranks (parallel.tp) have parts of them: \"adamw\" and \"lion\" move each number by \
                 itself"
            );
            return Err(Fault {
                table,
                field: "optimizer",
                what,
            });
        }
        Ok(())
    }

    /// Checks that ranks of a copy can share this model.
    ///
    /// # Errors
    /// They cannot.
    pub(in crate::recipe) fn shared_out(
        &self,
        ranks: u32,
        config: &ModelConfig,
    ) -> Result<(), PartError> {
        let sharing = self.sharing(ranks);
        let part = config.part(sharing.place(0))?;
        part.check_context(sharing.context_kind, sharing.context)?;
        match sharing.zero.has_shards() {
            true => config.check_shards(sharing.copies_of_shards()),
            false => Ok(()),
        }
    }

    /// The same with the stages that `place` asks for said by `stages`.
    pub(in crate::recipe) fn placed(
        &self,
        ranks: u32,
        config: &ModelConfig,
        train: &TrainConfig,
    ) -> Result<Self, PlaceFault> {
        let mut placed = self.clone();
        let entries = std::mem::take(&mut placed.place);
        if entries.is_empty() {
            return Ok(placed);
        }
        let sharing = placed.sharing(ranks);
        let parameters = parameters(config, train, sharing);
        let stages = stages_of(&entries, &parameters, sharing, config.layers)?;
        let Some(entry) = entries.iter().position(|it| it.stage.is_some()) else {
            return Ok(placed);
        };
        if !placed.stages.is_empty() {
            let what = "parallel.stages says how many layers each stage has: leave one of them out";
            return Err(PlaceFault {
                entry,
                field: "stage",
                what: what.to_owned(),
            });
        }
        placed.stages = stages;
        Ok(placed)
    }

    /// Checks that stages have an order of passes.
    fn check_stages(&self) -> Result<(), Fault> {
        self.check_lengths()?;
        let &Self {
            pp,
            pp_chunks,
            pp_schedule,
            ..
        } = self;
        let what = match (pp, pp_chunks, pp_schedule) {
            (_, 1, _) => return Ok(()),
            (1, chunks, _) => format!(
                "{chunks} stages of each pipeline rank need several such ranks, and parallel.pp = 1 makes none: let that \
                 be 2 or more"
            ),
            (_, chunks, kind) if !kind.is_interleaved() => format!(
                "{chunks} stages of each pipeline rank are interleaved, which \"{}\" does not: let parallel.pp_schedule \
                 be \"1f1b\"",
                kind.word()
            ),
            _ => return Ok(()),
        };
        Err(Fault {
            table: "parallel",
            field: "pp_chunks",
            what,
        })
    }

    /// Checks that layers are told of as many stages as there are, where they are told.
    fn check_lengths(&self) -> Result<(), Fault> {
        let &Self { pp, pp_chunks, .. } = self;
        let (told, stages) = (self.stage_lengths(), pp.saturating_mul(pp_chunks));
        let what = match (told.is_empty(), pp) {
            (true, _) => return Ok(()),
            (false, 1) => "stages are those of a pipeline, and parallel.pp = 1 makes none: let that be 2 or more".to_owned(),
            _ if told.len() != stages as usize => format!(
                "layers are told of {} stages, and parallel.pp = {pp} with pp_chunks = {pp_chunks} makes {stages}: tell as \
                 many",
                told.len()
            ),
            _ if StageLayers::new(&told).is_none() => format!(
                "{} stages with {} layers each are told at most",
                StageLayers::STAGES_MAX,
                StageLayers::LAYERS_MAX
            ),
            _ => return Ok(()),
        };
        Err(Fault {
            table: "parallel",
            field: "stages",
            what,
        })
    }

    /// Checks that copies of the model can keep shards.
    fn check_shards(&self, ranks: u32) -> Result<(), Fault> {
        let &Self {
            zero,
            fsdp,
            prefetch,
            ..
        } = self;
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
        if !(1..=PREFETCH_MAX).contains(&prefetch) {
            let what = format!("{prefetch} is not from 1 to {PREFETCH_MAX}");
            return fault("prefetch", what);
        }
        if !stage.has_shards() {
            if prefetch != Self::default().prefetch {
                let what = format!(
                    "layers are gathered ahead of passes by ranks that keep shards, and parallel.zero = {zero} makes \
                     none: let that be 2 or 3"
                );
                return fault("prefetch", what);
            }
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
        let copies = u64::from(ranks) / self.of_copy();
        if fsdp > 0 && !copies.is_multiple_of(u64::from(fsdp)) {
            let what = format!(
                "sets of shards that {fsdp} copies keep each cannot be made of {copies} copies of the model: let these \
                 be a multiple of {fsdp}"
            );
            return fault("fsdp", what);
        }
        Ok(())
    }
}

/// The field of `[parallel]` that has ranks of a kind.
pub(in crate::recipe) const fn field_of(kind: RankKind) -> &'static str {
    match kind {
        RankKind::Tensor => "tp",
        RankKind::Context => "cp",
        RankKind::Expert => "ep",
        RankKind::Shard => "zero",
        RankKind::Stage => "pp",
    }
}

/// The field of `[parallel]` that asks for what cannot be.
pub(in crate::recipe) const fn field_of_fault(error: &PartError) -> &'static str {
    match error {
        PartError::StageLayers { .. } => "stages",
        _ => field_of(error.kind()),
    }
}

impl PretrainRecipe {
    /// Checks that ranks can share what they are to share, as far as the file tells.
    pub(super) fn check_parallel(&self) -> Result<(), Fault> {
        let optimizer = ("pretrain", &self.pretrain.optimizer);
        let ranks = ("processes.ranks", self.processes.ranks);
        self.parallel.check(ranks, optimizer)?;
        let ParallelSection { tp, cp, pp, .. } = self.parallel;
        let axis = self.plan.distribute.axis;
        if axis != Axis::Data && (tp > 1 || cp > 1 || pp > 1) {
            let what = format!(
                "{} gives samples of their own to ranks that train on the same ({}): \"data\" gives them to those \
                 that do not",
                match axis {
                    Axis::World => "\"world\"",
                    _ => "\"context\"",
                },
                self.parallel.spelled()
            );
            return Err(Fault {
                table: "plan.distribute",
                field: "axis",
                what,
            });
        }
        self.check_shares()
    }

    /// The recipe with the stages that `[[parallel.place]]` asks for said by `parallel.stages`.
    fn placed(&self, config: &ModelConfig) -> Result<Self, PlaceFault> {
        let ranks = self.processes.ranks;
        Ok(Self {
            parallel: self.parallel.placed(ranks, config, &self.train())?,
            ..self.clone()
        })
    }

    /// The same of a model that has been read.
    pub(super) fn placed_or_failed(&self, config: &ModelConfig) -> Result<Self, Failure> {
        let placed = self.placed(config);
        placed.map_err(|fault| Failure::error(fault.to_string()).fatal())
    }

    /// Checks that the ranks of a copy can share the model, where the file says it all.
    fn check_shares(&self) -> Result<(), Fault> {
        if self.model.load.is_some() {
            return Ok(());
        }
        // How many entries the vocabulary has is known when the tokenizer is read.
        let config = ModelConfig {
            vision: self.vision.as_ref().map(VisionSection::config),
            next_token: self.pretrain.mtp_weight > 0.0,
            ..self.model.config(self.parallel.tp as usize)
        };
        let recipe = self.placed(&config).map_err(|fault| Fault {
            table: place_table(fault.entry),
            field: fault.field,
            what: fault.what,
        })?;
        recipe.shared_out(&config).map_err(|error| Fault {
            table: "parallel",
            field: field_of_fault(&error),
            what: error.to_string(),
        })
    }

    /// Checks that the ranks of a copy can share this model.
    pub(super) fn shared_out(&self, config: &ModelConfig) -> Result<(), PartError> {
        self.parallel.shared_out(self.processes.ranks, config)
    }

    /// The way in which the ranks train the model together.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.parallel.sharing(self.processes.ranks)
    }

    pub(super) fn cannot_share(&self, why: &PartError) -> Failure {
        let field = field_of(why.kind());
        let ParallelSection {
            zero,
            tp,
            cp,
            ep,
            pp,
            ..
        } = self.parallel;
        let ranks = match why.kind() {
            RankKind::Tensor => tp,
            RankKind::Context => cp,
            RankKind::Expert => ep,
            RankKind::Shard => u32::from(zero),
            RankKind::Stage => pp,
        };
        Failure::error(format!("parallel.{field} = {ranks}: {why}"))
    }

    /// Tokens of the longest sample that the sources allow.
    pub(super) fn longest_sample(&self) -> u32 {
        let longest = self.sources.iter().map(|source| source.context).max();
        longest.unwrap_or(self.plan.microbatch.tokens)
    }

    /// The largest micro-batches of a step on a rank, as far as the file tells.
    pub(super) fn micro_batches(&self, sharing: Sharing) -> MicroBatches {
        let PlanSpec {
            step,
            contexts,
            microbatch,
            ..
        } = &self.plan;
        let longest = self.longest_sample();
        let caps = contexts.iter().map(|context| context.tokens).max();
        // A sample that is longer has one of its own.
        let tokens = caps.unwrap_or(microbatch.tokens).max(longest);
        let buckets = (sharing.copies * sharing.experts) as u64;
        let count = match step {
            Budget::Tokens(all) => all.div_ceil(buckets * u64::from(tokens)),
            Budget::Samples(all) => u64::from(*all).div_ceil(buckets),
        };
        MicroBatches {
            tokens: tokens as usize,
            sequence: longest.min(tokens) as usize,
            count: count.max(u64::from(microbatch.at_least)) as usize,
        }
    }

    /// The memory of each rank and the sums of a step, but for the activations, which depend on the samples.
    ///
    /// # Errors
    /// The tokenizer or the model cannot be read, or the ranks cannot share it.
    pub fn footprints(&self) -> Result<Vec<Footprint>, Failure> {
        let config = self.model_config()?;
        let (train, sharing) = (self.train(), self.sharing());
        let micro = self.micro_batches(sharing);
        let of = |rank| {
            let own = Footprint::of(&config, &train, sharing, rank)?;
            Ok(own.with_activations(micro.activations(&config, &train, sharing, rank)?))
        };
        let all = (0..self.processes.ranks as usize).map(of);
        let all: Result<_, _> = all.collect();
        all.map_err(|why| self.cannot_share(&why))
    }
}
