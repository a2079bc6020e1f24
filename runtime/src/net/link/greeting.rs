//! The greeting of two processes over a new connection, and what they then know.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

use bytes::BytesMut;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{READ_BYTES, Reader, Writer};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::limits::Limits;
use crate::net::wire::{Frame, Hello, Opening, VERSION};

/// The end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It broke; the link may go on over another.
    Broken(String),
    /// The other side has ended the link.
    Over(String),
}

/// The connection that streams belong to, where that is more than they are.
pub(crate) trait Line: Send + Sync {
    /// Resolves when it has ended.
    fn ended(&self) -> BoxFuture<'_, Ended>;
    /// The manner of its end, if it has ended.
    fn end(&self) -> Option<Ended>;
    /// Ends it, and with `over` the link.
    fn close(&self, over: bool, why: &str);
}

/// Both halves of a new stream whose other side has said hello.
pub(crate) struct Heard {
    pub(crate) hello: Hello,
    reader: Reader,
    writer: Writer,
    buffer: BytesMut,
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heard").field(&self.hello).finish()
    }
}

/// Both halves of a new stream with its greeting done.
pub(crate) struct Greeted {
    pub(crate) hello: Hello,
    pub(super) ours: Hello,
    pub(super) control: (Reader, Writer),
    pub(super) buffer: BytesMut,
    pub(super) calls: Option<(Reader, Writer)>,
    pub(super) bulk: Option<(Reader, Writer)>,
    pub(super) line: Option<Arc<dyn Line>>,
    /// The socket, when the other side is a process of this node.
    pub(super) socket: Option<RawFd>,
}

impl fmt::Debug for Greeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Greeted").field(&self.hello).finish()
    }
}

impl Greeted {
    /// Says one thing more before the link begins.
    pub(super) async fn say(
        &mut self,
        opening: Opening,
        limits: &Limits,
    ) -> Result<(), SystemError> {
        in_time(limits, say(&mut self.control.1, &Frame::Opening(opening))).await
    }

    /// Hears one thing more before the link begins.
    pub(super) async fn opening(&mut self, limits: &Limits) -> Result<Opening, SystemError> {
        let next = next_frame(&mut self.control.0, &mut self.buffer, limits);
        match in_time(limits, next).await? {
            Frame::Opening(opening) => Ok(opening),
            _ => Err(SystemError::Refused("it gave no answer".to_owned())),
        }
    }

    /// Says which socket the stream is, to a process of this node.
    pub(crate) const fn over_socket(mut self, socket: RawFd) -> Self {
        self.socket = Some(socket);
        self
    }
}

/// Of connections that carry several streams.
#[cfg(feature = "quic")]
impl Greeted {
    /// Gives calls and replies a stream of their own.
    pub(crate) fn calls_over(mut self, reader: Reader, writer: Writer) -> Self {
        self.calls = Some((reader, writer));
        self
    }

    /// Gives bulk a stream of its own.
    pub(crate) fn bulk_over(mut self, reader: Reader, writer: Writer) -> Self {
        self.bulk = Some((reader, writer));
        self
    }

    /// Names what the streams belong to.
    pub(crate) fn on(mut self, line: impl Line + 'static) -> Self {
        self.line = Some(Arc::new(line));
        self
    }
}

impl Heard {
    /// Says hello as well. That of the other side is looked at after that, so that both know why
    /// when they do not get on.
    pub(crate) async fn answer(self, ours: Hello, limits: &Limits) -> Result<Greeted, SystemError> {
        let Self {
            hello,
            reader,
            mut writer,
            buffer,
        } = self;
        let said = Frame::Hello(ours.clone());
        in_time(limits, say(&mut writer, &said)).await?;
        check(&hello, &ours)?;
        Ok(Greeted {
            hello,
            ours,
            control: (reader, writer),
            buffer,
            calls: None,
            bulk: None,
            line: None,
            socket: None,
        })
    }
}

/// Says hello and hears it.
pub(crate) async fn greet(
    reader: Reader,
    mut writer: Writer,
    ours: Hello,
    limits: &Limits,
) -> Result<Greeted, SystemError> {
    in_time(limits, say_hello(&mut writer, &ours)).await?;
    greet_back(reader, writer, ours, limits).await
}

/// Says hello.
pub(crate) async fn say_hello(
    writer: &mut (impl AsyncWrite + Unpin),
    ours: &Hello,
) -> Result<(), SystemError> {
    say(writer, &Frame::Hello(ours.clone())).await
}

/// Hears hello, after it was said.
pub(crate) async fn greet_back(
    reader: Reader,
    writer: Writer,
    ours: Hello,
    limits: &Limits,
) -> Result<Greeted, SystemError> {
    let heard = hear(reader, writer, limits).await?;
    check(&heard.hello, &ours)?;
    Ok(Greeted {
        hello: heard.hello,
        ours,
        control: (heard.reader, heard.writer),
        buffer: heard.buffer,
        calls: None,
        bulk: None,
        line: None,
        socket: None,
    })
}

/// Hears who is at the other end.
pub(crate) async fn hear(
    mut reader: Reader,
    writer: Writer,
    limits: &Limits,
) -> Result<Heard, SystemError> {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let first = next_frame(&mut reader, &mut buffer, limits);
    let Frame::Hello(hello) = in_time(limits, first).await? else {
        let why = "it did not begin with hello".to_owned();
        return Err(SystemError::Refused(why));
    };
    Ok(Heard {
        hello,
        reader,
        writer,
        buffer,
    })
}

/// The next frame of a peer that is not linked yet.
async fn next_frame(
    reader: &mut Reader,
    buffer: &mut BytesMut,
    limits: &Limits,
) -> Result<Frame, SystemError> {
    loop {
        match Frame::decode(buffer, limits.message_bytes_max) {
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => {}
            Err(error) => return Err(SystemError::Refused(error.to_string())),
        }
        let read = reader.read_buf(buffer).await;
        if read.map_err(io("hearing a peer's hello"))? == 0 {
            return Err(SystemError::Refused("it hung up".to_owned()));
        }
    }
}

async fn say(writer: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> Result<(), SystemError> {
    let mut bytes = BytesMut::new();
    frame.encode(&mut bytes);
    let doing = "saying hello to a peer";
    writer.write_all_buf(&mut bytes).await.map_err(io(doing))?;
    writer.flush().await.map_err(io(doing))
}

async fn in_time<T>(
    limits: &Limits,
    exchange: impl Future<Output = Result<T, SystemError>>,
) -> Result<T, SystemError> {
    Clock::timeout(limits.worker_start_timeout, exchange)
        .await
        .unwrap_or_else(|| {
            let why = "it did not say hello in time".to_owned();
            Err(SystemError::Refused(why))
        })
}

fn io(doing: &'static str) -> impl Fn(std::io::Error) -> SystemError {
    move |source| SystemError::Io {
        doing: doing.to_owned(),
        source,
    }
}

fn check(theirs: &Hello, ours: &Hello) -> Result<(), SystemError> {
    if theirs.version != VERSION {
        return Err(SystemError::Refused(format!(
            "it speaks version {}, we speak {VERSION}: use the same release on both sides",
            theirs.version
        )));
    }
    if theirs.job != ours.job {
        return Err(SystemError::Refused(format!(
            "it belongs to job `{}`, we belong to `{}`",
            theirs.job, ours.job
        )));
    }
    Ok(())
}
