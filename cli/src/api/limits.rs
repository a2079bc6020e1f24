//! Rate limits: requests of a key, and tries of an address with a wrong one.

use std::num::NonZeroU32;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Counts requests, and says how long a key or address that sends too many has to wait.
#[derive(Debug)]
pub(crate) struct Limiter {
    keys: DefaultKeyedRateLimiter<String>,
    clock: DefaultClock,
}

impl Limiter {
    /// So many requests in a second, and four times as many at once.
    pub(crate) fn new(per_second: NonZeroU32) -> Self {
        let burst = per_second.saturating_mul(NonZeroU32::MIN.saturating_add(3));
        let quota = Quota::per_second(per_second).allow_burst(burst);
        Self {
            keys: RateLimiter::keyed(quota),
            clock: DefaultClock::default(),
        }
    }

    /// Wrong keys from one address.
    pub(crate) fn of_strangers() -> Self {
        Self::new(STRANGERS_PER_SECOND)
    }

    /// Counts a request; when there were too many, in how many seconds another may come.
    pub(super) fn check(&self, key: &str) -> Result<(), u64> {
        if self.keys.len() > KEYS_MAX {
            self.keys.retain_recent();
        }
        let checked = self.keys.check_key(&key.to_owned());
        checked.map_err(|until| until.wait_time_from(self.clock.now()).as_secs() + 1)
    }
}

/// Requests a second that one address may make with a wrong key.
const STRANGERS_PER_SECOND: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Keys or addresses that are remembered before those are forgotten that did not ask of late.
const KEYS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_too_often_is_told_when_to_come_back() {
        let limiter = Limiter::new(NonZeroU32::MIN);
        for _ in 0..4 {
            assert_eq!(limiter.check("a"), Ok(()));
        }
        assert!(
            limiter
                .check("a")
                .is_err_and(|seconds| (1..=2).contains(&seconds))
        );
        assert_eq!(limiter.check("b"), Ok(()));
    }
}
