//! What it costs to be looked at: local messages of three systems side by side, with tracing off,
//! sampled as usual, and of everything, while somebody looks at each four times a second.

use std::time::Duration;

use odeon::trace::Sampling;
use odeon::{Clock, Limits, Ref, System};

use crate::row::{Row, Target};
use crate::subject::{self, Add, Subject};

const MESSAGES: u64 = 200_000;
/// How often somebody looks.
const LOOK: Duration = Duration::from_millis(250);

/// A system with one kind of tracing.
struct Traced {
    system: System,
    actor: Ref<Subject>,
    looking: tokio::task::JoinHandle<()>,
    asks: Vec<f64>,
    tells: Vec<f64>,
}

impl Traced {
    async fn start(sampling: Sampling) -> anyhow::Result<Self> {
        let mut limits = Limits::default();
        limits.trace_sampling = sampling;
        let builder = System::builder().job(subject::job()).limits(limits);
        let system = builder.start().await?;
        let actor = system.spawn::<Subject>(()).await?;
        let mut watch = system.watch();
        let looking = tokio::spawn(async move {
            loop {
                drop(watch.look(LOOK).await);
                Clock::sleep(LOOK).await;
            }
        });
        Ok(Self {
            system,
            actor,
            looking,
            asks: vec![],
            tells: vec![],
        })
    }

    async fn round(&mut self) -> anyhow::Result<()> {
        let actor = self.actor;
        let asks = async move {
            for _ in 0..MESSAGES {
                actor.ask(Add(1)).await?;
            }
            anyhow::Ok(())
        };
        self.asks
            .push(per_message(self.system.clone(), asks).await?);
        let tells = async move {
            for _ in 1..MESSAGES {
                actor.tell(Add(1)).await?;
            }
            actor.ask(Add(1)).await?;
            anyhow::Ok(())
        };
        self.tells
            .push(per_message(self.system.clone(), tells).await?);
        Ok(())
    }

    async fn end(self) -> (Vec<f64>, Vec<f64>) {
        self.looking.abort();
        self.system.shutdown().await;
        (self.asks, self.tells)
    }
}

/// Nanoseconds for each of [`MESSAGES`] steps of `work`, in a task of the runtime's own.
async fn per_message(
    system: System,
    work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<f64> {
    tokio::spawn(async move {
        let begun = Clock::now();
        system.scope(work).await?;
        Ok(Clock::now().since(begun).as_nanos() as f64 / MESSAGES as f64)
    })
    .await?
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let mut off = Traced::start(Sampling::Off).await?;
    let mut usual = Traced::start(Sampling::default()).await?;
    let mut all = Traced::start(Sampling::All).await?;
    for _ in 0..rounds {
        off.round().await?;
        usual.round().await?;
        all.round().await?;
    }
    let (off_asks, off_tells) = off.end().await;
    let (asks, tells) = usual.end().await;
    let (all_asks, all_tells) = all.end().await;
    let row = |name, ours: &[f64], floor: &[f64], most| {
        let target = Target::RatioAtMost(most);
        Row::against(name, "ns", ours, ("tracing off", floor), target)
    };
    Ok(vec![
        row("ask, sampled", &asks, &off_asks, 1.03),
        row("tell, sampled", &tells, &off_tells, 1.03),
        row("ask, all traced", &all_asks, &off_asks, 1.10),
        row("tell, all traced", &all_tells, &off_tells, 1.10),
    ])
}
