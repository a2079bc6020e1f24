//! Roots of matrices against all ways to give matrices to ranks.

use proptest::prelude::*;

use crate::group_buffer::{MatrixRoots, MatrixRootsError, MatrixShape, newton_schulz_flops};

fn matrix(name: &str, rows: usize, columns: usize) -> MatrixShape {
    MatrixShape {
        name: name.to_owned(),
        rows,
        columns,
    }
}

/// The least that the busiest rank can have to do, by trying all.
fn least(costs: &[u128], loads: &mut [u128]) -> u128 {
    let Some((cost, rest)) = costs.split_first() else {
        return loads.iter().copied().max().unwrap();
    };
    let mut best = u128::MAX;
    for rank in 0..loads.len() {
        loads[rank] += cost;
        best = best.min(least(rest, loads));
        loads[rank] -= cost;
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_busiest_rank_is_within_the_bound_of_longest_first(
        costs in prop::collection::vec(1u128..40, 1..=7), ranks in 1usize..=4,
    ) {
        let chosen = MatrixRoots::longest_first(&costs, ranks);
        let mut loads = vec![0; ranks];
        for (cost, root) in costs.iter().zip(chosen.roots()) {
            loads[*root] += cost;
        }
        prop_assert_eq!(&loads, chosen.loads());
        let busiest = loads.iter().copied().max().unwrap();
        let best = least(&costs, &mut vec![0; ranks]);
        // 4/3 - 1/(3 m), in whole numbers.
        let m = ranks as u128;
        prop_assert!(busiest * 3 * m <= best * (4 * m - 1), "{busiest} of {best}");
    }

    #[test]
    fn loads_are_the_operations_of_the_matrices(
        sides in prop::collection::vec((1usize..200, 1usize..200), 0..12), ranks in 1usize..=5,
    ) {
        let matrices: Vec<_> = sides.iter().map(|(rows, columns)| matrix("w", *rows, *columns)).collect();
        let chosen = MatrixRoots::choose(&matrices, ranks).unwrap();
        prop_assert_eq!(&chosen, &MatrixRoots::choose(&matrices, ranks).unwrap());
        let mut loads = vec![0; ranks];
        for ((rows, columns), root) in sides.iter().zip(chosen.roots()) {
            loads[*root] += newton_schulz_flops(*rows, *columns).unwrap();
        }
        prop_assert_eq!(&loads[..], chosen.loads());
    }
}

// Graham's example: 2 m + 1 matrices of which longest first makes the bound true with equality.
#[test]
fn the_bound_of_longest_first_is_met() {
    let costs = [5, 5, 4, 4, 3, 3, 3];
    let chosen = MatrixRoots::longest_first(&costs, 3);
    assert_eq!(chosen.loads().iter().max(), Some(&11));
    assert_eq!(least(&costs, &mut [0; 3]), 9);
}

#[test]
fn equal_matrices_go_round_in_their_order() {
    let matrices = vec![matrix("w", 8, 4); 5];
    let chosen = MatrixRoots::choose(&matrices, 3).unwrap();
    assert_eq!(chosen.roots(), [0, 1, 2, 0, 1]);
    let mut with = matrices;
    with[3] = matrix("long", 8, 5);
    let chosen = MatrixRoots::choose(&with, 3).unwrap();
    assert_eq!(chosen.roots(), [1, 2, 1, 0, 2]);
}

#[test]
fn operations_are_those_of_five_rounds_of_products() {
    // Of 2 x 3: a product of 2 x 3 by 3 x 2, one of 2 x 2 by 2 x 2, and one of 2 x 2 by 2 x 3.
    let round = 2 * (2 * 3 * 2) + 2 * (2 * 2 * 2) + 2 * (2 * 2 * 3);
    assert_eq!(newton_schulz_flops(2, 3), Some(5 * round));
    assert_eq!(newton_schulz_flops(3, 2), Some(5 * round));
    assert_eq!(newton_schulz_flops(usize::MAX, usize::MAX), None);
}

#[test]
fn matrices_without_roots_are_refused() {
    let small = [matrix("w", 2, 3)];
    let refused = |matrices: &[MatrixShape], ranks| {
        let error: MatrixRootsError = MatrixRoots::choose(matrices, ranks).unwrap_err();
        error.to_string()
    };
    assert_eq!(refused(&small, 0), "roots among 0 ranks: give 1 at least");
    assert_eq!(refused(&[matrix("w", 2, 0)], 1), "matrix `w` is 2 x 0");
    let huge = matrix("w", usize::MAX, usize::MAX);
    assert_eq!(
        refused(&[huge], 1),
        format!(
            "up to matrix `w` of {max} x {max} there are too many operations to count",
            max = usize::MAX
        )
    );
    assert_eq!(MatrixRoots::choose(&[], 2).unwrap().loads(), [0, 0]);
}
