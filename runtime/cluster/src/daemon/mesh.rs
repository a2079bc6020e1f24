//! Links between a node and all others, and what each knows of the others.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon::{Clock, System, SystemError};
use parking_lot::Mutex;

use crate::catalog::Catalog;
use crate::folder::{Folder, NodeFile};
use crate::presence::Presence;
use crate::tables::NodeState;

/// The pause between two checks of the links to other nodes.
const MESH_PAUSE: Duration = Duration::from_secs(1);

/// Keeps a link to every other node, and what each knows of the others.
#[derive(Debug)]
pub(super) struct Mesh {
    system: System,
    catalog: Catalog,
    folder: Arc<Folder>,
    name: String,
    peers: Vec<SocketAddr>,
    presence: Presence,
    /// Those that are being dialled.
    dials: Arc<Mutex<BTreeSet<SocketAddr>>>,
}

impl Mesh {
    pub(super) fn new(
        system: &System,
        catalog: &Catalog,
        folder: &Arc<Folder>,
        file: &NodeFile,
        presence: &Presence,
    ) -> Self {
        Self {
            system: system.clone(),
            catalog: catalog.clone(),
            folder: Arc::clone(folder),
            name: file.name.clone(),
            peers: file.peers.clone(),
            presence: presence.clone(),
            dials: Arc::default(),
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            Clock::sleep(MESH_PAUSE).await;
            self.catalog.look_around().await;
            self.link();
            self.bound();
            self.remember();
            if let Err(error) = self.presence.say().await {
                tracing::debug!(%error, "the cluster was not told how this node is");
            }
        }
    }

    /// Dials nodes that are up and not linked. Of two nodes, the one with the smaller name dials.
    fn link(&self) {
        let links = self.system.admin().links().into_iter();
        let linked: BTreeSet<String> = links.map(|link| link.node).collect();
        let nodes = self.catalog.nodes();
        let missing = nodes.iter().filter(|row| {
            let name = &row.spec.name;
            row.state == NodeState::Up && *name > self.name && !linked.contains(name)
        });
        let addresses = missing.filter_map(|row| row.spec.address.parse().ok());
        self.dial(&addresses.collect::<Vec<_>>());
        // Somebody must be reached, or nothing is heard of the others.
        if linked.is_empty() {
            self.dial(&self.peers);
        }
    }

    /// Tells the engine what namespaces may hold of the cluster, what jobs have reserved of it, which nodes are refused,
    /// and who is in it no more.
    fn bound(&self) {
        let namespaces = self.catalog.namespaces().into_iter();
        let quotas = namespaces.filter_map(|(name, bounds)| {
            let quota = bounds.of_actors()?;
            Some((format!("{name}/"), quota))
        });
        self.system.admin().set_quotas(quotas.collect());
        let reserved = self.catalog.reserved().into_iter();
        let reserved = reserved.map(|(tag, it)| it.of_job(tag));
        self.system.admin().set_reservations(reserved.collect());
        let nodes = self.catalog.nodes().into_iter();
        let refused = nodes.filter(|row| row.refused.is_some());
        let refused = refused.map(|row| row.spec.name).collect();
        self.system.admin().set_refused_nodes(refused);
        self.system.refuse_certificates(self.catalog.revoked());
    }

    /// Dials these, those who are dialled already aside. Nobody waits for it: one that is gone takes
    /// its time.
    pub(super) fn dial(&self, peers: &[SocketAddr]) {
        for peer in peers.iter().copied() {
            if !self.dials.lock().insert(peer) {
                continue;
            }
            let (system, dials) = (self.system.clone(), Arc::clone(&self.dials));
            tokio::spawn(async move {
                if let Err(error) = system.join(peer).await {
                    tracing::debug!(%peer, %error, "a node cannot be linked");
                }
                dials.lock().remove(&peer);
            });
        }
    }

    /// Writes down whom the node knows, for its next start.
    fn remember(&mut self) {
        let nodes = self.catalog.nodes();
        let up = nodes.iter().filter(|row| row.state == NodeState::Up);
        let others = up.filter(|row| row.spec.name != self.name);
        let peers: Vec<SocketAddr> = others
            .filter_map(|row| row.spec.address.parse().ok())
            .collect();
        if !peers.is_empty() {
            self.peers = peers;
        }
        let voters = self.catalog.voters();
        let written = self.folder.change_node(|file| {
            file.peers.clone_from(&self.peers);
            if !voters.is_empty() {
                file.voters = voters;
            }
        });
        if let Err(error) = written {
            tracing::warn!(%error, "what is known of other nodes is not written");
        }
    }
}

/// Links to somebody: one is enough, the others are linked when it has said who they are.
pub(super) async fn link(system: &System, peers: &[SocketAddr]) -> Result<(), SystemError> {
    let dials = peers.iter().map(|peer| system.join(*peer));
    let mut dials: FuturesUnordered<_> = dials.collect();
    let mut first = None;
    while let Some(dialled) = dials.next().await {
        match dialled {
            Ok(_) => return Ok(()),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    first.map_or(Ok(()), Err)
}
