//! What the running task is doing: which actor's handler it polls, in which engine and span.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use dashmap::DashMap;

use crate::cell::Cell;
use crate::engine::Engine;
use crate::id::{ActorId, ProcessId};
use crate::trace::SpanContext;

/// The surroundings of a future while it is polled.
pub(crate) enum Current {
    /// A handler, `start` or `stop` of an actor.
    Actor { cell: Arc<Cell>, span: SpanContext },
    /// Code outside of actors that chose an engine.
    Scope(Arc<Engine>),
}

thread_local!(static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) });

/// Puts surroundings in place for as long as it lives, and gives them back to `home` after that.
pub(crate) struct Entered<'a> {
    home: &'a mut Option<Current>,
}

impl<'a> Entered<'a> {
    pub(crate) fn new(home: &'a mut Option<Current>) -> Self {
        CURRENT.with_borrow_mut(|current| std::mem::swap(current, home));
        Self { home }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| std::mem::swap(current, self.home));
    }
}

/// The span of the handler that runs now; empty outside of handlers.
pub(crate) fn span() -> SpanContext {
    CURRENT.with_borrow(|current| match current {
        Some(Current::Actor { span, .. }) => *span,
        _ => SpanContext::default(),
    })
}

/// The actor whose handler runs now.
pub(crate) fn actor() -> Option<ActorId> {
    CURRENT.with_borrow(|current| match current {
        Some(Current::Actor { cell, .. }) => Some(cell.id),
        _ => None,
    })
}

/// The engines that run in this process.
static ENGINES: LazyLock<DashMap<ProcessId, Arc<Engine>>> = LazyLock::new(DashMap::new);

/// Counts the changes of [`ENGINES`].
static CHANGES: AtomicU64 = AtomicU64::new(1);

pub(crate) fn add_engine(engine: &Arc<Engine>) {
    ENGINES.insert(engine.process, Arc::clone(engine));
    CHANGES.fetch_add(1, Ordering::Release);
}

pub(crate) fn remove_engine(process: ProcessId) {
    ENGINES.remove(&process);
    CHANGES.fetch_add(1, Ordering::Release);
}

/// The engine that sends for the caller: the one it runs in; else the home of the actor, when that
/// is in this process; else the only one there is.
pub(crate) fn engine_for(home: ProcessId) -> Option<Arc<Engine>> {
    let inside = CURRENT.with_borrow(|current| match current {
        Some(Current::Actor { cell, .. }) => Some(Arc::clone(&cell.engine)),
        Some(Current::Scope(engine)) => Some(Arc::clone(engine)),
        None => None,
    });
    inside.or_else(|| outside(home))
}

/// What this thread looked up last, and at which count of changes. Weak, so that a thread that sends
/// no more does not keep an engine.
struct Last {
    changes: u64,
    home: ProcessId,
    engine: Weak<Engine>,
}

thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });

fn outside(home: ProcessId) -> Option<Arc<Engine>> {
    let changes = CHANGES.load(Ordering::Acquire);
    LAST.with_borrow_mut(|last| {
        if let Some(last) = last
            && (last.changes, last.home) == (changes, home)
            && let Some(engine) = last.engine.upgrade()
        {
            return Some(engine);
        }
        let engine = look_up(home)?;
        *last = Some(Last {
            changes,
            home,
            engine: Arc::downgrade(&engine),
        });
        Some(engine)
    })
}

fn look_up(home: ProcessId) -> Option<Arc<Engine>> {
    ENGINES
        .get(&home)
        .map(|engine| Arc::clone(&engine))
        .or_else(|| {
            let mut engines = ENGINES.iter();
            let only = engines.next().map(|entry| Arc::clone(&entry));
            if engines.next().is_some() { None } else { only }
        })
}
