//! Numbers of a file: quantities in thousandths.

use thiserror::Error;

/// Why a number is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{0} is no quantity: give a number of at least 0.001 and at most 1e15, in steps of 0.001")]
pub struct QuantityError(pub f64);

/// A number of cores, devices or custom units in thousandths.
///
/// ```
/// assert_eq!(odeon_topology::milli(0.25), Ok(250));
/// assert!(odeon_topology::milli(-1.0).is_err() && odeon_topology::milli(0.0).is_err());
/// ```
///
/// # Errors
/// If it is zero, negative, not a number, finer than a thousandth or too large.
pub fn milli(number: f64) -> Result<u64, QuantityError> {
    let scaled = (number * 1000.0).round();
    // Within the rounding of decimal fractions in binary.
    let exact = (number * 1000.0 - scaled).abs() < 1e-6;
    if exact && (1.0..=1e18).contains(&scaled) {
        Ok(scaled as u64)
    } else {
        Err(QuantityError(number))
    }
}

/// Bytes of a number of GiB.
///
/// # Errors
/// As of [`milli`].
pub fn gib(number: f64) -> Result<u64, QuantityError> {
    let scaled = milli(number)?;
    Ok(u64::try_from(u128::from(scaled) * (1 << 30) / 1000).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positive_thousandths_are_quantities() {
        for (number, expected) in [(1.0, 1000), (0.001, 1), (2.345, 2345), (0.1 + 0.2, 300)] {
            assert_eq!(milli(number), Ok(expected));
        }
        for number in [0.0, -0.5, 0.0004, f64::NAN, f64::INFINITY, 1e16, 0.0015] {
            assert!(milli(number).is_err(), "{number}");
        }
    }
}
