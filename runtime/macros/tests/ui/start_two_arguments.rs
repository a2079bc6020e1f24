//! A start with two arguments.

struct Counter(u64);

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(first: u64, step: u64) -> Self {
        Self(first + step)
    }

    #[handler]
    fn get(&self) -> u64 {
        self.0
    }
}

async fn run(system: odeon::System) -> u64 {
    let counter = system.spawn::<Counter>((40, 2)).await.unwrap();
    counter.ask(Get).await.unwrap()
}

fn main() {}
