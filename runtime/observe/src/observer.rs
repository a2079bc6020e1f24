//! A [`ClusterView`] that others share: who looks at it, and when there is something new.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use odeon::inspect::NodeSight;
use odeon::{Clock, System, Timestamp};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cluster_view::{ClusterView, LowDisk, RefusedNode, WaitingJob};
use crate::date::Date;
use crate::event::Event;
use crate::recording::{Frame, Recorder, RecordingError};

/// A view of a cluster that many look at. Clones are the same.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

struct Shared {
    name: String,
    epoch: AtomicU64,
    started: Date,
    /// The date that is told; `None` where it is the true one.
    told: Option<AtomicU64>,
    /// Taken before what is seen.
    recorder: Mutex<Option<Recorder>>,
    seen: Mutex<ClusterView>,
    news: watch::Sender<u64>,
    viewers: AtomicUsize,
    /// When somebody has last looked without looking on, in nanoseconds since 1970.
    glanced: AtomicU64,
    most: usize,
}

/// Somebody who looks; until it is dropped.
#[derive(Debug)]
pub struct Viewer(Observer);

/// The longest time that a process may take to show itself.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two looks while somebody looks on.
const LIVELY: Duration = Duration::from_millis(250);
/// The age up to which a look is good enough for whoever looks once.
const FRESH: Duration = Duration::from_millis(1_500);
/// The time after a look for which somebody counts as looking on.
const LINGER: Duration = Duration::from_secs(5);
/// The pause between two looks otherwise: history goes on.
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
        Self::begun(name.into(), viewers_max, today(), None)
    }

    /// One whose date is told ([`Observer::set_now`]): of what was, rather than of what is.
    #[must_use]
    pub fn of_the_past(name: impl Into<String>, viewers_max: usize, from: Date) -> Self {
        let told = AtomicU64::new(from.0);
        Self::begun(name.into(), viewers_max, from, Some(told))
    }

    fn begun(name: String, viewers_max: usize, started: Date, told: Option<AtomicU64>) -> Self {
        Self(Arc::new(Shared {
            name,
            // Another one each time it begins.
            epoch: started.0.into(),
            started,
            told,
            recorder: Mutex::default(),
            seen: Mutex::default(),
            news: watch::Sender::new(0),
            viewers: AtomicUsize::new(0),
            glanced: AtomicU64::new(0),
            most: viewers_max,
        }))
    }

    /// The name for people of what it looks at.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A number that is another one when it begins anew.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Relaxed)
    }

    /// The date, by which all that is seen has its age.
    #[must_use]
    pub fn now(&self) -> Date {
        let told = self.0.told.as_ref();
        told.map_or_else(today, |told| Date(told.load(Ordering::Relaxed)))
    }

    /// Tells the date to one of the past; another one keeps its own.
    pub fn set_now(&self, date: Date) {
        if let Some(told) = &self.0.told {
            told.store(date.0, Ordering::Relaxed);
        }
    }

    /// Forgets all that it has seen, so that it can be shown from the start.
    pub fn begin_anew(&self) {
        self.0.epoch.fetch_add(1, Ordering::Relaxed);
        self.write(|seen| *seen = ClusterView::default());
    }

    /// Writes down all that it is told from now on.
    pub fn record(&self, recorder: Recorder) {
        *self.0.recorder.lock() = Some(recorder);
    }

    /// Ends what it writes down; `None` where nothing is. Else how many bytes there are.
    ///
    /// # Errors
    /// Why recording has ended before.
    pub fn end_recording(&self) -> Option<Result<u64, RecordingError>> {
        let recorder = self.0.recorder.lock().take();
        recorder.map(Recorder::finish)
    }

    /// Bytes that are written down, while something is.
    #[must_use]
    pub fn recorded(&self) -> Option<u64> {
        self.0.recorder.lock().as_ref().map(Recorder::written)
    }

    /// When it began.
    #[must_use]
    pub fn started(&self) -> Date {
        self.0.started
    }

    /// Looks at what is seen.
    pub fn read<T>(&self, look: impl FnOnce(&ClusterView) -> T) -> T {
        look(&self.0.seen.lock())
    }

    /// Takes in what a node shows; see [`ClusterView::look`].
    pub fn look(&self, sight: NodeSight, own: (Timestamp, Date), clock: Option<(i64, Duration)>) {
        let mut recorder = self.0.recorder.lock();
        if let Some(recorder) = recorder.as_mut() {
            recorder.add(&Frame::Look {
                sight: Cow::Borrowed(&sight),
                at: own.0,
                date: own.1,
                clock,
            });
        }
        self.write(|seen| seen.look(sight, own, clock));
    }

    /// A node is known to be gone; `lost` unless it left in order.
    pub fn node_gone(&self, name: &str, lost: bool) {
        let news = |seen: &ClusterView| seen.node(name).is_some_and(|node| node.gone.is_none());
        if self.read(news) {
            let (name, date) = (name.into(), self.now());
            self.tell(Frame::NodeGone { name, date, lost });
        }
    }

    /// A node is not part of the system any more.
    pub fn forget_node(&self, name: &str) {
        let (name, date) = (name.into(), self.now());
        self.tell(Frame::Forgotten { name, date });
    }

    /// Something has happened that whoever observes knows from elsewhere; see [`ClusterView::note`].
    pub fn happened(&self, event: Event) {
        let date = self.now();
        self.tell(Frame::Happened {
            date,
            event: Cow::Owned(event),
        });
    }

    /// These jobs wait for their place, and no others; see [`ClusterView::jobs_waiting`].
    pub fn jobs_waiting(&self, jobs: &[WaitingJob]) {
        if self.read(|seen| seen.waiting_jobs() != jobs) {
            let (date, jobs) = (self.now(), jobs.into());
            self.tell(Frame::JobsWaiting { date, jobs });
        }
    }

    /// The disks of these nodes are nearly full, and no others; see [`ClusterView::disks_low`].
    pub fn disks_low(&self, disks: &[LowDisk]) {
        if self.read(|seen| seen.low_disks() != disks) {
            let (date, disks) = (self.now(), disks.into());
            self.tell(Frame::DisksLow { date, disks });
        }
    }

    /// Nothing is placed on these nodes, and no others; see [`ClusterView::nodes_refused`].
    pub fn nodes_refused(&self, nodes: &[RefusedNode]) {
        if self.read(|seen| seen.refused_nodes() != nodes) {
            let (date, nodes) = (self.now(), nodes.into());
            self.tell(Frame::NodesRefused { date, nodes });
        }
    }

    /// Works out what follows from what was taken in.
    pub fn tick(&self) {
        self.tell(Frame::Tick { date: self.now() });
    }

    fn tell(&self, frame: Frame<'_>) {
        let mut recorder = self.0.recorder.lock();
        if let Some(recorder) = recorder.as_mut() {
            recorder.add(&frame);
        }
        self.write(|seen| frame.tell(seen, |_, _| {}));
    }

    /// Writes down what a face shows beside what is observed, where something is written down.
    pub fn note(&self, about: &str, json: &str) {
        let (about, json, date) = (about.into(), json.into(), self.now());
        if let Some(recorder) = self.0.recorder.lock().as_mut() {
            recorder.add(&Frame::Note { date, about, json });
        }
    }

    /// Takes something in, and tells those who look on.
    pub fn write<T>(&self, change: impl FnOnce(&mut ClusterView) -> T) -> T {
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
    #[odeon::boxed]
    pub async fn glance(&self) {
        if self.0.told.is_some() {
            return;
        }
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

    /// Returns true where somebody looks on, has looked a moment ago, or will look at what is
    /// written down.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        let glanced = Date(self.0.glanced.load(Ordering::Relaxed));
        let watched = self.0.viewers.load(Ordering::Relaxed) > 0;
        watched || today().since(glanced) < LINGER || self.recorded().is_some()
    }

    /// The time until the next look.
    #[must_use]
    pub fn pause(&self) -> Duration {
        if self.is_watched() { LIVELY } else { CALM }
    }

    /// Looks at a system of this process, its workers and its drivers, until the future is dropped.
    #[odeon::boxed]
    pub async fn follow(&self, system: &System) {
        self.follow_until(system, std::future::pending()).await;
    }

    /// Looks at a system like [`Observer::follow`] until something is over, and then a last time.
    pub async fn follow_until(&self, system: &System, over: impl Future<Output = ()>) {
        let mut watch = system.admin().watch();
        let mut over = std::pin::pin!(over);
        let mut is_over = false;
        loop {
            for round in 1..=ROUNDS_MAX {
                let sight = watch.look(PATIENCE).await;
                let more = sight.more(round);
                self.look(sight, here(), None);
                if !more {
                    break;
                }
            }
            self.tick();
            if is_over {
                return;
            }
            tokio::select! {
                () = Clock::sleep(self.pause()) => {}
                () = &mut over => is_over = true,
            }
        }
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
