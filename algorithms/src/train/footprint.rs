//! The memory of a rank and what it sends in a step, by the settings alone.

use std::ops::Range;

use odeon_gpu::Precision;
use odeon_mesh::{CP, DP, EP, FSDP, Mesh, MeshError, PP, TP};
use serde::{Deserialize, Serialize};

use super::{ActivationBytes, Holding, PipelineKind, TrainConfig};
use crate::model::{
    ContextKind, Model, ModelConfig, ModelPart, ModelShard, PartError, PartPlace, PartTensor,
    RankOf, ShardPlace, StageLayers, StagePlace,
};

/// The states of training of which ranks with the same parameters keep a share each (ZeRO, arXiv
/// [1910.02054](https://arxiv.org/abs/1910.02054)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum ZeroStage {
    /// None: each keeps all.
    #[default]
    Off,
    /// What the optimiser keeps (stage 1).
    Optimizer,
    /// The same, gradients, and parameters but for a step's passes, in which they are gathered once (stage 2).
    Gradients,
    /// The same, and each pass gathers the parameters of a layer for its operations alone (stage 3).
    Parameters,
}

impl ZeroStage {
    /// The stage of this number.
    #[must_use]
    pub const fn numbered(stage: u8) -> Option<Self> {
        Some(match stage {
            0 => Self::Off,
            1 => Self::Optimizer,
            2 => Self::Gradients,
            3 => Self::Parameters,
            _ => return None,
        })
    }

    /// True where ranks keep [shards](crate::model::ModelShard) of the parameters.
    #[must_use]
    pub const fn has_shards(self) -> bool {
        matches!(self, Self::Gradients | Self::Parameters)
    }
}

/// The way in which ranks train one model together. Ranks of a copy are neighbours, and of these tensor ranks; then
/// come context ranks, then pipeline ranks, and then expert ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Copies of the model.
    pub copies: usize,
    /// Ranks of a copy that have some of the experts each, and samples of their own.
    pub experts: usize,
    /// Ranks of a copy that have some of the rows of a sequence each.
    pub context: usize,
    /// The way in which these attend to each other's rows.
    pub context_kind: ContextKind,
    /// Ranks of a copy that have a part of each matrix.
    pub tensor: usize,
    /// Ranks of a copy that have some of the layers each.
    pub stages: usize,
    /// Stages of each of these.
    pub chunks: usize,
    /// Layers of each stage, where they are not as many as of any other or one more.
    pub layers: Option<StageLayers>,
    /// The order of their passes.
    pub schedule: PipelineKind,
    /// The states that those with the same parameters share.
    pub zero: ZeroStage,
    /// Neighbouring copies that keep one set of shards together (hybrid sharding), where the stage has shards; `None`:
    /// all of them.
    pub shards: Option<usize>,
    /// To what parameters are rounded before passes read them. Shards are gathered so, and what is whole has a rounded
    /// copy; what is changed is f32.
    #[serde(default)]
    pub params: Precision,
    /// Layers of shards that are gathered while one is computed, and of which gradients are added up meanwhile; at least
    /// one.
    #[serde(default = "one")]
    pub ahead: usize,
}

/// Layers that are gathered ahead where nothing else is said.
const fn one() -> usize {
    Sharing::ALONE.ahead
}

impl Sharing {
    /// One rank that has all.
    pub const ALONE: Self = Self {
        copies: 1,
        experts: 1,
        context: 1,
        context_kind: ContextKind::Ulysses,
        tensor: 1,
        stages: 1,
        chunks: 1,
        layers: None,
        schedule: PipelineKind::OneForwardOneBackward,
        zero: ZeroStage::Off,
        shards: None,
        params: Precision::F32,
        ahead: 1,
    };

    /// Copies that keep one set of shards together; 1 where there are no shards.
    #[must_use]
    pub const fn copies_of_shards(&self) -> usize {
        match (self.zero.has_shards(), self.shards) {
            (false, _) => 1,
            (true, Some(copies)) if copies < self.copies => copies,
            (true, _) => self.copies,
        }
    }

    /// Groups of ranks of which each keeps all shards; 1 where there are none.
    #[must_use]
    pub const fn replicas(&self) -> usize {
        match self.zero.has_shards() {
            false => 1,
            true => self.copies / self.copies_of_shards(),
        }
    }

    /// The place of a rank among those that keep shards; `None` where there are none.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub const fn shard_place(&self, rank: usize) -> Option<ShardPlace> {
        assert!(rank < self.ranks(), "a rank is one of all");
        if !self.zero.has_shards() {
            return None;
        }
        let copies = self.copies_of_shards();
        let copy = rank / self.of_copy() % copies;
        let (place, context) = (self.place(rank), self.context_of(rank).rank);
        let data = (copy * self.experts + place.experts.rank) * self.context + context;
        let of_data = copies * self.experts * self.context;
        Some(ShardPlace {
            everywhere: match self.tensor {
                1 => RankOf::ALONE,
                tensor => RankOf::new(data * tensor + place.tensor.rank, of_data * tensor),
            },
            data: RankOf::new(data, of_data),
            experts: match self.experts {
                1 => RankOf::ALONE,
                _ => RankOf::new(copy * self.context + context, copies * self.context),
            },
        })
    }

    /// Ranks of a copy.
    #[must_use]
    pub const fn of_copy(&self) -> usize {
        self.experts * self.stages * self.context * self.tensor
    }

    /// The mesh of the ranks. Copies that keep one set of shards together have a dimension of their own. A dimension that
    /// has one place is left out, unless it is that of copies.
    ///
    /// # Errors
    /// There are no ranks, or too many.
    pub fn mesh(&self) -> Result<Mesh, MeshError> {
        let of_shards = self.copies_of_shards();
        let within = [
            (FSDP, of_shards),
            (EP, self.experts),
            (PP, self.stages),
            (CP, self.context),
            (TP, self.tensor),
        ];
        let within = within.into_iter().filter(|(_, size)| *size > 1);
        Mesh::new(std::iter::once((DP, self.copies / of_shards)).chain(within))
    }

    /// Ranks of a copy with the same layers and experts.
    #[must_use]
    pub const fn of_stage(&self) -> usize {
        self.context * self.tensor
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
                rank / (self.tensor * self.context * self.stages) % self.experts,
                self.experts,
            ),
            stage: StagePlace {
                rank: RankOf::new(
                    rank / (self.tensor * self.context) % self.stages,
                    self.stages,
                ),
                chunks: self.chunks,
                layers: self.layers,
            },
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

/// The memory of a rank, and what it adds up and sends. Bytes are of numbers of four bytes, and of two where parameters
/// are gathered in bf16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Names of the tensors, and the rank's part of each, in their order.
    pub tensors: Vec<(String, PartTensor)>,
    /// Bytes of its parameters.
    pub parameters: usize,
    /// Bytes of their gradients.
    pub gradients: usize,
    /// Bytes of what the optimiser keeps from step to step: moments, and of Muon also room for its products.
    pub optimizer: usize,
    /// Bytes of parameters that are gathered for operations, and of their gradients; of a rank without shards those of
    /// rounded parameters, and 0 where it rounds none.
    pub gathered: usize,
    /// Bytes of activations and of their gradients; `None` where [nobody](super::MicroBatches::activations) has said.
    pub activations: Option<usize>,
    /// Bytes of activations that wait in memory of the host; 0 where none leave the device, or nobody has said.
    pub offloaded: usize,
    /// Bytes that this rank receives of others' shards in a forward pass, and again in a backward pass where these
    /// do not stay.
    pub gathered_of_others: usize,
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
    /// Bytes of a token that go to other context ranks in a forward pass.
    pub context_row: usize,
    /// Bytes of a token that go to other context ranks in a backward pass.
    pub context_row_back: usize,
    /// Bytes of a token that go to experts and back in a forward pass, and again in a backward pass. Those to experts
    /// of the same rank are among them.
    pub expert_row: usize,
    /// Bytes of a token's rows that go to other stages in a forward pass; as many of gradients come back in a backward
    /// pass.
    pub stage_row: usize,
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
        own.check_context(sharing.context_kind, sharing.context)?;
        let (layout, _) = Model::<odeon_gpu::Cpu>::describe(&own);
        let (of_whole, _) = Model::<odeon_gpu::Cpu>::describe(config);
        let part = ModelPart::new(config.clone(), &of_whole, &layout, place);
        let names = layout.entries().iter().map(|entry| entry.name.clone());
        let place = sharing.shard_place(rank);
        if let Some(place) = place {
            config.check_shards(place.data.ranks)?;
        }
        let layers = config.layers;
        let rows = train.optimizer.rows_together();
        let shard =
            place.map(|place| ModelShard::new(&layout, part.ranges(), layers, (place, rows)));
        let held = shard.as_ref().map_or(layout.len(), |it| it.layout().len());
        let holding = match (&shard, sharing.zero) {
            (Some(shard), _) => Holding::of_shard(shard, &layout),
            (None, ZeroStage::Optimizer) => {
                let parts = train.optimizer.partition(&layout, sharing.data());
                Holding::of_part(&layout, parts.part(rank / sharing.tensor))
            }
            (None, _) => Holding::of_part(&layout, 0..held),
        };
        let bytes = |numbers: usize| 4 * numbers;
        let len =
            |ranges: &[Range<usize>]| ranges.iter().map(ExactSizeIterator::len).sum::<usize>();
        let among = |ranks: usize, numbers| if ranks > 1 { bytes(numbers) } else { 0 };
        let ranges = part.ranges();
        // Of shards a replica has the sums, and these are added up over replicas.
        let summed = |ranks, numbers| match &shard {
            None => among(ranks, numbers),
            Some(_) => 0,
        };
        let of_replicas = among(sharing.replicas(), held);
        let all = shard.as_ref().map_or(0, ModelShard::gathered);
        let sent = sharing.context_kind.sent(own.attention(), sharing.context);
        let layers = own
            .own_layers()
            .into_iter()
            .map(|it| it.len())
            .sum::<usize>();
        let [context_row, context_row_back] = sent.map(|it| bytes(layers * it));
        // Behind each of its stages but the last of all.
        let sends = sharing.chunks - usize::from(own.scores());
        let taken = config.block.experts().map_or(0, |it| it.top);
        Ok(Self {
            tensors: names.zip(part.tensors().iter().cloned()).collect(),
            parameters: bytes(held),
            gradients: bytes(held),
            optimizer: train.optimizer.bytes(&holding),
            gathered: match (&shard, sharing.params) {
                (Some(shard), _) => gathered(shard, sharing),
                (None, Precision::F32) => 0,
                (None, _) => bytes(held),
            },
            activations: None,
            offloaded: 0,
            gathered_of_others: formatted(sharing, all.saturating_sub(held)),
            summed_over_data: summed(sharing.data(), len(&ranges.data)) + of_replicas,
            summed_over_all: summed(sharing.tensor, len(&ranges.everywhere)),
            summed_over_experts: summed(sharing.copies * sharing.context, len(&ranges.experts)),
            // What is looked up, and two of each layer.
            row_sums: among(sharing.tensor, usize::from(own.embeds()) + 2 * layers) / 4,
            row: bytes(config.row()),
            vocabulary_row: among(sharing.tensor, 3 * sharing.tensor),
            context_row,
            context_row_back,
            expert_row: among(sharing.experts, layers * 2 * taken * config.dim),
            stage_row: among(sharing.stages, sends * config.row()) / sharing.tensor,
        })
    }

    /// The same with its [activations](super::MicroBatches::activations), where they are known.
    #[must_use]
    pub fn with_activations(self, known: Option<ActivationBytes>) -> Self {
        Self {
            activations: known.map(|it| it.device),
            offloaded: known.map_or(0, |it| it.host),
            ..self
        }
    }

    /// Bytes of the device in all, as far as they are known.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let kept = self.parameters + self.gradients + self.optimizer;
        kept + self.gathered + self.activations.unwrap_or(0)
    }
}

/// Bytes of so many parameters as they are gathered.
const fn formatted(sharing: Sharing, numbers: usize) -> usize {
    match sharing.params {
        Precision::Bf16 => 2 * numbers,
        _ => 4 * numbers,
    }
}

/// Bytes of a shard's units that are gathered for operations, and of their gradients.
fn gathered(shard: &ModelShard, sharing: Sharing) -> usize {
    let (unit, all) = (shard.longest_unit(), shard.gathered());
    // No more can be on their way than the others there are.
    let ahead = sharing.ahead.min(shard.units().saturating_sub(1));
    let stay = sharing.zero == ZeroStage::Gradients;
    // Gradients of a layer, and those that are added up.
    let gradients = (1 + ahead) * unit;
    // Its parameters, and those that come.
    let parameters = (1 + ahead) * unit;
    match sharing.params {
        Precision::F32 => 4 * (gradients + if stay { all } else { parameters }),
        // In this format is what comes or stays, with this rank's own.
        _ => {
            let coming = if stay { all } else { ahead * unit };
            let own = ahead * shard.longest_own();
            4 * (gradients + parameters) + formatted(sharing, coming + own)
        }
    }
}
