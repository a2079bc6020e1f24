//! Roots.
//!
//! The root of a product is the product of the roots, where all but one of the factors are
//! positive. Symbols are taken as positive where a root needs it, except that the square root of
//! `x^2` is the absolute value of `x`. Odd roots of negative numbers are negative.

use num_bigint::BigInt;
use num_integer::Integer;

use super::{
    budget::{Budget, Unknown},
    exponent::Exponent,
    fraction::{Fraction, is_below_zero},
    integer::factors,
    monomial::{Generator, Monomial},
    polynomial::Polynomial,
};

/// The root of this degree.
pub(super) fn root(value: &Fraction, index: u32, budget: &mut Budget) -> Result<Fraction, Unknown> {
    match index {
        0 => return Err(Unknown::NotHandled),
        1 => return Ok(value.clone()),
        2..=INDEX_MAX => {}
        _ => return Err(Unknown::TooLarge),
    }
    let numerator = root_of_polynomial(value.numerator(), index, budget)?;
    let denominator = root_of_polynomial(value.denominator(), index, budget)?;
    numerator.over(&denominator, budget)
}

fn root_of_polynomial(
    radicand: &Polynomial,
    index: u32,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    if radicand.is_zero() {
        return Ok(Fraction::zero());
    }
    if let Some((monomial, coefficient)) = radicand.single() {
        return root_of_term(coefficient, monomial, index, budget);
    }
    if index.is_odd() && radicand.is_negative() {
        return Ok(root_of_polynomial(&radicand.clone().negated(), index, budget)?.negated());
    }
    let content = radicand.content(BigInt::ZERO, budget)?;
    let outside = root_of_integer(&content, index, budget)?;
    let radicand = radicand.clone().divided(&content);
    let inside = match denested(&radicand, index, budget)? {
        Some(inside) => inside,
        None => Fraction::generator(Generator::root(index, radicand)),
    };
    outside.times(&inside, budget)
}

/// The root of a positive integer, with all powers taken out of it.
fn root_of_integer(value: &BigInt, index: u32, budget: &mut Budget) -> Result<Fraction, Unknown> {
    let found = factors(value, budget)?;
    let mut root = Fraction::one();
    for (prime, times) in found.primes {
        let exponent = Exponent::new(times, i64::from(index))?;
        let factor = Fraction::generator_power(Generator::Prime(prime), exponent, budget)?;
        root = root.times(&factor, budget)?;
    }
    if found.rest == BigInt::from(1) {
        return Ok(root);
    }
    budget.spend(1 + (found.rest.bits() >> 4))?;
    let whole = found.rest.nth_root(index);
    let rest = if whole.pow(index) == found.rest {
        Fraction::integer(whole)
    } else {
        Fraction::generator(Generator::root_of_integer(index, found.rest))
    };
    root.times(&rest, budget)
}

fn root_of_term(
    coefficient: &BigInt,
    monomial: &Monomial,
    index: u32,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    let mut outside = root_of_integer(
        &BigInt::from(coefficient.magnitude().clone()),
        index,
        budget,
    )?;
    let mut inside = Monomial::one();
    for (generator, exponent) in monomial.powers() {
        match root_of_power(generator, exponent, index)? {
            Some((generator, exponent)) => {
                let factor = Fraction::generator_power(generator, exponent, budget)?;
                outside = outside.times(&factor, budget)?;
            }
            None => inside = inside.times(&Monomial::of(generator.clone(), exponent))?,
        }
    }
    let one = BigInt::from(1);
    let inside = match (is_below_zero(coefficient), inside.is_one()) {
        (false, true) => return Ok(outside),
        (false, false) => Polynomial::term(one, inside),
        (true, _) if index.is_odd() => {
            outside = outside.negated();
            Polynomial::term(one, inside)
        }
        (true, true) if index == 2 && monomial.is_constant() => {
            return outside.times(&Fraction::generator(Generator::Imaginary), budget);
        }
        (true, true) => return Ok(under_root(coefficient, monomial, index)),
        (true, false) => Polynomial::term(-one, inside),
    };
    if inside.is_one() {
        return Ok(outside);
    }
    outside.times(&Fraction::generator(Generator::root(index, inside)), budget)
}

/// All of it under the root, where no sign can be taken out.
fn under_root(coefficient: &BigInt, monomial: &Monomial, index: u32) -> Fraction {
    let radicand = Polynomial::term(coefficient.clone(), monomial.clone());
    Fraction::generator(Generator::root(index, radicand))
}

/// The root of a power of a generator as another such power, where it is one.
fn root_of_power(
    generator: &Generator,
    exponent: Exponent,
    index: u32,
) -> Result<Option<(Generator, Exponent)>, Unknown> {
    let root = exponent.times(Exponent::new(1, i64::from(index))?)?;
    let same = Ok(Some((generator.clone(), root)));
    if generator.is_positive() {
        return same;
    }
    let even = exponent.integer().is_some_and(|whole| whole.is_even());
    let absolute = index.is_even() && even;
    match (generator, root.integer()) {
        (Generator::Symbol(_) | Generator::Base(_), Some(whole)) if whole.is_even() => same,
        (Generator::Symbol(_) | Generator::Base(_), _) if !absolute => same,
        (Generator::Symbol(_), Some(whole)) if whole > 0 => {
            let inner = Polynomial::generator(generator.clone());
            Ok(Some((Generator::Absolute(inner.into()), root)))
        }
        (Generator::Absolute(_), Some(_)) => same,
        _ => Ok(None),
    }
}

/// Writes the square root of `a + b√c` as a sum of two roots, where that is possible.
fn denested(
    radicand: &Polynomial,
    index: u32,
    budget: &mut Budget,
) -> Result<Option<Fraction>, Unknown> {
    let terms: Vec<_> = radicand.terms().collect();
    let [(one, a), (roots, b)] = terms[..] else {
        return Ok(None);
    };
    let is_root = |(generator, exponent): (&Generator, Exponent)| {
        matches!(generator, Generator::Prime(_)) && exponent == Exponent::HALF
    };
    if index != 2 || !one.is_one() || !roots.powers().all(is_root) || is_below_zero(a) {
        return Ok(None);
    }
    let primes = roots.powers().filter_map(|(generator, _)| match generator {
        Generator::Prime(prime) => Some(*prime),
        _ => None,
    });
    let c: BigInt = primes.map(BigInt::from).product();
    budget.spend(1 + ((a.bits() + b.bits() + c.bits()) >> 4))?;
    let norm = a * a - b * b * c;
    if is_below_zero(&norm) {
        return Ok(None);
    }
    let whole = norm.sqrt();
    if &whole * &whole != norm {
        return Ok(None);
    }
    let first = root(&Fraction::ratio(a + &whole, 2, budget)?, 2, budget)?;
    let second = root(&Fraction::ratio(a - &whole, 2, budget)?, 2, budget)?;
    let second = if is_below_zero(b) {
        second.negated()
    } else {
        second
    };
    first.plus(&second, budget).map(Some)
}

/// The highest degree of a root.
const INDEX_MAX: u32 = 64;
