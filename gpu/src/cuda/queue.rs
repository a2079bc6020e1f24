//! Commands on their way to a card.
//!
//! Operations are recorded, not begun. They are begun together when somebody wants to read a
//! result, or when many wait. The index lists of all of them travel in one copy before. A list of
//! commands that comes again, which is what decoding does token by token, is recorded by the card
//! and replayed as a graph: one call instead of one a kernel.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::mem;
use std::ops::Range;
use std::panic::panic_any;
use std::sync::Arc;

use crate::cuda::card::{Arg, Card, Command, Gemm, Launch};
use crate::cuda::copies::Copies;
use crate::cuda::kernel::{AnyKernel, Kernel};
use odeon_devices::fault::GpuFault;
use odeon_devices::memory::MemoryError;

/// Commands that wait at most before they are begun: a millisecond of recording.
const COMMANDS_MAX: usize = 1024;
/// Shorter lists are not worth a graph.
const GRAPH_LEAST: usize = 8;
/// A list becomes a graph when it comes for this time.
const GRAPH_SIGHTINGS: u32 = 3;
/// Lists remembered at most; then all are forgotten.
const LISTS_MAX: usize = 64;
/// Index lists that wait at most, unless one operation has more, in bytes.
const STAGED_MAX: u64 = 4 << 20;

/// The queue of one back-end.
#[derive(Debug)]
pub(super) struct Queue<C: Card> {
    card: Arc<C>,
    commands: Vec<Command>,
    /// Bytes that the commands read, to be copied to `staging` before.
    staged: Vec<u8>,
    staging: Region,
    scratch: Region,
    /// What the scratch memory holds of operands.
    copies: Copies,
    /// Memory to be given back once the commands that know it have been begun.
    retired: Vec<u64>,
    lists: HashMap<u64, List<C::Graph>>,
    counters: Counters,
    fault: Option<GpuFault>,
}

/// Counts of commands and graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands begun, those of graphs too.
    pub commands: u64,
    /// Graphs recorded.
    pub recorded: u64,
    /// Graphs replayed.
    pub replayed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Region {
    address: u64,
    bytes: u64,
}

#[derive(Debug)]
struct List<G> {
    commands: Vec<Command>,
    sightings: u32,
    graph: Option<G>,
}

impl<C: Card> Queue<C> {
    pub(super) fn new(card: Arc<C>) -> Self {
        Self {
            card,
            commands: Vec::new(),
            staged: Vec::new(),
            staging: Region::default(),
            scratch: Region::default(),
            copies: Copies::default(),
            retired: Vec::new(),
            lists: HashMap::new(),
            counters: Counters::default(),
            fault: None,
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn fault(&self) -> Option<&GpuFault> {
        self.fault.as_ref()
    }

    /// Begins an operation that reads these bytes: where each will lie on the card. Commands that
    /// wait may be begun now, and not before the next operation.
    ///
    /// # Panics
    /// If the card has failed before.
    #[track_caller]
    pub(super) fn begin<const N: usize>(&mut self, staged: [&[u8]; N]) -> [u64; N] {
        if let Some(fault) = self.fault {
            panic_any(fault);
        }
        let padded = |bytes: &[u8]| bytes.len().next_multiple_of(16);
        let more = staged.iter().map(|bytes| padded(bytes)).sum::<usize>() as u64;
        let full = more > 0 && self.staged.len() as u64 + more > self.staging.bytes;
        if full || self.commands.len() >= COMMANDS_MAX {
            self.flush();
        }
        if more > self.staging.bytes {
            let bytes = more.max(STAGED_MAX);
            self.retire(self.staging.address);
            let address = self.alloc(bytes);
            self.staging = Region { address, bytes };
        }
        staged.map(|bytes| {
            let at = self.staging.address + self.staged.len() as u64;
            self.staged.extend_from_slice(bytes);
            self.staged
                .resize(self.staged.len().next_multiple_of(16), 0);
            at
        })
    }

    /// Memory that one operation uses and the next may overwrite.
    pub(super) fn scratch(&mut self, bytes: u64) -> u64 {
        if bytes > self.scratch.bytes {
            self.retire(self.scratch.address);
            let address = self.alloc(bytes);
            self.scratch = Region { address, bytes };
            self.copies.forget();
        }
        self.scratch.address
    }

    pub(super) fn launch(
        &mut self,
        kernel: impl Into<AnyKernel>,
        grid: [u64; 3],
        block: u32,
        args: Vec<Arg>,
    ) {
        self.launch_shared(kernel, grid, block, 0, args);
    }

    pub(super) fn launch_shared(
        &mut self,
        kernel: impl Into<AnyKernel>,
        grid: [u64; 3],
        block: u32,
        shared: u64,
        args: Vec<Arg>,
    ) {
        if let Some(launch) = launched(kernel, grid, block, shared, args) {
            self.copies.forget();
            self.commands.push(Command::Launch(launch));
        }
    }

    /// Copies an operand of products from one range of addresses to another, in scratch memory; nothing when it
    /// lies there since an earlier product.
    pub(super) fn copy_operand(
        &mut self,
        kernel: Kernel,
        grid: [u64; 3],
        args: Vec<Arg>,
        [from, to]: [Range<u64>; 2],
    ) {
        if let Some(launch) = launched(kernel, grid, 256, 0, args)
            && self.copies.is_needed(&launch, from, to)
        {
            self.commands.push(Command::Launch(launch));
        }
    }

    pub(super) fn gemm(&mut self, gemm: Gemm) {
        if gemm.batch * gemm.m * gemm.n > 0 {
            self.copies.product(&gemm);
            self.commands.push(Command::Gemm(gemm));
        }
    }

    pub(super) fn copy(&mut self, from: u64, to: u64, bytes: u64) {
        if bytes > 0 {
            self.copies.forget();
            self.commands.push(Command::Copy { from, to, bytes });
        }
    }

    pub(super) fn zero(&mut self, to: u64, bytes: u64) {
        if bytes > 0 {
            self.copies.forget();
            self.commands.push(Command::Zero { to, bytes });
        }
    }

    /// Memory.
    ///
    /// # Panics
    /// If there is none: the operations have no way to say so.
    #[track_caller]
    pub(super) fn alloc(&mut self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let mut given = self.card.alloc(bytes);
        if given.is_err() && !self.retired.is_empty() {
            // What waits to be given back may be enough.
            self.flush();
            given = self.card.alloc(bytes);
        }
        match given {
            Ok(address) => address,
            Err(MemoryError::Fault(fault)) => {
                self.checked(Err(fault));
                0
            }
            Err(error) => panic!("{bytes} bytes on device {}: {error}", self.card.device()),
        }
    }

    /// Gives memory back when nothing that waits knows it any more.
    pub(super) fn retire(&mut self, address: u64) {
        if address == 0 {
            return;
        }
        if self.commands.is_empty() {
            self.card.free(address);
        } else {
            self.retired.push(address);
        }
    }

    pub(super) fn upload(&mut self, to: u64, bytes: &[u8]) {
        self.flush();
        self.copies.forget();
        let done = self.card.upload(to, bytes);
        self.checked(done);
    }

    pub(super) fn download(&mut self, from: u64, bytes: &mut [u8]) {
        self.flush();
        let done = self.card.download(from, bytes);
        self.checked(done);
    }

    /// Begins what waits.
    pub(super) fn flush(&mut self) {
        if !self.commands.is_empty()
            && let Err(fault) = self.flushed()
        {
            panic_any(fault);
        }
    }

    /// Begins what waits, and says what is in the way: the first fault that was met.
    ///
    /// # Errors
    /// The fault. Nothing that was written since it came may be relied on.
    pub(super) fn flushed(&mut self) -> Result<(), GpuFault> {
        // A collective or whoever else has the addresses may write before the next command.
        self.copies.forget();
        if !self.commands.is_empty() {
            let commands = mem::take(&mut self.commands);
            let done = self.begin_list(&commands);
            self.commands = commands;
            self.commands.clear();
            self.staged.clear();
            for address in mem::take(&mut self.retired) {
                self.card.free(address);
            }
            self.kept(done)?;
        }
        self.fault.map_or(Ok(()), Err)
    }

    fn begin_list(&mut self, commands: &[Command]) -> Result<(), GpuFault> {
        if !self.staged.is_empty() {
            self.card.upload(self.staging.address, &self.staged)?;
        }
        self.counters.commands += commands.len() as u64;
        if !(GRAPH_LEAST..COMMANDS_MAX).contains(&commands.len()) {
            return self.card.run(commands);
        }
        let mut hasher = DefaultHasher::new();
        commands.hash(&mut hasher);
        if self.lists.len() >= LISTS_MAX {
            self.lists.clear();
        }
        let list = self.lists.entry(hasher.finish()).or_insert_with(|| List {
            commands: commands.to_vec(),
            sightings: 0,
            graph: None,
        });
        if list.commands != commands {
            return self.card.run(commands);
        }
        list.sightings += 1;
        if list.sightings < GRAPH_SIGHTINGS {
            return self.card.run(commands);
        }
        if list.graph.is_none() {
            list.graph = Some(self.card.record(commands)?);
            self.counters.recorded += 1;
        }
        let graph = list.graph.as_ref().expect("recorded above");
        self.counters.replayed += 1;
        self.card.replay(graph)
    }

    /// Keeps the first fault for whoever asks.
    ///
    /// # Panics
    /// With the fault: operations have no results, and nothing they wrote may be relied on.
    #[track_caller]
    fn checked(&mut self, done: Result<(), GpuFault>) {
        if let Err(first) = self.kept(done) {
            panic_any(first);
        }
    }

    fn kept(&mut self, done: Result<(), GpuFault>) -> Result<(), GpuFault> {
        let Err(fault) = done else { return Ok(()) };
        self.lists.clear();
        self.commands.clear();
        self.staged.clear();
        for address in mem::take(&mut self.retired) {
            self.card.free(address);
        }
        Err(*self.fault.get_or_insert(fault))
    }
}

impl<C: Card> Drop for Queue<C> {
    fn drop(&mut self) {
        for address in [self.staging.address, self.scratch.address]
            .into_iter()
            .chain(mem::take(&mut self.retired))
        {
            if address != 0 {
                self.card.free(address);
            }
        }
    }
}

/// A launch, unless its grid is empty.
fn launched(
    kernel: impl Into<AnyKernel>,
    grid: [u64; 3],
    block: u32,
    shared: u64,
    args: Vec<Arg>,
) -> Option<Launch> {
    (!grid.contains(&0)).then(|| Launch {
        kernel: kernel.into(),
        grid: grid.map(|n| u32::try_from(n).expect("a grid of at most 2^32 blocks a side")),
        block,
        shared: u32::try_from(shared).expect("shared memory of less than 4 GiB"),
        args,
    })
}

/// A flat grid for this many elements, four a thread and 256 threads a block.
pub(super) fn chunks(count: u64) -> [u64; 3] {
    [count.div_ceil(1024).min(1 << 16), 1, 1]
}

/// The same, eight a thread.
pub(super) fn eights(count: u64) -> [u64; 3] {
    chunks(count.div_ceil(2))
}

/// Words as they lie on the card.
pub(super) fn as_bytes(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
