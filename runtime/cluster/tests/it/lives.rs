//! Real nodes on loopback that start again: each life follows the one before it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use odeon::{Clock, ClusterIdentity, Limits, NodeIdentity, SystemError};
use odeon_artifacts::Footprint;
use odeon_cluster::controller::Rules;
use odeon_cluster::logs::LogLimits;
use odeon_cluster::tables::{NodeRow, NodeState};
use odeon_cluster::{Daemon, DaemonConfig, DaemonError, FolderError, NodeEntry, OnDemand};

fn config(folder: &Path, name: &str, entry: NodeEntry) -> DaemonConfig {
    DaemonConfig {
        folder: folder.join(name),
        name: Some(name.to_owned()),
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: None,
        entry,
        alone: false,
        devices: None,
        limits: Limits::default(),
        rules: Rules::default(),
        artifacts: Footprint {
            piece_bytes: 1 << 30,
            folder_bytes: 1 << 30,
        },
        on_demand: OnDemand::default(),
        logs: LogLimits::default(),
        disk_alarm: odeon_cluster::DiskBound::default(),
        heritage: None,
    }
}

async fn join(folder: &Path, through: SocketAddr, identity: Option<NodeIdentity>) -> Daemon {
    start(|| {
        let identity = identity.clone();
        config(folder, "second", NodeEntry::Join { through, identity })
    })
    .await
}

async fn found(folder: &Path) -> Daemon {
    start(|| config(folder, "head", NodeEntry::Found)).await
}

/// In one process the life before may take a moment to give its address back. Its folder too: a child
/// that another test has forked has the lock until it executes its program.
async fn start(config: impl Fn() -> DaemonConfig) -> Daemon {
    let started = async {
        loop {
            match Box::pin(Daemon::start(config())).await {
                Ok(daemon) => return daemon,
                Err(DaemonError::System(SystemError::Io { source, .. }))
                    if source.kind() == ErrorKind::AddrInUse =>
                {
                    Clock::sleep(Duration::from_millis(5)).await;
                }
                Err(DaemonError::Folder(FolderError::InUse(_))) => {
                    Clock::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    let started = Clock::timeout(Duration::from_secs(30), started).await;
    started.expect("its address and its folder are free again")
}

fn row(daemon: &Daemon, name: &str) -> NodeRow {
    let row = daemon
        .catalog()
        .read(|tables| tables.nodes.get(name).cloned());
    row.flatten().expect("a node that is known")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_life_of_a_node_follows_the_one_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut head = found(folder.path()).await;
    let cluster = ClusterIdentity::load(head.folder().path()).unwrap();
    let mut identity = Some(cluster.issue("second").unwrap());
    let mut last = None;
    for _ in 0..3 {
        let through = head.address().parse().unwrap();
        let second = join(folder.path(), through, identity.take()).await;
        let up = row(&head, "second");
        assert_eq!((&up.state, up.spec.follows), (&NodeState::Up, last));
        last = Some(up.spec.boot);
        second.shutdown().await;
        assert_eq!(row(&head, "second").state, NodeState::Left);
        // The voter too, from what its disk holds.
        let before = row(&head, "head").spec.boot;
        head.shutdown().await;
        head = found(folder.path()).await;
        let up = row(&head, "head");
        assert_eq!((up.state, up.spec.follows), (NodeState::Up, Some(before)));
        assert_eq!(up.number, 1);
    }
    head.shutdown().await;
}
