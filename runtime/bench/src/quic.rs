//! Remote asks over QUIC on the loopback device, against a framed echo over one bare quinn stream with the
//! same transport. The far end of each is a process of its own.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;

use crate::alone::Alone;
use crate::bare_quinn::{Bare, ECHO, LONE_ECHO};
use crate::bulk::across;
use crate::nodes::{FAR, Nodes};
use crate::row::{Row, Target};
use crate::spawn;
use crate::subject::Subject;
use crate::turns::{higher, in_turns, lower, measured};
use crate::unix::{ask_rate, ask_rate_of_tasks, ask_round_trip, tell_rate};

/// The address by which this machine reaches others, if it has one.
fn outward() -> Option<IpAddr> {
    // Nothing is sent; the address is one of those that no machine has (RFC 5737).
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let host = socket.local_addr().ok()?.ip();
    (!host.is_loopback() && !host.is_unspecified()).then_some(host)
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let nodes = Nodes::start().await?;
    let actor = nodes.actor;
    let bare = Bare::start(ECHO).await?;
    let (direct, mux) = bare.streams().await?;
    let alone = Alone::start()?;
    let (_lone, (lone_direct, lone_mux)) = alone
        .run(async {
            let bare = Bare::start(LONE_ECHO).await?;
            let streams = bare.streams().await?;
            Ok((bare, streams))
        })
        .await?;
    let far = |spawn: odeon::Spawn<Subject>| spawn.on_node(FAR).in_worker("shared");
    let subjects = [
        measured(|| async {
            let direct = Arc::clone(&direct);
            tokio::spawn(async move { direct.lock().await.round_trip().await }).await?
        }),
        measured(|| {
            let direct = Arc::clone(&lone_direct);
            alone.run(async move { direct.lock().await.round_trip().await })
        }),
        measured(|| async { tokio::spawn(ask_round_trip(actor)).await? }),
        measured(|| async { tokio::spawn(mux.clone().rate()).await? }),
        measured(|| alone.run(lone_mux.clone().rate())),
        measured(|| async { tokio::spawn(ask_rate(actor)).await? }),
        measured(|| mux.clone().rate_of_tasks()),
        measured(|| alone.run(lone_mux.clone().rate_of_tasks())),
        measured(|| ask_rate_of_tasks(actor)),
        measured(|| async { tokio::spawn(tell_rate(actor)).await? }),
        measured(|| spawn::remote(&nodes.near, far)),
    ];
    let values = in_turns(rounds, subjects).await?;
    nodes.near.shutdown().await;
    let mut rows = rows(&values);
    if let Some(host) = outward() {
        rows.extend(by_address(host, rounds).await?);
    }
    Ok(rows)
}

/// The rows of the values, in the order in which they were measured.
fn rows(values: &[Vec<f64>; 11]) -> Vec<Row> {
    let [
        direct,
        lone_direct,
        ask,
        mux,
        lone_mux,
        asks,
        mux_of_tasks,
        lone_mux_of_tasks,
        asks_of_tasks,
        tells,
        spawns,
    ] = values;
    vec![
        Row::on_floor(
            "quic ask p50",
            "us",
            ask,
            (
                "echo over a quinn stream, the quicker of two-thread and one-thread runtimes",
                &lower(direct, lone_direct),
            ),
            Target::RatioAtMost(1.2),
        ),
        Row::on_floor(
            "quic asks, 1000 outstanding",
            "/s",
            asks,
            (MUX, &higher(mux, lone_mux)),
            Target::RatioAtLeast(0.6),
        ),
        Row::on_floor(
            "quic asks, 1000 tasks",
            "/s",
            asks_of_tasks,
            (MUX, &higher(mux_of_tasks, lone_mux_of_tasks)),
            Target::RatioAtLeast(0.6),
        ),
        Row::single("quic tells", "/s", tells, None),
        Row::single(
            "spawn light actors on another node",
            "/s",
            spawns,
            Target::AtLeast(10_000.0),
        ),
    ]
}

/// The same between two nodes at an address that others reach. What fits into a packet is found by probing
/// there, where on the loopback device it is known.
async fn by_address(host: IpAddr, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let nodes = Nodes::start_at(host).await?;
    let actor = nodes.actor;
    // The first use of memory maps it.
    across(&nodes).await?;
    let subjects = [
        measured(|| async { tokio::spawn(ask_round_trip(actor)).await? }),
        measured(|| async { tokio::spawn(ask_rate(actor)).await? }),
        measured(|| across(&nodes)),
    ];
    let [ask, asks, blobs] = in_turns(rounds, subjects).await?;
    nodes.near.shutdown().await;
    Ok(vec![
        Row::single("quic ask p50, by address", "us", &ask, None),
        Row::single("quic asks, 1000 outstanding, by address", "/s", &asks, None),
        Row::single(
            "blob of 256 MiB over quic, by address",
            "GB/s",
            &blobs,
            None,
        ),
    ])
}

/// The floor of many asks.
const MUX: &str =
    "echo over a quinn stream through a mux, the quicker of two-thread and one-thread runtimes";
