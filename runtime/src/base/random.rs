//! The only source of randomness: the operating system's, or a simulation's seed.

use std::cell::{Cell, RefCell};

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::base::shape;

thread_local!(static SEEDED: RefCell<Option<ChaCha8Rng>> = const { RefCell::new(None) });

thread_local! {
    /// Where the quick numbers of this thread are; 0 before the first.
    static QUICK: Cell<u64> = const { Cell::new(0) };
}

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

/// Numbers for ids that only have to differ, at a fraction of the cost.
pub(crate) fn quick<const N: usize>() -> [u64; N] {
    QUICK.with(|state| {
        if state.get() == 0 {
            state.set(number() | 1);
        }
        std::array::from_fn(|_| {
            let next = shape::mix(state.get(), 0x2545_f491_4f6c_dd1d);
            state.set(next);
            next
        })
    })
}

/// Makes all numbers on this thread follow from `seed` until the guard is dropped.
pub(crate) fn seed_thread(seed: u64) -> Seeded {
    QUICK.set(0);
    SEEDED.set(Some(ChaCha8Rng::seed_from_u64(seed)));
    Seeded(())
}

/// See [`seed_thread`].
pub(crate) struct Seeded(());

impl Drop for Seeded {
    fn drop(&mut self) {
        SEEDED.set(None);
        QUICK.set(0);
    }
}
