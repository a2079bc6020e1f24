//! First parameters of a model, tensor by tensor: a rank has room for what it keeps, and reads or draws no more.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use odeon_gpu::Backend;
use thiserror::Error;

use super::block::Cutting;
use super::network;
use super::normal::Normal;
use super::part::{ModelPart, PartError};
use super::rank::PartPlace;
use super::shard::ShardPlace;
use super::{ConfigError, Model, ModelConfig};

/// Why a rank cannot have its part of a model.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RankModelError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It cannot be shared out.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// What a rank keeps of a model: of a part the shard, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankKeeps {
    /// Its part of the model.
    pub part: PartPlace,
    /// The place of its shard of that, and the rows of each matrix that stay together there.
    pub shard: Option<(ShardPlace, usize)>,
}

impl RankKeeps {
    /// All of it.
    pub const ALL: Self = Self {
        part: PartPlace::WHOLE,
        shard: None,
    };
}

impl<B: Backend> Model<B> {
    /// What a rank keeps of a model, all zero, to be [filled](Self::fill). Its device never has more of it.
    ///
    /// # Errors
    /// The configuration contradicts itself, or cannot be shared out like this.
    ///
    /// # Panics
    /// If blocks of a shard have no rows.
    pub fn of_rank(
        backend: B,
        config: ModelConfig,
        keeps: RankKeeps,
    ) -> Result<Self, RankModelError> {
        config.check()?;
        let own = config.part(keeps.part)?;
        let (layout, places) = Self::describe(&own);
        let (of_whole, _) = Self::describe(&config);
        let mut model = Self::without_parameters(backend, own, (layout, places));
        model.part = (keeps.part != PartPlace::WHOLE)
            .then(|| ModelPart::new(config, &of_whole, &model.layout, keeps.part));
        if let Some((place, rows)) = keeps.shard {
            assert!(rows > 0, "blocks have rows");
            let ranks = place.data.ranks;
            model.config.check_shards(ranks)?;
            model.outline_shard(Some(place), rows);
        }
        let kept = model.shard.as_ref().map_or(&model.layout, |it| it.layout());
        model.params = model.backend.parameters(kept.len());
        Ok(model)
    }

    /// Replaces all parameters that it keeps, tensor by tensor; adapters stay. `read` gives the values of a box of a whole
    /// tensor, row by row, by the tensor's name and the interval of each dimension. It is asked for what is kept alone.
    ///
    /// # Errors
    /// Those of `read`; tensors before that are replaced then.
    ///
    /// # Panics
    /// If it gives another number of values.
    pub fn fill<E>(
        &mut self,
        mut read: impl FnMut(&str, &[Range<usize>]) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        for (number, entry) in self.layout.entries().iter().enumerate() {
            let shard = self.shard.as_ref();
            let held = shard.map_or_else(|| entry.range.clone(), |shard| shard.held(number));
            if held.is_empty() {
                continue;
            }
            let row: usize = entry.shape[1..].iter().product();
            let row_of = |flat: usize| (flat - entry.range.start) / row;
            let mut own: Vec<Range<usize>> = match &self.part {
                Some(part) => part.tensors()[number].part.clone(),
                None => entry.shape.iter().map(|length| 0..*length).collect(),
            };
            let first = own[0].start;
            own[0] = first + row_of(held.start)..first + row_of(held.end);
            let values = read(&entry.name, &own)?;
            assert_eq!(
                values.len(),
                held.len(),
                "{}: values of {own:?}",
                entry.name
            );
            let at = shard.map_or(held.start, |shard| shard.kept_at(held.start));
            let place = B::view_mut(&mut self.params, at..at + held.len());
            self.backend.write(place, &values);
        }
        Ok(())
    }
}

/// Initial values of a model by a seed: normal with deviation 0.02, residual projections scaled down by the root of twice
/// the number of layers (Radford et al. 2019), norms one, value head zero. A number follows from its place in the whole
/// model, so ranks that draw parts of it have those of one device.
#[derive(Debug)]
pub struct SeededValues {
    normal: Normal,
    tensors: HashMap<String, Values>,
}

/// Initial values of a tensor.
#[derive(Debug)]
struct Values {
    cols: usize,
    kind: ValueKind,
}

#[derive(Debug)]
enum ValueKind {
    Same(f32),
    /// All of them.
    Told(Vec<f32>),
    /// Drawn, the first with this number.
    Drawn {
        first: u64,
        deviation: f32,
    },
}

impl SeededValues {
    /// Those of a whole model.
    #[must_use]
    pub fn new(config: &ModelConfig, seed: u64) -> Self {
        let residual = 0.02 / (2.0 * config.layers as f32).sqrt();
        let tensors = config.block.tensors(config.widths()).into_iter();
        let ends: HashSet<String> = tensors
            .filter(|(.., cutting)| *cutting == Cutting::Inputs)
            .map(|(name, ..)| name)
            .collect();
        let ends_block = |name: &str| {
            let of_layer = name.strip_prefix("model.layers.");
            let own = of_layer.and_then(|name| name.split_once('.'));
            own.is_some_and(|(_, own)| ends.contains(own))
        };
        let (layout, _) = network::layout(config);
        let mut drawn = 0;
        let tensors = layout.entries().iter().map(|entry| {
            let (name, len) = (entry.name.as_str(), entry.range.len());
            let told = config
                .width
                .and_then(|it| it.first_values(name, config.dim));
            let kind = if let Some(values) = told {
                assert_eq!(values.len(), len, "{name} is whole");
                ValueKind::Told(values)
            } else if name.ends_with("norm.weight") {
                ValueKind::Same(1.0)
            } else if name.ends_with(".bias") || name == "value_head.weight" {
                ValueKind::Same(0.0)
            } else {
                let is_residual_end = ends_block(name)
                    || name.ends_with("o_proj.weight")
                    || name.ends_with("down_proj.weight");
                let first = drawn;
                drawn += len as u64;
                ValueKind::Drawn {
                    first,
                    deviation: if is_residual_end { residual } else { 0.02 },
                }
            };
            let cols = entry.shape[1..].iter().product();
            (entry.name.clone(), Values { cols, kind })
        });
        Self {
            tensors: tensors.collect(),
            normal: Normal::new(seed),
        }
    }

    /// The values of a box of a tensor, row by row: see [`Model::fill`].
    ///
    /// # Panics
    /// If the model has no such tensor.
    pub fn read(&mut self, name: &str, part: &[Range<usize>]) -> Vec<f32> {
        let tensor = self.tensors.get(name);
        let Values { cols, kind } = tensor.expect("a tensor of the model");
        let len = part.iter().map(ExactSizeIterator::len).product();
        let mut values = Vec::with_capacity(len);
        let rows = box_runs(*cols, part);
        match kind {
            ValueKind::Same(value) => values.resize(len, *value),
            ValueKind::Told(all) => rows.for_each(|run| values.extend_from_slice(&all[run])),
            ValueKind::Drawn { first, deviation } => rows.for_each(|run| {
                self.normal.seek(first + run.start as u64);
                let drawn = std::iter::repeat_with(|| deviation * self.normal.draw());
                values.extend(drawn.take(run.len()));
            }),
        }
        values
    }
}

/// The runs of a box of a tensor with rows of so many elements, as intervals of all of its elements.
pub(crate) fn box_runs(
    cols: usize,
    part: &[Range<usize>],
) -> impl Iterator<Item = Range<usize>> + use<> {
    let (rows, of_row) = match part {
        [rows, of_row] => (rows.clone(), of_row.clone()),
        [own] => (own.clone(), 0..1),
        _ => unreachable!("tensors have one dimension or two, not {part:?}"),
    };
    // Whole rows lie one behind the other.
    let whole = of_row.len() == cols;
    let step = if whole { rows.len().max(1) } else { 1 };
    rows.clone().step_by(step).map(move |row| {
        let begin = row * cols + of_row.start;
        begin..begin + (step - 1) * cols + of_row.len()
    })
}

#[cfg(test)]
mod tests;
