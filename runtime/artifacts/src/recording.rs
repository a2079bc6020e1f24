//! Recordings of the reads of a program's files while it started.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Digest;

/// The pieces of a file, or of all files of a bundle, that were read in one start, in the order of
/// their first read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The file or the bundle.
    pub of: Digest,
    /// First reads, earliest first.
    pub reads: Vec<FirstRead>,
}

/// When a piece was first read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstRead {
    /// The piece.
    pub piece: Digest,
    /// The time from the begin of the start to the read.
    pub after: Duration,
}

/// Notes first reads, until the window is over or there are enough of them. Pure.
#[derive(Clone, Debug)]
pub struct Recorder {
    recording: Recording,
    seen: HashSet<Digest>,
    window: Duration,
    pieces_max: usize,
}

impl Recorder {
    /// For one start, which reads this file or bundle. What is read after `window`, or beyond
    /// `pieces_max` pieces, is not part of it.
    #[must_use]
    pub fn new(of: Digest, window: Duration, pieces_max: usize) -> Self {
        Self {
            recording: Recording { of, reads: vec![] },
            seen: HashSet::new(),
            window,
            pieces_max,
        }
    }

    /// A piece was read, so long after the beginning. Times do not go back.
    pub fn note(&mut self, piece: Digest, after: Duration) {
        let reads = &mut self.recording.reads;
        if after <= self.window && reads.len() < self.pieces_max && self.seen.insert(piece) {
            reads.push(FirstRead { piece, after });
        }
    }

    /// The reads noted so far.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_reads_within_the_window_are_noted() {
        let [a, b, c, d] = [b"a", b"b", b"c", b"d"].map(|text| Digest::of(text));
        let second = Duration::from_secs(1);
        let mut recorder = Recorder::new(Digest::of(b"file"), 10 * second, 2);
        recorder.note(b, second);
        recorder.note(b, 2 * second);
        recorder.note(c, 11 * second);
        recorder.note(a, 10 * second);
        recorder.note(d, 10 * second);
        let reads = recorder.recording().reads.iter();
        let noted: Vec<_> = reads.map(|read| (read.piece, read.after)).collect();
        assert_eq!(noted, [(b, second), (a, 10 * second)]);
    }
}
