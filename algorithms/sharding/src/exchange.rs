//! The elements that ranks of one group give each other, when what they hold changes. Pure.
//!
//! Local order is the order of global indices, so two maps are compared by walking along both.

use std::ops::Range;

use crate::index::{IndexRun, LocalIndex};

/// Elements that follow each other in two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) len: usize,
}

/// The elements of one rank, prepared for comparing.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    runs: Vec<IndexRun>,
    /// Indices of each dimension outside of which there is nothing.
    bounds: Vec<Range<usize>>,
}

impl Held {
    pub(crate) fn new(index: &LocalIndex) -> Self {
        Self {
            runs: index.runs().collect(),
            bounds: index.bounds(),
        }
    }

    /// Number of elements.
    pub(crate) fn count(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// Returns true when both have the same elements.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.count() == other.count() && total(&self.shared(other)) == self.count()
    }

    /// The elements that both share: from their places here to those in the other.
    pub(crate) fn shared(&self, other: &Self) -> Vec<Piece> {
        let mut bounds = self.bounds.iter().zip(&other.bounds);
        if bounds.any(|(a, b)| a.end <= b.start || b.end <= a.start) {
            return vec![];
        }
        shared(&self.runs, &other.runs)
    }
}

/// Number of elements of pieces.
pub(crate) fn total(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.len).sum()
}

/// The elements that two maps share: from their places in the first to those in the second.
fn shared(source: &[IndexRun], target: &[IndexRun]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = vec![];
    let (mut i, mut j) = (0, 0);
    while let (Some(from), Some(to)) = (source.get(i), target.get(j)) {
        let start = from.global.max(to.global);
        let (from_end, to_end) = (from.global + from.len, to.global + to.len);
        let end = from_end.min(to_end);
        if start < end {
            let piece = Piece {
                from: from.local + start - from.global,
                to: to.local + start - to.global,
                len: end - start,
            };
            append(&mut pieces, piece);
        }
        // Whichever ends first has no more; of a map of many runs, all before the other's at once.
        if from_end <= to_end {
            i += 1 + behind(&source[i + 1..], to.global);
        } else {
            j += 1 + behind(&target[j + 1..], from.global);
        }
    }
    pieces
}

/// Number of runs that end before a global index.
fn behind(runs: &[IndexRun], global: usize) -> usize {
    let ends_before = |run: &IndexRun| run.global + run.len <= global;
    if runs.first().is_some_and(ends_before) {
        runs.partition_point(ends_before)
    } else {
        0
    }
}

/// Adds a piece, to the last one where it goes on in both buffers.
pub(crate) fn append(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.from + last.len == piece.from && last.to + last.len == piece.to => {
            last.len += piece.len;
        }
        _ => pieces.push(piece),
    }
}

/// The elements of `target` that `source` lacks, with their local indices in the target.
fn lacking(target: &[IndexRun], source: &[IndexRun]) -> Vec<IndexRun> {
    let mut left = vec![];
    let mut first = 0;
    for run in target {
        let end = run.global + run.len;
        let mut at = run.global;
        while first < source.len() && source[first].global + source[first].len <= at {
            first += 1;
        }
        let mut rest = |from: usize, to: usize| {
            if from < to {
                left.push(IndexRun {
                    global: from,
                    local: run.local + from - run.global,
                    len: to - from,
                });
            }
        };
        for other in source[first..]
            .iter()
            .take_while(|other| other.global < end)
        {
            rest(at, other.global.min(end));
            at = at.max(other.global + other.len);
        }
        rest(at, end);
    }
    left
}

/// The pieces of `target` that each source gives, those asked first that come first in `order`; `None`
/// when an element is nowhere. Sources are `apart` when no two of them have the same element.
pub(crate) fn given(
    sources: &[&Held],
    target: &Held,
    apart: bool,
    order: impl IntoIterator<Item = usize>,
) -> Option<Vec<Vec<Piece>>> {
    if apart {
        let pieces: Vec<Vec<Piece>> = sources.iter().map(|source| source.shared(target)).collect();
        let found: usize = pieces.iter().map(|pieces| total(pieces)).sum();
        return (found == target.count()).then_some(pieces);
    }
    let mut pieces = vec![vec![]; sources.len()];
    let mut left = target.clone();
    for source in order {
        if left.runs.is_empty() {
            break;
        }
        pieces[source] = sources[source].shared(&left);
        if !pieces[source].is_empty() {
            left.runs = lacking(&left.runs, &sources[source].runs);
        }
    }
    left.runs.is_empty().then_some(pieces)
}

/// [`given`] to number `to` of a group: of itself first, then of the ranks behind it in a circle, so that
/// copies share the work.
pub(crate) fn given_to(
    sources: &[&Held],
    target: &Held,
    apart: bool,
    to: usize,
) -> Option<Vec<Vec<Piece>>> {
    let ranks = sources.len();
    let order = (0..ranks).map(|step| (to + step) % ranks);
    given(sources, target, apart, order)
}

/// Returns true when each element of `whole` is in exactly one of the parts, and nothing else is.
pub(crate) fn is_parted(whole: &Held, parts: &[&Held]) -> bool {
    let runs = parts.iter().flat_map(|part| &part.runs);
    let mut all: Vec<(usize, usize)> = runs.map(|run| (run.global, run.global + run.len)).collect();
    all.sort_unstable();
    let apart = all.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    let within = |part: &&Held| total(&whole.shared(part)) == part.count();
    let counted: usize = parts.iter().map(|part| part.count()).sum();
    apart && counted == whole.count() && parts.iter().all(within)
}
