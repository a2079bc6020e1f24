//! Orders of a launch: the process of a lease, a shared one or a new one, here or on another node; and its
//! end.

use std::sync::Arc;

use odeon_devices::fault::GpuFault;

use crate::actor::engine::Engine;
use crate::actor::placing::{
    Ask, DismissRequest, Dismissing, Granted, LaunchOrder, Launched, Launching,
};
use crate::base::failure::{Failure, FailureKind};
use crate::base::id::ProcessId;

use super::protocol::LeaseLaunching;

/// Claims in a row that may be over before they are used.
const CLAIMS_MAX: usize = 8;

impl Engine {
    /// A worker process as ordered: by its lease, the shared one of that name, or a new one.
    pub(crate) async fn launch_here(
        self: &Arc<Self>,
        order: LaunchOrder,
    ) -> Result<Launched, Failure> {
        if let Some(ask) = &order.ask {
            return self.launch_scheduled(ask, order.claim).await;
        }
        let process = self.launch_unleased(order).await?;
        Ok(Launched {
            process,
            lease: None,
            devices: vec![],
        })
    }

    /// Finds room, and a process there. A claim that is over, or whose process has died at once, is
    /// no reason to give up: there may be other room.
    pub(super) async fn launch_scheduled(
        self: &Arc<Self>,
        ask: &Ask,
        claim: Option<Granted>,
    ) -> Result<Launched, Failure> {
        if ask.again
            && let Some(spare) = self.take_spare(ask).await
        {
            return Ok(spare);
        }
        let mut claim = claim;
        for _ in 0..CLAIMS_MAX {
            let granted = match claim.take() {
                Some(granted) => granted,
                None => {
                    let granted = self.schedule(std::slice::from_ref(ask)).await?;
                    *granted.first().ok_or_else(|| {
                        Failure::new(FailureKind::NotPlaced, "it asks for no place")
                    })?
                }
            };
            let launched = if granted.node == self.process {
                self.launch_leased(granted.lease).await?
            } else {
                self.launched_by(granted).await?
            };
            match launched {
                Some(launched) => return Ok(launched),
                None => tracing::debug!(holder = ask.holder, "a claim was over, looking again"),
            }
        }
        let why = format!("{CLAIMS_MAX} claims in a row were over before they could be used");
        Err(Failure::new(FailureKind::NotPlaced, why))
    }

    /// Has another node start the process of a lease of its own.
    pub(super) async fn launched_by(&self, granted: Granted) -> Result<Option<Launched>, Failure> {
        let (node, lease) = (granted.node, granted.lease);
        let answer = self.request::<LeaseLaunching>(node, &lease, None).await;
        answer.unwrap_or_else(|| {
            let why = "the node was lost before it gave a worker process";
            Err(Failure::new(FailureKind::NodeLost, why))
        })
    }

    pub(super) async fn launch_unleased(
        self: &Arc<Self>,
        order: LaunchOrder,
    ) -> Result<ProcessId, Failure> {
        if let Some(node) = &order.node
            && *node != self.node
        {
            return self.launch_there(node, &order).await;
        }
        let Some(name) = order.shared else {
            return self.launch_new(&order.job).await;
        };
        let name = (order.job.clone(), name);
        let mut shared = self.workers().shared.lock().await;
        if let Some(process) = shared
            .get(&name)
            .filter(|process| self.links.contains_key(process))
        {
            return Ok(*process);
        }
        let process = self.launch_new(&order.job).await?;
        shared.insert(name, process);
        Ok(process)
    }

    /// A worker process of another node.
    pub(super) async fn launch_there(
        &self,
        node: &str,
        order: &LaunchOrder,
    ) -> Result<ProcessId, Failure> {
        let mut known = vec![format!("`{}` (this one)", self.node)];
        let mut found = None;
        for link in self.links.iter().filter(|link| !link.is_worker) {
            if link.node == node {
                found = Some(link.peer);
            }
            known.push(format!("`{}`", link.node));
        }
        let Some(peer) = found else {
            known[1..].sort_unstable();
            let known = known.join(", ");
            let why = format!("no node `{node}` is joined; known nodes: {known}");
            return Err(Failure::new(FailureKind::NotPlaced, why));
        };
        match self.request::<Launching>(peer, order, None).await {
            Some(launched) => launched.map(|launched| launched.process),
            None => {
                let why = format!("node `{node}` was lost before it gave a worker process");
                Err(Failure::new(FailureKind::NodeLost, why))
            }
        }
    }

    /// Ends a worker process that is not needed any more, or gives back an actor's lease in one; or
    /// has the node do it that runs it.
    pub(crate) async fn release_here(self: &Arc<Self>, process: ProcessId, lease: Option<Granted>) {
        match lease {
            Some(granted) if granted.node == self.process => {
                return self.release_lease(granted.lease).await;
            }
            Some(_) => {}
            None if self.runs(process) => return self.workers().end(self, process).await,
            None => {}
        }
        let through = match lease {
            Some(granted) => Some(granted.node),
            None => self.node_of(process),
        };
        if let Some(node) = through {
            // No answer means that the node is gone, and its workers with it.
            let release = DismissRequest::Release { process, lease };
            let _ = self.request::<Dismissing>(node, &release, None).await;
        }
    }

    /// The node's part in [`Engine::retire`]: ends the process, or has the node do it that runs it.
    pub(crate) async fn retire_for(
        self: &Arc<Self>,
        process: ProcessId,
        fault: Option<GpuFault>,
        why: String,
    ) {
        if self.runs(process) {
            return self.retire_here(process, fault, &why).await;
        }
        if let Some(node) = self.node_of(process) {
            let retire = DismissRequest::Retire {
                process,
                fault,
                why,
            };
            // No answer means that the node is gone, and its workers with it.
            let _ = self.request::<Dismissing>(node, &retire, None).await;
        }
    }

    /// Returns true if a process is a worker of this node.
    pub(super) fn runs(&self, process: ProcessId) -> bool {
        self.workers().table.lock().contains_key(&process)
    }

    /// The neighbour behind which a worker runs.
    pub(super) fn node_of(&self, process: ProcessId) -> Option<ProcessId> {
        let link = self.next_link(process)?;
        (link.peer != process).then_some(link.peer)
    }
}
