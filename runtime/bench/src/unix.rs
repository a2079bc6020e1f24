//! Remote asks over a unix socket to a worker process, against a framed echo over the same kind of
//! socket to another process.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon::{Clock, Ref, Timestamp};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use crate::floor::{Direct, Mux, echo_process};
use crate::row::{Row, Target, median};
use crate::subject::{self, Echo, Note, Subject};

const SEQUENTIAL: usize = 4_000;
const PIPELINED: usize = 100_000;
/// Asks under way at once.
pub(crate) const OUTSTANDING: usize = 1_000;

/// The times of single exchanges, in microseconds.
#[derive(Default)]
struct Laps(Vec<f64>);

impl Laps {
    fn add(&mut self, begun: Timestamp) {
        self.0
            .push(Clock::now().since(begun).as_nanos() as f64 / 1e3);
    }
}

/// The median time of an exchange, written and read by one task.
pub(crate) async fn direct_round_trip<R, W>(
    mut direct: Direct<R, W>,
) -> anyhow::Result<(f64, Direct<R, W>)>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        let mut laps = Laps::default();
        for _ in 0..SEQUENTIAL {
            let begun = Clock::now();
            direct.exchange(&[7; 64]).await?;
            laps.add(begun);
        }
        Ok((median(&laps.0), direct))
    })
    .await?
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
async fn rate_of_tasks<F>(many: impl Fn(usize) -> F) -> anyhow::Result<f64>
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

/// The median time of an ask.
pub(crate) async fn ask_round_trip(actor: Ref<Subject>) -> anyhow::Result<f64> {
    let mut laps = Laps::default();
    for _ in 0..SEQUENTIAL {
        let begun = Clock::now();
        actor.ask(Echo([7; 8])).await?;
        laps.add(begun);
    }
    Ok(median(&laps.0))
}

pub(crate) async fn ask_rate(actor: Ref<Subject>) -> anyhow::Result<f64> {
    rate(move || async move {
        actor.ask(Echo([7; 8])).await?;
        Ok(())
    })
    .await
}

pub(crate) async fn ask_rate_of_tasks(actor: Ref<Subject>) -> anyhow::Result<f64> {
    rate_of_tasks(|count| async move {
        for _ in 0..count {
            actor.ask(Echo([7; 8])).await?;
        }
        Ok(())
    })
    .await
}

pub(crate) async fn tell_rate(actor: Ref<Subject>) -> anyhow::Result<f64> {
    let begun = Clock::now();
    for _ in 1..PIPELINED {
        actor
            .tell(Note([7; 8]))
            .await
            .map_err(|error| error.error)?;
    }
    actor.ask(Echo([7; 8])).await?;
    Ok(PIPELINED as f64 / Clock::now().since(begun).as_secs_f64())
}

pub(crate) async fn mux_rate(mux: Mux) -> anyhow::Result<f64> {
    let payload = Bytes::from_static(&[7; 64]);
    tokio::spawn(rate(move || {
        let (mux, payload) = (mux.clone(), payload.clone());
        async move { mux.exchange(payload).await.map(drop) }
    }))
    .await?
}

pub(crate) async fn mux_rate_of_tasks(mux: &Mux) -> anyhow::Result<f64> {
    let payload = Bytes::from_static(&[7; 64]);
    rate_of_tasks(|count| {
        let (mux, payload) = (mux.clone(), payload.clone());
        async move {
            for _ in 0..count {
                mux.exchange(payload.clone()).await?;
            }
            Ok(())
        }
    })
    .await
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let system = subject::system().await?;
    let actor = system.spawn::<Subject>(()).isolated().await?;
    let (_direct, stream) = echo_process()?;
    let (reader, writer) = stream.into_split();
    let mut direct = Direct::new(reader, writer);
    let (_mux, stream) = echo_process()?;
    let (reader, writer) = stream.into_split();
    let mux = Mux::new(reader, writer);
    let mut times: [Vec<f64>; 7] = Default::default();
    for _ in 0..rounds {
        let (time, back) = direct_round_trip(direct).await?;
        direct = back;
        times[0].push(time);
        times[1].push(tokio::spawn(ask_round_trip(actor)).await??);
        times[2].push(mux_rate(mux.clone()).await?);
        times[3].push(tokio::spawn(ask_rate(actor)).await??);
        times[4].push(mux_rate_of_tasks(&mux).await?);
        times[5].push(ask_rate_of_tasks(actor).await?);
        times[6].push(tokio::spawn(tell_rate(actor)).await??);
    }
    system.shutdown().await;
    let [direct, ask, mux, asks, mux_of_tasks, asks_of_tasks, tells] = &times;
    Ok(vec![
        Row::against(
            "unix ask p50",
            "us",
            ask,
            ("framed echo, one at a time", direct),
            Target::RatioAtMost(1.3),
        ),
        Row::against(
            "unix asks, 1000 outstanding",
            "/s",
            asks,
            ("framed echo through a mux client", mux),
            Target::RatioAtLeast(0.6),
        ),
        Row::against(
            "unix asks, 1000 tasks",
            "/s",
            asks_of_tasks,
            ("framed echo through a mux client", mux_of_tasks),
            Target::RatioAtLeast(0.6),
        ),
        Row::single("unix tells", "/s", tells, None),
    ])
}
