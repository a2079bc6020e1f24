//! First weights of a rank's model, out of files or drawn: what it keeps, tensor by tensor.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use odeon::Failure;
use odeon_algorithms::model::{
    ModelConfig, PartError, RankKeeps, RankKind, RankModelError, SeededValues,
};
use odeon_algorithms::train::{Sharing, ZeroStage};
use odeon_algorithms::weights::{self, Gguf, ModelFields, ModelFolder};

use super::models::Model;
use super::stored::StoredModel;
use super::{ComputePlace, ModelSource, RankPlace, is_gguf};

/// A model in files, of which nothing was read but what they hold.
enum ModelFiles {
    Gguf(Gguf),
    Stored(StoredModel),
    Folder(ModelFolder),
}

/// Files, and what they say of the model.
struct OpenedFiles {
    files: ModelFiles,
    fields: ModelFields,
    shapes: HashMap<String, Vec<usize>>,
}

impl OpenedFiles {
    /// Opens a file, a folder, or the folder of a checkpoint. Checksums of a folder are compared where that is asked for:
    /// for that all of it is read.
    fn open(path: &Path, compares: bool) -> Result<Self, Failure> {
        let (files, fields) = if is_gguf(path) {
            let gguf = Gguf::open(path).map_err(Failure::error)?;
            let fields = weights::gguf_fields(&gguf).map_err(Failure::error)?;
            (ModelFiles::Gguf(gguf), fields)
        } else if let Some(stored) = StoredModel::open(path)? {
            let fields = stored.fields()?;
            (ModelFiles::Stored(stored), fields)
        } else {
            if compares {
                weights::verify(path).map_err(Failure::error)?;
            }
            let folder = ModelFolder::open(path).map_err(Failure::error)?;
            let fields = folder.fields().clone();
            (ModelFiles::Folder(folder), fields)
        };
        Ok(Self {
            shapes: fields.tensor_shapes().into_iter().collect(),
            files,
            fields,
        })
    }

    /// Reads a box of a tensor, row by row.
    fn read(&self, name: &str, part: &[Range<usize>]) -> Result<Vec<f32>, Failure> {
        match &self.files {
            ModelFiles::Gguf(gguf) => {
                let shape = self.shapes.get(name).cloned().unwrap_or_default();
                let tensor = weights::gguf_tensor(gguf, &self.fields, name, shape);
                Ok(tensor.map_err(Failure::error)?.part(part))
            }
            ModelFiles::Stored(stored) => stored.part(name, part),
            ModelFiles::Folder(folder) => folder.read(name, part).map_err(Failure::error),
        }
    }
}

impl RankPlace {
    /// What its rank keeps of a model, with so many rows of each matrix together.
    fn keeps(&self, rows: usize) -> RankKeeps {
        let shard = self.sharing.shard_place(self.rank);
        RankKeeps {
            part: self.sharing.place(self.rank),
            shard: shard.map(|place| (place, rows)),
        }
    }

    /// Returns true where another rank has the same of a model, and an optimiser for the same of that: the state of one
    /// could be that of the other.
    pub(crate) fn has_state_of(&self, other: &Self, rows: usize) -> bool {
        let settings = |of: &Sharing| (of.zero, of.params, of.ahead);
        // Shares of an optimiser go by the number of a rank among all.
        let share = |of: &Self| (of.rank, of.sharing.ranks());
        let is_shared = self.sharing.zero == ZeroStage::Optimizer;
        settings(&self.sharing) == settings(&other.sharing)
            && self.keeps(rows) == other.keeps(rows)
            && (!is_shared || share(self) == share(other))
    }

    /// Checks that what its rank keeps can have adapters, which are on whole matrices.
    pub(super) fn check_adapters(&self) -> Result<(), Failure> {
        let RankKeeps { part, shard } = self.keeps(1);
        let ranks = [
            (RankKind::Tensor, part.tensor.ranks),
            (RankKind::Expert, part.experts.ranks),
            (RankKind::Stage, part.stage.rank.ranks),
            (
                RankKind::Shard,
                shard.map_or(1, |(place, _)| place.data.ranks),
            ),
        ];
        match ranks.into_iter().find(|(_, ranks)| *ranks > 1) {
            None => Ok(()),
            Some((kind, ranks)) => Err(Failure::error(PartError::Adapters { kind, ranks }).fatal()),
        }
    }
}

impl ComputePlace {
    /// What a rank keeps of a model, with its first weights, with or without a value head. Nothing else is drawn, and of
    /// files nothing else is read, but that the first rank compares checksums where there are some. So many rows of each
    /// matrix stay together.
    ///
    /// # Errors
    /// The model cannot be read, or shared like this.
    pub(crate) fn part(
        &self,
        (source, seed): (&ModelSource, u64),
        value_head: bool,
        (place, rows): (&RankPlace, usize),
    ) -> Result<Model, Failure> {
        let backend = self.backend()?;
        let of_rank = |config| {
            Model::of_rank(backend, config, place.keeps(rows)).map_err(|error| match error {
                RankModelError::Part(error) => Failure::error(error).fatal(),
                error => Failure::error(error),
            })
        };
        match source {
            ModelSource::Fresh(config) => {
                let config = ModelConfig {
                    value_head,
                    ..ModelConfig::clone(config)
                };
                let mut values = SeededValues::new(&config, seed);
                let mut model = of_rank(config)?;
                model.fill(|name, part| Ok::<_, Failure>(values.read(name, part)))?;
                Ok(model)
            }
            ModelSource::Load(path) => {
                let files = OpenedFiles::open(path, place.rank == 0)?;
                let own = files.fields.model_config();
                // A critic begins with a head of zeros.
                let adds_head = value_head && !own.value_head;
                let mut model = of_rank(ModelConfig {
                    value_head: own.value_head || value_head,
                    ..own
                })?;
                model.fill(
                    |name, part| match adds_head && name.starts_with("value_head.") {
                        true => Ok(vec![0.0; part.iter().map(ExactSizeIterator::len).product()]),
                        false => files.read(name, part),
                    },
                )?;
                Ok(model)
            }
        }
    }
}

#[cfg(test)]
mod tests;
