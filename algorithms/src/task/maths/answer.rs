//! Answers: what texts say, with exact values.

use super::{
    budget::Unknown, expression::Constant, fraction::Fraction, monomial::Generator, unit::Unit,
};

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A number or an expression, maybe of a unit.
    Number(Fraction, Option<Unit>),
    /// Words of a language.
    Prose(String),
    /// A text that was not understood, as it is written.
    Unread(String, Cause),
    /// Items in order: a point, a vector, an interval.
    Tuple(Ends, Vec<Self>),
    /// `1:2:3`, divided by its first part.
    Ratio(Vec<Self>),
    Set(Vec<Self>),
    /// Several answers without order.
    List(Vec<Self>),
    Union(Vec<Self>),
    Equation(Vec<Self>),
    /// All values of a name that are in a set.
    Region(String, Box<Self>),
    /// A difference and how it compares with zero.
    Inequality(Fraction, Comparison),
    Matrix(Vec<Vec<Self>>),
}

/// The brackets around a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) open: End,
    pub(super) close: End,
}

/// A bracket: round, or square where the end of an interval belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Round,
    Square,
}

/// The relation of a difference to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Above,
    AtLeast,
    Unequal,
}

/// Why something was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Empty,
    Form,
    TooDeep,
    Value(Unknown),
}

pub(super) fn infinity() -> Fraction {
    Fraction::generator(Generator::Constant(Constant::Infinity))
}

pub(super) const OPEN: Ends = Ends {
    open: End::Round,
    close: End::Round,
};
