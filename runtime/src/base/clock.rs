//! The only source of time. Simulation replaces it, so nothing else may read a clock.

pub(crate) mod offset;

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment, in nanoseconds by the clock of this process, which shows [`Timestamp::BEGIN`] when it is
/// first looked at. Not comparable between processes: deadlines travel as the time that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// When a process first looked at its clock: when it began. A little time lies before it, for
    /// what is counted back.
    pub const BEGIN: Self = Self(1_000_000_000);

    /// The moment `duration` later.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }

    /// The time left from `now` until this moment; zero when it has passed.
    #[must_use]
    pub const fn left(self, now: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now.0))
    }

    /// The time that has passed since `earlier`; zero when it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// When the clock of this process begins.
static EPOCH: OnceLock<std::time::Instant> = OnceLock::new();

thread_local! {
    /// When the clock of the simulation begins that this thread runs.
    static VIRTUAL_EPOCH: Cell<Option<std::time::Instant>> = const { Cell::new(None) };
}

/// The epoch of a clock that shows [`Timestamp::BEGIN`] now.
fn begun(now: std::time::Instant) -> std::time::Instant {
    let before = Duration::from_nanos(Timestamp::BEGIN.0);
    now.checked_sub(before).unwrap_or(now)
}

/// While it lives, this thread has the time of a simulation.
#[derive(Debug)]
pub(crate) struct VirtualTime(Option<std::time::Instant>);

impl Drop for VirtualTime {
    fn drop(&mut self) {
        VIRTUAL_EPOCH.set(self.0);
    }
}

/// A moment by the clock of a process, and by that of its machine in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockMark {
    now: Timestamp,
    machine: u64,
}

fn machine_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// The clock of the runtime the caller is in: real time, or virtual time inside a simulation.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Clock;

impl Clock {
    /// Now.
    #[inline]
    #[must_use]
    pub fn now() -> Timestamp {
        // tokio's clock equals the system's, except inside a simulation, which pauses it.
        let now = tokio::time::Instant::now().into_std();
        let epoch = match VIRTUAL_EPOCH.get() {
            Some(epoch) => epoch,
            None => *EPOCH.get_or_init(|| begun(now)),
        };
        Timestamp(now.saturating_duration_since(epoch).as_nanos() as u64)
    }

    /// Returns true if this thread has the time of a simulation.
    pub(crate) fn is_virtual() -> bool {
        VIRTUAL_EPOCH.get().is_some()
    }

    /// Begins the time of a simulation on this thread, which shows [`Timestamp::BEGIN`] now.
    pub(crate) fn begin_virtual() -> VirtualTime {
        let now = tokio::time::Instant::now().into_std();
        VirtualTime(VIRTUAL_EPOCH.replace(Some(begun(now))))
    }

    /// A moment, and when it was by the machine's clock.
    pub(crate) fn mark() -> ClockMark {
        ClockMark {
            now: Self::now(),
            machine: machine_time(),
        }
    }

    /// Goes on with the times of the program before this one in this process, unless somebody has
    /// looked at the clock already.
    pub(crate) fn go_on(mark: ClockMark) {
        let passed = Duration::from_nanos(machine_time().saturating_sub(mark.machine));
        let now = tokio::time::Instant::now().into_std();
        if let Some(epoch) = now.checked_sub(Duration::from_nanos(mark.now.0) + passed) {
            EPOCH.get_or_init(|| epoch);
        }
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
