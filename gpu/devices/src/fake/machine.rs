//! The fake devices of one node, as a driver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::bytes::Bytes;
use super::card::Fate;
use super::world::World;
use crate::driver::{
    BufferId, BufferSpan, ContextId, Driver, DriverError, Operation, Progress, Side,
};
use crate::fault::GpuFault;
use crate::inventory::Reading;
use crate::memory::{Block, OwnerStats, Pool, RawBlock, RawError, RawMemory};

/// The fake devices of one node.
pub struct Machine {
    pub(super) world: Arc<Mutex<World>>,
    /// Indices in the world, by device.
    pub(super) cards: Vec<usize>,
    contexts: BTreeMap<ContextId, Context>,
    buffers: BTreeMap<BufferId, Buffer>,
    /// By time of the end and number.
    flights: BTreeMap<(Duration, u64), Flight>,
}

struct Context {
    card: usize,
    process: u32,
    device: Pool<CardMemory>,
    host: Pool<HostMemory>,
}

impl Context {
    fn reserve(&mut self, side: Side, owner: &str, bytes: u64) -> Result<(), DriverError> {
        match side {
            Side::Device => self.device.reserve(owner, bytes)?,
            Side::Host => self.host.reserve(owner, bytes)?,
        }
        Ok(())
    }

    fn alloc(&mut self, side: Side, owner: &str, bytes: u64) -> Result<Block, DriverError> {
        Ok(match side {
            Side::Device => self.device.alloc(owner, bytes)?,
            Side::Host => self.host.alloc(owner, bytes)?,
        })
    }

    fn free(&mut self, side: Side, block: Block) -> Result<(), DriverError> {
        match side {
            Side::Device => self.device.free(block)?,
            Side::Host => self.host.free(block)?,
        }
        Ok(())
    }
}

struct Buffer {
    context: ContextId,
    side: Side,
    /// As asked for.
    bytes: u64,
    block: Block,
    content: Bytes,
}

/// A copy under way, or one that failed.
struct Flight {
    context: ContextId,
    from: BufferSpan,
    to: BufferSpan,
    bytes: u64,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("devices", &self.cards.len())
            .field("contexts", &self.contexts.len())
            .field("buffers", &self.buffers.len())
            .field("operations", &self.flights.len())
            .finish()
    }
}

impl Machine {
    pub(super) fn new(world: Arc<Mutex<World>>, cards: Vec<usize>) -> Self {
        Self {
            world,
            cards,
            contexts: BTreeMap::new(),
            buffers: BTreeMap::new(),
            flights: BTreeMap::new(),
        }
    }

    /// Kills a process: its contexts are gone at once, its memory stays held for a while.
    pub fn kill(&mut self, process: u32) {
        {
            let mut world = self.world.lock();
            for card in &self.cards {
                world.kill(*card, process);
            }
        }
        let contexts: Vec<ContextId> = self
            .contexts
            .iter()
            .filter(|(_, context)| context.process == process)
            .map(|(id, _)| *id)
            .collect();
        for context in contexts {
            self.forget(context);
        }
    }

    /// Lets virtual time pass, for all machines of the cluster.
    pub fn advance(&self, by: Duration) {
        self.world.lock().advance(by);
    }

    fn card(&self, device: u32) -> Result<usize, DriverError> {
        let known = self.cards.get(device as usize).copied();
        known.ok_or_else(|| DriverError::NoDevice {
            device,
            devices: self.devices(),
        })
    }

    fn context(&mut self, id: ContextId) -> Result<&mut Context, DriverError> {
        self.contexts.get_mut(&id).ok_or(DriverError::NoContext)
    }

    /// Drops a context with its buffers and operations.
    fn forget(&mut self, id: ContextId) {
        self.flights.retain(|_, flight| flight.context != id);
        self.buffers.retain(|_, buffer| buffer.context != id);
        self.contexts.remove(&id);
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

    /// The buffer of a place that the host may touch now.
    fn touchable(&self, span: BufferSpan, bytes: u64) -> Result<&Buffer, DriverError> {
        let buffer = self.checked(span, bytes)?;
        if buffer.side != Side::Host {
            return Err(DriverError::NotHost);
        }
        if self.is_busy(span.buffer) {
            return Err(DriverError::Busy);
        }
        Ok(buffer)
    }

    /// Returns true while a copy from or to it has neither ended nor failed.
    fn is_busy(&self, buffer: BufferId) -> bool {
        let world = self.world.lock();
        self.flights.iter().any(|((end, _), flight)| {
            (flight.from.buffer == buffer || flight.to.buffer == buffer)
                && match self.fate(&world, flight, *end) {
                    Fate::Ends => *end > world.now,
                    Fate::NeverEnds => true,
                    Fate::Fails(_) => false,
                }
        })
    }

    fn fate(&self, world: &World, flight: &Flight, end: Duration) -> Fate {
        match self.contexts.get(&flight.context) {
            Some(context) => world.cards[context.card].fate(context.process, end),
            None => Fate::Ends,
        }
    }

    /// Carries out the copies that have ended by now, in their order.
    fn settle(&mut self) {
        let ended: Vec<(Duration, u64)> = {
            let world = self.world.lock();
            self.flights
                .iter()
                .take_while(|((end, _), _)| *end <= world.now)
                .filter(|((end, _), flight)| self.fate(&world, flight, *end) == Fate::Ends)
                .map(|(key, _)| *key)
                .collect()
        };
        for key in ended {
            if let Some(flight) = self.flights.remove(&key) {
                self.land(&flight);
            }
        }
    }

    fn land(&mut self, flight: &Flight) {
        let Flight {
            from, to, bytes, ..
        } = *flight;
        let Some(source) = self.buffers.get(&from.buffer) else {
            return;
        };
        let written = source.content.written(from.offset..from.offset + bytes);
        if let Some(target) = self.buffers.get_mut(&to.buffer) {
            target.content.forget(to.offset..to.offset + bytes);
            for (at, part) in written {
                target.content.write(to.offset + at, &part);
            }
        }
    }
}

impl Driver for Machine {
    fn devices(&self) -> u32 {
        self.cards.len() as u32
    }

    fn open(&mut self, device: u32, process: u32) -> Result<ContextId, DriverError> {
        let card = self.card(device)?;
        let mut world = self.world.lock();
        world.cards[card].usable(process)?;
        if !world.cards[card].enter(process) {
            return Err(DriverError::ProcessGone { process });
        }
        let id = ContextId(world.number());
        let context = Context {
            card,
            process,
            host: Pool::new(HostMemory::new(world.cards[card].model.pinned_bytes)),
            device: Pool::new(CardMemory {
                capacity: world.cards[card].space.capacity(),
                world: Arc::clone(&self.world),
                card,
                process,
            }),
        };
        drop(world);
        self.contexts.insert(id, context);
        Ok(id)
    }

    fn close(&mut self, context: ContextId) -> Result<(), DriverError> {
        let known = self.context(context)?;
        let (card, process) = (known.card, known.process);
        self.settle();
        self.forget(context);
        self.world.lock().cards[card].leave(process);
        Ok(())
    }

    fn reserve(
        &mut self,
        context: ContextId,
        side: Side,
        owner: &str,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.context(context)?.reserve(side, owner, bytes)
    }

    fn alloc(
        &mut self,
        context: ContextId,
        side: Side,
        owner: &str,
        bytes: u64,
    ) -> Result<BufferId, DriverError> {
        let known = self.context(context)?;
        let (card, process) = (known.card, known.process);
        let id = {
            let mut world = self.world.lock();
            let now = world.now;
            world.cards[card].begin(now, process)?;
            BufferId(world.number())
        };
        let block = self.context(context)?.alloc(side, owner, bytes)?;
        let buffer = Buffer {
            context,
            side,
            bytes,
            block,
            content: Bytes::default(),
        };
        self.buffers.insert(id, buffer);
        Ok(id)
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), DriverError> {
        self.settle();
        if self.is_busy(buffer) {
            return Err(DriverError::Busy);
        }
        let known = self.buffers.remove(&buffer).ok_or(DriverError::NoBuffer)?;
        self.context(known.context)?.free(known.side, known.block)
    }

    fn owner(
        &self,
        context: ContextId,
        side: Side,
        owner: &str,
    ) -> Result<Option<OwnerStats>, DriverError> {
        let known = self.contexts.get(&context).ok_or(DriverError::NoContext)?;
        Ok(match side {
            Side::Device => known.device.owner(owner),
            Side::Host => known.host.owner(owner),
        })
    }

    fn write(&mut self, to: BufferSpan, bytes: &[u8]) -> Result<(), DriverError> {
        self.settle();
        self.touchable(to, bytes.len() as u64)?;
        if let Some(buffer) = self.buffers.get_mut(&to.buffer) {
            buffer.content.write(to.offset, bytes);
        }
        Ok(())
    }

    fn read(&mut self, from: BufferSpan, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.settle();
        let buffer = self.touchable(from, bytes.len() as u64)?;
        buffer.content.read(from.offset, bytes);
        Ok(())
    }

    fn copy(
        &mut self,
        from: BufferSpan,
        to: BufferSpan,
        bytes: u64,
    ) -> Result<Operation, DriverError> {
        self.settle();
        let (source, target) = (self.checked(from, bytes)?, self.checked(to, bytes)?);
        let ends = [source, target].map(|buffer| (buffer.context, buffer.side));
        // The device that the bytes leave does the work, or the one they come to from the host.
        let context = match ends {
            [(_, Side::Host), (to, Side::Device)] => to,
            [(from, _), _] => from,
        };
        let [from_end, to_end] = ends.map(|(id, side)| self.contexts.get(&id).map(|c| (c, side)));
        let (Some((a, a_side)), Some((b, b_side))) = (from_end, to_end) else {
            return Err(DriverError::NoContext);
        };
        if a.process != b.process {
            return Err(DriverError::OtherProcess);
        }
        let Some(doing) = self.contexts.get(&context) else {
            return Err(DriverError::NoContext);
        };
        let mut world = self.world.lock();
        let now = world.now;
        world.cards[doing.card].begin(now, doing.process)?;
        let alone = world.predict((a.card, a_side), (b.card, b_side), bytes);
        let id = world.number();
        let card = &mut world.cards[doing.card];
        let begins = card.busy_until.max(now);
        let predicted = (begins - now).saturating_add(alone);
        let takes = Duration::try_from_secs_f64(alone.as_secs_f64() * card.slow);
        let end = begins.saturating_add(match takes {
            Ok(takes) if card.slow > 1.0 => takes,
            Ok(_) => alone,
            Err(_) => Duration::MAX,
        });
        card.busy_until = end;
        let operation = Operation {
            id,
            context,
            device: card.device,
            predicted: Reading::Measured(predicted),
        };
        drop(world);
        let flight = Flight {
            context,
            from,
            to,
            bytes,
        };
        self.flights.insert((end, id), flight);
        Ok(operation)
    }

    fn poll(&mut self, operation: &Operation) -> Result<Progress, DriverError> {
        self.context(operation.context)?;
        self.settle();
        let world = self.world.lock();
        let flight = self.flights.iter().find(|((_, id), _)| *id == operation.id);
        match flight.map(|((end, _), flight)| self.fate(&world, flight, *end)) {
            None => Ok(Progress::Done),
            Some(Fate::Ends | Fate::NeverEnds) => Ok(Progress::Running),
            Some(Fate::Fails(fault)) => Err(fault.into()),
        }
    }

    fn health(&mut self, device: u32) -> Result<(), DriverError> {
        let card = self.card(device)?;
        Ok(self.world.lock().cards[card].health()?)
    }

    fn held(&mut self, device: u32, process: u32) -> Result<Reading<u64>, DriverError> {
        let card = self.card(device)?;
        let world = self.world.lock();
        let card = &world.cards[card];
        if card.is_lost() {
            return Ok(Reading::unmeasured("the device has fallen off the bus"));
        }
        let held = card.space.shares().get(&process).copied();
        Ok(Reading::Measured(held.unwrap_or(0)))
    }
}

impl Drop for Machine {
    /// Closes what is open, so that nothing stays held by a machine that is gone. Processes that
    /// cannot close, since something broke, die with it.
    fn drop(&mut self) {
        let open: Vec<_> = self
            .contexts
            .values()
            .map(|context| (context.card, context.process))
            .collect();
        self.contexts.clear();
        let mut world = self.world.lock();
        for (card, process) in open {
            match world.cards[card].usable(process) {
                Ok(()) => world.cards[card].leave(process),
                Err(_) => world.kill(card, process),
            }
        }
    }
}

/// The memory of a card, as one process sees it.
#[derive(Debug)]
struct CardMemory {
    world: Arc<Mutex<World>>,
    card: usize,
    process: u32,
    capacity: u64,
}

impl RawMemory for CardMemory {
    fn alloc(&mut self, bytes: u64) -> Result<RawBlock, RawError> {
        let mut world = self.world.lock();
        let card = &mut world.cards[self.card];
        card.usable(self.process).map_err(RawError::Fault)?;
        match card.space.take(self.process, bytes) {
            Some(address) => Ok(RawBlock { address, bytes }),
            None => Err(RawError::Full {
                free: card.space.free_bytes(),
            }),
        }
    }

    fn free(&mut self, block: RawBlock) -> Result<(), GpuFault> {
        let mut world = self.world.lock();
        let card = &mut world.cards[self.card];
        // What a broken context or a dead process holds comes back when the driver has cleaned up
        // after the process.
        card.usable(self.process)?;
        if !card.is_killed(self.process) {
            card.space.give(self.process, block.address);
        }
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }
}

/// Pinned host memory: enough address space, and a limit.
#[derive(Debug)]
struct HostMemory {
    capacity: u64,
    used: u64,
    next: u64,
}

impl HostMemory {
    fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            next: 0,
        }
    }
}

impl RawMemory for HostMemory {
    fn alloc(&mut self, bytes: u64) -> Result<RawBlock, RawError> {
        let free = self.capacity - self.used;
        if bytes > free {
            return Err(RawError::Full { free });
        }
        self.used += bytes;
        let address = self.next;
        self.next += bytes;
        Ok(RawBlock { address, bytes })
    }

    fn free(&mut self, block: RawBlock) -> Result<(), GpuFault> {
        self.used -= block.bytes;
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }
}
