//! Watchdogs over the run time of actors' handlers, for actors that must not take for
//! ever.

use std::sync::{Arc, Weak};
use std::time::Duration;

use odeon_devices::fault::{FaultKind, GpuFault};
use parking_lot::Mutex;

use crate::actor::blocked::BlockedThreads;
use crate::actor::cell::ActorCell;
use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::actor::io_watchdog::IoWatchdog;
use crate::base::clock::{Clock, Timestamp};

/// The hosted actors whose handlers must not take for ever, and the thread that looks at them.
#[derive(Default)]
pub(crate) struct Watchdogs {
    watched: Mutex<Vec<Watched>>,
    /// Until the engine is closed.
    pulse: Mutex<Option<IoWatchdog>>,
}

/// An actor with a limit.
struct Watched {
    cell: Weak<ActorCell>,
    limit: Duration,
    /// Set once a handler has hung. Its process is then ended.
    is_reported: bool,
}

/// A handler that has run for too long.
struct Hung {
    cell: Arc<ActorCell>,
    limit: Duration,
    message: &'static str,
    waited: Duration,
}

impl Component for Watchdogs {
    fn attach(&self, engine: &Arc<Engine>) {
        let weak = Arc::downgrade(engine);
        let look = move || {
            if let Some(engine) = weak.upgrade() {
                engine.component::<Self>().look_for_hangs(&engine);
                engine.component::<BlockedThreads>().look(&engine);
                engine.beat_late_links();
            }
        };
        let runtime = engine.runtime().clone();
        *self.pulse.lock() = IoWatchdog::start(runtime, engine.limits.pulse_interval, look);
    }

    fn sweep(&self, engine: &Arc<Engine>, _: Timestamp) {
        self.look_for_hangs(engine);
    }

    fn close(&self) {
        self.pulse.lock().take();
    }
}

impl Watchdogs {
    /// Looks at an actor from now on, if it has a watchdog.
    pub(super) fn watch(&self, cell: &Arc<ActorCell>) {
        if let Some(limit) = cell.hang_after {
            self.watched.lock().push(Watched {
                cell: Arc::downgrade(cell),
                limit,
                is_reported: false,
            });
        }
    }

    fn hung(&self) -> Vec<Hung> {
        let now = Clock::now();
        let mut watched = self.watched.lock();
        watched.retain(|watched| watched.cell.strong_count() > 0);
        let hung = watched.iter_mut().filter_map(|watched| {
            let (cell, limit) = (watched.cell.upgrade()?, watched.limit);
            let (message, running) = cell.running()?;
            let waited = now.since(running.since);
            if waited <= limit || watched.is_reported {
                return None;
            }
            watched.is_reported = true;
            Some(Hung {
                cell,
                limit,
                message,
                waited,
            })
        });
        hung.collect()
    }

    /// Reports handlers that run for too long, so that their processes are ended.
    fn look_for_hangs(&self, engine: &Arc<Engine>) {
        for hung in self.hung() {
            let Hung {
                cell,
                limit: predicted,
                message,
                waited,
            } = hung;
            let hang = FaultKind::Hang { waited, predicted };
            // Which of several it is cannot be told from here.
            let device = cell.devices.first();
            let fault = device.map(|device| GpuFault::new(device.index, hang));
            let why = format!("{message} of {} hangs: {hang}", cell.actor.name);
            tracing::error!(actor = %cell.id, %why, "this process is to end");
            let ending = Arc::clone(engine);
            // The order leaves at once, also when no thread of the runtime is free.
            engine.begin_task(async move {
                ending.retire(ending.process, fault, &why).await;
            });
        }
    }
}
