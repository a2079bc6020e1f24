//! Powers with any exponent.

use num_bigint::BigInt;
use num_integer::Integer;

use super::{
    angle::cosine_and_sine,
    budget::{Budget, Unknown},
    exponent::Exponent,
    expression::{Constant, Function},
    fraction::{Fraction, is_below_zero},
    integer::factors,
    monomial::{Generator, Monomial},
    polynomial::Polynomial,
    root::root,
};

/// A base to the power of an exponent.
pub(super) fn power(
    base: &Fraction,
    exponent: &Fraction,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    if let Some(whole) = exponent.as_integer() {
        let whole = i64::try_from(&whole).map_err(|_| Unknown::TooLarge)?;
        return base.power(whole, budget);
    }
    if let Some(exponent) = exponent.as_exponent() {
        let index = u32::try_from(exponent.denominator()).map_err(|_| Unknown::TooLarge)?;
        return root(base, index, budget)?.power(exponent.numerator(), budget);
    }
    let Some(denominator) = exponent.denominator().as_integer() else {
        let call = Generator::Call(Function::Power, [base.clone(), exponent.clone()].into());
        return Ok(Fraction::generator(call));
    };
    if base.is_zero() {
        return Err(Unknown::NotHandled);
    }
    let mut product = Fraction::one();
    for (generator, own) in components(base, budget)? {
        for (monomial, coefficient) in exponent.numerator().terms() {
            let times = Fraction::ratio(coefficient.clone(), denominator.clone(), budget)?;
            let times = times.as_exponent().ok_or(Unknown::TooLarge)?.times(own)?;
            let factor = power_of_generator(&generator, monomial, times, budget)?;
            product = product.times(&factor, budget)?;
        }
    }
    Ok(product)
}

/// The generators of which a base is a product, with their exponents.
fn components(base: &Fraction, budget: &mut Budget) -> Result<Vec<(Generator, Exponent)>, Unknown> {
    let mut found = Vec::new();
    for (part, sign) in [(base.numerator(), 1), (base.denominator(), -1)] {
        let sign = Exponent::whole(sign);
        let content = part.content(BigInt::ZERO, budget)?;
        let integers = factors(&content, budget)?;
        for (prime, times) in integers.primes {
            found.push((Generator::Prime(prime), Exponent::whole(times).times(sign)?));
        }
        if integers.rest != BigInt::from(1) {
            found.push((
                Generator::Base(Polynomial::integer(integers.rest).into()),
                sign,
            ));
        }
        let Some((monomial, coefficient)) = part.single() else {
            found.push((Generator::Base(part.clone().divided(&content).into()), sign));
            continue;
        };
        if is_below_zero(coefficient) {
            found.push((Generator::MinusOne, Exponent::ONE));
        }
        for (generator, exponent) in monomial.powers() {
            found.push((generator.clone(), exponent.times(sign)?));
        }
    }
    Ok(found)
}

/// A generator to the power of a rational number times a monomial.
fn power_of_generator(
    generator: &Generator,
    monomial: &Monomial,
    times: Exponent,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    let is_euler = *generator == Generator::Constant(Constant::Euler);
    if monomial.is_one() {
        return match times.integer() {
            None if !generator.is_positive() && !matches!(generator, Generator::Symbol(_)) => {
                let index = u32::try_from(times.denominator()).map_err(|_| Unknown::TooLarge)?;
                let base = Fraction::generator_power(generator.clone(), Exponent::ONE, budget)?;
                root(&base, index, budget)?.power(times.numerator(), budget)
            }
            _ => Fraction::generator_power(generator.clone(), times, budget),
        };
    }
    let powers: Vec<_> = monomial.powers().collect();
    match powers[..] {
        [(Generator::Logarithm(prime), Exponent::ONE)] if is_euler => {
            return Fraction::generator_power(Generator::Prime(*prime), times, budget);
        }
        [(Generator::Call(Function::Logarithm, inner), Exponent::ONE)] if is_euler => {
            if let ([inner], Some(whole)) = (&inner[..], times.integer()) {
                return inner.power(whole, budget);
            }
        }
        [(Generator::Imaginary, _), ..] if is_euler => {
            let numerator = Polynomial::term(times.numerator().into(), rest_of(monomial)?);
            let denominator = Polynomial::integer(times.denominator().into());
            let angle = Fraction::new(numerator, denominator, budget)?;
            let (cosine, sine) = cosine_and_sine(&angle, budget)?;
            let imaginary = Fraction::generator(Generator::Imaginary);
            return cosine.plus(&sine.times(&imaginary, budget)?, budget);
        }
        _ => {}
    }
    // The exponent of minus one is an integer: signs that cancel do so by pairs.
    if *generator == Generator::MinusOne && times.integer().is_some_and(|whole| whole.is_even()) {
        return Ok(Fraction::one());
    }
    let generator = Generator::Power((generator.clone(), monomial.clone()).into());
    Fraction::generator_power(generator, times, budget)
}

/// A monomial without the imaginary unit.
fn rest_of(monomial: &Monomial) -> Result<Monomial, Unknown> {
    monomial.times(&Monomial::of(Generator::Imaginary, Exponent::whole(-1)))
}
