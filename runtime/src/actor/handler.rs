//! The two traits of an actor, and the context that its handlers get.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::actor::cell::ActorCell;
use crate::actor::engine::Engine;
use crate::actor::placing::GrantedDevice;
use crate::actor::tasks::Tasks;
use crate::base::answer::Answer;
use crate::base::failure::{Failure, Reason};
use crate::base::id::{Incarnation, Ref};
use crate::base::message::Message;
use crate::base::needs::Needs;
use crate::base::supervise::Supervision;

/// Values that actors are made from: encoded by serde, and cloned for the next life.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the arguments of an actor",
    label = "an actor is made from these again after a failure, and in other processes",
    note = "on a type of your own write `#[odeon::wire]` and `#[derive(Clone)]`"
)]
pub trait ActorArgs: Serialize + DeserializeOwned + Clone + Send + 'static {}
#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Clone + Send + 'static> ActorArgs for T {}

/// State that handles messages one at a time. It is always made from its `Args`: the first time,
/// after a restart, in another process.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no actor",
    label = "this type is no actor",
    note = "write `#[odeon::actor(name = \"area.{Self}\")]` on the `impl` block that has its methods"
)]
pub trait Actor: Sized + Send + 'static {
    /// A stable name, the same in every build: `"rl.Critic"`.
    const NAME: &'static str;
    /// The arguments that an actor is made from.
    type Args: ActorArgs;

    /// The supervision of the children that it spawns.
    #[must_use]
    fn supervision() -> Supervision {
        Supervision::default()
    }

    /// The resources that it needs of a node, unless its spawn says otherwise. An actor that needs
    /// nothing lives where it is spawned.
    fn needs() -> Needs {
        Needs::new()
    }

    /// Makes the state. Messages that arrive meanwhile wait.
    fn start(
        args: Self::Args,
        cx: &mut Context<Self>,
    ) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// Called before an orderly end (not after a panic), with the reason.
    fn stop(self, reason: &Reason) -> impl Future<Output = ()> + Send {
        let _ = reason;
        async {}
    }
}

/// That an actor accepts `M`, and how it answers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{M}`",
    label = "this actor has no handler for `{M}`",
    note = "write `impl Handler<{M}> for {Self}`, or a `#[handler]` method in its `#[actor]` block"
)]
pub trait Handler<M: Message>: Actor {
    /// Handles one message. Nothing else of this actor runs meanwhile.
    fn handle(
        &mut self,
        message: M,
        cx: &mut Context<Self>,
    ) -> impl Future<Output = M::Reply> + Send;

    /// Handles one message, and may leave a part of it for [`Later`](crate::Later). What engines
    /// call; it is [`Handler::handle`] unless a `#[handler]` returns `Later`.
    fn answer(
        &mut self,
        message: M,
        cx: &mut Context<Self>,
    ) -> impl Future<Output = Answer<M::Reply>> + Send {
        async { Answer::Now(self.handle(message, cx).await) }
    }
}

/// The running actor's access to itself and its surroundings.
pub struct Context<A> {
    pub(crate) cell: Arc<ActorCell>,
    pub(crate) incarnation: Incarnation,
    pub(crate) end: Option<Reason>,
    /// Those of this life.
    pub(crate) tasks: Tasks,
    pub(crate) _actor: std::marker::PhantomData<fn(&A)>,
}

impl<A> fmt::Debug for Context<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("id", &self.cell.id)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

impl<A> Context<A> {
    pub(crate) fn new(cell: &Arc<ActorCell>) -> Self {
        Self {
            incarnation: cell.incarnation(),
            cell: Arc::clone(cell),
            end: None,
            tasks: Tasks::default(),
            _actor: std::marker::PhantomData,
        }
    }

    /// Prepares for this life.
    pub(crate) fn begin(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.end = None;
    }
}

impl<A: Actor> Context<A> {
    /// A reference to this actor.
    #[must_use]
    pub fn me(&self) -> Ref<A> {
        Ref::from_id(self.cell.id, 0)
    }

    /// Which life this is.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The devices that it was granted for this life, in the order in which its process numbers them.
    #[must_use]
    pub fn devices(&self) -> &[GrantedDevice] {
        &self.cell.devices
    }

    /// Ends this actor in order once the handler has returned.
    pub fn stop(&mut self) {
        self.end = Some(Reason::Stopped);
    }

    /// Ends this actor with a failure once the handler has returned; its supervisor decides.
    pub fn fail(&mut self, failure: Failure) {
        self.end = Some(Reason::Failed(failure));
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.cell.engine
    }
}
