//! State that a run saves: the model, the moments of its optimiser, and the place where its data
//! goes on.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use odeon::Failure;
use odeon_algorithms::parallel::{ByteRun, Region};
use odeon_algorithms::train::{self, StateError, StatePart};
use odeon_checkpoint::commit::{FindError, find};
use odeon_checkpoint::manifest::{Blob, Manifest};
use odeon_checkpoint::{Dtype, Held, Local, LocalTensor, MODEL, Source, Storage, Target, Which};
use odeon_data::plan::PlanState;

use crate::engine::compute::Optimizer;

/// Name of the blob with the planner's state before the next step.
pub(super) const DATA: &str = "data.json";

/// Name of the blob with the optimiser's settings.
pub(super) const OPTIMIZER: &str = "optimizer.json";

/// The model that a run trains.
const ROLE: &str = "actor";

/// Opens the place of a run's checkpoints, and makes it where it is absent.
pub(super) fn storage(place: &Path) -> Result<Storage, Failure> {
    let place = place.to_str();
    let place = place.ok_or_else(|| Failure::error("the place of checkpoints is no text"))?;
    Storage::create(place).map_err(|error| Failure::error(error).fatal())
}

/// The steps of the newest checkpoint, and where its data goes on.
///
/// # Errors
/// It cannot be read, or is another optimiser's ([`StateError::Optimizer`] says whose).
pub(super) async fn newest(
    storage: &Storage,
    own: train::Optimizer,
) -> Result<Option<(u64, PlanState)>, Failure> {
    let (entry, manifest) = match find(storage, Which::Latest).await {
        Ok(found) => found,
        Err(FindError::Nothing { .. }) => return Ok(None),
        Err(error) => return Err(Failure::error(error).fatal()),
    };
    let text = |blob: &Blob| {
        let file = entry.file(&blob.file);
        async move { storage.get(&file).await.map_err(Failure::error) }
    };
    let theirs = match manifest.blobs.get(OPTIMIZER) {
        Some(blob) => {
            let theirs: train::Optimizer = serde_json::from_slice(&text(blob).await?)
                .map_err(|error| Failure::error(format!("{OPTIMIZER}: {error}")).fatal())?;
            Some(theirs.name())
        }
        None => unnamed(&manifest, own),
    };
    if let Some(found) = theirs.filter(|found| *found != own.name()) {
        let expected = own.name();
        return Err(Failure::error(StateError::Optimizer { found, expected }).fatal());
    }
    let lacks = || Failure::error(format!("checkpoint {entry} has no {DATA}")).fatal();
    let blob = manifest.blobs.get(DATA).ok_or_else(lacks)?;
    Ok(Some((entry.step, data_of(&text(blob).await?)?)))
}

/// The owner of a checkpoint that names none, where `own` does not keep the same: AdamW and Muon alone
/// wrote such ones.
fn unnamed(manifest: &Manifest, own: train::Optimizer) -> Option<&'static str> {
    let states = manifest.roles.get(ROLE)?;
    let kept = states.keys().filter(|state| *state != MODEL);
    (!kept.eq(own.state())).then_some("AdamW or Muon")
}

/// Where data goes on, as a checkpoint has it.
pub(super) fn data_of(bytes: &Bytes) -> Result<PlanState, Failure> {
    serde_json::from_slice(bytes)
        .map_err(|error| Failure::error(format!("{DATA}: {error}")).fatal())
}

/// The parts of an optimiser, as checkpoints name them.
fn parts(optimizer: &Optimizer) -> impl Iterator<Item = (StatePart, &'static str)> {
    let kept = optimizer.config().optimizer.state().iter().enumerate();
    let kept = kept.map(|(number, name)| (StatePart::State(number), *name));
    std::iter::once((StatePart::Parameters, MODEL)).chain(kept)
}

/// The state that a rank has: all of it, as all others have. Who writes what of it is the plan's
/// matter.
pub(super) fn local(optimizer: &Optimizer) -> Result<Local, Failure> {
    let mut local = Local::default();
    for (_, state) in parts(optimizer) {
        let entries = optimizer.model().layout().entries().iter();
        let tensors = entries.map(|entry| LocalTensor {
            name: entry.name.clone(),
            dtype: Dtype::F32,
            shape: entry.shape.clone(),
            held: Held::Region(Region::whole(&entry.shape)),
        });
        local
            .add(ROLE, state, tensors.collect())
            .map_err(Failure::error)?;
    }
    Ok(local)
}

/// Part and begin of a tensor, by its number in what [`local`] says.
fn place(optimizer: &Optimizer, tensor: usize) -> Result<(StatePart, usize), String> {
    let entries = optimizer.model().layout().entries();
    let part = parts(optimizer).nth(tensor / entries.len().max(1));
    let (part, _) = part.ok_or_else(|| format!("there is no tensor {tensor}"))?;
    Ok((part, entries[tensor % entries.len()].range.start))
}

/// An optimiser that goes into checkpoints and comes out of them, by several threads.
pub(super) struct Trainee(pub(super) Mutex<Optimizer>);

impl Trainee {
    pub(super) fn lock(&self) -> MutexGuard<'_, Optimizer> {
        // One that panicked in the middle of a step has ended its rank.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Trainee {
    fn copy(&self, tensor: usize, range: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        let optimizer = self.lock();
        let (part, begin) = place(&optimizer, tensor)?;
        let mut numbers = [0.0; PIECE];
        for (at, out) in (range.start / 4..)
            .step_by(PIECE)
            .zip(out.chunks_mut(4 * PIECE))
        {
            let numbers = &mut numbers[..out.len() / 4];
            optimizer.read_part(part, begin + at, numbers);
            for (four, number) in out.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                *four = number.to_le_bytes();
            }
        }
        Ok(())
    }
}

impl Target for Trainee {
    fn write(
        &self,
        tensor: usize,
        bytes: &[u8],
        runs: &mut dyn Iterator<Item = ByteRun>,
    ) -> Result<(), String> {
        let mut optimizer = self.lock();
        let (part, begin) = place(&optimizer, tensor)?;
        for run in runs {
            let from = bytes.get(run.source..run.source + run.bytes);
            let from = from.ok_or_else(|| format!("tensor {tensor} is cut off"))?;
            let fours = from.as_chunks::<4>().0.iter();
            let numbers: Vec<f32> = fours.map(|four| f32::from_le_bytes(*four)).collect();
            optimizer.write_part(part, begin + run.target / 4, &numbers);
        }
        Ok(())
    }
}

/// Numbers that are converted at a time: 16 KiB.
const PIECE: usize = 4096;
