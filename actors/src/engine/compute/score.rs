//! Engines that rate tokens: the frozen reference and the learning critic.

use std::path::Path;

use odeon::Failure;
use odeon::group::Communicator;
use odeon_algorithms::model::{self, TokenScores};
use odeon_algorithms::objective::{Totals, ValueBatch, ValueObjective};
use odeon_algorithms::train::{StepWork, TokenGradients, TrainConfig};
use odeon_algorithms::weights::ModelFields;

use super::checkpoint::{Older, ToSave};
use super::peers::Gang;
use super::rollout::training_temperature;
use super::state::CRITIC;
use super::step::{Learning, StepGangs, step};
use super::{ComputeSpec, Optimizer, Row, Rows, Scorer, checkpoint};
use crate::engine::{Progress, ScoreEngine};
use crate::trajectory::{Batch, Trajectory, Version};

/// Log-probabilities under the policy as it was before the reinforcement.
#[derive(Debug)]
pub struct Reference {
    scorer: Scorer,
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
        Ok(Self {
            scorer: Scorer::new(spec.model(&spec.before(), false)?),
            temperature: training_temperature(spec.sampling),
        })
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
        let lengths = response_lengths(all);
        let rows = Rows::of(rows(all), self.scorer.model());
        let mut scores = vec![];
        for (micro, range) in rows.cuts.iter().enumerate() {
            let micro = rows.pack(micro)?.with_temperature(self.temperature);
            let scored = self.scorer.logprobs(&micro).logprobs;
            scores.extend(cut(&scored, &lengths[range.clone()]));
        }
        Ok(scores)
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
    /// With whom it learns, where it does not learn alone.
    peers: Option<Gang>,
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
        Self {
            spec: spec.clone(),
            optimizer: None,
            peers: None,
        }
    }

    /// From now on batches are parts of one, and gradients are those of all parts.
    pub fn join(&mut self, peers: Communicator) {
        self.peers = Some(Gang::new(peers));
    }
}

/// The critic's optimiser, made where it is not there yet.
fn made<'a>(
    optimizer: &'a mut Option<Optimizer>,
    spec: &ComputeSpec,
) -> Result<&'a mut Optimizer, Failure> {
    let ready = match optimizer.take() {
        Some(ready) => ready,
        None => {
            let config = TrainConfig {
                lr: spec.critic_lr,
                weight_decay: 0.0,
                recompute: spec.recompute,
                ..TrainConfig::default()
            };
            // Another life would find the same.
            let model = spec.model(&spec.before(), true).map_err(Failure::fatal)?;
            Optimizer::new(model, config)
        }
    };
    Ok(optimizer.insert(ready))
}

impl ScoreEngine for Critic {
    fn score(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        let all = &batch.trajectories;
        let lengths = response_lengths(all);
        let optimizer = made(&mut self.optimizer, &self.spec)?;
        let rows = Rows::of(rows(all), optimizer.model());
        let mut scores = vec![];
        for (micro, range) in rows.cuts.iter().enumerate() {
            let values = optimizer.values(&rows.pack(micro)?);
            scores.extend(cut(&values, &lengths[range.clone()]));
        }
        Ok(scores)
    }

    fn learn(&mut self, batch: &Batch, returns: &[Vec<f32>]) -> Result<f64, Failure> {
        let all = &batch.trajectories;
        let optimizer = made(&mut self.optimizer, &self.spec)?;
        let mut work = ValueWork {
            objective: ValueObjective {
                clip: None,
                ..ValueObjective::default()
            },
            rows: Rows::of(rows(all), optimizer.model()),
            lengths: response_lengths(all),
            returns,
        };
        let peers = StepGangs::data(self.peers.as_mut());
        let stepped = step(optimizer, &mut work, peers, Learning::Yes)?;
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
        let fields = ModelFields::of(optimizer.model().config(), self.spec.context);
        let to_save = ToSave {
            role: CRITIC,
            progress,
            run: None,
            optimizer,
            tokenizer: None,
            fields: &fields,
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
        let Some(newest) = checkpoint::newest(folder)? else {
            self.optimizer = None;
            return Ok(None);
        };
        newest.read(CRITIC, made(&mut self.optimizer, &self.spec)?)?;
        Ok(Some(newest.progress.version))
    }
}

/// Replies whose returns the critic learns.
struct ValueWork<'a> {
    objective: ValueObjective,
    rows: Rows,
    lengths: Vec<usize>,
    returns: &'a [Vec<f32>],
}

impl StepWork for ValueWork<'_> {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.rows.cuts.len()
    }

    fn counts(&self) -> Vec<u64> {
        let totals = Totals::of(&self.lengths);
        vec![totals.sequences as u64, totals.tokens as u64]
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        self.rows.pack(micro)
    }

    fn evaluate(
        &mut self,
        micro: usize,
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let range = self.rows.cuts[micro].clone();
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
        gradients.values.copy_from_slice(&value.d_values);
        Ok(value.loss)
    }
}
