//! A runtime of one thread beside the one that measures, for floors that need no second.

use std::sync::mpsc;

use anyhow::Context;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::far;

/// The runtime; it ends when this is dropped.
pub(crate) struct Alone {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl Alone {
    /// Starts the thread.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (end, ended) = oneshot::channel::<()>();
        let (say, said) = mpsc::channel();
        std::thread::Builder::new()
            .name("floor".to_owned())
            .spawn(move || {
                let runtime = far::one_thread();
                let handle = runtime.as_ref().map(|runtime| runtime.handle().clone());
                // Nobody may wait for it any more.
                let _ = say.send(handle.map_err(ToString::to_string));
                if let Ok(runtime) = runtime {
                    // The sender is dropped, which says as much as a word.
                    let _ = runtime.block_on(ended);
                }
            })?;
        let handle = said.recv().context("the thread has started")?;
        Ok(Self {
            handle: handle.map_err(anyhow::Error::msg)?,
            _end: end,
        })
    }

    /// Runs work on that thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.handle.spawn(work).await?
    }
}
