//! A runtime that a command waits on.

use std::future::Future;
use std::pin::Pin;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

/// A tokio runtime that compiles its loop once, and not for each future that a command waits for.
#[derive(Debug)]
pub(crate) struct Waiter(Runtime);

impl Waiter {
    /// With this thread alone, for commands that ask and wait.
    pub(crate) fn alone() -> Result<Self> {
        Self::built(&mut Builder::new_current_thread())
    }

    /// With a thread for each processor, for commands that work meanwhile.
    pub(crate) fn with_threads() -> Result<Self> {
        Self::built(&mut Builder::new_multi_thread())
    }

    fn built(builder: &mut Builder) -> Result<Self> {
        let runtime = builder.enable_all().build();
        Ok(Self(runtime.context("starting tokio")?))
    }

    /// Runs until the future is at its end.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut answer = None;
        self.run(Box::pin(async { answer = Some(future.await) }));
        answer.expect("the future has ended")
    }

    fn run(&self, future: Pin<Box<dyn Future<Output = ()> + '_>>) {
        self.0.block_on(future);
    }
}
