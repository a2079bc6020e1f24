//! Numbers that change over the steps.

use serde::{Deserialize, Serialize};

/// A number for each step.
///
/// In a recipe: `{ constant = 0.5 }`, `{ stages = [[0, 0.9], [1000, 0.1]] }`, or
/// `{ linear = [[0, 512], [1000, 8192]] }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// The same always.
    Constant(f64),
    /// From each step on, the value beside it. Before the first, the first value.
    Stages(Vec<(u64, f64)>),
    /// Straight lines between the points, and level before the first and after the last.
    Linear(Vec<(u64, f64)>),
}

impl Schedule {
    /// The value at a step.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        let (points, straight) = match self {
            Self::Constant(value) => return *value,
            Self::Stages(points) => (points, false),
            Self::Linear(points) => (points, true),
        };
        let after = points.partition_point(|(from, _)| *from <= step);
        let next = points.get(after);
        let Some(last) = after.checked_sub(1).map(|at| points[at]) else {
            return next.map_or(0.0, |(_, value)| *value);
        };
        match next {
            Some((to, value)) if straight => {
                let part = (step - last.0) as f64 / (to - last.0) as f64;
                last.1 + (value - last.1) * part
            }
            _ => last.1,
        }
    }

    /// The largest value at any step from `from` on, before `to`.
    #[must_use]
    pub fn largest(&self, from: u64, to: u64) -> f64 {
        let inside = match self {
            Self::Constant(_) => &[][..],
            Self::Stages(points) | Self::Linear(points) => points,
        };
        let inside = inside.iter().filter(|(at, _)| (from..to).contains(at));
        let ends = [self.at(from), self.at(to.saturating_sub(1).max(from))];
        inside.map(|point| point.1).chain(ends).fold(0.0, f64::max)
    }

    /// The steps at which it may turn.
    pub(super) fn changes(&self) -> impl Iterator<Item = u64> + '_ {
        let points = match self {
            Self::Constant(_) => &[][..],
            Self::Stages(points) | Self::Linear(points) => points,
        };
        points.iter().map(|point| point.0)
    }

    /// Why it is none, if it is not: it needs points in order, and values that are numbers of at
    /// least 0.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let fine = |value: f64| value.is_finite() && value >= 0.0;
        match self {
            Self::Constant(value) if fine(*value) => None,
            Self::Constant(_) => Some("a number of at least 0"),
            Self::Stages(points) | Self::Linear(points) => {
                let ordered = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
                if points.is_empty() || !ordered {
                    Some("points whose steps ascend")
                } else if points.iter().all(|point| fine(point.1)) {
                    None
                } else {
                    Some("values of at least 0")
                }
            }
        }
    }

    /// Returns true where it is 0 at every step.
    pub(super) fn is_nothing(&self) -> bool {
        match self {
            Self::Constant(value) => *value == 0.0,
            Self::Stages(points) | Self::Linear(points) => points.iter().all(|p| p.1 == 0.0),
        }
    }
}
