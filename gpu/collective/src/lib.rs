//! Collectives: what the ranks of a gang do together.
//!
//! ```text
//!  Collective (trait) ── Communicator ──┬─ schedule ── cost       who sends what to whom: pure
//!                                       ├─ Transport              bytes to and from each rank
//!                                       │    queue, stream        in a process, over byte streams
//!                                       │    shared memory        outside of this crate
//!                                       └─ Board                  windows that all ranks can read
//!             Nccl, outside of this crate                          between cards, by NCCL
//! ```
//!
//! A [`Communicator`] belongs to one generation of a gang: one life of all its ranks. Every message
//! carries the generation and what its sender has called, so a rank of the past is refused, and
//! ranks that call different things get an error that says who called what. A rank that is missing
//! is named within the deadline, and everybody hears of the first fault. After a fault a
//! communicator stays broken: the ranks no longer agree on where they are, and a new generation
//! begins with a new communicator.
//!
//! The result of a reduction is the same to the bit on every rank, and depends on the inputs, the
//! algorithm and the number of ranks only, not on who came first.
//!
//! ```
//! use odeon_collective::{Collective, Communicator, Reduce, Topology, queue};
//!
//! let ranks = queue::gang(&Topology::one_node(2), 1);
//! let threads: Vec<_> = ranks
//!     .into_iter()
//!     .enumerate()
//!     .map(|(rank, transport)| {
//!         std::thread::spawn(move || {
//!             let mut comm = Communicator::new(transport);
//!             let mut gradient = [rank as f32, 2.0];
//!             comm.all_reduce(&mut gradient, Reduce::Mean)?;
//!             Ok::<_, odeon_collective::CollectiveError>(gradient)
//!         })
//!     })
//!     .collect();
//! for thread in threads {
//!     assert_eq!(thread.join().unwrap()?, [0.5, 2.0]);
//! }
//! # Ok::<(), odeon_collective::CollectiveError>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `lib` | the trait; a back-end brings its own kind of buffer |
//! | `communicator`, `run`, `board` | a rank's end: numbers of calls, the first fault; a schedule over messages; rounds over windows |
//! | `schedule`, `cost` | ring, tree, direct and hierarchical as steps for each rank; the choice among them. Pure |
//! | `transport`, `queue`, `stream` | the traits that move bytes; in a process, over byte streams. Shared memory is `gang` in `runtime/shm/src` |
//! | `element`, `arguments`, `error` | reductions; refusals before anything moves; calls, faults and how they travel |
//! | `flow` | how far a call has got, told to whoever records it |
//! | `conformance` | the suites of every transport and back-end |

mod arguments;
mod board;
mod communicator;
pub mod conformance;
mod cost;
mod element;
mod error;
mod flow;
pub mod queue;
mod run;
pub mod schedule;
pub mod stream;
mod transport;

use std::time::Duration;

pub use communicator::{Communicator, DEADLINE};
pub use cost::Costs;
pub use element::{Element, ElementType, Reduce};
pub use error::{
    CALL_BYTES, CollectiveCall, CollectiveError, Failed, Fault, Operation, REPORT_BYTES_MAX, Report,
};
pub use flow::{
    CallState, FlowLabel, FlowMember, FlowPlace, FlowProgress, FlowReading, FlowRecord,
    FlowRecorder, FlowStage, LastCall,
};
pub use half::bf16;
pub use schedule::{Algorithm, Topology};
pub use transport::{Board, Membership, Transport, Trouble, WINDOW_BYTES_MIN};

/// The collective operations of a gang of ranks. Every rank calls the same operations in the same
/// order; a call returns when this rank's buffers hold the result, or in an error within the
/// deadline.
///
/// A back-end that works on a device gives its own kind of [`Self::Buffer`], and may return when the
/// operation is queued behind what was queued before, as long as a read of the result waits for it
/// and a fault is told by that read or by the next call.
pub trait Collective {
    /// Elements where the back-end works on them: a slice in main memory, or a part of a device's.
    type Buffer<T: Element>: ?Sized;

    /// The membership of this rank: its number, and its gang.
    fn membership(&self) -> &Membership;

    /// From now on a call fails when a rank is missing for this long. It counts from the call on, so
    /// it must cover how much later than this rank the last one comes.
    fn set_deadline(&mut self, deadline: Duration);

    /// Reduces `data` of all ranks, in place: all get the result.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn all_reduce<T: Element>(
        &mut self,
        data: &mut Self::Buffer<T>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError>;

    /// Gives the root's `data` to all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn broadcast<T: Element>(
        &mut self,
        data: &mut Self::Buffer<T>,
        root: usize,
    ) -> Result<(), CollectiveError>;

    /// Puts the inputs of all ranks, equally long, into `output` in rank order.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn all_gather<T: Element>(
        &mut self,
        input: &Self::Buffer<T>,
        output: &mut Self::Buffer<T>,
    ) -> Result<(), CollectiveError>;

    /// [`Self::all_gather`] of inputs that differ in length: that of rank `r` has `counts[r]`
    /// elements.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn all_gather_v<T: Element>(
        &mut self,
        input: &Self::Buffer<T>,
        counts: &[usize],
        output: &mut Self::Buffer<T>,
    ) -> Result<(), CollectiveError>;

    /// Reduces `input`, which holds an equal part for each rank, and gives each rank its part.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn reduce_scatter<T: Element>(
        &mut self,
        input: &Self::Buffer<T>,
        output: &mut Self::Buffer<T>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError>;

    /// [`Self::reduce_scatter`] of parts that differ in length: that of rank `r` has `counts[r]`
    /// elements.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn reduce_scatter_v<T: Element>(
        &mut self,
        input: &Self::Buffer<T>,
        counts: &[usize],
        output: &mut Self::Buffer<T>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError>;

    /// Gives part `r` of `input` to rank `r`, and puts what rank `r` has for this one into part `r`
    /// of `output`. All parts are equally long.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn all_to_all<T: Element>(
        &mut self,
        input: &Self::Buffer<T>,
        output: &mut Self::Buffer<T>,
    ) -> Result<(), CollectiveError>;

    /// [`Self::all_to_all`] of parts that differ in length: `to[r]` elements go to rank `r`, and
    /// `from[r]` come from it.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn all_to_all_v<T: Element>(
        &mut self,
        input: &Self::Buffer<T>,
        to: &[usize],
        output: &mut Self::Buffer<T>,
        from: &[usize],
    ) -> Result<(), CollectiveError>;

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Gives `data` to rank `to`, which calls [`Self::receive`]. Other ranks have no part in it. It
    /// may return before the other has called.
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn send<T: Element>(
        &mut self,
        data: &Self::Buffer<T>,
        to: usize,
    ) -> Result<(), CollectiveError>;

    /// Takes what rank `from` gives by [`Self::send`].
    ///
    /// # Errors
    /// [`CollectiveError`].
    fn receive<T: Element>(
        &mut self,
        data: &mut Self::Buffer<T>,
        from: usize,
    ) -> Result<(), CollectiveError>;
}

#[cfg(test)]
mod tests;
