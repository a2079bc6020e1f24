//! An [`Observatory`] that others share: who looks at it, and when there is something new.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use odeon::inspect::NodeSight;
use odeon::{Clock, System, Timestamp};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::date::Date;
use crate::observatory::Observatory;

/// See the module.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

struct Shared {
    name: String,
    epoch: u64,
    started: Date,
    seen: Mutex<Observatory>,
    news: watch::Sender<u64>,
    viewers: AtomicUsize,
    /// When somebody has last looked without looking on, in nanoseconds since 1970.
    glanced: AtomicU64,
    most: usize,
}

/// Somebody who looks; until it is dropped.
#[derive(Debug)]
pub struct Viewer(Observer);

/// How long a process may take to show itself.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often is looked while somebody looks on.
const LIVELY: Duration = Duration::from_millis(250);
/// What is younger is good enough for whoever looks once.
const FRESH: Duration = Duration::from_millis(1_500);
/// How long after a look somebody counts as looking on.
const LINGER: Duration = Duration::from_secs(5);
/// How often otherwise: history goes on.
const CALM: Duration = Duration::from_secs(1);
/// Looks after which a process that always has more to show is left for the next round.
const ROUNDS_MAX: usize = 64;

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

impl Observer {
    /// One that has seen nothing of what people call so, for at most so many viewers.
    #[must_use]
    pub fn new(name: impl Into<String>, viewers_max: usize) -> Self {
        let started = today();
        Self(Arc::new(Shared {
            name: name.into(),
            // Another one each time it begins.
            epoch: started.0,
            started,
            seen: Mutex::default(),
            news: watch::Sender::new(0),
            viewers: AtomicUsize::new(0),
            glanced: AtomicU64::new(0),
            most: viewers_max,
        }))
    }

    /// What people call what it looks at.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A number that is another one when it begins anew.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// When it began.
    #[must_use]
    pub fn started(&self) -> Date {
        self.0.started
    }

    /// Looks at what is seen.
    pub fn read<T>(&self, look: impl FnOnce(&Observatory) -> T) -> T {
        look(&self.0.seen.lock())
    }

    /// Takes something in, and tells those who look on.
    pub fn write<T>(&self, change: impl FnOnce(&mut Observatory) -> T) -> T {
        let mut seen = self.0.seen.lock();
        let outcome = change(&mut seen);
        let seq = seen.seq();
        drop(seen);
        self.0.news.send_replace(seq);
        outcome
    }

    /// Hears of it when there is something new.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.news.subscribe()
    }

    /// Somebody looks on from now on; `None` when too many do.
    #[must_use]
    pub fn viewer(&self) -> Option<Viewer> {
        let more = |viewers| (viewers < self.0.most).then_some(viewers + 1);
        let viewers = &self.0.viewers;
        let taken = viewers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Viewer(self.clone()))
    }

    /// Somebody looks once, and likely again. Resolves when what is seen is not old, or nothing new
    /// has come in time.
    pub async fn glance(&self) {
        let now = today();
        let before = Date(self.0.glanced.swap(now.0, Ordering::Relaxed));
        let mut changes = self.changes();
        let is_fresh = || self.read(|seen| today().since(seen.ticked()) < FRESH);
        if is_fresh() && now.since(before) < LINGER {
            return;
        }
        let looked = async {
            while !is_fresh() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        // What there is is shown in any case, with its age.
        let _ = Clock::timeout(PATIENCE, looked).await;
    }

    /// Whether somebody looks on, or has looked a moment ago.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        let glanced = Date(self.0.glanced.load(Ordering::Relaxed));
        self.0.viewers.load(Ordering::Relaxed) > 0 || today().since(glanced) < LINGER
    }

    /// How long to wait until the next look.
    #[must_use]
    pub fn pause(&self) -> Duration {
        if self.is_watched() { LIVELY } else { CALM }
    }

    /// Looks at a system of this process, its workers and its drivers, until the future is dropped.
    pub async fn follow(&self, system: &System) {
        let mut watch = system.watch();
        loop {
            for round in 1..=ROUNDS_MAX {
                let sight = watch.look(PATIENCE).await;
                let more = sight.more(round);
                self.take(sight);
                if !more {
                    break;
                }
            }
            self.write(|seen| seen.tick(today()));
            Clock::sleep(self.pause()).await;
        }
    }

    /// Takes in a look at a node of this process.
    fn take(&self, sight: NodeSight) {
        let own = here();
        self.write(|seen| seen.look(sight, own, None));
    }
}

/// The observer's clock, and the date.
#[must_use]
pub fn here() -> (Timestamp, Date) {
    (Clock::now(), today())
}

/// The date.
#[must_use]
pub fn today() -> Date {
    Date(Clock::unix_time().as_nanos() as u64)
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.0.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}
