//! The policy's trainer.

use std::ops::Range;
use std::path::Path;

use odeon::Failure;
use odeon::group::Communicator;
use odeon_algorithms::model::{self, TokenScores};
use odeon_algorithms::objective::{PolicyBatch, PolicyMetrics, PolicyObjective, Totals};
use odeon_algorithms::task::{Split, Task};
use odeon_algorithms::train::{
    self, AdamW, CrossEntropy, Objective, Schedule, StepWork, TokenGradients, TrainConfig,
};
use odeon_algorithms::weights::ModelFields;

use super::checkpoint::{Older, ToSave};
use super::peak::reachable_flops;
use super::peers::Gang;
use super::rollout::{Sampler, training_temperature};
use super::score::{cut, response_lengths, rows};
use super::state::ACTOR;
use super::step::{Learning, StepGangs, step};
use super::{ComputeSpec, Optimizer, Row, Rows, checkpoint, model_folder};
use crate::engine::{EvalStats, Progress, RunState, Signals, StepStats, TrainEngine};
use crate::rl::referee::{Referee, wait};
use crate::rl::toolbox::Toolbox;
use crate::trajectory::{Batch, Trajectory, Version};

/// The policy while it is trained, with its optimizer and its task.
pub struct Trainer {
    spec: ComputeSpec,
    task: Box<dyn Task>,
    /// What the files of the model say of it.
    fields: ModelFields,
    optimizer: Optimizer,
    /// Set when the optimiser has the settings of the reinforcement.
    reinforcing: bool,
    sampler: Option<Sampler>,
    /// With whom it trains, where it does not train alone.
    peers: Option<Gang>,
    /// Made when it is first wanted: not every trainer evaluates.
    referee: Option<Referee>,
    /// The same of what replies can call.
    toolbox: Option<Toolbox>,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("reinforcing", &self.reinforcing)
            .finish_non_exhaustive()
    }
}

impl Trainer {
    /// A trainer with the first weights.
    ///
    /// # Errors
    /// The model cannot be made or loaded.
    pub fn new(spec: &ComputeSpec) -> Result<Self, Failure> {
        let mut model = spec.model(&spec.source, false)?;
        if let Some(adapters) = spec.adapters() {
            model.add_lora(adapters, spec.seed);
        }
        let fields = spec.source.fields(model.config(), spec.context)?;
        let optimizer = Optimizer::new(model, warmup_config(spec));
        Ok(Self {
            task: spec.task()?,
            fields,
            spec: spec.clone(),
            optimizer,
            reinforcing: false,
            sampler: None,
            peers: None,
            referee: None,
            toolbox: None,
        })
    }

    /// From now on batches are parts of one, and gradients are those of all parts.
    pub fn join(&mut self, peers: Communicator) {
        self.peers = Some(Gang::new(peers));
    }

    /// Log-probabilities of replies under the weights as they are, at the temperature at which the
    /// policy is trained.
    ///
    /// # Errors
    /// A reply cannot be packed.
    pub fn rate(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        Ok(self.log_probs(batch)?.0)
    }

    /// Fresh moments and the other learning rate: the supervised steps' moments belong to another
    /// loss.
    fn begin_reinforcement(&mut self) {
        if !self.reinforcing {
            self.reinforcing = true;
            self.optimizer.restart(reinforcement_config(&self.spec));
        }
    }

    /// The policy before the reinforcement, for the reference. Written once.
    fn save_base(&self) -> Result<(), Failure> {
        if self.spec.base.exists() {
            return Ok(());
        }
        // Under its name only when it is whole: a crash leaves nothing that is taken for it.
        let fresh = self.spec.base.with_extension("new");
        let failed = |error| Failure::error(format!("writing {}: {error}", fresh.display()));
        if fresh.exists() {
            std::fs::remove_dir_all(&fresh).map_err(failed)?;
        }
        let tokenizer = Some(&self.spec.tokenizer);
        let fields = self.fields.clone();
        model_folder::write(&fresh, self.optimizer.model(), fields, tokenizer)?;
        model_folder::sync(&fresh)?;
        std::fs::rename(&fresh, &self.spec.base).map_err(failed)
    }

    /// Log-probabilities of a batch's responses under the weights that a step begins with, and the
    /// floating point operations.
    fn log_probs(&mut self, batch: &Batch) -> Result<(Vec<Vec<f32>>, f64), Failure> {
        let trajectories = &batch.trajectories;
        let lengths = response_lengths(trajectories);
        let rows = Rows::of(rows(trajectories), self.optimizer.model());
        let (mut all, mut flops) = (vec![], 0.0);
        for (micro, range) in rows.cuts.iter().enumerate() {
            let temperature = training_temperature(self.spec.sampling);
            let micro = rows.pack(micro)?.with_temperature(temperature);
            let scores = self.optimizer.logprobs(&micro);
            all.extend(cut(&scores.logprobs, &lengths[range.clone()]));
            flops += self.optimizer.model().forward_flops(&micro);
        }
        Ok((all, flops))
    }

    /// The worked solutions of a supervised step, with a weight.
    fn imitation(&self, step: u64, weight: f32) -> Result<Imitation, Failure> {
        let style = self.task.style();
        let first = (step - 1) * self.spec.warmup_batch as u64;
        let mut rows = vec![];
        for index in first..first + self.spec.warmup_batch as u64 {
            let problem = self.task.problem(!self.spec.seed, Split::Train, index);
            let prompt = self.spec.prompt(style, &problem.prompt)?;
            let observed = self.task.observed(&problem);
            rows.push(self.solved(prompt, &problem.solution, &observed)?);
        }
        Ok(Imitation {
            predicted: rows.iter().map(Row::sampled).sum(),
            rows: Rows::of(rows, self.optimizer.model()),
            weight,
        })
    }

    /// A prompt with its worked solution, of which a tool has written these bytes.
    fn solved(
        &self,
        prompt: Vec<u32>,
        solution: &str,
        observed: &[Range<usize>],
    ) -> Result<Row, Failure> {
        let encode = |text: &str| self.spec.tokenizer.encode(text).map_err(Failure::error);
        let mut row = Row {
            prompt: prompt.len(),
            tokens: prompt,
            ..Row::default()
        };
        let mut at = 0;
        // In the parts in which it would come to be.
        for range in observed {
            row.tokens.extend(encode(&solution[at..range.start])?);
            let from = row.tokens.len() - row.prompt;
            row.tokens.extend(encode(&solution[range.clone()])?);
            row.observed.push(from..row.tokens.len() - row.prompt);
            at = range.end;
        }
        row.tokens.extend(encode(&solution[at..])?);
        row.tokens.push(self.spec.tokenizer.eos());
        Ok(row)
    }

    /// One update with a part of a batch, of the weights `fresh` where it is the first of its step.
    fn update(
        &mut self,
        batch: &Batch,
        signals: &Signals,
        recent: Option<&[Vec<f32>]>,
        part: Range<usize>,
        fresh: Option<Version>,
        stats: &mut StepStats,
    ) -> Result<(), Failure> {
        let trajectories = &batch.trajectories[part.clone()];
        let rows = Rows::of(rows(trajectories), self.optimizer.model());
        // Ranks that train together add up their gradients: one of them imitates for all.
        let imitates = self.peers.as_ref().is_none_or(|peers| peers.rank() == 0);
        let imitation = if self.spec.pretrain > 0.0 && imitates {
            // Other solutions than those of the supervised steps, in turn.
            let step = self.spec.warmup_steps + self.optimizer.step() + 1;
            Some(self.imitation(step, self.spec.pretrain)?)
        } else {
            None
        };
        let tokens = rows.tokens() + imitation.as_ref().map_or(0, |it| it.rows.tokens());
        let mut work = PolicyWork {
            objective: self.spec.objective,
            temperature: training_temperature(self.spec.sampling),
            lengths: response_lengths(trajectories),
            right: trajectories.iter().map(|it| it.correct).collect(),
            reference: signals.reference.get(part.clone()),
            advantages: &signals.advantages[part.clone()],
            recent: recent.map(|all| &all[part]),
            trajectories,
            rows,
            fresh,
            imitation,
            metrics: PolicyMetrics::default(),
            gap: None,
        };
        let peers = StepGangs::data(self.peers.as_mut());
        let outcome = step(&mut self.optimizer, &mut work, peers, Learning::Yes)?.outcome;
        let Some(update) = outcome.update else {
            return Ok(());
        };
        *stats = StepStats {
            loss: outcome.loss,
            grad_norm: f64::from(update.grad_norm),
            tokens: stats.tokens + tokens,
            flops: stats.flops + outcome.flops,
            entropy: work.metrics.entropy,
            approximate_kl: work.metrics.approximate_kl,
            clip_fraction: work.metrics.clip_fraction(),
            importance_mean: work.metrics.importance_mean,
            importance_capped_fraction: work.metrics.importance_capped_fraction,
            sampling_gap: fresh.map_or(stats.sampling_gap, |_| work.gap),
        };
        Ok(())
    }
}

/// Replies that the policy learns from, with the trust region around `recent` where that is not what sampled;
/// then worked solutions, where it imitates some.
struct PolicyWork<'a> {
    objective: PolicyObjective,
    temperature: f32,
    trajectories: &'a [Trajectory],
    rows: Rows,
    lengths: Vec<usize>,
    /// Which of them are right.
    right: Vec<bool>,
    /// Of the same replies; nothing without a reference.
    reference: Option<&'a [Vec<f32>]>,
    advantages: &'a [Vec<f32>],
    recent: Option<&'a [Vec<f32>]>,
    /// The weights that the step begins with, where it is the first of its batch.
    fresh: Option<Version>,
    imitation: Option<Imitation>,
    metrics: PolicyMetrics,
    /// See [`StepStats::sampling_gap`].
    gap: Option<f64>,
}

impl StepWork for PolicyWork<'_> {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        let imitated = self.imitation.as_ref().map_or(0, StepWork::micro_batches);
        self.rows.cuts.len() + imitated
    }

    fn counts(&self) -> Vec<u64> {
        let totals = Totals::of(&self.lengths).with_positive(&self.lengths, &self.right);
        let counts = [totals.sequences, totals.tokens, totals.positive_tokens];
        counts.map(|count| count as u64).to_vec()
    }

    fn is_wanted(&self, counts: &[u64]) -> bool {
        counts[0] > 0
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        let own = self.rows.cuts.len();
        match &mut self.imitation {
            Some(imitation) if micro >= own => imitation.batch(micro - own),
            _ => Ok(self.rows.pack(micro)?.with_temperature(self.temperature)),
        }
    }

    fn evaluate(
        &mut self,
        micro: usize,
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let own = self.rows.cuts.len();
        if let Some(imitation) = self.imitation.as_mut().filter(|_| micro >= own) {
            return imitation.evaluate(micro - own, counts, scores, gradients);
        }
        let range = self.rows.cuts[micro].clone();
        let [sequences, tokens, positive_tokens] = [0, 1, 2].map(|at| counts[at] as usize);
        let totals = Totals {
            sequences,
            tokens,
            positive_tokens,
        };
        let trajectories = &self.trajectories[range.clone()];
        let own = self
            .fresh
            .and_then(|fresh| distance(trajectories, scores, fresh));
        self.gap = [self.gap, own].into_iter().flatten().reduce(f64::max);
        let behaviour: Vec<f32> = trajectories
            .iter()
            .flat_map(|it| it.log_probs.iter().copied())
            .collect();
        let recent = self.recent.map(|recent| recent[range.clone()].concat());
        let advantages = self.advantages[range.clone()].concat();
        let reference = self.reference.filter(|all| !all.is_empty());
        let reference = reference.map(|all| all[range.clone()].concat());
        let inputs = PolicyBatch {
            new_log_probs: &scores.logprobs,
            old_log_probs: recent.as_ref().unwrap_or(&behaviour),
            behaviour_log_probs: Some(&behaviour),
            advantages: &advantages,
            reference_log_probs: reference.as_deref(),
            entropies: Some(&scores.entropies),
            positive: Some(&self.right[range.clone()]),
            lengths: &self.lengths[range],
        };
        let value = self.objective.evaluate(&inputs, totals);
        let value = value.map_err(Failure::error)?;
        gradients.logprobs.copy_from_slice(&value.d_log_probs);
        gradients.entropies.copy_from_slice(&value.d_entropies);
        self.metrics = std::mem::take(&mut self.metrics).merged(&value.metrics);
        Ok(value.loss)
    }
}

/// Worked solutions that the policy learns by heart.
struct Imitation {
    rows: Rows,
    /// Tokens of all that are predicted.
    predicted: usize,
    /// Weight of the loss.
    weight: f32,
}

impl StepWork for Imitation {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.rows.cuts.len()
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        self.rows.pack(micro)
    }

    fn evaluate(
        &mut self,
        _micro: usize,
        _counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let mut objective = CrossEntropy::mean_over(self.predicted).times(self.weight);
        Ok(objective.evaluate(scores, gradients))
    }
}

/// The largest distance of scores from what was said when their tokens were sampled, over the replies of these
/// weights alone.
fn distance(trajectories: &[Trajectory], scores: &TokenScores, fresh: Version) -> Option<f64> {
    let mut at = 0;
    let distances = trajectories.iter().flat_map(|it| {
        let scores = &scores.logprobs[at..at + it.log_probs.len()];
        at += it.log_probs.len();
        let is_fresh = it.version == fresh && it.last_version == fresh;
        let tokens = scores.iter().zip(&it.log_probs).filter(move |_| is_fresh);
        tokens.map(|(ours, theirs)| f64::from((ours - theirs).abs()))
    });
    distances.reduce(f64::max)
}

/// One of so many parts of about the same size.
const fn part_of(count: usize, part: usize, parts: usize) -> Range<usize> {
    count * part / parts..count * (part + 1) / parts
}

fn warmup_config(spec: &ComputeSpec) -> TrainConfig {
    let steps = spec.warmup_steps;
    TrainConfig {
        lr: spec.warmup_lr,
        warmup: (steps / 20).min(100),
        schedule: Schedule::Cosine { steps, floor: 0.1 },
        recompute: spec.recompute,
        ..TrainConfig::default()
    }
}

/// The optimiser of a policy for which none is named: AdamW, whose second moment remembers longer than in
/// pretraining, as gradients of samples differ more from step to step.
#[must_use]
pub fn policy_optimizer() -> train::Optimizer {
    train::Optimizer::AdamW(AdamW {
        beta2: 0.99,
        ..AdamW::default()
    })
}

fn reinforcement_config(spec: &ComputeSpec) -> TrainConfig {
    // Adam's first steps, with moments of hardly any samples, move as far as later ones with good
    // ones: the rate grows over them, or they undo what the supervised steps have learnt.
    TrainConfig {
        lr: spec.lr,
        warmup: 10,
        schedule: spec.schedule,
        optimizer: spec.optimizer,
        weight_decay: 0.0,
        recompute: spec.recompute,
        ..TrainConfig::default()
    }
}

impl TrainEngine for Trainer {
    fn warm_up(&mut self, step: u64) -> Result<StepStats, Failure> {
        let mut work = self.imitation(step, 1.0)?;
        // Each rank computes the same step.
        let stepped = super::step::step(
            &mut self.optimizer,
            &mut work,
            StepGangs::default(),
            Learning::Yes,
        )?;
        let outcome = stepped.outcome;
        Ok(StepStats {
            loss: outcome.loss,
            grad_norm: outcome.update.map_or(0.0, |it| f64::from(it.grad_norm)),
            tokens: work.rows.tokens(),
            flops: outcome.flops,
            ..StepStats::default()
        })
    }

    fn train(&mut self, batch: &Batch, signals: &Signals) -> Result<StepStats, Failure> {
        self.begin_reinforcement();
        let mut stats = StepStats::default();
        let recent = match self.spec.objective.importance_cap {
            Some(_) => {
                let (recent, flops) = self.log_probs(batch)?;
                stats.flops += flops;
                Some(recent)
            }
            None => None,
        };
        let parts = self.spec.minibatches;
        let mut fresh = Some(batch.step.saturating_sub(1));
        for _ in 0..self.spec.epochs {
            for part in 0..parts {
                // As many on every rank, however many sequences each has.
                let range = part_of(batch.trajectories.len(), part, parts);
                let fresh = fresh.take();
                self.update(batch, signals, recent.as_deref(), range, fresh, &mut stats)?;
            }
        }
        Ok(stats)
    }

    fn evaluate(&mut self, problems: usize) -> Result<EvalStats, Failure> {
        let flat = self.optimizer.model().merged();
        let sampler = match &mut self.sampler {
            Some(sampler) => sampler,
            none => none.insert(Sampler::greedy(&self.spec)?),
        };
        sampler.load(&flat)?;
        let referee = match &self.referee {
            Some(referee) => referee,
            None => {
                let opened = async {
                    let opened = Referee::open(&self.spec.task, &self.spec.programs).await;
                    opened.map_err(Failure::error)
                };
                self.referee.insert(wait(opened)?)
            }
        };
        let toolbox = match (&self.toolbox, &self.spec.environment) {
            (None, Some(environment)) => {
                let opened = async {
                    let opened = Toolbox::open(environment, &self.spec.programs).await;
                    opened.map_err(Failure::error)
                };
                Some(&*self.toolbox.insert(wait(opened)?))
            }
            (opened, _) => opened.as_ref(),
        };
        evaluate(sampler, &self.spec, referee, toolbox, problems)
    }

    fn reachable_flops(&self) -> Option<f64> {
        Some(reachable_flops(self.optimizer.model().backend()))
    }

    fn weight_bytes(&self) -> usize {
        self.optimizer.model().parameters() * self.spec.weights.bytes()
    }

    fn write_weights(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        let flat = self.optimizer.model().merged();
        if out.len() != flat.len() * self.spec.weights.bytes() {
            return Err(Failure::error("the room for the weights has another size"));
        }
        self.spec.weights.write(&flat, out);
        Ok(())
    }

    fn save(&mut self, folder: &Path, progress: &Progress, run: &RunState) -> Result<(), Failure> {
        if progress.version == 0 && progress.warmup >= self.spec.warmup_steps {
            self.save_base()?;
        }
        let to_save = ToSave {
            role: ACTOR,
            progress: *progress,
            run: Some(run),
            optimizer: &self.optimizer,
            tokenizer: Some(&self.spec.tokenizer),
            fields: &self.fields,
        };
        checkpoint::write(folder, Older::OneKept, &to_save)
    }

    fn restore(&mut self, folder: &Path) -> Result<Option<(Progress, RunState)>, Failure> {
        let Some(newest) = checkpoint::newest(folder)? else {
            return Ok(None);
        };
        let progress = newest.progress;
        if progress.version > 0 {
            self.begin_reinforcement();
        }
        newest.read(ACTOR, &mut self.optimizer)?;
        Ok(Some((progress, newest.run_state()?)))
    }
}

/// Answers held-out problems greedily.
///
/// # Errors
/// Generation failed, or nobody could judge.
pub(super) fn evaluate(
    sampler: &mut Sampler,
    spec: &ComputeSpec,
    referee: &Referee,
    toolbox: Option<&Toolbox>,
    problems: usize,
) -> Result<EvalStats, Failure> {
    let task = referee.task();
    let count = task
        .problem_count(Split::HeldOut)
        .map_or(problems as u64, |most| most.min(problems as u64));
    let problems: Vec<_> = (0..count)
        .map(|index| task.problem(spec.seed, Split::HeldOut, index))
        .collect();
    let prompts = problems
        .iter()
        .map(|problem| spec.prompt(task.style(), &problem.prompt))
        .collect::<Result<Vec<_>, _>>()?;
    let responses = match toolbox {
        Some(toolbox) => {
            let mut calls = |inputs: Vec<String>| wait(toolbox.run_all(&inputs));
            sampler.answer_calling(&prompts, &mut calls, |_| {})?
        }
        None => sampler.answer(&prompts)?,
    };
    let mut replies = vec![];
    for (problem, tokens) in problems.into_iter().zip(&responses) {
        let text = spec
            .tokenizer
            .decode_reply(tokens)
            .map_err(Failure::error)?;
        replies.push((problem, text));
    }
    let verdicts = wait(async { referee.judge_all(&replies).await.map_err(Failure::error) })?;
    Ok(EvalStats {
        problems: count,
        correct: verdicts.iter().filter(|it| it.correct).count() as u64,
    })
}
