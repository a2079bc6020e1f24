//! Copies from one rank's buffer into another's.

use serde::{Deserialize, Serialize};

use super::window::{ByteRun, Window, WindowError, copy_box};

/// One copy into a rank's buffer: a box out of a buffer of its own or of another rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfer {
    /// Which tensor of the model, by its place in the list.
    pub tensor: usize,
    /// Whose buffer it comes from.
    pub from: Origin,
    /// Where it lies there.
    pub source: Window,
    /// Where it belongs here.
    pub target: Window,
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The rank has them itself: nothing is sent.
    Own,
    /// Another rank sends them.
    Rank(usize),
}

impl Transfer {
    /// Whose buffer the source is in, where `rank` is the one that copies.
    #[must_use]
    pub const fn sender(&self, rank: usize) -> usize {
        match self.from {
            Origin::Own => rank,
            Origin::Rank(from) => from,
        }
    }

    /// Number of bytes that are copied.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.target.bytes()
    }

    /// Number of bytes that another rank sends.
    #[must_use]
    pub fn received_bytes(&self) -> usize {
        match self.from {
            Origin::Own => 0,
            Origin::Rank(_) => self.bytes(),
        }
    }

    /// The bytes to copy, as few pieces as there can be.
    ///
    /// # Errors
    /// [`WindowError::Mismatch`], which no transfer that was planned gives.
    pub fn runs(&self) -> Result<impl Iterator<Item = ByteRun>, WindowError> {
        self.source.runs_into(&self.target)
    }

    /// Copies out of the sender's buffer into that of this rank.
    ///
    /// # Errors
    /// [`WindowError`] when a buffer is not the one that was planned for. Nothing was written then.
    pub fn apply(&self, source: &[u8], target: &mut [u8]) -> Result<(), WindowError> {
        copy_box(source, &self.source, target, &self.target)
    }
}
