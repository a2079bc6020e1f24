//! Sums of monomials with integer coefficients, in normal form.

use std::collections::{BTreeMap, btree_map::Entry};

use num_bigint::{BigInt, Sign};
use num_integer::Integer;

use super::{
    budget::{BITS_MAX, Budget, Unknown},
    exponent::Exponent,
    monomial::{Generator, Monomial},
};

/// A polynomial without zero coefficients, whose monomials are reduced: it is zero only if it has
/// no terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Polynomial(BTreeMap<Monomial, BigInt>);

impl Polynomial {
    pub(super) fn zero() -> Self {
        Self::default()
    }

    pub(super) fn one() -> Self {
        Self::integer(BigInt::from(1))
    }

    pub(super) fn integer(value: BigInt) -> Self {
        Self::term(value, Monomial::one())
    }

    pub(super) fn generator(generator: Generator) -> Self {
        Self::term(BigInt::from(1), Monomial::of(generator, Exponent::ONE))
    }

    /// One term, whose monomial is reduced.
    pub(super) fn term(coefficient: BigInt, monomial: Monomial) -> Self {
        let mut terms = BTreeMap::new();
        if coefficient != BigInt::ZERO {
            terms.insert(monomial, coefficient);
        }
        Self(terms)
    }

    /// One term, whose monomial may have powers that are known otherwise.
    pub(super) fn reduced(
        mut coefficient: BigInt,
        monomial: &Monomial,
        budget: &mut Budget,
    ) -> Result<Self, Unknown> {
        let mut kept = Monomial::one();
        let mut others = Vec::new();
        for (generator, exponent) in monomial.powers() {
            let power = rewritten(generator, exponent, budget)?;
            budget.spend_product(&coefficient, &power.factor)?;
            coefficient *= power.factor;
            others.extend(power.other);
            kept = kept.times(&Monomial::of(generator.clone(), power.rest))?;
        }
        let mut product = Self::term(coefficient, kept);
        for other in others {
            product = product.times(&other, budget)?;
        }
        Ok(product)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_one(&self) -> bool {
        self.as_integer()
            .is_some_and(|value| value == BigInt::from(1))
    }

    /// The integer that this is, if it is one.
    pub(super) fn as_integer(&self) -> Option<BigInt> {
        if self.is_zero() {
            return Some(BigInt::ZERO);
        }
        let (monomial, coefficient) = self.single()?;
        monomial.is_one().then(|| coefficient.clone())
    }

    /// The only term, if there is only one.
    pub(super) fn single(&self) -> Option<(&Monomial, &BigInt)> {
        self.0.iter().next().filter(|_| self.0.len() == 1)
    }

    pub(super) fn terms(&self) -> impl DoubleEndedIterator<Item = (&Monomial, &BigInt)> {
        self.0.iter()
    }

    pub(super) fn term_count(&self) -> usize {
        self.0.len()
    }

    /// Returns true when the coefficient of its last term is negative.
    pub(super) fn is_negative(&self) -> bool {
        self.0
            .last_key_value()
            .is_some_and(|(_, coefficient)| coefficient.sign() == Sign::Minus)
    }

    pub(super) fn is_opaque(&self) -> bool {
        self.0.keys().any(Monomial::is_opaque)
    }

    pub(super) fn is_constant(&self) -> bool {
        self.0.keys().all(Monomial::is_constant)
    }

    /// The largest integer that divides all coefficients, from `start`; zero for no terms.
    pub(super) fn content(&self, start: BigInt, budget: &mut Budget) -> Result<BigInt, Unknown> {
        let one = BigInt::from(1);
        let mut content = start;
        for coefficient in self.0.values() {
            if content == one {
                break;
            }
            budget.spend_divisor(&content, coefficient)?;
            content = content.gcd(coefficient);
        }
        Ok(content)
    }

    /// Divides all coefficients by an integer that divides them.
    pub(super) fn divided(mut self, divisor: &BigInt) -> Self {
        for coefficient in self.0.values_mut() {
            *coefficient /= divisor;
        }
        self
    }

    pub(super) fn negated(mut self) -> Self {
        for coefficient in self.0.values_mut() {
            *coefficient = -std::mem::take(coefficient);
        }
        self
    }

    pub(super) fn plus(mut self, other: Self, budget: &mut Budget) -> Result<Self, Unknown> {
        for (monomial, coefficient) in other.0 {
            budget.spend(1 + (coefficient.bits() >> 10))?;
            self.add(monomial, coefficient);
        }
        Ok(self)
    }

    pub(super) fn times(&self, other: &Self, budget: &mut Budget) -> Result<Self, Unknown> {
        if other.is_one() {
            return Ok(self.clone());
        }
        let mut product = Self::zero();
        for (left, a) in &self.0 {
            for (right, b) in &other.0 {
                budget.spend_product(a, b)?;
                budget.spend(left.weight() + right.weight())?;
                let (monomial, coefficient) = (left.times(right)?, a * b);
                if monomial
                    .powers()
                    .all(|(generator, exponent)| is_kept(generator, exponent))
                {
                    product.add(monomial, coefficient);
                } else {
                    for (monomial, coefficient) in Self::reduced(coefficient, &monomial, budget)?.0
                    {
                        product.add(monomial, coefficient);
                    }
                }
            }
        }
        Ok(product)
    }

    /// The power with a small exponent, by squaring.
    pub(super) fn power(&self, exponent: u32, budget: &mut Budget) -> Result<Self, Unknown> {
        let mut power = Self::one();
        for bit in (0..u32::BITS - exponent.leading_zeros()).rev() {
            power = power.times(&power, budget)?;
            if exponent & (1 << bit) != 0 {
                power = power.times(self, budget)?;
            }
        }
        Ok(power)
    }

    /// The powers of generators that divide all terms, where negative exponents may stand.
    pub(super) fn common_monomial(&self, budget: &mut Budget) -> Result<Monomial, Unknown> {
        let mut common = Monomial::one();
        let mut seen: Vec<&Generator> = Vec::new();
        for generator in self
            .0
            .keys()
            .flat_map(Monomial::powers)
            .map(|(generator, _)| generator)
        {
            if !generator.is_invertible() || seen.contains(&generator) {
                continue;
            }
            budget.spend((seen.len() + self.0.len()) as u64)?;
            seen.push(generator);
            let exponents = self
                .0
                .keys()
                .map(|monomial| monomial.exponent_of(generator));
            let smallest = exponents
                .reduce(Exponent::smaller)
                .unwrap_or(Exponent::ZERO);
            common = common.times(&Monomial::of(generator.clone(), smallest))?;
        }
        Ok(common)
    }

    /// Multiplies by a monomial with invertible generators only.
    pub(super) fn shifted(self, by: &Monomial) -> Result<Self, Unknown> {
        if by.is_one() {
            return Ok(self);
        }
        let terms = self
            .0
            .into_iter()
            .map(|(monomial, c)| Ok((monomial.times(by)?, c)));
        terms.collect::<Result<_, Unknown>>().map(Self)
    }

    fn add(&mut self, monomial: Monomial, coefficient: BigInt) {
        match self.0.entry(monomial) {
            Entry::Vacant(place) => {
                place.insert(coefficient);
            }
            Entry::Occupied(mut place) => {
                *place.get_mut() += coefficient;
                if *place.get() == BigInt::ZERO {
                    place.remove();
                }
            }
        }
    }
}

/// A power of a generator, as an integer times another polynomial times what is left.
struct Rewritten {
    factor: BigInt,
    other: Option<Polynomial>,
    rest: Exponent,
}

/// Returns true when a power stands for itself.
fn is_kept(generator: &Generator, exponent: Exponent) -> bool {
    match generator {
        Generator::MinusOne => false,
        Generator::Imaginary | Generator::Absolute(_) | Generator::Cosine(_) => {
            exponent == Exponent::ONE
        }
        Generator::Prime(_) => exponent.split().0 == 0,
        Generator::Root(index, _) => exponent
            .integer()
            .is_some_and(|whole| whole < i64::from(*index)),
        Generator::Power(power) if power.0 == Generator::MinusOne => {
            exponent.integer().is_none_or(|whole| whole == 1)
        }
        _ => true,
    }
}

fn rewritten(
    generator: &Generator,
    exponent: Exponent,
    budget: &mut Budget,
) -> Result<Rewritten, Unknown> {
    let kept = Rewritten {
        factor: BigInt::from(1),
        other: None,
        rest: exponent,
    };
    if is_kept(generator, exponent) {
        return Ok(kept);
    }
    let whole = exponent.integer();
    Ok(match generator {
        Generator::Prime(prime) => {
            let (whole, rest) = exponent.split();
            let factor = power_of_integer(&BigInt::from(*prime), whole, budget)?;
            Rewritten {
                factor,
                rest,
                ..kept
            }
        }
        Generator::Imaginary | Generator::MinusOne => {
            let turns = whole.ok_or(Unknown::NotHandled)?;
            let turns = if *generator == Generator::MinusOne {
                turns * 2
            } else {
                turns
            };
            let sign = if turns.rem_euclid(4) >= 2 { -1 } else { 1 };
            Rewritten {
                factor: BigInt::from(sign),
                rest: Exponent::whole(turns.rem_euclid(2)),
                ..kept
            }
        }
        Generator::Power(_) => {
            let rest = Exponent::whole(whole.ok_or(Unknown::NotHandled)?.rem_euclid(2));
            Rewritten { rest, ..kept }
        }
        Generator::Root(index, radicand) => {
            let (times, rest) = whole
                .ok_or(Unknown::NotHandled)?
                .div_mod_floor(&i64::from(*index));
            let other = Some(power_of(radicand, times, budget)?);
            Rewritten {
                other,
                rest: Exponent::whole(rest),
                ..kept
            }
        }
        Generator::Absolute(inner) => {
            let (times, rest) = whole.ok_or(Unknown::NotHandled)?.div_mod_floor(&2);
            let other = Some(power_of(inner, times * 2, budget)?);
            Rewritten {
                other,
                rest: Exponent::whole(rest),
                ..kept
            }
        }
        Generator::Cosine(angle) => {
            let (times, rest) = whole.ok_or(Unknown::NotHandled)?.div_mod_floor(&2);
            let sine = Monomial::of(Generator::Sine(angle.clone()), Exponent::whole(2));
            let minus = Polynomial::term(BigInt::from(-1), sine);
            let other = Some(power_of(
                &Polynomial::one().plus(minus, budget)?,
                times,
                budget,
            )?);
            Rewritten {
                other,
                rest: Exponent::whole(rest),
                ..kept
            }
        }
        _ => kept,
    })
}

fn power_of(base: &Polynomial, times: i64, budget: &mut Budget) -> Result<Polynomial, Unknown> {
    match u32::try_from(times) {
        Ok(times) if times <= EXPANDED_MAX => base.power(times, budget),
        _ => Err(Unknown::TooLarge),
    }
}

/// The power of an integer, when it is not too long. Negative exponents are refused.
pub(super) fn power_of_integer(
    base: &BigInt,
    exponent: i64,
    budget: &mut Budget,
) -> Result<BigInt, Unknown> {
    if base.bits() <= 1 {
        let negative = base.sign() == Sign::Minus && exponent % 2 != 0;
        let one = BigInt::from(if negative { -1 } else { 1 });
        return Ok(if base.sign() == Sign::NoSign && exponent > 0 {
            BigInt::ZERO
        } else {
            one
        });
    }
    let exponent = u32::try_from(exponent).map_err(|_| Unknown::TooLarge)?;
    let bits = base.bits().saturating_mul(u64::from(exponent));
    if bits > BITS_MAX {
        return Err(Unknown::TooLarge);
    }
    budget.spend(1 + ((bits * bits) >> 16))?;
    Ok(base.pow(exponent))
}

/// The highest power of a sum that is expanded.
pub(super) const EXPANDED_MAX: u32 = 64;
