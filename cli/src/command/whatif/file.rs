//! Files of traces: CSV, also compressed, and Parquet.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use odeon_observe::Recording;
use odeon_replay::{OperationKind, TraceRow, TracedOperation, TracedWorker};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};

/// The most bytes of a file, and of what is in it.
const BYTES_MAX: u64 = 1 << 30;
/// The most stages, copies and chunks, and operations of one kind in a step.
const NUMBER_MAX: f64 = 1e6;

/// Columns that a trace needs.
const COLUMNS: [&str; 7] = [
    "step", "stage", "dp_rank", "optype", "seq_id", "start_ts", "duration",
];
/// The column of chunks, which is 0 or less, or not there, where a stage is one.
const CHUNK: &str = "mc";

/// The rows of a file; none of a recording.
pub(super) fn read(path: &Path) -> Result<Option<Vec<TraceRow>>> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    let mut bytes = vec![];
    at_most(file, &mut bytes).with_context(named)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = vec![];
        at_most(MultiGzDecoder::new(Cursor::new(bytes)), &mut plain).with_context(named)?;
        bytes = plain;
    }
    let rows = match bytes.as_slice() {
        [b'P', b'A', b'R', b'1', ..] => parquet_rows(bytes),
        it if Recording::is_one(it) => return Ok(None),
        it => csv_rows(it),
    };
    rows.map(Some).with_context(named)
}

fn at_most(from: impl Read, into: &mut Vec<u8>) -> Result<()> {
    BufReader::new(from).take(BYTES_MAX + 1).read_to_end(into)?;
    if into.len() as u64 > BYTES_MAX {
        bail!("more than {BYTES_MAX} bytes: trace fewer steps");
    }
    Ok(())
}

fn csv_rows(bytes: &[u8]) -> Result<Vec<TraceRow>> {
    let mut reader = csv::Reader::from_reader(bytes);
    let headings = reader.headers().context("its first line")?.clone();
    let columns = Columns::of(headings.iter())?;
    let mut rows = vec![];
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let cell = |column: usize| record.get(column).unwrap_or_default().trim().to_owned();
        let number = |column: usize| cell(column).parse().ok();
        let row = columns.row(cell, number);
        rows.push(row.with_context(|| format!("line {line}"))?);
    }
    Ok(rows)
}

fn parquet_rows(bytes: Vec<u8>) -> Result<Vec<TraceRow>> {
    // The library panics on some files that are damaged.
    let read = catch_unwind(AssertUnwindSafe(|| parquet_rows_of(bytes)));
    read.unwrap_or_else(|_| Err(anyhow!("it is no whole Parquet file")))
}

fn parquet_rows_of(bytes: Vec<u8>) -> Result<Vec<TraceRow>> {
    let reader = SerializedFileReader::new(Bytes::from(bytes))?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns = Columns::of(schema.columns().iter().map(|it| it.name()))?;
    let mut rows = vec![];
    for (at, row) in reader.get_row_iter(None)?.enumerate() {
        let row = row?;
        let row = columns.row(
            |column| text_of(&row, column),
            |column| number_of(&row, column),
        );
        rows.push(row.with_context(|| format!("row {at}"))?);
    }
    Ok(rows)
}

fn field(row: &Row, column: usize) -> &Field {
    row.get_column_iter()
        .nth(column)
        .map_or(&Field::Null, |it| it.1)
}

fn text_of(row: &Row, column: usize) -> String {
    match field(row, column) {
        Field::Str(text) => text.clone(),
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()).into_owned(),
        other => other.to_string(),
    }
}

fn number_of(row: &Row, column: usize) -> Option<f64> {
    match field(row, column) {
        Field::Byte(it) => Some(f64::from(*it)),
        Field::Short(it) => Some(f64::from(*it)),
        Field::Int(it) => Some(f64::from(*it)),
        Field::Long(it) => Some(*it as f64),
        Field::UByte(it) => Some(f64::from(*it)),
        Field::UShort(it) => Some(f64::from(*it)),
        Field::UInt(it) => Some(f64::from(*it)),
        Field::ULong(it) => Some(*it as f64),
        Field::Float(it) => Some(f64::from(*it)),
        Field::Double(it) => Some(*it),
        _ => None,
    }
}

/// The places of columns.
struct Columns {
    needed: [usize; COLUMNS.len()],
    chunk: Option<usize>,
}

impl Columns {
    fn of<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self> {
        let names: BTreeMap<&str, usize> = names.map(str::trim).zip(0..).collect();
        let lacks: Vec<&str> = COLUMNS
            .into_iter()
            .filter(|it| !names.contains_key(it))
            .collect();
        if !lacks.is_empty() {
            let has: Vec<&str> = names.into_keys().take(20).collect();
            bail!(
                "a trace needs the columns {}; this one has no {} (it has {})",
                COLUMNS.join(", "),
                lacks.join(", "),
                has.join(", ")
            );
        }
        Ok(Self {
            needed: COLUMNS.map(|it| names[it]),
            chunk: names.get(CHUNK).copied(),
        })
    }

    /// A row, given the text and the number in each column.
    fn row(
        &self,
        text: impl Fn(usize) -> String,
        number: impl Fn(usize) -> Option<f64>,
    ) -> Result<TraceRow> {
        let [step, stage, copy, kind, place, begin, seconds] = self.needed;
        let name = text(kind);
        let kind = OperationKind::named(&name).ok_or_else(|| {
            let known = OperationKind::ALL.map(OperationKind::name);
            anyhow!("optype `{name}` is none of {}", known.join(", "))
        })?;
        let seconds_of = |column: usize, named: &str| {
            let value = number(column).filter(|it| it.is_finite());
            value.ok_or_else(|| anyhow!("{named} `{}` is no number of seconds", text(column)))
        };
        let whole = |column: usize, named: &str, most: f64| {
            let value = number(column).filter(|it| it.fract() == 0.0 && (0.0..=most).contains(it));
            value.map(|it| it as u64).ok_or_else(|| {
                anyhow!(
                    "{named} `{}` is no whole number from 0 to {most}",
                    text(column)
                )
            })
        };
        let place_of = |column: usize, named: &str| {
            Ok::<_, anyhow::Error>(whole(column, named, NUMBER_MAX)? as usize)
        };
        let chunk = match self.chunk {
            Some(column) if number(column).is_none_or(|it| it > 0.0) => place_of(column, CHUNK)?,
            _ => 0,
        };
        Ok(TraceRow {
            step: whole(step, "step", 2_f64.powi(53))?,
            operation: TracedOperation {
                kind,
                worker: TracedWorker {
                    stage: place_of(stage, "stage")?,
                    copy: place_of(copy, "dp_rank")?,
                },
                chunk,
                number: place_of(place, "seq_id")?,
            },
            begin_s: seconds_of(begin, "start_ts")?,
            seconds: seconds_of(seconds, "duration")?,
        })
    }
}
