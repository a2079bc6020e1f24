//! The policy's trainer.

use std::ops::Range;
use std::path::Path;

use odeon::Failure;
use odeon_algorithms::model::TokenScores;
use odeon_algorithms::objective::{PolicyBatch, PolicyMetrics, Totals};
use odeon_algorithms::task::{Split, Task};
use odeon_algorithms::train::{self, AdamW, CrossEntropy, Schedule, TokenGradients, TrainConfig};

use super::checkpoint::{Older, ToSave};
use super::peak::reachable_flops;
use super::rollout::{Sampler, training_temperature};
use super::score::{cut, response_lengths, rows};
use super::state::ACTOR;
use super::{ComputeSpec, Optimizer, Row, checkpoint, cuts, model_folder, pack, tokens_of};
use crate::engine::{EvalStats, Peers, Progress, RunState, Signals, StepStats, TrainEngine};
use crate::rl::referee::{Referee, wait};
use crate::rl::toolbox::Toolbox;
use crate::trajectory::{Batch, Trajectory, Version};

/// The policy while it is trained, with its optimizer and its task.
pub struct Trainer {
    spec: ComputeSpec,
    task: Box<dyn Task>,
    optimizer: Optimizer,
    /// Set when the optimiser has the settings of the reinforcement.
    reinforcing: bool,
    sampler: Option<Sampler>,
    /// With whom it trains, where it does not train alone.
    peers: Option<Box<dyn Peers>>,
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

/// Results of a pass over a batch.
struct Pass {
    loss: f64,
    flops: f64,
    metrics: PolicyMetrics,
    /// See [`StepStats::sampling_gap`].
    gap: Option<f64>,
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
        let optimizer = Optimizer::new(model, warmup_config(spec));
        Ok(Self {
            task: spec.task()?,
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
    pub fn join(&mut self, peers: Box<dyn Peers>) {
        self.peers = Some(peers);
    }

    /// Totals of a whole minibatch, of which `totals` are those of this rank.
    fn of_all(&mut self, mut totals: Totals) -> Result<Totals, Failure> {
        if let Some(peers) = &mut self.peers {
            let counts = [totals.sequences, totals.tokens, totals.positive_tokens];
            let mut counts = counts.map(|count| count as u64);
            peers.count(&mut counts)?;
            let [sequences, tokens, positive_tokens] = counts.map(|count| count as usize);
            totals = Totals {
                sequences,
                tokens,
                positive_tokens,
            };
        }
        Ok(totals)
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
        model_folder::write(&fresh, self.optimizer.model(), self.spec.context, tokenizer)?;
        model_folder::sync(&fresh)?;
        std::fs::rename(&fresh, &self.spec.base).map_err(failed)
    }

    /// Log-probabilities of a batch's responses under the weights that a step begins with, and the
    /// floating point operations.
    fn log_probs(&mut self, batch: &Batch) -> Result<(Vec<Vec<f32>>, f64), Failure> {
        let trajectories = &batch.trajectories;
        let (rows, lengths) = (rows(trajectories), response_lengths(trajectories));
        let (mut all, mut flops) = (vec![], 0.0);
        for range in cuts(&rows) {
            let temperature = training_temperature(self.spec.sampling);
            let micro = pack(&rows[range.clone()])?.with_temperature(temperature);
            let scores = self.optimizer.logprobs(&micro);
            all.extend(cut(&scores.logprobs, &lengths[range]));
            flops += self.optimizer.model().forward_flops(&micro);
        }
        Ok((all, flops))
    }

    /// Adds the gradient of the likelihood of worked solutions, those of a supervised step, times a
    /// weight. The loss, without the weight, the operations, and the tokens.
    fn imitate(&mut self, step: u64, weight: f32) -> Result<(f64, f64, u64), Failure> {
        let style = self.task.style();
        let first = (step - 1) * self.spec.warmup_batch as u64;
        let mut rows = vec![];
        for index in first..first + self.spec.warmup_batch as u64 {
            let problem = self.task.problem(!self.spec.seed, Split::Train, index);
            let prompt = self.spec.prompt(style, &problem.prompt)?;
            let observed = self.task.observed(&problem);
            rows.push(self.solved(prompt, &problem.solution, &observed)?);
        }
        let predicted: usize = rows.iter().map(Row::sampled).sum();
        let (mut loss, mut flops) = (0.0, 0.0);
        for range in cuts(&rows) {
            let micro = pack(&rows[range])?;
            let mut objective = CrossEntropy::mean_over(predicted).times(weight);
            loss += self.optimizer.accumulate(&micro, &mut objective).loss;
            flops += self.optimizer.model().training_flops(&micro);
        }
        let tokens = rows.iter().map(|row| row.tokens.len() as u64).sum();
        Ok((loss / f64::from(weight), flops, tokens))
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
        let reference = match signals.reference.as_slice() {
            [] => vec![],
            all => all[part.clone()].to_vec(),
        };
        let signals = Signals {
            reference,
            advantages: signals.advantages[part.clone()].to_vec(),
        };
        let trajectories = &batch.trajectories[part.clone()];
        let (lengths, right) = (response_lengths(trajectories), right(trajectories));
        let totals = Totals::of(&lengths).with_positive(&lengths, &right);
        let totals = self.of_all(totals)?;
        if totals.sequences == 0 {
            return Ok(());
        }
        let recent = recent.map(|all| &all[part]);
        let pass = self.pass(trajectories, &signals, recent, totals, fresh)?;
        let mut loss = pass.loss;
        // Ranks that train together add up their gradients: one of them imitates for all.
        let imitates = self.peers.as_ref().is_none_or(|peers| peers.rank() == 0);
        if self.spec.pretrain > 0.0 && imitates {
            // Other solutions than those of the supervised steps, in turn.
            let step = self.spec.warmup_steps + self.optimizer.step() + 1;
            let (imitation, flops, tokens) = self.imitate(step, self.spec.pretrain)?;
            loss += f64::from(self.spec.pretrain) * imitation;
            stats.flops += flops;
            stats.tokens += tokens;
        }
        if let Some(peers) = &mut self.peers {
            self.optimizer.reduce_gradient(|all| peers.sum(all))?;
        }
        let update = self.optimizer.apply(1.0);
        if !update.applied {
            tracing::warn!("the gradient was not finite; the step changed nothing");
        }
        let tokens = trajectories.iter().map(|t| tokens_of(t).len() as u64);
        *stats = StepStats {
            loss,
            grad_norm: f64::from(update.grad_norm),
            tokens: stats.tokens + tokens.sum::<u64>(),
            flops: stats.flops + pass.flops,
            entropy: pass.metrics.entropy,
            approximate_kl: pass.metrics.approximate_kl,
            clip_fraction: pass.metrics.clip_fraction(),
            importance_mean: pass.metrics.importance_mean,
            importance_capped_fraction: pass.metrics.importance_capped_fraction,
            sampling_gap: fresh.map_or(stats.sampling_gap, |_| pass.gap),
        };
        Ok(())
    }

    /// Adds the gradient of trajectories, with the trust region around `recent` where that is not what
    /// sampled. Its loss, the floating point operations, and what the objective saw.
    fn pass(
        &mut self,
        trajectories: &[Trajectory],
        signals: &Signals,
        recent: Option<&[Vec<f32>]>,
        totals: Totals,
        fresh: Option<Version>,
    ) -> Result<Pass, Failure> {
        let (rows, lengths) = (rows(trajectories), response_lengths(trajectories));
        let right = right(trajectories);
        let objective = self.spec.objective;
        let (mut loss, mut flops, mut metrics) = (0.0, 0.0, PolicyMetrics::default());
        let mut gap = None;
        for range in cuts(&rows) {
            let temperature = training_temperature(self.spec.sampling);
            let micro = pack(&rows[range.clone()])?.with_temperature(temperature);
            let behaviour: Vec<f32> = trajectories[range.clone()]
                .iter()
                .flat_map(|t| t.log_probs.iter().copied())
                .collect();
            let recent = recent.map(|recent| recent[range.clone()].concat());
            let advantages = signals.advantages[range.clone()].concat();
            let reference =
                (!signals.reference.is_empty()).then(|| signals.reference[range.clone()].concat());
            let mut problem = None;
            let mut evaluate = |scores: &TokenScores, gradients: &mut TokenGradients| {
                let own =
                    fresh.and_then(|fresh| distance(&trajectories[range.clone()], scores, fresh));
                gap = [gap, own].into_iter().flatten().reduce(f64::max);
                let inputs = PolicyBatch {
                    new_log_probs: &scores.logprobs,
                    old_log_probs: recent.as_ref().unwrap_or(&behaviour),
                    behaviour_log_probs: Some(&behaviour),
                    advantages: &advantages,
                    reference_log_probs: reference.as_deref(),
                    entropies: Some(&scores.entropies),
                    positive: Some(&right[range.clone()]),
                    lengths: &lengths[range.clone()],
                };
                match objective.evaluate(&inputs, totals) {
                    Ok(value) => {
                        gradients.logprobs.copy_from_slice(&value.d_log_probs);
                        gradients.entropies.copy_from_slice(&value.d_entropies);
                        metrics = metrics.merged(&value.metrics);
                        value.loss
                    }
                    Err(error) => {
                        problem = Some(Failure::error(error));
                        0.0
                    }
                }
            };
            loss += self.optimizer.accumulate(&micro, &mut evaluate).loss;
            flops += self.optimizer.model().training_flops(&micro);
            if let Some(failure) = problem {
                return Err(failure);
            }
        }
        Ok(Pass {
            loss,
            flops,
            metrics,
            gap,
        })
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

/// Which of them are right.
fn right(trajectories: &[Trajectory]) -> Vec<bool> {
    trajectories.iter().map(|it| it.correct).collect()
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
        ..TrainConfig::default()
    }
}

impl TrainEngine for Trainer {
    fn warm_up(&mut self, step: u64) -> Result<StepStats, Failure> {
        let (loss, flops, tokens) = self.imitate(step, 1.0)?;
        let update = self.optimizer.apply(1.0);
        Ok(StepStats {
            loss,
            grad_norm: f64::from(update.grad_norm),
            tokens,
            flops,
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
            context: self.spec.context,
        };
        checkpoint::write(folder, Older::Removed, &to_save)
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
        let text = spec.tokenizer.decode(tokens).map_err(Failure::error)?;
        replies.push((problem, text));
    }
    let verdicts = wait(async { referee.judge_all(&replies).await.map_err(Failure::error) })?;
    Ok(EvalStats {
        problems: count,
        correct: verdicts.iter().filter(|it| it.correct).count() as u64,
    })
}
