//! The part of a save that goes on by itself: a rank writes its files, and rank 0 makes of them a
//! checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::{Keep, SaveError, Saved, SavedReader, add_pieces, text};
use crate::checkpointer::{Cached, Inner};
use crate::commit::{self, Entry};
use crate::file::{FilePlan, crcs};
use crate::loader_state::blob_name;
use crate::manifest::{Blob, File, Manifest};
use crate::peers::Own;
use crate::ranks::{down, up};
use crate::stage::{Stage, StageTime, Watch};

/// Files and blobs that ranks have written, with their checksums.
#[derive(Serialize, Deserialize)]
struct Written {
    files: Vec<Sums>,
    blobs: Vec<(String, Blob)>,
    readers: Vec<(String, usize, usize)>,
    stages: Vec<StageTime>,
}

/// The checksums of a file.
#[derive(Serialize, Deserialize)]
struct Sums {
    header: u32,
    /// Of each block of each box.
    boxes: Vec<Vec<u32>>,
}

/// A blob under its name, and what it is.
type NamedBlob = (String, Blob, Bytes);

/// Which rank failed, and why.
type Failed = (usize, String);

/// All that is left to do when the caller goes on.
pub(super) struct Work {
    pub(super) inner: Arc<Inner>,
    pub(super) entry: Entry,
    pub(super) cached: Cached,
    pub(super) snapshot: Result<Bytes, String>,
    pub(super) blobs: Vec<(String, Bytes)>,
    pub(super) readers: Vec<SavedReader>,
    pub(super) keep: Keep,
    pub(super) stages: Vec<StageTime>,
}

impl Work {
    pub(super) async fn finish(mut self) -> Result<Saved, SaveError> {
        let inner = self.inner.clone();
        let (ranks, tree) = (&*inner.ranks, &inner.tree);
        let (rank, step) = (ranks.rank(), self.entry.step);
        let lost = |source| SaveError::Ranks { step, source };
        let done = self.write().await.map_err(|detail| (rank, detail));
        let mut bytes: u64 = self
            .cached
            .files
            .iter()
            .map(|file| file.bytes() as u64)
            .sum();
        if let Ok(written) = &done {
            bytes += written
                .blobs
                .iter()
                .map(|(_, blob)| blob.bytes)
                .sum::<u64>();
        }

        let committing = Watch::begin(rank);
        let all: Vec<Result<(usize, Written), Failed>> = vec![done.map(|written| (rank, written))];
        let all = up(ranks, tree, all, Extend::extend).await.map_err(lost)?;
        let outcome = match all {
            None => None,
            Some(all) => Some(match all {
                Err(source) => Err(lost(source)),
                Ok(all) => self.complete(all).await,
            }),
        };
        let outcome: Result<Option<Manifest>, SaveError> =
            down(ranks, tree, outcome).await.map_err(lost)?;
        let manifest = outcome?;
        self.stages
            .push(inner.tell(step, committing.end(Stage::Commit, 0)));
        if let (Some(peers), Some(manifest)) = (&inner.peers, manifest) {
            peers.complete(&self.entry, manifest);
        }

        Ok(Saved {
            entry: Entry {
                complete: true,
                ..self.entry
            },
            bytes,
            stages: self.stages,
        })
    }

    /// Writes this rank's files.
    async fn write(&mut self) -> Result<Written, String> {
        let inner = self.inner.clone();
        let step = self.entry.step;
        let (blobs, readers) = self.blobs();
        let snapshot = std::mem::replace(&mut self.snapshot, Err("it was taken".into()));
        self.give_to_peers(&snapshot, &blobs).await?;
        let snapshot = snapshot?;
        let uploading = Watch::begin(inner.ranks.rank());
        let written = self.write_files(&snapshot).await?;
        if self.keep == Keep::Stored {
            self.put_blobs(&blobs).await?;
        }

        let (files, times): (Vec<Sums>, Vec<StageTime>) = written.into_iter().unzip();
        let serialised = times.into_iter().reduce(|sum, time| StageTime {
            bytes: sum.bytes + time.bytes,
            seconds: sum.seconds + time.seconds,
            ..sum
        });
        self.stages
            .extend(serialised.map(|time| inner.tell(step, time)));
        let bytes = self.cached.files.iter().map(FilePlan::bytes).sum();
        self.stages
            .push(inner.tell(step, uploading.end(Stage::Upload, bytes)));
        Ok(Written {
            files,
            blobs: blobs
                .into_iter()
                .map(|(name, blob, _)| (name, blob))
                .collect(),
            readers,
            stages: self.stages.clone(),
        })
    }

    /// Gives the neighbour what this rank writes, where checkpoints are kept in memory.
    async fn give_to_peers(
        &self,
        snapshot: &Result<Bytes, String>,
        blobs: &[NamedBlob],
    ) -> Result<(), String> {
        let Some(peers) = &self.inner.peers else {
            return match self.keep {
                Keep::Stored => Ok(()),
                Keep::InMemory => {
                    Err("it was to be kept in the memory of peers, and there are none".into())
                }
            };
        };
        // Also where there is no snapshot, since the neighbour waits.
        let files = snapshot.as_ref().map(|bytes| self.files(bytes).collect());
        let own = Own {
            files: files.unwrap_or_default(),
            blobs: blobs
                .iter()
                .map(|(_, blob, bytes)| (blob.file.clone(), bytes.clone()))
                .collect(),
        };
        peers
            .exchange(&*self.inner.ranks, &self.entry, own)
            .await
            .map_err(text)
    }

    /// Writes the files, several at a time, and gives the checksums of each in their order.
    async fn write_files(&self, snapshot: &Bytes) -> Result<Vec<(Sums, StageTime)>, String> {
        let files: Vec<(String, Vec<Bytes>)> = self.files(snapshot).collect();
        let written = files
            .into_iter()
            .enumerate()
            .map(|(at, (name, pieces))| async move {
                let boxes = self.cached.files[at].boxes.iter();
                let ranges = boxes.map(|placed| placed.start..placed.start + placed.write.bytes);
                let written = self.write_file(&name, &pieces, ranges.collect()).await?;
                Ok::<_, String>((at, written))
            });
        let mut written: Vec<(usize, (Sums, StageTime))> = stream::iter(written)
            .buffer_unordered(self.inner.options.files.max(1))
            .try_collect()
            .await?;
        written.sort_unstable_by_key(|(at, _)| *at);
        Ok(written.into_iter().map(|(_, written)| written).collect())
    }

    /// Writes a file, and sums up its header and its boxes meanwhile.
    async fn write_file(
        &self,
        name: &str,
        pieces: &[Bytes],
        boxes: Vec<Range<usize>>,
    ) -> Result<(Sums, StageTime), String> {
        let (header, data) = (pieces[0].clone(), pieces[1].clone());
        let block_bytes = self.inner.options.block_bytes;
        let adding = Watch::begin(self.inner.ranks.rank());
        let sums = tokio::task::spawn_blocking(move || {
            let boxes = boxes.into_iter().map(|range| {
                let bytes = data.get(range).unwrap_or_default();
                crcs(bytes, block_bytes).collect()
            });
            let sums = Sums {
                header: crc32fast::hash(&header),
                boxes: boxes.collect(),
            };
            (sums, adding.end(Stage::Serialise, data.len()))
        });
        let put = async {
            match self.keep {
                Keep::Stored => self.inner.storage.put(&self.entry.file(name), pieces).await,
                Keep::InMemory => Ok(()),
            }
        };
        let (sums, put) = tokio::join!(sums, put);
        put.map_err(text)?;
        sums.map_err(text)
    }

    /// Writes the blobs, several at a time: most are small, and each waits for the disk.
    async fn put_blobs(&self, blobs: &[NamedBlob]) -> Result<(), String> {
        let mut puts = vec![];
        for (_, blob, bytes) in blobs {
            let file = self.entry.file(&blob.file);
            puts.push(async move {
                let put = self.inner.storage.put(&file, std::slice::from_ref(bytes));
                put.await.map_err(text)
            });
        }
        let puts = stream::iter(puts).buffer_unordered(self.inner.options.files.max(1));
        puts.try_collect().await
    }

    /// The files with their headers and their bytes in the snapshot.
    fn files(&self, snapshot: &Bytes) -> impl Iterator<Item = (String, Vec<Bytes>)> {
        let mut start = 0;
        self.cached.files.iter().map(move |file| {
            let data = snapshot.slice(start..start + file.data_bytes);
            start += file.data_bytes;
            (file.name.clone(), vec![file.header.clone().into(), data])
        })
    }

    /// The blobs under their names, those of readers of data loaders among them.
    fn blobs(&mut self) -> (Vec<NamedBlob>, Vec<(String, usize, usize)>) {
        let mut blobs = std::mem::take(&mut self.blobs);
        let mut readers = vec![];
        for reader in std::mem::take(&mut self.readers) {
            let name = blob_name(&reader.loader, reader.index);
            blobs.push((name, reader.state.encode()));
            readers.push((reader.loader, reader.index, reader.of));
        }
        let (rank, options) = (self.inner.ranks.rank(), self.inner.options);
        let named = blobs.into_iter().enumerate().map(|(index, (name, bytes))| {
            let blob = Blob {
                file: format!("rank-{rank:05}-{index:03}.blob"),
                bytes: bytes.len() as u64,
                crcs: crcs(&bytes, options.block_bytes).collect(),
            };
            (name, blob, bytes)
        });
        (named.collect(), readers)
    }

    /// At rank 0: makes the checkpoint complete, when all ranks have done their part. Peers get the
    /// manifest.
    async fn complete(
        &self,
        all: Vec<Result<(usize, Written), Failed>>,
    ) -> Result<Option<Manifest>, SaveError> {
        let step = self.entry.step;
        let failed = |(rank, detail): Failed| SaveError::Rank { step, rank, detail };
        let all: Result<BTreeMap<usize, Written>, Failed> = all.into_iter().collect();
        let manifest = self.manifest(all.map_err(failed)?).map_err(failed)?;
        if self.keep == Keep::Stored {
            let committed = commit::commit(&self.inner.storage, &self.entry, &manifest).await;
            committed.map_err(|error| failed((0, error.to_string())))?;
        }
        Ok(self.inner.peers.as_ref().map(|_| manifest))
    }

    fn manifest(&self, mut all: BTreeMap<usize, Written>) -> Result<Manifest, Failed> {
        let whole = self.cached.whole.as_ref();
        let whole = whole.ok_or_else(|| (0, "rank 0 has no plan of the others".to_owned()))?;
        let mut manifest = Manifest {
            sequence: self.entry.sequence,
            step: self.entry.step,
            ranks: whole.ranks.len(),
            block_bytes: self.inner.options.block_bytes,
            files: vec![],
            roles: BTreeMap::new(),
            loaders: BTreeMap::new(),
            blobs: BTreeMap::new(),
            stages: vec![],
        };
        let mut readers: BTreeMap<String, Vec<(usize, usize)>> = BTreeMap::new();
        for (rank, files) in whole.ranks.iter().enumerate() {
            let done = all
                .remove(&rank)
                .filter(|done| done.files.len() == files.len());
            let done = done.ok_or_else(|| (rank, "it has not said what it wrote".to_owned()))?;
            for (plan, sums) in files.iter().zip(done.files) {
                let file = File {
                    name: plan.name.clone(),
                    bytes: plan.bytes() as u64,
                    header_bytes: plan.header.len() as u64,
                    header_crc: sums.header,
                };
                add_pieces(&mut manifest, file, plan, sums.boxes);
            }
            for (name, blob) in done.blobs {
                if manifest.blobs.insert(name.clone(), blob).is_some() {
                    return Err((rank, format!("another rank gives a blob `{name}`, too")));
                }
            }
            for (loader, index, of) in done.readers {
                readers.entry(loader).or_default().push((index, of));
            }
            manifest.stages.extend(done.stages);
        }
        manifest.add_empty(&whole.empty);
        manifest.sort();
        for (loader, mut there) in readers {
            there.sort_unstable();
            let of = there.len();
            if there
                .iter()
                .enumerate()
                .any(|(index, reader)| *reader != (index, of))
            {
                let detail = format!("the readers of `{loader}` are not all there: {there:?}");
                return Err((0, detail));
            }
            manifest.loaders.insert(loader, of);
        }
        Ok(manifest)
    }
}
