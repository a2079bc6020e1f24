//! Tar files whose members of one name are a sample.

use std::{
    borrow::Cow,
    io::{Cursor, Read, Seek},
};

use bytes::Bytes;
use tar::{Archive, Entry, EntryType};

use super::{
    At, Block, Cutter, Emit, FileFormat, Pixels, RECORD_BYTES_MAX, Raw, Records, Scanned,
    foreign::foreign, json, utf8,
};
use crate::source::{
    fault::{SkipReason, Skipped, SourceError},
    spec::Webdataset,
    storage::{Content, Windows, digest},
};

/// A member: its name, and where its bytes are.
struct Member {
    path: Vec<u8>,
    start: u64,
    end: u64,
    /// Where the next one begins.
    next: u64,
    kind: Kind,
}

/// The use of a member for a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A part of one.
    Part,
    /// Nothing: a folder, or what an archiver noted about the member behind it.
    Note,
    /// A file that an archiver has added beside each, as macOS and programs that do not know pax do.
    Beside,
    /// A part that is not in the archive as such: how it is there.
    Elsewhere(String),
}

impl Kind {
    fn of(entry: EntryType, path: &[u8], target: Option<&[u8]>) -> Self {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let mut folders = path.split(|&byte| byte == b'/');
        let beside = name.starts_with(b"._") || folders.any(|it| it.starts_with(b"PaxHeaders"));
        let to = || String::from_utf8_lossy(target.unwrap_or_default()).into_owned();
        match entry {
            _ if beside => Self::Beside,
            EntryType::Regular | EntryType::Continuous => Self::Part,
            EntryType::Link => Self::Elsewhere(format!("it is a hard link to {}", to())),
            EntryType::Symlink => Self::Elsewhere(format!("it is a link to {}", to())),
            EntryType::Fifo | EntryType::Char | EntryType::Block => {
                Self::Elsewhere("it is a device".to_owned())
            }
            _ => Self::Note,
        }
    }
}

/// An archive that goes on behind the end of one, as those do that were put one behind the other.
fn archive<R: Read + Seek>(from: R) -> Archive<R> {
    let mut archive = Archive::new(from);
    archive.set_ignore_zeros(true);
    archive
}

/// Returns true for a member with holes whose map is written as pax does.
fn is_sparse<R: Read>(entry: &mut Entry<'_, R>) -> std::io::Result<bool> {
    let Some(notes) = entry.pax_extensions()? else {
        return Ok(false);
    };
    // What is no note is none about holes.
    let mut keys = notes.flatten().map(|note| note.key_bytes().to_owned());
    Ok(keys.any(|key| key.starts_with(b"GNU.sparse.")))
}

/// The members of an archive, until the first that cannot be read.
fn members<R: Read + Seek>(
    archive: &mut Archive<R>,
    len: u64,
    mut each: impl FnMut(Member),
) -> std::io::Result<()> {
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        let start = entry.raw_file_position();
        let kind = entry.header().entry_type();
        if kind == EntryType::GNUSparse || is_sparse(&mut entry)? {
            return Err(std::io::Error::other(
                "a member has holes, which is not supported",
            ));
        }
        let path = entry.path_bytes().into_owned();
        let kind = Kind::of(kind, &path, entry.link_name_bytes().as_deref());
        let end = start.checked_add(entry.size()).filter(|&end| end <= len);
        let end = end.ok_or_else(|| {
            let path = String::from_utf8_lossy(&path);
            std::io::Error::other(format!("it ends inside of its member {path}"))
        })?;
        each(Member {
            path,
            start,
            end,
            next: end.next_multiple_of(512).min(len),
            kind,
        });
    }
    Ok(())
}

/// The name of a sample, and the ending that says which part of it a member is.
fn key(path: &[u8]) -> (&[u8], &[u8]) {
    let name = path
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |slash| slash + 1);
    let dot = path[name..].iter().position(|&byte| byte == b'.');
    match dot {
        Some(dot) => (&path[..name + dot], &path[name + dot + 1..]),
        None => (path, &[]),
    }
}

/// Tar files whose members of one name are a sample.
pub(crate) struct Samples<'o>(pub(crate) &'o Webdataset);

/// The members of a block.
struct Members {
    options: Webdataset,
    start: u64,
    file: u32,
    bytes: Bytes,
}

impl FileFormat for Samples<'_> {
    fn endings(&self) -> Vec<&str> {
        vec![".tar", ".tgz"]
    }

    fn check(&self) -> Result<(), String> {
        match self.0.text.is_empty() {
            true => Err("a sample of a tar file needs a member with text".into()),
            false => Ok(()),
        }
    }

    fn has_pictures(&self) -> bool {
        !self.0.image.is_empty()
    }

    fn scan(&self, content: &Content, file: u32, block_bytes: u64) -> Result<Scanned, SourceError> {
        scan(content, file, block_bytes)
    }

    fn fetch(&self, content: &Content, block: &Block) -> Result<Box<dyn Records>, SourceError> {
        let range = block.start..block.start + u64::from(block.len);
        Ok(Box::new(Members {
            options: self.0.clone(),
            start: block.start,
            file: block.file,
            bytes: content.part(range)?,
        }))
    }
}

impl Records for Members {
    fn records(&self, emit: Emit<'_>) {
        records(&self.bytes, self.start, self.file, &self.options, emit);
    }
}

/// Cuts a file into blocks of whole samples.
fn scan(content: &Content, file: u32, block_bytes: u64) -> Result<Scanned, SourceError> {
    let mut cutter = Cutter::new(content, file, block_bytes);
    let mut scanned = Scanned::default();
    if let Some(reason) = foreign(content)? {
        return Ok(Scanned::of_another_kind(content, reason));
    }
    let mut archive = archive(Windows::new(content));
    let (mut open, mut begin, mut at, mut large) = (None::<Vec<u8>>, 0, 0, None);
    // The endings of the sample under way.
    let mut endings: Vec<Vec<u8>> = Vec::new();
    let (mut hasher, mut beside) = (blake3::Hasher::new(), None::<(u64, u64)>);
    let read = members(&mut archive, content.len(), |member| {
        hasher.update(&member.path);
        hasher.update(&member.start.to_le_bytes());
        hasher.update(&member.end.to_le_bytes());
        let named = || String::from_utf8_lossy(&member.path).into_owned();
        match &member.kind {
            Kind::Part => {
                let (name, ending) = key(&member.path);
                if open.as_deref() != Some(name) {
                    cutter.may_end(at);
                    cutter.record();
                    (open, begin) = (Some(name.to_vec()), at);
                    endings.clear();
                }
                if endings.iter().any(|known| known == ending) {
                    let reason = format!("{} is there twice, of which the first is read", named());
                    scanned.bad(&content.shown, at, reason);
                } else {
                    endings.push(ending.to_vec());
                }
                if member.next - begin > RECORD_BYTES_MAX {
                    large.get_or_insert(begin);
                }
            }
            Kind::Beside => beside.get_or_insert((at, 0)).1 += 1,
            Kind::Elsewhere(how) => {
                let reason = format!("{} is not read: {how}", named());
                scanned.bad(&content.shown, at, reason);
            }
            Kind::Note => {}
        }
        at = member.next;
    });
    if let Some((first, count)) = beside {
        let reason = SkipReason::Other(format!(
            "{count} members are not read that an archiver has added (`._NAME`, `PaxHeaders`)"
        ));
        scanned
            .left_out
            .file(Skipped::at(&content.shown, first, reason));
    }
    scanned.digest = digest(&hasher);
    if let Err(error) = read {
        match SourceError::damaged(error, &content.shown, at) {
            SourceError::Damaged { offset, reason, .. } => {
                scanned.broken(&content.shown, offset, reason);
            }
            other => return Err(other),
        }
    }
    if let Some(begin) = large {
        return Err(SourceError::Damaged {
            file: content.shown.clone(),
            offset: begin,
            reason: "a sample is longer than 64 MiB".into(),
        });
    }
    cutter.end(at);
    scanned.blocks = cutter.blocks();
    Ok(scanned)
}

/// The records of a block that begins at a place of its file.
fn records(bytes: &[u8], start: u64, file: u32, options: &Webdataset, emit: Emit<'_>) {
    let mut all: Vec<Member> = Vec::new();
    let mut archive = archive(Cursor::new(bytes));
    let read = members(&mut archive, bytes.len() as u64, |member| {
        if member.kind == Kind::Part {
            all.push(member);
        }
    });
    let mut record = 0;
    for sample in all.chunk_by(|a, b| key(&a.path).0 == key(&b.path).0) {
        let at = At {
            file,
            offset: start + sample[0].start.saturating_sub(512),
            record,
        };
        record += 1;
        emit(at, raw(bytes, sample, options));
    }
    if let Err(error) = read {
        let at = At {
            file,
            offset: start + all.last().map_or(0, |member| member.next),
            record,
        };
        emit(at, Err(error.to_string()));
    }
}

/// The member whose name ends with the first of these endings that there is.
fn part<'e, 'b>(
    bytes: &'b [u8],
    sample: &[Member],
    endings: &'e [String],
) -> Option<(&'e str, &'b [u8])> {
    endings.iter().find_map(|ending| {
        let is = |member: &&Member| key(&member.path).1.eq_ignore_ascii_case(ending.as_bytes());
        let member = sample.iter().find(is)?;
        Some((
            &ending[..],
            &bytes[member.start as usize..member.end as usize],
        ))
    })
}

/// The endings that a sample has, the first few of them.
fn endings(sample: &[Member]) -> String {
    let all = sample.iter().map(|member| key(&member.path).1);
    let all: Vec<_> = all
        .take(ENDINGS_TOLD)
        .map(String::from_utf8_lossy)
        .collect();
    let more = sample.len().saturating_sub(ENDINGS_TOLD);
    let told = list(all.iter().map(AsRef::as_ref));
    match more {
        0 => told,
        more => format!("{told} and {more} more"),
    }
}

fn list<'a>(endings: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<String> = endings.map(|ending| format!("`.{ending}`")).collect();
    all.join(", ")
}

/// Endings that are told where none is the right one.
const ENDINGS_TOLD: usize = 4;

/// The record that a sample's members make.
fn raw<'a>(bytes: &'a [u8], sample: &[Member], options: &Webdataset) -> Result<Raw<'a>, String> {
    let name = || String::from_utf8_lossy(key(&sample[0].path).0).into_owned();
    let (ending, text) = part(bytes, sample, &options.text).ok_or_else(|| {
        format!(
            "{} has no member with text: a name goes up to its first dot, and its endings are {}, of \
             which {} are read",
            name(),
            endings(sample),
            list(options.text.iter().map(String::as_str))
        )
    })?;
    let text = if ending.rsplit('.').next() == Some("json") {
        let [text] = json::strings(text, [&options.field])?;
        text
    } else {
        Cow::Borrowed(utf8(text)?)
    };
    let picture = if options.image.is_empty() {
        None
    } else {
        let (_, picture) = part(bytes, sample, &options.image).ok_or_else(|| {
            format!(
                "{} has no member with a picture: its endings are {}",
                name(),
                endings(sample)
            )
        })?;
        Some(Pixels::Encoded(Cow::Borrowed(picture)))
    };
    Ok(Raw {
        picture,
        ..Raw::text(text)
    })
}
