//! Tests that cross crates and processes, in one binary: a test that starts it again names its module
//! (see `odeon_tests::again`), and one that counts or sets what belongs to the process runs alone.

mod actors;
mod bindings;
mod blobs;
mod blocked;
mod cases;
mod cluster;
mod collectives;
mod daemons;
mod detached;
mod devices;
mod flows;
mod frames;
mod groups;
mod hosts;
mod inspect;
mod joins;
mod links;
mod lives;
mod macros;
mod mishaps;
mod odd_machine;
mod on_demand;
mod reserved;
mod semantics;
mod signals;
mod simulation;
mod spans;
mod streams;
mod stubborn;
mod supervision;
mod timers;
mod workers;

use std::time::Duration;

use odeon::Clock;

/// The longest time that the machine may take for what comes about by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tries until it gives something.
async fn found<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let trying = async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    let found = Clock::timeout(PATIENCE, trying).await;
    found.unwrap_or_else(|| panic!("waited in vain for {what}"))
}

/// Looks until something is so.
async fn eventually(what: &str, mut fact: impl AsyncFnMut() -> bool) {
    found(what, async || fact().await.then_some(())).await;
}
