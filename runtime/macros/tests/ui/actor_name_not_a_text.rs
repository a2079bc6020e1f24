//! A type for the name of an actor.

struct Counter;

#[odeon::actor(name = Counter)]
impl Counter {
    fn start() -> Self {
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
