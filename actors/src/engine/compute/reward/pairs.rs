//! The model of a reward: the policy's architecture with a value head, in this process or as the part of a rank. It knows
//! rows, and nothing of replies.

use std::path::Path;
use std::sync::Arc;

use odeon::Failure;
use odeon_algorithms::model::{self, ModelConfig, TokenScores};
use odeon_algorithms::objective::preference;
use odeon_algorithms::train::{Schedule, StepWork, TokenGradients, TrainConfig};
use odeon_algorithms::weights::ModelFields;
use odeon_gpu::Device;

use super::super::dealing::RankPlace;
use super::super::models::{Model, Optimizer};
use super::super::peers::PassGang;
use super::super::rows::{Predictions, Rows};
use super::super::score::{Rated, Rating, rated, response_lengths, rows};
use super::super::step::{Learning, step};
use super::super::{ComputePlace, ComputeSpec, ModelSource, model_folder};
use super::unzipped;
use crate::engine::{RewardModelSpec, ScoreEngine};
use crate::ranks::gangs::Gangs;
use crate::trajectory::{Batch, Version};

/// A model that gives each row of a batch a number, read at the last token of its prompt: in this process, or shared by
/// ranks.
pub(crate) trait PairModel: Send + Sync {
    /// Makes a step of learning from pairs of neighbouring rows, of which the first is better. Answers the loss.
    ///
    /// # Errors
    /// It cannot be made, or a rank is lost.
    fn learn(&mut self, pairs: &Batch) -> Result<f64, Failure>;

    /// Writes what it has learnt into a new folder.
    ///
    /// # Errors
    /// It has not learnt, a rank is lost, or the folder cannot be written.
    fn write(&mut self, folder: &Path) -> Result<(), Failure>;

    /// Rates with the model of a folder from now on, and learns no more.
    ///
    /// # Errors
    /// It cannot be read, or a rank is lost.
    fn read(&mut self, folder: &Path) -> Result<(), Failure>;

    /// One number for each row, whatever other rows there are.
    ///
    /// # Errors
    /// There is no model yet, or a rank is lost.
    fn scores(&mut self, batch: &Batch) -> Result<Vec<f32>, Failure>;
}

/// What one rank has of such a model; a rank by itself has all of it.
pub(crate) struct PairPart {
    spec: ComputeSpec,
    plan: RewardModelSpec,
    place: RankPlace,
    gangs: Gangs,
    model: Option<Optimizer>,
}

impl std::fmt::Debug for PairPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PairPart")
            .field("plan", &self.plan)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl PairPart {
    /// All of it.
    pub(super) fn alone(spec: &ComputeSpec, plan: &RewardModelSpec) -> Self {
        Self::of_rank((spec, plan), RankPlace::ALONE, Gangs::default())
    }

    /// The part of a rank among those that share the model, which computes with these. It begins as the policy is when it
    /// first learns.
    pub(crate) fn of_rank(
        (spec, plan): (&ComputeSpec, &RewardModelSpec),
        place: RankPlace,
        gangs: Gangs,
    ) -> Self {
        Self {
            spec: spec.clone(),
            plan: plan.clone(),
            place,
            gangs,
            model: None,
        }
    }

    /// Leaves the ranks that it computes with: they would wait for it.
    pub(crate) fn leave(&mut self) {
        self.gangs.leave();
    }

    /// What it has, where it has learnt or read anything.
    ///
    /// # Errors
    /// It has not.
    pub(crate) fn optimizer(&self) -> Result<&Optimizer, Failure> {
        self.model.as_ref().ok_or_else(nothing)
    }

    /// Rates with what this rank has of the model in a folder, and learns no more. A processor adds up in one order
    /// then: else that hangs on the number of rows, and what a reply earns would on those that are rated with it.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(&mut self, folder: &Path) -> Result<(), Failure> {
        // Never both at once.
        self.model = None;
        let own = self.spec.place();
        let place = ComputePlace {
            deterministic: own.deterministic || self.spec.device == Device::Cpu,
            ..own
        };
        let source = ModelSource::Load(folder.to_owned());
        let part = place.part((&source, self.spec.seed), true, (&self.place, 1))?;
        self.model = Some(self.place.rating(part));
        Ok(())
    }

    fn learning(&mut self) -> Result<&mut Optimizer, Failure> {
        let model = match self.model.take() {
            Some(model) => model,
            None => {
                let steps = self.plan.steps;
                let config = TrainConfig {
                    lr: self.plan.lr,
                    warmup: (steps / 20).min(100),
                    schedule: Schedule::Cosine { steps, floor: 0.1 },
                    weight_decay: 0.0,
                    recompute: self.spec.recompute,
                    offload: self.spec.offload,
                    ..TrainConfig::default()
                };
                let keeps = (&self.place, config.optimizer.rows_together());
                let part = self.spec.part(&self.spec.before(), true, keeps)?;
                self.place.optimizer(part, config)
            }
        };
        Ok(self.model.insert(model))
    }
}

fn nothing() -> Failure {
    Failure::error("the reward model has not learnt yet")
}

impl ScoreEngine for PairPart {
    fn score(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        let all = &batch.trajectories;
        let model = self.model.as_mut().ok_or_else(nothing)?;
        let (rows, own) = Rows::dealt(rows(all), model.model(), self.place);
        let rating = Rating {
            rows,
            lengths: response_lengths(&all[own]),
            temperature: 1.0,
            rated: Rated::Values,
        };
        rated(model, &mut self.gangs, rating).map(|(scores, _)| scores)
    }

    /// Learns from pairs of neighbouring rows; they have no returns.
    fn learn(&mut self, batch: &Batch, _returns: &[Vec<f32>]) -> Result<f64, Failure> {
        let all = rows(&batch.trajectories);
        let mut work = PreferenceWork {
            pairs: all.len() / 2,
            rows: Rows::of_pairs(all, self.place),
            place: self.place,
            context: self.gangs.passes.context.clone(),
            predictions: Predictions::default(),
        };
        self.learning()?;
        let model = self.model.as_mut().ok_or_else(nothing)?;
        let gangs = self.gangs.of_step(true);
        Ok(step(model, &mut work, gangs, Learning::Yes)?.outcome.loss)
    }

    fn save(&mut self, _folder: &Path, _learnt: Version) -> Result<(), Failure> {
        Err(Failure::error("a reward model is saved when it has learnt"))
    }

    fn restore(
        &mut self,
        _folder: &Path,
        _at_most: Option<Version>,
    ) -> Result<Option<Version>, Failure> {
        Ok(None)
    }
}

impl PairModel for PairPart {
    fn learn(&mut self, pairs: &Batch) -> Result<f64, Failure> {
        ScoreEngine::learn(self, pairs, &[])
    }

    fn write(&mut self, folder: &Path) -> Result<(), Failure> {
        // Also where there was no step to make.
        self.learning()?;
        written(folder, self.optimizer()?.model(), &self.spec)
    }

    fn read(&mut self, folder: &Path) -> Result<(), Failure> {
        Self::read(self, folder)
    }

    fn scores(&mut self, batch: &Batch) -> Result<Vec<f32>, Failure> {
        Ok(self.score(batch)?.concat())
    }
}

/// Writes a whole model, whose numbers were brought together in the order of its tensors, into a folder.
///
/// # Errors
/// It has another number of numbers, or the folder cannot be written.
pub(crate) fn write_whole(folder: &Path, flat: &[f32], spec: &ComputeSpec) -> Result<(), Failure> {
    let config = ModelConfig {
        value_head: true,
        ..spec.before().config()?
    };
    let place = ComputePlace {
        device: Device::Cpu,
        share: None,
        ..spec.place()
    };
    let mut model = Model::zeros(place.backend()?, config).map_err(Failure::error)?;
    model.load_flat(flat).map_err(Failure::error)?;
    written(folder, &model, spec)
}

fn written(folder: &Path, model: &Model, spec: &ComputeSpec) -> Result<(), Failure> {
    let fields = ModelFields::of(model.config(), spec.context);
    model_folder::write(folder, model, fields, Some(&spec.tokenizer))
}

/// Pairs of rows, of which the first is better.
struct PreferenceWork {
    /// Of this rank.
    rows: Rows,
    /// Pairs of all ranks.
    pairs: usize,
    place: RankPlace,
    /// Ranks with other parts of the same rows, where there are some.
    context: Option<Arc<PassGang>>,
    predictions: Predictions,
}

impl StepWork for PreferenceWork {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.rows.micro_batches()
    }

    fn counts(&self) -> Vec<u64> {
        // Of ranks with rows of the same pairs the first counts these.
        let is_first = self.place.context().rank == 0;
        let own = (0..self.rows.micro_batches()).map(|micro| self.rows.sequences(micro).len() / 2);
        vec![if is_first {
            own.sum::<usize>() as u64
        } else {
            0
        }]
    }

    fn sums_loss(&self) -> bool {
        !self.place.is_alone()
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        let (batch, predictions) = self.rows.own_part(self.rows.pack(micro)?);
        self.predictions = predictions;
        Ok(batch)
    }

    fn evaluate(
        &mut self,
        micro: usize,
        _counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        if self.rows.sequences(micro).is_empty() {
            return Ok(0.0);
        }
        let scores = self
            .predictions
            .scores_of_all(self.context.as_ref(), scores)?;
        let (better, worse) = unzipped(&scores.values);
        let value = preference(&better, &worse, self.pairs).map_err(Failure::error)?;
        let of_all = TokenGradients {
            values: value.d_better.iter().flat_map(|d| [*d, -d]).collect(),
            ..TokenGradients::default()
        };
        self.predictions.own_gradients(&of_all, gradients);
        let is_first = self.place.context().rank == 0;
        Ok(if is_first { value.loss } else { 0.0 })
    }
}
