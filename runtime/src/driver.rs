//! The driver of a job as the node sees it that started it: a process that runs the `main` of the
//! job's program.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::failure::ProcessExit;
use crate::id::ProcessId;

/// See the module. Dropping it does not end the process.
#[derive(Debug)]
pub struct Driver {
    engine: Arc<Engine>,
    process: ProcessId,
    ended: watch::Receiver<Option<ProcessExit>>,
}

impl Driver {
    pub(crate) const fn new(
        engine: Arc<Engine>,
        process: ProcessId,
        ended: watch::Receiver<Option<ProcessExit>>,
    ) -> Self {
        Self {
            engine,
            process,
            ended,
        }
    }

    /// Its number in the cluster.
    #[must_use]
    pub const fn process(&self) -> ProcessId {
        self.process
    }

    /// The operating system's number; `None` when it has ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.engine.workers.pid_of(self.process)
    }

    /// Resolves when the process has ended, with how it did.
    pub async fn ended(&mut self) -> ProcessExit {
        match self.ended.wait_for(Option::is_some).await {
            Ok(exit) => exit.clone().expect("just seen to be there"),
            Err(_) => ProcessExit::new(self.process, "ended unseen: its node was closing"),
        }
    }

    /// Asks the process to end, with SIGTERM; kills it and all it has started, with SIGKILL, when it
    /// has not after `grace`.
    pub async fn stop(&mut self, grace: Duration) -> ProcessExit {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        if let Some(exit) = Clock::timeout(grace, self.ended()).await {
            return exit;
        }
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        self.ended().await
    }
}
