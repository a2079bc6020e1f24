//! Remote asks and processes of Odeon against those of Ray, Monarch, kameo and ractor, on this machine
//! in the same run.
//!
//! Each round measures each subject in turn. A library in Rust gets two fresh processes of this
//! executable: a client that asks and a server with the actor that answers. Ray and Monarch get a
//! fresh process of their script, which starts what it asks. All end with the round.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `subject`, `subject/*` | the libraries that are measured; each one in Rust has a file, with an actor that answers and a client that asks |
//! | `script` | the scripts that measure libraries in Python |
//! | `server` | the process that answers, as its client starts and ends it |
//! | `figures`, `report` | what is measured of each; the tables of all rounds |

mod figures;
mod report;
mod script;
mod server;
mod subject;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use odeon::Clock;
use tokio::process::Command;

use crate::figures::Figures;
use crate::script::Script;
use crate::subject::Subject;

const ROUNDS: usize = 5;
/// A round of one subject takes some ten seconds, of a script a minute.
const PATIENCE: Duration = Duration::from_secs(400);

fn main() -> Result<()> {
    // The same binary is Odeon's worker process.
    subject::odeon::job().serve_if_worker();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        match arguments[..] {
            [] => compare(ROUNDS).await,
            ["--rounds", rounds] => compare(rounds.parse()?).await,
            ["client", name] => say(&serde_json::to_string(
                &Subject::named(name)?.measure().await?,
            )?),
            ["server", name, folder] => Subject::named(name)?.serve(Path::new(folder)).await,
            _ => bail!("usage: odeon-peers [--rounds N]"),
        }
    });
    runtime.shutdown_background();
    outcome
}

/// Measures every subject in every round, and prints what came out.
async fn compare(rounds: usize) -> Result<()> {
    let mut measured = vec![];
    for subject in Subject::ALL {
        let installed = match subject.script() {
            Some(script) => script.install().await,
            None => Ok(()),
        };
        match installed {
            Ok(()) => measured.push((subject, vec![])),
            Err(error) => tell(&format!("skipped: {}: {error:#}", subject.title()))?,
        }
    }
    for round in 1..=rounds {
        for (subject, rounds) in &mut measured {
            tell(&format!("round {round}: {}", subject.title()))?;
            let figures = one_round(*subject).await;
            let figures = figures.with_context(|| format!("measuring {}", subject.title()));
            rounds.push(match figures {
                // What the others took minutes for is not to be lost with one round of a script.
                Err(error) if subject.script().is_some() => {
                    tell(&format!("left out: {error:#}"))?;
                    None
                }
                figures => Some(figures?),
            });
        }
    }
    say(&format!(
        "{}- {}, {rounds} rounds",
        report::tables(&measured),
        machine()
    ))
}

/// The cores and the processor.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = told.lines().find_map(|line| {
        let (name, model) = line.split_once(':')?;
        (name.trim() == "model name").then(|| model.trim())
    });
    format!(
        "{cores} cores, {}",
        model.unwrap_or("of a processor that is not named")
    )
}

/// One subject's client, with a server of its own, as new processes.
async fn one_round(subject: Subject) -> Result<Figures> {
    let mut client = match subject.script() {
        Some(script) => script.command()?,
        None => {
            let mut client = Command::new(std::env::current_exe()?);
            client.args(["client", subject.name()]);
            client
        }
    };
    let client = client
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let ended = Clock::timeout(PATIENCE, client.wait_with_output()).await;
    let output = ended.context("it did not end in time")??;
    ensure!(output.status.success(), "its client failed");
    match subject.script() {
        Some(_) => Script::figures(&output.stdout),
        None => Ok(serde_json::from_slice(&output.stdout)?),
    }
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Apart from the tables.
fn tell(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stderr(), "{text}")?)
}
