//! The place of a reader in a log: for each source the next number. That means the same on each
//! voter, whatever each has and in whatever order it came there.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::line::{LineSource, LogLine};

/// A place in a log from which a reader goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Tries below this one are read, but for the sources that are named.
    from_attempt: u32,
    next: BTreeMap<LineSource, u64>,
}

/// A text that is no cursor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is no place in a log: take `next` of an answer, `end`, or nothing to begin")]
pub struct CursorError {
    text: String,
}

/// Sources of a cursor, since it travels in the line of a request. When there are more, those of the
/// oldest tries are taken as read.
const SOURCES_MAX: usize = 1500;

impl Cursor {
    /// Returns true where a reader wants a line that is here.
    #[must_use]
    pub fn wants(&self, line: &LogLine) -> bool {
        self.next_of(line.source())
            .is_some_and(|next| line.number >= next)
    }

    /// The next number of a source; nothing if it is taken as read.
    #[must_use]
    pub fn next_of(&self, source: LineSource) -> Option<u64> {
        let known = self.next.get(&source).copied();
        known.or_else(|| (source.attempt >= self.from_attempt).then_some(0))
    }

    /// Has read what either has.
    pub fn join(&mut self, other: &Self) {
        self.from_attempt = self.from_attempt.max(other.from_attempt);
        for (source, next) in &other.next {
            self.advance(*source, *next);
        }
    }

    /// Has read a source up to this number.
    pub fn advance(&mut self, source: LineSource, next: u64) {
        let known = self.next.entry(source).or_default();
        *known = next.max(*known);
        while self.next.len() > SOURCES_MAX
            && let Some((oldest, _)) = self.next.first_key_value()
            && let Some((newest, _)) = self.next.last_key_value()
            && oldest.attempt < newest.attempt
        {
            self.from_attempt = oldest.attempt + 1;
            let from = self.from_attempt;
            self.next.retain(|source, _| source.attempt >= from);
        }
    }
}

impl FromIterator<(LineSource, u64)> for Cursor {
    fn from_iter<I: IntoIterator<Item = (LineSource, u64)>>(sources: I) -> Self {
        let mut cursor = Self::default();
        for (source, next) in sources {
            cursor.advance(source, next);
        }
        cursor
    }
}

impl fmt::Display for Cursor {
    /// As `0~1.9f3a.57`: from which try on, then the try, the sender and the next number of each
    /// source. All of it may stand in an address as it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.from_attempt)?;
        self.next.iter().try_for_each(|(source, next)| {
            let LineSource { attempt, sender } = source;
            write!(f, "~{attempt}.{sender:x}.{next}")
        })
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        parsed(text).ok_or_else(|| CursorError {
            text: text.chars().take(100).collect(),
        })
    }
}

fn parsed(text: &str) -> Option<Cursor> {
    let mut parts = text.split('~');
    let from_attempt = parts.next()?.parse().ok()?;
    let sources = parts.map(|part| {
        let mut words = part.split('.');
        let attempt = words.next()?.parse().ok()?;
        let sender = u64::from_str_radix(words.next()?, 16).ok()?;
        let next = words.next()?.parse().ok()?;
        let source = LineSource { attempt, sender };
        words.next().is_none().then_some((source, next))
    });
    let next = sources.collect::<Option<_>>()?;
    Some(Cursor { from_attempt, next })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn source(attempt: u32, sender: u64) -> LineSource {
        LineSource { attempt, sender }
    }

    proptest! {
        #[test]
        fn a_cursor_is_read_as_it_was_written(
            sources in proptest::collection::vec((1u32..5, any::<u64>(), any::<u64>()), 0..9),
        ) {
            let sources = sources.into_iter();
            let cursor: Cursor = sources.map(|(a, s, next)| (source(a, s), next)).collect();
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }

        #[test]
        fn no_text_does_harm(text in "[0-9a-f.~-]{0,40}") {
            if let Ok(cursor) = text.parse::<Cursor>() {
                prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
            }
        }
    }

    #[test]
    fn what_is_no_cursor_is_said() {
        for text in [
            "",
            "x",
            "0~",
            "0~1.2",
            "0~1.2.3.4",
            "0~1.zz.3",
            "-1",
            "0~1.2.99999999999999999999",
        ] {
            let refused = text.parse::<Cursor>().unwrap_err();
            assert!(refused.to_string().contains("no place in a log"), "{text}");
        }
    }

    #[test]
    fn a_cursor_is_bounded_and_forgets_the_oldest_tries() {
        let mut cursor = Cursor::default();
        for attempt in 1..=4 {
            for sender in 0..1000 {
                cursor.advance(source(attempt, sender), 7);
            }
        }
        assert!(cursor.to_string().len() < 60_000);
        assert_eq!(cursor.next_of(source(4, 3)), Some(7));
        assert_eq!(cursor.next_of(source(4, 3000)), Some(0));
        assert_eq!(cursor.next_of(source(5, 0)), Some(0));
        // What was read is not read again.
        assert_eq!(cursor.next_of(source(1, 3)), None);
    }
}
