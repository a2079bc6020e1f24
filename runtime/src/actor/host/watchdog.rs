//! Watchdogs over the run time of actors' handlers, for actors that must not take for
//! ever.

use std::sync::{Arc, Weak};
use std::time::Duration;

use odeon_devices::fault::GpuFault;
use odeon_diagnosis::Detector;
use odeon_diagnosis::handler::{Hang, Hangs, Running};
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
    watched: Mutex<Watched>,
    /// Until the engine is closed.
    pulse: Mutex<Option<IoWatchdog>>,
}

/// Actors with a limit, each life with a number of its own.
#[derive(Default)]
struct Watched {
    count: u64,
    lives: Vec<(u64, Weak<ActorCell>, Duration)>,
    hangs: Hangs<u64>,
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
            let mut watched = self.watched.lock();
            watched.count += 1;
            let life = (watched.count, Arc::downgrade(cell), limit);
            watched.lives.push(life);
        }
    }

    /// Cells whose handlers run for too long, each once.
    fn hung(&self) -> Vec<(Arc<ActorCell>, Hang)> {
        let mut watched = self.watched.lock();
        watched.lives.retain(|(_, cell, _)| cell.strong_count() > 0);
        let lives = watched.lives.iter();
        let running = lives.filter_map(|(life, cell, limit)| {
            let cell = cell.upgrade()?;
            let (message, running) = cell.running()?;
            let look = Running {
                actor: *life,
                message,
                since: Duration::from_nanos(running.since.0),
                limit: *limit,
            };
            Some((cell, look))
        });
        let (cells, looks): (Vec<_>, Vec<_>) = running.unzip();
        let now = Duration::from_nanos(Clock::now().0);
        let found = watched.hangs.observe(&looks, now);
        let found = found.into_iter().filter_map(|found| {
            let at = looks.iter().position(|it| found.who.contains(&it.actor))?;
            Some((Arc::clone(&cells[at]), found.cause))
        });
        found.collect()
    }

    /// Reports handlers that run for too long, so that their processes are ended.
    fn look_for_hangs(&self, engine: &Arc<Engine>) {
        for (cell, hang) in self.hung() {
            // Which of several it is cannot be told from here.
            let device = cell.devices.first();
            let kind = hang.fault();
            let fault = device.map(|device| GpuFault::new(device.index, kind));
            let why = format!("{} of {} hangs: {kind}", hang.message, cell.actor.name);
            tracing::error!(actor = %cell.id, %why, "this process is to end");
            let ending = Arc::clone(engine);
            // The order leaves at once, also when no thread of the runtime is free.
            engine.begin_task(async move {
                ending.retire(ending.process, fault, &why).await;
            });
        }
    }
}
