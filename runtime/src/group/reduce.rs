//! Reductions of many answers to one.

use std::ops::{Add, Div};

/// Combines the answers of a group. The order is fixed by the ranks and does not depend on who
/// answers first: neighbours are combined pairwise, then the pairs, and so on, so that a sum of
/// floats is the same in every run, and its error grows with the logarithm of the number of ranks.
///
/// A closure `Fn(T, T) -> T` is a reduction as well.
pub trait Reduction<T>: Send + 'static {
    /// The result.
    type Output;

    /// Combines two neighbours; `left` has the lower ranks. It must be associative, up to rounding.
    fn combine(&self, left: T, right: T) -> T;

    /// Turns the combination of `count` answers into the result.
    fn finish(&self, total: T, count: usize) -> Self::Output;
}

impl<T, F: Fn(T, T) -> T + Send + 'static> Reduction<T> for F {
    type Output = T;

    fn combine(&self, left: T, right: T) -> T {
        self(left, right)
    }

    fn finish(&self, total: T, _: usize) -> T {
        total
    }
}

/// Folds values, in rank order, along a balanced tree. `None` for no value.
pub(super) fn fold<T, O: Reduction<T>>(values: Vec<T>, operation: &O) -> Option<O::Output> {
    let count = values.len();
    let mut level = values;
    while level.len() > 1 {
        let mut next = Vec::with_capacity(level.len().div_ceil(2));
        let mut values = level.into_iter();
        while let Some(left) = values.next() {
            next.push(match values.next() {
                Some(right) => operation.combine(left, right),
                None => left,
            });
        }
        level = next;
    }
    level.pop().map(|total| operation.finish(total, count))
}

/// Values that [`Sum`] adds: numbers, and vectors of them element by element.
pub trait Summand {
    /// The sum of two.
    ///
    /// # Panics
    /// Vectors of different lengths have none.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

/// Values that [`Mean`] divides.
pub trait Scale: Summand {
    /// One `count`-th of it.
    #[must_use]
    fn over(self, count: usize) -> Self;
}

macro_rules! summand {
    ($($t:ty),*) => { $(impl Summand for $t {
        fn plus(self, other: Self) -> Self { self.add(other) }
    })* };
}
summand!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64
);

macro_rules! scale {
    ($($t:ty),*) => { $(impl Scale for $t {
        fn over(self, count: usize) -> Self { self.div(count as Self) }
    })* };
}
scale!(f32, f64);

impl<T: Summand> Summand for Vec<T> {
    fn plus(self, other: Self) -> Self {
        let (left, right) = (self.len(), other.len());
        assert_eq!(
            left, right,
            "vectors of {left} and {right} elements have no sum"
        );
        self.into_iter()
            .zip(other)
            .map(|(left, right)| left.plus(right))
            .collect()
    }
}
impl<T: Scale> Scale for Vec<T> {
    fn over(self, count: usize) -> Self {
        self.into_iter().map(|value| value.over(count)).collect()
    }
}
impl<T: Summand, const N: usize> Summand for [T; N] {
    fn plus(self, other: Self) -> Self {
        let mut others = other.into_iter();
        self.map(|left| match others.next() {
            Some(right) => left.plus(right),
            None => left,
        })
    }
}
impl<T: Scale, const N: usize> Scale for [T; N] {
    fn over(self, count: usize) -> Self {
        self.map(|value| value.over(count))
    }
}

macro_rules! pairs {
    ($($($t:ident $i:tt)+;)*) => { $(
        impl<$($t: Summand),+> Summand for ($($t,)+) {
            fn plus(self, other: Self) -> Self { ($(self.$i.plus(other.$i),)+) }
        }
        impl<$($t: Scale),+> Scale for ($($t,)+) {
            fn over(self, count: usize) -> Self { ($(self.$i.over(count),)+) }
        }
    )* };
}
pairs! { A 0 B 1; A 0 B 1 C 2; A 0 B 1 C 2 D 3; }

/// Adds all answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum;
impl<T: Summand> Reduction<T> for Sum {
    type Output = T;

    fn combine(&self, left: T, right: T) -> T {
        left.plus(right)
    }

    fn finish(&self, total: T, _: usize) -> T {
        total
    }
}

/// The mean of all answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean;
impl<T: Scale> Reduction<T> for Mean {
    type Output = T;

    fn combine(&self, left: T, right: T) -> T {
        left.plus(right)
    }

    fn finish(&self, total: T, count: usize) -> T {
        total.over(count)
    }
}

/// The largest answer; the lowest rank's among equals. A NaN wins, so that it is seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Max;
impl<T: PartialOrd> Reduction<T> for Max {
    type Output = T;

    fn combine(&self, left: T, right: T) -> T {
        if !unordered(&left) && (unordered(&right) || right > left) {
            right
        } else {
            left
        }
    }

    fn finish(&self, total: T, _: usize) -> T {
        total
    }
}

/// The smallest answer; the lowest rank's among equals. A NaN wins, so that it is seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Min;
impl<T: PartialOrd> Reduction<T> for Min {
    type Output = T;

    fn combine(&self, left: T, right: T) -> T {
        if !unordered(&left) && (unordered(&right) || right < left) {
            right
        } else {
            left
        }
    }

    fn finish(&self, total: T, _: usize) -> T {
        total
    }
}

fn unordered<T: PartialOrd>(value: &T) -> bool {
    value.partial_cmp(value).is_none()
}

/// All answers, which are collections, one after the other in rank order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Concat;
impl<T: IntoIterator + Extend<T::Item>> Reduction<T> for Concat {
    type Output = T;

    fn combine(&self, mut left: T, right: T) -> T {
        left.extend(right);
        left
    }

    fn finish(&self, total: T, _: usize) -> T {
        total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_operation_does_what_its_name_says() {
        assert_eq!(fold(vec![1, 2, 3, 4, 5], &Sum), Some(15));
        assert_eq!(fold(vec![1.0, 2.0, 6.0], &Mean), Some(3.0));
        assert_eq!(
            fold(vec![vec![1.0f32, 2.0], vec![3.0, 6.0]], &Mean),
            Some(vec![2.0, 4.0])
        );
        assert_eq!(fold(vec![(1, [2.0]), (3, [4.0])], &Sum), Some((4, [6.0])));
        assert_eq!(fold(vec![2, 7, 1], &Max), Some(7));
        assert_eq!(fold(vec![2, 7, 1], &Min), Some(1));
        assert_eq!(
            fold(vec![vec![1], vec![], vec![2, 3]], &Concat),
            Some(vec![1, 2, 3])
        );
        assert_eq!(fold(vec![2, 3, 4], &|a: i32, b: i32| a * b), Some(24));
        assert_eq!(fold(vec![7], &|_: i32, _: i32| 0), Some(7));
        assert_eq!(fold(Vec::<i32>::new(), &Sum), None);
    }

    #[test]
    fn a_nan_is_seen_wherever_it_stands() {
        for values in [
            [f64::NAN, 1.0, 2.0],
            [1.0, f64::NAN, 2.0],
            [1.0, 2.0, f64::NAN],
        ] {
            assert!(fold(values.to_vec(), &Max).is_some_and(f64::is_nan));
            assert!(fold(values.to_vec(), &Min).is_some_and(f64::is_nan));
        }
    }

    proptest! {
        #[test]
        fn the_tree_keeps_rank_order(values in prop::collection::vec(any::<u16>(), 1..40)) {
            let texts: Vec<Vec<u16>> = values.iter().map(|value| vec![*value]).collect();
            prop_assert_eq!(fold(texts, &Concat), Some(values));
        }

        #[test]
        fn the_tree_is_as_deep_as_the_logarithm(count in 1usize..300) {
            let deeper = |left: u32, right: u32| left.max(right) + 1;
            let depth = fold(vec![0u32; count], &deeper).unwrap();
            prop_assert_eq!(depth, count.next_power_of_two().trailing_zeros());
        }
    }
}
