//! A step of ranks that share a model in any mixture of ways, priced before it is made.
//!
//! Kernels are those of a [`Machine`]; what ranks send is what their [`Footprint`] says, to the byte. Nothing is
//! computed while ranks add up or exchange, as the step engine has it, so all of it is added: but for pipelines, whose
//! schedule is replayed.

use odeon_gpu::Precision;
use odeon_replay::{PipelineCosts, ScheduleError, StageCosts};
use serde::Serialize;

use super::layer::{Layer, LayerTime};
use super::{Machine, Recomputed, Shared, Techniques, TrainedModel, TrainingPlan};
use crate::model::{ContextKind, ModelConfig, PartError, Recompute};
use crate::train::{Footprint, MicroBatches, Sharing, TrainConfig, ZeroStage};

/// Ranks that share a model, and the batch of their steps.
#[derive(Clone, Copy, Debug)]
pub struct SharedStep<'a> {
    /// Where each rank has a card, or threads of a processor.
    pub machine: &'a Machine,
    /// The model.
    pub config: &'a ModelConfig,
    /// The optimiser, and what is computed again.
    pub train: &'a TrainConfig,
    /// The way in which they share it.
    pub sharing: Sharing,
    /// The micro-batches of those with the same samples.
    pub micro: MicroBatches,
    /// Tokens of a step, of all ranks.
    pub tokens: u64,
}

/// Predicted seconds of a step, on the rank that computes longest. They add up to all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SharedStepTime {
    /// Passes, without what follows.
    pub compute_s: f64,
    /// Rows that tensor ranks gather and add up.
    pub tensor_s: f64,
    /// Rows, or keys and values, of context ranks.
    pub context_s: f64,
    /// Rows on their way to experts and back.
    pub experts_s: f64,
    /// Messages between stages that nothing hides.
    pub stages_s: f64,
    /// Stages that wait for the first passes, and behind the last ones.
    pub bubble_s: f64,
    /// Sums of gradients, and shards that are gathered.
    pub data_s: f64,
    /// The optimiser.
    pub update_s: f64,
}

impl SharedStepTime {
    /// All of them.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.compute_s
            + self.tensor_s
            + self.context_s
            + self.experts_s
            + self.stages_s
            + self.bubble_s
            + self.data_s
            + self.update_s
    }
}

/// A step that cannot be priced.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedStepError {
    /// The ranks cannot share the model.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The order of passes cannot be replayed.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// Seconds of one pass of a micro-batch through a stage, forward and back.
#[derive(Clone, Copy, Debug, Default)]
struct PassTime {
    kernels: [f64; 2],
    tensor: [f64; 2],
    context: [f64; 2],
    experts: [f64; 2],
    shards: [f64; 2],
}

impl PassTime {
    fn of(&self, way: usize) -> f64 {
        self.kernels[way]
            + self.tensor[way]
            + self.context[way]
            + self.experts[way]
            + self.shards[way]
    }
}

/// The share of each part in one stage.
#[derive(Clone, Copy, Debug)]
struct StagePart<'a> {
    footprint: &'a Footprint,
    layers: f64,
    /// Part of what the rank does that this stage does.
    share: f64,
    is_first: bool,
    is_last: bool,
}

impl SharedStep<'_> {
    /// Seconds of a step.
    ///
    /// # Errors
    /// See [`SharedStepError`].
    ///
    /// # Panics
    /// If there are no ranks, or no micro-batches.
    pub fn time(&self) -> Result<SharedStepTime, SharedStepError> {
        let Sharing { stages, chunks, .. } = self.sharing;
        let rank_of = |stage: usize| stage * self.sharing.of_stage();
        let footprint =
            |stage| Footprint::of(self.config, self.train, self.sharing, rank_of(stage));
        let footprints: Vec<Footprint> = (0..stages).map(footprint).collect::<Result<_, _>>()?;
        let (layer, head) = self.kernels();
        let passes: Vec<PassTime> = (0..stages * chunks)
            .map(|number| self.pass(&footprints[number % stages], number, layer, head))
            .collect();
        let count = self.micro.count as f64;
        let mut time = self.passes(&passes)?;
        let busiest = self.busiest(&passes);
        for pass in passes.iter().skip(busiest).step_by(stages) {
            for way in [0, 1] {
                time.compute_s += count * pass.kernels[way];
                time.tensor_s += count * pass.tensor[way];
                time.context_s += count * pass.context[way];
                time.experts_s += count * pass.experts[way];
                time.data_s += count * pass.shards[way];
            }
        }
        let most = |of: &dyn Fn(&Footprint) -> f64| footprints.iter().map(of).fold(0.0, f64::max);
        time.data_s += most(&|it| self.sums(it));
        time.update_s = most(&|it| self.update(it));
        Ok(time)
    }

    /// The rank of a pipeline that computes longest.
    fn busiest(&self, passes: &[PassTime]) -> usize {
        let stages = self.sharing.stages;
        let busy = |rank: usize| -> f64 {
            let own = passes.iter().skip(rank).step_by(stages);
            own.map(|pass| pass.of(0) + pass.of(1)).sum()
        };
        (0..stages)
            .max_by(|a, b| busy(*a).total_cmp(&busy(*b)))
            .expect("there is a rank")
    }

    /// Bubbles, and messages that nothing hides.
    fn passes(&self, passes: &[PassTime]) -> Result<SharedStepTime, SharedStepError> {
        let Sharing { stages, chunks, .. } = self.sharing;
        if stages == 1 {
            return Ok(SharedStepTime::default());
        }
        let schedule = self
            .sharing
            .schedule
            .schedule(stages, chunks, self.micro.count);
        let costs = passes
            .iter()
            .map(|pass| StageCosts::new(pass.of(0), pass.of(1), 0.0));
        let without = PipelineCosts {
            stages: costs.collect(),
            ..PipelineCosts::default()
        };
        let row = 4.0 * self.config.dim as f64 / self.sharing.tensor as f64;
        let link = self.link(stages, self.sharing.of_stage());
        let with = PipelineCosts {
            transfer_s: link.seconds(self.rows() * row),
            ..without.clone()
        };
        let without = schedule.summary(&without)?;
        let with = schedule.summary(&with)?;
        let busy = without.ranks.iter().map(|it| it.busy_s).fold(0.0, f64::max);
        Ok(SharedStepTime {
            bubble_s: (without.makespan_s - busy).max(0.0),
            stages_s: (with.makespan_s - without.makespan_s).max(0.0),
            ..SharedStepTime::default()
        })
    }

    /// One pass of a micro-batch through a stage.
    fn pass(
        &self,
        footprint: &Footprint,
        number: usize,
        layer: LayerTime,
        head: LayerTime,
    ) -> PassTime {
        let Sharing { stages, chunks, .. } = self.sharing;
        let layers = |number: usize| {
            let place = self
                .sharing
                .place(number % stages * self.sharing.of_stage());
            place
                .stage
                .layers(number / stages, self.config.layers)
                .len() as f64
        };
        let of_rank = (0..chunks).map(|chunk| layers(chunk * stages + number % stages));
        let stage = StagePart {
            footprint,
            layers: layers(number),
            share: layers(number) / of_rank.sum::<f64>().max(1.0),
            is_first: number == 0,
            is_last: number + 1 == stages * chunks,
        };
        let ends = if stage.is_last { 1.0 } else { 0.0 };
        let context = self.sharing.context as f64;
        let kernels = |one: f64, end: f64| (stage.layers * one + ends * end) / context;
        PassTime {
            kernels: [
                kernels(layer.forward_s, head.forward_s),
                kernels(layer.backward_s, head.backward_s),
            ],
            tensor: self.tensor(&stage),
            context: self.context(&stage),
            experts: self.experts(&stage),
            shards: self.shards(&stage),
        }
    }

    /// Tokens of a micro-batch of those with the same samples.
    fn micro_tokens(&self) -> f64 {
        let buckets = (self.sharing.copies * self.sharing.experts) as f64;
        self.tokens as f64 / buckets / self.micro.count as f64
    }

    /// Rows of it that a rank has, among context ranks.
    fn rows(&self) -> f64 {
        self.micro_tokens() / self.sharing.context as f64
    }

    /// Kernels of a layer and of the head, for all rows of a micro-batch.
    fn kernels(&self) -> (LayerTime, LayerTime) {
        let tokens = self.micro_tokens().max(1.0);
        let sequence = (self.micro.sequence as f64).min(tokens).floor().max(1.0);
        let micro_batch = (tokens / sequence).floor().max(1.0);
        let plan = TrainingPlan {
            tensor: self.sharing.tensor as u32,
            sequence: sequence as u64,
            micro_batch: micro_batch as u64,
            shared: Shared::Nothing,
            recomputed: match self.train.recompute {
                Recompute::Nothing => Recomputed::Nothing,
                Recompute::FeedForward => Recomputed::Half,
                Recompute::Layers => Recomputed::Layers,
            },
            ..TrainingPlan::default()
        };
        let model = TrainedModel::of_config(self.config);
        let layer = Layer {
            machine: self.machine,
            model: &model,
            plan: &plan,
            techniques: &Techniques::FSDP2_COMPILED,
            masked: true,
        };
        let scale = tokens / (sequence * micro_batch);
        let scaled = |it: LayerTime| LayerTime {
            forward_s: scale * it.forward_s,
            backward_s: scale * it.backward_s,
            ..it
        };
        (scaled(layer.time()), scaled(layer.head()))
    }

    /// The links between members of a group that lie `stride` ranks apart.
    fn link(&self, members: usize, stride: usize) -> odeon_topology::Link {
        match members * stride <= self.machine.cards() as usize {
            true => self.machine.inside,
            false => self.machine.between,
        }
    }

    /// Seconds in which so many members, `stride` ranks apart, gather `bytes` or scatter as many sums.
    fn gather(&self, members: usize, stride: usize, bytes: f64) -> f64 {
        let beside = self.machine.cards() as usize / stride;
        let beside = beside.clamp(1, members.max(1));
        self.machine.gather(members as u32, beside as u32, bytes)
    }

    /// Each product has its rows gathered, and its sums scattered.
    fn tensor(&self, stage: &StagePart<'_>) -> [f64; 2] {
        let tensor = self.sharing.tensor;
        if tensor == 1 {
            return [0.0; 2];
        }
        let bytes = self.rows() * stage.footprint.row as f64;
        let times = 2.0 * stage.layers + if stage.is_first { 1.0 } else { 0.0 };
        let sums = times * 2.0 * self.gather(tensor, 1, bytes);
        let told = self.rows() * stage.footprint.vocabulary_row as f64;
        let told = match stage.is_last {
            true => self.link(tensor, 1).seconds(told),
            false => 0.0,
        };
        [sums + told, sums]
    }

    fn context(&self, stage: &StagePart<'_>) -> [f64; 2] {
        let Sharing {
            context,
            context_kind,
            tensor,
            ..
        } = self.sharing;
        if context == 1 {
            return [0.0; 2];
        }
        let link = self.link(context, tensor);
        let turns = match context_kind {
            ContextKind::Ulysses => 2.0,
            ContextKind::Ring => (context - 1) as f64,
        };
        let rows = [
            stage.footprint.context_row,
            stage.footprint.context_row_back,
        ];
        rows.map(|row| {
            let bytes = stage.share * self.rows() * row as f64;
            bytes / link.bytes_per_second + stage.layers * turns * link.latency_s
        })
    }

    fn experts(&self, stage: &StagePart<'_>) -> [f64; 2] {
        let experts = self.sharing.experts;
        if experts == 1 {
            return [0.0; 2];
        }
        let stride = self.sharing.of_copy() / experts;
        let link = self.link(experts, stride);
        let away = (experts - 1) as f64 / experts as f64;
        let bytes = away * stage.share * self.rows() * stage.footprint.expert_row as f64;
        [bytes / link.bytes_per_second + stage.layers * 2.0 * link.latency_s; 2]
    }

    /// Shards that passes gather, and gradients of which each rank gets its own.
    fn shards(&self, stage: &StagePart<'_>) -> [f64; 2] {
        if !self.sharing.zero.has_shards() {
            return [0.0; 2];
        }
        let all = self.shard(stage.footprint, stage.share, stage.layers);
        // Gradients have 32 bits.
        let sums = match self.sharing.params {
            Precision::F32 => all,
            _ => self.shard(stage.footprint, 2.0 * stage.share, stage.layers),
        };
        match self.sharing.zero {
            ZeroStage::Parameters => [all, all + sums],
            _ => [0.0, sums],
        }
    }

    /// Seconds of gathering a part of the shards, in so many times.
    fn shard(&self, footprint: &Footprint, part: f64, times: f64) -> f64 {
        let stride = self.sharing.of_copy();
        let link = self.link(self.sharing.copies_of_shards(), stride);
        let bytes = part * footprint.gathered_of_others as f64;
        bytes / link.bytes_per_second + times * link.latency_s
    }

    /// What is added up once a step, and gathered.
    fn sums(&self, footprint: &Footprint) -> f64 {
        let Sharing {
            copies,
            context,
            tensor,
            ..
        } = self.sharing;
        let stride = self.sharing.of_copy();
        let twice =
            |members, stride, bytes: usize| 2.0 * self.gather(members, stride, bytes as f64);
        let over_data = match self.sharing.zero.has_shards() {
            true => {
                let of_shards = self.sharing.copies_of_shards();
                let replicas = self.sharing.replicas();
                twice(replicas, of_shards * stride, footprint.summed_over_data)
            }
            false => twice(self.sharing.data(), tensor, footprint.summed_over_data),
        };
        let gathered = match self.sharing.zero {
            ZeroStage::Gradients => self.shard(footprint, 1.0, 1.0),
            _ => 0.0,
        };
        over_data
            + gathered
            + twice(self.sharing.ranks(), 1, footprint.summed_over_all)
            + twice(copies * context, stride, footprint.summed_over_experts)
    }

    /// The update of what a rank keeps.
    fn update(&self, footprint: &Footprint) -> f64 {
        let states = self.train.optimizer.state().len().max(1);
        let parameters = footprint.optimizer as f64 / (4 * states) as f64;
        let card = &self.machine.card;
        // Parameter, gradient and states are read, and all but the gradient written.
        let bytes = 4.0 * (3 + 2 * states) as f64;
        let rate = card.device.memory_bytes_per_second * card.kernels.product.bandwidth;
        bytes * parameters / rate
    }
}
