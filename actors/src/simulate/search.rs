//! The search for the best setting of a mode: how many machines roll out, how many cards a rollout
//! has and how many replies it works on. Pure: it says what to try next, given what was found so far.
//!
//! One coordinate is changed at a time, for as long as the rate grows, in one direction and else in the
//! other. When no change of a coordinate helps any more, strides are halved, down to one. So the result
//! is the best in its neighbourhood and never worse than the start, which is tried first.

use std::collections::BTreeMap;

/// Numbers of the three coordinates.
pub(super) type Point = [u32; 3];

/// The values of one coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    /// The least.
    pub(super) least: u32,
    /// The greatest.
    pub(super) most: u32,
    /// Difference of the first neighbours that are tried.
    pub(super) stride: u32,
}

/// The rates at points that were tried; `None` where there can be no run.
pub(super) type Known = BTreeMap<Point, Option<f64>>;

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Find out the rate at this point, which is not known.
    Try(Point),
    /// Take this one.
    Take(Point),
}

/// The next point to try from a start on, or the best that was found.
pub(super) fn next(axes: &[Axis; 3], start: Point, known: &Known) -> Next {
    match climb(axes, start, known) {
        Ok(best) => Next::Take(best),
        Err(Unknown(point)) => Next::Try(point),
    }
}

/// The best of what is known: the start, unless another is better, and of equals the first.
pub(super) fn best(start: Point, known: &Known) -> Point {
    let rate = |at: &Point| {
        known
            .get(at)
            .copied()
            .flatten()
            .unwrap_or(f64::NEG_INFINITY)
    };
    let better = |one, it| if rate(it) > rate(one) { it } else { one };
    *known.keys().fold(&start, better)
}

/// Replies of a rollout that are tried as its bound, where it has at most so many: 0 is no bound, 1 the
/// greatest power of two, or three halves of one, that is less, and so on.
pub(super) fn bound(most: u32, rung: u32) -> Option<Option<u32>> {
    let rungs = (1..most).rev().filter(|it| is_rung(*it)).map(Some);
    std::iter::once(None).chain(rungs).nth(rung as usize)
}

fn is_rung(replies: u32) -> bool {
    replies.is_power_of_two() || (replies.is_multiple_of(3) && (replies / 3).is_power_of_two())
}

/// A point whose rate the search has to know.
struct Unknown(Point);

fn climb(axes: &[Axis; 3], start: Point, known: &Known) -> Result<Point, Unknown> {
    let rate = |at: Point| match known.get(&at) {
        None => Err(Unknown(at)),
        Some(rate) => Ok(rate.unwrap_or(f64::NEG_INFINITY)),
    };
    let (mut at, mut most) = (start, rate(start)?);
    let mut strides = axes.map(|axis| axis.stride.max(1));
    loop {
        let mut moved = false;
        for (of, axis) in axes.iter().enumerate() {
            for up in [false, true] {
                let from = at;
                while let Some(to) = step(axis, at[of], strides[of], up) {
                    let mut neighbour = at;
                    neighbour[of] = to;
                    let reached = rate(neighbour)?;
                    if reached <= most {
                        break;
                    }
                    (at, most, moved) = (neighbour, reached, true);
                }
                if at != from {
                    break;
                }
            }
        }
        if !moved {
            if strides == [1; 3] {
                return Ok(at);
            }
            strides = strides.map(|stride| (stride / 2).max(1));
        }
    }
}

/// So far up or down from a value, as far as the axis goes; `None` at its end.
fn step(axis: &Axis, from: u32, stride: u32, up: bool) -> Option<u32> {
    let to = match up {
        true => from.saturating_add(stride).min(axis.most),
        false => from.saturating_sub(stride).max(axis.least),
    };
    (to != from).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXES: [Axis; 3] = [
        Axis {
            least: 0,
            most: 3,
            stride: 1,
        },
        Axis {
            least: 1,
            most: 127,
            stride: 16,
        },
        Axis {
            least: 0,
            most: 12,
            stride: 2,
        },
    ];

    /// The point that is taken, and all that is known by then.
    fn search(start: Point, surface: impl Fn(Point) -> Option<f64>) -> (Point, Known) {
        let mut known = Known::new();
        loop {
            match next(&AXES, start, &known) {
                Next::Take(best) => return (best, known),
                Next::Try(point) => {
                    let before = known.insert(point, surface(point));
                    assert_eq!(before, None, "{point:?} is tried once");
                }
            }
        }
    }

    /// One hill on a slope whose coordinates depend on each other.
    fn hill(top: Point) -> impl Fn(Point) -> Option<f64> {
        move |at| {
            let [a, b, c] = [0, 1, 2].map(|of| f64::from(at[of]) - f64::from(top[of]));
            Some(1000.0 - 50.0 * a * a - (b + 2.0 * a).powi(2) - 30.0 * c * c)
        }
    }

    #[test]
    fn the_top_of_a_hill_is_found_from_everywhere() {
        for top in [[0, 1, 0], [1, 70, 3], [3, 127, 12], [2, 33, 7]] {
            for start in [[0, 64, 0], [3, 1, 12], [1, 127, 5]] {
                let (found, known) = search(start, hill(top));
                assert_eq!(found, top, "from {start:?}");
                assert!(known.len() < 80, "{} of 6,604 points", known.len());
            }
        }
    }

    #[test]
    fn nothing_worse_than_the_start_is_taken_whatever_the_surface_is() {
        for seed in 0..200u64 {
            let rough = |at: Point| {
                let mixed = at.iter().fold(seed + 1, |sum, it| {
                    (sum ^ u64::from(*it))
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        .rotate_left(17)
                });
                (!mixed.is_multiple_of(5)).then_some((mixed % 1000) as f64)
            };
            let start = [1, 64, 0];
            let (found, known) = search(start, rough);
            let rate = |at| known[&at].unwrap_or(f64::NEG_INFINITY);
            assert!(rate(found) >= rate(start), "seed {seed}");
            let most = known.keys().map(|at| rate(*at)).fold(f64::MIN, f64::max);
            assert!(rate(found) >= most, "seed {seed}: the best that was seen");
        }
    }

    #[test]
    fn points_without_a_run_are_left_alone() {
        let fits = |at: Point| {
            if at[0] < 2 {
                hill([3, 40, 1])(at)
            } else {
                None
            }
        };
        let (found, known) = search([0, 40, 0], fits);
        assert_eq!(found[0], 1, "the nearest that fits");
        assert_eq!(best([0, 40, 0], &known), found);
        assert_eq!(search([3, 40, 0], |_| None).0, [3, 40, 0]);
        assert_eq!(
            best([1, 2, 3], &Known::from([([1, 2, 3], None)])),
            [1, 2, 3]
        );
    }

    #[test]
    fn of_equals_the_start_is_the_best_and_else_the_first() {
        let rates = [[0, 3, 0], [1, 1, 0], [2, 1, 0]].map(|at| (at, Some(2.0)));
        let mut known = Known::from(rates);
        assert_eq!(best([2, 1, 0], &known), [2, 1, 0]);
        known.insert([2, 1, 0], Some(1.0));
        assert_eq!(best([2, 1, 0], &known), [0, 3, 0]);
    }

    #[test]
    fn bounds_are_steps_of_a_third_to_a_half_below_what_is_there() {
        let of = |most| -> Vec<Option<u32>> { (0..20).map_while(|it| bound(most, it)).collect() };
        let all = [192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1].map(Some);
        assert_eq!(of(256)[0], None);
        assert_eq!(of(256)[1..], all);
        assert_eq!(
            of(11),
            [None, Some(8), Some(6), Some(4), Some(3), Some(2), Some(1)]
        );
        assert_eq!(of(1), [None]);
        assert_eq!(of(0), [None]);
    }
}
