//! An actor that is made from a type which cannot be cloned.

#[odeon::wire]
pub struct Config {
    first: u64,
}

struct Counter(u64);

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(config: Config) -> Self {
        Self(config.first)
    }
}

async fn run(system: odeon::System) {
    system.spawn::<Counter>(Config { first: 1 }).await.unwrap();
}

fn main() {}
