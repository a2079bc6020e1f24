//! Stacks of the programs of a try, taken at the same moment on all nodes.

use std::time::Duration;

use futures::future::join_all;
use odeon::{StackFrames, System, program_stack};
use odeon_diagnosis::gang::{ThreadStack, read_py_spy};
use serde::{Deserialize, Serialize};

use super::Agent;
use super::actor::{TakeStacks, reach, unanswered};
use crate::orphan_processes::{self, MarkedProgram};

/// The longest time that a node may take for the stacks of its programs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program of a try, and where its threads stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramStack {
    /// The node that it runs on.
    pub node: String,
    /// Its process.
    pub pid: u32,
    /// Its rank, of a gang's.
    pub rank: Option<usize>,
    /// Its threads, the main one first; or why nothing is known of them.
    pub threads: Result<Vec<ThreadStack>, String>,
}

impl Agent {
    /// Those of the programs of a try on this node.
    pub(super) async fn stacks_here(&self, tag: &str, frames: StackFrames) -> Vec<ProgramStack> {
        let mark = self.mark(tag);
        let found = tokio::task::spawn_blocking(move || orphan_processes::programs(&mark)).await;
        let taken = found.unwrap_or_default().into_iter();
        let taken = taken.map(|MarkedProgram { pid, rank }| async move {
            let threads = match program_stack(pid, frames).await {
                Ok(text) => read_py_spy(&text).map_err(|error| format!("py-spy: {error}")),
                Err(error) => Err(error.to_string()),
            };
            ProgramStack {
                node: self.inner.node.clone(),
                pid,
                rank,
                threads,
            }
        });
        join_all(taken).await
    }
}

/// Those of the programs of a try on a node.
///
/// # Errors
/// Why it does not say.
pub(crate) async fn stacks_at(
    system: &System,
    node: &str,
    tag: String,
    frames: StackFrames,
) -> Result<Vec<ProgramStack>, String> {
    let agent = reach(system, node).await?;
    let native = frames == StackFrames::Native;
    let asked = agent.ask(TakeStacks { tag, native }).timeout(PATIENCE);
    let taken = asked.await.map_err(|error| unanswered(node, &error))?;
    Ok(taken.0)
}
