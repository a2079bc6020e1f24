//! Tests of models whose rows are wider than layers, with ranks that share them.

use super::*;
use crate::model::VirtualWidth;

fn wide(
    fraction: usize,
    segments: usize,
    dynamic: bool,
    tied_head: bool,
    experts: bool,
) -> ModelConfig {
    let of = if experts { 3 } else { 0 };
    ModelConfig {
        tied_head,
        width: Some(VirtualWidth {
            fraction,
            segments,
            dynamic,
        }),
        ..models()[of].clone()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 145, 140. Copies, shards of all stages, and ranks that share rows, experts and layers.
    #[test]
    fn ranks_train_a_wide_model_as_one_device_does(
        [fraction, segments] in prop::sample::select(vec![[1, 1], [1, 2], [2, 2], [2, 3], [2, 4]]),
        dynamic in any::<bool>(),
        tied in any::<bool>(),
        of_experts in any::<bool>(),
        ([copies, experts, context, stages], shards) in prop::sample::select(vec![
            ([2, 1, 1, 1], None),
            ([4, 1, 1, 1], Some(2)),
            ([3, 1, 1, 1], None),
            ([2, 1, 2, 1], None),
            ([1, 2, 1, 1], None),
            ([1, 1, 1, 2], None),
            ([2, 2, 1, 2], None),
        ]),
        zero in prop::sample::select(vec![
            ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients, ZeroStage::Parameters,
        ]),
        recompute in prop::sample::select(recomputes()),
        dropout in shares_that_are_dropped(),
    ) {
        let config = wide(fraction, segments, dynamic, tied, of_experts);
        let experts = if of_experts { experts } else { 1 };
        let is_plain = experts * stages * context == 1 && copies > 1;
        let zero = match zero {
            ZeroStage::Optimizer if !is_plain => ZeroStage::Gradients,
            zero => zero,
        };
        let sharing = Sharing {
            copies,
            experts,
            context,
            stages,
            zero,
            shards: shards.filter(|_| zero.has_shards()),
            ..Sharing::ALONE
        };
        let mut work = Texts::of(&[5, 9, 3, 7, 4, 6], 0..6);
        work.dropout = dropout;
        let buckets = copies * experts;
        let mut dealt: Vec<usize> = (0..buckets).map(|bucket| usize::from(bucket < 4)).collect();
        dealt[0] += 6 - buckets.min(4);
        let settings = TrainConfig { recompute, ..settings(false, None) };
        are_as_one_device(&config, &settings, &work, &dealt, sharing)?;
    }
}

/// SEMANTICS 134. A row that goes from stage to stage is as much wider.
#[test]
fn a_footprint_knows_how_wide_rows_are() {
    let of = |width| {
        let config = ModelConfig {
            width,
            ..models()[0].clone()
        };
        let sharing = Sharing {
            stages: 2,
            ..Sharing::ALONE
        };
        let told = Footprint::of(&config, &TrainConfig::default(), sharing, 0).unwrap();
        (told.stage_row, told.row)
    };
    let wide = VirtualWidth {
        fraction: 2,
        segments: 4,
        dynamic: true,
    };
    let (plain, wide) = (of(None), of(Some(wide)));
    assert_eq!((2 * plain.0, 2 * plain.1), wide);
}
