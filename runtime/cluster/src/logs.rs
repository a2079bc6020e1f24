//! What jobs print, kept on the voters: after the process, the worker and the node are gone, within
//! bounds.
//!
//! A job has a folder of segments. A segment is a file of lines, each a JSON object; when it is full
//! a new one begins, and the oldest goes when the job has too many bytes. Lines are numbered, so that
//! a reader knows what it has missed. When there are too many jobs, the log goes that was written to
//! least recently.
//!
//! A machine that fails may leave a last line half written: it is none. What else it has damaged is
//! said in place of the line, or left out when its number is not known.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::job::JobId;
use crate::unix::Unix;

/// A line that a process of a job has printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When the node saw it.
    pub at: Unix,
    /// The node.
    pub node: String,
    /// Which process: `driver`, or the number of a worker in the cluster.
    pub process: String,
    /// On which of its two outputs.
    pub stream: Stream,
    /// Without its end; what is no UTF-8 is replaced.
    pub text: String,
}

/// The outputs of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The bounds of what is kept.
#[derive(Clone, Copy, Debug)]
pub struct LogLimits {
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Segments of one job.
    pub segments: usize,
    /// Jobs.
    pub jobs: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            segment_bytes: 4 << 20,
            segments: 8,
            jobs: 1000,
        }
    }
}

/// Lines of a job from some number on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPage {
    /// The number of the first line here; higher than was asked when older ones are gone.
    pub first: u64,
    /// The lines.
    pub lines: Vec<LogLine>,
}

/// The logs of a voter.
#[derive(Debug)]
pub struct Logs {
    folder: PathBuf,
    limits: LogLimits,
    open: Mutex<Open>,
    added: Notify,
}

/// The logs that were used of late.
#[derive(Debug, Default)]
struct Open {
    journals: BTreeMap<JobId, Journal>,
    /// When each log was last written to, counted in writes since the voter was started.
    written: BTreeMap<JobId, u64>,
    writes: u64,
}

/// The log of one job.
#[derive(Debug)]
struct Journal {
    folder: PathBuf,
    /// The number of the first line of each segment, oldest first.
    segments: Vec<u64>,
    /// The number of the next line.
    next: u64,
    file: File,
    bytes: u64,
}

impl Logs {
    /// Those in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(folder: impl Into<PathBuf>, limits: LogLimits) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            limits,
            open: Mutex::default(),
            added: Notify::new(),
        })
    }

    /// Adds lines to the log of a job.
    ///
    /// # Errors
    /// The disk does not take them.
    pub fn append(&self, job: JobId, lines: &[LogLine]) -> io::Result<()> {
        let mut open = self.open.lock();
        if !self.folder_of(job).exists() {
            self.make_room(&mut open)?;
        }
        open.writes += 1;
        let now = open.writes;
        open.written.insert(job, now);
        let journal = self.journal(&mut open, job)?;
        let written = journal.append(lines, &self.limits);
        if written.is_err() {
            // What was written in part is cut off when it is opened again.
            open.journals.remove(&job);
        }
        drop(open);
        self.added.notify_waiters();
        written
    }

    /// Lines of a job, from number `from` on, as many as fit into so many bytes; at least one, if
    /// there is one.
    ///
    /// # Errors
    /// The disk does not give them.
    pub fn read(&self, job: JobId, from: u64, bytes_max: usize) -> io::Result<LogPage> {
        // No line is half written while this reads.
        let _open = self.open.lock();
        let folder = self.folder_of(job);
        let segments = segments(&folder)?;
        let mut page = LogPage {
            first: from.max(segments.first().copied().unwrap_or(from)),
            lines: vec![],
        };
        let begin = segments.partition_point(|first| *first <= page.first);
        let mut bytes = 0;
        for first in &segments[begin.saturating_sub(1)..] {
            let mut lines = BufReader::new(File::open(path_of(&folder, *first))?);
            let mut line = vec![];
            let mut number = *first;
            while next_line(&mut lines, &mut line)? {
                let next = page.first + page.lines.len() as u64;
                if number > next && !page.lines.is_empty() {
                    // Lines before this one are gone; who reads on begins behind them.
                    return Ok(page);
                }
                if number >= next {
                    page.first = number - page.lines.len() as u64;
                    bytes += line.len();
                    if bytes > bytes_max && !page.lines.is_empty() {
                        return Ok(page);
                    }
                    page.lines.push(read_line(&line));
                }
                number += 1;
            }
        }
        Ok(page)
    }

    /// Resolves when lines are added next, to whichever job.
    pub fn added(&self) -> Notified<'_> {
        self.added.notified()
    }

    /// The number that the next line of a job will have.
    ///
    /// # Errors
    /// The disk does not tell.
    pub fn end(&self, job: JobId) -> io::Result<u64> {
        let mut open = self.open.lock();
        if !self.folder_of(job).exists() {
            return Ok(0);
        }
        Ok(self.journal(&mut open, job)?.next)
    }

    fn folder_of(&self, job: JobId) -> PathBuf {
        self.folder.join(job.to_string())
    }

    fn journal<'a>(&self, open: &'a mut Open, job: JobId) -> io::Result<&'a mut Journal> {
        if !open.journals.contains_key(&job) && open.journals.len() >= OPEN_MAX {
            let written = |job: &JobId| open.written.get(job).copied();
            let idle = open.journals.keys().copied().min_by_key(written);
            idle.and_then(|idle| open.journals.remove(&idle));
        }
        match open.journals.entry(job) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(room) => Ok(room.insert(Journal::open(&self.folder_of(job))?)),
        }
    }

    /// Removes logs, so that there is room for another: first those that were not written to since
    /// the start, of the oldest jobs first.
    fn make_room(&self, open: &mut Open) -> io::Result<()> {
        let mut jobs = vec![];
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let job = name.to_str().and_then(|name| name.parse::<JobId>().ok());
            jobs.extend(job.filter(|job| *name == *job.to_string()));
        }
        jobs.sort_unstable_by_key(|job| (open.written.get(job).copied(), *job));
        let most = self.limits.jobs.saturating_sub(1);
        for job in &jobs[..jobs.len().saturating_sub(most)] {
            open.journals.remove(job);
            open.written.remove(job);
            fs::remove_dir_all(self.folder_of(*job))?;
        }
        Ok(())
    }
}

/// Logs that are kept open.
const OPEN_MAX: usize = 64;

fn path_of(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:016x}.log"))
}

/// The first numbers of the segments in a folder, in order.
fn segments(folder: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let mut firsts = vec![];
    for entry in entries {
        let name = entry?.file_name();
        let first = name.to_str().and_then(|name| name.strip_suffix(".log"));
        firsts.extend(first.and_then(|first| u64::from_str_radix(first, 16).ok()));
    }
    firsts.sort_unstable();
    Ok(firsts)
}

/// Reads the next line, with its end. Whether there is one: what has no end was half written.
fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    source.read_until(b'\n', line)?;
    Ok(line.ends_with(b"\n"))
}

fn read_line(line: &[u8]) -> LogLine {
    serde_json::from_slice(line).unwrap_or_else(|error| LogLine {
        at: Unix::default(),
        node: String::new(),
        process: "log".to_owned(),
        stream: Stream::Err,
        text: format!("this line is damaged: {error}"),
    })
}

impl Journal {
    /// Opens a log where it ends. A last line that was half written is cut off.
    fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut segments = segments(folder)?;
        if segments.is_empty() {
            segments.push(0);
        }
        let last = segments.last().copied().unwrap_or(0);
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path_of(folder, last))?;
        let mut reader = BufReader::new(&mut file);
        let (mut next, mut bytes) = (last, 0);
        let mut line = vec![];
        while next_line(&mut reader, &mut line)? {
            bytes += line.len() as u64;
            next += 1;
        }
        file.set_len(bytes)?;
        Ok(Self {
            folder: folder.to_owned(),
            segments,
            next,
            file,
            bytes,
        })
    }

    fn append(&mut self, lines: &[LogLine], limits: &LogLimits) -> io::Result<()> {
        let mut text = vec![];
        for line in lines {
            let bytes = self.bytes + text.len() as u64;
            if bytes > 0 && bytes >= limits.segment_bytes {
                self.write(&mut text)?;
                self.turn(limits)?;
            }
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
            self.next += 1;
        }
        self.write(&mut text)
    }

    fn write(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        self.file.write_all(text)?;
        self.bytes += text.len() as u64;
        text.clear();
        Ok(())
    }

    /// Begins a new segment, and lets the oldest go.
    fn turn(&mut self, limits: &LogLimits) -> io::Result<()> {
        self.file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path_of(&self.folder, self.next))?;
        self.segments.push(self.next);
        self.bytes = 0;
        while self.segments.len() > limits.segments.max(1) {
            fs::remove_file(path_of(&self.folder, self.segments.remove(0)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
