//! Engines that rate tokens: the frozen reference and the learning critic.

use std::path::Path;

use odeon::Failure;
use odeon_algorithms::model::TokenScores;
use odeon_algorithms::objective::{Totals, ValueBatch, ValueObjective};
use odeon_algorithms::train::{TokenGradients, TrainConfig};

use super::checkpoint::{Older, ToSave};
use super::rollout::training_temperature;
use super::state::CRITIC;
use super::{ComputeSpec, Optimizer, Row, Scorer, checkpoint, cuts, pack};
use crate::engine::{Peers, Progress, ScoreEngine};
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
        let (rows, lengths) = (rows(all), response_lengths(all));
        let mut scores = vec![];
        for range in cuts(&rows) {
            let micro = pack(&rows[range.clone()])?.with_temperature(self.temperature);
            scores.extend(cut(&self.scorer.logprobs(&micro).logprobs, &lengths[range]));
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
    peers: Option<Box<dyn Peers>>,
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
    pub fn join(&mut self, peers: Box<dyn Peers>) {
        self.peers = Some(peers);
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
        let (rows, lengths) = (rows(all), response_lengths(all));
        let mut scores = vec![];
        for range in cuts(&rows) {
            let micro = pack(&rows[range.clone()])?;
            scores.extend(cut(
                &made(&mut self.optimizer, &self.spec)?.values(&micro),
                &lengths[range],
            ));
        }
        Ok(scores)
    }

    fn learn(&mut self, batch: &Batch, returns: &[Vec<f32>]) -> Result<f64, Failure> {
        let all = &batch.trajectories;
        let (rows, lengths) = (rows(all), response_lengths(all));
        let mut totals = Totals::of(&lengths);
        if let Some(peers) = &mut self.peers {
            let mut counts = [totals.sequences as u64, totals.tokens as u64];
            peers.count(&mut counts)?;
            [totals.sequences, totals.tokens] = counts.map(|count| count as usize);
        }
        let objective = ValueObjective {
            clip: None,
            ..ValueObjective::default()
        };
        let optimizer = made(&mut self.optimizer, &self.spec)?;
        let mut total = 0.0;
        for range in cuts(&rows) {
            let micro = pack(&rows[range.clone()])?;
            let targets = returns[range.clone()].concat();
            let mut problem = None;
            let mut loss = |scores: &TokenScores, gradients: &mut TokenGradients| {
                let batch = ValueBatch {
                    values: &scores.values,
                    old_values: &scores.values,
                    returns: &targets,
                    lengths: &lengths[range.clone()],
                };
                match objective.evaluate(&batch, totals) {
                    Ok(value) => {
                        gradients.values.copy_from_slice(&value.d_values);
                        value.loss
                    }
                    Err(error) => {
                        problem = Some(Failure::error(error));
                        0.0
                    }
                }
            };
            total += optimizer.accumulate(&micro, &mut loss).loss;
            if let Some(failure) = problem {
                return Err(failure);
            }
        }
        if let Some(peers) = &mut self.peers {
            optimizer.reduce_gradient(|all| peers.sum(all))?;
        }
        optimizer.apply(1.0);
        Ok(total)
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
        let to_save = ToSave {
            role: CRITIC,
            progress,
            run: None,
            optimizer,
            tokenizer: None,
            context: self.spec.context,
        };
        checkpoint::write(folder, Older::OneKept, &to_save)
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
