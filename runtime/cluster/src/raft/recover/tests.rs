//! Voters that go on alone, from what their disks hold.

use std::sync::Arc;
use std::time::Duration;

use odeon::System;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::testing::log_id;

use super::*;
use crate::raft::machine::{Machine, Shared};
use crate::raft::network::Network;
use crate::raft::tests::command;
use crate::raft::{Batch, Entry, Raft, config};

/// The membership that the log of three voters begins with.
fn membership() -> openraft::Membership<u64, BasicNode> {
    let nodes: BTreeMap<_, _> = [1, 2, 3]
        .map(|it| (it, BasicNode::new(format!("n{it}"))))
        .into();
    openraft::Membership::new(vec![nodes.keys().copied().collect()], nodes)
}

async fn lead(number: u64, disk: Disk) -> (System, Raft, Shared) {
    let system = System::local().await.unwrap();
    let shared = Shared::default();
    let machine = Machine::load(disk.clone(), shared.clone()).await.unwrap();
    let network = Network {
        system: system.clone(),
    };
    let config = Arc::new(config().validate().unwrap());
    let raft = Raft::new(number, config, network, disk, machine)
        .await
        .unwrap();
    let wait = raft.wait(Some(Duration::from_secs(20)));
    wait.current_leader(number, "it is the only one")
        .await
        .unwrap();
    (system, raft, shared)
}

/// SEMANTICS 60.
#[tokio::test(flavor = "multi_thread")]
async fn a_voter_whose_majority_is_lost_goes_on_alone_with_all_that_it_knew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog.redb");
    let mut disk = Disk::open(&path).unwrap();
    let mut entries = vec![Entry {
        log_id: log_id(0, 0, 0),
        payload: EntryPayload::Membership(membership()),
    }];
    entries.extend((1..=5).map(|index| Entry {
        log_id: log_id(4, 1, index),
        payload: EntryPayload::Normal(Batch(vec![command(index)])),
    }));
    disk.save_vote(&Vote::new_committed(7, 3)).await.unwrap();
    disk.blocking_append(entries).await.unwrap();
    let count = alone(&disk, 2, "n2").await.unwrap();
    assert_eq!(count, 6);
    let (system, raft, shared) = lead(2, disk.clone()).await;
    assert_eq!(shared.read(|tables| tables.keys.len()), 5);
    let written = raft.client_write(Batch(vec![command(6)])).await.unwrap();
    assert!(written.data[0].is_ok());
    // A command that it knew already has no second effect.
    let written = raft.client_write(Batch(vec![command(5)])).await.unwrap();
    assert!(written.data[0].is_ok());
    assert_eq!(shared.read(|tables| tables.keys.len()), 6);
    let metrics = raft.metrics().borrow().clone();
    let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
    assert_eq!(voters, [2]);
    assert!(metrics.current_term > 7, "a term that nobody has seen");
    raft.shutdown().await.unwrap();
    system.shutdown().await;
    // The same again, from its snapshot.
    drop(raft);
    let (system, raft, shared) = lead(2, disk).await;
    assert_eq!(shared.read(|tables| tables.keys.len()), 6);
    raft.shutdown().await.unwrap();
    system.shutdown().await;
}
