//! The interface between the runtime and devices: contexts, memory under budgets, copies, health.
//!
//! Nothing here waits. A copy is begun by [`Driver::copy`] and asked after by [`Driver::poll`];
//! whether it takes too long is decided by [`Operation::overdue`] from times that the caller gives,
//! so the same decision holds for a real device and for one under virtual time.
//!
//! Memory belongs to a context, a context to a process. A process that ends leaves its memory held
//! for a while: a device is free for the next one when [`Driver::held`] says zero, not before.

pub mod conformance;

use std::fmt::Debug;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fault::{FaultKind, GpuFault};
use crate::inventory::Reading;
use crate::memory::{MemoryError, OwnerStats};

/// The devices of one machine.
///
/// Implementations are checked by [`conformance`].
pub trait Driver: Debug + Send {
    /// Number of devices; they are numbered from 0.
    fn devices(&self) -> u32;

    /// Opens a device for a process.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoDevice`], [`DriverError::ProcessGone`] or the device's fault.
    fn open(&mut self, device: u32, process: u32) -> Result<ContextId, DriverError>;

    /// Ends a context. Its memory goes back to the device, its operations are forgotten.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoContext`].
    fn close(&mut self, context: ContextId) -> Result<(), DriverError>;

    /// Lets an owner hold up to this many bytes in a context, or changes what it may hold.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoContext`] or the pool's refusal.
    fn reserve(
        &mut self,
        context: ContextId,
        side: Side,
        owner: &str,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Memory for an owner. What it holds before something is copied there is undefined.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoContext`], the pool's refusal, or the device's fault.
    fn alloc(
        &mut self,
        context: ContextId,
        side: Side,
        owner: &str,
        bytes: u64,
    ) -> Result<BufferId, DriverError>;

    /// Takes memory back.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoBuffer`], or [`DriverError::Busy`] while a copy from or to it is under way.
    fn free(&mut self, buffer: BufferId) -> Result<(), DriverError>;

    /// State of an owner, if it has reserved memory there.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoContext`].
    fn owner(
        &self,
        context: ContextId,
        side: Side,
        owner: &str,
    ) -> Result<Option<OwnerStats>, DriverError>;

    /// Writes to host memory.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoBuffer`], [`DriverError::NotHost`], [`DriverError::OutOfRange`] or
    /// [`DriverError::Busy`]; nothing is written then.
    fn write(&mut self, to: BufferSpan, bytes: &[u8]) -> Result<(), DriverError>;

    /// Reads from host memory.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn read(&mut self, from: BufferSpan, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Begins to copy. Copies that one context begins happen one after the other.
    ///
    /// # Errors
    ///
    /// [`DriverError`]; nothing was begun then.
    fn copy(
        &mut self,
        from: BufferSpan,
        to: BufferSpan,
        bytes: u64,
    ) -> Result<Operation, DriverError>;

    /// The progress of an operation. Asking again is allowed.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoContext`] when its context was closed, or the fault that ended it.
    fn poll(&mut self, operation: &Operation) -> Result<Progress, DriverError>;

    /// Checks that new work can be given to a device.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoDevice`] or the device's fault.
    fn health(&mut self, device: u32) -> Result<(), DriverError>;

    /// Memory of a device that a process holds, in bytes. The process may have ended.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoDevice`].
    fn held(&mut self, device: u32, process: u32) -> Result<Reading<u64>, DriverError>;
}

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// On the device.
    Device,
    /// On the host, pinned, so that a device can copy from and to it.
    Host,
}

/// A process's hold on a device, by the number that its driver gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub u64);

/// Memory in a context, by the number that its driver gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u64);

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSpan {
    /// The memory.
    pub buffer: BufferId,
    /// Where in it, in bytes.
    pub offset: u64,
}

impl BufferSpan {
    /// Checks that so many bytes from here on lie in a memory of `length` bytes.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfRange`].
    pub fn check(self, bytes: u64, length: u64) -> Result<(), DriverError> {
        match self.offset.checked_add(bytes) {
            Some(end) if end <= length => Ok(()),
            _ => Err(DriverError::OutOfRange {
                offset: self.offset,
                bytes,
                length,
            }),
        }
    }
}

impl BufferId {
    /// A place in this memory.
    #[must_use]
    pub fn at(self, offset: u64) -> BufferSpan {
        BufferSpan {
            buffer: self,
            offset,
        }
    }
}

/// Something that was begun on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "whether it ended, and how, is learnt by polling"]
pub struct Operation {
    /// The number that its driver gave it.
    pub id: u64,
    /// The context that it belongs to.
    pub context: ContextId,
    /// Index of the device that does it.
    pub device: u32,
    /// The time that it should take from now, with what is before it, where that can be said.
    pub predicted: Reading<Duration>,
}

/// The longest time that an operation may take before it counts as hanging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// So many times the prediction,
    pub factor: u32,
    /// but at least this long, which also holds where nothing is predicted.
    pub least: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            factor: 10,
            least: Duration::from_secs(10),
        }
    }
}

impl Operation {
    /// The fault of an operation that has been under way for too long.
    #[must_use]
    pub fn overdue(&self, waited: Duration, patience: Patience) -> Option<GpuFault> {
        let predicted = self.predicted.value().copied().unwrap_or_default();
        let allowed = predicted
            .saturating_mul(patience.factor)
            .max(patience.least);
        (waited > allowed)
            .then(|| GpuFault::new(self.device, FaultKind::Hang { waited, predicted }))
    }
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Under way, or waiting for what is before it.
    Running,
    /// Its result is there.
    Done,
}

/// A driver refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no such device.
    #[error("there is no device {device}: there are {devices}")]
    NoDevice {
        /// The index.
        device: u32,
        /// Number of devices that there are.
        devices: u32,
    },
    /// The process was killed, or is not one that this driver can act for.
    #[error("process {process} is gone or is not this one: open the device from a live process")]
    ProcessGone {
        /// Its number.
        process: u32,
    },
    /// The context was closed, or its process killed.
    #[error("the context is closed")]
    NoContext,
    /// The memory was freed, or its context closed.
    #[error("the memory is freed, or its context is closed")]
    NoBuffer,
    /// A copy from or to the memory is under way. Poll it until it is done.
    #[error("a copy from or to the memory is under way: poll it first")]
    Busy,
    /// The memory is on a device. Copy it to host memory.
    #[error("the memory is on the device: copy it to host memory")]
    NotHost,
    /// The place does not lie in the memory.
    #[error("{bytes} bytes from {offset} do not lie in memory of {length}")]
    OutOfRange {
        /// Where it begins, in bytes.
        offset: u64,
        /// Its length, in bytes.
        bytes: u64,
        /// Length of the memory, in bytes.
        length: u64,
    },
    /// The two places belong to different processes.
    #[error("the memory belongs to two processes: copy through memory that they share")]
    OtherProcess,
    /// The pool refused.
    #[error(transparent)]
    Memory(MemoryError),
    /// The device failed.
    #[error(transparent)]
    Fault(#[from] GpuFault),
}

impl From<MemoryError> for DriverError {
    /// A fault is one, wherever it was met.
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Fault(fault) => Self::Fault(fault),
            other => Self::Memory(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_hangs_when_it_is_beyond_its_prediction_and_the_least_time() {
        let operation = Operation {
            id: 0,
            context: ContextId(0),
            device: 2,
            predicted: Reading::Measured(Duration::from_secs(3)),
        };
        let patience = Patience::default();
        assert_eq!(operation.overdue(Duration::from_secs(30), patience), None);
        let waited = Duration::from_secs(31);
        let fault = operation.overdue(waited, patience).unwrap();
        let predicted = Duration::from_secs(3);
        assert_eq!(
            fault,
            GpuFault::new(2, FaultKind::Hang { waited, predicted })
        );
        let unknown = Operation {
            predicted: Reading::unmeasured("a kernel of the user"),
            ..operation
        };
        assert_eq!(unknown.overdue(Duration::from_secs(10), patience), None);
        assert!(unknown.overdue(Duration::from_secs(11), patience).is_some());
    }
}
