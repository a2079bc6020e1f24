//! Measures training and sampling on a card: tokens a second, the share of the card's peak in training, and the
//! commands that a step of the larger model spends its time in. Says why where there is no card.
//! `scripts/gpu-check.py` is the same model in PyTorch.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark reads the machine's own clock"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use odeon_devices::fault::GpuFault;
use odeon_devices::memory::MemoryError;
use odeon_gpu::conformance::TwoMoments;
use odeon_gpu::cuda::card::{Card, Command};
use odeon_gpu::cuda::{Cuda, CudaBuffer, CudaError, Gpu, GpuMark, GpuOptions};
use odeon_gpu::{
    Arena, AttentionShape, Backend, BlockTable, CacheRow, LinearExtras, Param, Precision,
    RopeShape, RopeStyle, RowSpans, RuleText, Store, Tape, Var,
};

/// Sizes of a dense model, and of the batch that it is trained on.
struct Model {
    name: &'static str,
    width: usize,
    layers: usize,
    attention: AttentionShape,
    ffn: usize,
    vocab: usize,
}

const SEQUENCES: usize = 8;
const LENGTH: usize = 1024;
/// The 127 million parameters that are also sampled.
const SMALL: Model = Model {
    name: "127M",
    width: 1024,
    layers: 8,
    attention: AttentionShape {
        heads: 16,
        kv_heads: 8,
        head_dim: 64,
        window: None,
    },
    ffn: 2816,
    vocab: 32_000,
};
/// The sizes of Qwen3-0.6B.
const LARGE: Model = Model {
    name: "0.6B",
    width: 1024,
    layers: 28,
    attention: AttentionShape {
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        window: None,
    },
    ffn: 3072,
    vocab: 151_936,
};
const STEPS: u32 = 10;
/// Sequences that are sampled at once, and tokens of each.
const SLOTS: usize = 64;
const SAMPLED: u32 = 256;

#[allow(clippy::print_stdout, reason = "a report for people")]
fn main() {
    match Cuda::open(0, Precision::Bf16, &GpuOptions::default()) {
        Ok(cuda) => {
            let name = cuda.card().name().unwrap_or_else(|fault| fault.to_string());
            println!("{name}");
            for model in [&SMALL, &LARGE] {
                let (took, count) = train(model, &cuda, STEPS);
                report(model, took, count, peak(&name));
            }
            sample(&cuda);
            println!("{:?}", cuda.card().memory());
            drop(cuda);
            spent();
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

impl Model {
    /// Lengths of a layer's parameters.
    fn layer(&self) -> [usize; 6] {
        [
            self.width,
            self.attention.qkv_cols() * self.width,
            self.width * self.attention.out_cols(),
            self.width,
            2 * self.ffn * self.width,
            self.width * self.ffn,
        ]
    }

    fn rope(&self) -> RopeShape {
        RopeShape {
            heads: self.attention.heads + self.attention.kv_heads,
            head_dim: self.attention.head_dim,
            row_stride: self.attention.qkv_cols(),
            frequencies: RopeShape::plain(10_000.0, self.attention.head_dim),
            magnitude: 1.0,
            style: RopeStyle::HalfSplit,
        }
    }

    /// Records the log-probability of each token, and tells how many parameters there are.
    fn record<B: Backend>(&self, tape: &mut Tape<B>, tokens: &[u32]) -> (Var, usize) {
        let mut at = 0;
        let mut next = |len: usize| {
            at += len;
            Param::new(0, at - len..at)
        };
        let table = next(self.vocab * self.width);
        let positions: Arc<[u32]> = (0..SEQUENCES).flat_map(|_| 0..LENGTH as u32).collect();
        let bounds: Arc<[u32]> = (0..=SEQUENCES).map(|s| (s * LENGTH) as u32).collect();
        let spans = RowSpans::apart(bounds);
        let mut x = tape.embed(table.clone(), self.width, tokens.into());
        for _ in 0..self.layers {
            let [norm, qkv, out, norm2, gate_up, down] = self.layer().map(&mut next);
            let residual = |x| LinearExtras {
                residual: Some(x),
                ..LinearExtras::default()
            };
            let h = tape.rms_norm(x, norm, 1e-5);
            let h = tape.linear(h, qkv, self.attention.qkv_cols());
            tape.rope(h, self.rope(), Arc::clone(&positions));
            let h = tape.attention(h, self.attention, spans.clone());
            x = tape.linear_with(h, out, self.width, residual(x));
            let h = tape.rms_norm(x, norm2, 1e-5);
            let h = tape.linear(h, gate_up, 2 * self.ffn);
            let h = tape.swiglu(h);
            x = tape.linear_with(h, down, self.width, residual(x));
        }
        let x = tape.rms_norm(x, next(self.width), 1e-5);
        let logprob = tape.vocab(x, table, 1.0, tokens.into()).logprob;
        (logprob, at)
    }
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

/// Waits for all commands so far: they happen in their order.
fn arrived<C: Card>(cuda: &Cuda<C>, buffer: &CudaBuffer<C>) {
    cuda.read(Cuda::view(buffer, 0..1), &mut [0.0]);
}

/// Trains for so many steps after three more, and returns the seconds of one and the number of parameters.
fn train<C: Card>(model: &Model, cuda: &Cuda<C>, steps: u32) -> (f64, usize) {
    let rows = SEQUENCES * LENGTH;
    let tokens: Vec<u32> = (0..rows).map(|i| (i * 7919 % model.vocab) as u32).collect();
    let mut tape = Tape::<Cuda<C>>::new();
    let (logprob, count) = model.record(&mut tape, &tokens);
    let plan = tape.plan_training(&[true], &[logprob]);
    let mut arena = Arena::default();
    arena.prepare(cuda, &plan);
    let mut params = cuda.parameters(count);
    cuda.write(Cuda::view_mut(&mut params, 0..count), &numbers(count, 0.02));
    let mut grads = [Some(cuda.alloc(count))];
    let (mut m1, mut m2) = (cuda.alloc(count), cuda.alloc(count));
    let seed = vec![-1.0 / rows as f32; rows];
    let mut begun = Instant::now();
    for step in 1..=steps + 3 {
        if step == 4 {
            arrived(cuda, &params);
            begun = Instant::now();
        }
        let mut tape = Tape::<Cuda<C>>::new();
        let (logprob, _) = model.record(&mut tape, &tokens);
        arena.prepare(cuda, &plan);
        tape.forward(cuda, &mut arena, &plan, &[&params]);
        tape.seed(cuda, &mut arena, &plan, logprob, &seed);
        if let Some(grads) = &mut grads[0] {
            cuda.fill(Cuda::view_mut(grads, 0..count), 0.0);
        }
        tape.backward(cuda, &mut arena, &plan, &[&params], &mut grads);
        // AdamW, but for the correction of the moments' bias.
        let rule = TwoMoments {
            scale: 1.0,
            decay1: 0.9,
            gain1: 0.1,
            decay2: 0.999,
            gain2: 0.001,
            root2: 1.0,
            eps: 1e-8,
            rate: 3e-4,
            keep: 1.0,
        };
        if let Some(grads) = &grads[0] {
            cuda.update(
                &[(0..count, rule)],
                &mut params,
                grads,
                0,
                &mut [&mut m1, &mut m2],
            );
        }
    }
    arrived(cuda, &params);
    (begun.elapsed().as_secs_f64() / f64::from(steps), count)
}

#[allow(clippy::print_stdout, reason = "a report for people")]
fn report(model: &Model, took: f64, count: usize, peak: Option<f64>) {
    // Six operations a parameter and token; attention's two products, causal, three times.
    let work =
        6.0 * count as f64 + 6.0 * (model.layers * model.attention.out_cols() * LENGTH) as f64;
    let rate = (SEQUENCES * LENGTH) as f64 / took;
    let share = peak.map_or_else(
        || "peak unknown".to_owned(),
        |peak| format!("MFU {:.1} %", 100.0 * work * rate / peak),
    );
    println!(
        "training {} ({:.0} million parameters): {rate:.0} tokens/s, {:.1} TFLOP/s, {share}",
        model.name,
        count as f64 / 1e6,
        work * rate / 1e12
    );
}

/// Commands shown of a step, those that take longest.
const SHOWN: usize = 24;

/// Shows the commands that a step of the larger model spends its time in, each waited for.
#[allow(clippy::print_stdout, reason = "a report for people")]
fn spent() {
    let gpu = match Gpu::open(0, &GpuOptions::default()) {
        Ok(gpu) => gpu,
        Err(error) => return println!("skipped: {error}"),
    };
    let cuda = Cuda::over(Timed::new(gpu), Precision::Bf16);
    let steps = 2;
    train(&LARGE, &cuda, steps);
    let taken = cuda.card().taken.lock();
    let mut taken: Vec<(String, Taken)> = taken
        .unwrap_or_else(PoisonError::into_inner)
        .drain()
        .collect();
    taken.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.time));
    let runs = f64::from(steps + 3);
    let whole: Duration = taken.iter().map(|(_, taken)| taken.time).sum();
    let milliseconds = |time: Duration| 1e3 * time.as_secs_f64() / runs;
    println!(
        "\ncommands of a step of {}: {:.1} ms where each is waited for",
        LARGE.name,
        milliseconds(whole)
    );
    for (name, taken) in taken.iter().take(SHOWN) {
        let rate = taken.work / taken.time.as_secs_f64() / 1e12;
        let rate = match taken.work {
            0.0 => String::new(),
            _ => format!("{rate:6.0} TFLOP/s"),
        };
        println!(
            "{:8.2} ms  {:5.1} %  {:6.0}  {name:<44} {rate}",
            milliseconds(taken.time),
            100.0 * taken.time.as_secs_f64() / whole.as_secs_f64(),
            f64::from(taken.count) / runs,
        );
    }
}

/// Time, number and floating-point operations of commands of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    time: Duration,
    count: u32,
    work: f64,
}

/// A card that waits for each command and counts its time.
#[derive(Debug)]
struct Timed {
    gpu: Gpu,
    taken: Mutex<HashMap<String, Taken>>,
}

impl Timed {
    fn new(gpu: Gpu) -> Self {
        Self {
            gpu,
            taken: Mutex::default(),
        }
    }

    /// A command's kind, and its floating-point operations where it is a product.
    fn kind(command: &Command) -> (String, f64) {
        match command {
            Command::Launch(launch) => (launch.kernel.name().into_owned(), 0.0),
            Command::Gemm(gemm) => {
                let turned = |turned| if turned { "T" } else { "" };
                let name = format!(
                    "product {}x{}x{} a{} b{} {}",
                    gemm.m,
                    gemm.n,
                    gemm.k,
                    turned(gemm.a.turned),
                    turned(gemm.b.turned),
                    match gemm.addend {
                        odeon_gpu::cuda::card::Addend::Zero => "",
                        _ => "added",
                    }
                );
                (name, 2.0 * (gemm.batch * gemm.m * gemm.n * gemm.k) as f64)
            }
            Command::Copy { .. } => ("copy".to_owned(), 0.0),
            Command::Zero { .. } => ("zero".to_owned(), 0.0),
        }
    }
}

impl Card for Timed {
    type Graph = Vec<Command>;
    type Mark = GpuMark;

    fn device(&self) -> u32 {
        self.gpu.device()
    }

    fn identity(&self) -> Result<String, GpuFault> {
        self.gpu.identity()
    }

    fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        self.gpu.alloc(bytes)
    }

    fn free(&self, address: u64) {
        self.gpu.free(address);
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), GpuFault> {
        self.gpu.upload(to, bytes)
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), GpuFault> {
        self.gpu.download(from, bytes)
    }

    fn prepare(&self, rule: RuleText) -> Result<(), CudaError> {
        self.gpu.prepare(rule)
    }

    fn run(&self, commands: &[Command]) -> Result<(), GpuFault> {
        self.gpu.synchronize()?;
        for command in commands {
            let begun = Instant::now();
            self.gpu.run(std::slice::from_ref(command))?;
            self.gpu.synchronize()?;
            let time = begun.elapsed();
            let (name, work) = Self::kind(command);
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = taken.entry(name).or_default();
            taken.time += time;
            taken.count += 1;
            taken.work += work;
        }
        Ok(())
    }

    fn record(&self, commands: &[Command]) -> Result<Vec<Command>, GpuFault> {
        Ok(commands.to_vec())
    }

    fn replay(&self, commands: &Vec<Command>) -> Result<(), GpuFault> {
        self.run(commands)
    }

    fn stream(&self) -> Result<u64, GpuFault> {
        self.gpu.stream()
    }

    fn mark(&self) -> Result<GpuMark, GpuFault> {
        self.gpu.mark()
    }

    fn has_passed(&self, mark: &GpuMark) -> Result<bool, GpuFault> {
        self.gpu.has_passed(mark)
    }

    fn shared_bytes_max(&self) -> u32 {
        self.gpu.shared_bytes_max()
    }
}

#[allow(clippy::print_stdout, reason = "a report for people")]
fn sample(cuda: &Cuda) {
    let Model {
        width,
        layers,
        attention,
        ffn,
        vocab,
        ..
    } = SMALL;
    let qkv_cols = attention.qkv_cols();
    let weight = |outputs: usize, inputs: usize| {
        let buffer = cuda.buffer(&numbers(outputs * inputs, 0.02));
        cuda.pack(outputs, inputs, Cuda::view(&buffer, 0..outputs * inputs))
    };
    let layers: Vec<_> = (0..layers)
        .map(|_| {
            let packed = [
                weight(qkv_cols, width),
                weight(width, attention.out_cols()),
                weight(2 * ffn, width),
                weight(width, ffn),
            ];
            let cache = SLOTS * cuda.cache_len(attention, SAMPLED as usize);
            (packed, cuda.alloc(cache))
        })
        .collect();
    let mut layers = layers;
    let blocks = BlockTable::contiguous(SLOTS, SAMPLED as usize, cuda.cache_block(1));
    let head = weight(vocab, width);
    let (table, norm) = (
        cuda.buffer(&numbers(vocab * width, 0.02)),
        cuda.buffer(&vec![1.0; width]),
    );
    let alloc = |cols: usize| cuda.alloc(SLOTS * cols);
    let (mut x, mut h, mut inv, mut qkv) = (alloc(width), alloc(width), alloc(1), alloc(qkv_cols));
    let (mut out, mut gate_up, mut gated) =
        (alloc(attention.out_cols()), alloc(2 * ffn), alloc(ffn));
    let mut logits = alloc(vocab);
    let whole = |buffer: &<Cuda as Backend>::Buffer| 0..Cuda::len(buffer);
    macro_rules! see {
        ($buffer:expr) => {
            Cuda::view(&$buffer, whole(&$buffer))
        };
    }
    macro_rules! put {
        ($buffer:expr) => {{
            let range = whole(&$buffer);
            Cuda::view_mut(&mut $buffer, range)
        }};
    }
    let mut begun = Instant::now();
    let mut first = vec![0.0; vocab];
    for position in 0..SAMPLED {
        if position == 8 {
            begun = Instant::now();
        }
        let rows: Vec<CacheRow> = (0..SLOTS as u32)
            .map(|slot| CacheRow { slot, position })
            .collect();
        let tokens: Vec<u32> = rows.iter().map(|row| row.slot * 31 + position).collect();
        let positions = vec![position; SLOTS];
        cuda.gather(width, &tokens, see!(table), put!(x));
        for (packed, cache) in &mut layers {
            cuda.rms_norm(1e-5, see!(x), see!(norm), put!(h), put!(inv));
            cuda.packed_linear(see!(h), &packed[0], put!(qkv), Store::Set);
            cuda.rope(&SMALL.rope(), &positions, put!(qkv));
            cuda.cache_append(attention, &blocks, &rows, see!(qkv), put!(*cache));
            cuda.cache_attention(
                attention,
                &blocks,
                &rows,
                see!(qkv),
                see!(*cache),
                put!(out),
            );
            cuda.packed_linear(see!(out), &packed[1], put!(x), Store::Add);
            cuda.rms_norm(1e-5, see!(x), see!(norm), put!(h), put!(inv));
            cuda.packed_linear(see!(h), &packed[2], put!(gate_up), Store::Set);
            cuda.swiglu(ffn, see!(gate_up), put!(gated));
            cuda.packed_linear(see!(gated), &packed[3], put!(x), Store::Add);
        }
        cuda.packed_linear(see!(x), &head, put!(logits), Store::Set);
        cuda.read(Cuda::view(&logits, 0..vocab), &mut first);
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
