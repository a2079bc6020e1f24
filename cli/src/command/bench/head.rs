//! The cost of a head that knows a thousand nodes and a hundred thousand actors: the memory of its
//! process, and the time of its answers.
//!
//! The head is a daemon like any other. The nodes are [hollow](odeon_cluster::hollow), in one process
//! beside it, each with a link of its own; the actors are detached ones that those host.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use odeon::{Clock, ClusterIdentity};
use odeon_bench::{Row, Target};
use odeon_client::{CONNECTION_FILE, Client, Connection};
use odeon_cluster::hollow::Hollow;

use crate::waiter::Waiter;

/// Nodes beside the head.
const NODES: usize = 1000;
/// Actors on all of them.
const ACTORS: usize = 100_000;
/// Nodes that join at the same time.
const JOINS: usize = 16;
/// Actors that are written at the same time.
const WRITES: usize = 512;
/// Requests of each kind.
const REQUESTS: usize = 300;
/// The variable with the folder of the head, in the process of the hollow nodes.
const HOLLOW: &str = "ODEON_BENCH_HOLLOW";
/// The interval between looks at the head's memory until it is at rest.
const REST_PAUSE: Duration = Duration::from_secs(5);

/// In the process of the hollow nodes: serves them until its input ends. Elsewhere: returns at once.
pub(crate) fn serve_if_hollow() {
    let Some(folder) = std::env::var_os(HOLLOW) else {
        return;
    };
    let served =
        Waiter::with_threads().and_then(|runtime| runtime.block_on(hollow(Path::new(&folder))));
    if let Err(error) = &served {
        crate::print::error(error);
    }
    std::process::exit(i32::from(served.is_err()));
}

/// Joins all nodes and has them host all actors.
async fn hollow(folder: &Path) -> Result<()> {
    let cluster = ClusterIdentity::load(folder)?;
    let client = Client::new(Connection::read(&folder.join(CONNECTION_FILE))?)?;
    let head = client.status().await?.nodes.remove(0);
    let through = head.address.parse().context("where the head is")?;
    let begun = Clock::now();
    let joining = stream::iter(0..NODES).map(|number| {
        let (cluster, head) = (&cluster, &head);
        async move {
            let identity = cluster.issue(&format!("node-{number:04}"))?;
            anyhow::Ok(Hollow::join(identity, through, &head.name).await?)
        }
    });
    let nodes: Vec<Hollow> = joining.buffer_unordered(JOINS).try_collect().await?;
    say(&format!("{}", Clock::now().since(begun).as_secs_f64()))?;
    let begun = Clock::now();
    let nodes = &nodes;
    let hosting = stream::iter(0..ACTORS).map(|number| async move {
        nodes[number % NODES]
            .host(&format!("actor-{number:06}"))
            .await
    });
    hosting
        .buffer_unordered(WRITES)
        .try_for_each(async |_job| Ok(()))
        .await?;
    say(&format!("{}", Clock::now().since(begun).as_secs_f64()))?;
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    end.await??;
    Ok(())
}

/// A line for the process that measures.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// A process that ends with the measurement.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn measure() -> Result<Vec<Row>> {
    let folder = tempfile::tempdir().context("a folder for the head")?;
    let program = std::env::current_exe().context("finding this program")?;
    let head = Command::new(&program)
        .args([
            "up",
            "--foreground",
            "--listen",
            "127.0.0.1:0",
            "--api",
            "127.0.0.1:0",
        ])
        .args(["--api-rate", "1000000"])
        .arg("--dir")
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let head = Ending(head.context("starting the head")?);
    let connection = folder.path().join(CONNECTION_FILE);
    let runtime = Waiter::with_threads()?;
    runtime.block_on(async {
        while !connection.exists() {
            Clock::sleep(Duration::from_millis(20)).await;
        }
    });
    let idle = memory(head.0.id())?;
    let hollow = Command::new(&program)
        .env(HOLLOW, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut hollow = Ending(hollow.context("starting the nodes")?);
    let mut out = std::io::BufReader::new(hollow.0.stdout.take().context("its output")?);
    let mut seconds = || -> Result<f64> {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line)?;
        line.trim().parse().context("the nodes have failed")
    };
    let (joined, written) = (seconds()?, seconds()?);
    let mut rows = vec![
        Row::single(
            "head: alone, memory",
            "MiB",
            &[idle.now],
            Target::AtMost(80.0),
        ),
        Row::single(format!("head: {NODES} nodes join"), "s", &[joined], None),
        Row::single(
            "head: facts taken",
            "/s",
            &[3.0 * ACTORS as f64 / written],
            None,
        ),
    ];
    let client = Arc::new(Client::new(Connection::read(&connection)?)?);
    rows.extend(runtime.block_on(answers(&client))?);
    // What it needs, and what it once needed.
    let memory = runtime.block_on(at_rest(head.0.id()))?;
    let name = format!("head: {NODES} nodes, {ACTORS} actors, memory");
    rows.push(Row::single(
        name,
        "MiB",
        &[memory.now],
        Target::AtMost(600.0),
    ));
    rows.push(Row::single(
        "head: most memory so far",
        "MiB",
        &[memory.most],
        Target::AtMost(600.0),
    ));
    Ok(rows)
}

/// Measures the times of the API's answers.
async fn answers(client: &Client) -> Result<Vec<Row>> {
    let status = client.status().await?;
    let up = status
        .nodes
        .iter()
        .filter(|node| node.state == "up")
        .count();
    ensure!(up == NODES + 1, "{up} nodes are up of {}", NODES + 1);
    let running = status.jobs.get("running").copied().unwrap_or(0);
    ensure!(
        running as usize == ACTORS,
        "{running} actors run of {ACTORS}"
    );
    let mut rows = vec![];
    for kind in ["status", "nodes", "jobs", "job", "news"] {
        let mut times = vec![];
        for number in 0..REQUESTS {
            let begun = Clock::now();
            match kind {
                "status" => drop(client.status().await?),
                "nodes" => drop(client.nodes().await?),
                "jobs" => drop(client.jobs(500, false).await?),
                "job" => drop(
                    client
                        .job(&format!("j{}", 1 + number * (ACTORS / REQUESTS)))
                        .await?,
                ),
                _ => drop(client.news().await?),
            }
            times.push(Clock::now().since(begun).as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let p95 = times[times.len() * 95 / 100];
        let name = format!("head: GET {kind}, p95");
        rows.push(Row::single(name, "ms", &[p95], Target::AtMost(100.0)));
    }
    Ok(rows)
}

/// The memory of a process in MiB: now, and the most so far.
struct Memory {
    now: f64,
    most: f64,
}

fn memory(process: u32) -> Result<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let field = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next());
        let kib: f64 = kib
            .with_context(|| format!("no {name} of process {process}"))?
            .parse()?;
        Ok(kib / 1024.0)
    };
    Ok(Memory {
        now: field("VmRSS:")?,
        most: field("VmHWM:")?,
    })
}

/// The memory of a process when it does not change any more.
async fn at_rest(process: u32) -> Result<Memory> {
    let mut before = memory(process)?;
    loop {
        Clock::sleep(REST_PAUSE).await;
        let memory = memory(process)?;
        if (memory.now - before.now).abs() < 1.0 {
            return Ok(memory);
        }
        before = memory;
    }
}
