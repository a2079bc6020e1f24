//! Least squares of the logarithm of times: the fit that the constants of cards come from.

/// Numbers near to `start` whose predictions are nearest to what was measured: Levenberg and
/// Marquardt's steps over the logarithms of all numbers. None leaves its start by more than a factor
/// of thirty.
pub(super) fn fit<R>(
    start: &[f64],
    rows: &[R],
    said_and_was: impl Fn(&[f64], &R) -> [f64; 2],
) -> Vec<f64> {
    let numbers = |logarithms: &[f64]| -> Vec<f64> {
        let bounded = start
            .iter()
            .zip(logarithms)
            .map(|(start, log)| start * (log - start.ln()).exp().clamp(1.0 / FARTHEST, FARTHEST));
        bounded.collect()
    };
    let residuals = |logarithms: &[f64]| -> Vec<f64> {
        let numbers = numbers(logarithms);
        let residual = |row| {
            let [said, was] = said_and_was(&numbers, row);
            (said / was).ln()
        };
        rows.iter().map(residual).collect()
    };
    let squares = |residuals: &[f64]| residuals.iter().map(|it| it * it).sum::<f64>();
    let mut at: Vec<f64> = start.iter().map(|it| it.ln()).collect();
    let mut now = residuals(&at);
    let mut damping = 1e-2;
    for _ in 0..STEPS {
        let slopes: Vec<Vec<f64>> = (0..at.len())
            .map(|number| {
                let mut beside = at.clone();
                beside[number] += NEAR;
                let there = residuals(&beside);
                there
                    .iter()
                    .zip(&now)
                    .map(|(there, here)| (there - here) / NEAR)
                    .collect()
            })
            .collect();
        let dot =
            |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
        let mut matrix: Vec<Vec<f64>> = slopes
            .iter()
            .map(|row| slopes.iter().map(|column| dot(row, column)).collect())
            .collect();
        for (number, row) in matrix.iter_mut().enumerate() {
            // The last part keeps a number where nothing depends on it.
            row[number] += damping * row[number] + 1e-9;
        }
        let down: Vec<f64> = slopes.iter().map(|slope| -dot(slope, &now)).collect();
        let step = solve(matrix, down);
        let there: Vec<f64> = at
            .iter()
            .zip(&step)
            .map(|(at, step)| at + step.clamp(-1.0, 1.0))
            .collect();
        let then = residuals(&there);
        let [before, after] = [&now, &then].map(|it| squares(it));
        if after < before {
            (at, now) = (there, then);
            damping = f64::max(damping / 3.0, 1e-9);
            if before - after < 1e-9 * before {
                break;
            }
        } else {
            damping *= 4.0;
        }
    }
    numbers(&at)
}

/// Solves a symmetric system by elimination.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let count = right.len();
    for pivot in 0..count {
        for below in pivot + 1..count {
            let part = matrix[below][pivot] / matrix[pivot][pivot];
            let row = matrix[pivot].clone();
            for (to, from) in matrix[below].iter_mut().zip(&row) {
                *to -= part * from;
            }
            right[below] -= part * right[pivot];
        }
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|at| matrix[row][at] * right[at]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    right
}

const STEPS: usize = 80;

/// A step along which slopes are taken.
const NEAR: f64 = 1e-4;

const FARTHEST: f64 = 30.0;

#[test]
fn a_fit_finds_the_numbers_that_made_the_rows() {
    let made = |numbers: &[f64], &at: &f64| numbers[0] + (numbers[1] * at).hypot(numbers[2]);
    let truth = [3e-6, 2e-9, 1e-6];
    let rows: Vec<f64> = (0..40).map(|nth| 1.5_f64.powi(nth)).collect();
    let found = fit(&[1e-6, 1e-9, 1e-5], &rows, |numbers, row| {
        [made(numbers, row), made(&truth, row)]
    });
    for (found, truth) in found.iter().zip(truth) {
        assert!((found / truth - 1.0).abs() < 1e-3, "{found} for {truth}");
    }
}
