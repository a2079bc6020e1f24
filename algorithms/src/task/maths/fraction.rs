//! Quotients of polynomials.

use num_bigint::{BigInt, Sign};

use super::{
    budget::{Budget, Unknown},
    exponent::Exponent,
    monomial::{Generator, Monomial},
    polynomial::{EXPANDED_MAX, Polynomial, power_of_integer},
};

/// A quotient of polynomials, of which common integers and common powers are cancelled. Where the
/// denominator has one term, the form is normal; else two forms are compared by their products.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fraction {
    numerator: Polynomial,
    denominator: Polynomial,
}

/// The relation of two values, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sameness {
    Same,
    Other,
    /// They differ in form, but parts of them may be related in ways that are not known.
    Open,
}

impl Fraction {
    pub(super) fn zero() -> Self {
        Self::of(Polynomial::zero())
    }

    pub(super) fn one() -> Self {
        Self::of(Polynomial::one())
    }

    pub(super) fn integer(value: impl Into<BigInt>) -> Self {
        Self::of(Polynomial::integer(value.into()))
    }

    pub(super) fn generator(generator: Generator) -> Self {
        Self::of(Polynomial::generator(generator))
    }

    pub(super) fn of(numerator: Polynomial) -> Self {
        Self {
            numerator,
            denominator: Polynomial::one(),
        }
    }

    pub(super) fn ratio(
        numerator: impl Into<BigInt>,
        denominator: impl Into<BigInt>,
        budget: &mut Budget,
    ) -> Result<Self, Unknown> {
        let denominator = Polynomial::integer(denominator.into());
        Self::new(Polynomial::integer(numerator.into()), denominator, budget)
    }

    pub(super) fn new(
        numerator: Polynomial,
        denominator: Polynomial,
        budget: &mut Budget,
    ) -> Result<Self, Unknown> {
        if denominator.is_zero() {
            return Err(Unknown::DivisionByZero);
        }
        if numerator.is_zero() {
            return Ok(Self::zero());
        }
        let (numerator, denominator) = match denominator.single() {
            Some((monomial, _)) if monomial.is_one() => (numerator, denominator),
            Some((monomial, coefficient)) => over_term(&numerator, monomial, coefficient, budget)?,
            None => {
                let common = denominator
                    .common_monomial(budget)?
                    .power(Exponent::whole(-1))?;
                (numerator.shifted(&common)?, denominator.shifted(&common)?)
            }
        };
        budget.spend((numerator.term_count() + denominator.term_count()) as u64)?;
        let mut content = denominator.content(BigInt::ZERO, budget)?;
        content = numerator.content(content, budget)?;
        if denominator.is_negative() {
            content = -content;
        }
        let (numerator, denominator) = if content == BigInt::from(1) {
            (numerator, denominator)
        } else {
            (numerator.divided(&content), denominator.divided(&content))
        };
        Ok(Self {
            numerator,
            denominator,
        }
        .without_multiple())
    }

    /// Writes a numerator that is an integer times the denominator as that integer.
    fn without_multiple(self) -> Self {
        let Some(factor) = multiple(&self.numerator, &self.denominator) else {
            return self;
        };
        Self::integer(factor)
    }

    pub(super) fn numerator(&self) -> &Polynomial {
        &self.numerator
    }

    pub(super) fn denominator(&self) -> &Polynomial {
        &self.denominator
    }

    pub(super) fn is_zero(&self) -> bool {
        self.numerator.is_zero()
    }

    pub(super) fn is_constant(&self) -> bool {
        self.numerator.is_constant() && self.denominator.is_constant()
    }

    /// Numerator and denominator, where both are integers.
    pub(super) fn as_ratio(&self) -> Option<(BigInt, BigInt)> {
        Some((self.numerator.as_integer()?, self.denominator.as_integer()?))
    }

    pub(super) fn as_integer(&self) -> Option<BigInt> {
        self.denominator
            .is_one()
            .then(|| self.numerator.as_integer())?
    }

    /// The rational number that this is, if it is one and small.
    pub(super) fn as_exponent(&self) -> Option<Exponent> {
        let (numerator, denominator) = self.as_ratio()?;
        let numerator = i64::try_from(&numerator).ok()?;
        Exponent::new(numerator, i64::try_from(&denominator).ok()?).ok()
    }

    pub(super) fn negated(self) -> Self {
        Self {
            numerator: self.numerator.negated(),
            ..self
        }
    }

    pub(super) fn plus(&self, other: &Self, budget: &mut Budget) -> Result<Self, Unknown> {
        if self.denominator == other.denominator {
            let numerator = self
                .numerator
                .clone()
                .plus(other.numerator.clone(), budget)?;
            if self.denominator.is_one() {
                return Ok(Self::of(numerator));
            }
            return Self::new(numerator, self.denominator.clone(), budget);
        }
        let left = self.numerator.times(&other.denominator, budget)?;
        let right = other.numerator.times(&self.denominator, budget)?;
        let denominator = self.denominator.times(&other.denominator, budget)?;
        Self::new(left.plus(right, budget)?, denominator, budget)
    }

    pub(super) fn minus(&self, other: &Self, budget: &mut Budget) -> Result<Self, Unknown> {
        self.plus(&other.clone().negated(), budget)
    }

    pub(super) fn times(&self, other: &Self, budget: &mut Budget) -> Result<Self, Unknown> {
        let numerator = self.numerator.times(&other.numerator, budget)?;
        let denominator = self.denominator.times(&other.denominator, budget)?;
        if denominator.is_one() {
            return Ok(Self::of(numerator));
        }
        Self::new(numerator, denominator, budget)
    }

    pub(super) fn over(&self, other: &Self, budget: &mut Budget) -> Result<Self, Unknown> {
        let numerator = self.numerator.times(&other.denominator, budget)?;
        let denominator = self.denominator.times(&other.numerator, budget)?;
        Self::new(numerator, denominator, budget)
    }

    /// The power with an integer exponent.
    pub(super) fn power(&self, exponent: i64, budget: &mut Budget) -> Result<Self, Unknown> {
        if exponent == 0 && self.is_zero() {
            return Err(Unknown::NotHandled);
        }
        let times = exponent.checked_abs().ok_or(Unknown::TooLarge)?;
        let numerator = power(&self.numerator, times, budget)?;
        let denominator = power(&self.denominator, times, budget)?;
        if exponent < 0 {
            return Self::new(denominator, numerator, budget);
        }
        Self::new(numerator, denominator, budget)
    }

    /// A power of one generator. Roots of primes may have negative exponents.
    pub(super) fn generator_power(
        generator: Generator,
        exponent: Exponent,
        budget: &mut Budget,
    ) -> Result<Self, Unknown> {
        let one = BigInt::from(1);
        if exponent.is_negative() && !generator.is_invertible() {
            let monomial = Monomial::of(generator, exponent.negated());
            let denominator = Polynomial::reduced(one, &monomial, budget)?;
            return Self::new(Polynomial::one(), denominator, budget);
        }
        let monomial = Monomial::of(generator, exponent);
        Ok(Self::of(Polynomial::reduced(one, &monomial, budget)?))
    }

    /// Compares by cross-multiplication.
    pub(super) fn same(&self, other: &Self, budget: &mut Budget) -> Result<Sameness, Unknown> {
        if self == other {
            return Ok(Sameness::Same);
        }
        let left = self.numerator.times(&other.denominator, budget)?;
        let right = other.numerator.times(&self.denominator, budget)?;
        let difference = left.plus(right.negated(), budget)?;
        Ok(if difference.is_zero() {
            Sameness::Same
        } else if difference.is_opaque() {
            Sameness::Open
        } else {
            Sameness::Other
        })
    }
}

/// Takes what can be inverted of a denominator with one term into the numerator.
fn over_term(
    numerator: &Polynomial,
    monomial: &Monomial,
    coefficient: &BigInt,
    budget: &mut Budget,
) -> Result<(Polynomial, Polynomial), Unknown> {
    let mut inverse = Monomial::one();
    let mut kept = Monomial::one();
    let mut coefficient = coefficient.clone();
    for (generator, exponent) in monomial.powers() {
        let generator_alone = generator.clone();
        match generator {
            Generator::Prime(prime) => {
                let rest = Exponent::ONE.plus(exponent.negated())?;
                inverse = inverse.times(&Monomial::of(generator_alone, rest))?;
                coefficient *= *prime;
            }
            Generator::Imaginary => {
                inverse = inverse.times(&Monomial::of(generator_alone, Exponent::ONE))?;
                coefficient = -coefficient;
            }
            _ if generator.is_invertible() => {
                inverse = inverse.times(&Monomial::of(generator_alone, exponent.negated()))?;
            }
            _ => kept = kept.times(&Monomial::of(generator_alone, exponent))?,
        }
    }
    let inverse = Polynomial::term(BigInt::from(1), inverse);
    Ok((
        numerator.times(&inverse, budget)?,
        Polynomial::term(coefficient, kept),
    ))
}

/// The integer by which the numerator is a multiple of the denominator.
fn multiple(numerator: &Polynomial, denominator: &Polynomial) -> Option<BigInt> {
    if denominator.is_one() || numerator.term_count() != denominator.term_count() {
        return None;
    }
    let (first, second) = (numerator.terms().next()?.1, denominator.terms().next()?.1);
    let factor = first / second;
    let mut pairs = numerator.terms().zip(denominator.terms());
    pairs
        .all(|((a, x), (b, y))| a == b && *x == y * &factor)
        .then_some(factor)
}

fn power(base: &Polynomial, times: i64, budget: &mut Budget) -> Result<Polynomial, Unknown> {
    if let Some((monomial, coefficient)) = base.single() {
        let coefficient = power_of_integer(coefficient, times, budget)?;
        return Polynomial::reduced(
            coefficient,
            &monomial.power(Exponent::whole(times))?,
            budget,
        );
    }
    let expanded = u32::try_from(times).ok().filter(|times| {
        *times <= EXPANDED_MAX && terms_at_most(base.term_count(), *times) <= TERMS_MAX
    });
    if base.is_zero() {
        return Ok(if times == 0 {
            Polynomial::one()
        } else {
            Polynomial::zero()
        });
    }
    match expanded {
        Some(times) => base.power(times, budget),
        None => {
            let negative = base.is_negative();
            let base = if negative {
                base.clone().negated()
            } else {
                base.clone()
            };
            let sign = if negative && times % 2 == 1 { -1 } else { 1 };
            let content = base.content(BigInt::ZERO, budget)?;
            let coefficient = power_of_integer(&content, times, budget)? * sign;
            let generator = Generator::Base(base.divided(&content).into());
            Ok(Polynomial::term(
                coefficient,
                Monomial::of(generator, Exponent::whole(times)),
            ))
        }
    }
}

/// The most terms that a power of a sum may have.
fn terms_at_most(terms: usize, times: u32) -> u64 {
    let mut count = 1_u64;
    for step in 1..terms as u64 {
        count = count.saturating_mul(u64::from(times) + step) / step;
    }
    count
}

/// The longest power of a sum that is expanded.
const TERMS_MAX: u64 = 500;

/// Returns true when an integer is below zero.
pub(super) fn is_below_zero(value: &BigInt) -> bool {
    value.sign() == Sign::Minus
}
