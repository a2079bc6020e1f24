//! Rows that attend to each other.

use std::ops::Range;
use std::sync::Arc;

/// Packed rows cut into spans. A row attends to those before it in its span and to itself; rows of a span
/// with a prefix attend to all of that, too. So sequences that begin alike have their beginning once:
///
/// ```text
/// rows       a a a b b c c c d d      spans 0..3, 3..5, 5..8, 8..10
/// prefix           a a a a a          of the second and the third
/// sequences  aaabb, aaaccc, dd
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSpans {
    bounds: Arc<[u32]>,
    /// For each span the one that is its prefix, or itself. Nothing where no span has a prefix.
    prefixes: Arc<[u32]>,
}

/// A span and its prefix, which is empty where it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// Rows of the prefix.
    pub prefix: Range<usize>,
    /// Rows of its own.
    pub rows: Range<usize>,
}

impl RowSpans {
    /// Sequences without anything in common: sequence `s` is rows `bounds[s]..bounds[s + 1]`.
    ///
    /// # Panics
    /// If the bounds are not in order.
    #[must_use]
    pub fn apart(bounds: impl Into<Arc<[u32]>>) -> Self {
        let bounds = bounds.into();
        assert!(bounds.is_sorted(), "bounds in order");
        Self {
            bounds,
            prefixes: Arc::default(),
        }
    }

    /// Spans of which some have a prefix: for each its number, or that of the span itself.
    ///
    /// # Panics
    /// If the bounds are not in order, there is not one number a span, or spans do not follow the one that
    /// is their prefix, which has none.
    #[must_use]
    pub fn sharing(bounds: impl Into<Arc<[u32]>>, prefixes: impl Into<Arc<[u32]>>) -> Self {
        let (spans, prefixes) = (Self::apart(bounds), prefixes.into());
        assert_eq!(prefixes.len(), spans.count(), "one number a span");
        let mut last = 0;
        for (number, prefix) in (0..).zip(prefixes.iter().copied()) {
            assert!(
                prefix == number || prefix == last && number > 0,
                "spans follow their prefix"
            );
            last = prefix;
        }
        Self { prefixes, ..spans }
    }

    /// Number of spans.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.bounds.last().map_or(0, |end| *end as usize)
    }

    /// Where spans begin, and where the last one ends.
    #[must_use]
    pub fn bounds(&self) -> &[u32] {
        &self.bounds
    }

    /// True where a span has a prefix.
    #[must_use]
    pub fn share(&self) -> bool {
        !self.prefixes.is_empty()
    }

    /// All spans, each after its prefix.
    pub fn iter(&self) -> impl Iterator<Item = RowSpan> {
        (0..self.count()).map(|number| self.span(number))
    }

    /// Numbers of spans, those with a prefix together with it.
    pub fn families(&self) -> impl Iterator<Item = Range<usize>> {
        let count = self.count();
        let is_first = |number: &usize| !self.share() || self.prefixes[*number] as usize == *number;
        (0..count).filter(is_first).map(move |first| {
            let others = (first + 1..count).take_while(|number| !is_first(number));
            first..first + 1 + others.count()
        })
    }

    /// # Panics
    /// If there is no such span.
    #[must_use]
    pub fn span(&self, number: usize) -> RowSpan {
        let rows = |of: usize| self.bounds[of] as usize..self.bounds[of + 1] as usize;
        let rows_of_prefix = match self.prefixes.get(number).map(|it| *it as usize) {
            Some(prefix) if prefix != number => rows(prefix),
            _ => 0..0,
        };
        RowSpan {
            prefix: rows_of_prefix,
            rows: rows(number),
        }
    }
}

impl RowSpan {
    /// Rows that its last one attends to.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.prefix.len() + self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_stand_with_their_prefix() {
        let spans = RowSpans::sharing([0, 3, 5, 8, 8, 10].as_slice(), [0, 0, 0, 0, 4].as_slice());
        let all: Vec<_> = spans.iter().map(|it| (it.prefix, it.rows)).collect();
        assert_eq!(
            all,
            [
                (0..0, 0..3),
                (0..3, 3..5),
                (0..3, 5..8),
                (0..3, 8..8),
                (0..0, 8..10)
            ]
        );
        assert_eq!(spans.families().collect::<Vec<_>>(), [0..4, 4..5]);
        assert_eq!((spans.count(), spans.rows(), spans.share()), (5, 10, true));
        let apart = RowSpans::apart([0, 2, 2, 7].as_slice());
        assert_eq!(apart.families().collect::<Vec<_>>(), [0..1, 1..2, 2..3]);
        assert!(!apart.share());
        assert_eq!(RowSpans::apart([].as_slice()).count(), 0);
    }

    #[test]
    #[should_panic(expected = "spans follow their prefix")]
    fn a_prefix_has_none() {
        let _ = RowSpans::sharing([0, 1, 2, 3].as_slice(), [0, 0, 1].as_slice());
    }
}
