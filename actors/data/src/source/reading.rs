//! Reading the blocks of a source, and making a cell of their samples.

use std::{
    ops::Range,
    path::Path,
    sync::{Arc, PoisonError},
};

use bytes::{Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Cell, Inner, blocking,
    fault::{SkipReason, Skipped, SourceError},
    format::{At, Block, Raw, Records, foreign::foreign_bytes, idx, lines, pictures},
    order,
    spec::{Captions, Compression, Format, OnBad},
    storage::{Content, Stamp, Storage},
};
use crate::{
    sample::{Image, SampleId, SampleMeta},
    transform::Transform,
};

/// The bytes or rows that a block's records are read from.
enum Fetched {
    /// Of a format whose files are read each for itself.
    Block(Box<dyn Records>),
    Documents(Vec<(u32, Bytes)>),
    Pictures(Vec<pictures::Pictured>),
    Items(idx::Items),
}

/// The samples of a block.
#[derive(Default)]
pub(super) struct Made {
    bytes: Vec<u8>,
    samples: Vec<(Range<usize>, u32, Vec<u32>)>,
    skipped: Vec<Skipped>,
    records: u32,
}

impl Inner {
    /// Makes the samples of a block.
    pub(super) async fn make(
        inner: &Arc<Self>,
        epoch: u32,
        block: u32,
    ) -> Result<Made, SourceError> {
        let own = inner.index.blocks[block as usize];
        let name = inner.files.name(own.file);
        // A bucket answers slowly, and no thread should wait for it that could decode meanwhile.
        let early = match inner.storage {
            Storage::Disk => None,
            Storage::Objects { .. } => {
                let inner = Arc::clone(inner);
                Some(blocking(&name, move || inner.fetch(&own)).await?)
            }
        };
        let _thread = inner.thread().await;
        let inner = Arc::clone(inner);
        blocking(&name, move || {
            let fetched = match early {
                Some(fetched) => fetched,
                None => inner.fetch(&own)?,
            };
            inner.decode(epoch, block, &fetched)
        })
        .await
    }

    /// Leave to use a thread. There is none if nobody gives leave any more, which nobody says.
    pub(super) async fn thread(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.opening.threads).acquire_owned().await.ok()
    }

    /// A file as it is read: one that is compressed is decompressed before, if it is not there.
    fn content(&self, file: u32) -> Result<Content, SourceError> {
        let (origin, compression) = self.origin(file);
        if compression == Compression::None {
            return Ok(origin);
        }
        let is = origin.storage.stat(&origin.name)?;
        if is != Some(origin.stamp) {
            return Err(SourceError::Changed {
                file: origin.shown,
                was: origin.stamp.to_string(),
                is: is.map_or_else(|| "gone".into(), |is| is.to_string()),
            });
        }
        match self.spool.find(&origin.shown, origin.stamp) {
            Some(path) => self.spooled(origin, &path),
            None => self.fresh(file, &mut None),
        }
    }

    /// A file as it is read, decompressed again; and where it was cut off.
    pub(super) fn fresh(
        &self,
        file: u32,
        cut: &mut Option<(u64, String)>,
    ) -> Result<Content, SourceError> {
        let (origin, compression) = self.origin(file);
        if compression == Compression::None {
            return Ok(origin);
        }
        let _one = self.spooling.lock().unwrap_or_else(PoisonError::into_inner);
        let spooled = self.spool.fill(&origin, compression)?;
        *cut = spooled.damage;
        self.spooled(origin, &spooled.path)
    }

    fn origin(&self, file: u32) -> (Content, Compression) {
        let name = self.files.name(file);
        let is_compressible = match self.spec.format.of_files() {
            Some(format) => format.is_compressible(),
            None => !matches!(self.spec.format, Format::Images(_)),
        };
        let compression = match is_compressible {
            true => self.spec.compression.of(&name),
            false => Compression::None,
        };
        let content = Content {
            shown: self.storage.shown(&name),
            stamp: self.files.stamp(file),
            storage: self.storage.clone(),
            name,
            ends: Vec::new(),
        };
        (content, compression)
    }

    fn spooled(&self, origin: Content, path: &Path) -> Result<Content, SourceError> {
        let name = path.to_string_lossy().into_owned();
        let stamp = Storage::Disk.stat(&name)?;
        Ok(Content {
            // One that was removed meanwhile is missed when it is read.
            stamp: stamp.unwrap_or(Stamp {
                size: 0,
                version: 0,
            }),
            storage: Storage::Disk,
            name,
            shown: origin.shown,
            ends: Vec::new(),
        })
    }

    /// Reads what a block needs.
    fn fetch(&self, block: &Block) -> Result<Fetched, SourceError> {
        match self.fetch_once(block) {
            // Another process may have taken the room of a decompressed file; then it is made again.
            Err(SourceError::Changed { .. }) if self.origin(block.file).1 != Compression::None => {
                self.fetch_once(block)
            }
            fetched => fetched,
        }
    }

    fn fetch_once(&self, block: &Block) -> Result<Fetched, SourceError> {
        if let Some(format) = self.spec.format.of_files() {
            let fetched = format.fetch(&self.content(block.file)?, block)?;
            return Ok(Fetched::Block(fetched));
        }
        let files = || block.file..block.file + block.part;
        match &self.spec.format {
            Format::Images(images) => {
                let pictured = |file| {
                    let caption = match images.captions {
                        Captions::Listed { .. } => self.captions.caption(file),
                        Captions::Beside(_) => self.caption_beside(file)?,
                    };
                    Ok(pictures::Pictured {
                        file,
                        picture: self.content(file)?.whole()?,
                        caption,
                    })
                };
                files()
                    .map(pictured)
                    .collect::<Result<_, _>>()
                    .map(Fetched::Pictures)
            }
            Format::Idx(_) => {
                idx::fetch(block, &self.content(0)?, &self.content(1)?).map(Fetched::Items)
            }
            _ => {
                let document = |file| Ok((file, self.content(file)?.whole()?));
                files()
                    .map(document)
                    .collect::<Result<_, _>>()
                    .map(Fetched::Documents)
            }
        }
    }

    fn caption_beside(&self, picture: u32) -> Result<Option<String>, SourceError> {
        let file = picture + self.own_files();
        let content = self.content(file)?;
        if self.files.stamp(file)
            == (Stamp {
                size: 0,
                version: 0,
            })
        {
            return Ok(None);
        }
        let line = pictures::first_line(&content.whole()?);
        line.map(Some).map_err(|reason| SourceError::Damaged {
            file: content.shown,
            offset: 0,
            reason,
        })
    }

    /// Refuses a source that has no record to read, with the reason.
    pub(super) fn check_records(&self) -> Result<(), SourceError> {
        let count = |count: u32, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        let why = match (self.cells.blocks, self.left_out.first_bad()) {
            (0, Some(first)) => first.to_string(),
            (0, None) => {
                let first = self.storage.shown(&self.files.name(0));
                let files = count(self.own_files(), "file");
                format!("{files} without a record, of which the first is {first}")
            }
            (blocks, _) if self.cells.count() == 0 => format!(
                "its {} are too few to hold one out of {:?}: make `block_bytes` smaller",
                count(blocks, "block"),
                self.spec.part
            ),
            _ => return Ok(()),
        };
        Err(SourceError::NoRecords {
            path: self.spec.path.clone(),
            why,
        })
    }

    /// Makes samples of what was read. Pure.
    fn decode(&self, epoch: u32, block: u32, fetched: &Fetched) -> Result<Made, SourceError> {
        let transform = Transform::new(
            &self.spec,
            &self.opening.tokenizer,
            self.opening.placeholder(),
        );
        let mut made = Made::default();
        let mut bad = None;
        let mut emit = |at: At, raw: Result<Raw<'_>, String>| {
            let seed = order::hash(&[
                self.spec.seed,
                u64::from(epoch),
                u64::from(block),
                u64::from(made.records),
            ]);
            made.records += 1;
            let samples = raw
                .map_err(SkipReason::Bad)
                .and_then(|raw| transform.samples(&raw, seed));
            match samples {
                Ok(samples) => {
                    for sample in samples {
                        let start = made.bytes.len();
                        sample.encode_into(&mut made.bytes);
                        made.samples.push((
                            start..made.bytes.len(),
                            sample.tokens.len() as u32,
                            sample.images.iter().map(Image::patches).collect(),
                        ));
                    }
                }
                Err(reason) => {
                    let skipped = Skipped {
                        file: self.storage.shown(&self.files.name(at.file)),
                        offset: at.offset,
                        record: at.record,
                        reason,
                    };
                    if self.spec.on_bad == OnBad::Fail && skipped.reason.is_bad() {
                        bad.get_or_insert(skipped);
                    } else {
                        made.skipped.push(skipped);
                    }
                }
            }
        };
        match (&self.spec.format, fetched) {
            (_, Fetched::Block(block)) => block.records(&mut emit),
            (Format::Text(text), Fetched::Documents(documents)) => {
                for (file, document) in documents {
                    let at = At {
                        file: *file,
                        offset: 0,
                        record: 0,
                    };
                    let own = match foreign_bytes(document) {
                        Some(kind) => Err(kind.to_owned()),
                        None => lines::text(document, text.markup),
                    };
                    emit(at, own);
                }
            }
            (_, Fetched::Pictures(all)) => pictures::records(all, &mut emit),
            (Format::Idx(idx), Fetched::Items(items)) => {
                idx::records(items, &idx.names, &mut emit);
            }
            _ => {}
        }
        match bad {
            Some(bad) => Err(SourceError::Bad(bad)),
            None => Ok(made),
        }
    }

    /// Mixes the samples of a cell's blocks, in one allocation.
    pub(super) fn put_together(
        &self,
        epoch: u32,
        cell: u32,
        made: Vec<Made>,
    ) -> Result<Cell, SourceError> {
        let records: u32 = made.iter().map(|made| made.records).sum();
        let bad = made
            .iter()
            .flat_map(|made| &made.skipped)
            .filter(|skipped| skipped.reason.is_bad());
        let count = bad.clone().count() as u32;
        if count > self.spec.bad_allowed(records)
            && let Some(first) = bad.clone().next()
        {
            return Err(SourceError::TooManyBad {
                bad: count,
                records,
                first: Box::new(first.clone()),
            });
        }
        let samples: Vec<_> = made
            .iter()
            .flat_map(|made| made.samples.iter().map(|sample| (&made.bytes, sample)))
            .collect();
        let mut all = BytesMut::with_capacity(made.iter().map(|made| made.bytes.len()).sum());
        let order = self.cells.mixed(epoch, cell, samples.len() as u32);
        let metas: Vec<SampleMeta> = (0..)
            .zip(order)
            .map(|(nth, from)| {
                let (bytes, (range, tokens, patches)) = samples[from as usize];
                all.extend_from_slice(&bytes[range.clone()]);
                SampleMeta {
                    id: SampleId {
                        source: self.number,
                        epoch,
                        cell,
                        nth,
                    },
                    tokens: *tokens,
                    patches: patches.clone(),
                    bytes: range.len() as u32,
                }
            })
            .collect();
        let mut all = all.freeze();
        let samples = metas
            .into_iter()
            .map(|meta| {
                let own = all.split_to(meta.bytes as usize);
                (meta, own)
            })
            .collect();
        Ok(Cell {
            samples,
            skipped: made.into_iter().flat_map(|made| made.skipped).collect(),
            records,
        })
    }
}
