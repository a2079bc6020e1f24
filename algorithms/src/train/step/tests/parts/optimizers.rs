//! Tests of optimisers that look at more than a number, with ranks that share what they look at.

use super::*;
use crate::train::{Adam8bit, Muon};

/// A model whose matrices have several tiles, whole ones and others.
fn wide(experts: bool) -> ModelConfig {
    ModelConfig {
        vocab: 70,
        dim: 40,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 20,
        ffn: 72,
        // Passes over shards add up the two gradients of one that is the embedding, too, in another order.
        tied_head: false,
        qkv_bias: !experts,
        block: match experts {
            false => LayerBlock::default(),
            true => LayerBlock::Moe(Moe {
                experts: 4,
                experts_per_token: 2,
            }),
        },
        ..ModelConfig::default()
    }
}

fn settings_of(optimizer: Optimizer) -> TrainConfig {
    TrainConfig {
        lr: 1e-3,
        clip: None,
        optimizer,
        ..TrainConfig::default()
    }
}

fn adam8bit() -> Optimizer {
    Optimizer::Adam8bit(Adam8bit::default())
}

/// The bytes that a rank has stored of each state, by tensor, and which elements these are.
fn stored(trainer: &Trainer) -> Vec<Vec<(Range<usize>, Vec<u8>)>> {
    let states = 0..trainer.config().optimizer.state().len();
    let of = |number| {
        let part = StatePart::State(number);
        let tensors = 0..trainer.trained_layout().entries().len();
        let bytes = |tensor| {
            let elements = trainer.stored(part, tensor);
            let mut bytes = vec![0; elements.len() * trainer.stored_bytes(part)];
            trainer.read_stored(part, tensor, 0, &mut bytes);
            (elements, bytes)
        };
        tensors.map(bytes).collect()
    };
    states.map(of).collect()
}

/// Ranks of which the first alone has anything to learn from, and one device that has the same: so no sum over ranks
/// rounds anything.
fn to_the_bit(
    config: &ModelConfig,
    optimizer: Optimizer,
    sharing: Sharing,
) -> Result<(), TestCaseError> {
    let settings = settings_of(optimizer);
    let mut work = Texts::of(&[9], 0..1);
    work.beside = vec![4, 6];
    let shape = StepShape {
        sums_loss: true,
        ..StepShape::of(&work, false, true)
    };
    let alone = Trainer::new(model(config), settings.clone());
    let (one, alone) = steps(alone, work.clone(), shape, [const { None::<Rank> }; 4]);
    let mut dealt = vec![0; sharing.copies * sharing.experts];
    dealt[0] = 1;
    let all = in_parts(config, &settings, &work, &dealt, sharing);
    let of_copy = sharing.of_copy() * sharing.copies_of_shards();
    for copy in all.chunks(of_copy) {
        let parameters = together(config, copy, |told| &told.parameters);
        let bits = |numbers: &[f32]| numbers.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        prop_assert!(bits(&parameters) == bits(&one.parameters));
    }
    let of_one = stored(&alone);
    for (told, trainer) in &all {
        // These travel in 32 bits.
        let losses = told.losses.iter().zip(&one.losses);
        prop_assert!(
            losses
                .into_iter()
                .all(|(own, one)| *own as f32 == *one as f32)
        );
        for (number, (ours, theirs)) in of_one.iter().zip(stored(trainer)).enumerate() {
            let bytes = trainer.stored_bytes(StatePart::State(number));
            for ((_, all), (elements, own)) in ours.iter().zip(theirs) {
                let at = elements.start * bytes..elements.end * bytes;
                prop_assert!(own == all[at]);
            }
        }
    }
    Ok(())
}

/// Ways in which ranks share parameters, or the optimiser alone.
fn sharings() -> impl Strategy<Value = Sharing> {
    let zero = prop::sample::select(vec![
        ZeroStage::Optimizer,
        ZeroStage::Gradients,
        ZeroStage::Parameters,
    ]);
    let copies = prop::sample::select(vec![
        (2usize, None),
        (3, None),
        (5, None),
        (8, None),
        (4, Some(2)),
        (8, Some(4)),
    ]);
    (zero, copies).prop_map(|(zero, (copies, shards))| Sharing {
        copies,
        zero,
        shards,
        ..Sharing::ALONE
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 143, 144. By the numbers of one device, to the bit: parameters, losses, moments and their scales.
    #[test]
    fn ranks_that_share_tiles_or_matrices_take_the_steps_of_one_device(
        sharing in sharings(),
        experts in any::<bool>(),
        tiles in any::<bool>(),
    ) {
        let optimizer = match tiles {
            true => adam8bit(),
            false => Optimizer::Muon(Muon::default()),
        };
        to_the_bit(&wide(experts), optimizer, sharing)?;
    }

    /// SEMANTICS 144. Where sums over ranks round, within what these differ by.
    #[test]
    fn muon_with_shards_trains_as_one_device_does(
        config in prop::sample::select(models_of_mixtures()),
        ([copies, experts, context, stages], shards) in prop::sample::select(vec![
            ([2, 1, 1, 1], None),
            ([8, 1, 1, 1], Some(4)),
            ([3, 1, 1, 1], None),
            ([4, 1, 2, 1], None),
            ([2, 4, 1, 1], None),
            ([4, 2, 1, 1], Some(2)),
            ([1, 4, 1, 1], None),
            ([2, 1, 1, 2], None),
            ([1, 2, 2, 2], None),
        ]),
        zero in prop::sample::select(vec![ZeroStage::Gradients, ZeroStage::Parameters]),
        lengths in prop::collection::vec(2usize..10, 6),
        seed in any::<prop::sample::Index>(),
    ) {
        let of_experts = config.block.experts().map_or(1, |_| experts);
        let sharing = Sharing {
            copies,
            experts: of_experts,
            context,
            stages,
            zero,
            shards,
            ..Sharing::ALONE
        };
        let work = Texts::of(&lengths, 0..6);
        let buckets = copies * of_experts;
        let mut dealt: Vec<usize> = (0..buckets).map(|bucket| usize::from(bucket < 4)).collect();
        dealt[seed.index(buckets)] += 6 - buckets.min(4);
        let settings = TrainConfig {
            optimizer: Optimizer::Muon(Muon::default()),
            ..settings(false, None)
        };
        are_as_one_device(&config, &settings, &work, &dealt, sharing)?;
    }
}

/// SEMANTICS 134. Of tiles and of matrices that are gathered a rank says what it keeps, to the byte.
#[test]
fn a_footprint_knows_tiles_and_the_room_of_matrices() {
    let config = wide(true);
    for optimizer in [adam8bit(), Optimizer::Muon(Muon::default())] {
        for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Parameters] {
            let sharing = Sharing {
                copies: 3,
                zero,
                ..Sharing::ALONE
            };
            let train = settings_of(optimizer);
            let work = Texts::of(&[5, 3, 8], 0..3);
            let all = in_parts(&config, &train, &work, &[1; 3], sharing);
            for (rank, (_, trainer)) in all.into_iter().enumerate() {
                let told = Footprint::of(&config, &train, sharing, rank).unwrap();
                let kept: usize = match optimizer {
                    Optimizer::Muon(_) => trainer.optimizer.held_bytes(),
                    _ => stored(&trainer)
                        .concat()
                        .iter()
                        .map(|(_, it)| it.len())
                        .sum(),
                };
                assert_eq!(told.optimizer, kept, "{zero:?}");
            }
        }
    }
}

/// Both moments of a matrix of whole tiles take two bytes and two shares of a scale a number, in place of eight bytes.
#[test]
fn moments_in_tiles_take_a_quarter_of_those_in_numbers() {
    let config = ModelConfig {
        vocab: 256,
        dim: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 128,
        ..ModelConfig::default()
    };
    let [tiled, numbers] = [adam8bit(), Optimizer::default()].map(|optimizer| {
        let told = Footprint::of(&config, &settings_of(optimizer), Sharing::ALONE, 0);
        told.unwrap().optimizer
    });
    let ratio = numbers as f64 / tiled as f64;
    assert!(ratio > 3.9 && ratio < 4.0, "{ratio}");
}

/// SEMANTICS 143. Moments in bytes learn what moments in numbers do.
#[test]
fn moments_in_tiles_learn_as_moments_in_numbers_do() {
    let config = wide(false);
    let work = Texts::of(&[9, 8, 9, 7], 0..4);
    let [tiled, numbers] = [adam8bit(), Optimizer::default()].map(|optimizer| {
        let mut trainer = Trainer::new(model(&config), settings_of(optimizer));
        let shape = StepShape::of(&work, false, true);
        let losses = (0..60).map(|_| {
            let peers = StepPeers::<Rank>::none();
            let done = trainer.run(&plan(&shape), &mut work.clone(), peers, &mut |_| Ok(()));
            done.unwrap().loss
        });
        losses.collect::<Vec<f64>>()
    });
    assert!(
        tiled[59] < 0.1 * tiled[0],
        "from {} to {}",
        tiled[0],
        tiled[59]
    );
    let far = tiled.iter().zip(&numbers).map(|(a, b)| (a - b).abs());
    let far = far.fold(0.0, f64::max);
    assert!(
        far > 0.0 && far < 0.05 * numbers[0],
        "{far} of {}",
        numbers[0]
    );
}
