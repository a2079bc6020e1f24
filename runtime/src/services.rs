//! The services that every engine has for others, and the components that it is made of. To add one
//! is to add its line.

use crate::blob::protocol::{Bringing, Lending};
use crate::blob::{Share, Store};
use crate::current::Listed;
use crate::detached::protocol::Detaching;
use crate::engine::component::Components;
use crate::engine::lives::{Lives, Watching};
use crate::gang::Gangs;
use crate::gang::protocol::{Domains, GangMemory, GangRanks};
use crate::hardware::protocol::{
    Claiming, Evicting, HandingOver, Picturing, PicturingAll, RoomChanged, Scheduling,
};
use crate::hardware::{Hardware, HardwareConfig};
use crate::host::Watchdogs;
use crate::id::ProcessId;
use crate::inspect::watch::{LastSights, Onlookers};
use crate::inspect::{LastSight, Looking, MethodCounts};
use crate::limits::Limits;
use crate::names::{NameNotice, NameTable, Naming};
use crate::program::WorkerMode;
use crate::service::row::ServiceRow;
use crate::telemetry::Points;
use crate::worker::Workers;
use crate::worker::protocol::{Dismissing, LastWords, Launching, LeaseLaunching};

/// By number.
pub(crate) const SERVICES: &[ServiceRow] = &[
    ServiceRow::at_once::<Lives>(),
    ServiceRow::at_once::<Watching>(),
    ServiceRow::at_once::<Naming>().with_notices::<NameNotice>(),
    ServiceRow::later::<Detaching>(),
    ServiceRow::later::<Launching>(),
    ServiceRow::later::<LeaseLaunching>(),
    ServiceRow::later::<Dismissing>(),
    ServiceRow::at_once::<LastWords>(),
    ServiceRow::later::<Scheduling>().with_notices::<RoomChanged>(),
    ServiceRow::later::<Picturing>(),
    ServiceRow::later::<PicturingAll>(),
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
    hardware: HardwareConfig,
) -> Components {
    components(process, limits, None, workers, hardware)
}

/// Those of a worker's, which starts no processes and has no hardware of its own.
pub(crate) fn of_worker(process: ProcessId, limits: &Limits, share: Option<Share>) -> Components {
    let hardware = HardwareConfig::default();
    components(process, limits, share, WorkerMode::InProcess, hardware)
}

fn components(
    process: ProcessId,
    limits: &Limits,
    share: Option<Share>,
    workers: WorkerMode,
    hardware: HardwareConfig,
) -> Components {
    Components::default()
        .with(Hardware::new(hardware))
        .with(Workers::new(workers, of_worker))
        .with(Gangs::default())
        .with(Store::new(process, limits, share))
        .with(NameTable::default())
        .with(Watchdogs::default())
        .with(Onlookers::default())
        .with(LastSights::default())
        .with(Points::new(limits.points_max))
        // Last, so that an engine that is found has all others.
        .with(Listed(process))
}

#[cfg(test)]
mod tests;
