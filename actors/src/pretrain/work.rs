//! The part of a rank in a step of pretraining.

use std::ops::Range;

use odeon::Failure;
use odeon_algorithms::model::{self, Dropout, RankOf, Sequence, TokenScores, VisionConfig};
use odeon_algorithms::train::{
    CrossEntropy, Objective, Sharing, StepPictures, StepWork, TokenGradients,
};
use odeon_data::constructor::Delivery;
use odeon_data::pack::Packed;
use odeon_data::sample::{Image, SampleId};

use super::pictures::{Features, passes};
use super::rank::Trained;

/// Batches and pictures of a rank in a step.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) delivery: Delivery,
    pub(super) batches: Vec<Packed>,
    /// The pictures that it encodes, where these are shared among all ranks.
    pub(super) pictures: Vec<Image>,
}

/// All tokens of them predicted, each with the same weight.
pub(super) struct Texts<'a> {
    work: &'a Work,
    /// The numbers of micro-batches that are computed: those with anything in them, and of ranks that wait for each other
    /// in passes all, of which there are as many on each.
    computed: Vec<usize>,
    /// The rank whose rows these are, of those with rows of the same batches.
    context: RankOf,
    /// The way in which ranks share rows, and share these again.
    sharing: Sharing,
    /// Numbers that are dropped in passes that learn.
    dropout: Dropout,
    /// Response tokens of the micro-batch under way, sequence by sequence.
    responses: Vec<Range<usize>>,
    /// Predicted tokens of this rank.
    predicted: u64,
    /// Nats of these, added up.
    nats: f64,
    /// Set where this rank has scored something, as the last of a pipeline does.
    scores: bool,
    seen: Option<Seen>,
    told: Trained,
}

/// Pictures of a step, and where their features are.
struct Seen {
    table: Features,
    pictures: StepPictures,
}

impl Seen {
    /// Nothing where no picture is.
    fn of(work: &Work, vision: Option<&VisionConfig>, rank: u32) -> Result<Option<Self>, Failure> {
        let Some(vision) = vision else {
            if work.batches.iter().any(|packed| !packed.images.is_empty()) {
                let blind = "a batch has pictures, and the model reads none: give it [vision]";
                return Err(Failure::error(blind).fatal());
            }
            return Ok(None);
        };
        let is_shared = !work.delivery.encoder.is_empty();
        let (table, passes) = if is_shared {
            let table = Features::shared(&work.delivery.encoder, rank);
            (table, passes(&work.pictures, vision.patch)?)
        } else {
            let table = Features::own(&work.batches, &work.delivery.microbatches);
            let images = work.batches.iter().flat_map(|it| it.images.clone());
            let own: Vec<Image> = images.collect();
            (table, passes(&own, vision.patch)?)
        };
        let pictures = StepPictures {
            passes,
            rows: table.rows as usize,
            first: table.own.start as usize,
            is_shared,
        };
        Ok((table.rows > 0).then_some(Self { table, pictures }))
    }
}

impl<'a> Texts<'a> {
    /// Of a model that reads pictures as `vision` says, or none.
    ///
    /// # Errors
    /// There are pictures, and the model cannot read them, or a batch contradicts itself.
    pub(super) fn of(
        work: &'a Work,
        vision: Option<&VisionConfig>,
        rank: u32,
        (sharing, dropout): (Sharing, Dropout),
    ) -> Result<Self, Failure> {
        let ids = work.delivery.microbatches.iter().enumerate();
        let all = sharing.experts > 1 || sharing.zero.has_shards();
        let computed = ids.filter(|(_, ids)| all || !ids.is_empty());
        let context = sharing.context_of(rank as usize);
        let filled = work.batches.iter().filter(|it| !it.prompts.is_empty());
        let predicted = filled.map(|packed| match context.ranks {
            1 => Ok(packed.predicted()),
            _ => {
                let batch = packed.batch().map_err(Failure::error)?;
                Ok(rows_of(batch, context, sharing).predicted() as u64)
            }
        });
        Ok(Self {
            computed: computed.map(|(number, _)| number).collect(),
            context,
            sharing,
            dropout,
            responses: vec![],
            predicted: predicted.sum::<Result<u64, Failure>>()?,
            nats: 0.0,
            scores: false,
            seen: Seen::of(work, vision, rank)?,
            told: Trained {
                digest: work.delivery.digest,
                ..Trained::default()
            },
            work,
        })
    }

    /// Results over the samples of this rank alone.
    pub(super) fn told(self) -> Trained {
        let mean = self.nats / self.predicted.max(1) as f64;
        Trained {
            own_loss: (self.predicted > 0 && self.scores).then_some(mean),
            ..self.told
        }
    }
}

/// The batch of a micro-batch, with dropout by the names of its samples. Where there are none it is a token that
/// predicts nothing, for ranks that wait for each other.
fn batch_of(packed: &Packed, ids: &[SampleId], dropout: Dropout) -> Result<model::Batch, Failure> {
    if packed.prompts.is_empty() {
        let nothing = Sequence {
            tokens: &[0],
            prompt: 1,
        };
        return model::Batch::pack(&[nothing]).map_err(Failure::error);
    }
    let batch = packed.batch().map_err(Failure::error)?;
    let samples: Vec<u128> = ids.iter().map(|id| id.number()).collect();
    Ok(batch.dropping(dropout, &samples))
}

/// The rows of a batch that a rank computes.
fn rows_of(batch: model::Batch, context: RankOf, sharing: Sharing) -> model::Batch {
    batch.of_ranks(context, sharing.context_kind, sharing.tensor)
}

impl StepWork for Texts<'_> {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.computed.len()
    }

    fn pictures(&self) -> Option<&StepPictures> {
        self.seen.as_ref().map(|seen| &seen.pictures)
    }

    fn counts(&self) -> Vec<u64> {
        vec![self.predicted]
    }

    fn sums_loss(&self) -> bool {
        true
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        let number = self.computed[micro];
        let packed = &self.work.batches[number];
        let ids = &self.work.delivery.microbatches[number];
        let batch = batch_of(packed, ids, self.dropout)?;
        let batch = rows_of(batch, self.context, self.sharing);
        self.responses = batch.responses().to_vec();
        let Some(seen) = &self.seen else {
            return Ok(batch);
        };
        Ok(batch.seeing(packed.visual(&seen.table.rows_of(packed, ids)?)))
    }

    fn evaluate(
        &mut self,
        micro: usize,
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let number = self.computed[micro];
        let ids = &self.work.delivery.microbatches[number];
        let mut sum = 0.0;
        self.scores = true;
        let packed = &self.work.batches[number];
        let sequences = packed.sequences().zip(&self.responses);
        for (id, (sequence, response)) in ids.iter().zip(sequences) {
            let own: f64 = scores.logprobs[response.clone()]
                .iter()
                .map(|it| -f64::from(*it))
                .sum();
            let part = self.told.sources.entry(id.source.0).or_default();
            // Of ranks with rows of the same sequences the first counts these.
            if self.context.rank == 0 {
                part.samples += 1;
                part.tokens += sequence.tokens.len() as u64;
                self.told.tokens += sequence.tokens.len() as u64;
            }
            part.nats += own;
            part.predicted += response.len() as u64;
            self.nats += own;
            sum += own;
        }
        let predicted = counts[0].max(1);
        CrossEntropy::mean_over(predicted as usize).evaluate(scores, gradients);
        Ok(sum / predicted as f64)
    }
}
