//! The processor back-end passes the conformance suite, on one thread, on several, with sums in one
//! order, with products in bf16 where the processor has them, and chosen at run time.

use odeon_gpu::{Cpu, CpuOptions, Precision};
use odeon_skip::{Need, skip};

mod one_thread {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::new(1));
}

mod three_threads {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::new(3));
}

mod deterministic {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::deterministic(2));
}

mod any {
    odeon_gpu::conformance_tests!(odeon_gpu::Any::Cpu(odeon_gpu::Cpu::new(2)));
}

/// The back-end with products in bf16, or nothing where the processor has none.
fn bf16(threads: usize, deterministic: bool) -> Option<Cpu> {
    let options = CpuOptions {
        threads,
        deterministic,
        products: Precision::Bf16,
    };
    let opened = Cpu::open(&options);
    opened.map_err(|error| skip(Need::Bf16, error)).ok()
}

macro_rules! bf16_suite {
    ($name:ident, $threads:expr, $deterministic:expr) => {
        bf16_suite!($name, $threads, $deterministic; matmul elementwise reductions rms_norm head_norm layer_norm
            rope attention block_attention swiglu gelu gather combine mixture route experts vocab softmax update
            packed_linear decode tape transformer offload);
    };
    ($name:ident, $threads:expr, $deterministic:expr; $($check:ident)*) => {
        mod $name {
            $(#[test]
            fn $check() {
                if let Some(cpu) = super::bf16($threads, $deterministic) {
                    odeon_gpu::conformance::$check(&cpu);
                }
            })*
        }
    };
}

bf16_suite!(bf16_one_thread, 1, false);
bf16_suite!(bf16_three_threads, 3, false);
bf16_suite!(bf16_deterministic, 2, true);
