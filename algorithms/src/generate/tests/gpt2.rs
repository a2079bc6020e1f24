//! Generation with layer norms, learned positions and GELU.

use super::*;
use crate::model::{Gelu, LayerBlock};

fn gpt2() -> ModelConfig {
    let sizes = ModelConfig {
        heads: 4,
        kv_heads: 4,
        head_dim: 8,
        ..config()
    };
    sizes.of_block(LayerBlock::Gelu(Gelu::default()), 80)
}

fn model() -> Model {
    let mut model = Model::init(Cpu::new(1), gpt2(), 5).unwrap();
    // Initial weights are so small that every distribution is nearly flat, and biases are zero.
    let flat = model.flat().iter().enumerate().map(|(at, w)| match *w {
        0.0 => 0.3 * (at as f32).sin(),
        1.0 => 1.0 + 0.3 * (at as f32).cos(),
        w => 8.0 * w,
    });
    let flat: Vec<f32> = flat.collect();
    model.load_flat(&flat).unwrap();
    model
}

fn options(slots: usize, max_tokens: usize) -> GeneratorConfig {
    GeneratorConfig {
        slots,
        max_tokens,
        prefill_tokens: 16,
        ..GeneratorConfig::default()
    }
}

fn loaded(slots: usize, threads: usize) -> Generator {
    let mut generator = Generator::new(Cpu::new(threads), gpt2(), options(slots, 80)).unwrap();
    generator.load_flat(model().flat()).unwrap();
    generator
}

#[test]
fn log_probabilities_are_those_of_the_forward_pass() {
    let mut scorer = Scorer::new(model());
    for sampled in run(&mut loaded(16, 2), 0..16) {
        let prompt = request(sampled.id).prompt;
        let tokens = [prompt.clone(), sampled.tokens.clone()].concat();
        let sequence = Sequence {
            tokens: &tokens,
            prompt: prompt.len(),
        };
        let batch = Batch::pack(&[sequence]).unwrap();
        let want = scorer.logprobs(&batch).logprobs;
        assert_eq!(sampled.logprobs.len(), want.len());
        for (got, want) in sampled.logprobs.iter().zip(want) {
            assert!((got - want).abs() < 1e-4, "{}: {got} {want}", sampled.id);
        }
    }
}

/// SEMANTICS 37.
#[test]
fn a_sequence_does_not_depend_on_the_others() {
    let alone: Vec<Sampled> = (0..23)
        .flat_map(|id| run(&mut loaded(1, 1), id..id + 1))
        .collect();
    assert_eq!(run(&mut loaded(5, 1), 0..23), alone);
    assert_eq!(run(&mut loaded(24, 3), 0..23), alone);
}

#[test]
fn more_tokens_than_there_are_positions_are_refused() {
    let refused = Generator::new(Cpu::new(1), gpt2(), options(1, 81)).unwrap_err();
    let text = refused.to_string();
    assert_eq!(
        text,
        "model: 81 tokens are more than its 80 learned positions"
    );
}
