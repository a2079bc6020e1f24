//! The majority of the voters, as each answer tells of it beside what was asked for.

/// The header that says so. An answer without it comes from a node whose voters have a majority, or
/// that does not know better.
pub const MAJORITY_HEADER: &str = "odeon-majority";

/// The state of the voters: if a majority of them works together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Majority {
    /// They have.
    #[default]
    Works,
    /// They had one a moment ago: an election may be under way.
    Unsettled,
    /// They have none. Nothing is accepted, and what is told may be old.
    Missing,
}

impl Majority {
    /// The word for it in the header, if there is one.
    #[must_use]
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Self::Works => None,
            Self::Unsettled => Some("unsettled"),
            Self::Missing => Some("no"),
        }
    }

    /// Reads the word in the header.
    pub(crate) fn of_word(word: Option<&[u8]>) -> Self {
        match word {
            Some(b"unsettled") => Self::Unsettled,
            Some(b"no") => Self::Missing,
            _ => Self::Works,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_header_says_is_read_as_it_was_meant() {
        for majority in [Majority::Works, Majority::Unsettled, Majority::Missing] {
            let word = majority.word().map(str::as_bytes);
            assert_eq!(Majority::of_word(word), majority);
        }
    }
}
