//! Reading a recording.

use std::path::Path;
use std::sync::Arc;

use flate2::{Decompress, FlushDecompress};

use super::{
    BLOCK_HEAD, BYTES_MAX, End, FRAME_MAX, FULL, Frame, Head, MAGIC, RecordingError, VERSION,
};
use crate::date::Date;

/// A recording, in memory as it is on the disk.
#[derive(Clone, Debug)]
pub struct Recording {
    head: Head,
    bytes: Arc<[u8]>,
    /// Where the blocks that are whole lie, without their heads.
    blocks: Arc<[(usize, usize)]>,
    from: Date,
    to: Date,
    end: End,
}

impl Recording {
    /// Returns true for the first bytes of a recording.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no recording, is of a newer release, or has nothing whole in it.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let length = std::fs::metadata(path)
            .map_err(RecordingError::Unread)?
            .len();
        // A little more than a recorder ever writes.
        if length > BYTES_MAX + (1 << 20) {
            return Err(RecordingError::Foreign);
        }
        Self::of(std::fs::read(path).map_err(RecordingError::Unread)?.into())
    }

    /// Reads what a file holds.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn of(bytes: Arc<[u8]>) -> Result<Self, RecordingError> {
        let (head, mut at) = head_of(&bytes)?;
        let (mut blocks, mut dates) = (vec![], None);
        let end = loop {
            match block_at(&bytes, at) {
                Ok((0, FULL, _)) => break End::Full,
                Ok((0, ..)) => break End::InOrder,
                Ok((length, first, last)) => {
                    blocks.push((at + BLOCK_HEAD, length));
                    let (from, to) = dates.unwrap_or((first, last));
                    dates = Some((from.min(first), to.max(last)));
                    at += BLOCK_HEAD + length;
                }
                Err(end) => break end,
            }
        };
        let (from, to) = dates.ok_or(RecordingError::Empty)?;
        Ok(Self {
            head,
            bytes,
            blocks: blocks.into(),
            from,
            to,
            end,
        })
    }

    /// The head of the recording.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The date of the first thing in it.
    #[must_use]
    pub const fn from(&self) -> Date {
        self.from
    }

    /// The date of the last.
    #[must_use]
    pub const fn to(&self) -> Date {
        self.to
    }

    /// The way in which it ends.
    #[must_use]
    pub const fn end(&self) -> End {
        self.end
    }

    /// The frames in it, from the first on.
    #[must_use]
    pub fn frames(&self) -> Frames {
        Frames {
            recording: self.clone(),
            inflate: Decompress::new(false),
            block: 0,
            read: vec![],
            at: 0,
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(four.try_into().ok()?) as usize)
}

fn date(bytes: &[u8], at: usize) -> Option<Date> {
    let eight = bytes.get(at..at.checked_add(8)?)?;
    Some(Date(u64::from_le_bytes(eight.try_into().ok()?)))
}

/// The head, and where the blocks begin.
fn head_of(bytes: &[u8]) -> Result<(Head, usize), RecordingError> {
    if !Recording::is_one(bytes) {
        return Err(RecordingError::Foreign);
    }
    let version = bytes.get(8..10).ok_or(RecordingError::Head)?;
    let found = u16::from_le_bytes([version[0], version[1]]);
    if found == 0 {
        // No release has written it: the bytes were damaged.
        return Err(RecordingError::Head);
    }
    if found > VERSION {
        return Err(RecordingError::Newer { found });
    }
    let read = || {
        let (length, crc) = (number(bytes, 10)?, number(bytes, 14)?);
        let head = bytes.get(18..18usize.checked_add(length)?)?;
        let whole = crc32fast::hash(head) as usize == crc;
        let head = rmp_serde::from_slice(head).ok()?;
        whole.then_some((head, 18 + length))
    };
    read().ok_or(RecordingError::Head)
}

/// The length and the dates of the block that begins there, or how the recording ends.
fn block_at(bytes: &[u8], at: usize) -> Result<(usize, Date, Date), End> {
    let head = || {
        let (length, crc) = (number(bytes, at)?, number(bytes, at + 4)?);
        Some((length, crc, date(bytes, at + 8)?, date(bytes, at + 16)?))
    };
    let (length, crc, first, last) = head().ok_or(End::Cut)?;
    let block = bytes.get(at + 8..at + BLOCK_HEAD + length);
    let block = block.ok_or(End::Cut)?;
    match crc32fast::hash(block) as usize == crc {
        true => Ok((length, first, last)),
        false => Err(End::Damaged),
    }
}

/// The frames of a recording, one after the other.
#[derive(Debug)]
pub struct Frames {
    recording: Recording,
    inflate: Decompress,
    /// The next one.
    block: usize,
    /// Bytes that were inflated, of which `at` were told.
    read: Vec<u8>,
    at: usize,
}

impl Iterator for Frames {
    type Item = Result<Frame<'static>, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at == self.read.len() {
            let (from, length) = *self.recording.blocks.get(self.block)?;
            self.block += 1;
            if let Err(error) = self.inflate(from, length) {
                return Some(Err(self.last(error)));
            }
        }
        let read = || {
            let length = number(&self.read, self.at)?;
            let from = self.at + 4;
            let frame = self.read.get(from..from.checked_add(length)?)?;
            Some((frame, from + length))
        };
        let Some((frame, next)) = read() else {
            let error = self.strange("a frame is longer than its block");
            return Some(Err(self.last(error)));
        };
        match rmp_serde::from_slice(frame) {
            Ok(frame) => {
                self.at = next;
                Some(Ok(frame))
            }
            Err(error) => {
                let error = self.strange(&error.to_string());
                Some(Err(self.last(error)))
            }
        }
    }
}

impl Frames {
    /// Nothing follows an error.
    fn last(&mut self, error: RecordingError) -> RecordingError {
        self.block = self.recording.blocks.len();
        self.read.clear();
        self.at = 0;
        error
    }

    /// The error for a frame that is whole, by its sum, and still does not make sense.
    fn strange(&self, why: &str) -> RecordingError {
        RecordingError::Strange {
            release: self.recording.head.release.clone(),
            why: why.to_owned(),
        }
    }

    fn inflate(&mut self, from: usize, length: usize) -> Result<(), RecordingError> {
        let bytes = Arc::clone(&self.recording.bytes);
        let block = &bytes[from..from + length];
        self.read.clear();
        self.at = 0;
        let before = self.inflate.total_in();
        loop {
            let taken = (self.inflate.total_in() - before) as usize;
            let known = self.read.len();
            self.read.reserve(length * 4 + 1024);
            let read =
                self.inflate
                    .decompress_vec(&block[taken..], &mut self.read, FlushDecompress::Sync);
            read.map_err(|error| self.strange(&error.to_string()))?;
            let went = (self.inflate.total_in() - before) as usize > taken;
            let taken = (self.inflate.total_in() - before) as usize;
            if taken < length && !went && self.read.len() == known {
                return Err(self.strange("a block goes on after its end"));
            }
            if taken == length && self.read.len() < self.read.capacity() {
                return Ok(());
            }
            if self.read.len() > FRAME_MAX {
                return Err(self.strange("a block is larger than any that is written"));
            }
        }
    }
}
