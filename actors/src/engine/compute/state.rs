//! Tensors of an optimiser under the names that checkpoints have for them, and the owner of a checkpoint.
//!
//! ```text
//!  without adapters                 with adapters
//!  role/model       parameters      role/model       the model with its adapters merged: for others
//!  role/exp_avg     moments         role/adapters    the adapters, from which a trainer goes on
//!  role/exp_avg_sq                  role/exp_avg     their moments, of 8-bit Adam with scales of tiles
//!  optimizer.json   settings        adapters.json    their settings, and a sum of the weights below them
//!  hf/...           configuration and tokenizer of a model folder
//! ```

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use odeon::Failure;
use odeon_algorithms::model::LoraConfig;
use odeon_algorithms::parallel::{ByteRun, Region, Span};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{self, StateError, StateOwner, StatePart};
use odeon_algorithms::weights::{ModelFields, StoredType, texts};
use odeon_checkpoint::export::FOLDER_BLOBS;
use odeon_checkpoint::{
    Checkpointer, Dtype, Held, Load, Local, LocalTensor, MODEL, Opened, Options, Ranks, Save,
    Source, Storage, Target, Which, within,
};
use odeon_gpu::Layout;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::models::Optimizer;

/// The role of a model that is trained to write.
pub(crate) const ACTOR: &str = "actor";

/// The role of a model that is trained to say what states are worth.
pub(crate) const CRITIC: &str = "critic";

/// Name of the blob with the optimiser's settings.
const OPTIMIZER: &str = "optimizer.json";

/// Name of the blob that says which adapters these are.
const ADAPTERS_BLOB: &str = "adapters.json";

/// The state of a role's adapters.
const ADAPTERS: &str = "adapters";

/// Adapters of a checkpoint, and the weights below them.
#[derive(Serialize, Deserialize)]
struct AdaptersBlob {
    #[serde(flatten)]
    config: LoraConfig,
    /// CRC-32 of the frozen weights.
    base: u32,
}

/// Numbers that are one state of a checkpoint.
#[derive(Clone, Copy)]
enum Numbers {
    /// The model with its adapters merged.
    Merged,
    Part(StatePart),
}

/// Opens the place of a run's checkpoints, and makes it where it is absent.
pub(crate) fn storage(place: &Path) -> Result<Storage, Failure> {
    let made = std::fs::create_dir_all(place);
    made.map_err(|error| Failure::error(format!("making {}: {error}", place.display())))?;
    Storage::folder(place).map_err(Failure::error)
}

/// States that are read when a trainer goes on.
fn own(optimizer: &Optimizer) -> impl Iterator<Item = (Numbers, &'static str)> {
    let parameters = match optimizer.model().has_adapters() {
        true => ADAPTERS,
        false => MODEL,
    };
    let kept = optimizer.config().optimizer.state().iter().enumerate();
    let kept = kept.map(|(number, name)| (StatePart::State(number), *name));
    let parts = std::iter::once((StatePart::Parameters, parameters)).chain(kept);
    parts.map(|(part, name)| (Numbers::Part(part), name))
}

/// States that are written.
fn written(optimizer: &Optimizer) -> impl Iterator<Item = (Numbers, &'static str)> {
    let merged = optimizer.model().has_adapters();
    let merged = merged.then_some((Numbers::Merged, MODEL));
    merged.into_iter().chain(own(optimizer))
}

fn layout(optimizer: &Optimizer, numbers: Numbers) -> &Layout {
    match numbers {
        Numbers::Merged => optimizer.model().layout(),
        Numbers::Part(_) => optimizer.trained_layout(),
    }
}

/// Everything of a role that goes into a checkpoint: all that this rank has. Who writes what of it is the
/// plan's matter, where others have the same; of an optimiser or a model that ranks share each has a part.
pub(crate) fn local(role: &str, optimizer: &Optimizer) -> Result<Local, Failure> {
    local_of(role, optimizer, written(optimizer))
}

fn local_of(
    role: &str,
    optimizer: &Optimizer,
    states: impl Iterator<Item = (Numbers, &'static str)>,
) -> Result<Local, Failure> {
    let mut local = Local::default();
    for (numbers, state) in states {
        let tensors = local_tensors(optimizer, numbers);
        let added = local.add(role, state, tensors);
        added.map_err(Failure::error)?;
    }
    Ok(local)
}

/// The tensors of some numbers, and what this rank has of each.
fn local_tensors(optimizer: &Optimizer, numbers: Numbers) -> Vec<LocalTensor> {
    let entries = layout(optimizer, numbers).entries().iter();
    let part = optimizer.model().part();
    let tensors = entries.enumerate().map(|(number, entry)| {
        let cut = part.map(|part| &part.tensors()[number]);
        let shape = cut.map_or(&entry.shape, |cut| &cut.shape);
        let is_whole = cut.is_none_or(|cut| entry.shape == cut.shape);
        let [shape, own] = [shape, &entry.shape].map(|it| stored_shape(optimizer, numbers, it));
        // What is kept of blocks is of tensors that ranks have whole or not at all.
        let region = match cut {
            Some(cut) if own == entry.shape && !is_whole => {
                Region::new(cut.part.iter().cloned().map(Span::from).collect())
            }
            _ => Region::whole(&shape),
        };
        LocalTensor {
            name: entry.name.clone(),
            dtype: match element_bytes(optimizer, numbers) {
                1 => Dtype::U8,
                _ => Dtype::F32,
            },
            held: match held(optimizer, numbers, number) {
                held if held.is_empty() => Held::Flat(held),
                held if held == (0..own.iter().product()) => Held::Region(region),
                held => match optimizer.model().shard() {
                    Some(_) => rows_of(&region, &own, held),
                    None => Held::Flat(held),
                },
            },
            shape,
        }
    });
    tensors.collect()
}

/// A tensor of a model, and the box that a rank has of it, if it has any.
pub(super) struct HeldTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) region: Option<Region>,
}

/// The model of an optimiser with its adapters merged, tensor by tensor.
pub(super) fn weights(optimizer: &Optimizer) -> Vec<HeldTensor> {
    let numbers = match optimizer.model().has_adapters() {
        true => Numbers::Merged,
        false => Numbers::Part(StatePart::Parameters),
    };
    let tensors = local_tensors(optimizer, numbers).into_iter();
    let tensors = tensors.map(|tensor| HeldTensor {
        region: match tensor.held {
            Held::Region(region) if region.elements() > 0 => Some(region),
            // Parameters are cut between rows.
            Held::Region(_) | Held::Flat(_) => None,
        },
        name: tensor.name,
        shape: tensor.shape,
    });
    tensors.collect()
}

/// Some rows of a region of a tensor, by the numbers of a part of this shape that a rank keeps.
fn rows_of(region: &Region, shape: &[usize], own: Range<usize>) -> Held {
    let row: usize = shape[1..].iter().product();
    let mut spans = region.spans().to_vec();
    spans[0] = Span {
        offset: spans[0].offset + own.start / row,
        length: own.len() / row,
    };
    Held::Region(Region::new(spans))
}

/// The shape of what is stored of a tensor of this shape.
fn stored_shape(optimizer: &Optimizer, numbers: Numbers, shape: &[usize]) -> Vec<usize> {
    match numbers {
        Numbers::Part(part) => optimizer.stored_shape(part, shape),
        Numbers::Merged => shape.to_vec(),
    }
}

/// Bytes of an element of what is stored.
fn element_bytes(optimizer: &Optimizer, numbers: Numbers) -> usize {
    match numbers {
        Numbers::Part(part) => optimizer.stored_bytes(part),
        Numbers::Merged => 4,
    }
}

/// The elements of what is stored of a tensor that this rank has: it may have none.
fn held(optimizer: &Optimizer, numbers: Numbers, tensor: usize) -> Range<usize> {
    match numbers {
        Numbers::Part(part) => optimizer.stored(part, tensor),
        Numbers::Merged => 0..layout(optimizer, numbers).entries()[tensor].range.len(),
    }
}

/// The numbers that have a tensor, and the number of it among these, by its number in what [`local_of`] says.
fn place(
    optimizer: &Optimizer,
    states: impl Iterator<Item = (Numbers, &'static str)>,
    tensor: usize,
) -> Result<(Numbers, usize), String> {
    let mut left = tensor;
    for (numbers, _) in states {
        let entries = layout(optimizer, numbers).entries();
        match left.checked_sub(entries.len()) {
            None => return Ok((numbers, left)),
            Some(behind) => left = behind,
        }
    }
    Err(format!("there is no tensor {tensor}"))
}

/// Copies bytes of a tensor, of which `merged` has those of the merged model.
fn copy(
    optimizer: &Optimizer,
    merged: &[f32],
    tensor: usize,
    range: Range<usize>,
    out: &mut [u8],
) -> Result<(), String> {
    let (from, number) = place(optimizer, written(optimizer), tensor)?;
    let at = range.start / element_bytes(optimizer, from);
    match from {
        Numbers::Merged => {
            let begin = layout(optimizer, from).entries()[number].range.start + at;
            let numbers = merged.get(begin..begin + out.len() / 4);
            let numbers = numbers.ok_or_else(|| format!("tensor {tensor} has no such bytes"))?;
            StoredType::F32.write(numbers, out);
        }
        Numbers::Part(part) => optimizer.read_stored(part, number, at, out),
    }
    Ok(())
}

/// Puts bytes into a tensor that is read, from this one on.
fn put(optimizer: &mut Optimizer, tensor: usize, at: usize, bytes: &[u8]) -> Result<(), String> {
    match place(optimizer, own(optimizer), tensor)? {
        (Numbers::Merged, _) => Err("the merged model is not read".into()),
        (Numbers::Part(part), number) => {
            let at = at / optimizer.stored_bytes(part);
            optimizer.write_stored(part, number, at, bytes);
            Ok(())
        }
    }
}

/// A place for bytes of a tensor, by the one at which they begin.
type TakeBytes<'a> = &'a mut dyn FnMut(usize, &[u8]) -> Result<(), String>;

/// Gives runs of bytes to their places.
fn runs_of(
    tensor: usize,
    bytes: &[u8],
    runs: &mut dyn Iterator<Item = ByteRun>,
    take: TakeBytes<'_>,
) -> Result<(), String> {
    for run in runs {
        let from = bytes.get(run.source..run.source + run.bytes);
        let from = from.ok_or_else(|| format!("tensor {tensor} is cut off"))?;
        take(run.target, from)?;
    }
    Ok(())
}

/// An optimiser that goes into checkpoints and comes out of them while others have it, by several threads.
pub(crate) struct Trainee(pub(crate) Mutex<Optimizer>);

impl Trainee {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Optimizer> {
        // One that panicked in the middle of a step has ended its rank.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Trainee {
    fn copy(&self, tensor: usize, range: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        copy(&self.lock(), &[], tensor, range, out)
    }
}

impl Target for Trainee {
    fn write(
        &self,
        tensor: usize,
        bytes: &[u8],
        runs: &mut dyn Iterator<Item = ByteRun>,
    ) -> Result<(), String> {
        runs_of(tensor, bytes, runs, &mut |at, bytes| {
            put(&mut self.lock(), tensor, at, bytes)
        })
    }
}

/// An optimiser that nobody changes while it goes into a checkpoint.
struct Still<'a> {
    optimizer: &'a Optimizer,
    merged: Cow<'a, [f32]>,
}

impl Source for Still<'_> {
    fn copy(&self, tensor: usize, range: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        copy(self.optimizer, &self.merged, tensor, range, out)
    }
}

/// Bytes that were read: of which tensor, from which on.
type Piece = (usize, usize, Vec<u8>);

/// The way of bytes to the thread that has the optimiser.
struct Handed(SyncSender<Piece>);

impl Target for Handed {
    fn write(
        &self,
        tensor: usize,
        bytes: &[u8],
        runs: &mut dyn Iterator<Item = ByteRun>,
    ) -> Result<(), String> {
        runs_of(tensor, bytes, runs, &mut |at, bytes| {
            let sent = self.0.send((tensor, at, bytes.to_vec()));
            sent.map_err(|_| "nobody takes what is read".to_owned())
        })
    }
}

/// Saves what an optimiser has, with blobs, and waits until that is safe and what is no longer kept is gone.
pub(super) fn save(
    storage: Storage,
    options: Options,
    optimizer: &Optimizer,
    save: Save,
    savers: &CheckpointRanks,
) -> Result<(), Failure> {
    let merged = match optimizer.model().has_adapters() {
        true => optimizer.model().merged(),
        false => Cow::Borrowed(&[][..]),
    };
    let still = Still { optimizer, merged };
    savers.apart(async {
        let mut checkpoints = Checkpointer::new(storage, Arc::clone(&savers.ranks), options);
        checkpoints
            .save(save, &still)
            .await
            .map_err(Failure::error)?;
        checkpoints.settle().await.map_err(Failure::error)
    })
}

/// Loads what an optimiser has of a checkpoint, whose owner was checked.
pub(super) fn load(
    storage: Storage,
    which: Which,
    role: &str,
    optimizer: &mut Optimizer,
    savers: &CheckpointRanks,
) -> Result<(), Failure> {
    let local = local_of(role, optimizer, own(optimizer))?;
    let (sender, pieces) = sync_channel(PIECES);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            savers.block_on(async {
                let ranks = Arc::clone(&savers.ranks);
                let mut checkpoints = Checkpointer::new(storage, ranks, Options::default());
                let load = Load {
                    which,
                    local,
                    ..Load::default()
                };
                let loaded = checkpoints.load(load, &Arc::new(Handed(sender))).await;
                loaded.map(drop).map_err(Failure::error)
            })
        });
        // To the last of them, or the reader would wait for ever.
        let mut put_all = Ok(());
        for (tensor, at, bytes) in pieces {
            put_all = put_all.and_then(|()| put(optimizer, tensor, at, &bytes));
        }
        ended(reading)?;
        put_all.map_err(Failure::error)
    })
}

/// The ranks that save a model together, or load it.
#[derive(Clone)]
pub(crate) struct CheckpointRanks {
    ranks: Arc<dyn Ranks>,
    /// The runtime in which these reach each other.
    runtime: Option<Handle>,
}

impl CheckpointRanks {
    /// The only one.
    pub(crate) fn alone() -> Self {
        Self {
            ranks: Arc::new(within(1).remove(0)),
            runtime: None,
        }
    }

    /// Several, which reach each other in this runtime.
    pub(crate) fn of(ranks: impl Ranks + 'static, runtime: Handle) -> Self {
        Self {
            ranks: Arc::new(ranks),
            runtime: Some(runtime),
        }
    }

    /// Which of them this is.
    pub(super) fn rank(&self) -> usize {
        self.ranks.rank()
    }

    /// Waits for work, on another thread.
    fn apart<T: Send>(
        &self,
        work: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        std::thread::scope(|scope| ended(scope.spawn(|| self.block_on(work))))
    }

    /// Waits for work on a thread that has no runtime.
    fn block_on<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(work),
            None => block_on(work),
        }
    }
}

/// Waits for work on a storage, on a thread with a runtime of its own: engines are asked on threads of any
/// kind.
pub(super) fn apart<T: Send>(
    work: impl Future<Output = Result<T, Failure>> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| ended(scope.spawn(|| block_on(work))))
}

/// Waits for work on a thread that has no runtime.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(Failure::error)?.block_on(work)
}

/// The result of a thread, which panics here where it did there.
fn ended<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    let ended = thread.join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The blobs that say whose a checkpoint is.
pub(crate) fn owner_blobs(optimizer: &Optimizer) -> Result<Vec<(String, Bytes)>, Failure> {
    let text = |name: &str, value: Result<Vec<u8>, _>| match value {
        Ok(text) => Ok((name.to_owned(), Bytes::from(text))),
        Err(error) => Err(Failure::error(error)),
    };
    let settings = serde_json::to_vec(&optimizer.config().optimizer);
    let mut blobs = vec![text(OPTIMIZER, settings)?];
    if let StateOwner {
        adapters: Some(config),
        base,
        ..
    } = optimizer.owner()
    {
        let adapters = serde_json::to_vec(&AdaptersBlob { config, base });
        blobs.push(text(ADAPTERS_BLOB, adapters)?);
    }
    Ok(blobs)
}

/// The files that belong to the weights where these are exported. Numbers of a checkpoint are of four bytes;
/// the configuration names the type that the model came in, in which it is exported.
pub(crate) fn companions(
    fields: &ModelFields,
    tokenizer: Option<&Tokenizer>,
) -> Vec<(String, Bytes)> {
    let texts = texts(fields, None, tokenizer).into_iter();
    texts
        .map(|(name, text)| (format!("{FOLDER_BLOBS}{name}"), Bytes::from(text)))
        .collect()
}

/// Reads a blob of JSON; `None` where there is none of that name.
pub(super) async fn json<T: DeserializeOwned>(
    opened: &Opened,
    name: &str,
) -> Result<Option<T>, Failure> {
    let bytes = opened.blob(name).await.map_err(Failure::error)?;
    let read = bytes.map(|bytes| serde_json::from_slice(&bytes));
    read.transpose()
        .map_err(|error| Failure::error(format!("{name} of {}: {error}", opened.shown())))
}

/// Checks that a role's moments are those of this optimiser.
///
/// # Errors
/// They are another's ([`StateError::Optimizer`] says whose), or that cannot be told.
pub(crate) async fn check_optimizer(
    opened: &Opened,
    role: &str,
    own: train::Optimizer,
) -> Result<(), Failure> {
    let (found, expected) = (optimizer_of(opened, role, own).await?, own.name());
    if found != expected {
        return Err(Failure::error(StateError::Optimizer { found, expected }));
    }
    Ok(())
}

/// The optimiser of a checkpoint. One that names none was written by AdamW or Muon, and is `own` where that
/// keeps the same.
async fn optimizer_of(
    opened: &Opened,
    role: &str,
    own: train::Optimizer,
) -> Result<&'static str, Failure> {
    if let Some(theirs) = json::<train::Optimizer>(opened, OPTIMIZER).await? {
        return Ok(theirs.name());
    }
    let states = opened.manifest().roles.get(role);
    let kept = states.into_iter().flat_map(|states| states.keys());
    let same = kept.filter(|state| *state != MODEL).eq(own.state());
    Ok(if same { own.name() } else { "AdamW or Muon" })
}

/// Checks that an optimiser can go on from a checkpoint.
///
/// # Errors
/// [`StateError`] says what differs; or the checkpoint has no such role.
pub(super) fn check_owner(
    opened: &Opened,
    role: &str,
    optimizer: &Optimizer,
) -> Result<(), Failure> {
    let roles = &opened.manifest().roles;
    let states = roles.get(role).ok_or_else(|| {
        let there: Vec<&str> = roles.keys().map(String::as_str).collect();
        Failure::error(format!("it holds no `{role}`, but: {}", there.join(", ")))
    })?;
    let own = optimizer.config().optimizer;
    let (adapters, theirs) = apart(async {
        let adapters = json::<AdaptersBlob>(opened, ADAPTERS_BLOB).await?;
        Ok((adapters, optimizer_of(opened, role, own).await?))
    })?;
    let trained = match &adapters {
        Some(_) => ADAPTERS,
        None => MODEL,
    };
    let trained = states.get(trained).into_iter().flatten();
    let sizes = trained.map(|(_, tensor)| tensor.shape.iter().product::<usize>());
    let owner = StateOwner {
        parameters: sizes.sum::<usize>() as u64,
        optimizer: theirs,
        adapters: adapters.as_ref().map(|adapters| adapters.config),
        base: adapters.map_or(0, |adapters| adapters.base),
    };
    optimizer.check_owner(&owner).map_err(Failure::error)
}

/// Pieces of what is read that wait for the optimiser's thread, at most.
const PIECES: usize = 4;
