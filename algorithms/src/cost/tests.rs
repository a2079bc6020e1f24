//! Costs against what was measured, and against sense.

mod calibration;
mod fit;
pub(super) mod measured;
mod shapes;

use std::time::Duration;

use odeon_topology::DeviceModel;
use proptest::prelude::*;

use super::*;

const GB: u64 = 1_000_000_000;

fn sizes() -> [ModelSize; 3] {
    [
        ModelSize::qwen2_5_7b(),
        ModelSize::qwen2_5_32b(),
        ModelSize::qwen2_5_72b(),
    ]
}

fn replica(size: &ModelSize, tensor: u32) -> Replica {
    Replica::new(&Card::h800(), size, tensor).unwrap()
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

#[test]
fn parameters_are_those_of_the_published_files() {
    let counts = sizes().map(|size| size.parameters());
    assert_eq!(counts, [7_615_616_512, 32_763_876_352, 72_706_203_648]);
    let bytes = sizes().map(|size| size.kv_bytes_per_token());
    assert_eq!(bytes, [57_344, 262_144, 327_680]);
}

#[test]
fn publishing_takes_what_laminar_reports() {
    let card = Card::h800();
    let stall = |size: ModelSize| card.publish(size.weight_bytes()).as_secs_f64();
    assert!((stall(ModelSize::qwen2_5_32b()) / 0.64 - 1.0).abs() < 0.02);
    assert!((stall(ModelSize::qwen2_5_72b()) / 1.40 - 1.0).abs() < 0.02);
    let all = card.relay_chain(ModelSize::qwen2_5_72b().weight_bytes(), 64);
    assert!(all < Duration::from_millis(1_600), "{all:?}");
}

#[test]
fn a_chain_is_nearly_as_fast_for_many_as_for_two() {
    let card = Card::h800();
    let time = |relays| card.relay_chain(145 * GB, relays);
    assert_eq!(time(1), Duration::ZERO);
    assert!((ratio(time(2), card.relay_hop(145 * GB)) - 1.0).abs() < 1e-9);
    assert!(ratio(time(128), time(2)) < 1.2);
    assert!(time(128) > time(16));
}

#[test]
fn a_pull_is_shorter_than_a_global_broadcast() {
    // Laminar: up to 47 % shorter, 37 % in the mean.
    let card = Card::h800();
    let bytes = ModelSize::qwen2_5_72b().weight_bytes();
    let saved = 1.0 - ratio(card.pull(bytes, 8), card.global_broadcast(bytes, 64));
    assert!((0.2..0.5).contains(&saved), "{saved}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (card, size) = (Card::h800(), ModelSize::qwen2_5_72b());
    let error = Replica::new(&card, &size, 1).unwrap_err();
    assert!(
        matches!(error, CostError::Memory { gpus: 1, .. }),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "Qwen2.5-72B needs 148412734976 bytes on each of 1 H800, there are 76950000000: \
         take more GPUs"
    );
    let seven = ModelSize::qwen2_5_7b();
    for tensor in [0, 3, 8, 16] {
        let error = Replica::new(&card, &seven, tensor).unwrap_err();
        assert!(
            matches!(error, CostError::Split { .. }),
            "{tensor}: {error}"
        );
    }
    let error = Trainer::new(&card, &size, 12, 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "12 GPUs are no whole number of tensor groups of 8"
    );
    assert!(matches!(
        Trainer::new(&card, &size, 8, 8),
        Err(CostError::Memory { .. })
    ));
    let odd = Card {
        device: DeviceModel {
            network_bytes_per_second: f64::NAN,
            ..card.device
        },
        ..card
    };
    assert!(matches!(
        Replica::new(&odd, &seven, 1),
        Err(CostError::NotPositive {
            field: "network_bytes_per_second",
            ..
        })
    ));
}

#[test]
fn capacity_is_what_weights_and_workspace_leave() {
    let one = replica(&ModelSize::qwen2_5_7b(), 1);
    assert_eq!(
        one.kv_capacity_bytes(),
        76_950_000_000 - 3 * GB - 15_231_233_024
    );
    assert_eq!(one.kv_capacity_tokens(), 1_023_974);
    let four = replica(&ModelSize::qwen2_5_72b(), 4);
    assert_eq!(four.kv_capacity_tokens(), 458_946);
}

#[test]
fn a_step_below_the_roofline_batch_is_bound_by_memory() {
    // Products only: the server's own time for each sequence is something else.
    let shard = shard::Shard::new(&Card::h800(), &ModelSize::qwen2_5_32b(), 4).unwrap();
    let bound = replica(&ModelSize::qwen2_5_32b(), 4).roofline_batch() as f64;
    assert!((200.0..300.0).contains(&bound), "{bound}");
    let time = |share: f64| shard.layer_products(bound * share);
    assert!(
        time(0.5) / time(0.02) < 1.1,
        "four doublings are nearly free"
    );
    assert!(time(4.0) / time(2.0) > 1.7, "one more costs");
}

#[test]
fn a_larger_tensor_group_is_faster_and_less_than_in_proportion() {
    for size in sizes() {
        let groups: Vec<Replica> = [1, 2, 4, 8]
            .into_iter()
            .filter_map(|tensor| Replica::new(&Card::h800(), &size, tensor).ok())
            .collect();
        assert!(groups.len() >= 3, "{}", size.name);
        for pair in groups.windows(2) {
            for (batch, kv_tokens) in [(64, 128_000), (256, 256_000)] {
                let gain = ratio(
                    pair[0].decode_step(batch, kv_tokens),
                    pair[1].decode_step(batch, kv_tokens),
                );
                assert!((1.0..2.0).contains(&gain), "{} {batch}: {gain}", size.name);
            }
            let prompts = Sequences::equal(8, 2_048);
            let gain = ratio(pair[0].prefill(prompts), pair[1].prefill(prompts));
            assert!((1.0..2.0).contains(&gain), "{}: {gain}", size.name);
        }
    }
}

#[test]
fn a_slower_link_makes_groups_slower() {
    let size = ModelSize::qwen2_5_72b();
    let time = |card: Card| {
        let replica = Replica::new(&card, &size, 8).unwrap();
        replica.prefill(Sequences::equal(8, 2_048))
    };
    assert!(time(Card::h800()) > time(Card::h100()));
}

#[test]
fn training_uses_a_usual_share_of_the_arithmetic() {
    // NVIDIA reports up to 47 % for Megatron-Core on H100, without recomputation.
    let batch = Sequences::equal(8_192, 2_048);
    for (size, gpus, tensor) in [
        (ModelSize::qwen2_5_7b(), 32, 1),
        (ModelSize::qwen2_5_32b(), 64, 4),
        (ModelSize::qwen2_5_72b(), 128, 4),
    ] {
        let again = Trainer::new(&Card::h800(), &size, gpus, tensor).unwrap();
        let once = again.clone().recompute(Recompute::Nothing);
        let [again, once] = [again, once].map(|trainer| trainer.utilisation(batch, 16));
        assert!((0.25..0.45).contains(&again), "{}: {again}", size.name);
        assert!((again * 1.2..0.55).contains(&once), "{}: {once}", size.name);
    }
}

#[test]
fn more_cards_train_faster_and_less_than_in_proportion() {
    let batch = Sequences::equal(8_192, 2_048);
    let time = |gpus| {
        let trainer = Trainer::new(&Card::h800(), &ModelSize::qwen2_5_32b(), gpus, 4).unwrap();
        trainer.train_step(batch, 16)
    };
    for gpus in [32, 64, 128, 256] {
        let gain = ratio(time(gpus), time(2 * gpus));
        assert!((1.5..=2.0).contains(&gain), "{gpus}: {gain}");
    }
}

#[test]
fn scoring_takes_about_a_quarter_of_a_step_with_recomputation() {
    let trainer = Trainer::new(&Card::h800(), &ModelSize::qwen2_5_32b(), 64, 4).unwrap();
    let batch = Sequences::equal(8_192, 2_048);
    let share = ratio(trainer.log_probs(batch), trainer.train_step(batch, 1));
    assert!((0.22..0.3).contains(&share), "{share}");
}

#[test]
fn nothing_takes_no_time() {
    let replica = replica(&ModelSize::qwen2_5_7b(), 1);
    assert_eq!(replica.decode_step(0, 0), Duration::ZERO);
    assert_eq!(replica.prefill(Sequences::of(&[])), Duration::ZERO);
    let trainer = Trainer::new(&Card::h800(), replica.model(), 8, 1).unwrap();
    assert_eq!(trainer.train_step(Sequences::default(), 0), Duration::ZERO);
    assert_eq!(trainer.log_probs(Sequences::default()), Duration::ZERO);
}

#[test]
fn a_prompt_that_is_there_costs_less_and_two_parts_of_a_sequence_as_much_as_the_whole() {
    let replica = replica(&ModelSize::qwen2_5_7b(), 1);
    let whole = Sequences::of(&[6_000]);
    let rest = Sequences::default().and(2_000, 4_000);
    assert!(replica.prefill(rest) < replica.prefill(whole));
    let both = Sequences::of(&[2_000]).and(2_000, 4_000);
    assert_eq!((both.tokens, both.squares), (whole.tokens, whole.squares));
}

#[test]
fn lengths_and_equal_lengths_agree() {
    assert_eq!(Sequences::of(&[7, 7, 7]), Sequences::equal(3, 7));
}

proptest! {
    #[test]
    fn more_work_takes_no_less_time(
        which in 0usize..3,
        batch in 1u64..2_000,
        more_batch in 0u64..500,
        tokens in 1u64..2_000_000,
        more_tokens in 0u64..500_000,
        count in 1u64..300,
        length in 1u64..16_000,
        more_length in 0u64..4_000,
        updates in 1u32..20,
    ) {
        let size = &sizes()[which];
        let replica = replica(size, 4);
        let step = replica.decode_step(batch, tokens);
        prop_assert!(step <= replica.decode_step(batch + more_batch, tokens));
        prop_assert!(step <= replica.decode_step(batch, tokens + more_tokens));

        let [some, more] = [length, length + more_length].map(|it| Sequences::equal(count, it));
        prop_assert!(replica.prefill(some) <= replica.prefill(more));
        let trainer = Trainer::new(&Card::h800(), size, 64, 4).unwrap();
        prop_assert!(trainer.train_step(some, updates) <= trainer.train_step(more, updates));
        prop_assert!(trainer.train_step(some, updates) <= trainer.train_step(some, updates + 1));
        prop_assert!(trainer.log_probs(some) <= trainer.log_probs(more));
        prop_assert!(trainer.log_probs(some) <= trainer.train_step(some, updates));
    }

    #[test]
    fn more_bytes_take_no_less_time(
        bytes in 0u64..200 * GB,
        more in 0u64..20 * GB,
        relays in 1u32..300,
        machines in 1u32..300,
    ) {
        let card = Card::h800();
        let times = |bytes| {
            [
                card.publish(bytes),
                card.relay_hop(bytes),
                card.relay_chain(bytes, relays),
                card.pull(bytes, 8),
                card.global_broadcast(bytes, machines),
            ]
        };
        for (some, more) in times(bytes).into_iter().zip(times(bytes + more)) {
            prop_assert!(some <= more);
        }
        prop_assert!(card.relay_chain(bytes, relays) <= card.relay_chain(bytes, relays + 1));
    }
}
