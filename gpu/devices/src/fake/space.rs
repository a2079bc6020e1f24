//! The address space of a fake device, shared by its processes.

use std::collections::BTreeMap;

/// Which process holds which part. The first hole that fits is given.
#[derive(Debug)]
pub(super) struct Space {
    capacity: u64,
    /// By address: bytes and process.
    held: BTreeMap<u64, (u64, u32)>,
}

impl Space {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            held: BTreeMap::new(),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity - self.held.values().map(|(bytes, _)| bytes).sum::<u64>()
    }

    /// Bytes by process.
    pub(super) fn shares(&self) -> BTreeMap<u32, u64> {
        let mut shares = BTreeMap::new();
        for (bytes, process) in self.held.values() {
            *shares.entry(*process).or_default() += bytes;
        }
        shares
    }

    pub(super) fn holds(&self, process: u32) -> bool {
        self.held.values().any(|(_, of)| *of == process)
    }

    pub(super) fn take(&mut self, process: u32, bytes: u64) -> Option<u64> {
        let (address, _) = self.holes().find(|(_, hole)| *hole >= bytes)?;
        self.held.insert(address, (bytes, process));
        Some(address)
    }

    /// All that is free, for one process.
    pub(super) fn take_all(&mut self, process: u32) {
        let holes: Vec<_> = self.holes().collect();
        for (address, bytes) in holes {
            self.held.insert(address, (bytes, process));
        }
    }

    /// Only from the process that holds it.
    pub(super) fn give(&mut self, process: u32, address: u64) {
        if self
            .held
            .get(&address)
            .is_some_and(|(_, of)| *of == process)
        {
            self.held.remove(&address);
        }
    }

    pub(super) fn give_all(&mut self, process: u32) {
        self.held.retain(|_, (_, of)| *of != process);
    }

    /// Address and bytes of each hole.
    fn holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let ends = self.held.iter().map(|(at, (bytes, _))| at + bytes);
        let begins = self.held.keys().copied().chain([self.capacity]);
        [0].into_iter()
            .chain(ends)
            .zip(begins)
            .filter(|(from, to)| to > from)
            .map(|(from, to)| (from, to - from))
    }
}
