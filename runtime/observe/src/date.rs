//! Moments that can be compared whichever process they come from.

use std::time::Duration;

use odeon::Timestamp;
use serde::{Deserialize, Serialize};

/// A moment: nanoseconds since 1970, by the clock of whoever observes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Date(pub u64);

impl Date {
    /// In milliseconds since 1970.
    #[must_use]
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// From milliseconds since 1970; what lies before that is 1970.
    #[must_use]
    pub fn from_ms(ms: f64) -> Self {
        // Saturates, and takes what is no number for 0.
        Self((ms * 1e6) as u64)
    }

    /// The time since `earlier`; zero when it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment so much earlier.
    #[must_use]
    pub const fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration.as_nanos() as u64))
    }

    /// The moment so much later.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }
}

/// The offset of a process's clock from the observer's dates, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shift(i128);

impl Shift {
    /// Of a clock that shows `at` when it is `date`.
    pub(crate) fn new(at: Timestamp, date: Date) -> Self {
        Self(i128::from(date.0) - i128::from(at.0))
    }

    /// That of a clock which is so many nanoseconds ahead of this one.
    pub(crate) fn of_ahead(self, nanos: i64) -> Self {
        Self(self.0 - i128::from(nanos))
    }

    pub(crate) fn date(self, at: Timestamp) -> Date {
        let nanos = i128::from(at.0) + self.0;
        Date(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

/// A time as people say it: `41 s`, `3 min`.
#[must_use]
pub(crate) fn spoken(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 0.001 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_shows_more_at_the_same_date() {
        let node = Shift::new(Timestamp(100), Date(5_000));
        assert_eq!(node.date(Timestamp(150)), Date(5_050));
        assert_eq!(node.of_ahead(30).date(Timestamp(180)), Date(5_050));
        assert_eq!(node.date(Timestamp(0)), Date(4_900));
    }
}
