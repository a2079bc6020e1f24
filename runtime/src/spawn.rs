//! Spawning: a builder that is a future.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::detached::{self, Detached};
use crate::engine::{Engine, NewRow, Placing};
use crate::error::{NeedsError, SpawnError};
use crate::failure::{Down, FailureKind, Reason};
use crate::hardware::Ask;
use crate::host::{self, Host};
use crate::id::{ActorId, Ref};
use crate::needs::Needs;
use crate::registry::{ActorType, Registered};
use crate::supervise::{Restart, Supervision};
use crate::wire::{HostOrder, LaunchOrder, Orphans, codec};

/// A spawn as it travels to the process that carries it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpawnOrder {
    pub(crate) actor: String,
    #[serde(with = "serde_bytes")]
    pub(crate) args: Vec<u8>,
    pub(crate) restart: Restart,
    supervision: Supervision,
    orphans: Orphans,
    on: Host,
    away: Option<LaunchOrder>,
}

/// An actor about to be spawned. Await it for a reference to an actor that has started;
/// [`Spawn::start`] does not wait.
#[must_use = "an actor is spawned when this is awaited"]
pub struct Spawn<A: Actor> {
    engine: Arc<Engine>,
    parent: ActorId,
    supervision: Supervision,
    args: A::Args,
    restart: Restart,
    orphans: Orphans,
    on: Host,
    away: Option<LaunchOrder>,
    needs: Needs,
    _actor: PhantomData<fn(&A)>,
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
        Self {
            engine: Arc::clone(engine),
            parent,
            supervision,
            args,
            restart: Restart::default(),
            orphans: Orphans::default(),
            on: Host::default(),
            away: None,
            needs: A::needs(),
            _actor: PhantomData,
        }
    }

    /// When its supervisor starts it again; after failures, unless told otherwise.
    pub const fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// Decides what becomes of it when its supervisor's process is gone.
    pub const fn orphans(mut self, orphans: Orphans) -> Self {
        self.orphans = orphans;
        self
    }

    /// Chooses the framework that drives it in its process; kameo, unless told otherwise.
    pub const fn host(mut self, on: Host) -> Self {
        self.on = on;
        self
    }

    /// In a worker process of its own: a crash there hurts nobody else.
    pub fn isolated(mut self) -> Self {
        self.away.get_or_insert_default();
        self
    }

    /// In the worker process of this name, which it shares with other actors.
    pub fn in_worker(mut self, name: impl Into<String>) -> Self {
        self.away.get_or_insert_default().shared = Some(name.into());
        self
    }

    /// In a worker process of this node, which must be joined: of its own, unless
    /// [`Spawn::in_worker`] names one that it shares. A later life waits for the node when that is
    /// away, for [`Limits::placement_timeout`](crate::Limits) at most.
    pub fn on_node(mut self, node: impl Into<String>) -> Self {
        self.away.get_or_insert_default().node = Some(node.into());
        self
    }

    /// Changes what it needs: `.needs(|needs| needs.gpus(2).within(Level::Nvlink))`. It begins with
    /// what its type declares in [`Actor::needs`].
    pub fn needs(mut self, change: impl FnOnce(Needs) -> Needs) -> Self {
        self.needs = change(self.needs);
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

    /// Which process it needs; `None` for one that lives here. One that needs something of a node is
    /// placed by the scheduler, which is told the wishes.
    pub(crate) fn take_order(&mut self) -> Result<Option<LaunchOrder>, SpawnError> {
        if let Some(wrong) = self.needs.wrong.take() {
            return Err(wrong.into());
        }
        let job = self.engine.job.clone();
        let away = self.away.take();
        if self.needs.is_empty() {
            return Ok(away.map(|order| LaunchOrder { job, ..order }));
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
            job: job.clone(),
            holder: String::new(),
            actors: vec![],
            needs,
            again: false,
        };
        Ok(Some(LaunchOrder {
            job,
            ask: Some(Box::new(ask)),
            ..LaunchOrder::default()
        }))
    }
}

impl<A: Registered> Spawn<A> {
    /// Spawns without waiting for its start: messages queue behind it, and a failure of the start
    /// goes to the supervisor and to whoever asks.
    ///
    /// # Errors
    /// The arguments cannot travel, or the system is shutting down.
    pub fn start(mut self) -> Result<Ref<A>, SpawnError> {
        let (id, mut order) = (self.engine.new_id(), self.take_order()?);
        if let Some(ask) = order.as_mut().and_then(|order| order.ask.as_mut()) {
            ask.holder = format!("{} {id}", A::NAME);
            ask.actors = vec![(id, 0)];
        }
        self.start_by(id, order)
    }

    /// Spawns under a number that it has already.
    pub(crate) fn start_by(
        self,
        id: ActorId,
        order: Option<LaunchOrder>,
    ) -> Result<Ref<A>, SpawnError> {
        if self.engine.is_closing() {
            return Err(SpawnError::ShuttingDown);
        }
        let new = NewRow {
            actor: A::NAME,
            parent: self.parent,
            restart: self.restart,
            supervision: self.supervision,
        };
        let Some(launch) = order else {
            let _runtime = self.engine.enter();
            self.engine.new_member(&new, id);
            let lodger = host::Lodger {
                id,
                parent: self.parent,
                incarnation: 1,
                orphans: self.orphans,
                on: self.on,
                devices: vec![],
                hang_after: None,
            };
            host::host::<A>(&self.engine, lodger, self.args);
            return Ok(Ref::from_id(id, 0));
        };
        let args = self.encode_args()?;
        self.engine.new_member(&new, id);
        let host = HostOrder {
            id,
            parent: self.parent,
            incarnation: 1,
            actor: A::NAME.to_owned(),
            args,
            orphans: self.orphans,
            on: self.on,
            devices: vec![],
            hang_after: launch.ask.as_ref().and_then(|ask| ask.needs.hang_after),
        };
        self.engine.place(id, Placing { host, launch });
        Ok(Ref::from_id(id, 0))
    }

    async fn run(self) -> Result<Ref<A>, SpawnError> {
        let engine = Arc::clone(&self.engine);
        let actor = self.start()?;
        started(&engine, actor.id).await.map(|()| actor)
    }

    /// Spawns it under this name in the namespace of the job, to live on when the job is over: until
    /// it stops, or somebody stops it. It has a process of its own, or is placed from there, if it
    /// needs something; when that process or its node is lost, another begins with the same arguments.
    ///
    /// It must not need the company of this job's actors, nor hold its blobs.
    ///
    /// ```
    /// # struct Board;
    /// # #[odeon::actor(name = "demo.Board")]
    /// # impl Board {
    /// #     async fn start(_: ()) -> Result<Self, odeon::Failure> { Ok(Self) }
    /// #     #[handler]
    /// #     pub async fn best(&mut self) -> u64 { 7 }
    /// # }
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let system = odeon::System::local().await?;
    /// let board = system.spawn::<Board>(()).detached("board").or_existing().await?;
    /// // In this program or another one of the same namespace:
    /// let same = system.bind::<Board>("board").await?;
    /// assert_eq!(same.ask(Best {}).await?, 7);
    /// # assert_eq!(board, same);
    /// # system.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detached(self, name: impl Into<String>) -> Detached<A> {
        Detached::new(self, name.into())
    }

    /// As it travels, to be carried out by a process that outlives this one.
    pub(crate) fn into_order(mut self) -> Result<SpawnOrder, SpawnError> {
        if let Some(what) = self.needs.company_or_spares() {
            return Err(detached::alone(what));
        }
        let away = self.take_order()?;
        let args = self.encode_args()?;
        Ok(SpawnOrder {
            actor: A::NAME.to_owned(),
            args,
            restart: self.restart,
            supervision: self.supervision,
            orphans: self.orphans,
            on: self.on,
            away,
        })
    }

    fn encode_args(&self) -> Result<Vec<u8>, SpawnError> {
        let args =
            codec::encode(&self.args).map_err(|error| SpawnError::BadArgs(error.to_string()))?;
        let limit = self.engine.limits.message_bytes_max;
        if args.len() > limit {
            return Err(SpawnError::TooLarge {
                bytes: args.len(),
                limit,
            });
        }
        Ok(args)
    }

    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Engine {
    /// The actor type of a name.
    pub(crate) fn type_of(&self, name: &str) -> Result<&'static ActorType, SpawnError> {
        let mut types = self.types.iter().map(|row| row());
        types.find(|row| row.name == name).ok_or_else(|| {
            let why = format!("the program has no actor `{name}`: list it in `job!`");
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
        self.new_member(&new, id);
        match order.away {
            None => {
                let _runtime = self.enter();
                if let Err(failure) = (actor.host)(self, &host) {
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
                self.place(id, Placing { host, launch });
            }
        }
        Ok(id)
    }
}

/// Waits until an actor that was spawned has started, or will not.
pub(crate) async fn started(engine: &Engine, id: ActorId) -> Result<(), SpawnError> {
    match engine.when_started(id).await {
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

impl<A: Registered> IntoFuture for Spawn<A> {
    type Output = Result<Ref<A>, SpawnError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
