//! The agent as other nodes reach it, and their orders to it.

use std::time::Duration;

use odeon::{AskError, Blob, Failure, Later, Ref, StackFrames, System};
use odeon_artifacts::{Digest, Shares};
use tokio::sync::oneshot;

use super::stacks::ProgramStack;
use super::{Agent, name_of, try_of};
use crate::doctor::MachineFacts;
use crate::job::{Job, JobId};
use crate::json::Json;
use crate::local_only::LocalOnly;
use crate::node_directory::{self, Unreached};
use crate::orphan_processes;
use crate::startup::StageTimes;
use crate::unix::Unix;

/// The longest time that a node may take to hear an order; it is told again later.
pub(super) const ORDER_PATIENCE: Duration = Duration::from_secs(4);
/// The longest time that a node may take to say whether it becomes another release.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(30);
/// The longest time that a node may take to look at its machine.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// The longest time that a voter may take to fetch a bundle.
const KEEP_PATIENCE: Duration = Duration::from_secs(300);

/// The agent as other nodes reach it.
#[derive(Debug)]
pub(crate) struct AgentActor {
    agent: Agent,
}

#[odeon::actor(name = "odeon.cluster.Agent")]
impl AgentActor {
    async fn start(agent: LocalOnly<Agent>) -> Result<Self, Failure> {
        let agent = agent.take()?;
        Ok(Self { agent })
    }

    /// Begins the present try of a job.
    #[handler]
    async fn begin(&mut self, job: Json<Job>) {
        self.agent.start(job.0);
    }

    /// Ends a try of a job, in order or not.
    #[handler]
    async fn finish(&mut self, job: u64, attempt: u32, in_order: bool) {
        self.agent.stop(JobId(job), attempt, in_order);
    }

    /// Another node is about to have processes of a try whose driver runs here. Returns true if it
    /// may.
    #[handler]
    pub(super) async fn join_try(&mut self, job: u64, attempt: u32, node: String) -> bool {
        let mut book = self.agent.inner.book.lock();
        let places = book.places.get_mut(&(JobId(job), attempt));
        places.map(|places| places.insert(node)).is_some()
    }

    /// There will be processes of a try here, whose driver runs on another node: has what they need ready.
    #[handler]
    pub(super) async fn prepare_try(&mut self, job: u64, attempt: u32, nodes: Vec<String>) {
        let (agent, of) = (self.agent.clone(), (JobId(job), attempt));
        let preparing = tokio::spawn(async move {
            // Whoever starts a process of it here hears why that cannot be.
            if let Err(why) = agent.prepare_here(of, nodes).await {
                tracing::debug!(job, attempt, why, "a try is not prepared for");
            }
        });
        self.agent.welcome(of, Some(preparing.abort_handle()));
    }

    /// Another node has prepared for a try whose driver runs here, and took so long.
    #[handler]
    pub(super) async fn prepared(
        &mut self,
        job: u64,
        attempt: u32,
        node: String,
        times: Json<StageTimes>,
        note: Option<String>,
    ) {
        let of = (JobId(job), attempt);
        self.agent.prepared(of, node, times.0, note);
    }

    /// The processes of a try on this node that live, by their numbers, with the processor time of each in
    /// milliseconds; and the number of lines that they have printed.
    #[handler]
    pub(super) fn used(&mut self, tag: String) -> Later<(Vec<(u64, u64)>, u64)> {
        let agent = self.agent.clone();
        Later::new(async move {
            let Some(of) = try_of(&tag) else {
                return (vec![], 0);
            };
            let activity = agent.activity_here(of, &tag).await;
            let used = activity.cpu_ms.into_iter();
            (
                used.map(|((_, pid), ms)| (pid, ms)).collect(),
                activity.lines,
            )
        })
    }

    /// Where the programs of a try on this node stand.
    #[handler]
    pub(super) fn take_stacks(
        &mut self,
        tag: String,
        native: bool,
    ) -> Later<Json<Vec<ProgramStack>>> {
        let agent = self.agent.clone();
        let frames = match native {
            true => StackFrames::Native,
            false => StackFrames::Python,
        };
        Later::new(async move { Json(agent.stacks_here(&tag, frames).await) })
    }

    /// Begins to end all processes of a job on this node, and answers how many are left; one, while
    /// what they have printed is on its way.
    #[handler]
    pub(super) async fn clear(&mut self, tag: String) -> u64 {
        let of = try_of(&tag);
        // First nothing of it begins any more: what began after the rest has ended would stay.
        if let Some(of) = of {
            self.agent.dismiss(of);
        }
        let system = self.agent.inner.system.clone();
        let left = system
            .admin()
            .processes()
            .iter()
            .filter(|it| it.job == tag)
            .count();
        if left > 0 {
            let tag = tag.clone();
            tokio::spawn(async move { system.admin().end_job(&tag).await });
        } else if let Some((job, attempt)) = of {
            if self.agent.inner.forward.is_unsettled((job, attempt)) {
                return 1;
            }
            orphan_processes::end(self.agent.mark(&tag)).await;
            self.agent.inner.specs.lock().remove(&(job, attempt));
            self.agent.inner.staging.clear(job, attempt).await;
            self.agent.inner.cgroups.remove((job, attempt));
        }
        left as u64
    }

    /// Has this node become the program that lies where its own did. The answer comes when nothing is
    /// in the way any more.
    #[handler]
    fn upgrade(&mut self) -> Later<Result<(), String>> {
        let orders = self.agent.inner.orders.clone();
        Later::new(async move {
            let (answer, answered) = oneshot::channel();
            let busy = || Err("an upgrade is under way".to_owned());
            match orders.try_send(answer) {
                Ok(()) => answered.await.unwrap_or_else(|_| busy()),
                Err(_) => busy(),
            }
        })
    }

    /// Looks at this machine and the disk of the daemon's folder.
    #[handler]
    fn look(&mut self) -> Later<Result<Json<MachineFacts>, String>> {
        let folder = self.agent.inner.staging.jobs().to_path_buf();
        Later::new(async move {
            let read = tokio::task::spawn_blocking(move || MachineFacts::read(&folder)).await;
            let mut facts = read.map_err(|error| error.to_string())?;
            facts.now_ms = Unix::now().0;
            // It is this daemon's.
            facts.api_port = None;
            Ok(Json(facts))
        })
    }

    /// Fetches a bundle from a node, and keeps it until the catalog says whether it is needed.
    #[handler]
    fn keep(&mut self, digest: Json<Digest>, from: String) -> Later<Result<(), String>> {
        let staging = self.agent.inner.staging.clone();
        Later::new(async move {
            let alone = Shares::new("", []);
            let kept = staging.keep(digest.0, &[from], &alone).await;
            kept.map_err(|error| error.to_string())
        })
    }

    /// The pieces of a bundle, if they are known here.
    #[handler]
    pub(super) async fn bundle(&mut self, digest: Json<Digest>) -> Option<Blob> {
        self.agent.inner.staging.give_bundle(digest.0).await
    }

    /// Which pieces of a bundle are read first, if that is known here.
    #[handler]
    pub(super) async fn heat(&mut self, digest: Json<Digest>) -> Option<Blob> {
        self.agent.inner.staging.give_heat(digest.0).await
    }

    /// The bytes of these pieces, as far as they are here.
    #[handler]
    pub(super) async fn pieces(&mut self, digests: Json<Vec<Digest>>) -> Vec<Option<Blob>> {
        self.agent.inner.staging.give(&digests.0).await
    }
}

/// The agent of a node.
pub(super) async fn reach(system: &System, node: &str) -> Result<Ref<AgentActor>, String> {
    let found = node_directory::reach(system, node, &name_of(node)).await;
    found.map_err(|unreached| unreached.to_string())
}

/// Says of the node why an ask failed.
pub(super) fn unanswered(node: &str, error: &AskError) -> String {
    Unreached::asked(node, error).to_string()
}

/// Tells a node's agent to begin or end a try.
pub(crate) async fn order_start(system: &System, node: &str, job: Job) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let told = agent.ask(Begin { job: Json(job) }).timeout(ORDER_PATIENCE);
    told.await.map_err(|error| unanswered(node, &error))
}

/// Tells a node's agent to end a try.
pub(crate) async fn order_stop(
    system: &System,
    node: &str,
    job: JobId,
    attempt: u32,
    in_order: bool,
) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let finish = Finish {
        job: job.0,
        attempt,
        in_order,
    };
    let told = agent.ask(finish).timeout(ORDER_PATIENCE);
    told.await.map_err(|error| unanswered(node, &error))
}

/// Has a node become the program that lies where its own did.
///
/// # Errors
/// Why it does not.
pub(crate) async fn order_upgrade(system: &System, node: &str) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let asked = agent.ask(Upgrade {}).timeout(UPGRADE_PATIENCE);
    asked.await.map_err(|error| unanswered(node, &error))?
}

/// Has a node look at its machine, and tells how far its clock is ahead of this one's, as far as an answer's way
/// lets that be seen.
///
/// # Errors
/// Why it does not.
pub(crate) async fn look(system: &System, node: &str) -> Result<MachineFacts, String> {
    let agent = reach(system, node).await?;
    let asked = agent.ask(Look {}).timeout(LOOK_PATIENCE);
    let Json(facts) = asked.await.map_err(|error| unanswered(node, &error))??;
    let ahead = i128::from(facts.now_ms) - i128::from(Unix::now().0);
    Ok(MachineFacts {
        ahead_ms: i64::try_from(ahead).ok(),
        ..facts
    })
}

/// Has a node keep a bundle that `from` has.
pub(crate) async fn keep(
    system: &System,
    node: &str,
    digest: Digest,
    from: &str,
) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let (digest, from) = (Json(digest), from.to_owned());
    let asked = agent.ask(Keep { digest, from }).timeout(KEEP_PATIENCE);
    asked.await.map_err(|error| unanswered(node, &error))?
}
