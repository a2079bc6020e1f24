//! Rates of products in bf16, beside those in f32 and beside the bare kernel over panels that lie in the first cache.
//!
//! `cargo bench -p odeon-gpu --bench products -- [--threads N] [--rounds N] [--only TEXT]`
//!
//! Beside them the time in which a number of the left factor is rounded into panels, where that lies in no cache.
//!
//! All take turns, so that a slow minute of the machine hits all; rates are medians over the rounds, and so is the
//! ratio of each round. They are by the processor time of all threads, so that what others take does not count; nor
//! does a thread that waits for another.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use odeon_gpu::{Backend, Cpu, CpuOptions, MatMul, Precision};
use rustix::time::{ClockId, clock_gettime};

/// Seconds of processor time in which one rate is measured, at least.
const BUDGET: f64 = 0.06;
/// Bytes that no cache holds.
const COLD: usize = 160 << 20;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |flag: &str, default: usize| {
        let at = args.iter().position(|a| a == flag);
        at.and_then(|i| args.get(i + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let (threads, rounds) = (number("--threads", 1), number("--rounds", 15).max(1));
    let options = CpuOptions {
        threads,
        products: Precision::Bf16,
        ..CpuOptions::default()
    };
    let bf16 = match Cpu::open(&options) {
        Ok(cpu) => cpu,
        Err(error) => return println!("skipped: products, because {error}"),
    };
    let f32 = Cpu::new(threads);
    println!("GFLOP/s, {threads} threads, median of {rounds} rounds (lowest to highest)");
    let only = args.iter().position(|a| a == "--only");
    let only = only.and_then(|i| args.get(i + 1)).map_or("", |text| text);
    for (name, call) in calls().into_iter().filter(|(name, _)| name.contains(only)) {
        let [a, b, c] = [
            call.a.extent(1, call.m, call.k),
            call.b.extent(1, call.k, call.n),
            call.c.extent(1, call.m, call.n),
        ];
        let (a, b, mut c) = (noise(a), noise(b), vec![0.0; c]);
        let operations = 2 * call.m * call.n * call.k;
        let mut all = [const { vec![] }; 5];
        for _ in 0..rounds {
            let bare = rate(threads, || {
                bf16.bare_products(200).expect("products are in bf16")
            });
            let [own, wide] = [&bf16, &f32].map(|cpu| {
                rate(threads, || {
                    cpu.matmul(call, &a, &b, &mut c);
                    operations
                })
            });
            let values = [bare, own, wide, own / bare, own / wide];
            all.iter_mut()
                .zip(values)
                .for_each(|(all, value)| all.push(value));
        }
        // Of factors that lie in no cache, as in a step.
        let many: Vec<Vec<f32>> = vec![a.clone(); (COLD / (4 * a.len())).max(1)];
        let rounded = (0..rounds).map(|_| {
            let begun = now();
            let numbers = many.iter().map(|a| bf16.bare_rounding(&call, a));
            let numbers = numbers
                .sum::<Option<usize>>()
                .expect("products are in bf16");
            (now() - begun) * 1e9 / numbers as f64
        });
        let rounded = spread("ns to round a left number", rounded.collect(), 2);
        let [bare, own, wide, to_bare, to_wide] = all;
        println!(
            "{name:32}{}{}{}{}{}{rounded}",
            spread("bare", bare, 0),
            spread("bf16", own, 0),
            spread("f32", wide, 0),
            spread("bf16/bare", to_bare, 2),
            spread("bf16/f32", to_wide, 2)
        );
    }
}

/// Cubes, and the layouts of a layer of 11 and of 135 million parameters.
fn calls() -> Vec<(String, MatMul)> {
    let cube = |size| (format!("{size}^3"), MatMul::linear(size, size, size));
    let layer = |rows, outputs, inputs| {
        [
            ("forward", MatMul::linear(rows, outputs, inputs)),
            ("input gradient", MatMul::linear_dx(rows, outputs, inputs)),
            ("weight gradient", MatMul::linear_dw(rows, outputs, inputs)),
        ]
        .map(|(what, call)| (format!("{what} {rows}x{outputs}x{inputs}"), call))
    };
    [512, 1024, 1536, 2048]
        .map(cube)
        .into_iter()
        .chain(layer(2048, 2080, 384))
        .chain(layer(8192, 2080, 384).into_iter().skip(2))
        .chain(layer(1024, 3072, 576))
        .collect()
}

fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u64;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(next).collect()
}

/// Seconds of processor time of all threads.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Billions of operations per second, over as many runs as there is time for.
fn rate(threads: usize, mut run: impl FnMut() -> usize) -> f64 {
    let (start, mut operations, mut taken) = (now(), 0, 0.0);
    while taken < BUDGET * threads as f64 {
        operations += run();
        taken = now() - start;
    }
    operations as f64 / 1e9 / (taken / threads as f64)
}

/// One column: the median, and how far the values lie apart.
fn spread(of: &str, mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let (low, median, high) = (
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    );
    format!("  {of} {median:.digits$} ({low:.digits$} to {high:.digits$})")
}
