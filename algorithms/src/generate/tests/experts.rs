//! Generation by a mixture of experts.

use super::*;
use crate::model::{LayerBlock, Moe};

fn mixture() -> ModelConfig {
    ModelConfig {
        ffn: 12,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        block: LayerBlock::Moe(Moe {
            experts: 5,
            experts_per_token: 2,
        }),
        ..config()
    }
}

fn model() -> Model {
    let mut model = Model::init(Cpu::new(1), mixture(), 5).unwrap();
    // Initial weights are so small that every distribution is nearly flat.
    let flat = model.flat().iter();
    let flat: Vec<f32> = flat
        .map(|w| if *w == 1.0 { 1.0 } else { 8.0 * w })
        .collect();
    model.load_flat(&flat).unwrap();
    model
}

fn mixed(slots: usize, threads: usize, cache_tokens: Option<usize>) -> Generator {
    let options = GeneratorConfig {
        slots,
        max_tokens: 80,
        prefill_tokens: 16,
        cache_tokens,
        ..GeneratorConfig::default()
    };
    let mut generator = Generator::new(Cpu::new(threads), mixture(), options).unwrap();
    generator.load_flat(model().flat()).unwrap();
    generator
}

#[test]
fn log_probabilities_are_those_of_the_forward_pass_without_a_cache() {
    let mut scorer = Scorer::new(model());
    for sampled in run(&mut mixed(16, 2, None), 0..16) {
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

#[test]
fn the_greedy_token_is_the_most_likely_of_the_forward_pass() {
    let greedy = request(3);
    assert_eq!(greedy.sampling.temperature, 0.0);
    let sampled = run(&mut mixed(1, 1, None), 3..4).remove(0);
    let mut scorer = Scorer::new(model());
    let mut text = greedy.prompt;
    for token in sampled.tokens {
        let next: Vec<Vec<u32>> = (0..29).map(|next| [&text[..], &[next]].concat()).collect();
        let sequences = next.iter().map(|tokens| Sequence {
            tokens,
            prompt: text.len(),
        });
        let batch = Batch::pack(&sequences.collect::<Vec<_>>()).unwrap();
        let scores = scorer.logprobs(&batch).logprobs;
        let best = (0..29).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        assert_eq!(best, Some(token as usize));
        text.push(token);
    }
}

/// SEMANTICS 37.
#[test]
fn a_sequence_does_not_depend_on_whose_tokens_its_experts_have_too() {
    let alone: Vec<Sampled> = (0..23)
        .flat_map(|id| run(&mut mixed(1, 1, None), id..id + 1))
        .collect();
    assert_eq!(run(&mut mixed(5, 1, None), 0..23), alone);
    assert_eq!(run(&mut mixed(24, 3, None), 0..23), alone);
    // Too little memory: sequences wait, and are computed again.
    let mut scarce = mixed(8, 1, Some(112));
    assert_eq!(run(&mut scarce, 0..23), alone);
    assert!(scarce.cache().preempted > 0);
}
