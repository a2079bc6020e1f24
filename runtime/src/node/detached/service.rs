//! Detached actors as engines see them: the node that has the cluster host one, the process that
//! does, and whoever looks for it.

use std::sync::Arc;
use std::time::Duration;

use super::protocol::{DetachError, DetachOrder, DetachedActor, Detaching};
use super::protocol::{namespace_of, scope_of};
use crate::actor::actor_type::ActorType;
use crate::actor::engine::Engine;
use crate::actor::names::NameTable;
use crate::actor::service_row::ServeLater;
use crate::actor::spawn::started;
use crate::base::clock::Clock;
use crate::base::error::{NameError, SpawnError};
use crate::base::failure::{Down, Failure, Reason};
use crate::base::id::{ActorId, ProcessId};
use crate::net::wire::NameRow;
use crate::node::program::WorkerMode;
use crate::node::worker::protocol::LastWords;

/// The time that the name of an earlier life may stay taken: longer than a lost link is kept.
const NAME_PATIENCE: Duration = Duration::from_secs(20);
/// The interval between tries.
const NAME_PAUSE: Duration = Duration::from_millis(50);
/// The time that the node may take to hear why an actor has failed.
const WORDS_PATIENCE: Duration = Duration::from_secs(1);

impl ServeLater for Detaching {
    async fn answer(
        engine: Arc<Engine>,
        _from: ProcessId,
        order: DetachOrder,
    ) -> Option<Self::Answer> {
        Some(engine.detach(order).await)
    }

    fn is_refusal(answer: &Self::Answer) -> bool {
        answer.is_err()
    }
}

impl Engine {
    /// Finds a detached actor: `name` in this job's namespace, or `namespace/name` in another.
    pub(crate) async fn find_detached(
        &self,
        name: &str,
        check: impl FnOnce(&NameRow) -> Result<(), NameError>,
    ) -> Result<ActorId, NameError> {
        let own = namespace_of(&self.job);
        let (namespace, name) = name.rsplit_once('/').unwrap_or((own, name));
        let found = self.find_name(&scope_of(namespace), name).await;
        let row = found.map_err(|error| match error {
            NameError::NotFound(_) => NameError::NotDetached {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
            },
            error => error,
        })?;
        check(&row).map(|()| row.id)
    }

    /// The node's part: has the cluster host a detached actor, or hosts it here where there is none.
    /// Resolves when it has started and its name is known here.
    pub(crate) async fn detach(
        self: &Arc<Self>,
        order: DetachOrder,
    ) -> Result<NameRow, DetachError> {
        let DetachOrder {
            job,
            or_existing,
            actor,
        } = order;
        let namespace = namespace_of(&job).to_owned();
        let (scope, name) = (scope_of(&namespace), actor.name.clone());
        let WorkerMode::Jobs(programs) = self.workers().mode() else {
            let kind = self.type_of(&actor.order.actor)?;
            return self.detach_here(&namespace, or_existing, actor, kind).await;
        };
        programs.detach(&job, actor, or_existing).await?;
        let known = self.when_named(&scope, &name, None);
        let known = Clock::timeout(self.limits.ask_timeout, known).await;
        known.ok_or_else(|| NameError::NotDetached { name, namespace }.into())
    }

    /// Hosts a detached actor in this process, which nobody outlives.
    pub(crate) async fn detach_here(
        self: &Arc<Self>,
        namespace: &str,
        or_existing: bool,
        actor: DetachedActor,
        kind: &'static ActorType,
    ) -> Result<NameRow, DetachError> {
        let DetachedActor { name, order } = actor;
        let scope = scope_of(namespace);
        let taken = |row: NameRow| match or_existing {
            true => Ok(row),
            false => Err(DetachError::Taken {
                name: row.name,
                namespace: namespace.to_owned(),
            }),
        };
        if let Ok(row) = self.lookup_here(&scope, &name) {
            return taken(row);
        }
        let id = self.spawn_order(order, kind)?;
        started(self, id).await?;
        match self.register_here(row_of(scope.clone(), name.clone(), id, kind)) {
            Ok(row) => Ok(row),
            Err(error) => {
                // Another was quicker.
                let _ = self.stop_actor(id).await;
                taken(self.lookup_here(&scope, &name).map_err(|_gone| error)?)
            }
        }
    }

    /// Hosts a detached actor as what this process is there for, until the actor is over.
    pub(crate) async fn host_detached(
        self: &Arc<Self>,
        actor: DetachedActor,
    ) -> Result<(), Failure> {
        let mut failed = self.watch_failure();
        let failure = async {
            match failed.wait_for(Option::is_some).await {
                Ok(failure) => failure.clone().expect("just seen to be there"),
                Err(_) => std::future::pending().await,
            }
        };
        let hosted = async {
            let scope = scope_of(namespace_of(&self.job));
            let kind = self.type_of(&actor.order.actor).map_err(Failure::error)?;
            let id = self
                .spawn_order(actor.order, kind)
                .map_err(Failure::error)?;
            started(self, id).await.map_err(|error| match error {
                SpawnError::Failed(failure) => failure,
                error => Failure::error(error),
            })?;
            self.take_name(row_of(scope, actor.name, id, kind)).await?;
            match self.over(id).await.reason {
                Reason::Failed(failure) => Err(failure),
                // It goes with a family that fails, and the failure says why.
                Reason::Sibling => std::future::pending().await,
                _ => Ok(()),
            }
        };
        let outcome = tokio::select! {
            biased;
            failure = failure => Err(failure),
            hosted = hosted => hosted,
        };
        if let (Err(failure), Some(node)) = (&outcome, self.uplink.get()) {
            // How the process ends tells the node that it failed, and this why.
            let (words, patience) = (failure.to_string(), Some(WORDS_PATIENCE));
            let _ = self.request::<LastWords>(*node, &words, patience).await;
        }
        outcome
    }

    /// Gives an actor of this process a name that nobody else can have: whoever has it now is an
    /// earlier life, whose end is not known everywhere yet.
    async fn take_name(&self, row: NameRow) -> Result<(), Failure> {
        let deadline = Clock::now().after(NAME_PATIENCE);
        loop {
            match self.give_name(row.clone()).await {
                Ok(()) => return Ok(()),
                Err(NameError::Taken { .. }) if !deadline.left(Clock::now()).is_zero() => {
                    Clock::sleep(NAME_PAUSE).await;
                }
                Err(error) => return Err(Failure::error(error)),
            }
        }
    }

    /// Resolves when an actor of this process has ended for good.
    async fn over(self: &Arc<Self>, id: ActorId) -> Down {
        loop {
            let down = self.watch(id).await;
            if !self.members.contains(id) {
                return down;
            }
            if let Ok(Err(down)) = self.when_running(id).await {
                return down;
            }
        }
    }

    /// Resolves when somebody has a name: an actor of this process, if one is named.
    pub(crate) async fn when_named(
        &self,
        job: &str,
        name: &str,
        home: Option<ProcessId>,
    ) -> NameRow {
        let mut changes = self.component::<NameTable>().changes();
        loop {
            changes.borrow_and_update();
            let owner = self.lookup_here(job, name);
            if let Ok(row) = owner
                && home.is_none_or(|home| row.id.home == home)
            {
                return row;
            }
            if changes.changed().await.is_err() {
                // The engine is closing.
                return std::future::pending().await;
            }
        }
    }

    /// Resolves when the detached actor of a job that a process of this node hosts has its name.
    pub(crate) async fn when_hosted(&self, job: &str, name: &str, host: ProcessId) {
        let scope = scope_of(namespace_of(job));
        drop(self.when_named(&scope, name, Some(host)).await);
    }
}

fn row_of(job: String, name: String, id: ActorId, actor: &ActorType) -> NameRow {
    let messages = actor.methods.iter();
    NameRow {
        job,
        name,
        id,
        actor: actor.name.to_owned(),
        messages: messages
            .map(|method| (method.name.to_owned(), method.id))
            .collect(),
    }
}
