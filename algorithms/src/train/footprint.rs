//! The memory of a rank and the sums of a step, by the settings alone.

use odeon_gpu::STATES_ALIGN;

use super::TrainConfig;
use crate::model::{Model, ModelConfig, ModelPart, PartError, PartTensor};

/// The way in which ranks train one model together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Copies of the model, each with samples of its own.
    pub copies: usize,
    /// Ranks that share each copy.
    pub tensor: usize,
    /// Set where the copies share the optimiser.
    pub optimizer: bool,
}

/// The memory of a rank beside activations, and the sums that it takes part in. Bytes are of numbers of four bytes.
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
    /// Bytes that are added up over the copies in a step; 0 with one copy.
    pub summed_over_copies: usize,
    /// Bytes that are added up over all ranks in a step, since each has an addend of their gradient; 0 where each
    /// has a whole model.
    pub summed_over_all: usize,
    /// Times that rows are added up over the ranks of a copy in a forward pass, and again in a backward pass.
    pub row_sums: usize,
    /// Bytes of a token's row in each of these.
    pub row: usize,
    /// Bytes of a predicted token that ranks of a copy tell each other of their entries of the vocabulary, in a
    /// forward pass.
    pub vocabulary_row: usize,
}

impl Footprint {
    /// That of a rank: copy by copy, from 0, each rank after the other.
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
        let Sharing { copies, tensor, .. } = sharing;
        assert!(rank < copies * tensor, "rank {rank} of {}", copies * tensor);
        let (copy, rank) = (rank / tensor, rank % tensor);
        let own = config.part(rank, tensor)?;
        let (layout, _) = Model::<odeon_gpu::Cpu>::describe(&own);
        let (of_whole, _) = Model::<odeon_gpu::Cpu>::describe(config);
        let part = ModelPart::new(config.clone(), &of_whole, &layout, rank, tensor);
        let names = layout.entries().iter().map(|entry| entry.name.clone());
        let kept = match sharing.optimizer {
            false => layout.len(),
            true => {
                let part = train.optimizer.partition(&layout, copies).part(copy);
                part.end - (part.start - part.start % STATES_ALIGN)
            }
        };
        let in_all: usize = part.whole_ranges().iter().map(ExactSizeIterator::len).sum();
        let bytes = |numbers: usize| 4 * numbers;
        let where_shared = |number: usize| if tensor > 1 { number } else { 0 };
        Ok(Self {
            tensors: names.zip(part.tensors().iter().cloned()).collect(),
            parameters: bytes(layout.len()),
            gradients: bytes(layout.len()),
            optimizer: bytes(kept) * train.optimizer.state().len(),
            summed_over_copies: if copies > 1 { bytes(layout.len()) } else { 0 },
            summed_over_all: where_shared(bytes(in_all)),
            // What is looked up, and two of each layer.
            row_sums: where_shared(1 + 2 * config.layers),
            row: bytes(config.dim),
            vocabulary_row: where_shared(bytes(3 * tensor)),
        })
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parameters + self.gradients + self.optimizer
    }
}
