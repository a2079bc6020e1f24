//! The libraries that are measured.

mod kameo;
pub(crate) mod odeon;
mod ractor;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::figures::Figures;
use crate::script::Script;

/// A library with the transport under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    OdeonUnix,
    OdeonQuic,
    Ray,
    Monarch,
    KameoTcp,
    KameoQuic,
    RactorTcp,
    RactorUnix,
}

/// The processes that a library starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processes {
    /// It starts none.
    None,
    /// They are those of the subject before.
    AsAbove,
    /// It starts them, and starts them again when they fail.
    Restarted,
    /// It starts them; when they fail, the program has to ask for others.
    RestartedByHand,
}

impl Subject {
    pub(crate) const ALL: [Self; 8] = [
        Self::OdeonUnix,
        Self::OdeonQuic,
        Self::Ray,
        Self::Monarch,
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
            Self::Ray => "ray",
            Self::Monarch => "monarch",
            Self::KameoTcp => "kameo-tcp",
            Self::KameoQuic => "kameo-quic",
            Self::RactorTcp => "ractor-tcp",
            Self::RactorUnix => "ractor-unix",
        }
    }

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::OdeonUnix => "Odeon, unix socket",
            Self::OdeonQuic => "Odeon, QUIC",
            Self::Ray => "Ray",
            Self::Monarch => "Monarch",
            Self::KameoTcp => "kameo, TCP with noise and yamux",
            Self::KameoQuic => "kameo, QUIC",
            Self::RactorTcp => "ractor_cluster, TCP",
            Self::RactorUnix => "ractor_cluster, unix socket",
        }
    }

    pub(crate) fn is_odeon(self) -> bool {
        matches!(self, Self::OdeonUnix | Self::OdeonQuic)
    }

    /// The README shows one transport of a peer, one that Odeon has too; which of kameo's two is
    /// quicker differs between runs.
    pub(crate) fn is_shown_first(self) -> bool {
        !matches!(self, Self::KameoTcp | Self::RactorTcp)
    }

    pub(crate) fn processes(self) -> Processes {
        match self {
            Self::OdeonUnix | Self::Ray => Processes::Restarted,
            Self::OdeonQuic => Processes::AsAbove,
            Self::Monarch => Processes::RestartedByHand,
            Self::KameoTcp | Self::KameoQuic | Self::RactorTcp | Self::RactorUnix => {
                Processes::None
            }
        }
    }

    /// Which of Odeon's transports is of the same class as a peer's, and how many times faster it
    /// should be. kameo encrypts what it sends, as Odeon does over QUIC; `ractor_cluster` does not,
    /// as Odeon over a unix socket.
    pub(crate) fn aim(self) -> Option<(Self, f64)> {
        match self {
            Self::OdeonUnix | Self::OdeonQuic | Self::Ray | Self::Monarch => None,
            Self::KameoTcp | Self::KameoQuic => Some((Self::OdeonQuic, 20.0)),
            Self::RactorTcp | Self::RactorUnix => Some((Self::OdeonUnix, 5.0)),
        }
    }

    /// The script in Python that measures it, if it is no library in Rust.
    pub(crate) fn script(self) -> Option<Script> {
        match self {
            Self::Ray => Some(Script::RAY),
            Self::Monarch => Some(Script::MONARCH),
            _ => None,
        }
    }

    /// In the client process: one round.
    pub(crate) async fn measure(self) -> Result<Figures> {
        match self {
            Self::OdeonUnix => odeon::measure_worker().await,
            Self::OdeonQuic => odeon::measure_node().await,
            Self::Ray | Self::Monarch => bail!("a script measures it"),
            Self::KameoTcp | Self::KameoQuic => kameo::measure(self).await,
            Self::RactorTcp | Self::RactorUnix => ractor::measure(self).await,
        }
    }

    /// In the server process: answers until the client is gone.
    pub(crate) async fn serve(self, folder: &Path) -> Result<()> {
        match self {
            // They start their processes themselves.
            Self::OdeonUnix | Self::Ray | Self::Monarch => Ok(()),
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
