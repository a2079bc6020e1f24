//! A bare quinn connection to a process that echoes, with the transport of a link: the floor of what goes
//! over QUIC.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use anyhow::ensure;
use bytes::Bytes;
use odeon::Clock;
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, MtuDiscoveryConfig, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::sync::Mutex;

use crate::far::Far;
use crate::floor::{Direct, echo};
use crate::mux::Mux;

/// The role of an echo with two threads.
pub(crate) const ECHO: &str = "quinn echo";

/// The role of an echo with one.
pub(crate) const LONE_ECHO: &str = "quinn echo, one thread";

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The name that the certificate of the bare echo is valid for.
const ECHO_NAME: &str = "localhost";

/// The settings of a link's connection on the loopback device, as `net/quic/endpoint` of the runtime has
/// them: the payload of a packet, the buffers of its socket, and unread bytes of a stream.
const PAYLOAD_BYTES: u16 = 6500;
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const STREAMS: u32 = 8;

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(PAYLOAD_BYTES);
    config
        // It is not to end while others are measured.
        .max_idle_timeout(None)
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES * STREAMS))
        .send_window(u64::from(STREAM_WINDOW_BYTES * STREAMS))
        .datagram_receive_buffer_size(None)
        .mtu_discovery_config(Some(discovery))
        .initial_mtu(PAYLOAD_BYTES)
        .min_mtu(PAYLOAD_BYTES);
    Arc::new(config)
}

/// A bare endpoint, of the present runtime.
fn endpoint(served: Option<ServerConfig>) -> anyhow::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(PAYLOAD_BYTES)?;
    let socket = UdpSocket::bind((LOOPBACK, 0))?;
    set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    Ok(Endpoint::new(
        config,
        served,
        socket,
        Arc::new(TokioRuntime),
    )?)
}

/// A bare quinn connection to an echo.
pub(crate) struct Bare {
    connection: Connection,
    _near: Endpoint,
    _far: Far,
}

impl Bare {
    /// Starts an echo of this role and connects to it.
    pub(crate) async fn start(role: &'static str) -> anyhow::Result<Self> {
        let (far, (address, certificate)): (_, (SocketAddr, Vec<u8>)) = Far::serving(role, ())?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(certificate))?;
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
        config.transport_config(transport());
        let mut near = endpoint(None)?;
        near.set_default_client_config(config);
        let connection = near.connect(address, ECHO_NAME)?.await?;
        Ok(Self {
            connection,
            _near: near,
            _far: far,
        })
    }

    async fn stream(&self) -> anyhow::Result<(RecvStream, SendStream)> {
        let (writer, reader) = self.connection.open_bi().await?;
        Ok((reader, writer))
    }

    /// A stream for single exchanges, and one that many share.
    pub(crate) async fn streams(
        &self,
    ) -> anyhow::Result<(Arc<Mutex<Direct<RecvStream, SendStream>>>, Mux)> {
        let (reader, writer) = self.stream().await?;
        let direct = Arc::new(Mutex::new(Direct::new(reader, writer)));
        let (reader, writer) = self.stream().await?;
        Ok((direct, Mux::new(reader, writer)))
    }

    /// Gigabytes per second of bytes that cross from memory to memory.
    pub(crate) async fn carry(&self, bytes: Bytes) -> anyhow::Result<f64> {
        let length = bytes.len();
        let begun = Clock::now();
        let mut writer = self.connection.open_uni().await?;
        writer.write_chunk(bytes).await?;
        writer.finish()?;
        let mut reader = self.connection.accept_uni().await?;
        let mut came = [0; 8];
        reader.read_exact(&mut came).await?;
        let time = Clock::now().since(begun).as_secs_f64();
        ensure!(
            u64::from_le_bytes(came) == length as u64,
            "bytes are missing"
        );
        Ok(length as f64 / time / 1e9)
    }
}

/// Begins to echo, and says where and with which certificate.
pub(crate) async fn begin_echo((): ()) -> anyhow::Result<((SocketAddr, Vec<u8>), Endpoint)> {
    let made = rcgen::generate_simple_self_signed([ECHO_NAME.to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut server = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
    server.transport_config(transport());
    let endpoint = endpoint(Some(server))?;
    drop(tokio::spawn(serve(endpoint.clone())));
    Ok(((endpoint.local_addr()?, certificate.to_vec()), endpoint))
}

/// Serves every connection.
async fn serve(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        drop(tokio::spawn(async move {
            if let Ok(connection) = incoming.await {
                // Its end is the end of the measurement.
                let _ = tokio::join!(echo_streams(&connection), take_streams(&connection));
            }
        }));
    }
}

/// Echoes the streams that go both ways.
async fn echo_streams(connection: &Connection) -> anyhow::Result<()> {
    loop {
        let (writer, reader) = connection.accept_bi().await?;
        drop(tokio::spawn(echo(reader, writer)));
    }
}

/// Takes each stream that goes one way into memory, and says how long it was.
async fn take_streams(connection: &Connection) -> anyhow::Result<()> {
    // It is mapped once, as a node's memory for blobs is.
    let mut memory = Vec::new();
    loop {
        let mut reader = connection.accept_uni().await?;
        memory.clear();
        while let Some(chunk) = reader.read_chunk(usize::MAX, true).await? {
            memory.extend_from_slice(&chunk.bytes);
        }
        let mut writer = connection.open_uni().await?;
        writer
            .write_all(&(memory.len() as u64).to_le_bytes())
            .await?;
        writer.finish()?;
    }
}
