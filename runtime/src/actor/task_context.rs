//! The state of the running task: the actor whose handler it polls, its engine and its span.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use dashmap::DashMap;

use crate::actor::blocked;
use crate::actor::cell::ActorCell;
use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::actor::pending::Caller;
use crate::base::error::AskError;
use crate::base::id::{ActorId, ProcessId};
use crate::base::trace::SpanContext;

/// The surroundings of a future while it is polled.
pub(crate) enum Current {
    /// A handler, `start` or `stop` of an actor.
    Actor {
        cell: Arc<ActorCell>,
        span: SpanContext,
    },
    /// A task or a later answer of an actor, beside its handlers.
    Task {
        cell: Arc<ActorCell>,
        span: SpanContext,
    },
    /// Code outside of actors that chose an engine, or that runs below a span of somebody else.
    Scope {
        engine: Option<Arc<Engine>>,
        span: SpanContext,
    },
}

thread_local!(static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) });

/// Puts surroundings in place for as long as it lives, and gives them back to `home` after that.
pub(crate) struct Entered<'a> {
    home: &'a mut Option<Current>,
    /// Whose code this thread has polled before.
    before: Option<ActorId>,
}

impl<'a> Entered<'a> {
    pub(crate) fn new(home: &'a mut Option<Current>) -> Self {
        let actor = match home {
            Some(Current::Actor { cell, .. } | Current::Task { cell, .. }) => Some(cell.id),
            Some(Current::Scope { .. }) | None => None,
        };
        CURRENT.with_borrow_mut(|current| std::mem::swap(current, home));
        Self {
            home,
            before: blocked::enter(actor),
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        blocked::enter(self.before);
        CURRENT.with_borrow_mut(|current| std::mem::swap(current, self.home));
    }
}

/// The span of the handler that runs now, or the one that code outside of handlers was put below.
pub(crate) fn span() -> SpanContext {
    CURRENT.with_borrow(|current| match current {
        Some(
            Current::Actor { span, .. } | Current::Task { span, .. } | Current::Scope { span, .. },
        ) => *span,
        None => SpanContext::default(),
    })
}

impl SpanContext {
    /// The span that the calling task handles now, or that it was put [below](crate::actor::telemetry::below);
    /// empty outside of both.
    #[must_use]
    pub fn current() -> Self {
        span()
    }
}

/// The present surroundings with another span in the place of theirs.
pub(crate) fn below(span: SpanContext) -> Current {
    CURRENT.with_borrow(|current| match current {
        Some(Current::Actor { cell, .. }) => Current::Actor {
            cell: Arc::clone(cell),
            span,
        },
        Some(Current::Task { cell, .. }) => Current::Task {
            cell: Arc::clone(cell),
            span,
        },
        Some(Current::Scope { engine, .. }) => Current::Scope {
            engine: engine.clone(),
            span,
        },
        None => Current::Scope { engine: None, span },
    })
}

impl Caller {
    pub(crate) fn now() -> Self {
        CURRENT.with_borrow(|current| match current {
            Some(Current::Actor { cell, span } | Current::Task { cell, span }) => Self {
                actor: Some(cell.id),
                span: *span,
            },
            Some(Current::Scope { span, .. }) => Self {
                actor: None,
                span: *span,
            },
            None => Self::default(),
        })
    }
}

/// The engine and the actor in whose name a program says something about its own work.
pub(crate) fn speaker() -> Option<(Arc<Engine>, ActorId)> {
    let actor = Caller::now().actor;
    let engine = engine_for(actor.map_or(ProcessId(0), |actor| actor.home))?;
    let root = ActorId::root(engine.process);
    Some((engine, actor.unwrap_or(root)))
}

/// The actor whose handler runs now.
pub(crate) fn actor() -> Option<ActorId> {
    CURRENT.with_borrow(|current| match current {
        Some(Current::Actor { cell, .. }) => Some(cell.id),
        _ => None,
    })
}

/// Returns true on a thread that runs `start`, `stop` or a handler of an actor. For panics, which may come
/// at any moment.
pub(crate) fn is_in_actor() -> bool {
    let in_actor = CURRENT.try_with(|current| {
        let current = current.try_borrow().ok()?;
        matches!(*current, Some(Current::Actor { .. })).then_some(())
    });
    matches!(in_actor, Ok(Some(())))
}

/// The engines that run in this process.
static ENGINES: LazyLock<DashMap<ProcessId, Arc<Engine>>> = LazyLock::new(DashMap::new);

/// Counts the changes of [`ENGINES`].
static CHANGES: AtomicU64 = AtomicU64::new(1);

type Simulated = Option<BTreeMap<ProcessId, Arc<Engine>>>;

// The engines of the simulation that this thread runs. Two with one seed have the same ids, and must
// not find each other.
thread_local!(static SIMULATED: RefCell<Simulated> = const { RefCell::new(None) });

/// While it lives, engines that start on this thread are known to it alone.
pub(crate) struct Apart(Simulated);

impl Apart {
    pub(crate) fn enter() -> Self {
        let before = SIMULATED.replace(Some(BTreeMap::new()));
        CHANGES.fetch_add(1, Ordering::Release);
        Self(before)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // Dropped outside of the borrow: an engine's end may look engines up.
        let ended = SIMULATED.replace(self.0.take());
        CHANGES.fetch_add(1, Ordering::Release);
        drop(ended);
    }
}

/// Does something with the engines of this thread's simulation, if it runs one.
fn with_simulated<R>(act: impl FnOnce(&mut BTreeMap<ProcessId, Arc<Engine>>) -> R) -> Option<R> {
    SIMULATED.with_borrow_mut(|engines| engines.as_mut().map(act))
}

fn add_engine(engine: &Arc<Engine>) {
    let (process, engine) = (engine.process, Arc::clone(engine));
    if with_simulated(|engines| engines.insert(process, Arc::clone(&engine))).is_none() {
        ENGINES.insert(process, engine);
    }
    CHANGES.fetch_add(1, Ordering::Release);
}

fn remove_engine(process: ProcessId) {
    if with_simulated(|engines| engines.remove(&process)).is_none() {
        ENGINES.remove(&process);
    }
    CHANGES.fetch_add(1, Ordering::Release);
}

/// The place of an engine among those of its operating-system process.
pub(crate) struct Listed(pub(crate) ProcessId);

impl Component for Listed {
    fn attach(&self, engine: &Arc<Engine>) {
        add_engine(engine);
    }

    fn close(&self) {
        remove_engine(self.0);
    }
}

/// Runs code outside of actors that sends from this engine; without one, as in the story of a simulation,
/// from the home of each actor.
pub(crate) async fn within<F: Future>(engine: Option<Arc<Engine>>, future: F) -> F::Output {
    let mut home = Some(Current::Scope {
        engine,
        span: SpanContext::current(),
    });
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let _entered = Entered::new(&mut home);
        future.as_mut().poll(cx)
    })
    .await
}

/// Why [`engine_for`] has none.
pub(crate) fn no_engine() -> AskError {
    match is_adrift() {
        true => AskError::Adrift,
        false => AskError::NoSystem,
    }
}

/// Returns true for code in a simulation of which nobody knows the node: what it sent would bypass the
/// network.
fn is_adrift() -> bool {
    if CURRENT.with_borrow(Option::is_some) {
        return false;
    }
    // There is no network between a node and the workers inside of it.
    let is_node = |engine: &&Arc<Engine>| engine.uplink.get().is_none();
    let nodes = with_simulated(|engines| engines.values().filter(is_node).take(2).count());
    nodes.is_some_and(|nodes| nodes > 1)
}

/// The engine that sends for the caller: the one it runs in; else the home of the actor, when that
/// is in this process; else the only one there is.
pub(crate) fn engine_for(home: ProcessId) -> Option<Arc<Engine>> {
    let inside = CURRENT.with_borrow(|current| match current {
        Some(Current::Actor { cell, .. } | Current::Task { cell, .. }) => {
            Some(Arc::clone(&cell.engine))
        }
        Some(Current::Scope { engine, .. }) => engine.clone(),
        None => None,
    });
    inside.or_else(|| if is_adrift() { None } else { outside(home) })
}

/// The last look-up of this thread, and the count of changes at that time. Weak, so that a thread
/// that sends no more does not keep an engine.
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
    let simulated = with_simulated(|engines| {
        let only = || engines.values().next().filter(|_| engines.len() == 1);
        engines.get(&home).or_else(only).map(Arc::clone)
    });
    if let Some(found) = simulated {
        return found;
    }
    ENGINES
        .get(&home)
        .map(|engine| Arc::clone(&engine))
        .or_else(|| {
            let mut engines = ENGINES.iter();
            let only = engines.next().map(|entry| Arc::clone(&entry));
            if engines.next().is_some() { None } else { only }
        })
}
