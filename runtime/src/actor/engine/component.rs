//! Components: the state that the floors above add to an engine, and the moments at which they hear
//! of it. The engine knows none of them by name; each is looked up by its type, in its own folder.

use std::any::{Any, TypeId};
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};

use super::Engine;
use crate::base::clock::Timestamp;
use crate::base::failure::ProcessExit;
use crate::base::id::ActorId;
use crate::net::link::Link;
use crate::net::wire::{Chunk, Hello};

/// A part of an engine. Each moment passes it by unless it says otherwise.
pub(crate) trait Component: Send + Sync + 'static {
    /// The engine has started.
    fn attach(&self, engine: &Arc<Engine>) {
        let _ = engine;
    }

    /// Time has passed.
    fn sweep(&self, engine: &Arc<Engine>, now: Timestamp) {
        let _ = (engine, now);
    }

    /// Adds to the hello that a new neighbour hears.
    fn greet(&self, hello: &mut Hello) {
        let _ = hello;
    }

    /// A neighbour has said hello.
    fn link_up(&self, engine: &Engine, link: &Link, hello: &Hello) {
        let _ = (engine, link, hello);
    }

    /// Tells a neighbour what has changed since it was told this hello, and notes that it was. Returns
    /// true if something had.
    fn catch_up(&self, link: &Link, told: &mut Hello) -> bool {
        let _ = (link, told);
        false
    }

    /// A link has ended. Gives the end of the process behind it, if this component has started it.
    fn link_down<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        link: &'a Arc<Link>,
    ) -> BoxFuture<'a, LinkEnd> {
        let _ = (engine, link);
        std::future::ready(LinkEnd::default()).boxed()
    }

    /// A process is gone, and all that was there.
    fn process_down(&self, engine: &Arc<Engine>, exit: &ProcessExit) {
        let _ = (engine, exit);
    }

    /// An actor that this process is the home of has ended for good.
    fn actor_over(&self, engine: &Engine, id: ActorId) {
        let _ = (engine, id);
    }

    /// Takes a chunk in; returns true if it was for this component.
    fn take_chunk(&self, chunk: &Chunk) -> bool {
        let _ = chunk;
        false
    }

    /// The engine leaves, and its actors have ended: ends what this component has started.
    fn leave<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, ()> {
        let _ = engine;
        std::future::ready(()).boxed()
    }

    /// Leaves with the node what would be lost with this process.
    fn last_words(&self, engine: &Engine) {
        let _ = engine;
    }

    /// The links have ended.
    fn close(&self) {}
}

/// The end of a link, by whoever has started the process behind it.
#[derive(Debug, Default)]
pub(crate) struct LinkEnd {
    /// The end of that process.
    pub(crate) exit: Option<ProcessExit>,
    /// It was told to end, or has left in order, so that its end is no news.
    pub(crate) is_orderly: bool,
}

/// The components of an engine, in the order in which they hear of each moment.
#[derive(Default)]
pub(crate) struct Components {
    rows: Vec<Row>,
}

struct Row {
    component: Arc<dyn Component>,
    /// The same with its type.
    typed: Box<dyn Any + Send + Sync>,
    type_id: TypeId,
}

impl Components {
    /// The same with another one, of a type that there is none of yet.
    pub(crate) fn with<C: Component>(mut self, component: C) -> Self {
        let component = Arc::new(component);
        self.rows.push(Row {
            typed: Box::new(Arc::clone(&component)),
            component,
            type_id: TypeId::of::<C>(),
        });
        self
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &dyn Component> {
        self.rows.iter().map(|row| &*row.component)
    }

    fn get<C: Component>(&self) -> &Arc<C> {
        let wanted = TypeId::of::<C>();
        let row = self.rows.iter().find(|row| row.type_id == wanted);
        let found = row.and_then(|row| row.typed.downcast_ref());
        found.expect("an engine is started with all components")
    }
}

impl Engine {
    /// The component of a type. Each is started with every engine.
    pub(crate) fn component<C: Component>(&self) -> &Arc<C> {
        self.components.get()
    }
}
