//! The policy's trainer.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use odeon::Failure;
use odeon::group::Communicator;
use odeon_algorithms::model::{self, ModelPart, TokenScores};
use odeon_algorithms::objective::{PolicyBatch, PolicyMetrics, PolicyObjective, Totals};
use odeon_algorithms::task::{Split, Task};
use odeon_algorithms::train::{
    self, AdamW, CrossEntropy, Objective, Schedule, StepWork, TokenGradients, TrainConfig,
};
use odeon_algorithms::weights::ModelFields;

use super::checkpoint::{Newest, Older, ToSave};
use super::dealing::RankPlace;
use super::peak::reachable_flops;
use super::peers::PassGang;
use super::rollout::{Sampler, training_temperature};
use super::rows::{Predictions, Row, Rows};
use super::score::{Rated, Rating, rated, response_lengths, rows};
use super::state::{ACTOR, CheckpointRanks};
use super::step::{Learning, StepGangs, step};
use super::{ComputeSpec, Optimizer, checkpoint, model_folder};
use crate::engine::{EvalStats, Progress, RunState, Signals, StepStats, TrainEngine};
use crate::ranks::gangs::Gangs;
use crate::ranks::metrics::StepSeconds;
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
    exam: Exam,
    /// Its place among those that share the model.
    place: RankPlace,
    /// With whom it trains, where it does not train alone.
    gangs: Gangs,
    /// With whom it saves and loads.
    savers: CheckpointRanks,
    /// Of steps since it was asked.
    seconds: StepSeconds,
}

/// All that a policy is examined with, made when it is first wanted: not every trainer evaluates.
#[derive(Default)]
struct Exam {
    sampler: Option<Sampler>,
    referee: Option<Referee>,
    /// What replies can call.
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
        Self::of_rank(spec, RankPlace::ALONE)
    }

    /// The same of a rank among those that share the model: it has its part of the first weights.
    ///
    /// # Errors
    /// The model cannot be made or loaded, or shared like this.
    pub fn of_rank(spec: &ComputeSpec, place: RankPlace) -> Result<Self, Failure> {
        let warmup = warmup_config(spec);
        // It begins anew with another optimiser later.
        let optimizers = [warmup.optimizer, spec.optimizer];
        let rows = optimizers.map(|it| it.rows_together());
        let rows = rows.into_iter().max().unwrap_or(1);
        let mut model = spec.part(&spec.source, false, (&place, rows))?;
        if let Some(adapters) = spec.adapters() {
            place.check_adapters()?;
            model.add_lora(adapters, spec.seed);
        }
        let whole = model.part().map(ModelPart::whole);
        let fields = whole.unwrap_or_else(|| model.config());
        let fields = spec.source.fields(fields, spec.context)?;
        let optimizer = place.optimizer(model, warmup);
        Ok(Self {
            task: spec.task()?,
            fields,
            spec: spec.clone(),
            optimizer,
            reinforcing: false,
            exam: Exam::default(),
            place,
            gangs: Gangs::default(),
            savers: CheckpointRanks::alone(),
            seconds: StepSeconds::default(),
        })
    }

    /// The seconds of its steps since this was asked last.
    pub(crate) fn take_seconds(&mut self) -> StepSeconds {
        std::mem::take(&mut self.seconds)
    }

    /// From now on batches are parts of one, and gradients are those of all parts.
    pub fn join(&mut self, peers: Communicator) {
        self.gangs = Gangs::of_data(peers);
    }

    /// From now on it trains with these ranks, and saves with those.
    pub(crate) fn meet(&mut self, gangs: Gangs, savers: CheckpointRanks) {
        self.gangs = gangs;
        self.savers = savers;
    }

    /// Answers held-out problems greedily with these weights, as rollouts load them.
    ///
    /// # Errors
    /// Generation failed, or the weights are of another model.
    pub(crate) fn examine(
        &mut self,
        weights: &[u8],
        problems: usize,
    ) -> Result<EvalStats, Failure> {
        let mut flat = Vec::with_capacity(weights.len() / self.spec.weights.bytes());
        self.spec.weights.read(weights, &mut flat);
        self.exam.take(&self.spec, &flat, problems)
    }

    /// Leaves the ranks that it trains with: they would wait for it.
    pub(crate) fn leave(&mut self) {
        self.gangs.leave();
    }

    /// Its model, with its optimiser.
    pub(crate) const fn optimizer(&self) -> &Optimizer {
        &self.optimizer
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
            self.optimizer.restart(self.spec.policy_train());
        }
    }

    /// Goes back to the checkpoint of a step, as all ranks do.
    ///
    /// # Errors
    /// It is not there, or broken.
    pub(crate) fn restore_step(
        &mut self,
        folder: &Path,
        step: u64,
    ) -> Result<(Progress, RunState), Failure> {
        let restored = self.resume(checkpoint::of_step(folder, step)?)?;
        if self.is_base(&restored.0) {
            self.export_base(folder)?;
        }
        Ok(restored)
    }

    fn resume(&mut self, from: Newest) -> Result<(Progress, RunState), Failure> {
        let progress = from.progress;
        if progress.version > 0 {
            self.begin_reinforcement();
        }
        from.read(ACTOR, &mut self.optimizer, &self.savers)?;
        Ok((progress, from.run_state()?))
    }

    /// True of what is saved after the supervised steps: the policy before the reinforcement.
    const fn is_base(&self, progress: &Progress) -> bool {
        progress.version == 0 && progress.warmup >= self.spec.warmup_steps
    }

    /// The policy before the reinforcement, for the reference. Written once.
    fn save_base(&self) -> Result<(), Failure> {
        let tokenizer = Some(&self.spec.tokenizer);
        self.write_base(|fresh| {
            model_folder::write(
                fresh,
                self.optimizer.model(),
                self.fields.clone(),
                tokenizer,
            )
        })
    }

    /// The same of ranks, out of the checkpoint that they have just saved: one of them writes it.
    fn export_base(&self, checkpoints: &Path) -> Result<(), Failure> {
        match self.place.rank {
            0 => self.write_base(|fresh| checkpoint::export_newest(checkpoints, fresh)),
            _ => Ok(()),
        }
    }

    fn write_base(&self, write: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<(), Failure> {
        if self.spec.base.exists() {
            return Ok(());
        }
        // Under its name only when it is whole: a crash leaves nothing that is taken for it.
        let fresh = self.spec.base.with_extension("new");
        let failed = |error| Failure::error(format!("writing {}: {error}", fresh.display()));
        if fresh.exists() {
            std::fs::remove_dir_all(&fresh).map_err(failed)?;
        }
        write(&fresh)?;
        model_folder::sync(&fresh)?;
        std::fs::rename(&fresh, &self.spec.base).map_err(failed)
    }

    /// Log-probabilities of a batch's responses under the weights that a step begins with, and the
    /// floating point operations. Of ranks each has those of the sequences that it trains on, where it scores any.
    fn log_probs(&mut self, batch: &Batch) -> Result<(Vec<Vec<f32>>, f64), Failure> {
        let trajectories = &batch.trajectories;
        let (mut all, mut flops) = (vec![vec![]; trajectories.len()], 0.0);
        let parts = self.spec.minibatches;
        for part in (0..parts).map(|part| part_of(trajectories.len(), part, parts)) {
            let trajectories = &trajectories[part.clone()];
            let model = self.optimizer.model();
            let (rows, own) = Rows::dealt(rows(trajectories), model, self.place);
            let rating = Rating {
                rows,
                lengths: response_lengths(&trajectories[own.clone()]),
                temperature: training_temperature(self.spec.sampling),
                rated: Rated::LogProbs,
            };
            let (scores, operations) = rated(&mut self.optimizer, &mut self.gangs, rating)?;
            for (at, scores) in own.zip(scores) {
                all[part.start + at] = scores;
            }
            flops += operations;
        }
        Ok((all, flops))
    }

    /// The worked solutions of a supervised step, with a weight: those of this rank, which may be none.
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
            rows: Rows::dealt(rows, self.optimizer.model(), self.place).0,
            place: self.place,
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

    /// One update with a part of a batch, of the weights `fresh` where it is the first of its step. Answers on how many
    /// response tokens this rank has learnt; nothing where no rank has.
    fn update(
        &mut self,
        batch: &Batch,
        signals: &Signals,
        recent: Option<&[Vec<f32>]>,
        part: Range<usize>,
        fresh: Option<Version>,
        stats: &mut StepStats,
    ) -> Result<Option<u64>, Failure> {
        let all = rows(&batch.trajectories[part.clone()]);
        let (rows, own) = Rows::dealt(all, self.optimizer.model(), self.place);
        let part = part.start + own.start..part.start + own.end;
        let trajectories = &batch.trajectories[part.clone()];
        // Ranks with batches of their own add up their gradients: one of them imitates for all.
        let imitates = !self.place.is_alone() || self.gangs.is_first_of_data();
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
            place: self.place,
            context: self.gangs.passes.context.clone(),
            predictions: Predictions::default(),
            fresh,
            imitation,
            metrics: PolicyMetrics::default(),
            gap: None,
        };
        let gangs = self.gangs.of_step(true);
        let stepped = step(&mut self.optimizer, &mut work, gangs, Learning::Yes)?;
        self.seconds += stepped.seconds();
        let outcome = stepped.outcome;
        let Some(update) = outcome.update else {
            return Ok(None);
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
        Ok(Some(work.metrics.tokens as u64))
    }

    /// One step of the objective on the part of a batch that is this rank's. Answers on how many response tokens its
    /// last update has learnt, over which the results are means.
    ///
    /// # Errors
    /// The step cannot be computed.
    pub(crate) fn train_part(
        &mut self,
        batch: &Batch,
        signals: &Signals,
    ) -> Result<(StepStats, u64), Failure> {
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
        let (mut fresh, mut learnt) = (Some(batch.step.saturating_sub(1)), 0);
        for _ in 0..self.spec.epochs {
            for part in 0..parts {
                // As many on every rank, however many sequences each has.
                let range = part_of(batch.trajectories.len(), part, parts);
                let fresh = fresh.take();
                let recent = recent.as_deref();
                let tokens = self.update(batch, signals, recent, range, fresh, &mut stats)?;
                learnt = tokens.unwrap_or(learnt);
            }
        }
        Ok((stats, learnt))
    }
}

/// Replies that the policy learns from, with the trust region around `recent` where that is not what sampled;
/// then worked solutions, where it imitates some.
struct PolicyWork<'a> {
    objective: PolicyObjective,
    temperature: f32,
    /// Of this rank, and so all that follow.
    trajectories: &'a [Trajectory],
    rows: Rows,
    place: RankPlace,
    /// Ranks with other rows of the same replies, where there are some.
    context: Option<Arc<PassGang>>,
    /// The response tokens of the micro-batch under way that are this rank's.
    predictions: Predictions,
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
        self.rows.micro_batches() + imitated
    }

    fn counts(&self) -> Vec<u64> {
        let totals = Totals::of(&self.lengths).with_positive(&self.lengths, &self.right);
        let counts = [totals.sequences, totals.tokens, totals.positive_tokens];
        // Of ranks with rows of the same replies the first counts these.
        let is_first = self.place.context().rank == 0;
        counts
            .map(|count| if is_first { count as u64 } else { 0 })
            .to_vec()
    }

    fn sums_loss(&self) -> bool {
        !self.place.is_alone()
    }

    fn is_wanted(&self, counts: &[u64]) -> bool {
        counts[0] > 0
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        let own = self.rows.micro_batches();
        if let Some(imitation) = self.imitation.as_mut().filter(|_| micro >= own) {
            return imitation.batch(micro - own);
        }
        let whole = self.rows.pack(micro)?.with_temperature(self.temperature);
        let (batch, predictions) = self.rows.own_part(whole);
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
        let own = self.rows.micro_batches();
        if let Some(imitation) = self.imitation.as_mut().filter(|_| micro >= own) {
            return imitation.evaluate(micro - own, counts, scores, gradients);
        }
        let range = self.rows.sequences(micro);
        if range.is_empty() {
            return Ok(0.0);
        }
        let scores = self
            .predictions
            .scores_of_all(self.context.as_ref(), scores)?;
        let [sequences, tokens, positive_tokens] = [0, 1, 2].map(|at| counts[at] as usize);
        let totals = Totals {
            sequences,
            tokens,
            positive_tokens,
        };
        let trajectories = &self.trajectories[range.clone()];
        let own = self
            .fresh
            .and_then(|fresh| distance(trajectories, &scores, fresh));
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
        self.metrics = std::mem::take(&mut self.metrics).merged(&value.metrics);
        let of_all = TokenGradients {
            logprobs: value.d_log_probs,
            entropies: value.d_entropies,
            values: vec![],
        };
        self.predictions.own_gradients(&of_all, gradients);
        let is_first = self.place.context().rank == 0;
        Ok(if is_first { value.loss } else { 0.0 })
    }
}

/// Worked solutions that the policy learns by heart.
struct Imitation {
    /// Of this rank.
    rows: Rows,
    place: RankPlace,
    /// Tokens of all that are predicted, by any rank.
    predicted: usize,
    /// Weight of the loss.
    weight: f32,
}

impl StepWork for Imitation {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.rows.micro_batches()
    }

    fn sums_loss(&self) -> bool {
        !self.place.is_alone()
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        let whole = self.rows.pack(micro)?;
        Ok(self.rows.own_part(whole).0)
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
        offload: spec.offload,
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

impl ComputeSpec {
    /// The way in which the policy learns from its replies.
    pub(crate) fn policy_train(&self) -> TrainConfig {
        // Adam's first steps, with moments of hardly any samples, move as far as later ones with good
        // ones: the rate grows over them, or they undo what the supervised steps have learnt.
        TrainConfig {
            lr: self.lr,
            warmup: 10,
            schedule: self.schedule,
            optimizer: self.optimizer,
            weight_decay: 0.0,
            recompute: self.recompute,
            offload: self.offload,
            ..TrainConfig::default()
        }
    }
}

impl TrainEngine for Trainer {
    fn warm_up(&mut self, number: u64) -> Result<StepStats, Failure> {
        let mut work = self.imitation(number, 1.0)?;
        // Ranks with batches of their own compute the same step each.
        let gangs = match self.place.is_alone() {
            true => StepGangs::default(),
            false => self.gangs.of_step(true),
        };
        let stepped = step(&mut self.optimizer, &mut work, gangs, Learning::Yes)?;
        self.seconds += stepped.seconds();
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
        self.train_part(batch, signals).map(|(stats, _)| stats)
    }

    fn evaluate(&mut self, problems: usize) -> Result<EvalStats, Failure> {
        let flat = self.optimizer.model().merged();
        self.exam.take(&self.spec, &flat, problems)
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
        let is_base = self.is_base(progress);
        if is_base && self.place.is_alone() {
            self.save_base()?;
        }
        let to_save = ToSave {
            role: ACTOR,
            progress: *progress,
            run: Some(run),
            optimizer: &self.optimizer,
            tokenizer: Some(&self.spec.tokenizer),
            fields: &self.fields,
            savers: &self.savers,
        };
        checkpoint::write(folder, Older::OneKept, &to_save)?;
        match is_base && !self.place.is_alone() {
            true => self.export_base(folder),
            false => Ok(()),
        }
    }

    fn restore(&mut self, folder: &Path) -> Result<Option<(Progress, RunState)>, Failure> {
        let newest = checkpoint::newest(folder)?;
        let restored = newest.map(|newest| self.resume(newest)).transpose()?;
        // Ranks that have saved may have been lost before that was written.
        if restored
            .as_ref()
            .is_some_and(|(progress, _)| self.is_base(progress))
        {
            self.save_base()?;
        }
        Ok(restored)
    }
}

impl Exam {
    /// Has these weights of the policy, its adapters merged, answer held-out problems.
    fn take(
        &mut self,
        spec: &ComputeSpec,
        flat: &[f32],
        problems: usize,
    ) -> Result<EvalStats, Failure> {
        let sampler = match &mut self.sampler {
            Some(sampler) => sampler,
            none => none.insert(Sampler::greedy(spec)?),
        };
        sampler.load(flat)?;
        let referee = match &self.referee {
            Some(referee) => referee,
            None => {
                let opened = async {
                    let opened = Referee::open(&spec.task, &spec.programs).await;
                    opened.map_err(Failure::error)
                };
                self.referee.insert(wait(opened)?)
            }
        };
        let toolbox = match (&self.toolbox, &spec.environment) {
            (None, Some(environment)) => {
                let opened = async {
                    let opened = Toolbox::open(environment, &spec.programs).await;
                    opened.map_err(Failure::error)
                };
                Some(&*self.toolbox.insert(wait(opened)?))
            }
            (opened, _) => opened.as_ref(),
        };
        evaluate(sampler, spec, referee, toolbox, problems)
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
