//! Memory that snapshots are taken into, used again and again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Where a pool has its memory from: the heap, pinned memory of a device, memory shared with
/// another process.
pub trait Memory: Send + Sync + fmt::Debug {
    /// A block of at least so many bytes, each of them backed by memory already.
    ///
    /// # Errors
    /// Why there is none, in words.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn PoolBlock>, String>;
}

/// A block of memory.
pub trait PoolBlock: Send + Sync {
    /// All of it.
    fn bytes(&self) -> &[u8];

    /// All of it, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// The heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// Blocks that wait to be used again.
#[derive(Debug)]
pub struct Pool {
    memory: Box<dyn Memory>,
    free: Mutex<Vec<Shelved>>,
}

struct Shelved(Box<dyn PoolBlock>);

/// A block that is in use; it goes back when this is dropped.
pub(crate) struct Lease {
    block: Option<Box<dyn PoolBlock>>,
    bytes: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// A pool that has no block yet.
    #[must_use]
    pub fn new(memory: impl Memory + 'static) -> Arc<Self> {
        Arc::new(Self {
            memory: Box::new(memory),
            free: Mutex::default(),
        })
    }

    /// Has a block ready, so that the first snapshot does not wait for the system to find memory.
    ///
    /// # Errors
    /// Why there is no memory, in words.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<(), String> {
        self.take(bytes).map(drop)
    }

    /// The smallest free block that is large enough, or a new one in the place of all others.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Lease, String> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = free.iter().enumerate();
        let fitting = fitting.filter(|(_, shelved)| shelved.0.bytes().len() >= bytes);
        let best = fitting.min_by_key(|(_, shelved)| shelved.0.bytes().len());
        let block = match best.map(|(at, _)| at) {
            Some(at) => free.swap_remove(at).0,
            None => {
                free.clear();
                self.memory.allocate(bytes)?
            }
        };
        Ok(Lease {
            block: Some(block),
            bytes,
            pool: self.clone(),
        })
    }
}

impl Lease {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        self.block
            .as_mut()
            .map_or(&mut [], |block| &mut block.bytes_mut()[..bytes])
    }

    /// The bytes, shared; the block goes back when the last of them is dropped.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        let block = self.block.as_ref();
        block.map_or(&[], |block| &block.bytes()[..self.bytes])
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return;
        };
        let mut free = self
            .pool
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // One is written while the other is uploaded or kept for peers.
        if free.len() < 2 {
            free.push(Shelved(block));
        }
    }
}

impl Memory for Heap {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn PoolBlock>, String> {
        let mut block: Vec<u8> = vec![];
        let refused = |error| format!("no memory for a snapshot of {bytes} bytes: {error}");
        block.try_reserve_exact(bytes).map_err(refused)?;
        // Touches each page.
        block.resize(bytes, 1);
        Ok(Box::new(block))
    }
}

impl PoolBlock for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Shelved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[derive(Clone, Debug, Default)]
    struct Counted(Arc<AtomicUsize>);

    impl Memory for Counted {
        fn allocate(&self, bytes: usize) -> Result<Box<dyn PoolBlock>, String> {
            self.0.fetch_add(1, Relaxed);
            Heap.allocate(bytes)
        }
    }

    #[test]
    fn snapshots_of_one_size_use_the_memory_of_those_before() {
        let memory = Counted::default();
        let pool = Pool::new(memory.clone());
        pool.reserve(100).unwrap();
        for _ in 0..10 {
            let mut lease = pool.take(90).unwrap();
            lease.bytes_mut().fill(7);
            let bytes = lease.freeze();
            let part = bytes.slice(10..20);
            drop(bytes);
            assert_eq!(part.as_ref(), [7; 10]);
        }
        assert_eq!(memory.0.load(Relaxed), 1, "one block for all");
        let one = pool.take(50).unwrap();
        let other = pool.take(50).unwrap();
        assert_eq!(memory.0.load(Relaxed), 2, "two at once are two blocks");
        drop((one, other));
        drop(pool.take(200).unwrap());
        assert_eq!(memory.0.load(Relaxed), 3, "a larger one takes their place");
    }
}
