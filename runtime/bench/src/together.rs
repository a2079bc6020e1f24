//! All-reduce between the members of a group: two processes of one node, against a copy of the same
//! bytes in one process, and two processes of two nodes that are linked over the loopback device, against
//! a blob that crosses there.

use std::time::Duration;

use anyhow::ensure;
use odeon::collective::{Collective, Reduce};
use odeon::group::{Communicator, Seat};
use odeon::{Clock, Context, Failure, Group, Rank, System, mesh};

use crate::bulk;
use crate::nodes::Nodes;
use crate::row::{Row, Target, median};

/// Bytes, and all-reduces in a lap.
const SIZES: [(&str, usize, usize); 3] = [
    ("1 KiB", 1 << 10, 400),
    ("1 MiB", 1 << 20, 40),
    ("64 MiB", LARGEST, 2),
];
const LARGEST: usize = 64 << 20;

/// Takes a seat.
#[derive(Clone)]
#[odeon::message(reply = Result<(), String>)]
struct Sit(Seat);

/// Reduces so many bytes so many times; the answer is microseconds for each.
#[derive(Clone)]
#[odeon::message(reply = Result<f64, String>)]
struct Lap {
    bytes: usize,
    times: usize,
}

/// A rank that reduces.
pub(crate) struct Member(Option<Communicator>);

#[odeon::actor(name = "bench.Member")]
impl Member {
    fn start() -> Result<Self, Failure> {
        Ok(Self(None))
    }

    #[handler(message = Sit)]
    async fn sit(&mut self, Sit(seat): Sit, cx: &mut Context<Self>) -> Result<(), String> {
        let mut comm = seat.take(cx).map_err(|error| error.to_string())?;
        comm.set_deadline(Duration::from_secs(60));
        self.0 = Some(comm);
        Ok(())
    }

    #[handler(message = Lap)]
    async fn lap(&mut self, lap: Lap) -> Result<f64, String> {
        let comm = self.0.as_mut().ok_or("no seat")?;
        let mut data = vec![0.0f32; lap.bytes / 4];
        comm.barrier().map_err(|error| error.to_string())?;
        let begun = Clock::now();
        for _ in 0..lap.times {
            comm.all_reduce(&mut data, Reduce::Sum)
                .map_err(|error| error.to_string())?;
        }
        Ok(Clock::now().since(begun).as_secs_f64() * 1e6 / lap.times as f64)
    }
}

/// Two members, each in a process of its own, with their seats taken.
async fn pair(system: &System, nodes: [&str; 2]) -> anyhow::Result<Group<Member>> {
    let spawn = system.spawn_group::<Member>(mesh! { dp: 2 }, |_: Rank| ());
    let spawn = spawn
        .isolated()
        .each(|rank, spawn| spawn.on_node(nodes[rank.index()]));
    let group = spawn.await?;
    let formation = group.form().await?;
    let seats = formation.seats().map(Sit).collect();
    for seat in group.scatter(seats).await? {
        seat.map_err(anyhow::Error::msg)?;
    }
    Ok(group)
}

async fn lap(group: &Group<Member>, bytes: usize, times: usize) -> anyhow::Result<f64> {
    let mut slowest = 0.0f64;
    for time in group.gather(Lap { bytes, times }).await? {
        slowest = slowest.max(time.map_err(anyhow::Error::msg)?);
    }
    ensure!(slowest > 0.0, "it took no time");
    Ok(slowest)
}

/// Microseconds of a copy of so many bytes.
fn copy(bytes: usize, times: usize) -> f64 {
    let from = vec![1.0f32; bytes / 4];
    let mut to = vec![0.0f32; bytes / 4];
    let begun = Clock::now();
    for _ in 0..times {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    Clock::now().since(begun).as_secs_f64() * 1e6 / times as f64
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let nodes = Nodes::start().await?;
    let near = pair(&nodes.near, ["near", "near"]).await?;
    let far = pair(&nodes.near, ["near", "far"]).await?;
    let (mut rows, mut blobs) = (vec![], vec![]);
    for (name, bytes, times) in SIZES {
        let mut laps: [Vec<f64>; 3] = Default::default();
        // The first round finds cold memory.
        for round in 0..=rounds {
            let round_laps = [
                copy(bytes, times),
                lap(&near, bytes, times).await?,
                lap(&far, bytes, times).await?,
            ];
            if round > 0 {
                if bytes == LARGEST {
                    blobs.push(bulk::across(&nodes).await?);
                }
                for (all, one) in laps.iter_mut().zip(round_laps) {
                    all.push(one);
                }
            }
        }
        let [copies, near, far] = &laps;
        let name = |where_| format!("all-reduce of {name}, {where_}");
        rows.push(Row::against(
            name("2 processes"),
            "us",
            near,
            ("copy in one process", copies),
            None,
        ));
        rows.push(Row::single(name("2 nodes"), "us", far, None));
        let rate = bytes as f64 / median(far) / 1e3;
        if bytes >= 1 << 20 {
            rows.push(Row::single(name("2 nodes"), "GB/s", &[rate], None));
        }
        if bytes == LARGEST {
            // Each of the two sends as many bytes as there are, and both ways share the processors.
            let crossing: Vec<f64> = far.iter().map(|us| 2.0 * bytes as f64 / us / 1e3).collect();
            rows.push(Row::against(
                name("2 nodes, both ways"),
                "GB/s",
                &crossing,
                ("blob of 256 MiB over quic", &blobs),
                Target::RatioAtLeast(0.6),
            ));
        }
    }
    nodes.near.shutdown().await;
    Ok(rows)
}
