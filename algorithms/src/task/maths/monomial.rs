//! Products of powers of generators: what a polynomial here is a sum of.

use std::sync::Arc;

use num_bigint::BigInt;

use super::{
    budget::Unknown,
    exponent::Exponent,
    expression::{Constant, Function},
    fraction::Fraction,
    polynomial::Polynomial,
};

/// A part that expressions are made of beside rational numbers.
///
/// Products of different roots of primes are linearly independent over the rationals (Besicovitch
/// 1940), so an expression of numbers, roots, symbols and `i` is zero only if all its coefficients
/// are. Constants and logarithms are taken as independent of each other, as everybody believes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Generator {
    /// Minus one, as the base of a power with symbols in its exponent.
    MinusOne,
    /// The imaginary unit, with exponent 1.
    Imaginary,
    /// A prime with an exponent between 0 and 1: a root.
    Prime(u64),
    Constant(Constant),
    Symbol(Arc<str>),
    /// The natural logarithm of a prime.
    Logarithm(u64),
    /// A generator to the power of a monomial with symbols.
    Power(Arc<(Self, Monomial)>),
    /// A polynomial whose power is too high to expand, or has symbols.
    Base(Arc<Polynomial>),
    /// The root of this degree of a polynomial that is no such power.
    Root(u32, Arc<Polynomial>),
    Absolute(Arc<Polynomial>),
    Cosine(Arc<Fraction>),
    Sine(Arc<Fraction>),
    /// A function of which nothing is known here.
    Call(Function, Arc<[Fraction]>),
}

/// A product of powers of generators, in the order of the generators.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Monomial(Vec<(Generator, Exponent)>);

impl Generator {
    pub(super) fn root(index: u32, radicand: Polynomial) -> Self {
        Self::Root(index, Arc::new(radicand))
    }

    pub(super) fn root_of_integer(index: u32, radicand: BigInt) -> Self {
        Self::root(index, Polynomial::integer(radicand))
    }

    /// Returns true when powers of it with negative exponents may stand in a numerator. Those of
    /// which a power is known otherwise stay in the denominator.
    pub(super) fn is_invertible(&self) -> bool {
        match self {
            Self::Constant(_) | Self::Symbol(_) | Self::Logarithm(_) => true,
            Self::Power(power) => power.0 != Self::MinusOne,
            Self::Base(_) | Self::Sine(_) | Self::Call(..) => true,
            Self::MinusOne | Self::Imaginary | Self::Prime(_) => false,
            Self::Root(..) | Self::Absolute(_) | Self::Cosine(_) => false,
        }
    }

    /// Returns true when it may depend on other generators in ways that are not known here.
    pub(super) fn is_opaque(&self) -> bool {
        match self {
            Self::MinusOne | Self::Imaginary | Self::Prime(_) | Self::Constant(_) => false,
            Self::Symbol(_) | Self::Logarithm(_) => false,
            Self::Power(power) => power.0.is_opaque() || power.1.is_opaque(),
            Self::Base(_) | Self::Root(..) | Self::Absolute(_) => true,
            Self::Cosine(_) | Self::Sine(_) | Self::Call(..) => true,
        }
    }

    /// Returns true when it is free of symbols.
    pub(super) fn is_constant(&self) -> bool {
        match self {
            Self::MinusOne | Self::Imaginary | Self::Prime(_) => true,
            Self::Constant(_) | Self::Logarithm(_) => true,
            Self::Symbol(_) => false,
            Self::Power(power) => power.0.is_constant() && power.1.is_constant(),
            Self::Base(inner) | Self::Root(_, inner) | Self::Absolute(inner) => inner.is_constant(),
            Self::Cosine(inner) | Self::Sine(inner) => inner.is_constant(),
            Self::Call(_, inner) => inner.iter().all(Fraction::is_constant),
        }
    }

    /// Returns true when it stands for a positive real number, or is taken to.
    pub(super) fn is_positive(&self) -> bool {
        match self {
            Self::Prime(_) | Self::Constant(_) | Self::Logarithm(_) => true,
            Self::Power(power) => {
                let turns = power.1.exponent_of(&Self::Imaginary) != Exponent::ZERO;
                power.0.is_positive() && !turns
            }
            _ => false,
        }
    }
}

impl Monomial {
    pub(super) fn one() -> Self {
        Self::default()
    }

    pub(super) fn of(generator: Generator, exponent: Exponent) -> Self {
        if exponent == Exponent::ZERO {
            return Self::one();
        }
        Self(vec![(generator, exponent)])
    }

    pub(super) fn is_one(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn powers(&self) -> impl Iterator<Item = (&Generator, Exponent)> {
        self.0
            .iter()
            .map(|(generator, exponent)| (generator, *exponent))
    }

    /// The work to compare it, besides a little.
    pub(super) fn weight(&self) -> u64 {
        self.0
            .iter()
            .map(|(generator, _)| if generator.is_opaque() { 4 } else { 1 })
            .sum()
    }

    pub(super) fn is_opaque(&self) -> bool {
        self.0.iter().any(|(generator, _)| generator.is_opaque())
    }

    pub(super) fn is_constant(&self) -> bool {
        self.0.iter().all(|(generator, _)| generator.is_constant())
    }

    /// The exponent of a generator; zero where it does not occur.
    pub(super) fn exponent_of(&self, generator: &Generator) -> Exponent {
        match self.0.binary_search_by(|(other, _)| other.cmp(generator)) {
            Ok(at) => self.0[at].1,
            Err(_) => Exponent::ZERO,
        }
    }

    /// The parts without and with symbols.
    pub(super) fn parts(&self) -> (Self, Self) {
        let (constant, symbolic) = self
            .0
            .iter()
            .cloned()
            .partition(|(generator, _)| generator.is_constant());
        (Self(constant), Self(symbolic))
    }

    /// The product, with exponents as they add up.
    pub(super) fn times(&self, other: &Self) -> Result<Self, Unknown> {
        if other.is_one() {
            return Ok(self.clone());
        }
        let mut product = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (Some(a), Some(b)) => a.0.cmp(&b.0),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => return Ok(Self(product)),
            };
            if order.is_eq() {
                if let (Some((generator, a)), Some((_, b))) = (left.next(), right.next()) {
                    let exponent = a.plus(*b)?;
                    if exponent != Exponent::ZERO {
                        product.push((generator.clone(), exponent));
                    }
                }
            } else {
                let next = if order.is_lt() {
                    left.next()
                } else {
                    right.next()
                };
                product.extend(next.cloned());
            }
        }
    }

    /// The power, with exponents as they multiply.
    pub(super) fn power(&self, exponent: Exponent) -> Result<Self, Unknown> {
        let powers = self
            .0
            .iter()
            .map(|(generator, own)| Ok((generator.clone(), own.times(exponent)?)))
            .filter(|power| !matches!(power, Ok((_, Exponent::ZERO))));
        powers.collect::<Result<_, Unknown>>().map(Self)
    }
}
