//! A job's program, for tests of clusters: its first argument says what it does.

use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::Duration;

use odeon::{Context, Failure, Job, Limits, ProcessId, Ref, System, SystemBuilder, SystemError};
use odeon_artifacts::Digest;

/// An actor that knows where it is.
struct Place;

#[odeon::actor(name = "job.Place")]
impl Place {
    async fn start(_args: (), _cx: &mut Context<Self>) -> Result<Self, Failure> {
        println!("a worker is here");
        Ok(Self)
    }

    /// The number of its process.
    #[handler]
    async fn pid(&mut self) -> u32 {
        std::process::id()
    }

    /// The numbers of its devices.
    #[handler]
    fn devices(&mut self, cx: &mut Context<Self>) -> Vec<u32> {
        cx.devices().iter().map(|device| device.index).collect()
    }

    /// Does not come back.
    #[handler]
    async fn linger(&mut self) {
        std::future::pending::<()>().await;
    }
}

/// Says when it comes and when it leaves.
struct Guest {
    name: String,
}

#[odeon::actor(name = "job.Guest")]
impl Guest {
    fn start(name: String) -> Self {
        println!("{name} is here: {}", std::process::id());
        Self { name }
    }

    async fn stop(self) {
        println!("{} leaves", self.name);
        if self.name == "stubborn" {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps a score.
struct Board {
    score: u64,
}

/// The arguments that a board is made from.
#[derive(Clone, serde::Serialize, serde::Deserialize, odeon::Shape)]
struct Frame {
    /// Set if it cannot be made.
    doomed: bool,
    /// Nothing of meaning.
    padding: Vec<u8>,
}

const PLAIN: Frame = Frame {
    doomed: false,
    padding: vec![],
};

#[odeon::actor(name = "job.Board")]
impl Board {
    async fn start(frame: Frame, _cx: &mut Context<Self>) -> Result<Self, Failure> {
        if frame.doomed {
            return Err(Failure::error("there is no chalk"));
        }
        Ok(Self { score: 0 })
    }

    #[handler]
    async fn add(&mut self, n: u64) -> u64 {
        self.score += n;
        self.score
    }

    #[handler]
    async fn score(&mut self) -> u64 {
        self.score
    }

    /// The number of its process.
    #[handler]
    async fn whereabouts(&mut self) -> u32 {
        std::process::id()
    }
}

fn job() -> Job {
    odeon::job![Place, Board, Guest]
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    job().serve_if_worker();
    let text = |n: usize| args.get(n).cloned().unwrap_or_default();
    let number = |n: usize| text(n).parse::<u64>().unwrap_or(0);
    match text(0).as_str() {
        // Prints its arguments and a variable.
        "echo" => println!(
            "{} {}",
            text(1),
            std::env::var("GREETING").unwrap_or_default()
        ),
        // Prints so many lines.
        "lines" => (0..number(1)).for_each(|n| println!("line {n}")),
        "fail" => return ExitCode::from(number(1) as u8),
        // Waits for ever; SIGTERM ends it.
        "waits" => return run(async |_| wait_for_ever().await),
        // Guests of these names, the last one in a process of its own, and waits for ever.
        "idles" => return run_idle(&args[1..]),
        "deaf" => return run_deaf(),
        // Actors on these nodes, and where they are.
        "places" => return run(async |system| places(system, &args[1..]).await),
        // Actors with a device each, and which these are.
        "sees" => return run(async |system| sees(system, number(1), &text(2)).await),
        "holds" => return run(async |system| holds(system, &text(1), &text(2)).await),
        "counts" => return run(async |system| counts(system, &text(1), &args[2..]).await),
        "lingers" => return run(async |system| lingers(system, &args[1..]).await),
        // Parts of a file in its folder, at these places.
        "samples" => return samples(&args[1..]),
        // The same, and then waits for ever.
        "studies" => {
            let read = samples(&args[1..]);
            println!("studying");
            return if read == ExitCode::SUCCESS {
                run_deaf()
            } else {
                read
            };
        }
        "forks" => return forks(),
        // About the detached actor of a name.
        "detaches" | "shares" | "dooms" | "heavy" | "hardens" | "binds" | "where" | "stops" => {
            return run(async |system| {
                let done = board(system, &text(0), &text(1)).await;
                println!("{}", done.unwrap_or_else(|why| why));
                Ok(())
            });
        }
        other => {
            eprintln!("`{other}` is nothing that this program does");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Bytes that are read at each place of a sample.
const SAMPLE_BYTES: usize = 64 << 10;

fn samples(args: &[String]) -> ExitCode {
    let Some((file, places)) = args.split_first() else {
        return ExitCode::from(2);
    };
    let read = || -> std::io::Result<()> {
        let file = std::fs::File::open(file)?;
        for place in places {
            let mut bytes = vec![0; SAMPLE_BYTES];
            let at = place.parse().map_err(std::io::Error::other)?;
            file.read_exact_at(&mut bytes, at)?;
            println!("{at}: {}", Digest::of(&bytes));
        }
        Ok(())
    };
    match read() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the file cannot be read: {error}");
            ExitCode::from(7)
        }
    }
}

fn run_deaf() -> ExitCode {
    let deaf = async |_| deaf().await.map_err(SystemError::Refused);
    ended(job().run_with(SystemBuilder::own_signals, deaf))
}

/// Has guests until a signal ends it. There is no end to the patience with them.
fn run_idle(names: &[String]) -> ExitCode {
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_secs(3600);
    let idle = async |system: System| {
        let alone = names.last();
        for name in names {
            let guest = system.spawn::<Guest>(name.clone());
            let spawned = match Some(name) == alone {
                true => guest.isolated().await,
                false => guest.await,
            };
            spawned.map_err(|error| SystemError::Refused(error.to_string()))?;
        }
        wait_for_ever().await.map_err(SystemError::Refused)
    };
    ended(job().run_with(|builder| builder.limits(limits), idle))
}

fn run(main: impl AsyncFnOnce(&System) -> Result<(), String>) -> ExitCode {
    ended(job().run(async |system| main(&system).await.map_err(SystemError::Refused)))
}

fn ended(done: Result<(), SystemError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn wait_for_ever() -> Result<(), String> {
    println!("waiting");
    std::future::pending().await
}

/// Does not listen to SIGTERM.
async fn deaf() -> Result<(), String> {
    let kind = tokio::signal::unix::SignalKind::terminate();
    let mut signals = tokio::signal::unix::signal(kind).map_err(|e| e.to_string())?;
    println!("waiting");
    loop {
        signals.recv().await;
        println!("not yet");
    }
}

/// The outcome of a step with a detached board.
async fn board(system: &System, step: &str, name: &str) -> Result<String, String> {
    fn words(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let scores = async |board: Ref<Board>| {
        let score = board.ask(Add { n: 1 }).await.map_err(words)?;
        Ok(format!("score {score}"))
    };
    let frame = Frame {
        doomed: step == "dooms",
        padding: vec![7; if step == "heavy" { 40_000 } else { 0 }],
    };
    match step {
        "shares" => {
            let shared = system.spawn::<Board>(PLAIN).detached(name).or_existing();
            scores(shared.await.map_err(words)?).await
        }
        "hardens" => {
            let board = system.spawn::<Board>(PLAIN).isolated().detached(name);
            let board = board.await.map_err(words)?;
            println!("{}", scores(board).await?);
            let pid = board.ask(Whereabouts).await.map_err(words)?;
            let pid = rustix::process::Pid::from_raw(pid as i32).ok_or("no process")?;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).map_err(words)?;
            // What is asked while it dies may be lost with it. The next life has nothing of this one's.
            loop {
                match scores(board).await {
                    Err(_) => tokio::task::yield_now().await,
                    said => return said,
                }
            }
        }
        "binds" => scores(system.bind::<Board>(name).await.map_err(words)?).await,
        "where" => {
            let board = system.bind::<Board>(name).await.map_err(words)?;
            let pid = board.ask(Whereabouts).await.map_err(words)?;
            Ok(format!("process {pid}"))
        }
        "stops" => {
            let board = system.bind::<Board>(name).await.map_err(words)?;
            board.stop().await.map_err(words)?;
            Ok("stopped".to_owned())
        }
        _ => {
            let board = system.spawn::<Board>(frame).detached(name);
            scores(board.await.map_err(words)?).await
        }
    }
}

async fn places(system: &System, nodes: &[String]) -> Result<(), String> {
    for node in nodes {
        let place = system.spawn::<Place>(()).on_node(node).await;
        let place = place.map_err(|error| error.to_string())?;
        let pid = place.ask(Pid).await.map_err(|error| error.to_string())?;
        println!("on {node}: {pid}");
    }
    let known: Vec<ProcessId> = system.nodes().await.iter().map(|it| it.process).collect();
    println!("{} nodes", known.len());
    Ok(())
}

/// Holds so many devices until it is stopped. It waits for each for so many seconds.
async fn sees(system: &System, count: u64, patience: &str) -> Result<(), String> {
    let seconds = patience
        .parse()
        .map_err(|_| format!("`{patience}` is no number"))?;
    let patience = Duration::from_secs_f64(seconds);
    let mut seen = vec![];
    for _ in 0..count {
        let place = system.spawn::<Place>(()).isolated();
        let place = place.needs(|needs| needs.gpus(1).wait_for_room(patience));
        let place = place.await.map_err(|error| error.to_string())?;
        seen.extend(
            place
                .ask(Devices)
                .await
                .map_err(|error| error.to_string())?,
        );
    }
    seen.sort_unstable();
    println!("seeing {seen:?}");
    std::future::pending().await
}

/// Holds so much processor time until it is stopped. It waits for that for so many seconds, or as
/// long as actors do.
async fn holds(system: &System, cpus: &str, patience: &str) -> Result<(), String> {
    let cpus = cpus.parse().map_err(|_| format!("`{cpus}` is no number"))?;
    let patience = patience.parse().map(Duration::from_secs_f64);
    let place = system.spawn::<Place>(()).cpus(cpus);
    let place = place.needs(|needs| match patience {
        Ok(patience) => needs.wait_for_room(patience),
        Err(_) => needs,
    });
    place.await.map_err(|error| error.to_string())?;
    println!("holding");
    std::future::pending().await
}

/// Counts with a board on each of these nodes until a file is there, and ends with an error when a
/// count is lost, comes twice, or out of order.
async fn counts(system: &System, until: &str, nodes: &[String]) -> Result<(), String> {
    let mut boards = vec![];
    for node in nodes {
        let board = system.spawn::<Board>(PLAIN).on_node(node).await;
        let board = board.map_err(|error| error.to_string())?;
        let pid = board.ask(Whereabouts).await.map_err(|e| e.to_string())?;
        println!("on {node}: {pid}");
        boards.push(board);
    }
    println!("counting");
    let counting = boards.iter().map(|board| count(*board, until));
    let counted = futures::future::try_join_all(counting).await?;
    println!("counted {}", counted.iter().sum::<u64>());
    Ok(())
}

async fn count(board: Ref<Board>, until: &str) -> Result<u64, String> {
    let mut n = 0;
    while !std::path::Path::new(until).exists() {
        for _ in 0..3 {
            board.tell(Add { n: 1 }).await.map_err(|e| e.to_string())?;
        }
        n += 4;
        let score = board.ask(Add { n: 1 }).await.map_err(|e| e.to_string())?;
        if score != n {
            return Err(format!("the board says {score} after {n}"));
        }
    }
    Ok(n)
}

async fn lingers(system: &System, nodes: &[String]) -> Result<(), String> {
    for node in nodes {
        let place = system.spawn::<Place>(()).on_node(node).await;
        let place = place.map_err(|error| error.to_string())?;
        let pid = place.ask(Pid).await.map_err(|error| error.to_string())?;
        println!("on {node}: {pid}");
        place
            .tell(Linger)
            .await
            .map_err(|error| error.to_string())?;
    }
    println!("lingering");
    std::future::pending().await
}

/// Starts a process that starts another, and so on, and ends; each stays a while.
fn forks() -> ExitCode {
    let script = "for i in 1 2 3 4 5; do sleep 1000 & done; echo forked; wait";
    let child = std::process::Command::new("sh")
        .args(["-c", script])
        .spawn();
    match child {
        Ok(mut child) => {
            // It does not end by itself.
            let _ = child.wait();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
