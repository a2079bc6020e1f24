//! Sockets that speak QUIC, and how much may be under way over them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::base::error::SystemError;
use crate::base::limits::Limits;

/// The largest UDP payload. With segmentation offload ten packets leave in one call, and ten of
/// them must stay under 65,535 bytes: above, the kernel refuses and the connection hangs in
/// silence.
const PAYLOAD_BYTES_MAX: u16 = 6500;

/// The smallest that QUIC knows.
const PAYLOAD_BYTES_MIN: u16 = 1200;

/// The socket's buffers. With the usual 208 KiB a receiver overflows even on the loopback device.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Unread bytes that one stream may have under way: two of the largest messages.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// Streams that a peer may have open: the three of a link, and some to spare.
const STREAMS_MAX: u32 = 8;

/// A socket that speaks QUIC.
pub(super) fn endpoint(
    address: SocketAddr,
    served: Option<ServerConfig>,
) -> std::io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config
        .max_udp_payload_size(PAYLOAD_BYTES_MAX)
        .map_err(std::io::Error::other)?;
    let runtime = Arc::new(quinn::TokioRuntime);
    Endpoint::new(config, served, socket(address)?, runtime)
}

/// The socket of a machine that is no node yet, to reach this address.
pub(crate) fn newcomer(to: SocketAddr) -> Result<Endpoint, SystemError> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    endpoint((any, 0).into(), None).map_err(|source| SystemError::Io {
        doing: "opening a UDP socket".to_owned(),
        source,
    })
}

/// The transport settings of a machine that is no node yet.
pub(crate) fn newcomer_transport(to: SocketAddr, idle: Duration) -> TransportConfig {
    let limits = Limits {
        link_idle_timeout: idle,
        ..Limits::default()
    };
    transport(&limits, to)
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

pub(super) fn server_config(
    tls: &Arc<QuicServerConfig>,
    limits: &Limits,
    peer: SocketAddr,
) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(Arc::clone(tls) as _);
    config.transport_config(Arc::new(transport(limits, peer)));
    // A node does not move while it is linked.
    config.migration(false);
    config
}

pub(super) fn transport(limits: &Limits, peer: SocketAddr) -> TransportConfig {
    let mut config = TransportConfig::default();
    let idle = limits
        .link_idle_timeout
        .as_millis()
        .try_into()
        .unwrap_or(u32::MAX);
    let window = VarInt::from_u32(STREAM_WINDOW_BYTES);
    let is_here = peer.ip().to_canonical().is_loopback();
    let payload = if is_here {
        payload_to(peer)
    } else {
        PAYLOAD_BYTES_MAX
    };
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(payload);
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
    if is_here {
        // The path is known, and loss must not shrink it.
        config.initial_mtu(payload).min_mtu(payload);
    }
    config
}

/// The largest UDP payload on the way to an address of this machine: what its loopback device takes in
/// one packet.
fn payload_to(peer: SocketAddr) -> u16 {
    let (any, headers): (IpAddr, u32) = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), 28),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), 48),
    };
    let mtu = std::net::UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(peer)?;
        let mtu = match peer {
            SocketAddr::V4(_) => rustix::net::sockopt::ip_mtu(&socket),
            SocketAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(&socket),
        };
        Ok(mtu?)
    });
    // Where the kernel does not tell, the usual loopback device takes the largest.
    let payload = mtu.unwrap_or(u32::MAX).saturating_sub(headers);
    let bounds = u32::from(PAYLOAD_BYTES_MIN)..=u32::from(PAYLOAD_BYTES_MAX);
    payload.clamp(*bounds.start(), *bounds.end()) as u16
}
