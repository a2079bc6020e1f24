//! A process's hold on a card, and memory as the driver gives it.

use std::fs;
use std::sync::{Arc, OnceLock};

use cudarc::driver::result;
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::api::At;
use crate::cuda::error::CudaError;
use crate::cuda::fault::fault_of;
use odeon_devices::fault::{FaultKind, GpuFault};
use odeon_devices::memory::{RawBlock, RawError, RawMemory};

/// Oldest driver whose functions are all there: CUDA 12.0.
const VERSION_LEAST: i32 = 12_000;
/// Oldest compute capability with the instructions that the kernels use: Ampere.
const MAJOR_LEAST: i32 = 8;

/// The card's primary context, held by this process.
#[derive(Debug)]
pub(crate) struct Context {
    device: u32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    arch: String,
    shared_bytes_max: u32,
    capacity: u64,
}

// SAFETY: the driver's calls may be made from any thread; a context is bound to the calling one
// before each.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Starts the driver, and says how many cards there are.
pub(crate) fn devices() -> Result<u32, CudaError> {
    static STARTED: OnceLock<Result<(), CudaError>> = OnceLock::new();
    STARTED.get_or_init(start).clone()?;
    let count = result::device::get_count().map_err(|error| refused(&error))?;
    Ok(u32::try_from(count).unwrap_or(0))
}

fn start() -> Result<(), CudaError> {
    // SAFETY: the driver's library needs nothing of this process to be loaded. Without it no other
    // function may be called: cudarc would panic.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the place outlives the call.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(|error| refused(&error))?;
    if version < VERSION_LEAST {
        return Err(CudaError::OldDriver { version });
    }
    result::init().map_err(|error| refused(&error))
}

fn refused(error: &result::DriverError) -> CudaError {
    let text = error.error_string().map(|text| text.to_string_lossy());
    CudaError::Driver {
        reason: match text {
            Ok(text) => format!("{text} ({:?})", error.0),
            Err(_) => format!("{:?}", error.0),
        },
    }
}

impl Context {
    pub(crate) fn open(device: u32) -> Result<Self, CudaError> {
        let devices = devices()?;
        if device >= devices {
            return Err(CudaError::NoDevice { device, devices });
        }
        let handle = result::device::get(device as i32).at(device)?;
        let attribute = |attribute| {
            // SAFETY: the handle is one that the driver gave.
            unsafe { result::device::get_attribute(handle, attribute) }.at(device)
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < MAJOR_LEAST {
            return Err(CudaError::OldDevice {
                device,
                major,
                minor,
            });
        }
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        // SAFETY: as above; the context is released once, by `drop`.
        let (capacity, context) = unsafe {
            let capacity = result::device::total_mem(handle).at(device)?;
            (capacity, result::primary_ctx::retain(handle).at(device)?)
        };
        Ok(Self {
            device,
            handle,
            context,
            arch: arch(major, minor),
            shared_bytes_max: shared.max(0).cast_unsigned(),
            capacity: capacity as u64,
        })
    }

    /// Makes it the calling thread's.
    pub(crate) fn bind(&self) -> Result<(), GpuFault> {
        // SAFETY: the context is held until `self` is dropped.
        unsafe { result::ctx::set_current(self.context) }.at(self.device)
    }

    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// For what kernels are compiled.
    pub(super) fn arch(&self) -> &str {
        &self.arch
    }

    pub(super) fn shared_bytes_max(&self) -> u32 {
        self.shared_bytes_max
    }

    pub(super) fn name(&self) -> Result<String, GpuFault> {
        result::device::get_name(self.handle).at(self.device)
    }

    /// Checks that the driver still takes work for it.
    pub(crate) fn health(&self) -> Result<(), GpuFault> {
        self.bind()?;
        result::mem_get_info().at(self.device).map(|_| ())
    }

    /// The identity of a device, as the management library writes it.
    pub(crate) fn uuid(device: u32) -> Result<String, GpuFault> {
        let handle = result::device::get(device as i32).at(device)?;
        let uuid = result::device::get_uuid(handle).at(device)?;
        let mut text = "GPU-".to_owned();
        for (i, byte) in uuid.bytes.iter().enumerate() {
            if [4, 6, 8, 10].contains(&i) {
                text.push('-');
            }
            text.push_str(&format!("{:02x}", *byte as u8));
        }
        Ok(text)
    }

    /// Lets this context read and write the memory of another card directly, where the machine
    /// can; says whether it can. Copies work without, through the host.
    pub(crate) fn reach(&self, peer: &Self) -> Result<bool, GpuFault> {
        if self.device == peer.device {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: the place outlives the call, and both handles are the driver's.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.handle, peer.handle) }
            .result()
            .at(self.device)?;
        if can == 0 {
            return Ok(false);
        }
        self.bind()?;
        // SAFETY: the peer's context is held as long as it is borrowed; access ends with either.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                Ok(true)
            }
            sys::CUresult::CUDA_ERROR_TOO_MANY_PEERS => Ok(false),
            error => Err(fault_of(self.device, error as u32)),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. A driver that is gone takes nothing; the end of the process
        // does.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

/// Hopper's own instructions need the letter; other architectures are named by their numbers.
fn arch(major: i32, minor: i32) -> String {
    let letter = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{letter}")
}

/// Memory of a card.
#[derive(Debug)]
pub(crate) struct CardMemory {
    context: Arc<Context>,
}

impl CardMemory {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
        }
    }
}

impl RawMemory for CardMemory {
    fn alloc(&mut self, bytes: u64) -> Result<RawBlock, RawError> {
        self.context.bind()?;
        // SAFETY: the context is bound; the address goes to `RawBlock`, which is given back once.
        match unsafe { result::malloc_sync(bytes as usize) } {
            Ok(address) => Ok(RawBlock { address, bytes }),
            Err(error) => {
                let fault = fault_of(self.context.device, error.0 as u32);
                if fault.kind == FaultKind::OutOfMemory {
                    let (free, _) = result::mem_get_info().at(self.context.device)?;
                    return Err(RawError::Full { free: free as u64 });
                }
                Err(fault.into())
            }
        }
    }

    fn free(&mut self, block: RawBlock) -> Result<(), GpuFault> {
        self.context.bind()?;
        // SAFETY: the block came from `alloc` and is given back by value. The driver waits for what
        // still uses it.
        unsafe { result::free_sync(block.address) }.at(self.context.device)
    }

    fn capacity(&self) -> u64 {
        self.context.capacity
    }
}

/// Pinned memory of the host.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    capacity: u64,
}

/// Reachable from every context.
const PORTABLE: u32 = 1;

impl PinnedMemory {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
            capacity: host_bytes(),
        }
    }
}

impl RawMemory for PinnedMemory {
    fn alloc(&mut self, bytes: u64) -> Result<RawBlock, RawError> {
        self.context.bind()?;
        // SAFETY: the context is bound; the address goes to `RawBlock`, which is given back once.
        match unsafe { result::malloc_host(bytes as usize, PORTABLE) } {
            Ok(address) => Ok(RawBlock {
                address: address as u64,
                bytes,
            }),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(RawError::Full { free: 0 })
            }
            Err(error) => Err(fault_of(self.context.device, error.0 as u32).into()),
        }
    }

    fn free(&mut self, block: RawBlock) -> Result<(), GpuFault> {
        self.context.bind()?;
        // SAFETY: the block came from `alloc` and is given back by value, after its copies ended.
        unsafe { result::free_host(block.address as *mut _) }.at(self.context.device)
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }
}

/// Memory of the host, in bytes; 64 GiB where the system does not say.
fn host_bytes() -> u64 {
    let kib = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    kib.map_or(64 << 30, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compiled_for_the_architecture_that_is_there() {
        assert_eq!(arch(9, 0), "sm_90a");
        assert_eq!(arch(8, 6), "sm_86");
        assert_eq!(arch(10, 0), "sm_100");
        assert!(host_bytes() > 0);
    }
}
