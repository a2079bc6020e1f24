//! The programs of jobs, as an engine asks for them that starts before the agent which has them.

use futures::future::{BoxFuture, join};
use odeon::{DetachError, DetachedActor, Output, ProcessId, Programs, WorkerCommand};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::JOB;
use crate::agent::Agent;

/// The programs of jobs, from an agent that comes a moment later than the engine, and goes before
/// it: it holds the engine.
#[derive(Debug, Default)]
pub(super) struct LatePrograms {
    pub(super) agent: Mutex<Option<Agent>>,
    /// The command that starts processes for the daemons themselves.
    pub(super) own: Mutex<Option<WorkerCommand>>,
}

/// Has each line of a process of the daemons themselves in this one's log.
async fn log_lines(process: ProcessId, stream: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::info!(%process, line, "said by a process of this node");
    }
}

impl Programs for LatePrograms {
    fn worker<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Result<WorkerCommand, String>> {
        if job == JOB {
            let own = self.own.lock().clone();
            let none = || "this daemon starts no processes for other daemons".to_owned();
            return Box::pin(async move { own.ok_or_else(none) });
        }
        let agent = self.agent.lock().clone();
        Box::pin(async move {
            match agent {
                Some(agent) => Programs::worker(&agent, job).await,
                None => Err("the node is starting or leaving".to_owned()),
            }
        })
    }

    fn detach<'a>(
        &'a self,
        job: &'a str,
        actor: DetachedActor,
        or_existing: bool,
    ) -> BoxFuture<'a, Result<(), DetachError>> {
        let agent = self.agent.lock().clone();
        Box::pin(async move {
            match agent {
                Some(agent) => Programs::detach(&agent, job, actor, or_existing).await,
                None => Err(DetachError::Refused {
                    name: actor.name().to_owned(),
                    why: "the node is starting or leaving".to_owned(),
                }),
            }
        })
    }

    fn take_output(&self, job: &str, process: ProcessId, output: Output) {
        if job == JOB {
            let Output { stdout, stderr, .. } = output;
            let both = join(log_lines(process, stdout), log_lines(process, stderr));
            // Ends with the process.
            tokio::spawn(both);
            return;
        }
        if let Some(agent) = &*self.agent.lock() {
            agent.take_output(job, process, output);
        }
    }
}
