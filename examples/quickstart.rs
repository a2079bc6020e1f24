//! The program that the README shows: an actor in a process of its own, which is killed.

use odeon::prelude::*;

struct Counter {
    sum: u64,
}

#[odeon::actor(name = "quickstart.Counter")]
impl Counter {
    fn start(first: u64) -> Self {
        Self { sum: first }
    }

    #[handler]
    fn add(&mut self, n: u64) -> u64 {
        self.sum += n;
        self.sum
    }
}

fn main() -> anyhow::Result<()> {
    odeon::job![Counter].run(async |system| {
        let counter = system
            .spawn::<Counter>(40)
            .restart(Restart::Permanent)
            .isolated()
            .await?;
        println!("40 + 2 = {}", counter.ask(Add { n: 2 }).await?);

        let process = system.admin().process_of(counter).expect("it runs");
        assert!(system.admin().kill_worker(process));
        println!("lost: {}", counter.down().await.reason);

        println!("made again: 40 + 1 = {}", counter.ask(Add { n: 1 }).await?);
        Ok(())
    })
}
