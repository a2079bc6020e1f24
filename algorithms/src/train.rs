//! Trains a model: gradients of an [`Objective`] over packed batches, accumulated over
//! micro-batches, clipped and applied with an [`Optimizer`].
//!
//! An objective sees the new log-probability, entropy and (for critics) value of every response
//! token, and answers with a loss and its gradient with respect to each of them. Cross-entropy is
//! [`CrossEntropy`]; a policy gradient is a closure:
//!
//! ```
//! use odeon_algorithms::model::{Batch, Model, ModelConfig, Sequence};
//! use odeon_algorithms::train::{CrossEntropy, TokenGradients, TrainConfig, Trainer};
//! use odeon_gpu::Cpu;
//!
//! let config = ModelConfig { dim: 32, layers: 1, ..ModelConfig::default() };
//! let model = Model::init(Cpu::new(1), config, 7)?;
//! let mut trainer = Trainer::new(model, TrainConfig { lr: 1e-2, ..TrainConfig::default() });
//!
//! // Supervised: two micro-batches, one step.
//! let batch = Batch::pack(&[Sequence { tokens: &[1, 2, 3, 4], prompt: 1 }])?;
//! let before = trainer.accumulate(&batch, &mut CrossEntropy::mean_over(6)).loss;
//! trainer.accumulate(&batch, &mut CrossEntropy::mean_over(6));
//! let update = trainer.apply(1.0);
//! assert!(update.grad_norm > 0.0);
//!
//! // Policy gradient: raise the log-probability of tokens with positive advantage.
//! let advantages = [1.0, 1.0, -1.0];
//! let mut objective = |scores: &odeon_algorithms::model::TokenScores,
//!                      gradients: &mut TokenGradients| {
//!     let mut loss = 0.0;
//!     for (i, advantage) in advantages.iter().enumerate() {
//!         loss -= f64::from(advantage * scores.logprobs[i]);
//!         gradients.logprobs[i] = -advantage;
//!         gradients.entropies[i] = -0.01; // entropy bonus
//!     }
//!     loss
//! };
//! trainer.accumulate(&batch, &mut objective);
//! trainer.apply(1.0 / 3.0);
//! # assert!(trainer.logprobs(&batch).logprobs.iter().sum::<f32>() > -3.0 * before as f32 * 2.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod activations;
mod footprint;
mod guard;
mod optimizer;
mod schedule;
mod stages;
mod state;
mod step;

use std::ops::Range;

use odeon_gpu::{Arena, Backend, Cpu, Layout, PassParams, Precision, Tape, Var};
use serde::{Deserialize, Serialize};

use crate::model::{
    Adapters, Batch, Gathered, Model, NextTargets, Outputs, PartRanges, Pictures, Recompute,
    Scorer, TokenScores, Wanted, over_sets,
};

pub use activations::{ActivationBytes, MicroBatches};
pub use footprint::{Footprint, Sharing, ZeroStage};
pub use guard::GradientGuard;
pub use optimizer::{Adam8bit, AdamW, Lion, Muon, Optimizer, Partition};
use optimizer::{Holding, Prepared};
pub use schedule::Schedule;
use stages::StagePasses;
pub use stages::{PipelineKind, PipelineShape, StagePass};
pub use state::{StateError, StateOwner, StatePart};
pub use step::{
    Peers, PictureShape, StepOperation, StepOutcome, StepPeers, StepPictures, StepShape, StepWork,
    on_host, plan,
};

/// Settings of the optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainConfig {
    /// Peak learning rate.
    pub lr: f32,
    /// Steps of linear warm-up from zero.
    pub warmup: u64,
    /// Learning rate after the warm-up.
    pub schedule: Schedule,
    /// Decoupled weight decay of matrices; norms and biases have none.
    pub weight_decay: f32,
    /// The update rule of the parameters.
    pub optimizer: Optimizer,
    /// Largest L2 norm of the gradient; larger ones are scaled down. None: no clipping.
    pub clip: Option<f32>,
    /// The part of passes that is computed again on the way back.
    pub recompute: Recompute,
    /// Set where what layers keep for the way back, beside that, leaves the device behind their forward pass and comes back
    /// a layer ahead of its use.
    pub offload: bool,
    /// The weight of the loss of a head that predicts [one token further](crate::model::ModelConfig::next_token) beside the
    /// model's own, whose weights of tokens it shares; 0 leaves that head as it is.
    pub next_token_weight: f32,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            lr: 3e-4,
            warmup: 0,
            schedule: Schedule::Constant,
            weight_decay: 0.1,
            optimizer: Optimizer::default(),
            clip: Some(1.0),
            recompute: Recompute::Nothing,
            offload: false,
            next_token_weight: 0.0,
        }
    }
}

/// Loss gradients that an objective fills in, one a response token, zero to begin with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenGradients {
    /// With respect to the log-probabilities.
    pub logprobs: Vec<f32>,
    /// With respect to the entropies. Left all zero, the entropy costs nothing.
    pub entropies: Vec<f32>,
    /// With respect to the values; empty without a value head.
    pub values: Vec<f32>,
}

impl TokenGradients {
    /// As they are before an objective fills them in.
    fn zeros(count: usize, values: bool) -> Self {
        Self {
            logprobs: vec![0.0; count],
            entropies: vec![0.0; count],
            values: vec![0.0; if values { count } else { 0 }],
        }
    }
}

/// A loss over the response tokens of a batch.
///
/// Closures `FnMut(&TokenScores, &mut TokenGradients) -> f64` are objectives.
pub trait Objective {
    /// Returns the loss and writes its gradient. The numbers are one a response token in the order
    /// of the batch, see [`Batch::responses`].
    fn evaluate(&mut self, scores: &TokenScores, gradients: &mut TokenGradients) -> f64;
}

impl<F: FnMut(&TokenScores, &mut TokenGradients) -> f64> Objective for F {
    fn evaluate(&mut self, scores: &TokenScores, gradients: &mut TokenGradients) -> f64 {
        self(scores, gradients)
    }
}

/// Weighted negative log-likelihood, `-sum of weight * logprob`.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropy<'a> {
    weights: Option<&'a [f32]>,
    scale: f32,
}

impl<'a> CrossEntropy<'a> {
    /// Mean over `tokens` tokens: of one batch, or of all micro-batches of a step.
    #[must_use]
    pub fn mean_over(tokens: usize) -> Self {
        Self {
            weights: None,
            scale: 1.0 / tokens as f32,
        }
    }

    /// Times this weight.
    #[must_use]
    pub fn times(mut self, weight: f32) -> Self {
        self.scale *= weight;
        self
    }

    /// One weight a response token, zero masks it.
    #[must_use]
    pub fn weighted(weights: &'a [f32]) -> Self {
        Self {
            weights: Some(weights),
            scale: 1.0,
        }
    }
}

impl Objective for CrossEntropy<'_> {
    fn evaluate(&mut self, scores: &TokenScores, gradients: &mut TokenGradients) -> f64 {
        let mut loss = 0.0;
        for (i, logprob) in scores.logprobs.iter().enumerate() {
            let weight = self.scale * self.weights.map_or(1.0, |w| w[i]);
            gradients.logprobs[i] = -weight;
            loss -= f64::from(weight) * f64::from(*logprob);
        }
        loss
    }
}

/// One forward and backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The loss that the objective returned.
    pub loss: f64,
    /// The loss of the head that predicts one token further, before its weight; 0 where it does not learn.
    pub next_token_loss: f64,
    /// The scores that the objective saw.
    pub scores: TokenScores,
}

/// One optimiser step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Number of the step, from 1.
    pub step: u64,
    /// Learning rate it used.
    pub lr: f32,
    /// L2 norm of the gradient before clipping, after scaling.
    pub grad_norm: f32,
    /// True when it took effect: a gradient that is not finite is thrown away, and one that a
    /// [guard](Trainer::guard) does not take.
    pub applied: bool,
}

/// A model, its gradients and its optimiser.
///
/// With adapters ([`Model::add_lora`]) only these are trained, and [`Model::to_flat`] publishes the
/// merged weights.
#[derive(Debug)]
pub struct Trainer<B: Backend = Cpu> {
    config: TrainConfig,
    scorer: Scorer<B>,
    arena: Arena<B>,
    /// One a parameter set, where these are not sharded; frozen sets have none. Of a shard one for all sets.
    grads: Vec<Option<B::Buffer>>,
    optimizer: Prepared<B>,
    share: Option<Share>,
    /// Passes through stages, of a pipeline rank.
    stages: StagePasses<B>,
    /// Rules for gradients that are taken, of guarded steps.
    guard: Option<GradientGuard>,
    step: u64,
}

/// The parts of an optimiser that ranks share, and which of them a trainer has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Share {
    partition: Partition,
    rank: usize,
}

impl<B: Backend> Trainer<B> {
    /// Takes a model; adapters must have been added before.
    #[must_use]
    pub fn new(model: Model<B>, config: TrainConfig) -> Self {
        Self::made(model, config, None)
    }

    /// The same as a rank of several that share the optimiser and all have this model: it keeps moments of
    /// its [part](Self::part) alone, and moves that alone. Only steps [with others](Self::run) change
    /// parameters.
    ///
    /// # Panics
    /// If there is no such rank, or the model is a [part](Model::into_part) or a [shard](Model::into_shard).
    #[must_use]
    pub fn sharing(model: Model<B>, config: TrainConfig, rank: usize, ranks: usize) -> Self {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let whole = model.part().is_none() && model.shard().is_none();
        assert!(whole, "a part has an optimiser for itself");
        let layout = model
            .adapters()
            .map_or_else(|| model.layout(), Adapters::layout);
        let partition = config.optimizer.partition(layout, ranks);
        Self::made(model, config, Some(Share { partition, rank }))
    }

    /// The same of a model that is rated and never learns: it keeps no gradients and no moments, and only steps that
    /// [do not learn](StepShape::learns) can be made.
    #[must_use]
    pub fn rating(model: Model<B>) -> Self {
        let config = TrainConfig::default();
        let backend = model.backend().clone();
        let sets = model.trainable_sets().len();
        let nothing = Holding::of_part(&Layout::default(), 0..0);
        let optimizer = Prepared::new(config.optimizer, &backend, &nothing, 0.0);
        Self {
            config,
            scorer: Scorer::new(model),
            arena: Arena::default(),
            grads: (0..sets).map(|_| None).collect(),
            optimizer,
            share: None,
            stages: StagePasses::default(),
            guard: None,
            step: 0,
        }
    }

    fn made(mut model: Model<B>, config: TrainConfig, share: Option<Share>) -> Self {
        let backend = model.backend().clone();
        let optimizer = prepared(&model, &config, share.as_ref());
        let len = model.trained().0.len();
        let sets = match model.shard() {
            Some(_) => vec![true],
            None => model.trainable_sets(),
        };
        let grads = sets
            .iter()
            .map(|&trained| trained.then(|| backend.alloc(len)))
            .collect();
        let (scorer, arena) = (Scorer::new(model), Arena::default());
        Self {
            config,
            scorer,
            arena,
            grads,
            optimizer,
            share,
            stages: StagePasses::default(),
            guard: None,
            step: 0,
        }
    }

    /// The part of the trained parameters whose moments it has: all, unless it [shares](Self::sharing) them.
    #[must_use]
    pub fn part(&self) -> &Range<usize> {
        self.optimizer.part()
    }

    /// Has what is gathered of a [shard](Model::into_shard) stay for the other passes of a step (ZeRO stage 2).
    #[must_use]
    pub fn with_parameters_that_stay(mut self) -> Self {
        self.scorer.gathering().1.let_stay(true);
        self
    }

    /// Has so many layers of a [shard](Model::into_shard) gathered while one is computed, and the gradients of as many
    /// added up: one at least, and one unless this is called.
    #[must_use]
    pub fn with_layers_ahead(mut self, layers: usize) -> Self {
        self.scorer.gathering().1.look_ahead(layers.max(1));
        self
    }

    /// Has passes read parameters rounded: bf16 is how those of a [shard](Model::into_shard) are gathered, and how they
    /// are kept that [stay](Self::with_parameters_that_stay). Those of another model have a rounded copy beside them, of
    /// 32 bits. What the optimiser changes is f32 as ever.
    #[must_use]
    pub fn with_parameters_in(mut self, format: Precision) -> Self {
        self.scorer.gathering().1.round(format == Precision::Bf16);
        self
    }

    /// Set where ranks [share](Self::sharing) the optimiser.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.share.is_some()
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model<B> {
        self.scorer.model()
    }

    /// The model, to load weights into.
    #[must_use]
    pub fn model_mut(&mut self) -> &mut Model<B> {
        self.scorer.model_mut()
    }

    /// Begins anew with the model as it is: other settings, perhaps another optimiser, moments of zero,
    /// no gradient.
    pub fn restart(&mut self, config: TrainConfig) {
        let model = self.scorer.model_mut();
        // Never both at once: moments are as large as the model.
        self.optimizer.clear();
        if let Some(share) = &mut self.share {
            let (layout, _) = model.trained();
            share.partition = config.optimizer.partition(layout, share.partition.ranks());
        }
        self.optimizer = prepared(model, &config, self.share.as_ref());
        self.config = config;
        self.step = 0;
        self.clear_gradient();
    }

    /// Forgets what was accumulated.
    fn clear_gradient(&mut self) {
        self.stages.clear();
        let backend = self.model().backend().clone();
        for buffer in self.grads.iter_mut().flatten() {
            let len = B::len(buffer);
            backend.fill(B::view_mut(buffer, 0..len), 0.0);
        }
    }

    /// Gives the model back, without gradients and moments.
    #[must_use]
    pub fn into_model(self) -> Model<B> {
        self.scorer.into_model()
    }

    /// Settings.
    #[must_use]
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// Optimiser steps taken.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Bytes of activations, and of their gradients, that it has room for: the largest batch so far decides.
    #[must_use]
    pub fn held_activations(&self) -> ActivationBytes {
        let arenas = self.stages.arenas().chain([&self.arena]);
        arenas.fold(ActivationBytes::default(), |all, arena| ActivationBytes {
            device: all.device + arena.bytes(),
            host: all.host + arena.offloaded_bytes(),
        })
    }

    /// Bytes that a training pass over the batch needs beside parameters, gradients and moments.
    #[must_use]
    pub fn activation_bytes(&self, batch: &Batch) -> ActivationBytes {
        let mut tape = Tape::new();
        let outputs = self.model().record(&mut tape, batch, None, self.wanted());
        let plan = tape.plan_training(&self.model().trainable_sets(), &outputs.vars());
        ActivationBytes {
            device: plan.bytes(),
            host: plan.offloaded_bytes(),
        }
    }

    /// Log-probabilities and entropies under the current weights.
    #[must_use]
    pub fn logprobs(&mut self, batch: &Batch) -> TokenScores {
        self.scorer.logprobs(batch)
    }

    /// Values under the current weights; empty without a value head.
    #[must_use]
    pub fn values(&mut self, batch: &Batch) -> Vec<f32> {
        self.scorer.values(batch)
    }

    /// See [`Scorer::logprobs_seeing`].
    #[must_use]
    pub fn logprobs_seeing(&mut self, batch: &Batch, features: &[f32]) -> TokenScores {
        self.scorer.logprobs_seeing(batch, features)
    }

    /// The features of pictures: see [`Scorer::encode`].
    ///
    /// # Panics
    /// If the model has no vision encoder, or patches are of another size.
    #[must_use]
    pub fn encode(&mut self, pictures: &Pictures) -> Vec<f32> {
        self.scorer.encode(pictures)
    }

    /// Adds the gradient of the encoder to what is accumulated, from that of the features which it
    /// made. Its activations are computed again, so that nothing of them is kept meanwhile.
    ///
    /// # Panics
    /// If the model has no vision encoder, or there is not one row a visual token.
    pub fn accumulate_encoder(&mut self, pictures: &Pictures, gradient: &[f32]) {
        if pictures.patches() == 0 {
            return;
        }
        let Self {
            scorer,
            arena,
            grads,
            ..
        } = self;
        let (model, gathered) = scorer.gathering();
        let backend = model.backend();
        let mut tape = Tape::new();
        let encoded = model.record_encoder(&mut tape, pictures);
        let (rows, cols) = tape.shape(encoded.features);
        assert_eq!(gradient.len(), rows * cols, "one row a visual token");
        let plan = tape.plan_training(&model.trainable_sets(), &[encoded.features]);
        arena.prepare(backend, &plan);
        let params = gathered.read(model, &model.param_sets());
        backend.scope(|| {
            encoded.write(backend, &tape, arena, &plan, pictures);
            tape.forward(backend, arena, &plan, &params);
            tape.seed(backend, arena, &plan, encoded.features, gradient);
            tape.backward(backend, arena, &plan, &params, grads);
        });
    }

    /// Adds the gradient of an objective over a micro-batch to what is accumulated.
    ///
    /// # Panics
    /// If the objective changes the number of gradients.
    pub fn accumulate(
        &mut self,
        batch: &Batch,
        objective: &mut (impl Objective + ?Sized),
    ) -> Evaluation {
        self.accumulate_seeing(batch, &[], objective).0
    }

    /// The same over a batch that sees pictures ([`Batch::seeing`]), by their features. Answers the
    /// gradient with respect to these, too, for [`accumulate_encoder`](Self::accumulate_encoder)
    /// wherever they were made.
    ///
    /// # Panics
    /// If the objective changes the number of gradients.
    pub fn accumulate_seeing(
        &mut self,
        batch: &Batch,
        features: &[f32],
        objective: &mut (impl Objective + ?Sized),
    ) -> (Evaluation, Vec<f32>) {
        let wanted = self.wanted();
        let mut gradients = TokenGradients::zeros(batch.predicted(), wanted.values);
        if batch.predicted() == 0 {
            if self.model().is_waited_for() {
                let nothing = |_: &TokenScores| TokenGradients::zeros(1, wanted.values);
                let _ = self.pass(&batch.standing_in(), features, wanted, nothing);
            }
            let scores = TokenScores::default();
            let loss = objective.evaluate(&scores, &mut gradients);
            let nothing = Evaluation {
                loss,
                next_token_loss: 0.0,
                scores,
            };
            return (nothing, vec![0.0; features.len()]);
        }
        let mut loss = 0.0;
        let evaluate = |scores: &TokenScores| {
            loss = objective.evaluate(scores, &mut gradients);
            gradients
        };
        let (scores, next_token_loss, of_features) = self.pass(batch, features, wanted, evaluate);
        let evaluation = Evaluation {
            loss,
            next_token_loss,
            scores,
        };
        (evaluation, of_features)
    }

    /// A pass forward and backward, by the gradient that `evaluate` gives of scores. Answers these, the loss of the head that
    /// predicts one token further, and the gradient of the features.
    fn pass(
        &mut self,
        batch: &Batch,
        features: &[f32],
        wanted: Wanted,
        evaluate: impl FnOnce(&TokenScores) -> TokenGradients,
    ) -> (TokenScores, f64, Vec<f32>) {
        let Self {
            scorer,
            arena,
            grads,
            config,
            ..
        } = self;
        let (model, gathered) = scorer.gathering();
        let backend = model.backend();
        let mut tape = Tape::new();
        let table = model.feature_table(features);
        let mut params = model.param_sets();
        let mut trainable = model.trainable_sets();
        let seen = table.as_ref().map(|_| model.seen(features));
        if let Some(table) = &table {
            params.push(table);
            trainable.push(true);
            grads.push(Some(backend.buffer(&vec![0.0; B::len(table)])));
        }
        let outputs = model.record(&mut tape, batch, seen, wanted);
        let plan = tape.plan_training(&trainable, &outputs.vars());
        arena.prepare(backend, &plan);
        let passes = |params: &mut dyn PassParams<B>, of_sets: &mut [Option<B::Buffer>]| {
            let scores = backend.scope(|| {
                tape.forward_over(backend, arena, &plan, params);
                outputs.read(backend, &tape, arena, &plan)
            });
            let gradients = evaluate(&scores);
            let next_token = outputs.next_token.map(|vars| {
                let targets = NextTargets::of(batch);
                let logprobs = tape.read(backend, arena, &plan, vars.logprob);
                let own = &gradients.logprobs;
                let seed = targets.gradient(own, config.next_token_weight);
                (targets.loss(own, &logprobs), vars.logprob, seed)
            });
            let next_token_loss = next_token.as_ref().map_or(0.0, |(loss, ..)| *loss);
            let given = [&gradients.logprobs, &gradients.entropies];
            let fits = given.iter().all(|it| it.len() == batch.predicted());
            assert!(fits, "one gradient a response token");
            backend.scope(|| {
                let further = next_token.into_iter().map(|(_, var, seed)| (var, seed));
                for (var, values) in roots(model, outputs, &gradients).into_iter().chain(further) {
                    tape.seed(backend, arena, &plan, var, &values);
                }
                tape.backward_over(backend, arena, &plan, params, of_sets);
            });
            (scores, next_token_loss)
        };
        let (scores, next_token_loss) = with_gradients((model, gathered), &params, grads, passes);
        let of_features = table.and_then(|_| grads.pop().flatten());
        let of_features = of_features.map_or_else(Vec::new, |all| {
            let all = backend.to_vec(&all);
            all[all.len() - features.len()..].to_vec()
        });
        (scores, next_token_loss, of_features)
    }

    /// One optimiser step with the accumulated gradient times `grad_scale`, which is 1 for
    /// objectives that normalise themselves. Clears the gradient.
    ///
    /// A gradient with a norm that is not finite changes nothing but is cleared.
    ///
    /// # Panics
    /// If the optimiser is [shared](Self::sharing), or the model is a [part](Model::into_part) or a
    /// [shard](Model::into_shard): they move in a step of all ranks.
    pub fn apply(&mut self, grad_scale: f32) -> Update {
        let model = self.model();
        let alone = !self.is_shared() && model.part().is_none() && model.shard().is_none();
        assert!(alone, "a step of all ranks moves it");
        let squares = self.part_squares();
        self.apply_part(grad_scale, squares)
    }

    /// The sum of the squares of the gradient over its part.
    fn part_squares(&mut self) -> f64 {
        let backend = self.model().backend().clone();
        let part = self.part().clone();
        let grads = &*self.trained_gradient_mut();
        backend.scope(|| backend.sum_squares(B::view(grads, part)))
    }

    /// The trained parameters by the ranks that have the same.
    fn ranges(&self) -> PartRanges {
        match self.model().part() {
            Some(part) => part.ranges().clone(),
            None => PartRanges::whole(self.model().trainable_parameters()),
        }
    }

    /// The same of its part, by the sum of the squares of the whole gradient.
    fn apply_part(&mut self, grad_scale: f32, squares: f64) -> Update {
        let Self {
            config,
            scorer,
            grads,
            optimizer,
            guard,
            step,
            ..
        } = self;
        let model = scorer.model_mut();
        let backend = model.backend().clone();
        let grads = grads.iter_mut().flatten().next();
        let grads = grads.expect("one parameter set is trained");
        let len = B::len(grads);
        let keepers = model.shard_keepers();
        let grad_norm = grad_scale * squares.sqrt() as f32;
        let applied = guard.unwrap_or_default().takes(grad_norm);
        if applied {
            *step += 1;
        }
        let lr = config.lr * config.schedule.factor(config.warmup, (*step).max(1));
        if applied {
            let clip = config.clip.map_or(1.0, |clip| (clip / grad_norm).min(1.0));
            let grad_scale = grad_scale * clip;
            let (_, params) = model.trained();
            let numbers = (*step, lr, grad_scale);
            backend.scope(|| optimizer.step(&backend, numbers, params, grads, &keepers));
        }
        backend.fill(B::view_mut(grads, 0..len), 0.0);
        Update {
            step: *step,
            lr,
            grad_norm,
            applied,
        }
    }

    fn trained_gradient_mut(&mut self) -> &mut B::Buffer {
        let grads = self.grads.iter_mut().flatten().next();
        grads.expect("one parameter set is trained")
    }

    fn trained_gradient(&self) -> &B::Buffer {
        let grads = self.grads.iter().flatten().next();
        grads.expect("one parameter set is trained")
    }

    /// Accumulated gradient of the trained parameters.
    #[must_use]
    pub fn gradient(&self) -> Vec<f32> {
        self.model().backend().to_vec(self.trained_gradient())
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            logprobs: true,
            values: self.model().config().value_head,
            next_token: self.config.next_token_weight > 0.0 && !self.model().has_adapters(),
            recompute: self.config.recompute,
            offload: self.config.offload,
        }
    }
}

/// Makes passes over the parameter sets of a model and their gradients: as they are here, or as they come to a shard.
fn with_gradients<B: Backend, R>(
    (model, gathered): (&Model<B>, &mut Gathered<B>),
    sets: &[&B::Buffer],
    grads: &mut [Option<B::Buffer>],
    passes: impl FnOnce(&mut dyn PassParams<B>, &mut [Option<B::Buffer>]) -> R,
) -> R {
    if model.shard().is_none() {
        return over_sets((model, gathered), sets, None, |params| {
            passes(params, grads)
        });
    }
    let mut of_sets: Vec<Option<B::Buffer>> = vec![];
    of_sets.resize_with(model.trainable_sets().len(), || None);
    over_sets((model, gathered), sets, grads[0].as_mut(), |params| {
        passes(params, &mut of_sets)
    })
}

/// The outputs that a backward pass begins at, each with its gradient.
fn roots<B: Backend>(
    model: &Model<B>,
    outputs: Outputs,
    gradients: &TokenGradients,
) -> Vec<(Var, Vec<f32>)> {
    let any = |values: &[f32]| values.iter().any(|&value| value != 0.0);
    let mut roots = vec![];
    if let Some(vocab) = outputs.vocab {
        // Ranks with other rows go backward together, whoever of them has something to learn.
        if model.is_waited_for() || any(&gradients.logprobs) {
            roots.push((vocab.logprob, gradients.logprobs.clone()));
        }
        if any(&gradients.entropies) {
            roots.push((vocab.entropy, gradients.entropies.clone()));
        }
    }
    if let Some(values) = outputs.values
        && (model.is_waited_for() || any(&gradients.values))
    {
        // Every tensor rank has the whole values: the first learns from them, and others go backward beside it.
        roots.push(match model.adds_whole() {
            true => (values, gradients.values.clone()),
            false => (values, vec![0.0; gradients.values.len()]),
        });
    }
    roots
}

/// The optimiser of these settings for a model, or the part of it that a rank has.
fn prepared<B: Backend>(
    model: &Model<B>,
    config: &TrainConfig,
    share: Option<&Share>,
) -> Prepared<B> {
    let backend = model.backend().clone();
    let holding = match model.shard() {
        Some(shard) => Holding::of_shard(shard, model.layout()),
        None => {
            let adapters = model.adapters();
            let layout = adapters.map_or_else(|| model.layout(), Adapters::layout);
            let part = share.map_or(0..layout.len(), |share| share.partition.part(share.rank));
            Holding::of_part(layout, part)
        }
    };
    Prepared::new(config.optimizer, &backend, &holding, config.weight_decay)
}

#[cfg(test)]
mod precision_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vision_tests;
