//! An engine as the owner of its links.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Engine;
use crate::actor::task_context::{Current, Entered};
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::base::trace::SpanContext;
use crate::net::link::Link;
use crate::net::link::owner::LinkOwner;
use crate::net::wire::{Frame, FrameError, Hello, Passage};

/// An engine, as its links hold it.
struct Owner(Arc<Engine>);

impl Engine {
    /// The engine, as its links hold it.
    pub(crate) fn as_owner(self: &Arc<Self>) -> Arc<dyn LinkOwner> {
        Arc::new(Owner(Arc::clone(self)))
    }
}

impl LinkOwner for Owner {
    #[cfg(feature = "quic")]
    fn process(&self) -> ProcessId {
        self.0.process
    }

    #[cfg(feature = "quic")]
    fn node(&self) -> &str {
        &self.0.node
    }

    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // They end with their links, which a crash closes: the other side hears of that by them.
        drop(self.0.runtime().spawn(task));
    }

    fn hello(&self) -> Hello {
        self.0.hello()
    }

    fn hello_again(&self, session: Passage) -> Hello {
        self.0.hello_again(session)
    }

    fn link_to(&self, peer: ProcessId) -> Option<Arc<Link>> {
        self.0.links.get(&peer).map(|link| Arc::clone(&link))
    }

    #[cfg(feature = "quic")]
    fn all_links(&self) -> Vec<Arc<Link>> {
        self.0.links.iter().map(|link| Arc::clone(&link)).collect()
    }

    fn keep_link(&self, link: Arc<Link>) {
        self.0.links.insert(link.peer, link);
    }

    fn link_up(&self, link: &Arc<Link>, hello: &Hello, ours: &Hello) {
        self.0.link_up(link, hello, ours);
    }

    fn within(&self, act: &mut dyn FnMut()) {
        // What is decoded on the way (handles of blobs) belongs to this engine.
        let mut here = Some(Current::Scope {
            engine: Some(Arc::clone(&self.0)),
            span: SpanContext::default(),
        });
        let _entered = Entered::new(&mut here);
        act();
    }

    fn take_in(&self, link: &Arc<Link>, frame: Frame) -> Result<(), FrameError> {
        self.0.receive(link, frame)
    }

    fn link_down<'a>(&'a self, link: &'a Arc<Link>) -> BoxFuture<'a, ()> {
        Box::pin(self.0.link_down(link))
    }
}
