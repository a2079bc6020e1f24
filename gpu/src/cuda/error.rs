//! Why CUDA cannot be used.

use thiserror::Error;

use odeon_devices::fault::GpuFault;
use odeon_devices::memory::MemoryError;

/// A card, or what it takes to use one, could not be opened. Nothing is held then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not on this machine. Install NVIDIA's driver, or use the processor.
    #[error(
        "this machine has no CUDA driver (libcuda.so.1 is not there): install NVIDIA's driver or \
         use device = \"cpu\""
    )]
    NoDriver,
    /// The driver is too old. Install a newer one.
    #[error(
        "the CUDA driver speaks version {}.{} and at least 12.0 is needed: install a newer driver",
        version / 1000,
        version % 1000 / 10
    )]
    OldDriver {
        /// As the driver says it, 1000 times the major and 10 times the minor number.
        version: i32,
    },
    /// The driver does not start, most often because it sees no device.
    #[error("the CUDA driver does not start: {reason}")]
    Driver {
        /// The driver's words.
        reason: String,
    },
    /// There is no such device.
    #[error("there is no CUDA device {device}: there are {devices}")]
    NoDevice {
        /// The index.
        device: u32,
        /// Number of devices that there are.
        devices: u32,
    },
    /// The device is older than the kernels.
    #[error(
        "device {device} has compute capability {major}.{minor}, and the kernels need 8.0 or more"
    )]
    OldDevice {
        /// The index.
        device: u32,
        /// Of its compute capability.
        major: i32,
        /// Of its compute capability.
        minor: i32,
    },
    /// A library of CUDA is not on this machine. Install the CUDA toolkit, or the library's wheel.
    #[error("{name} is not on this machine ({tried}): {advice}")]
    NoLibrary {
        /// Its name.
        name: &'static str,
        /// Where it was looked for.
        tried: String,
        /// Advice to install it.
        advice: &'static str,
    },
    /// A library of CUDA is too old. Install a newer one.
    #[error("{name} here is version {found}, and at least {least} is needed: {advice}")]
    OldLibrary {
        /// Its name.
        name: &'static str,
        /// As it says itself.
        found: String,
        /// The oldest that will do.
        least: &'static str,
        /// Advice to install a newer one.
        advice: &'static str,
    },
    /// The compiler refuses a kernel, which is a mistake of this crate or a compiler that is too
    /// old.
    #[error("{name}.cu does not compile for {arch}:\n{log}")]
    Compile {
        /// The source.
        name: String,
        /// For what it was compiled.
        arch: String,
        /// The compiler's words.
        log: String,
    },
    /// The device failed.
    #[error(transparent)]
    Fault(#[from] GpuFault),
    /// The device has not the memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
