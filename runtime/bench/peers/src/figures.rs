//! Measurements of one subject, the same for each.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon::Clock;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// 64 bytes there and back.
pub(crate) type Payload = [u64; 8];
/// Large words, so that no encoding makes them shorter.
pub(crate) const PAYLOAD: Payload = [u64::from_be_bytes([7; 8]); 8];

/// Asks under way at once.
pub(crate) const OUTSTANDING: usize = 1_000;

const WARM_UP: Duration = Duration::from_millis(500);
const ONE_AT_A_TIME: Duration = Duration::from_secs(2);
const MANY_AT_ONCE: Duration = Duration::from_secs(3);

/// Processes that are started at once.
pub(crate) const PROCESSES: usize = 50;
/// Processes that are killed, one after the other.
pub(crate) const KILLS: usize = 5;

/// One round of one subject.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Microseconds of an ask while no other is under way: half are quicker.
    pub(crate) p50: f64,
    /// The same: all but one in a hundred are quicker.
    pub(crate) p99: f64,
    /// Answers per second with [`OUTSTANDING`] asks under way, all from one task.
    pub(crate) one_task: f64,
    /// The same with a task for each, which asks again when it is answered.
    pub(crate) many_tasks: f64,
    /// The share of the asks of both that failed. They do not count as answers.
    #[serde(default)]
    pub(crate) failed: f64,
    /// Seconds until each of [`PROCESSES`] actors, all in processes of their own, has answered.
    #[serde(default)]
    pub(crate) start: Option<f64>,
    /// Seconds from the kill of an actor's process to the actor's next answer.
    #[serde(default)]
    pub(crate) restart: Option<f64>,
    /// Further figures of a script, by their names.
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, f64>,
}

impl Figures {
    /// Measures `ask`, whose result is the reply to [`PAYLOAD`].
    pub(crate) async fn of<F>(ask: impl Fn() -> F + Clone + Send + Sync + 'static) -> Result<Self>
    where
        F: Future<Output = Result<Payload>> + Send + 'static,
    {
        tokio::spawn(async move {
            one_at_a_time(&ask, WARM_UP).await?;
            let mut times = one_at_a_time(&ask, ONE_AT_A_TIME).await?;
            times.sort_by(f64::total_cmp);
            let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
            from_one_task(&ask, WARM_UP).await?;
            let one_task = from_one_task(&ask, MANY_AT_ONCE).await?;
            let many_tasks = from_many_tasks(&ask, MANY_AT_ONCE).await?;
            let failed = one_task.failed + many_tasks.failed;
            Ok(Self {
                p50: at(0.5),
                p99: at(0.99),
                one_task: one_task.rate(),
                many_tasks: many_tasks.rate(),
                failed: failed / (failed + one_task.answered + many_tasks.answered),
                ..Self::default()
            })
        })
        .await?
    }

    /// Answers per second, the better of the two ways.
    pub(crate) fn rate(&self) -> f64 {
        self.one_task.max(self.many_tasks)
    }
}

/// The microseconds of each ask.
async fn one_at_a_time<F>(ask: &impl Fn() -> F, span: Duration) -> Result<Vec<f64>>
where
    F: Future<Output = Result<Payload>>,
{
    let end = Clock::now().after(span);
    let mut times = vec![];
    loop {
        let begun = Clock::now();
        ensure!(ask().await? == PAYLOAD, "the reply is not what was sent");
        let now = Clock::now();
        times.push(now.since(begun).as_nanos() as f64 / 1e3);
        if now >= end {
            return Ok(times);
        }
    }
}

/// Numbers of asks that were answered and that failed, and the seconds they took.
#[derive(Default)]
struct Count {
    answered: f64,
    failed: f64,
    seconds: f64,
}

impl Count {
    fn add(&mut self, outcome: &Result<Payload>) -> Result<()> {
        match outcome {
            Ok(PAYLOAD) => self.answered += 1.0,
            Ok(_) => bail!("the reply is not what was sent"),
            Err(_) => self.failed += 1.0,
        }
        Ok(())
    }

    fn rate(&self) -> f64 {
        self.answered / self.seconds
    }
}

/// As `odeon bench` does it: without tokio's cooperative budget, which else parks a task that drives
/// many futures and would hide what a link can do.
async fn from_one_task<F>(ask: &impl Fn() -> F, span: Duration) -> Result<Count>
where
    F: Future<Output = Result<Payload>>,
{
    tokio::task::unconstrained(async {
        let begun = Clock::now();
        let end = begun.after(span);
        let mut count = Count::default();
        let mut under_way: FuturesUnordered<F> = (0..OUTSTANDING).map(|_| ask()).collect();
        while let Some(outcome) = under_way.next().await {
            count.add(&outcome)?;
            if Clock::now() >= end {
                break;
            }
            under_way.push(ask());
        }
        count.seconds = Clock::now().since(begun).as_secs_f64();
        Ok(count)
    })
    .await
}

/// As a program with many tasks does it.
async fn from_many_tasks<F>(
    ask: &(impl Fn() -> F + Clone + Send + 'static),
    span: Duration,
) -> Result<Count>
where
    F: Future<Output = Result<Payload>> + Send + 'static,
{
    let begun = Clock::now();
    let end = begun.after(span);
    let mut tasks = JoinSet::new();
    for _ in 0..OUTSTANDING {
        let ask = ask.clone();
        tasks.spawn(async move {
            let mut count = Count::default();
            while Clock::now() < end {
                count.add(&ask().await)?;
            }
            anyhow::Ok(count)
        });
    }
    let mut all = Count::default();
    while let Some(count) = tasks.join_next().await {
        let Count {
            answered, failed, ..
        } = count??;
        all.answered += answered;
        all.failed += failed;
    }
    all.seconds = Clock::now().since(begun).as_secs_f64();
    Ok(all)
}
