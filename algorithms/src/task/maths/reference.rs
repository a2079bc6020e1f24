//! References, checked when they are loaded.

use super::{
    ANSWER_BYTES_MAX, Equality,
    answer::{Answer, Cause},
    budget::Budget,
    lexer::words,
    read::answer,
    same_answer,
    token::Reading,
};

/// The answer that a reply is compared with: a text that is understood.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReferenceAnswer(String);

/// Why a text cannot be a reference. Write it in another form, or leave the problem out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// There is nothing in it.
    #[error("the reference is empty")]
    Empty,
    /// It is longer than [`ANSWER_BYTES_MAX`].
    #[error("the reference has {bytes} bytes, more than {ANSWER_BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A part of it is neither mathematics that is read here nor words.
    #[error("`{part}` in the reference is not understood")]
    NotUnderstood {
        /// The part, without formatting.
        part: String,
    },
    /// A part of it has no value, or none that can be worked out within bounds.
    #[error("`{part}` in the reference has no value: {reason}")]
    NoValue {
        /// The part, without formatting.
        part: String,
        /// Why.
        reason: String,
    },
}

impl ReferenceAnswer {
    /// Checks that a text is understood.
    ///
    /// ```
    /// use odeon_algorithms::task::maths::{Equality, ReferenceAnswer, ReferenceError};
    ///
    /// let reference = ReferenceAnswer::parse(r"\frac{3}{4}")?;
    /// assert_eq!(reference.compare("0.75"), Equality::Equal);
    /// assert!(ReferenceAnswer::parse(r"\int_0^1 f").is_err());
    /// # Ok::<(), ReferenceError>(())
    /// ```
    ///
    /// # Errors
    /// [`ReferenceError`] when only the same text would be equal to it.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        if text.len() > ANSWER_BYTES_MAX {
            return Err(ReferenceError::TooLong { bytes: text.len() });
        }
        let reading = Reading::default();
        let read = answer(&words(text, reading).0, reading, &mut Budget::new());
        match unread(&read) {
            None => Ok(Self(text.trim().to_owned())),
            Some((_, Cause::Empty)) => Err(ReferenceError::Empty),
            Some((part, Cause::Form | Cause::TooDeep)) => {
                Err(ReferenceError::NotUnderstood { part: part.into() })
            }
            Some((part, Cause::Value(reason))) => Err(ReferenceError::NoValue {
                part: part.into(),
                reason: reason.to_string(),
            }),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares an answer with it.
    #[must_use]
    pub fn compare(&self, answer: &str) -> Equality {
        same_answer(&self.0, answer)
    }
}

/// The first part that was not understood.
fn unread(answer: &Answer) -> Option<(&str, Cause)> {
    match answer {
        Answer::Unread(part, cause) => Some((part, *cause)),
        Answer::Number(..) | Answer::Prose(_) | Answer::Inequality(..) => None,
        Answer::Region(_, set) => unread(set),
        Answer::Matrix(rows) => rows.iter().flatten().find_map(unread),
        Answer::Tuple(_, items) | Answer::Ratio(items) | Answer::Set(items) => {
            items.iter().find_map(unread)
        }
        Answer::List(items) | Answer::Union(items) | Answer::Equation(items) => {
            items.iter().find_map(unread)
        }
    }
}
