//! A file as the pieces that it is made of.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastcdc::v2020::{Normalization, cut, select_masks};
use serde::{Deserialize, Serialize};

use crate::Digest;

/// A run of bytes of a file that travels, and is kept, as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Piece {
    /// The name of its bytes.
    pub digest: Digest,
    /// Bytes of the piece: at least 1, at most [`Piece::BYTES_MAX`].
    pub bytes: u32,
}

impl Piece {
    /// The shortest piece that is cut, but for the last one of a file.
    pub const BYTES_MIN: usize = 64 << 10;
    /// The average length of pieces, in bytes.
    pub const BYTES_AVERAGE: usize = 256 << 10;
    /// The longest piece. Nothing longer is taken from anybody.
    pub const BYTES_MAX: usize = 1 << 20;

    /// These bytes as a piece.
    ///
    /// # Panics
    /// When there are more than 4 GiB of them, which no piece has.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            digest: Digest::of(bytes),
            bytes: u32::try_from(bytes.len()).expect("a piece has at most BYTES_MAX bytes"),
        }
    }
}

/// The pieces of a file in order, and the name of the whole.
///
/// Where a file is cut depends on the bytes around the cut alone (FastCDC, Xia et al. 2020). So two
/// versions of a file share the pieces that did not change, also behind the place where bytes came
/// in or went away.
///
/// That holds for data, models and libraries, and for a program in which data changed in place. A
/// program that was linked anew with more code is another matter: all addresses behind the change
/// move, and with them bytes all over the file. Of one of 11 MB no piece stayed the same after a
/// line of code came in (a third of the bytes would have, in pieces of 1 KiB).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Listing {
    digest: Digest,
    bytes: u64,
    pieces: Vec<Piece>,
}

impl Listing {
    /// Cuts a file, in constant memory.
    ///
    /// # Errors
    /// When there is no regular file at `path`, or it cannot be read.
    pub fn of_file(path: &Path) -> Result<Self, ListError> {
        let read = |source| ListError::Read {
            path: path.to_owned(),
            source,
        };
        // Before it is opened: that would wait for whoever writes into a pipe.
        if !std::fs::metadata(path).map_err(read)?.is_file() {
            return Err(ListError::NotAFile(path.to_owned()));
        }
        Self::of(File::open(path).map_err(read)?).map_err(read)
    }

    /// Cuts what `source` gives, in constant memory.
    ///
    /// # Errors
    /// Those of `source`.
    pub fn of(mut source: impl Read) -> io::Result<Self> {
        let (strict, loose) = select_masks(Piece::BYTES_AVERAGE, Normalization::Level1);
        let mut whole = blake3::Hasher::new();
        let (mut bytes, mut pieces) = (0, vec![]);
        let mut window = Window::new();
        loop {
            let ahead = window.ahead(&mut source)?;
            if ahead.is_empty() {
                break;
            }
            let (_, end) = cut(
                ahead,
                Piece::BYTES_MIN,
                Piece::BYTES_AVERAGE,
                Piece::BYTES_MAX,
                strict,
                loose,
                strict << 1,
                loose << 1,
            );
            let piece = &ahead[..end];
            whole.update(piece);
            pieces.push(Piece::of(piece));
            bytes += end as u64;
            window.passed += end;
        }
        Ok(Self {
            digest: whole.finalize().into(),
            bytes,
            pieces,
        })
    }

    /// A listing that was cut elsewhere.
    ///
    /// # Errors
    /// When a piece is empty or too long, or the pieces do not add up to `bytes`. Whether `digest`
    /// is that of the whole is seen when the file is put together.
    pub fn new(digest: Digest, bytes: u64, pieces: Vec<Piece>) -> Result<Self, ListingError> {
        let long = |piece: &Piece| !(1..=Piece::BYTES_MAX).contains(&(piece.bytes as usize));
        if let Some(index) = pieces.iter().position(long) {
            return Err(ListingError::Piece {
                index,
                bytes: pieces[index].bytes,
            });
        }
        // At most 2^20 a piece, so this cannot overflow before memory ends.
        let sum = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        if sum != bytes {
            return Err(ListingError::Sum { sum, bytes });
        }
        Ok(Self {
            digest,
            bytes,
            pieces,
        })
    }

    /// The name of the whole file.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of the file.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pieces in order. One may occur several times.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Where in the file each piece lies, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.pieces.iter().scan(0, |at, piece| {
            let begin = *at;
            *at += u64::from(piece.bytes);
            Some(begin..*at)
        })
    }

    /// Reads the piece that lies at `range` out of the file that was cut, to send it.
    ///
    /// # Errors
    /// When the file cannot be read, or holds other bytes there by now.
    pub fn read(file: &File, range: Range<u64>, piece: &Piece) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; piece.bytes as usize];
        file.read_exact_at(&mut bytes, range.start)?;
        if Digest::of(&bytes) == piece.digest {
            Ok(bytes)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file was changed after it was cut into pieces: cut it again",
            ))
        }
    }
}

/// As it travels.
#[derive(Deserialize)]
struct Unchecked {
    digest: Digest,
    bytes: u64,
    pieces: Vec<Piece>,
}

impl TryFrom<Unchecked> for Listing {
    type Error = ListingError;

    fn try_from(listing: Unchecked) -> Result<Self, ListingError> {
        Self::new(listing.digest, listing.bytes, listing.pieces)
    }
}

/// A part of the source that moves on, with at least the longest piece ahead until the source ends.
struct Window {
    buffer: Vec<u8>,
    passed: usize,
    filled: usize,
    ended: bool,
}

impl Window {
    // Four of the longest pieces, so that what is left of one reading is seldom moved.
    const BYTES: usize = 4 * Piece::BYTES_MAX;

    fn new() -> Self {
        Self {
            buffer: vec![0; Self::BYTES],
            passed: 0,
            filled: 0,
            ended: false,
        }
    }

    /// The bytes that lie ahead; empty at the end.
    fn ahead(&mut self, source: &mut impl Read) -> io::Result<&[u8]> {
        if !self.ended && self.filled - self.passed < Piece::BYTES_MAX {
            self.buffer.copy_within(self.passed..self.filled, 0);
            self.filled -= self.passed;
            self.passed = 0;
            while self.filled < Self::BYTES && !self.ended {
                match source.read(&mut self.buffer[self.filled..]) {
                    Ok(0) => self.ended = true,
                    Ok(read) => self.filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(&self.buffer[self.passed..self.filled])
    }
}

/// A file that could not be cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// A folder, a socket or a device.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// It is not there, or cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A listing that cannot be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListingError {
    /// A piece that nobody cuts.
    #[error(
        "piece {index} has {bytes} bytes: a piece has 1 to {}",
        Piece::BYTES_MAX
    )]
    Piece {
        /// Which.
        index: usize,
        /// The length that the listing gives it, in bytes.
        bytes: u32,
    },
    /// The pieces do not add up.
    #[error("the pieces have {sum} bytes together, the file {bytes}")]
    Sum {
        /// Of the pieces.
        sum: u64,
        /// Of the file.
        bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::noise::noise;

    fn listing(bytes: &[u8]) -> Listing {
        Listing::of(bytes).unwrap()
    }

    /// Gives as many bytes at a time as somebody else says.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(into.len());
            self.0.read(&mut into[..n])
        }
    }

    #[test]
    fn nothing_has_no_pieces() {
        let empty = listing(b"");
        assert_eq!((empty.bytes(), empty.pieces().len()), (0, 0));
        assert_eq!(empty.digest(), Digest::of(b""));
    }

    #[test]
    fn cuts_stay_where_they_are() {
        // Other cuts would make every program on a cluster travel again.
        let listing = listing(&noise(7, 3 << 20));
        let ends: Vec<u64> = listing.ranges().map(|range| range.end).collect();
        let expected = [
            474_365, 612_048, 789_170, 958_607, 1_307_403, 2_039_087, 2_171_432, 2_459_167,
            2_873_909, 3_001_645, 3_145_728,
        ];
        assert_eq!(ends, expected);
    }

    #[test]
    fn bytes_put_into_the_middle_change_few_pieces() {
        let mut bytes = noise(1, 16 << 20);
        let before: HashSet<Piece> = listing(&bytes).pieces().iter().copied().collect();
        bytes.splice(5_000_000..5_000_000, *b"an insertion");
        let after = listing(&bytes);
        let new = after
            .pieces()
            .iter()
            .filter(|piece| !before.contains(piece));
        assert!(before.len() > 40, "{}", before.len());
        assert!(new.count() <= 3);
    }

    #[test]
    fn a_folder_is_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let error = Listing::of_file(folder.path()).unwrap_err();
        assert!(matches!(error, ListError::NotAFile(_)), "{error}");
        let error = Listing::of_file(&folder.path().join("none")).unwrap_err();
        assert!(matches!(error, ListError::Read { .. }), "{error}");
    }

    #[test]
    fn a_piece_is_read_out_of_its_file_unless_that_has_changed() {
        let bytes = noise(2, 1 << 20);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, &bytes).unwrap();
        let listing = Listing::of_file(&path).unwrap();
        let file = File::open(&path).unwrap();
        for (piece, range) in listing.pieces().iter().zip(listing.ranges()) {
            let read = Listing::read(&file, range.clone(), piece).unwrap();
            assert_eq!(read, bytes[range.start as usize..range.end as usize]);
        }
        std::fs::write(&path, noise(3, 1 << 20)).unwrap();
        let range = listing.ranges().next().unwrap();
        let error = Listing::read(&file, range, &listing.pieces()[0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn listings_that_cannot_be_meant_are_refused() {
        let digest = Digest::of(b"");
        let check = |pieces: &[u32], bytes, expected| {
            let pieces = pieces.iter().map(|bytes| Piece {
                digest,
                bytes: *bytes,
            });
            let error = Listing::new(digest, bytes, pieces.collect()).unwrap_err();
            assert_eq!(error, expected);
        };
        check(&[5, 0], 5, ListingError::Piece { index: 1, bytes: 0 });
        let bytes = (1 << 20) + 1;
        check(&[bytes], 1, ListingError::Piece { index: 0, bytes });
        check(&[5, 6], 12, ListingError::Sum { sum: 11, bytes: 12 });
        let json = format!(r#"{{"digest":"{digest}","bytes":1,"pieces":[]}}"#);
        let error = serde_json::from_str::<Listing>(&json).unwrap_err();
        assert!(error.to_string().contains("0 bytes together"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn pieces_are_the_file_however_it_is_read(
            seed in any::<u64>(), len in 0_usize..3 << 20, step in 1_usize..1 << 20,
        ) {
            let bytes = noise(seed, len);
            let whole = listing(&bytes);
            let dribbled = Listing::of(Dribble(&bytes, step.max(1 << 10))).unwrap();
            prop_assert_eq!(&whole, &dribbled);
            prop_assert_eq!(whole.digest(), Digest::of(&bytes));
            let mut at = 0;
            for (piece, range) in whole.pieces().iter().zip(whole.ranges()) {
                prop_assert_eq!(range.start, at);
                at = range.end;
                let bytes = &bytes[range.start as usize..range.end as usize];
                prop_assert_eq!(*piece, Piece::of(bytes));
                let last = at == len as u64;
                prop_assert!(last || bytes.len() >= Piece::BYTES_MIN);
                prop_assert!(bytes.len() <= Piece::BYTES_MAX);
            }
            prop_assert_eq!(at, len as u64);
            let json = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<Listing>(&json).unwrap(), whole);
        }
    }
}
