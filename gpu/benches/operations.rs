//! Time of the operations that a training step and a decoding step spend theirs in, at the sizes of
//! an 11 million parameter model on two threads.

use divan::Bencher;
use divan::counter::ItemsCount;
use odeon_gpu::conformance::TwoMoments;
use odeon_gpu::{
    AttentionShape, Backend, Cpu, CpuBuffer, MatMul, RowSpans, Store, VocabGrad, VocabStats,
};

fn main() {
    divan::main();
}

const ROWS: usize = 2048;
const DIM: usize = 384;
const FFN: usize = 1040;

/// A size with the name that it is shown by.
#[derive(Clone, Copy)]
struct Named<T>((&'static str, T));

impl<T> std::fmt::Display for Named<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.0)
    }
}

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
#[divan::bench(args = [
    ("forward 2048x2080x384", MatMul::linear(ROWS, 2 * FFN, DIM)),
    ("forward 2048x384x1040", MatMul::linear(ROWS, DIM, FFN)),
    ("input gradient 2048x1040x384", MatMul::linear_dx(ROWS, DIM, FFN)),
    ("weight gradient 384x1040x2048", MatMul::linear_dw(ROWS, DIM, FFN)),
].map(Named))]
fn matmul(bencher: Bencher<'_, '_>, Named((_, call)): Named<MatMul>) {
    let cpu = Cpu::new(2);
    let (x, w) = (noise(&cpu, ROWS * FFN), noise(&cpu, ROWS * FFN));
    let mut y = cpu.alloc(ROWS * 2 * FFN);
    bencher
        .counter(ItemsCount::new(2 * call.m * call.n * call.k))
        .bench_local(|| cpu.matmul(call, x.as_slice(), w.as_slice(), y.as_mut_slice()));
}

/// As [`matmul`], with weights that were packed once.
#[divan::bench(args = [1, 16, 32])]
fn matmul_packed(bencher: Bencher<'_, '_>, rows: usize) {
    let cpu = Cpu::new(2);
    let (x, w) = (noise(&cpu, rows * DIM), noise(&cpu, 2 * FFN * DIM));
    let mut y = cpu.alloc(rows * 2 * FFN);
    let packed = cpu.pack(2 * FFN, DIM, w.as_slice());
    bencher
        .counter(ItemsCount::new(2 * rows * 2 * FFN * DIM))
        .bench_local(|| {
            cpu.packed_linear(x.as_slice(), &packed, y.as_mut_slice(), Store::Set);
        });
}

/// A step of two moments over this many parameters: in the caches, and beyond them.
#[divan::bench(args = [65_536, 10_900_000])]
fn update(bencher: Bencher<'_, '_>, count: usize) {
    let cpu = Cpu::new(2);
    let (mut params, grads) = (noise(&cpu, count), noise(&cpu, count));
    let (mut m, mut v) = (cpu.alloc(count), cpu.alloc(count));
    let rule = TwoMoments {
        scale: 1.0,
        decay1: 0.9,
        gain1: 0.1,
        decay2: 0.95,
        gain2: 0.05,
        root2: 1.0,
        eps: 1e-8,
        rate: 1e-3,
        keep: 0.9999,
    };
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        cpu.update(
            &[(0..count, rule)],
            &mut params,
            &grads,
            0,
            &mut [&mut m, &mut v],
        );
    });
}

#[divan::bench]
fn rms_norm(bencher: Bencher<'_, '_>) {
    let cpu = Cpu::new(2);
    let (x, w) = (noise(&cpu, ROWS * DIM), noise(&cpu, DIM));
    let (mut y, mut z) = (cpu.alloc(ROWS * DIM), cpu.alloc(ROWS));
    let (x, w) = (x.as_slice(), w.as_slice());
    bencher.bench_local(|| cpu.rms_norm(1e-5, x, w, y.as_mut_slice(), z.as_mut_slice()));
}

#[divan::bench]
fn swiglu(bencher: Bencher<'_, '_>) {
    let cpu = Cpu::new(2);
    let (x, mut y) = (noise(&cpu, ROWS * 2 * FFN), cpu.alloc(ROWS * FFN));
    bencher.bench_local(|| cpu.swiglu(FFN, x.as_slice(), y.as_mut_slice()));
}

#[divan::bench]
fn vocab(bencher: Bencher<'_, '_>) {
    let cpu = Cpu::new(2);
    let (x, w) = (noise(&cpu, ROWS * DIM), noise(&cpu, 256 * DIM));
    let [mut logprob, mut entropy, mut lse] = [ROWS; 3].map(|rows| cpu.alloc(rows));
    let labels = vec![7; ROWS];
    bencher.bench_local(|| {
        let out = VocabStats {
            logprob: logprob.as_mut_slice(),
            entropy: entropy.as_mut_slice(),
            logsumexp: lse.as_mut_slice(),
        };
        cpu.vocab(1.0, x.as_slice(), w.as_slice(), &labels, out);
    });
}

#[divan::bench]
fn vocab_backward(bencher: Bencher<'_, '_>) {
    let cpu = Cpu::new(2);
    let (x, w) = (noise(&cpu, ROWS * DIM), noise(&cpu, 256 * DIM));
    let [logprob, entropy, lse] = [ROWS; 3].map(|rows| cpu.alloc(rows));
    let (mut dx, mut dw) = (cpu.alloc(ROWS * DIM), cpu.alloc(256 * DIM));
    let labels = vec![7; ROWS];
    bencher.bench_local(|| {
        let saved = VocabStats {
            logprob: logprob.as_slice(),
            entropy: entropy.as_slice(),
            logsumexp: lse.as_slice(),
        };
        let grad = VocabGrad {
            logprob: Some(logprob.as_slice()),
            entropy: None,
            dx: Some((dx.as_mut_slice(), Store::Set)),
            dw: Some(dw.as_mut_slice()),
        };
        cpu.vocab_backward(1.0, x.as_slice(), w.as_slice(), &labels, saved, grad);
    });
}

/// Heads, their width, and tokens of a sequence.
const ATTENTIONS: [(usize, usize, usize); 3] = [(4, 32, 128), (6, 64, 256), (6, 64, 2048)];

/// The buffers of an attention over sequences of equal length.
struct Attention {
    cpu: Cpu,
    shape: AttentionShape,
    spans: RowSpans,
    qkv: CpuBuffer,
    out: CpuBuffer,
    lse: CpuBuffer,
}

impl Attention {
    fn new((heads, head_dim, tokens): (usize, usize, usize)) -> Self {
        let cpu = Cpu::new(2);
        let shape = AttentionShape {
            heads,
            kv_heads: heads,
            head_dim,
            window: None,
        };
        Self {
            spans: RowSpans::apart(
                (0..=ROWS / tokens)
                    .map(|s| (s * tokens) as u32)
                    .collect::<Vec<_>>(),
            ),
            qkv: noise(&cpu, ROWS * shape.qkv_cols()),
            out: cpu.alloc(ROWS * shape.out_cols()),
            lse: cpu.alloc(ROWS * heads),
            shape,
            cpu,
        }
    }

    fn forward(&mut self) {
        let (out, lse) = (self.out.as_mut_slice(), self.lse.as_mut_slice());
        let qkv = self.qkv.as_slice();
        self.cpu.attention(self.shape, &self.spans, qkv, out, lse);
    }
}

#[divan::bench(args = ATTENTIONS)]
fn attention(bencher: Bencher<'_, '_>, size: (usize, usize, usize)) {
    let mut attention = Attention::new(size);
    bencher.bench_local(|| attention.forward());
}

#[divan::bench(args = ATTENTIONS)]
fn attention_backward(bencher: Bencher<'_, '_>, size: (usize, usize, usize)) {
    let mut it = Attention::new(size);
    it.forward();
    let dout = noise(&it.cpu, ROWS * it.shape.out_cols());
    let mut dqkv = it.cpu.alloc(ROWS * it.shape.qkv_cols());
    bencher.bench_local(|| {
        it.cpu.attention_backward(
            it.shape,
            &it.spans,
            it.qkv.as_slice(),
            it.out.as_slice(),
            it.lse.as_slice(),
            dout.as_slice(),
            dqkv.as_mut_slice(),
        );
    });
}
