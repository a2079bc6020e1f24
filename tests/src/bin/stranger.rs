//! A job's program that was built from other messages than those of `job`: its argument names a
//! detached actor that it tries to use.

use std::process::ExitCode;

use odeon::{Context, Failure, System, SystemError};

/// The type that this program takes `job.Board` for.
struct Board;

#[odeon::actor(name = "job.Board")]
impl Board {
    async fn start(_args: (), _cx: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }

    /// Of other fields than there.
    #[handler]
    async fn add(&mut self, _n: f64) -> u64 {
        0
    }

    /// Not known there.
    #[handler]
    async fn undo(&mut self) {}

    /// Known there.
    #[handler]
    async fn score(&mut self) -> u64 {
        0
    }
}

/// Another type.
struct Chess;

#[odeon::actor(name = "stranger.Chess")]
impl Chess {
    async fn start(_args: (), _cx: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }

    #[handler]
    async fn moves(&mut self) {}
}

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let done = odeon::job![Board, Chess].run(async |system| uses(&system, &name).await);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn uses(system: &System, name: &str) -> Result<(), SystemError> {
    if let Err(error) = system.bind::<Board>(name).await {
        println!("{error}");
    }
    if let Err(error) = system.bind::<Chess>(name).await {
        println!("{error}");
    }
    let refused = |error: String| SystemError::Refused(error);
    let board = system.bind_message::<Score>(name).await;
    let board = board.map_err(|error| refused(error.to_string()))?;
    let score = board.ask(Score {}).await;
    println!(
        "score {}",
        score.map_err(|error| refused(error.to_string()))?
    );
    Ok(())
}
