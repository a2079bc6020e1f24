//! A plan of training: how many cards do what, and what it cannot be.

use odeon_mesh::{Mesh, MeshError};
use serde::Serialize;

use super::super::CostError;
use super::{Machine, TrainedModel};

/// The states of a model that replicas share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shared {
    /// None: each has all (ZeRO 0).
    Nothing,
    /// The optimiser's (ZeRO 1).
    Optimizer,
    /// All of them: parameters are gathered layer by layer (ZeRO 3, FSDP).
    All,
}

/// The part of the forward pass that is computed again on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recomputed {
    /// Nothing.
    Nothing,
    /// Every other product, and what is between products: selective checkpointing by operation of torchtitan.
    Half,
    /// All of it.
    Layers,
}

/// A model's training on many cards, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TrainingPlan {
    /// Cards.
    pub cards: u32,
    /// Cards of a tensor group, with sequence parallelism between products.
    pub tensor: u32,
    /// Stages of a pipeline.
    pub pipeline: u32,
    /// Chunks of layers of each stage.
    pub chunks: u32,
    /// Sequences of a step.
    pub batch: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// The states that replicas share.
    pub shared: Shared,
    /// The part that is computed again.
    pub recomputed: Recomputed,
}

impl Default for TrainingPlan {
    /// One card with one sequence of 2,048 tokens.
    fn default() -> Self {
        Self {
            cards: 1,
            tensor: 1,
            pipeline: 1,
            chunks: 1,
            batch: 1,
            sequence: 2_048,
            micro_batch: 1,
            shared: Shared::Optimizer,
            recomputed: Recomputed::Nothing,
        }
    }
}

/// A plan that cannot be. Nothing was simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingPlanError {
    /// A number of the plan is 0.
    #[error("{0} is 0: give 1 at least")]
    Zero(&'static str),
    /// A number of the plan is larger than anything that is simulated.
    #[error("{what} is {number}: at most {most} are simulated")]
    TooMany {
        /// The number's name.
        what: &'static str,
        /// The number.
        number: u64,
        /// The largest.
        most: u64,
    },
    /// Something cannot be divided evenly.
    #[error("{whole} {of} cannot be divided evenly among {parts} {among}: {advice}")]
    Uneven {
        /// The number that is divided.
        whole: u64,
        /// The things that are divided.
        of: &'static str,
        /// The number of parts.
        parts: u64,
        /// The parts.
        among: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A tensor group is larger than a machine.
    #[error(
        "a tensor group of {tensor} cards does not fit into a machine of {cards}: give {cards} at most"
    )]
    Tensor {
        /// Cards of the group.
        tensor: u32,
        /// Cards of a machine.
        cards: u32,
    },
    /// Parameters are gathered layer by layer in a pipeline.
    #[error(
        "sharing all states in a pipeline of {0} stages is not simulated: share the optimiser alone, or give one stage"
    )]
    SharedInPipeline(u32),
    /// States and activations do not fit.
    #[error(
        "{model} needs {needed:.1} GB on each {card}, which has {there:.1} GB: give more cards, larger tensor groups or \
         pipelines, smaller micro-batches, or compute more again"
    )]
    Memory {
        /// The model.
        model: String,
        /// The card.
        card: String,
        /// Gigabytes that are needed.
        needed: f64,
        /// Gigabytes that there are.
        there: f64,
    },
    /// A number of the model or the card has no sense.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The ranks make no mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The pipeline's schedule is refused.
    #[error(transparent)]
    Schedule(#[from] odeon_replay::ScheduleError),
    /// The encoder cannot be run in the bubbles of the step.
    #[error(transparent)]
    Bubble(#[from] odeon_replay::BubbleError),
    /// The graph of a step is refused.
    #[error(transparent)]
    Graph(#[from] odeon_replay::GraphError),
}

impl TrainingPlan {
    /// Replicas of the model; 0 where the cards are too few for one.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        let ranks = u64::from(self.tensor) * u64::from(self.pipeline);
        // Never more than there are cards.
        (u64::from(self.cards) / ranks.max(1)) as u32
    }

    /// Micro-batches of each replica in a step.
    #[must_use]
    pub fn micro_batches(&self) -> u64 {
        let at_once = u64::from(self.replicas()).saturating_mul(self.micro_batch);
        self.batch / at_once.max(1)
    }

    /// The ranks: neighbours are in one tensor group, then come replicas, then stages.
    ///
    /// # Errors
    /// The numbers make no mesh.
    pub fn mesh(&self) -> Result<Mesh, MeshError> {
        let dims = [
            (odeon_mesh::PP, self.pipeline),
            (odeon_mesh::DP, self.replicas()),
            (odeon_mesh::TP, self.tensor),
        ];
        Mesh::new(dims.map(|(name, size)| (name, size as usize)))
    }

    /// Machines that it takes.
    #[must_use]
    pub fn machines(&self, machine: &Machine) -> f64 {
        (f64::from(self.cards) / f64::from(machine.cards())).max(1.0)
    }

    /// Checks that the model can be trained so, but for memory.
    pub(super) fn check(
        &self,
        machine: &Machine,
        model: &TrainedModel,
    ) -> Result<(), TrainingPlanError> {
        machine.card.check()?;
        model.size.check()?;
        let numbers = [
            ("the number of cards", u64::from(self.cards), CARDS_MAX),
            ("the tensor group", u64::from(self.tensor), CARDS_MAX),
            ("the number of stages", u64::from(self.pipeline), STAGES_MAX),
            ("the number of chunks", u64::from(self.chunks), STAGES_MAX),
            ("the batch", self.batch, BATCH_MAX),
            ("the sequence", self.sequence, BATCH_MAX),
            ("the micro-batch", self.micro_batch, BATCH_MAX),
        ];
        for (what, number, most) in numbers {
            if number == 0 {
                return Err(TrainingPlanError::Zero(what));
            }
            if number > most {
                return Err(TrainingPlanError::TooMany { what, number, most });
            }
        }
        if self.tensor > machine.cards() {
            let (tensor, cards) = (self.tensor, machine.cards());
            return Err(TrainingPlanError::Tensor { tensor, cards });
        }
        if self.shared == Shared::All && self.pipeline > 1 {
            return Err(TrainingPlanError::SharedInPipeline(self.pipeline));
        }
        self.check_divisions(machine, model)?;
        let passes = self.micro_batches() * u64::from(self.chunks) * u64::from(self.pipeline);
        let layers = match self.shared {
            Shared::All => model.size.layers,
            _ => 1,
        };
        let number = passes.saturating_mul(layers);
        if number > PASSES_MAX {
            let what = "the number of passes of a step's micro-batches through all chunks";
            let most = PASSES_MAX;
            return Err(TrainingPlanError::TooMany { what, number, most });
        }
        Ok(())
    }

    fn check_divisions(
        &self,
        machine: &Machine,
        model: &TrainedModel,
    ) -> Result<(), TrainingPlanError> {
        let tensor = u64::from(self.tensor);
        let ranks = tensor * u64::from(self.pipeline);
        let cards = u64::from(self.cards);
        let size = &model.size;
        even(
            cards,
            "cards",
            ranks,
            "ranks of a replica",
            "give a multiple",
        )?;
        if self.cards > machine.cards() {
            let whole = "take whole machines";
            even(
                cards,
                "cards",
                machine.cards().into(),
                "cards of a machine",
                whole,
            )?;
            let inside = "take a power of two";
            even(
                machine.cards().into(),
                "cards of a machine",
                tensor,
                "cards of a tensor group",
                inside,
            )?;
        }
        let fewer = "give fewer cards to a tensor group";
        even(
            size.heads,
            "heads",
            tensor,
            "cards of a tensor group",
            fewer,
        )?;
        even(
            size.kv_heads,
            "key-value heads",
            tensor,
            "cards of a tensor group",
            fewer,
        )?;
        even(
            size.ffn,
            "inner columns",
            tensor,
            "cards of a tensor group",
            fewer,
        )?;
        let chunks = u64::from(self.pipeline) * u64::from(self.chunks);
        let other = "give other numbers of stages or chunks";
        even(size.layers, "layers", chunks, "chunks of all stages", other)?;
        let replicas = u64::from(self.replicas()).saturating_mul(self.micro_batch);
        let batch = "give a batch that is a multiple of replicas times the micro-batch";
        even(
            self.batch,
            "sequences of a batch",
            replicas,
            "micro-batches of all replicas",
            batch,
        )
    }
}

fn even(
    whole: u64,
    of: &'static str,
    parts: u64,
    among: &'static str,
    advice: &'static str,
) -> Result<(), TrainingPlanError> {
    if whole > 0 && whole.is_multiple_of(parts) {
        return Ok(());
    }
    Err(TrainingPlanError::Uneven {
        whole,
        of,
        parts,
        among,
        advice,
    })
}

/// Ten times the cards of the largest run that a paper tells.
const CARDS_MAX: u64 = 131_072;

const STAGES_MAX: u64 = 1_024;

/// Sequences of a batch, and tokens of one.
const BATCH_MAX: u64 = 1 << 27;

/// Passes that are replayed within seconds.
const PASSES_MAX: u64 = 1_000_000;
