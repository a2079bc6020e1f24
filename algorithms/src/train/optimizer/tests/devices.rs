//! The same steps on every device: the emulated card in both orders of threads, and a real one where there
//! is one.

use odeon_gpu::cuda::emulated::{EmulatedError, ThreadOrder};
use odeon_gpu::cuda::{Cuda, CudaError, Emulated, GpuOptions, Nvrtc};
use odeon_gpu::{Precision, RuleText, UpdateRule};
use odeon_skip::{Need, skip};

use super::*;

const STEPS: u64 = 3;

fn emulated(order: ThreadOrder, precision: Precision) -> Option<Cuda<Emulated>> {
    match Emulated::start(order) {
        Ok(card) => Some(Cuda::over(card, precision)),
        Err(error @ EmulatedError::NoCompiler { .. }) => {
            skip(Need::CppCompiler, error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Rounding of products is the only one that makes results differ: those of rules for elements have none.
fn same_bits<B: Backend>(backend: &B) {
    for optimizer in [
        Optimizer::AdamW(AdamW::default()),
        Optimizer::Lion(Lion::default()),
        Optimizer::Adam8bit(Adam8bit::default()),
    ] {
        let (params, state) = run(&Cpu::new(1), optimizer, STEPS);
        let (found, kept) = run(backend, optimizer, STEPS);
        assert_eq!(bits(&found), bits(&params), "{}", optimizer.name());
        for (kept, state) in kept.iter().zip(&state) {
            assert_eq!(bits(kept), bits(state), "{}", optimizer.name());
        }
    }
}

/// Each optimiser within the error of the formula in `f64`.
fn follow<B: Backend>(backend: &B) {
    let (params, momenta) = lion_in_f64(Lion::default(), STEPS);
    let (found, kept) = run(backend, Optimizer::Lion(Lion::default()), STEPS);
    close("lion", 2e-5, &found, &params);
    close("lion's moment", 2e-5, &kept[0], &momenta);
    let layout = layout();
    let (params, state) = adamw_in_f64(layout.entries());
    let (found, kept) = run(backend, Optimizer::AdamW(AdamW::default()), STEPS);
    close("adamw", 2e-5, &found, &params);
    for (kept, state) in kept.iter().zip(&state) {
        close("adamw's moment", 2e-5, kept, state);
    }
    let (found, _) = run(backend, Optimizer::Muon(Muon::default()), STEPS);
    // Three steps of five rounds of products.
    let tolerance = 2e-5 + 30.0 * backend.precision().roundoff();
    close("muon", tolerance, &found, &muon_in_f64());
}

fn wide(values: Vec<f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}

fn adamw_in_f64(entries: &[TensorEntry]) -> (Vec<f64>, [Vec<f64>; 2]) {
    let len = layout().len();
    let AdamW { beta1, beta2, eps } = AdamW::default();
    let [beta1, beta2, eps] = [beta1, beta2, eps].map(f64::from);
    let mut params = wide(Noise(1).vec(len));
    let [mut first, mut second] = [(); 2].map(|()| vec![0.0; len]);
    for step in 1..=STEPS {
        let (grads, lr) = (wide(Noise(step + 1).vec(len)), f64::from(lr_of(step)));
        for entry in entries {
            let decay = if entry.shape.len() == 2 { DECAY } else { 0.0 };
            for i in entry.range.clone() {
                let g = f64::from(SCALE) * grads[i];
                first[i] = beta1 * first[i] + (1.0 - beta1) * g;
                second[i] = beta2 * second[i] + (1.0 - beta2) * g * g;
                let m = first[i] / (1.0 - beta1.powi(step as i32));
                let v: f64 = second[i] / (1.0 - beta2.powi(step as i32));
                params[i] -= lr * (f64::from(decay) * params[i] + m / (v.sqrt() + eps));
            }
        }
    }
    (params, [first, second])
}

fn muon_in_f64() -> Vec<f64> {
    let layout = layout();
    let (hidden, others): (Vec<_>, Vec<_>) = layout.entries().iter().cloned().partition(is_hidden);
    let (mut params, _) = adamw_in_f64(&others);
    let mut momenta = vec![0.0; layout.len()];
    for step in 1..=STEPS {
        let grads = wide(Noise(step + 1).vec(layout.len()));
        let lr = f64::from(lr_of(step));
        for entry in &hidden {
            let (rows, cols) = (entry.shape[0], entry.shape[1]);
            let nesterov = entry.range.clone().map(|i| {
                let g = f64::from(SCALE) * grads[i];
                momenta[i] = 0.95 * momenta[i] + g;
                g + 0.95 * momenta[i]
            });
            let made = orthogonal(rows, cols, nesterov.collect());
            let size = lr * 0.2 * (rows.max(cols) as f64).sqrt();
            for (p, o) in params[entry.range.clone()].iter_mut().zip(made) {
                *p = *p * (1.0 - lr * f64::from(DECAY)) - size * o;
            }
        }
    }
    params
}

/// The quintic iteration on the matrix itself, `X <- a X + (b A + c A^2) X` with `A = X X^T`.
fn orthogonal(rows: usize, cols: usize, mut x: Vec<f64>) -> Vec<f64> {
    let [a, b, c] = [3.4445f32, -4.7750, 2.0315].map(f64::from);
    let norm = x.iter().map(|v| v * v).sum::<f64>().sqrt();
    x.iter_mut().for_each(|v| *v /= norm);
    let sum = |depth: usize, term: &dyn Fn(usize) -> f64| (0..depth).map(term).sum::<f64>();
    for _ in 0..5 {
        let square = 0..rows * rows;
        let gram = square.clone().map(|at| {
            let (i, j) = (at / rows, at % rows);
            sum(cols, &|k| x[i * cols + k] * x[j * cols + k])
        });
        let gram: Vec<f64> = gram.collect();
        let poly = square.map(|at| {
            let (i, j) = (at / rows, at % rows);
            b * gram[at] + c * sum(rows, &|k| gram[i * rows + k] * gram[k * rows + j])
        });
        let poly: Vec<f64> = poly.collect();
        let next = (0..rows * cols).map(|at| {
            let (i, j) = (at / cols, at % cols);
            a * x[at] + sum(rows, &|k| poly[i * rows + k] * x[k * cols + j])
        });
        x = next.collect();
    }
    x
}

#[test]
fn on_the_processor() {
    follow(&Cpu::new(1));
    follow(&Cpu::new(3));
    same_bits(&Cpu::new(3));
}

#[test]
fn on_the_emulated_card_without_rounding() {
    for order in [ThreadOrder::Forwards, ThreadOrder::Backwards] {
        let Some(cuda) = emulated(order, Precision::F32) else {
            return;
        };
        follow(&cuda);
        same_bits(&cuda);
    }
}

#[test]
fn on_the_emulated_card_with_rounded_products() {
    for order in [ThreadOrder::Forwards, ThreadOrder::Backwards] {
        let Some(cuda) = emulated(order, Precision::Bf16) else {
            return;
        };
        follow(&cuda);
        same_bits(&cuda);
    }
}

/// The value; nothing where the machine lacks what it takes.
fn or_skipped<T>(result: Result<T, CudaError>, lacked: Need) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(
            error @ (CudaError::NoDriver
            | CudaError::NoDevice { .. }
            | CudaError::OldDriver { .. }
            | CudaError::OldDevice { .. }
            | CudaError::Driver { .. }
            | CudaError::NoLibrary { .. }
            | CudaError::OldLibrary { .. }),
        ) => {
            skip(lacked, error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn on_a_card() {
    for precision in [Precision::F32, Precision::Bf16] {
        let opened = Cuda::open(0, precision, &GpuOptions::default());
        let Some(cuda) = or_skipped(opened, Need::Card) else {
            return;
        };
        follow(&cuda);
    }
}

#[test]
fn every_rule_compiles_for_cards() {
    let Some(nvrtc) = or_skipped(Nvrtc::load(), Need::Nvrtc) else {
        return;
    };
    let rules: [RuleText; 2] = [
        <AdamW as ElementRule>::Update::TEXT,
        <Lion as ElementRule>::Update::TEXT,
    ];
    for rule in rules {
        for arch in ["sm_80", "sm_90a"] {
            let code = nvrtc.compile_rule(rule, arch);
            let code = code.unwrap_or_else(|error| panic!("{error}"));
            assert!(code.starts_with(b"\x7fELF"), "machine code");
        }
    }
}
