//! A rank's part of a model whose passes several ranks compute together.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{Backend, Cpu, Layout, PassRanks};
use thiserror::Error;

use super::rank::{ContextKind, PartPlace, PartRanges, RankKind, RankOf};
use super::shard::{ModelShard, ShardPlace};
use super::stage::{StageGroups, StageLinks};
use super::{ExpertRange, Model, ModelConfig};

/// Why a model cannot be shared by so many ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PartError {
    /// Each rank has as many of them as any other.
    #[error("{ranks} {kind} ranks cannot share {count} {what} evenly")]
    Uneven {
        /// The kind of these ranks.
        kind: RankKind,
        /// Number of ranks.
        ranks: usize,
        /// Number of what is shared.
        count: usize,
        /// The things that are shared.
        what: &'static str,
    },
    /// A rank would have no entry of the vocabulary.
    #[error("{ranks} tensor ranks are more than the {vocab} entries of the vocabulary")]
    Vocabulary {
        /// Number of ranks.
        ranks: usize,
        /// Number of entries.
        vocab: usize,
    },
    /// A stage would have no layer.
    #[error("{stages} stages are more than the {layers} layers")]
    Layers {
        /// Number of stages.
        stages: usize,
        /// Number of layers.
        layers: usize,
    },
    /// Layers that are told for stages are not those of the model.
    #[error(
        "stages of {told} layers together cannot be made of {layers} layers: as many are needed, in {stages} stages of \
         one at least"
    )]
    StageLayers {
        /// Layers of all stages, as they are told.
        told: usize,
        /// Layers of the model.
        layers: usize,
        /// Number of stages.
        stages: usize,
    },
    /// There are no experts to share.
    #[error("{ranks} expert ranks cannot share a model without experts")]
    NoExperts {
        /// Number of ranks.
        ranks: usize,
    },
    /// Connections read segments of whole rows.
    #[error("a model of virtual width cannot be shared by {ranks} tensor ranks")]
    Width {
        /// Number of ranks.
        ranks: usize,
    },
    /// The token behind a row's own may be with another rank, or its embedding.
    #[error(
        "a model with a head for one token further (multi-token prediction) cannot be shared by {ranks} {kind} ranks"
    )]
    NextToken {
        /// The kind of these ranks.
        kind: RankKind,
        /// Number of ranks.
        ranks: usize,
    },
    /// The encoder of pictures is computed by one rank alone.
    #[error("a model that reads pictures cannot be shared by {ranks} {kind} ranks")]
    Pictures {
        /// The kind of these ranks.
        kind: RankKind,
        /// Number of ranks.
        ranks: usize,
    },
    /// Adapters are on whole matrices.
    #[error("a model with adapters cannot be shared by {ranks} {kind} ranks")]
    Adapters {
        /// The kind of these ranks.
        kind: RankKind,
        /// Number of ranks.
        ranks: usize,
    },
}

impl PartError {
    /// The kind of ranks that cannot share it.
    #[must_use]
    pub const fn kind(&self) -> RankKind {
        match self {
            Self::Uneven { kind, .. }
            | Self::Pictures { kind, .. }
            | Self::NextToken { kind, .. }
            | Self::Adapters { kind, .. } => *kind,
            Self::Vocabulary { .. } | Self::Width { .. } => RankKind::Tensor,
            Self::NoExperts { .. } => RankKind::Expert,
            Self::Layers { .. } | Self::StageLayers { .. } => RankKind::Stage,
        }
    }
}

impl ModelConfig {
    /// The settings of the part that a rank has: of tensor ranks some of the heads, of the inner columns of each
    /// feed-forward part, and of the vocabulary; of expert ranks some of the experts; of pipeline ranks some layers.
    ///
    /// # Errors
    /// They cannot be shared out.
    pub fn part(&self, place: PartPlace) -> Result<Self, PartError> {
        let mut own = self.clone();
        if place.tensor.ranks > 1 {
            own = own.tensor_part(place.tensor)?;
        }
        if place.experts.ranks > 1 {
            let ranks = place.experts.ranks;
            self.sees_no_pictures(RankKind::Expert, ranks)?;
            let all = self.block.experts();
            let all = all.ok_or(PartError::NoExperts { ranks })?.experts;
            let count = even(RankKind::Expert, ranks, all, "experts")?;
            own.own_experts = Some(ExpertRange {
                first: place.experts.rank * count,
                count,
            });
        }
        if place.stage.rank.ranks > 1 {
            self.sees_no_pictures(RankKind::Stage, place.stage.rank.ranks)?;
            self.looks_no_further(RankKind::Stage, place.stage.rank.ranks)?;
            let (stages, layers) = (place.stage.stages(), self.layers);
            if stages > layers {
                return Err(PartError::Layers { stages, layers });
            }
            if let Some(told) = &place.stage.layers
                && (told.layers() != layers
                    || told.lengths().len() != stages
                    || told.lengths().contains(&0))
            {
                let told = told.layers();
                return Err(PartError::StageLayers {
                    told,
                    layers,
                    stages,
                });
            }
            own.own_stages = Some(place.stage);
        }
        Ok(own)
    }

    fn tensor_part(self, place: RankOf) -> Result<Self, PartError> {
        let ranks = place.ranks;
        self.sees_no_pictures(RankKind::Tensor, ranks)?;
        self.looks_no_further(RankKind::Tensor, ranks)?;
        if self.width.is_some() {
            return Err(PartError::Width { ranks });
        }
        let even = |count, what| even(RankKind::Tensor, ranks, count, what);
        let vocab = self.vocab;
        if vocab < ranks {
            return Err(PartError::Vocabulary { ranks, vocab });
        }
        Ok(Self {
            heads: even(self.heads, "query heads")?,
            kv_heads: even(self.kv_heads, "key heads")?,
            ffn: even(self.ffn, "inner columns of a feed-forward part")?,
            vocab: place.piece(vocab).len(),
            ..self
        })
    }

    /// Checks that ranks can have some of the rows of each sequence. Those that exchange rows for heads each compute some
    /// query heads, and the key heads that these read.
    ///
    /// # Errors
    /// They cannot be shared out. Heads are those of this rank, where it has a [part](Self::part).
    pub fn check_context(&self, kind: ContextKind, ranks: usize) -> Result<(), PartError> {
        if ranks == 1 {
            return Ok(());
        }
        self.sees_no_pictures(RankKind::Context, ranks)?;
        self.looks_no_further(RankKind::Context, ranks)?;
        if kind == ContextKind::Ring {
            return Ok(());
        }
        even(RankKind::Context, ranks, self.heads, "query heads")?;
        // A key head that several ranks read goes to all of them.
        match ranks.is_multiple_of(self.kv_heads) {
            true => Ok(()),
            false => even(RankKind::Context, ranks, self.kv_heads, "key heads").map(|_| ()),
        }
    }

    fn looks_no_further(&self, kind: RankKind, ranks: usize) -> Result<(), PartError> {
        match self.next_token {
            true => Err(PartError::NextToken { kind, ranks }),
            false => Ok(()),
        }
    }

    pub(super) fn sees_no_pictures(&self, kind: RankKind, ranks: usize) -> Result<(), PartError> {
        match self.vision {
            Some(_) => Err(PartError::Pictures { kind, ranks }),
            None => Ok(()),
        }
    }
}

/// So many for each rank.
fn even(
    kind: RankKind,
    ranks: usize,
    count: usize,
    what: &'static str,
) -> Result<usize, PartError> {
    match count.is_multiple_of(ranks) {
        true => Ok(count / ranks),
        false => Err(PartError::Uneven {
            kind,
            ranks,
            count,
            what,
        }),
    }
}

/// The part of a model that a rank has.
#[derive(Clone, Debug)]
pub struct ModelPart {
    place: PartPlace,
    whole: ModelConfig,
    /// In the order of the layout.
    tensors: Vec<PartTensor>,
    ranges: PartRanges,
}

/// A tensor of which a rank has a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTensor {
    /// Shape of the whole.
    pub shape: Vec<usize>,
    /// The indices of the rank's part, dimension by dimension.
    pub part: Vec<Range<usize>>,
}

impl ModelPart {
    /// # Panics
    /// If `own` is not the layout of that part.
    pub(crate) fn new(
        whole: ModelConfig,
        of_whole: &Layout,
        own: &Layout,
        place: PartPlace,
    ) -> Self {
        let pairs = of_whole.entries().iter().zip(own.entries());
        let tensors: Vec<PartTensor> = pairs
            .map(|(whole, own)| {
                assert_eq!(whole.name, own.name, "the same tensors in the same order");
                let lengths = whole.shape.iter().zip(&own.shape);
                let spans = lengths.map(|(&of_whole, &length)| {
                    let is_cut = length != 0 && length != of_whole;
                    let offset = if is_cut {
                        place.tensor.piece(of_whole).start
                    } else {
                        0
                    };
                    offset..offset + length
                });
                PartTensor {
                    shape: whole.shape.clone(),
                    part: spans.collect(),
                }
            })
            .collect();
        let experts = match place.experts.ranks {
            1 => HashSet::new(),
            _ => whole.block.expert_tensors(whole.widths()),
        };
        let mut ranges = PartRanges::default();
        for (tensor, own) in tensors.iter().zip(own.entries()) {
            let of_layer = own.name.strip_prefix("model.layers.");
            let below = of_layer.and_then(|name| name.split_once('.'));
            let is_expert = below.is_some_and(|(_, name)| experts.contains(name));
            let list = if is_expert {
                &mut ranges.experts
            } else if place.tensor.ranks > 1 && tensor.shape == own.shape {
                &mut ranges.everywhere
            } else {
                &mut ranges.data
            };
            match list.last_mut() {
                _ if own.range.is_empty() => {}
                Some(last) if last.end == own.range.start => last.end = own.range.end,
                _ => list.push(own.range.clone()),
            }
        }
        Self {
            place,
            whole,
            tensors,
            ranges,
        }
    }

    /// The place of the rank that has it.
    #[must_use]
    pub fn place(&self) -> PartPlace {
        self.place
    }

    /// The settings of the whole model.
    #[must_use]
    pub fn whole(&self) -> &ModelConfig {
        &self.whole
    }

    /// Its tensors, in the order of the model's layout.
    #[must_use]
    pub fn tensors(&self) -> &[PartTensor] {
        &self.tensors
    }

    /// The first entry of the vocabulary that it has.
    pub(crate) fn first_entry(&self) -> usize {
        self.place.tensor.piece(self.whole.vocab).start
    }

    /// Its flat parameters, by who has the same.
    pub(crate) fn ranges(&self) -> &PartRanges {
        &self.ranges
    }

    /// Flat parameters of which this rank tells the others, of those that have a part of the model each: over all of
    /// them each parameter is told once.
    pub(crate) fn told_ranges(&self) -> Vec<Range<usize>> {
        let PartPlace {
            tensor, experts, ..
        } = self.place;
        let PartRanges {
            everywhere,
            data,
            experts: of_experts,
        } = &self.ranges;
        let first = experts.rank == 0;
        let lists = [
            (everywhere, first && tensor.rank == 0),
            (data, first),
            (of_experts, true),
        ];
        let told = lists.into_iter().filter(|(_, tells)| *tells);
        told.flat_map(|(ranges, _)| ranges.clone()).collect()
    }
}

/// The ranks that a model computes passes with.
pub struct PassGroups<B: Backend> {
    /// Those that each have a part of every matrix.
    pub tensor: Option<Arc<dyn PassRanks<B>>>,
    /// Those that each have some of the experts.
    pub experts: Option<Arc<dyn PassRanks<B>>>,
    /// Those that each have some of the rows of a sequence.
    pub context: Option<Arc<dyn PassRanks<B>>>,
    /// Those that keep shards of the same tensors.
    pub shards: ShardGroups<B>,
    /// Those that each have some of the layers.
    pub stages: StageGroups<B>,
}

/// The ranks that keep shards of the same tensors, in the order of their [places](super::ShardPlace).
pub struct ShardGroups<B: Backend> {
    /// Those that keep what every rank has.
    pub everywhere: Option<Arc<dyn PassRanks<B>>>,
    /// Those that keep the same part of each matrix.
    pub data: Option<Arc<dyn PassRanks<B>>>,
    /// Those that keep the same experts.
    pub experts: Option<Arc<dyn PassRanks<B>>>,
}

impl<B: Backend> fmt::Debug for ShardGroups<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardGroups")
            .field("everywhere", &self.everywhere)
            .field("data", &self.data)
            .field("experts", &self.experts)
            .finish()
    }
}

impl<B: Backend> Default for ShardGroups<B> {
    fn default() -> Self {
        Self {
            everywhere: None,
            data: None,
            experts: None,
        }
    }
}

impl<B: Backend> fmt::Debug for PassGroups<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassGroups")
            .field("tensor", &self.tensor)
            .field("experts", &self.experts)
            .field("context", &self.context)
            .field("shards", &self.shards)
            .field("stages", &self.stages)
            .finish()
    }
}

impl<B: Backend> Default for PassGroups<B> {
    fn default() -> Self {
        Self {
            tensor: None,
            experts: None,
            context: None,
            shards: ShardGroups::default(),
            stages: StageGroups::default(),
        }
    }
}

impl Model<Cpu> {
    /// The part of a model without its parameters, to record passes that nobody runs.
    ///
    /// # Errors
    /// It cannot be cut like this.
    pub(crate) fn outline(config: &ModelConfig, place: PartPlace) -> Result<Self, PartError> {
        let own = config.part(place)?;
        let (layout, places) = Self::describe(&own);
        let (of_whole, _) = Self::describe(config);
        let part = (place != PartPlace::WHOLE)
            .then(|| ModelPart::new(config.clone(), &of_whole, &layout, place));
        let mut outline = Self::without_parameters(Cpu::new(1), own, (layout, places));
        outline.part = part;
        Ok(outline)
    }
}

impl<B: Backend> Model<B> {
    /// The part of this model that a rank has, which computes with the others from [`meet`](Self::meet) on. Of one rank
    /// that is all.
    ///
    /// # Errors
    /// It cannot be shared out.
    ///
    /// # Panics
    /// If this is a part already.
    pub fn into_part(self, place: PartPlace) -> Result<Self, PartError> {
        assert!(self.part.is_none(), "a part is not cut again");
        if place == PartPlace::WHOLE {
            return Ok(self);
        }
        if self.has_adapters() {
            let (kind, ranks) = match (place.tensor.ranks, place.experts.ranks) {
                (1, 1) => (RankKind::Stage, place.stage.rank.ranks),
                (1, ranks) => (RankKind::Expert, ranks),
                (ranks, _) => (RankKind::Tensor, ranks),
            };
            return Err(PartError::Adapters { kind, ranks });
        }
        let config = self.config.part(place)?;
        let (flat, backend) = (self.to_flat(), self.backend.clone());
        let (whole, of_whole) = (self.config, self.layout);
        // Never both on the device at once.
        drop(self.params);
        let mut own = Self::of_parts(backend, config);
        let part = ModelPart::new(whole, &of_whole, &own.layout, place);
        let mut values = Vec::with_capacity(own.layout.len());
        for (entry, tensor) in of_whole.entries().iter().zip(&part.tensors) {
            cut(&flat[entry.range.clone()], tensor, &mut values);
        }
        let len = values.len();
        own.backend
            .write(B::view_mut(&mut own.params, 0..len), &values);
        own.part = Some(part);
        Ok(own)
    }

    /// The part that it is of a model that several ranks share; `None` where it is all of one.
    #[must_use]
    pub fn part(&self) -> Option<&ModelPart> {
        self.part.as_ref()
    }

    /// Has it compute passes with these ranks from now on. Whatever a part that has met nobody computes is wrong, so it
    /// panics.
    ///
    /// # Panics
    /// If this is no part or shard of so many ranks, or another one's.
    pub fn meet(&mut self, groups: PassGroups<B>) {
        let place = self
            .part
            .as_ref()
            .map_or(PartPlace::WHOLE, |part| part.place);
        let shard = self.shard.as_ref().map(ModelShard::place);
        let shard = shard.unwrap_or(ShardPlace::of(RankOf::ALONE));
        for (group, own) in [
            (&groups.tensor, place.tensor),
            (&groups.experts, place.experts),
            (&groups.stages.all, place.stage.rank),
            (&groups.shards.everywhere, shard.everywhere),
            (&groups.shards.data, shard.data),
            (&groups.shards.experts, shard.experts),
        ] {
            let met = group.as_ref().map_or(RankOf::ALONE, |group| {
                RankOf::new(group.rank(), group.count())
            });
            assert_eq!(met, own, "this rank's part");
        }
        self.groups = groups;
    }

    /// The part and the tensor ranks that it computes with, where matrices are shared.
    pub(crate) fn shared(&self) -> Option<(&ModelPart, &Arc<dyn PassRanks<B>>)> {
        let part = self
            .part
            .as_ref()
            .filter(|part| part.place.tensor.ranks > 1)?;
        let ranks = self.groups.tensor.as_ref();
        Some((part, ranks.expect("a part has met the other ranks")))
    }

    /// The ranks that it computes experts with, where these are shared.
    pub(crate) fn expert_ranks(&self) -> Option<&Arc<dyn PassRanks<B>>> {
        self.part
            .as_ref()
            .filter(|part| part.place.experts.ranks > 1)?;
        let ranks = self.groups.experts.as_ref();
        Some(ranks.expect("a part has met the other ranks"))
    }

    /// The ranks that have the other rows of each sequence, where these are shared.
    pub(crate) fn context_ranks(&self) -> Option<&Arc<dyn PassRanks<B>>> {
        let ranks = self.groups.context.as_ref();
        ranks.filter(|ranks| ranks.count() > 1)
    }

    /// Set where its passes wait for ranks that have other rows: these need it even if it has nothing to learn from.
    pub(crate) fn is_waited_for(&self) -> bool {
        let others = [
            self.expert_ranks(),
            self.context_ranks(),
            self.widest_shard_ranks(),
            self.groups.stages.all.as_ref(),
        ];
        others.iter().any(Option::is_some)
    }

    /// All ranks that keep one copy of the parameters together, in shards.
    pub(crate) fn widest_shard_ranks(&self) -> Option<&Arc<dyn PassRanks<B>>> {
        let ShardGroups {
            everywhere, data, ..
        } = &self.groups.shards;
        everywhere.as_ref().or(data.as_ref())
    }

    /// The ways between stages.
    ///
    /// # Panics
    /// If it is no part of a pipeline that has met the others.
    pub(crate) fn stage_links(&self) -> Arc<dyn StageLinks> {
        let links = self.groups.stages.links.clone();
        links.expect("a stage has met the others")
    }

    /// The ranks that both have the embedding, in a pipeline whose head it is.
    pub(crate) fn tied_ranks(&self) -> Option<Arc<dyn PassRanks<B>>> {
        self.groups.stages.tied.clone()
    }

    /// All ranks of the pipeline.
    pub(crate) fn pipeline_ranks(&self) -> Option<&Arc<dyn PassRanks<B>>> {
        self.groups.stages.all.as_ref()
    }

    /// The embedding's place among the trained parameters that this rank keeps.
    pub(crate) fn embedding_kept(&self) -> Range<usize> {
        match &self.shard {
            None => self.places.embed.clone(),
            Some(shard) => {
                let held = shard.held(0);
                match held.is_empty() {
                    true => 0..0,
                    false => {
                        let at = shard.kept_at(held.start);
                        at..at + held.len()
                    }
                }
            }
        }
    }

    /// True where what every tensor rank would add is this one's to add: of all but the first it would count again.
    pub(crate) fn adds_whole(&self) -> bool {
        let part = self.part.as_ref();
        part.is_none_or(|part| part.place.tensor.rank == 0)
    }
}

/// Appends the part of a whole tensor's values, row by row.
fn cut(values: &[f32], tensor: &PartTensor, to: &mut Vec<f32>) {
    match (tensor.shape.as_slice(), tensor.part.as_slice()) {
        (&[_, cols], [rows, of_row]) => {
            let own = values.chunks_exact(cols).skip(rows.start).take(rows.len());
            for row in own {
                to.extend_from_slice(&row[of_row.clone()]);
            }
        }
        (&[_], [own]) => to.extend_from_slice(&values[own.clone()]),
        (shape, _) => unreachable!("tensors have one dimension or two, not {shape:?}"),
    }
}

#[cfg(test)]
mod tests {
    use odeon_gpu::Cpu;

    use super::*;

    fn config() -> ModelConfig {
        ModelConfig {
            vocab: 11,
            dim: 8,
            layers: 1,
            heads: 4,
            kv_heads: 2,
            head_dim: 2,
            ffn: 6,
            ..ModelConfig::default()
        }
    }

    #[test]
    fn parts_put_together_are_the_model() {
        let whole = Model::init(Cpu::new(1), config(), 3).unwrap();
        let parts = (0..2).map(|rank| {
            let model = Model::init(Cpu::new(1), config(), 3).unwrap();
            model.into_part(PartPlace::of_tensor(rank, 2)).unwrap()
        });
        let parts: Vec<Model> = parts.collect();
        for (number, (_, shape, values)) in whole.tensors().enumerate() {
            let mut together = vec![f32::NAN; values.len()];
            let cols = if shape.len() == 2 { shape[1] } else { 1 };
            for model in &parts {
                let part = &model.part().unwrap().tensors()[number].part;
                let row = part.get(1).cloned().unwrap_or(0..1);
                let own = model.tensors().nth(number).unwrap().2;
                for (at, value) in own.iter().enumerate() {
                    let (r, c) = (part[0].start + at / row.len(), row.start + at % row.len());
                    together[r * cols + c] = *value;
                }
            }
            assert_eq!(together, values);
        }
        let part = parts[1].part().unwrap();
        assert_eq!((part.first_entry(), parts[1].config().vocab), (6, 5));
        // The three norms: the others have no number that another rank has, too.
        let len =
            |ranges: &[Range<usize>]| ranges.iter().map(ExactSizeIterator::len).sum::<usize>();
        let (ranges, all) = (part.ranges(), parts[1].parameters());
        assert_eq!(len(&ranges.everywhere), 3 * 8);
        assert_eq!(len(&ranges.data), all - 3 * 8);
        assert_eq!(part.told_ranges(), ranges.data);
    }

    #[test]
    fn models_that_cannot_be_shared_are_refused_with_the_numbers() {
        let refused = |config: &ModelConfig, ranks| {
            config
                .part(PartPlace::of_tensor(0, ranks))
                .unwrap_err()
                .to_string()
        };
        let six = ModelConfig {
            heads: 6,
            kv_heads: 6,
            ..config()
        };
        assert_eq!(
            refused(&six, 4),
            "4 tensor ranks cannot share 6 query heads evenly"
        );
        assert_eq!(
            refused(&config(), 4),
            "4 tensor ranks cannot share 2 key heads evenly"
        );
        let odd = ModelConfig { ffn: 7, ..config() };
        let inner = "2 tensor ranks cannot share 7 inner columns of a feed-forward part evenly";
        assert_eq!(refused(&odd, 2), inner);
        let few = ModelConfig {
            vocab: 1,
            ..config()
        };
        let vocabulary = "2 tensor ranks are more than the 1 entries of the vocabulary";
        assert_eq!(refused(&few, 2), vocabulary);
        let sees = ModelConfig {
            vision: Some(crate::model::VisionConfig {
                patch: 2,
                dim: 8,
                layers: 1,
                heads: 1,
                ffn: 4,
            }),
            ..config()
        };
        assert_eq!(
            refused(&sees, 2),
            "a model that reads pictures cannot be shared by 2 tensor ranks"
        );
    }
}
