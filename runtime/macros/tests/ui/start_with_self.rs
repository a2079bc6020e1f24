//! A start that takes what it is to make.

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(&mut self) -> Self {
        Self
    }

    #[handler]
    fn get(&self) -> u64 {
        0
    }
}

async fn run(system: odeon::System) {
    let counter = system.spawn::<Counter>(()).await.unwrap();
    counter.ask(Get).await.unwrap();
}

fn main() {}
