//! The judgement of a reply, with its reason.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// The judgement of one reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The reward, between 0 and 1; 1 exactly when the reply is correct.
    pub reward: f64,
    /// True when the reply is correct.
    pub correct: bool,
    /// Why.
    pub reason: Reason,
}

/// Why a reply got its reward.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// The answer is right.
    Correct,
    /// The reply has the asked form, but its answer is wrong.
    Wrong {
        /// The answer that was read out of the reply.
        given: String,
    },
    /// The reply has an answer, but whether it is right cannot be told.
    Undecided {
        /// The answer that was read out of the reply.
        given: String,
    },
    /// No answer was found in the reply.
    NoAnswer,
    /// The reply does not have the asked form.
    Malformed {
        /// The error in its form.
        detail: String,
    },
    /// The expression uses a number that is not given, or uses it too often.
    NumberNotAvailable {
        /// The number.
        number: String,
    },
    /// The program in the reply fails a test.
    TestFailed {
        /// Number of tests that were passed, of those that were run.
        passed: usize,
        /// Which test failed first, and how.
        detail: String,
    },
    /// The reply holds a program, which nobody has run: see [`Task::as_code`](super::Task::as_code).
    NotRun,
}

impl Verdict {
    /// The verdict on a correct reply.
    #[must_use]
    pub fn correct() -> Self {
        Self {
            reward: 1.0,
            correct: true,
            reason: Reason::Correct,
        }
    }

    /// The verdict on a reply that is not correct, with the reward that its form earns.
    #[must_use]
    pub fn incorrect(reward: f64, reason: Reason) -> Self {
        Self {
            reward,
            correct: false,
            reason,
        }
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Correct => f.write_str("correct"),
            Self::Wrong { given } => write!(f, "wrong: gave {given}"),
            Self::Undecided { given } => write!(f, "undecided: gave {given}"),
            Self::NoAnswer => f.write_str("no answer in the reply"),
            Self::Malformed { detail } => write!(f, "malformed: {detail}"),
            Self::NumberNotAvailable { number } => {
                write!(f, "{number} is not given, or is used too often")
            }
            Self::TestFailed { detail, .. } => f.write_str(detail),
            Self::NotRun => f.write_str("the program was not run"),
        }
    }
}
