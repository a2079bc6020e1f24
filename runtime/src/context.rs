//! The acts of a running actor: it spawns, watches, takes names and makes blobs.

use std::sync::Arc;

use crate::actor::engine::Engine;
use crate::actor::handler::{Actor, Context, Handler};
use crate::actor::names;
use crate::actor::registry::Registered;
use crate::actor::request::Recipient;
use crate::actor::spawn::Spawn;
use crate::actor::task_context;
use crate::base::error::NameError;
use crate::base::failure::Down;
use crate::base::id::{ActorId, Ref};
use crate::node::blob::Blobs;
use crate::system::Admin;

impl<A: Actor> Context<A> {
    /// Spawns a child, supervised by this actor and ended with it.
    pub fn spawn<C: Actor>(&self, args: C::Args) -> Spawn<C> {
        Spawn::new(self.engine(), self.cell.id, A::supervision(), args)
    }

    /// Tells this actor a [`Down`] when the target's present incarnation ends, at once if it is
    /// gone.
    pub fn watch<T: ?Sized>(&self, target: Ref<T>)
    where
        A: Handler<Down>,
    {
        tell_end(self.engine(), target.id, self.me().narrow());
    }

    /// Gives this actor a name in its job.
    ///
    /// # Errors
    /// The name is taken, or the node that keeps the names is out of reach.
    pub async fn register(&self, name: &str) -> Result<(), NameError>
    where
        A: Registered,
    {
        self.engine().register_name::<A>(name, self.cell.id).await
    }

    /// Finds an actor by its name in this job.
    ///
    /// # Errors
    /// Nobody has the name, or an actor of another type has it.
    pub async fn lookup<T: Registered>(&self, name: &str) -> Result<Ref<T>, NameError> {
        let found = self.engine().lookup_name::<T>(name).await;
        found.map(|id| Ref::from_id(id, 0))
    }

    /// Finds a detached actor: see [`System::bind`](crate::System::bind).
    ///
    /// # Errors
    /// See there.
    pub async fn bind<T: Registered>(&self, name: &str) -> Result<Ref<T>, NameError> {
        let found = self.engine().find_detached(name, names::check::<T>);
        found.await.map(|id| Ref::from_id(id, 0))
    }

    /// Makes blobs: bulk bytes in the shared memory of this process.
    #[must_use]
    pub fn blobs(&self) -> Blobs {
        Blobs::new(self.engine())
    }

    /// The administration of the system in this process, for whoever supervises others here.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(Arc::clone(self.engine()))
    }
}

/// Tells a watcher the end of an actor's present life.
fn tell_end(engine: &Arc<Engine>, target: ActorId, watcher: Recipient<Down>) {
    let down = engine.watch(target);
    let telling = async move {
        // A watcher that is gone needs no notice.
        let _ = watcher.tell(down.await).await;
    };
    engine.spawn_task(task_context::within(Some(Arc::clone(engine)), telling));
}
