//! Output of jobs, kept on the voters: after the process, the worker and the node are gone, within
//! bounds.
//!
//! Lines are numbered where they come from ([`LineSource`]), so a line is the same on each voter, and a
//! number that is missing is a line that is. A voter keeps what it is sent, a journal for each
//! job. Whoever reads asks all voters, [`merge`]s what they have, and goes on from a [`Cursor`] at
//! whichever of them. When there are too many jobs, the log goes that was written to least recently.

pub mod archive;
mod cursor;
mod journal;
mod line;
mod merge;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

pub use cursor::{Cursor, CursorError};
pub use journal::Begin;
use journal::Journal;
pub use line::{LinePlace, LineSource, LogLine, Stream};
pub use merge::{Merged, Page, Read, merge};

use crate::job::JobId;

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
            segment_bytes: 1 << 20,
            segments: 32,
            jobs: 1000,
        }
    }
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

    /// Adds lines to the log of a job. Those that it has already are left out.
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

    /// Lines of a job behind a cursor, the first in their order, as many as fit into so many bytes; at
    /// least one, if there is one.
    ///
    /// # Errors
    /// The disk does not give them.
    pub fn read(&self, job: JobId, cursor: &Cursor, bytes_max: usize) -> io::Result<Page> {
        let reading = {
            let mut open = self.open.lock();
            if !self.folder_of(job).exists() {
                return Ok(Page::default());
            }
            self.journal(&mut open, job)?.reading(cursor)?
        };
        reading.read(cursor, bytes_max)
    }

    /// Resolves when lines are added next, to whichever job.
    pub fn added(&self) -> Notified<'_> {
        self.added.notified()
    }

    /// Behind all lines of a job that are here.
    ///
    /// # Errors
    /// The disk does not tell.
    pub fn end(&self, job: JobId) -> io::Result<Cursor> {
        let mut open = self.open.lock();
        if !self.folder_of(job).exists() {
            return Ok(Cursor::default());
        }
        Ok(self.journal(&mut open, job)?.ends())
    }

    /// Places in the log of a job, the latest first, from which its last lines can be read without those
    /// before. A line that is not read from one of them is not later than it says.
    ///
    /// # Errors
    /// The disk does not tell.
    pub fn begins(&self, job: JobId) -> io::Result<Vec<Begin>> {
        let mut open = self.open.lock();
        if !self.folder_of(job).exists() {
            return Ok(vec![]);
        }
        Ok(self.journal(&mut open, job)?.begins())
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

#[cfg(test)]
mod tests;
