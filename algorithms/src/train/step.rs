//! A step of training as data: [`plan`] lists its operations, and [`Trainer::run`] carries them out.
//!
//! Pretraining, the policy, critics and reward models differ in their [`StepWork`] alone: its
//! micro-batches, and the loss over each. The operations and their order are the same for all of them:
//!
//! ```text
//!           count ─> encode* ─> sum features ─> accumulate* ─> sum feature gradients ─> accumulate encoder*
//! ranks:      x                      x                                   x
//!                                                                     ─> sum gradients ─> apply ─> sum losses
//! ranks:                                                                      x                        x
//! shared:                   scatter gradients ─> apply its part ─> gather parameters ─> sum losses
//! ranks:                            x                                      x                x
//! guarded:    look at this rank's gradient, before sums of gradients
//! parts:      sum partial gradients ─> sum gradients ─> sum expert gradients ─> sum squares ─> apply ─> sum losses
//! ranks:                 x                   x                    x                  x                       x
//! shards:                                       sum replicas ─> sum squares ─> apply ─> sum losses
//! ranks:                                             x               x                      x
//! ```
//!
//! Ranks that have [a part](crate::model::Model::into_part) of the model each compute every pass together, and have
//! the last line. Gradients are added up over those ranks that have the same parameters, each once: what tensor ranks
//! have whole over all ranks, since each has an addend of it; the matrices of which these have parts over those that
//! have other samples or rows; and experts of which ranks have some over those with the same ones.
//!
//! Ranks that [share](Trainer::sharing) the optimiser have the last line in place of the one before: each gets
//! the summed gradient of its part, moves that, and gives it to all others. That are as many bytes as the sum
//! of all gradients takes, and each rank keeps moments of its part alone.
//!
//! Ranks that keep [a shard](crate::model::Model::into_shard) of the model add up gradients within each pass, so at its
//! end each has the sums of its own. Where several groups of ranks keep all shards each, these are added up over them.
//!
//! Ranks that have [some of the layers](crate::model::StagePlace) have passes of their stages in place of whole ones, in
//! the order of a [schedule](super::PipelineKind::schedule): rows and their gradients go between neighbours within these.
//! Where the first and the last rank have the same embedding, its gradient is added up over both; and all of them have
//! the norm and the loss in the end.
//!
//! Those marked with `x` are collectives: a plan has them where a rank trains with others, in one order on
//! all ranks, however many micro-batches and pictures each has.

mod plan;

use std::ops::Range;

use odeon_gpu::{Backend, PassRanks};

pub use plan::{PictureShape, StepOperation, StepShape, plan};

use super::{Objective, StagePass, TokenGradients, Trainer, Update};
use crate::model::{Batch, GradientLook, Pictures, ScoresRead, ShardCopies, TokenScores};

/// The ranks that train one model together, each with rows of its own and the same weights.
pub trait Peers<B: Backend>: Send + Sync {
    /// Reason why a collective failed.
    type Error;

    /// Which of them this is, from 0.
    fn rank(&self) -> usize;

    /// Adds up numbers over all ranks, one by one; each rank has the sums then, the same to the bit.
    ///
    /// # Errors
    /// A rank is lost, or does not come.
    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Self::Error>;

    /// The same of counts.
    ///
    /// # Errors
    /// A rank is lost, or does not come.
    fn count(&mut self, counts: &mut [u64]) -> Result<(), Self::Error>;

    /// The same of part of a buffer: where it lies, if these ranks can. Else it is added up in its place where that
    /// is memory of the host, and goes through memory of the host where it is not.
    ///
    /// # Errors
    /// A rank is lost, or does not come; the buffer is what that left, in whole or in part.
    fn sum_buffer(
        &mut self,
        backend: &B,
        numbers: &mut B::Buffer,
        range: Range<usize>,
    ) -> Result<(), Self::Error> {
        on_host(backend, numbers, range, |numbers| self.sum(numbers))
    }

    /// Adds up a buffer that has a part for each rank, one behind the other, that of rank `r` of `counts[r]`
    /// numbers. Each rank has the sums of its own part then, and of the others' anything.
    ///
    /// # Errors
    /// A rank is lost, or does not come; the buffer is what that left, in whole or in part.
    fn scatter_buffer(
        &mut self,
        backend: &B,
        numbers: &mut B::Buffer,
        counts: &[usize],
    ) -> Result<(), Self::Error>;

    /// Gives each rank's part of such a buffer to all.
    ///
    /// # Errors
    /// A rank is lost, or does not come; the buffer is what that left, in whole or in part.
    fn gather_buffer(
        &mut self,
        backend: &B,
        numbers: &mut B::Buffer,
        counts: &[usize],
    ) -> Result<(), Self::Error>;
}

/// Changes part of a buffer in memory of the host: in its place where it lies there.
///
/// # Errors
/// That of `change`.
pub fn on_host<B: Backend, E>(
    backend: &B,
    numbers: &mut B::Buffer,
    range: Range<usize>,
    change: impl FnOnce(&mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(numbers) = B::host_mut(numbers) {
        return change(&mut numbers[range]);
    }
    let mut own = vec![0.0; range.len()];
    backend.read(B::view(numbers, range.clone()), &mut own);
    change(&mut own)?;
    backend.write(B::view_mut(numbers, range), &own);
    Ok(())
}

/// The ranks that a rank trains with. Those that compute passes together [meet](crate::model::Model::meet) each other
/// by themselves.
#[derive(Debug)]
pub struct StepPeers<'a, P: ?Sized> {
    /// Those that have other samples, or other rows of these, and the same parameters but for experts.
    pub data: Option<&'a mut P>,
    /// All ranks, where several have parts of each matrix.
    pub all: Option<&'a mut P>,
    /// Those of `data` that have the same experts, where ranks have some of these each.
    pub same_experts: Option<&'a mut P>,
    /// Those of `data` that keep the same shard, where several groups keep all shards each.
    pub replicas: Option<&'a mut P>,
}

impl<P: ?Sized> StepPeers<'_, P> {
    /// None: one rank is all there is.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            data: None,
            all: None,
            same_experts: None,
            replicas: None,
        }
    }
}

impl<'a, P: ?Sized> StepPeers<'a, P> {
    /// Those that have other samples, each with the whole model.
    #[must_use]
    pub const fn data(peers: &'a mut P) -> Self {
        Self {
            data: Some(peers),
            all: None,
            same_experts: None,
            replicas: None,
        }
    }
}

/// The part of a rank in a step.
pub trait StepWork {
    /// Reason why it cannot be computed.
    type Error;

    /// Its micro-batches.
    fn micro_batches(&self) -> usize;

    /// Its pictures, where its micro-batches see any ([`Batch::seeing`]).
    fn pictures(&self) -> Option<&StepPictures> {
        None
    }

    /// Numbers that losses are divided by, as far as this rank goes: [`evaluate`](Self::evaluate) has those
    /// of all ranks.
    fn counts(&self) -> Vec<u64> {
        vec![]
    }

    /// Set where the loss that is told is that of all ranks, and not of this rank's part.
    fn sums_loss(&self) -> bool {
        false
    }

    /// The scores that [`evaluate`](Self::evaluate) reads in a step that rates.
    fn reads(&self) -> ScoresRead {
        ScoresRead::All
    }

    /// True where there is anything to learn from, by the counts of all ranks. Where there is not, the step
    /// ends and changes nothing.
    fn is_wanted(&self, _counts: &[u64]) -> bool {
        true
    }

    /// A micro-batch.
    ///
    /// # Errors
    /// It cannot be packed.
    fn batch(&mut self, micro: usize) -> Result<Batch, Self::Error>;

    /// The loss over a micro-batch and its gradient, as an [`Objective`] answers; losses of all
    /// micro-batches of all ranks add up to that of the step.
    ///
    /// # Errors
    /// The loss is not defined there.
    fn evaluate(
        &mut self,
        micro: usize,
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Self::Error>;
}

/// Pictures of a step, as a rank has them to encode. Features of all that are seen are one table of
/// `[rows, the encoder's width]`.
#[derive(Clone, Debug, Default)]
pub struct StepPictures {
    /// Those that this rank encodes, in passes.
    pub passes: Vec<Pictures>,
    /// Rows of the table.
    pub rows: usize,
    /// The first row of this rank's own.
    pub first: usize,
    /// Set where other ranks see what is encoded here, and this rank what is encoded there.
    pub is_shared: bool,
}

/// Results of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// The loss: of this rank's part, or of all where the shape says so.
    pub loss: f64,
    /// The loss of the head that predicts one token further, of the same ranks.
    pub next_token_loss: f64,
    /// The change of the parameters, where there was one.
    pub update: Option<Update>,
    /// Floating point operations of this rank, as the shape of the model asks for them.
    pub flops: f64,
    /// The counts of all ranks.
    pub counts: Vec<u64>,
    /// The gradient of this rank before that of others was added, of a guarded step. Of a shard it has those of others,
    /// which passes add up.
    pub gradient: Option<GradientLook>,
    /// Bytes of shards that this rank copied around collectives.
    pub copies: ShardCopies,
}

/// Numbers that operations of a step leave to later ones.
#[derive(Debug, Default)]
struct Carried {
    /// Features of the pictures of the step.
    features: Vec<f32>,
    /// The gradient with respect to them.
    gradient: Vec<f32>,
    /// Features of a visual token.
    dim: usize,
    /// The sum of the squares of the gradient over the parts of all ranks, where these have parts.
    squares: Option<f64>,
}

impl<B: Backend> Trainer<B> {
    /// Carries out the operations of a step, one after the other. `after` is told of each when it is done, and may
    /// end the step there.
    ///
    /// A step that fails leaves no gradient behind, so that another may begin.
    ///
    /// # Errors
    /// The work, or a collective, says why; parameters are unchanged then, unless all but the last collective
    /// was done, and, where the optimiser is shared, the one before: then a checkpoint has to be loaded.
    ///
    /// # Panics
    /// If the plan is of a rank that trains with others and there are none, or the other way round; or if it is
    /// of a shared optimiser or a part of a model, and this one is not, or the other way round.
    pub fn run<W, P>(
        &mut self,
        plan: &[StepOperation],
        work: &mut W,
        peers: StepPeers<'_, P>,
        after: &mut dyn FnMut(StepOperation) -> Result<(), W::Error>,
    ) -> Result<StepOutcome, W::Error>
    where
        W: StepWork + ?Sized,
        P: Peers<B, Error = W::Error> + ?Sized,
    {
        let with_others = plan.contains(&StepOperation::Count);
        let has_data = peers.data.is_some();
        assert_eq!(with_others, has_data, "the plan is of these ranks");
        if plan.contains(&StepOperation::Apply) {
            let has = |operation| plan.contains(&operation);
            let in_parts = has(StepOperation::SumSquares);
            let is_shard = self.model().shard().is_some();
            let is_part = self.model().part().is_some() || is_shard;
            assert_eq!(in_parts, is_part, "the plan is of this part or shard");
            let partial = has(StepOperation::SumPartialGradients);
            let is_tensor_part = self.model().shared().is_some() && !is_shard;
            let all = [peers.all.is_some(), is_tensor_part];
            assert_eq!(all, [partial; 2], "the plan is of these tensor ranks");
            let with_replicas = [has(StepOperation::SumReplicas), peers.replicas.is_some()];
            assert!(
                with_replicas.iter().all(|it| *it == with_replicas[0]),
                "the plan is of these replicas"
            );
            let of_experts = has(StepOperation::SumExpertGradients);
            let others = peers.same_experts.is_some();
            assert_eq!(of_experts, others, "the plan is of these expert ranks");
            let shares = plan.contains(&StepOperation::ScatterGradients);
            assert_eq!(shares, self.is_shared(), "the plan is of this optimiser");
        }
        let outcome = self.run_all(plan, work, peers, after);
        if outcome.is_err() {
            self.clear_gradient();
        }
        outcome
    }

    fn run_all<W, P>(
        &mut self,
        plan: &[StepOperation],
        work: &mut W,
        mut peers: StepPeers<'_, P>,
        after: &mut dyn FnMut(StepOperation) -> Result<(), W::Error>,
    ) -> Result<StepOutcome, W::Error>
    where
        W: StepWork + ?Sized,
        P: Peers<B, Error = W::Error> + ?Sized,
    {
        let mut outcome = StepOutcome {
            counts: work.counts(),
            ..StepOutcome::default()
        };
        self.divide_passes(plan);
        let mut carried = self.carried(work);
        let counts_others = plan.contains(&StepOperation::Count);
        if !counts_others && !work.is_wanted(&outcome.counts) {
            return Ok(outcome);
        }
        for operation in plan.iter().copied() {
            let with = match operation {
                StepOperation::SumPartialGradients => &mut peers.all,
                StepOperation::SumExpertGradients => &mut peers.same_experts,
                StepOperation::SumReplicas => &mut peers.replicas,
                _ => &mut peers.data,
            };
            match with {
                Some(with) if operation.is_collective() => {
                    self.collect(operation, &mut **with, &mut carried, &mut outcome)?;
                }
                _ => self.compute(operation, work, &mut carried, &mut outcome)?,
            }
            match operation {
                StepOperation::SumSquares => carried.squares = Some(self.squares_of_all()),
                StepOperation::SumLoss => outcome.loss = self.loss_of_stages(outcome.loss),
                _ => {}
            }
            after(operation)?;
            if operation == StepOperation::Count && !work.is_wanted(&outcome.counts) {
                break;
            }
        }
        outcome.copies = self.scorer.take_copies();
        Ok(outcome)
    }

    /// Has passes of stages go back in two where the plan has it so.
    fn divide_passes(&mut self, plan: &[StepOperation]) {
        let is_first = |it: &StepOperation| matches!(it, StepOperation::StageBackwardInput(_));
        self.stages.divide(plan.iter().any(is_first));
    }

    fn carried<W: StepWork + ?Sized>(&self, work: &W) -> Carried {
        let vision = self.model().config().vision.as_ref();
        let Some((pictures, vision)) = work.pictures().zip(vision) else {
            return Carried::default();
        };
        let numbers = vec![0.0; pictures.rows * vision.dim];
        Carried {
            gradient: numbers.clone(),
            features: numbers,
            dim: vision.dim,
            squares: None,
        }
    }

    /// An operation with the other ranks.
    fn collect<P: Peers<B> + ?Sized>(
        &mut self,
        operation: StepOperation,
        peers: &mut P,
        carried: &mut Carried,
        outcome: &mut StepOutcome,
    ) -> Result<(), P::Error> {
        match operation {
            StepOperation::Count => peers.count(&mut outcome.counts),
            StepOperation::SumFeatures => peers.sum(&mut carried.features),
            StepOperation::SumFeatureGradients => peers.sum(&mut carried.gradient),
            StepOperation::SumPartialGradients => self.sum_ranges(peers, self.ranges().everywhere),
            StepOperation::SumGradients => self.sum_ranges(peers, self.ranges().data),
            StepOperation::SumExpertGradients => self.sum_ranges(peers, self.ranges().experts),
            StepOperation::SumReplicas => {
                let all = 0..self.part().len();
                self.sum_ranges(peers, vec![all])
            }
            StepOperation::ScatterGradients => {
                let backend = self.model().backend().clone();
                let counts = self.part_counts();
                peers.scatter_buffer(&backend, self.trained_gradient_mut(), &counts)?;
                let own = self.part_squares();
                carried.squares = Some(summed(peers, counts.len(), own)?);
                Ok(())
            }
            StepOperation::GatherParameters => {
                let counts = self.part_counts();
                let model = self.scorer.model_mut();
                let backend = model.backend().clone();
                peers.gather_buffer(&backend, model.trained().1, &counts)
            }
            StepOperation::SumLoss => {
                let mut sums = vec![outcome.loss as f32];
                if self.wanted().next_token {
                    sums.push(outcome.next_token_loss as f32);
                }
                peers.sum(&mut sums)?;
                outcome.loss = f64::from(sums[0]);
                outcome.next_token_loss = sums.get(1).map_or(0.0, |sum| f64::from(*sum));
                Ok(())
            }
            StepOperation::SumSquares
            | StepOperation::SumTied
            | StepOperation::Encode(_)
            | StepOperation::Forward(_)
            | StepOperation::Accumulate(_)
            | StepOperation::StageForward(_)
            | StepOperation::StageBackward(_)
            | StepOperation::StageBackwardInput(_)
            | StepOperation::StageBackwardWeight(_)
            | StepOperation::StageRate(_)
            | StepOperation::AccumulateEncoder(_)
            | StepOperation::LookAtGradient
            | StepOperation::Apply => Ok(()),
        }
    }

    /// An operation of this rank alone. Collectives are none: one rank is all there is.
    fn compute<W: StepWork + ?Sized>(
        &mut self,
        operation: StepOperation,
        work: &mut W,
        carried: &mut Carried,
        outcome: &mut StepOutcome,
    ) -> Result<(), W::Error> {
        match operation {
            StepOperation::Encode(pass) => {
                let (pictures, at) = of_pass(work, pass);
                let own = self.encode(pictures);
                let at = at * carried.dim;
                carried.features[at..at + own.len()].copy_from_slice(&own);
                outcome.flops += self.encoder_flops(pictures);
            }
            StepOperation::AccumulateEncoder(pass) => {
                let (pictures, at) = of_pass(work, pass);
                let own = at * carried.dim..(at + pictures.tokens()) * carried.dim;
                self.accumulate_encoder(pictures, &carried.gradient[own]);
                // Forward again, and backward, which is twice as much.
                outcome.flops += 3.0 * self.encoder_flops(pictures);
            }
            StepOperation::Forward(micro) => {
                let batch = work.batch(micro)?;
                let read = work.reads();
                let scores = self.scorer.scores(&batch, &carried.features, read);
                let mut unused = TokenGradients::zeros(batch.predicted(), self.wanted().values);
                outcome.flops += self.model().forward_flops(&batch);
                outcome.loss += work.evaluate(micro, &outcome.counts, &scores, &mut unused)?;
            }
            StepOperation::Accumulate(micro) => {
                let batch = work.batch(micro)?;
                let mut objective = Fallible {
                    work,
                    micro,
                    counts: &outcome.counts,
                    failure: None,
                };
                let (done, gradient) =
                    self.accumulate_seeing(&batch, &carried.features, &mut objective);
                if let Some(failure) = objective.failure {
                    return Err(failure);
                }
                for (sum, own) in carried.gradient.iter_mut().zip(&gradient) {
                    *sum += own;
                }
                outcome.flops += self.model().training_flops(&batch);
                outcome.loss += done.loss;
                outcome.next_token_loss += done.next_token_loss;
            }
            StepOperation::StageForward(pass) | StepOperation::StageRate(pass) => {
                self.stage(operation, pass, work, outcome)?;
            }
            StepOperation::StageBackward(pass) | StepOperation::StageBackwardInput(pass) => {
                self.stage_backward(pass);
            }
            StepOperation::StageBackwardWeight(pass) => self.stage_backward_weights(pass),
            StepOperation::SumTied => self.sum_tied(),
            StepOperation::LookAtGradient => outcome.gradient = Some(self.look_at_gradient()),
            StepOperation::Apply => {
                outcome.update = Some(match carried.squares {
                    Some(squares) => self.apply_part(1.0, squares),
                    None => self.apply(1.0),
                });
            }
            StepOperation::Count
            | StepOperation::SumFeatures
            | StepOperation::SumFeatureGradients
            | StepOperation::SumPartialGradients
            | StepOperation::SumGradients
            | StepOperation::SumExpertGradients
            | StepOperation::SumSquares
            | StepOperation::ScatterGradients
            | StepOperation::SumReplicas
            | StepOperation::GatherParameters
            | StepOperation::SumLoss => {}
        }
        Ok(())
    }

    /// A pass of a micro-batch through a stage, forward.
    fn stage<W: StepWork + ?Sized>(
        &mut self,
        operation: StepOperation,
        pass: StagePass,
        work: &mut W,
        outcome: &mut StepOutcome,
    ) -> Result<(), W::Error> {
        let learns = matches!(operation, StepOperation::StageForward(_));
        let batch = work.batch(pass.micro)?;
        let mut objective = Fallible {
            work,
            micro: pass.micro,
            counts: &outcome.counts,
            failure: None,
        };
        let loss = self.stage_forward(pass, &batch, learns, &mut objective);
        if let Some(failure) = objective.failure {
            return Err(failure);
        }
        outcome.loss += loss;
        // Those are of all of its stages.
        if pass.chunk == 0 {
            outcome.flops += match learns {
                true => self.model().training_flops(&batch),
                false => self.model().forward_flops(&batch),
            };
        }
        Ok(())
    }

    /// Adds up ranges of the gradient at once: where they lie if it is one, else together in a copy.
    fn sum_ranges<P: Peers<B> + ?Sized>(
        &mut self,
        peers: &mut P,
        ranges: Vec<Range<usize>>,
    ) -> Result<(), P::Error> {
        let backend = self.model().backend().clone();
        let gradient = self.trained_gradient_mut();
        if let [range] = ranges.as_slice() {
            return peers.sum_buffer(&backend, gradient, range.clone());
        }
        let len = ranges.iter().map(ExactSizeIterator::len).sum();
        let mut together = backend.alloc(len);
        let mut begin = 0;
        let placed = ranges.into_iter().map(|range| {
            let at = begin..begin + range.len();
            begin = at.end;
            (range, at)
        });
        let placed: Vec<_> = placed.collect();
        for (range, at) in &placed {
            let own = B::view(gradient, range.clone());
            backend.copy(own, B::view_mut(&mut together, at.clone()));
        }
        peers.sum_buffer(&backend, &mut together, 0..len)?;
        for (range, at) in placed {
            backend.copy(B::view(&together, at), B::view_mut(gradient, range));
        }
        Ok(())
    }

    /// The sum of the squares of what this rank tells of the gradient, of those that have a part of the model each.
    fn told_squares(&mut self) -> f64 {
        let model = self.model();
        // Of an embedding that two pipeline ranks have the first tells.
        let of_another = match model.config().has_embedding_of_another() {
            true => model.embedding_kept(),
            false => 0..0,
        };
        // Of what is sharded each number is with one rank alone.
        let told = match model.part().filter(|_| model.shard().is_none()) {
            Some(part) => part.told_ranges(),
            None => vec![self.part().clone()],
        };
        let told = told.into_iter().flat_map(|own| {
            let before = own.start..of_another.start.clamp(own.start, own.end);
            let behind = of_another.end.clamp(before.end, own.end)..own.end;
            [before, behind].into_iter().filter(|it| !it.is_empty())
        });
        let told: Vec<_> = told.collect();
        let backend = self.model().backend().clone();
        let grads = &*self.trained_gradient_mut();
        let squares = told
            .into_iter()
            .map(|own| backend.sum_squares(B::view(grads, own)));
        squares.sum()
    }

    /// The sum of the squares of the gradient over all parts or shards, the same to the bit on all.
    fn squares_of_all(&mut self) -> f64 {
        let own = self.told_squares();
        let model = self.model();
        let groups = match model.shard() {
            Some(_) => [model.widest_shard_ranks(), None],
            None => [model.shared().map(|(_, ranks)| ranks), model.expert_ranks()],
        };
        let groups = groups.into_iter().chain([model.pipeline_ranks()]);
        groups.flatten().fold(own, |own, ranks| {
            squares_of(ranks.as_ref(), model.backend(), own)
        })
    }

    /// The loss, which the last stage has, on all ranks of a pipeline.
    fn loss_of_stages(&self, own: f64) -> f64 {
        let model = self.model();
        model.pipeline_ranks().map_or(own, |ranks| {
            of_each(ranks.as_ref(), model.backend(), own)
                .into_iter()
                .sum()
        })
    }

    /// Trained parameters of each rank's part.
    fn part_counts(&self) -> Vec<usize> {
        let share = self.share.as_ref();
        share.map_or_else(|| vec![self.part().len()], |it| it.partition.counts())
    }

    fn encoder_flops(&self, pictures: &Pictures) -> f64 {
        let vision = self.model().config().vision.as_ref();
        vision.map_or(0.0, |vision| vision.forward_flops(pictures.sizes()))
    }
}

/// The sum of the squares that each rank has, by way of their roots, which are no larger than numbers can be.
fn squares_of<B: Backend>(ranks: &dyn PassRanks<B>, backend: &B, own: f64) -> f64 {
    let norms = of_each(ranks, backend, own.sqrt()).into_iter();
    norms.map(|norm| norm * norm).sum()
}

/// A number of each rank. It travels in two, which have its digits.
fn of_each<B: Backend>(ranks: &dyn PassRanks<B>, backend: &B, own: f64) -> Vec<f64> {
    let mut digits = vec![0.0; 2 * ranks.count()];
    let place = &mut digits[2 * ranks.rank()..][..2];
    place[0] = own as f32;
    place[1] = (own - f64::from(place[0])) as f32;
    let mut all = backend.buffer(&digits);
    ranks.sum(backend, &mut all, 0..digits.len());
    let digits = backend.to_vec(&all);
    let digits = digits.as_chunks::<2>().0.iter();
    let numbers = digits.map(|[high, low]| f64::from(*high) + f64::from(*low));
    numbers.collect()
}

/// The sum of a number of each rank, in the order of ranks: the same to the bit on all. The bits of each travel
/// in a place of their own.
fn summed<B: Backend, P: Peers<B> + ?Sized>(
    peers: &mut P,
    ranks: usize,
    own: f64,
) -> Result<f64, P::Error> {
    let mut bits = vec![0; ranks];
    bits[peers.rank()] = own.to_bits();
    peers.count(&mut bits)?;
    Ok(bits.into_iter().map(f64::from_bits).sum())
}

/// The pictures of a pass, and their first row in the table.
fn of_pass<W: StepWork + ?Sized>(work: &W, pass: usize) -> (&Pictures, usize) {
    let pictures = work
        .pictures()
        .expect("a plan with passes is of work with pictures");
    let before = pictures.passes[..pass].iter().map(Pictures::tokens);
    (
        &pictures.passes[pass],
        pictures.first + before.sum::<usize>(),
    )
}

/// The loss of work over a micro-batch as an objective, which cannot fail: a failure is kept.
struct Fallible<'a, W: StepWork + ?Sized> {
    work: &'a mut W,
    micro: usize,
    counts: &'a [u64],
    failure: Option<W::Error>,
}

impl<W: StepWork + ?Sized> Objective for Fallible<'_, W> {
    fn evaluate(&mut self, scores: &TokenScores, gradients: &mut TokenGradients) -> f64 {
        let loss = self
            .work
            .evaluate(self.micro, self.counts, scores, gradients);
        loss.unwrap_or_else(|failure| {
            self.failure = Some(failure);
            0.0
        })
    }
}

#[cfg(test)]
mod tests;
