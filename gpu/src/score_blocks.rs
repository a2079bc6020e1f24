//! Rows that attend to rows which lie elsewhere.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::AttentionShape;
use crate::spans::RowSpans;

/// Rows of queries and rows of keys of one sequence, which may lie apart: a block of the square of its scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreBlock {
    /// Rows among the queries that are at hand.
    pub queries: Range<usize>,
    /// Rows among the keys that are at hand.
    pub keys: Range<usize>,
    /// Positions from the first of these keys to the first of these queries.
    pub ahead: usize,
}

impl ScoreBlock {
    /// The keys that a query sees. Both are numbered from the first of the block.
    #[must_use]
    pub fn seen(&self, query: usize, shape: AttentionShape) -> Range<usize> {
        let (all, there) = (shape.seen(self.ahead + query + 1), self.keys.len());
        all.start.min(there)..all.end.min(there)
    }

    /// From the first to the last key that one of some queries sees.
    pub(crate) fn seen_by(&self, queries: &Range<usize>, shape: AttentionShape) -> Range<usize> {
        let (first, last) = (queries.start, queries.end - 1);
        self.seen(first, shape).start..self.seen(last, shape).end
    }

    /// True where a query sees a key. If any does the first does, which looks back farthest.
    #[must_use]
    pub fn is_seen(&self, shape: AttentionShape) -> bool {
        !self.queries.is_empty() && !self.seen(0, shape).is_empty()
    }

    /// Pairs of a query and a key that it sees.
    #[must_use]
    pub fn pairs(&self, shape: AttentionShape) -> usize {
        let queries = 0..self.queries.len();
        queries.map(|query| self.seen(query, shape).len()).sum()
    }
}

/// Blocks in which no row of queries stands twice, and no row of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreBlocks(Arc<[ScoreBlock]>);

impl ScoreBlocks {
    /// # Panics
    /// If a row stands twice.
    #[must_use]
    pub fn new(blocks: impl Into<Arc<[ScoreBlock]>>) -> Self {
        let blocks = blocks.into();
        let sides = blocks.iter().map(|it| (&it.queries, &it.keys));
        let (queries, keys): (Vec<_>, Vec<_>) = sides.unzip();
        for mut rows in [queries, keys] {
            rows.sort_by_key(|rows| (rows.start, rows.end));
            let apart = rows.windows(2).all(|two| two[0].end <= two[1].start);
            assert!(apart, "a row stands in one block");
        }
        Self(blocks)
    }

    /// The blocks of some rows of spans as queries and of some as keys. Runs of rows lie one behind the other, in this
    /// order. Where a run meets several, each block of it is in a list of its own.
    ///
    /// # Panics
    /// If spans have prefixes.
    #[must_use]
    pub fn between(spans: &RowSpans, queries: &[Range<usize>], keys: &[Range<usize>]) -> Vec<Self> {
        assert!(!spans.share(), "spans without a prefix");
        // Which runs have met in a list, and their blocks.
        let mut lists: Vec<(Vec<[usize; 2]>, Vec<ScoreBlock>)> = vec![];
        let mut query_place = 0;
        for (query, of_queries) in queries.iter().enumerate() {
            let mut key_place = 0;
            for (key, of_keys) in keys.iter().enumerate() {
                let places = [query_place, key_place];
                let blocks: Vec<_> = meeting(spans, of_queries, of_keys, places).collect();
                key_place += of_keys.len();
                if blocks.is_empty() {
                    continue;
                }
                let is_free = |it: &[usize; 2]| it[0] != query && it[1] != key;
                match lists.iter_mut().find(|(met, _)| met.iter().all(is_free)) {
                    Some((met, list)) => {
                        met.push([query, key]);
                        list.extend(blocks);
                    }
                    None => lists.push((vec![[query, key]], blocks)),
                }
            }
            query_place += of_queries.len();
        }
        lists.into_iter().map(|(_, list)| Self::new(list)).collect()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &ScoreBlock> {
        self.0.iter()
    }

    /// Panics unless there are as many rows of queries and of keys.
    #[track_caller]
    pub(crate) fn check(&self, queries: usize, keys: usize) {
        let fits = |it: &ScoreBlock| it.queries.end <= queries && it.keys.end <= keys;
        assert!(self.iter().all(fits), "blocks of rows that are there");
    }
}

/// The blocks of two runs of rows, which lie from these places on: one for each span that both have rows of and of
/// which a query sees a key.
fn meeting<'a>(
    spans: &'a RowSpans,
    queries: &'a Range<usize>,
    keys: &'a Range<usize>,
    [query_place, key_place]: [usize; 2],
) -> impl Iterator<Item = ScoreBlock> {
    let ends = spans.bounds().get(1..).unwrap_or_default();
    let latest = queries.start.max(keys.start);
    let first = ends.partition_point(|end| *end as usize <= latest);
    let earliest = queries.end.min(keys.end);
    let spans = (first..spans.count()).map(|number| spans.span(number).rows);
    let spans = spans.take_while(move |span| span.start < earliest);
    spans.filter_map(move |span| {
        let of = |run: &Range<usize>| run.start.max(span.start)..run.end.min(span.end);
        let (queries_there, keys_there) = (of(queries), of(keys));
        // Queries see no key before their first, and keys no query behind their last.
        let seeing = queries_there.start.max(keys_there.start)..queries_there.end;
        let seen = keys_there.start..keys_there.end.min(queries_there.end);
        let place = |rows: &Range<usize>, run: &Range<usize>, place: usize| {
            place + rows.start - run.start..place + rows.end - run.start
        };
        (!seeing.is_empty() && !seen.is_empty()).then(|| ScoreBlock {
            queries: place(&seeing, queries, query_place),
            keys: place(&seen, keys, key_place),
            ahead: seeing.start - seen.start,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn shape(window: Option<u32>) -> AttentionShape {
        AttentionShape {
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            window: window.and_then(NonZeroU32::new),
        }
    }

    #[test]
    fn a_block_knows_which_keys_a_query_sees() {
        let block = ScoreBlock {
            queries: 10..14,
            keys: 2..5,
            ahead: 1,
        };
        let seen = |window| (0..4).map(move |query| block.seen(query, shape(window)));
        assert!(seen(None).eq([0..2, 0..3, 0..3, 0..3]));
        let block = ScoreBlock {
            queries: 10..14,
            keys: 2..5,
            ahead: 1,
        };
        let narrow = (0..4).map(|query| block.seen(query, shape(Some(2))));
        assert!(narrow.eq([0..2, 1..3, 2..3, 3..3]));
        assert_eq!(block.pairs(shape(Some(2))), 5);
        assert_eq!(block.seen_by(&(1..3), shape(Some(2))), 1..3);
        let far = ScoreBlock { ahead: 4, ..block };
        assert!(far.is_seen(shape(Some(3))) && !far.is_seen(shape(Some(2))));
    }

    #[test]
    #[should_panic(expected = "a row stands in one block")]
    fn no_row_of_keys_stands_twice() {
        let block = |queries| ScoreBlock {
            queries,
            keys: 0..2,
            ahead: 0,
        };
        let _ = ScoreBlocks::new([block(0..2), block(2..4)]);
    }

    proptest! {
        /// Whatever the runs: each pair of a row with one that it sees is in one block, and no other pair is.
        #[test]
        fn blocks_hold_each_pair_once(
            lengths in prop::collection::vec(0u32..9, 1..6),
            cuts in prop::array::uniform4(0usize..41),
            window in prop::option::of(1u32..9),
        ) {
            let mut bounds = vec![0];
            bounds.extend(lengths.iter().scan(0, |end, length| { *end += length; Some(*end) }));
            let spans = RowSpans::apart(bounds);
            let rows = spans.rows();
            let mut cuts = cuts.map(|cut| cut.min(rows));
            cuts.sort_unstable();
            let runs = [0..cuts[0], cuts[0]..cuts[1], cuts[1]..cuts[2], cuts[2]..cuts[3], cuts[3]..rows];
            // Any of them in any order, as a rank may have them.
            let sets = [vec![runs[3].clone(), runs[0].clone()], vec![runs[1].clone(), runs[4].clone(), runs[2].clone()]];
            let mut found = vec![];
            for queries in &sets {
                for keys in &sets {
                    let rows_of = |runs: &[Range<usize>]| runs.iter().cloned().flatten().collect::<Vec<_>>();
                    let (of_queries, of_keys) = (rows_of(queries), rows_of(keys));
                    for list in ScoreBlocks::between(&spans, queries, keys) {
                        list.check(of_queries.len(), of_keys.len());
                        for block in list.iter() {
                            for query in 0..block.queries.len() {
                                let row = of_queries[block.queries.start + query];
                                let seen = block.seen(query, shape(window));
                                found.extend(seen.map(|key| (row, of_keys[block.keys.start + key])));
                            }
                        }
                    }
                }
            }
            let mut expected = vec![];
            for span in spans.iter() {
                for (at, row) in span.rows.clone().enumerate() {
                    let seen = shape(window).seen(at + 1);
                    expected.extend(seen.map(|key| (row, span.rows.start + key)));
                }
            }
            prop_assert_eq!(found.len(), expected.len());
            let sets = [found, expected].map(BTreeSet::from_iter);
            prop_assert_eq!(&sets[0], &sets[1]);
        }
    }
}
