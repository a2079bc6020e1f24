//! A learner whose cache grows until its process has no memory left, again and again.

use std::time::Duration;

use anyhow::Result;
use odeon::{Clock, Context, Failure, Job, Ref, Restart, Supervision};
use odeon_observe::Observer;
use odeon_observe::actor::State;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{followed, linger, seen, system};

/// Supervises a learner, four times.
pub(crate) struct Team(Ref<Learner>);

/// Keeps the activations of every step, which is its fault.
pub(crate) struct Learner {
    cache: Vec<Vec<u8>>,
}

/// Bytes that a step keeps.
const STEP: usize = 48 << 20;
/// Bytes that the process may have beyond those that it has when it starts.
const ROOM: u64 = 400 << 20;

#[odeon::actor(name = "train.Team")]
impl Team {
    fn supervision() -> Supervision {
        Supervision::one_for_one().budget(4, Duration::from_secs(60))
    }

    async fn start(_args: (), cx: &mut Context<Self>) -> Result<Self, Failure> {
        let learner = cx.spawn::<Learner>(()).restart(Restart::Permanent);
        Ok(Self(learner.isolated().await.map_err(Failure::error)?))
    }

    #[handler]
    fn get_learner(&mut self) -> Ref<Learner> {
        self.0
    }
}

#[odeon::actor(name = "train.Learner")]
impl Learner {
    fn start(_args: ()) -> Result<Self, Failure> {
        bound_memory().map_err(Failure::error)?;
        Ok(Self { cache: vec![] })
    }

    #[handler]
    async fn step(&mut self, cx: &mut Context<Self>) -> usize {
        Clock::sleep(Duration::from_millis(110)).await;
        let mut kept = vec![];
        match kept.try_reserve_exact(STEP) {
            Ok(()) => {
                kept.resize(STEP, 1);
                self.cache.push(kept);
            }
            Err(error) => {
                let have = self.cache.len() * (STEP >> 20);
                cx.fail(Failure::error(format!(
                    "out of memory: {} MiB more for activations, beside {have} MiB: {error}",
                    STEP >> 20
                )));
            }
        }
        self.cache.len()
    }
}

/// Bounds the memory of this process.
fn bound_memory() -> std::io::Result<()> {
    if getrlimit(Resource::As).current.is_some() {
        return Ok(());
    }
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages = pages
        .split(' ')
        .next()
        .and_then(|it| it.parse::<u64>().ok());
    let most = pages.unwrap_or(0) * rustix::param::page_size() as u64 + ROOM;
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(Resource::As, limit)?)
}

pub(crate) async fn story(job: Job, observer: &Observer) -> Result<()> {
    let system = system(job, "n1").await?;
    let temporary = Restart::Temporary;
    let team = system.spawn::<Team>(()).restart(temporary).await?;
    system.register("team", team).await?;
    let learner = team.ask(GetLearner).await?;
    let steps = async {
        let failed = |it: &odeon_observe::ClusterView| {
            let row = it.actors().get(team.id());
            row.is_some_and(|row| row.state == State::Failed)
        };
        while !observer.read(failed) {
            let step = learner.ask(Step).timeout(Duration::from_secs(5));
            if step.await.is_err() {
                // While it begins anew there is nobody to ask, and that is said at once.
                Clock::sleep(Duration::from_millis(100)).await;
            }
        }
        seen(observer, "the end of the team", failed).await?;
        linger(6).await;
        Ok(())
    };
    followed(observer, &system, steps).await?;
    system.shutdown().await;
    Ok(())
}
