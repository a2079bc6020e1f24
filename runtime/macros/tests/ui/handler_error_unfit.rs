//! A reply with an error of the program's own.

#[derive(Debug)]
pub enum Refused {
    TooMany,
}

struct Counter(u64);

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(first: u64) -> Self {
        Self(first)
    }

    #[handler]
    fn add(&mut self, n: u64) -> Result<u64, Refused> {
        self.0 = self.0.checked_add(n).ok_or(Refused::TooMany)?;
        Ok(self.0)
    }
}

fn main() -> odeon::Result<()> {
    odeon::job![Counter].run(async |system: odeon::System| {
        let counter = system.spawn::<Counter>(40).await?;
        assert_eq!(counter.ask(Add { n: 2 }).await?.unwrap(), 42);
        Ok(())
    })
}
