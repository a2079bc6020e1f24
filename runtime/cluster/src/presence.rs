//! The description that a node writes of itself into the catalog: when it comes up, and again when
//! it has changed or the cluster has lost it.

use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, System};
use odeon_placement::{Device, Health};
use parking_lot::Mutex;

use crate::catalog::{Catalog, WriteError};
use crate::disk_room::WatchedDisk;
use crate::fact::{Fact, NodeSpec, RefusalKind};
use crate::folder::NodeFile;
use crate::tables::NodeState;

/// Writes what a node says of itself. Clones are the same node.
#[derive(Clone, Debug)]
pub(crate) struct Presence {
    catalog: Catalog,
    spec: Arc<Mutex<NodeSpec>>,
    disk: Option<Arc<WatchedDisk>>,
}

/// The longest time that a node may take to learn what the catalog knows of its last life.
const LEARN_PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two looks.
const LEARN_PAUSE: Duration = Duration::from_millis(100);

impl Presence {
    /// That of a node which others reach at this address.
    pub(crate) async fn of(
        system: &System,
        catalog: &Catalog,
        node: &NodeFile,
        address: String,
        certificate: String,
        upgrades: u32,
        unlimited: Option<String>,
    ) -> Self {
        let views = system.nodes().await.into_iter();
        let own = views.filter(|view| view.process == system.process());
        let inventory: Vec<Device> = own.flat_map(|view| view.node.devices).collect();
        let models = inventory.iter().map(|device| device.model.clone());
        let spec = NodeSpec {
            name: node.name.clone(),
            boot: system.process().0,
            address,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            memory: memory(),
            devices: models.collect(),
            votes: false,
            api: None,
            follows: None,
            certificate: Some(certificate),
            upgrades,
            // Which of them rest changes, and the node itself grants them or not.
            inventory: inventory
                .into_iter()
                .map(|device| Device {
                    health: Health::Good,
                    ..device
                })
                .collect(),
            unlimited,
            low_disk: None,
        };
        Self {
            catalog: catalog.clone(),
            spec: Arc::new(Mutex::new(spec)),
            disk: None,
        }
    }

    /// With word of when this disk has too little room.
    pub(crate) fn watching(self, disk: WatchedDisk) -> Self {
        let disk = Some(Arc::new(disk));
        Self { disk, ..self }
    }

    /// The description that it gives now.
    pub(crate) fn said(&self) -> NodeSpec {
        let mut spec = self.spec.lock().clone();
        spec.votes = self.catalog.is_voter();
        spec.low_disk = self.disk.as_ref().and_then(|disk| disk.look());
        spec
    }

    /// Changes what it says of its HTTP API; the cluster hears it a moment later.
    pub(crate) fn set_api(&self, url: String) {
        self.spec.lock().api = Some(url);
    }

    /// Says what it is, if the catalog knows anything else.
    pub(crate) async fn say(&self) -> Result<(), WriteError> {
        let mut spec = self.said();
        let nodes = self.catalog.nodes().into_iter();
        let known = nodes.into_iter().find(|row| row.spec.name == spec.name);
        if let Some(row) = known {
            let same_life = row.spec.boot == spec.boot;
            // Of one life the row keeps what it followed.
            spec.follows = match same_life {
                true => row.spec.follows,
                false => Some(row.spec.boot),
            };
            if row.spec == spec && row.state == NodeState::Up {
                return Ok(());
            }
        }
        self.catalog.write_own(Fact::NodeUp(spec)).await.map(drop)
    }

    /// Says for the first time that it is up.
    pub(crate) async fn announce(&self) -> Result<(), WriteError> {
        let deadline = Clock::now().after(LEARN_PATIENCE);
        loop {
            self.catalog.look_around().await;
            match self.say().await {
                // What was known of its last life was old.
                Err(WriteError::Refused(refusal))
                    if refusal.kind == RefusalKind::Conflict
                        && !deadline.left(Clock::now()).is_zero() =>
                {
                    Clock::sleep(LEARN_PAUSE).await;
                }
                said => return said,
            }
        }
    }
}

/// Main memory in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
