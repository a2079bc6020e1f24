//! Owners of links: what a link needs of the process that it belongs to.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Link;
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::net::wire::{Frame, FrameError, Hello, Passage};

/// A process, as its links see it.
pub(crate) trait LinkOwner: Send + Sync + 'static {
    /// Its number.
    #[cfg(feature = "quic")]
    fn process(&self) -> ProcessId;

    /// The name of its node.
    #[cfg(feature = "quic")]
    fn node(&self) -> &str;

    /// Its limits.
    fn limits(&self) -> &Limits;

    /// Returns true once it is being closed.
    fn is_closing(&self) -> bool;

    /// Runs a task of a link.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// The hello of a new link.
    fn hello(&self) -> Hello;

    /// The hello of a link that goes on over another connection.
    fn hello_again(&self, session: Passage) -> Hello;

    /// The link to a process.
    fn link_to(&self, peer: ProcessId) -> Option<Arc<Link>>;

    /// All of its links.
    #[cfg(feature = "quic")]
    fn all_links(&self) -> Vec<Arc<Link>>;

    /// Keeps a link that the program before this one has had.
    fn keep_link(&self, link: Arc<Link>);

    /// Both sides of a link have said hello.
    fn link_up(&self, link: &Arc<Link>, hello: &Hello, ours: &Hello);

    /// Runs what takes frames in where they belong.
    fn within(&self, act: &mut dyn FnMut());

    /// A frame has come over a link. The caller runs [`LinkOwner::within`].
    ///
    /// # Errors
    /// The other side has said what nobody can read.
    fn take_in(&self, link: &Arc<Link>, frame: Frame) -> Result<(), FrameError>;

    /// A link has ended.
    fn link_down<'a>(&'a self, link: &'a Arc<Link>) -> BoxFuture<'a, ()>;
}

impl dyn LinkOwner {
    /// Runs a task of a link.
    pub(crate) fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(Box::pin(task));
    }
}
