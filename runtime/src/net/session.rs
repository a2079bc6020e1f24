//! The state of a session's streams, apart from any connection.
//!
//! A link between nodes outlives the connections that carry it. Each side keeps what it has sent
//! over a stream until the other says that it has taken it in. When a connection breaks, both say
//! over the next one how far they have come, and what lies behind that is sent again: nothing is
//! lost, nothing comes twice, and the order stays.
//!
//! Marks are counts of bytes since the session began, always at the end of a frame. Pure: bytes and
//! marks go in, bytes to send come out.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use thiserror::Error;

/// Bytes of each stream that have been taken in: of the control stream, of calls, of bulk. A link
/// with one stream counts there alone.
pub(crate) type Marks = [u64; 3];

/// A mark of the other side beyond what it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it says that it has taken in {mark} bytes of {sent}")]
pub(crate) struct BeyondSent {
    pub(crate) mark: u64,
    pub(crate) sent: u64,
}

/// Bytes that were sent over one stream and may have to be sent again.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Bytes that the other side has taken in; they are forgotten here.
    taken: u64,
    /// Bytes that follow them, in the pieces in which they were sent.
    kept: VecDeque<Bytes>,
    kept_bytes: u64,
    /// Pieces at the front that were sent over the present connection.
    sent: usize,
}

impl Outgoing {
    /// Makes one from the bytes that were kept: all of them may have to be sent again.
    pub(crate) fn resumed_from(taken: u64, kept: Bytes) -> Self {
        Self {
            taken,
            kept_bytes: kept.len() as u64,
            kept: VecDeque::from_iter((!kept.is_empty()).then_some(kept)),
            sent: 0,
        }
    }

    /// Bytes that the other side has taken in.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// The pieces that follow them.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Bytes> {
        self.kept.iter()
    }

    /// Bytes that the other side has not said it has taken in.
    pub(crate) const fn unacknowledged(&self) -> u64 {
        self.kept_bytes
    }

    /// Returns true if there is something left to send again.
    pub(crate) fn is_behind(&self) -> bool {
        self.sent < self.kept.len()
    }

    /// A new piece is sent, after all that was to be sent again.
    pub(crate) fn keep(&mut self, piece: Bytes) {
        debug_assert_eq!(self.sent, self.kept.len(), "older pieces come first");
        self.kept_bytes += piece.len() as u64;
        self.kept.push_back(piece);
        self.sent = self.kept.len();
    }

    /// The next piece that is sent again, if any is left.
    pub(crate) fn again(&mut self) -> Option<Bytes> {
        let piece = self.kept.get(self.sent)?.clone();
        self.sent += 1;
        Some(piece)
    }

    /// The other side has taken in so much. Older news is none.
    ///
    /// # Errors
    /// That is more than it was sent.
    pub(crate) fn acknowledge(&mut self, mark: u64) -> Result<(), BeyondSent> {
        let sent = self.taken + self.kept_bytes;
        if mark > sent {
            return Err(BeyondSent { mark, sent });
        }
        let mut left = mark.saturating_sub(self.taken);
        self.taken += left;
        self.kept_bytes -= left;
        while left > 0
            && let Some(piece) = self.kept.front_mut()
        {
            let length = piece.len() as u64;
            if length > left {
                piece.advance(left as usize);
                break;
            }
            left -= length;
            self.kept.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
        Ok(())
    }

    /// Another connection begins, and the other side says how far it has come: what follows is sent
    /// again.
    ///
    /// # Errors
    /// That is more than it was sent.
    pub(crate) fn resume(&mut self, mark: u64) -> Result<(), BeyondSent> {
        self.acknowledge(mark)?;
        self.sent = 0;
        Ok(())
    }
}

/// Bytes of one stream that this side has taken in, and has said so.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incoming {
    taken: u64,
    said: u64,
}

impl Incoming {
    /// So much had been taken in when this is made from it.
    pub(crate) const fn resumed_from(taken: u64) -> Self {
        Self { taken, said: taken }
    }

    /// Bytes taken in.
    pub(crate) const fn taken(self) -> u64 {
        self.taken
    }

    /// Whole frames have been taken in. Returns true if it is time to say so, with `every` so many
    /// bytes.
    pub(crate) const fn take(&mut self, bytes: u64, every: u64) -> bool {
        self.taken += bytes;
        self.taken - self.said >= every
    }

    /// Returns true if something was taken in since it was last said.
    pub(crate) const fn is_news(self) -> bool {
        self.taken > self.said
    }

    /// The mark, which is said now.
    pub(crate) const fn say(&mut self) -> u64 {
        self.said = self.taken;
        self.taken
    }
}

#[cfg(test)]
mod tests;
