//! Bounds on how much is kept, and from when on something is a problem. Each bound with its reason;
//! people see them beside what they bound.

use std::time::Duration;

/// Actors that have failed for good, which stay to be seen. Enough for a bad night.
pub const FAILED_MAX: usize = 2_000;
/// The time for which one that has failed is a problem, when its process is over as well.
pub const FAILED_FOR: Duration = Duration::from_secs(600);
/// Actors that were stopped in order, which stay to be seen.
pub const STOPPED_MAX: usize = 500;
/// The longest time that one that was stopped stays.
pub const STOPPED_FOR: Duration = Duration::from_secs(600);
/// Processes that have ended, which stay to be named.
pub const ENDED_PROCESSES_MAX: usize = 2_000;
/// The longest wait for actors that were there before an observer began anew.
pub const AWAITED_FOR: Duration = Duration::from_secs(10);
/// Things that have happened, about half a kilobyte each: those of some 2,000 jobs.
pub const EVENTS_MAX: usize = 20_000;
/// Spans of jobs, about 200 bytes each.
pub const SPANS_MAX: usize = 200_000;
/// Spans of the system's own actors, of which each job makes some hundred.
pub const SYSTEM_SPANS_MAX: usize = 20_000;
/// Points of a series, a second apart.
pub const FINE_POINTS: usize = 900;
/// Points of a series, ten seconds apart.
pub const COARSE_POINTS: usize = 2_160;
/// Points of a number of a machine, a minute apart, behind its [`FINE_POINTS`].
pub const MINUTE_POINTS: usize = 360;
/// Numbers of machines that are kept, of all nodes, 6 KiB each: 21 of each of 1,500 machines and half as many more.
pub const MACHINE_SERIES_MAX: usize = 48_000;
/// Series of numbers that programs record, by name, labels and actor.
pub const SERIES_MAX: usize = 2_000;
/// Points that are kept of each of those.
pub const SERIES_POINTS_MAX: usize = 4_096;
/// The same of numbers with the label `rank`: some ten of each of 2,000 ranks.
pub const RANK_SERIES_MAX: usize = 20_000;
/// Points that are kept of each of those: the last steps.
pub const RANK_POINTS_MAX: usize = 64;

/// From here on a handler counts as stuck.
pub const STUCK: Duration = Duration::from_secs(10);
/// The time that a circle of waits stands before it counts as one.
pub const CIRCLE_STANDS: Duration = Duration::from_secs(1);
/// From this part of its room on a mailbox counts as nearly full.
pub const MAILBOX_FULL: f64 = 0.8;
/// The time for which it has to be.
pub const MAILBOX_FULL_FOR: Duration = Duration::from_secs(5);
/// So many restarts...
pub const RESTARTS: usize = 3;
/// ... within so much time are a loop.
pub const RESTARTS_WITHIN: Duration = Duration::from_secs(60);
/// The time that a demand waits for room before it is a problem.
pub const PENDING: Duration = Duration::from_secs(5);
/// From this uncertainty on clocks are not good enough to order what nodes did. Between nodes of one
/// network that have little to do it is a tenth.
pub const CLOCK_ERROR: Duration = Duration::from_millis(10);
/// A problem that comes back within this is the same one, and no new event.
pub const EPISODE: Duration = Duration::from_secs(60);
/// A problem of an earlier observer is over when the next one has not found it for so long: some are found only after
/// minutes of looking.
pub const RECALLED: Duration = Duration::from_mins(6);
/// From this part of its memory on a device is nearly full.
pub const DEVICE_FULL: f64 = 0.95;
/// A rank that takes so many times as long as the median of all holds the others up...
pub const STRAGGLES: f64 = 2.0;
/// ... if there are so many of them.
pub const STRAGGLER_RANKS: usize = 3;
/// Steps over which ranks are compared.
pub const STRAGGLER_STEPS: usize = 5;
/// Ranks that have recorded nothing for so long are not compared.
pub const STRAGGLER_LATELY: Duration = Duration::from_secs(60);
/// Ranks that do collectives are judged so often.
pub const FLOWS_EVERY: Duration = Duration::from_secs(2);
/// A pipeline is judged so often...
pub const PIPELINE_EVERY: Duration = Duration::from_secs(10);
/// ... by so many of its last steps at most...
pub const PIPELINE_STEPS: usize = 8;
/// ... and at least.
pub const PIPELINE_STEPS_MIN: usize = 3;
/// A machine that differs for so long from those that do the same is odd...
pub const ODD_MACHINE_FOR: Duration = Duration::from_secs(240);
/// ... if they are so many with it, at least.
pub const ODD_MACHINES_MIN: usize = 3;
/// Machines are compared by one metric after the other, a metric at each tick, from the first on so often.
pub const ODD_MACHINE_EVERY: Duration = Duration::from_secs(5);
/// Launches of machines are looked at for drift so often.
pub const LAUNCH_DRIFT_EVERY: Duration = Duration::from_secs(60);
/// A machine of which a metric was not measured for so long is not compared by it: ranks may take a minute for a step.
pub const ODD_MACHINE_UNMEASURED: Duration = Duration::from_secs(60);
/// A copy that takes so many times as long as the median of the same blob is slow...
pub const COPY_STRAGGLES: f64 = 4.0;
/// ... if it takes so long; less is noise.
pub const COPY_NOISE: Duration = Duration::from_millis(200);
/// Copies that are compared: of the last minute...
pub const COPIES_LATELY: Duration = Duration::from_secs(60);
/// ... and no more than these.
pub const COPIES_MAX: usize = 1_000;
/// A node that nothing has come from for so long is suspect.
pub const SUSPECT: Duration = Duration::from_secs(3);
/// A link whose round trip takes longer than this is slow.
pub const SLOW_LINK: Duration = Duration::from_millis(100);

/// The bounds that people are told, with their units and reasons.
#[must_use]
pub fn told() -> Vec<(&'static str, f64, &'static str, &'static str)> {
    vec![
        (
            "failed actors kept",
            FAILED_MAX as f64,
            "actors",
            "the oldest go first",
        ),
        (
            "stopped actors kept",
            STOPPED_MAX as f64,
            "actors",
            "for ten minutes at most",
        ),
        (
            "events kept",
            EVENTS_MAX as f64,
            "events",
            "the oldest go first",
        ),
        (
            "spans kept",
            SPANS_MAX as f64,
            "spans",
            "the oldest go first",
        ),
        (
            "spans of the system's own actors kept",
            SYSTEM_SPANS_MAX as f64,
            "spans",
            "the oldest go first",
        ),
        ("fine history", FINE_POINTS as f64, "s", "a point a second"),
        (
            "coarse history",
            10.0 * COARSE_POINTS as f64,
            "s",
            "a point in ten seconds",
        ),
        (
            "fine history of machines",
            FINE_POINTS as f64,
            "s",
            "a point a second",
        ),
        (
            "coarse history of machines",
            60.0 * MINUTE_POINTS as f64,
            "s",
            "a point a minute",
        ),
        (
            "numbers of machines kept",
            MACHINE_SERIES_MAX as f64,
            "numbers",
            "further ones are left out",
        ),
    ]
}
