//! An actor that outlives the program that spawned it.
//!
//! Alone this plays two games and forgets them. On a cluster the board stays, for whoever plays next:
//!
//! ```sh
//! odeon up
//! cargo build -p odeon-examples --example leaderboard
//! odeon submit --wait target/debug/examples/leaderboard -- ann 3
//! odeon submit --wait target/debug/examples/leaderboard -- bob 5
//! odeon jobs     # the board is a job of its own; `odeon stop` ends it
//! odeon down
//! ```

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use odeon::prelude::*;

/// The number of wins of each player.
struct Leaderboard {
    wins: BTreeMap<String, u32>,
}

#[odeon::actor(name = "games.Leaderboard")]
impl Leaderboard {
    fn start(_args: ()) -> Self {
        let wins = BTreeMap::new();
        Self { wins }
    }

    /// Somebody has won so many games more; how many that makes.
    #[handler]
    pub fn win(&mut self, name: String, games: u32) -> u32 {
        let wins = self.wins.entry(name).or_default();
        *wins += games;
        *wins
    }

    /// The best first.
    #[handler]
    pub fn standing(&self) -> Vec<(String, u32)> {
        let wins = self.wins.iter();
        let mut rows: Vec<_> = wins.map(|(name, wins)| (name.clone(), *wins)).collect();
        rows.sort_by_key(|(_, wins)| std::cmp::Reverse(*wins));
        rows
    }
}

/// Plays as somebody, on the board that is there or a new one.
async fn play(system: &System, name: &str, games: u32) -> anyhow::Result<()> {
    let board = system.spawn::<Leaderboard>(());
    let board = board.detached("leaderboard").or_existing().await?;
    let name = name.to_owned();
    let won = board.ask(Win { name, games }).await?;
    ensure!(won >= games, "the board has forgotten games of its own");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon::job![Leaderboard].run(async |system| -> Result<(), anyhow::Error> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        match args.as_slice() {
            [name, games] => {
                let games = games.parse().context("how many games?")?;
                play(&system, name, games).await?;
            }
            _ => {
                play(&system, "ann", 3).await?;
                play(&system, "bob", 5).await?;
            }
        }
        // Found by its name, as any other program would.
        let board = system.bind::<Leaderboard>("leaderboard").await?;
        for (name, wins) in board.ask(Standing {}).await? {
            println!("{name:<10}{wins}");
        }
        Ok(())
    })
}
