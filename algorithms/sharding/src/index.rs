//! The exact map from local to global indices, as ranges of each dimension: never an entry an element.

use std::ops::Range;

/// The elements of one rank in local order, which is the order of their global indices too.
///
/// They are the product of some indices of each dimension; of a ragged placement, an interval of that.
/// Global indices count through the whole tensor row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalIndex {
    /// The shape of the whole tensor.
    global: Vec<usize>,
    /// The global indices of each dimension in ascending ranges that do not touch.
    held: Vec<Vec<Range<usize>>>,
    /// The number of each.
    extents: Vec<usize>,
    /// Leading dimensions that are one, and the rows of that which are held.
    flat: Option<(usize, Range<usize>)>,
    /// The elements of the product that are held.
    window: Range<usize>,
    /// The last dimension of which not everything is held; elements of one of its indices.
    last_cut: usize,
    inner: usize,
}

/// Elements that follow each other both here and in the whole tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRun {
    /// The global index of the first.
    pub global: usize,
    /// The local index of the first.
    pub local: usize,
    /// Number of elements; above 0.
    pub len: usize,
}

impl LocalIndex {
    pub(crate) fn new(
        global: Vec<usize>,
        held: Vec<Vec<Range<usize>>>,
        flat: Option<(usize, Range<usize>)>,
    ) -> Self {
        let extents = extents(&held);
        let window = match &flat {
            None => 0..extents.iter().product(),
            Some((dims, rows)) => {
                let row: usize = extents[*dims..].iter().product();
                rows.start * row..rows.end * row
            }
        };
        let whole = |dim: &usize| extents[*dim] == global[*dim];
        // Of a tensor that is held whole, its first dimension.
        let last_cut = (0..global.len()).rev().find(|dim| !whole(dim)).unwrap_or(0);
        let inner = global.iter().skip(last_cut + 1).product();
        Self {
            global,
            held,
            extents,
            flat,
            window,
            last_cut,
            inner,
        }
    }

    /// The shape of the local part, in elements. Leading dimensions that a ragged placement cuts are one.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match &self.flat {
            None => self.extents.clone(),
            Some((dims, rows)) => {
                let rest = self.extents.iter().skip(*dims).copied();
                std::iter::once(rows.len()).chain(rest).collect()
            }
        }
    }

    /// Elements of the local part.
    #[must_use]
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Returns true when this rank holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// Elements of the whole tensor.
    #[must_use]
    pub fn global_len(&self) -> usize {
        self.global.iter().product()
    }

    /// The place of the first element in the whole tensor, one index a dimension; `None` when there is
    /// none.
    #[must_use]
    pub fn offset(&self) -> Option<Vec<usize>> {
        (!self.is_empty()).then(|| self.place(self.window.start))
    }

    /// The global index of a local one; `None` behind the last.
    #[must_use]
    pub fn global(&self, local: usize) -> Option<usize> {
        (local < self.len()).then(|| self.flattened(&self.place(self.window.start + local)))
    }

    /// All elements in local order, in the fewest runs that follow from the ranges of the dimensions.
    pub fn runs(&self) -> impl Iterator<Item = IndexRun> {
        let mut at = self.window.start;
        std::iter::from_fn(move || {
            if at >= self.window.end {
                return None;
            }
            let run = self.run_at(at);
            at += run.len;
            Some(run)
        })
    }

    /// A range of each dimension outside of which nothing is held.
    pub(crate) fn bounds(&self) -> Vec<Range<usize>> {
        let bounds = self
            .held
            .iter()
            .map(|held| match (held.first(), held.last()) {
                (Some(first), Some(last)) => first.start..last.end,
                _ => 0..0,
            });
        bounds.collect()
    }

    /// The indices in the whole tensor of an element of the product.
    fn place(&self, element: usize) -> Vec<usize> {
        let mut rest = element;
        let dims = self.extents.iter().zip(&self.held).rev();
        let mut place: Vec<usize> = dims
            .map(|(extent, held)| {
                let nth = rest % extent;
                rest /= extent;
                nth_of(held, nth).start
            })
            .collect();
        place.reverse();
        place
    }

    fn flattened(&self, place: &[usize]) -> usize {
        let dims = place.iter().zip(&self.global);
        dims.fold(0, |at, (index, extent)| at * extent + index)
    }

    /// The run that begins at an element of the product.
    fn run_at(&self, element: usize) -> IndexRun {
        let follow = match self.held.get(self.last_cut) {
            // A tensor without dimensions.
            None => 1,
            Some(held) => {
                let nth = element / self.inner % self.extents[self.last_cut];
                nth_of(held, nth).len() * self.inner - element % self.inner
            }
        };
        IndexRun {
            global: self.flattened(&self.place(element)),
            local: element - self.window.start,
            len: follow.min(self.window.end - element),
        }
    }
}

/// Number of indices of each dimension.
pub(crate) fn extents(held: &[Vec<Range<usize>>]) -> Vec<usize> {
    let count = |ranges: &Vec<Range<usize>>| ranges.iter().map(Range::len).sum();
    held.iter().map(count).collect()
}

/// The range from the `nth` of these indices on, as far as they follow each other.
fn nth_of(ranges: &[Range<usize>], nth: usize) -> Range<usize> {
    let mut before = 0;
    for range in ranges {
        if nth - before < range.len() {
            return range.start + nth - before..range.end;
        }
        before += range.len();
    }
    0..0
}

/// The share of number `at` of `ranks` in each of `parts` equal parts of these indices: as large as the
/// largest, until none are left.
pub(crate) fn taken(
    ranges: &[Range<usize>],
    parts: usize,
    at: usize,
    ranks: usize,
) -> Vec<Range<usize>> {
    let total: usize = ranges.iter().map(Range::len).sum();
    let part = total / parts;
    let each = part.div_ceil(ranks);
    let chunk = (at * each).min(part)..((at + 1) * each).min(part);
    let mut taken: Vec<Range<usize>> = vec![];
    for nth in 0..parts {
        let wanted = nth * part + chunk.start..nth * part + chunk.end;
        let mut before = 0;
        for range in ranges {
            let start = wanted.start.max(before) - before;
            let end = wanted.end.min(before + range.len()).saturating_sub(before);
            before += range.len();
            if start >= end {
                continue;
            }
            let piece = range.start + start..range.start + end;
            match taken.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ => taken.push(piece),
            }
        }
    }
    taken
}
