//! Finding the files of a source, and learning where their records are.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::{
    Inner, blocking,
    fault::{SkipReason, Skipped, SourceError},
    file_state::{FileState, Kept, difference},
    format::{Block, Scanned, idx, pictures},
    index::{Digest, Files, Index},
    left_out::LeftOut,
    pattern::Pattern,
    spec::{Captions, Compression, Document, Format, Images, SourceSpec},
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
        self.put_behind(&mut listed);
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
        self.check_kept()
    }

    /// Puts the files that came later behind those that there were.
    fn put_behind(&self, listed: &mut [Listed]) {
        let first = |file: &Listed| {
            let name = self.short_name(&file.name);
            let mut known = self.known.iter();
            known.position(|known| known.file(name).is_some())
        };
        // The order within those that came together stays.
        listed.sort_by_cached_key(|file| first(file).unwrap_or(self.known.len()));
    }

    /// Checks by names and sizes that the files are those that there were, and maybe more.
    fn check_kept(&mut self) -> Result<(), SourceError> {
        let names: Vec<String> = (0..self.own_files())
            .map(|file| self.files.name(file))
            .collect();
        let short = names.iter().map(|name| self.short_name(name));
        let now: BTreeMap<&str, u64> = short
            .zip(0..)
            .map(|(name, file)| (name, self.files.stamp(file).size))
            .collect();
        let grows = |name: &str| {
            let format = self.spec.format.of_files();
            format.is_some_and(|it| it.grows())
                && self.spec.compression.of(name) == Compression::None
        };
        let mut grown = vec![];
        for known in &self.known {
            known
                .kept_by(&now, grows)
                .map_err(|what| self.differs(what))?;
            grown.push(known.differs(&now));
        }
        for (known, has_grown) in self.known.iter_mut().zip(grown) {
            known.has_grown = has_grown;
        }
        Ok(())
    }

    /// The source as it was each time before more came, the oldest first.
    pub(super) fn earlier(&self) -> impl Iterator<Item = &Kept> {
        self.known.iter().filter(|known| known.has_grown)
    }

    /// Checks by what is in them that the files of which nothing was added are those that there were.
    pub(super) fn check_same(&self) -> Result<(), SourceError> {
        let now: BTreeMap<String, FileState> = (0..self.own_files())
            .map(|file| self.file_state(file))
            .map(|file| (file.name.clone(), file))
            .collect();
        for known in &self.known {
            let both = known
                .files()
                .filter_map(|file| Some((file, now.get(&file.name)?)));
            let (before, same): (Vec<FileState>, Vec<FileState>) = both
                .filter(|(before, now)| before.size == now.size)
                .map(|(before, now)| (before.clone(), now.clone()))
                .unzip();
            if let Some(what) = difference(&before, &same) {
                return Err(self.differs(what));
            }
        }
        Ok(())
    }

    fn differs(&self, what: String) -> SourceError {
        SourceError::Differs {
            path: self.spec.path.clone(),
            what,
        }
    }

    /// The name of a file from the path of the source on.
    fn short_name<'n>(&self, name: &'n str) -> &'n str {
        let below = name
            .strip_prefix(&self.root)
            .map(|rest| rest.trim_start_matches('/'));
        match below {
            None | Some("") => name.rsplit('/').next().unwrap_or(name),
            Some(below) => below,
        }
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
        self.put_behind(&mut pictures);
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
        let digest = match (self.index.digests.get(file as usize), &self.storage) {
            (Some(digest), _) => hex(digest),
            // The tag that a bucket gives to what is in it.
            (None, Storage::Objects { .. }) => hex(&stamp.version.to_le_bytes()),
            (None, Storage::Disk) => match &self.spec.format {
                Format::Images(Images {
                    captions: Captions::Listed { .. },
                    ..
                }) => {
                    let caption = self.captions.caption(file).unwrap_or_default();
                    hex(&blake3::hash(caption.as_bytes()).as_bytes()[..size_of::<Digest>()])
                }
                _ => String::new(),
            },
        };
        FileState {
            name: self.short_name(&name).to_owned(),
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
        hasher.update(described(&said).as_bytes());
        for file in 0..self.files.count() {
            let (name, stamp) = (self.files.name(file), self.files.stamp(file));
            hasher.update(self.storage.shown(&name).as_bytes());
            hasher.update(&[0]);
            hasher.update(&stamp.size.to_le_bytes());
            hasher.update(&stamp.version.to_le_bytes());
        }
        // Where nothing came, the index is that of one of whom nobody knows how it was.
        for known in self.earlier() {
            hasher.update(&(known.len() as u64).to_le_bytes());
            for file in 0..self.own_files() {
                let name = self.files.name(file);
                let before = known.file(self.short_name(&name));
                if let Some(before) = before.filter(|it| it.size < self.files.stamp(file).size) {
                    hasher
                        .update(&serde_json::to_vec(before).expect("strings and numbers are JSON"));
                }
            }
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
        hasher.update(described(&said).as_bytes());
        hasher.update(self.opening.tokenizer_hash.as_bytes());
        hasher.update(&self.opening.placeholder().to_le_bytes());
        for file in 0..self.files.count() {
            hasher.update(&self.files.stamp(file).size.to_le_bytes());
        }
        let blocks = Index {
            left_out: LeftOut::default(),
            earlier: vec![],
            ..self.index.clone()
        };
        hasher.update(&blocks.encode());
        // Where nothing came behind, it is as if nobody had looked.
        let grown = self.cells.earlier.iter();
        for before in grown.filter(|before| before.blocks < self.cells.blocks) {
            hasher.update(&before.blocks.to_le_bytes());
            hasher.update(&before.until.to_le_bytes());
        }
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
            return Ok(inner.whole_files());
        }
        let scanned: Vec<(Scanned, Vec<u32>)> = stream::iter(0..inner.own_files())
            .map(|file| Self::scan_file(inner, file))
            .buffered(FILES_AT_ONCE)
            .try_collect()
            .await?;
        let mut index = Index::default();
        // What came together is together, the oldest first.
        for time in 0..=inner.earlier().count() {
            for (file, cuts) in &scanned {
                let start = time.checked_sub(1).map_or(0, |before| cuts[before]);
                let end = cuts
                    .get(time)
                    .map_or(file.blocks.len(), |end| *end as usize);
                index.blocks.extend(&file.blocks[start as usize..end]);
            }
            index.earlier.push(index.blocks.len() as u32);
        }
        index.earlier.pop();
        for (file, _) in scanned {
            index.left_out.add(&file.left_out);
            index.digests.push(file.digest);
        }
        index.blocks.shrink_to_fit();
        Ok(index)
    }

    /// The blocks of files that are a record each.
    fn whole_files(&self) -> Index {
        let mut index = Index::default();
        let mut first = 0;
        let all = self.earlier().map(|known| known.len() as u32);
        for end in all.chain([self.own_files()]) {
            let files: Range<u32> = first..end.max(first);
            let sizes = files.clone().map(|file| self.files.stamp(file).size);
            let blocks = pictures::blocks(sizes, self.spec.block_bytes);
            let behind = blocks.into_iter().map(|block| Block {
                file: block.file + first,
                ..block
            });
            index.blocks.extend(behind);
            index.earlier.push(index.blocks.len() as u32);
            first = files.end;
        }
        index.earlier.pop();
        index
    }

    /// Scans a file, and says how many of its blocks it had each time before more came.
    async fn scan_file(inner: &Arc<Self>, file: u32) -> Result<(Scanned, Vec<u32>), SourceError> {
        let _thread = inner.thread().await;
        let name = inner.files.name(file);
        let inner = Arc::clone(inner);
        blocking(&name, move || {
            let mut cut = None;
            let mut content = inner.fresh(file, &mut cut)?;
            content.ends = inner.ends(file);
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
            let cuts = inner.cuts(file, &scanned)?;
            Ok((scanned, cuts))
        })
        .await
    }

    /// The ends that a file has had before, in ascending order.
    fn ends(&self, file: u32) -> Vec<u64> {
        let (name, size) = (self.files.name(file), self.files.stamp(file).size);
        let name = self.short_name(&name);
        let ends = self
            .earlier()
            .filter_map(|known| Some(known.file(name)?.size));
        ends.filter(|end| *end < size).collect()
    }

    /// The number of blocks that a file had each time before more came.
    fn cuts(&self, file: u32, scanned: &Scanned) -> Result<Vec<u32>, SourceError> {
        let (name, size) = (self.files.name(file), self.files.stamp(file).size);
        let name = self.short_name(&name);
        let mut ends = scanned.earlier.iter();
        let cut = |known: &Kept| match known.file(name) {
            None => Ok(0),
            Some(state) if state.size == size => Ok(scanned.blocks.len() as u32),
            Some(state) => match ends.next() {
                Some((blocks, digest)) if hex(digest) == state.digest => Ok(*blocks),
                Some(_) => Err(format!(
                    "the first {} bytes of {name}, which were all of it, are others now",
                    state.size
                )),
                None => Err(format!(
                    "{name} goes on within the record that was its last, at {}",
                    state.size
                )),
            },
        };
        let cuts = self.earlier().map(cut);
        cuts.collect::<Result<_, _>>()
            .map_err(|what| self.differs(what))
    }
}

/// The folder that all files of a path are below; the path itself where that is one.
pub(super) fn folder(path: &str) -> &str {
    match path.split_once('{') {
        Some((before, _)) => before.rsplit_once('/').map_or("", |(folder, _)| folder),
        None => Pattern::new(path).root(),
    }
}

/// A description as JSON. A source without conversations is described as it was before these were
/// known, so that it stays the same source.
pub(super) fn described(said: &impl Serialize) -> String {
    let text = serde_json::to_string(said).expect("strings and numbers are JSON");
    text.replace(r#","messages":null,"tools":null,"learn":"replies""#, "")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns true where a file of a folder is of a format, as its name says.
pub(super) fn takes(format: &Format, name: &str) -> bool {
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
