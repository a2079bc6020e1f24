//! A ring of pinned memory, through which bytes go to a card and come back.

use std::sync::Arc;

use super::api::{Event, Stream};
use super::context::{Context, PinnedMemory};
use crate::cuda::error::CudaError;
use odeon_devices::fault::GpuFault;
use odeon_devices::memory::{MemoryError, RawBlock, RawError, RawMemory, Shares};

/// Bytes of a piece: long enough to hide the call, short enough that pieces overlap.
const PIECE: usize = 4 << 20;
const PIECES: usize = 4;

#[derive(Debug)]
pub(super) struct Ring {
    memory: PinnedMemory,
    block: Option<RawBlock>,
    /// Passed when the card no longer uses the piece.
    free: Vec<Event>,
    next: usize,
}

impl Ring {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let mut memory = PinnedMemory::new(context);
        let free = (0..PIECES)
            .map(|_| Event::new(context))
            .collect::<Result<_, _>>()?;
        let block = memory.alloc((PIECE * PIECES) as u64);
        let block = block.map_err(|error| match error {
            RawError::Fault(fault) => CudaError::Fault(fault),
            RawError::Full { free } => CudaError::Memory(MemoryError::DeviceFull {
                asked: (PIECE * PIECES) as u64,
                free,
                largest: free,
                owners: Shares::default(),
            }),
        })?;
        Ok(Self {
            memory,
            block: Some(block),
            free,
            next: 0,
        })
    }

    /// Where the next piece begins, once nothing uses it.
    fn piece(&mut self) -> Result<(usize, u64), GpuFault> {
        let index = self.next;
        self.next = (index + 1) % PIECES;
        self.free[index].synchronize()?;
        let base = self.block.as_ref().map_or(0, |block| block.address);
        Ok((index, base + (index * PIECE) as u64))
    }

    pub(super) fn upload(
        &mut self,
        stream: &Stream,
        to: u64,
        bytes: &[u8],
    ) -> Result<(), GpuFault> {
        for (i, part) in bytes.chunks(PIECE).enumerate() {
            let (index, piece) = self.piece()?;
            // SAFETY: the piece is PIECE bytes of the ring's own memory, and the card no longer
            // reads them.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), piece as *mut u8, part.len());
            }
            stream.copy(piece, to + (i * PIECE) as u64, part.len() as u64)?;
            self.free[index].record(stream)?;
        }
        Ok(())
    }

    pub(super) fn download(
        &mut self,
        stream: &Stream,
        from: u64,
        bytes: &mut [u8],
    ) -> Result<(), GpuFault> {
        // One piece is on its way while the one before is copied out.
        let mut before: Option<(usize, u64, &mut [u8])> = None;
        for (i, part) in bytes.chunks_mut(PIECE).enumerate() {
            let (index, piece) = self.piece()?;
            stream.copy(from + (i * PIECE) as u64, piece, part.len() as u64)?;
            self.free[index].record(stream)?;
            if let Some(arrived) = before.replace((index, piece, part)) {
                self.take(arrived)?;
            }
        }
        before.map_or(Ok(()), |arrived| self.take(arrived))
    }

    fn take(&self, (index, piece, to): (usize, u64, &mut [u8])) -> Result<(), GpuFault> {
        self.free[index].synchronize()?;
        // SAFETY: the piece holds as many bytes, and the card has written them.
        unsafe { std::ptr::copy_nonoverlapping(piece as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for event in &self.free {
            // After a fault the card no longer copies.
            let _ = event.synchronize();
        }
        if let Some(block) = self.block.take() {
            // A broken context takes nothing back; the process's end does.
            let _ = self.memory.free(block);
        }
    }
}
