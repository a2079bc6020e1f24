//! Functions of angles.
//!
//! Angles are written as sums of multiples of monomials, and their cosines and sines by those of
//! the monomials. Multiples of π/12, π/10 and π/8 have radicals.

use std::sync::Arc;

use num_bigint::BigInt;

use super::{
    budget::{Budget, Unknown},
    exponent::Exponent,
    expression::{Constant, Function},
    fraction::{Fraction, Sameness},
    monomial::{Generator, Monomial},
    polynomial::Polynomial,
    root::root,
};

/// A cosine and a sine.
type Pair = (Fraction, Fraction);

/// The cosine and the sine of an angle.
pub(super) fn cosine_and_sine(angle: &Fraction, budget: &mut Budget) -> Result<Pair, Unknown> {
    let Some(denominator) = angle.denominator().as_integer() else {
        return Ok(opaque(angle));
    };
    let mut pair = (Fraction::one(), Fraction::zero());
    for (monomial, coefficient) in angle.numerator().terms() {
        let times = Fraction::ratio(coefficient.clone(), denominator.clone(), budget)?;
        let times = times.as_exponent().ok_or(Unknown::TooLarge)?;
        let term = if *monomial == half_turn() {
            turned(times, budget)?
        } else {
            multiple(monomial, times, budget)?
        };
        pair = together(&pair, &term, budget)?;
    }
    Ok(pair)
}

/// The cosine and the sine of a multiple of π.
pub(super) fn turned(times: Exponent, budget: &mut Budget) -> Result<Pair, Unknown> {
    let (numerator, denominator) = (times.numerator(), times.denominator());
    let numerator = numerator.rem_euclid(2 * denominator);
    // Into the first quadrant, with the signs of the others.
    if numerator >= denominator {
        let (cosine, sine) = turned(Exponent::new(numerator - denominator, denominator)?, budget)?;
        return Ok((cosine.negated(), sine.negated()));
    }
    if 2 * numerator > denominator {
        let (cosine, sine) = turned(Exponent::new(denominator - numerator, denominator)?, budget)?;
        return Ok((cosine.negated(), sine));
    }
    if 4 * numerator > denominator {
        let rest = Exponent::new(denominator - 2 * numerator, 2 * denominator)?;
        let (cosine, sine) = turned(rest, budget)?;
        return Ok((sine, cosine));
    }
    octant(Exponent::new(numerator, denominator)?, budget)
}

/// Up to an eighth of a turn.
fn octant(times: Exponent, budget: &mut Budget) -> Result<Pair, Unknown> {
    let mut surd = |whole: i64, sign: i64, radicand: i64, divisor: i64| {
        let root = root(&Fraction::integer(radicand), 2, budget)?;
        let factor = Fraction::integer(sign);
        let sum = Fraction::integer(whole).plus(&root.times(&factor, budget)?, budget)?;
        sum.over(&Fraction::integer(divisor), budget)
    };
    match (times.numerator(), times.denominator()) {
        (0, _) => Ok((Fraction::one(), Fraction::zero())),
        (1, 4) => Ok((surd(0, 1, 2, 2)?, surd(0, 1, 2, 2)?)),
        (1, 6) => Ok((surd(0, 1, 3, 2)?, surd(1, 0, 1, 2)?)),
        (1, 5) => with_cosine(surd(1, 1, 5, 4)?, budget),
        (1, 10) => {
            let (sine, cosine) = with_cosine(surd(-1, 1, 5, 4)?, budget)?;
            Ok((cosine, sine))
        }
        (1, 12) => {
            let third = (surd(1, 0, 1, 2)?, surd(0, 1, 3, 2)?);
            let fourth = (surd(0, 1, 2, 2)?, surd(0, -1, 2, 2)?);
            together(&third, &fourth, budget)
        }
        (_, 8 | 24) => {
            let (cosine, _) = turned(times.times(Exponent::whole(2))?, budget)?;
            let half = Fraction::ratio(1, 2, budget)?;
            let square = Fraction::one()
                .plus(&cosine, budget)?
                .times(&half, budget)?;
            let other = Fraction::one().minus(&square, budget)?;
            Ok((root(&square, 2, budget)?, root(&other, 2, budget)?))
        }
        (numerator, denominator) => {
            let times = Fraction::ratio(numerator, denominator, budget)?;
            let pi = Fraction::generator(Generator::Constant(Constant::Pi));
            Ok(opaque(&pi.times(&times, budget)?))
        }
    }
}

/// A cosine with its sine, both positive.
fn with_cosine(cosine: Fraction, budget: &mut Budget) -> Result<Pair, Unknown> {
    let square = cosine.times(&cosine, budget)?;
    let sine = root(&Fraction::one().minus(&square, budget)?, 2, budget)?;
    Ok((cosine, sine))
}

/// The pair of a multiple of a monomial: small multiples by that of the monomial itself.
fn multiple(monomial: &Monomial, times: Exponent, budget: &mut Budget) -> Result<Pair, Unknown> {
    let size = times.numerator().abs();
    let (count, within) = if size <= MULTIPLE_MAX {
        (size, 1)
    } else {
        (1, size)
    };
    let base = Polynomial::term(BigInt::from(within), monomial.clone());
    let divisor = Polynomial::integer(times.denominator().into());
    let one = opaque(&Fraction::new(base, divisor, budget)?);
    let mut pair = one.clone();
    for _ in 1..count {
        pair = together(&pair, &one, budget)?;
    }
    if times.is_negative() {
        pair.1 = pair.1.negated();
    }
    Ok(pair)
}

/// The pair of a sum of two angles.
fn together(left: &Pair, right: &Pair, budget: &mut Budget) -> Result<Pair, Unknown> {
    if left.1.is_zero() && left.0 == Fraction::one() {
        return Ok(right.clone());
    }
    let cosines = left.0.times(&right.0, budget)?;
    let sines = left.1.times(&right.1, budget)?;
    let first = left.1.times(&right.0, budget)?;
    let second = left.0.times(&right.1, budget)?;
    Ok((cosines.minus(&sines, budget)?, first.plus(&second, budget)?))
}

/// The pair of an angle of which nothing more is known, by that of the positive angle.
fn opaque(angle: &Fraction) -> Pair {
    let negative = angle.numerator().is_negative();
    let angle = Arc::new(if negative {
        angle.clone().negated()
    } else {
        angle.clone()
    });
    let cosine = Fraction::generator(Generator::Cosine(angle.clone()));
    let sine = Fraction::generator(Generator::Sine(angle));
    (cosine, if negative { sine.negated() } else { sine })
}

/// The angle between a quarter turn back and forth whose sine, or tangent, this is: a multiple of
/// π/12 where it is one.
pub(super) fn inverse(
    function: Function,
    value: &Fraction,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    for twelfths in 0..=6 {
        let (cosine, sine) = turned(Exponent::new(twelfths, 12)?, budget)?;
        let found = match function {
            Function::ArcTangent if twelfths == 6 => continue,
            Function::ArcTangent => sine.over(&cosine, budget)?,
            _ => sine,
        };
        for sign in [1, -1] {
            let found = found.times(&Fraction::integer(sign), budget)?;
            if found.same(value, budget)? == Sameness::Same {
                let times = Fraction::ratio(sign * twelfths, 12, budget)?;
                let pi = Fraction::generator(Generator::Constant(Constant::Pi));
                return pi.times(&times, budget);
            }
        }
    }
    let negative = value.numerator().is_negative();
    let value = if negative {
        value.clone().negated()
    } else {
        value.clone()
    };
    let call = Fraction::generator(Generator::Call(function, [value].into()));
    Ok(if negative { call.negated() } else { call })
}

fn half_turn() -> Monomial {
    Monomial::of(Generator::Constant(Constant::Pi), Exponent::ONE)
}

/// Cosines of higher multiples are not written out.
const MULTIPLE_MAX: i64 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exact_angle_lies_on_the_circle() {
        let mut budget = Budget::new();
        for denominator in [1, 2, 3, 4, 5, 6, 8, 10, 12, 24, 7] {
            for numerator in -30..30 {
                let times = Exponent::new(numerator, denominator).unwrap();
                let (cosine, sine) = turned(times, &mut budget).unwrap();
                let sum = cosine
                    .power(2, &mut budget)
                    .and_then(|square| square.plus(&sine.power(2, &mut budget)?, &mut budget));
                assert_eq!(sum, Ok(Fraction::one()), "{numerator}/{denominator}");
                budget = Budget::new();
            }
        }
    }
}
