//! The counters of one actor. Its own loop adds to them, anybody reads them: relaxed atomics that
//! only ever hold what is true or was a moment ago.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::base::clock::Timestamp;
use crate::base::sketch::{Sketch, Times};

/// Statistics of an actor's work in this process, past and present.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    taken: AtomicU64,
    failed: AtomicU64,
    busy: AtomicU64,
    waited: AtomicU64,
    /// When it last went from one state to another.
    changed: AtomicU64,
    /// One more than the method that runs, in the order of the actor's type; 0 for none.
    method: AtomicU32,
    since: AtomicU64,
    span: AtomicU64,
    /// The last message that is none of its type's methods.
    local: Mutex<&'static str>,
    /// A row for each method, and one for all other messages; made with the first message.
    methods: OnceLock<Box<[MethodStats]>>,
}

#[derive(Debug, Default)]
struct MethodStats {
    handled: AtomicU64,
    failed: AtomicU64,
    handling: Sketch,
    waiting: Sketch,
}

/// The handler that an actor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// Which of its type's methods; their number when it is none of them.
    pub(crate) method: usize,
    pub(crate) since: Timestamp,
    pub(crate) span: u64,
}

/// The work of an actor on one kind of message, in its present process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodView {
    /// The message's name.
    pub name: String,
    /// The number of messages that it has handled.
    pub handled: u64,
    /// Those of them that ended with a failure.
    pub failed: u64,
    /// The run times of its handler.
    pub handling: Times,
    /// The times that they lay in the mailbox.
    pub waiting: Times,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Stats {
    /// A message came out of the mailbox.
    pub(crate) fn take(&self) {
        add(&self.taken, 1);
    }

    /// A handler begins to run.
    pub(crate) fn begin(&self, running: Running) {
        self.since.store(running.since.0, Ordering::Relaxed);
        self.span.store(running.span, Ordering::Relaxed);
        // Whoever sees the method sees since when.
        self.method
            .store(running.method as u32 + 1, Ordering::Release);
    }

    /// A message comes that is none of the methods.
    pub(crate) fn note_local(&self, name: &'static str) {
        *self.local.lock() = name;
    }

    /// The last message that is none of the methods.
    pub(crate) fn local(&self) -> &'static str {
        *self.local.lock()
    }

    /// The handler has run, of a message that came at `queued`, of a type with so many methods.
    pub(crate) fn end(&self, methods: usize, queued: Timestamp, ended: Timestamp, failed: bool) {
        let method = self.method.load(Ordering::Relaxed);
        self.method.store(0, Ordering::Relaxed);
        let since = Timestamp(self.since.load(Ordering::Relaxed));
        let (ran, lay) = (ended.since(since), since.since(queued));
        let (ran, lay) = (ran.as_nanos() as u64, lay.as_nanos() as u64);
        add(&self.busy, ran);
        add(&self.waited, lay);
        add(&self.failed, u64::from(failed));
        self.changed.store(ended.0, Ordering::Relaxed);
        let rows = self
            .methods
            .get_or_init(|| (0..=methods).map(|_| MethodStats::default()).collect());
        let Some(row) = (method as usize).checked_sub(1).and_then(|at| rows.get(at)) else {
            return;
        };
        add(&row.handled, 1);
        add(&row.failed, u64::from(failed));
        row.handling.add(ran);
        row.waiting.add(lay);
    }

    /// It went into another phase.
    pub(crate) fn change(&self, now: Timestamp) {
        self.changed.store(now.0, Ordering::Relaxed);
    }

    /// The handler that runs.
    pub(crate) fn running(&self) -> Option<Running> {
        let method = self.method.load(Ordering::Acquire).checked_sub(1)?;
        Some(Running {
            method: method as usize,
            since: Timestamp(self.since.load(Ordering::Relaxed)),
            span: self.span.load(Ordering::Relaxed),
        })
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Nanoseconds in handlers that have ended.
    pub(crate) fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Nanoseconds that messages lay in the mailbox.
    pub(crate) fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    pub(crate) fn changed(&self) -> Timestamp {
        Timestamp(self.changed.load(Ordering::Relaxed))
    }

    /// By method, in the order of the names.
    pub(crate) fn methods(&self, names: impl Iterator<Item = &'static str>) -> Vec<MethodView> {
        let Some(rows) = self.methods.get() else {
            return vec![];
        };
        let view = |(name, row): (&str, &MethodStats)| MethodView {
            name: name.to_owned(),
            handled: row.handled.load(Ordering::Relaxed),
            failed: row.failed.load(Ordering::Relaxed),
            handling: row.handling.view(),
            waiting: row.waiting.view(),
        };
        let views = names.zip(rows).map(view);
        views.filter(|view| view.handled > 0).collect()
    }
}
