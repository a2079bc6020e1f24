//! The floor for remote asks: length-prefixed frames with an 8-byte id, echoed by another process.
//! Nothing is decoded, supervised, traced or bounded.
//!
//! An echo comes in two forms, since which of them is quicker depends on where the system puts the two
//! processes: one blocking thread at each end, and one runtime of one thread at each end. The quicker of
//! both, round by round, is the floor.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use odeon::Clock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::far::{self, Far};
use crate::pace::{Laps, SEQUENTIAL};
use crate::row::median;

/// Bytes that are read at once.
pub(crate) const BUFFER: usize = 64 << 10;

/// The payload of an exchange: as long as an echoed message.
pub(crate) const PAYLOAD: [u8; 64] = [7; 64];

pub(crate) fn put_frame(out: &mut BytesMut, id: u64, payload: &[u8]) {
    out.put_u32_le(8 + payload.len() as u32);
    out.put_u64_le(id);
    out.put_slice(payload);
}

pub(crate) fn take_frame(input: &mut BytesMut) -> Option<(u64, Bytes)> {
    let length = u32::from_le_bytes(*input.first_chunk::<4>()?) as usize;
    if input.len() < 4 + length {
        return None;
    }
    input.advance(4);
    let mut frame = input.split_to(length).freeze();
    Some((frame.get_u64_le(), frame))
}

/// Moves the whole frames of what was read to what is written next.
fn answer(input: &mut BytesMut, output: &mut BytesMut) {
    while let Some((id, payload)) = take_frame(input) {
        put_frame(output, id, &payload);
    }
}

/// The echo server: answers everything that one read brought with one write.
pub(crate) async fn echo(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let (mut input, mut output) = (BytesMut::with_capacity(BUFFER), BytesMut::new());
    loop {
        input.reserve(BUFFER);
        if reader.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        answer(&mut input, &mut output);
        writer.write_all_buf(&mut output).await?;
        writer.flush().await?;
        output.clear();
    }
}

/// The same by a thread that waits for the socket.
fn echo_blocking(mut socket: UnixStream) -> std::io::Result<()> {
    let (mut read, mut input, mut output) = (vec![0; BUFFER], BytesMut::new(), BytesMut::new());
    loop {
        let bytes = socket.read(&mut read)?;
        if bytes == 0 {
            return Ok(());
        }
        input.put_slice(&read[..bytes]);
        answer(&mut input, &mut output);
        socket.write_all(&output)?;
        output.clear();
    }
}

/// Serves as the echo process of a role; the socket is standard input.
pub(crate) fn serve(echoing: Echoing) -> ! {
    let serving = || {
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        match echoing {
            Echoing::Blocking => echo_blocking(socket)?,
            Echoing::OneThread => {
                socket.set_nonblocking(true)?;
                far::one_thread()?.block_on(async {
                    let (reader, writer) = tokio::net::UnixStream::from_std(socket)?.into_split();
                    echo(reader, writer).await
                })?;
            }
        }
        anyhow::Ok(())
    };
    std::process::exit(i32::from(serving().is_err()));
}

/// A form of the echo process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Echoing {
    /// A thread that waits for its socket.
    Blocking,
    /// A tokio runtime of one thread.
    OneThread,
}

impl Echoing {
    /// The role of its process.
    const fn role(self) -> &'static str {
        match self {
            Self::Blocking => "echo, blocking",
            Self::OneThread => "echo, one thread",
        }
    }

    /// The form whose process has this role.
    pub(crate) fn of_role(role: &str) -> Option<Self> {
        let forms = [Self::Blocking, Self::OneThread];
        forms.into_iter().find(|form| form.role() == role)
    }

    /// Starts an echo process and connects to it.
    pub(crate) fn start(self) -> anyhow::Result<(Far, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let far = Far::start(self.role(), OwnedFd::from(theirs).into(), Stdio::inherit())?;
        Ok((far, ours))
    }

    /// Starts one, and connects a socket of tokio to it.
    pub(crate) fn start_async(self) -> anyhow::Result<(Far, tokio::net::UnixStream)> {
        let (far, socket) = self.start()?;
        socket.set_nonblocking(true)?;
        Ok((far, tokio::net::UnixStream::from_std(socket)?))
    }
}

/// The median time of an exchange in microseconds, by a thread that waits for the socket.
pub(crate) fn blocking_round_trip(socket: &UnixStream) -> anyhow::Result<f64> {
    let (mut socket, mut frame) = (socket, BytesMut::new());
    put_frame(&mut frame, 1, &PAYLOAD);
    let (mut reply, mut laps) = (vec![0; frame.len()], Laps::default());
    for _ in 0..SEQUENTIAL {
        let begun = Clock::now();
        socket.write_all(&frame)?;
        socket.read_exact(&mut reply)?;
        laps.add(begun);
    }
    anyhow::ensure!(reply == frame, "the echo came back changed");
    Ok(median(&laps.0))
}

/// One exchange after the other, written and read by one task.
pub(crate) struct Direct<R, W> {
    reader: R,
    writer: W,
    input: BytesMut,
    output: BytesMut,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Direct<R, W> {
    pub(crate) fn new(reader: R, writer: W) -> Self {
        Self {
            reader,
            writer,
            input: BytesMut::new(),
            output: BytesMut::new(),
        }
    }

    async fn exchange(&mut self) -> anyhow::Result<Bytes> {
        put_frame(&mut self.output, 1, &PAYLOAD);
        self.writer.write_all_buf(&mut self.output).await?;
        self.writer.flush().await?;
        loop {
            if let Some((_, reply)) = take_frame(&mut self.input) {
                return Ok(reply);
            }
            self.input.reserve(BUFFER);
            anyhow::ensure!(
                self.reader.read_buf(&mut self.input).await? > 0,
                "the echo hung up"
            );
        }
    }

    /// The median time of an exchange in microseconds.
    pub(crate) async fn round_trip(&mut self) -> anyhow::Result<f64> {
        let mut laps = Laps::default();
        for _ in 0..SEQUENTIAL {
            let begun = Clock::now();
            self.exchange().await?;
            laps.add(begun);
        }
        Ok(median(&laps.0))
    }
}
