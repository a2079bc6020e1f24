//! The driver of a job as the node sees it that started it: a process that runs the `main` of the
//! job's program.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::watch;

use crate::base::clock::Clock;
use crate::base::failure::ProcessExit;
use crate::base::id::ProcessId;
use crate::node::worker;

/// A handle by which a node follows and ends a job's driver. Dropping it does not end the process.
#[derive(Debug)]
pub struct Driver {
    process: ProcessId,
    /// The operating system's number, which its group keeps when it has ended.
    pid: Option<u32>,
    ended: watch::Receiver<Option<ProcessExit>>,
}

impl Driver {
    pub(crate) const fn new(
        process: ProcessId,
        pid: Option<u32>,
        ended: watch::Receiver<Option<ProcessExit>>,
    ) -> Self {
        Self {
            process,
            pid,
            ended,
        }
    }

    /// Its number in the cluster.
    #[must_use]
    pub const fn process(&self) -> ProcessId {
        self.process
    }

    /// The operating system's number.
    #[must_use]
    pub const fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Kills what a driver of this number, which has ended, has left of its group, and waits until
    /// nothing is.
    #[odeon_macros::boxed]
    pub async fn end_group(pid: u32) {
        worker::end_group(pid).await;
    }

    /// Resolves when the process has ended, with how it did. What it has started may be left: see
    /// [`Driver::end_group`].
    #[odeon_macros::boxed]
    pub async fn ended(&mut self) -> ProcessExit {
        match self.ended.wait_for(Option::is_some).await {
            Ok(exit) => exit.clone().expect("just seen to be there"),
            Err(_) => ProcessExit::new(self.process, "ended unseen: its node was closing"),
        }
    }

    /// Asks the process to end, with SIGTERM; kills it and all it has started, with SIGKILL, when it
    /// has not after `grace`.
    #[odeon_macros::boxed]
    pub async fn stop(&mut self, grace: Duration) -> ProcessExit {
        let pid = self.pid.and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let in_time = Clock::timeout(grace, self.ended()).await;
        if let (None, Some(pid)) = (in_time, pid) {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        self.ended().await
    }
}
