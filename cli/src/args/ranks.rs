//! Numbers of ranks: so many, or from a least to a most.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The ranks of a gang: `8`, or `4:8` for one that runs with as many as there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankRange {
    /// It does not run with fewer.
    pub(crate) least: u32,
    /// It does not run with more.
    pub(crate) most: u32,
}

impl RankRange {
    /// Returns true where the number may change.
    pub(crate) const fn is_elastic(self) -> bool {
        self.least < self.most
    }
}

impl fmt::Display for RankRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_elastic() {
            true => write!(f, "{}:{}", self.least, self.most),
            false => write!(f, "{}", self.most),
        }
    }
}

/// A text that is no number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RankRangeError {
    /// It is no number, nor two.
    #[error("write the number of ranks, such as 8, or the least and the most, such as 4:8")]
    Unread,
    /// None.
    #[error("a gang has one rank at least")]
    Empty,
    /// More than there may be.
    #[error("a gang has {RANKS_MAX} ranks at most, not {0}")]
    TooMany(u64),
    /// The wrong way round.
    #[error("{0} is more than {1}: the least comes first, {1}:{0}")]
    Reversed(u32, u32),
}

impl FromStr for RankRange {
    type Err = RankRangeError;

    fn from_str(text: &str) -> Result<Self, RankRangeError> {
        let (least, most) = text.split_once(':').unwrap_or((text, text));
        let (least, most) = (number(least)?, number(most)?);
        if least > most {
            return Err(RankRangeError::Reversed(least, most));
        }
        Ok(Self { least, most })
    }
}

fn number(text: &str) -> Result<u32, RankRangeError> {
    let is_plain = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(0) => Err(RankRangeError::Empty),
        Ok(number) if is_plain && number > u64::from(RANKS_MAX) => {
            Err(RankRangeError::TooMany(number))
        }
        Ok(number) if is_plain => Ok(number as u32),
        _ => Err(RankRangeError::Unread),
    }
}

/// The most ranks of a gang.
const RANKS_MAX: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_a_number_or_a_least_and_a_most() {
        let check = |text: &str, least, most| {
            let range = RankRange { least, most };
            assert_eq!(text.parse(), Ok(range), "{text}");
            assert_eq!(range.to_string(), text);
        };
        check("8", 8, 8);
        check("4:8", 4, 8);
        check("1:256", 1, 256);
        assert!(!"4:4".parse::<RankRange>().unwrap().is_elastic());
        let refused = |text: &str| text.parse::<RankRange>().unwrap_err();
        assert_eq!(refused("8:4"), RankRangeError::Reversed(8, 4));
        for text in ["0", "0:4", "4:0"] {
            assert_eq!(refused(text), RankRangeError::Empty, "{text}");
        }
        for text in ["257", "4:300", "99999999999"] {
            assert!(
                matches!(refused(text), RankRangeError::TooMany(_)),
                "{text}"
            );
        }
        for text in [
            "", ":", "a:b", "4:", ":8", "4:8:9", "+4", "-4", "4-8", "4 : 8",
        ] {
            assert_eq!(refused(text), RankRangeError::Unread, "{text}");
        }
    }
}
