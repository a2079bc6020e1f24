//! The pace of exchanges: how long one takes, and how many of many that are under way end in a second.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon::{Clock, Timestamp};
use tokio::task::JoinSet;

/// Exchanges that are timed one by one.
pub(crate) const SEQUENTIAL: usize = 4_000;
/// Exchanges of a run in which many are under way.
pub(crate) const PIPELINED: usize = 100_000;
/// Asks under way at once.
pub(crate) const OUTSTANDING: usize = 1_000;

/// The times of single exchanges, in microseconds.
#[derive(Default)]
pub(crate) struct Laps(pub(crate) Vec<f64>);

impl Laps {
    pub(crate) fn add(&mut self, begun: Timestamp) {
        self.0
            .push(Clock::now().since(begun).as_nanos() as f64 / 1e3);
    }
}

/// Exchanges per second, `OUTSTANDING` at a time from one task. It runs without tokio's cooperative
/// budget, which else parks a task that drives many futures and would hide what a link can do.
pub(crate) async fn rate<F: Future<Output = anyhow::Result<()>>>(
    exchange: impl Fn() -> F,
) -> anyhow::Result<f64> {
    tokio::task::unconstrained(async move {
        let begun = Clock::now();
        let mut running: FuturesUnordered<F> = (0..OUTSTANDING).map(|_| exchange()).collect();
        let mut started = OUTSTANDING;
        while let Some(done) = running.next().await {
            done?;
            if started < PIPELINED {
                started += 1;
                running.push(exchange());
            }
        }
        Ok(PIPELINED as f64 / Clock::now().since(begun).as_secs_f64())
    })
    .await
}

/// Exchanges per second of `OUTSTANDING` tasks, each with one exchange under way. `many` makes so
/// many exchanges, one after the other.
pub(crate) async fn rate_of_tasks<F>(many: impl Fn(usize) -> F) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let begun = Clock::now();
    let mut tasks: JoinSet<_> = (0..OUTSTANDING)
        .map(|_| many(PIPELINED / OUTSTANDING))
        .collect();
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(PIPELINED as f64 / Clock::now().since(begun).as_secs_f64())
}
