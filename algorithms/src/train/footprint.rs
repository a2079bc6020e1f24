//! The memory of a rank and what it sends in a step, by the settings alone.

use std::ops::Range;

use odeon_gpu::STATES_ALIGN;
use serde::{Deserialize, Serialize};

use super::TrainConfig;
use crate::model::{Model, ModelConfig, ModelPart, PartError, PartPlace, PartTensor, RankOf};

/// The way in which ranks train one model together. Ranks of a copy are neighbours, and of these tensor ranks; then
/// come context ranks, and then expert ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Copies of the model.
    pub copies: usize,
    /// Ranks of a copy that have some of the experts each, and samples of their own.
    pub experts: usize,
    /// Ranks that have some of the rows of a sequence each.
    pub context: usize,
    /// Ranks that have a part of each matrix.
    pub tensor: usize,
    /// Set where those that have the same parameters share the optimiser.
    pub optimizer: bool,
}

impl Sharing {
    /// One rank that has all.
    pub const ALONE: Self = Self {
        copies: 1,
        experts: 1,
        context: 1,
        tensor: 1,
        optimizer: false,
    };

    /// Ranks of a copy.
    #[must_use]
    pub const fn of_copy(&self) -> usize {
        self.experts * self.context * self.tensor
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.copies * self.of_copy()
    }

    /// Ranks with other samples or rows, and the same parameters but for experts.
    #[must_use]
    pub const fn data(&self) -> usize {
        self.copies * self.experts * self.context
    }

    /// The part of the model that a rank has.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub const fn place(&self, rank: usize) -> PartPlace {
        assert!(rank < self.ranks(), "a rank is one of all");
        PartPlace {
            tensor: RankOf::new(rank % self.tensor, self.tensor),
            experts: RankOf::new(
                rank / (self.tensor * self.context) % self.experts,
                self.experts,
            ),
        }
    }

    /// The place of a rank among those that have rows of the same sequences.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub const fn context_of(&self, rank: usize) -> RankOf {
        assert!(rank < self.ranks(), "a rank is one of all");
        RankOf::new(rank / self.tensor % self.context, self.context)
    }
}

/// The memory of a rank beside activations, and what it adds up and sends. Bytes are of numbers of four bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Names of the tensors, and the rank's part of each, in their order.
    pub tensors: Vec<(String, PartTensor)>,
    /// Bytes of its parameters.
    pub parameters: usize,
    /// Bytes of their gradients.
    pub gradients: usize,
    /// Bytes of what the optimiser keeps.
    pub optimizer: usize,
    /// Bytes that are added up in a step over the ranks with other samples or rows; 0 where there are no others.
    pub summed_over_data: usize,
    /// Bytes that are added up over all ranks in a step, since each has an addend of their gradient; 0 where each
    /// has whole matrices.
    pub summed_over_all: usize,
    /// Bytes of experts that are added up in a step over the ranks with the same ones; 0 where there are no others,
    /// or all have all.
    pub summed_over_experts: usize,
    /// Times that rows are added up over tensor ranks in a forward pass, each of which gets its share, and again in a
    /// backward pass. They are gathered as often.
    pub row_sums: usize,
    /// Bytes of a token's row in each of these.
    pub row: usize,
    /// Bytes of a predicted token that tensor ranks tell each other of their entries of the vocabulary, in a
    /// forward pass.
    pub vocabulary_row: usize,
    /// Bytes of a token that go to other context ranks in a forward pass, and again in a backward pass.
    pub context_row: usize,
    /// Bytes of a token that go to experts and back in a forward pass, and again in a backward pass. Those to experts
    /// of the same rank are among them.
    pub expert_row: usize,
}

impl Footprint {
    /// That of a rank.
    ///
    /// # Errors
    /// The model cannot be shared by so many.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of(
        config: &ModelConfig,
        train: &TrainConfig,
        sharing: Sharing,
        rank: usize,
    ) -> Result<Self, PartError> {
        let place = sharing.place(rank);
        let own = config.part(place)?;
        own.check_context(sharing.context)?;
        let (layout, _) = Model::<odeon_gpu::Cpu>::describe(&own);
        let (of_whole, _) = Model::<odeon_gpu::Cpu>::describe(config);
        let part = ModelPart::new(config.clone(), &of_whole, &layout, place);
        let names = layout.entries().iter().map(|entry| entry.name.clone());
        let kept = match sharing.optimizer {
            false => layout.len(),
            true => {
                let parts = train.optimizer.partition(&layout, sharing.data());
                let part = parts.part(rank / sharing.tensor);
                part.end - (part.start - part.start % STATES_ALIGN)
            }
        };
        let bytes = |numbers: usize| 4 * numbers;
        let len =
            |ranges: &[Range<usize>]| ranges.iter().map(ExactSizeIterator::len).sum::<usize>();
        let among = |ranks: usize, numbers| if ranks > 1 { bytes(numbers) } else { 0 };
        let ranges = part.ranges();
        let heads = own.heads + own.kv_heads.max(sharing.context);
        // Queries, keys and values there, and what is read back; of each the share of the other ranks.
        let exchanged = 2 * heads * own.head_dim / sharing.context * (sharing.context - 1);
        let taken = config.block.experts().map_or(0, |it| it.top);
        Ok(Self {
            tensors: names.zip(part.tensors().iter().cloned()).collect(),
            parameters: bytes(layout.len()),
            gradients: bytes(layout.len()),
            optimizer: bytes(kept) * train.optimizer.state().len(),
            summed_over_data: among(sharing.data(), len(&ranges.data)),
            summed_over_all: bytes(len(&ranges.everywhere)),
            summed_over_experts: among(sharing.copies * sharing.context, len(&ranges.experts)),
            // What is looked up, and two of each layer.
            row_sums: among(sharing.tensor, 1 + 2 * config.layers) / 4,
            row: bytes(config.dim),
            vocabulary_row: among(sharing.tensor, 3 * sharing.tensor),
            context_row: among(sharing.context, config.layers * exchanged),
            expert_row: among(sharing.experts, config.layers * 2 * taken * config.dim),
        })
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parameters + self.gradients + self.optimizer
    }
}
