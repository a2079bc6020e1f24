//! Saving: who waits for what.
//!
//! ```text
//!  save() ──┬ wait for the save before ┬ plan, unless it is known ┬ copy into the pool ┐ returns
//!           └──────────────────────────┴──────────────────────────┴────────────────────┤
//!                checksums │ upload in parts ── all ranks are done ── manifest ── what is old goes
//! ```

mod writing;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::runtime::RuntimeFlavor;
use tokio::sync::watch;

use self::writing::Work;
use crate::checkpointer::{Cached, Checkpointer, Inner, Options, WholePlan, digest};
use crate::commit::{self, Entry};
use crate::file::FilePlan;
use crate::loader_state::ReaderState;
use crate::local::{Local, Source};
use crate::manifest::{File, Manifest, Piece};
use crate::plan::Census;
use crate::plan::save::{Item, PlanError, SavePlan, plan};
use crate::ranks::{RanksError, deal, down, read, up, written};
use crate::stage::{Stage, StageTime, Watch};

/// Everything that a rank gives to a checkpoint.
#[derive(Debug, Default)]
pub struct Save {
    /// The step of the training that it is of; the same at all ranks.
    pub step: u64,
    /// Parts of the tensors that this rank has.
    pub local: Local,
    /// Bytes under names of their own: the state of a random generator, the schedule. No two ranks
    /// give one of the same name.
    pub blobs: Vec<(String, Bytes)>,
    /// The states of readers of data loaders that this rank runs.
    pub readers: Vec<SavedReader>,
    /// Where it is kept; the same at all ranks.
    pub keep: Keep,
}

/// Where a checkpoint is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// In the storage, and in the memory of peers where there are any.
    #[default]
    Stored,
    /// In the memory of peers alone, which is quick and lost when neighbours are.
    InMemory,
}

/// The state of one reader of a data loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedReader {
    /// The loader's name.
    pub loader: String,
    /// Which of its readers.
    pub index: usize,
    /// Of how many.
    pub of: usize,
    /// Its state.
    pub state: ReaderState,
}

/// A save whose snapshot is taken, and which goes on by itself.
#[derive(Clone, Debug)]
pub struct Saving {
    entry: Entry,
    blocked: Vec<StageTime>,
    result: watch::Receiver<Option<Result<Saved, SaveError>>>,
    /// Set when the save has ended and checkpoints that are no longer kept are removed.
    over: watch::Receiver<bool>,
}

/// A checkpoint that is complete.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Saved {
    /// Which.
    pub entry: Entry,
    /// Bytes that this rank wrote.
    pub bytes: u64,
    /// Time that each stage took on this rank.
    pub stages: Vec<StageTime>,
}

/// Why there is no checkpoint. The one before is in force as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SaveError {
    /// Ranks could not agree.
    #[error("the checkpoint of step {step} was not made: {source}")]
    Ranks {
        /// The step.
        step: u64,
        /// Why not.
        source: RanksError,
    },
    /// The parts that ranks have do not make up the state of a job.
    #[error("the checkpoint of step {step} was not made: {source}")]
    Plan {
        /// The step.
        step: u64,
        /// Why not.
        source: PlanError,
    },
    /// A rank could not do its part.
    #[error("the checkpoint of step {step} was not made: rank {rank}: {detail}")]
    Rank {
        /// The step.
        step: u64,
        /// The rank.
        rank: usize,
        /// Why not, with the file and the byte.
        detail: String,
    },
}

/// Message of ranks to rank 0 before a save.
#[derive(Serialize, Deserialize)]
struct Ask {
    digest: [u8; 32],
    /// Of which state of all ranks they have the plan, where all have the same.
    cached: Option<[u8; 32]>,
    steps: (u64, u64),
}

/// Answer of rank 0 to all ranks.
#[derive(Clone, Serialize, Deserialize)]
struct Answer {
    /// The number of the checkpoint.
    sequence: u64,
    /// The state of all ranks.
    key: [u8; 32],
    /// Set when all ranks have the plan for it.
    cached: bool,
}

impl Checkpointer {
    /// Takes a snapshot, and has it become a checkpoint while the caller goes on. What has to be
    /// waited for is the save before, agreeing (a word each way when nothing has changed since then),
    /// and the copy of what this rank writes into the pool.
    ///
    /// When this returns, `source` may change.
    ///
    /// # Errors
    /// [`SaveError`] when the ranks could not agree. What fails later is told by [`Saving::wait`].
    #[odeon_macros::boxed]
    pub async fn save(&mut self, save: Save, source: &dyn Source) -> Result<Saving, SaveError> {
        let inner = self.inner.clone();
        let rank = inner.ranks.rank();
        let step = save.step;
        let mut blocked = vec![];

        let waiting = Watch::begin(rank);
        if let Err(error) = self.settle().await {
            tracing::warn!("{error}");
        }
        blocked.push(inner.tell(step, waiting.end(Stage::Wait, 0)));

        let planning = Watch::begin(rank);
        let (entry, cached) = self.agree(step, &save.local).await?;
        blocked.push(inner.tell(step, planning.end(Stage::Plan, 0)));

        let copying = Watch::begin(rank);
        let bytes = cached.files.iter().map(|file| file.data_bytes).sum();
        let snapshot = aside(|| {
            let mut lease = inner.pool.take(bytes)?;
            let threads = inner.options.threads;
            fill(lease.bytes_mut(), &cached.files, source, threads)?;
            Ok(lease.freeze())
        });
        blocked.push(inner.tell(step, copying.end(Stage::Snapshot, bytes)));

        let (told, result) = watch::channel(None);
        let (ended, over) = watch::channel(false);
        let saving = Saving {
            entry: entry.clone(),
            blocked: blocked.clone(),
            result,
            over,
        };
        let work = Work {
            inner,
            entry,
            cached,
            snapshot,
            blobs: save.blobs,
            readers: save.readers,
            keep: save.keep,
            stages: blocked,
        };
        // Who waits for it hears of a panic as of a rank that is lost.
        tokio::spawn(async move {
            let (inner, entry, keep) = (work.inner.clone(), work.entry.clone(), work.keep);
            let result = Box::pin(work.finish()).await;
            let complete = result.is_ok();
            told.send_replace(Some(result));
            if complete && keep == Keep::Stored {
                collect(&inner, &entry).await;
            }
            ended.send_replace(true);
        });
        self.previous = Some(saving.clone());
        Ok(saving)
    }

    /// Waits for the save that is under way, if there is one, and for what it removes.
    ///
    /// # Errors
    /// [`SaveError`].
    #[odeon_macros::boxed]
    pub async fn settle(&mut self) -> Result<(), SaveError> {
        match self.previous.take() {
            Some(mut saving) => {
                let saved = saving.wait().await.map(drop);
                // Where it is dropped there is nothing to wait for.
                let _ = saving.over.wait_for(|over| *over).await;
                saved
            }
            None => Ok(()),
        }
    }

    /// Plans a save before its time, so that the first one does not wait for that. Returns how many
    /// bytes this rank will write: what [`Pool::reserve`](crate::pool::Pool::reserve) wants to know.
    ///
    /// # Errors
    /// [`SaveError`] when the ranks could not agree.
    #[odeon_macros::boxed]
    pub async fn plan_ahead(&mut self, local: &Local) -> Result<usize, SaveError> {
        let (_, cached) = self.agree(0, local).await?;
        Ok(cached.files.iter().map(|file| file.data_bytes).sum())
    }

    /// Finds the plan: the one that all ranks have, or a new one.
    async fn agree(&mut self, step: u64, local: &Local) -> Result<(Entry, Cached), SaveError> {
        let inner = self.inner.clone();
        let (ranks, tree) = (&*inner.ranks, &inner.tree);
        let lost = |source| SaveError::Ranks { step, source };
        let own = digest(local, &inner.options);
        let ask = Ask {
            digest: own,
            cached: self
                .cached
                .as_ref()
                .filter(|cached| cached.own == own)
                .map(|known| known.key),
            steps: (step, step),
        };
        let asked = up(ranks, tree, ask, |own, other| {
            own.digest = both(&own.digest, &other.digest);
            own.cached = own.cached.filter(|key| other.cached == Some(*key));
            own.steps.0 = own.steps.0.min(other.steps.0);
            own.steps.1 = own.steps.1.max(other.steps.1);
        });
        let answer = match asked.await.map_err(lost)? {
            None => None,
            Some(asked) => Some(self.answer(step, asked).await),
        };
        let answer = down(ranks, tree, answer).await.map_err(lost)??;
        let entry = Entry::new(answer.sequence, step);
        if answer.cached
            && let Some(cached) = &self.cached
        {
            return Ok((entry, cached.clone()));
        }
        let cached = self.plan(step, local, own, answer.key).await?;
        self.cached = Some(cached.clone());
        Ok((entry, cached))
    }

    /// The answer of rank 0 to the messages of all ranks.
    async fn answer(
        &mut self,
        step: u64,
        asked: Result<Ask, RanksError>,
    ) -> Result<Answer, SaveError> {
        let asked = asked.map_err(|source| SaveError::Ranks { step, source })?;
        let refused = |detail: String| SaveError::Rank {
            step,
            rank: 0,
            detail,
        };
        if asked.steps.0 != asked.steps.1 {
            let (first, last) = asked.steps;
            return Err(refused(format!(
                "ranks save different steps: {first} and {last}"
            )));
        }
        let sequence = match self.next {
            Some(next) => next,
            None => {
                let entries = commit::list(&self.inner.storage).await;
                let entries = entries.map_err(|error| refused(error.to_string()))?;
                entries.last().map_or(1, |last| last.sequence + 1)
            }
        };
        self.next = Some(sequence + 1);
        let known = self
            .cached
            .as_ref()
            .is_some_and(|cached| cached.whole.is_some());
        Ok(Answer {
            sequence,
            key: asked.digest,
            cached: known && asked.cached == Some(asked.digest),
        })
    }

    async fn plan(
        &self,
        step: u64,
        local: &Local,
        own: [u8; 32],
        key: [u8; 32],
    ) -> Result<Cached, SaveError> {
        let inner = &self.inner;
        let (ranks, tree) = (&*inner.ranks, &inner.tree);
        let lost = |source| SaveError::Ranks { step, source };
        let census = Census::of(ranks.rank(), local.clone());
        let gathered = up(ranks, tree, census, Census::join).await.map_err(lost)?;
        let (mut whole, mut parts) = (None, None);
        if let Some(gathered) = gathered {
            let options = inner.options;
            let planned = gathered.map_err(lost).and_then(|census| {
                whole_plan(census, &options).map_err(|source| SaveError::Plan { step, source })
            });
            let part = |rank: usize| match &planned {
                Ok((plan, _)) => written(&Ok::<_, SaveError>(plan.of(rank))),
                Err(error) => written(&Err::<Vec<Item>, _>(error)),
            };
            parts = Some((0..ranks.ranks()).map(part).collect());
            whole = planned.ok().map(|(_, whole)| Arc::new(whole));
        }
        let part = deal(ranks, tree, parts).await.map_err(lost)?;
        let items: Result<Vec<Item>, SaveError> = read(0, &part).map_err(lost)?;
        let file_bytes = inner.options.file_bytes;
        let files = FilePlan::all(ranks.rank(), &items?, local, file_bytes);
        let files = files.ok_or_else(|| SaveError::Rank {
            step,
            rank: ranks.rank(),
            detail: "the plan is of other tensors than this rank has".into(),
        })?;
        Ok(Cached {
            key,
            own,
            files: Arc::new(files),
            whole,
        })
    }
}

impl Saving {
    /// Which checkpoint it becomes.
    #[must_use]
    pub const fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Time for which the caller has waited, by stage.
    #[must_use]
    pub fn blocked(&self) -> &[StageTime] {
        &self.blocked
    }

    /// Waits until the checkpoint is complete.
    ///
    /// # Errors
    /// [`SaveError`]; the checkpoint before is in force then.
    #[odeon_macros::boxed]
    pub async fn wait(&self) -> Result<Saved, SaveError> {
        let mut result = self.result.clone();
        let told = result.wait_for(Option::is_some).await;
        let told = told.ok().and_then(|told| told.clone());
        told.unwrap_or_else(|| {
            Err(SaveError::Rank {
                step: self.entry.step,
                rank: 0,
                detail: "the save was dropped with its runtime".into(),
            })
        })
    }
}

/// At rank 0: removes what is no longer kept.
async fn collect(inner: &Inner, entry: &Entry) {
    if inner.ranks.rank() != 0 {
        return;
    }
    let collecting = Watch::begin(0);
    let retention = inner.options.retention;
    if let Err(error) = commit::collect(&inner.storage, &retention, entry.sequence).await {
        tracing::warn!("what is no longer kept could not be removed: {error}");
    }
    inner.tell(entry.step, collecting.end(Stage::Collect, 0));
}

/// Adds a file with the boxes in it.
pub(crate) fn add_pieces(
    manifest: &mut Manifest,
    file: File,
    plan: &FilePlan,
    sums: Vec<Vec<u32>>,
) {
    let header_bytes = file.header_bytes;
    let at = manifest.files.len();
    manifest.files.push(file);
    for (placed, crcs) in plan.boxes.iter().zip(sums) {
        let tensor = manifest.entry(&placed.write.name, placed.dtype, &placed.shape);
        tensor.pieces.push(Piece {
            region: placed.write.region.clone(),
            file: at,
            start: header_bytes + placed.start as u64,
            crcs,
        });
    }
}

/// The boxes that each rank writes, and the files that they go into.
pub(crate) fn whole_plan(
    census: Census,
    options: &Options,
) -> Result<(SavePlan, WholePlan), PlanError> {
    let census = census.sorted();
    let mut plan = plan(&census, options.slice_bytes)?;
    let files = (0..census.ranks()).map(|rank| {
        let all = FilePlan::all(rank, plan.of(rank), &census.local(rank), options.file_bytes);
        all.ok_or_else(|| PlanError::Impossible {
            rank,
            detail: "it has no such boxes".into(),
        })
    });
    let ranks = files.collect::<Result<_, _>>()?;
    let empty = std::mem::take(&mut plan.empty);
    Ok((plan, WholePlan { ranks, empty }))
}

/// Copies what a rank writes into the pool, in the order of its files, by several threads.
fn fill(
    mut into: &mut [u8],
    files: &[FilePlan],
    source: &dyn Source,
    threads: usize,
) -> Result<(), String> {
    let mut copies: Vec<(usize, Range<usize>, &mut [u8])> = vec![];
    let bytes = into.len();
    for placed in files.iter().flat_map(|file| &file.boxes) {
        let (mut start, end) = (placed.write.start, placed.write.start + placed.write.bytes);
        while start < end {
            let next = end.min(start + COPY_BYTES);
            let (out, rest) = into.split_at_mut(next - start);
            into = rest;
            copies.push((placed.write.tensor, start..next, out));
            start = next;
        }
    }
    let copy = |copies: Vec<(usize, Range<usize>, &mut [u8])>| {
        let mut copies = copies.into_iter();
        copies.try_for_each(|(tensor, range, out)| source.copy(tensor, range, out))
    };
    if threads <= 1 || bytes < 2 * COPY_BYTES {
        return copy(copies);
    }
    let share = copies.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let mut running = vec![];
        while copies.len() > share {
            let own = copies.split_off(copies.len() - share);
            running.push(scope.spawn(|| copy(own)));
        }
        let own = copy(copies);
        let others = running.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err("copying into the pool panicked".into()))
        });
        others.fold(own, Result::and)
    })
}

/// Does what blocks this thread, and has others of the runtime take over what it has to do else.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match tokio::runtime::Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

fn both(a: &[u8; 32], b: &[u8; 32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(a).update(b);
    hasher.finalize().into()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A box is copied in pieces of so many bytes, so that threads share it.
const COPY_BYTES: usize = 8 << 20;
