//! The same steps trained twice, in two ways, compared number by number. Pure.
//!
//! Two ways of adding up the same numbers differ by rounding, and two that train differently by more. So each
//! difference is told as a part of the largest number of its layer: rounding is some 1e-7 of that, whatever is added
//! up. A part of the number itself would say little, since gradients that are nothing but rounding differ wholly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A kind of numbers that two runs have of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Quantity {
    /// Tokens of all batches.
    Tokens,
    /// Nats per predicted token.
    Loss,
    /// Gradients before clipping, which the first moments of the first step are times a constant.
    Gradient,
    /// Norm of the whole gradient, before clipping.
    GradientNorm,
    /// What the optimiser keeps.
    Moments,
    /// The parameters.
    Weights,
}

impl Quantity {
    /// Its name in sentences.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Loss => "loss",
            Self::Gradient => "gradient",
            Self::GradientNorm => "norm of the gradient",
            Self::Moments => "optimiser state",
            Self::Weights => "weight",
        }
    }
}

/// A number that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Steps that are done with it; 0 is before the first.
    pub step: u64,
    /// The kind of number.
    pub quantity: Quantity,
    /// The parameter that it is of or belongs to, unless it is one of the whole step.
    pub tensor: Option<String>,
    /// Its index, dimension by dimension.
    pub index: Vec<usize>,
    /// The ranks of the plan that compute with it, as far as somebody has said it.
    pub ranks: Vec<usize>,
    /// The number that the plan's ranks have.
    #[serde(with = "crate::number")]
    pub plan: f64,
    /// The number that one rank has.
    #[serde(with = "crate::number")]
    pub one: f64,
    /// Their difference as a part of the largest number of its layer, and of a number of the whole step of itself.
    #[serde(with = "crate::number")]
    pub relative: f64,
}

/// A layer, or a part of the model that is in none, and its largest differences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartMismatch {
    /// Its name.
    pub part: String,
    /// Largest difference of each kind over all steps, as a part of the largest such number of the layer in that step.
    pub largest: BTreeMap<Quantity, f64>,
}

/// A tensor as both have it, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPair {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The numbers of the plan's ranks.
    pub plan: Vec<f32>,
    /// The numbers of one rank.
    pub one: Vec<f32>,
}

/// The layer of a parameter, such as `model.layers.3`; of one that is in no layer its own name without its last word.
#[must_use]
pub fn part_of(name: &str) -> &str {
    let mut end = 0;
    for word in name.split('.') {
        end += word.len();
        if word.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(part, _)| part)
}

/// The least part of a layer's largest step direction that has a weight judged. An optimiser that divides a moment by
/// its size, or takes its sign, moves a weight by the learning rate whatever is left of the moment, and rounding alone
/// decides where to.
const IN_DOUBT: f64 = 1e-4;

/// The differences of two runs, as far as these were compared. Whoever compares does so in the order in which a step makes
/// its numbers, so that the first difference is the one that others may follow from.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    tolerance: f64,
    /// The first number that is not the same to the bit.
    pub first: Option<Mismatch>,
    /// The first one that differs by more than the tolerance.
    pub beyond: Option<Mismatch>,
    /// The largest differences, by part of the model in the order in which these came.
    pub parts: Vec<PartMismatch>,
    /// Of each tensor the weights that are in doubt, see [`Comparison::moved`].
    in_doubt: BTreeMap<String, Vec<bool>>,
}

impl Comparison {
    /// Nothing compared yet. Differences of up to `tolerance` count as rounding.
    #[must_use]
    pub fn new(tolerance: f64) -> Self {
        Self {
            tolerance,
            ..Self::default()
        }
    }

    /// Compares a number of a whole step.
    pub fn number(&mut self, step: u64, quantity: Quantity, plan: f64, one: f64) {
        if plan.to_bits() == one.to_bits() {
            return;
        }
        let mismatch = Mismatch {
            step,
            quantity,
            tensor: None,
            index: vec![],
            ranks: vec![],
            plan,
            one,
            relative: relative(plan, one, one.abs()),
        };
        self.beyond(&mismatch);
        self.first.get_or_insert(mismatch);
    }

    /// Compares numbers of all tensors of a layer, those of the plan times the first factor and those of one rank times
    /// the second. Numbers are the same to the bit where they are so before that.
    ///
    /// # Panics
    /// If two tensors of a pair have not as many numbers.
    pub fn layer(
        &mut self,
        step: u64,
        quantity: Quantity,
        tensors: &[TensorPair],
        factors: [f64; 2],
    ) {
        let whole = tensors.iter().flat_map(|pair| &pair.one);
        let whole = whole.fold(0.0, |most: f64, one| most.max(f64::from(one.abs())));
        let whole = whole * factors[1];
        for pair in tensors {
            assert_eq!(pair.plan.len(), pair.one.len(), "{}", pair.name);
            let is_weight = quantity == Quantity::Weights;
            let in_doubt = self.in_doubt.get(&pair.name).filter(|_| is_weight);
            let mut largest = 0.0_f64;
            let (mut first, mut beyond) = (None, None);
            for (at, (plan, one)) in pair.plan.iter().zip(&pair.one).enumerate() {
                let is_same = plan.to_bits() == one.to_bits();
                if is_same && factors[0] == factors[1] {
                    continue;
                }
                let [plan, one] = [f64::from(*plan) * factors[0], f64::from(*one) * factors[1]];
                let mismatch = (at, plan, one, relative(plan, one, whole));
                if !is_same {
                    first.get_or_insert(mismatch);
                }
                if in_doubt.is_some_and(|all| all[at]) {
                    continue;
                }
                largest = largest.max(mismatch.3);
                if mismatch.3 > self.tolerance {
                    beyond.get_or_insert(mismatch);
                }
            }
            self.note(part_of(&pair.name), quantity, largest);
            let told = |(at, plan, one, relative)| Mismatch {
                step,
                quantity,
                tensor: Some(pair.name.clone()),
                index: index_of(at, &pair.shape),
                ranks: vec![],
                plan,
                one,
                relative,
            };
            if self.first.is_none() {
                self.first = first.map(told);
            }
            if self.beyond.is_none() {
                self.beyond = beyond.map(told);
            }
        }
    }

    /// Hears in which directions a step has moved the weights of a layer: those that it moved least, and that both did
    /// not leave where they were, are in doubt from now on. They count no more where differences are told from rounding.
    pub fn moved(&mut self, tensors: &[TensorPair]) {
        let all = tensors.iter().flat_map(|pair| &pair.one);
        let most = all.fold(0.0, |most: f32, one| most.max(one.abs()));
        let least = (f64::from(most) * IN_DOUBT) as f32;
        for pair in tensors {
            let known = self.in_doubt.entry(pair.name.clone());
            let known = known.or_insert_with(|| vec![false; pair.one.len()]);
            let directions = pair.plan.iter().zip(&pair.one);
            for (known, (plan, one)) in known.iter_mut().zip(directions) {
                *known |= one.abs() <= least && (*one != 0.0 || *plan != 0.0);
            }
        }
    }

    /// Number of weights that are in doubt.
    #[must_use]
    pub fn in_doubt(&self) -> u64 {
        let all = self.in_doubt.values().flatten();
        all.filter(|is_so| **is_so).count() as u64
    }

    /// True where every number that was compared is the same to the bit.
    #[must_use]
    pub const fn is_equal(&self) -> bool {
        self.first.is_none()
    }

    fn beyond(&mut self, mismatch: &Mismatch) {
        if mismatch.relative > self.tolerance && self.beyond.is_none() {
            self.beyond = Some(mismatch.clone());
        }
    }

    fn note(&mut self, part: &str, quantity: Quantity, largest: f64) {
        let known = self.parts.iter().position(|it| it.part == part);
        let at = known.unwrap_or_else(|| {
            self.parts.push(PartMismatch {
                part: part.to_owned(),
                largest: BTreeMap::new(),
            });
            self.parts.len() - 1
        });
        let noted = self.parts[at].largest.entry(quantity).or_default();
        *noted = noted.max(largest);
    }
}

/// A difference as a part of `whole`. What is no number differs without end.
fn relative(plan: f64, one: f64, whole: f64) -> f64 {
    let apart = (plan - one).abs();
    match apart == 0.0 {
        true => 0.0,
        false if apart.is_finite() && whole > 0.0 => apart / whole,
        false => f64::INFINITY,
    }
}

/// The index of a number in a tensor of this shape.
fn index_of(at: usize, shape: &[usize]) -> Vec<usize> {
    let mut left = at;
    let index = shape.iter().rev().map(|&length| {
        let index = left % length;
        left /= length;
        index
    });
    let mut index: Vec<usize> = index.collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests;
