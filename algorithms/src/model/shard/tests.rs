//! Tests of shards.

use odeon_gpu::Cpu;
use proptest::prelude::*;

use super::*;
use crate::model::{LayerBlock, Model, ModelConfig, Moe, PartPlace};

fn config(layers: usize, tied_head: bool) -> ModelConfig {
    ModelConfig {
        vocab: 23,
        dim: 16,
        layers,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        ffn: 20,
        tied_head,
        block: LayerBlock::Moe(Moe {
            experts: 4,
            experts_per_token: 2,
        }),
        ..ModelConfig::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Shards of all ranks are the model: each number is kept by one rank of those that have it in common, in whole rows,
    /// and where it is said to lie.
    #[test]
    fn shards_put_together_are_the_model(
        layers in 1usize..4,
        tied in any::<bool>(),
        [tensor, experts, ranks] in prop::sample::select(vec![
            [1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 1, 8], [2, 1, 2], [1, 2, 4], [2, 2, 2],
        ]),
    ) {
        let of_part = PartPlace {
            tensor: RankOf::new(tensor - 1, tensor),
            experts: RankOf::new(experts - 1, experts),
            ..PartPlace::WHOLE
        };
        let make = || {
            let model = Model::init(Cpu::new(1), config(layers, tied), 5).unwrap();
            model.into_part(of_part).unwrap()
        };
        let whole = make();
        // Each set is kept by as many ranks as there are of its kind; of each kind those that this part meets.
        let kinds = [tensor * experts * ranks, experts * ranks, ranks];
        let mut kept = vec![0; whole.parameters()];
        for rank in 0..kinds[0] {
            let place = ShardPlace {
                everywhere: RankOf::new(rank, kinds[0]),
                data: RankOf::new(rank % kinds[1], kinds[1]),
                experts: RankOf::new(rank % kinds[2], kinds[2]),
            };
            let own = make().into_shard(place).unwrap();
            let shard = own.shard().unwrap();
            prop_assert_eq!(own.params.as_slice().len(), shard.layout().len());
            for (number, entry) in whole.layout().entries().iter().enumerate() {
                let held = shard.held(number);
                let row = entry.shape.get(1).copied().unwrap_or(1);
                prop_assert!(held.start >= entry.range.start && held.end <= entry.range.end);
                prop_assert_eq!((held.start - entry.range.start) % row, 0);
                prop_assert_eq!(held.len() % row, 0);
                if held.is_empty() {
                    continue;
                }
                let at = shard.kept_at(held.start);
                let ours = &own.params.as_slice()[at..at + held.len()];
                prop_assert_eq!(ours, &whole.flat()[held.clone()]);
                for count in &mut kept[held] {
                    *count += 1;
                }
            }
        }
        let part = whole.part().map(|part| part.ranges().clone());
        let ranges = part.unwrap_or_else(|| PartRanges::whole(whole.parameters()));
        let kinds = SetKind::ALL.into_iter().zip(kinds);
        for (kind, count) in kinds {
            for range in kind.of(&ranges) {
                // Once among those of its kind, each of which came as often.
                prop_assert!(kept[range.clone()].iter().all(|it| *it == tensor * experts * ranks / count));
            }
        }
    }
}

#[test]
fn a_shard_is_about_a_share_of_the_model() {
    let wide = ModelConfig {
        dim: 64,
        ffn: 172,
        vocab: 512,
        head_dim: 16,
        ..config(4, true)
    };
    let model = Model::init(Cpu::new(1), wide, 5).unwrap();
    let all = model.parameters();
    let shard = model.into_shard(ShardPlace::of(RankOf::new(2, 4))).unwrap();
    let shard = shard.shard().unwrap();
    let kept = shard.layout().len();
    assert_eq!(4 * kept, all + shard.padding());
    assert!(shard.padding() * 50 < all, "{} of {all}", shard.padding());
    assert!(shard.longest_unit() * 3 < shard.gathered());
}

#[test]
fn a_model_that_reads_pictures_is_not_sharded() {
    let sees = ModelConfig {
        vision: Some(crate::model::VisionConfig {
            patch: 2,
            dim: 8,
            layers: 1,
            heads: 1,
            ffn: 4,
        }),
        ..config(1, true)
    };
    let refused = sees.check_shards(4).unwrap_err().to_string();
    let why = "a model that reads pictures cannot be shared by 4 sharding ranks";
    assert_eq!(refused, why);
}

/// SEMANTICS 164. Seconds of several ranks and groups are added up before a share is made of them.
#[test]
fn the_time_of_moves_is_hidden_as_far_as_passes_do_not_wait_for_it() {
    let of = |moving, waited| ShardTime {
        moving: Duration::from_millis(moving),
        waited: Duration::from_millis(waited),
    };
    assert_eq!(ShardTime::default().hidden_share(), 0.0);
    assert_eq!(of(0, 3).hidden_share(), 0.0, "nothing was moved");
    assert_eq!(of(8, 0).hidden_share(), 1.0);
    assert_eq!(of(8, 8).hidden_share(), 0.0);
    // A pass hears of the end a little later.
    assert_eq!(of(8, 9).hidden_share(), 0.0);
    let all: ShardTime = [of(30, 10), of(10, 0), of(0, 0)].into_iter().sum();
    assert_eq!(all, of(40, 10));
    assert_eq!(all.hidden_share(), 0.75);
}
