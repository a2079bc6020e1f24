//! A bounded part of the spans that have ended: the last of them, oldest first, each with its number.

use std::collections::VecDeque;

use super::{Forgotten, Span};
use crate::date::Date;

/// The last spans of some kind.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    kept: VecDeque<(u64, Span)>,
    room: usize,
    forgotten: Forgotten,
}

impl Ring {
    /// An empty one with room for so many.
    pub(super) const fn new(room: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            room,
            forgotten: Forgotten {
                spans: 0,
                to: Date(0),
            },
        }
    }

    /// Adds one; the oldest goes if there is no room.
    pub(super) fn keep(&mut self, number: u64, span: Span) {
        if self.kept.len() == self.room {
            let oldest = self.kept.pop_front();
            let ended = oldest.and_then(|(_, it)| it.end).unwrap_or_default();
            self.forgotten.to = self.forgotten.to.max(ended);
            self.forgotten.spans += 1;
        }
        if self.kept.len() == self.kept.capacity() {
            // By itself it would double beyond the most that it ever holds.
            let room = self.room - self.kept.len();
            self.kept.reserve_exact(room.min(self.kept.len().max(256)));
        }
        self.kept.push_back((number, span));
    }

    /// Those that are kept.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Span> {
        self.kept.iter().map(|(_, span)| span)
    }

    /// Those with greater numbers than this, with their numbers.
    pub(super) fn after(&self, number: u64) -> impl Iterator<Item = (u64, &Span)> {
        let skip = self.kept.partition_point(|(it, _)| *it <= number);
        self.kept.range(skip..).map(|(it, span)| (*it, span))
    }

    /// Those that there was no room for; `None` while all are kept.
    pub(super) fn forgotten(&self) -> Option<Forgotten> {
        (self.forgotten.spans > 0).then_some(self.forgotten)
    }
}
