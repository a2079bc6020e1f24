//! Expressions as they are written.

use std::sync::Arc;

use num_bigint::BigInt;

/// An expression. Chains of operators are lists, so that its depth is that of its brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// An integer over a positive integer.
    Number(BigInt, BigInt),
    Constant(Constant),
    Imaginary,
    Symbol(Arc<str>),
    Sum(Vec<(Sign, Self)>),
    Product(Vec<(Operation, Self)>),
    /// Base and exponent.
    Power(Box<(Self, Self)>),
    /// Degree and radicand.
    Root(u32, Box<Self>),
    Call(Function, Vec<Self>),
}

/// The sign before a part of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Plus,
    Minus,
    /// Plus on the upper branch, minus on the lower.
    PlusMinus,
    /// The opposite.
    MinusPlus,
}

/// The operation before a part of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Times,
    Over,
}

/// Which sign of `±` is meant; all of an expression go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Branch {
    Upper,
    Lower,
}

/// A number that no radical expresses, and infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Constant {
    Pi,
    Euler,
    Infinity,
}

/// A function with one argument, or two where it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Function {
    Sine,
    Cosine,
    Tangent,
    Cotangent,
    Secant,
    Cosecant,
    ArcSine,
    ArcCosine,
    ArcTangent,
    HyperbolicSine,
    HyperbolicCosine,
    HyperbolicTangent,
    Exponential,
    /// The natural logarithm.
    Logarithm,
    /// Base and argument.
    LogarithmTo,
    Absolute,
    Floor,
    Ceiling,
    Factorial,
    /// The upper and the lower number.
    Binomial,
    /// Base and exponent, where the exponent is a quotient with symbols.
    Power,
    Percent,
    Degrees,
}

impl Expression {
    pub(super) fn integer(value: impl Into<BigInt>) -> Self {
        Self::Number(value.into(), BigInt::from(1))
    }

    pub(super) fn symbol(name: &str) -> Self {
        Self::Symbol(name.into())
    }

    pub(super) fn power(base: Self, exponent: Self) -> Self {
        Self::Power(Box::new((base, exponent)))
    }

    pub(super) fn over(numerator: Self, denominator: Self) -> Self {
        Self::Product(vec![
            (Operation::Times, numerator),
            (Operation::Over, denominator),
        ])
    }

    pub(super) fn negated(self) -> Self {
        Self::Sum(vec![(Sign::Minus, self)])
    }

    /// Returns true when it means two values.
    pub(super) fn has_branches(&self) -> bool {
        match self {
            Self::Number(..) | Self::Constant(_) | Self::Imaginary | Self::Symbol(_) => false,
            Self::Sum(terms) => terms.iter().any(|(sign, term)| {
                matches!(sign, Sign::PlusMinus | Sign::MinusPlus) || term.has_branches()
            }),
            Self::Product(factors) => factors.iter().any(|(_, factor)| factor.has_branches()),
            Self::Power(power) => power.0.has_branches() || power.1.has_branches(),
            Self::Root(_, radicand) => radicand.has_branches(),
            Self::Call(_, arguments) => arguments.iter().any(Self::has_branches),
        }
    }
}
