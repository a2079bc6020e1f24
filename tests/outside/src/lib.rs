//! A counter as a user writes it, and tests of it beside it.

/// A sum.
#[derive(Debug)]
pub struct Counter {
    sum: u64,
}

#[odeon::actor(name = "outside.Counter")]
impl Counter {
    fn start(first: u64) -> Self {
        Self { sum: first }
    }

    /// Adds to the sum and answers it.
    #[handler]
    pub fn add(&mut self, n: u64) -> u64 {
        self.sum += n;
        self.sum
    }

    /// The number of a text is added.
    #[handler]
    pub fn add_text(&mut self, text: String) -> anyhow::Result<u64> {
        self.sum += text.trim().parse::<u64>()?;
        Ok(self.sum)
    }

    /// The process that it runs in.
    #[handler]
    pub fn pid(&self) -> u32 {
        println!("a worker prints a line");
        std::process::id()
    }

    /// Ends its process.
    #[handler]
    pub fn abort(&self) {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    mod deep {
        use odeon::prelude::*;

        use crate::{Counter, Pid};

        #[odeon::test(actors(Counter))]
        async fn a_unit_test_has_worker_processes(system: System) -> odeon::Result<()> {
            let counter = system.spawn::<Counter>(1).isolated().await?;
            assert_ne!(counter.ask(Pid).await?, std::process::id());
            Ok(())
        }
    }
}
