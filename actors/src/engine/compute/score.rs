//! Engines that rate tokens: the frozen reference and the learning critic.

use std::path::Path;
use std::sync::Arc;

use odeon::Failure;
use odeon::group::Communicator;
use odeon_algorithms::model::{self, ScoresRead, TokenScores};
use odeon_algorithms::objective::{Totals, ValueBatch, ValueObjective};
use odeon_algorithms::train::{StepWork, TokenGradients, TrainConfig};
use odeon_algorithms::weights::ModelFields;

use super::checkpoint::{Newest, Older, ToSave};
use super::dealing::RankPlace;
use super::peers::PassGang;
use super::rollout::training_temperature;
use super::rows::{Predictions, Row, Rows};
use super::state::{CRITIC, CheckpointRanks};
use super::step::{Learning, step};
use super::{ComputeSpec, Optimizer, checkpoint};
use crate::engine::{Progress, ScoreEngine};
use crate::ranks::gangs::Gangs;
use crate::trajectory::{Batch, Trajectory, Version};

/// Log-probabilities under the policy as it was before the reinforcement.
#[derive(Debug)]
pub struct Reference {
    model: Optimizer,
    place: RankPlace,
    gangs: Gangs,
    /// The policy is rated at this temperature, so the reference is too.
    temperature: f32,
}

impl Reference {
    /// Loads the policy that the trainer saved after its supervised steps, or the first weights
    /// when there were none.
    ///
    /// # Errors
    /// The model cannot be made or loaded.
    pub fn new(spec: &ComputeSpec) -> Result<Self, Failure> {
        Self::of_rank(spec, RankPlace::ALONE, Gangs::default())
    }

    /// The same of a rank among those that share the model: it rates its run of a batch, with these.
    ///
    /// # Errors
    /// The model cannot be made or loaded, or shared like this.
    pub(crate) fn of_rank(
        spec: &ComputeSpec,
        place: RankPlace,
        gangs: Gangs,
    ) -> Result<Self, Failure> {
        Ok(Self {
            model: place.rating(spec.part(&spec.before(), false, (&place, 1))?),
            place,
            gangs,
            temperature: training_temperature(spec.sampling),
        })
    }

    /// Leaves the ranks that it rates with: they would wait for it.
    pub(crate) fn leave(&mut self) {
        self.gangs.leave();
    }
}

/// The number of a token that a model is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rated {
    /// Its log-probability.
    LogProbs,
    /// The value of the state before it.
    Values,
}

/// Sequences to rate.
pub(super) struct Rating {
    /// Of this rank.
    pub(super) rows: Rows,
    /// Response tokens of each of these.
    pub(super) lengths: Vec<usize>,
    /// The divisor of the logits.
    pub(super) temperature: f32,
    pub(super) rated: Rated,
}

/// Rates sequences with the ranks that share the model. Answers a number for each response token of each, or nothing
/// on a rank that has no scores, and the floating point operations.
pub(super) fn rated(
    model: &mut Optimizer,
    gangs: &mut Gangs,
    rating: Rating,
) -> Result<(Vec<Vec<f32>>, f64), Failure> {
    let context = gangs.passes.context.clone();
    let mut work = RatingWork {
        rating,
        context,
        predictions: Predictions::default(),
        scores: vec![],
    };
    let done = step(model, &mut work, gangs.of_step(false), Learning::No)?;
    Ok((work.scores, done.outcome.flops))
}

struct RatingWork {
    rating: Rating,
    /// Ranks with other rows of the same sequences, where there are some.
    context: Option<Arc<PassGang>>,
    predictions: Predictions,
    scores: Vec<Vec<f32>>,
}

impl StepWork for RatingWork {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.rating.rows.micro_batches()
    }

    fn reads(&self) -> ScoresRead {
        match self.rating.rated {
            Rated::LogProbs => ScoresRead::All,
            Rated::Values => ScoresRead::Values,
        }
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        let Rating {
            rows, temperature, ..
        } = &self.rating;
        let (batch, predictions) = rows.own_part(rows.pack(micro)?.with_temperature(*temperature));
        self.predictions = predictions;
        Ok(batch)
    }

    fn evaluate(
        &mut self,
        micro: usize,
        _counts: &[u64],
        scores: &TokenScores,
        _gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let Rating {
            rows,
            lengths,
            rated,
            ..
        } = &self.rating;
        let range = rows.sequences(micro);
        if !range.is_empty() {
            let all = self
                .predictions
                .scores_of_all(self.context.as_ref(), scores)?;
            let numbers = match rated {
                Rated::LogProbs => &all.logprobs,
                Rated::Values => &all.values,
            };
            self.scores.extend(cut(numbers, &lengths[range]));
        }
        Ok(0.0)
    }
}

pub(super) fn rows(trajectories: &[Trajectory]) -> Vec<Row> {
    trajectories.iter().map(Row::of).collect()
}

/// Number of sampled tokens of each response: so many numbers it has.
pub(super) fn response_lengths(trajectories: &[Trajectory]) -> Vec<usize> {
    trajectories.iter().map(Trajectory::sampled).collect()
}

/// Cuts numbers per token into sequences.
pub(super) fn cut(numbers: &[f32], lengths: &[usize]) -> Vec<Vec<f32>> {
    let mut rest = numbers;
    lengths
        .iter()
        .map(|length| {
            let (one, more) = rest.split_at(*length);
            rest = more;
            one.to_vec()
        })
        .collect()
}

impl ScoreEngine for Reference {
    fn score(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        let all = &batch.trajectories;
        let (rows, own) = Rows::dealt(rows(all), self.model.model(), self.place);
        let rating = Rating {
            rows,
            lengths: response_lengths(&all[own]),
            temperature: self.temperature,
            rated: Rated::LogProbs,
        };
        rated(&mut self.model, &mut self.gangs, rating).map(|(scores, _)| scores)
    }

    fn learn(&mut self, _batch: &Batch, _returns: &[Vec<f32>]) -> Result<f64, Failure> {
        Err(Failure::error("a reference does not learn"))
    }

    fn save(&mut self, _folder: &Path, _learnt: Version) -> Result<(), Failure> {
        Ok(())
    }

    fn restore(
        &mut self,
        _folder: &Path,
        _at_most: Option<Version>,
    ) -> Result<Option<Version>, Failure> {
        Ok(None)
    }
}

/// Expected reward from each token on: the policy's architecture with a value head.
pub struct Critic {
    spec: ComputeSpec,
    /// Model and optimiser of the critic; `None` until it is first asked.
    optimizer: Option<Optimizer>,
    /// Its place among those that share the model.
    place: RankPlace,
    /// With whom it learns, where it does not learn alone.
    gangs: Gangs,
    /// With whom it saves and loads.
    savers: CheckpointRanks,
}

impl std::fmt::Debug for Critic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Critic")
            .field("context", &self.spec.context)
            .finish_non_exhaustive()
    }
}

impl Critic {
    /// Starts from the policy as it is before the reinforcement and a value head of zeros: made when
    /// it is first asked, since the supervised steps may still be to come.
    #[must_use]
    pub fn new(spec: &ComputeSpec) -> Self {
        let alone = (Gangs::default(), CheckpointRanks::alone());
        Self::of_rank(spec, RankPlace::ALONE, alone)
    }

    /// The same of a rank among those that share the model: it learns with the first of these, and saves with the others.
    pub(crate) fn of_rank(
        spec: &ComputeSpec,
        place: RankPlace,
        (gangs, savers): (Gangs, CheckpointRanks),
    ) -> Self {
        Self {
            spec: spec.clone(),
            optimizer: None,
            place,
            gangs,
            savers,
        }
    }

    /// From now on batches are parts of one, and gradients are those of all parts.
    pub fn join(&mut self, peers: Communicator) {
        self.gangs = Gangs::of_data(peers);
    }

    /// Goes back to the checkpoint of a step, as all ranks do. Answers the last step that it had learnt.
    ///
    /// # Errors
    /// It is not there, or broken.
    pub(crate) fn restore_step(&mut self, folder: &Path, step: u64) -> Result<Version, Failure> {
        self.resume(&checkpoint::of_step(folder, step)?)
    }

    fn resume(&mut self, from: &Newest) -> Result<Version, Failure> {
        let optimizer = made(&mut self.optimizer, &self.spec, self.place)?;
        from.read(CRITIC, optimizer, &self.savers)?;
        Ok(from.progress.version)
    }

    /// Forgets all that it has learnt.
    pub(crate) fn forget(&mut self) {
        self.optimizer = None;
    }

    /// Leaves the ranks that it learns with: they would wait for it.
    pub(crate) fn leave(&mut self) {
        self.gangs.leave();
    }
}

impl ComputeSpec {
    /// The way in which a critic learns.
    pub(crate) fn critic_train(&self) -> TrainConfig {
        TrainConfig {
            lr: self.critic_lr,
            weight_decay: 0.0,
            recompute: self.recompute,
            offload: self.offload,
            ..TrainConfig::default()
        }
    }
}

/// The critic's optimiser, made where it is not there yet.
fn made<'a>(
    optimizer: &'a mut Option<Optimizer>,
    spec: &ComputeSpec,
    place: RankPlace,
) -> Result<&'a mut Optimizer, Failure> {
    let ready = match optimizer.take() {
        Some(ready) => ready,
        None => {
            let config = spec.critic_train();
            // Another life would find the same.
            let keeps = (&place, config.optimizer.rows_together());
            let part = spec.part(&spec.before(), true, keeps);
            place.optimizer(part.map_err(Failure::fatal)?, config)
        }
    };
    Ok(optimizer.insert(ready))
}

impl ScoreEngine for Critic {
    fn score(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        let all = &batch.trajectories;
        let optimizer = made(&mut self.optimizer, &self.spec, self.place)?;
        let (rows, own) = Rows::dealt(rows(all), optimizer.model(), self.place);
        let rating = Rating {
            rows,
            lengths: response_lengths(&all[own]),
            temperature: 1.0,
            rated: Rated::Values,
        };
        rated(optimizer, &mut self.gangs, rating).map(|(scores, _)| scores)
    }

    fn learn(&mut self, batch: &Batch, returns: &[Vec<f32>]) -> Result<f64, Failure> {
        let all = &batch.trajectories;
        let optimizer = made(&mut self.optimizer, &self.spec, self.place)?;
        let (rows, own) = Rows::dealt(rows(all), optimizer.model(), self.place);
        let mut work = ValueWork {
            objective: ValueObjective {
                clip: None,
                ..ValueObjective::default()
            },
            rows,
            place: self.place,
            context: self.gangs.passes.context.clone(),
            predictions: Predictions::default(),
            lengths: response_lengths(&all[own.clone()]),
            returns: &returns[own],
        };
        let stepped = step(
            optimizer,
            &mut work,
            self.gangs.of_step(true),
            Learning::Yes,
        )?;
        Ok(stepped.outcome.loss)
    }

    fn save(&mut self, folder: &Path, learnt: Version) -> Result<(), Failure> {
        let Some(optimizer) = &self.optimizer else {
            // It has learnt nothing.
            return Ok(());
        };
        let progress = Progress {
            warmup: 0,
            version: learnt,
        };
        let model = optimizer.model();
        let config = model
            .part()
            .map_or_else(|| model.config(), |part| part.whole());
        let fields = ModelFields::of(config, self.spec.context);
        let to_save = ToSave {
            role: CRITIC,
            progress,
            run: None,
            optimizer,
            tokenizer: None,
            fields: &fields,
            savers: &self.savers,
        };
        checkpoint::write(folder, Older::TwoKept, &to_save)
    }

    fn restore(
        &mut self,
        folder: &Path,
        at_most: Option<Version>,
    ) -> Result<Option<Version>, Failure> {
        if let Some(at_most) = at_most {
            checkpoint::forget_after(folder, at_most)?;
        }
        match checkpoint::newest(folder)? {
            Some(newest) => self.resume(&newest).map(Some),
            None => {
                self.forget();
                Ok(None)
            }
        }
    }
}

/// Replies whose returns the critic learns.
struct ValueWork<'a> {
    objective: ValueObjective,
    /// Of this rank, and so all that follow.
    rows: Rows,
    place: RankPlace,
    /// Ranks with other rows of the same replies, where there are some.
    context: Option<Arc<PassGang>>,
    predictions: Predictions,
    lengths: Vec<usize>,
    returns: &'a [Vec<f32>],
}

impl StepWork for ValueWork<'_> {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.rows.micro_batches()
    }

    fn counts(&self) -> Vec<u64> {
        let totals = Totals::of(&self.lengths);
        // Of ranks with rows of the same replies the first counts these.
        let is_first = self.place.context().rank == 0;
        let counts = [totals.sequences, totals.tokens];
        counts
            .map(|count| if is_first { count as u64 } else { 0 })
            .to_vec()
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
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let range = self.rows.sequences(micro);
        if range.is_empty() {
            return Ok(0.0);
        }
        let scores = self
            .predictions
            .scores_of_all(self.context.as_ref(), scores)?;
        let mut totals = Totals::of(&[]);
        [totals.sequences, totals.tokens] = [0, 1].map(|at| counts[at] as usize);
        let batch = ValueBatch {
            values: &scores.values,
            old_values: &scores.values,
            returns: &self.returns[range.clone()].concat(),
            lengths: &self.lengths[range],
        };
        let value = self.objective.evaluate(&batch, totals);
        let value = value.map_err(Failure::error)?;
        let of_all = TokenGradients {
            values: value.d_values,
            ..TokenGradients::default()
        };
        self.predictions.own_gradients(&of_all, gradients);
        let is_first = self.place.context().rank == 0;
        Ok(if is_first { value.loss } else { 0.0 })
    }
}
