//! Finding the files of a source, and learning where their records are.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};

use super::{
    Inner, blocking,
    fault::{SkipReason, Skipped, SourceError},
    file_state::FileState,
    format::{Scanned, idx, pictures},
    index::{Files, Index},
    left_out::LeftOut,
    pattern::Pattern,
    spec::{Captions, Document, Format, SourceSpec},
    spool::plain_name,
    storage::{Found, Listed, Stamp, Storage},
};

impl Inner {
    /// Finds the files.
    pub(super) fn find(&mut self, path: &str) -> Result<(), SourceError> {
        self.root = folder(path).to_owned();
        let format = &self.spec.format;
        let Found { files, others } = self.storage.list(path, &|name| takes(format, name))?;
        let mut listed = files;
        for (name, reason) in others {
            let reason = SkipReason::Other(reason);
            let name = self.storage.shown(&name);
            self.left_out.file(Skipped::at(&name, 0, reason));
        }
        match &self.spec.format {
            Format::Images(images) => {
                let captions = images.captions.clone();
                listed = self.pictures(path, listed, &captions)?;
            }
            Format::Idx(idx) => {
                let (storage, labels) = Storage::of(&idx.labels, &self.spec.storage)?;
                listed.truncate(1);
                if !listed.is_empty() {
                    let found = storage.list(&labels, &|_| true)?;
                    listed.extend(found.files.into_iter().take(1));
                    if listed.len() < 2 {
                        return Err(SourceError::Nothing {
                            path: idx.labels.clone(),
                            others: String::new(),
                        });
                    }
                }
            }
            _ => {}
        }
        if listed.is_empty() {
            return Err(SourceError::Nothing {
                path: self.spec.path.clone(),
                others: match self.left_out.first.first() {
                    None => String::new(),
                    Some(first) => format!(
                        " of the format {}, but others, of which the first is {} ({}); formats are csv, \
                         jsonl, parquet, text, webdataset, images and idx",
                        self.spec.format.name(),
                        first.file,
                        first.reason
                    ),
                },
            });
        }
        self.files = Files::new(&listed);
        Ok(())
    }

    /// Pictures, and behind them their captions' files, one each, or that which lists all.
    fn pictures(
        &mut self,
        path: &str,
        listed: Vec<Listed>,
        captions: &Captions,
    ) -> Result<Vec<Listed>, SourceError> {
        let (mut pictures, others): (Vec<Listed>, Vec<Listed>) = listed
            .into_iter()
            .partition(|file| pictures::is_picture(&file.name));
        for other in others
            .iter()
            .filter(|file| pictures::is_other_picture(&file.name))
        {
            let reason = "it is not read: pictures are PNG, JPEG and WebP";
            let reason = SkipReason::Other(reason.to_owned());
            let name = self.storage.shown(&other.name);
            self.left_out.file(Skipped::at(&name, 0, reason));
        }
        match captions {
            Captions::Beside(ending) => {
                let stem = |name: &str| {
                    name.rsplit_once('.')
                        .map_or(name.len(), |(stem, _)| stem.len())
                };
                let beside: Vec<Listed> = pictures
                    .iter()
                    .map(|picture| {
                        let name = format!("{}.{ending}", &picture.name[..stem(&picture.name)]);
                        let found = others.binary_search_by(|other| other.name.cmp(&name));
                        let absent = Listed {
                            name: String::new(),
                            stamp: Stamp {
                                size: 0,
                                version: 0,
                            },
                        };
                        found.map_or(absent, |at| others[at].clone())
                    })
                    .collect();
                pictures.extend(beside);
            }
            Captions::Listed {
                path: list,
                image,
                caption,
            } => {
                let (storage, name) = Storage::of(list, &self.spec.storage)?;
                let stamp = storage.stat(&name)?.ok_or_else(|| SourceError::Nothing {
                    path: list.clone(),
                    others: String::new(),
                })?;
                let bytes = storage.read(&name, stamp, 0..stamp.size)?;
                let skip = Pattern::new(path).root().len();
                self.captions =
                    pictures::Listing::read(&bytes, (image, caption), &mut pictures, skip)
                        .map_err(|reason| SourceError::Damaged {
                            file: storage.shown(&name),
                            offset: 0,
                            reason,
                        })?;
                if !pictures.is_empty() {
                    pictures.push(Listed { name, stamp });
                }
            }
        }
        Ok(pictures)
    }

    /// A file as it is.
    pub(super) fn file_state(&self, file: u32) -> FileState {
        let (name, stamp) = (self.files.name(file), self.files.stamp(file));
        let below = name
            .strip_prefix(&self.root)
            .map(|rest| rest.trim_start_matches('/'));
        let short = match below {
            None | Some("") => name.rsplit('/').next().unwrap_or(&name),
            Some(below) => below,
        };
        let digest = match (self.index.digests.get(file as usize), &self.storage) {
            (Some(digest), _) => hex(digest),
            // The tag that a bucket gives to what is in it.
            (None, Storage::Objects { .. }) => hex(&stamp.version.to_le_bytes()),
            (None, Storage::Disk) => String::new(),
        };
        FileState {
            name: short.to_owned(),
            size: stamp.size,
            digest,
        }
    }

    /// Number of the files that are read as such, and not with others.
    pub(super) fn own_files(&self) -> u32 {
        match &self.spec.format {
            Format::Images(images) => match images.captions {
                Captions::Beside(_) => self.files.count() / 2,
                Captions::Listed { .. } => self.files.count() - 1,
            },
            Format::Idx(_) => 1,
            _ => self.files.count(),
        }
    }

    /// The name under which the index is kept: all that it follows from.
    pub(super) fn key(&self) -> blake3::Hash {
        let spec = &self.spec;
        let mut hasher = blake3::Hasher::new();
        let said = (&spec.format, spec.compression, spec.block_bytes);
        hasher.update(&serde_json::to_vec(&said).expect("strings and numbers are JSON"));
        for file in 0..self.files.count() {
            let (name, stamp) = (self.files.name(file), self.files.stamp(file));
            hasher.update(self.storage.shown(&name).as_bytes());
            hasher.update(&[0]);
            hasher.update(&stamp.size.to_le_bytes());
            hasher.update(&stamp.version.to_le_bytes());
        }
        hasher.finalize()
    }

    pub(super) fn identify(&self) -> blake3::Hash {
        let said = SourceSpec {
            name: String::new(),
            path: String::new(),
            storage: BTreeMap::new(),
            ..self.spec.clone()
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&serde_json::to_vec(&said).expect("strings and numbers are JSON"));
        hasher.update(self.opening.tokenizer_hash.as_bytes());
        hasher.update(&self.opening.placeholder().to_le_bytes());
        for file in 0..self.files.count() {
            hasher.update(&self.files.stamp(file).size.to_le_bytes());
        }
        let blocks = Index {
            left_out: LeftOut::default(),
            ..self.index.clone()
        };
        hasher.update(&blocks.encode());
        hasher.finalize()
    }

    /// Learns where the records are.
    pub(super) async fn scan(inner: &Arc<Self>) -> Result<Index, SourceError> {
        let whole_files = match &inner.spec.format {
            Format::Images(_) => true,
            Format::Text(text) => text.document == Document::File,
            _ => false,
        };
        if whole_files {
            let sizes = (0..inner.own_files()).map(|file| inner.files.stamp(file).size);
            return Ok(Index {
                blocks: pictures::blocks(sizes, inner.spec.block_bytes),
                ..Index::default()
            });
        }
        let scanned: Vec<Scanned> = stream::iter(0..inner.own_files())
            .map(|file| Self::scan_file(inner, file))
            .buffered(FILES_AT_ONCE)
            .try_collect()
            .await?;
        let mut index = Index::default();
        for file in scanned {
            index.blocks.extend(file.blocks);
            index.left_out.add(&file.left_out);
            index.digests.push(file.digest);
        }
        index.blocks.shrink_to_fit();
        Ok(index)
    }

    async fn scan_file(inner: &Arc<Self>, file: u32) -> Result<Scanned, SourceError> {
        let _thread = inner.thread().await;
        let name = inner.files.name(file);
        let inner = Arc::clone(inner);
        blocking(&name, move || {
            let mut cut = None;
            let content = inner.fresh(file, &mut cut)?;
            let block_bytes = inner.spec.block_bytes;
            let mut scanned = match inner.spec.format.of_files() {
                Some(format) => format.scan(&content, file, block_bytes),
                // Formats of whole files are not scanned, so this is pictures with their classes.
                None => idx::scan(&content, &inner.fresh(1, &mut cut)?, block_bytes),
            }?;
            // What a compressed file lacks is said of it, and not that its text ends too early.
            if let Some((offset, reason)) = cut {
                scanned.left_out = LeftOut::default();
                scanned.broken(&content.shown, offset, reason);
            }
            Ok(scanned)
        })
        .await
    }
}

/// The folder that all files of a path are below; the path itself where that is one.
fn folder(path: &str) -> &str {
    match path.split_once('{') {
        Some((before, _)) => before.rsplit_once('/').map_or("", |(folder, _)| folder),
        None => Pattern::new(path).root(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns true where a file of a folder is of a format, as its name says.
fn takes(format: &Format, name: &str) -> bool {
    let name = plain_name(name);
    let endings = match (format.of_files(), format) {
        (Some(format), _) => format.endings().into_iter().map(str::to_owned).collect(),
        (None, Format::Text(text)) => text.suffixes.clone(),
        // Pictures are chosen with what is said of them.
        (None, _) => vec![],
    };
    endings.is_empty() || endings.iter().any(|ending| name.ends_with(ending))
}

/// Enough to keep the threads of a process busy, and a bucket.
const FILES_AT_ONCE: usize = 16;
