//! Transport: frames, links, sessions and their connections, newcomers, and the questions that engines
//! ask each other, as bytes. It knows of no actor that runs.

#[cfg(feature = "quic")]
pub mod admission;
pub(crate) mod link;
#[cfg_attr(not(feature = "quic"), path = "net/quic/absent.rs")]
pub(crate) mod quic;
#[cfg(feature = "quic")]
pub mod security;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod wire;
