//! A unix socket as the two ends of a link's stream.
//!
//! tokio's own halves share one registration for reading and writing, and each time the other side
//! reads, a socket says that it can be written to: the thread that waits for an answer would wake once
//! for nothing on its way to it. Here the end that writes is known to the poller while a write waits,
//! and at no other time.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;

/// The end of a socket that reads: a stream socket is read as a pipe is, and tokio registers the end of
/// a pipe for reading alone.
pub(crate) type ReadEnd = pipe::Receiver;

/// The end of a socket that writes. The other side reads an end of the stream when this is dropped.
pub(crate) struct WriteEnd {
    socket: UnixStream,
    /// The registration of a write that waits for room in the socket.
    waiting: Option<pipe::Sender>,
    /// The runtime of that registration, since writes come from any thread.
    runtime: Handle,
}

/// Both ends of a socket. Its descriptor is that of the end that writes, which a link keeps when it has
/// stopped reading.
///
/// # Errors
/// The descriptor cannot be duplicated, the poller takes no more, or no runtime is entered.
pub(crate) fn ends(socket: tokio::net::UnixStream) -> io::Result<(ReadEnd, WriteEnd)> {
    let socket = socket.into_std()?;
    let read = ReadEnd::from_owned_fd_unchecked(OwnedFd::from(socket.try_clone()?))?;
    let write = WriteEnd {
        socket,
        waiting: None,
        runtime: Handle::try_current().map_err(io::Error::other)?,
    };
    Ok((read, write))
}

impl WriteEnd {
    /// Has the poller say when there is room in the socket.
    fn wait(&self) -> io::Result<pipe::Sender> {
        let _within = self.runtime.enter();
        // Another descriptor: the poller knows each once.
        pipe::Sender::from_owned_fd_unchecked(OwnedFd::from(self.socket.try_clone()?))
    }
}

impl AsyncWrite for WriteEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        while self.waiting.is_none() {
            match self.socket.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.waiting = Some(self.wait()?);
                }
                outcome => return Poll::Ready(outcome),
            }
        }
        let waiting = Pin::new(self.waiting.as_mut().expect("it was put there"));
        let outcome = ready!(waiting.poll_write(cx, bytes));
        self.waiting = None;
        Poll::Ready(outcome)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

impl Drop for WriteEnd {
    fn drop(&mut self) {
        // Of a socket whose other side is gone there is nothing to end.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests;
