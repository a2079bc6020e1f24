//! The seam between the back-end and a card: memory, copies, launches, matrix products.
//!
//! Everything above it is the same for a real card and for the emulated one, which runs the same
//! kernels on the processor. Commands are data, so that a run of them can be compared with an
//! earlier one and replayed as a graph.

use std::fmt::Debug;

use crate::cuda::error::CudaError;
use crate::cuda::kernel::AnyKernel;
use crate::update_rule::RuleText;
use odeon_devices::fault::GpuFault;
use odeon_devices::memory::MemoryError;

/// A card with memory and one queue of commands, which happen in their order.
pub trait Card: Debug + Send + Sync + 'static {
    /// Commands recorded to be run again.
    type Graph: Debug + Send;

    /// A place in the queue.
    type Mark: Debug + Send;

    /// Index of the device.
    fn device(&self) -> u32;

    /// An identity that no other device has, on this machine or another.
    ///
    /// # Errors
    ///
    /// The device's fault.
    fn identity(&self) -> Result<String, GpuFault>;

    /// Memory, aligned to 16 bytes or more; what it holds is undefined.
    ///
    /// # Errors
    ///
    /// The pool's refusal or the device's fault.
    fn alloc(&self, bytes: u64) -> Result<u64, MemoryError>;

    /// Takes memory back, of which no command that is yet to run knows.
    fn free(&self, address: u64);

    /// Copies to the card, after what was begun before. The bytes are read before it returns.
    ///
    /// # Errors
    ///
    /// The device's fault.
    fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), GpuFault>;

    /// Waits for what was begun before and copies from the card.
    ///
    /// # Errors
    ///
    /// The device's fault, also one of an earlier command.
    fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), GpuFault>;

    /// Makes the kernel of an update rule, unless it was made before: launches name it from now on.
    ///
    /// # Errors
    ///
    /// The text does not compile, or the device's fault.
    fn prepare(&self, rule: RuleText) -> Result<(), CudaError>;

    /// Begins commands.
    ///
    /// # Errors
    ///
    /// The device's fault, also one of an earlier command.
    fn run(&self, commands: &[Command]) -> Result<(), GpuFault>;

    /// Records commands, without running them.
    ///
    /// # Errors
    ///
    /// The device's fault.
    fn record(&self, commands: &[Command]) -> Result<Self::Graph, GpuFault>;

    /// Begins recorded commands.
    ///
    /// # Errors
    ///
    /// The device's fault.
    fn replay(&self, graph: &Self::Graph) -> Result<(), GpuFault>;

    /// The queue as CUDA's libraries take it (`cudaStream_t`), for a call of one on this thread, of
    /// which the card becomes the current one.
    ///
    /// # Errors
    ///
    /// The device's fault.
    fn stream(&self) -> Result<u64, GpuFault>;

    /// The place behind what was begun before.
    ///
    /// # Errors
    ///
    /// The device's fault.
    fn mark(&self) -> Result<Self::Mark, GpuFault>;

    /// Returns true when everything before a place has happened. Does not wait.
    ///
    /// # Errors
    ///
    /// The device's fault, also one of an earlier command.
    fn has_passed(&self, mark: &Self::Mark) -> Result<bool, GpuFault>;

    /// Shared memory that a block may have at most, in bytes.
    fn shared_bytes_max(&self) -> u32;
}

/// One thing that a card does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Runs a kernel.
    Launch(Launch),
    /// A matrix product.
    Gemm(Gemm),
    /// Copies inside the card's memory.
    Copy {
        /// Address of the source.
        from: u64,
        /// Address of the destination.
        to: u64,
        /// Length, in bytes.
        bytes: u64,
    },
    /// Sets bytes to zero.
    Zero {
        /// Address.
        to: u64,
        /// Length, in bytes.
        bytes: u64,
    },
}

/// A kernel over a grid of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Which.
    pub kernel: AnyKernel,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, a multiple of 32.
    pub block: u32,
    /// Shared memory of a block beside what the kernel declares, in bytes.
    pub shared: u32,
    /// Arguments in the kernel's order.
    pub args: Vec<Arg>,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// An address, 0 for none.
    Pointer(u64),
    /// `u32`.
    U32(u32),
    /// The bits of a `float`.
    F32(u32),
    /// `u64`.
    U64(u64),
}

impl Arg {
    /// The argument in the first bytes of eight, as a kernel's parameter lies in memory.
    #[must_use]
    pub fn bits(self) -> u64 {
        match self {
            Self::Pointer(v) | Self::U64(v) => v,
            Self::U32(v) | Self::F32(v) => u64::from(v),
        }
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::F32(value.to_bits())
    }
}

impl From<bool> for Arg {
    fn from(value: bool) -> Self {
        Self::U32(u32::from(value))
    }
}

/// The format of numbers in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// The upper half of it.
    Bf16,
}

impl Format {
    /// Bytes of a number.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A matrix that is read: element `(i, j)` stands at `i * ld + j`, or `j * ld + i` when it is
/// turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Address.
    pub address: u64,
    /// The format of its numbers.
    pub format: Format,
    /// Elements from a line to the next.
    pub ld: u64,
    /// Set when lines are columns.
    pub turned: bool,
    /// Elements from a matrix of the batch to the next.
    pub batch: u64,
}

/// A matrix that is added to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addend {
    /// Nothing.
    Zero,
    /// The matrix that the destination holds.
    Destination,
    /// A matrix that lies as the destination does, at this address.
    Residual(u64),
}

/// `c = scale * a b + addend + bias`, in row-major f32, with sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Products.
    pub batch: u64,
    /// Rows of `a` and `c`.
    pub m: u64,
    /// Columns of `b` and `c`.
    pub n: u64,
    /// Columns of `a` and rows of `b`.
    pub k: u64,
    /// `[m, k]`.
    pub a: Operand,
    /// `[k, n]`, in the format of `a`.
    pub b: Operand,
    /// Address of the destination.
    pub c: u64,
    /// Elements from a row of the destination to the next.
    pub ldc: u64,
    /// Elements from a matrix of the destination to the next.
    pub c_batch: u64,
    /// Bits of the factor.
    pub scale: u32,
    /// The matrix that is added.
    pub addend: Addend,
    /// Address of `n` numbers that are added to each row.
    pub bias: Option<u64>,
}
