//! Passes of micro-batches through the stages that a pipeline rank has.

use odeon_gpu::{Arena, Backend, Division, Plan, Tape, Var};
use odeon_replay::{PipelineCosts, PipelineSchedule, ScheduleError, StageCosts};
use serde::{Deserialize, Serialize};

use super::{Objective, TokenGradients, Trainer, roots, with_gradients};
use crate::model::{
    Batch, Model, Stage, StageLetter, StageOutput, StagePlace, StageVars, TokenScores, Wanted,
};

/// An order of the passes of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PipelineKind {
    /// All forward, then all backward (GPipe, arXiv [1811.06965](https://arxiv.org/abs/1811.06965)).
    #[serde(rename = "gpipe")]
    Gpipe,
    /// Forward and backward by turns (1F1B, arXiv [2006.09503](https://arxiv.org/abs/2006.09503)); of ranks with several
    /// stages interleaved (arXiv [2104.04473](https://arxiv.org/abs/2104.04473)).
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The order of 1F1B with gradients of weights apart, so late that no rank holds more passes than one does under 1F1B
    /// (ZB-H1, arXiv [2401.10241](https://arxiv.org/abs/2401.10241)).
    #[serde(rename = "zb_h1")]
    ZeroBubbleH1,
    /// The fastest of several such orders where each pass takes as long as any other, with twice as many passes held.
    #[serde(rename = "zero_bubble")]
    ZeroBubble,
}

impl PipelineKind {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Gpipe,
        Self::OneForwardOneBackward,
        Self::ZeroBubbleH1,
        Self::ZeroBubble,
    ];

    /// Their words in recipes.
    pub const WORDS: [&'static str; 4] = ["gpipe", "1f1b", "zb_h1", "zero_bubble"];

    /// Its word in recipes.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::ZeroBubbleH1 => "zb_h1",
            Self::ZeroBubble => "zero_bubble",
        }
    }

    /// True where gradients of weights are computed apart from those of rows.
    #[must_use]
    pub const fn is_divided(self) -> bool {
        matches!(self, Self::ZeroBubbleH1 | Self::ZeroBubble)
    }

    /// True where ranks may have several stages each.
    #[must_use]
    pub const fn is_interleaved(self) -> bool {
        matches!(self, Self::OneForwardOneBackward)
    }

    /// The passes of all ranks of a pipeline.
    ///
    /// # Panics
    /// If there are no ranks, stages or micro-batches; or several stages a rank, and the order is of one.
    #[must_use]
    pub fn schedule(self, ranks: usize, chunks: usize, micro_batches: usize) -> PipelineSchedule {
        assert!(
            chunks == 1 || self.is_interleaved(),
            "{self:?} is of one stage a rank"
        );
        let made = match self {
            Self::Gpipe => PipelineSchedule::gpipe(ranks, micro_batches),
            Self::OneForwardOneBackward if chunks == 1 => {
                PipelineSchedule::one_forward_one_backward(ranks, micro_batches)
            }
            Self::OneForwardOneBackward => {
                PipelineSchedule::interleaved(ranks, micro_batches, chunks)
            }
            Self::ZeroBubbleH1 => PipelineSchedule::zero_bubble_h1(ranks, micro_batches),
            Self::ZeroBubble => zero_bubble(ranks, micro_batches),
        };
        made.expect("a pipeline has ranks, stages and micro-batches")
    }
}

/// Passes of a micro-batch that a rank may hold under [`PipelineKind::ZeroBubble`], for each rank of the pipeline.
const HELD: usize = 2;

fn zero_bubble(ranks: usize, micro_batches: usize) -> Result<PipelineSchedule, ScheduleError> {
    let costs = PipelineCosts::uniform(ranks, StageCosts::new(1.0, 1.0, 1.0), 0.0);
    PipelineSchedule::zero_bubble(&costs, micro_batches, HELD * ranks)
}

/// A pipeline as a rank sees it, in the plan of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineShape {
    /// Its place.
    pub place: StagePlace,
    /// The order of passes.
    pub kind: PipelineKind,
    /// Set where the first and the last rank both have the embedding, and this is one of them.
    pub has_tied: bool,
}

/// A pass of a micro-batch through one of a rank's stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StagePass {
    /// The micro-batch.
    pub micro: usize,
    /// The stage, among those of the rank.
    pub chunk: usize,
}

/// A forward pass whose backward pass is still to come, or the second half of it.
#[derive(Debug)]
pub(super) struct UnderWay<B: Backend> {
    pass: StagePass,
    tape: Tape<B>,
    plan: Plan,
    arena: Arena<B>,
    vars: StageVars,
    /// The gradient of scores, of the last stage.
    seeds: Vec<(Var, Vec<f32>)>,
}

/// Passes under way, and the memory of those that are over.
#[derive(Debug)]
pub(super) struct StagePasses<B: Backend> {
    /// Set where passes go back in two.
    is_divided: bool,
    under_way: Vec<UnderWay<B>>,
    arenas: Vec<Arena<B>>,
}

impl<B: Backend> Default for StagePasses<B> {
    fn default() -> Self {
        Self {
            is_divided: false,
            under_way: vec![],
            arenas: vec![],
        }
    }
}

impl<B: Backend> StagePasses<B> {
    /// Memory of activations.
    pub(super) fn arenas(&self) -> impl Iterator<Item = &Arena<B>> {
        let under_way = self.under_way.iter().map(|pass| &pass.arena);
        self.arenas.iter().chain(under_way)
    }

    /// Has passes go back in two from now on, or in one.
    pub(super) fn divide(&mut self, is_divided: bool) {
        self.is_divided = is_divided;
    }

    /// Takes out a pass that is under way.
    fn take(&mut self, pass: StagePass) -> UnderWay<B> {
        let at = self.under_way.iter().position(|it| it.pass == pass);
        let at = at.expect("a pass goes back after it went forward");
        self.under_way.swap_remove(at)
    }

    /// Forgets passes that a step has left.
    pub(super) fn clear(&mut self) {
        let left = self.under_way.drain(..).map(|pass| pass.arena);
        self.arenas.extend(left);
    }
}

impl<B: Backend> Trainer<B> {
    /// The pipeline that its model is a part of, if it is one, with passes in this order.
    #[must_use]
    pub fn pipeline(&self, kind: PipelineKind) -> Option<PipelineShape> {
        let model = self.model();
        let place = model.part()?.place().stage;
        (place.rank.ranks > 1).then_some(PipelineShape {
            place,
            kind,
            has_tied: model.config().tied_head && (place.is_first() || place.is_last()),
        })
    }

    /// Computes a stage of a micro-batch and sends its rows on; of the last one the loss, which it answers. What it has
    /// computed is kept for the way back if it `learns`.
    pub(super) fn stage_forward(
        &mut self,
        pass: StagePass,
        batch: &Batch,
        learns: bool,
        objective: &mut dyn Objective,
    ) -> f64 {
        let wanted = self.wanted();
        // Other stages wait for this one, whatever there is to learn.
        let stands_in = batch.predicted() == 0;
        let batch = as_passed(batch, learns);
        let Self {
            scorer,
            grads,
            stages,
            ..
        } = self;
        let (model, gathered) = scorer.gathering();
        let (backend, stage) = (model.backend(), model.config().stage(pass.chunk));
        let mut tape = Tape::new();
        let vars = model.record_stage(&mut tape, &batch, &stage, wanted);
        let keep = match vars.output {
            StageOutput::Rows(rows) => vec![rows],
            StageOutput::Scores(outputs) => outputs.vars(),
        };
        let plan = match learns {
            true => stage_plan(model, &tape, &keep, stages.is_divided),
            false => tape.plan_inference(&keep),
        };
        let mut arena = stages.arenas.pop().unwrap_or_default();
        arena.prepare(backend, &plan);
        let rows_for = |stage| StageLetter::Rows {
            stage,
            micro: pass.micro,
        };
        if let Some(input) = vars.input {
            let (rows, cols) = tape.shape(input);
            let letter = rows_for(stage.number);
            let numbers = model.stage_links().receive(letter, rows * cols);
            tape.write(backend, &mut arena, &plan, input, &numbers);
        }
        with_gradients(
            (model, gathered),
            &model.param_sets(),
            grads,
            |params, _| {
                backend.scope(|| tape.forward_over(backend, &mut arena, &plan, params));
            },
        );
        let (mut loss, mut seeds) = (0.0, vec![]);
        match vars.output {
            StageOutput::Rows(rows) => {
                let numbers = tape.read(backend, &arena, &plan, rows);
                let letter = rows_for(stage.number + 1);
                model.stage_links().send(letter, numbers);
            }
            StageOutput::Scores(outputs) => {
                let scores = match stands_in {
                    true => TokenScores::default(),
                    false => outputs.read(backend, &tape, &arena, &plan),
                };
                let gradients;
                (loss, gradients) = evaluated(&scores, wanted, stands_in, objective);
                seeds = roots(model, outputs, &gradients);
            }
        }
        match learns {
            true => stages.under_way.push(UnderWay {
                pass,
                tape,
                plan,
                arena,
                vars,
                seeds,
            }),
            false => stages.arenas.push(arena),
        }
        loss
    }

    /// Takes a stage of a micro-batch back: adds to the gradient of its parameters, and sends that of the rows which it
    /// got to whom it got them from. Where passes go back in two, it leaves the gradients of weights of products.
    ///
    /// # Panics
    /// If it has not been computed forward.
    pub(super) fn stage_backward(&mut self, pass: StagePass) {
        let Self {
            scorer,
            grads,
            stages,
            ..
        } = self;
        let mut under_way = stages.take(pass);
        let UnderWay {
            tape,
            plan,
            arena,
            vars,
            seeds,
            ..
        } = &mut under_way;
        let (model, gathered) = scorer.gathering();
        let (backend, stage) = (model.backend(), model.config().stage(pass.chunk));
        let Stage { number, .. } = stage;
        if let StageOutput::Rows(made) = vars.output {
            let (rows, cols) = tape.shape(made);
            let letter = StageLetter::Gradient {
                stage: number,
                micro: pass.micro,
            };
            seeds.push((made, model.stage_links().receive(letter, rows * cols)));
        }
        let is_divided = stages.is_divided;
        with_gradients(
            (model, gathered),
            &model.param_sets(),
            grads,
            |params, gradients| {
                backend.scope(|| {
                    for (var, values) in seeds.drain(..) {
                        tape.seed(backend, arena, plan, var, &values);
                    }
                    match is_divided {
                        false => tape.backward_over(backend, arena, plan, params, gradients),
                        true => tape.backward_inputs(backend, arena, plan, params, gradients),
                    }
                });
            },
        );
        if let Some(input) = vars.input {
            let letter = StageLetter::Gradient {
                stage: number - 1,
                micro: pass.micro,
            };
            let numbers = tape.read_gradient(backend, arena, plan, input);
            model.stage_links().send(letter, numbers);
        }
        match stages.is_divided {
            false => stages.arenas.push(under_way.arena),
            true => stages.under_way.push(under_way),
        }
    }

    /// Adds the gradients that a stage of a micro-batch has left when it was taken back.
    ///
    /// # Panics
    /// If it has not been taken back.
    pub(super) fn stage_backward_weights(&mut self, pass: StagePass) {
        let Self {
            scorer,
            grads,
            stages,
            ..
        } = self;
        let mut under_way = stages.take(pass);
        let UnderWay {
            tape, plan, arena, ..
        } = &mut under_way;
        let (model, gathered) = scorer.gathering();
        let backend = model.backend();
        with_gradients(
            (model, gathered),
            &model.param_sets(),
            grads,
            |params, gradients| {
                backend.scope(|| tape.backward_weights(backend, arena, plan, params, gradients));
            },
        );
        stages.arenas.push(under_way.arena);
    }

    /// Adds up the gradient of an embedding over the two ranks that have it.
    pub(super) fn sum_tied(&mut self) {
        let model = self.model();
        let (backend, range) = (model.backend().clone(), model.embedding_kept());
        let tied = model.tied_ranks();
        if let Some(ranks) = tied.filter(|_| !range.is_empty()) {
            ranks.sum(&backend, self.trained_gradient_mut(), range);
        }
    }
}

/// A batch as it goes through a stage: one that predicts nothing is stood in for, and what rates drops nothing.
fn as_passed(batch: &Batch, learns: bool) -> Batch {
    match (batch.predicted() == 0, learns) {
        (true, _) => batch.standing_in(),
        (false, true) => batch.clone(),
        (false, false) => batch.without_dropout(),
    }
}

/// Places for the passes of a stage, which go back in one or in two.
pub(super) fn stage_plan<B: Backend>(
    model: &Model<B>,
    tape: &Tape<B>,
    keep: &[Var],
    is_divided: bool,
) -> Plan {
    let sets = model.trainable_sets();
    let shard = model.shard();
    let later = shard.map(|shard| shard.of_layers(model.config().layers));
    let division = match (is_divided, &later) {
        (false, _) => Division::Whole,
        (true, None) => Division::Resident,
        (true, Some(later)) => Division::Sets { later },
    };
    tape.plan_divided(&sets, keep, division)
}

/// The loss that an objective gives scores, and its gradient: nothing where the batch stands in for one that predicts
/// nothing.
fn evaluated(
    scores: &TokenScores,
    wanted: Wanted,
    stands_in: bool,
    objective: &mut dyn Objective,
) -> (f64, TokenGradients) {
    let count = scores.logprobs.len();
    let mut gradients = TokenGradients::zeros(count, wanted.values);
    let loss = objective.evaluate(scores, &mut gradients);
    let fits = gradients.logprobs.len() == count && gradients.entropies.len() == count;
    assert!(fits, "one gradient a response token");
    match stands_in {
        true => (loss, TokenGradients::zeros(1, wanted.values)),
        false => (loss, gradients),
    }
}
