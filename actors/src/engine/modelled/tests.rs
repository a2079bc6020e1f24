//! Engines that only think, against what they claim.

use std::collections::{BTreeMap, BTreeSet};

use odeon::System;
use odeon::simulation::SimulationSpec;
use proptest::prelude::*;

use super::cache::{Cache, Part};
use super::*;
use crate::engine::{CacheUse, RolloutEngine};
use crate::trajectory::{Decode, Order, SampleId};

fn modelled() -> Modelled {
    Modelled {
        workload: WorkloadSpec::math(5),
        quantum: 16,
        card: Card::h800(),
        model: ModelSize::qwen2_5_7b(),
        rollout_gpus: 1,
        slots: 512,
        trainer_gpus: 8,
        trainer_tensor: 2,
        updates: 1,
        delivery: Delivery::Relays(4),
        prefixes: Prefixes::Shared,
        starts: Duration::ZERO,
    }
}

fn order(group: u64, sample: u32) -> Order {
    Order {
        id: SampleId { group, sample },
        prompt: vec![],
        problem: group,
        decode: Decode::Sampled,
        partial: None,
    }
}

/// Weights that are there.
fn weights() -> [u8; Weights::BYTES] {
    let mut bytes = [0; Weights::BYTES];
    let weights = Weights {
        steps: 0,
        there: Timestamp(0),
    };
    weights.write(&mut bytes);
    bytes
}

fn rollout(model: &Modelled) -> ModelledRollout {
    let mut rollout = ModelledRollout::new(model).unwrap();
    rollout.load(&weights()).unwrap();
    let _ = rollout.takes();
    rollout
}

/// Works until all is done: seconds, the tokens of each reply, and the fullest cache.
fn finish(rollout: &mut ModelledRollout) -> (f64, BTreeMap<SampleId, usize>, CacheUse) {
    let (mut seconds, mut ended, mut fullest) = (0.0, BTreeMap::new(), CacheUse::default());
    while rollout.active() > 0 {
        for response in rollout.step().unwrap() {
            assert!(ended.insert(response.id, response.tokens.len()).is_none());
        }
        let took = rollout.takes().as_secs_f64();
        assert!(took > 0.0, "time stands");
        seconds += took;
        let cache = rollout.cache();
        if cache.used > fullest.used {
            fullest = cache;
        }
    }
    assert_eq!(rollout.cache().used, 0, "all are gone");
    (seconds, ended, fullest)
}

#[test]
fn a_prompt_takes_room_once_for_all_of_its_group_and_time_too() {
    let [shared, own] = [Prefixes::Shared, Prefixes::Own].map(|prefixes| {
        let mut rollout = rollout(&Modelled {
            prefixes,
            ..modelled()
        });
        for sample in 0..16 {
            rollout.admit(&order(3, sample)).unwrap();
        }
        let used = rollout.cache().used;
        (used, finish(&mut rollout))
    });
    assert_eq!(own.0, 16 * shared.0);
    assert_eq!(own.1.1, shared.1.1, "the same replies");
    assert!(shared.1.0 < own.1.0, "{} {}", shared.1.0, own.1.0);
}

#[test]
fn the_cache_is_never_over_full_and_nothing_that_gave_way_is_lost() {
    // Two thousand replies of 2,500 tokens on average are five times what fits.
    let mut rollout = rollout(&Modelled {
        slots: 2_048,
        ..modelled()
    });
    for group in 0..128 {
        for sample in 0..16 {
            rollout.admit(&order(group, sample)).unwrap();
        }
    }
    let (_, ended, fullest) = finish(&mut rollout);
    assert_eq!(ended.len(), 2_048);
    assert!(fullest.used <= fullest.capacity, "{fullest:?}");
    assert!(fullest.used > fullest.capacity / 10 * 9, "{fullest:?}");
    let workload = Workload::new(modelled().workload).unwrap();
    for (id, tokens) in ended {
        let episode = workload.episode(odeon_algorithms::workload::SampleKey {
            group: id.group,
            sample: id.sample,
            version: 0,
        });
        let all: u64 = episode.turns.iter().map(|it| it.tokens.div_ceil(16)).sum();
        assert_eq!(tokens as u64, all);
    }
}

#[test]
fn a_reply_that_waits_for_its_environment_takes_room_and_no_computing() {
    let mut rollout = rollout(&Modelled {
        workload: WorkloadSpec::tools(5),
        ..modelled()
    });
    // One with several turns.
    let workload = Workload::new(WorkloadSpec::tools(5)).unwrap();
    let episode = |group| {
        workload.episode(odeon_algorithms::workload::SampleKey {
            group,
            sample: 0,
            version: 0,
        })
    };
    let group = (0..100)
        .find(|group| episode(*group).turns.len() > 3)
        .unwrap();
    rollout.admit(&order(group, 0)).unwrap();
    let (mut waited, mut took) = (Duration::ZERO, Duration::ZERO);
    while rollout.active() > 0 {
        let before = rollout.cache().used;
        let _ = rollout.step().unwrap();
        let waits = rollout.waited();
        let takes = rollout.takes();
        assert!(takes <= Duration::from_secs(1), "news is heard: {takes:?}");
        if waits > Duration::ZERO {
            assert_eq!(waits, takes);
            assert_eq!(rollout.cache().used, before);
        }
        waited += waits;
        took += takes;
    }
    let environment = episode(group).environment();
    let apart = waited.abs_diff(environment);
    assert!(
        apart < Duration::from_millis(1),
        "{waited:?} {environment:?}"
    );
    assert!(took > waited);
}

#[test]
fn a_rollout_waits_for_weights_only_until_the_relays_have_them() {
    let spec = SimulationSpec::new(crate::rl::job()).nodes(1);
    System::simulated(1, spec).run(async |_| {
        let model = modelled();
        let mut trainer = ModelledTrainer::new(&model).unwrap();
        let mut bytes = [0; Weights::BYTES];
        trainer.write_weights(&mut bytes).unwrap();
        let stall = trainer.takes();
        assert_eq!(stall, model.card.publish(model.model.weight_bytes()));
        let mut at_once = ModelledRollout::new(&model).unwrap();
        at_once.load(&bytes).unwrap();
        Clock::sleep(Duration::from_secs(60)).await;
        let mut later = ModelledRollout::new(&model).unwrap();
        later.load(&bytes).unwrap();
        let (at_once, later) = (at_once.takes(), later.takes());
        let apart = at_once - later;
        let way = stall + model.way();
        assert!(
            apart.abs_diff(way) < Duration::from_micros(1),
            "{apart:?} {way:?}"
        );
        let replica = Replica::new(&model.card, &model.model, model.rollout_gpus).unwrap();
        assert!(
            later.abs_diff(replica.pull()) < Duration::from_micros(1),
            "{later:?}"
        );
    });
}

#[test]
fn bytes_that_are_no_weights_are_refused() {
    let mut rollout = ModelledRollout::new(&modelled()).unwrap();
    let failure = rollout.load(&[0; 3]).unwrap_err();
    assert!(failure.to_string().contains("3 bytes"), "{failure}");
}

proptest! {
    /// Against a recount of everything after each change.
    #[test]
    fn what_takes_room_is_counted_rightly(
        shared in any::<bool>(),
        changes in prop::collection::vec((0u64..4, 0u32..3, 1u64..3, 0u64..50), 1..60),
    ) {
        let prefixes = if shared { Prefixes::Shared } else { Prefixes::Own };
        let mut cache = Cache::new(prefixes);
        let mut held: BTreeMap<(u64, u32, u64), Part> = BTreeMap::new();
        for (group, sample, weights, own) in changes {
            let key = (group, sample, weights);
            // The prompt is the group's.
            let part = Part { id: SampleId { group, sample }, weights, prompt: 100 + group, own };
            match held.remove(&key) {
                Some(known) => cache.leave(known),
                None => {
                    let needs = cache.needs(part);
                    let before = cache.tokens();
                    let there = cache.enter(part);
                    prop_assert_eq!(cache.tokens() - before, needs);
                    prop_assert_eq!(there + needs, part.prompt + part.own);
                    held.insert(key, part);
                }
            }
            let prompts: BTreeSet<(u64, Option<u32>, u64, u64)> = held
                .values()
                .map(|it| (it.id.group, (!shared).then_some(it.id.sample), it.weights, it.prompt))
                .collect();
            let all = prompts.iter().map(|it| it.3).sum::<u64>()
                + held.values().map(|it| it.own).sum::<u64>();
            prop_assert_eq!(cache.tokens(), all);
        }
        cache.clear();
        prop_assert_eq!(cache.tokens(), 0);
    }
}
