//! The programs of jobs, as an engine asks for them that starts before the agent which has them.

use futures::future::BoxFuture;
use odeon::{DetachError, DetachedActor, Output, ProcessId, Programs, WorkerCommand};
use parking_lot::Mutex;

use crate::agent::Agent;

/// The programs of jobs, from an agent that comes a moment later than the engine, and goes before
/// it: it holds the engine.
#[derive(Debug, Default)]
pub(super) struct LatePrograms {
    pub(super) agent: Mutex<Option<Agent>>,
}

impl Programs for LatePrograms {
    fn worker<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Result<WorkerCommand, String>> {
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
        if let Some(agent) = &*self.agent.lock() {
            agent.take_output(job, process, output);
        }
    }
}
