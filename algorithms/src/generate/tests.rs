//! Tests of generation.

mod cache;
mod experts;
mod gpt2;
mod one_forward;
mod width;

use super::*;
use crate::model::{Batch, Model, Scorer, Sequence};

fn config() -> ModelConfig {
    ModelConfig {
        vocab: 29,
        dim: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 10,
        ffn: 40,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        ..ModelConfig::default()
    }
}

fn weights(seed: u64) -> Vec<f32> {
    let model = Model::init(Cpu::new(1), config(), seed).unwrap();
    // Initial weights are so small that every distribution is nearly flat.
    model
        .flat()
        .iter()
        .map(|w| if *w == 1.0 { 1.0 } else { 8.0 * w })
        .collect()
}

fn generator(slots: usize, threads: usize) -> Generator {
    let options = GeneratorConfig {
        slots,
        max_tokens: 80,
        prefill_tokens: 16,
        ..GeneratorConfig::default()
    };
    let mut generator = Generator::new(Cpu::new(threads), config(), options).unwrap();
    generator.load_flat(&weights(3)).unwrap();
    generator
}

fn request(id: u64) -> Request {
    let prompt = (0..3 + id * 5 % 23)
        .map(|i| ((i * i + id) % 29) as u32)
        .collect();
    let sampling = Sampling {
        temperature: [1.0, 0.7, 1.3, 0.0][id as usize % 4],
        top_p: [1.0, 0.9][id as usize / 4 % 2],
        stop: vec![],
    };
    Request {
        id,
        prompt,
        max_new_tokens: 20 + id as usize % 7,
        sampling,
        seed: id,
        resumed: 0,
    }
}

fn run(generator: &mut Generator, ids: impl Iterator<Item = u64>) -> Vec<Sampled> {
    ids.for_each(|id| generator.submit(request(id)).unwrap());
    let mut done = Vec::new();
    while !generator.is_idle() {
        done.extend(generator.step());
    }
    done.sort_by_key(|s| s.id);
    done
}

#[test]
fn log_probabilities_are_those_of_the_training_forward_pass() {
    let mut model = Model::zeros(Cpu::new(1), config()).unwrap();
    model.load_flat(&weights(3)).unwrap();
    let mut scorer = Scorer::new(model);
    for sampled in run(&mut generator(16, 2), 0..16) {
        let Request {
            prompt, sampling, ..
        } = request(sampled.id);
        let tokens = [prompt.clone(), sampled.tokens.clone()].concat();
        let batch = Batch::pack(&[Sequence {
            tokens: &tokens,
            prompt: prompt.len(),
        }])
        .unwrap();
        let near = |got: &[f32], want: &[f32]| {
            assert_eq!(got.len(), want.len());
            let worst = got
                .iter()
                .zip(want)
                .map(|(g, w)| (g - w).abs())
                .fold(0.0, f32::max);
            assert!(worst < 1e-4, "sequence {}: {worst}", sampled.id);
        };
        near(&sampled.logprobs, &scorer.logprobs(&batch).logprobs);
        if sampling.top_p == 1.0 && sampling.temperature > 0.0 {
            let batch = batch.with_temperature(sampling.temperature);
            near(
                &sampled.sampling_logprobs,
                &scorer.logprobs(&batch).logprobs,
            );
        }
    }
}

/// SEMANTICS 37.
#[test]
fn a_sequence_does_not_depend_on_the_rest_of_the_batch() {
    let together = run(&mut generator(5, 1), 0..23);
    let wide = run(&mut generator(24, 3), 0..23);
    let alone: Vec<Sampled> = (0..23)
        .flat_map(|id| run(&mut generator(1, 1), id..id + 1))
        .collect();
    assert_eq!(together, alone);
    assert_eq!(wide, alone);
}

#[test]
fn a_finished_sequence_makes_room_at_once() {
    let mut generator = generator(2, 1);
    (0..6).for_each(|id| {
        generator
            .submit(Request {
                max_new_tokens: 3,
                ..request(id)
            })
            .unwrap();
    });
    assert_eq!((generator.queued(), generator.free()), (6, 0));
    let mut done = 0;
    while !generator.is_idle() {
        done += generator.step().len();
        assert_eq!(generator.active() + generator.queued() + done, 6);
        assert!(generator.active() == 2 || generator.queued() + generator.active() + done == 6);
    }
    assert_eq!((done, generator.free()), (6, 2));
}

#[test]
fn sequences_end_at_stop_tokens_lengths_and_the_limit() {
    let free = run(&mut generator(1, 1), 5..6).remove(0);
    assert_eq!((free.finish, free.tokens.len()), (Finish::Length, 25));
    let stop = free.tokens[4];
    let first = free.tokens.iter().position(|&t| t == stop).unwrap();
    let mut generator = generator(4, 1);
    let mut request = request(5);
    request.sampling.stop = vec![stop];
    generator.submit(request.clone()).unwrap();
    generator
        .submit(Request {
            id: 6,
            max_new_tokens: 1000,
            ..self::request(5)
        })
        .unwrap();
    generator
        .submit(Request {
            id: 7,
            max_new_tokens: 0,
            ..self::request(5)
        })
        .unwrap();
    let mut done = Vec::new();
    while !generator.is_idle() {
        done.extend(generator.step());
    }
    done.sort_by_key(|s| s.id);
    assert_eq!(done[0].finish, Finish::Stop);
    assert_eq!(done[0].tokens, free.tokens[..=first]);
    assert_eq!(done[1].finish, Finish::Full);
    assert_eq!(done[1].tokens.len() + request.prompt.len(), 80);
    assert_eq!((done[2].finish, done[2].tokens.len()), (Finish::Length, 0));
}

#[test]
fn an_evicted_sequence_continues_as_if_it_had_not_been() {
    let whole = run(&mut generator(3, 1), 0..3);
    let mut generator = generator(3, 1);
    (0..3).for_each(|id| generator.submit(request(id)).unwrap());
    (0..9).for_each(|_| assert!(generator.step().is_empty()));
    let mut parts = generator.evict();
    assert!(generator.is_idle() && parts.len() == 3);
    for part in &parts {
        assert_eq!(part.finish, Finish::Evicted);
        let mut rest = request(part.id);
        rest.prompt.extend(&part.tokens);
        rest.max_new_tokens -= part.tokens.len();
        rest.resumed = part.tokens.len();
        generator.submit(rest).unwrap();
    }
    while !generator.is_idle() {
        for rest in generator.step() {
            let part = parts.iter_mut().find(|p| p.id == rest.id).unwrap();
            part.tokens.extend(rest.tokens);
            part.logprobs.extend(rest.logprobs);
        }
    }
    for (part, whole) in parts.iter().zip(&whole) {
        assert_eq!(
            (&part.tokens, &part.logprobs),
            (&whole.tokens, &whole.logprobs)
        );
    }
}

#[test]
fn new_weights_take_effect_between_steps_with_old_or_new_caches() {
    let mut old = generator(1, 1);
    old.submit(request(0)).unwrap();
    (0..6).for_each(|_| assert!(old.step().is_empty()));
    let mut recomputed = generator(1, 1);
    recomputed.submit(request(0)).unwrap();
    (0..6).for_each(|_| assert!(recomputed.step().is_empty()));
    old.load_flat(&weights(4)).unwrap();
    recomputed
        .load_flat_in_flight(&weights(4), InFlight::Recompute)
        .unwrap();
    let finish = |generator: &mut Generator| loop {
        if let Some(done) = generator.step().pop() {
            return done;
        }
    };
    let (old, new) = (finish(&mut old), finish(&mut recomputed));
    assert_eq!(old.tokens[..6], new.tokens[..6]);
    assert_ne!(old.logprobs[6], new.logprobs[6], "the caches differ");
    let mut model = Model::zeros(Cpu::new(1), config()).unwrap();
    model.load_flat(&weights(4)).unwrap();
    let tokens = [request(0).prompt, new.tokens.clone()].concat();
    let from = request(0).prompt.len() + 6;
    let batch = Batch::pack(&[Sequence {
        tokens: &tokens,
        prompt: from,
    }])
    .unwrap();
    let want = Scorer::new(model).logprobs(&batch).logprobs;
    assert!(
        new.logprobs[6..]
            .iter()
            .zip(&want)
            .all(|(g, w)| (g - w).abs() < 1e-4)
    );
    assert!(generator(1, 1).load_flat(&[0.0]).is_err());
}

#[test]
fn weights_as_bytes_are_the_same_weights() {
    let bytes: Vec<u8> = weights(3).iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut from_bytes = generator(2, 1);
    from_bytes.load_flat(&weights(4)).unwrap();
    from_bytes.load_bytes(&bytes, StoredType::F32).unwrap();
    assert_eq!(run(&mut from_bytes, 0..2), run(&mut generator(2, 1), 0..2));
    for wrong in [&bytes[..bytes.len() - 1], &bytes[4..], &[]] {
        let error = from_bytes.load_bytes(wrong, StoredType::F32).unwrap_err();
        assert!(matches!(error, TensorError::Length { .. }), "{error}");
    }
}

#[test]
fn a_running_sequence_shows_what_it_has() {
    let mut generator = generator(2, 1);
    generator.submit(request(0)).unwrap();
    assert_eq!(generator.sampled(0), None);
    let mut shown = vec![];
    let done = loop {
        if let Some(done) = generator.step().pop() {
            break done;
        }
        shown.push(generator.sampled(0).unwrap().to_vec());
    };
    assert_eq!(generator.sampled(0), None);
    assert_eq!(shown.len() + 1, done.tokens.len());
    for tokens in shown {
        assert_eq!(tokens, done.tokens[..tokens.len()]);
    }
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    let mut generator = generator(1, 1);
    let with_prompt = |prompt: Vec<u32>| Request {
        prompt,
        ..request(1)
    };
    let refused = [
        (with_prompt(vec![]), RequestError::EmptyPrompt(1)),
        (
            with_prompt(vec![0; 80]),
            RequestError::LongPrompt {
                id: 1,
                tokens: 80,
                max_tokens: 80,
            },
        ),
        (
            with_prompt(vec![29]),
            RequestError::UnknownToken { id: 1, token: 29 },
        ),
        (
            Request {
                resumed: 99,
                ..request(1)
            },
            RequestError::Resumed(1),
        ),
    ];
    for (request, want) in refused {
        assert_eq!(generator.submit(request), Err(want));
    }
    assert!(generator.is_idle());
}
