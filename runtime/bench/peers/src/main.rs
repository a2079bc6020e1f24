//! Remote asks of Odeon against those of kameo and of ractor, on this machine in the same run.
//!
//! Each round measures each subject in turn, in two fresh processes of this executable: a client
//! that asks and a server with the actor that answers. Both end with the round.

mod figures;
mod report;
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
use crate::subject::Subject;

const ROUNDS: usize = 5;
/// A round of one subject takes some ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);

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
    let mut measured = Subject::ALL.map(|subject| (subject, vec![]));
    for _ in 0..rounds {
        for (subject, rounds) in &mut measured {
            let figures = one_round(*subject).await;
            rounds.push(figures.with_context(|| format!("measuring {}", subject.title()))?);
        }
    }
    say(report::tables(&measured).trim_end())
}

/// One subject's client, with a server of its own, as new processes.
async fn one_round(subject: Subject) -> Result<Figures> {
    let client = Command::new(std::env::current_exe()?)
        .args(["client", subject.name()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let ended = Clock::timeout(PATIENCE, client.wait_with_output()).await;
    let output = ended.context("it did not end in time")??;
    ensure!(output.status.success(), "its client failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
