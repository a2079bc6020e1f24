//! Tests of ranks that keep shards.

use super::*;
use crate::train::PipelineKind;

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 137, 140, 153. Ranks that keep shards, alone and in every mixture, also in several replicas.
    #[test]
    fn ranks_with_shards_train_a_model_as_one_device_does(
        config in prop::sample::select(models_of_mixtures()),
        ([copies, experts, context, tensor], shards) in prop::sample::select(sharded_mixtures()),
        zero in prop::sample::select(vec![ZeroStage::Gradients, ZeroStage::Parameters]),
        params in prop::sample::select(vec![Precision::F32, Precision::Bf16]),
        ahead in 1usize..4,
        context_kind in prop::sample::select(vec![ContextKind::Ulysses, ContextKind::Ring]),
        lengths in prop::collection::vec(2usize..10, 6),
        clip in prop::option::of(Just(0.05f32)),
        entropy in prop::sample::select(vec![0.0f32, 0.1]),
        lion in any::<bool>(),
        recompute in prop::sample::select(recomputes()),
        seed in any::<prop::sample::Index>(),
        dropout in shares_that_are_dropped(),
    ) {
        let of_experts = config.block.experts().map_or(1, |_| experts);
        let sharing = Sharing {
            copies,
            experts: of_experts,
            context,
            context_kind,
            tensor,
            zero,
            shards,
            params,
            ahead,
            ..Sharing::ALONE
        };
        let mut work = Texts::of(&lengths, 0..6);
        (work.entropy, work.dropout) = (entropy, dropout);
        let buckets = copies * of_experts;
        let mut dealt: Vec<usize> = (0..buckets).map(|bucket| usize::from(bucket < 4)).collect();
        dealt[seed.index(buckets)] += 6 - buckets.min(4);
        let settings = TrainConfig { recompute, ..settings(lion, clip) };
        are_as_one_device(&config, &settings, &work, &dealt, sharing)?;
    }
}

/// Copies, expert, context and tensor ranks with shards, and the copies that keep one set of these.
fn sharded_mixtures() -> Vec<([usize; 4], Option<usize>)> {
    vec![
        ([2, 1, 1, 1], None),
        ([8, 1, 1, 1], None),
        ([3, 1, 1, 1], None),
        ([8, 1, 1, 1], Some(4)),
        ([4, 1, 1, 1], Some(2)),
        ([4, 1, 1, 2], None),
        ([4, 1, 1, 2], Some(2)),
        ([4, 1, 2, 1], None),
        ([1, 1, 4, 1], None),
        ([2, 4, 1, 1], None),
        ([4, 2, 1, 1], Some(2)),
        ([1, 4, 1, 1], None),
        ([2, 2, 1, 2], None),
        ([1, 2, 2, 2], None),
    ]
}

/// SEMANTICS 134, 149, 150, 153. Of shards a rank says what it keeps, gathers and copies.
#[test]
fn a_footprint_knows_shards_and_what_is_gathered() {
    let config = &models()[0];
    let stages = [ZeroStage::Gradients, ZeroStage::Parameters];
    for (zero, params, ahead) in stages.into_iter().flat_map(|zero| {
        let formats = [Precision::F32, Precision::Bf16];
        formats
            .into_iter()
            .flat_map(move |params| [(zero, params, 1), (zero, params, 2)])
    }) {
        let sharing = Sharing {
            copies: 4,
            zero,
            params,
            ahead,
            ..Sharing::ALONE
        };
        let train = TrainConfig::default();
        let work = Texts::of(&[5, 3, 8, 2], 0..4);
        let all = in_parts(config, &train, &work, &[1; 4], sharing);
        for (rank, (made, mut trainer)) in all.into_iter().enumerate() {
            let told = Footprint::of(config, &train, sharing, rank).unwrap();
            let kept = 4 * trainer.part().len();
            assert_eq!((told.parameters, told.gradients), (kept, kept));
            assert_eq!(told.optimizer, 2 * kept);
            assert!(kept * 3 < 4 * trainer.model().parameters());
            let (model, gathered) = trainer.scorer.gathering();
            let of_all = 4 * model.shard().unwrap().gathered();
            let of_others = match params {
                Precision::F32 => of_all - kept,
                _ => (of_all - kept) / 2,
            };
            assert_eq!(told.gathered_of_others, of_others);
            // Buffers of another unit may be longer than what they are used for.
            let held = 4 * gathered.len();
            assert!(
                held <= told.gathered && 2 * held > told.gathered,
                "{held} of {}",
                told.gathered
            );
            assert_eq!(told.summed_over_data, 0);
            // These ranks copy a shard to its place before each gather: one a pass, or one a step.
            // In bf16 a shard is written twice before it, and all of it behind it in 32 bits, in each pass.
            let gathers = match (params, zero) {
                (Precision::F32, ZeroStage::Gradients) => kept,
                (Precision::F32, _) => 2 * kept,
                (_, ZeroStage::Gradients) => kept + 2 * of_all,
                (_, _) => 2 * (kept + of_all),
            };
            assert_eq!(made.copies, ShardCopies { gathers, sums: 0 });
        }
    }
}

/// SEMANTICS 150. Ranks that gather a layer and add up another while they compute have the numbers of ranks that wait.
#[test]
fn shards_that_move_beside_passes_have_the_same_numbers_to_the_bit() {
    let of = |[copies, experts, context, tensor]: [usize; 4], zero| Sharing {
        copies,
        experts,
        context,
        tensor,
        zero,
        ..Sharing::ALONE
    };
    let divided = Sharing {
        stages: 2,
        schedule: PipelineKind::ZeroBubbleH1,
        ..of([2, 1, 1, 2], ZeroStage::Parameters)
    };
    let all = [
        of([4, 1, 1, 1], ZeroStage::Parameters),
        of([3, 1, 1, 1], ZeroStage::Gradients),
        of([2, 1, 2, 2], ZeroStage::Parameters),
        of([2, 2, 1, 1], ZeroStage::Parameters),
        divided,
    ];
    for (sharing, recompute) in all.into_iter().zip(recomputes().into_iter().cycle()) {
        let config = ModelConfig {
            layers: 4,
            ..models()[if sharing.experts > 1 { 3 } else { 4 }].clone()
        };
        let train = TrainConfig {
            recompute,
            ..settings(false, Some(0.05))
        };
        let sharing = Sharing {
            ahead: 2,
            ..sharing
        };
        let buckets = sharing.copies * sharing.experts;
        let mut work = Texts::of(&vec![7; 2 * buckets], 0..2 * buckets);
        let beside = in_parts(&config, &train, &work, &vec![2; buckets], sharing);
        work.waits = true;
        let waited = in_parts(&config, &train, &work, &vec![2; buckets], sharing);
        for ((one, _), (other, _)) in beside.iter().zip(&waited) {
            let bits = |numbers: &[f32]| numbers.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(one.losses, other.losses, "{sharing:?}");
            assert_eq!(bits(&one.mean), bits(&other.mean), "{sharing:?}");
            assert_eq!(
                bits(&one.parameters),
                bits(&other.parameters),
                "{sharing:?}"
            );
        }
    }
}
