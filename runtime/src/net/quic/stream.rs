//! Streams of a connection, each of which says first what it is for.

use bytes::BytesMut;
use quinn::{Connection, ReadExactError, RecvStream, SendStream};

use super::end::explain;
use crate::base::error::SystemError;
use crate::net::wire::{Frame, Opening};

/// One long-lived stream.
pub(super) type Stream = (SendStream, RecvStream);

pub(super) fn bytes_of(opening: Opening) -> BytesMut {
    let mut bytes = BytesMut::new();
    Frame::Opening(opening).encode(&mut bytes);
    bytes
}

/// Opens a stream of the link; the other side sees it when something is written or it ends.
pub(super) async fn open(connection: &Connection, keep: bool) -> Result<Stream, SystemError> {
    let from = connection.remote_address();
    let (mut writer, reader) = connection
        .open_bi()
        .await
        .map_err(|error| explain(from, &error))?;
    if keep {
        let written = writer.write_all(&bytes_of(Opening::Carries)).await;
        written.map_err(|error| SystemError::Refused(error.to_string()))?;
    }
    Ok((writer, reader))
}

/// Asks the other side whether it keeps a session.
pub(super) async fn ask(connection: &Connection, session: u64) -> Result<bool, SystemError> {
    let from = connection.remote_address();
    let (mut writer, mut reader) = connection
        .open_bi()
        .await
        .map_err(|error| explain(from, &error))?;
    let written = writer.write_all(&bytes_of(Opening::Keeps(session))).await;
    written.map_err(|error| SystemError::Refused(error.to_string()))?;
    match opening(&mut reader).await? {
        Some(Opening::Kept) => Ok(true),
        Some(Opening::Unknown) => Ok(false),
        _ => Err(SystemError::Refused("it gave no answer".to_owned())),
    }
}

/// The purpose for which a stream was opened.
pub(super) enum Opened {
    Carries(Stream),
    Asks(u64, Stream),
    /// It ends at once: this connection is one too many.
    Nothing,
}

/// Takes a stream that the other side opens.
pub(super) async fn accept(connection: &Connection) -> Result<Opened, SystemError> {
    let from = connection.remote_address();
    let (writer, mut reader) = connection
        .accept_bi()
        .await
        .map_err(|error| explain(from, &error))?;
    match opening(&mut reader).await? {
        Some(Opening::Carries) => Ok(Opened::Carries((writer, reader))),
        Some(Opening::Keeps(session)) => Ok(Opened::Asks(session, (writer, reader))),
        Some(_) => Err(SystemError::Refused(
            "it opened an unknown stream".to_owned(),
        )),
        None => Ok(Opened::Nothing),
    }
}

/// The first frame of a stream; `None` when it ends without one.
async fn opening(reader: &mut RecvStream) -> Result<Option<Opening>, SystemError> {
    let mut bytes = bytes_of(Opening::Carries);
    match reader.read_exact(&mut bytes).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(_)) => return Ok(None),
        Err(ReadExactError::ReadError(error)) => {
            return Err(SystemError::Refused(error.to_string()));
        }
    }
    let most = bytes.len();
    match Frame::decode(&mut bytes, most) {
        Ok(Some(Frame::Opening(opening))) => Ok(Some(opening)),
        _ => Err(SystemError::Refused(
            "it opened an unknown stream".to_owned(),
        )),
    }
}
