//! An actor that is made from a type of the program's own.

pub struct Config {
    first: u64,
}

struct Counter(u64);

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(config: Config) -> Self {
        Self(config.first)
    }

    #[handler]
    fn get(&self) -> u64 {
        self.0
    }
}

fn main() -> odeon::Result<()> {
    odeon::job![Counter].run(async |system: odeon::System| {
        let counter = system.spawn::<Counter>(Config { first: 1 }).await?;
        counter.ask(Get).await?;
        Ok(())
    })
}
