//! The services that every engine has for others. To add one is to add its line.

use crate::blob::protocol::{Bringing, Lending};
use crate::detached::Detaching;
use crate::engine::lives::{Lives, Watching};
use crate::engine::names::{NameNotice, Naming};
use crate::gang::protocol::{Domains, GangMemory, GangRanks};
use crate::hardware::protocol::{
    Claiming, Evicting, HandingOver, Picturing, PicturingAll, RoomChanged, Scheduling,
};
use crate::inspect::{LastSight, Looking, MethodCounts};
use crate::service::row::ServiceRow;
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

#[cfg(test)]
mod tests;
