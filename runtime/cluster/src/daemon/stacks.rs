//! Where the programs of a job stand, on all nodes.

use futures::future::join_all;
use odeon::StackFrames;

use super::Daemon;
use crate::agent::{ProgramStack, stacks_at};
use crate::job::Job;
use crate::tables::NodeState;

/// The stacks of a job, as far as nodes say.
#[derive(Clone, Debug, Default)]
pub struct JobStacks {
    /// Its programs: by rank, then by node and process.
    pub programs: Vec<ProgramStack>,
    /// Nodes that did not say, with the reason.
    pub silent: Vec<(String, String)>,
}

impl Daemon {
    /// Takes the stacks of all programs of a job at this moment; nothing where it does not run.
    #[odeon::boxed]
    pub async fn stacks(&self, job: &Job, frames: StackFrames) -> JobStacks {
        let Some(attempt) = job.attempt() else {
            return JobStacks::default();
        };
        let tag = job.tag(attempt.number);
        let nodes = self.catalog.nodes().into_iter();
        let living = nodes.filter(|node| node.state == NodeState::Up);
        let asked = living.map(|node| {
            let (tag, node) = (tag.clone(), node.spec.name);
            async move {
                let taken = stacks_at(&self.system, &node, tag, frames).await;
                (node, taken)
            }
        });
        let mut stacks = JobStacks::default();
        for (node, taken) in join_all(asked).await {
            match taken {
                Ok(programs) => stacks.programs.extend(programs),
                Err(why) => stacks.silent.push((node, why)),
            }
        }
        let by_rank = |it: &ProgramStack| (it.rank.is_none(), it.rank, it.node.clone(), it.pid);
        stacks.programs.sort_by_key(by_rank);
        stacks
    }
}
