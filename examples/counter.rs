//! An actor, its messages, and a reference to it: the smallest program.

use anyhow::ensure;
use odeon::prelude::*;

struct Counter {
    sum: u64,
}

#[odeon::actor(name = "demo.Counter")]
impl Counter {
    /// An actor is made from its arguments: now, after a failure, in another process.
    fn start(first: u64) -> Self {
        Self { sum: first }
    }

    /// Adds to the sum and answers it. Declares the message `Add { n }`.
    #[handler]
    fn add(&mut self, n: u64) -> u64 {
        self.sum += n;
        self.sum
    }

    /// Divides the sum. A panic here ends this life of the actor, and nothing else.
    #[handler]
    fn divide(&mut self, by: u64) -> u64 {
        self.sum /= by;
        self.sum
    }
}

/// Code that holds a reference needs no more than that, wherever the actor runs.
async fn count_to(counter: Ref<Counter>, n: u64) -> Result<u64, AskError> {
    for _ in 1..n {
        // Accepted by the mailbox, not answered.
        counter
            .tell(Add { n: 1 })
            .await
            .map_err(|refused| refused.error)?;
    }
    counter.ask(Add { n: 1 }).await
}

async fn story(system: System) -> anyhow::Result<()> {
    let counter = system.spawn::<Counter>(0).await?;
    let sum = count_to(counter, 10).await?;
    println!("ten messages later the sum is {sum}");
    ensure!(sum == 10);

    let half = counter.ask(Divide { by: 2 }).await?;
    println!("half of it is {half}");
    ensure!(half == 5);

    let Err(error) = counter.ask(Divide { by: 0 }).await else {
        anyhow::bail!("a division by zero was answered");
    };
    println!("dividing by zero: {error}");
    ensure!(matches!(error, AskError::Died(_)));

    let sum = counter.ask(Add { n: 1 }).await?;
    println!("the same reference, after a restart from the arguments: {sum}");
    ensure!(sum == 1);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon::job![Counter].run(story)
}
