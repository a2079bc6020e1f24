//! Two nodes that are linked over QUIC: this process and another.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use odeon::{ClusterIdentity, NodeIdentity, Ref, System};

use crate::bare_quinn::LOOPBACK;
use crate::far::Far;
use crate::subject::{self, Subject};

/// The role of the other node's process.
pub(crate) const NODE: &str = "node";

/// The name of the other node.
pub(crate) const FAR: &str = "far";

/// This process as a node, linked to another.
pub(crate) struct Nodes {
    pub(crate) near: System,
    /// Lives on the other node.
    pub(crate) actor: Ref<Subject>,
    _far: Far,
}

impl Nodes {
    /// Two nodes on the loopback device.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Self::start_at(LOOPBACK).await
    }

    /// Two nodes at an address of this machine.
    pub(crate) async fn start_at(host: IpAddr) -> anyhow::Result<Self> {
        let cluster = ClusterIdentity::generate()?;
        let identity = tempfile::tempdir()?;
        cluster.issue(FAR)?.save(identity.path())?;
        let (far, (address, actor)) = Far::serving(NODE, (host, identity.path()))?;
        let near = node(host, cluster.issue("near")?).await?;
        near.join(address).await?;
        Ok(Self {
            near,
            actor,
            _far: far,
        })
    }
}

async fn node(host: IpAddr, identity: NodeIdentity) -> anyhow::Result<System> {
    let builder = subject::builder()?;
    Ok(builder.listen((host, 0).into(), identity).start().await?)
}

/// Becomes the node at an address with the identity in a folder, and says where it is and who is there to be
/// asked.
pub(crate) async fn begin_node(
    (host, identity): (IpAddr, PathBuf),
) -> anyhow::Result<((SocketAddr, Ref<Subject>), System)> {
    let system = node(host, NodeIdentity::load(&identity)?).await?;
    let actor = system.spawn::<Subject>(()).await?;
    let address = system.address().context("it listens")?;
    Ok(((address, actor), system))
}
