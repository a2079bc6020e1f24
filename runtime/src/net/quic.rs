//! Links between nodes: one QUIC connection per pair, mutually authenticated, with one long-lived
//! stream each for control frames, for calls and replies, and for bulk.
//!
//! Both sides may dial, also at the same time. The one with the smaller process id leads: it opens
//! the streams for calls and bulk, whose first frame says that this connection is the link; an
//! empty stream says that the connection is one too many. When it keeps a session with the other
//! side already it first asks, over a stream as well, whether that keeps it too.
//!
//! A connection that resumes a session is dialled by the side that dialled the first one, and
//! carries the session from then on; there is nothing to decide. Unreliable datagrams are never
//! used.

mod end;
mod endpoint;
mod stream;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, Incoming, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;

use self::end::{Close, ended, explain, known_end, refused};
use self::endpoint::{endpoint, server_config, transport};
pub(crate) use self::endpoint::{newcomer, newcomer_transport};
use self::stream::{Opened, Stream, accept, ask, bytes_of, open};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::base::random;
use crate::net::admission::{AdmissionServer, Gate};
use crate::net::link::owner::LinkOwner;
use crate::net::link::{self, Dial, Ended, Greeted, Line, Link, Session, Way};
use crate::net::security::{self, CLUSTER_NAME, JOIN_PROTOCOL, NodeIdentity, fingerprint_of};
use crate::net::wire::{Hello, Opening, Passage};

/// Handshakes under way at once; more must try again.
const HANDSHAKES_MAX: usize = 64;

/// The address that a node is to listen on, and the identity to show there.
#[derive(Debug)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) identity: NodeIdentity,
}

impl Listen {
    /// The node that the identity was issued to.
    pub(crate) fn node(&self) -> &str {
        self.identity.node()
    }

    /// Binds the socket.
    pub(crate) fn bind(self, limits: &Limits) -> Result<Arc<Quic>, SystemError> {
        Quic::bind(self.address, self.identity, limits)
    }
}

/// A node's UDP socket and what is needed to talk over it.
pub(crate) struct Quic {
    endpoint: Endpoint,
    address: SocketAddr,
    front: RwLock<Front>,
    identity: NodeIdentity,
    tls_client: Arc<QuicClientConfig>,
    limits: Limits,
    gate: Mutex<Gate>,
    /// Sessions that may begin with connections under way. Each is here before this side says hello,
    /// without which the other cannot begin it.
    rising: Mutex<HashSet<u64>>,
    /// Peers that a connection is being made a link to, by the leading side.
    claims: Mutex<HashSet<ProcessId>>,
    /// Certificates that are not good any more, by their fingerprints.
    revoked: RwLock<BTreeSet<String>>,
}

/// The server's side of a handshake, which all who connect meet.
#[derive(Clone)]
struct Front {
    tls: Arc<QuicServerConfig>,
    /// Where newcomers are heard, if they are.
    server: Option<Arc<AdmissionServer>>,
}

impl Front {
    fn new(
        identity: &NodeIdentity,
        server: Option<Arc<AdmissionServer>>,
    ) -> Result<Self, SystemError> {
        let tls = QuicServerConfig::try_from(identity.server_config(server.is_some())?);
        let tls = Arc::new(tls.map_err(unusable)?);
        Ok(Self { tls, server })
    }
}

fn unusable(error: impl fmt::Display) -> SystemError {
    SystemError::Security(format!("the certificate cannot be used: {error}"))
}

impl fmt::Debug for Quic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quic")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Quic {
    fn bind(
        address: SocketAddr,
        identity: NodeIdentity,
        limits: &Limits,
    ) -> Result<Arc<Self>, SystemError> {
        let front = Front::new(&identity, None)?;
        let client = QuicClientConfig::try_from(identity.client_config()?).map_err(unusable)?;
        let tls_client = Arc::new(client);
        let io = |source| SystemError::Io {
            doing: format!("listening on {address}"),
            source,
        };
        let served = server_config(&front.tls, limits, address);
        let endpoint = endpoint(address, Some(served)).map_err(io)?;
        let address = endpoint.local_addr().map_err(io)?;
        Ok(Arc::new(Self {
            endpoint,
            address,
            front: RwLock::new(front),
            identity,
            tls_client,
            limits: limits.clone(),
            gate: Mutex::default(),
            rising: Mutex::default(),
            claims: Mutex::default(),
            revoked: RwLock::default(),
        }))
    }

    /// Takes newcomers in from now on, or none any more.
    pub(crate) fn admit(&self, server: Option<AdmissionServer>) -> Result<(), SystemError> {
        if let Some(server) = &server
            && server.cluster().authority()? != self.identity.authority_der()?
        {
            let why = "this node's identity is of another cluster than it would admit to";
            return Err(SystemError::Security(why.to_owned()));
        }
        *self.front.write() = Front::new(&self.identity, server.map(Arc::new))?;
        Ok(())
    }

    /// Where others reach it.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes in whoever comes, until the socket is closed.
    pub(crate) fn serve(self: &Arc<Self>, owner: &Arc<dyn LinkOwner>) {
        let (quic, accepting) = (Arc::clone(self), Arc::clone(owner));
        owner.spawn_task(async move {
            let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
            while let Some(incoming) = quic.endpoint.accept().await {
                let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else {
                    incoming.refuse();
                    continue;
                };
                let busy = handshakes.available_permits() < HANDSHAKES_MAX / 2;
                if busy && incoming.may_retry() {
                    // Whoever claims to be at many addresses has to be there.
                    if let Err(error) = incoming.retry() {
                        tracing::debug!(%error, "a handshake was dropped");
                    }
                    continue;
                }
                let host = incoming.remote_address().ip();
                // Where strangers come, one machine must not keep all others out.
                let admits = quic.front.read().server.is_some();
                if admits && !quic.gate.lock().enter(host) {
                    incoming.refuse();
                    continue;
                }
                let (quic, owner) = (Arc::clone(&quic), Arc::clone(&accepting));
                accepting.spawn_task(async move {
                    let from = incoming.remote_address();
                    if let Err(error) = quic.take_in(&owner, incoming).await {
                        tracing::warn!(%from, %error, "a peer did not get a link");
                    }
                    quic.gate.lock().leave(host);
                    drop(permit);
                });
            }
        });
    }

    async fn take_in(
        &self,
        owner: &Arc<dyn LinkOwner>,
        incoming: Incoming,
    ) -> Result<(), SystemError> {
        let from = incoming.remote_address();
        let front = self.front.read().clone();
        let config = server_config(&front.tls, &self.limits, from);
        let handshake = async {
            incoming
                .accept_with(Arc::new(config))
                .map_err(|error| explain(from, &error))?
                .await
                .map_err(|error| explain(from, &error))
        };
        let connection = self.in_time(from, "the handshake", handshake).await?;
        if is_newcomer(&connection) {
            let outcome = match &front.server {
                Some(server) => server.serve(owner, &self.gate, &connection).await,
                None => Err(SystemError::Refused("nobody is admitted here".to_owned())),
            };
            return refused(&connection, outcome);
        }
        refused(&connection, certificate_of(&connection))?;
        let streams = async {
            let streams = connection.accept_bi().await;
            streams.map_err(|error| explain(from, &error))
        };
        let (writer, reader) = self.in_time(from, "its greeting", streams).await?;
        let outcome = self.answer(owner, &connection, writer, reader).await;
        refused(&connection, outcome).map(|_process| ())
    }

    /// Hears who has come, and what for.
    async fn answer(
        &self,
        owner: &Arc<dyn LinkOwner>,
        connection: &Connection,
        writer: SendStream,
        reader: RecvStream,
    ) -> Result<ProcessId, SystemError> {
        let (reader, writer) = (Box::new(reader), Box::new(ahead(writer)));
        let heard = link::hear(reader, writer, &self.limits).await;
        let heard = known_end(connection, heard)?;
        self.check_peer(owner, connection, &heard.hello)?;
        let peer = heard.hello.process;
        match heard.hello.session {
            Passage::Begins(session) => {
                let rising = self.rises(session)?;
                let hello = owner.hello();
                let greeted = known_end(connection, heard.answer(hello, &self.limits).await)?;
                let session = Session::new(session, Way::Wait);
                self.establish(owner, connection, greeted, session, rising)
                    .await
            }
            Passage::Resumes(_) => {
                let line = QuicLine(connection.clone());
                let complete = async move |greeted: Greeted| {
                    let (calls, bulk) = (accept(&line.0).await?, accept(&line.0).await?);
                    match (calls, bulk) {
                        (Opened::Carries(calls), Opened::Carries(bulk)) => {
                            Ok(complete(greeted, line.0, calls, bulk))
                        }
                        _ => Err(SystemError::Refused("it opened other streams".to_owned())),
                    }
                };
                if !link::knock(owner, heard, complete).await? {
                    // The other side closes the connection when it has heard.
                    let patience = self.limits.heartbeat_interval;
                    let _ = Clock::timeout(patience, connection.closed()).await;
                    return Err(SystemError::Refused("that session is not here".to_owned()));
                }
                Ok(peer)
            }
            Passage::Unsaid | Passage::Unknown => {
                Err(SystemError::Refused("it begins no session".to_owned()))
            }
        }
    }

    /// Connects to another node and makes it a link, unless there is one already.
    pub(crate) async fn join(
        self: &Arc<Self>,
        owner: &Arc<dyn LinkOwner>,
        to: SocketAddr,
    ) -> Result<ProcessId, SystemError> {
        let session = random::number();
        let rising = self.rises(session)?;
        let hello = Hello {
            session: Passage::Begins(session),
            ..owner.hello()
        };
        let (connection, greeted) = self.connect(owner, to, hello).await?;
        let session = Session::new(session, Way::Dial(self.redial(to)));
        let outcome = self
            .establish(owner, &connection, greeted, session, rising)
            .await;
        refused(&connection, outcome)
    }

    /// A dialler that connects to the node at an address again and again.
    pub(crate) fn redial(self: &Arc<Self>, to: SocketAddr) -> Arc<dyn Dial> {
        let quic = Arc::downgrade(self);
        Arc::new(Redial { quic, to })
    }

    /// Connects to another node and greets it.
    async fn connect(
        &self,
        owner: &Arc<dyn LinkOwner>,
        to: SocketAddr,
        hello: Hello,
    ) -> Result<(Connection, Greeted), SystemError> {
        let mut config = ClientConfig::new(Arc::clone(&self.tls_client) as _);
        config.transport_config(Arc::new(transport(&self.limits, to)));
        let handshake = async {
            let connection = self
                .endpoint
                .connect_with(config, to, CLUSTER_NAME)
                .map_err(|error| SystemError::Io {
                    doing: format!("connecting to {to}"),
                    source: std::io::Error::other(error),
                })?
                .await
                .map_err(|error| explain(to, &error))?;
            let streams = connection
                .open_bi()
                .await
                .map_err(|error| explain(to, &error))?;
            Ok((connection, streams))
        };
        let (connection, (writer, reader)) = self.in_time(to, "the handshake", handshake).await?;
        let (reader, writer) = (Box::new(reader), Box::new(ahead(writer)));
        let greeted = link::greet(reader, writer, hello, &self.limits).await;
        let greeted = known_end(&connection, greeted).and_then(|greeted| {
            self.check_peer(owner, &connection, &greeted.hello)?;
            Ok(greeted)
        });
        let greeted = refused(&connection, greeted)?;
        Ok((connection, greeted))
    }

    /// Takes these certificates for no good any more.
    pub(crate) fn revoke(&self, fingerprints: BTreeSet<String>) {
        *self.revoked.write() = fingerprints;
    }

    /// Checks that the other side is who it says, and may be here.
    fn check_peer(
        &self,
        owner: &Arc<dyn LinkOwner>,
        connection: &Connection,
        hello: &Hello,
    ) -> Result<(), SystemError> {
        if hello.process == owner.process() {
            return Err(SystemError::Refused("it is this system itself".to_owned()));
        }
        let certificate = certificate_of(connection)?;
        security::check_node(&certificate, &hello.node)?;
        if self.revoked.read().contains(&fingerprint_of(&certificate)) {
            let why = format!(
                "the certificate of node `{}` was revoked when the cluster forgot it: join with a new \
                 token and an empty folder",
                hello.node
            );
            return Err(SystemError::Security(why));
        }
        Ok(())
    }

    /// Notes that a session may begin.
    fn rises(&self, session: u64) -> Result<UnderWay<'_, u64>, SystemError> {
        let known = || SystemError::Refused("that session begins already".to_owned());
        UnderWay::begin(&self.rising, session).ok_or_else(known)
    }

    /// Bounds a step towards a link; the error names it.
    async fn in_time<T>(
        &self,
        peer: SocketAddr,
        step: &str,
        taken: impl Future<Output = Result<T, SystemError>>,
    ) -> Result<T, SystemError> {
        let patience = self.limits.link_start_timeout();
        Clock::timeout(patience, taken).await.unwrap_or_else(|| {
            Err(SystemError::Io {
                doing: format!("connecting to {peer}"),
                source: std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    format!("{step} took longer than {patience:?}"),
                ),
            })
        })
    }

    /// Makes a greeted connection a link, or finds that there is one.
    async fn establish(
        &self,
        owner: &Arc<dyn LinkOwner>,
        connection: &Connection,
        greeted: Greeted,
        session: Session,
        rising: UnderWay<'_, u64>,
    ) -> Result<ProcessId, SystemError> {
        let peer = greeted.hello.process;
        link::is_alive(owner, peer);
        let streams = if owner.process() < peer {
            let claim = UnderWay::begin(&self.claims, peer);
            let streams = self.lead(owner, connection, peer, claim.is_some()).await?;
            streams.map(|streams| (streams, claim))
        } else {
            let streams = self.follow(owner, connection, peer).await?;
            streams.map(|streams| (streams, None))
        };
        // The claim ends when the link is there.
        if let Some(((calls, bulk), _claim)) = streams {
            self.replace_former(owner, &greeted.hello).await;
            let greeted = complete(greeted, connection.clone(), calls, bulk);
            link::attach_session(owner, greeted, session);
            return Ok(peer);
        }
        drop(rising);
        // There is another link, or one on its way.
        let link = linked(owner, peer);
        self.in_time(connection.remote_address(), "the other connection", link)
            .await
    }

    /// Decides whether this connection becomes the link; then these are its streams.
    async fn lead(
        &self,
        owner: &Arc<dyn LinkOwner>,
        connection: &Connection,
        peer: ProcessId,
        claimed: bool,
    ) -> Result<Option<(Stream, Stream)>, SystemError> {
        let from = connection.remote_address();
        let spare = match link::session_with(owner, peer) {
            Some(session) if claimed => {
                let asked = ask(connection, session);
                self.in_time(from, "its answer", asked).await?
            }
            _ => !claimed,
        };
        let calls = self
            .in_time(from, "opening a stream", open(connection, !spare))
            .await?;
        if !spare {
            let bulk = self
                .in_time(from, "opening a stream", open(connection, true))
                .await?;
            return Ok(Some((calls, bulk)));
        }
        // Its end is the answer.
        drop(calls);
        // The other side closes the connection when it has heard; a close from here could overtake.
        let patience = self.limits.heartbeat_interval * 2;
        let _ = Clock::timeout(patience, connection.closed()).await;
        connection.close(Close::Spare.into(), b"there is another link");
        Ok(None)
    }

    /// Waits for the other side to decide whether this connection becomes the link.
    async fn follow(
        &self,
        owner: &Arc<dyn LinkOwner>,
        connection: &Connection,
        peer: ProcessId,
    ) -> Result<Option<(Stream, Stream)>, SystemError> {
        let from = connection.remote_address();
        let decision = async {
            let mut calls = None;
            loop {
                match (accept(connection).await?, calls.take()) {
                    (Opened::Carries(bulk), Some(calls)) => return Ok(Some((calls, bulk))),
                    (Opened::Carries(opened), None) => calls = Some(opened),
                    (Opened::Asks(session, (mut writer, _)), None) => {
                        // Another connection may be about to be the link that is asked for.
                        let kept = link::session_with(owner, peer) == Some(session)
                            || self.rising.lock().contains(&session);
                        let answer = if kept {
                            Opening::Kept
                        } else {
                            Opening::Unknown
                        };
                        let written = writer.write_all(&bytes_of(answer)).await;
                        written.map_err(|error| SystemError::Refused(error.to_string()))?;
                    }
                    (Opened::Nothing, None) => return Ok(None),
                    _ => return Err(SystemError::Refused("it opened other streams".to_owned())),
                }
            }
        };
        let streams = self.in_time(from, "its decision", decision).await?;
        if streams.is_none() {
            connection.close(Close::Spare.into(), b"there is another link");
        }
        Ok(streams)
    }

    /// Former links of a node that joins end first, and with them what was under way over them.
    async fn replace_former(&self, owner: &Arc<dyn LinkOwner>, hello: &Hello) {
        let is_former = |link: &Arc<Link>| {
            link.peer == hello.process || (!link.is_worker && link.node == hello.node)
        };
        for link in owner.all_links().into_iter().filter(is_former) {
            link.close("the node has joined again");
            let gone = async {
                let is_it = |known: Arc<Link>| Arc::ptr_eq(&known, &link);
                while owner.link_to(link.peer).is_some_and(is_it) {
                    Clock::sleep(self.limits.sweep_interval).await;
                }
            };
            // A link that does not end is replaced all the same.
            let _ = Clock::timeout(self.limits.heartbeat_interval, gone).await;
        }
    }

    /// Says goodbye to all peers and gives the socket back.
    pub(crate) async fn close(&self) {
        let patience = self.limits.heartbeat_interval;
        self.endpoint.set_server_config(None);
        let links_over = async {
            while self.endpoint.open_connections() > 0 {
                Clock::sleep(self.limits.sweep_interval).await;
            }
        };
        let _ = Clock::timeout(patience, links_over).await;
        self.endpoint
            .close(Close::Over.into(), b"this side is leaving");
        let _ = Clock::timeout(patience, self.endpoint.wait_idle()).await;
    }
}

/// That something is under way, for as long as this lives.
struct UnderWay<'a, T: Eq + Hash + Copy> {
    all: &'a Mutex<HashSet<T>>,
    this: T,
}

impl<'a, T: Eq + Hash + Copy> UnderWay<'a, T> {
    /// `None` when it is under way already.
    fn begin(all: &'a Mutex<HashSet<T>>, this: T) -> Option<Self> {
        let first = all.lock().insert(this);
        // Not made for nothing: its end would be that of the other.
        first.then(|| Self { all, this })
    }
}

impl<T: Eq + Hash + Copy> Drop for UnderWay<'_, T> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.this);
    }
}

/// A connection as a link sees it.
struct QuicLine(Connection);

impl Line for QuicLine {
    fn ended(&self) -> BoxFuture<'_, Ended> {
        Box::pin(async { ended(&self.0.closed().await) })
    }

    fn end(&self) -> Option<Ended> {
        self.0.close_reason().as_ref().map(ended)
    }

    fn close(&self, over: bool, why: &str) {
        let close = if over { Close::Over } else { Close::Broken };
        self.0.close(close.into(), why.as_bytes());
    }
}

/// Dials a node again.
struct Redial {
    quic: Weak<Quic>,
    to: SocketAddr,
}

impl Dial for Redial {
    fn dial<'a>(
        &'a self,
        owner: &'a Arc<dyn LinkOwner>,
        hello: Hello,
    ) -> BoxFuture<'a, Result<Greeted, SystemError>> {
        Box::pin(async move {
            let gone = || SystemError::Refused("this side is leaving".to_owned());
            let quic = self.quic.upgrade().ok_or_else(gone)?;
            let (connection, greeted) = quic.connect(owner, self.to, hello).await?;
            if !matches!(greeted.hello.session, Passage::Resumes(_)) {
                connection.close(Close::Refused.into(), b"the session is over");
                return Ok(greeted);
            }
            let calls = open(&connection, true).await?;
            let bulk = open(&connection, true).await?;
            Ok(complete(greeted, connection, calls, bulk))
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.to)
    }
}

/// All that a link needs of a connection.
fn complete(greeted: Greeted, connection: Connection, calls: Stream, bulk: Stream) -> Greeted {
    // A stream that is gone already ends the connection soon enough.
    let _ = bulk.0.set_priority(-1);
    greeted
        .calls_over(Box::new(calls.1), Box::new(calls.0))
        .bulk_over(Box::new(bulk.1), Box::new(bulk.0))
        .on(QuicLine(connection))
}

/// A stream whose frames leave before calls that were written earlier.
fn ahead(writer: SendStream) -> SendStream {
    let _ = writer.set_priority(1);
    writer
}

/// The certificate that the other side has shown.
fn certificate_of(connection: &Connection) -> Result<CertificateDer<'static>, SystemError> {
    connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .and_then(|chain| chain.into_iter().next())
        .ok_or_else(|| SystemError::Security("the peer has shown no certificate".to_owned()))
}

/// Returns true if the other side has come to be admitted.
fn is_newcomer(connection: &Connection) -> bool {
    connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok())
        .is_some_and(|data| data.protocol.as_deref() == Some(JOIN_PROTOCOL))
}

/// Waits until there is a link to a peer.
async fn linked(owner: &Arc<dyn LinkOwner>, peer: ProcessId) -> Result<ProcessId, SystemError> {
    while owner.link_to(peer).is_none_or(|link| link.is_closed()) {
        Clock::sleep(owner.limits().sweep_interval).await;
    }
    Ok(peer)
}

impl Limits {
    /// The longest time that a link may take to come up.
    fn link_start_timeout(&self) -> Duration {
        self.worker_start_timeout.min(self.link_idle_timeout)
    }
}

#[cfg(test)]
mod tests;
