//! The transformer against PyTorch: models that Hugging Face transformers wrote are read, say the
//! same of a text, have the same gradients, and learn the same. `tests/golden/make.py` made the files.

use std::fs;
use std::path::{Path, PathBuf};

use odeon_algorithms::model::{Batch, Model, Sequence};
use odeon_algorithms::train::{CrossEntropy, TrainConfig, Trainer};
use odeon_algorithms::weights::load_directory;
use odeon_gpu::Cpu;
use serde::Deserialize;

/// The numbers that PyTorch computed in 32 bits.
#[derive(Deserialize)]
struct Golden {
    text: Vec<Vec<u32>>,
    /// Of each token after the first of each line.
    logprobs: Vec<Vec<f32>>,
    /// L2 norm of the gradient of the mean cross-entropy.
    gradient_norm: f32,
    /// Before each step of AdamW.
    losses: Vec<f64>,
}

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn model(name: &str) -> Model {
    let loaded = load_directory(&place(name)).unwrap();
    loaded.into_model(Cpu::new(1)).unwrap()
}

fn check(name: &str) {
    let golden = fs::read_to_string(place(&format!("{name}.json"))).unwrap();
    let golden: Golden = serde_json::from_str(&golden).unwrap();
    let lines = golden.text.iter();
    let sequences: Vec<_> = lines.map(|tokens| Sequence { tokens, prompt: 1 }).collect();
    let batch = Batch::pack(&sequences).unwrap();
    // PyTorch's settings in `make.py`.
    let settings = TrainConfig {
        lr: 1e-2,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(model(name), settings);

    let expected: Vec<f32> = golden.logprobs.concat();
    let scores = trainer.logprobs(&batch);
    assert_eq!(scores.logprobs.len(), expected.len());
    for (ours, theirs) in scores.logprobs.iter().zip(&expected) {
        assert!((ours - theirs).abs() < 1e-4, "{name}: {ours} for {theirs}");
    }

    let mut losses = vec![];
    for (step, theirs) in golden.losses.iter().enumerate() {
        let mut objective = CrossEntropy::mean_over(batch.predicted());
        let loss = trainer.accumulate(&batch, &mut objective).loss;
        losses.push(loss);
        assert!(
            (loss - theirs).abs() < 1e-3,
            "{name}, step {step}: a loss of {loss} for {theirs}"
        );
        if step == 0 {
            let (ours, theirs) = (trainer.gradient(), model(&format!("{name}-gradient")));
            let largest = theirs
                .flat()
                .iter()
                .fold(0.0f32, |most, g| most.max(g.abs()));
            for (ours, theirs) in ours.iter().zip(theirs.flat()) {
                assert!(
                    (ours - theirs).abs() < 1e-4 * largest,
                    "{name}: a gradient of {ours} for {theirs}"
                );
            }
        }
        let norm = trainer.apply(1.0).grad_norm;
        if step == 0 {
            let relative = norm / golden.gradient_norm - 1.0;
            assert!(relative.abs() < 1e-4, "{name}: {norm}");
        }
    }
    assert!(losses[losses.len() - 1] < 0.9 * losses[0], "it learns");
}

#[test]
fn a_llama_computes_and_learns_as_in_pytorch() {
    check("llama");
}

#[test]
fn a_qwen2_computes_and_learns_as_in_pytorch() {
    check("qwen2");
}

/// Biases on both sides of attention and in the feed-forward part, and positions stretched by YaRN.
#[test]
fn a_llama_with_biases_computes_and_learns_as_in_pytorch() {
    check("llama-biased");
}

/// Rows that see six tokens.
#[test]
fn a_mistral_computes_and_learns_as_in_pytorch() {
    check("mistral");
}

/// Norms of heads, and a window in the second layer.
#[test]
fn a_qwen3_computes_and_learns_as_in_pytorch() {
    check("qwen3");
}

/// Layer norms, learned positions, GELU, and matrices that are stored transposed.
#[test]
fn a_gpt2_computes_and_learns_as_in_pytorch() {
    check("gpt2");
}

/// Experts, their router, and its gradient through the weights of those that are chosen.
#[test]
fn a_mixtral_computes_and_learns_as_in_pytorch() {
    check("mixtral");
}
