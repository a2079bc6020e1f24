//! One suite that every back-end passes: each operation against a reference in f64, forward, and
//! backward against central differences of that reference.
//!
//! Errors are relative to the largest element of the expected result. Forward results must be
//! within [`FORWARD`], gradients within [`BACKWARD`]. Sizes cross the tile and chunk borders of the
//! implementations.
//!
//! A back-end that rounds the operands of products ([`Backend::precision`](crate::Backend)) is
//! allowed twice the unit roundoff `u` more for each product that a result has passed through: both
//! operands of a term are off by at most `u`, so a sum of terms is off by `2u` times the sum of
//! their magnitudes. Rounding errors have random signs, and so have the suite's operands; error and
//! result then grow alike with the root of the number of terms, and the bound holds relative to
//! the largest element for any length of the sum. What reads no product is held to the same bounds
//! as in f32.
//!
//! [`conformance_tests!`](crate::conformance_tests) makes one test of each operation.

mod blocks;
mod checks;
mod dropouts;
mod experts;
mod layers;
mod offload;
mod reference;
mod update;

use crate::backend::Backend;

pub use blocks::block_attention;
pub use checks::{
    attention, combine, decode, elementwise, gather, halves, head_norm, matmul, mixture,
    packed_linear, reductions, rms_norm, rope, softmax, swiglu, tape, transformer, vocab,
};
pub use dropouts::dropout;
pub use experts::{experts, route};
pub use layers::{gelu, layer_norm};
pub use offload::offload;
pub use update::{TwoMoments, update};

/// Largest accepted relative error of a forward result.
pub const FORWARD: f64 = 2e-5;
/// Largest accepted relative error of a gradient.
pub const BACKWARD: f64 = 1e-4;

/// Makes one test of each operation for a back-end.
///
/// ```
/// odeon_gpu::conformance_tests!(odeon_gpu::Cpu::new(2));
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($backend:expr) => {
        $crate::conformance_tests!($backend; matmul elementwise halves reductions rms_norm head_norm
            layer_norm rope attention block_attention swiglu gelu dropout gather combine mixture route experts vocab
            softmax update packed_linear decode tape transformer offload);
    };
    ($backend:expr; $($check:ident)*) => {$(
        #[test]
        fn $check() {
            $crate::conformance::$check(&$backend);
        }
    )*};
}

/// Reproducible numbers in [-1, 1].
#[derive(Debug)]
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    }

    fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next() as f32).collect()
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// Panics with the name and place of the worst element beyond the tolerance.
#[track_caller]
fn close(name: &str, tolerance: f64, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{name}: number of results");
    let scale = want.iter().fold(1e-3f64, |m, w| m.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs() / scale;
        assert!(
            error <= tolerance,
            "{name}[{i}]: {g} instead of {w}, error {error:.1e}"
        );
    }
}

/// The accepted error of a forward result that has passed through this many products.
fn forward<B: Backend>(backend: &B, products: u32) -> f64 {
    FORWARD + 2.0 * f64::from(products) * backend.precision().roundoff()
}

/// The accepted error of a gradient that has passed through this many products.
fn backward<B: Backend>(backend: &B, products: u32) -> f64 {
    BACKWARD + 2.0 * f64::from(products) * backend.precision().roundoff()
}

/// Compares a gradient with central differences of `loss` at up to 48 elements of `at`, spread
/// evenly.
#[track_caller]
fn gradient_close(
    name: &str,
    tolerance: f64,
    got: &[f32],
    at: &[f32],
    loss: impl Fn(&[f64]) -> f64,
) {
    const STEP: f64 = 1e-5;
    let mut x = wide(at);
    let stride = (x.len() / 48).max(1) | 1;
    let (mut some, mut want) = (Vec::new(), Vec::new());
    for i in (0..x.len()).step_by(stride) {
        let here = x[i];
        x[i] = here + STEP;
        let up = loss(&x);
        x[i] = here - STEP;
        let down = loss(&x);
        x[i] = here;
        some.push(got[i]);
        want.push((up - down) / (2.0 * STEP));
    }
    close(name, tolerance, &some, &want);
}

/// Sum of products: a scalar loss whose gradient is `weights`.
fn dot(values: &[f64], weights: &[f32]) -> f64 {
    values
        .iter()
        .zip(weights)
        .map(|(v, w)| v * f64::from(*w))
        .sum()
}
