//! The same suites on a real card. Skipped by name where there is none.
//! Without a driver, opening says so and nothing panics.

use std::collections::HashSet;
use std::process;
use std::sync::OnceLock;

use odeon_devices::driver::conformance::Rig;
use odeon_gpu::cuda::{Cuda, CudaDriver, GpuOptions};
use odeon_gpu::{Backend, Cpu, Precision};

use crate::lacking::or_skipped;

fn card(precision: Precision) -> Option<Cuda> {
    or_skipped(Cuda::open(0, precision, &GpuOptions::default()))
}

macro_rules! suite {
    ($name:ident, $precision:expr) => {
        suite!($name, $precision; matmul elementwise halves reductions rms_norm head_norm rope attention
            block_attention swiglu dropout gather combine mixture route experts vocab softmax update
            packed_linear decode tape transformer offload);
    };
    ($name:ident, $precision:expr; $($check:ident)*) => {
        mod $name {
            $(#[test]
            fn $check() {
                if let Some(backend) = super::card($precision) {
                    odeon_gpu::conformance::$check(&backend);
                }
            })*
        }
    };
}

suite!(f32, super::Precision::F32);
suite!(bf16, super::Precision::Bf16);

/// The driver's suite.
mod driver {
    macro_rules! checks {
        ($($check:ident)*) => {$(
            #[test]
            fn $check() {
                if let Some(rig) = super::rig() {
                    odeon_devices::driver::conformance::$check(rig);
                }
            }
        )*};
    }

    checks!(copies_arrive_in_order a_budget_refuses_its_owner_by_name closing_gives_all_memory_back
        handles_of_what_is_gone_are_refused places_outside_of_memory_are_refused
        unknown_devices_are_refused an_idle_device_is_healthy);
}

fn rig() -> Option<Rig<CudaDriver>> {
    let driver = or_skipped(CudaDriver::new())?;
    Some(Rig {
        driver,
        process: process::id(),
        pass: |_| std::thread::yield_now(),
    })
}

#[test]
fn without_a_driver_opening_says_so_each_time() {
    static SEEN: OnceLock<HashSet<String>> = OnceLock::new();
    let texts: HashSet<String> = (0..3)
        .filter_map(|_| CudaDriver::new().err())
        .map(|error| error.to_string())
        .collect();
    assert!(texts.len() <= 1, "always the same: {texts:?}");
    for text in SEEN.get_or_init(|| texts) {
        assert!(text.contains("driver"), "{text}");
    }
}

/// Products of real sizes, against the processor: relative error printed, bounded as in the suite.
#[test]
fn products_of_a_model_agree_with_the_processor() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some(cuda) = card(precision) else { return };
        let cpu = Cpu::new(0);
        let (rows, outputs, inputs) = (512, 1024, 768);
        let number =
            |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u32 as f32 / 3.4e7 % 2.0 - 1.0;
        let x: Vec<f32> = (0..rows * inputs).map(number).collect();
        let w: Vec<f32> = (0..outputs * inputs).map(|i| number(i + 77)).collect();
        let call = odeon_gpu::MatMul::linear(rows, outputs, inputs);
        let want = product(&cpu, call, &x, &w);
        let got = product(&cuda, call, &x, &w);
        let scale = want.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let worst = want
            .iter()
            .zip(&got)
            .fold(0.0f32, |most, (w, g)| most.max((w - g).abs()));
        let bound = 2e-5 + 2.0 * precision.roundoff() as f32;
        assert!(worst / scale <= bound, "{precision:?}: {}", worst / scale);
    }
}

fn product<B: Backend>(backend: &B, call: odeon_gpu::MatMul, x: &[f32], w: &[f32]) -> Vec<f32> {
    let (x, w) = (backend.buffer(x), backend.buffer(w));
    let len = call.m * call.n;
    let mut y = backend.alloc(len);
    let (x, w) = (B::view(&x, 0..B::len(&x)), B::view(&w, 0..B::len(&w)));
    backend.matmul(call, x, w, B::view_mut(&mut y, 0..len));
    backend.to_vec(&y)
}
