//! Maps by ids, for many readers and writers at once.

use std::hash::{BuildHasherDefault, Hasher};

use dashmap::DashMap;

/// A hasher for ids, which are random or counted already.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(crate) type IdMap<K, V> = DashMap<K, V, BuildHasherDefault<IdHasher>>;
