//! Normal numbers.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Standard normal numbers by seed (Box and Muller 1958).
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
