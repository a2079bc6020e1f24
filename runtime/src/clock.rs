//! The only source of time. Simulation replaces it, so nothing else may read a clock.

pub(crate) mod offset;

use std::sync::OnceLock;
use std::time::Duration;

/// A moment, in nanoseconds since this process first looked at the clock. Not comparable between
/// processes: deadlines travel as the time that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The moment `duration` later.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }

    /// How long until this moment; zero when it has passed.
    #[must_use]
    pub const fn left(self, now: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now.0))
    }

    /// How long since `earlier`; zero when it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The clock of the runtime the caller is in: real time, or virtual time inside a simulation.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Clock;

impl Clock {
    /// Now.
    #[must_use]
    pub fn now() -> Timestamp {
        static EPOCH: OnceLock<std::time::Instant> = OnceLock::new();
        // tokio's clock equals the system's, except inside a simulation, which pauses it.
        let now = tokio::time::Instant::now().into_std();
        let epoch = EPOCH.get_or_init(|| now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
        Timestamp(now.saturating_duration_since(*epoch).as_nanos() as u64)
    }

    /// Waits. In a simulation virtual time jumps ahead when nothing else can run.
    pub async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Runs `future` until `duration` has passed; `None` when it did not finish.
    pub async fn timeout<F: Future>(duration: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(duration, future).await.ok()
    }

    /// Seconds since 1970, for file names and logs that people read.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the date"
    )]
    pub fn unix_time() -> Duration {
        std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
    }
}
