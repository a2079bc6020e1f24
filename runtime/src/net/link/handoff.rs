//! Succession of a link: its passage from one program to the next in the same process.
//!
//! It stands still first: its readers stop between two frames, and its writers where they are. Of a
//! link to a process of this node the next program has the same socket, and with it what was read and
//! not taken in, and what was not written yet. A session between nodes goes on over another
//! connection, as it does when one breaks; what the other side has not taken in goes along.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::pipe::Pipe;
use super::resume::ANOTHER;
use super::{Dial, Ending, Link, READ_BYTES, Reader, Session, Streams, Way, serve, socket};
use crate::base::id::ProcessId;
use crate::net::link::owner::LinkOwner;
use crate::net::session::{Incoming, Outgoing};
use odeon_shm::take_open;

/// The state of a link that the next program has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkHandoff {
    peer: ProcessId,
    node: String,
    told: u64,
    heeded: u64,
    carried: Carried,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Carried {
    /// By a socket to a process of this node.
    Socket {
        fd: RawFd,
        #[serde(with = "serde_bytes")]
        unread: Vec<u8>,
        #[serde(with = "serde_bytes")]
        unwritten: Vec<u8>,
    },
    /// By one connection after the other.
    Session {
        id: u64,
        attempt: u64,
        /// Where the other side is, if this one makes the connections.
        dials: Option<SocketAddr>,
        streams: Vec<StreamHandoff>,
    },
}

/// One stream of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamHandoff {
    /// Bytes taken in.
    pub(super) taken: u64,
    /// Bytes that the other side has taken in.
    pub(super) acknowledged: u64,
    /// Bytes that follow them.
    #[serde(with = "serde_bytes")]
    pub(super) kept: Vec<u8>,
    /// The number of questions, facts and notices that the calls were last marked to come after.
    pub(super) marked: u64,
}

impl LinkHandoff {
    /// The descriptor that the next program needs.
    pub(crate) const fn descriptor(&self) -> Option<RawFd> {
        match self.carried {
            Carried::Socket { fd, .. } => Some(fd),
            Carried::Session { .. } => None,
        }
    }

    pub(crate) const fn peer(&self) -> ProcessId {
        self.peer
    }
}

/// Why links stand still.
const SUCCESSION: &str = "its process hands it to another program";

impl Link {
    /// A connection begins to carry it.
    pub(super) fn carried_by(&self, carrier: &Arc<Ending>) {
        *self.carrier.lock() = Arc::clone(carrier);
        // Somebody may have come before this one was known.
        if self.stands_still() {
            carrier.end(SUCCESSION);
        } else if self.session.as_ref().is_some_and(Session::is_knocked) {
            carrier.end(ANOTHER);
        }
    }

    /// Has it stand still, and waits until it does; or until it is over, if it ends meanwhile.
    pub(crate) async fn freeze(&self) {
        self.frozen.end(SUCCESSION);
        self.carrier.lock().end(SUCCESSION);
        tokio::select! {
            () = self.stands.over() => {}
            () = self.closed() => {}
        }
    }

    /// Returns true if the next program of this process can go on with it.
    pub(crate) fn can_pass(&self) -> bool {
        match &self.session {
            Some(session) => match &session.way {
                Way::Dial(dial) => dial.address().is_some(),
                Way::Wait => true,
            },
            None => self.socket.is_some(),
        }
    }

    /// Returns true if it stands still, or is about to.
    pub(super) fn stands_still(&self) -> bool {
        self.frozen.is_over() && !self.is_closed()
    }

    /// Stands still, until the process becomes another program.
    pub(super) async fn stand(&self) {
        self.stands.end(SUCCESSION);
        std::future::pending::<()>().await;
    }

    /// The state that the next program has to know; `None` of one that ends with its connection,
    /// which is no socket.
    pub(crate) fn handoff(&self) -> Option<LinkHandoff> {
        let carried = match (&self.session, self.socket) {
            (Some(session), _) => Carried::Session {
                id: session.id,
                attempt: session.attempt.load(Ordering::Acquire),
                dials: match &session.way {
                    Way::Dial(dial) => Some(dial.address()?),
                    Way::Wait => None,
                },
                streams: self.pipes().map(Pipe::handoff).collect(),
            },
            (None, Some(fd)) => Carried::Socket {
                fd,
                unread: self.control.take_unread(),
                unwritten: self.control.unwritten(),
            },
            (None, None) => return None,
        };
        Some(LinkHandoff {
            peer: self.peer,
            node: self.node.clone(),
            told: self.told.load(Ordering::Acquire),
            heeded: *self.heeded.borrow(),
            carried,
        })
    }
}

/// A link that is known in this program, and not served yet.
pub(crate) struct Restored {
    link: Arc<Link>,
    first: Option<Streams>,
}

impl Restored {
    /// Serves it, now that the ways that its frames may take are known.
    pub(crate) fn begin(self, owner: &Arc<dyn LinkOwner>) {
        owner.spawn_task(serve(Arc::clone(owner), self.link, self.first));
    }
}

/// Makes what dials an address again.
pub(crate) type Redial<'a> = dyn Fn(SocketAddr) -> Arc<dyn Dial> + Send + Sync + 'a;

/// A link goes on in this program.
///
/// # Errors
/// Its socket is none.
pub(crate) fn restore(
    owner: &Arc<dyn LinkOwner>,
    redial: Option<&Redial<'_>>,
    handoff: LinkHandoff,
) -> io::Result<Restored> {
    let LinkHandoff {
        peer,
        node,
        told,
        heeded,
        carried,
    } = handoff;
    let mut first = None;
    let link = match carried {
        Carried::Socket {
            fd,
            unread,
            unwritten,
        } => {
            let socket = std::os::unix::net::UnixStream::from(take_open(fd)?);
            socket.set_nonblocking(true)?;
            let (reader, writer) = socket::ends(UnixStream::from_std(socket)?)?;
            let mut buffer = BytesMut::with_capacity(READ_BYTES);
            buffer.extend_from_slice(&unread);
            let reader: Reader = Box::new(reader);
            first = Some(Streams {
                readers: vec![(reader, buffer)],
                line: None,
            });
            let pipe = Pipe::going_on(Box::new(writer), &unwritten);
            Link {
                is_worker: true,
                socket: Some(fd),
                ..Link::new(peer, node, [pipe])
            }
        }
        Carried::Session {
            id,
            attempt,
            dials,
            streams,
        } => {
            let way = match (dials, redial) {
                (None, _) => Way::Wait,
                (Some(to), Some(redial)) => Way::Dial(redial(to)),
                (Some(_), None) => return Err(io::ErrorKind::Unsupported.into()),
            };
            let session = Session::new(id, way);
            session.attempt.store(attempt, Ordering::Release);
            let pipes = streams.into_iter().map(Pipe::of_handoff);
            Link {
                session: Some(session),
                ..Link::new(peer, node, pipes)
            }
        }
    };
    let link = Arc::new(Link {
        told: AtomicU64::new(told),
        heeded: watch::channel(heeded).0,
        ..link
    });
    owner.keep_link(Arc::clone(&link));
    Ok(Restored { link, first })
}

impl Pipe {
    /// A stream of a session, before it has a connection.
    fn of_handoff(handoff: StreamHandoff) -> Self {
        let StreamHandoff {
            taken,
            acknowledged,
            kept,
            marked,
        } = handoff;
        let outgoing = Outgoing::resumed_from(acknowledged, Bytes::from(kept));
        Self::unconnected(outgoing, Incoming::resumed_from(taken), marked)
    }
}

#[cfg(test)]
mod tests;
