//! Spawning: a builder that is a future.

pub(crate) mod protocol;

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::RecvError;

use crate::actor::actor_type::ActorType;
use crate::actor::cell::NewCell;
use crate::actor::engine::lives::HostOrder;
use crate::actor::engine::{Engine, NewRow, Placing};
use crate::actor::handler::Actor;
use crate::actor::host::{self, Host};
use crate::actor::placing::{Ask, LaunchOrder};
use crate::actor::registry::Registered;
use crate::base::error::{NeedsError, SpawnError};
use crate::base::failure::{Down, FailureKind, Reason};
use crate::base::id::{ActorId, Ref};
use crate::base::needs::Needs;
use crate::base::supervise::{Orphans, Restart, Supervision};
use crate::net::wire::codec::{self, CodecError};

use protocol::SpawnOrder;

/// An actor about to be spawned. Await it for a reference to an actor that has started;
/// [`Spawn::start`] does not wait.
#[must_use = "an actor is spawned when this is awaited"]
pub struct Spawn<A: Actor> {
    plan: Plan,
    args: A::Args,
    _actor: PhantomData<fn(&A)>,
}

/// A spawn without the actor's type and arguments.
struct Plan {
    engine: Arc<Engine>,
    /// The name of the actor's type.
    actor: &'static str,
    parent: ActorId,
    supervision: Supervision,
    restart: Restart,
    orphans: Orphans,
    on: Host,
    away: Option<LaunchOrder>,
    needs: Needs,
}

impl<A: Actor> fmt::Debug for Spawn<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawn")
            .field("actor", &A::NAME)
            .finish_non_exhaustive()
    }
}

impl<A: Actor> Spawn<A> {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        parent: ActorId,
        supervision: Supervision,
        args: A::Args,
    ) -> Self {
        let plan = Plan {
            engine: Arc::clone(engine),
            actor: A::NAME,
            parent,
            supervision,
            restart: Restart::default(),
            orphans: Orphans::default(),
            on: Host::default(),
            away: None,
            needs: A::needs(),
        };
        Self {
            plan,
            args,
            _actor: PhantomData,
        }
    }

    /// When its supervisor starts it again; after failures, unless told otherwise.
    pub const fn restart(mut self, restart: Restart) -> Self {
        self.plan.restart = restart;
        self
    }

    /// Decides what becomes of it when its supervisor's process is gone.
    pub const fn orphans(mut self, orphans: Orphans) -> Self {
        self.plan.orphans = orphans;
        self
    }

    /// Chooses the framework that drives it in its process; kameo, unless told otherwise.
    pub const fn host(mut self, on: Host) -> Self {
        self.plan.on = on;
        self
    }

    /// In a worker process of its own: a crash there hurts nobody else.
    pub fn isolated(mut self) -> Self {
        self.plan.away.get_or_insert_default();
        self
    }

    /// In the worker process of this name, which it shares with other actors.
    pub fn in_worker(mut self, name: impl Into<String>) -> Self {
        self.plan.away.get_or_insert_default().shared = Some(name.into());
        self
    }

    /// In a worker process of this node, which must be joined: of its own, unless
    /// [`Spawn::in_worker`] names one that it shares. A later life waits for the node when that is
    /// away, for [`Limits::placement_timeout`](crate::Limits) at most.
    pub fn on_node(mut self, node: impl Into<String>) -> Self {
        self.plan.away.get_or_insert_default().node = Some(node.into());
        self
    }

    /// Changes what it needs: `.needs(|needs| needs.gpus(2).within(Level::Nvlink))`. It begins with
    /// what its type declares in [`Actor::needs`].
    pub fn needs(mut self, change: impl FnOnce(Needs) -> Needs) -> Self {
        self.plan.needs = change(self.plan.needs);
        self
    }

    /// So many devices, alone: see [`Needs::gpus`].
    pub fn gpus(self, count: u32) -> Self {
        self.needs(|needs| needs.gpus(count))
    }

    /// Memory of each device, in bytes: see [`Needs::device_memory`].
    pub fn device_memory(self, bytes: u64) -> Self {
        self.needs(|needs| needs.device_memory(bytes))
    }

    /// Processor time, in cores: see [`Needs::cpus`].
    pub fn cpus(self, cores: f64) -> Self {
        self.needs(|needs| needs.cpus(cores))
    }

    /// Main memory, in bytes: see [`Needs::memory`].
    pub fn memory(self, bytes: u64) -> Self {
        self.needs(|needs| needs.memory(bytes))
    }

    /// On the node of this actor: see [`Needs::near`].
    pub fn near<B: Actor>(self, other: &Ref<B>) -> Self {
        self.needs(|needs| needs.near(other))
    }
}

impl Plan {
    /// Which process it needs; `None` for one that lives here. One that needs something of a node is
    /// placed by the scheduler, which is told the wishes.
    fn take_order(&mut self) -> Result<Option<LaunchOrder>, SpawnError> {
        if let Some(wrong) = self.needs.wrong.take() {
            return Err(wrong.into());
        }
        let away = self.away.take();
        let job = || self.engine.job.clone();
        if self.needs.is_empty() {
            return Ok(away.map(|order| LaunchOrder {
                job: job(),
                ..order
            }));
        }
        let mut needs = self.needs.clone();
        if let Some(order) = away {
            if let Some(worker) = order.shared {
                return Err(SpawnError::Needs(NeedsError {
                    what: format!("the worker `{worker}` and for resources"),
                    why: "actors that need resources share a process when they see the same \
                          devices: leave the name of the worker out"
                        .to_owned(),
                }));
            }
            match order.node {
                Some(node) => needs.on_node(node),
                None => needs.isolated(),
            }
        }
        let ask = Ask {
            job: job(),
            holder: String::new(),
            actors: vec![],
            needs,
            again: false,
        };
        Ok(Some(LaunchOrder {
            job: job(),
            ask: Some(Box::new(ask)),
            ..LaunchOrder::default()
        }))
    }
}

impl Plan {
    /// The row of the actor.
    fn row(&self) -> NewRow {
        NewRow {
            actor: self.actor,
            parent: self.parent,
            restart: self.restart,
            supervision: self.supervision,
        }
    }

    /// A number for the actor, and which process it needs.
    fn number(&mut self) -> Result<(ActorId, Option<LaunchOrder>), SpawnError> {
        let (id, mut order) = (self.engine.new_id(), self.take_order()?);
        if let Some(ask) = order.as_mut().and_then(|order| order.ask.as_mut()) {
            ask.holder = format!("{} {id}", self.actor);
            ask.actors = vec![(id, 0)];
        }
        Ok((id, order))
    }

    /// The cell of an actor that this process is about to host.
    fn cell(&self, id: ActorId) -> NewCell {
        NewCell {
            id,
            parent: self.parent,
            incarnation: 1,
            orphans: self.orphans,
            devices: vec![],
            hang_after: None,
        }
    }

    /// Writes the row of an actor, and has another process host it.
    fn send(&self, id: ActorId, launch: LaunchOrder, args: Vec<u8>) {
        let host = HostOrder {
            id,
            parent: self.parent,
            incarnation: 1,
            actor: self.actor.to_owned(),
            args,
            orphans: self.orphans,
            on: self.on.into(),
            devices: vec![],
            hang_after: launch.ask.as_ref().and_then(|ask| ask.needs.hang_after),
        };
        self.engine.place(&self.row(), id, Placing { host, launch });
    }

    fn check_args(&self, args: Result<Vec<u8>, CodecError>) -> Result<Vec<u8>, SpawnError> {
        let args = args.map_err(|error| SpawnError::BadArgs(error.to_string()))?;
        let limit = self.engine.limits.message_bytes_max;
        if args.len() > limit {
            return Err(SpawnError::TooLarge {
                bytes: args.len(),
                limit,
            });
        }
        Ok(args)
    }
}

impl<A: Registered> Spawn<A> {
    /// Spawns without waiting for its start: messages queue behind it, and a failure of the start
    /// goes to the supervisor and to whoever asks.
    ///
    /// # Errors
    /// The arguments cannot travel, or the system is shutting down.
    pub fn start(mut self) -> Result<Ref<A>, SpawnError> {
        let (id, order) = self.plan.number()?;
        self.start_by(id, order)
    }

    /// Which process it needs; `None` for one that lives here.
    pub(crate) fn take_order(&mut self) -> Result<Option<LaunchOrder>, SpawnError> {
        self.plan.take_order()
    }

    /// Spawns under a number that it has already.
    pub(crate) fn start_by(
        self,
        id: ActorId,
        order: Option<LaunchOrder>,
    ) -> Result<Ref<A>, SpawnError> {
        self.begin(id, order, |engine, row| engine.new_member(row, id))?;
        Ok(Ref::from_id(id, 0))
    }

    /// The same, for who waits for the start.
    fn begin_awaited(
        self,
        id: ActorId,
        order: Option<LaunchOrder>,
    ) -> Result<(Ref<A>, Started), SpawnError> {
        let engine = Arc::clone(&self.plan.engine);
        let enter = |engine: &Engine, row: &NewRow| engine.new_awaited_member(row, id);
        let here = self.begin(id, order, enter)?;
        let started = here.unwrap_or_else(|| engine.when_started(id));
        Ok((Ref::from_id(id, 0), started))
    }

    /// Hosts the actor here once `enter` has written its row, or has another process host it; gives
    /// the answer of `enter`.
    fn begin<T>(
        self,
        id: ActorId,
        order: Option<LaunchOrder>,
        enter: impl FnOnce(&Engine, &NewRow) -> T,
    ) -> Result<Option<T>, SpawnError> {
        let engine = &self.plan.engine;
        if engine.is_closing() {
            return Err(SpawnError::ShuttingDown);
        }
        let Some(launch) = order else {
            let _runtime = engine.enter();
            let plan = &self.plan;
            let entered = enter(engine, &plan.row());
            host::host::<A>(engine, plan.on, plan.cell(id), self.args);
            return Ok(Some(entered));
        };
        let args = self.encode_args()?;
        self.plan.send(id, launch, args);
        Ok(None)
    }

    /// As it travels, to be carried out by a process that outlives this one.
    pub(crate) fn into_order(mut self) -> Result<SpawnOrder, SpawnError> {
        if let Some(what) = self.plan.needs.company_or_spares() {
            return Err(alone(what));
        }
        let away = self.plan.take_order()?;
        let args = self.encode_args()?;
        Ok(SpawnOrder {
            actor: A::NAME.to_owned(),
            args,
            restart: self.plan.restart,
            supervision: self.plan.supervision,
            orphans: self.plan.orphans,
            on: self.plan.on.into(),
            away,
        })
    }

    fn encode_args(&self) -> Result<Vec<u8>, SpawnError> {
        self.plan.check_args(codec::encode(&self.args))
    }

    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.plan.engine
    }
}

/// The error for a detached actor that asks for company of actors that end before it.
fn alone(what: &str) -> SpawnError {
    SpawnError::Needs(NeedsError {
        what: format!("{what}, and to be detached"),
        why: "that ends with the job: leave it out".to_owned(),
    })
}

impl Engine {
    /// The actor type of a name.
    pub(crate) fn type_of(&self, name: &str) -> Result<&'static ActorType, SpawnError> {
        let mut types = self.types.iter().map(|row| row());
        types.find(|row| row.name == name).ok_or_else(|| {
            let why = format!("the program has no actor `{name}`: list its type in `odeon::job!`");
            SpawnError::NotPlaced(why)
        })
    }

    /// Spawns as ordered, at the top of this process's tree.
    pub(crate) fn spawn_order(
        self: &Arc<Self>,
        order: SpawnOrder,
        actor: &'static ActorType,
    ) -> Result<ActorId, SpawnError> {
        let id = self.new_id();
        let new = NewRow {
            actor: actor.name,
            parent: ActorId::root(self.process),
            restart: order.restart,
            supervision: order.supervision,
        };
        let mut host = HostOrder {
            id,
            parent: new.parent,
            incarnation: 1,
            actor: order.actor,
            args: order.args,
            orphans: order.orphans,
            on: order.on,
            devices: vec![],
            hang_after: None,
        };
        match order.away {
            None => {
                self.new_member(&new, id);
                let _runtime = self.enter();
                if let Err(failure) = host::host_order(self, actor, &host) {
                    let engine = Arc::clone(self);
                    self.spawn_task(async move { drop(engine.stop_actor(id).await) });
                    return Err(SpawnError::Failed(failure));
                }
            }
            Some(mut launch) => {
                launch.job.clone_from(&self.job);
                if let Some(ask) = &mut launch.ask {
                    ask.job.clone_from(&self.job);
                    ask.holder = format!("{} {id}", actor.name);
                    ask.actors = vec![(id, 0)];
                    host.hang_after = ask.needs.hang_after;
                }
                self.place(&new, id, Placing { host, launch });
            }
        }
        Ok(id)
    }
}

/// Waits until an actor that was spawned has started, or will not.
pub(crate) async fn started(engine: &Engine, id: ActorId) -> Result<(), SpawnError> {
    outcome(engine.when_started(id).await)
}

fn outcome(started: Result<Result<(), Down>, RecvError>) -> Result<(), SpawnError> {
    match started {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Down {
            reason: Reason::Failed(failure),
            ..
        })) => match failure.kind {
            FailureKind::NotPlaced => Err(SpawnError::NotPlaced(failure.message)),
            _ => Err(SpawnError::Failed(failure)),
        },
        Ok(Err(down)) => Err(SpawnError::Stopped(down)),
        Err(_closed) => Err(SpawnError::ShuttingDown),
    }
}

/// A [`Spawn`] under way: it begins when it is polled, and is ready when the actor has started.
#[must_use = "futures do nothing unless awaited"]
pub struct Spawning<A: Actor> {
    /// Until it has begun.
    spawn: Option<Spawn<A>>,
    /// The actor, and the outcome of its start, once it has begun.
    start: Option<(Ref<A>, Started)>,
}

/// Tells whether an actor has started.
type Started = Receiver<Result<(), Down>>;

impl<A: Actor> fmt::Debug for Spawning<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawning")
            .field("actor", &A::NAME)
            .finish_non_exhaustive()
    }
}

// The arguments are never polled.
impl<A: Actor> Unpin for Spawning<A> {}

impl<A: Registered> Future for Spawning<A> {
    type Output = Result<Ref<A>, SpawnError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(mut spawn) = self.spawn.take() {
            let (id, order) = spawn.plan.number()?;
            self.start = Some(spawn.begin_awaited(id, order)?);
        }
        let (actor, start) = self.start.as_mut().expect("a spawn is awaited once");
        let actor = *actor;
        let started = ready!(Pin::new(start).poll(cx));
        self.start = None;
        Poll::Ready(outcome(started).map(|()| actor))
    }
}

impl<A: Registered> IntoFuture for Spawn<A> {
    type Output = Result<Ref<A>, SpawnError>;
    type IntoFuture = Spawning<A>;

    fn into_future(self) -> Spawning<A> {
        Spawning {
            spawn: Some(self),
            start: None,
        }
    }
}
