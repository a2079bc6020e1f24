//! Transports, which move bytes between ranks.

use std::fmt;
use std::time::Instant;

use super::error::{Fault, Report};
use super::schedule::Topology;

/// The least that a window may have: a head, and a cache line for each of many ranks.
pub const WINDOW_BYTES_MIN: usize = 4096;

/// The place of a rank in its gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// This rank.
    pub rank: usize,
    /// The life of the gang. Ranks of different ones do not hear each other.
    pub generation: u64,
    /// A number of this set of communicators alone, so that two sets of one generation do not
    /// hear each other either.
    pub gang: u64,
    /// Which node each rank is on.
    pub topology: Topology,
}

impl Membership {
    /// Number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.topology.world()
    }
}

/// Why a transport does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Found here.
    Found(Fault),
    /// Another rank found it, and told.
    Told(Report),
}

/// Bytes in order to and from each other rank, with bounds on what is under way.
pub trait Transport: Send + fmt::Debug {
    /// The membership of this rank: its number, and its gang.
    fn membership(&self) -> &Membership;

    /// Takes as many bytes from the front as there is room for, and gives their number: 0 when
    /// there is none. Does not wait.
    ///
    /// # Errors
    /// [`Trouble`]; what was sent before may not arrive.
    fn send_some(&mut self, to: usize, bytes: &[u8]) -> Result<usize, Trouble>;

    /// Fills as much as has arrived, and gives its number: 0 when nothing has. Does not wait.
    ///
    /// # Errors
    /// [`Trouble`]; nothing more will come.
    fn receive_some(&mut self, from: usize, into: &mut [u8]) -> Result<usize, Trouble>;

    /// Waits until there may be room to one of `to`, or bytes from one of `from`, or trouble, or it
    /// is `until`. May return early.
    ///
    /// # Errors
    /// [`Trouble`].
    fn wait(&mut self, to: &[usize], from: &[usize], until: Instant) -> Result<(), Trouble>;

    /// Bytes that were sent to a rank and that it has not taken, as far as this side knows.
    fn under_way(&self, to: usize) -> usize;

    /// Tells all ranks that can be reached. The first report that a rank hears is what it answers.
    fn abort(&mut self, report: &Report);

    /// Memory that all ranks can read, where they have some.
    fn board(&mut self) -> Option<&mut dyn Board> {
        None
    }
}

/// One window for each rank, written by it and read by all, round after round.
pub trait Board {
    /// Bytes of a window, the same on every rank and in every round, at least
    /// [`WINDOW_BYTES_MIN`].
    fn window_bytes(&self) -> usize;

    /// Has this rank's window written, and waits until all ranks have written theirs. Then
    /// [`Self::window`] shows them until the next round.
    ///
    /// # Errors
    /// [`Trouble`]: a rank did not come before `until`, or is lost.
    fn round(&mut self, write: &mut dyn FnMut(&mut [u8]), until: Instant) -> Result<(), Trouble>;

    /// A rank's window as of the last round.
    fn window(&self, rank: usize) -> &[u8];
}
