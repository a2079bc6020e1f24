//! Each optimiser against its formula: bit for bit in `f32` where that is what runs, and in `f64`.

mod devices;
mod states;
mod tiles;

use odeon_gpu::{Cpu, MatMul, Store, Strides};

use super::*;
use crate::setting::spelled;

/// Reproducible numbers in [-1, 1].
struct Noise(u64);

impl Noise {
    fn vec(&mut self, len: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as f64 / f64::from(1u32 << 30) - 1.0) as f32
        };
        (0..len).map(|_| next()).collect()
    }
}

/// A model's tensors in small: an embedding, matrices of layers of three shapes, norms and a bias.
fn layout() -> Layout {
    let mut layout = Layout::new();
    layout.push("model.embed_tokens.weight", &[30, 16]);
    layout.push("model.layers.0.input_layernorm.weight", &[16]);
    layout.push("model.layers.0.wide.weight", &[12, 40]);
    layout.push("model.layers.0.wide.bias", &[13]);
    layout.push("model.layers.0.tall.weight", &[50, 20]);
    layout.push("model.layers.0.square.weight", &[16, 16]);
    layout.push("model.norm.weight", &[16]);
    layout.push("lm_head.weight", &[11, 16]);
    layout
}

/// Tensors of a layer.
fn is_hidden(entry: &TensorEntry) -> bool {
    entry.shape.len() == 2 && entry.name.starts_with("model.layers.")
}

const DECAY: f32 = 0.1;
const SCALE: f32 = 0.5;

fn lr_of(step: u64) -> f32 {
    0.01 / step as f32
}

/// What is left of a run: parameters, and each buffer of state.
type Left = (Vec<f32>, Vec<Vec<f32>>);

/// Steps of an optimiser on a back-end, with gradients that follow from the step's number.
fn run<B: Backend>(backend: &B, optimizer: Optimizer, steps: u64) -> Left {
    let layout = layout();
    let len = layout.len();
    let mut params = backend.parameters(len);
    backend.write(B::view_mut(&mut params, 0..len), &Noise(1).vec(len));
    let holding = Holding::of_part(&layout, 0..layout.len());
    let mut prepared = Prepared::new(optimizer, backend, &holding, DECAY);
    for step in 1..=steps {
        let grads = backend.buffer(&Noise(step + 1).vec(len));
        let numbers = (step, lr_of(step), SCALE);
        prepared.step(backend, numbers, &mut params, &grads, &[None, None, None]);
    }
    let state = prepared.state.iter();
    (
        backend.to_vec(&params),
        state.map(|buffer| backend.to_vec(buffer)).collect(),
    )
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// AdamW's formula in `f32`, in the order in which it always was computed: states of older versions go on
/// to the same bits.
fn adamw_in_f32(adamw: AdamW, entries: &[TensorEntry], steps: u64, len: usize) -> Left {
    let mut params = Noise(1).vec(len);
    let (mut first, mut second) = (vec![0.0f32; len], vec![0.0f32; len]);
    for step in 1..=steps {
        let grads = Noise(step + 1).vec(len);
        let lr = lr_of(step);
        let correct1 = (1.0 - f64::from(adamw.beta1).powf(step as f64)) as f32;
        let correct2 = (1.0 - f64::from(adamw.beta2).powf(step as f64)) as f32;
        for entry in entries {
            let decay = if entry.shape.len() == 2 { DECAY } else { 0.0 };
            for i in entry.range.clone() {
                let g = grads[i] * SCALE;
                let m = adamw.beta1 * first[i] + (1.0 - adamw.beta1) * g;
                let v = adamw.beta2 * second[i] + (1.0 - adamw.beta2) * g * g;
                first[i] = m;
                second[i] = v;
                params[i] = params[i] * (1.0 - lr * decay)
                    - lr / correct1 * m / (v.sqrt() / correct2.sqrt() + adamw.eps);
            }
        }
    }
    (params, vec![first, second])
}

#[test]
fn adamw_has_the_bits_of_its_formula_over_twenty_steps() {
    let (adamw, layout) = (AdamW::default(), layout());
    let (params, state) = adamw_in_f32(adamw, layout.entries(), 20, layout.len());
    for threads in [1, 3] {
        let (found, kept) = run(&Cpu::new(threads), Optimizer::AdamW(adamw), 20);
        assert_eq!(bits(&found), bits(&params));
        for (kept, state) in kept.iter().zip(&state) {
            assert_eq!(bits(kept), bits(state));
        }
    }
}

/// Muon's step on one matrix, by operations of the back-end one after the other: the products are the
/// machine's own, all else is written out.
fn muon_on_one(
    cpu: &Cpu,
    [rows, cols]: [usize; 2],
    grads: &[f32],
    momenta: &mut [f32],
) -> Vec<f32> {
    let mut x = vec![0.0; grads.len()];
    for ((x, g), m) in x.iter_mut().zip(grads).zip(momenta) {
        *m *= 0.95;
        cpu.axpy(SCALE, &[*g], std::slice::from_mut(m));
        *x = *g * SCALE;
        cpu.axpy(0.95, &[*m], std::slice::from_mut(x));
    }
    let norm = cpu.sum_squares(&x).sqrt();
    let by = 1.0 / (norm as f32).max(f32::MIN_POSITIVE);
    x.iter_mut().for_each(|x| *x *= by);
    let side = rows.min(cols);
    let product = |m, n, k, a, b| MatMul {
        a,
        b,
        c: Strides::rows(n),
        ..MatMul::linear(m, n, k)
    };
    let (lines, turned) = (Strides::rows(cols), Strides::transposed(cols));
    for _ in 0..5 {
        let (mut gram, mut poly) = (vec![0.0; side * side], vec![0.0; side * side]);
        let outer = if rows <= cols {
            product(side, side, cols, lines, turned)
        } else {
            product(side, side, rows, turned, lines)
        };
        cpu.matmul(outer, &x, &x, &mut gram);
        let square = product(side, side, side, Strides::rows(side), Strides::rows(side));
        cpu.matmul(square.scaled(2.0315), &gram, &gram, &mut poly);
        cpu.axpy(-4.7750, &gram, &mut poly);
        let mut next: Vec<f32> = x.iter().map(|x| 3.4445 * x).collect();
        let sides = Strides::rows(side);
        if rows <= cols {
            let last = product(rows, cols, rows, sides, lines).stored(Store::Add);
            cpu.matmul(last, &poly, &x, &mut next);
        } else {
            let last = product(rows, cols, cols, lines, sides).stored(Store::Add);
            cpu.matmul(last, &x, &poly, &mut next);
        }
        x = next;
    }
    x
}

#[test]
fn muon_has_the_bits_of_its_formula_over_twenty_steps() {
    let (layout, cpu) = (layout(), Cpu::new(1));
    let (hidden, others): (Vec<_>, Vec<_>) = layout.entries().iter().cloned().partition(is_hidden);
    let len = layout.len();
    let (mut params, mut state) = adamw_in_f32(AdamW::default(), &others, 20, len);
    for step in 1..=20 {
        let (grads, lr) = (Noise(step + 1).vec(len), lr_of(step));
        for entry in &hidden {
            let (at, [rows, cols]) = (entry.range.clone(), [entry.shape[0], entry.shape[1]]);
            let momenta = &mut state[0][at.clone()];
            let made = muon_on_one(&cpu, [rows, cols], &grads[at.clone()], momenta);
            let params = &mut params[at];
            params.iter_mut().for_each(|p| *p *= 1.0 - lr * DECAY);
            let size = 0.2 * (rows.max(cols) as f32).sqrt();
            cpu.axpy(-lr * size, &made, params);
        }
    }
    let (found, kept) = run(&cpu, Optimizer::Muon(Muon::default()), 20);
    assert_eq!(bits(&found), bits(&params));
    assert_eq!(bits(&kept[0]), bits(&state[0]));
    assert_eq!(bits(&kept[1]), bits(&state[1]));
}

/// Chen et al.'s algorithm 2 in `f64`, line by line.
fn lion_in_f64(lion: Lion, steps: u64) -> (Vec<f64>, Vec<f64>) {
    let layout = layout();
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let mut params = wide(Noise(1).vec(layout.len()));
    let mut momenta = vec![0.0; params.len()];
    let (beta1, beta2) = (f64::from(lion.beta1), f64::from(lion.beta2));
    for step in 1..=steps {
        let grads = wide(Noise(step + 1).vec(layout.len()));
        let lr = f64::from(lr_of(step));
        for entry in layout.entries() {
            let decay = if entry.shape.len() == 2 { DECAY } else { 0.0 };
            for i in entry.range.clone() {
                let g = f64::from(SCALE) * grads[i];
                let c: f64 = beta1 * momenta[i] + (1.0 - beta1) * g;
                params[i] -= lr * (c.signum() + f64::from(decay) * params[i]);
                momenta[i] = beta2 * momenta[i] + (1.0 - beta2) * g;
            }
        }
    }
    (params, momenta)
}

/// Panics with the place of the worst element beyond the tolerance, relative to the largest expected.
#[track_caller]
fn close(name: &str, tolerance: f64, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-3f64, |most, w| most.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs() / scale;
        assert!(error <= tolerance, "{name}[{i}]: {g} for {w}");
    }
}

#[test]
fn lion_follows_its_algorithm_over_a_hundred_steps() {
    for lion in [
        Lion::default(),
        Lion {
            beta1: 0.95,
            beta2: 0.98,
        },
    ] {
        let (params, momenta) = lion_in_f64(lion, 100);
        for threads in [1, 3] {
            let (found, kept) = run(&Cpu::new(threads), Optimizer::Lion(lion), 100);
            close("parameters", 1e-5, &found, &params);
            assert_eq!(kept.len(), 1, "one moment");
            close("momentum", 1e-5, &kept[0], &momenta);
        }
    }
}

#[test]
fn an_optimiser_is_chosen_by_its_word_and_refuses_settings_that_mean_nothing() {
    let read = |text: &str| {
        let mut read = serde_json::Deserializer::from_str(text);
        spelled::<Optimizer, _>(&mut read).map_err(|error| error.to_string())
    };
    for word in Optimizer::WORDS {
        let named = Optimizer::named(word).unwrap();
        assert_eq!(named.check(), Ok(()));
        assert_eq!(read(&format!("{word:?}")), Ok(named));
        assert_eq!(read(&format!("{{{word:?}: {{}}}}")), Ok(named));
        assert_eq!(read(&serde_json::to_string(&named).unwrap()), Ok(named));
    }
    assert_eq!(
        read(r#"{"muon": {"momentum": 0.9, "adamw": {"beta2": 0.99}}}"#),
        Ok(Optimizer::Muon(Muon {
            momentum: 0.9,
            adamw: AdamW {
                beta2: 0.99,
                ..AdamW::default()
            },
        }))
    );
    for (text, words) in [
        (
            r#""adam""#,
            "unknown variant `adam`, expected one of `adamw`, `muon`, `lion`, `adam8bit`",
        ),
        (r#"{"adam": {}}"#, "unknown variant `adam`"),
        (
            r#"{"lion": {"eps": 1}}"#,
            "unknown field `eps`, expected `beta1` or `beta2`",
        ),
        (
            "3",
            "expected one of \"adamw\", \"muon\", \"lion\", \"adam8bit\", or a table",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    for (text, words) in [
        (
            r#"{"lion": {"beta1": 1.0}}"#,
            "lion.beta1: expected a number of at least 0 and below 1, found 1",
        ),
        (
            r#"{"lion": {"beta2": -0.5}}"#,
            "lion.beta2: expected a number of at least 0 and below 1, found -0.5",
        ),
        (
            r#"{"adamw": {"eps": 0.0}}"#,
            "adamw.eps: expected a number above 0, found 0",
        ),
        (
            r#"{"muon": {"momentum": 2.0}}"#,
            "muon.momentum: expected a number of at least 0 and below 1, found 2",
        ),
        (
            r#"{"muon": {"adamw": {"beta1": 1.5}}}"#,
            "adamw.beta1: expected a number of at least 0 and below 1, found 1.5",
        ),
    ] {
        let error = read(text).unwrap().check().unwrap_err();
        assert_eq!(error.to_string(), words);
    }
}

/// Checkpoints know them by these names.
#[test]
fn what_optimisers_keep_is_named_as_it_always_was() {
    let kept = Optimizer::WORDS.iter().map(|word| {
        let optimizer = Optimizer::named(word).unwrap();
        (*word, optimizer.state())
    });
    let both = &["exp_avg", "exp_avg_sq"][..];
    assert_eq!(
        kept.collect::<Vec<_>>(),
        [
            ("adamw", both),
            ("muon", both),
            ("lion", &both[..1]),
            (
                "adam8bit",
                &["exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale"]
            ),
        ]
    );
}
