//! The words that some flags take.

use crate::demos::DEMOS;

/// Kinds of events: those that are seen, and `job` and `cluster`, which the cluster writes down.
pub(super) const EVENT_KINDS: [&str; 9] = [
    "failure", "restart", "started", "stopped", "node", "device", "problem", "job", "cluster",
];

/// The name of the measurement of a head, which takes minutes.
pub(crate) const HEAD: &str = "head";

/// The names of what can be measured.
pub(super) fn bench_groups() -> impl Iterator<Item = &'static str> {
    odeon_bench::groups().chain([HEAD])
}

/// The names of all demos.
pub(super) fn demos() -> impl Iterator<Item = &'static str> {
    DEMOS.iter().map(|demo| demo.name)
}
