//! Tests of passes that compute again on the way back what they have not kept.

use super::*;
use crate::train::{MicroBatches, PipelineKind};

/// Some steps of one rank, and the bytes of activations that a pass needs.
fn trained(config: &ModelConfig, recompute: Recompute) -> (Trained, usize) {
    let settings = TrainConfig {
        recompute,
        ..settings(false, Some(0.05))
    };
    let mut work = Texts::of(&[40, 30, 50], 0..3);
    (work.entropy, work.dropout) = (0.1, 0.1);
    let shape = StepShape {
        sums_loss: true,
        ..StepShape::of(&work, false, true)
    };
    let trainer = Trainer::new(model(config), settings);
    let bytes = trainer.activation_bytes(&work.batch(2).unwrap());
    let (told, _) = steps(trainer, work, shape, [const { None::<Rank> }; 4]);
    (told, bytes)
}

/// SEMANTICS 139.
#[test]
fn what_is_computed_again_is_the_same_to_the_bit_and_is_not_kept() {
    for config in models_of_mixtures() {
        let config = ModelConfig {
            layers: 8,
            ffn: 60,
            learned_positions: config.learned_positions.map(|_| 50),
            ..config
        };
        let (kept, all) = trained(&config, Recompute::Nothing);
        let [of_blocks, of_layers] = [Recompute::FeedForward, Recompute::Layers].map(|recompute| {
            let (again, bytes) = trained(&config, recompute);
            let same = |one: &[f32], other: &[f32]| {
                one.iter()
                    .map(|it| it.to_bits())
                    .eq(other.iter().map(|it| it.to_bits()))
            };
            assert_eq!(again.losses, kept.losses, "{recompute:?}");
            assert!(same(&again.norms, &kept.norms), "{recompute:?}");
            assert!(same(&again.mean, &kept.mean), "{recompute:?}");
            assert!(same(&again.parameters, &kept.parameters), "{recompute:?}");
            bytes
        });
        assert!(of_blocks * 4 < all * 3, "{of_blocks} of {all}");
        assert!(of_layers * 3 < all, "{of_layers} of {all}");
    }
}

/// SEMANTICS 134, 142. Activations are what is said before a run: to the byte where all stages and ranks are alike.
#[test]
fn the_memory_of_activations_is_known_before_a_run() {
    let [dense, _, _, experts, _] = models().try_into().unwrap();
    let all_plans = plans::plans().into_iter().flat_map(|(_, sharing)| {
        let divided = Sharing {
            schedule: PipelineKind::ZeroBubbleH1,
            ..sharing
        };
        let has_more = sharing.stages > 1 && sharing.chunks == 1;
        [sharing].into_iter().chain(has_more.then_some(divided))
    });
    for sharing in all_plans {
        let of_experts = sharing.experts > 1;
        let config = if of_experts { &experts } else { &dense };
        for recompute in recomputes() {
            let config = ModelConfig {
                layers: sharing.stages * sharing.chunks,
                ..config.clone()
            };
            let settings = TrainConfig {
                recompute,
                ..settings(false, None)
            };
            // Three micro-batches of one sequence each on every rank that has samples.
            let buckets = sharing.copies * sharing.experts;
            let work = Texts::of(&vec![17; 3 * buckets], 0..3 * buckets);
            let micro = MicroBatches {
                tokens: 16,
                sequence: 16,
                count: 3,
            };
            let all = in_parts(&config, &settings, &work, &vec![3; buckets], sharing);
            for (rank, (_, trainer)) in all.into_iter().enumerate() {
                let told = micro.activations(&config, &settings, sharing, rank);
                let told = told.unwrap().unwrap();
                let seen = trainer.held_activations();
                if sharing.experts * sharing.chunks == 1 {
                    assert_eq!(told, seen, "{sharing:?}, rank {rank}");
                } else {
                    let near = seen <= 2 * told && told <= 2 * seen;
                    assert!(near, "{told} {seen}, {sharing:?}, rank {rank}");
                }
            }
        }
    }
}
