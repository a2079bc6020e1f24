//! Numbers over time, in rings of fixed size: fine for a quarter of an hour, coarse for six hours.

use std::collections::VecDeque;
use std::time::Duration;

use crate::bounds::{COARSE_POINTS, FINE_POINTS, MINUTE_POINTS};
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
const MINUTE: Duration = Duration::from_secs(60);
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

/// One number of a machine over time, in 6 KiB, since there are many: means of seconds for a quarter of an hour, and of
/// minutes for six hours.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    seconds: Means,
    minutes: Means,
}

/// Means over steps one behind the other, of which those in which nothing was seen are `NaN`.
#[derive(Clone, Debug, Default)]
struct Means {
    values: VecDeque<f32>,
    /// The number of the step behind the last, counted since 1970.
    end: u64,
    /// Values in the last.
    count: u32,
}

impl Means {
    fn add(&mut self, step: u64, value: f32, most: usize) {
        if self.values.is_empty() {
            self.end = step;
        }
        match (step.checked_sub(self.end), self.values.back_mut()) {
            // A clock that was set back adds to the last step.
            (None, Some(last)) => {
                self.count += 1;
                *last += (value - *last) / self.count as f32;
            }
            (passed, _) => {
                let passed = passed.unwrap_or_default();
                if passed >= most as u64 {
                    self.values.clear();
                } else {
                    (0..passed).for_each(|_| self.values.push_back(f32::NAN));
                }
                self.values.push_back(value);
                (self.end, self.count) = (step + 1, 1);
            }
        }
        let over = self.values.len().saturating_sub(most);
        self.values.drain(..over);
    }

    /// The number of the first step.
    fn begin(&self) -> u64 {
        self.end - self.values.len() as u64
    }

    fn points(&self, step: Duration) -> impl Iterator<Item = Point> {
        let nanos = step.as_nanos() as u64;
        let points = (self.begin()..).zip(&self.values);
        let seen = points.filter(|(_, value)| !value.is_nan());
        seen.map(move |(at, value)| Point::new(Date(at * nanos), f64::from(*value)))
    }
}

impl Sampled {
    /// Adds what was seen at a moment.
    pub fn add(&mut self, at: Date, value: f64) {
        if value.is_finite() {
            let number = |step: Duration| at.0 / step.as_nanos() as u64;
            let value = value as f32;
            self.seconds.add(number(FINE), value, FINE_POINTS);
            self.minutes.add(number(MINUTE), value, MINUTE_POINTS);
        }
    }

    /// The last that was seen, and in which second.
    #[must_use]
    pub fn last(&self) -> Option<(Date, f64)> {
        let last = self.seconds.values.back()?;
        Some((second(self.seconds.end - 1), f64::from(*last)))
    }

    /// Number by number what was seen in each of some seconds from a date on; `NaN` where nothing was.
    pub fn seconds(&self, from: Date, count: usize) -> impl Iterator<Item = f32> {
        let (first, begin) = (from.0 / FINE.as_nanos() as u64, self.seconds.begin());
        let value = move |at: u64| {
            let place = at.checked_sub(begin)?;
            self.seconds
                .values
                .get(usize::try_from(place).ok()?)
                .copied()
        };
        (first..first + count as u64).map(move |at| value(at).unwrap_or(f32::NAN))
    }

    /// The values from one moment to another in at most so many points: of seconds where they reach back far enough
    /// or as far as minutes do, else of minutes.
    #[must_use]
    pub fn between(&self, from: Date, to: Date, most: usize) -> Vec<Point> {
        let begun = |means: &Means, step: Duration| means.points(step).next().map(|it| it.at);
        let (fine, thin) = (begun(&self.seconds, FINE), begun(&self.minutes, MINUTE));
        let reaches = fine.is_none_or(|fine| fine <= from);
        let as_far = fine
            .zip(thin)
            .is_none_or(|(fine, thin)| fine.since(thin) < MINUTE);
        let points: Vec<Point> = match reaches || as_far {
            true => self.seconds.points(FINE).collect(),
            false => self.minutes.points(MINUTE).collect(),
        };
        let within = points.into_iter().filter(|it| it.at >= from && it.at <= to);
        joined(&within.collect::<Vec<_>>(), most)
    }
}

/// The date on which a second since 1970 begins.
const fn second(number: u64) -> Date {
    Date(number * FINE.as_nanos() as u64)
}

/// As many of them together as leave no more than `most`.
fn joined(points: &[Point], most: usize) -> Vec<Point> {
    let group = points.len().div_ceil(most.max(1)).max(1);
    let join = |points: &[Point]| {
        let mut first = points[0];
        points[1..].iter().for_each(|point| first.join(point));
        first
    };
    points.chunks(group).map(join).collect()
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
        joined(&within.copied().collect::<Vec<_>>(), most)
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

    /// SEMANTICS 181.
    #[test]
    fn a_number_of_a_machine_is_kept_by_the_second_for_a_quarter_of_an_hour_and_then_by_the_minute()
    {
        let mut number = Sampled::default();
        let begin = 1_000_000 * 60;
        for s in 0..6_000_u32 {
            // Nobody looked for five seconds.
            if !(5_000..5_005).contains(&s) {
                let at = Date(u64::from(begin + s) * 1_000_000_000);
                number.add(at, f64::from(s));
                number.add(at, f64::from(s) + 1.0);
            }
        }
        let second = |s: u32| Date(u64::from(begin + s) * 1_000_000_000);
        assert_eq!(number.last(), Some((second(5_999), 5_999.5)));
        let fine = number.between(second(5_100), second(6_000), 10_000);
        assert_eq!(
            (fine.len(), fine[0].at, fine[0].mean),
            (900, second(5_100), 5_100.5)
        );
        let all = number.between(second(0), second(6_000), 10_000);
        assert_eq!((all.len(), all[1].at, all[1].mean), (100, second(60), 90.0));
        assert_eq!(number.between(second(0), second(6_000), 10).len(), 10);
        let around: Vec<f32> = number.seconds(second(5_998), 4).collect();
        assert_eq!(around[..2], [5_998.5, 5_999.5]);
        assert!(around[2].is_nan() && around[3].is_nan());
        assert!(number.seconds(second(0), 2).all(f32::is_nan));
    }

    #[test]
    fn a_number_that_was_not_seen_for_long_begins_anew_and_holds_no_more_than_its_room() {
        let mut number = Sampled::default();
        number.add(at(0.0), 1.0);
        number.add(at(5.0), 7.0);
        assert_eq!(number.between(at(0.0), at(9.0), 9).len(), 2);
        number.add(at(1e6), 2.0);
        assert_eq!(number.between(at(0.0), at(1e7), 9).len(), 1);
        // A clock that was set back.
        number.add(at(10.0), 4.0);
        assert_eq!(number.last().map(|it| it.1), Some(3.0));
        (0..3_000).for_each(|s| number.add(at(2e6 + f64::from(s)), 1.0));
        let held = number.seconds.values.capacity() + number.minutes.values.capacity();
        assert!(held * 4 + size_of::<Sampled>() <= 6 * 1_024 + 512, "{held}");
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
