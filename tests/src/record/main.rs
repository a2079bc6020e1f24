//! Records the runs that `odeon demo` shows: real programs, in which something goes wrong.
//!
//! ```sh
//! cargo build -p odeon-cli && cargo run -p odeon-tests --bin record -- all
//! ```
//!
//! One by its name, or `all`, into `cli/demo`. Those that need a cluster, or are a recipe, run the
//! command `odeon` that lies beside this program.

mod broadcast;
mod cluster;
mod crowd;
mod deadlock;
mod oom;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use odeon::{Clock, Job, Supervision, System, WorkerMode};
use odeon_observe::{ClusterView, Observer, Recorder, Recording, today};

/// The longest time that anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let job = odeon::job![
        deadlock::Stage,
        oom::Team,
        oom::Learner,
        crowd::Cell,
        broadcast::Publisher,
        broadcast::Reader,
        cluster::Shard
    ];
    let mut arguments = std::env::args().skip(1);
    let asked = arguments.next();
    if asked.as_deref() == Some(cluster::LOAD) {
        return job.run(cluster::load);
    }
    job.serve_if_worker();
    let names = ["deadlock", "oom", "lost-node", "broadcast", "crowd", "rl"];
    match asked.as_deref() {
        Some("all") => names.iter().try_for_each(|name| one(job, name)),
        Some(name) if names.contains(&name) => one(job, name),
        _ => bail!("name one of {names:?}, or `all`"),
    }
}

/// Records one, and puts it in the place of what was there.
fn one(job: Job, name: &str) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/demo");
    let scratch = std::env::temp_dir().join(format!("odeon-record-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let draft = scratch.join("draft.odr");
    let made = match name {
        "lost-node" => cluster::lost_node(&scratch, &draft),
        "rl" => rl(&scratch, &draft),
        _ => alone(job, name, &draft),
    };
    let kept = made.and_then(|()| {
        let recording = Recording::open(&draft)?;
        let long = recording.to().since(recording.from());
        std::fs::copy(&draft, folder.join(format!("{name}.odr")))?;
        let bytes = std::fs::metadata(&draft)?.len();
        println!("{name}: {:.1} s, {bytes} bytes", long.as_secs_f64());
        Ok(())
    });
    std::fs::remove_dir_all(&scratch)?;
    kept.with_context(|| name.to_owned())
}

/// Runs a story in this process and its workers.
fn alone(job: Job, name: &str, into: &Path) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let observer = Observer::new(name, 1);
        let file = File::create(into)?;
        observer.record(Recorder::new(Box::new(file), name, today())?);
        match name {
            "deadlock" => deadlock::story(job, &observer).await?,
            "oom" => oom::story(job, &observer).await?,
            "crowd" => crowd::story(job, &observer).await?,
            _ => broadcast::story(job, &observer).await?,
        }
        observer.end_recording().context("it records")??;
        Ok(())
    })
}

/// A system with worker processes, called as in a small cluster.
async fn system(job: Job, node: &str) -> Result<System> {
    let worker = odeon::WorkerCommand::current_exe()?;
    let often = Supervision::one_for_one().budget(100, Duration::from_secs(600));
    let builder = System::builder().job(job).node(node).supervision(often);
    let builder = builder.workers(WorkerMode::Processes(worker));
    Ok(builder.start().await?)
}

/// Follows a system while something happens on it.
async fn followed(
    observer: &Observer,
    system: &System,
    does: impl Future<Output = Result<()>>,
) -> Result<()> {
    tokio::select! {
        outcome = does => outcome,
        () = observer.follow(system) => unreachable!("it looks until it is dropped"),
    }
}

/// Waits until something is seen.
async fn seen(observer: &Observer, what: &str, fact: impl Fn(&ClusterView) -> bool) -> Result<()> {
    let looking = async {
        while !observer.read(&fact) {
            Clock::sleep(Duration::from_millis(20)).await;
        }
    };
    let outcome = Clock::timeout(PATIENCE, looking).await;
    outcome.with_context(|| format!("not seen in time: {what}"))
}

/// Lets the recording go on for so long.
async fn linger(seconds: u64) {
    Clock::sleep(Duration::from_secs(seconds)).await;
}

/// The command that is recorded with.
fn odeon() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let odeon = own.with_file_name("odeon");
    ensure!(
        odeon.exists(),
        "build the command first: cargo build -p odeon-cli"
    );
    Ok(odeon)
}

/// A recipe, from its first step to its last.
fn rl(scratch: &Path, into: &Path) -> Result<()> {
    let recipe = include_str!("rl.toml");
    std::fs::write(scratch.join("rl.toml"), recipe)?;
    let run = Command::new(odeon()?)
        .current_dir(scratch)
        .args(["run", "rl.toml", "--no-ui", "--record"])
        .arg(into)
        .status()?;
    ensure!(run.success(), "the run ended with {run}");
    Ok(())
}
