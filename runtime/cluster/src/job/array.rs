//! Arrays: one job for each of several indices, under one name; and jobs that come after others.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::JobId;

/// The indices of an array, and how many of its jobs may have a node at the same time, as Slurm writes
/// them: `0-99`, `1,3,7`, `0-10:2`, each with `%8` behind for eight at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArraySpec {
    text: String,
    indices: Vec<u32>,
    at_once: Option<u32>,
}

/// Most jobs of an array: the output of so many is kept.
pub const ARRAY_MAX: usize = 1000;
/// The largest index.
pub const INDEX_MAX: u32 = 999_999;

/// The fault of a text that stands for no array; places are counted from 1, in characters.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArrayError {
    /// Something else where a number has to be.
    #[error(
        "`{text}` is no array: a number from 0 to {INDEX_MAX} has to stand at character {place}, and \
         there is {found}; write 0-99, 1,3,7 or 0-10:2, and %8 behind for 8 at once"
    )]
    Number {
        /// As given.
        text: String,
        /// Where.
        place: usize,
        /// The thing that is there.
        found: String,
    },
    /// A range that goes down.
    #[error("`{text}` is no array: {from}-{to} at character {place} goes down: write {to}-{from}")]
    Down {
        /// As given.
        text: String,
        /// Where.
        place: usize,
        /// Its first index.
        from: u32,
        /// Its last.
        to: u32,
    },
    /// A step of nothing, or none at once.
    #[error("`{text}` is no array: the {what} at character {place} is 0: it is at least 1")]
    Zero {
        /// As given.
        text: String,
        /// Where.
        place: usize,
        /// Which number.
        what: &'static str,
    },
    /// An index that is there already.
    #[error("`{text}` is no array: index {index} at character {place} is there already")]
    Twice {
        /// As given.
        text: String,
        /// Where.
        place: usize,
        /// Which.
        index: u32,
    },
    /// More jobs than there may be.
    #[error("`{text}` is of more than {ARRAY_MAX} jobs, the most of an array: submit several")]
    Many {
        /// As given.
        text: String,
    },
}

impl ArraySpec {
    /// Variables that each job of an array has: its index, and the number of jobs.
    pub const VARIABLES: [&str; 2] = ["ODEON_ARRAY_INDEX", "ODEON_ARRAY_COUNT"];

    /// Its indices, in the order in which they were given.
    #[must_use]
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// The number of its jobs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.indices.len()
    }

    /// The most of its jobs that may have a node at the same time.
    #[must_use]
    pub const fn at_once(&self) -> Option<u32> {
        self.at_once
    }

    /// The name of one of the jobs of an array.
    #[must_use]
    pub fn name_of(array: &str, index: u32) -> String {
        format!("{array}-{index}")
    }
}

impl FromStr for ArraySpec {
    type Err = ArrayError;

    fn from_str(text: &str) -> Result<Self, ArrayError> {
        let mut reader = Reader { text, at: 0 };
        let mut known = BTreeSet::new();
        let mut indices = vec![];
        loop {
            let place = reader.place();
            let from = reader.number()?;
            let (mut to, mut step) = (from, 1);
            if reader.takes('-') {
                to = reader.number()?;
                let text = text.to_owned();
                if to < from {
                    return Err(ArrayError::Down {
                        text,
                        place,
                        from,
                        to,
                    });
                }
                if reader.takes(':') {
                    step = reader.at_least_one("step")?;
                }
            }
            for index in (from..=to).step_by(step as usize) {
                if indices.len() == ARRAY_MAX {
                    let text = text.to_owned();
                    return Err(ArrayError::Many { text });
                }
                if !known.insert(index) {
                    let text = text.to_owned();
                    return Err(ArrayError::Twice { text, place, index });
                }
                indices.push(index);
            }
            if !reader.takes(',') {
                break;
            }
        }
        let at_once = match reader.takes('%') {
            true => Some(reader.at_least_one("number at once")?),
            false => None,
        };
        reader.ends()?;
        Ok(Self {
            text: text.to_owned(),
            indices,
            at_once,
        })
    }
}

impl TryFrom<String> for ArraySpec {
    type Error = ArrayError;

    fn try_from(text: String) -> Result<Self, ArrayError> {
        text.parse()
    }
}

impl From<ArraySpec> for String {
    fn from(array: ArraySpec) -> Self {
        array.text
    }
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text that is read from left to right.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Where it is, in characters from 1.
    fn place(&self) -> usize {
        self.text[..self.at].chars().count() + 1
    }

    fn takes(&mut self, sign: char) -> bool {
        let takes = self.rest().starts_with(sign);
        if takes {
            self.at += sign.len_utf8();
        }
        takes
    }

    fn number(&mut self) -> Result<u32, ArrayError> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let digits = &rest[..end.unwrap_or(rest.len())];
        let number = digits.parse().ok().filter(|number| *number <= INDEX_MAX);
        let number = number.ok_or_else(|| self.unexpected(digits))?;
        self.at += digits.len();
        Ok(number)
    }

    fn at_least_one(&mut self, what: &'static str) -> Result<u32, ArrayError> {
        let place = self.place();
        match self.number()? {
            0 => Err(ArrayError::Zero {
                text: self.text.to_owned(),
                place,
                what,
            }),
            number => Ok(number),
        }
    }

    fn ends(&self) -> Result<(), ArrayError> {
        match self.rest() {
            "" => Ok(()),
            _ => Err(self.unexpected("")),
        }
    }

    /// The error at this place, where these digits stand that are no number.
    fn unexpected(&self, digits: &str) -> ArrayError {
        let found = match (digits, self.rest().chars().next()) {
            ("", None) => "nothing".to_owned(),
            ("", Some(sign)) => format!("`{sign}`"),
            (digits, _) => format!("`{digits}`"),
        };
        ArrayError::Number {
            text: self.text.to_owned(),
            place: self.place(),
            found,
        }
    }
}

/// The place of a job in its array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayTask {
    /// The name of the array.
    pub name: String,
    /// The first of its jobs, which have numbers without gaps.
    pub first: JobId,
    /// The number of its jobs.
    pub count: u32,
    /// The index of this one.
    pub index: u32,
    /// The most of its jobs that may have a node at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
}

impl ArrayTask {
    /// The numbers of the jobs of its array.
    #[must_use]
    pub fn jobs(&self) -> RangeInclusive<JobId> {
        let last = self.first.0 + u64::from(self.count.max(1)) - 1;
        self.first..=JobId(last)
    }

    /// Returns true where that is why one of its jobs waits.
    pub(crate) fn is_full(&self, why: &str) -> bool {
        self.at_once
            .is_some_and(|most| self.full(most as usize) == why)
    }

    /// Why one of its jobs waits while so many have a node.
    pub(crate) fn full(&self, running: usize) -> String {
        format!(
            "array `{}` has {running} jobs that run, as many as may at once",
            self.name
        )
    }
}

/// A job or an array that has to succeed before another job begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct After {
    /// The job, or the first of the array.
    pub first: JobId,
    /// The job again, or the last of the array.
    pub last: JobId,
    /// The name of the array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<String>,
}

impl After {
    /// A single job.
    #[must_use]
    pub const fn job(id: JobId) -> Self {
        Self {
            first: id,
            last: id,
            array: None,
        }
    }

    /// All jobs of the array that one belongs to.
    #[must_use]
    pub fn array(of: &ArrayTask) -> Self {
        let jobs = of.jobs();
        Self {
            first: *jobs.start(),
            last: *jobs.end(),
            array: Some(of.name.clone()),
        }
    }

    /// The numbers of its jobs.
    #[must_use]
    pub const fn jobs(&self) -> RangeInclusive<JobId> {
        self.first..=self.last
    }

    /// Why a job waits that comes after these.
    pub(crate) fn told(all: &[Self]) -> String {
        let named: Vec<String> = all.iter().map(Self::to_string).collect();
        format!("it begins after {} succeeded", and(&named))
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, .. } = self;
        match &self.array {
            Some(name) => write!(f, "all of `{name}` ({first} to {last})"),
            None => first.fmt(f),
        }
    }
}

/// `a has`, `a and b have`, `a, b and c have`.
fn and(named: &[String]) -> String {
    match named {
        [] => "nothing has".to_owned(),
        [one] if one.starts_with("all of") => format!("{one} have"),
        [one] => format!("{one} has"),
        [before @ .., last] => format!("{} and {last} have", before.join(", ")),
    }
}

#[cfg(test)]
mod tests;
