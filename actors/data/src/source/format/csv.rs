//! Tables of text: a record a row, with quotes as RFC 4180 has them; comma, tab or another sign
//! between fields.

use std::{
    cell::Cell,
    io::{self, Read},
    rc::Rc,
};

use bytes::Bytes;
use csv::{ByteRecord, ReaderBuilder};
use serde::{Deserialize, Serialize};

use super::{
    At, Block, Cutter, Emit, FileFormat, RECORD_BYTES_MAX, Raw, Records, Scanned, foreign::foreign,
    plain_text,
};
use crate::source::{
    fault::SourceError,
    spec::Fields,
    storage::{Content, Windows},
};

/// Rows of a table. The first row of a file names its columns.
///
/// ```
/// # use odeon_data::source::Format;
/// let format: Format = serde_json::from_str(r#"{"csv": {"prompt": "q", "response": "a"}}"#)?;
/// # assert!(matches!(format, Format::Csv(_)));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Csv {
    /// The column with the text of a document, all of which is predicted. `text` where nothing else is
    /// said.
    pub text: Option<String>,
    /// The column with text that is read and not predicted; needs a `response`.
    pub prompt: Option<String>,
    /// The column with the text that is predicted after a `prompt`.
    pub response: Option<String>,
    /// The sign between fields, one ASCII character; `"\t"` for tables of tabs.
    pub delimiter: char,
    /// False where a quote is a sign as any other, as in many tables of tabs.
    pub quoting: bool,
    /// The sign before a quote that ends no field, such as a backslash; without, a quote that stands twice
    /// is one.
    pub escape: Option<char>,
    /// False where the first row is a record as all others: columns go by their numbers then, from `1`.
    pub header: bool,
}

impl Default for Csv {
    fn default() -> Self {
        Self {
            text: None,
            prompt: None,
            response: None,
            delimiter: ',',
            quoting: true,
            escape: None,
            header: true,
        }
    }
}

impl Csv {
    fn fields(&self) -> Fields {
        Fields {
            text: self.text.clone(),
            prompt: self.prompt.clone(),
            response: self.response.clone(),
            ..Fields::default()
        }
    }

    fn reader<R: Read>(&self, from: R) -> csv::Reader<R> {
        ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(self.delimiter as u8)
            .quoting(self.quoting)
            .escape(self.escape.map(|sign| sign as u8))
            .double_quote(self.escape.is_none())
            .from_reader(from)
    }
}

/// The wanted columns of a table, by their places in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    first: usize,
    response: Option<usize>,
    /// Fields of each row; `None` where no row says it for all.
    width: Option<usize>,
}

impl Columns {
    /// Those that a header names.
    fn named(header: &ByteRecord, fields: &Fields) -> Result<Self, String> {
        let (first, response, _) = fields.names();
        let place = |name: &str| {
            let mut found = header
                .iter()
                .enumerate()
                .filter(|(_, it)| *it == name.as_bytes());
            match (found.next(), found.next()) {
                (Some((place, _)), None) => Ok(place),
                (Some(_), Some(_)) => Err(format!("it has two columns `{name}`")),
                (None, _) => {
                    let known = header.iter().map(String::from_utf8_lossy);
                    let known = known.map(|name| format!("`{name}`")).collect::<Vec<_>>();
                    Err(format!(
                        "it has no column `{name}`: it has {}",
                        known.join(", ")
                    ))
                }
            }
        };
        Ok(Self {
            first: place(first)?,
            response: response.map(place).transpose()?,
            width: Some(header.len()),
        })
    }

    /// Those of these numbers.
    fn numbered(fields: &Fields) -> Result<Self, String> {
        let (first, response, _) = fields.names();
        let place = |name: &str| match name.parse::<usize>() {
            Ok(number @ 1..) => Ok(number - 1),
            _ => Err(format!(
                "without a header a column is a number from 1 on, and `{name}` is none"
            )),
        };
        Ok(Self {
            first: place(first)?,
            response: response.map(place).transpose()?,
            width: None,
        })
    }

    fn record<'r>(&self, row: &'r ByteRecord) -> Result<Raw<'r>, String> {
        if let Some(width) = self.width.filter(|width| *width != row.len()) {
            let has = row.len();
            return Err(format!("it has {has} fields, and the header has {width}"));
        }
        let field = |place: usize| {
            let missing = || format!("it has no column {}: it has {}", place + 1, row.len());
            row.get(place).ok_or_else(missing).and_then(plain_text)
        };
        let first = field(self.first)?;
        Ok(match self.response {
            None => Raw::text(first),
            Some(response) => Raw {
                prompt: Some(first.into()),
                ..Raw::text(field(response)?)
            },
        })
    }
}

/// Bytes up to a bound: so that a quote that is never closed does not bring all of a file into memory.
struct Bounded<R> {
    from: R,
    at: u64,
    bound: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at > self.bound.get() {
            return Err(io::Error::other(
                "a row is longer than 64 MiB: a quote may be open",
            ));
        }
        let count = self.from.read(buffer)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// As much of a file may be read before a row is made of it.
const READ_AHEAD: u64 = 1 << 20;

/// A row that no table has, behind the end of a file: it comes by itself, unless a quote is open.
const END: &[u8] = b"\n\x04\n";

impl FileFormat for &Csv {
    fn endings(&self) -> Vec<&str> {
        vec![".csv", ".tsv"]
    }

    fn check(&self) -> Result<(), String> {
        if !self.delimiter.is_ascii() || ['"', '\n', '\r'].contains(&self.delimiter) {
            return Err(
                "a delimiter is one ASCII character, and no quote and no end of line".into(),
            );
        }
        if self
            .escape
            .is_some_and(|sign| !sign.is_ascii() || sign == '"')
        {
            return Err("`escape` is one ASCII character, and no quote".into());
        }
        let fields = self.fields();
        fields.check()?;
        match self.header {
            true => Ok(()),
            false => Columns::numbered(&fields).map(drop),
        }
    }

    fn grows(&self) -> bool {
        true
    }

    fn scan(&self, content: &Content, file: u32, block_bytes: u64) -> Result<Scanned, SourceError> {
        if let Some(reason) = foreign(content)? {
            return Ok(Scanned::of_another_kind(content, reason));
        }
        let mut scanned = Scanned::default();
        let mut cutter = Cutter::new(content, file, block_bytes);
        let bound = Rc::new(Cell::new(0));
        let bounded = Bounded {
            from: Windows::new(content).chain(END),
            at: 0,
            bound: Rc::clone(&bound),
        };
        let mut reader = self.reader(bounded);
        let (mut row, mut begin, mut header) = (ByteRecord::new(), 0, self.header);
        let mut whole = false;
        loop {
            bound.set(begin + RECORD_BYTES_MAX + READ_AHEAD);
            match reader.read_byte_record(&mut row) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => match SourceError::damaged(error.into(), &content.shown, begin) {
                    SourceError::Damaged { offset, reason, .. } => {
                        scanned.broken(&content.shown, offset, reason);
                        break;
                    }
                    other => return Err(other),
                },
            }
            if row.len() == 1 && row.get(0) == Some(&END[1..2]) {
                whole = true;
                break;
            }
            let end = reader.position().byte().min(content.len());
            if end - begin > RECORD_BYTES_MAX {
                scanned.broken(&content.shown, begin, "a row is longer than 64 MiB");
                break;
            }
            if header {
                header = false;
                if let Err(reason) = Columns::named(&row, &self.fields()) {
                    scanned.broken(&content.shown, 0, reason);
                    return Ok(scanned);
                }
                cutter.end(end);
            } else if reader.position().byte() > content.len() + 1 {
                // It goes on behind the end of the file.
                break;
            } else {
                cutter.comes(content, begin, end)?;
                cutter.record();
                cutter.may_end(end);
            }
            begin = end;
        }
        if !whole && scanned.left_out.is_empty() {
            scanned.broken(&content.shown, begin, "a quote is not closed");
        }
        cutter.end(begin);
        cutter.done(reader.get_ref().from.get_ref().0, &mut scanned);
        // Whoever reads a block needs the names of its columns.
        let first = scanned.blocks.first().map_or(0, |block| block.start);
        for block in &mut scanned.blocks {
            block.part = first as u32;
        }
        Ok(scanned)
    }

    fn fetch(&self, content: &Content, block: &Block) -> Result<Box<dyn Records>, SourceError> {
        let header = match self.header {
            true => Some(content.part(0..u64::from(block.part))?),
            false => None,
        };
        let range = block.start..block.start + u64::from(block.len);
        Ok(Box::new(Rows {
            csv: Csv::clone(self),
            header,
            start: block.start,
            file: block.file,
            bytes: content.part(range)?,
        }))
    }
}

/// The rows of a block.
struct Rows {
    csv: Csv,
    header: Option<Bytes>,
    start: u64,
    file: u32,
    bytes: Bytes,
}

impl Rows {
    fn columns(&self) -> Result<Columns, String> {
        let fields = self.csv.fields();
        let Some(header) = &self.header else {
            return Columns::numbered(&fields);
        };
        let mut row = ByteRecord::new();
        let read = self.csv.reader(&header[..]).read_byte_record(&mut row);
        read.map_err(|error| error.to_string())?;
        Columns::named(&row, &fields)
    }
}

impl Records for Rows {
    fn records(&self, emit: Emit<'_>) {
        let mut at = At {
            file: self.file,
            offset: self.start,
            record: 0,
        };
        let columns = match self.columns() {
            Ok(columns) => columns,
            Err(reason) => return emit(at, Err(reason)),
        };
        let mut reader = self.csv.reader(&self.bytes[..]);
        let mut row = ByteRecord::new();
        loop {
            match reader.read_byte_record(&mut row) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return emit(at, Err(error.to_string())),
            }
            emit(at, columns.record(&row));
            at.record += 1;
            at.offset = self.start + reader.position().byte();
        }
    }
}
