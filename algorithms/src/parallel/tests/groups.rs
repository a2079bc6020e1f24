//! The places of ranks, and their groups.

use std::collections::BTreeSet;

use super::*;

/// All groups that a function gives, each once.
fn all(ranks: usize, group: impl Fn(usize) -> Result<Vec<usize>, LayoutError>) -> Vec<Vec<usize>> {
    let groups: BTreeSet<Vec<usize>> = (0..ranks).map(|rank| group(rank).unwrap()).collect();
    groups.into_iter().collect()
}

fn strided(training: Layout, generation: Generation) -> Groups {
    Groups::new(training, generation, Grouping::Strided).unwrap()
}

/// HybridFlow's example, there with ranks from 1 on: 1-4-2 -> 1-2-2-2.
#[test]
fn the_papers_example_has_the_papers_groups() {
    let groups = strided(layout(1, 4, 2), generation(1, 2));
    assert_eq!(groups.to_string(), "1-4-2 -> 1-2-2-2");
    let tensor = all(8, |rank| groups.tensor_group(rank));
    assert_eq!(tensor, [[0, 2], [1, 3], [4, 6], [5, 7]]);
    let micro = all(8, |rank| groups.micro_data_group(rank));
    assert_eq!(micro, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    let training = all(8, |rank| groups.training().tensor_group(rank));
    assert_eq!(training, [[0, 1, 2, 3], [4, 5, 6, 7]]);

    let usual = Groups::new(layout(1, 4, 2), generation(1, 2), Grouping::Usual).unwrap();
    let tensor = all(8, |rank| usual.tensor_group(rank));
    assert_eq!(tensor, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    let micro = all(8, |rank| usual.micro_data_group(rank));
    assert_eq!(micro, [[0, 2], [1, 3], [4, 6], [5, 7]]);
}

#[test]
fn stages_are_strided_as_tensor_ranks_are() {
    let groups = strided(layout(2, 2, 1), generation(1, 2));
    assert_eq!(
        all(4, |rank| groups.micro_data_group(rank)),
        [[0, 2], [1, 3]]
    );
    let groups = strided(layout(4, 1, 1), generation(2, 1));
    assert_eq!(all(4, |rank| groups.pipeline_group(rank)), [[0, 2], [1, 3]]);
    assert_eq!(
        all(4, |rank| groups.micro_data_group(rank)),
        [[0, 1], [2, 3]]
    );
    let groups = strided(layout(2, 4, 1), generation(1, 2));
    let micro = all(8, |rank| groups.micro_data_group(rank));
    assert_eq!(micro, [[0, 1, 4, 5], [2, 3, 6, 7]]);
}

#[test]
fn replicas_of_training_are_blocks_of_ranks() {
    let training = layout(2, 3, 2);
    assert_eq!(training.tensor_group(7).unwrap(), [6, 7, 8]);
    assert_eq!(training.pipeline_group(7).unwrap(), [7, 10]);
    assert_eq!(training.data_group(7).unwrap(), [1, 7]);
    assert_eq!(training.replica(7).unwrap(), 6..12);
    let at = Coordinates {
        data: 1,
        pipeline: 0,
        tensor: 1,
    };
    assert_eq!(training.coordinates(7), Ok(at));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn groups_are_disjoint_and_cover_all_ranks(layouts in layouts(), grouping in groupings()) {
        let (training, generation) = (layouts.training, layouts.of(grouping));
        let groups = Groups::new(training, generation, grouping).unwrap();
        let ranks = training.ranks();
        let (p_g, t_g) = (generation.pipeline, generation.tensor);
        prop_assert_eq!(p_g * t_g * groups.micro_data() * training.data(), ranks);
        let kinds = [
            (all(ranks, |rank| training.tensor_group(rank)), training.tensor()),
            (all(ranks, |rank| training.pipeline_group(rank)), training.pipeline()),
            (all(ranks, |rank| training.data_group(rank)), training.data()),
            (all(ranks, |rank| groups.tensor_group(rank)), t_g),
            (all(ranks, |rank| groups.pipeline_group(rank)), p_g),
            (all(ranks, |rank| groups.micro_data_group(rank)), groups.micro_data()),
        ];
        for (groups, size) in kinds {
            prop_assert!(groups.iter().all(|group| group.len() == size));
            let mut members = groups.concat();
            members.sort_unstable();
            prop_assert_eq!(members, (0..ranks).collect::<Vec<_>>());
        }
    }

    #[test]
    fn coordinates_lead_back_to_the_rank(layouts in layouts(), grouping in groupings()) {
        let (training, generation) = (layouts.training, layouts.of(grouping));
        let groups = Groups::new(training, generation, grouping).unwrap();
        let mut replicas = vec![0; training.data() * groups.micro_data()];
        for rank in 0..training.ranks() {
            prop_assert_eq!(training.rank(training.coordinates(rank).unwrap()), rank);
            prop_assert_eq!(groups.rank(groups.coordinates(rank).unwrap()), rank);
            // No generation replica has ranks of two training replicas.
            let replica = groups.replica(rank).unwrap();
            prop_assert_eq!(replica / groups.micro_data(), rank / training.replica_ranks());
            replicas[replica] += 1;
        }
        prop_assert!(replicas.iter().all(|&ranks| ranks == generation.replica_ranks()));
    }
}

#[test]
fn layouts_that_do_not_fit_are_refused() {
    let check = |refused: Result<(), LayoutError>, message: &str| {
        assert_eq!(refused.unwrap_err().to_string(), message);
    };
    let new = |p, t, d| Layout::new(p, t, d).map(drop);
    check(
        new(1, 0, 2),
        "tensor parallelism of 0; it must be at least 1",
    );
    check(
        new(1 << 20, 2, 1),
        "a layout of 1048576-2-1 has more than 1048576 ranks",
    );
    check(
        new(usize::MAX, 2, 1),
        "a layout of 18446744073709551615-2-1 has more than 1048576 ranks",
    );
    let groups = |pipeline, tensor, grouping| {
        Groups::new(layout(2, 4, 2), generation(pipeline, tensor), grouping).map(drop)
    };
    check(
        groups(1, 3, Grouping::Strided),
        "tensor parallelism of 3 for generation does not divide the 4 of training (2-4-2); \
         choose a divisor",
    );
    check(
        groups(4, 1, Grouping::Strided),
        "pipeline parallelism of 4 for generation does not divide the 2 of training (2-4-2); \
         choose a divisor",
    );
    check(
        groups(3, 1, Grouping::Usual),
        "model parallelism of 3 for generation does not divide the 8 of training (2-4-2); \
         choose a divisor",
    );
    check(
        groups(0, 1, Grouping::Usual),
        "pipeline parallelism of 0; it must be at least 1",
    );
    assert_eq!(groups(1, 8, Grouping::Usual), Ok(()));
    check(
        layout(2, 4, 2).coordinates(16).map(drop),
        "there is no rank 16 in 2-4-2, which has 16",
    );
}

#[test]
fn a_layout_that_is_sent_is_checked() {
    let text = serde_json::to_string(&layout(1, 4, 2)).unwrap();
    assert_eq!(text, r#"{"pipeline":1,"tensor":4,"data":2}"#);
    assert_eq!(
        serde_json::from_str::<Layout>(&text).unwrap(),
        layout(1, 4, 2)
    );
    let refused = serde_json::from_str::<Layout>(r#"{"pipeline":0,"tensor":4,"data":2}"#);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("pipeline parallelism of 0"), "{message}");
}
