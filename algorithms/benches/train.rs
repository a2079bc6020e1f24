//! Training and sampling speed of two small models, beside PyTorch where it is installed.
//!
//! `cargo bench -p odeon-algorithms --bench train -- [--threads N] [--seconds S] [--only
//! tiny:train] [--no-peer]`

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use std::process::Command;
use std::time::{Duration, Instant};

use odeon_algorithms::generate::{Generator, GeneratorConfig, Request, Sampling};
use odeon_algorithms::model::{Batch, Model, ModelConfig, Sequence};
use odeon_algorithms::train::{CrossEntropy, TrainConfig, Trainer};
use odeon_gpu::Cpu;

struct Case {
    name: &'static str,
    config: ModelConfig,
    tokens: usize,
    batch: usize,
}

/// Matrix sizes of two GPTs of 0.83 and 10.9 million parameters.
fn cases() -> [Case; 2] {
    let square = |vocab, dim, layers, heads, ffn| ModelConfig {
        vocab,
        dim,
        layers,
        heads,
        kv_heads: heads,
        head_dim: dim / heads,
        ffn,
        tied_head: false,
        ..ModelConfig::default()
    };
    [
        Case {
            name: "tiny",
            config: square(96, 128, 4, 4, 352),
            tokens: 128,
            batch: 16,
        },
        Case {
            name: "small",
            config: square(256, 384, 6, 6, 1040),
            tokens: 256,
            batch: 8,
        },
    ]
}

const SLOTS: usize = 32;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |flag: &str, default: f64| {
        let at = args.iter().position(|a| a == flag);
        at.and_then(|i| args.get(i + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let threads = number("--threads", 2.0) as usize;
    let budget = Duration::from_secs_f64(number("--seconds", 5.0));
    let only = args
        .iter()
        .position(|a| a == "--only")
        .and_then(|i| args.get(i + 1));
    let measures: [(&str, Measure); 2] = [("train", train), ("sample", sample)];
    for case in cases() {
        for (what, measure) in measures {
            if only.is_none_or(|only| *only == format!("{}:{what}", case.name)) {
                report(
                    "odeon",
                    case.name,
                    what,
                    threads,
                    &measure(&case, threads, budget),
                );
            }
        }
    }
    if args.iter().any(|a| a == "--no-peer") {
        return;
    }
    let torch = Command::new("python3")
        .args(["-c", "import torch"])
        .output();
    if !torch.is_ok_and(|o| o.status.success()) {
        println!("skipped: pytorch_peer, because python3 cannot import torch");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/pytorch_peer.py");
    let seconds = budget.as_secs_f64().to_string();
    let status = Command::new("python3")
        .args([script, &threads.to_string(), &seconds])
        .status();
    if !status.is_ok_and(|s| s.success()) {
        println!("failed: pytorch_peer");
    }
}

type Measure = fn(&Case, usize, Duration) -> Vec<f64>;

/// Tokens per second of each repetition.
fn repeat(budget: Duration, mut run: impl FnMut() -> usize) -> Vec<f64> {
    run();
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    let now = Instant::now;
    let start = now();
    let mut rates = Vec::new();
    while start.elapsed() < budget || rates.len() < 3 {
        let step = now();
        let tokens = run();
        rates.push(tokens as f64 / step.elapsed().as_secs_f64());
    }
    rates
}

fn train(case: &Case, threads: usize, budget: Duration) -> Vec<f64> {
    let model = Model::init(Cpu::new(threads), case.config.clone(), 1).expect("a valid model");
    let settings = TrainConfig {
        lr: 1e-3,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(model, settings);
    let vocab = case.config.vocab;
    let texts: Vec<Vec<u32>> = (0..case.batch)
        .map(|b| {
            (0..=case.tokens)
                .map(|t| ((t * t + b * 31) % vocab) as u32)
                .collect()
        })
        .collect();
    let sequences: Vec<_> = texts
        .iter()
        .map(|tokens| Sequence { tokens, prompt: 1 })
        .collect();
    let batch = Batch::pack(&sequences).expect("sequences with prompts");
    repeat(budget, || {
        trainer.accumulate(&batch, &mut CrossEntropy::mean_over(batch.predicted()));
        trainer.apply(1.0);
        batch.predicted()
    })
}

fn sample(case: &Case, threads: usize, budget: Duration) -> Vec<f64> {
    let options = GeneratorConfig {
        slots: SLOTS,
        max_tokens: case.tokens,
        prefill_tokens: SLOTS,
    };
    let mut generator =
        Generator::new(Cpu::new(threads), case.config.clone(), options).expect("a valid model");
    let model = Model::init(Cpu::new(threads), case.config.clone(), 1).expect("a valid model");
    generator
        .load_flat(&model.to_flat())
        .expect("the same layout");
    repeat(budget, || {
        for id in 0..SLOTS as u64 {
            let request = Request {
                id,
                prompt: vec![1],
                max_new_tokens: case.tokens - 1,
                sampling: Sampling::default(),
                seed: id,
                resumed: 0,
            };
            generator.submit(request).expect("a valid request");
        }
        let mut tokens = 0;
        while !generator.is_idle() {
            tokens += generator
                .step()
                .iter()
                .map(|s| s.tokens.len())
                .sum::<usize>();
        }
        tokens
    })
}

/// One line a measurement, the same as the peer's.
fn report(who: &str, model: &str, what: &str, threads: usize, rates: &[f64]) {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
    println!(
        "{who:8} {model:6} {what:7} threads={threads} median={median:9.0} tok/s best={best:9.0} tok/s runs={}",
        rates.len()
    );
}
