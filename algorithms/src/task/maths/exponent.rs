//! Exponents: small exact fractions.

use num_integer::Integer;

use super::budget::Unknown;

/// A fraction in lowest terms with a positive denominator. Its order is that of its text and only
/// makes keys comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Exponent {
    numerator: i64,
    denominator: i64,
}

impl Exponent {
    pub(super) const ZERO: Self = Self::whole(0);
    pub(super) const ONE: Self = Self::whole(1);
    pub(super) const HALF: Self = Self {
        numerator: 1,
        denominator: 2,
    };

    pub(super) const fn whole(numerator: i64) -> Self {
        Self {
            numerator,
            denominator: 1,
        }
    }

    /// The denominator is not zero.
    pub(super) fn new(numerator: i64, denominator: i64) -> Result<Self, Unknown> {
        Self::reduced(i128::from(numerator), i128::from(denominator))
    }

    fn reduced(numerator: i128, denominator: i128) -> Result<Self, Unknown> {
        let divisor = numerator.gcd(&denominator) * denominator.signum();
        if divisor == 0 {
            return Err(Unknown::DivisionByZero);
        }
        let (numerator, denominator) = (numerator / divisor, denominator / divisor);
        if numerator.abs() > SIZE_MAX || denominator > SIZE_MAX {
            return Err(Unknown::TooLarge);
        }
        match (i64::try_from(numerator), i64::try_from(denominator)) {
            (Ok(numerator), Ok(denominator)) => Ok(Self {
                numerator,
                denominator,
            }),
            _ => Err(Unknown::TooLarge),
        }
    }

    pub(super) fn plus(self, other: Self) -> Result<Self, Unknown> {
        let (a, b) = (i128::from(self.numerator), i128::from(self.denominator));
        let (c, d) = (i128::from(other.numerator), i128::from(other.denominator));
        Self::reduced(a * d + c * b, b * d)
    }

    pub(super) fn times(self, other: Self) -> Result<Self, Unknown> {
        let numerator = i128::from(self.numerator) * i128::from(other.numerator);
        let denominator = i128::from(self.denominator) * i128::from(other.denominator);
        Self::reduced(numerator, denominator)
    }

    pub(super) fn negated(self) -> Self {
        Self {
            numerator: -self.numerator,
            ..self
        }
    }

    /// The smaller of two by value.
    pub(super) fn smaller(self, other: Self) -> Self {
        let left = i128::from(self.numerator) * i128::from(other.denominator);
        let right = i128::from(other.numerator) * i128::from(self.denominator);
        if left <= right { self } else { other }
    }

    pub(super) fn is_negative(self) -> bool {
        self.numerator < 0
    }

    /// The integer that this is, if it is one.
    pub(super) fn integer(self) -> Option<i64> {
        (self.denominator == 1).then_some(self.numerator)
    }

    /// The largest integer that is not above it, and what is left, from 0 to below 1.
    pub(super) fn split(self) -> (i64, Self) {
        let (whole, rest) = self.numerator.div_mod_floor(&self.denominator);
        let rest = Self {
            numerator: rest,
            denominator: self.denominator,
        };
        (whole, rest)
    }

    pub(super) fn numerator(self) -> i64 {
        self.numerator
    }

    pub(super) fn denominator(self) -> i64 {
        self.denominator
    }
}

/// Products of two stay inside 128 bits, and sums of two such products.
const SIZE_MAX: i128 = 1 << 40;
