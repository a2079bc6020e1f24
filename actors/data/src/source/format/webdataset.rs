//! Tar files whose members of one name are a sample.

use std::{
    borrow::Cow,
    io::{Cursor, Read, Seek},
};

use bytes::Bytes;
use tar::{Archive, EntryType};

use super::{
    At, Block, Cutter, Emit, FileFormat, Pixels, RECORD_BYTES_MAX, Raw, Records, Scanned, json,
    utf8,
};
use crate::source::{
    fault::SourceError,
    spec::Webdataset,
    storage::{Content, Windows},
};

/// A member: its name, and where its bytes are.
struct Member {
    path: Vec<u8>,
    start: u64,
    end: u64,
    /// Where the next one begins.
    next: u64,
    regular: bool,
}

/// The members of an archive, until the first that cannot be read.
fn members<R: Read + Seek>(
    archive: &mut Archive<R>,
    len: u64,
    mut each: impl FnMut(Member),
) -> std::io::Result<()> {
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let start = entry.raw_file_position();
        let kind = entry.header().entry_type();
        if kind == EntryType::GNUSparse {
            return Err(std::io::Error::other(
                "a member has holes, which is not supported",
            ));
        }
        let end = start.checked_add(entry.size()).filter(|&end| end <= len);
        let end = end.ok_or_else(|| {
            let path = entry.path_bytes();
            let path = String::from_utf8_lossy(&path);
            std::io::Error::other(format!("it ends inside of its member {path}"))
        })?;
        each(Member {
            path: entry.path_bytes().into_owned(),
            start,
            end,
            next: end.next_multiple_of(512).min(len),
            regular: matches!(kind, EntryType::Regular | EntryType::Continuous),
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
    let mut cutter = Cutter::new(file, block_bytes);
    let mut scanned = Scanned::default();
    let mut archive = Archive::new(Windows::new(content));
    let (mut open, mut begin, mut at, mut large) = (None::<Vec<u8>>, 0, 0, None);
    let read = members(&mut archive, content.len(), |member| {
        if member.regular {
            let (name, _) = key(&member.path);
            if open.as_deref() != Some(name) {
                cutter.may_end(at);
                cutter.record();
                (open, begin) = (Some(name.to_vec()), at);
            }
            if member.next - begin > RECORD_BYTES_MAX {
                large.get_or_insert(begin);
            }
        }
        at = member.next;
    });
    if let Err(error) = read {
        match SourceError::damaged(error, &content.shown, at) {
            SourceError::Damaged { offset, reason, .. } => {
                scanned.broken(content.shown.clone(), offset, reason);
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
    let mut archive = Archive::new(Cursor::new(bytes));
    let read = members(&mut archive, bytes.len() as u64, |member| {
        if member.regular {
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

/// The record that a sample's members make.
fn raw<'a>(bytes: &'a [u8], sample: &[Member], options: &Webdataset) -> Result<Raw<'a>, String> {
    let name = || String::from_utf8_lossy(key(&sample[0].path).0).into_owned();
    let (ending, text) = part(bytes, sample, &options.text)
        .ok_or_else(|| format!("{} has no member with text", name()))?;
    let text = if ending.rsplit('.').next() == Some("json") {
        let [text] = json::strings(text, [&options.field])?;
        text
    } else {
        Cow::Borrowed(utf8(text)?)
    };
    let picture = if options.image.is_empty() {
        None
    } else {
        let (_, picture) = part(bytes, sample, &options.image)
            .ok_or_else(|| format!("{} has no member with a picture", name()))?;
        Some(Pixels::Encoded(Cow::Borrowed(picture)))
    };
    Ok(Raw {
        picture,
        ..Raw::text(text)
    })
}
