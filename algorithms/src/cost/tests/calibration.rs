//! The errors of the formulas against what was measured.

use super::super::shard::{all_reduce, decode_attention, prefill_attention, product};
use super::super::{Card, ModelSize, Replica, Sequences};
use super::measured::*;

/// Relative errors of predictions, each with what was measured.
struct Errors {
    of: &'static str,
    sorted: Vec<f64>,
}

impl Errors {
    fn of(of: &'static str, pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let errors = pairs
            .into_iter()
            .map(|(said, was)| (said / was - 1.0).abs());
        let mut sorted: Vec<f64> = errors.collect();
        sorted.sort_by(f64::total_cmp);
        Self { of, sorted }
    }

    /// Panics where the median or the largest error is beyond these.
    fn within(&self, median: f64, largest: f64) {
        let [middle, last] =
            [self.sorted.len() / 2, self.sorted.len() - 1].map(|at| self.sorted[at]);
        println!("{}: median {middle:.3}, largest {last:.3}", self.of);
        assert!(middle <= median, "{}: median {middle}", self.of);
        assert!(last <= largest, "{}: largest {last}", self.of);
    }
}

fn products(card: &Card, rows: &[(u32, u32, u32, f64)]) -> Vec<(f64, f64)> {
    let time = |&(m, n, k, was): &(u32, u32, u32, f64)| {
        (product(card, m.into(), n.into(), k.into()) * 1e6, was)
    };
    rows.iter().map(time).collect()
}

fn decodes(card: &Card, rows: &[(u32, u32, u32, f64)]) -> Vec<(f64, f64)> {
    let time = |&(batch, tokens, heads, was): &(u32, u32, u32, f64)| {
        let said = decode_attention(card, batch.into(), tokens.into(), heads.into(), 128.0);
        (said * 1e6, was)
    };
    rows.iter().map(time).collect()
}

fn prefills(card: &Card, rows: &[(u32, u32, u32, u32, f64)]) -> Vec<(f64, f64)> {
    let time = |&(count, tokens, heads, kv_heads, was): &(u32, u32, u32, u32, f64)| {
        let prompts = Sequences::equal(count.into(), tokens.into());
        let heads = [heads.into(), kv_heads.into()];
        let said = prefill_attention(card, prompts.tokens as f64, prompts.squares, heads, 128.0);
        (said * 1e6, was)
    };
    rows.iter().map(time).collect()
}

fn all_reduces(card: &Card, rows: &[(u32, u32, f64)]) -> Vec<(f64, f64)> {
    let time = |&(members, bytes, was): &(u32, u32, f64)| {
        (all_reduce(card, members, bytes.into()) * 1e6, was)
    };
    rows.iter().map(time).collect()
}

#[test]
fn kernels_of_the_h100() {
    let card = Card::h100();
    Errors::of("H100 products", products(&card, H100_PRODUCTS)).within(0.07, 0.14);
    Errors::of("H100 decode attention", decodes(&card, H100_DECODE)).within(0.07, 0.28);
    Errors::of("H100 prefill attention", prefills(&card, H100_PREFILL)).within(0.06, 0.16);
    Errors::of("H100 all-reduce", all_reduces(&card, H100_ALL_REDUCE)).within(0.05, 0.27);
}

#[test]
fn kernels_of_the_h200() {
    let card = Card::h200();
    Errors::of("H200 products", products(&card, H200_PRODUCTS)).within(0.06, 0.15);
    Errors::of("H200 decode attention", decodes(&card, H200_DECODE)).within(0.06, 0.15);
    Errors::of("H200 prefill attention", prefills(&card, H200_PREFILL)).within(0.05, 0.16);
    Errors::of("H200 all-reduce", all_reduces(&card, H200_ALL_REDUCE)).within(0.05, 0.25);
}

#[test]
fn kernels_of_the_a100() {
    let card = Card::a100();
    Errors::of("A100 products", products(&card, A100_PRODUCTS)).within(0.08, 0.14);
    Errors::of("A100 decode attention", decodes(&card, A100_DECODE)).within(0.05, 0.17);
    Errors::of("A100 prefill attention", prefills(&card, A100_PREFILL)).within(0.04, 0.27);
    Errors::of("A100 all-reduce", all_reduces(&card, A100_ALL_REDUCE)).within(0.12, 0.50);
}

/// Predicted and measured milliseconds for each output token of a server: the step, and the prompts
/// of those that begin meanwhile.
fn per_output_token(size: &ModelSize, runs: &[(u32, u64, u64, u64, f64)]) -> Vec<(f64, f64)> {
    let time = |&(tensor, batch, prompt, response, was): &(u32, u64, u64, u64, f64)| {
        let replica = Replica::new(&Card::h100(), size, tensor).unwrap();
        let step = replica.decode_step(batch, batch * (prompt + response / 2));
        let prefill = replica.prefill(Sequences::equal(1, prompt));
        let others = batch as f64 / response as f64;
        let said = step.as_secs_f64() + prefill.as_secs_f64() * others;
        (said * 1e3, was)
    };
    runs.iter().map(time).collect()
}

/// As `config.json` of Qwen/Qwen3-32B has it.
fn qwen3_32b() -> ModelSize {
    ModelSize {
        name: "Qwen3-32B".to_owned(),
        layers: 64,
        hidden: 5_120,
        heads: 64,
        kv_heads: 8,
        head: 128,
        ffn: 25_600,
        vocabulary: 151_936,
        vectors: 2 * 5_120 + 2 * 128,
    }
}

/// As `config.json` of meta-llama/Llama-3.1-8B has it.
fn llama_8b() -> ModelSize {
    ModelSize {
        name: "Llama-3.1-8B".to_owned(),
        layers: 32,
        hidden: 4_096,
        heads: 32,
        kv_heads: 8,
        head: 128,
        ffn: 14_336,
        vocabulary: 128_256,
        vectors: 2 * 4_096,
    }
}

#[test]
fn whole_runs_that_the_overheads_are_fitted_to() {
    let runs = per_output_token(&qwen3_32b(), QWEN3_32B);
    Errors::of("Qwen3-32B, vLLM, H100", runs).within(0.03, 0.07);
}

#[test]
fn whole_runs_of_another_model_and_server() {
    let runs = per_output_token(&llama_8b(), LLAMA_8B);
    Errors::of("Llama-3.1-8B, TensorRT-LLM, H100", runs).within(0.15, 0.24);
}

#[test]
fn one_sequence_on_the_a100() {
    let runs = QWEN2_5_ON_A100.iter().map(|&(size, tensor, before, was)| {
        let size = match size {
            Size::Seven => ModelSize::qwen2_5_7b(),
            Size::SeventyTwo => ModelSize::qwen2_5_72b(),
        };
        let replica = Replica::new(&Card::a100(), &size, tensor).unwrap();
        let step = replica.decode_step(1, before + 1_024);
        let prefill = replica.prefill(Sequences::equal(1, before)) / 2_048;
        (1.0 / (step + prefill).as_secs_f64(), was)
    });
    Errors::of("Qwen2.5, vLLM, A100", runs).within(0.06, 0.12);
}
