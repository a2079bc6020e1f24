//! Ten thousand actors, some of which have work at any moment.

use std::time::Duration;

use anyhow::Result;
use odeon::{Clock, Job, Ref};
use odeon_observe::Observer;

use super::{followed, system};

/// Does a little when it is told to, and passes some of it on.
pub(crate) struct Cell {
    sum: u64,
}

const CELLS: usize = 10_000;
/// Cells that are told something in a turn, of which there are so many.
const TOLD: usize = 60;
const TURNS: usize = 100;
const PAUSE: Duration = Duration::from_millis(120);

#[odeon::actor(name = "crowd.Cell")]
impl Cell {
    fn start(_args: ()) -> Self {
        Self { sum: 0 }
    }

    #[handler]
    fn add(&mut self, n: u64) {
        self.sum = self.sum.wrapping_mul(31).wrapping_add(n);
    }

    #[handler]
    async fn work(&mut self) -> u64 {
        Clock::sleep(Duration::from_millis(30)).await;
        self.sum
    }
}

pub(crate) async fn story(job: Job, observer: &Observer) -> Result<()> {
    let system = system(job, "n1").await?;
    let mut cells: Vec<Ref<Cell>> = vec![];
    for _ in 0..CELLS {
        cells.push(system.spawn::<Cell>(()).await?);
    }
    let steps = async {
        for turn in 0..TURNS {
            // A few are told much, and others now and then.
            for at in 0..TOLD {
                let cell = cells[(turn / 10 * 997 + at * 13) % 600];
                cell.tell(Add { n: at as u64 }).await?;
            }
            let busy = cells[(turn / 20 * 31) % 40];
            let asked = busy.ask(Work).timeout(Duration::from_secs(5));
            drop(tokio::spawn(asked.into_future()));
            Clock::sleep(PAUSE).await;
        }
        Ok(())
    };
    followed(observer, &system, steps).await?;
    system.shutdown().await;
    Ok(())
}
