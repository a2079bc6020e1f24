//! Blobs: handing over, copying in, many readers, and the way to another node.

use anyhow::{Context, ensure};
use bytes::Bytes;
use odeon::{Blob, Blobs, Clock, Ref, Restart, System};

use crate::bare_quinn::{Bare, ECHO};
use crate::nodes::Nodes;
use crate::row::{Row, Target, median};
use crate::subject::{self, Subject, Touch};
use crate::turns::{in_turns, measured};

const MIB: usize = 1 << 20;
const LARGE: usize = 256 * MIB;
const HAND_OVERS: usize = 200;
const READERS: usize = 4;

/// Seconds that `work` takes.
async fn seconds<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(f64, T)> {
    let begun = Clock::now();
    let made = work.await?;
    Ok((Clock::now().since(begun).as_secs_f64(), made))
}

/// A blob of so many bytes, all of which were written.
fn filled(blobs: &Blobs, bytes: usize) -> anyhow::Result<Blob> {
    let mut writer = blobs.writer(bytes)?;
    writer.fill(3);
    Ok(writer.seal())
}

/// The median time in microseconds from a sealed blob to the answer of a process that opened it and
/// read its ends: hand-over and the way back.
async fn hand_over(
    system: &System,
    actor: Ref<Subject>,
    bytes: usize,
    times: usize,
) -> anyhow::Result<f64> {
    let blobs = system.blobs();
    tokio::spawn(async move {
        let mut laps = vec![];
        for _ in 0..times {
            let blob = filled(&blobs, bytes)?;
            let (time, read) =
                seconds(async { Ok(actor.ask(Touch { blob, all: false }).await?) }).await?;
            ensure!(read == bytes as u64, "{read} bytes came");
            laps.push(time * 1e6);
            // The next one takes the same memory.
            blobs.when(|stats| stats.blobs == 0).await;
        }
        Ok(median(&laps))
    })
    .await?
}

/// Gigabytes per second of a copy into a blob, and of the same copy into warm memory.
async fn copy_in(system: &System) -> anyhow::Result<(f64, f64)> {
    let blobs = system.blobs();
    let from = vec![3_u8; 64 * MIB];
    let mut to = vec![1_u8; from.len()];
    blobs.warm_up(from.len()).await?;
    let rate = |seconds: f64| from.len() as f64 / seconds / 1e9;
    let (mut ours, mut bare) = (vec![], vec![]);
    for _ in 0..5 {
        let begun = Clock::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        bare.push(rate(Clock::now().since(begun).as_secs_f64()));
        let (time, blob) = seconds(async { Ok(blobs.copy_in(&from)?) }).await?;
        ours.push(rate(time));
        drop(blob);
        blobs.when(|stats| stats.blobs == 0).await;
    }
    Ok((median(&ours), median(&bare)))
}

/// Milliseconds until every reader has touched all pages of one large blob.
async fn readers(system: &System, actors: &[Ref<Subject>]) -> anyhow::Result<f64> {
    let blobs = system.blobs();
    let blob = filled(&blobs, LARGE)?;
    let reads = actors.iter().map(|actor| {
        let touch = Touch {
            blob: blob.clone(),
            all: true,
        };
        let ask = actor.ask(touch);
        async move { Ok(tokio::spawn(ask).await??) }
    });
    let (time, _) = seconds(futures::future::try_join_all(reads)).await?;
    drop(blob);
    blobs.when(|stats| stats.blobs == 0).await;
    Ok(time * 1e3)
}

/// Gigabytes per second of a large blob that another node opens.
pub(crate) async fn across(nodes: &Nodes) -> anyhow::Result<f64> {
    let blobs = nodes.near.blobs();
    let blob = filled(&blobs, LARGE)?;
    let ask = nodes.actor.ask(Touch { blob, all: false });
    let (time, _) = seconds(async { Ok(tokio::spawn(ask).await??) }).await?;
    // The other node gives its lease back as it frees its copy.
    blobs.when(|stats| stats.blobs == 0).await;
    Ok(LARGE as f64 / time / 1e9)
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let system = subject::system().await?;
    let mut actors = vec![];
    for _ in 0..READERS {
        let spawn = system.spawn::<Subject>(()).restart(Restart::Temporary);
        actors.push(spawn.isolated().await?);
    }
    let first = *actors.first().context("there are readers")?;
    let mut times: [Vec<f64>; 5] = Default::default();
    // The first use of memory maps it.
    readers(&system, &actors).await?;
    hand_over(&system, first, MIB, 1).await?;
    for _ in 0..rounds {
        times[0].push(hand_over(&system, first, MIB, HAND_OVERS).await?);
        times[1].push(hand_over(&system, first, LARGE, HAND_OVERS / 4).await?);
        let (ours, bare) = copy_in(&system).await?;
        times[2].push(ours);
        times[3].push(bare);
        times[4].push(readers(&system, &actors).await?);
    }
    system.shutdown().await;

    let nodes = Nodes::start().await?;
    let bare = Bare::start(ECHO).await?;
    let bytes = Bytes::from(vec![3; LARGE]);
    // The first use of memory maps it.
    across(&nodes).await?;
    bare.carry(bytes.clone()).await?;
    let subjects = [
        measured(|| bare.carry(bytes.clone())),
        measured(|| across(&nodes)),
    ];
    let [bare_rates, rates] = in_turns(rounds, subjects).await?;
    nodes.near.shutdown().await;

    let [small, large, ours, bare, touched] = &times;
    Ok(vec![
        Row::single(
            "blob of 1 MiB handed over and answered",
            "us",
            small,
            Target::AtMost(50.0),
        ),
        Row::single(
            "blob of 256 MiB handed over and answered",
            "us",
            large,
            Target::AtMost(50.0),
        ),
        Row::against(
            "copy 64 MiB into a blob",
            "GB/s",
            ours,
            ("memcpy into warm memory", bare),
            Target::RatioAtLeast(0.9),
        ),
        Row::single(
            "256 MiB touched by four processes",
            "ms",
            touched,
            Target::AtMost(5.0),
        ),
        Row::against(
            "blob of 256 MiB over quic",
            "GB/s",
            &rates,
            (
                "the same bytes over a quinn stream, into memory",
                &bare_rates,
            ),
            Target::RatioAtLeast(0.8),
        ),
    ])
}
