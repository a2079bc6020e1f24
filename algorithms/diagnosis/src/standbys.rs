//! The number of warm standbys that a job keeps.
//!
//! Machines of a job fail independently of each other, so those that fail on one day have a binomial distribution. The
//! pool is a high quantile of it: with the 99th percentile there are enough standbys on 99 of 100 days (ByteRobust, arXiv
//! 2509.16293). What takes many machines at once, as a switch does, is not in it.
//!
//! ```
//! use odeon_diagnosis::standbys::standbys;
//!
//! assert_eq!(standbys(1024, 0.0012, 0.99), Ok(4));
//! ```

/// Standbys for a job on so many machines, each of which fails on a day with the probability `daily`: the least number that
/// is enough on a part of `quantile` of all days.
///
/// # Errors
/// One of the two is no probability, or certain. See [`StandbyError`].
pub fn standbys(machines: u32, daily: f64, quantile: f64) -> Result<u32, StandbyError> {
    if !(0.0..1.0).contains(&quantile) {
        return Err(StandbyError::Quantile(quantile.to_string()));
    }
    let mut enough = 0.0;
    for (failing, probability) in failing_in_a_day(machines, daily)? {
        enough += probability;
        if enough >= quantile {
            return Ok(failing);
        }
    }
    Ok(machines)
}

/// Probabilities that none, one, two and so on of so many machines fail on one day: those of the binomial distribution.
///
/// # Errors
/// `daily` is no probability, or certain.
pub fn failing_in_a_day(
    machines: u32,
    daily: f64,
) -> Result<impl Iterator<Item = (u32, f64)>, StandbyError> {
    if !(0.0..1.0).contains(&daily) {
        return Err(StandbyError::Daily(daily.to_string()));
    }
    // By logarithms, so that the first of many machines do not vanish and all others with them.
    let odds = (daily / (1.0 - daily)).ln();
    let none = f64::from(machines) * (-daily).ln_1p();
    let mut logarithm = none;
    Ok((0..=machines).map(move |failing| {
        let probability = logarithm.exp();
        let (left, next) = (f64::from(machines - failing), f64::from(failing + 1));
        logarithm += (left / next).ln() + odds;
        (failing, probability)
    }))
}

/// A rate or a share of days that no pool can be made for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StandbyError {
    /// The machines' probability to fail on a day.
    #[error("a machine fails on a day with probability {0}: expected at least 0 and below 1")]
    Daily(String),
    /// The part of all days on which the pool is enough.
    #[error("standbys are enough on a part of {0} of all days: expected at least 0 and below 1")]
    Quantile(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORTED: [(u32, u32); 4] = [(128, 2), (256, 2), (512, 3), (1024, 4)];

    fn agrees(daily: f64) -> bool {
        REPORTED
            .iter()
            .all(|(machines, pool)| standbys(*machines, daily, 0.99) == Ok(*pool))
    }

    /// SEMANTICS 170.
    #[test]
    fn pools_are_those_that_the_paper_reports_for_one_range_of_rates() {
        let rates: Vec<f64> = (0..=300u32)
            .map(|it| 1e-3 + 1e-6 * f64::from(it))
            .filter(|daily| agrees(*daily))
            .collect();
        let (first, last) = (rates[0], rates[rates.len() - 1]);
        assert!(
            (0.001_165..0.001_175).contains(&first) && (0.001_245..0.001_255).contains(&last),
            "{first} to {last}"
        );
        let all = ((last - first) / 1e-6).round() as usize + 1;
        assert_eq!(rates.len(), all, "there are no gaps");
    }

    /// SEMANTICS 170.
    #[test]
    fn a_pool_is_the_least_that_is_enough() {
        for machines in [1, 7, 64, 1200, 100_000] {
            for daily in [0.0, 1e-4, 0.0012, 0.05, 0.9] {
                let all: Vec<f64> = failing_in_a_day(machines, daily)
                    .unwrap()
                    .map(|(_, it)| it)
                    .collect();
                let sum: f64 = all.iter().sum();
                assert!((sum - 1.0).abs() < 1e-6, "{machines} {daily}: {sum}");
                let pool = standbys(machines, daily, 0.99).unwrap() as usize;
                let enough = |pool: usize| all[..=pool].iter().sum::<f64>() >= 0.99;
                assert!(enough(pool), "{machines} {daily}: {pool}");
                assert!(
                    pool == 0 || !enough(pool - 1),
                    "{machines} {daily}: {pool} is not the least"
                );
            }
        }
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        for daily in [-0.1, 1.0, f64::NAN] {
            let error = standbys(8, daily, 0.99).unwrap_err();
            assert!(matches!(error, StandbyError::Daily(_)), "{error}");
        }
        let error = standbys(8, 0.1, 1.0).unwrap_err();
        assert!(matches!(error, StandbyError::Quantile(_)), "{error}");
        assert_eq!(standbys(0, 0.1, 0.99), Ok(0));
    }
}
