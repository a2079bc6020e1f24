//! A checkpoint written anew, with files as ranks of another layout would have written them. None
//! needs that to load, since any layout loads any; it is for jobs that load often, and read less
//! when what a rank wants lies together.

use std::collections::BTreeMap;

use bytes::Bytes;
use odeon_algorithms::parallel::{CutError, ModelSpec, Part, SpecError};
use odeon_mesh::Mesh;

use crate::assemble::{AssembleError, Stored};
use crate::checkpointer::Options;
use crate::commit::{self, Entry, FindError, Which, find};
use crate::file::{FilePlan, crcs};
use crate::load::read_blob;
use crate::local::{Held, Local, LocalError, LocalTensor};
use crate::manifest::{File, Manifest};
use crate::plan::Census;
use crate::plan::save::PlanError;
use crate::save::{add_pieces, whole_plan};
use crate::storage::{Storage, StorageError};

/// The way in which a new checkpoint's files are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// As by the ranks of a mesh: layers along `pp`, matrices along `tp`.
    Mesh(Mesh),
    /// As by so many ranks that have equal ranges of all elements of each state (ZeRO).
    Flat(usize),
}

/// Why there is no new checkpoint. The one that was read is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReshardError {
    /// There is no such checkpoint.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] AssembleError),
    /// The new one could not be written.
    #[error(transparent)]
    Write(#[from] StorageError),
    /// Its tensors are no model that could be cut.
    #[error("`{state}` of `{role}` cannot be cut: {detail}")]
    Cut {
        /// The role.
        role: String,
        /// Its state.
        state: String,
        /// Why not.
        detail: String,
    },
    /// The cuts are no state of a job.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Writes a checkpoint anew into another place, or the same one, as its newest. One box of a file is
/// read at a time, and one file, of `options.file_bytes`, is in memory.
///
/// # Errors
/// [`ReshardError`].
#[odeon_macros::boxed]
pub async fn reshard(
    from: &Storage,
    which: Which,
    to: &Storage,
    cuts: Cuts,
    options: &Options,
) -> Result<Entry, ReshardError> {
    let (old, manifest) = find(from, which).await?;
    let locals = cuts.locals(&manifest)?;
    let mut census = Census::default();
    for (rank, local) in locals.iter().enumerate() {
        census.join(Census::of(rank, local.clone()));
    }
    let (_, plan) = whole_plan(census, options)?;
    let newest = commit::list(to)
        .await?
        .last()
        .map_or(0, |entry| entry.sequence);
    let entry = Entry::new(newest + 1, old.step);
    let stored = Stored {
        storage: from,
        entry: &old,
        manifest: &manifest,
    };
    let mut fresh = Manifest {
        sequence: entry.sequence,
        step: entry.step,
        ranks: locals.len(),
        block_bytes: options.block_bytes,
        files: vec![],
        roles: BTreeMap::new(),
        loaders: manifest.loaders.clone(),
        blobs: BTreeMap::new(),
        stages: vec![],
    };
    for file in plan.ranks.iter().flatten() {
        write(&stored, to, &entry, file, &mut fresh).await?;
    }
    for (index, (name, blob)) in manifest.blobs.iter().enumerate() {
        let bytes = read_blob(from, &old, blob, manifest.block_bytes).await;
        let bytes = bytes.map_err(AssembleError::from)?;
        let mut blob = blob.clone();
        blob.file = format!("{index:05}.blob");
        blob.crcs = crcs(&bytes, options.block_bytes).collect();
        to.put(&entry.file(&blob.file), &[bytes]).await?;
        fresh.blobs.insert(name.clone(), blob);
    }
    fresh.add_empty(&plan.empty);
    fresh.sort();
    commit::commit(to, &entry, &fresh).await?;
    Ok(Entry {
        complete: true,
        ..entry
    })
}

async fn write(
    stored: &Stored<'_>,
    to: &Storage,
    entry: &Entry,
    plan: &FilePlan,
    fresh: &mut Manifest,
) -> Result<(), ReshardError> {
    let mut pieces: Vec<Bytes> = vec![plan.header.clone().into()];
    let mut sums = vec![];
    for placed in &plan.boxes {
        let name = &placed.write.name;
        let tensor = stored
            .manifest
            .tensor(&name.role, &name.state, &name.tensor);
        let tensor = tensor.ok_or_else(|| AssembleError::Gap {
            name: name.to_string(),
            region: placed.write.region.to_string(),
        })?;
        let bytes = stored.region(name, tensor, &placed.write.region).await?;
        sums.push(crcs(&bytes, fresh.block_bytes).collect());
        pieces.push(bytes.into());
    }
    to.put(&entry.file(&plan.name), &pieces).await?;
    let file = File {
        name: plan.name.clone(),
        bytes: plan.bytes() as u64,
        header_bytes: plan.header.len() as u64,
        header_crc: crc32fast::hash(&plan.header),
    };
    add_pieces(fresh, file, plan, sums);
    Ok(())
}

impl Cuts {
    /// The part of a checkpoint that each rank has when it is cut like this.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when it cannot be cut like this.
    pub fn locals(&self, manifest: &Manifest) -> Result<Vec<Local>, ReshardError> {
        let ranks = match self {
            Self::Mesh(mesh) => mesh.len(),
            Self::Flat(ranks) => (*ranks).max(1),
        };
        let mut locals = vec![Local::default(); ranks];
        for (role, states) in &manifest.roles {
            for (state, tensors) in states {
                let cut = |detail: String| ReshardError::Cut {
                    role: role.clone(),
                    state: state.clone(),
                    detail,
                };
                let full = tensors.iter().filter(|(_, tensor)| tensor.bytes() > 0);
                let named = full.map(|(name, tensor)| {
                    (name.clone(), tensor.shape.clone(), tensor.element_bytes())
                });
                let spec = ModelSpec::named(named);
                let spec = spec.map_err(|error: SpecError| cut(error.to_string()))?;
                for (rank, local) in locals.iter_mut().enumerate() {
                    let shards = match self {
                        Self::Mesh(mesh) => spec.shards_on(mesh, rank),
                        Self::Flat(_) => Part::new(rank, ranks)
                            .map(|part| Ok(spec.flat(part)))
                            .unwrap_or_else(|| Ok(spec.whole())),
                    };
                    let shards = shards.map_err(|error: CutError| cut(error.to_string()))?;
                    let mut held: Vec<LocalTensor> = shards
                        .as_slice()
                        .iter()
                        .map(|shard| {
                            let tensor = &spec.tensors()[shard.tensor];
                            LocalTensor {
                                name: tensor.name.clone(),
                                dtype: tensors[&tensor.name].dtype,
                                shape: tensor.shape.clone(),
                                held: Held::Region(shard.region.clone()),
                            }
                        })
                        .collect();
                    if rank == 0 {
                        let empty = tensors.iter().filter(|(_, tensor)| tensor.bytes() == 0);
                        held.extend(empty.map(|(name, tensor)| LocalTensor {
                            name: name.clone(),
                            dtype: tensor.dtype,
                            shape: tensor.shape.clone(),
                            held: Held::Flat(0..0),
                        }));
                    }
                    local
                        .add(role, state, held)
                        .map_err(|error: LocalError| cut(error.to_string()))?;
                }
            }
        }
        Ok(locals)
    }
}
