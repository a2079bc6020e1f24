//! The only source of randomness: the operating system's, or a simulation's seed.

use std::cell::RefCell;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

thread_local!(static SEEDED: RefCell<Option<ChaCha8Rng>> = const { RefCell::new(None) });

/// A random number.
pub(crate) fn number() -> u64 {
    SEEDED.with_borrow_mut(|seeded| match seeded {
        Some(rng) => rng.next_u64(),
        None => rand::random(),
    })
}

/// A random number from 0 to 1.
pub(crate) fn fraction() -> f32 {
    (number() >> 40) as f32 / (1u64 << 24) as f32
}

/// Makes all numbers on this thread follow from `seed` until the guard is dropped.
pub(crate) fn seed_thread(seed: u64) -> Seeded {
    SEEDED.set(Some(ChaCha8Rng::seed_from_u64(seed)));
    Seeded(())
}

/// See [`seed_thread`].
pub(crate) struct Seeded(());

impl Drop for Seeded {
    fn drop(&mut self) {
        SEEDED.set(None);
    }
}
