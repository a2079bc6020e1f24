//! Factors of integers, as far as they are found quickly.

use num_bigint::BigInt;
use num_integer::Integer;

use super::budget::{Budget, Unknown};

/// A positive integer as a product: powers of primes, and what was not factored.
#[derive(Debug)]
pub(super) struct Factors {
    /// Primes with their exponents.
    pub(super) primes: Vec<(u64, i64)>,
    /// One, or a number without small factors.
    pub(super) rest: BigInt,
}

/// Factors a positive integer: all of them up to 32 bits, and most others that a person writes.
pub(super) fn factors(value: &BigInt, budget: &mut Budget) -> Result<Factors, Unknown> {
    let mut primes = Vec::new();
    let mut rest = value.clone();
    let mut candidate = 2_u64;
    while u64::try_from(&rest).is_err() && candidate < SMALL {
        budget.spend(1 + (rest.bits() >> 8))?;
        let mut times = 0;
        loop {
            let (quotient, remainder) = rest.div_rem(&BigInt::from(candidate));
            if remainder != BigInt::ZERO {
                break;
            }
            budget.spend(1 + (rest.bits() >> 8))?;
            rest = quotient;
            times += 1;
        }
        if times > 0 {
            primes.push((candidate, times));
        }
        candidate = next(candidate);
    }
    let Ok(mut small) = u64::try_from(&rest) else {
        return Ok(Factors { primes, rest });
    };
    let mut steps = 0;
    while candidate < LARGE && candidate * candidate <= small {
        steps += 1;
        let mut times = 0;
        while small % candidate == 0 {
            small /= candidate;
            times += 1;
        }
        if times > 0 {
            primes.push((candidate, times));
        }
        candidate = next(candidate);
    }
    budget.spend(steps >> 3)?;
    let root = small.isqrt();
    if small > 1 && (small / candidate < candidate || is_prime(small)) {
        primes.push((small, 1));
        small = 1;
    } else if root * root == small && small > 1 && is_prime(root) {
        primes.push((root, 2));
        small = 1;
    }
    primes.sort_unstable();
    Ok(Factors {
        primes,
        rest: BigInt::from(small),
    })
}

/// The next number that may be a prime.
fn next(candidate: u64) -> u64 {
    match candidate {
        2 => 3,
        3 => 5,
        _ if candidate % 6 == 5 => candidate + 2,
        _ => candidate + 4,
    }
}

/// Miller and Rabin's test with bases that are enough for 64 bits.
fn is_prime(value: u64) -> bool {
    if value < 4 {
        return value >= 2;
    }
    if value.is_multiple_of(2) {
        return false;
    }
    let twos = (value - 1).trailing_zeros();
    let odd = (value - 1) >> twos;
    BASES.iter().filter(|base| *base % value != 0).all(|base| {
        let mut power = power_modulo(base % value, odd, value);
        if power == 1 || power == value - 1 {
            return true;
        }
        (1..twos).any(|_| {
            power = multiply_modulo(power, power, value);
            power == value - 1
        })
    })
}

fn power_modulo(base: u64, exponent: u64, modulus: u64) -> u64 {
    let mut power = 1;
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        power = multiply_modulo(power, power, modulus);
        if exponent & (1 << bit) != 0 {
            power = multiply_modulo(power, base, modulus);
        }
    }
    power
}

fn multiply_modulo(left: u64, right: u64, modulus: u64) -> u64 {
    (u128::from(left) * u128::from(right) % u128::from(modulus)) as u64
}

const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];

/// Divisors tried of long integers.
const SMALL: u64 = 1 << 10;

/// Divisors tried of integers of 64 bits.
const LARGE: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_factored() {
        let check = |value: u128, primes: &[(u64, i64)], rest: u128| {
            let found = factors(&BigInt::from(value), &mut Budget::new()).unwrap();
            assert_eq!(
                (found.primes.as_slice(), found.rest),
                (primes, rest.into()),
                "{value}"
            );
        };
        check(1, &[], 1);
        check(2, &[(2, 1)], 1);
        check(4, &[(2, 2)], 1);
        check(360, &[(2, 3), (3, 2), (5, 1)], 1);
        check(65_537, &[(65_537, 1)], 1);
        check(65_537 * 65_537, &[(65_537, 2)], 1);
        check(65_537 * 65_539, &[], 65_537 * 65_539);
        check((1 << 61) - 1, &[((1 << 61) - 1, 1)], 1);
        check(10_u128.pow(30), &[(2, 30), (5, 30)], 1);
        check(7 << 100, &[(2, 100), (7, 1)], 1);
    }
}
