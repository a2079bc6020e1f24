//! Chunks and checksums of a version of the weights.

use std::ops::Range;

use odeon::serde::{Deserialize, Serialize};

use crate::trajectory::Version;

/// The most chunks of a version: a manifest has four bytes for each, and is one message.
pub const CHUNKS_MAX: u32 = 1 << 20;

/// The chunks of a version, each with the CRC-32 of its bytes. All are equally long but the last,
/// which may be shorter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde", try_from = "Unchecked", into = "Unchecked")]
pub struct Manifest {
    version: Version,
    bytes: u64,
    chunk_bytes: u64,
    checksums: Vec<u32>,
}

/// A manifest as it travels.
#[derive(Clone, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
struct Unchecked {
    version: Version,
    bytes: u64,
    chunk_bytes: u64,
    checksums: Vec<u32>,
}

/// Why there is no such manifest. Nothing was made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// There are no weights, or chunks of no bytes.
    #[error("a version of {bytes} bytes in chunks of {chunk_bytes}")]
    Empty {
        /// Of the version.
        bytes: u64,
        /// Of a chunk.
        chunk_bytes: u64,
    },
    /// More than [`CHUNKS_MAX`]: make them longer.
    #[error("{0} chunks are more than {CHUNKS_MAX}")]
    TooMany(u64),
    /// It does not have a checksum for each chunk.
    #[error("{checksums} checksums for {chunks} chunks")]
    Checksums {
        /// Those that there are.
        checksums: usize,
        /// Those that there must be.
        chunks: u64,
    },
}

impl Manifest {
    /// Of these bytes, in chunks of `chunk_bytes`; [`super::chunks`] knows how many are best.
    ///
    /// # Errors
    /// When there are no bytes, no bytes in a chunk, or too many chunks.
    pub fn of(version: Version, bytes: &[u8], chunk_bytes: u64) -> Result<Self, ManifestError> {
        let len = bytes.len() as u64;
        chunks_of(len, chunk_bytes)?;
        let step = usize::try_from(chunk_bytes).unwrap_or(usize::MAX);
        Ok(Self {
            version,
            bytes: len,
            chunk_bytes,
            checksums: bytes.chunks(step).map(crc32fast::hash).collect(),
        })
    }

    /// Which version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Bytes of the version.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of chunks: at least one.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.checksums.len() as u32
    }

    /// Where the bytes of a chunk lie; `None` when there is no such chunk.
    #[must_use]
    pub fn range(&self, chunk: u32) -> Option<Range<u64>> {
        let start = u64::from(chunk) * self.chunk_bytes;
        let end = start.saturating_add(self.chunk_bytes).min(self.bytes);
        (chunk < self.chunks()).then_some(start..end)
    }

    /// The CRC-32 of the bytes of a chunk.
    #[must_use]
    pub fn checksum(&self, chunk: u32) -> Option<u32> {
        self.checksums.get(chunk as usize).copied()
    }

    /// Returns true when chunks of both lie at the same places, so that one can be told by its
    /// difference from the other.
    #[must_use]
    pub const fn is_laid_out_as(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.chunk_bytes == other.chunk_bytes
    }
}

fn chunks_of(bytes: u64, chunk_bytes: u64) -> Result<u64, ManifestError> {
    if bytes == 0 || chunk_bytes == 0 {
        return Err(ManifestError::Empty { bytes, chunk_bytes });
    }
    let chunks = bytes.div_ceil(chunk_bytes);
    if chunks > u64::from(CHUNKS_MAX) {
        return Err(ManifestError::TooMany(chunks));
    }
    Ok(chunks)
}

impl TryFrom<Unchecked> for Manifest {
    type Error = ManifestError;

    fn try_from(unchecked: Unchecked) -> Result<Self, ManifestError> {
        let Unchecked {
            version,
            bytes,
            chunk_bytes,
            checksums,
        } = unchecked;
        let chunks = chunks_of(bytes, chunk_bytes)?;
        if checksums.len() as u64 != chunks {
            return Err(ManifestError::Checksums {
                checksums: checksums.len(),
                chunks,
            });
        }
        Ok(Self {
            version,
            bytes,
            chunk_bytes,
            checksums,
        })
    }
}

impl From<Manifest> for Unchecked {
    fn from(manifest: Manifest) -> Self {
        Self {
            version: manifest.version,
            bytes: manifest.bytes,
            chunk_bytes: manifest.chunk_bytes,
            checksums: manifest.checksums,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_bytes_and_the_last_is_what_is_left() {
        let manifest = Manifest::of(7, b"123456789", 4).unwrap();
        let ranges: Vec<_> = (0..4).map(|chunk| manifest.range(chunk)).collect();
        assert_eq!(ranges, [Some(0..4), Some(4..8), Some(8..9), None]);
        assert_eq!(
            (manifest.chunks(), manifest.bytes(), manifest.version()),
            (3, 9, 7)
        );
        // The check value of CRC-32 is that of these nine bytes.
        let whole = Manifest::of(7, b"123456789", u64::MAX).unwrap();
        assert_eq!(whole.checksum(0), Some(0xcbf4_3926));
        assert_eq!(whole.range(0), Some(0..9));
        assert!(!whole.is_laid_out_as(&manifest));
    }

    #[test]
    fn a_manifest_that_cannot_be_is_not_read() {
        let empty = |bytes, chunk_bytes| Err(ManifestError::Empty { bytes, chunk_bytes });
        assert_eq!(Manifest::of(1, &[], 4), empty(0, 4));
        assert_eq!(Manifest::of(1, &[1], 0), empty(1, 0));
        let unchecked = |bytes, chunk_bytes, checksums| {
            Manifest::try_from(Unchecked {
                version: 1,
                bytes,
                chunk_bytes,
                checksums: vec![0; checksums],
            })
        };
        assert!(unchecked(9, 4, 3).is_ok());
        let short = ManifestError::Checksums {
            checksums: 2,
            chunks: 3,
        };
        assert_eq!(unchecked(9, 4, 2), Err(short));
        let many = u64::from(CHUNKS_MAX) + 1;
        assert_eq!(unchecked(many, 1, 0), Err(ManifestError::TooMany(many)));
    }
}
