//! A pipeline that works, until two of its stages in two processes ask each other at the same time.

use std::time::Duration;

use anyhow::Result;
use odeon::{AskError, Clock, Job, Ref};
use odeon_observe::Observer;

use super::{followed, linger, seen, system};

/// A stage, which asks others for parts of what it is asked.
pub(crate) struct Stage {
    done: u64,
}

const PATIENCE: Duration = Duration::from_secs(300);

#[odeon::actor(name = "pipeline.Stage")]
impl Stage {
    fn start(_args: ()) -> Self {
        Self { done: 0 }
    }

    #[handler]
    async fn prepare(&mut self) -> u64 {
        Clock::sleep(Duration::from_millis(4)).await;
        self.done += 1;
        self.done
    }

    /// Has another prepare something first.
    #[handler]
    async fn pack(&mut self, from: Ref<Stage>) -> Result<u64, AskError> {
        Clock::sleep(Duration::from_millis(6)).await;
        from.ask(Prepare).timeout(PATIENCE).await
    }

    /// Has another review what it made, who packs it anew from there.
    #[handler]
    async fn review(&mut self, by: Ref<Stage>, from: Ref<Stage>) -> Result<u64, AskError> {
        by.ask(Pack { from }).timeout(PATIENCE).await?
    }
}

pub(crate) async fn story(job: Job, observer: &Observer) -> Result<()> {
    let system = system(job, "n1").await?;
    let loader = system.spawn::<Stage>(()).await?;
    let planner = system.spawn::<Stage>(()).await?;
    let packer = system.spawn::<Stage>(()).isolated().await?;
    let trainer = system.spawn::<Stage>(()).isolated().await?;
    for (name, stage) in [
        ("loader", loader),
        ("planner", planner),
        ("packer", packer),
        ("trainer", trainer),
    ] {
        system.register(name, stage).await?;
    }
    let work = async {
        for turn in 0..300_u32 {
            packer.ask(Pack { from: loader }).await??;
            if turn % 3 == 0 {
                trainer
                    .ask(Review {
                        by: packer,
                        from: loader,
                    })
                    .await??;
            }
            Clock::sleep(Duration::from_millis(8)).await;
        }
        Ok::<_, anyhow::Error>(())
    };
    let steps = async {
        work.await?;
        // The planner waits for the packer, which waits for the planner.
        let stuck = planner.ask(Review {
            by: packer,
            from: planner,
        });
        let stuck = tokio::spawn(stuck.timeout(PATIENCE).into_future());
        let found = |it: &odeon_observe::ClusterView| {
            it.findings().iter().any(|it| it.cause.rule == "deadlock")
        };
        seen(observer, "the deadlock", found).await?;
        // Others run into it.
        let late = trainer.ask(Pack { from: planner });
        let late = tokio::spawn(late.timeout(PATIENCE).into_future());
        linger(8).await;
        stuck.abort();
        late.abort();
        Ok(())
    };
    followed(observer, &system, steps).await?;
    // Whoever is in the circle never ends by itself.
    for (process, _) in system.admin().workers() {
        // One that is gone already is what is wanted.
        let _gone = system.admin().kill_worker(process);
    }
    Ok(())
}
