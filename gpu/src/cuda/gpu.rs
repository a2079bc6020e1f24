//! A real card, through cudarc.
//!
//! One stream carries everything, so that commands happen in their order without a wait on the
//! host. Uploads pass through a ring of pinned memory and return when the bytes are there, while
//! the card still works; downloads overlap one piece's copy with the next one's way over the bus.

mod api;
mod blas;
mod context;
mod kernels;
mod pinned;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cuda::cache::KernelCache;
use crate::cuda::card::{Card, Command};
use crate::cuda::error::CudaError;
use crate::update_rule::RuleText;
use odeon_devices::fault::GpuFault;
use odeon_devices::memory::{Block, MemoryError, Pool, PoolStats, RawMemory};

pub(super) use api::{Event, IpcMapping, Stream};
use api::{Graph, ipc_handle};
use blas::Blas;
pub(super) use context::{CardMemory, Context, PinnedMemory, devices};
use kernels::Kernels;
use pinned::Ring;

/// A card of this machine, opened by this process.
#[derive(Debug)]
pub struct Gpu {
    blas: Mutex<Blas>,
    kernels: Kernels,
    ring: Mutex<Ring>,
    memory: Mutex<Memory>,
    stream: Stream,
    context: Arc<Context>,
    owner: String,
}

/// Options for opening a card.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// In whose name memory is taken.
    pub owner: String,
    /// The most memory that the owner may hold, in bytes, as far as the card has it; `None` for all
    /// of it.
    pub budget_bytes: Option<u64>,
    /// Where compiled kernels are kept.
    pub cache: KernelCache,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            owner: "compute".to_owned(),
            budget_bytes: None,
            cache: KernelCache::of_user(),
        }
    }
}

#[derive(Debug)]
struct Memory {
    pool: Pool<CardMemory>,
    /// Blocks by address.
    blocks: HashMap<u64, Block>,
}

impl Gpu {
    /// Number of cards that this machine has.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoDriver`] and others of the driver.
    pub fn count() -> Result<u32, CudaError> {
        devices()
    }

    /// Opens a card, and compiles the kernels for it unless the cache holds them.
    ///
    /// # Errors
    ///
    /// [`CudaError`]; nothing is held then.
    pub fn open(device: u32, options: &GpuOptions) -> Result<Self, CudaError> {
        let context = Arc::new(Context::open(device)?);
        let stream = Stream::new(&context)?;
        let mut pool = Pool::new(CardMemory::new(&context));
        // A whole device as the node counts it is a little more than a program can have of it.
        let capacity = pool.raw().capacity();
        let budget = options.budget_bytes.unwrap_or(capacity).min(capacity);
        pool.reserve(&options.owner, budget)?;
        Ok(Self {
            blas: Mutex::new(Blas::new(&context)?),
            kernels: Kernels::load(&context, &options.cache)?,
            ring: Mutex::new(Ring::new(&context)?),
            memory: Mutex::new(Memory {
                pool,
                blocks: HashMap::new(),
            }),
            stream,
            context,
            owner: options.owner.clone(),
        })
    }

    /// The card's name.
    ///
    /// # Errors
    ///
    /// The device's fault.
    pub fn name(&self) -> Result<String, GpuFault> {
        self.context.name()
    }

    /// State of the memory.
    #[must_use]
    pub fn memory(&self) -> PoolStats {
        self.memory.lock().pool.stats()
    }

    /// Waits until everything that was begun has happened.
    ///
    /// # Errors
    ///
    /// The device's fault.
    pub fn synchronize(&self) -> Result<(), GpuFault> {
        self.stream.synchronize()
    }

    fn begin(&self, commands: &[Command]) -> Result<(), GpuFault> {
        self.context.bind()?;
        for command in commands {
            match command {
                Command::Launch(launch) => self.kernels.launch(launch, &self.stream)?,
                Command::Gemm(gemm) => {
                    let mut blas = self.blas.lock();
                    if let Some(bias) = blas.run(gemm, &self.stream)? {
                        self.kernels.launch(&bias, &self.stream)?;
                    }
                }
                Command::Copy { from, to, bytes } => self.stream.copy(*from, *to, *bytes)?,
                Command::Zero { to, bytes } => self.stream.zero(*to, *bytes)?,
            }
        }
        Ok(())
    }
}

/// Commands that the card can begin with one call.
#[derive(Debug)]
pub struct GpuGraph(Graph);

/// A place in a card's queue.
#[derive(Debug)]
pub struct GpuMark(Event);

impl Card for Gpu {
    type Graph = GpuGraph;
    type Mark = GpuMark;

    fn device(&self) -> u32 {
        self.context.device()
    }

    fn identity(&self) -> Result<String, GpuFault> {
        Context::uuid(self.device())
    }

    fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        let mut memory = self.memory.lock();
        let block = memory.pool.alloc(&self.owner, bytes)?;
        let address = block.address();
        memory.blocks.insert(address, block);
        Ok(address)
    }

    fn free(&self, address: u64) {
        let mut memory = self.memory.lock();
        if let Some(block) = memory.blocks.remove(&address) {
            // It is the pool's own, so the pool takes it.
            drop(memory.pool.free(block));
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), GpuFault> {
        self.ring.lock().upload(&self.stream, to, bytes)
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), GpuFault> {
        self.ring.lock().download(&self.stream, from, bytes)
    }

    fn prepare(&self, rule: RuleText) -> Result<(), CudaError> {
        self.context.bind()?;
        self.kernels.prepare(rule)
    }

    fn run(&self, commands: &[Command]) -> Result<(), GpuFault> {
        self.begin(commands)
    }

    fn record(&self, commands: &[Command]) -> Result<GpuGraph, GpuFault> {
        self.stream.capture(|| self.begin(commands)).map(GpuGraph)
    }

    fn replay(&self, graph: &GpuGraph) -> Result<(), GpuFault> {
        self.stream.replay(&graph.0)
    }

    fn stream(&self) -> Result<u64, GpuFault> {
        self.context.bind()?;
        Ok(self.stream.handle() as u64)
    }

    fn mark(&self) -> Result<GpuMark, GpuFault> {
        let event = Event::new(&self.context)?;
        event.record(&self.stream)?;
        Ok(GpuMark(event))
    }

    fn has_passed(&self, mark: &GpuMark) -> Result<bool, GpuFault> {
        mark.0.has_passed()
    }

    fn shared_bytes_max(&self) -> u32 {
        self.context.shared_bytes_max()
    }
}

/// A name of a card's memory that another process of this machine can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct IpcHandle {
    /// Two halves of the driver's 64 bytes.
    pub(super) bytes: [[u8; 32]; 2],
    /// Where what is meant begins in what the handle opens, in bytes.
    pub(super) offset: u64,
    /// Length of that memory, in bytes.
    pub(super) bytes_len: u64,
}

impl IpcHandle {
    /// Length of the memory that it names, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes_len
    }

    /// Returns true when it names no memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes_len == 0
    }

    /// Names memory of this process.
    pub(super) fn of(context: &Context, address: u64, bytes_len: u64) -> Result<Self, GpuFault> {
        let (bytes, offset) = ipc_handle(context, address)?;
        Ok(Self {
            bytes,
            offset,
            bytes_len,
        })
    }
}

impl Drop for Gpu {
    /// Lets what was begun end before memory and kernels go.
    fn drop(&mut self) {
        // After a fault nothing goes on.
        let _ = self.stream.synchronize();
    }
}
