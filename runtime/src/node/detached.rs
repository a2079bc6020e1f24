//! Detached actors: they live in a namespace of the cluster, and outlive the job that spawned them.
//!
//! Of each there is one process that hosts it, started by a node from the program of that job. Other
//! jobs find it by its name, and are refused at once when their builds disagree about its messages.
//! A program that runs in no cluster keeps its detached actors itself, as long as it runs.

pub(crate) mod protocol;
pub(crate) mod service;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::actor::handler::Actor;
use crate::actor::names;
use crate::actor::registry::Registered;
use crate::actor::spawn::Spawn;
use crate::base::id::Ref;

use protocol::{ARGS_BYTES_MAX, DetachError, DetachOrder, DetachedActor, Detaching};
use protocol::{is_plain, namespace_of};

/// A detached actor about to be spawned: see [`Spawn::detached`]. Await it for a reference to an
/// actor that has started.
#[must_use = "an actor is spawned when this is awaited"]
pub struct Detached<A: Actor> {
    spawn: Spawn<A>,
    name: String,
    or_existing: bool,
}

impl<A: Actor> fmt::Debug for Detached<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached")
            .field("actor", &A::NAME)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<A: Registered> Detached<A> {
    pub(crate) const fn new(spawn: Spawn<A>, name: String) -> Self {
        Self {
            spawn,
            name,
            or_existing: false,
        }
    }

    /// Where one of this name lives already, that one. Of many who ask at the same time one spawns
    /// it, and all have the same.
    pub const fn or_existing(mut self) -> Self {
        self.or_existing = true;
        self
    }

    async fn run(self) -> Result<Ref<A>, DetachError> {
        if !is_plain(&self.name) {
            return Err(DetachError::BadName(self.name));
        }
        let engine = Arc::clone(self.spawn.engine());
        let order = self.spawn.into_order()?;
        let (bytes, limit) = (order.args.len(), ARGS_BYTES_MAX);
        if bytes > limit {
            return Err(DetachError::TooLarge { bytes, limit });
        }
        let order = DetachOrder {
            job: engine.job.clone(),
            or_existing: self.or_existing,
            actor: DetachedActor {
                name: self.name,
                order,
            },
        };
        let row = match engine.uplink.get() {
            // A program of its own need not list the type in `job!`.
            None => {
                let DetachOrder {
                    or_existing, actor, ..
                } = order;
                let (namespace, kind) = (namespace_of(&engine.job), A::actor_type());
                let here = engine.detach_here(namespace, or_existing, actor, kind);
                here.await
            }
            Some(node) => {
                let answer = engine.request::<Detaching>(*node, &order, None).await;
                answer.unwrap_or_else(|| {
                    let why = "the node did not answer".to_owned();
                    let name = order.actor.name;
                    Err(DetachError::Refused { name, why })
                })
            }
        }?;
        names::check::<A>(&row)?;
        Ok(Ref::from_id(row.id, 0))
    }
}

impl<A: Registered> IntoFuture for Detached<A> {
    type Output = Result<Ref<A>, DetachError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<A: Registered> Spawn<A> {
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
}
