//! Spawning: light actors against bare kameo, worker processes, and what an idle one costs.

use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use kameo::actor::Spawn;
use odeon::{Clock, Restart, System};

use crate::local::Bare;
use crate::row::{Row, Target};
use crate::subject::{self, Add, Subject};

const LIGHT: usize = 5_000;
/// Actors that are spawned elsewhere, and how many at the same time.
const REMOTE: usize = 10_000;
const UNDER_WAY: usize = 256;

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Microseconds for each actor that is spawned and has started, one after the other.
async fn bare_spawns() -> anyhow::Result<f64> {
    let (time, refs) = tokio::spawn(async move {
        let mut refs = Vec::with_capacity(LIGHT);
        let begun = Clock::now();
        for _ in 0..LIGHT {
            let actor = Bare::spawn(Bare(0));
            actor.wait_for_startup().await;
            refs.push(actor);
        }
        (Clock::now().since(begun), refs)
    })
    .await?;
    drop(refs);
    // The actors end with their references; let them, before something else is timed.
    Clock::sleep(Duration::from_millis(50)).await;
    Ok(time.as_secs_f64() * 1e6 / LIGHT as f64)
}

async fn spawns() -> anyhow::Result<f64> {
    let system = subject::system().await?;
    let inner = system.clone();
    let time = tokio::spawn(async move {
        let begun = Clock::now();
        for _ in 0..LIGHT {
            inner.spawn::<Subject>(()).await?;
        }
        anyhow::Ok(Clock::now().since(begun))
    })
    .await??;
    system.shutdown().await;
    Clock::sleep(Duration::from_millis(50)).await;
    Ok(time.as_secs_f64() * 1e6 / LIGHT as f64)
}

/// From nothing to the first answer.
async fn cold_start() -> anyhow::Result<f64> {
    let begun = Clock::now();
    let system = System::local().await?;
    system.spawn::<Subject>(()).start()?.ask(Add(1)).await?;
    let time = ms(Clock::now().since(begun));
    system.shutdown().await;
    Ok(time)
}

/// Until one isolated actor is ready, and the resident size of its idle process in MiB.
async fn isolated() -> anyhow::Result<(f64, f64)> {
    let system = subject::system().await?;
    let begun = Clock::now();
    system.spawn::<Subject>(()).isolated().await?;
    let ready = ms(Clock::now().since(begun));
    Clock::sleep(Duration::from_millis(200)).await;
    let (_, pid) = *system.admin().workers().first().context("no worker runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let resident = status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .split_whitespace()
                .next()?
                .parse::<f64>()
                .ok()
        })
        .context("the kernel does not tell the resident size")?;
    system.shutdown().await;
    Ok((ready, resident / 1024.0))
}

async fn isolated_at_once(count: usize) -> anyhow::Result<f64> {
    let system = subject::system().await?;
    let begun = Clock::now();
    let spawns = (0..count).map(|_| system.spawn::<Subject>(()).isolated().into_future());
    futures::future::try_join_all(spawns).await?;
    let time = Clock::now().since(begun).as_secs_f64();
    system.shutdown().await;
    Ok(time)
}

/// From the kill of a worker to the answer of the ask that follows.
async fn killed() -> anyhow::Result<f64> {
    let system = subject::system().await?;
    let actor = system
        .spawn::<Subject>(())
        .isolated()
        .restart(Restart::Permanent)
        .await?;
    actor.ask(Add(1)).await?;
    let process = system
        .admin()
        .process_of(actor)
        .context("the actor has no place")?;
    let begun = Clock::now();
    anyhow::ensure!(
        system.admin().kill_worker(process),
        "the worker was gone before it was killed"
    );
    // An ask that reached the dying process ends with `Died`; the next one waits for the restart.
    while actor.ask(Add(1)).await.is_err() {}
    let time = ms(Clock::now().since(begun));
    system.shutdown().await;
    Ok(time)
}

/// Light actors that share one worker process elsewhere, in a second, from the first spawn until all
/// have started.
pub(crate) async fn remote(
    system: &System,
    place: impl Fn(odeon::Spawn<Subject>) -> odeon::Spawn<Subject>,
) -> anyhow::Result<f64> {
    // The process has to be there.
    place(system.spawn::<Subject>(())).await?;
    let begun = Clock::now();
    let spawns = (0..REMOTE).map(|_| place(system.spawn::<Subject>(())).into_future());
    let spawned: Vec<_> = futures::stream::iter(spawns)
        .buffer_unordered(UNDER_WAY)
        .try_collect()
        .await?;
    let time = Clock::now().since(begun);
    anyhow::ensure!(spawned.len() == REMOTE, "some are missing");
    Ok(REMOTE as f64 / time.as_secs_f64())
}

async fn in_a_worker() -> anyhow::Result<f64> {
    let system = subject::system().await?;
    let rate = remote(&system, |spawn| spawn.in_worker("shared")).await?;
    system.shutdown().await;
    Ok(rate)
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let mut times: [Vec<f64>; 9] = Default::default();
    for round in 0..rounds {
        // Neither is always behind the other.
        if round % 2 == 0 {
            times[0].push(bare_spawns().await?);
            times[1].push(spawns().await?);
        } else {
            times[1].push(spawns().await?);
            times[0].push(bare_spawns().await?);
        }
        times[2].push(cold_start().await?);
        let (ready, resident) = isolated().await?;
        times[3].push(ready);
        times[4].push(resident);
        times[5].push(killed().await?);
        if round < 3 {
            times[6].push(isolated_at_once(50).await?);
            times[8].push(isolated_at_once(100).await?);
        }
        times[7].push(in_a_worker().await?);
    }
    let [
        bare,
        ours,
        cold,
        ready,
        resident,
        killed,
        fifty,
        in_a_worker,
        hundred,
    ] = &times;
    Ok(vec![
        Row::against(
            "spawn a light actor",
            "us",
            ours,
            ("kameo spawn + wait_for_startup", bare),
            Target::RatioAtMost(1.3),
        ),
        Row::single(
            "spawn light actors in another process",
            "/s",
            in_a_worker,
            Target::AtLeast(10_000.0),
        ),
        Row::single("system to first answer", "ms", cold, Target::AtMost(50.0)),
        Row::single("isolated actor ready", "ms", ready, Target::AtMost(30.0)),
        Row::single("50 isolated actors ready", "s", fifty, Target::AtMost(2.0)),
        Row::single(
            "100 isolated actors ready",
            "s",
            hundred,
            Target::AtMost(4.0),
        ),
        Row::single(
            "killed worker to next answer",
            "ms",
            killed,
            Target::AtMost(150.0),
        ),
        Row::single(
            "idle worker resident",
            "MiB",
            resident,
            Target::AtMost(15.0),
        ),
    ])
}
