//! Sequences that share blocks and run out of them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Blocks of 16 tokens for so many.
fn within(slots: usize, threads: usize, cache_tokens: Option<usize>) -> Generator {
    let options = GeneratorConfig {
        slots,
        max_tokens: 80,
        prefill_tokens: 40,
        cache_tokens,
        block_tokens: 16,
    };
    let mut generator = Generator::new(Cpu::new(threads), config(), options).unwrap();
    generator.load_flat(&weights(3)).unwrap();
    generator
}

/// Sample `id` of one of three families of prompts: members of a family begin alike, some of them
/// are the same.
fn member(id: u64) -> Request {
    let (family, length) = (id % 3, 30 + (id / 3 % 4) * 7);
    let prompt = (0..length)
        .map(|i| ((i * i * (family + 1) + i / 20 * family) % 29) as u32)
        .collect();
    Request {
        prompt,
        ..request(id)
    }
}

fn alone(id: u64) -> Sampled {
    let mut generator = within(1, 1, None);
    generator.submit(member(id)).unwrap();
    let mut done = finish(&mut generator);
    done.remove(&id).unwrap()
}

fn finish(generator: &mut Generator) -> BTreeMap<u64, Sampled> {
    let mut done = BTreeMap::new();
    // More steps than all sequences one after the other would take.
    for _ in 0..10_000 {
        if generator.is_idle() {
            break;
        }
        done.extend(generator.step().into_iter().map(|it| (it.id, it)));
    }
    assert!(generator.is_idle(), "it goes on for ever");
    done
}

/// SEMANTICS 82.
#[test]
fn samples_of_a_group_compute_their_prompt_once() {
    let prompt: Vec<u32> = (0..60).map(|i| i * i % 29).collect();
    let sample = |id| Request {
        id,
        prompt: prompt.clone(),
        max_new_tokens: 2,
        ..request(id)
    };
    let mut generator = within(8, 1, None);
    (0..8).for_each(|id| generator.submit(sample(id)).unwrap());
    // 40 tokens of the first sample, then its other 20, and of the others the last one.
    (0..2).for_each(|_| assert!(generator.step().is_empty()));
    let counts = generator.cache();
    assert_eq!((counts.held, counts.shared), (4, 3));
    assert!(generator.step().len() == 1);
    let counts = generator.cache();
    assert_eq!(
        counts.reused,
        7 * 59,
        "each takes over all but the last token"
    );
    assert_eq!((counts.shared, counts.held), (3, 3 + 7));
    let done = finish(&mut generator);
    assert_eq!(done.len(), 7);
    let after = generator.cache();
    assert_eq!((after.held, after.tokens, after.blocks), (0, 0, 40));
    assert_eq!(after.kept + after.free(), 40);
    for sampled in done.values() {
        let mut one = within(1, 1, None);
        one.submit(sample(sampled.id)).unwrap();
        assert_eq!(finish(&mut one)[&sampled.id], *sampled, "to the bit");
    }
}

/// SEMANTICS 82.
#[test]
fn when_memory_runs_out_the_youngest_wait_and_nothing_is_lost() {
    let mut generator = within(8, 1, Some(112));
    (0..12).for_each(|id| generator.submit(member(id)).unwrap());
    let done = finish(&mut generator);
    let counts = generator.cache();
    assert_eq!((done.len(), counts.blocks), (12, 7));
    assert!(counts.preempted > 0, "{counts:?}");
    for (id, sampled) in done {
        assert_eq!(sampled, alone(id));
    }
}

#[test]
fn memory_for_less_than_a_sequence_is_memory_for_one() {
    let mut generator = within(8, 2, Some(1));
    assert_eq!(generator.cache().blocks, 5);
    (0..4).for_each(|id| generator.submit(member(id)).unwrap());
    assert_eq!(finish(&mut generator).len(), 4);
}

/// SEMANTICS 82.
#[test]
fn nothing_that_was_computed_with_other_weights_is_taken_over() {
    for load in [
        |it: &mut Generator| it.load_flat(&weights(4)).unwrap(),
        |it: &mut Generator| {
            let all = weights(4);
            let bytes: Vec<u8> = all.iter().flat_map(|w| w.to_le_bytes()).collect();
            it.load_bytes(&bytes, StoredType::F32).unwrap();
        },
    ] {
        let mut generator = within(2, 1, None);
        generator.submit(member(0)).unwrap();
        finish(&mut generator);
        assert!(generator.cache().kept > 0);
        load(&mut generator);
        assert_eq!(generator.cache().kept, 0);
        generator.submit(member(0)).unwrap();
        let again = finish(&mut generator).remove(&0).unwrap();
        assert_eq!(generator.cache().reused, 0);
        let mut fresh = within(1, 1, None);
        fresh.load_flat(&weights(4)).unwrap();
        fresh.submit(member(0)).unwrap();
        assert_eq!(finish(&mut fresh)[&0], again);
    }
}

#[test]
fn those_that_go_on_with_old_keys_lend_them_to_nobody() {
    let mut generator = within(2, 1, None);
    generator.submit(member(0)).unwrap();
    (0..3).for_each(|_| assert!(generator.step().is_empty()));
    generator.load_flat(&weights(4)).unwrap();
    generator.submit(Request { id: 3, ..member(0) }).unwrap();
    let shared = finish(&mut generator).remove(&3).unwrap();
    let mut fresh = within(1, 1, None);
    fresh.load_flat(&weights(4)).unwrap();
    fresh.submit(Request { id: 3, ..member(0) }).unwrap();
    assert_eq!(finish(&mut fresh)[&3], shared);
    assert_eq!(generator.cache().reused, 0);
}

#[derive(Clone, Debug)]
enum Op {
    Submit,
    Step(usize),
    /// All are taken out and handed in again with what they have.
    Evict,
    /// Keys and values are computed again.
    Forget,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Submit),
        4 => (1usize..9).prop_map(Op::Step),
        1 => Just(Op::Evict),
        1 => Just(Op::Forget),
    ]
}

/// Takes what ended, and joins it with what its sequence had before.
fn join(parts: &mut BTreeMap<u64, Sampled>, new: Sampled) {
    let part = parts
        .entry(new.id)
        .or_insert_with(|| Sampled::new(new.id, new.finish));
    part.finish = new.finish;
    part.tokens.extend(new.tokens);
    part.logprobs.extend(new.logprobs);
    part.sampling_logprobs.extend(new.sampling_logprobs);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// SEMANTICS 82.
    #[test]
    fn a_sequence_is_the_same_however_it_shared_waited_and_was_taken_out(
        ops in prop::collection::vec(op(), 1..24),
        slots in 1usize..18,
        threads in 1usize..3,
        cache in prop_oneof![Just(None), (80usize..400).prop_map(Some)],
    ) {
        let mut generator = within(slots, threads, cache);
        let mut parts = BTreeMap::new();
        let mut submitted = 0;
        for op in ops {
            match op {
                Op::Submit => for _ in 0..4 {
                    generator.submit(member(submitted)).unwrap();
                    submitted += 1;
                },
                Op::Step(steps) => for _ in 0..steps {
                    generator.step().into_iter().for_each(|it| join(&mut parts, it));
                },
                Op::Evict => for part in generator.evict() {
                    let id = part.id;
                    join(&mut parts, part);
                    let (had, mut rest) = (&parts[&id].tokens, member(id));
                    rest.prompt.extend(had);
                    rest.max_new_tokens -= had.len();
                    rest.resumed = had.len();
                    generator.submit(rest).unwrap();
                },
                Op::Forget => generator.forget_caches(),
            }
            let counts = generator.cache();
            prop_assert!(counts.held + counts.kept <= counts.blocks);
            prop_assert!(counts.tokens <= counts.held * 16);
        }
        finish(&mut generator).into_values().for_each(|it| join(&mut parts, it));
        prop_assert_eq!(parts.len() as u64, submitted);
        for (id, sampled) in parts {
            prop_assert_eq!(sampled, alone(id));
        }
    }
}
