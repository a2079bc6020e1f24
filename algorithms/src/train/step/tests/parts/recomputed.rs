//! Tests of passes that compute again on the way back what they have not kept.

use super::*;
use crate::train::{ActivationBytes, MicroBatches, PipelineKind};

/// Some steps of one rank, and the bytes of activations that a pass needs.
fn trained(
    config: &ModelConfig,
    recompute: Recompute,
    offload: bool,
) -> (Trained, ActivationBytes) {
    let settings = TrainConfig {
        recompute,
        offload,
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
    let (told, trainer) = steps(trainer, work, shape, [const { None::<Rank> }; 4]);
    assert_eq!(trainer.held_activations().host, bytes.host);
    (told, bytes)
}

/// The same numbers to the bit.
fn are_same(one: &Trained, other: &Trained, how: &str) {
    let same = |of: fn(&Trained) -> &[f32]| {
        let bits = |it: &Trained| of(it).iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(one), bits(other), "{how}");
    };
    assert_eq!(one.losses, other.losses, "{how}");
    same(|it| &it.norms);
    same(|it| &it.mean);
    same(|it| &it.parameters);
}

/// Models of every kind with layers enough to show what passes keep of each.
fn deep_models() -> impl Iterator<Item = ModelConfig> {
    models_of_mixtures().into_iter().map(|config| ModelConfig {
        layers: 8,
        ffn: 60,
        learned_positions: config.learned_positions.map(|_| 50),
        ..config
    })
}

/// SEMANTICS 139.
#[test]
fn what_is_computed_again_is_the_same_to_the_bit_and_is_not_kept() {
    for config in deep_models() {
        let (kept, all) = trained(&config, Recompute::Nothing, false);
        let [of_blocks, of_layers] = [Recompute::FeedForward, Recompute::Layers].map(|recompute| {
            let (again, bytes) = trained(&config, recompute, false);
            are_same(&again, &kept, &format!("{recompute:?}"));
            assert_eq!(bytes.host, 0);
            bytes.device
        });
        let all = all.device;
        assert!(of_blocks * 4 < all * 3, "{of_blocks} of {all}");
        assert!(of_layers * 3 < all, "{of_layers} of {all}");
    }
}

/// SEMANTICS 195. What leaves the device comes back as it was, whatever else is computed again.
#[test]
fn what_leaves_the_device_is_the_same_to_the_bit_and_is_not_kept_there() {
    for config in deep_models() {
        let (kept, _) = trained(&config, Recompute::Nothing, false);
        for recompute in recomputes() {
            let settings = TrainConfig {
                recompute,
                ..TrainConfig::default()
            };
            let batch = Texts::of(&[40, 30, 50], 0..3).packed(2);
            let all = Trainer::new(model(&config), settings)
                .activation_bytes(&batch)
                .device;
            let (away, bytes) = trained(&config, recompute, true);
            are_same(&away, &kept, &format!("{recompute:?}, offloaded"));
            let (left, host) = (bytes.device, bytes.host);
            let most = match recompute {
                Recompute::Nothing => all * 2 / 3,
                Recompute::FeedForward => all * 9 / 10,
                Recompute::Layers => all,
            };
            assert!(
                left <= most && host > 0,
                "{recompute:?}: {left} of {all}, {host} away"
            );
        }
    }
}

/// SEMANTICS 195. In stages what leaves the device is of each pass that is under way, also where these go back in two; and
/// ranks of every plan make the steps of one device.
#[test]
fn ranks_whose_activations_leave_the_device_make_the_same_steps_to_the_bit() {
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
        let config = if sharing.experts > 1 {
            &experts
        } else {
            &dense
        };
        let config = ModelConfig {
            layers: 3 * sharing.stages * sharing.chunks,
            ..config.clone()
        };
        let buckets = sharing.copies * sharing.experts;
        let mut work = Texts::of(&vec![7; 2 * buckets], 0..2 * buckets);
        work.dropout = 0.1;
        let of = |offload| {
            let settings = TrainConfig {
                offload,
                ..settings(false, Some(0.05))
            };
            in_parts(&config, &settings, &work, &vec![2; buckets], sharing)
        };
        for (rank, ((kept, _), (away, trainer))) in of(false).into_iter().zip(of(true)).enumerate()
        {
            let how = format!("{sharing:?}, rank {rank}");
            let bits = |of: &[f32]| of.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(kept.losses, away.losses, "{how}");
            assert_eq!(bits(&kept.parameters), bits(&away.parameters), "{how}");
            assert!(trainer.held_activations().host > 0, "{how}");
        }
    }
}

/// SEMANTICS 134, 142, 195. Activations are what is said before a run: to the byte where all stages and ranks are alike.
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
        let ways = recomputes().into_iter().map(|it| (it, false));
        for (recompute, offload) in ways.chain([(Recompute::Nothing, true)]) {
            let config = ModelConfig {
                layers: sharing.stages * sharing.chunks * if offload { 3 } else { 1 },
                ..config.clone()
            };
            let settings = TrainConfig {
                recompute,
                offload,
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
            let (mut told_of_all, mut seen_of_all) = (0, 0);
            for (rank, (_, trainer)) in all.into_iter().enumerate() {
                let told = micro.activations(&config, &settings, sharing, rank);
                let told = told.unwrap().unwrap();
                let seen = trainer.held_activations();
                if sharing.experts * sharing.chunks == 1 {
                    assert_eq!(told, seen, "{sharing:?}, rank {rank}");
                } else if offload {
                    // Of two layers the experts of one rank may have few tokens; all of them together have all.
                    told_of_all += told.device + told.host;
                    seen_of_all += seen.device + seen.host;
                } else {
                    let (told, seen) = (told.device, seen.device);
                    let near = seen <= 2 * told && told <= 2 * seen;
                    assert!(near, "{told} {seen}, {sharing:?}, rank {rank}");
                }
            }
            let near = seen_of_all <= 2 * told_of_all && told_of_all <= 2 * seen_of_all;
            assert!(near, "{told_of_all} {seen_of_all}, {sharing:?}");
        }
    }
}
