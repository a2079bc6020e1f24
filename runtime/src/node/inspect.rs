//! Read-only views. Looking never enters a mailbox and disturbs nobody.

mod counters;
mod machine;
mod metric;
pub(crate) mod protocol;
mod service;
pub(crate) mod watch;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::actor::cell::{ActorCell, Phase};
use crate::actor::engine::Engine;
use crate::base::clock::Timestamp;
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::node::device_manager::protocol::Waiting;
use odeon_devices::inventory::Reading;

pub use crate::actor::blocked::BlockedThread;
pub use crate::actor::stats::MethodView;
pub use crate::base::journal::{News, NewsKind, chain_of};
pub use crate::base::sketch::Times;
pub use crate::net::link::view::LinkView;
pub use machine::{MachineView, Usage};
pub use metric::{Metric, MetricOf};
pub(crate) use protocol::MethodCounts;
pub(crate) use watch::{LastSight, Looking};
pub use watch::{NodeSight, ProcessKind, ProcessSight, Sight, WaitKind, WaitView, Watch};

/// One hosted actor, as counters show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorView {
    /// The actor's id.
    pub id: ActorId,
    /// Its supervisor.
    pub parent: ActorId,
    /// Its type's stable name.
    pub actor: String,
    /// Which process hosts it.
    pub process: ProcessId,
    /// Which life it is in.
    pub incarnation: Incarnation,
    /// The stage of its life that it is in at the moment.
    pub phase: Phase,
    /// Messages in its mailbox.
    pub queued: u32,
    /// Messages of its own process for which the mailbox has room.
    pub room: u32,
    /// Bytes of the messages in its mailbox that came from other processes; those of its own are not
    /// encoded.
    pub queued_bytes: u64,
    /// Messages it has taken out of its mailbox so far.
    pub handled: u64,
    /// Handlers that ended with a failure.
    pub failed: u64,
    /// Time in handlers that have ended, in nanoseconds.
    pub busy: u64,
    /// Time that the messages it has handled lay in the mailbox, in nanoseconds.
    pub waited: u64,
    /// When it last went from one state to another, by its process's clock.
    pub changed: Timestamp,
    /// The handler that runs.
    pub running: Option<RunningView>,
    /// The devices that it was granted, by their numbers on the node.
    pub devices: Vec<u32>,
}

/// A handler that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningView {
    /// The message that it handles.
    pub message: String,
    /// Since when, by its process's clock.
    pub since: Timestamp,
    /// Its span.
    pub span: u64,
}

/// A process that a node has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessView {
    /// Its number in the cluster.
    pub process: ProcessId,
    /// The operating system's number; `None` for a worker inside the node's own process.
    pub pid: Option<u32>,
    /// The job that it works for.
    pub job: String,
    /// True if it runs the job's `main`, rather than hosts actors.
    pub is_driver: bool,
}

/// A node, what it has, and who has or waits for some of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    /// The process that is the node.
    pub process: ProcessId,
    /// Its resources, with the leases on them.
    pub node: odeon_placement::Node,
    /// The actors that have leases, with their names on those and their processes.
    pub actors: Vec<(ActorId, String, ProcessId)>,
    /// Those whose supervisors have asked this node for a place.
    pub waiting: Vec<Waiting>,
    /// The readings of its devices when they were last looked at; none where nobody asked for them.
    #[serde(default)]
    pub readings: Vec<DeviceReading>,
}

/// Readings of a device's sensors, or of its driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReading {
    /// Its number on the node.
    pub index: u32,
    /// The part of the last sample period in which it computed, from 0 to 1.
    pub busy: Reading<f64>,
    /// Bytes of its memory that are allocated.
    pub memory_used: Reading<u64>,
    /// Of the chip, in degrees Celsius.
    pub celsius: Reading<u32>,
    /// Draw of the board, in watts.
    pub watts: Reading<f64>,
    /// Clocks of its multiprocessors and of its memory, in hertz.
    #[serde(default = "not_told")]
    pub clocks: Reading<(f64, f64)>,
    /// Transfers over PCIe that were sent again so far.
    #[serde(default = "not_told")]
    pub pcie_replays: Reading<u64>,
    /// The processes that hold memory of it: the operating system's numbers of them, and bytes. Of
    /// a slice, those of its card.
    pub holders: Reading<Vec<(u32, Option<u64>)>>,
}

/// A sensor that a release of before did not read.
fn not_told<T>() -> Reading<T> {
    Reading::unmeasured("it was recorded before this was measured")
}

/// Why an actor is where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Why {
    /// It has a place.
    Placed {
        /// The node.
        node: String,
        /// Its process there.
        process: ProcessId,
        /// The devices, by their numbers on the node.
        devices: Vec<u32>,
    },
    /// It waits for one.
    Waits(Waiting),
}

impl NodeView {
    /// Looks up why an actor is where it is, or waits, as far as this node knows.
    #[must_use]
    pub fn why(&self, actor: ActorId) -> Option<Why> {
        let waiting = self
            .waiting
            .iter()
            .find(|waiting| waiting.actors.contains(&actor));
        if let Some(waiting) = waiting {
            return Some(Why::Waits(waiting.clone()));
        }
        let (_, holder, process) = self.actors.iter().find(|(id, ..)| *id == actor)?;
        let own = |lease: &&odeon_placement::Lease| {
            let there = lease.process == odeon_placement::Process::Existing(process.0);
            lease.holder == *holder && there
        };
        let lease = self.node.leases().find(own)?;
        Some(Why::Placed {
            node: self.node.name.clone(),
            process: *process,
            devices: lease.devices.iter().map(|grant| grant.index).collect(),
        })
    }
}

impl Why {
    /// Says it in words, with the operating system's number of the process where that is known.
    #[must_use]
    pub fn sentence(&self, pid: Option<u32>) -> String {
        match self {
            Self::Placed {
                node,
                process,
                devices,
            } => {
                let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                let with = match devices.as_slice() {
                    [] => String::new(),
                    [one] => format!(", with device {one}"),
                    many => {
                        let many: Vec<_> = many.iter().map(u32::to_string).collect();
                        format!(", with devices {}", many.join(", "))
                    }
                };
                format!("on {node}, in process {process}{pid}{with}")
            }
            Self::Waits(waiting) => waiting.to_string(),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence(None))
    }
}

/// The links of an engine, by peer.
pub(crate) fn links(engine: &Engine) -> Vec<LinkView> {
    let mut views: Vec<_> = engine.links.iter().map(|link| link.view()).collect();
    views.sort_unstable_by_key(|view| view.peer);
    views
}

/// The hardware of a node, the holders of leases and the actors that wait; `None` for a process
/// below a node.
pub(crate) async fn hardware(engine: &Arc<Engine>) -> Option<NodeView> {
    if engine.uplink.get().is_some() {
        return None;
    }
    let snapshot = engine.snapshot().await;
    Some(NodeView {
        process: engine.process,
        node: snapshot.node,
        actors: snapshot.actors,
        waiting: snapshot.waiting,
        readings: engine.device_readings(),
    })
}

/// Shows each actor that an engine hosts, and each whose row it keeps and that has no place.
pub(crate) fn each_actor(engine: &Engine, see: &mut impl FnMut(ActorView)) {
    for cell in &engine.cells {
        see(view_of(&cell));
    }
    for row in engine.members.placeless() {
        see(ActorView {
            id: row.id,
            parent: row.parent,
            actor: row.actor.to_owned(),
            process: engine.process,
            incarnation: row.incarnation,
            phase: Phase::Waiting,
            queued: row.held,
            room: 0,
            queued_bytes: 0,
            handled: 0,
            failed: 0,
            busy: 0,
            waited: 0,
            changed: Timestamp(0),
            running: None,
            devices: vec![],
        });
    }
}

fn view_of(cell: &ActorCell) -> ActorView {
    let stats = &cell.stats;
    let running = cell.running().map(|(message, running)| RunningView {
        message: message.to_owned(),
        since: running.since,
        span: running.span,
    });
    ActorView {
        id: cell.id,
        parent: cell.parent,
        actor: cell.actor.name.to_owned(),
        process: cell.engine.process,
        incarnation: cell.incarnation(),
        phase: cell.phase(),
        queued: cell.queued(),
        room: cell.admission.most(),
        queued_bytes: cell.queued_bytes(),
        handled: stats.taken(),
        failed: stats.failed(),
        busy: stats.busy(),
        waited: stats.waited(),
        changed: stats.changed(),
        running,
        devices: cell.devices.iter().map(|device| device.index).collect(),
    }
}

/// The common name of messages that never leave their process, and have no row of their own.
const LOCAL_MESSAGES: &str = "messages of this process alone";

/// The work of an actor in this process by kind of message, if the process hosts it.
pub(crate) fn methods(engine: &Engine, actor: ActorId) -> Option<Vec<MethodView>> {
    let cell = engine.cells.get(&actor)?;
    let names = cell.actor.methods.iter().map(|method| method.name);
    let names = names.chain([LOCAL_MESSAGES]);
    Some(cell.stats.methods(names))
}
