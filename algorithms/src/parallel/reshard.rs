//! From training to generation on the same ranks, and back.

use odeon_mesh::{DP, Mesh, MeshError, PP, TP};
use serde::{Deserialize, Serialize};

use super::{
    grouping::{Grouping, Groups},
    holders::{Gap, Holder, Holders},
    region::Region,
    shard::{CutError, Part, Shards},
    spec::ModelSpec,
    transfer::Transfer,
};

/// A method to bring parameters from training to generation (HybridFlow, arXiv 2409.19256).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// DeepSpeed-Chat: in training each of the `N` ranks has a flat range of the model
    /// ([`ModelSpec::flat`]). All ranks gather all of it, and cut out what they generate with.
    /// Usual grouping.
    DeepSpeedChat,
    /// The baseline of HybridFlow: all ranks of a training replica gather all of the model, and cut
    /// out what they generate with. Usual grouping.
    HybridFlowV,
    /// HybridFlow: ranks gather what they generate with, and no more, inside of their micro-data
    /// group. Strided grouping.
    HybridFlow,
}

/// One model between a training and a generation layout.
///
/// With `M` bytes of parameters, all stages alike, and each tensor cut evenly or whole, each rank
/// has these bytes, exactly. `N` are all ranks, `S = t p` and `S_g = t_g p_g`; with `W = W_g = 0`
/// it is table 2 of HybridFlow.
///
/// | | received | peak | redundant |
/// | --- | --- | --- | --- |
/// | DeepSpeed-Chat | `M (N - 1) / N` | `M` | `M / N` |
/// | HybridFlow-V | `M (S - 1) / S - W` | `M` | `M / S + W` |
/// | HybridFlow | `M (S - S_g) / (S_g S) - W + W_g` | `M / S_g + W_g` | `0` |
///
/// `W` is what a training shard has beyond `M / S`, since several tensor ranks have the same: with
/// `R` bytes of whole tensors, and `K` of tensors cut into `k` heads where `k` divides `t`,
/// `W = (R (t - 1) + K (t / k - 1)) / S`. `W_g` is the same of a generation shard, with `t_g` and
/// `S_g`.
///
/// A model whose stages are not alike (an embedding in the first) has other numbers on each rank;
/// those of a [`Plan`] are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshard {
    model: ModelSpec,
    groups: Groups,
    engine: Engine,
}

/// The copies by which one rank begins to generate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The rank.
    pub rank: usize,
    /// Copies from training buffers, its own and those of others, into its gathered buffer. Each
    /// byte of that is filled once. Where the training shard lives in that buffer, those of
    /// [`Origin::Own`](super::Origin::Own) have nothing to do.
    pub gather: Vec<Transfer>,
    /// Copies from its gathered buffer into its generation buffer; none where that is the same.
    pub slices: Vec<Transfer>,
    /// The bytes that these copies cost.
    pub cost: Cost,
}

/// Bytes of parameters of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes that others send.
    pub received_bytes: usize,
    /// Bytes of the gathered buffer that were with the rank already.
    pub resident_bytes: usize,
    /// The gathered buffer: the most that is there at a time, but for what is redundant.
    pub peak_bytes: usize,
    /// Bytes that stay for generation.
    pub generation_bytes: usize,
    /// Bytes of the training shard that are kept beside the generation buffer. Engines of usual
    /// grouping keep all of it, since on some ranks all of it is outside.
    pub redundant_bytes: usize,
    /// Bytes of the training shard that are not in the generation buffer: on this rank, whatever
    /// the engine.
    pub outside_bytes: usize,
}

/// Why a model cannot be resharded. Nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReshardError {
    /// The model cannot be cut as a layout wants.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// The shards that a rank is said to have are not as this model's boxes lie in a buffer. Make
    /// them with the methods of the same [`ModelSpec`].
    #[error("the {which} shards of rank {rank} are not of this model")]
    Foreign {
        /// `source` or `target`.
        which: &'static str,
        /// The rank.
        rank: usize,
    },
    /// No rank of the source has what the target wants.
    #[error("nobody has {region} of tensor `{tensor}`, which rank {rank} needs")]
    Missing {
        /// The tensor's name.
        tensor: String,
        /// The box.
        region: Region,
        /// The rank that needs it.
        rank: usize,
    },
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::DeepSpeedChat, Self::HybridFlowV, Self::HybridFlow];

    /// The grouping of ranks in generation.
    #[must_use]
    pub const fn grouping(self) -> Grouping {
        match self {
            Self::DeepSpeedChat | Self::HybridFlowV => Grouping::Usual,
            Self::HybridFlow => Grouping::Strided,
        }
    }
}

impl Reshard {
    /// A model between two layouts of the same ranks: a mesh of `dp`, `pp` and `tp` in training, and one
    /// of `pp` and `tp` for each replica that generates.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when the layouts do not fit each other or the model.
    pub fn new(
        model: ModelSpec,
        training: &Mesh,
        generation: &Mesh,
        engine: Engine,
    ) -> Result<Self, ReshardError> {
        let groups =
            Groups::new(training, generation, engine.grouping()).map_err(CutError::Layout)?;
        let reshard = Self {
            model,
            groups,
            engine,
        };
        reshard.training(0)?;
        reshard.generation(0)?;
        Ok(reshard)
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &ModelSpec {
        &self.model
    }

    /// Both layouts.
    #[must_use]
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> Engine {
        self.engine
    }

    /// The shards of a rank in training.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when there is no such rank.
    pub fn training(&self, rank: usize) -> Result<Shards, ReshardError> {
        let mesh = self.groups.training();
        Ok(match self.engine {
            Engine::DeepSpeedChat => {
                let ranks = mesh.len();
                let missing = || CutError::Layout(MeshError::NoRank { rank, ranks }.into());
                self.model.flat(Part::new(rank, ranks).ok_or_else(missing)?)
            }
            Engine::HybridFlowV | Engine::HybridFlow => self.model.shards_on(mesh, rank)?,
        })
    }

    /// The shards that a rank gathers.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when there is no such rank.
    pub fn gathered(&self, rank: usize) -> Result<Shards, ReshardError> {
        match self.engine {
            Engine::DeepSpeedChat | Engine::HybridFlowV => Ok(self.model.whole()),
            Engine::HybridFlow => self.generation(rank),
        }
    }

    /// The shards that a rank generates with.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when there is no such rank.
    pub fn generation(&self, rank: usize) -> Result<Shards, ReshardError> {
        Ok(self.groups.shards(&self.model, rank)?)
    }

    /// The ranks that gather together with this one, itself among them, in order: all, those of its
    /// training replica, or those of its micro-data group.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when there is no such rank.
    pub fn gather_group(&self, rank: usize) -> Result<Vec<usize>, ReshardError> {
        let mesh = self.groups.training();
        let group = match self.engine {
            Engine::DeepSpeedChat => mesh.group(rank, &[DP, PP, TP]).map_err(Into::into),
            Engine::HybridFlowV => mesh.group(rank, &[PP, TP]).map_err(Into::into),
            Engine::HybridFlow => self.groups.micro_data_group(rank),
        };
        Ok(group.map_err(CutError::Layout)?)
    }

    /// The copies by which a rank begins to generate, and the bytes that they cost.
    ///
    /// Each byte that it does not have comes once, from the nearest that has it of those that
    /// gather with it: least apart in tensor rank, then in stage; of two, the lesser rank. So what
    /// tensor ranks have whole comes from the same tensor rank of another stage, and none of them
    /// serves all others. Where boxes overlap that are not equal
    /// ([`Cut::Cover`](super::Cut::Cover), where sizes do not divide), the one with the lesser
    /// offsets comes first.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when there is no such rank.
    pub fn plan(&self, rank: usize) -> Result<Plan, ReshardError> {
        let training = self.training(rank)?;
        let gathered = self.gathered(rank)?;
        let generation = self.generation(rank)?;
        let mesh = self.groups.training();
        let mut holders = Holders::new(self.model.tensors().len());
        for peer in self.gather_group(rank)? {
            if peer != rank {
                holders.add(peer, &self.training(peer)?);
            }
        }
        let at = |rank: usize, dim| mesh.coordinate(rank, dim);
        let (stage, part) = (at(rank, PP), at(rank, TP));
        let nearest = |holders: &[Holder], _bytes: usize| {
            let apart = |holder: &&Holder| {
                let peer = holder.rank;
                (
                    at(peer, TP).abs_diff(part),
                    at(peer, PP).abs_diff(stage),
                    peer,
                )
            };
            holders.iter().min_by_key(apart).copied()
        };
        let missing = |gap: Gap| gap.error(&self.model, rank);
        let gather = holders
            .fill(&training, &gathered, nearest)
            .map_err(missing)?;
        let slices = match self.engine {
            Engine::DeepSpeedChat | Engine::HybridFlowV => {
                inside(&self.model, &gathered, &generation).map_err(missing)?
            }
            Engine::HybridFlow => vec![],
        };
        let outside_bytes = training.bytes() - training.common_bytes(&generation);
        let received_bytes = gather.iter().map(Transfer::received_bytes).sum();
        let cost = Cost {
            received_bytes,
            resident_bytes: gathered.bytes() - received_bytes,
            peak_bytes: gathered.bytes(),
            generation_bytes: generation.bytes(),
            redundant_bytes: match self.engine {
                Engine::DeepSpeedChat | Engine::HybridFlowV => training.bytes(),
                Engine::HybridFlow => outside_bytes,
            },
            outside_bytes,
        };
        Ok(Plan {
            rank,
            gather,
            slices,
            cost,
        })
    }

    /// Where a rank's training shards lie in its generation buffer: the way back, on which nothing
    /// is sent. Each is [`Origin::Own`](super::Origin::Own), its source in the generation buffer
    /// and its target in a training buffer; the source alone is the view, where the buffer stays
    /// and the rest of it is dropped.
    ///
    /// Empty for engines of usual grouping: they have kept their training shards beside it.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when there is no such rank.
    pub fn views(&self, rank: usize) -> Result<Vec<Transfer>, ReshardError> {
        let (generation, training) = (self.generation(rank)?, self.training(rank)?);
        match self.engine {
            Engine::DeepSpeedChat | Engine::HybridFlowV => Ok(vec![]),
            Engine::HybridFlow => inside(&self.model, &generation, &training)
                .map_err(|gap| gap.error(&self.model, rank)),
        }
    }
}

/// The copies from a buffer that fill another of the same rank.
fn inside(model: &ModelSpec, own: &Shards, target: &Shards) -> Result<Vec<Transfer>, Gap> {
    Holders::new(model.tensors().len()).fill(own, target, |_, _| None)
}

impl Gap {
    pub(super) fn error(self, model: &ModelSpec, rank: usize) -> ReshardError {
        ReshardError::Missing {
            tensor: model.tensors()[self.tensor].name.clone(),
            region: self.region,
            rank,
        }
    }
}
