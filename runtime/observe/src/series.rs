//! Numbers over time, in rings of fixed size: fine for a quarter of an hour, coarse for six hours.

use std::collections::VecDeque;
use std::time::Duration;

use crate::bounds::{COARSE_POINTS, FINE_POINTS, SHORT_POINTS};
use crate::date::Date;

/// One number over time.
#[derive(Clone, Debug, Default)]
pub struct Series {
    fine: Ring,
    coarse: Ring,
}

/// Points of one width, the oldest first.
#[derive(Clone, Debug, Default)]
struct Ring {
    points: VecDeque<Point>,
}

/// The values that were seen within one step of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// When the step began.
    pub at: Date,
    /// The least of what was seen.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    count: u32,
}

impl Point {
    const fn new(at: Date, value: f64) -> Self {
        Self {
            at,
            min: value,
            max: value,
            mean: value,
            count: 1,
        }
    }

    /// Both together, at the earlier time.
    fn join(&mut self, other: &Self) {
        let count = self.count + other.count;
        self.mean += (other.mean - self.mean) * f64::from(other.count) / f64::from(count);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.count = count;
    }
}

const FINE: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_secs(5);
const COARSE: Duration = Duration::from_secs(10);

impl Ring {
    fn add(&mut self, at: Date, value: f64, step: Duration, most: usize) {
        let step = step.as_nanos() as u64;
        let at = Date(at.0 / step * step);
        match self.points.back_mut() {
            // A clock that was set back adds to the last step.
            Some(last) if last.at >= at => last.join(&Point::new(last.at, value)),
            _ => self.points.push_back(Point::new(at, value)),
        }
        if self.points.len() > most {
            self.points.pop_front();
        }
    }
}

/// One number over the last ten minutes, in little room: there is one for each of many devices.
#[derive(Clone, Debug, Default)]
pub struct Short(Ring);

impl Short {
    /// Adds what was seen at a moment.
    pub fn add(&mut self, at: Date, value: f64) {
        if value.is_finite() {
            self.0.add(at, value, SHORT, SHORT_POINTS);
        }
    }

    /// The points, oldest first.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.0.points.iter()
    }
}

impl Series {
    /// Adds what was seen at a moment.
    pub fn add(&mut self, at: Date, value: f64) {
        if value.is_finite() {
            self.fine.add(at, value, FINE, FINE_POINTS);
            self.coarse.add(at, value, COARSE, COARSE_POINTS);
        }
    }

    /// The last.
    #[must_use]
    pub fn last(&self) -> Option<f64> {
        self.fine.points.back().map(|point| point.mean)
    }

    /// The fine points, oldest first.
    pub fn fine(&self) -> impl Iterator<Item = &Point> {
        self.fine.points.iter()
    }

    /// The points from one moment to another, at most `most`: fine ones where they reach back far
    /// enough, or as far as coarse ones, else those.
    #[must_use]
    pub fn between(&self, from: Date, to: Date, most: usize) -> Vec<Point> {
        let first = |ring: &Ring| ring.points.front().map(|first| first.at);
        let (fine, coarse) = (first(&self.fine), first(&self.coarse));
        let reaches = fine.is_some_and(|fine| fine <= from);
        // Both begin with the same value, a coarse step earlier at most.
        let as_far = fine
            .zip(coarse)
            .is_none_or(|(fine, coarse)| fine.since(coarse) < COARSE);
        let ring = if reaches || as_far {
            &self.fine
        } else {
            &self.coarse
        };
        let within = ring.points.iter().filter(|it| it.at >= from && it.at <= to);
        let within: Vec<_> = within.copied().collect();
        let group = within.len().div_ceil(most.max(1)).max(1);
        let join = |points: &[Point]| {
            let mut first = points[0];
            points[1..].iter().for_each(|point| first.join(point));
            first
        };
        within.chunks(group).map(join).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: f64) -> Date {
        Date::from_ms(1e12 + seconds * 1e3)
    }

    #[test]
    fn a_step_keeps_least_most_and_mean() {
        let mut series = Series::default();
        for (s, value) in [(0.0, 1.0), (0.5, 5.0), (1.2, 9.0)] {
            series.add(at(s), value);
        }
        let points: Vec<_> = series.fine().map(|it| (it.min, it.max, it.mean)).collect();
        assert_eq!(points, [(1.0, 5.0, 3.0), (9.0, 9.0, 9.0)]);
        let joined = series.between(at(0.0), at(9.0), 1);
        assert_eq!((joined.len(), joined[0].mean, joined[0].max), (1, 5.0, 9.0));
    }

    #[test]
    fn what_is_long_ago_is_coarse() {
        let mut series = Series::default();
        (0..3_000).for_each(|s| series.add(at(f64::from(s)), f64::from(s)));
        assert_eq!(series.fine().count(), FINE_POINTS);
        let all = series.between(at(0.0), at(3_000.0), 10_000);
        assert_eq!(all.len(), 300);
        assert_eq!(all[0].mean, 4.5);
        assert!(series.between(at(2_500.0), at(3_000.0), 10_000).len() > 400);
    }

    #[test]
    fn of_what_began_a_moment_ago_all_is_fine() {
        let mut series = Series::default();
        (7..60).for_each(|s| series.add(at(f64::from(s)), 1.0));
        assert_eq!(series.between(at(-240.0), at(60.0), 10_000).len(), 53);
    }

    proptest! {
        #[test]
        fn no_more_points_than_asked_for(
            values in proptest::collection::vec(-1e6f64..1e6, 1..200), most in 1usize..50,
        ) {
            let mut series = Series::default();
            for (second, value) in values.iter().enumerate() {
                series.add(at(second as f64), *value);
            }
            let points = series.between(at(-1.0), at(1e6), most);
            prop_assert!(points.len() <= most);
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let told = points.iter().map(|it| it.mean * f64::from(it.count)).sum::<f64>() / values.len() as f64;
            prop_assert!((mean - told).abs() < 1e-3);
        }
    }
}
