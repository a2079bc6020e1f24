//! Tests of parts that are made without the whole.

use odeon_gpu::cuda::emulated::{EmulatedError, ThreadOrder};
use odeon_gpu::cuda::{Cuda, Emulated};
use odeon_gpu::{Cpu, Precision};
use odeon_skip::{Need, skip};

use odeon_gpu::Backend;

use super::*;
use crate::model::{
    LayerBlock, Model, ModelConfig, Moe, PartPlace, RankKeeps, RankOf, ShardPlace, StagePlace,
    VirtualWidth,
};

fn config() -> ModelConfig {
    ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 5,
        heads: 4,
        kv_heads: 4,
        head_dim: 6,
        ffn: 20,
        ..ModelConfig::default()
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// The values of a whole model as a stream of all of its numbers has them, in the order of tensors.
fn in_order(config: &ModelConfig, seed: u64) -> Vec<f32> {
    let mut normal = Normal::new(seed);
    let residual = 0.02 / (2.0 * config.layers as f32).sqrt();
    let mut flat = vec![];
    for entry in Model::<Cpu>::describe(config).0.entries() {
        let (name, len) = (entry.name.as_str(), entry.range.len());
        let is_end = ["o_proj.weight", "down_proj.weight", "w2.weight"];
        let deviation = match is_end.iter().any(|end| name.ends_with(end)) {
            true => residual,
            false => 0.02,
        };
        match config
            .width
            .and_then(|it| it.first_values(name, config.dim))
        {
            Some(told) => flat.extend(told),
            None if name.ends_with("norm.weight") => flat.extend(vec![1.0; len]),
            None => flat.extend((0..len).map(|_| deviation * normal.draw())),
        }
    }
    flat
}

fn filled<B: Backend>(backend: B, config: &ModelConfig, keeps: RankKeeps) -> Model<B> {
    let mut values = SeededValues::new(config, 3);
    let mut model = Model::of_rank(backend, config.clone(), keeps).unwrap();
    let read = |name: &str, part: &[Range<usize>]| Ok::<_, ()>(values.read(name, part));
    model.fill(read).unwrap();
    model
}

/// What ranks of many kinds keep.
fn all_kept() -> Vec<RankKeeps> {
    let mut all = vec![RankKeeps::ALL];
    for (tensor, experts, stages, shards) in [
        (2, 1, 1, 1),
        (1, 2, 1, 1),
        (1, 1, 2, 1),
        (2, 2, 2, 1),
        (1, 1, 1, 3),
        (2, 1, 2, 3),
        (1, 2, 1, 2),
    ] {
        for rank in 0..tensor * experts * stages * shards {
            let stage = StagePlace {
                rank: RankOf::new(rank / tensor / experts % stages, stages),
                ..StagePlace::ALONE
            };
            let own = rank / tensor / experts / stages;
            let keeper = |beside: usize, at: usize| match beside {
                1 => RankOf::ALONE,
                _ => RankOf::new(own * beside + at, shards * beside),
            };
            let part = PartPlace {
                tensor: RankOf::new(rank % tensor, tensor),
                experts: RankOf::new(rank / tensor % experts, experts),
                stage,
            };
            let shard = ShardPlace {
                everywhere: keeper(tensor, part.tensor.rank),
                data: RankOf::new(own, shards),
                experts: match experts {
                    1 => RankOf::ALONE,
                    _ => RankOf::new(own, shards),
                },
            };
            all.push(RankKeeps {
                part,
                shard: (shards > 1).then_some((shard, 1 + rank % 2)),
            });
        }
    }
    all
}

/// SEMANTICS 154. First weights that a rank draws for its part are those of one device, and no others are drawn.
#[test]
fn parts_that_are_drawn_are_those_of_one_device() {
    let experts = ModelConfig {
        block: LayerBlock::Moe(Moe {
            experts: 4,
            experts_per_token: 2,
        }),
        tied_head: false,
        ..config()
    };
    let wide = ModelConfig {
        width: Some(VirtualWidth {
            fraction: 2,
            segments: 3,
            dynamic: true,
        }),
        ..config()
    };
    for config in [config(), experts, wide] {
        let whole = Model::init(Cpu::new(1), config.clone(), 3).unwrap();
        assert_eq!(bits(whole.flat()), bits(&in_order(&config, 3)));
        for keeps in all_kept() {
            if config.part(keeps.part).is_err() {
                continue;
            }
            let whole = Model::init(Cpu::new(1), config.clone(), 3).unwrap();
            let mut cut = whole.into_part(keeps.part).unwrap();
            if let Some((place, rows)) = keeps.shard {
                cut = cut.into_shard_of_rows(place, rows).unwrap();
            }
            let made = filled(Cpu::new(1), &config, keeps);
            assert_eq!(bits(made.flat()), bits(cut.flat()), "{keeps:?}");
        }
    }
}

/// SEMANTICS 154. A card never holds more of a model than its rank's part and the longest of its parameters.
#[test]
fn a_card_holds_its_part_of_a_model_and_no_more() {
    let config = ModelConfig {
        layers: 8,
        ..config()
    };
    let all = 4 * Model::<Cpu>::describe(&config).0.len() as u64;
    for rank in 0..8 {
        let card = match Emulated::start(ThreadOrder::Forwards) {
            Ok(card) => Cuda::over(card, Precision::F32),
            Err(error @ EmulatedError::NoCompiler { .. }) => {
                return skip(Need::CppCompiler, error);
            }
            Err(error) => panic!("{error}"),
        };
        // What its queue has for itself comes with the first numbers.
        drop(card.buffer(&[1.0; 16]));
        let of_queue = card.card().peak_bytes() - 64;
        let stage = StagePlace {
            rank: RankOf::new(rank / 2, 4),
            ..StagePlace::ALONE
        };
        let part = PartPlace {
            stage,
            ..PartPlace::of_tensor(rank % 2, 2)
        };
        let model = filled(card.clone(), &config, RankKeeps { part, shard: None });
        let own = 4 * model.parameters() as u64;
        let entries = model.layout().entries().iter();
        let longest = entries.map(|it| 4 * it.range.len() as u64).max();
        let peak = card.card().peak_bytes() - of_queue;
        assert!(
            (own..=own + longest.unwrap()).contains(&peak),
            "{peak} of {own}"
        );
        assert!(peak < all / 3, "{peak} of {all}");
    }
}
