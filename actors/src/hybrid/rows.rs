//! Rows by reference: a column of a batch that lies where it was made. Who drives a run passes such
//! columns on without their contents; who needs some of the rows fetches these.

use std::fmt;
use std::ops::Range;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Blobs, Failure, Shape, Wire, shape};

use crate::packed::Packed;

/// A column of `T`, a row for each trajectory. Cutting and joining copies references alone.
#[derive(Serialize, Deserialize)]
#[serde(crate = "odeon::serde", bound = "")]
pub struct Rows<T> {
    pieces: Vec<Piece<T>>,
}

/// Rows that follow each other in one blob.
#[derive(Serialize, Deserialize)]
#[serde(crate = "odeon::serde", bound = "")]
struct Piece<T> {
    packed: Packed<T>,
    first: usize,
    len: usize,
}

/// Division of rows among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All rows, in parts that differ by one row at most.
    Balanced,
    /// Parts of the same size: the last row comes again until they are. [`Rows::join`] drops what
    /// was added.
    Padded,
}

/// About so many bytes of rows lie in one blob: what a reader on another node fetches beside the rows
/// that it wants.
const PIECE_BYTES: usize = 1 << 20;

impl<T> Clone for Rows<T> {
    fn clone(&self) -> Self {
        let pieces = self.pieces.iter().map(Piece::clone).collect();
        Self { pieces }
    }
}

impl<T> Clone for Piece<T> {
    fn clone(&self) -> Self {
        self.cut(0..self.len)
    }
}

impl<T> fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { pieces: vec![] }
    }
}

impl<T: Shape> Shape for Rows<T> {
    const SHAPE: u64 = shape::mix(shape::name("hybrid.Rows"), T::SHAPE);
}

impl<T> Piece<T> {
    fn cut(&self, range: Range<usize>) -> Self {
        Self {
            packed: self.packed.clone(),
            first: self.first + range.start,
            len: range.len(),
        }
    }
}

impl<T> Rows<T> {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// Returns true when there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Some of the rows: those of the range that there are.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut pieces = vec![];
        let mut before = 0;
        for piece in &self.pieces {
            let here = before..before + piece.len;
            let (start, end) = (range.start.max(here.start), range.end.min(here.end));
            if start < end {
                pieces.push(piece.cut(start - before..end - before));
            }
            before = here.end;
        }
        Self { pieces }
    }

    /// A part for each of so many ranks, in order.
    #[must_use]
    pub fn deal(&self, parts: usize, share: Share) -> Vec<Self> {
        let rows = self.len();
        (0..parts)
            .map(|part| match share {
                Share::Balanced => self.slice(rows * part / parts..rows * (part + 1) / parts),
                Share::Padded => {
                    let each = rows.div_ceil(parts);
                    let own = self.slice(each * part..each * (part + 1));
                    let last = self.slice(rows.saturating_sub(1)..rows);
                    let added = std::iter::repeat_n(last, each - own.len());
                    Self::concat(std::iter::once(own).chain(added))
                }
            })
            .collect()
    }

    /// Joins the parts of a column of `rows` rows, without what was added to them.
    ///
    /// # Errors
    /// There are less rows than that.
    pub fn join(parts: Vec<Self>, rows: usize) -> Result<Self, Failure> {
        let all = Self::concat(parts);
        if all.len() < rows {
            let came = all.len();
            return Err(Failure::error(format!("{came} rows came back of {rows}")));
        }
        Ok(all.slice(0..rows))
    }

    /// All rows of some columns, one after the other.
    #[must_use]
    pub fn concat(parts: impl IntoIterator<Item = Self>) -> Self {
        let pieces = parts.into_iter().flat_map(|part| part.pieces).collect();
        Self { pieces }
    }
}

impl<T: Wire> Rows<T> {
    /// Writes rows into blobs of this process.
    ///
    /// # Errors
    /// A row cannot be encoded, or there is no room.
    pub fn pack(blobs: &Blobs, rows: &[T]) -> Result<Self, Failure> {
        let mut pieces = vec![];
        let mut rest = rows;
        // A first guess of a row's size, mended by the pieces that there are.
        let mut each = 64;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(each.min(rest.len()));
            let packed = Packed::pack(blobs, now)?;
            let row = usize::try_from(packed.bytes()).map_err(Failure::error)? / now.len();
            each = (PIECE_BYTES / row.max(1)).max(1);
            pieces.push(Piece {
                packed,
                first: 0,
                len: now.len(),
            });
            rest = later;
        }
        Ok(Self { pieces })
    }

    /// Reads the rows.
    ///
    /// # Errors
    /// Who has them is gone.
    pub async fn fetch(&self) -> Result<Vec<T>, Failure> {
        let mut rows = Vec::with_capacity(self.len());
        for piece in &self.pieces {
            rows.extend(piece.packed.unpack_range(piece.first, piece.len).await?);
        }
        if rows.len() == self.len() {
            Ok(rows)
        } else {
            Err(Failure::error(format!(
                "{} rows where {} are named",
                rows.len(),
                self.len()
            )))
        }
    }
}
