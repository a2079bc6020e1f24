//! Actors of jobs that have reserved devices or processors, and of those that have not: a daemon with
//! fake devices, and real drivers and workers.

use std::path::Path;

use odeon::FakeDevices;
use odeon_cluster::job::Outcome;
use odeon_cluster::resources::{Allotment, JobResources};
use odeon_cluster::{Daemon, NodeEntry};
use odeon_devices::fake::{Fake, Spec};
use odeon_topology::DeviceModel;

use crate::daemons::{config, ended, printed, prints, stop, submit_with, when};

/// A cluster of one node with fake devices, and how many those are.
async fn head(folder: &Path) -> (Daemon, u32) {
    let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let mut config = config(folder, "head", NodeEntry::Found);
    config.devices = Some(FakeDevices::new(&fake, "node0").unwrap());
    let daemon = Daemon::start(config).await.unwrap();
    let devices = daemon.catalog().read(|tables| {
        let row = &tables.nodes["head"];
        assert!(row.spec.inventory.iter().all(|device| device.memory > 0));
        row.spec.inventory.len() as u32
    });
    (daemon, devices.unwrap())
}

fn gpus(devices: u32) -> JobResources {
    JobResources::of_driver(Allotment {
        devices,
        ..Allotment::default()
    })
}

/// SEMANTICS 115.
#[tokio::test(flavor = "multi_thread")]
async fn actors_get_the_devices_of_their_job_and_of_nobody_else_s() {
    let folder = tempfile::tempdir().unwrap();
    let (head, devices) = head(folder.path()).await;
    // All but one; it holds none of them with an actor.
    let first = submit_with(&head, &["waits"], |spec| spec.resources = gpus(devices - 1)).await;
    prints(&head, first, "waiting").await;
    let running = when(&head, first, "its begin", |job| job.attempt().is_some()).await;
    let reserved = &running.attempt().unwrap().reserved;
    assert_eq!(reserved[0].devices.len() as u32, devices - 1);
    // Who has reserved nothing gets what is left, and is told who has the rest.
    let second = submit_with(&head, &["sees", "1", "30"], |_| {}).await;
    let left = (0..devices)
        .find(|it| !reserved[0].devices.contains(it))
        .unwrap();
    prints(&head, second, &format!("seeing [{left}]")).await;
    let third = submit_with(&head, &["sees", "1", "0.5"], |_| {}).await;
    assert!(matches!(ended(&head, third).await, Outcome::Failed { .. }));
    let said = printed(&head, third).join("\n");
    assert!(said.contains("which has reserved it"), "{said}");
    stop(&head, second, false).await;
    ended(&head, second).await;
    stop(&head, first, false).await;
    ended(&head, first).await;

    // Whoever has reserved two gets these two, and no third.
    let own = submit_with(&head, &["sees", "2", "30"], |spec| spec.resources = gpus(2)).await;
    let lines = prints(&head, own, "seeing").await;
    let job = when(&head, own, "its begin", |job| job.attempt().is_some()).await;
    let reserved = job.attempt().unwrap().reserved[0].devices.clone();
    let mut sorted = reserved.clone();
    sorted.sort_unstable();
    assert!(
        lines.contains(&format!("seeing {sorted:?}")),
        "{lines:?}: {reserved:?}"
    );
    let more = submit_with(&head, &["sees", "2", "0.5"], |spec| {
        spec.resources = gpus(1)
    })
    .await;
    assert!(matches!(ended(&head, more).await, Outcome::Failed { .. }));
    let said = printed(&head, more).join("\n");
    assert!(said.contains("has not reserved"), "{said}");
    head.shutdown().await;
}
