//! Calls of an actor by itself: a closure in its mailbox in the place of a message. It never leaves its
//! process.

use std::any::TypeId;

use futures::future::BoxFuture;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::actor::cell::ActorCell;
use crate::actor::envelope::Envelope;
use crate::actor::handler::{Actor, Context};
use crate::actor::host::Typed;
use crate::actor::mail::{AnyActor, Mail, Run};
use crate::actor::request::Ask;
use crate::base::answer::Answer;
use crate::base::id::Incarnation;
use crate::base::message::Message;
use crate::base::shape::{self, Shape};

type Call<A> = Box<dyn FnOnce(&mut A, &mut Context<A>) + Send>;

/// A call of an actor, which waits in its mailbox as a message does.
pub(crate) struct Act<A>(Call<A>);

impl<A: Actor> Act<A> {
    pub(crate) fn new(call: impl FnOnce(&mut A, &mut Context<A>) + Send + 'static) -> Self {
        Self(Box::new(call))
    }

    /// Asks this life of an actor of this process to be called so.
    pub(crate) fn ask(self, cell: &ActorCell, life: Incarnation) -> Ask<Self> {
        Ask::new(cell.id, life, self, find::<A>)
    }
}

/// Every actor can be called so: no handler is needed.
fn find<A: Actor>(cell: &ActorCell, _: u64) -> Option<Run> {
    cell.hosts(TypeId::of::<A>()).then_some(run::<A>)
}

fn run<'a, A: Actor>(mail: &'a mut dyn Mail, actor: &'a mut dyn AnyActor) -> BoxFuture<'a, ()> {
    let envelope = Envelope::<Act<A>>::of(mail);
    let (state, cx) = Typed::<A>::of(actor).parts();
    if let (Some(state), Some(Act(call))) = (state, envelope.take_message()) {
        return Box::pin(async move {
            call(state, cx);
            envelope.answer(Answer::Now(()));
        });
    }
    Box::pin(std::future::ready(()))
}

impl<A> Serialize for Act<A> {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("a call stays in its process"))
    }
}

impl<'de, A> Deserialize<'de> for Act<A> {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("a call stays in its process"))
    }
}

impl<A> Shape for Act<A> {
    const SHAPE: u64 = shape::name("odeon.Act");
}

impl<A: Actor> Message for Act<A> {
    const NAME: &'static str = "call";
    type Reply = ();
}
