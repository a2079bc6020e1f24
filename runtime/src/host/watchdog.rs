//! A watchdog over the run time of an actor's present handler, for actors that must not take for
//! ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use odeon_devices::fault::{FaultKind, GpuFault};

use crate::cell::Cell;
use crate::clock::{Clock, Timestamp};
use crate::engine::Engine;

/// Set for actors that say [`Needs::hang_after`](crate::Needs::hang_after).
#[derive(Debug)]
pub(crate) struct Watchdog {
    limit: Duration,
    /// It has barked, and its process ends.
    barked: AtomicBool,
}

impl Watchdog {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            barked: AtomicBool::new(false),
        }
    }

    /// The message of a cell that has taken too long, and how long; once.
    fn overdue(&self, cell: &Cell, now: Timestamp) -> Option<(&'static str, Duration)> {
        let (message, running) = cell.running()?;
        let waited = now.since(running.since);
        let overdue = waited > self.limit && !self.barked.swap(true, Ordering::Relaxed);
        overdue.then_some((message, waited))
    }
}

impl Engine {
    /// Has this process ended when one of its actors hangs: a handler that waits for a device cannot
    /// be ended in any other way.
    pub(crate) fn look_for_hangs(self: &Arc<Self>) {
        let now = Clock::now();
        let mut watched = self.watched.lock();
        watched.retain(|cell| cell.strong_count() > 0);
        let hung: Vec<(Arc<Cell>, Duration, &'static str, Duration)> = watched
            .iter()
            .filter_map(|cell| {
                let cell = cell.upgrade()?;
                let dog = cell.watchdog.as_ref()?;
                let (limit, (message, waited)) = (dog.limit, dog.overdue(&cell, now)?);
                Some((cell, limit, message, waited))
            })
            .collect();
        drop(watched);
        for (cell, predicted, message, waited) in hung {
            let hang = FaultKind::Hang { waited, predicted };
            // Which of several it is cannot be told from here.
            let device = cell.devices.first();
            let fault = device.map(|device| GpuFault::new(device.index, hang));
            let why = format!("{message} of {} hangs: {hang}", cell.actor.name);
            tracing::error!(actor = %cell.id, %why, "this process is to end");
            let engine = Arc::clone(self);
            // The order leaves at once, also when no thread of the runtime is free.
            self.begin_task(async move {
                engine.retire(engine.process, fault, &why).await;
            });
        }
    }
}
