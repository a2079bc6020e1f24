//! Remedies for a reply that was lost. Pure.
//!
//! A reply is never asked for twice at the same time, and what has come of it is the begin of the
//! next prompt: so it may be asked for again after any loss that time can mend.

use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};

use super::error::ServedError;

/// Timeouts and retries towards a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For the next token of a reply, from the question on. A request may wait in the server for
    /// others to end.
    pub idle: Duration,
    /// For one of the calls that change weights.
    pub update: Duration,
    /// For a server that is away, or fails to take weights.
    pub away: Duration,
    /// Losses of a reply one after the other, without a token in between.
    pub losses: u32,
    /// Before the second try; it doubles with each.
    pub pause: Duration,
    /// The longest of these pauses.
    pub pause_max: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            idle: Duration::from_mins(5),
            update: Duration::from_mins(10),
            away: Duration::from_mins(5),
            losses: 5,
            pause: Duration::from_millis(200),
            pause_max: Duration::from_secs(10),
        }
    }
}

/// The remedy for a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The reply is asked for again, from what there is of it on.
    Again {
        /// After this pause.
        after: Duration,
    },
    /// The server may have been started anew: it is given its weights first, and then all replies
    /// are asked for again.
    Restore,
    /// Time mends nothing of it.
    GiveUp,
}

impl Patience {
    /// The remedy for the `losses`th loss in a row of a reply, counted from 1.
    #[must_use]
    pub fn remedy(&self, lost: &ServedError, losses: u32) -> Remedy {
        if losses > self.losses {
            return Remedy::GiveUp;
        }
        match lost {
            ServedError::Unreachable { .. }
            | ServedError::BrokenOff { .. }
            | ServedError::Restarted { .. } => Remedy::Restore,
            lost if passes(lost) => Remedy::Again {
                after: self.pause(losses),
            },
            _ => Remedy::GiveUp,
        }
    }

    /// The pause after so many failures in a row, counted from 1.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        self.pause
            .saturating_mul(1 << doublings)
            .min(self.pause_max)
    }
}

/// Returns true when the same call may go well later.
pub(super) fn passes(error: &ServedError) -> bool {
    match error {
        ServedError::Unreachable { .. }
        | ServedError::BrokenOff { .. }
        | ServedError::Restarted { .. }
        | ServedError::Silent { .. }
        | ServedError::Aborted { .. } => true,
        ServedError::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
        _ => false,
    }
}
