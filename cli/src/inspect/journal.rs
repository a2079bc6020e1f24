//! A file of lines in a run's folder that does not grow for ever: when it is full it becomes the older
//! one of two, in the place of the one before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file, and the one before it.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    older: PathBuf,
    file: File,
    bytes: u64,
}

/// Bytes of a file.
const FILE_BYTES_MAX: u64 = 16 << 20;

impl Journal {
    /// Goes on with the first of these files in a folder.
    pub(super) fn open(folder: &Path, [newer, older]: [&str; 2]) -> io::Result<Self> {
        let path = folder.join(newer);
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let bytes = file.metadata()?.len();
        let older = folder.join(older);
        Ok(Self {
            path,
            older,
            file,
            bytes,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line, with its end.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        if self.bytes >= FILE_BYTES_MAX {
            fs::rename(&self.path, &self.older)?;
            self.file = File::create(&self.path)?;
            self.bytes = 0;
        }
        self.bytes += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 75.
    #[test]
    fn a_file_that_is_full_becomes_the_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path(), ["new", "old"]).unwrap();
        let line = "y".repeat(1 << 20);
        for _ in 0..17 {
            journal.write(&line).unwrap();
        }
        let bytes = |name| fs::metadata(folder.path().join(name)).unwrap().len();
        assert_eq!((bytes("new"), bytes("old")), (1 << 20, 16 << 20));
    }
}
