//! The part of a rank in a step of pretraining.

use odeon::Failure;
use odeon_algorithms::model::{self, TokenScores, VisionConfig};
use odeon_algorithms::train::{CrossEntropy, Objective, StepPictures, StepWork, TokenGradients};
use odeon_data::constructor::Delivery;
use odeon_data::pack::Packed;
use odeon_data::sample::Image;

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
    /// The numbers of micro-batches with anything in them.
    filled: Vec<usize>,
    /// Predicted tokens of this rank.
    predicted: u64,
    /// Nats of these, added up.
    nats: f64,
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
    /// There are pictures, and the model cannot read them.
    pub(super) fn of(
        work: &'a Work,
        vision: Option<&VisionConfig>,
        rank: u32,
    ) -> Result<Self, Failure> {
        let ids = work.delivery.microbatches.iter().enumerate();
        let filled = ids.filter(|(_, ids)| !ids.is_empty());
        Ok(Self {
            filled: filled.map(|(number, _)| number).collect(),
            predicted: work.batches.iter().map(Packed::predicted).sum(),
            nats: 0.0,
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
            own_loss: (self.predicted > 0).then_some(mean),
            ..self.told
        }
    }
}

impl StepWork for Texts<'_> {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.filled.len()
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
        let number = self.filled[micro];
        let packed = &self.work.batches[number];
        let batch = packed.batch().map_err(Failure::error)?;
        let Some(seen) = &self.seen else {
            return Ok(batch);
        };
        let ids = &self.work.delivery.microbatches[number];
        Ok(batch.seeing(packed.visual(&seen.table.rows_of(packed, ids)?)))
    }

    fn evaluate(
        &mut self,
        micro: usize,
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let number = self.filled[micro];
        let ids = &self.work.delivery.microbatches[number];
        let (mut begin, mut sum) = (0, 0.0);
        let packed = &self.work.batches[number];
        let sequences = packed.sequences().zip(packed.predictions());
        for (id, (sequence, predicted)) in ids.iter().zip(sequences) {
            let response = begin..begin + predicted;
            let own: f64 = scores.logprobs[response.clone()]
                .iter()
                .map(|it| -f64::from(*it))
                .sum();
            let part = self.told.sources.entry(id.source.0).or_default();
            part.samples += 1;
            part.tokens += sequence.tokens.len() as u64;
            part.nats += own;
            part.predicted += response.len() as u64;
            self.told.tokens += sequence.tokens.len() as u64;
            begin = response.end;
            self.nats += own;
            sum += own;
        }
        let predicted = counts[0].max(1);
        CrossEntropy::mean_over(predicted as usize).evaluate(scores, gradients);
        Ok(sum / predicted as f64)
    }
}
