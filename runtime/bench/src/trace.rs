//! The cost of tracing and of being looked at: local messages of five systems side by side. Three have
//! tracing off, one is sampled as usual, and one of everything; somebody looks at each four times a second,
//! save at one.

use std::time::Duration;

use odeon::trace::Sampling;
use odeon::{Clock, Limits, Ref, System};

use crate::row::{Row, Target};
use crate::subject::{self, Add, Subject};

const MESSAGES: u64 = 200_000;
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// A system with one kind of tracing.
struct Traced {
    system: System,
    actor: Ref<Subject>,
    looking: Option<tokio::task::JoinHandle<()>>,
    asks: Vec<f64>,
    tells: Vec<f64>,
}

impl Traced {
    async fn start(sampling: Sampling, looked_at: bool) -> anyhow::Result<Self> {
        let mut limits = Limits::default();
        limits.trace_sampling = sampling;
        let builder = System::builder().job(subject::job()).limits(limits);
        let system = builder.start().await?;
        let actor = system.spawn::<Subject>(()).await?;
        let mut watch = system.admin().watch();
        let looking = async move {
            loop {
                drop(watch.look(LOOK).await);
                Clock::sleep(LOOK).await;
            }
        };
        Ok(Self {
            system,
            actor,
            looking: looked_at.then(|| tokio::spawn(looking)),
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
        if let Some(looking) = self.looking {
            looking.abort();
        }
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
    // The first is the floor. The second is another of the same: what it differs from the first is what
    // two systems differ anyway.
    let systems = [
        (Sampling::Off, true),
        (Sampling::Off, true),
        (Sampling::default(), true),
        (Sampling::All, true),
        (Sampling::Off, false),
    ];
    let mut traced = vec![];
    for (tracing, looked_at) in systems {
        traced.push(Traced::start(tracing, looked_at).await?);
    }
    for round in 0..rounds {
        // Nobody is always behind the same one.
        for at in 0..traced.len() {
            let next = (round + at) % traced.len();
            traced[next].round().await?;
        }
    }
    let mut times = vec![];
    for system in traced {
        times.push(system.end().await);
    }
    let rows = [
        ("off, another time", 1, None),
        ("sampled", 2, Some(Target::RatioAtMost(1.03))),
        ("all traced", 3, Some(Target::RatioAtMost(1.05))),
    ];
    let (asks, tells) = &times[0];
    let (unseen_asks, unseen_tells) = &times[4];
    let row = |what: &str, ours: &[f64], floor: &[f64], target: Option<Target>| {
        Row::against(what, "ns", ours, ("tracing off", floor), target)
    };
    let rows = rows.into_iter().flat_map(|(what, at, target)| {
        let (own_asks, own_tells) = &times[at];
        [
            row(&format!("ask, {what}"), own_asks, asks, target),
            row(&format!("tell, {what}"), own_tells, tells, target),
        ]
    });
    let looked_at = [
        ("ask, looked at", asks, unseen_asks),
        ("tell, looked at", tells, unseen_tells),
    ];
    let looked_at = looked_at.into_iter().map(|(what, ours, floor)| {
        let target = Target::RatioAtMost(1.02);
        Row::against(what, "ns", ours, ("nobody looks", floor), target)
    });
    Ok(rows.chain(looked_at).collect())
}
