//! Tests of parts that are read out of files.

use odeon_algorithms::train::{Sharing, ZeroStage};
use odeon_algorithms::weights::ModelFields;

use super::*;
use crate::engine::compute::model_folder;

fn config() -> ModelConfig {
    ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 4,
        heads: 4,
        kv_heads: 4,
        head_dim: 6,
        ffn: 20,
        ..ModelConfig::default()
    }
}

fn bits(model: &Model) -> Vec<u32> {
    let flat = model.to_flat();
    flat.iter().map(|number| number.to_bits()).collect()
}

/// SEMANTICS 154. Of a model folder a rank reads its part, which is that of one rank that has it all; it does not look at
/// what others keep.
#[test]
fn a_rank_reads_its_part_of_a_folder_and_nothing_else() {
    let fresh = ModelSource::Fresh(Box::new(config()));
    let sharing = Sharing {
        copies: 2,
        stages: 2,
        tensor: 2,
        ..Sharing::ALONE
    };
    let sharded = Sharing {
        zero: ZeroStage::Parameters,
        ..sharing
    };
    let folder = tempfile::tempdir().expect("a folder");
    let sound = folder.path().join("sound");
    let bent = folder.path().join("bent");
    let mut whole = ComputePlace::PROCESSOR
        .part((&fresh, 5), false, (&RankPlace::ALONE, 1))
        .expect("a model");
    let write = |target: &Path, model: &Model| {
        let fields = ModelFields::of(model.config(), 64);
        model_folder::write(target, model, fields, None).expect("it is written");
    };
    write(&sound, &whole);
    // Of the last stage.
    let name = "model.layers.3.mlp.up_proj.weight";
    whole
        .load_tensor(name, &[f32::NAN; 20 * 16])
        .expect("a tensor of it");
    write(&bent, &whole);
    for sharing in [Sharing::ALONE, sharing, sharded] {
        for rank in 0..sharing.ranks() {
            let place = RankPlace { sharing, rank };
            let part = |source: &ModelSource| {
                ComputePlace::PROCESSOR.part((source, 5), false, (&place, 1))
            };
            let drawn = part(&fresh).expect("its part");
            let read = part(&ModelSource::Load(sound.clone())).expect("its part");
            assert_eq!(bits(&read), bits(&drawn), "{place:?}");
            let read = part(&ModelSource::Load(bent.clone()));
            let keeps = sharing.place(rank).stage.is_last();
            match read {
                Ok(read) => assert!(!keeps || sharing.zero.has_shards(), "{read:?}"),
                Err(failure) => assert!(keeps && failure.to_string().contains(name), "{failure}"),
            }
        }
    }
    // A critic begins with a head of zeros.
    let head =
        ComputePlace::PROCESSOR.part((&ModelSource::Load(sound), 5), true, (&RankPlace::ALONE, 1));
    let head = head.expect("a critic");
    assert!(head.config().value_head);
    assert_eq!(head.to_flat()[head.parameters() - 17..], [0.0; 17]);
}
