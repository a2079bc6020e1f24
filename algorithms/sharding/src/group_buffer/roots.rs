//! The rank that orthogonalises each matrix.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::error::MatrixRootsError;

/// A matrix that Muon updates. Experts that are stored as one tensor are a matrix each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Its name, for errors.
    pub name: String,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
}

/// The root of each matrix: the rank on which it is gathered and orthogonalised, and from which the result
/// goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixRoots {
    roots: Vec<usize>,
    loads: Vec<u128>,
}

/// Rounds of Newton-Schulz, as Muon has them (K. Jordan, 2024, "Muon").
const ROUNDS: u128 = 5;

impl MatrixRoots {
    /// Chooses roots by load: the matrix that takes longest first, to the rank that has least to do. Equal
    /// matrices go in their order, and of ranks with equal loads the lowest is taken.
    ///
    /// The longest of the loads is at most `4/3 - 1/(3 m)` of the least that is possible on `m` ranks
    /// (R. Graham, "Bounds on multiprocessing timing anomalies", 1969).
    ///
    /// # Errors
    /// [`MatrixRootsError`]: no ranks, a matrix without elements, or operations that overflow.
    pub fn choose(matrices: &[MatrixShape], ranks: usize) -> Result<Self, MatrixRootsError> {
        if ranks == 0 {
            return Err(MatrixRootsError::NoRanks);
        }
        let mut all = 0u128;
        let mut costs = Vec::with_capacity(matrices.len());
        for matrix in matrices {
            let (name, rows, columns) = (matrix.name.clone(), matrix.rows, matrix.columns);
            if rows == 0 || columns == 0 {
                return Err(MatrixRootsError::EmptyMatrix {
                    name,
                    rows,
                    columns,
                });
            }
            let cost = newton_schulz_flops(rows, columns);
            let sum = cost.and_then(|cost| all.checked_add(cost));
            let (Some(cost), Some(sum)) = (cost, sum) else {
                return Err(MatrixRootsError::TooLarge {
                    name,
                    rows,
                    columns,
                });
            };
            all = sum;
            costs.push(cost);
        }
        Ok(Self::longest_first(&costs, ranks))
    }

    /// The root of each matrix, in the order in which they were given.
    #[must_use]
    pub fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// The floating-point operations of each rank for its matrices.
    #[must_use]
    pub fn loads(&self) -> &[u128] {
        &self.loads
    }

    /// Gives each cost to the rank with the least load, the greatest cost first.
    pub(super) fn longest_first(costs: &[u128], ranks: usize) -> Self {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        order.sort_by_key(|at| Reverse(costs[*at]));
        let mut free: BinaryHeap<_> = (0..ranks).map(|rank| Reverse((0u128, rank))).collect();
        let (mut roots, mut loads) = (vec![0; costs.len()], vec![0; ranks]);
        for at in order {
            if let Some(mut least) = free.peek_mut() {
                let Reverse((load, rank)) = &mut *least;
                *load += costs[at];
                roots[at] = *rank;
                loads[*rank] = *load;
            }
        }
        Self { roots, loads }
    }
}

/// The floating-point operations of five rounds of Newton-Schulz on a matrix, a product of `a x b` and
/// `b x c` counted as `2 a b c`: with `s` the shorter side and `d` the longer one, a round
/// `X <- a X + (b A + c A^2) X` with `A = X X^T` takes `2 s^2 d` for `A`, `2 s^3` for its square and
/// `2 s^2 d` for the product with `X` (K. Jordan, 2024, "Muon"). `None` where that overflows.
#[must_use]
pub fn newton_schulz_flops(rows: usize, columns: usize) -> Option<u128> {
    let (short, long) = (rows.min(columns) as u128, rows.max(columns) as u128);
    let square = short.checked_mul(short)?;
    let twice = long.checked_mul(2)?.checked_add(short)?;
    square.checked_mul(twice)?.checked_mul(2 * ROUNDS)
}
