//! Sixteen processes that do collectives in nested groups (`tp` 2, `pp` 2, `dp` 4, and all), in one of which something
//! goes wrong at a place drawn at random, and what is found of it.
//!
//!     flow_faults FAULT SEED [TIMES]    a fault, once or so many times one after the other
//!     flow_faults clean SEED SECONDS    nothing goes wrong, with load beside it
//!
//! Each line that it prints is JSON: the fault, the rank, and what was found after which time. See `scripts/flow-faults`.

mod fault;
mod rank;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use odeon::group::Formation;
use odeon::{Clock, Group, System, Timestamp, mesh};
use odeon_observe::Observer;
use odeon_observe::event::Subject;
use rustix::process::{Pid, Signal, kill_process};

use fault::{Fault, Order};
use rank::{Pids, Rank, Train};

const RANKS: usize = 16;
/// The time for which all goes well first, and between two faults, so that it is known what is usual.
const BEFORE: Duration = Duration::from_secs(12);
const BETWEEN: Duration = Duration::from_secs(6);
/// The time after which a fault counts as not found.
const PATIENCE: Duration = Duration::from_secs(25);
const LOOK: Duration = Duration::from_millis(50);
/// Processes that want a processor, as load beside the ranks, and on the processor of one.
const LOAD: usize = 2;
const LOAD_ON_ONE: usize = 12;

/// The first that was found after a moment.
struct Found {
    after: Duration,
    ranks: Vec<usize>,
    sentence: String,
}

struct Job {
    group: Group<Rank>,
    pids: Vec<u32>,
    observer: Observer,
    orders: PathBuf,
    _formations: Vec<Formation>,
}

impl Job {
    async fn start(system: &System, orders: PathBuf, windows: bool) -> anyhow::Result<Self> {
        let mesh = mesh! { dp: 4, pp: 2, tp: 2 };
        let group = system.spawn_group::<Rank>(mesh, |rank| rank);
        let group = group.isolated().await?;
        let mut seats = vec![vec![]; RANKS];
        let mut formations = vec![];
        for dims in [&["tp"][..], &["pp"], &["dp"], &["dp", "pp", "tp"]] {
            for ranks in group.mesh().groups(dims) {
                let members: Vec<_> = ranks.iter().filter_map(|it| group.member(*it)).collect();
                let sizes = dims.iter().map(|dim| (*dim, group.mesh().size(dim)));
                let along = Group::new(odeon::Mesh::new(sizes)?, members)?;
                let formation = along.form().await?;
                for (rank, seat) in ranks.iter().zip(formation.seats()) {
                    seats[*rank].push(seat);
                }
                formations.push(formation);
            }
        }
        let pids = group.gather(Pids).await?;
        let train = seats.into_iter().map(|seats| Train {
            seats,
            windows,
            orders: orders.display().to_string(),
        });
        for (member, train) in group.members().iter().zip(train) {
            member.tell(train).await?;
        }
        let observer = Observer::new("flow faults", 1);
        let (watching, system) = (observer.clone(), system.clone());
        tokio::spawn(async move { watching.follow(&system).await });
        Ok(Self {
            group,
            pids,
            observer,
            orders,
            _formations: formations,
        })
    }

    /// The finding of the moment.
    fn finding(&self) -> Option<(Vec<usize>, String)> {
        self.observer.read(|seen| {
            let found = seen.findings().iter();
            let mut found = found.filter(|it| it.cause.rule == "awaited_rank");
            found.next().map(|it| {
                let rank = |of: &Subject| {
                    let members = self.group.members().iter();
                    let mut ids = members.map(|it| Subject::Actor(it.id()));
                    ids.position(|id| id == *of)
                };
                (
                    it.who.iter().filter_map(rank).collect(),
                    it.cause.sentence.clone(),
                )
            })
        })
    }

    /// The first finding within so long.
    async fn first(&self, since: Timestamp, patience: Duration) -> Option<Found> {
        while Clock::now().since(since) < patience {
            if let Some((ranks, sentence)) = self.finding() {
                let after = Clock::now().since(since);
                return Some(Found {
                    after,
                    ranks,
                    sentence,
                });
            }
            Clock::sleep(LOOK).await;
        }
        None
    }

    fn order(&self, order: &Order) -> io::Result<()> {
        order.write(&self.orders)
    }

    fn signal(&self, rank: usize, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pids[rank]).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process has a number")?, signal)?;
        Ok(())
    }

    fn end(&self) -> anyhow::Result<()> {
        self.order(&Order::End)?;
        for rank in 0..RANKS {
            self.signal(rank, Signal::KILL)?;
        }
        Ok(())
    }
}

/// Processes that want a processor, until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start(count: usize, processor: Option<usize>) -> anyhow::Result<Self> {
        let mut load = Self(vec![]);
        for _ in 0..count {
            let own = std::env::current_exe()?;
            let processor = processor.map_or("any".to_owned(), |it| it.to_string());
            let spin = Command::new(own)
                .args(["spin", &processor])
                .stdin(Stdio::piped())
                .spawn()?;
            load.0.push(spin);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Numbers of one seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}

/// A fault at a place, from now on, and what was found of it.
async fn once(job: &Job, fault: Fault, number: u64, draw: &mut Draw) -> anyhow::Result<()> {
    let rank = draw.below(RANKS);
    let kind = draw.below(3);
    // Not at the same moment of a look each time.
    Clock::sleep(Duration::from_millis(draw.below(2_000) as u64)).await;
    let before = job.finding();
    let since = Clock::now();
    let mut load = None;
    match fault {
        Fault::Stopped => job.signal(rank, Signal::STOP)?,
        Fault::Load => load = Some(Load::start(LOAD_ON_ONE, Some(rank::PINNED))?),
        _ => {}
    }
    job.order(&Order::Begin {
        number,
        fault,
        rank,
        kind,
    })?;
    let found = job.first(since, PATIENCE).await;
    drop(load);
    if fault == Fault::Stopped {
        job.signal(rank, Signal::CONT)?;
    }
    job.order(&Order::Nothing)?;
    let right = found.as_ref().is_some_and(|it| it.ranks.contains(&rank));
    let named = found
        .as_ref()
        .is_some_and(|it| it.sentence.contains(fault.said()));
    let flow = found.as_ref().is_some_and(|it| match fault {
        Fault::Throttled | Fault::Delayed | Fault::Skips | Fault::Differs => it
            .sentence
            .contains(&format!("along {}:", fault::KINDS[kind])),
        _ => true,
    });
    let line = serde_json::json!({
        "fault": fault.name(),
        "rank": rank,
        "kind": fault::KINDS[kind],
        "before": before.map(|it| it.1),
        "after_s": found.as_ref().map(|it| it.after.as_secs_f64()),
        "right_rank": right,
        "right_flow": right && flow,
        "right_class": named,
        "ranks": found.as_ref().map(|it| it.ranks.clone()),
        "sentence": found.map(|it| it.sentence),
    });
    writeln!(io::stdout(), "{line}")?;
    Ok(())
}

async fn story(system: System, args: &[String], orders: &Path) -> anyhow::Result<()> {
    let seed: u64 = args.get(1).context("a seed")?.parse()?;
    let number: Option<u64> = args.get(2).map(|it| it.parse()).transpose()?;
    let mut draw = Draw(seed);
    let Some(fault) = Fault::of_name(&args[0]) else {
        let seconds = number.context("seconds")?;
        let job = Job::start(&system, orders.to_owned(), seed % 2 == 1).await?;
        Clock::sleep(BEFORE).await;
        let _load = Load::start(LOAD, None)?;
        let (since, mut false_findings) = (Clock::now(), vec![]);
        let until = Duration::from_secs(seconds);
        while let Some(found) = job.first(since, until).await {
            false_findings.push(found.sentence);
            while job.finding().is_some() {
                Clock::sleep(LOOK).await;
            }
        }
        let line = serde_json::json!({ "clean_s": seconds, "false": false_findings });
        writeln!(io::stdout(), "{line}")?;
        return job.end();
    };
    let windows = !fault.needs_messages() && seed % 2 == 1;
    let job = Job::start(&system, orders.to_owned(), windows).await?;
    Clock::sleep(BEFORE).await;
    for time in 1..=number.unwrap_or(1) {
        once(&job, fault, time, &mut draw).await?;
        if time == number.unwrap_or(1) {
            break;
        }
        // Until it is over, and a while.
        let over = Clock::now();
        while job.finding().is_some() && Clock::now().since(over) < PATIENCE {
            Clock::sleep(LOOK).await;
        }
        Clock::sleep(BETWEEN).await;
    }
    job.end()
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|it| it == "spin") {
        return rank::spin(args.get(1).and_then(|it| it.parse().ok()));
    }
    let is_known = |it: &String| it == "clean" || Fault::of_name(it).is_some();
    // A worker has other arguments, or none.
    let is_driver = args.first().is_some_and(is_known);
    let job = odeon::job![Rank];
    if !is_driver {
        job.run(async |_| bail!("usage: flow_faults FAULT SEED [TIMES], or clean SEED SECONDS"))?;
        return Ok(());
    }
    let orders = std::env::temp_dir().join(format!("odeon-flow-faults-{}", std::process::id()));
    Order::Nothing.write(&orders)?;
    let done = job.run(async |system| story(system, &args, &orders).await);
    fs::remove_file(&orders)?;
    done
}
