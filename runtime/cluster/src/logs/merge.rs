//! Merges the pages that several voters have of a log. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cursor::Cursor;
use super::line::{LinePlace, LineSource, LogLine};

/// The lines that one voter has of a log behind a cursor: those that come first, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// Set where it has others, all of which come later.
    pub more: bool,
    /// Below which numbers newer lines have taken the room of those that it had.
    pub gone: Vec<(LineSource, u64)>,
}

/// A line of a log, and what is missing before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The line.
    pub line: LogLine,
    /// Lines of its source that are not kept any more: newer ones have taken their room.
    pub gone: u64,
    /// Lines of its source that no voter has of those that were asked.
    pub lost: u64,
}

/// A part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// By time, then by source, then by number.
    pub lines: Vec<Read>,
    /// Where to read on.
    pub next: Cursor,
    /// Set where there are others already.
    pub more: bool,
}

impl Merged {
    /// Returns true where something is missing that should be there.
    #[must_use]
    pub fn lacks(&self) -> bool {
        self.lines.iter().any(|read| read.lost > 0)
    }
}

/// All that some voters have behind a cursor, each line once, up to where one of them may have others
/// that it has not told yet.
#[must_use]
pub fn merge(cursor: &Cursor, pages: Vec<Page>) -> Merged {
    let partial = pages.iter().filter(|page| page.more);
    // One that has more than it tells has told a line.
    let ends = partial.filter_map(|page| page.lines.last().map(LogLine::place));
    let end = ends.min();
    let mut gone: BTreeMap<LineSource, u64> = BTreeMap::new();
    let mut lines: BTreeMap<LinePlace, LogLine> = BTreeMap::new();
    let mut more = false;
    for page in pages {
        more |= page.more;
        for (source, below) in page.gone {
            let known = gone.entry(source).or_default();
            *known = below.max(*known);
        }
        for line in page.lines {
            if end.is_some_and(|end| line.place() > end) {
                more = true;
            } else {
                lines.insert(line.place(), line);
            }
        }
    }
    let mut next = cursor.clone();
    let wanted = lines.into_values().filter_map(|line| {
        let source = line.source();
        let from = next.next_of(source).filter(|from| line.number >= *from)?;
        next.advance(source, line.number + 1);
        let below = gone.get(&source).copied().unwrap_or(0);
        let kept_from = below.clamp(from, line.number);
        Some(Read {
            gone: kept_from - from,
            lost: line.number - kept_from,
            line,
        })
    });
    let lines = wanted.collect();
    Merged { lines, next, more }
}

#[cfg(test)]
mod tests;
