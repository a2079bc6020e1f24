//! Rows of Parquet files, of which only the columns are read that are wanted.

mod nested;

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::Cursor,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use odeon_algorithms::json::OrderedJson;
use parquet::{
    basic::Type as Physical,
    column::reader::{ColumnReader, get_column_reader},
    data_type::ByteArray,
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData},
        reader::{ChunkReader, Length},
        serialized_reader::SerializedPageReader,
    },
    schema::types::SchemaDescriptor,
};

use super::{At, Block, Emit, FileFormat, Pixels, Raw, Records, Scanned, foreign::foreign};
use crate::source::{
    fault::SourceError,
    index::Digest,
    spec::Fields,
    storage::{Content, digest},
};

/// Rows of Parquet files.
pub(crate) struct Columnar<'f>(pub(crate) &'f Fields);

impl FileFormat for Columnar<'_> {
    fn endings(&self) -> Vec<&str> {
        vec![".parquet"]
    }

    fn check(&self) -> Result<(), String> {
        self.0.check()
    }

    fn has_pictures(&self) -> bool {
        self.0.image.is_some()
    }

    fn is_compressible(&self) -> bool {
        false
    }

    fn scan(&self, content: &Content, file: u32, block_bytes: u64) -> Result<Scanned, SourceError> {
        scan(content, file, self.0, block_bytes)
    }

    fn fetch(&self, content: &Content, block: &Block) -> Result<Box<dyn Records>, SourceError> {
        Ok(Box::new(fetch(block, content, self.0)?))
    }
}

impl Records for Rows {
    fn records(&self, emit: Emit<'_>) {
        records(self, emit);
    }
}

/// The rows of a block as they lie in their file.
#[derive(Debug)]
struct Rows {
    file: u32,
    first: u64,
    count: u32,
    metadata: ParquetMetaData,
    group: usize,
    columns: Columns,
    chunks: Arc<Chunks>,
}

/// The numbers of the columns that are wanted: text or prompt, response, picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Texts {
    first: usize,
    response: Option<usize>,
    image: Option<usize>,
}

/// The columns that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Columns {
    Texts(Texts),
    /// Those of conversations and their tools, with all that is below them.
    Conversations {
        messages: String,
        tools: Option<String>,
        leaves: Vec<usize>,
    },
}

impl Columns {
    fn of(schema: &SchemaDescriptor, fields: &Fields) -> Result<Self, String> {
        let Some(messages) = &fields.messages else {
            return Texts::of(schema, fields).map(Self::Texts);
        };
        let leaves = |names: &[&str]| nested::leaves(schema, names);
        if leaves(&[messages]).is_empty() {
            return Err(absent(schema, messages));
        }
        let tools = fields.tools.clone();
        let tools = tools.filter(|tools| !leaves(&[tools]).is_empty());
        let names: Vec<&str> = [Some(messages.as_str()), tools.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        Ok(Self::Conversations {
            leaves: leaves(&names),
            messages: messages.clone(),
            tools,
        })
    }

    fn all(&self) -> Vec<usize> {
        match self {
            Self::Texts(texts) => texts.all().collect(),
            Self::Conversations { leaves, .. } => leaves.clone(),
        }
    }
}

impl Texts {
    fn of(schema: &SchemaDescriptor, fields: &Fields) -> Result<Self, String> {
        let column = |name: &str| {
            let mut columns = schema.columns().iter();
            let at = columns.position(|column| column.path().string() == name);
            let at = at.ok_or_else(|| absent(schema, name))?;
            let column = schema.column(at);
            if column.max_rep_level() > 0 {
                return Err(format!("its column `{name}` has lists of them"));
            }
            match column.physical_type() {
                Physical::BYTE_ARRAY => Ok(at),
                other => Err(format!(
                    "its column `{name}` is of {other} and not of text or bytes"
                )),
            }
        };
        let (first, response, image) = fields.names();
        Ok(Self {
            first: column(first)?,
            response: response.map(column).transpose()?,
            image: image.map(column).transpose()?,
        })
    }

    fn all(self) -> impl Iterator<Item = usize> {
        [Some(self.first), self.response, self.image]
            .into_iter()
            .flatten()
    }
}

/// Why a column cannot be read that is not there as such.
fn absent(schema: &SchemaDescriptor, name: &str) -> String {
    let columns = schema.columns().iter();
    let paths: Vec<(String, bool)> = columns
        .map(|column| (column.path().string(), column.max_rep_level() > 0))
        .collect();
    let below = |(path, _): &&(String, bool)| {
        path.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    let all = paths.iter().map(|(path, _)| path.as_str());
    let all = all.collect::<Vec<_>>().join(", ");
    match paths.iter().find(below) {
        Some((_, true)) => format!("its column `{name}` is a list; its columns are {all}"),
        Some((_, false)) => {
            format!("its column `{name}` has fields of its own; its columns are {all}")
        }
        None if all.is_empty() => "it has no columns".to_owned(),
        None => format!("it has no column `{name}`, but {all}"),
    }
}

/// Parts of a file, by where they are in it.
#[derive(Debug)]
struct Chunks {
    parts: Vec<(u64, Bytes)>,
    len: u64,
}

impl Chunks {
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let part = self.parts.iter().find_map(|(begin, bytes)| {
            let skip = usize::try_from(start.checked_sub(*begin)?).ok()?;
            (skip < bytes.len()).then(|| bytes.slice(skip..))
        });
        part.ok_or_else(|| ParquetError::EOF(format!("nothing of its column is at {start}")))
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Chunks {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(Cursor::new(self.from(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!(
                "a page at {start} is longer than its column"
            )));
        }
        Ok(bytes.slice(..length))
    }
}

/// The metadata at the end of a file, and a hash of it.
fn metadata(content: &Content) -> Result<Result<(ParquetMetaData, Digest), String>, SourceError> {
    let len = content.len();
    if len == 0 {
        return Ok(Err("it has no bytes".into()));
    }
    if len < 12 {
        return Ok(Err("it is too short for a Parquet file".into()));
    }
    let begin = content.part(0..4)?;
    if begin != b"PAR1"[..] {
        return Ok(Err(match foreign(content)? {
            Some(kind) => format!("it is no Parquet file: {kind}"),
            None => "it does not begin as a Parquet file does".into(),
        }));
    }
    // Most footers are in what is read first.
    let mut tail = content.part(len.saturating_sub(FOOTER_GUESS)..len)?;
    let (rest, magic) = tail.split_last_chunk::<4>().expect("there are 12 bytes");
    if magic != b"PAR1" {
        return Ok(Err(
            "it does not end as a Parquet file does: it may be cut off".into(),
        ));
    }
    let (_, footer) = rest.split_last_chunk().expect("there are 8 bytes");
    let footer = u64::from(u32::from_le_bytes(*footer));
    if footer + 12 > len {
        return Ok(Err(format!(
            "its footer of {footer} bytes is longer than itself"
        )));
    }
    if footer + 8 > tail.len() as u64 {
        tail = content.part(len - footer - 8..len)?;
    }
    let end = tail.len() - 8;
    let footer = &tail[end - footer as usize..end];
    let read = ParquetMetaDataReader::decode_metadata(footer);
    let mut hasher = blake3::Hasher::new();
    hasher.update(footer);
    let read = read.map(|metadata| (metadata, digest(&hasher)));
    Ok(read.map_err(|error| format!("its footer cannot be read: {error}")))
}

/// The range of a column of a row group, if it is within the file.
fn range(group: &RowGroupMetaData, column: usize, len: u64) -> Result<Range<u64>, String> {
    let column = group.column(column);
    let first = column
        .dictionary_page_offset()
        .unwrap_or_else(|| column.data_page_offset());
    let (start, bytes) = (
        u64::try_from(first).ok(),
        u64::try_from(column.compressed_size()).ok(),
    );
    let range = start.zip(bytes).and_then(|(start, bytes)| {
        let end = start.checked_add(bytes)?;
        (end <= len).then_some(start..end)
    });
    range.ok_or_else(|| "a column lies beyond its end".into())
}

/// Takes row groups as blocks; large ones are several.
fn scan(
    content: &Content,
    file: u32,
    fields: &Fields,
    block_bytes: u64,
) -> Result<Scanned, SourceError> {
    let mut scanned = Scanned::default();
    let metadata = metadata(content)?;
    let columns = metadata.and_then(|(metadata, digest)| {
        let columns = Columns::of(metadata.file_metadata().schema_descr(), fields)?;
        Ok((metadata, digest, columns))
    });
    let (metadata, columns) = match columns {
        Ok((metadata, digest, columns)) => {
            scanned.digest = digest;
            (metadata, columns)
        }
        Err(mut reason) => {
            let (first, response, image) = fields.names();
            let names = [Some(first), response, image].into_iter().flatten();
            for name in names.filter(|name| content.shown.contains(&format!("/{name}="))) {
                let _ = write!(
                    reason,
                    "; `{name}` is in the names of folders, which are no columns here"
                );
            }
            scanned.broken(&content.shown, content.len(), reason);
            return Ok(scanned);
        }
    };
    for (part, group) in (0..).zip(metadata.row_groups()) {
        let checked = columns
            .all()
            .into_iter()
            .try_for_each(|column| range(group, column, content.len()).map(|_| ()));
        let rows =
            u32::try_from(group.num_rows()).map_err(|_| "it has an unlikely number of rows".into());
        let rows = match checked.and(rows) {
            Ok(rows) => rows,
            Err(reason) => {
                scanned.broken(&content.shown, u64::from(part), reason);
                return Ok(scanned);
            }
        };
        let bytes: i64 = columns
            .all()
            .into_iter()
            .map(|column| group.column(column).uncompressed_size())
            .sum();
        let most = block_bytes.saturating_mul(GROUP_BLOCKS);
        let pieces = (bytes.max(0) as u64)
            .div_ceil(most)
            .clamp(1, u64::from(rows.max(1)));
        let each = u64::from(rows).div_ceil(pieces) as u32;
        let mut start = 0;
        while start < rows {
            let len = each.min(rows - start);
            scanned.blocks.push(Block {
                start: u64::from(start),
                len,
                file,
                part,
                records: len,
            });
            start += len;
        }
    }
    Ok(scanned)
}

/// Reads what is wanted of a row group.
fn fetch(block: &Block, content: &Content, fields: &Fields) -> Result<Rows, SourceError> {
    let damaged = |reason| SourceError::Damaged {
        file: content.shown.clone(),
        offset: u64::from(block.part),
        reason,
    };
    let (metadata, _) = metadata(content)?.map_err(damaged)?;
    let columns = Columns::of(metadata.file_metadata().schema_descr(), fields).map_err(damaged)?;
    let group = block.part as usize;
    if group >= metadata.num_row_groups() {
        return Err(damaged("it has fewer row groups than before".into()));
    }
    let mut parts = Vec::new();
    for column in columns.all() {
        let range = range(metadata.row_group(group), column, content.len()).map_err(damaged)?;
        parts.push((range.start, content.part(range)?));
    }
    Ok(Rows {
        file: block.file,
        first: block.start,
        count: block.len,
        group,
        columns,
        metadata,
        chunks: Arc::new(Chunks {
            parts,
            len: content.len(),
        }),
    })
}

impl Rows {
    /// The values of a column.
    fn column(&self, column: usize) -> Result<Vec<Option<ByteArray>>, ParquetError> {
        let group = self.metadata.row_group(self.group);
        let pages = SerializedPageReader::new(
            Arc::clone(&self.chunks),
            group.column(column),
            group.num_rows() as usize,
            None,
        )?;
        let description = self.metadata.file_metadata().schema_descr().column(column);
        let most = description.max_def_level();
        let ColumnReader::ByteArrayColumnReader(mut reader) =
            get_column_reader(description, Box::new(pages))
        else {
            return Err(ParquetError::General("a column is not of bytes".into()));
        };
        reader.skip_records(self.first as usize)?;
        let (mut out, mut values, mut levels) = (Vec::new(), Vec::new(), Vec::new());
        while out.len() < self.count as usize {
            values.clear();
            levels.clear();
            let wanted = (self.count as usize - out.len()).min(1024);
            let (rows, _, _) = reader.read_records(wanted, Some(&mut levels), None, &mut values)?;
            if rows == 0 {
                return Err(ParquetError::EOF("a column ends before its rows do".into()));
            }
            let mut values = values.drain(..);
            if most == 0 {
                out.extend(values.map(Some));
            } else {
                let present = |&level: &i16| (level == most).then(|| values.next()).flatten();
                out.extend(levels.iter().map(present));
            }
        }
        Ok(out)
    }
}

/// What a decoder makes of pages. It panics with some whose bytes are damaged, and has nothing that
/// others see.
fn decoded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("its pages are damaged".to_owned()),
    }
}

/// The records of a block.
fn records(rows: &Rows, emit: Emit<'_>) {
    let at = |record| At {
        file: rows.file,
        offset: rows.first,
        record,
    };
    // One damaged page takes its block with it.
    let refuse = |error: String, emit: Emit<'_>| {
        let reason = format!("row group {} cannot be read: {error}", rows.group);
        for record in 0..rows.count {
            emit(at(record), Err(reason.clone()));
        }
    };
    let texts = match &rows.columns {
        Columns::Texts(texts) => *texts,
        Columns::Conversations {
            messages, tools, ..
        } => {
            let names: Vec<&str> = [Some(messages.as_str()), tools.as_deref()]
                .into_iter()
                .flatten()
                .collect();
            let wanted = (rows.first as usize, rows.count as usize);
            let read = || nested::rows(&rows.metadata, rows.group, &rows.chunks, &names, wanted);
            match decoded(read) {
                Ok(values) if values.len() == rows.count as usize => {
                    for (values, record) in values.into_iter().zip(0..) {
                        let raw = values.and_then(|values| {
                            let mut values = values.into_iter();
                            let messages = values.next().unwrap_or(OrderedJson::Null);
                            Raw::conversation(messages, values.next())
                        });
                        emit(at(record), raw);
                    }
                }
                Ok(_) => refuse("a column ends before its rows do".into(), emit),
                Err(error) => refuse(error, emit),
            }
            return;
        }
    };
    let columns = || {
        let column = |column: Option<usize>| column.map(|it| rows.column(it)).transpose();
        let first = rows.column(texts.first)?;
        Ok((first, column(texts.response)?, column(texts.image)?))
    };
    let (first, response, image) = match decoded(columns) {
        Ok(columns) => columns,
        Err(error) => return refuse(error, emit),
    };
    for (row, record) in (0..rows.count as usize).zip(0..) {
        let text = |column: &'_ [Option<ByteArray>]| match column.get(row) {
            Some(Some(value)) => {
                let text = super::utf8(value.data()).map(str::to_owned);
                text.map(Cow::<'static, str>::Owned)
            }
            _ => Err("the row has no text".into()),
        };
        let raw = || {
            let (prompt, text) = match &response {
                Some(response) => (Some(text(&first)?), text(response)?),
                None => (None, text(&first)?),
            };
            let picture = match &image {
                Some(image) => match image.get(row) {
                    Some(Some(value)) => Some(Pixels::Encoded(Cow::Borrowed(value.data()))),
                    _ => return Err("the row has no picture".into()),
                },
                None => None,
            };
            Ok(Raw {
                picture,
                prompt,
                ..Raw::text(text)
            })
        };
        emit(at(record), raw());
    }
}

/// Read at once in the hope that it holds the footer.
const FOOTER_GUESS: u64 = 64 << 10;
/// A row group of more than so many blocks' bytes is read in several pieces.
const GROUP_BLOCKS: u64 = 64;
