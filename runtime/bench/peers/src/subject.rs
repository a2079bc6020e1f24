//! The libraries that are measured.

mod kameo;
pub(crate) mod odeon;
mod ractor;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};

use crate::figures::Figures;

/// A library with the transport under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    OdeonUnix,
    OdeonQuic,
    KameoTcp,
    KameoQuic,
    RactorTcp,
    RactorUnix,
}

impl Subject {
    pub(crate) const ALL: [Self; 6] = [
        Self::OdeonUnix,
        Self::OdeonQuic,
        Self::KameoTcp,
        Self::KameoQuic,
        Self::RactorTcp,
        Self::RactorUnix,
    ];

    pub(crate) fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|subject| subject.name() == name);
        found.with_context(|| format!("there is no subject {name}"))
    }

    /// For the command line of its processes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OdeonUnix => "odeon-unix",
            Self::OdeonQuic => "odeon-quic",
            Self::KameoTcp => "kameo-tcp",
            Self::KameoQuic => "kameo-quic",
            Self::RactorTcp => "ractor-tcp",
            Self::RactorUnix => "ractor-unix",
        }
    }

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::OdeonUnix => "odeon, unix socket",
            Self::OdeonQuic => "odeon, QUIC",
            Self::KameoTcp => "kameo, TCP with noise and yamux",
            Self::KameoQuic => "kameo, QUIC",
            Self::RactorTcp => "ractor_cluster, TCP",
            Self::RactorUnix => "ractor_cluster, unix socket",
        }
    }

    pub(crate) fn is_odeon(self) -> bool {
        matches!(self, Self::OdeonUnix | Self::OdeonQuic)
    }

    /// Which of Odeon's transports is of the same class as a peer's, and how many times faster it
    /// should be. kameo encrypts what it sends, as Odeon does over QUIC; `ractor_cluster` does not,
    /// as Odeon over a unix socket.
    pub(crate) fn aim(self) -> Option<(Self, f64)> {
        match self {
            Self::OdeonUnix | Self::OdeonQuic => None,
            Self::KameoTcp | Self::KameoQuic => Some((Self::OdeonQuic, 20.0)),
            Self::RactorTcp | Self::RactorUnix => Some((Self::OdeonUnix, 5.0)),
        }
    }

    /// In the client process: one round.
    pub(crate) async fn measure(self) -> Result<Figures> {
        match self {
            Self::OdeonUnix => odeon::measure_worker().await,
            Self::OdeonQuic => odeon::measure_node().await,
            Self::KameoTcp | Self::KameoQuic => kameo::measure(self).await,
            Self::RactorTcp | Self::RactorUnix => ractor::measure(self).await,
        }
    }

    /// In the server process: answers until the client is gone.
    pub(crate) async fn serve(self, folder: &Path) -> Result<()> {
        match self {
            // Odeon starts the worker process itself.
            Self::OdeonUnix => Ok(()),
            Self::OdeonQuic => odeon::serve_node(folder).await,
            Self::KameoTcp => kameo::serve("/ip4/127.0.0.1/tcp/0").await,
            Self::KameoQuic => kameo::serve("/ip4/127.0.0.1/udp/0/quic-v1").await,
            Self::RactorTcp => ractor::serve_tcp().await,
            Self::RactorUnix => ractor::serve_unix(folder).await,
        }
    }
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}
