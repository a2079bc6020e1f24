//! Costs and savings of blocks of keys and values in sampling.
//!
//! `cargo bench -p odeon-algorithms --bench cache -- [--threads N] [--rounds N]`
//!
//! Both sides of a ratio take turns in one process; figures are medians over the rounds.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::time::Instant;

use odeon_algorithms::generate::{Generator, GeneratorConfig, Request, Sampling};
use odeon_algorithms::model::{Model, ModelConfig};
use odeon_gpu::Cpu;

const SLOTS: usize = 32;
const PROMPT: usize = 256;

/// Small, so that reading keys and values is much of its work.
fn generator(threads: usize, max_tokens: usize, block_tokens: usize) -> Generator {
    let config = ModelConfig {
        vocab: 256,
        dim: 128,
        layers: 4,
        heads: 4,
        kv_heads: 4,
        head_dim: 32,
        ffn: 352,
        tied_head: false,
        ..ModelConfig::default()
    };
    let options = GeneratorConfig {
        slots: SLOTS,
        max_tokens,
        block_tokens,
        ..GeneratorConfig::default()
    };
    let model = Model::init(Cpu::new(threads), config.clone(), 1).expect("a valid model");
    let mut generator = Generator::new(Cpu::new(threads), config, options).expect("a valid model");
    generator
        .load_flat(&model.to_flat())
        .expect("the same layout");
    generator
}

/// Seconds until all prompts are continued by so many tokens.
fn run(generator: &mut Generator, prompts: &[Vec<u32>], max_new_tokens: usize) -> f64 {
    let begun = Instant::now();
    for (id, prompt) in (0..).zip(prompts) {
        let request = Request {
            id,
            prompt: prompt.clone(),
            max_new_tokens,
            sampling: Sampling::default(),
            seed: id,
            resumed: 0,
        };
        generator.submit(request).expect("a valid request");
    }
    while !generator.is_idle() {
        generator.step();
    }
    begun.elapsed().as_secs_f64()
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |flag: &str, default: usize| {
        let at = args.iter().position(|a| a == flag);
        at.and_then(|i| args.get(i + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let (threads, rounds) = (number("--threads", 2), number("--rounds", 5).max(1));
    for tokens in [256, 512] {
        let mut blocks = generator(threads, tokens, 16);
        let mut whole = generator(threads, tokens, tokens);
        let prompts: Vec<Vec<u32>> = (0..SLOTS as u32).map(|i| vec![i]).collect();
        let (mut rates, mut ratios) = (vec![], vec![]);
        for round in 0..=rounds {
            let [paged, contiguous] =
                [&mut blocks, &mut whole].map(|it| run(it, &prompts, tokens - 1));
            // The first time is no measure.
            if round > 0 {
                rates.push((SLOTS * (tokens - 1)) as f64 / paged);
                ratios.push(contiguous / paged);
            }
        }
        println!(
            "{SLOTS} sequences of {tokens} tokens: {:.0} tokens/s, {:.3} of one block a sequence",
            median(rates),
            median(ratios)
        );
    }
    for samples in [8u32, 16] {
        let mut generator = generator(threads, PROMPT + 16, 16);
        let prompt = |first: u32| {
            let rest = (1..PROMPT as u32).map(|i| (i * i + i / 7) % 256);
            std::iter::once(first % 256).chain(rest).collect()
        };
        let (mut same, mut ratios) = (vec![], vec![]);
        let mut saved = 0;
        for round in 0..=rounds as u32 {
            let first = round * 2 * samples;
            let others: Vec<Vec<u32>> = (0..samples).map(|i| prompt(first + 1 + i)).collect();
            let apart = run(&mut generator, &others, 1);
            let before = generator.cache().reused;
            let group = vec![prompt(first); samples as usize];
            let together = run(&mut generator, &group, 1);
            if round > 0 {
                saved = generator.cache().reused - before;
                same.push(together);
                ratios.push(apart / together);
            }
        }
        println!(
            "{samples} samples of a prompt of {PROMPT} tokens: {:.1} ms until each has its first, \
             {saved} of {} prompt tokens not computed, {:.2} times as fast as {samples} prompts",
            1e3 * median(same),
            samples as usize * PROMPT,
            median(ratios)
        );
    }
}
