//! Links between nodes: one QUIC connection per pair, mutually authenticated, with one long-lived
//! stream each for control frames, for calls and replies, and for bulk.
//!
//! Both sides may dial, also at the same time. The one with the smaller process id leads: it opens
//! the streams for calls and bulk, whose first frame says that this connection is the link; an
//! empty stream says that the connection is one too many. Unreliable datagrams are never used.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, Incoming,
    MtuDiscoveryConfig, ReadExactError, RecvStream, SendStream, ServerConfig, TransportConfig,
    VarInt,
};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::error::SystemError;
use crate::id::ProcessId;
use crate::limits::Limits;
use crate::link::{self, Greeted, Link};
use crate::security::{self, CLUSTER_NAME, NodeIdentity};
use crate::wire::Frame;

/// The largest UDP payload. With segmentation offload ten packets leave in one call, and ten of
/// them must stay under 65,535 bytes: above, the kernel refuses and the connection hangs in
/// silence.
const PAYLOAD_BYTES_MAX: u16 = 6500;

/// The socket's buffers. With the usual 208 KiB a receiver overflows even on the loopback device.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Unread bytes that one stream may have under way: two of the largest messages.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// Streams that a peer may have open: the three of a link, and some to spare.
const STREAMS_MAX: u32 = 8;

/// Handshakes under way at once; more must try again.
const HANDSHAKES_MAX: usize = 64;

/// Why a connection was closed.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum Close {
    /// The link is over.
    Over = 0,
    /// The peer was refused.
    Refused = 1,
    /// There is another link between the two.
    Spare = 2,
}

impl From<Close> for VarInt {
    fn from(close: Close) -> Self {
        Self::from_u32(close as u32)
    }
}

/// A node's UDP socket and what is needed to talk over it.
pub(crate) struct Quic {
    endpoint: Endpoint,
    address: SocketAddr,
    tls_server: Arc<QuicServerConfig>,
    tls_client: Arc<QuicClientConfig>,
    limits: Limits,
    /// Peers that a connection is being made a link to, by the leading side.
    claims: Mutex<HashSet<ProcessId>>,
}

impl fmt::Debug for Quic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quic")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Quic {
    /// Binds the socket.
    pub(crate) fn bind(
        address: SocketAddr,
        identity: &NodeIdentity,
        limits: &Limits,
    ) -> Result<Arc<Self>, SystemError> {
        let tls = |error| SystemError::Security(format!("the certificate cannot be used: {error}"));
        let server = QuicServerConfig::try_from(identity.server_config()?)
            .map_err(|e| tls(e.to_string()))?;
        let client = QuicClientConfig::try_from(identity.client_config()?)
            .map_err(|e| tls(e.to_string()))?;
        let (tls_server, tls_client) = (Arc::new(server), Arc::new(client));
        let io = |source| SystemError::Io {
            doing: format!("listening on {address}"),
            source,
        };
        let socket = socket(address).map_err(io)?;
        let mut config = EndpointConfig::default();
        config
            .max_udp_payload_size(PAYLOAD_BYTES_MAX)
            .map_err(|error| io(std::io::Error::other(error)))?;
        let served = server_config(&tls_server, limits, address);
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = Endpoint::new(config, Some(served), socket, runtime).map_err(io)?;
        let address = endpoint.local_addr().map_err(io)?;
        let claims = Mutex::default();
        Ok(Arc::new(Self {
            endpoint,
            address,
            tls_server,
            tls_client,
            limits: limits.clone(),
            claims,
        }))
    }

    /// Where others reach it.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes in whoever comes, until the socket is closed.
    pub(crate) fn serve(self: &Arc<Self>, engine: &Arc<Engine>) {
        let (quic, accepting) = (Arc::clone(self), Arc::clone(engine));
        engine.spawn_task(async move {
            let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
            while let Some(incoming) = quic.endpoint.accept().await {
                let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else {
                    incoming.refuse();
                    continue;
                };
                let (quic, engine) = (Arc::clone(&quic), Arc::clone(&accepting));
                accepting.spawn_task(async move {
                    let from = incoming.remote_address();
                    if let Err(error) = quic.take_in(&engine, incoming).await {
                        tracing::warn!(%from, %error, "a peer did not get a link");
                    }
                    drop(permit);
                });
            }
        });
    }

    async fn take_in(&self, engine: &Arc<Engine>, incoming: Incoming) -> Result<(), SystemError> {
        let from = incoming.remote_address();
        let config = server_config(&self.tls_server, &self.limits, from);
        let handshake = async {
            let connection = incoming
                .accept_with(Arc::new(config))
                .map_err(|error| explain(from, &error))?
                .await
                .map_err(|error| explain(from, &error))?;
            let streams = connection.accept_bi().await;
            let streams = streams.map_err(|error| explain(from, &error))?;
            Ok((connection, streams))
        };
        let (connection, streams) = self.in_time(from, handshake).await?;
        self.establish(engine, &connection, streams)
            .await
            .map(|_process| ())
    }

    /// Connects to another node and makes it a link, unless there is one already.
    pub(crate) async fn join(
        &self,
        engine: &Arc<Engine>,
        to: SocketAddr,
    ) -> Result<ProcessId, SystemError> {
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
        let (connection, streams) = self.in_time(to, handshake).await?;
        self.establish(engine, &connection, streams).await
    }

    async fn in_time<T>(
        &self,
        peer: SocketAddr,
        handshake: impl Future<Output = Result<T, SystemError>>,
    ) -> Result<T, SystemError> {
        let patience = self.limits.link_start_timeout();
        Clock::timeout(patience, handshake)
            .await
            .unwrap_or_else(|| {
                Err(SystemError::Io {
                    doing: format!("connecting to {peer}"),
                    source: std::io::Error::new(
                        std::io::ErrorKind::TimedOut,
                        format!("no handshake within {patience:?}"),
                    ),
                })
            })
    }

    /// Greets over the first stream and makes the connection a link, or finds that there is one.
    async fn establish(
        &self,
        engine: &Arc<Engine>,
        connection: &Connection,
        (writer, reader): (SendStream, RecvStream),
    ) -> Result<ProcessId, SystemError> {
        let outcome = self.greet(engine, connection, writer, reader).await;
        if let Err(error) = &outcome {
            connection.close(Close::Refused.into(), error.to_string().as_bytes());
        }
        let greeted = outcome?;
        let peer = greeted.hello.process;
        let outcome = if engine.process < peer {
            self.lead(engine, connection, greeted).await
        } else {
            self.follow(engine, connection, greeted).await
        };
        match outcome {
            Ok(true) => Ok(peer),
            // The other connection is on its way to be a link.
            Ok(false) => {
                self.in_time(connection.remote_address(), linked(engine, peer))
                    .await
            }
            Err(error) => {
                connection.close(Close::Refused.into(), error.to_string().as_bytes());
                Err(error)
            }
        }
    }

    async fn greet(
        &self,
        engine: &Arc<Engine>,
        connection: &Connection,
        writer: SendStream,
        reader: RecvStream,
    ) -> Result<Greeted, SystemError> {
        // Control frames leave before calls that were written earlier.
        let _ = writer.set_priority(1);
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let greeted = link::greet(reader, writer, engine.hello(), &self.limits).await;
        let greeted = match (greeted, connection.close_reason()) {
            (Ok(greeted), _) => greeted,
            (Err(_), Some(reason)) => return Err(explain(connection.remote_address(), &reason)),
            (Err(error), None) => return Err(error),
        };
        if greeted.hello.process == engine.process {
            return Err(SystemError::Refused("it is this system itself".to_owned()));
        }
        let certificates = connection
            .peer_identity()
            .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
        let certificate = certificates
            .as_ref()
            .and_then(|chain| chain.first())
            .ok_or_else(|| {
                SystemError::Security("the peer has presented no certificate".to_owned())
            })?;
        security::check_node(certificate, &greeted.hello.node)?;
        Ok(greeted)
    }

    /// Decides whether this connection becomes the link. Whether it did.
    async fn lead(
        &self,
        engine: &Arc<Engine>,
        connection: &Connection,
        greeted: Greeted,
    ) -> Result<bool, SystemError> {
        let peer = greeted.hello.process;
        let fresh = self.limits.heartbeat_interval * 2;
        let spare = {
            let mut claims = self.claims.lock();
            // A link that has been silent for longer is one that the peer has lost.
            let alive = engine
                .links
                .get(&peer)
                .is_some_and(|link| !link.is_closed() && link.silent_for() <= fresh);
            alive || !claims.insert(peer)
        };
        let claim = (!spare).then(|| Claim {
            claims: &self.claims,
            peer,
        });
        let from = connection.remote_address();
        let calls = self.in_time(from, open(connection, !spare)).await?;
        if claim.is_some() {
            let bulk = self.in_time(from, open(connection, true)).await?;
            self.attach(engine, connection, greeted, calls, bulk).await;
            return Ok(true);
        }
        // Its end is the answer.
        drop(calls);
        // The other side closes the connection when it has heard; a close from here could overtake.
        let _ = Clock::timeout(fresh, connection.closed()).await;
        connection.close(Close::Spare.into(), b"there is another link");
        Ok(false)
    }

    /// Waits for the other side to decide whether this connection becomes the link. Whether it did.
    async fn follow(
        &self,
        engine: &Arc<Engine>,
        connection: &Connection,
        greeted: Greeted,
    ) -> Result<bool, SystemError> {
        let from = connection.remote_address();
        let decision = async {
            let Some(calls) = accept(connection).await? else {
                return Ok(None);
            };
            Ok(accept(connection).await?.map(|bulk| (calls, bulk)))
        };
        let Some((calls, bulk)) = self.in_time(from, decision).await? else {
            connection.close(Close::Spare.into(), b"there is another link");
            return Ok(false);
        };
        self.attach(engine, connection, greeted, calls, bulk).await;
        Ok(true)
    }

    async fn attach(
        &self,
        engine: &Arc<Engine>,
        connection: &Connection,
        greeted: Greeted,
        calls: (SendStream, RecvStream),
        bulk: (SendStream, RecvStream),
    ) {
        let hello = &greeted.hello;
        // Former links of this node end first, and with them what was under way over them.
        let former: Vec<Arc<Link>> = engine
            .links
            .iter()
            .filter(|link| {
                link.peer == hello.process || (!link.is_worker && link.node == hello.node)
            })
            .map(|link| Arc::clone(&link))
            .collect();
        for link in former {
            link.close("the node has joined again");
            let gone = async {
                while engine
                    .links
                    .get(&link.peer)
                    .is_some_and(|known| Arc::ptr_eq(&known, &link))
                {
                    Clock::sleep(self.limits.sweep_interval).await;
                }
            };
            // A link that does not end is replaced all the same.
            let _ = Clock::timeout(self.limits.heartbeat_interval, gone).await;
        }
        // A stream that is gone already ends the link soon enough.
        let _ = bulk.0.set_priority(-1);
        let greeted = greeted
            .calls_over(Box::new(calls.1), Box::new(calls.0))
            .bulk_over(Box::new(bulk.1), Box::new(bulk.0));
        let link = link::attach(engine, greeted, false);
        let (engine, connection) = (Arc::clone(engine), connection.clone());
        let patience = self.limits.heartbeat_interval;
        engine.clone().spawn_task(async move {
            tokio::select! {
                biased;
                reason = connection.closed() => link.close(describe(&reason)),
                () = link.closed() => {
                    link.finished().await;
                    if engine.is_closing() {
                        // The other side closes the connection when it has heard the last word.
                        let _ = Clock::timeout(patience, connection.closed()).await;
                    }
                    connection.close(Close::Over.into(), link.why().as_bytes());
                }
            }
        });
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

/// That a connection is being made the link to a peer.
struct Claim<'a> {
    claims: &'a Mutex<HashSet<ProcessId>>,
    peer: ProcessId,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.peer);
    }
}

/// What the streams for calls and bulk begin with, when the connection becomes the link.
fn opening() -> BytesMut {
    let mut beat = BytesMut::new();
    Frame::Beat.encode(&mut beat);
    beat
}

/// Opens a stream, which the other side sees when something is written or it ends.
async fn open(
    connection: &Connection,
    keep: bool,
) -> Result<(SendStream, RecvStream), SystemError> {
    let from = connection.remote_address();
    let (mut writer, reader) = connection
        .open_bi()
        .await
        .map_err(|error| explain(from, &error))?;
    if keep {
        let written = writer.write_all(&opening()).await;
        written.map_err(|error| SystemError::Refused(error.to_string()))?;
    }
    Ok((writer, reader))
}

/// Takes a stream that the other side opens; `None` when it ends at once.
async fn accept(connection: &Connection) -> Result<Option<(SendStream, RecvStream)>, SystemError> {
    let from = connection.remote_address();
    let (writer, mut reader) = connection
        .accept_bi()
        .await
        .map_err(|error| explain(from, &error))?;
    let mut first = vec![0; opening().len()];
    match reader.read_exact(&mut first).await {
        Ok(()) if first == opening() => Ok(Some((writer, reader))),
        Ok(()) => Err(SystemError::Refused(
            "it opened an unknown stream".to_owned(),
        )),
        Err(ReadExactError::FinishedEarly(_)) => Ok(None),
        Err(ReadExactError::ReadError(error)) => Err(SystemError::Refused(error.to_string())),
    }
}

/// Waits until there is a link to a peer.
async fn linked(engine: &Arc<Engine>, peer: ProcessId) -> Result<ProcessId, SystemError> {
    while engine.links.get(&peer).is_none_or(|link| link.is_closed()) {
        Clock::sleep(engine.limits.sweep_interval).await;
    }
    Ok(peer)
}

/// A UDP socket with large buffers, as far as the operating system allows.
fn socket(address: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn server_config(tls: &Arc<QuicServerConfig>, limits: &Limits, peer: SocketAddr) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(Arc::clone(tls) as _);
    config.transport_config(Arc::new(transport(limits, peer)));
    // A node does not move while it is linked.
    config.migration(false);
    config
}

fn transport(limits: &Limits, peer: SocketAddr) -> TransportConfig {
    let mut config = TransportConfig::default();
    let idle = limits
        .link_idle_timeout
        .as_millis()
        .try_into()
        .unwrap_or(u32::MAX);
    let window = VarInt::from_u32(STREAM_WINDOW_BYTES);
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(PAYLOAD_BYTES_MAX);
    config
        .max_idle_timeout(Some(VarInt::from_u32(idle).into()))
        .keep_alive_interval(Some(limits.heartbeat_interval))
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(window)
        // Room for every stream at once, on both sides, so that none can hold up another.
        .receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES * STREAMS_MAX))
        .send_window(u64::from(STREAM_WINDOW_BYTES * STREAMS_MAX))
        .datagram_receive_buffer_size(None)
        .mtu_discovery_config(Some(discovery));
    if peer.ip().to_canonical().is_loopback() {
        // The path is known, and loss must not shrink it.
        config
            .initial_mtu(PAYLOAD_BYTES_MAX)
            .min_mtu(PAYLOAD_BYTES_MAX);
    }
    config
}

/// Why a connection ended, in words.
fn describe(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
            "the other side closed it".to_owned()
        }
        ConnectionError::ApplicationClosed(close) => {
            format!(
                "the other side closed it: {}",
                String::from_utf8_lossy(&close.reason)
            )
        }
        ConnectionError::TimedOut => "nothing was heard from the other side in time".to_owned(),
        other => other.to_string(),
    }
}

/// A connection that did not become a link.
fn explain(peer: SocketAddr, error: &ConnectionError) -> SystemError {
    let alert = |code: u64| {
        code.checked_sub(0x100)
            .and_then(|alert| u8::try_from(alert).ok())
    };
    match error {
        ConnectionError::TransportError(error) => match alert(error.code.into()) {
            Some(alert) => SystemError::Security(format!(
                "the certificate of {peer} was refused: {}",
                alert_text(alert).unwrap_or(&error.reason)
            )),
            None => SystemError::Refused(error.to_string()),
        },
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code.into()) {
            Some(alert) => SystemError::Security(format!(
                "{peer} refused our certificate: {}",
                alert_text(alert).map_or_else(
                    || String::from_utf8_lossy(&close.reason).into_owned(),
                    ToOwned::to_owned
                )
            )),
            None => SystemError::Refused(close.to_string()),
        },
        ConnectionError::TimedOut => SystemError::Io {
            doing: format!("connecting to {peer}"),
            source: std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                "nobody answered: is the node up, and the address right?",
            ),
        },
        other => SystemError::Refused(describe(other)),
    }
}

/// What TLS alerts mean between nodes (RFC 8446, section 6.2).
const fn alert_text(alert: u8) -> Option<&'static str> {
    match alert {
        48 | 51 => Some("it is of another cluster (unknown certificate authority)"),
        45 => Some("it has expired, or is not valid yet"),
        116 => Some("there was none"),
        42 | 43 | 46 => Some("it is not one of a node"),
        120 => Some("the two sides speak different protocols"),
        _ => None,
    }
}

impl Limits {
    /// How long a link may take to come up.
    fn link_start_timeout(&self) -> Duration {
        self.worker_start_timeout.min(self.link_idle_timeout)
    }
}

#[cfg(test)]
mod tests;
