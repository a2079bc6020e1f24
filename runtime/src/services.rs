//! The services that every engine has for others, and the components that it is made of. To add one
//! is to add its line.

use crate::actor::blocked::BlockedThreads;
use crate::actor::blocked::protocol::Blocking;
use crate::actor::console::Console;
use crate::actor::engine::component::Components;
use crate::actor::engine::lives::{Lives, Watching};
use crate::actor::host::Watchdogs;
use crate::actor::names::{NameNotice, NameTable, Naming};
use crate::actor::placing::{Dismissing, Launching, Scheduling};
use crate::actor::replies::Shelf;
use crate::actor::replies::protocol::Streaming;
use crate::actor::service_row::ServiceRow;
use crate::actor::task_context::Listed;
use crate::actor::telemetry::Points;
use crate::actor::waits::protocol::TellingWaits;
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::node::blob::protocol::{Bringing, Lending};
use crate::node::blob::{Share, Store};
use crate::node::detached::protocol::Detaching;
use crate::node::device_manager::protocol::{
    Claiming, Evicting, HandingOver, RoomChanged, Surveying, SurveyingAll,
};
use crate::node::device_manager::{DeviceConfig, DeviceManager};
use crate::node::flows::protocol::{LookingAtRanks, NamingFlowLog};
use crate::node::flows::{OwnFlowLog, RankReaders};
use crate::node::gang::Gangs;
use crate::node::gang::protocol::{Domains, GangMemory, GangRanks};
use crate::node::inspect::watch::{LastSights, Subscribers};
use crate::node::inspect::{LastSight, Looking, MethodCounts};
use crate::node::program::WorkerMode;
use crate::node::worker::Workers;
use crate::node::worker::protocol::{JobWorkers, LastWords, LeaseLaunching};

/// By number.
pub(crate) const SERVICES: &[ServiceRow] = &[
    ServiceRow::at_once::<Lives>(),
    ServiceRow::at_once::<Watching>(),
    ServiceRow::at_once::<Naming>().with_notices::<NameNotice>(),
    ServiceRow::later::<Detaching>(),
    ServiceRow::later::<Launching>(),
    ServiceRow::later::<LeaseLaunching>(),
    ServiceRow::later::<Dismissing>(),
    ServiceRow::at_once::<LastWords>().with_notices::<JobWorkers>(),
    ServiceRow::later::<Scheduling>().with_notices::<RoomChanged>(),
    ServiceRow::later::<Surveying>(),
    ServiceRow::later::<SurveyingAll>(),
    ServiceRow::later::<Claiming>(),
    ServiceRow::later::<HandingOver>(),
    ServiceRow::later::<Evicting>(),
    ServiceRow::at_once::<Lending>(),
    ServiceRow::later::<Bringing>(),
    ServiceRow::at_once::<Domains>(),
    ServiceRow::at_once::<GangMemory>(),
    ServiceRow::at_once::<GangRanks>(),
    ServiceRow::at_once::<Looking>().with_notices::<LastSight>(),
    ServiceRow::at_once::<MethodCounts>(),
    ServiceRow::at_once::<Streaming>(),
    ServiceRow::at_once::<Blocking>(),
    ServiceRow::later::<TellingWaits>(),
    ServiceRow::at_once::<NamingFlowLog>(),
    ServiceRow::later::<LookingAtRanks>(),
];

const _: () = {
    let mut place = 0;
    while place < SERVICES.len() {
        assert!(
            SERVICES[place].id.0 as usize == place,
            "the number of a service is its place in the list"
        );
        place += 1;
    }
};

/// The components of a node's engine.
pub(crate) fn of_node(
    process: ProcessId,
    limits: &Limits,
    workers: WorkerMode,
    hardware: DeviceConfig,
) -> Components {
    components(process, limits, None, workers, hardware)
}

/// Those of a worker's, which starts no processes and has no hardware of its own.
pub(crate) fn of_worker(process: ProcessId, limits: &Limits, share: Option<Share>) -> Components {
    let hardware = DeviceConfig::default();
    components(process, limits, share, WorkerMode::InProcess, hardware)
}

fn components(
    process: ProcessId,
    limits: &Limits,
    share: Option<Share>,
    workers: WorkerMode,
    hardware: DeviceConfig,
) -> Components {
    Components::default()
        .with(DeviceManager::new(hardware))
        .with(Workers::new(workers, of_worker))
        .with(Gangs::default())
        .with(Store::new(process, limits, share))
        .with(Console::new())
        .with(NameTable::default())
        .with(Watchdogs::default())
        .with(Shelf::default())
        .with(BlockedThreads::default())
        .with(Subscribers::default())
        .with(OwnFlowLog::default())
        .with(RankReaders::default())
        .with(LastSights::default())
        .with(Points::new(limits.points_max))
        // Last, so that an engine that is found has all others.
        .with(Listed(process))
}

#[cfg(test)]
mod tests;
