//! Boxes of a tensor.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// A box of a tensor: a range of indices in each dimension, outermost first.
///
/// Relative to the whole tensor, as in ByteCheckpoint (arXiv 2407.20143), so that it
/// means the same in every layout; or relative to another box, where that is said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Region {
    spans: Vec<Span>,
}

/// The indices of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span {
    /// The first.
    pub offset: usize,
    /// Number of indices.
    pub length: usize,
}

impl Region {
    /// A range of indices in each dimension.
    #[must_use]
    pub const fn new(spans: Vec<Span>) -> Self {
        Self { spans }
    }

    /// All of a tensor.
    #[must_use]
    pub fn whole(shape: &[usize]) -> Self {
        let spans = shape.iter().map(|&length| Span { offset: 0, length });
        Self::new(spans.collect())
    }

    /// All of a tensor but for dimension `dim`, which is cut to `range`.
    ///
    /// # Panics
    /// When the tensor has no such dimension.
    #[must_use]
    pub fn cut(shape: &[usize], dim: usize, range: Range<usize>) -> Self {
        let mut region = Self::whole(shape);
        region.spans[dim] = Span::from(range);
        region
    }

    /// The range of indices in each dimension.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Number of indices in each dimension: its shape as a tensor of its own.
    #[must_use]
    pub fn lengths(&self) -> Vec<usize> {
        self.spans.iter().map(|span| span.length).collect()
    }

    /// Number of elements; of no dimensions, one.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.spans.iter().map(|span| span.length).product()
    }

    /// Returns true when it lies in a tensor of this shape.
    #[must_use]
    pub fn is_in(&self, shape: &[usize]) -> bool {
        let fits = |(span, &extent): (&Span, &usize)| {
            let end = span.offset.checked_add(span.length);
            end.is_some_and(|end| end <= extent)
        };
        self.spans.len() == shape.len() && self.spans.iter().zip(shape).all(fits)
    }

    /// The common part of both; `None` when that is nothing, or they are not of one tensor.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        if self.spans.len() != other.spans.len() {
            return None;
        }
        let pairs = self.spans.iter().zip(&other.spans);
        let spans: Option<Vec<Span>> = pairs.map(|(a, b)| a.intersection(*b)).collect();
        spans.map(Self::new)
    }

    /// The rest without a box inside of it: at most two boxes for each dimension, which do not
    /// overlap.
    ///
    /// # Panics
    /// When the inner box has more dimensions.
    #[must_use]
    pub fn without(&self, inner: &Self) -> Vec<Self> {
        let mut rest = self.clone();
        let mut left = vec![];
        for (dim, &cut) in inner.spans.iter().enumerate() {
            let span = rest.spans[dim];
            for range in [span.offset..cut.offset, cut.end()..span.end()] {
                if !range.is_empty() {
                    let mut piece = rest.clone();
                    piece.spans[dim] = Span::from(range);
                    left.push(piece);
                }
            }
            rest.spans[dim] = cut;
        }
        left
    }

    /// The same box relative to one around it.
    #[must_use]
    pub fn relative_to(&self, outer: &Self) -> Self {
        let pairs = self.spans.iter().zip(&outer.spans);
        let spans = pairs.map(|(span, outer)| Span {
            offset: span.offset - outer.offset,
            length: span.length,
        });
        Self::new(spans.collect())
    }

    /// A box relative to `outer`, relative to what that is relative to.
    #[must_use]
    pub fn moved_by(&self, outer: &Self) -> Self {
        let pairs = self.spans.iter().zip(&outer.spans);
        let spans = pairs.map(|(span, outer)| Span {
            offset: outer.offset + span.offset,
            length: span.length,
        });
        Self::new(spans.collect())
    }

    /// The boxes that elements `range` of a tensor make up, in order, where elements are counted
    /// row by row: what a flat buffer that was cut anywhere holds (ByteCheckpoint).
    ///
    /// At most `2 * dimensions - 1` boxes. Row by row, one after the other, they are the range.
    ///
    /// # Panics
    /// When the range ends behind the tensor.
    #[must_use]
    pub fn of_flat(range: Range<usize>, shape: &[usize]) -> Vec<Self> {
        let elements = shape.iter().product();
        assert!(range.end <= elements, "{range:?} ends behind {shape:?}");
        let mut boxes = vec![];
        flat_boxes(range, &[], shape, &mut boxes);
        boxes
    }
}

/// As in Python: `[0:2, 4:8]`.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (dim, span) in self.spans.iter().enumerate() {
            let comma = if dim == 0 { "" } else { ", " };
            write!(f, "{comma}{}:{}", span.offset, span.end())?;
        }
        f.write_str("]")
    }
}

impl Span {
    /// The index behind the last.
    #[must_use]
    pub const fn end(self) -> usize {
        // Spans that were sent may hold anything.
        self.offset.saturating_add(self.length)
    }

    fn intersection(self, other: Self) -> Option<Self> {
        let range = self.offset.max(other.offset)..self.end().min(other.end());
        (!range.is_empty()).then(|| Self::from(range))
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self {
            offset: range.start,
            length: range.len(),
        }
    }
}

/// Cuts the range into the rest of a row, whole rows, and the start of a row. `outer` has the spans
/// of the dimensions around `shape`.
fn flat_boxes(range: Range<usize>, outer: &[Span], shape: &[usize], boxes: &mut Vec<Region>) {
    if range.is_empty() {
        return;
    }
    let [_, inner @ ..] = shape else {
        return boxes.push(Region::new(outer.to_vec()));
    };
    let row: usize = inner.iter().product();
    // Rows `first..last` are whole.
    let (first, last) = (range.start.div_ceil(row), range.end / row);
    let part = |at: usize, range: Range<usize>, boxes: &mut Vec<Region>| {
        let outer = [outer, &[Span::from(at..at + 1)]].concat();
        let start = at * row;
        flat_boxes(range.start - start..range.end - start, &outer, inner, boxes);
    };
    if first > last {
        return part(last, range, boxes);
    }
    if range.start < first * row {
        part(first - 1, range.start..first * row, boxes);
    }
    if first < last {
        let whole = Region::whole(inner).spans;
        boxes.push(Region::new(
            [outer, &[Span::from(first..last)], &whole].concat(),
        ));
    }
    if last * row < range.end {
        part(last, last * row..range.end, boxes);
    }
}
