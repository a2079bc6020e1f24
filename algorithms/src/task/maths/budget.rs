//! The budget of work for one comparison: a counter in place of a clock, so that the bound is the
//! same on every machine.

use num_bigint::BigInt;

/// The work that a comparison may still take.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
}

/// Why an expression has no value here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unknown {
    #[error("it is too large to work out")]
    TooLarge,
    #[error("it divides by zero")]
    DivisionByZero,
    #[error("it has no value that can be worked out exactly")]
    NotHandled,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { left: WORK_MAX }
    }

    /// Takes a part of what is left.
    pub(super) fn spend(&mut self, units: u64) -> Result<(), Unknown> {
        match self.left.checked_sub(units) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(Unknown::TooLarge)
            }
        }
    }

    /// Takes what the product of two integers costs. Refuses products that are too long.
    pub(super) fn spend_product(&mut self, left: &BigInt, right: &BigInt) -> Result<(), Unknown> {
        let (left, right) = (left.bits(), right.bits());
        if left + right > BITS_MAX {
            return Err(Unknown::TooLarge);
        }
        self.spend(1 + ((left * right) >> 16))
    }

    /// Takes what the greatest common divisor of two integers costs.
    pub(super) fn spend_divisor(&mut self, left: &BigInt, right: &BigInt) -> Result<(), Unknown> {
        self.spend(1 + ((left.bits() * right.bits()) >> 14))
    }

    /// The work that was taken.
    #[cfg(test)]
    pub(super) fn spent(&self) -> u64 {
        WORK_MAX - self.left
    }
}

/// Some ten milliseconds at most. A typical answer takes less than a hundred units.
pub(super) const WORK_MAX: u64 = 25_000;

/// The longest integer, in bits: about 9,800 decimal digits.
pub(super) const BITS_MAX: u64 = 32_768;
