//! Normal numbers.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Standard normal numbers by seed (Box and Muller 1958).
#[derive(Debug)]
pub(super) struct Normal {
    rng: ChaCha8Rng,
    spare: Option<f32>,
}

impl Normal {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            spare: None,
        }
    }

    /// Has the number of this place drawn next, from 0. Two are made of two words of the stream.
    pub(super) fn seek(&mut self, number: u64) {
        self.spare = None;
        self.rng.set_word_pos(u128::from(number / 2 * 2));
        if number % 2 == 1 {
            self.draw();
        }
    }

    pub(super) fn draw(&mut self) -> f32 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let mut uniform = || (f64::from(self.rng.next_u32()) + 0.5) / 2f64.powi(32);
        let radius = (-2.0 * uniform().ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * uniform()).sin_cos();
        self.spare = Some((radius * sin) as f32);
        (radius * cos) as f32
    }
}
