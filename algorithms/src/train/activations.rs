//! The memory of activations, before anything runs.

use std::sync::Arc;

use odeon_gpu::{Cpu, CpuBuffer, PassRanks, Tape};
use odeon_replay::PassKind;

use super::stages::stage_plan;
use super::{Sharing, TrainConfig};
use crate::model::{
    Batch, Model, ModelConfig, PartError, PassGroups, RankOf, Sequence, StageGroups, StageOutput,
    Wanted,
};

/// The micro-batches of a step on a rank, as far as memory asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatches {
    /// Tokens of the largest one, all of which are predicted.
    pub tokens: usize,
    /// Tokens of its sequences, at most.
    pub sequence: usize,
    /// Number of them.
    pub count: usize,
}

/// Bytes of activations, and of their gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivationBytes {
    /// On the device.
    pub device: usize,
    /// In memory of the host, where what layers keep [waits](TrainConfig::offload) for the way back.
    pub host: usize,
}

impl MicroBatches {
    /// Bytes of activations, and of their gradients, that a rank has room for when it has trained on these. Where ranks
    /// have some of the experts each, as many rows come to all of them; none for a model that reads pictures, whose
    /// encoders are not told.
    ///
    /// # Errors
    /// The model cannot be shared by so many.
    ///
    /// # Panics
    /// If there is no such rank, or nothing in a micro-batch.
    pub fn activations(
        &self,
        config: &ModelConfig,
        train: &TrainConfig,
        sharing: Sharing,
        rank: usize,
    ) -> Result<Option<ActivationBytes>, PartError> {
        if config.vision.is_some() {
            return Ok(None);
        }
        let place = sharing.place(rank);
        let context = sharing.context_of(rank);
        let mut model = Model::outline(config, place)?;
        model
            .config()
            .check_context(sharing.context_kind, sharing.context)?;
        let of = |own: RankOf| {
            (own.ranks > 1).then(|| Arc::new(Outline(own)) as Arc<dyn PassRanks<Cpu>>)
        };
        model.meet(PassGroups {
            tensor: of(place.tensor),
            experts: of(place.experts),
            context: of(context),
            stages: StageGroups {
                all: of(place.stage.rank),
                ..StageGroups::default()
            },
            ..PassGroups::default()
        });
        let rows = train.optimizer.rows_together();
        model.outline_shard(sharing.shard_place(rank), rows);
        let batch = self
            .largest()
            .of_ranks(context, sharing.context_kind, sharing.tensor);
        let wanted = Wanted {
            next_token: train.next_token_weight > 0.0,
            logprobs: true,
            values: config.value_head,
            recompute: train.recompute,
            offload: train.offload,
        };
        let is_divided = sharing.stages > 1 && sharing.schedule.is_divided();
        let bytes = (0..sharing.chunks).map(|chunk| {
            let mut tape = Tape::new();
            let stage = model.config().stage(chunk);
            let keep = match model.record_stage(&mut tape, &batch, &stage, wanted).output {
                StageOutput::Rows(rows) => vec![rows],
                StageOutput::Scores(outputs) => outputs.vars(),
            };
            let plan = stage_plan(&model, &tape, &keep, is_divided);
            [plan.bytes() + plan.arriving_bytes(), plan.offloaded_bytes()]
        });
        let largest = bytes.reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])]);
        let under_way = self.under_way(sharing, place.stage.rank.rank);
        let [device, host] = largest
            .expect("a rank has a stage")
            .map(|bytes| bytes * under_way);
        Ok(Some(ActivationBytes { device, host }))
    }

    /// A micro-batch of its sequences.
    fn largest(&self) -> Batch {
        // The last token of a sequence is a label alone.
        let tokens = vec![0; self.sequence + 1];
        let lengths = (0..self.tokens).step_by(self.sequence);
        let sequences = lengths.map(|begin| Sequence {
            tokens: &tokens[..self.sequence.min(self.tokens - begin) + 1],
            prompt: 1,
        });
        let sequences: Vec<Sequence<'_>> = sequences.collect();
        Batch::pack(&sequences).expect("sequences with a prompt")
    }

    /// Passes of a pipeline rank that have gone forward and not back for good, at most.
    fn under_way(&self, sharing: Sharing, rank: usize) -> usize {
        if sharing.stages == 1 {
            return 1;
        }
        let schedule = sharing
            .schedule
            .schedule(sharing.stages, sharing.chunks, self.count);
        let passes = schedule.ranks()[rank].iter();
        let mut under_way = 0usize;
        let counts = passes.map(|pass| {
            match pass.kind {
                PassKind::Forward => under_way += 1,
                // It keeps its memory for the gradients of weights.
                PassKind::BackwardInput => {}
                PassKind::Backward | PassKind::BackwardWeight => under_way -= 1,
            }
            under_way
        });
        counts.max().unwrap_or(0)
    }
}

/// Ranks that a recording is made for, and that it never meets.
#[derive(Debug)]
struct Outline(RankOf);

impl PassRanks<Cpu> for Outline {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn count(&self) -> usize {
        self.0.ranks
    }

    fn sum(&self, _: &Cpu, _: &mut CpuBuffer, _: std::ops::Range<usize>) {
        unreachable!("it is not run")
    }

    fn scatter(&self, _: &Cpu, _: &mut CpuBuffer, _: usize) {
        unreachable!("it is not run")
    }

    fn gather(&self, _: &Cpu, _: &mut CpuBuffer, _: usize) {
        unreachable!("it is not run")
    }

    fn exchange(&self, _: &Cpu, _: &CpuBuffer, _: &[usize], _: &mut CpuBuffer, _: &[usize]) {
        unreachable!("it is not run")
    }

    fn tell(&self, _: &Cpu, _: &[u32]) -> Vec<u32> {
        unreachable!("it is not run")
    }
}
