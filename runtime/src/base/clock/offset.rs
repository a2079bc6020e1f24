//! The offset between two clocks, from the times at which messages left and came.
//!
//! Of one exchange four times are known: when our message left, when it came by their clock, when
//! theirs left, and when that came by ours. The middle of ours and of theirs lie as far apart as the
//! clocks do, give or take half of the time that the two were on their way (D. Mills, RFC 5905). So
//! an exchange that took little time says more than many that took long. Pure.

use std::collections::VecDeque;
use std::time::Duration;

/// Exchanges that are remembered.
const WINDOW: usize = 16;

/// By how much one clock may gain on the other, in parts of a million: twice what is usual.
const DRIFT_PPM: u64 = 200;

/// The times of one exchange, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// Ours left, by our clock.
    pub(crate) sent: u64,
    /// It came, by theirs.
    pub(crate) heard_there: u64,
    /// Theirs left, by theirs.
    pub(crate) sent_there: u64,
    /// It came, by ours.
    pub(crate) heard: u64,
}

/// An estimate of another clock's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Estimate {
    /// The time that the two messages of the best exchange were on their way.
    pub(crate) round_trip: Duration,
    /// Their clock less ours, in nanoseconds.
    pub(crate) offset: i64,
    /// The true offset lies no further from that.
    pub(crate) error: Duration,
}

/// The last exchanges with another clock.
#[derive(Debug, Default)]
pub(crate) struct Offsets(VecDeque<Sample>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// When it began, by our clock.
    began: u64,
    round_trip: u64,
    offset: i64,
}

impl Sample {
    /// The largest distance of the true offset from this one at a later moment, in nanoseconds.
    const fn error(&self, now: u64) -> u64 {
        // Rounded up.
        let drift = now.saturating_sub(self.began) / (1_000_000 / DRIFT_PPM) + 1;
        (self.round_trip / 2 + 1).saturating_add(drift)
    }
}

impl Offsets {
    /// Another exchange. One that cannot have been is left out; what contradicts it is forgotten,
    /// since a clock has been set meanwhile.
    pub(crate) fn note(&mut self, exchange: Exchange) {
        let Exchange {
            sent,
            heard_there,
            sent_there,
            heard,
        } = exchange;
        let round_trip = heard.checked_sub(sent).and_then(|all| {
            let there = sent_there.checked_sub(heard_there)?;
            // A clock that runs a little faster than ours seems to have held it longer.
            let gained = there / (1_000_000 / DRIFT_PPM);
            (there - gained <= all).then(|| all.saturating_sub(there))
        });
        let Some(round_trip) = round_trip else {
            return;
        };
        let there = i128::from(heard_there) + i128::from(sent_there);
        let here = i128::from(sent) + i128::from(heard);
        let Ok(offset) = i64::try_from((there - here) / 2) else {
            return;
        };
        let new = Sample {
            began: sent,
            round_trip,
            offset,
        };
        self.0.retain(|old| {
            let apart = old.offset.abs_diff(new.offset);
            apart <= old.error(heard).saturating_add(new.error(heard))
        });
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(new);
    }

    /// The best that is known now.
    pub(crate) fn estimate(&self, now: u64) -> Option<Estimate> {
        let best = self.0.iter().min_by_key(|sample| sample.error(now))?;
        Some(Estimate {
            round_trip: Duration::from_nanos(best.round_trip),
            offset: best.offset,
            error: Duration::from_nanos(best.error(now)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, prop, prop_assert, proptest};

    use super::*;

    /// Two clocks that run at their own speeds, seen from outside.
    #[derive(Clone, Copy, Debug)]
    struct Clocks {
        /// Theirs shows this when ours shows 0.
        ahead: i64,
        /// The gain of theirs over ours, in parts per million.
        drift_ppm: i64,
    }

    const EPOCH: u64 = 1 << 50;

    impl Clocks {
        fn there(self, here: u64) -> u64 {
            let gained = i128::from(here) * i128::from(self.drift_ppm) / 1_000_000;
            u64::try_from(i128::from(EPOCH + here) + i128::from(self.ahead) + gained).unwrap()
        }

        fn offset(self, here: u64) -> i64 {
            i64::try_from(i128::from(self.there(here)) - i128::from(here)).unwrap()
        }

        /// An exchange that begins now, with so long on the way there, held, and on the way back.
        fn exchange(self, now: u64, (there, held, back): (u64, u64, u64)) -> Exchange {
            Exchange {
                sent: now,
                heard_there: self.there(now + there),
                sent_there: self.there(now + there + held),
                heard: now + there + held + back,
            }
        }
    }

    fn clocks() -> impl Strategy<Value = Clocks> {
        let half = DRIFT_PPM as i64 / 2;
        ((-(1i64 << 40)..1 << 40), -half..=half)
            .prop_map(|(ahead, drift_ppm)| Clocks { ahead, drift_ppm })
    }

    /// Delays of a few microseconds to a second, not the same in both directions.
    fn delays() -> impl Strategy<Value = (u64, u64, u64)> {
        let delay = || prop::sample::select(vec![3_000u64, 80_000, 2_000_000, 1_000_000_000]);
        let spread = 0u64..4;
        (
            delay(),
            spread.clone(),
            delay(),
            spread,
            0u64..3_000_000_000,
        )
            .prop_map(|(there, some, back, more, held)| {
                (there + there * some / 3, held, back + back * more / 3)
            })
    }

    fn gap(estimate: Estimate, truth: i64) -> Duration {
        Duration::from_nanos(estimate.offset.abs_diff(truth))
    }

    proptest! {
        #[test]
        fn the_truth_lies_within_the_error(
            clocks in clocks(),
            exchanges in prop::collection::vec((delays(), 0u64..5_000_000_000), 1..60),
            later in 0u64..60_000_000_000,
        ) {
            let (mut offsets, mut now) = (Offsets::default(), 0);
            for (delays, pause) in exchanges {
                now += pause;
                let exchange = clocks.exchange(now, delays);
                now = exchange.heard;
                offsets.note(exchange);
                for at in [now, now + later] {
                    let estimate = offsets.estimate(at).unwrap();
                    let gap = gap(estimate, clocks.offset(at));
                    prop_assert!(gap <= estimate.error, "{gap:?} off, said {estimate:?}");
                }
            }
        }

        /// A quick exchange is worth more than slow ones that follow.
        #[test]
        fn the_best_of_the_window_counts(clocks in clocks(), slow in 1usize..WINDOW) {
            let mut offsets = Offsets::default();
            offsets.note(clocks.exchange(0, (3_000, 0, 3_000)));
            for n in 0..slow as u64 {
                let delays = (90_000_000, 0, 2_000_000);
                offsets.note(clocks.exchange(n * 100_000_000, delays));
            }
            let now = slow as u64 * 100_000_000;
            let estimate = offsets.estimate(now).unwrap();
            prop_assert!(estimate.error < Duration::from_millis(1), "{estimate:?}");
        }

        /// The first exchange after a clock was set says so, whatever came before. It was set by more
        /// than two exchanges of four seconds on the way can hide, two for each.
        #[test]
        fn a_clock_that_is_set_is_noticed_at_once(
            before in clocks(),
            jump in 4_500_000_000i64..1 << 40,
            back in prop::bool::ANY,
            exchanges in prop::collection::vec(delays(), 1..20),
            after in delays(),
        ) {
            let (mut offsets, mut now) = (Offsets::default(), 0);
            for delays in exchanges {
                let exchange = before.exchange(now, delays);
                now = exchange.heard;
                offsets.note(exchange);
            }
            let jump = if back { -jump } else { jump };
            let set = Clocks { ahead: before.ahead + jump, ..before };
            let exchange = set.exchange(now, after);
            offsets.note(exchange);
            let estimate = offsets.estimate(exchange.heard).unwrap();
            let gap = gap(estimate, set.offset(exchange.heard));
            prop_assert!(gap <= estimate.error, "{gap:?} off, said {estimate:?}");
        }
    }

    #[test]
    fn what_cannot_have_been_is_left_out() {
        let mut offsets = Offsets::default();
        for exchange in [
            // Back before it left; held for longer than it took; held for less than no time.
            (10, 5, 5, 9),
            (10, 5, 5_000_000, 1_000),
            (10, 6, 5, 20),
            (0, u64::MAX, u64::MAX, 0),
        ] {
            let (sent, heard_there, sent_there, heard) = exchange;
            offsets.note(Exchange {
                sent,
                heard_there,
                sent_there,
                heard,
            });
            assert_eq!(offsets.estimate(heard), None, "{exchange:?}");
        }
    }
}
