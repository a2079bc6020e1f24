//! Faults of sources, and records of them that are skipped.

use std::{fmt, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A record that became no sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Skipped {
    /// The file that it is in.
    pub file: String,
    /// Where in that file: a byte, or the first row of a Parquet file's row group, or an item. Of a
    /// compressed file it is a place in what it decompresses to.
    pub offset: u64,
    /// Which record from there, from 0.
    pub record: u32,
    /// Why.
    pub reason: SkipReason,
}

/// Why a record became no sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[non_exhaustive]
pub enum SkipReason {
    /// It cannot be read: what is wrong with it.
    Bad(String),
    /// It has no text.
    Empty,
    /// It is not read as it is not of the source's format, and may well be meant so: why.
    Other(String),
    /// It has more tokens than the context, and the source drops such.
    Longer {
        /// Its tokens.
        tokens: u32,
    },
}

impl SkipReason {
    /// Returns true where something is wrong with the record, so that it counts to what a cell may
    /// skip.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Bad(_))
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(reason) | Self::Other(reason) => f.write_str(reason),
            Self::Empty => f.write_str("it has no text"),
            Self::Longer { tokens } => {
                write!(f, "its {tokens} tokens are more than the context")
            }
        }
    }
}

impl Skipped {
    /// Names what begins at a place of a file.
    pub(crate) fn at(file: &str, offset: u64, reason: SkipReason) -> Self {
        Self {
            file: file.to_owned(),
            offset,
            record: 0,
            reason,
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            offset,
            record,
            reason,
        } = self;
        write!(f, "{file}, at {offset}, record {record}: {reason}")
    }
}

/// Why a source cannot be opened, or a cell not be read. Nothing was changed, and other cells are as
/// good as before.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The specification contradicts itself. Correct the recipe.
    #[error("source {name}: {reason}")]
    Spec {
        /// The source.
        name: String,
        /// The contradiction.
        reason: String,
    },
    /// No file is where the source should be. Correct its path.
    #[error("there is no file at {path}{others}")]
    Nothing {
        /// The path as given.
        path: String,
        /// The files that are there and not of the source's format, as a sentence; empty where there
        /// is none.
        others: String,
    },
    /// There are files, and no record in any of them. Correct the files, or how the source is
    /// described.
    #[error("there is nothing to read in {path}: {why}")]
    NoRecords {
        /// The path as given.
        path: String,
        /// The content that the files have instead, the first of them with its name.
        why: String,
    },
    /// A file, or the place where it should be, could not be read. Try again when it can be reached.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file, or folder, or bucket.
        file: String,
        /// The storage's reason.
        source: io::Error,
    },
    /// A file is not what it was when the source was opened. Put the old file back, or open the source
    /// anew: that is another source, with an order of its own.
    #[error("{file} has changed since the source was opened: it was {was}, and is {is}")]
    Changed {
        /// The file.
        file: String,
        /// Its size and modification then.
        was: String,
        /// Its size and modification now.
        is: String,
    },
    /// The files are not those that were read before, with more behind them or not. Put the old files
    /// back, or open the source as one of which nothing was read.
    #[error("{path} is not what it was when it was read: {what}")]
    Differs {
        /// The path as given.
        path: String,
        /// The difference.
        what: String,
    },
    /// A file ends too early or is not of its format, and the source does not skip what is bad.
    #[error("{file} is damaged at {offset}: {reason}")]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// The damage, in words.
        reason: String,
    },
    /// A pattern names more files than can be read.
    #[error("{path}: {reason}")]
    Pattern {
        /// The path as given.
        path: String,
        /// The fault in it.
        reason: String,
    },
    /// A record cannot be read, and the source does not skip bad ones.
    #[error("{0}")]
    Bad(Skipped),
    /// A cell has more bad records than the source may skip.
    #[error(
        "{bad} of {records} records are bad, more than `bad_records` and `bad_part` of the source \
         allow; the first: {first}"
    )]
    TooManyBad {
        /// Number of bad records.
        bad: u32,
        /// Number of records that the cell has.
        records: u32,
        /// The first of them.
        first: Box<Skipped>,
    },
    /// A decompressed file does not fit into the cache. Give the cache more bytes, or decompress the
    /// file yourself.
    #[error("{file} decompresses to more than the {bytes_max} bytes that the cache may have")]
    Spool {
        /// The compressed file.
        file: String,
        /// The cache's bound.
        bytes_max: u64,
    },
    /// The cell is none of the source's.
    #[error("there is no cell {cell}: an epoch has {cells}")]
    NoCell {
        /// The cell that was asked for.
        cell: u32,
        /// The number of cells.
        cells: u32,
    },
}

impl SourceError {
    /// Its words where the source is named beside them.
    pub(crate) fn detail(&self) -> String {
        match self {
            Self::Spec { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

    /// Of a reader's error: an error of this kind that went through it, or that the file is damaged.
    pub(crate) fn damaged(error: io::Error, file: &str, offset: u64) -> Self {
        match error.downcast::<Self>() {
            Ok(own) => own,
            Err(error) => Self::Damaged {
                file: file.to_owned(),
                offset,
                reason: error.to_string(),
            },
        }
    }
}
