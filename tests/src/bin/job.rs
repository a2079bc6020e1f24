//! A job's program, for tests of clusters: its first argument says what it does.

use std::process::ExitCode;

use odeon::{Context, Failure, Job, ProcessId, System, SystemError};

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

    /// Does not come back.
    #[handler]
    async fn linger(&mut self) {
        std::future::pending::<()>().await;
    }
}

fn job() -> Job {
    odeon::job![Place]
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
        "deaf" => return run(async |_| deaf().await),
        // Actors on these nodes, and where they are.
        "places" => return run(async |system| places(system, &args[1..]).await),
        "lingers" => return run(async |system| lingers(system, &args[1..]).await),
        "forks" => return forks(),
        other => {
            eprintln!("`{other}` is nothing that this program does");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn run(main: impl AsyncFnOnce(&System) -> Result<(), String>) -> ExitCode {
    let done = job().run(async |system| main(&system).await.map_err(SystemError::Refused));
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
