//! The operations of a step, by its shape alone.

use odeon_replay::PassKind;

use super::StepWork;
use crate::model::StagePlace;
use crate::train::{PipelineShape, StagePass};

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
    /// The pipeline, where it has some of the layers.
    pub pipeline: Option<PipelineShape>,
    /// Set where it learns; else it rates only.
    pub learns: bool,
    /// Set where the loss is told of all ranks, and not of this rank's part.
    pub sums_loss: bool,
    /// Set where ranks share the optimiser.
    pub shares_optimizer: bool,
    /// Set where it looks at its own gradient.
    pub is_guarded: bool,
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
            pipeline: None,
            learns,
            sums_loss: work.sums_loss(),
            shares_optimizer: false,
            is_guarded: false,
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
    /// Computes a stage of a micro-batch, to go back later.
    StageForward(StagePass),
    /// Takes it back, and adds the gradient of its parameters.
    StageBackward(StagePass),
    /// Takes it back as far as the stage before waits for it: the gradients of its rows.
    StageBackwardInput(StagePass),
    /// Adds the gradient of its parameters that is left then.
    StageBackwardWeight(StagePass),
    /// Computes a stage of a micro-batch that nobody learns from.
    StageRate(StagePass),
    /// Adds up the gradients of features over the ranks.
    SumFeatureGradients,
    /// Takes the gradient of features back through the pictures of a pass.
    AccumulateEncoder(usize),
    /// Looks at the gradient that the passes of this rank have left.
    LookAtGradient,
    /// Adds up the gradients of what every rank has whole over all ranks, of which each has an addend.
    SumPartialGradients,
    /// Adds up the gradients of parameters over the ranks that have the same.
    SumGradients,
    /// The same of experts of which ranks have some each.
    SumExpertGradients,
    /// Adds up the gradient of an embedding that is the head, too, over the two pipeline ranks that have it.
    SumTied,
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
        pipeline,
        learns,
        sums_loss,
        shares_optimizer,
        is_guarded,
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
        .chain((0..micro_batches).filter(|_| pipeline.is_none()).map(micro))
        .chain(
            pipeline
                .into_iter()
                .flat_map(|it| stage_passes(it, micro_batches, learns)),
        )
        .chain(one(shares && learns, StepOperation::SumFeatureGradients))
        .chain(
            (0..passes)
                .filter(|_| learns)
                .map(StepOperation::AccumulateEncoder),
        )
        .chain(one(learns && is_guarded, StepOperation::LookAtGradient))
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
            pipeline.is_some_and(|it| it.has_tied) && learns,
            StepOperation::SumTied,
        ))
        .chain(one(
            (has_tensor_part || has_expert_part || has_shard || pipeline.is_some()) && learns,
            StepOperation::SumSquares,
        ))
        .chain(one(learns, StepOperation::Apply))
        .chain(one(
            has_peers && learns && shares_optimizer,
            StepOperation::GatherParameters,
        ))
        .chain(one(
            (has_peers || pipeline.is_some()) && sums_loss,
            StepOperation::SumLoss,
        ))
        .collect()
}

/// The passes of a pipeline rank.
fn stage_passes(pipeline: PipelineShape, micro_batches: usize, learns: bool) -> Vec<StepOperation> {
    let StagePlace { rank, chunks, .. } = pipeline.place;
    if !learns {
        let all = (0..micro_batches).flat_map(|micro| {
            (0..chunks).map(move |chunk| StepOperation::StageRate(StagePass { micro, chunk }))
        });
        return all.collect();
    }
    if micro_batches == 0 {
        return vec![];
    }
    let schedule = pipeline.kind.schedule(rank.ranks, chunks, micro_batches);
    let passes = schedule.ranks()[rank.rank].iter().map(|pass| {
        let of = StagePass {
            micro: pass.micro_batch,
            chunk: pass.chunk,
        };
        match pass.kind {
            PassKind::Forward => StepOperation::StageForward(of),
            PassKind::Backward => StepOperation::StageBackward(of),
            PassKind::BackwardInput => StepOperation::StageBackwardInput(of),
            PassKind::BackwardWeight => StepOperation::StageBackwardWeight(of),
        }
    });
    passes.collect()
}
