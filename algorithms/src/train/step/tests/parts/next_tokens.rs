//! Tests of ranks that train a head for one token further.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 145. Copies, ranks with shards of all stages, and with some of the experts; ranks without a sequence, or with
    /// sequences that have no second token, among them.
    #[test]
    fn ranks_train_a_head_for_one_token_further_as_one_device_does(
        tied_head in any::<bool>(),
        of_experts in any::<bool>(),
        ([copies, experts], shards) in prop::sample::select(vec![
            ([2, 1], None), ([3, 1], None), ([4, 1], Some(2)), ([1, 2], None), ([2, 2], None),
        ]),
        zero in prop::sample::select(vec![
            ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients, ZeroStage::Parameters,
        ]),
        lengths in prop::collection::vec(2usize..8, 6),
        dropout in shares_that_are_dropped(),
        recompute in prop::sample::select(recomputes()),
    ) {
        let config = ModelConfig {
            tied_head,
            next_token: true,
            ..models()[if of_experts { 3 } else { 0 }].clone()
        };
        let experts = if of_experts { experts } else { 1 };
        let zero = match zero {
            ZeroStage::Optimizer if experts > 1 || copies == 1 => ZeroStage::Gradients,
            zero => zero,
        };
        let sharing = Sharing {
            copies,
            experts,
            zero,
            shards: shards.filter(|_| zero.has_shards()),
            ..Sharing::ALONE
        };
        let mut work = Texts::of(&lengths, 0..6);
        work.dropout = dropout;
        let mut dealt = vec![0; copies * experts];
        dealt[0] = 6 - (copies * experts > 1) as usize;
        if let Some(second) = dealt.get_mut(1) {
            *second = 1;
        }
        let settings = TrainConfig {
            recompute,
            next_token_weight: 0.3,
            ..settings(false, None)
        };
        are_as_one_device(&config, &settings, &work, &dealt, sharing)?;
    }
}
