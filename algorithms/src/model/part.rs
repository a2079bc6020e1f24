//! A rank's part of a model whose passes several ranks compute together.

use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{Backend, Layout, TensorRanks};
use thiserror::Error;

use super::{Model, ModelConfig};

/// Why the matrices of a model cannot be shared by so many tensor ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PartError {
    /// Each rank has as many of them as any other.
    #[error("{ranks} tensor ranks cannot share {count} {what} evenly")]
    Uneven {
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
    /// The encoder of pictures is computed by one rank alone.
    #[error("a model that reads pictures cannot be shared by {ranks} tensor ranks")]
    Pictures {
        /// Number of ranks.
        ranks: usize,
    },
    /// Adapters are on whole matrices.
    #[error("a model with adapters cannot be shared by {ranks} tensor ranks")]
    Adapters {
        /// Number of ranks.
        ranks: usize,
    },
}

impl ModelConfig {
    /// The settings of the part that tensor rank `rank` of `ranks` has: some of the heads, of the inner columns
    /// of each feed-forward part, and of the vocabulary.
    ///
    /// # Errors
    /// They cannot be shared out.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn part(&self, rank: usize, ranks: usize) -> Result<Self, PartError> {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        if ranks == 1 {
            return Ok(self.clone());
        }
        if self.vision.is_some() {
            return Err(PartError::Pictures { ranks });
        }
        let even = |count: usize, what| match count.is_multiple_of(ranks) {
            true => Ok(count / ranks),
            false => Err(PartError::Uneven { ranks, count, what }),
        };
        if self.vocab < ranks {
            let vocab = self.vocab;
            return Err(PartError::Vocabulary { ranks, vocab });
        }
        Ok(Self {
            heads: even(self.heads, "query heads")?,
            kv_heads: even(self.kv_heads, "key heads")?,
            ffn: even(self.ffn, "inner columns of a feed-forward part")?,
            vocab: piece(self.vocab, rank, ranks).len(),
            ..self.clone()
        })
    }
}

/// The piece of a rank: pieces differ by one at most, and larger ones come first.
fn piece(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    let begin = |rank: usize| rank * (count / ranks) + rank.min(count % ranks);
    begin(rank)..begin(rank + 1)
}

/// The part of a model that a tensor rank has.
#[derive(Clone, Debug)]
pub struct ModelPart {
    rank: usize,
    ranks: usize,
    whole: ModelConfig,
    /// In the order of the layout.
    tensors: Vec<PartTensor>,
    /// Where the flat parameters are those of every rank.
    whole_ranges: Vec<Range<usize>>,
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
        rank: usize,
        ranks: usize,
    ) -> Self {
        let pairs = of_whole.entries().iter().zip(own.entries());
        let tensors: Vec<PartTensor> = pairs
            .map(|(whole, own)| {
                assert_eq!(whole.name, own.name, "the same tensors in the same order");
                let lengths = whole.shape.iter().zip(&own.shape);
                let spans = lengths.map(|(&of_whole, &length)| {
                    let cut = piece(of_whole, rank, ranks);
                    let offset = if length == of_whole { 0 } else { cut.start };
                    offset..offset + length
                });
                PartTensor {
                    shape: whole.shape.clone(),
                    part: spans.collect(),
                }
            })
            .collect();
        let pairs = tensors.iter().zip(own.entries());
        let uncut = pairs.filter(|(tensor, own)| tensor.shape == own.shape);
        let mut whole_ranges: Vec<Range<usize>> = vec![];
        for (_, own) in uncut {
            match whole_ranges.last_mut() {
                Some(last) if last.end == own.range.start => last.end = own.range.end,
                _ => whole_ranges.push(own.range.clone()),
            }
        }
        Self {
            rank,
            ranks,
            whole,
            tensors,
            whole_ranges,
        }
    }

    /// The number of the rank that has it, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks that share the model.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
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
        piece(self.whole.vocab, self.rank, self.ranks).start
    }

    /// Where the flat parameters are tensors that every rank has whole, in order. Of their gradients each rank
    /// has an addend.
    pub(crate) fn whole_ranges(&self) -> &[Range<usize>] {
        &self.whole_ranges
    }

    /// The ranges that no two ranks have alike, of `len` flat parameters.
    pub(crate) fn cut_ranges(&self, len: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.whole_ranges.iter().map(|it| it.end);
        let starts = self.whole_ranges.iter().map(|it| it.start);
        let pairs = std::iter::once(0).chain(ends).zip(starts.chain([len]));
        pairs.map(|(start, end)| start..end)
    }
}

impl<B: Backend> Model<B> {
    /// The part of this model that tensor rank `rank` of `ranks` has, which computes with the others from
    /// [`meet`](Self::meet) on. Of one rank that is all.
    ///
    /// # Errors
    /// It cannot be shared out.
    ///
    /// # Panics
    /// If there is no such rank, or this is a part already.
    pub fn into_part(self, rank: usize, ranks: usize) -> Result<Self, PartError> {
        assert!(self.part.is_none(), "a part is not cut again");
        if ranks == 1 {
            return Ok(self);
        }
        if self.has_adapters() {
            return Err(PartError::Adapters { ranks });
        }
        let config = self.config.part(rank, ranks)?;
        let (flat, backend) = (self.to_flat(), self.backend.clone());
        let (whole, of_whole) = (self.config, self.layout);
        // Never both on the device at once.
        drop(self.params);
        let mut own = Self::of_parts(backend, config);
        let part = ModelPart::new(whole, &of_whole, &own.layout, rank, ranks);
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

    /// Has a part compute with these ranks from now on. Whatever one that has met nobody computes is wrong, so it
    /// panics.
    ///
    /// # Panics
    /// If this is no part of so many ranks, or another one's.
    pub fn meet(&mut self, ranks: Arc<dyn TensorRanks<B>>) {
        let own = self.part.as_ref().map(|part| (part.rank, part.ranks));
        assert_eq!(own, Some((ranks.rank(), ranks.count())), "this rank's part");
        self.ranks = Some(ranks);
    }

    /// The part and the ranks that it computes with, where it is one.
    pub(crate) fn shared(&self) -> Option<(&ModelPart, &Arc<dyn TensorRanks<B>>)> {
        let part = self.part.as_ref()?;
        let ranks = self.ranks.as_ref();
        Some((part, ranks.expect("a part has met the other ranks")))
    }

    /// True where what every rank would add is this one's to add: of all but the first it would count again.
    pub(crate) fn adds_whole(&self) -> bool {
        self.part.as_ref().is_none_or(|part| part.rank == 0)
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
            model.into_part(rank, 2).unwrap()
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
        let len = parts[1].parameters();
        let cut: usize = part.cut_ranges(len).map(|it| it.len()).sum();
        assert_eq!(cut, len - 3 * 8);
    }

    #[test]
    fn models_that_cannot_be_shared_are_refused_with_the_numbers() {
        let refused = |config: &ModelConfig, ranks| config.part(0, ranks).unwrap_err().to_string();
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
