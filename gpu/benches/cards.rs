//! Measures training and sampling on a card: tokens a second, and the share of the card's peak in
//! training. Says why where there is no card. `scripts/gpu-check.py` is the same model in PyTorch.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark reads the machine's own clock"
)]

use std::sync::Arc;
use std::time::Instant;

use odeon_gpu::cuda::{Cuda, GpuOptions};
use odeon_gpu::{
    AdamW, Arena, AttentionShape, Backend, BlockTable, CacheRow, LinearExtras, Param, Precision,
    RopeShape, RopeStyle, Segment, Store, Tape, Var,
};

const DIM: usize = 1024;
const LAYERS: usize = 8;
const FFN: usize = 2816;
const VOCAB: usize = 32_000;
const SEQUENCES: usize = 8;
const LENGTH: usize = 1024;
const ATTENTION: AttentionShape = AttentionShape {
    heads: 16,
    kv_heads: 8,
    head_dim: 64,
};
const STEPS: u32 = 10;
/// Sequences that are sampled at once, and tokens of each.
const SLOTS: usize = 64;
const SAMPLED: u32 = 256;

type B = Cuda;

#[allow(clippy::print_stdout, reason = "a report for people")]
fn main() {
    match Cuda::open(0, Precision::Bf16, &GpuOptions::default()) {
        Ok(cuda) => {
            let name = cuda.card().name().unwrap_or_else(|fault| fault.to_string());
            println!("{name}");
            train(&cuda, peak(&name));
            sample(&cuda);
            println!("{:?}", cuda.card().memory());
        }
        Err(error) => println!("skipped: {error}"),
    }
}

/// Dense bf16 operations a second, by NVIDIA's data sheets.
fn peak(name: &str) -> Option<f64> {
    let peaks = [
        ("H100", 989e12),
        ("H200", 989e12),
        ("A100", 312e12),
        ("L40S", 362e12),
    ];
    let known = peaks.iter().find(|(card, _)| name.contains(card));
    known.map(|(_, peak)| *peak)
}

fn layer() -> [usize; 6] {
    [
        DIM,
        ATTENTION.qkv_cols() * DIM,
        DIM * ATTENTION.out_cols(),
        DIM,
        2 * FFN * DIM,
        DIM * FFN,
    ]
}

fn numbers(len: usize, scale: f32) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 40) as f32 / 8_388_608.0 - 1.0) * scale
    };
    (0..len).map(|_| next()).collect()
}

fn rope() -> RopeShape {
    RopeShape {
        heads: ATTENTION.heads + ATTENTION.kv_heads,
        head_dim: ATTENTION.head_dim,
        row_stride: ATTENTION.qkv_cols(),
        theta: 10_000.0,
        style: RopeStyle::HalfSplit,
    }
}

fn record(tape: &mut Tape<B>, tokens: &[u32]) -> (Var, usize) {
    let mut at = 0;
    let mut next = |len: usize| {
        at += len;
        Param::new(0, at - len..at)
    };
    let table = next(VOCAB * DIM);
    let positions: Arc<[u32]> = (0..SEQUENCES).flat_map(|_| 0..LENGTH as u32).collect();
    let bounds: Arc<[u32]> = (0..=SEQUENCES).map(|s| (s * LENGTH) as u32).collect();
    let mut x = tape.embed(table.clone(), DIM, tokens.into());
    for _ in 0..LAYERS {
        let [norm, qkv, out, norm2, gate_up, down] = layer().map(&mut next);
        let residual = |x| LinearExtras {
            residual: Some(x),
            ..LinearExtras::default()
        };
        let h = tape.rms_norm(x, norm, 1e-5);
        let h = tape.linear(h, qkv, ATTENTION.qkv_cols());
        tape.rope(h, rope(), Arc::clone(&positions));
        let h = tape.attention(h, ATTENTION, Arc::clone(&bounds));
        x = tape.linear_with(h, out, DIM, residual(x));
        let h = tape.rms_norm(x, norm2, 1e-5);
        let h = tape.linear(h, gate_up, 2 * FFN);
        let h = tape.swiglu(h);
        x = tape.linear_with(h, down, DIM, residual(x));
    }
    let x = tape.rms_norm(x, next(DIM), 1e-5);
    let logprob = tape.vocab(x, table, 1.0, tokens.into()).logprob;
    (logprob, at)
}

#[allow(clippy::print_stdout, reason = "a report for people")]
fn train(cuda: &B, peak: Option<f64>) {
    let rows = SEQUENCES * LENGTH;
    let tokens: Vec<u32> = (0..rows).map(|i| (i * 7919 % VOCAB) as u32).collect();
    let mut tape = Tape::<B>::new();
    let (logprob, count) = record(&mut tape, &tokens);
    let plan = tape.plan_training(&[true], &[logprob]);
    let mut arena = Arena::default();
    arena.prepare(cuda, &plan);
    let mut params = cuda.parameters(count);
    cuda.write(B::view_mut(&mut params, 0..count), &numbers(count, 0.02));
    let mut grads = [Some(cuda.alloc(count))];
    let (mut m1, mut m2) = (cuda.alloc(count), cuda.alloc(count));
    let seed = vec![-1.0 / rows as f32; rows];
    let segments = [Segment {
        range: 0..count,
        weight_decay: 0.0,
    }];
    let mut begun = Instant::now();
    for step in 1..=STEPS + 3 {
        if step == 4 {
            cuda.flush();
            cuda.card()
                .synchronize()
                .unwrap_or_else(|fault| panic!("{fault}"));
            begun = Instant::now();
        }
        let mut tape = Tape::<B>::new();
        let (logprob, _) = record(&mut tape, &tokens);
        arena.prepare(cuda, &plan);
        tape.forward(cuda, &mut arena, &plan, &[&params]);
        tape.seed(cuda, &mut arena, &plan, logprob, &seed);
        if let Some(grads) = &mut grads[0] {
            cuda.fill(B::view_mut(grads, 0..count), 0.0);
        }
        tape.backward(cuda, &mut arena, &plan, &[&params], &mut grads);
        let call = AdamW {
            lr: 3e-4,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            step: u64::from(step),
            grad_scale: 1.0,
        };
        if let Some(grads) = &grads[0] {
            cuda.adamw(call, &segments, &mut params, grads, &mut m1, &mut m2);
        }
    }
    cuda.flush();
    cuda.card()
        .synchronize()
        .unwrap_or_else(|fault| panic!("{fault}"));
    let took = begun.elapsed().as_secs_f64() / f64::from(STEPS);
    // Six operations a parameter and token; attention's two products, causal, three times.
    let work = 6.0 * count as f64 + 6.0 * (LAYERS * DIM * LENGTH) as f64;
    let rate = rows as f64 / took;
    let share = peak.map_or_else(
        || "peak unknown".to_owned(),
        |peak| format!("MFU {:.1} %", 100.0 * work * rate / peak),
    );
    println!(
        "training, {:.0} million parameters: {rate:.0} tokens/s, {:.1} TFLOP/s, {share}",
        count as f64 / 1e6,
        work * rate / 1e12
    );
}

#[allow(clippy::print_stdout, reason = "a report for people")]
fn sample(cuda: &B) {
    let width = ATTENTION.qkv_cols();
    let weight = |outputs: usize, inputs: usize| {
        let buffer = cuda.buffer(&numbers(outputs * inputs, 0.02));
        cuda.pack(outputs, inputs, B::view(&buffer, 0..outputs * inputs))
    };
    let layers: Vec<_> = (0..LAYERS)
        .map(|_| {
            let packed = [
                weight(width, DIM),
                weight(DIM, ATTENTION.out_cols()),
                weight(2 * FFN, DIM),
                weight(DIM, FFN),
            ];
            let cache = SLOTS * cuda.cache_len(ATTENTION, SAMPLED as usize);
            (packed, cuda.alloc(cache))
        })
        .collect();
    let mut layers = layers;
    let blocks = BlockTable::contiguous(SLOTS, SAMPLED as usize, cuda.cache_block(1));
    let head = weight(VOCAB, DIM);
    let (table, norm) = (
        cuda.buffer(&numbers(VOCAB * DIM, 0.02)),
        cuda.buffer(&[1.0; DIM]),
    );
    let alloc = |cols: usize| cuda.alloc(SLOTS * cols);
    let (mut x, mut h, mut inv, mut qkv) = (alloc(DIM), alloc(DIM), alloc(1), alloc(width));
    let (mut out, mut gate_up, mut gated) =
        (alloc(ATTENTION.out_cols()), alloc(2 * FFN), alloc(FFN));
    let mut logits = alloc(VOCAB);
    let whole = |buffer: &<B as Backend>::Buffer| 0..B::len(buffer);
    macro_rules! see {
        ($buffer:expr) => {
            B::view(&$buffer, whole(&$buffer))
        };
    }
    macro_rules! put {
        ($buffer:expr) => {{
            let range = whole(&$buffer);
            B::view_mut(&mut $buffer, range)
        }};
    }
    let mut begun = Instant::now();
    let mut first = vec![0.0; VOCAB];
    for position in 0..SAMPLED {
        if position == 8 {
            begun = Instant::now();
        }
        let rows: Vec<CacheRow> = (0..SLOTS as u32)
            .map(|slot| CacheRow { slot, position })
            .collect();
        let tokens: Vec<u32> = rows.iter().map(|row| row.slot * 31 + position).collect();
        let positions = vec![position; SLOTS];
        cuda.gather(DIM, &tokens, see!(table), put!(x));
        for (packed, cache) in &mut layers {
            cuda.rms_norm(1e-5, see!(x), see!(norm), put!(h), put!(inv));
            cuda.packed_linear(see!(h), &packed[0], put!(qkv), Store::Set);
            cuda.rope(rope(), &positions, put!(qkv));
            cuda.cache_append(ATTENTION, &blocks, &rows, see!(qkv), put!(*cache));
            cuda.cache_attention(
                ATTENTION,
                &blocks,
                &rows,
                see!(qkv),
                see!(*cache),
                put!(out),
            );
            cuda.packed_linear(see!(out), &packed[1], put!(x), Store::Add);
            cuda.rms_norm(1e-5, see!(x), see!(norm), put!(h), put!(inv));
            cuda.packed_linear(see!(h), &packed[2], put!(gate_up), Store::Set);
            cuda.swiglu(FFN, see!(gate_up), put!(gated));
            cuda.packed_linear(see!(gated), &packed[3], put!(x), Store::Add);
        }
        cuda.packed_linear(see!(x), &head, put!(logits), Store::Set);
        cuda.read(B::view(&logits, 0..VOCAB), &mut first);
    }
    let took = begun.elapsed().as_secs_f64();
    let counters = cuda.counters();
    println!(
        "sampling, {SLOTS} sequences: {:.0} tokens/s; {} graphs recorded, {} replayed",
        f64::from(SAMPLED - 8) * SLOTS as f64 / took,
        counters.recorded,
        counters.replayed
    );
}
