//! The places of ranks, and their groups.

use std::collections::BTreeSet;

use super::*;

/// All groups that a function gives, each once.
fn all(ranks: usize, group: impl Fn(usize) -> Result<Vec<usize>, LayoutError>) -> Vec<Vec<usize>> {
    let groups: BTreeSet<Vec<usize>> = (0..ranks).map(|rank| group(rank).unwrap()).collect();
    groups.into_iter().collect()
}

fn strided(training: &Mesh, generation: &Mesh) -> Groups {
    Groups::new(training, generation, Grouping::Strided).unwrap()
}

/// HybridFlow's example, there with ranks from 1 on: 1-4-2 -> 1-2-2-2.
#[test]
fn the_papers_example_has_the_papers_groups() {
    let groups = strided(&layout(1, 4, 2), &generation(1, 2));
    assert_eq!(
        groups.to_string(),
        "{dp: 2, pp: 1, tp: 4} -> {dp: 2, pp: 1, micro_pp: 1, tp: 2, micro_tp: 2}"
    );
    let tensor = all(8, |rank| groups.tensor_group(rank));
    assert_eq!(tensor, [[0, 2], [1, 3], [4, 6], [5, 7]]);
    let micro = all(8, |rank| groups.micro_data_group(rank));
    assert_eq!(micro, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    let training = groups.training().groups(&[TP]);
    assert_eq!(training, [[0, 1, 2, 3], [4, 5, 6, 7]]);

    let usual = Groups::new(&layout(1, 4, 2), &generation(1, 2), Grouping::Usual).unwrap();
    let tensor = all(8, |rank| usual.tensor_group(rank));
    assert_eq!(tensor, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    let micro = all(8, |rank| usual.micro_data_group(rank));
    assert_eq!(micro, [[0, 2], [1, 3], [4, 6], [5, 7]]);
}

#[test]
fn stages_are_strided_as_tensor_ranks_are() {
    let groups = strided(&layout(2, 2, 1), &generation(1, 2));
    assert_eq!(
        all(4, |rank| groups.micro_data_group(rank)),
        [[0, 2], [1, 3]]
    );
    let groups = strided(&layout(4, 1, 1), &generation(2, 1));
    assert_eq!(all(4, |rank| groups.pipeline_group(rank)), [[0, 2], [1, 3]]);
    assert_eq!(
        all(4, |rank| groups.micro_data_group(rank)),
        [[0, 1], [2, 3]]
    );
    let groups = strided(&layout(2, 4, 1), &generation(1, 2));
    let micro = all(8, |rank| groups.micro_data_group(rank));
    assert_eq!(micro, [[0, 1, 4, 5], [2, 3, 6, 7]]);
}

#[test]
fn replicas_of_training_are_blocks_of_ranks() {
    let training = layout(2, 3, 2);
    assert_eq!(training.group(7, &[TP]).unwrap(), [6, 7, 8]);
    assert_eq!(training.group(7, &[PP]).unwrap(), [7, 10]);
    assert_eq!(training.group(7, &[DP]).unwrap(), [1, 7]);
    let replica: Vec<usize> = (6..12).collect();
    assert_eq!(training.group(7, &[PP, TP]).unwrap(), replica);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn groups_are_disjoint_and_cover_all_ranks(layouts in layouts(), grouping in groupings()) {
        let (training, generation) = (&layouts.training, layouts.of(grouping));
        let groups = Groups::new(training, generation, grouping).unwrap();
        let ranks = training.len();
        let (p_g, t_g) = (generation.size(PP), generation.size(TP));
        prop_assert_eq!(p_g * t_g * groups.micro_data() * training.size(DP), ranks);
        let kinds = [
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

    /// The formulas of HybridFlow, for a rank of stage `s` and tensor rank `k`, the `l`-th of its
    /// replica.
    #[test]
    fn ranks_stand_where_the_paper_puts_them(layouts in layouts(), grouping in groupings()) {
        let (training, generation) = (&layouts.training, layouts.of(grouping));
        let groups = Groups::new(training, generation, grouping).unwrap();
        let (t, each) = (training.size(TP), replica_ranks(training));
        let (p_g, t_g) = (generation.size(PP), generation.size(TP));
        let mut replicas = vec![0; training.size(DP) * groups.micro_data()];
        for rank in 0..training.len() {
            let l = rank % each;
            let (s, k) = (l / t, l % t);
            let (stage, part, micro) = match grouping {
                Grouping::Usual => (l / t_g % p_g, l % t_g, l / (t_g * p_g)),
                Grouping::Strided => {
                    let (m_p, m_t) = (training.size(PP) / p_g, t / t_g);
                    (s / m_p, k / m_t, s % m_p * m_t + k % m_t)
                }
            };
            let mesh = groups.generation();
            prop_assert_eq!((mesh.coordinate(rank, PP), mesh.coordinate(rank, TP)), (stage, part));
            // No generation replica has ranks of two training replicas.
            let replica = groups.replica(rank).unwrap();
            prop_assert_eq!(replica, rank / each * groups.micro_data() + micro);
            replicas[replica] += 1;
        }
        prop_assert!(replicas.iter().all(|&ranks| ranks == generation.len()));
    }
}

#[test]
fn layouts_that_do_not_fit_are_refused() {
    let check = |training: Mesh, generation: Mesh, grouping, message: &str| {
        let refused = Groups::new(&training, &generation, grouping).unwrap_err();
        assert_eq!(refused.to_string(), message);
    };
    check(
        layout(1 << 20, 2, 1),
        generation(1, 1),
        Grouping::Usual,
        "{dp: 1, pp: 1048576, tp: 2} has 2097152 ranks, and 1048576 are the most",
    );
    for training in [mesh! { tp: 2, dp: 2 }, mesh! { dp: 2, ep: 2 }] {
        let message = format!(
            "a model is laid out over dp, pp and tp, in this order and each at most once, and not over \
             {training}"
        );
        check(training, generation(1, 1), Grouping::Usual, &message);
    }
    check(
        layout(1, 2, 2),
        mesh! { dp: 2, tp: 2 },
        Grouping::Usual,
        "a model is laid out over dp, pp and tp, in this order and each at most once, and not over \
         {dp: 2, tp: 2}",
    );
    check(
        layout(2, 4, 2),
        generation(1, 3),
        Grouping::Strided,
        "tensor parallelism of 3 for generation does not divide the 4 of training, \
         {dp: 2, pp: 2, tp: 4}; choose a divisor",
    );
    check(
        layout(2, 4, 2),
        generation(4, 1),
        Grouping::Strided,
        "pipeline parallelism of 4 for generation does not divide the 2 of training, \
         {dp: 2, pp: 2, tp: 4}; choose a divisor",
    );
    check(
        layout(2, 4, 2),
        generation(3, 1),
        Grouping::Usual,
        "model parallelism of 3 for generation does not divide the 8 of training, \
         {dp: 2, pp: 2, tp: 4}; choose a divisor",
    );
    let whole = Groups::new(&mesh! { pp: 2, tp: 4 }, &mesh! { tp: 8 }, Grouping::Usual).unwrap();
    assert_eq!(
        whole.replica(8).unwrap_err().to_string(),
        "no rank 8; the mesh has 8"
    );
    assert_eq!(whole.replica(7), Ok(0));
}
