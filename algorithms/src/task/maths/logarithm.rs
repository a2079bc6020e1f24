//! Logarithms, as sums of those of primes and of what else their argument is a product of.

use num_bigint::BigInt;

use super::{
    budget::{Budget, Unknown},
    exponent::Exponent,
    expression::{Constant, Function},
    fraction::{Fraction, is_below_zero},
    integer::factors,
    monomial::{Generator, Monomial},
    polynomial::Polynomial,
};

/// The natural logarithm. Symbols in its argument are taken as positive.
pub(super) fn logarithm(value: &Fraction, budget: &mut Budget) -> Result<Fraction, Unknown> {
    let numerator = logarithm_of_polynomial(value.numerator(), budget)?;
    let denominator = logarithm_of_polynomial(value.denominator(), budget)?;
    numerator.minus(&denominator, budget)
}

/// The logarithm to a base.
pub(super) fn logarithm_to(
    base: &Fraction,
    value: &Fraction,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    logarithm(value, budget)?.over(&logarithm(base, budget)?, budget)
}

fn logarithm_of_polynomial(value: &Polynomial, budget: &mut Budget) -> Result<Fraction, Unknown> {
    if value.is_zero() {
        return Err(Unknown::NotHandled);
    }
    let content = value.content(BigInt::ZERO, budget)?;
    let integers = factors(&content, budget)?;
    let mut sum = Fraction::zero();
    for (prime, times) in integers.primes {
        let term = Polynomial::term(times.into(), of_generator(Generator::Logarithm(prime)));
        sum = sum.plus(&Fraction::of(term), budget)?;
    }
    if integers.rest != BigInt::from(1) {
        sum = sum.plus(&call(Fraction::integer(integers.rest)), budget)?;
    }
    let rest = value.clone().divided(&content);
    let Some((monomial, coefficient)) = rest.single() else {
        return sum.plus(&call(Fraction::of(rest)), budget);
    };
    if is_below_zero(coefficient) {
        return sum.plus(&call(Fraction::of(rest)), budget);
    }
    for (generator, exponent) in monomial.powers() {
        let inner = logarithm_of_generator(generator, budget)?;
        let times = Fraction::ratio(exponent.numerator(), exponent.denominator(), budget)?;
        sum = sum.plus(&inner.times(&times, budget)?, budget)?;
    }
    Ok(sum)
}

fn logarithm_of_generator(generator: &Generator, budget: &mut Budget) -> Result<Fraction, Unknown> {
    match generator {
        Generator::Constant(Constant::Euler) => Ok(Fraction::one()),
        Generator::Prime(prime) => Ok(Fraction::generator(Generator::Logarithm(*prime))),
        Generator::Base(inner) => Ok(call(Fraction::of(inner.as_ref().clone()))),
        Generator::Power(power) if power.0.is_positive() => {
            let exponent = Polynomial::term(BigInt::from(1), power.1.clone());
            logarithm_of_generator(&power.0, budget)?.times(&Fraction::of(exponent), budget)
        }
        _ => Ok(call(Fraction::generator(generator.clone()))),
    }
}

fn of_generator(generator: Generator) -> Monomial {
    Monomial::of(generator, Exponent::ONE)
}

fn call(argument: Fraction) -> Fraction {
    Fraction::generator(Generator::Call(Function::Logarithm, [argument].into()))
}
