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
//! Those marked with `x` are collectives: a plan has them where a rank trains with others, in one order on
//! all ranks, however many micro-batches and pictures each has.

use std::ops::Range;

use super::{Objective, TokenGradients, Trainer, Update};
use crate::model::{Batch, Pictures, TokenScores};
use odeon_gpu::{Backend, PassRanks};

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

/// Everything that the plan of a step follows from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Micro-batches of this rank.
    pub micro_batches: usize,
    /// Pictures that its micro-batches see, where they see any.
    pub pictures: Option<PictureShape>,
    /// Set where a rank trains with others that have other samples.
    pub has_peers: bool,
    /// Set where it has a part of each matrix.
    pub has_tensor_part: bool,
    /// Set where it has some of the experts.
    pub has_expert_part: bool,
    /// Set where others have the same of these.
    pub has_same_experts: bool,
    /// Set where it keeps a shard of the model.
    pub has_shard: bool,
    /// Set where others keep the same shard.
    pub has_replicas: bool,
    /// Set where it learns; else it rates only.
    pub learns: bool,
    /// Set where the loss is told of all ranks, and not of this rank's part.
    pub sums_loss: bool,
    /// Set where ranks share the optimiser.
    pub shares_optimizer: bool,
}

impl StepShape {
    /// The shape of this work, of a rank that has a model and an optimiser for itself.
    #[must_use]
    pub fn of<W: StepWork + ?Sized>(work: &W, has_peers: bool, learns: bool) -> Self {
        let pictures = work.pictures();
        Self {
            micro_batches: work.micro_batches(),
            pictures: pictures.map(|pictures| PictureShape {
                passes: pictures.passes.len(),
                is_shared: pictures.is_shared,
            }),
            has_peers,
            has_tensor_part: false,
            has_expert_part: false,
            has_same_experts: false,
            has_shard: false,
            has_replicas: false,
            learns,
            sums_loss: work.sums_loss(),
            shares_optimizer: false,
        }
    }
}

/// Pictures in the plan of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PictureShape {
    /// Passes of the encoder over the pictures of this rank.
    pub passes: usize,
    /// Set where each rank encodes a part of what all ranks see.
    pub is_shared: bool,
}

/// A part of a step. Numbers are those of micro-batches and of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepOperation {
    /// Adds up over the ranks what losses are divided by.
    Count,
    /// Encodes the pictures of a pass.
    Encode(usize),
    /// Adds up features over the ranks, so that each has those of all.
    SumFeatures,
    /// Computes the loss over a micro-batch.
    Forward(usize),
    /// Computes the loss over a micro-batch and adds its gradient.
    Accumulate(usize),
    /// Adds up the gradients of features over the ranks.
    SumFeatureGradients,
    /// Takes the gradient of features back through the pictures of a pass.
    AccumulateEncoder(usize),
    /// Adds up the gradients of what every rank has whole over all ranks, of which each has an addend.
    SumPartialGradients,
    /// Adds up the gradients of parameters over the ranks that have the same.
    SumGradients,
    /// The same of experts of which ranks have some each.
    SumExpertGradients,
    /// The same, but each rank has the sums of its part alone, and the norm of all.
    ScatterGradients,
    /// Adds up the gradients of a shard over the ranks that keep the same.
    SumReplicas,
    /// Adds up the squares of the gradient over the ranks that share the model.
    SumSquares,
    /// Changes the parameters: those of this rank's part.
    Apply,
    /// Gives each rank's part of the parameters to all.
    GatherParameters,
    /// Adds up losses over the ranks.
    SumLoss,
}

impl StepOperation {
    /// True where it waits for the other ranks.
    #[must_use]
    pub const fn is_collective(self) -> bool {
        matches!(
            self,
            Self::Count
                | Self::SumFeatures
                | Self::SumFeatureGradients
                | Self::SumPartialGradients
                | Self::SumGradients
                | Self::SumExpertGradients
                | Self::SumSquares
                | Self::ScatterGradients
                | Self::SumReplicas
                | Self::GatherParameters
                | Self::SumLoss
        )
    }
}

/// The operations of a step, in their order.
#[must_use]
pub fn plan(shape: &StepShape) -> Vec<StepOperation> {
    let &StepShape {
        micro_batches,
        pictures,
        has_peers,
        has_tensor_part,
        has_expert_part,
        has_same_experts,
        has_shard,
        has_replicas,
        learns,
        sums_loss,
        shares_optimizer,
    } = shape;
    let passes = pictures.map_or(0, |pictures| pictures.passes);
    let shares = has_peers && pictures.is_some_and(|pictures| pictures.is_shared);
    let one = |is_there: bool, operation| is_there.then_some(operation);
    let micro = match learns {
        true => StepOperation::Accumulate,
        false => StepOperation::Forward,
    };
    let gradients = match shares_optimizer {
        true => StepOperation::ScatterGradients,
        false => StepOperation::SumGradients,
    };
    // Passes add up the gradients of shards.
    let adds_up = learns && !has_shard;
    one(has_peers, StepOperation::Count)
        .into_iter()
        .chain((0..passes).map(StepOperation::Encode))
        .chain(one(shares, StepOperation::SumFeatures))
        .chain((0..micro_batches).map(micro))
        .chain(one(shares && learns, StepOperation::SumFeatureGradients))
        .chain(
            (0..passes)
                .filter(|_| learns)
                .map(StepOperation::AccumulateEncoder),
        )
        .chain(one(
            has_tensor_part && adds_up,
            StepOperation::SumPartialGradients,
        ))
        .chain(one(has_peers && adds_up, gradients))
        .chain(one(
            has_same_experts && adds_up,
            StepOperation::SumExpertGradients,
        ))
        .chain(one(has_replicas && learns, StepOperation::SumReplicas))
        .chain(one(
            (has_tensor_part || has_expert_part || has_shard) && learns,
            StepOperation::SumSquares,
        ))
        .chain(one(learns, StepOperation::Apply))
        .chain(one(
            has_peers && learns && shares_optimizer,
            StepOperation::GatherParameters,
        ))
        .chain(one(has_peers && sums_loss, StepOperation::SumLoss))
        .collect()
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
    /// The change of the parameters, where there was one.
    pub update: Option<Update>,
    /// Floating point operations of this rank, as the shape of the model asks for them.
    pub flops: f64,
    /// The counts of all ranks.
    pub counts: Vec<u64>,
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
            if operation == StepOperation::SumSquares {
                carried.squares = Some(self.squares_of_all());
            }
            after(operation)?;
            if operation == StepOperation::Count && !work.is_wanted(&outcome.counts) {
                break;
            }
        }
        Ok(outcome)
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
                let mut sum = [outcome.loss as f32];
                peers.sum(&mut sum)?;
                outcome.loss = f64::from(sum[0]);
                Ok(())
            }
            StepOperation::SumSquares
            | StepOperation::Encode(_)
            | StepOperation::Forward(_)
            | StepOperation::Accumulate(_)
            | StepOperation::AccumulateEncoder(_)
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
                let scores = self.logprobs_seeing(&batch, &carried.features);
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
            }
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

    /// The sum of the squares of the gradient over all parts or shards, the same to the bit on all.
    fn squares_of_all(&mut self) -> f64 {
        let own = self.told_squares();
        let model = self.model();
        let groups = match model.shard() {
            Some(_) => [model.widest_shard_ranks(), None],
            None => [model.shared().map(|(_, ranks)| ranks), model.expert_ranks()],
        };
        groups.into_iter().flatten().fold(own, |own, ranks| {
            squares_of(ranks.as_ref(), model.backend(), own)
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

/// The sum of the squares that each rank has. Its root travels in two numbers, which have its digits.
fn squares_of<B: Backend>(ranks: &dyn PassRanks<B>, backend: &B, own: f64) -> f64 {
    let own = own.sqrt();
    let mut norms = vec![0.0; 2 * ranks.count()];
    let digits = &mut norms[2 * ranks.rank()..][..2];
    digits[0] = own as f32;
    digits[1] = (own - f64::from(digits[0])) as f32;
    let mut all = backend.buffer(&norms);
    ranks.sum(backend, &mut all, 0..norms.len());
    let norms = backend.to_vec(&all);
    let norms = norms.as_chunks::<2>().0.iter();
    let norms = norms.map(|[high, low]| f64::from(*high) + f64::from(*low));
    norms.map(|norm| norm * norm).sum()
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
