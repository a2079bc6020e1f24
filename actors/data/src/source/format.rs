//! Formats: how files are made of records, one by one.
//!
//! Each knows three things: how a file is cut into blocks (`scan`), what of the files a block needs
//! (`fetch`), and the records in that (`records`). The last is pure, and what it is given may be
//! anything. One whose files are read each for itself is a [`FileFormat`], all in a file of its own.

pub(super) mod csv;
pub(crate) mod foreign;
pub(super) mod idx;
pub(super) mod json;
pub(super) mod lines;
pub(super) mod parquet;
pub(super) mod pictures;
pub(super) mod tagged;
pub(super) mod webdataset;

use std::{borrow::Cow, collections::VecDeque};

use odeon_algorithms::json::OrderedJson;
use odeon_algorithms::tokenizer::Conversation;

use super::{
    fault::{SkipReason, Skipped, SourceError},
    index::Digest,
    left_out::LeftOut,
    spec::{Document, Format},
    storage::{Content, Windows},
};

/// A format whose files are read each for itself.
pub(crate) trait FileFormat {
    /// Files of a folder are taken whose names end so; all where there is none.
    fn endings(&self) -> Vec<&str>;

    /// Says what of its settings cannot be.
    fn check(&self) -> Result<(), String>;

    /// Returns true where its records have pictures.
    fn has_pictures(&self) -> bool {
        false
    }

    /// Returns true where a file may be compressed as a whole.
    fn is_compressible(&self) -> bool {
        true
    }

    /// Returns true where records may be added to a file, behind those that it has.
    fn grows(&self) -> bool {
        false
    }

    /// Cuts a file into blocks of about so many bytes. No block goes over an end that the file has had
    /// before.
    fn scan(&self, content: &Content, file: u32, block_bytes: u64) -> Result<Scanned, SourceError>;

    /// Reads what a block needs.
    fn fetch(&self, content: &Content, block: &Block) -> Result<Box<dyn Records>, SourceError>;
}

/// What was read of a block.
pub(crate) trait Records: Send {
    /// Gives its records, in order.
    fn records(&self, emit: Emit<'_>);
}

impl Format {
    /// The name by which a recipe calls it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Csv(_) => "csv",
            Self::Jsonl(_) => "jsonl",
            Self::Parquet(_) => "parquet",
            Self::Text(_) => "text",
            Self::Webdataset(_) => "webdataset",
            Self::Images(_) => "images",
            Self::Idx(_) => "idx",
        }
    }

    /// The format, where its files are read each for itself.
    pub(crate) fn of_files(&self) -> Option<Box<dyn FileFormat + '_>> {
        Some(match self {
            Self::Csv(csv) => Box::new(csv),
            Self::Jsonl(fields) => Box::new(json::Lines(fields)),
            Self::Parquet(fields) => Box::new(parquet::Columnar(fields)),
            Self::Text(text) if text.document != Document::File => Box::new(lines::Documents(text)),
            Self::Webdataset(tar) => Box::new(webdataset::Samples(tar)),
            Self::Text(_) | Self::Images(_) | Self::Idx(_) => return None,
        })
    }
}

/// Records that are read at once. What the numbers mean is the format's: a range of bytes of a file,
/// so many whole files from one on, rows of a row group, items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) len: u32,
    /// The file, or the first of them.
    pub(crate) file: u32,
    /// Which row group.
    pub(crate) part: u32,
    /// Number of records that it has.
    pub(crate) records: u32,
}

/// The blocks of a file, and what of it cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    pub(crate) blocks: Vec<Block>,
    pub(crate) left_out: LeftOut,
    /// Of what is in the file, as far as it was read to find that.
    pub(crate) digest: Digest,
    /// Of each end that the file has had before: the blocks up to there, and the digest that it had.
    /// Those are missing that are no border of records now.
    pub(crate) earlier: Vec<(u32, Digest)>,
}

/// A record as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Raw<'a> {
    pub(crate) picture: Option<Pixels<'a>>,
    /// Text that is read and not predicted.
    pub(crate) prompt: Option<Cow<'a, str>>,
    pub(crate) text: Cow<'a, str>,
    /// What is there instead of a text, of formats with conversations.
    pub(crate) conversation: Option<Conversation>,
}

/// A picture as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pixels<'a> {
    /// In a format of pictures.
    Encoded(Cow<'a, [u8]>),
    /// As plain bytes, grey or in three colours.
    Plain {
        height: u32,
        width: u32,
        colours: u32,
        bytes: &'a [u8],
    },
}

/// Where a record stands, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) record: u32,
}

/// The callback that takes each record, or what is wrong with it.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(At, Result<Raw<'_>, String>);

impl<'a> Raw<'a> {
    pub(crate) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self {
            picture: None,
            prompt: None,
            text: text.into(),
            conversation: None,
        }
    }
}

impl Raw<'static> {
    /// A conversation of messages and tools, either of which may be JSON in a text.
    pub(crate) fn conversation(
        messages: OrderedJson,
        tools: Option<OrderedJson>,
    ) -> Result<Self, String> {
        let conversation = Conversation::new(
            inside(messages, "messages")?,
            tools.map(|tools| inside(tools, "tools")).transpose()?,
        )?;
        Ok(Self {
            conversation: Some(conversation),
            ..Self::text("")
        })
    }
}

/// The JSON that a text is.
fn inside(value: OrderedJson, what: &str) -> Result<OrderedJson, String> {
    match value {
        OrderedJson::Text(text) if text.trim().is_empty() => Ok(OrderedJson::Null),
        OrderedJson::Text(text) => {
            let read = serde_json::from_str(&text);
            read.map_err(|error| format!("{what} are a text that is no JSON: {error}"))
        }
        value => Ok(value),
    }
}

impl Scanned {
    /// Of a file that is not of its source's format.
    pub(crate) fn of_another_kind(content: &Content, reason: impl Into<String>) -> Self {
        let mut scanned = Self::default();
        scanned.broken(&content.shown, 0, reason);
        scanned
    }

    /// That a file cannot be read from a place on.
    pub(crate) fn broken(&mut self, file: &str, offset: u64, reason: impl Into<String>) {
        let reason = SkipReason::Bad(reason.into());
        self.left_out.file(Skipped::at(file, offset, reason));
    }

    /// That a record of a file cannot be read, and what follows can.
    pub(crate) fn bad(&mut self, file: &str, offset: u64, reason: impl Into<String>) {
        let reason = SkipReason::Bad(reason.into());
        self.left_out.record(Skipped::at(file, offset, reason));
    }
}

/// Cuts what comes one after the other into blocks of about so many bytes.
#[derive(Debug)]
pub(crate) struct Cutter {
    blocks: Vec<Block>,
    file: u32,
    block_bytes: u64,
    start: u64,
    records: u32,
    /// Where the file has ended before, and is not cut yet.
    ends: VecDeque<u64>,
    /// The blocks up to each of the others.
    earlier: Vec<u32>,
}

impl Cutter {
    pub(crate) fn new(content: &Content, file: u32, block_bytes: u64) -> Self {
        Self {
            blocks: Vec::new(),
            file,
            block_bytes,
            start: 0,
            records: 0,
            ends: content.ends.iter().copied().collect(),
            earlier: Vec::new(),
        }
    }

    /// A record comes, from its begin to its end. It is in no block with what was there before the file
    /// had more.
    pub(crate) fn comes(
        &mut self,
        content: &Content,
        begin: u64,
        end: u64,
    ) -> Result<(), SourceError> {
        while let Some(last) = self.ends.pop_front_if(|last| *last <= begin) {
            self.end(last.max(self.start));
            self.earlier.push(self.blocks.len() as u32);
        }
        if let Some(last) = self.ends.front().copied().filter(|last| *last < end)
            && !content.part(last..end)?.trim_ascii().is_empty()
        {
            // The file has ended within this record, which was another then.
            self.ends.clear();
        }
        Ok(())
    }

    /// There is one more record.
    pub(crate) fn record(&mut self) {
        self.records += 1;
    }

    /// There is one more record, which begins here: what lies before it and is of none is no part of a
    /// block where it is large.
    pub(crate) fn record_at(&mut self, at: u64) {
        if self.records == 0 && at.saturating_sub(self.start) >= self.block_bytes {
            self.start = at;
        }
        self.records += 1;
    }

    /// Leaves what comes up to here out of all blocks.
    pub(crate) fn pass(&mut self, from: u64, to: u64) {
        self.end(from);
        self.start = to;
    }

    /// A block may end here.
    pub(crate) fn may_end(&mut self, at: u64) {
        if at - self.start >= self.block_bytes {
            self.end(at);
        }
    }

    /// A block ends here, if it has any record.
    pub(crate) fn end(&mut self, at: u64) {
        if self.records > 0 {
            self.blocks.push(Block {
                start: self.start,
                len: (at - self.start) as u32,
                file: self.file,
                part: 0,
                records: self.records,
            });
            self.records = 0;
        }
        self.start = at;
    }

    pub(crate) fn blocks(self) -> Vec<Block> {
        self.blocks
    }

    /// Gives what was cut of a file that was read through.
    pub(crate) fn done(self, windows: &Windows<'_>, scanned: &mut Scanned) {
        let blocks = self.blocks.len() as u32;
        let behind_all = self.ends.iter().map(|_| blocks);
        let cuts = self.earlier.into_iter().chain(behind_all);
        scanned.earlier = cuts.zip(windows.earlier().iter().copied()).collect();
        scanned.digest = windows.digest();
        scanned.blocks = self.blocks;
    }
}

/// Text that must be UTF-8; a mark of byte order at its begin is none of it.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| format!("it is not UTF-8: {error}"))
}

/// The same of a file that is nothing but text, in which a zero is what a crash or another kind of file has
/// left.
pub(crate) fn plain_text(bytes: &[u8]) -> Result<&str, String> {
    match memchr::memchr(0, bytes) {
        None => utf8(bytes),
        Some(at) => Err(format!(
            "its byte {at} is NUL, which no text has: it may have been cut off by a crash, or be of another kind"
        )),
    }
}

/// A longer record is taken for a file of another format.
pub(crate) const RECORD_BYTES_MAX: u64 = 64 << 20;
