//! Tests that training, scoring and generation compute the same numbers where sums have one order.

use odeon_gpu::{CpuOptions, Precision};
use odeon_skip::{Need, skip};
use proptest::prelude::*;

use super::*;
use crate::model::{Gelu, LayerBlock, Moe};
use crate::train::{CrossEntropy, TrainConfig, Trainer};

/// A model of sizes that cross no border of any kernel evenly.
fn model_of() -> impl Strategy<Value = ModelConfig> {
    let sizes = (1usize..=2, 1usize..=3, 1usize..=2, 1usize..=9);
    let rest = (
        3usize..40,
        17usize..70,
        any::<bool>(),
        any::<bool>(),
        prop::option::of(2usize..5),
    );
    (sizes, rest).prop_map(
        |((layers, group, kv_heads, half), (ffn, vocab, qkv_bias, tied_head, experts))| {
            ModelConfig {
                vocab,
                dim: 24,
                layers,
                heads: group * kv_heads,
                kv_heads,
                head_dim: 2 * half,
                ffn,
                // Mixtures have none.
                qkv_bias: qkv_bias && experts.is_none(),
                tied_head,
                block: match experts {
                    Some(experts) => LayerBlock::Moe(Moe {
                        experts,
                        experts_per_token: 2,
                    }),
                    None => LayerBlock::default(),
                },
                ..ModelConfig::default()
            }
        },
    )
}

/// The same sizes with what GPT-2 has.
fn gpt2_of() -> impl Strategy<Value = ModelConfig> {
    model_of().prop_map(|config| {
        let plain = ModelConfig {
            kv_heads: config.heads,
            dim: config.heads * config.head_dim,
            block: LayerBlock::default(),
            ..config
        };
        plain.of_block(LayerBlock::Gelu(Gelu::default()), 90)
    })
}

/// Products of each kind that this processor has.
fn all_products() -> Vec<Precision> {
    let options = CpuOptions {
        products: Precision::Bf16,
        ..CpuOptions::default()
    };
    match Cpu::open(&options) {
        Ok(_) => vec![Precision::F32, Precision::Bf16],
        Err(error) => {
            skip(Need::Bf16, error);
            vec![Precision::F32]
        }
    }
}

fn cpu(threads: usize, deterministic: bool, products: Precision) -> Cpu {
    let options = CpuOptions {
        threads,
        deterministic,
        products,
    };
    Cpu::open(&options).unwrap()
}

fn deterministic(config: &ModelConfig, seed: u64, threads: usize, products: Precision) -> Model {
    let cpu = cpu(threads, true, products);
    let mut model = Model::init(cpu, config.clone(), seed).unwrap();
    let flat = model.flat().iter().map(|w| match *w {
        1.0 => 1.0,
        w => 8.0 * w,
    });
    let flat: Vec<f32> = flat.collect();
    model.load_flat(&flat).unwrap();
    model
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// SEMANTICS 117.
    #[test]
    fn training_and_scoring_say_of_a_token_what_generation_said_to_the_bit(
        config in prop_oneof![3 => model_of(), 1 => gpt2_of()],
        seed in 0u64..1000,
        slots in 1usize..6,
        threads in 1usize..4,
        prefill in 1usize..40,
        products in prop::sample::select(all_products()),
        temperature in prop::sample::select(vec![1.0f32, 0.7, 1.4]),
        lengths in prop::collection::vec(1usize..50, 1..8),
    ) {
        let model = deterministic(&config, seed, threads, products);
        let options = GeneratorConfig {
            slots,
            max_tokens: 90,
            prefill_tokens: prefill,
            // So few that sequences lose theirs and are computed again.
            cache_tokens: Some(128),
            block_tokens: 16,
        };
        let mut generator = Generator::new(cpu(threads, false, products), config.clone(), options).unwrap();
        generator.load_flat(&model.to_flat()).unwrap();
        let prompt = |id: usize, length: usize| -> Vec<u32> {
            // Every other begins like the one before.
            (0..length).map(|at| ((at * at + id / 2) % config.vocab) as u32).collect()
        };
        for (id, length) in lengths.iter().enumerate() {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let request = Request {
                id: id as u64,
                prompt: prompt(id, *length),
                max_new_tokens: 1 + (7 * id + 3) % 30,
                sampling,
                seed,
                resumed: 0,
            };
            generator.submit(request).unwrap();
        }
        let mut done = vec![];
        while !generator.is_idle() {
            done.extend(generator.step());
        }
        // In the order in which they ended, which is another one than that of generation.
        let rows: Vec<(Vec<u32>, usize)> = done.iter().map(|it| {
            let prompt = prompt(it.id as usize, lengths[it.id as usize]);
            let len = prompt.len();
            ([prompt, it.tokens.clone()].concat(), len)
        }).collect();
        let sequences: Vec<_> =
            rows.iter().map(|(tokens, prompt)| Sequence { tokens, prompt: *prompt }).collect();
        let batch = Batch::pack(&sequences).unwrap();
        let plain: Vec<f32> = done.iter().flat_map(|it| it.logprobs.iter().copied()).collect();
        let scaled: Vec<f32> = done.iter().flat_map(|it| it.sampling_logprobs.iter().copied()).collect();
        let mut scorer = Scorer::new(deterministic(&config, seed, threads, products));
        prop_assert_eq!(&scorer.logprobs(&batch).logprobs, &plain);
        let batch = batch.with_temperature(temperature);
        prop_assert_eq!(&scorer.logprobs(&batch).logprobs, &scaled);
        let mut trainer = Trainer::new(model, TrainConfig::default());
        let trained = trainer.accumulate(&batch, &mut CrossEntropy::mean_over(plain.len()));
        prop_assert_eq!(&trained.scores.logprobs, &scaled);
        // With one prompt for all that begin alike, which then stand together.
        let mut order: Vec<usize> = (0..done.len()).collect();
        order.sort_by_key(|nth| &rows[*nth].0[..rows[*nth].1]);
        let sequences: Vec<_> = order
            .iter()
            .map(|nth| Sequence { tokens: &rows[*nth].0, prompt: rows[*nth].1 })
            .collect();
        let shared = Batch::pack_sharing(&sequences).unwrap().with_temperature(temperature);
        let ordered: Vec<f32> =
            order.iter().flat_map(|nth| done[*nth].sampling_logprobs.iter().copied()).collect();
        prop_assert_eq!(&scorer.logprobs(&shared).logprobs, &ordered);
        // On other threads, too.
        let mut other = Scorer::new(deterministic(&config, seed, threads % 3 + 1, products));
        prop_assert_eq!(&other.logprobs(&batch), &scorer.logprobs(&batch));
    }
}

/// A vocabulary of several chunks, and a sequence of several tiles.
#[test]
fn long_sequences_and_large_vocabularies_are_no_exception() {
    all_products().into_iter().for_each(long_sequence);
}

fn long_sequence(products: Precision) {
    let config = ModelConfig {
        vocab: 5003,
        dim: 48,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 34,
        ffn: 33,
        ..ModelConfig::default()
    };
    let model = deterministic(&config, 5, 2, products);
    let options = GeneratorConfig {
        slots: 3,
        max_tokens: 300,
        prefill_tokens: 64,
        ..GeneratorConfig::default()
    };
    let mut generator = Generator::new(cpu(2, false, products), config.clone(), options).unwrap();
    generator.load_flat(&model.to_flat()).unwrap();
    let prompt: Vec<u32> = (0..150).map(|at| at * at % 5003).collect();
    generator
        .submit(Request {
            id: 0,
            prompt: prompt.clone(),
            max_new_tokens: 120,
            sampling: Sampling::default(),
            seed: 1,
            resumed: 0,
        })
        .unwrap();
    let mut done = vec![];
    while !generator.is_idle() {
        done.extend(generator.step());
    }
    let tokens = [prompt, done[0].tokens.clone()].concat();
    let batch = Batch::pack(&[Sequence {
        tokens: &tokens,
        prompt: 150,
    }]);
    let batch = batch.unwrap();
    let mut scorer = Scorer::new(deterministic(&config, 5, 2, products));
    assert_eq!(scorer.logprobs(&batch).logprobs, done[0].logprobs);
    let mut quick = Scorer::new(model_on(cpu(2, false, products), &scorer));
    assert_ne!(
        quick.logprobs(&batch).logprobs,
        done[0].logprobs,
        "the quick order is another"
    );
}

fn model_on(backend: Cpu, like: &Scorer) -> Model {
    let mut model = Model::zeros(backend, like.model().config().clone()).unwrap();
    model.load_flat(&like.model().to_flat()).unwrap();
    model
}
