//! A card that is not there: the kernels' own sources, compiled for the processor.
//!
//! `g++` compiles the sources behind `emulated/host.h`, which stands in for the device: blocks,
//! threads, barriers, shuffles, tiles of tensor cores, copies that land late. So grids, arguments,
//! sizes of scratch memory and the arithmetic are checked where there is no card, by the same
//! suite. It is slow and exact about mistakes: an access outside of memory, a barrier that not all
//! threads reach, or arguments that a kernel does not take panic with the kernel's name.
//!
//! Matrix products come from [`Cpu`] after the rounding that the operands got.
//!
//! Commands have happened when the call that begins them returns. Only what another library does on
//! the card, such as a collective, happens later; commands wait for it.

mod library;

use std::sync::atomic::{AtomicU64, Ordering};
use std::{process, ptr, thread};

use parking_lot::Mutex;

use crate::backend::{Backend, MatMul, Strides};
use crate::cpu::Cpu;
use crate::cuda::card::{Addend, Card, Command, Format, Gemm, Launch, Operand};
use crate::cuda::error::CudaError;
use crate::cuda::kernel::rule_name;
use crate::update_rule::RuleText;
use odeon_devices::fault::{FaultKind, GpuFault};
use odeon_devices::memory::{MemoryError, Shares};

pub use library::EmulatedError;
use library::Library;

/// In which order the threads of a block, and the blocks of a grid, run between barriers. A result
/// that differs tells of a missing barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadOrder {
    /// From the first.
    #[default]
    Forwards,
    /// From the last.
    Backwards,
}

/// A card whose kernels run on the processor.
#[derive(Debug)]
pub struct Emulated {
    library: Library,
    cpu: Cpu,
    order: ThreadOrder,
    held_bytes: AtomicU64,
    /// The most of these so far.
    peak_bytes: AtomicU64,
    blocks: AtomicU64,
    fault: Mutex<Option<Strike>>,
    stream: Box<Stream>,
    /// Tells the cards of this process apart.
    number: u64,
}

/// The memory behind the handle of the card's queue: a library that works on the card counts up
/// what it begins before its call returns, and what has ended from a thread of its own.
#[derive(Debug, Default)]
#[repr(C)]
struct Stream {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Number of commands that libraries had begun at a place in the queue.
#[derive(Debug)]
pub struct EmulatedMark(u64);

/// A fault to come.
#[derive(Clone, Copy, Debug)]
struct Strike {
    /// Calls of the card that still succeed.
    left: u64,
    kind: FaultKind,
}

/// Memory of the card: enough for tests, little enough that a leak is met.
const CAPACITY: u64 = 4 << 30;

impl Emulated {
    /// Compiles the kernels, unless that was done before, and starts the card.
    ///
    /// # Errors
    ///
    /// There is no `g++`, or it refuses the sources.
    pub fn start(order: ThreadOrder) -> Result<Self, EmulatedError> {
        static CARDS: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            library: Library::load()?,
            cpu: Cpu::new(1),
            order,
            held_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            fault: Mutex::new(None),
            stream: Box::default(),
            number: CARDS.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Lets this many calls succeed and every later one fail.
    pub fn break_after(&self, calls: u64, kind: FaultKind) {
        *self.fault.lock() = Some(Strike { left: calls, kind });
    }

    /// The most memory that was held at once, in bytes.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Blocks of memory that are held.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    fn call(&self) -> Result<(), GpuFault> {
        if let Some(strike) = self.fault.lock().as_mut() {
            if strike.left == 0 {
                return Err(GpuFault::new(0, strike.kind));
            }
            strike.left -= 1;
        }
        Ok(())
    }

    /// The fault that has come, without counting a call.
    fn sound(&self) -> Result<(), GpuFault> {
        match &*self.fault.lock() {
            Some(strike) if strike.left == 0 => Err(GpuFault::new(0, strike.kind)),
            _ => Ok(()),
        }
    }

    /// Waits, as a card does, for what libraries have begun.
    fn settle(&self) {
        let begun = self.stream.begun.load(Ordering::Acquire);
        while self.stream.ended.load(Ordering::Acquire) < begun {
            thread::yield_now();
        }
    }

    fn command(&self, command: &Command) {
        match command {
            Command::Launch(launch) => self.launch(launch),
            Command::Gemm(gemm) => self.gemm(gemm),
            Command::Copy { from, to, bytes } => {
                let mut content = vec![0; *bytes as usize];
                self.library.read(*from, &mut content);
                self.library.write(*to, &content);
            }
            Command::Zero { to, bytes } => self.library.write(*to, &vec![0; *bytes as usize]),
        }
    }

    fn launch(&self, launch: &Launch) {
        assert!(
            launch.shared <= self.shared_bytes_max(),
            "{}: {} bytes of shared memory",
            launch.kernel.name(),
            launch.shared
        );
        self.library.launch(launch, self.order);
    }

    /// The operand as contiguous rows.
    fn operand(&self, operand: Operand, batch: u64, [rows, cols]: [u64; 2]) -> Vec<f32> {
        let (lines, length) = if operand.turned {
            (cols, rows)
        } else {
            (rows, cols)
        };
        assert!(operand.ld >= length, "lines of {operand:?} overlap");
        let count = (batch - 1) * operand.batch + (lines - 1) * operand.ld + length;
        let mut bytes = vec![0; (count * operand.format.bytes()) as usize];
        self.library.read(operand.address, &mut bytes);
        let number = |at: u64| {
            let at = (at * operand.format.bytes()) as usize;
            match operand.format {
                Format::F32 => {
                    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
                }
                Format::Bf16 => f32::from_le_bytes([0, 0, bytes[at], bytes[at + 1]]),
            }
        };
        let mut numbers = Vec::with_capacity((batch * rows * cols) as usize);
        for matrix in 0..batch {
            for i in 0..rows {
                for j in 0..cols {
                    let (line, place) = if operand.turned { (j, i) } else { (i, j) };
                    numbers.push(number(matrix * operand.batch + line * operand.ld + place));
                }
            }
        }
        numbers
    }

    fn gemm(&self, gemm: &Gemm) {
        let Gemm { batch, m, n, k, .. } = *gemm;
        assert_eq!(gemm.a.format, gemm.b.format, "operands of one format");
        let a = self.operand(gemm.a, batch, [m, k]);
        let b = self.operand(gemm.b, batch, [k, n]);
        let sizes = [batch, m, n, k].map(|size| size as usize);
        let call = MatMul {
            batch: sizes[0],
            b: Strides::rows(sizes[2]).batched(sizes[3] * sizes[2]),
            a: Strides::rows(sizes[3]).batched(sizes[1] * sizes[3]),
            c: Strides::rows(sizes[2]).batched(sizes[1] * sizes[2]),
            ..MatMul::linear(sizes[1], sizes[2], sizes[3])
        };
        let mut product = vec![0.0; sizes[0] * sizes[1] * sizes[2]];
        self.cpu.matmul(call, &a, &b, &mut product);
        let row = |address: u64| {
            let mut bytes = vec![0; 4 * sizes[2]];
            self.library.read(address, &mut bytes);
            floats(&bytes)
        };
        let zeros = vec![0.0; sizes[2]];
        let bias = gemm.bias.map_or_else(|| zeros.clone(), row);
        let scale = f32::from_bits(gemm.scale);
        for (line, product) in product.chunks_exact(sizes[2]).enumerate() {
            let (matrix, i) = (line as u64 / m, line as u64 % m);
            let place = 4 * (matrix * gemm.c_batch + i * gemm.ldc);
            let held = match gemm.addend {
                Addend::Zero => zeros.clone(),
                Addend::Destination => row(gemm.c + place),
                Addend::Residual(address) => row(address + place),
            };
            let sums: Vec<u8> = (0..sizes[2])
                .flat_map(|j| (scale * product[j] + held[j] + bias[j]).to_le_bytes())
                .collect();
            self.library.write(gemm.c + place, &sums);
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

impl Card for Emulated {
    type Graph = Vec<Command>;
    type Mark = EmulatedMark;

    fn device(&self) -> u32 {
        0
    }

    fn identity(&self) -> Result<String, GpuFault> {
        Ok(format!("emulated-{}-{}", process::id(), self.number))
    }

    fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        self.call()?;
        let held = self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        if held + bytes > CAPACITY {
            self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(MemoryError::DeviceFull {
                asked: bytes,
                free: CAPACITY - held,
                largest: CAPACITY - held,
                owners: Shares::default(),
            });
        }
        self.peak_bytes.fetch_max(held + bytes, Ordering::Relaxed);
        self.blocks.fetch_add(1, Ordering::Relaxed);
        Ok(self.library.take(bytes))
    }

    fn free(&self, address: u64) {
        self.settle();
        self.blocks.fetch_sub(1, Ordering::Relaxed);
        let bytes = self.library.give(address);
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), GpuFault> {
        self.call()?;
        self.settle();
        self.library.write(to, bytes);
        Ok(())
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), GpuFault> {
        self.call()?;
        self.settle();
        self.library.read(from, bytes);
        Ok(())
    }

    fn prepare(&self, rule: RuleText) -> Result<(), CudaError> {
        let made = self.library.prepare(rule);
        made.map_err(|error| CudaError::Compile {
            name: rule_name(rule),
            arch: "the processor".to_owned(),
            log: error.to_string(),
        })
    }

    fn run(&self, commands: &[Command]) -> Result<(), GpuFault> {
        self.call()?;
        self.settle();
        commands.iter().for_each(|command| self.command(command));
        Ok(())
    }

    fn record(&self, commands: &[Command]) -> Result<Vec<Command>, GpuFault> {
        self.call()?;
        Ok(commands.to_vec())
    }

    fn replay(&self, graph: &Vec<Command>) -> Result<(), GpuFault> {
        self.run(graph)
    }

    fn stream(&self) -> Result<u64, GpuFault> {
        self.sound()?;
        Ok(ptr::from_ref::<Stream>(&self.stream) as u64)
    }

    fn mark(&self) -> Result<EmulatedMark, GpuFault> {
        self.sound()?;
        Ok(EmulatedMark(self.stream.begun.load(Ordering::Acquire)))
    }

    fn has_passed(&self, mark: &EmulatedMark) -> Result<bool, GpuFault> {
        self.sound()?;
        Ok(self.stream.ended.load(Ordering::Acquire) >= mark.0)
    }

    fn shared_bytes_max(&self) -> u32 {
        99 << 10
    }
}
