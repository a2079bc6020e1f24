//! An actor without a name.

struct Counter(u64);

#[odeon::actor]
impl Counter {
    fn start(first: u64) -> Self {
        Self(first)
    }

    #[handler]
    fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }
}

fn main() -> odeon::Result<()> {
    odeon::job![Counter].run(async |system: odeon::System| {
        let counter = system.spawn::<Counter>(40).await?;
        counter.ask(Add { n: 2 }).await?;
        Ok(())
    })
}
