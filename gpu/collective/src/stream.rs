//! A gang over byte streams: one stream to each other rank, and two threads that pump it.
//!
//! Bytes go in frames, so that a report of a fault can overtake what a queue still holds. A stream
//! that ends loses the rank behind it. Who is at the other end of a stream, and that nobody reads or
//! changes what goes over it, is for whoever opened it to make sure.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread;

use super::error::{REPORT_BYTES_MAX, Report};
use super::queue::{Bell, Pipe, QUEUE_BYTES, Queues};
use super::transport::Membership;

/// Both halves of a stream to another rank.
pub struct Duplex {
    reader: Box<dyn Read + Send>,
    writer: Box<dyn Write + Send>,
}

impl Duplex {
    /// From two halves of one stream. The other side must hear of an end when the writer is
    /// dropped.
    #[must_use]
    pub fn new(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
        }
    }

    /// Of a TCP connection.
    ///
    /// # Errors
    /// The system gives no second handle.
    pub fn tcp(stream: std::net::TcpStream) -> io::Result<Self> {
        // A collective waits for its last small message.
        stream.set_nodelay(true)?;
        let reader = stream.try_clone()?;
        Ok(Self::new(
            reader,
            Closing {
                stream,
                close: |stream| stream.shutdown(std::net::Shutdown::Write),
            },
        ))
    }

    /// Of a unix socket.
    ///
    /// # Errors
    /// The system gives no second handle.
    #[cfg(unix)]
    pub fn unix(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        let reader = stream.try_clone()?;
        Ok(Self::new(
            reader,
            Closing {
                stream,
                close: |stream| stream.shutdown(std::net::Shutdown::Write),
            },
        ))
    }
}

impl std::fmt::Debug for Duplex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Duplex").finish_non_exhaustive()
    }
}

/// A socket whose other end hears of the end, though another handle is still read from.
struct Closing<S> {
    stream: S,
    close: fn(&S) -> io::Result<()>,
}

impl<S: Write> Write for Closing<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S> Drop for Closing<S> {
    fn drop(&mut self) {
        // A socket that is gone already needs no end.
        let _ = (self.close)(&self.stream);
    }
}

/// A rank of a gang over streams: one to each other rank, in rank order, with `None` for this rank
/// itself. The threads end when the transport is dropped and the other side has closed its end.
///
/// # Errors
/// There is not one stream for each other rank, or the system gives no thread.
pub fn connect(membership: Membership, streams: Vec<Option<Duplex>>) -> io::Result<Queues> {
    let (rank, world) = (membership.rank, membership.world());
    let given = streams
        .iter()
        .enumerate()
        .all(|(other, stream)| (other == rank) == stream.is_none());
    if streams.len() != world || !given {
        let why = format!("rank {rank} of {world} needs one stream to each other rank");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let bell: Arc<Bell> = Arc::default();
    let (mut out, mut incoming) = (vec![], vec![]);
    for (other, stream) in streams.into_iter().enumerate() {
        let (write_bell, read_bell): (Arc<Bell>, Arc<Bell>) = Default::default();
        let outgoing = Pipe::new(QUEUE_BYTES, Arc::clone(&bell), Arc::clone(&write_bell));
        let arriving = Pipe::new(QUEUE_BYTES, Arc::clone(&read_bell), Arc::clone(&bell));
        if let Some(Duplex { reader, writer }) = stream {
            let pipe = Arc::clone(&outgoing);
            thread::Builder::new()
                .name(format!("to-rank-{other}"))
                .spawn(move || write_frames(writer, &pipe, &write_bell))?;
            let (pipe, bell) = (Arc::clone(&arriving), Arc::clone(&bell));
            thread::Builder::new()
                .name(format!("from-rank-{other}"))
                .spawn(move || read_frames(reader, &pipe, &read_bell, &bell))?;
        }
        out.push(outgoing);
        incoming.push(arriving);
    }
    Ok(Queues::from_pipes(membership, bell, out, incoming))
}

/// A frame is a length of 4 bytes, little-endian, and as many bytes. With this bit set, they are a
/// report.
const REPORT: u32 = 1 << 31;

/// Bytes of a frame at most.
const FRAME: usize = 64 << 10;

fn write_frames(mut writer: Box<dyn Write + Send>, pipe: &Pipe, bell: &Bell) {
    let mut frame = vec![0; 4 + FRAME];
    let mut told = false;
    loop {
        let times = bell.times();
        if let Some(report) = bell.told().filter(|_| !told) {
            told = true;
            let report = report.encode();
            let mut bytes = (report.len() as u32 | REPORT).to_le_bytes().to_vec();
            bytes.extend(report);
            if writer.write_all(&bytes).is_err() {
                return pipe.close("its stream has broken");
            }
        }
        match pipe.read_some(&mut frame[4..]) {
            Ok(0) => bell.wait(times, None),
            Ok(len) => {
                frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
                if let Err(error) = writer.write_all(&frame[..4 + len]) {
                    return pipe.close(&format!("its stream has broken: {error}"));
                }
            }
            // This side is gone, once what it had to say is said.
            Err(_) if told || bell.told().is_none() => return,
            Err(_) => {}
        }
    }
}

fn read_frames(mut reader: Box<dyn Read + Send>, pipe: &Pipe, bell: &Bell, rank: &Bell) {
    let mut frame = vec![0; FRAME];
    loop {
        let mut length = [0; 4];
        if let Err(error) = reader.read_exact(&mut length) {
            let why = match error.kind() {
                io::ErrorKind::UnexpectedEof => "its stream has ended".to_owned(),
                _ => format!("its stream has broken: {error}"),
            };
            return pipe.close(&why);
        }
        let length = u32::from_le_bytes(length);
        let (report, len) = (length & REPORT != 0, (length & !REPORT) as usize);
        if len > if report { REPORT_BYTES_MAX } else { FRAME } {
            return pipe.close(&format!("its stream has a frame of {len} bytes"));
        }
        let bytes = &mut frame[..len];
        if let Err(error) = reader.read_exact(bytes) {
            return pipe.close(&format!("its stream has ended inside of a frame: {error}"));
        }
        if report {
            if let Some(report) = Report::decode(bytes) {
                rank.tell(&report);
            }
            continue;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let times = bell.times();
            match pipe.write_some(rest) {
                Ok(0) => bell.wait(times, None),
                Ok(taken) => rest = &rest[taken..],
                Err(_) => return,
            }
        }
    }
}
