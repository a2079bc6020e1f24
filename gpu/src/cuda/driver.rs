//! The driver of real devices, for the runtime.
//!
//! Each open context has a stream and two caching pools of its own over the device's primary
//! context: device memory, and pinned memory of the host. Copies go over the stream of the device
//! that the bytes leave, or to which they come from the host, and wait on the card for what the
//! other one has begun, so a later copy sees an earlier one.

use std::collections::BTreeMap;
use std::fmt;
use std::process;
use std::sync::Arc;

use crate::cuda::error::CudaError;
use crate::cuda::gpu::{
    CardMemory, Context, Event, IpcHandle, IpcMapping, PinnedMemory, Stream, devices,
};
use odeon_devices::driver::{
    BufferId, BufferSpan, ContextId, Driver, DriverError, Operation, Progress, Side,
};
use odeon_devices::fault::{FaultKind, GpuFault};
use odeon_devices::inventory::{Nvml, Probe, Reading};
use odeon_devices::memory::{Block, OwnerStats, Pool};

/// The CUDA devices of this machine, for this process.
///
/// ```
/// use odeon_gpu::cuda::CudaDriver;
/// use odeon_devices::driver::Driver;
///
/// match CudaDriver::new() {
///     Ok(driver) => assert!(driver.devices() > 0),
///     Err(error) => assert!(!error.to_string().is_empty()), // what is missing
/// }
/// ```
pub struct CudaDriver {
    devices: u32,
    contexts: BTreeMap<ContextId, Held>,
    buffers: BTreeMap<BufferId, Buffer>,
    next: u64,
    /// Counts the memory of other processes; opened when first asked.
    probe: Option<Nvml>,
}

/// An open context. What uses memory stands before it, and is let go first.
struct Held {
    stream: Stream,
    /// Of copies under way, by number.
    events: BTreeMap<u64, Event>,
    device: Pool<CardMemory>,
    host: Pool<PinnedMemory>,
    context: Arc<Context>,
}

impl Held {
    /// Forgets copies that have ended; says whether this one has.
    fn has_ended(&mut self, operation: u64) -> Result<bool, GpuFault> {
        let Some(event) = self.events.get(&operation) else {
            return Ok(true);
        };
        if !event.has_passed()? {
            return Ok(false);
        }
        // They happen in order.
        self.events = self.events.split_off(&(operation + 1));
        Ok(true)
    }
}

struct Buffer {
    context: ContextId,
    side: Side,
    /// As asked for.
    bytes: u64,
    memory: Place,
    /// The last copy from or to it, and whose stream does it.
    last: Option<(ContextId, u64)>,
}

/// Where a buffer's memory comes from.
enum Place {
    Own(Block),
    /// Of another process, from this address on.
    Mapped {
        _mapping: IpcMapping,
        address: u64,
    },
}

impl Buffer {
    fn address(&self) -> u64 {
        match &self.memory {
            Place::Own(block) => block.address(),
            Place::Mapped { address, .. } => *address,
        }
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("devices", &self.devices)
            .field("contexts", &self.contexts.len())
            .field("buffers", &self.buffers.len())
            .finish()
    }
}

impl CudaDriver {
    /// Starts the driver.
    ///
    /// # Errors
    ///
    /// [`CudaError`]: there is no driver, or it does not start.
    pub fn new() -> Result<Self, CudaError> {
        Ok(Self {
            devices: devices()?,
            contexts: BTreeMap::new(),
            buffers: BTreeMap::new(),
            next: 0,
            probe: None,
        })
    }

    /// A name for a buffer's device memory by which another process of this machine can open it.
    /// The memory must not be freed while one has it open.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoBuffer`], or the device's fault: pinned memory has no such name.
    pub fn export(&self, buffer: BufferId) -> Result<IpcHandle, DriverError> {
        let held = self.buffers.get(&buffer).ok_or(DriverError::NoBuffer)?;
        let context = &self.opened(held.context)?.context;
        Ok(IpcHandle::of(context, held.address(), held.bytes)?)
    }

    /// Opens the memory of another process. It counts to no owner here, and is closed by
    /// [`free`](Driver::free).
    ///
    /// # Errors
    ///
    /// [`DriverError::NoContext`], or the device's fault when the name means nothing.
    pub fn import(
        &mut self,
        context: ContextId,
        handle: IpcHandle,
    ) -> Result<BufferId, DriverError> {
        let mapping = IpcMapping::open(&self.opened(context)?.context, handle.bytes)?;
        let address = mapping.base() + handle.offset;
        let memory = Place::Mapped {
            _mapping: mapping,
            address,
        };
        Ok(self.keep(context, Side::Device, handle.bytes_len, memory))
    }

    fn opened(&self, context: ContextId) -> Result<&Held, DriverError> {
        self.contexts.get(&context).ok_or(DriverError::NoContext)
    }

    fn opened_mut(&mut self, context: ContextId) -> Result<&mut Held, DriverError> {
        self.contexts
            .get_mut(&context)
            .ok_or(DriverError::NoContext)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn keep(&mut self, context: ContextId, side: Side, bytes: u64, memory: Place) -> BufferId {
        let id = BufferId(self.number());
        let buffer = Buffer {
            context,
            side,
            bytes,
            memory,
            last: None,
        };
        self.buffers.insert(id, buffer);
        id
    }

    fn known(&self, device: u32) -> Result<(), DriverError> {
        if device < self.devices {
            return Ok(());
        }
        Err(DriverError::NoDevice {
            device,
            devices: self.devices,
        })
    }

    /// The buffer, if the place lies in it.
    fn checked(&self, span: BufferSpan, bytes: u64) -> Result<&Buffer, DriverError> {
        let buffer = self
            .buffers
            .get(&span.buffer)
            .ok_or(DriverError::NoBuffer)?;
        span.check(bytes, buffer.bytes)?;
        Ok(buffer)
    }

    /// Fails while a copy from or to the buffer is under way. One that failed is not.
    fn idle(&mut self, buffer: BufferId) -> Result<(), DriverError> {
        let last = self.buffers.get(&buffer).and_then(|held| held.last);
        if let Some((context, operation)) = last
            && let Some(held) = self.contexts.get_mut(&context)
            && held.has_ended(operation) == Ok(false)
        {
            return Err(DriverError::Busy);
        }
        Ok(())
    }

    /// The address of a place that the host may touch now.
    fn touchable(&mut self, span: BufferSpan, bytes: u64) -> Result<u64, DriverError> {
        let buffer = self.checked(span, bytes)?;
        if buffer.side != Side::Host {
            return Err(DriverError::NotHost);
        }
        let address = buffer.address() + span.offset;
        self.idle(span.buffer)?;
        Ok(address)
    }
}

/// Opening failed for a reason that the trait has no word for: what is there is no usable device.
fn refused(device: u32, error: &CudaError) -> DriverError {
    match *error {
        CudaError::Fault(fault) => fault.into(),
        CudaError::NoDevice { device, devices } => DriverError::NoDevice { device, devices },
        _ => GpuFault::new(device, FaultKind::Lost).into(),
    }
}

impl Driver for CudaDriver {
    fn devices(&self) -> u32 {
        self.devices
    }

    fn open(&mut self, device: u32, process: u32) -> Result<ContextId, DriverError> {
        self.known(device)?;
        if process != process::id() {
            return Err(DriverError::ProcessGone { process });
        }
        let context = Arc::new(Context::open(device).map_err(|error| refused(device, &error))?);
        let held = Held {
            stream: Stream::new(&context)?,
            events: BTreeMap::new(),
            device: Pool::new(CardMemory::new(&context)),
            host: Pool::new(PinnedMemory::new(&context)),
            context,
        };
        let id = ContextId(self.number());
        self.contexts.insert(id, held);
        Ok(id)
    }

    fn close(&mut self, context: ContextId) -> Result<(), DriverError> {
        let held = self.opened(context)?;
        // Memory must not go while a copy uses it, on this stream or on another. A fault ends them.
        let _ = held.stream.synchronize();
        let others: Vec<ContextId> = self
            .buffers
            .values()
            .filter(|buffer| buffer.context == context)
            .filter_map(|buffer| buffer.last.map(|(by, _)| by))
            .filter(|by| *by != context)
            .collect();
        for other in others {
            if let Some(other) = self.contexts.get(&other) {
                let _ = other.stream.synchronize();
            }
        }
        self.buffers.retain(|_, buffer| buffer.context != context);
        self.contexts.remove(&context);
        Ok(())
    }

    fn reserve(
        &mut self,
        context: ContextId,
        side: Side,
        owner: &str,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let held = self.opened_mut(context)?;
        match side {
            Side::Device => held.device.reserve(owner, bytes)?,
            Side::Host => held.host.reserve(owner, bytes)?,
        }
        Ok(())
    }

    fn alloc(
        &mut self,
        context: ContextId,
        side: Side,
        owner: &str,
        bytes: u64,
    ) -> Result<BufferId, DriverError> {
        let held = self.opened_mut(context)?;
        let block = match side {
            Side::Device => held.device.alloc(owner, bytes)?,
            Side::Host => held.host.alloc(owner, bytes)?,
        };
        Ok(self.keep(context, side, bytes, Place::Own(block)))
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), DriverError> {
        if !self.buffers.contains_key(&buffer) {
            return Err(DriverError::NoBuffer);
        }
        self.idle(buffer)?;
        let Some(held) = self.buffers.remove(&buffer) else {
            return Err(DriverError::NoBuffer);
        };
        if let Place::Own(block) = held.memory {
            let context = self.opened_mut(held.context)?;
            match held.side {
                Side::Device => context.device.free(block)?,
                Side::Host => context.host.free(block)?,
            }
        }
        Ok(())
    }

    fn owner(
        &self,
        context: ContextId,
        side: Side,
        owner: &str,
    ) -> Result<Option<OwnerStats>, DriverError> {
        let held = self.opened(context)?;
        Ok(match side {
            Side::Device => held.device.owner(owner),
            Side::Host => held.host.owner(owner),
        })
    }

    fn write(&mut self, to: BufferSpan, bytes: &[u8]) -> Result<(), DriverError> {
        let address = self.touchable(to, bytes.len() as u64)?;
        // SAFETY: the place lies in pinned memory of an open context, no copy uses it, and `self` is
        // borrowed exclusively.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&mut self, from: BufferSpan, bytes: &mut [u8]) -> Result<(), DriverError> {
        let address = self.touchable(from, bytes.len() as u64)?;
        // SAFETY: as in `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    fn copy(
        &mut self,
        from: BufferSpan,
        to: BufferSpan,
        bytes: u64,
    ) -> Result<Operation, DriverError> {
        let (source, target) = (self.checked(from, bytes)?, self.checked(to, bytes)?);
        let places = [source.address() + from.offset, target.address() + to.offset];
        let ends = [(source.context, source.side), (target.context, target.side)];
        // The device that the bytes leave does the work, or the one they come to from the host.
        let doing = match ends {
            [(_, Side::Host), (to, Side::Device)] => to,
            [(from, _), _] => from,
        };
        let before = [source.last, target.last];
        let held = self.opened(doing)?;
        for (other, _) in ends {
            let other = self.opened(other)?;
            if other.context.device() != held.context.device() {
                // Where the machine cannot, the driver goes through the host.
                held.context.reach(&other.context)?;
            }
        }
        for (other, operation) in before.into_iter().flatten() {
            if other != doing
                && let Some(event) = self
                    .contexts
                    .get(&other)
                    .and_then(|held| held.events.get(&operation))
            {
                held.stream.wait(event)?;
            }
        }
        let event = Event::new(&held.context)?;
        held.stream.copy(places[0], places[1], bytes)?;
        event.record(&held.stream)?;
        let device = held.context.device();
        let id = self.number();
        self.opened_mut(doing)?.events.insert(id, event);
        for buffer in [from.buffer, to.buffer] {
            if let Some(buffer) = self.buffers.get_mut(&buffer) {
                buffer.last = Some((doing, id));
            }
        }
        Ok(Operation {
            id,
            context: doing,
            device,
            predicted: Reading::unmeasured("the speed of this way was not measured"),
        })
    }

    fn poll(&mut self, operation: &Operation) -> Result<Progress, DriverError> {
        let held = self.opened_mut(operation.context)?;
        Ok(if held.has_ended(operation.id)? {
            Progress::Done
        } else {
            Progress::Running
        })
    }

    fn health(&mut self, device: u32) -> Result<(), DriverError> {
        self.known(device)?;
        let open = self
            .contexts
            .values()
            .find(|held| held.context.device() == device);
        match open {
            Some(held) => Ok(held.context.health()?),
            None => {
                let context = Context::open(device).map_err(|error| refused(device, &error))?;
                Ok(context.health()?)
            }
        }
    }

    fn held(&mut self, device: u32, process: u32) -> Result<Reading<u64>, DriverError> {
        self.known(device)?;
        if process == process::id() {
            let open = self.contexts.values();
            let pools = open.filter(|held| held.context.device() == device);
            return Ok(Reading::Measured(
                pools.map(|held| held.device.stats().mapped_bytes).sum(),
            ));
        }
        let uuid = match Context::uuid(device) {
            Ok(uuid) => uuid,
            Err(fault) => return Ok(Reading::unmeasured(fault.to_string())),
        };
        let inventory = self.probe.get_or_insert_with(Nvml::new).inventory();
        let facts = inventory
            .devices
            .iter()
            .find(|facts| facts.uuid.value() == Some(&uuid));
        let Some(facts) = facts else {
            return Ok(Reading::unmeasured(
                "the management library does not know the device",
            ));
        };
        Ok(match facts.processes.value() {
            None => Reading::unmeasured(facts.processes.why().unwrap_or_default()),
            Some(processes) => match processes.iter().find(|facts| facts.pid == process) {
                None => Reading::Measured(0),
                Some(facts) => facts.memory_bytes.clone(),
            },
        })
    }
}
