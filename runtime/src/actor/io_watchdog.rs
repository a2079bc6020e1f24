//! Keeps sockets and timers attended when a handler blocks a thread of tokio.
//!
//! Of the idle threads of a runtime one waits for sockets and timers. When it finds a single task it
//! runs it without waking another thread to take its place, and if a handler blocks it there, nobody
//! learns of anything any more: the process seems dead though threads are free. A task from outside
//! wakes one of those, and it takes the place.
//!
//! The same thread looks for handlers that hang, since all threads of tokio may.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Nudges a runtime from a thread of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct IoWatchdog(
    #[allow(dead_code, reason = "dropping it ends the thread")] Sender<()>,
);

impl IoWatchdog {
    /// `None` for a runtime of one thread, which nothing helps, and where no thread can be had.
    pub(crate) fn start(
        runtime: Handle,
        every: Duration,
        look: impl Fn() + Send + 'static,
    ) -> Option<Self> {
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return None;
        }
        let (alive, ended) = channel::<()>();
        let thread = std::thread::Builder::new()
            .name("odeon-pulse".to_owned())
            .stack_size(STACK_BYTES);
        let beating = thread.spawn(move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                drop(runtime.spawn(async {}));
                look();
            }
        });
        beating.is_ok().then_some(Self(alive))
    }
}

/// Mostly idle. When a handler hangs it logs that, and sends a few bytes over a link.
const STACK_BYTES: usize = 512 << 10;
