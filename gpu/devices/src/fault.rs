//! Faults of a device, and the remedy for each.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A device, or a process's hold on it, is broken. The operation may have run in part; nothing
/// that it wrote may be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error, Serialize, Deserialize)]
#[error("device {device}: {kind}")]
pub struct GpuFault {
    /// Index of the device.
    pub device: u32,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// A kind of fault of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// The driver reported a critical event.
    #[error("the driver reported Xid {code}")]
    Xid {
        /// NVIDIA's number of the event.
        code: u64,
    },
    /// An earlier operation broke the process's context: each later one fails.
    #[error(
        "the context is broken by an earlier error, and stays so until the process is replaced"
    )]
    Sticky,
    /// Memory lost data that its check bits could not restore.
    #[error("device memory lost data (uncorrectable ECC error)")]
    Ecc,
    /// An operation is far beyond the time it should take.
    #[error("no progress after {waited:?}, where {predicted:?} was predicted")]
    Hang {
        /// The time that it has been under way.
        waited: Duration,
        /// The time that it should have taken.
        predicted: Duration,
    },
    /// The device no longer answers on the bus.
    #[error("the device has fallen off the bus")]
    Lost,
    /// The driver itself ran out of device memory, outside of any pool.
    #[error("the driver is out of device memory")]
    OutOfMemory,
}

/// The action to take after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Remedy {
    /// End the process and start another; the device itself is sound.
    ReplaceProcess,
    /// Take the device out of use, and its processes elsewhere. It needs a reset or a person.
    QuarantineDevice,
    /// Wait until memory is free, or ask for less.
    FreeMemory,
}

impl GpuFault {
    /// A fault of this device.
    #[must_use]
    pub fn new(device: u32, kind: FaultKind) -> Self {
        Self { device, kind }
    }

    /// The action to take after this fault.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self.kind {
            FaultKind::Xid { code } => xid_remedy(code),
            FaultKind::Sticky | FaultKind::Hang { .. } => Remedy::ReplaceProcess,
            FaultKind::Ecc | FaultKind::Lost => Remedy::QuarantineDevice,
            FaultKind::OutOfMemory => Remedy::FreeMemory,
        }
    }
}

/// Xid of a device that fell off the bus.
pub const XID_LOST: u64 = 79;

/// The action to take after an Xid, by NVIDIA's catalogue of them ("XID Errors", release 570).
///
/// Events that a program causes, or that the hardware kept to one program, cost that process only.
/// All others, unknown ones too, take the device out of use: to go on upon a bad device costs more
/// than to let a good one rest.
///
/// ```
/// use odeon_devices::fault::{Remedy, xid_remedy};
///
/// assert_eq!(xid_remedy(31), Remedy::ReplaceProcess); // a wild pointer
/// assert_eq!(xid_remedy(95), Remedy::QuarantineDevice); // memory lost data of everybody
/// ```
#[must_use]
pub fn xid_remedy(code: u64) -> Remedy {
    match code {
        // Exception in a kernel, page fault, bad commands, channel stopped or cleaned up after
        // one of these, exception of the graphics class, ECC error kept to one program.
        13 | 31 | 32 | 43 | 45 | 69 | 94 => Remedy::ReplaceProcess,
        _ => Remedy::QuarantineDevice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_which_device_what_and_what_to_do() {
        let lost = GpuFault::new(3, FaultKind::Lost);
        assert_eq!(
            lost.to_string(),
            "device 3: the device has fallen off the bus"
        );
        assert_eq!(lost.remedy(), Remedy::QuarantineDevice);
        let sticky = GpuFault::new(0, FaultKind::Sticky);
        assert_eq!(sticky.remedy(), Remedy::ReplaceProcess);
        for code in [48, 74, XID_LOST, 119, 4_000] {
            assert_eq!(xid_remedy(code), Remedy::QuarantineDevice, "{code}");
        }
    }
}
