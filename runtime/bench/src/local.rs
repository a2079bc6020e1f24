//! Local messages against bare kameo, on the same tokio runtime.

use kameo::actor::{ActorRef, Spawn};
use kameo::mailbox;
use odeon::{Clock, Ref};

use crate::row::{Row, Target};
use crate::subject::{self, Add, Subject};
use crate::turns::{in_turns, measured};

const MESSAGES: u64 = 40_000;

/// The same actor as [`Subject`], on kameo alone.
#[derive(kameo::Actor)]
pub(crate) struct Bare(pub(crate) u64);

impl kameo::message::Message<Add> for Bare {
    type Reply = u64;
    async fn handle(&mut self, Add(n): Add, _: &mut kameo::message::Context<Self, u64>) -> u64 {
        self.0 += n;
        self.0
    }
}

/// Nanoseconds for each of `MESSAGES` steps of `work`, in a task of the runtime's own.
async fn per_message(
    work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<f64> {
    tokio::spawn(async move {
        let begun = Clock::now();
        work.await?;
        Ok(Clock::now().since(begun).as_nanos() as f64 / MESSAGES as f64)
    })
    .await?
}

async fn bare_ask(actor: ActorRef<Bare>) -> anyhow::Result<()> {
    for _ in 0..MESSAGES {
        actor.ask(Add(1)).await?;
    }
    Ok(())
}

async fn bare_ask_send(actor: ActorRef<Bare>) -> anyhow::Result<()> {
    for _ in 0..MESSAGES {
        actor.ask(Add(1)).send().await?;
    }
    Ok(())
}

async fn ask(actor: Ref<Subject>) -> anyhow::Result<()> {
    for _ in 0..MESSAGES {
        actor.ask(Add(1)).await?;
    }
    Ok(())
}

// A run of tells ends when the last one is handled, which an ask behind them shows.

async fn bare_tell(actor: ActorRef<Bare>) -> anyhow::Result<()> {
    for _ in 1..MESSAGES {
        actor.tell(Add(1)).await?;
    }
    actor.ask(Add(1)).await?;
    Ok(())
}

async fn bare_tell_send(actor: ActorRef<Bare>) -> anyhow::Result<()> {
    for _ in 1..MESSAGES {
        actor.tell(Add(1)).send().await?;
    }
    actor.ask(Add(1)).await?;
    Ok(())
}

async fn tell(actor: Ref<Subject>) -> anyhow::Result<()> {
    for _ in 1..MESSAGES {
        actor.tell(Add(1)).await?;
    }
    actor.ask(Add(1)).await?;
    Ok(())
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let system = subject::system().await?;
    let actor = system.spawn::<Subject>(()).await?;
    // As many messages as our mailbox holds.
    let bare = Bare::spawn_with_mailbox(Bare(0), mailbox::bounded(1024));
    let subjects = [
        measured(|| per_message(bare_ask(bare.clone()))),
        measured(|| per_message(ask(actor))),
        measured(|| per_message(bare_ask_send(bare.clone()))),
        measured(|| per_message(bare_tell(bare.clone()))),
        measured(|| per_message(tell(actor))),
        measured(|| per_message(bare_tell_send(bare.clone()))),
    ];
    let [
        bare_ask,
        ask,
        bare_ask_send,
        bare_tell,
        tell,
        bare_tell_send,
    ] = &in_turns(rounds, subjects).await?;
    system.shutdown().await;
    let (asked, told) = (Target::RatioAtMost(1.2), Target::RatioAtMost(1.3));
    let row = |name, ours, floor, target| Row::against(name, "ns", ours, floor, target);
    Ok(vec![
        row("local ask", ask, ("kameo ask(m).await", bare_ask), asked),
        row(
            "local ask, boxless",
            ask,
            ("kameo ask(m).send().await", bare_ask_send),
            asked,
        ),
        row("local tell", tell, ("kameo tell(m).await", bare_tell), told),
        row(
            "local tell, boxless",
            tell,
            ("kameo tell(m).send().await", bare_tell_send),
            told,
        ),
    ])
}
