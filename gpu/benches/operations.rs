//! Time of the operations that a training step and a decoding step spend theirs in, at the sizes of
//! an 11 million parameter model on two threads.

#![allow(missing_docs, reason = "criterion's macros define items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use odeon_gpu::{AttentionShape, Backend, Cpu, CpuBuffer, MatMul, Store, VocabGrad, VocabStats};

const ROWS: usize = 2048;
const DIM: usize = 384;
const FFN: usize = 1040;

fn noise(cpu: &Cpu, len: usize) -> CpuBuffer {
    let mut state = 1u64;
    let values: Vec<f32> = (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect();
    cpu.buffer(&values)
}

/// Throughput is in floating-point operations.
fn products(c: &mut Criterion) {
    let cpu = Cpu::new(2);
    let mut group = c.benchmark_group("matmul");
    let (x, w) = (noise(&cpu, ROWS * FFN), noise(&cpu, 2 * FFN * DIM));
    let mut y = cpu.alloc(ROWS * 2 * FFN);
    let calls = [
        ("forward 2048x2080x384", MatMul::linear(ROWS, 2 * FFN, DIM)),
        ("forward 2048x384x1040", MatMul::linear(ROWS, DIM, FFN)),
        (
            "input gradient 2048x1040x384",
            MatMul::linear_dx(ROWS, DIM, FFN),
        ),
        (
            "weight gradient 384x1040x2048",
            MatMul::linear_dw(ROWS, DIM, FFN),
        ),
    ];
    for (name, call) in calls {
        group.throughput(Throughput::Elements(2 * (call.m * call.n * call.k) as u64));
        group.bench_function(name, |b| {
            b.iter(|| cpu.matmul(call, x.as_slice(), w.as_slice(), y.as_mut_slice()));
        });
    }
    let packed = cpu.pack(2 * FFN, DIM, w.as_slice());
    for rows in [1, 16, 32] {
        group.throughput(Throughput::Elements(2 * (rows * 2 * FFN * DIM) as u64));
        group.bench_function(format!("packed {rows}x2080x384"), |b| {
            let (x, y) = (
                &x.as_slice()[..rows * DIM],
                &mut y.as_mut_slice()[..rows * 2 * FFN],
            );
            b.iter(|| cpu.packed_linear(x, &packed, y, Store::Set));
        });
    }
    group.finish();
}

fn rows(c: &mut Criterion) {
    let cpu = Cpu::new(2);
    let mut group = c.benchmark_group("rows");
    let (x, w) = (noise(&cpu, ROWS * 2 * FFN), noise(&cpu, 256 * DIM));
    let (mut y, mut z) = (cpu.alloc(ROWS * 2 * FFN), cpu.alloc(ROWS));
    let n = ROWS * DIM;
    group.bench_function("rms_norm", |b| {
        let (x, w) = (&x.as_slice()[..n], &w.as_slice()[..DIM]);
        b.iter(|| cpu.rms_norm(1e-5, x, w, &mut y.as_mut_slice()[..n], z.as_mut_slice()));
    });
    group.bench_function("swiglu", |b| {
        b.iter(|| cpu.swiglu(FFN, x.as_slice(), &mut y.as_mut_slice()[..ROWS * FFN]));
    });
    let labels = vec![7; ROWS];
    let (mut entropy, mut lse) = (cpu.alloc(ROWS), cpu.alloc(ROWS));
    group.bench_function("vocab", |b| {
        b.iter(|| {
            let out = VocabStats {
                logprob: z.as_mut_slice(),
                entropy: entropy.as_mut_slice(),
                logsumexp: lse.as_mut_slice(),
            };
            cpu.vocab(1.0, &x.as_slice()[..n], w.as_slice(), &labels, out);
        });
    });
    group.bench_function("vocab backward", |b| {
        let mut dw = cpu.alloc(256 * DIM);
        b.iter(|| {
            let saved = VocabStats {
                logprob: z.as_slice(),
                entropy: entropy.as_slice(),
                logsumexp: lse.as_slice(),
            };
            let grad = VocabGrad {
                logprob: Some(z.as_slice()),
                entropy: None,
                dx: Some((&mut y.as_mut_slice()[..n], Store::Set)),
                dw: Some(dw.as_mut_slice()),
            };
            cpu.vocab_backward(1.0, &x.as_slice()[..n], w.as_slice(), &labels, saved, grad);
        });
    });
    group.finish();
}

fn attention(c: &mut Criterion) {
    let cpu = Cpu::new(2);
    let mut group = c.benchmark_group("attention");
    for (heads, head_dim, tokens) in [(4, 32, 128), (6, 64, 256), (6, 64, 2048)] {
        let shape = AttentionShape {
            heads,
            kv_heads: heads,
            head_dim,
        };
        let bounds: Vec<u32> = (0..=ROWS / tokens).map(|s| (s * tokens) as u32).collect();
        let qkv = noise(&cpu, ROWS * shape.qkv_cols());
        let dout = noise(&cpu, ROWS * shape.out_cols());
        let (mut out, mut lse) = (cpu.alloc(ROWS * shape.out_cols()), cpu.alloc(ROWS * heads));
        let mut dqkv = cpu.alloc(ROWS * shape.qkv_cols());
        group.bench_function(
            format!("forward {heads}x{head_dim}, {tokens} tokens"),
            |b| {
                let (out, lse) = (out.as_mut_slice(), lse.as_mut_slice());
                b.iter(|| cpu.attention(shape, &bounds, qkv.as_slice(), out, lse));
            },
        );
        group.bench_function(
            format!("backward {heads}x{head_dim}, {tokens} tokens"),
            |b| {
                b.iter(|| {
                    cpu.attention_backward(
                        shape,
                        &bounds,
                        qkv.as_slice(),
                        out.as_slice(),
                        lse.as_slice(),
                        dout.as_slice(),
                        dqkv.as_mut_slice(),
                    );
                });
            },
        );
    }
    group.finish();
}

criterion_group!(benches, products, rows, attention);
criterion_main!(benches);
