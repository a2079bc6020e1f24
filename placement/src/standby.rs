//! Sizes of standby pools: the spares that a job should keep ready.

use thiserror::Error;

/// The smallest number of spares that is enough for the failures of one period in at least
/// `quantile` of all periods, when each of `machines` fails in a period with `probability`,
/// independently: a quantile of the binomial distribution.
///
/// ByteRobust (Wan et al. 2025, section 6.2) sizes its warm standby pool so, with the 99th
/// percentile and the failures of a day.
///
/// ```
/// use odeon_placement::spares;
///
/// let pools = [128, 256, 512, 1024].map(|machines| spares(machines, 0.0012, 0.99).unwrap());
/// assert_eq!(pools, [2, 2, 3, 4]);
/// ```
///
/// # Errors
/// `probability` or `quantile` is none, or `quantile` is 1: no number of spares is surely enough.
pub fn spares(machines: u32, probability: f64, quantile: f64) -> Result<u32, SparesError> {
    if !(0.0..=1.0).contains(&probability) {
        return Err(SparesError::Probability(probability));
    }
    if !(0.0..1.0).contains(&quantile) {
        return Err(SparesError::Quantile(quantile));
    }
    if probability == 0.0 {
        return Ok(0);
    }
    if probability == 1.0 {
        return Ok(machines);
    }
    // In logarithms, since the first terms of a large number of machines underflow.
    let n = f64::from(machines);
    let odds = (probability / (1.0 - probability)).ln();
    let mut term = n * (-probability).ln_1p();
    let mut sum = 0.0;
    for failures in 0..machines {
        sum += term.exp();
        if sum >= quantile {
            return Ok(failures);
        }
        let k = f64::from(failures);
        term += ((n - k) / (k + 1.0)).ln() + odds;
    }
    Ok(machines)
}

/// Why there is no number of spares.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SparesError {
    /// The probability of a failure is none.
    #[error("{0} is no probability of a failure: it lies between 0 and 1")]
    Probability(f64),
    /// The share of periods is none, or all.
    #[error("spares cannot be enough in {0} of all periods: name a share from 0 up to below 1")]
    Quantile(f64),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nonsense_is_refused_and_the_ends_are_right() {
        for p in [-0.1, 1.1, f64::NAN] {
            assert!(matches!(
                spares(8, p, 0.99),
                Err(SparesError::Probability(_))
            ));
        }
        for q in [-0.1, 1.0, f64::NAN] {
            assert!(matches!(spares(8, 0.5, q), Err(SparesError::Quantile(_))));
        }
        assert_eq!(spares(8, 0.0, 0.99), Ok(0));
        assert_eq!(spares(8, 1.0, 0.5), Ok(8));
        assert_eq!(spares(0, 0.5, 0.5), Ok(0));
        assert_eq!(spares(8, 0.5, 0.0), Ok(0));
        // A normal distribution with the same mean and variance: 5,000 + 2.326 x 50.
        assert!((5_110..=5_122).contains(&spares(10_000, 0.5, 0.99).unwrap()));
    }

    proptest! {
        /// Against the probabilities of all outcomes, added up coin by coin.
        #[test]
        fn the_number_is_enough_and_one_less_is_not(
            n in 1u32..40, p in 0.001f64..0.999, q in 0.01f64..0.999
        ) {
            let mut of = vec![1.0];
            for _ in 0..n {
                let mut next = vec![0.0; of.len() + 1];
                for (k, chance) in of.iter().enumerate() {
                    next[k] += chance * (1.0 - p);
                    next[k + 1] += chance * p;
                }
                of = next;
            }
            let enough = |k: u32| of[..=k as usize].iter().sum::<f64>();
            let k = spares(n, p, q).unwrap();
            prop_assert!(enough(k) >= q - 1e-9);
            if k > 0 {
                prop_assert!(enough(k - 1) < q + 1e-9);
            }
        }
    }
}
