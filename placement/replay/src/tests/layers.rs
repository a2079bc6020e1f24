//! Splits of layers against all splits.

use proptest::prelude::*;

use crate::{SplitError, StageCosts, split_layers};

/// The least of the most expensive stage over all splits.
fn least(layers: &[f64], stages: usize) -> f64 {
    if stages == 1 {
        return layers.iter().sum();
    }
    let cuts = 1..=layers.len() + 1 - stages;
    let most = cuts.map(|cut| {
        let first: f64 = layers[..cut].iter().sum();
        first.max(least(&layers[cut..], stages - 1))
    });
    most.fold(f64::INFINITY, f64::min)
}

#[test]
fn embedding_and_head_leave_their_stages_fewer_layers() {
    let mut layers = vec![1.0; 32];
    layers.insert(0, 0.5);
    layers.push(4.0);
    let split = split_layers(&layers, 4).unwrap();
    assert_eq!(split.most_s, 9.5);
    assert_eq!(
        split
            .stages
            .iter()
            .map(ExactSizeIterator::len)
            .sum::<usize>(),
        34
    );
    // 36.5 seconds over 4 stages: none can have less than 9.125, and layers are whole.
    assert_eq!(least(&layers, 4), 9.5);
    let costs = vec![
        StageCosts {
            activation_bytes: 3,
            kept_bytes: 1,
            ..StageCosts::new(1.0, 2.0, 3.0)
        };
        34
    ];
    let stages = split.stage_costs(&costs);
    assert_eq!(
        stages.iter().map(|it| it.activation_bytes).sum::<u64>(),
        3 * 34
    );
    assert_eq!(stages[0].work_s(), 6.0 * split.stages[0].len() as f64);
    assert_eq!(stages[0].kept_bytes, split.stages[0].len() as u64);
}

#[test]
fn splits_that_cannot_be_say_why() {
    let said = |layers: &[f64], stages| split_layers(layers, stages).unwrap_err().to_string();
    assert_eq!(
        said(&[1.0], 0),
        "1 layers cannot go onto 0 stages: give 1 at least"
    );
    assert_eq!(
        said(&[1.0, 2.0], 3),
        "2 layers leave some of 3 stages empty: give fewer stages, or fewer chunks a rank"
    );
    assert_eq!(
        said(&[1.0, -2.0], 2),
        "layer 1 takes -2 s: give a finite number, 0 or more"
    );
    let unknown = split_layers(&[f64::NAN], 1);
    assert!(matches!(unknown, Err(SplitError::BadCost { layer: 0, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_split_is_better(layers in prop::collection::vec(0..9_u8, 1..11), stages in 1..7_usize) {
        let layers: Vec<_> = layers.into_iter().map(f64::from).collect();
        prop_assume!(stages <= layers.len());
        let split = split_layers(&layers, stages).unwrap();
        prop_assert_eq!(split.stages.len(), stages);
        let mut next = 0;
        let mut most = 0.0_f64;
        for range in &split.stages {
            prop_assert!(range.start == next && !range.is_empty());
            next = range.end;
            most = most.max(layers[range.clone()].iter().sum());
        }
        prop_assert_eq!(next, layers.len());
        prop_assert_eq!(most, split.most_s);
        prop_assert_eq!(most, least(&layers, stages));
    }
}
