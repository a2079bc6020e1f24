//! Calls of the driver, each with the argument why it is sound. Handles are owned, and let go when
//! they are dropped; addresses are numbers that only the card follows.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::context::Context;
use crate::cuda::fault::fault_of;
use odeon_devices::fault::GpuFault;

/// Turns the driver's answer into a fault of a device.
pub(super) trait At<T> {
    fn at(self, device: u32) -> Result<T, GpuFault>;
}

impl<T> At<T> for Result<T, DriverError> {
    fn at(self, device: u32) -> Result<T, GpuFault> {
        self.map_err(|error| fault_of(device, error.0 as u32))
    }
}

/// Work in order.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: sys::CUstream,
}

// SAFETY: the driver's calls may be made from any thread, and streams belong to a context, not to
// a thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, GpuFault> {
        context.bind()?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self {
            context: Arc::clone(context),
            handle: handle.at(context.device())?,
        })
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    fn device(&self) -> u32 {
        self.context.device()
    }

    pub(crate) fn synchronize(&self) -> Result<(), GpuFault> {
        self.context.bind()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.handle) }.at(self.device())
    }

    /// Copies between any two places that the card can reach: its own memory, pinned memory, that
    /// of a peer.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), GpuFault> {
        self.context.bind()?;
        // SAFETY: addresses are followed by the card alone, which answers a wild one with an error
        // of the context. Pinned memory is kept by its owner until an event after this has passed.
        unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, self.handle) }
            .result()
            .at(self.device())
    }

    pub(super) fn zero(&self, to: u64, bytes: u64) -> Result<(), GpuFault> {
        // SAFETY: as in `copy`.
        unsafe { result::memset_d8_async(to, 0, bytes as usize, self.handle) }.at(self.device())
    }

    /// Waits, on the card, until an event has passed.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), GpuFault> {
        self.context.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live as long as they are borrowed; the driver keeps what it waits for.
        unsafe { result::stream::wait_event(self.handle, event.handle, flags) }.at(self.device())
    }

    /// Records what `work` begins instead of running it.
    pub(super) fn capture(
        &self,
        work: impl FnOnce() -> Result<(), GpuFault>,
    ) -> Result<Graph, GpuFault> {
        let device = self.device();
        self.context.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`, and is the caller's alone meanwhile.
        unsafe { result::stream::begin_capture(self.handle, mode) }.at(device)?;
        let done = work();
        // SAFETY: as above; the capture ends on every path.
        let graph = unsafe { result::stream::end_capture(self.handle) }.at(device);
        done?;
        let graph = graph?;
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph was made above, and is not used after it is destroyed.
        let executable = unsafe {
            let executable = result::graph::instantiate(graph, flags).at(device);
            result::graph::destroy(graph).at(device).and(executable)
        };
        Ok(Graph {
            context: Arc::clone(&self.context),
            handle: executable?,
        })
    }

    pub(super) fn replay(&self, graph: &Graph) -> Result<(), GpuFault> {
        self.context.bind()?;
        // SAFETY: both live as long as they are borrowed.
        unsafe { result::graph::launch(graph.handle, self.handle) }.at(self.device())
    }

    /// # Safety
    ///
    /// The function is one of a module that is loaded, and `params` point to its arguments.
    pub(super) unsafe fn launch(
        &self,
        function: sys::CUfunction,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        params: &mut [*mut c_void],
    ) -> Result<(), GpuFault> {
        let grid = (grid[0], grid[1], grid[2]);
        // SAFETY: as the caller promises; arguments are copied before the call returns.
        unsafe { result::launch_kernel(function, grid, (block, 1, 1), shared, self.handle, params) }
            .at(self.device())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A broken context takes nothing back; the process's end does.
        if self.context.bind().is_ok() {
            // SAFETY: nobody uses it after this, and what it still does goes on by itself.
            unsafe {
                let _ = result::stream::synchronize(self.handle);
                let _ = result::stream::destroy(self.handle);
            }
        }
    }
}

/// A place in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, GpuFault> {
        context.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        Ok(Self {
            context: Arc::clone(context),
            handle: result::event::create(flags).at(context.device())?,
        })
    }

    /// Puts it behind what the stream has begun. One that was never put anywhere has passed.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), GpuFault> {
        self.context.bind()?;
        // SAFETY: both live as long as they are borrowed.
        unsafe { result::event::record(self.handle, stream.handle) }.at(self.context.device())
    }

    pub(crate) fn has_passed(&self) -> Result<bool, GpuFault> {
        self.context.bind()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { result::event::query(self.handle) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(fault_of(self.context.device(), error.0 as u32)),
        }
    }

    pub(crate) fn synchronize(&self) -> Result<(), GpuFault> {
        self.context.bind()?;
        // SAFETY: the event lives as long as `self`.
        unsafe { result::event::synchronize(self.handle) }.at(self.context.device())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: nobody uses it after this.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}

/// Recorded work.
#[derive(Debug)]
pub(super) struct Graph {
    context: Arc<Context>,
    handle: sys::CUgraphExec,
}

// SAFETY: as for `Stream`; it is launched by whoever holds the queue.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: nobody launches it after this; the driver lets launched work end.
            let _ = unsafe { result::graph::exec_destroy(self.handle) };
        }
    }
}

/// The driver's name for the allocation that holds an address, and how far from its beginning.
pub(super) fn ipc_handle(
    context: &Context,
    address: u64,
) -> Result<([[u8; 32]; 2], u64), GpuFault> {
    context.bind()?;
    let (mut base, mut size) = (0, 0);
    // SAFETY: both places outlive the call; an address that the driver did not give is refused.
    unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address) }
        .result()
        .at(context.device())?;
    let mut handle = MaybeUninit::<sys::CUipcMemHandle>::zeroed();
    // SAFETY: the place outlives the call; an address that the driver did not give is refused.
    let handle = unsafe {
        sys::cuIpcGetMemHandle(handle.as_mut_ptr(), base)
            .result()
            .at(context.device())?;
        handle.assume_init()
    };
    let mut bytes = [[0; 32]; 2];
    for (i, byte) in handle.reserved.iter().enumerate() {
        bytes[i / 32][i % 32] = byte.cast_unsigned();
    }
    Ok((bytes, address - base))
}

/// Memory of another process, as long as this lives.
#[derive(Debug)]
pub(crate) struct IpcMapping {
    context: Arc<Context>,
    base: u64,
}

impl IpcMapping {
    pub(crate) fn open(context: &Arc<Context>, bytes: [[u8; 32]; 2]) -> Result<Self, GpuFault> {
        context.bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        for (to, from) in handle.reserved.iter_mut().zip(bytes.as_flattened()) {
            *to = from.cast_signed();
        }
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut base = 0;
        // SAFETY: the place outlives the call; a handle that names nothing is refused.
        unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut base, handle, flags) }
            .result()
            .at(context.device())?;
        Ok(Self {
            context: Arc::clone(context),
            base,
        })
    }

    /// Where it begins in this process.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }
}

impl Drop for IpcMapping {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: it was opened once and is closed once; copies from it have ended or belong to
            // a context that is gone.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.base).result() };
        }
    }
}

/// Machine code on the card.
#[derive(Debug)]
pub(super) struct Module {
    context: Arc<Context>,
    handle: sys::CUmodule,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Module {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn load(context: &Arc<Context>, code: &[u8]) -> Result<Self, GpuFault> {
        context.bind()?;
        // SAFETY: the code is what the compiler made, checked by its sum if it was kept; the driver
        // reads its length from its head.
        let handle = unsafe { result::module::load_data(code.as_ptr().cast()) };
        Ok(Self {
            context: Arc::clone(context),
            handle: handle.at(context.device())?,
        })
    }

    pub(super) fn function(&self, name: &str) -> Result<Function, GpuFault> {
        let mut handle = ptr::null_mut();
        let name: Vec<u8> = name.bytes().chain([0]).collect();
        // SAFETY: the name ends with zero and outlives the call, as does the place.
        unsafe { sys::cuModuleGetFunction(&raw mut handle, self.handle, name.as_ptr().cast()) }
            .result()
            .at(self.context.device())?;
        Ok(Function(handle))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: streams were synchronised when they were dropped, and functions of the module
            // are dropped with it.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}

/// A kernel of a module, used no longer than the module lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(pub(super) sys::CUfunction);

// SAFETY: as for `Stream`.
unsafe impl Send for Function {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Function {}

impl Function {
    /// Lets blocks have more shared memory than every card gives.
    pub(super) fn allow_shared(self, device: u32, bytes: u32) -> Result<(), GpuFault> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module is loaded.
        unsafe { sys::cuFuncSetAttribute(self.0, attribute, bytes as i32) }
            .result()
            .at(device)
    }
}
