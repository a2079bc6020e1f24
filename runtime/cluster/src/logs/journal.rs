//! The log of one job on one voter: segments of lines, in the order in which they came.
//!
//! A segment is a file. Its first line says how far each source was when the segment began, and the
//! earliest time of the segment before, so that a reader opens only those in which there is something
//! for it. When there are too many, the oldest goes. A machine that fails may leave a last line half
//! written: it is none. A line that is damaged is none either, so it is missed by its number.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::LogLimits;
use super::cursor::Cursor;
use super::line::{LineSource, LogLine};
use super::merge::Page;
use crate::unix::Unix;

/// The log of one job here: its open segment, those before, and how far each source is.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    /// Oldest first.
    segments: Vec<Segment>,
    /// The number of a last segment whose head is still to be written, which the next lines do: reading
    /// needs no room on the disk.
    headless: Option<u64>,
    /// The next number of each source.
    ends: BTreeMap<LineSource, u64>,
    /// The last segment.
    file: File,
    bytes: u64,
    /// The earliest time in the last segment.
    earliest: Unix,
    /// The latest time of all; nothing where an older release has not written it down.
    latest: Option<Unix>,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    /// Nothing if it is damaged.
    head: Option<Head>,
}

/// The first line of a segment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Head {
    /// The next number of each source when the segment began.
    ends: Vec<(LineSource, u64)>,
    /// The earliest time in the segment before.
    earliest: Unix,
    /// The latest time in all segments before; nothing where an older release has written it.
    #[serde(default)]
    latest: Option<Unix>,
}

/// A place in a log from which all lines are read that are later than a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    /// The place.
    pub cursor: Cursor,
    /// The moment.
    pub after: Unix,
}

/// The part of a journal to read, whatever is written to it meanwhile.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Segments in which there is something, with the bytes that are whole and the earliest time.
    segments: Vec<(File, u64, Unix)>,
    gone: Vec<(LineSource, u64)>,
}

/// Later than all lines.
const NEVER: Unix = Unix(u64::MAX);

impl Journal {
    /// Opens a log where it ends. A last line that was half written is cut off.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut segments = vec![];
        for number in numbers(folder)? {
            let head = head_of(&path_of(folder, number))?;
            segments.push(Segment { number, head });
        }
        let (mut ends, mut latest) = (BTreeMap::new(), Some(Unix(0)));
        let known = segments.iter().rposition(|segment| segment.head.is_some());
        if let Some(head) = known.and_then(|at| segments[at].head.as_ref()) {
            ends.extend(head.ends.iter().copied());
            latest = head.latest;
        }
        let (mut before, mut earliest) = (NEVER, NEVER);
        for segment in &segments[known.unwrap_or(0)..] {
            before = std::mem::replace(&mut earliest, NEVER);
            let file = File::open(path_of(folder, segment.number))?;
            for_each_line(file, u64::MAX, |line, _| {
                earliest = earliest.min(line.at);
                latest = latest.map(|latest| latest.max(line.at));
                let end = ends.entry(line.source()).or_default();
                *end = (line.number + 1).max(*end);
            })?;
        }
        let last = segments.last().map_or(0, |segment| segment.number);
        let (file, bytes) = open_whole(&path_of(folder, last))?;
        let mut journal = Self {
            folder: folder.to_owned(),
            segments,
            headless: None,
            ends,
            file,
            bytes,
            earliest,
            latest,
        };
        if bytes == 0 {
            // It is new, or its head was not written to its end.
            journal.segments.pop();
            journal.earliest = before;
            journal.headless = Some(last);
        }
        Ok(journal)
    }

    /// Adds lines. Those that are here already, or come before one that is, are left out.
    pub(super) fn append(&mut self, lines: &[LogLine], limits: &LogLimits) -> io::Result<()> {
        if let Some(number) = self.headless.take() {
            self.begin(number)?;
        }
        let mut text = vec![];
        for line in lines {
            let end = self.ends.get(&line.source()).copied().unwrap_or(0);
            if line.number < end {
                continue;
            }
            if self.earliest != NEVER && self.bytes + text.len() as u64 >= limits.segment_bytes {
                self.write(&mut text)?;
                self.turn(limits)?;
            }
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
            self.ends.insert(line.source(), line.number + 1);
            self.earliest = self.earliest.min(line.at);
            self.latest = self.latest.map(|latest| latest.max(line.at));
        }
        self.write(&mut text)
    }

    /// The next number of each source.
    pub(super) fn ends(&self) -> Cursor {
        self.ends
            .iter()
            .map(|(source, end)| (*source, *end))
            .collect()
    }

    /// Where segments begin, the latest first.
    pub(super) fn begins(&self) -> Vec<Begin> {
        let heads = self.segments.iter().rev().filter_map(|it| it.head.as_ref());
        let begin = |head: &Head| {
            Some(Begin {
                after: head.latest?,
                cursor: head.ends.iter().copied().collect(),
            })
        };
        heads.filter_map(begin).collect()
    }

    /// The segments that a reader has to look at.
    pub(super) fn reading(&self, cursor: &Cursor) -> io::Result<Reading> {
        let mut reading = Reading::default();
        if let Some(head) = self.segments.first().and_then(|first| first.head.as_ref()) {
            let missed = head.ends.iter().copied();
            reading.gone = missed
                .filter(|(source, end)| wants_below(cursor, *source, *end))
                .collect();
        }
        for (at, segment) in self.segments.iter().enumerate() {
            let next = self.segments.get(at + 1);
            let is_whole = next.is_some() || self.headless.is_some();
            let bytes = if is_whole { u64::MAX } else { self.bytes };
            let earliest = match next {
                None => self.earliest,
                Some(next) => next.head.as_ref().map_or(Unix(0), |head| head.earliest),
            };
            if self.holds_for(cursor, at) {
                let file = File::open(path_of(&self.folder, segment.number))?;
                reading.segments.push((file, bytes, earliest));
            }
        }
        Ok(reading)
    }

    /// Returns true where a segment may have a line that a reader wants.
    fn holds_for(&self, cursor: &Cursor, at: usize) -> bool {
        let Some(head) = &self.segments[at].head else {
            return true;
        };
        let holds = |source: LineSource, end: u64| {
            head.end_of(source) < end && wants_below(cursor, source, end)
        };
        match self.segments.get(at + 1) {
            None => self.ends.iter().any(|(source, end)| holds(*source, *end)),
            Some(Segment { head: None, .. }) => true,
            Some(Segment {
                head: Some(next), ..
            }) => next.ends.iter().any(|(source, end)| holds(*source, *end)),
        }
    }

    fn write(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        self.file.write_all(text)?;
        self.bytes += text.len() as u64;
        text.clear();
        Ok(())
    }

    /// Begins a new segment, and lets the oldest go.
    fn turn(&mut self, limits: &LogLimits) -> io::Result<()> {
        let next = self.segments.last().map_or(0, |last| last.number + 1);
        let (file, _) = open_whole(&path_of(&self.folder, next))?;
        self.file = file;
        self.begin(next)?;
        while self.segments.len() > limits.segments.max(1) {
            fs::remove_file(path_of(&self.folder, self.segments.remove(0).number))?;
        }
        Ok(())
    }

    /// Writes the head of a segment whose file is open and empty.
    fn begin(&mut self, number: u64) -> io::Result<()> {
        let head = Head {
            ends: self
                .ends
                .iter()
                .map(|(source, end)| (*source, *end))
                .collect(),
            earliest: self.earliest,
            latest: self.latest,
        };
        let mut text = serde_json::to_vec(&head)?;
        text.push(b'\n');
        self.bytes = 0;
        self.earliest = NEVER;
        self.write(&mut text)?;
        let head = Some(head);
        self.segments.push(Segment { number, head });
        Ok(())
    }
}

impl Head {
    /// They are in order.
    fn end_of(&self, source: LineSource) -> u64 {
        let known = self
            .ends
            .binary_search_by_key(&source, |(source, _)| *source);
        known.map_or(0, |at| self.ends[at].1)
    }
}

impl Reading {
    /// The first lines of those that a reader wants, as many as fit into so many bytes; at least one,
    /// if there is one.
    pub(super) fn read(self, cursor: &Cursor, bytes_max: usize) -> io::Result<Page> {
        let mut found: Vec<(LogLine, usize)> = vec![];
        let mut more = false;
        let mut segments = self.segments.into_iter();
        while let Some((file, bytes, earliest)) = segments.next() {
            let later = segments.as_slice().iter().map(|(_, _, earliest)| *earliest);
            let earliest = later.fold(earliest, Ord::min);
            if more && found.last().is_some_and(|(line, _)| earliest > line.at) {
                break;
            }
            for_each_line(file, bytes, |line, bytes| {
                if cursor.wants(&line) {
                    found.push((line, bytes));
                }
            })?;
            found.sort_by_key(|(line, _)| line.place());
            let mut sum = 0;
            let fits = found.iter().take_while(|(_, bytes)| {
                sum += bytes;
                sum <= bytes_max
            });
            let fits = fits.count().max(1);
            more |= found.len() > fits;
            found.truncate(fits);
        }
        Ok(Page {
            lines: found.into_iter().map(|(line, _)| line).collect(),
            more,
            gone: self.gone,
        })
    }
}

fn wants_below(cursor: &Cursor, source: LineSource, end: u64) -> bool {
    cursor.next_of(source).is_some_and(|next| next < end)
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016x}.log"))
}

/// The numbers of the segments in a folder, in order.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = vec![];
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".log"));
        numbers.extend(number.and_then(|number| u64::from_str_radix(number, 16).ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Opens a segment for writing at its end. A last line that was half written is cut off.
fn open_whole(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(path)?;
    let mut reader = BufReader::new(&mut file);
    let (mut bytes, mut line) = (0, vec![]);
    while next_line(&mut reader, &mut line)? {
        bytes += line.len() as u64;
    }
    file.set_len(bytes)?;
    Ok((file, bytes))
}

fn head_of(path: &Path) -> io::Result<Option<Head>> {
    let mut line = vec![];
    next_line(&mut BufReader::new(File::open(path)?), &mut line)?;
    Ok(serde_json::from_slice(&line).ok())
}

/// Reads the next line, with its end. Returns true if there is one; one that has no end was half
/// written.
fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    source.read_until(b'\n', line)?;
    Ok(line.ends_with(b"\n"))
}

/// The lines of a segment that are whole, each with its bytes.
fn for_each_line(file: File, bytes: u64, mut take: impl FnMut(LogLine, usize)) -> io::Result<()> {
    let mut reader = BufReader::new(file.take(bytes));
    let mut text = vec![];
    while next_line(&mut reader, &mut text)? {
        if let Ok(line) = serde_json::from_slice(&text) {
            take(line, text.len());
        }
    }
    Ok(())
}
