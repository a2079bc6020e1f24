//! The event graph: operations with seconds and memory, on lanes, and what each waits for.

mod error;
mod replay;

use std::collections::BTreeMap;
use std::fmt;

pub use error::GraphError;
pub use replay::{LaneUse, Replay};

/// The kind of a lane: operations of different streams of a rank run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LaneStream {
    /// Kernels that compute.
    Compute,
    /// Messages that leave the rank.
    Send,
    /// Messages that come to the rank.
    Receive,
    /// Collectives of many ranks, in which this one takes part.
    Collective,
}

/// The place where operations run one after the other: one stream of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The rank, whose memory operations of this lane take and give back.
    pub rank: usize,
    /// The stream of the rank.
    pub stream: LaneStream,
}

impl Lane {
    /// The lane on which a rank computes.
    #[must_use]
    pub const fn compute(rank: usize) -> Self {
        Self {
            rank,
            stream: LaneStream::Compute,
        }
    }

    /// The lane on which a rank sends.
    #[must_use]
    pub const fn send(rank: usize) -> Self {
        Self {
            rank,
            stream: LaneStream::Send,
        }
    }

    /// The lane on which a rank receives.
    #[must_use]
    pub const fn receive(rank: usize) -> Self {
        Self {
            rank,
            stream: LaneStream::Receive,
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = match self.stream {
            LaneStream::Compute => "compute",
            LaneStream::Send => "send",
            LaneStream::Receive => "receive",
            LaneStream::Collective => "collective",
        };
        write!(f, "rank {} {stream}", self.rank)
    }
}

/// One operation of an [`EventGraph`].
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOperation<N = String> {
    /// The name, which errors and drawings show. It need not be the only one of its kind.
    pub name: N,
    /// The lane that it occupies.
    pub lane: Lane,
    /// Its duration in seconds: finite, 0 or more.
    pub seconds: f64,
    /// Bytes of the rank's memory that it takes when it begins.
    pub takes: u64,
    /// Bytes that it gives back when it ends; it may have been another operation that took them.
    pub frees: u64,
}

impl<N> GraphOperation<N> {
    /// An operation that leaves the memory as it is.
    pub fn new(name: impl Into<N>, lane: Lane, seconds: f64) -> Self {
        Self {
            name: name.into(),
            lane,
            seconds,
            takes: 0,
            frees: 0,
        }
    }

    /// Takes so many bytes when it begins.
    #[must_use]
    pub fn taking(mut self, bytes: u64) -> Self {
        self.takes = bytes;
        self
    }

    /// Gives so many bytes back when it ends.
    #[must_use]
    pub fn freeing(mut self, bytes: u64) -> Self {
        self.frees = bytes;
        self
    }
}

/// Operations with what each waits for.
///
/// Those of one lane run in the order in which they were added. An operation is known by its number,
/// which counts from 0 in that order.
#[derive(Clone, Debug)]
pub struct EventGraph<N = String> {
    operations: Vec<GraphOperation<N>>,
    /// The operation before each on its lane.
    before: Vec<Option<u32>>,
    /// Pairs of an operation and one that must be over before it begins.
    arrows: Vec<(u32, u32)>,
    /// The last operation of each lane.
    lanes: BTreeMap<Lane, u32>,
}

impl<N> Default for EventGraph<N> {
    fn default() -> Self {
        Self {
            operations: vec![],
            before: vec![],
            arrows: vec![],
            lanes: BTreeMap::new(),
        }
    }
}

impl<N: fmt::Display> EventGraph<N> {
    /// A graph without operations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation at the end of its lane, and returns its number.
    ///
    /// # Errors
    /// [`GraphError::BadDuration`] and [`GraphError::TooManyOperations`]; nothing was added.
    pub fn add(&mut self, operation: GraphOperation<N>) -> Result<usize, GraphError> {
        if !operation.seconds.is_finite() || operation.seconds < 0.0 {
            return Err(GraphError::BadDuration {
                operation: operation.name.to_string(),
                lane: operation.lane,
                seconds: operation.seconds,
            });
        }
        let Ok(number) = u32::try_from(self.operations.len()) else {
            return Err(GraphError::TooManyOperations);
        };
        self.before.push(self.lanes.insert(operation.lane, number));
        self.operations.push(operation);
        Ok(self.operations.len() - 1)
    }

    /// Has an operation wait until another is over. That one may have been added later.
    ///
    /// # Errors
    /// [`GraphError::UnknownOperation`]; nothing was added.
    pub fn wait(&mut self, operation: usize, until_over: usize) -> Result<(), GraphError> {
        let arrow = (self.known(operation)?, self.known(until_over)?);
        self.arrows.push(arrow);
        Ok(())
    }

    /// The operations, by their numbers.
    #[must_use]
    pub fn operations(&self) -> &[GraphOperation<N>] {
        &self.operations
    }

    /// The lanes, in order.
    pub fn lanes(&self) -> impl Iterator<Item = Lane> + '_ {
        self.lanes.keys().copied()
    }

    /// Pairs of an operation and one that must be over before it begins, without those that follow from
    /// lanes.
    pub fn arrows(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let arrows = self.arrows.iter();
        arrows.map(|(operation, over)| (*operation as usize, *over as usize))
    }

    /// Runs each operation as soon as its lane is free and all that it waits for is over.
    ///
    /// Takes time in proportion to operations and arrows, and to `V log V` where memory changes.
    ///
    /// # Errors
    /// [`GraphError::Circle`], [`GraphError::TooLong`], [`GraphError::MemoryBelowZero`] and
    /// [`GraphError::MemoryOverflow`].
    pub fn replay(&self) -> Result<Replay, GraphError> {
        replay::replay(self)
    }

    /// The latest begin of each operation, by its number, with which the makespan stays as it is: all of them together.
    ///
    /// # Errors
    /// Those of [`replay`](Self::replay).
    pub fn latest_begins_s(&self) -> Result<Vec<f64>, GraphError> {
        replay::latest_begins_s(self)
    }

    fn known(&self, operation: usize) -> Result<u32, GraphError> {
        let known = u32::try_from(operation).ok();
        known
            .filter(|_| operation < self.operations.len())
            .ok_or(GraphError::UnknownOperation {
                operation,
                operations: self.operations.len(),
            })
    }
}
