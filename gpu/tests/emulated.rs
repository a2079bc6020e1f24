//! The CUDA back-end over the emulated card passes the conformance suite: the kernels' own sources,
//! in both orders of threads, with and without rounding. Skipped by name where there is no C++
//! compiler.

use odeon_gpu::Precision;
use odeon_gpu::cuda::emulated::{EmulatedError, Order};
use odeon_gpu::cuda::{Cuda, Emulated};

/// The back-end, or nothing where there is no compiler.
fn emulated(order: Order, precision: Precision) -> Option<Cuda<Emulated>> {
    match Emulated::start(order) {
        Ok(card) => Some(Cuda::over(card, precision)),
        Err(error @ EmulatedError::NoCompiler { .. }) => {
            #[allow(clippy::print_stderr, reason = "who reads the output wants the reason")]
            {
                eprintln!("skipped: {error}");
            }
            None
        }
        Err(error) => panic!("{error}"),
    }
}

macro_rules! suite {
    ($name:ident, $order:expr, $precision:expr) => {
        suite!($name, $order, $precision; matmul elementwise reductions rms_norm rope attention
            swiglu gather combine mixture vocab softmax adamw muon packed_linear decode tape);
    };
    ($name:ident, $order:expr, $precision:expr; $($check:ident)*) => {
        mod $name {
            $(#[test]
            fn $check() {
                if let Some(backend) = super::emulated($order, $precision) {
                    odeon_gpu::conformance::$check(&backend);
                }
            })*
        }
    };
}

suite!(f32_forwards, super::Order::Forwards, super::Precision::F32);
suite!(
    f32_backwards,
    super::Order::Backwards,
    super::Precision::F32
);
suite!(
    bf16_forwards,
    super::Order::Forwards,
    super::Precision::Bf16
);
suite!(
    bf16_backwards,
    super::Order::Backwards,
    super::Precision::Bf16
);
