//! An actor that nobody can make.

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn new() -> Self {
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
