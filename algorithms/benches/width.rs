//! Losses of one backbone under rows of several widths: `cargo bench -p odeon-algorithms --bench width -- [--steps N]
//! [--seeds N] [--threads N]`
//!
//! A small model of bytes learns the project's own documentation, of which the last part of each text is held out. All
//! widths have the same layers, steps and batches. Each width and the plain model have the same seeds.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::path::Path;
use std::time::Instant;

use odeon_algorithms::model::{Batch, Model, ModelConfig, Scorer, Sequence, VirtualWidth};
use odeon_algorithms::train::{CrossEntropy, Schedule, TrainConfig, Trainer};
use odeon_gpu::Cpu;

/// Tokens of a sequence, and sequences of a step.
const TOKENS: usize = 128;
const SEQUENCES: usize = 16;

/// The number behind a flag.
fn number(flag: &str, default: u64) -> u64 {
    let words: Vec<String> = std::env::args().collect();
    let at = words.iter().position(|word| word == flag);
    let value = at.and_then(|at| words.get(at + 1)?.parse().ok());
    value.unwrap_or(default)
}

/// Texts to learn, and texts that are held out.
fn texts() -> [Vec<u32>; 2] {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let folder = std::fs::read_dir(docs).expect("the documentation");
    let files = folder.map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .filter(|path| path.file_name().is_some_and(|it| it != "proofs.md"))
        .collect();
    files.sort();
    let (mut learnt, mut held_out) = (vec![], vec![]);
    for path in files {
        let text = std::fs::read(&path).expect("a text");
        let cut = text.len() / 10 * 9;
        learnt.extend(text[..cut].iter().map(|byte| u32::from(*byte)));
        held_out.extend(text[cut..].iter().map(|byte| u32::from(*byte)));
    }
    [learnt, held_out]
}

/// Sequences of a text, from these places on.
fn packed(text: &[u32], places: impl Iterator<Item = usize>) -> Batch {
    let sequences = places.map(|at| Sequence {
        tokens: &text[at..at + TOKENS],
        prompt: 1,
    });
    Batch::pack(&sequences.collect::<Vec<_>>()).expect("sequences")
}

/// The loss of texts that are held out.
fn held_out(model: Model, text: &[u32]) -> f64 {
    let mut scorer = Scorer::new(model);
    let places = (0..text.len() - TOKENS).step_by(TOKENS).collect::<Vec<_>>();
    let (mut nats, mut tokens) = (0.0, 0);
    for some in places.chunks(SEQUENCES) {
        let scores = scorer.logprobs(&packed(text, some.iter().copied()));
        tokens += scores.logprobs.len();
        nats -= scores.logprobs.iter().map(|it| f64::from(*it)).sum::<f64>();
    }
    nats / tokens as f64
}

/// Losses of held-out texts half way and at the end, and the seconds of a step.
fn run(width: Option<VirtualWidth>, seed: u64, texts: &[Vec<u32>; 2]) -> [f64; 3] {
    let [learnt, rest] = texts;
    let (steps, threads) = (number("--steps", 600), number("--threads", 1) as usize);
    let config = ModelConfig {
        dim: 64,
        layers: 4,
        heads: 4,
        kv_heads: 4,
        head_dim: 16,
        ffn: 172,
        tied_head: false,
        width,
        ..ModelConfig::default()
    };
    let model = Model::init(Cpu::new(threads), config.clone(), seed).expect("a model");
    let settings = TrainConfig {
        lr: 3e-3,
        warmup: 20,
        schedule: Schedule::Cosine { steps, floor: 0.1 },
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(model, settings);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut place = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % (learnt.len() - TOKENS)
    };
    let rated = |trainer: &Trainer| {
        let mut copy = Model::zeros(Cpu::new(threads), config.clone()).expect("a model");
        copy.load_flat(trainer.model().flat())
            .expect("its parameters");
        held_out(copy, rest)
    };
    let (mut half, mut seconds) = (0.0, 0.0);
    for step in 0..steps {
        if step == steps / 2 {
            half = rated(&trainer);
        }
        let places: Vec<usize> = (0..SEQUENCES).map(|_| place()).collect();
        let batch = packed(learnt, places.into_iter());
        let begun = Instant::now();
        let mut mean = CrossEntropy::mean_over(batch.predicted());
        let _ = trainer.accumulate(&batch, &mut mean);
        trainer.apply(1.0);
        seconds += begun.elapsed().as_secs_f64();
    }
    [half, rated(&trainer), seconds / steps as f64]
}

fn main() {
    let texts = texts();
    let seeds = number("--seeds", 3);
    let width = |fraction, segments| {
        Some(VirtualWidth {
            fraction,
            segments,
            dynamic: true,
        })
    };
    println!(
        "{} bytes to learn, {} held out",
        texts[0].len(),
        texts[1].len()
    );
    println!("| r | segments | held out half way | at the end | by seed | ms a step |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, width) in [
        ("1, plain", None),
        ("1.5", width(2, 3)),
        ("2", width(2, 4)),
        ("4", width(2, 8)),
    ] {
        let runs: Vec<[f64; 3]> = (1..=seeds).map(|seed| run(width, seed, &texts)).collect();
        let mean = |at: usize| runs.iter().map(|it| it[at]).sum::<f64>() / runs.len() as f64;
        let all: Vec<String> = runs.iter().map(|it| format!("{:.4}", it[1])).collect();
        let segments = width.map_or_else(
            || "-".to_owned(),
            |it| format!("{} of {}", it.segments, it.fraction),
        );
        println!(
            "| {name} | {segments} | {:.4} | {:.4} | {} | {:.0} |",
            mean(0),
            mean(1),
            all.join(", "),
            1e3 * mean(2)
        );
    }
}
