//! Ends of connections: why this side closes one, and what the other side's reasons mean.

use std::net::SocketAddr;

use quinn::{Connection, ConnectionError, VarInt};

use crate::base::error::SystemError;
use crate::net::link::Ended;

/// Why a connection was closed.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Close {
    /// The link is over.
    Over = 0,
    /// The peer was refused.
    Refused = 1,
    /// There is another link between the two.
    Spare = 2,
    /// The link goes on over another connection.
    Broken = 3,
}

impl From<Close> for VarInt {
    fn from(close: Close) -> Self {
        Self::from_u32(close as u32)
    }
}

pub(super) fn ended(reason: &ConnectionError) -> Ended {
    match reason {
        ConnectionError::ApplicationClosed(close) if close.error_code == Close::Over.into() => {
            Ended::Over(describe(reason))
        }
        _ => Ended::Broken(describe(reason)),
    }
}

/// Tells the other side why it is refused.
pub(super) fn refused<T>(
    connection: &Connection,
    outcome: Result<T, SystemError>,
) -> Result<T, SystemError> {
    if let Err(error) = &outcome {
        connection.close(Close::Refused.into(), error.to_string().as_bytes());
    }
    outcome
}

/// Replaces an error with the reason for the end of the connection, which says more than that of a
/// stream.
pub(super) fn known_end<T>(
    connection: &Connection,
    outcome: Result<T, SystemError>,
) -> Result<T, SystemError> {
    match (outcome, connection.close_reason()) {
        (Err(_), Some(reason)) => Err(explain(connection.remote_address(), &reason)),
        (outcome, _) => outcome,
    }
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
pub(super) fn explain(peer: SocketAddr, error: &ConnectionError) -> SystemError {
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

/// The meaning of TLS alerts between nodes (RFC 8446, section 6.2).
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
