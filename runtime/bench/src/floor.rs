//! The floor for remote asks: length-prefixed frames with an 8-byte id, echoed by another process.
//! Nothing is decoded, supervised, traced or bounded.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::far::{self, Far};

const BUFFER: usize = 64 << 10;

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
        while let Some((id, payload)) = take_frame(&mut input) {
            put_frame(&mut output, id, &payload);
        }
        writer.write_all_buf(&mut output).await?;
        writer.flush().await?;
        output.clear();
    }
}

fn put_frame(out: &mut BytesMut, id: u64, payload: &[u8]) {
    out.put_u32_le(8 + payload.len() as u32);
    out.put_u64_le(id);
    out.put_slice(payload);
}

fn take_frame(input: &mut BytesMut) -> Option<(u64, Bytes)> {
    let length = u32::from_le_bytes(*input.first_chunk::<4>()?) as usize;
    if input.len() < 4 + length {
        return None;
    }
    input.advance(4);
    let mut frame = input.split_to(length).freeze();
    Some((frame.get_u64_le(), frame))
}

/// Serves as the echo process; the socket is standard input.
pub(crate) fn serve() -> ! {
    let served = with_stdin_socket(|socket| {
        far::runtime()?.block_on(async {
            let (reader, writer) = UnixStream::from_std(socket)?.into_split();
            tokio::spawn(echo(reader, writer)).await??;
            anyhow::Ok(())
        })
    });
    std::process::exit(i32::from(served.is_err()));
}

fn with_stdin_socket(
    serve: impl FnOnce(std::os::unix::net::UnixStream) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    serve(socket)
}

/// Starts an echo process and connects to it.
pub(crate) fn echo_process() -> anyhow::Result<(Far, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let far = Far::start("echo", OwnedFd::from(theirs).into(), Stdio::inherit())?;
    ours.set_nonblocking(true)?;
    Ok((far, UnixStream::from_std(ours)?))
}

/// One exchange after the other, written and read by the caller's own task.
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

    pub(crate) async fn exchange(&mut self, payload: &[u8]) -> anyhow::Result<Bytes> {
        put_frame(&mut self.output, 1, payload);
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
}

/// Many exchanges at once: a writer task, a reader task and a table of who waits, which is the
/// least that a runtime needs.
#[derive(Clone)]
pub(crate) struct Mux {
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Bytes>>>>,
    queue: mpsc::UnboundedSender<(u64, Bytes)>,
    next: Arc<AtomicU64>,
}

impl Mux {
    pub(crate) fn new(
        mut reader: impl AsyncRead + Unpin + Send + 'static,
        mut writer: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let waiting = Arc::new(Mutex::new(HashMap::<u64, oneshot::Sender<Bytes>>::new()));
        let (queue, mut queued) = mpsc::unbounded_channel::<(u64, Bytes)>();
        tokio::spawn(async move {
            let (mut batch, mut output) = (Vec::new(), BytesMut::new());
            while queued.recv_many(&mut batch, 256).await > 0 {
                // Tasks that are ready to send come first, as they do in a link.
                tokio::task::yield_now().await;
                while let Ok(next) = queued.try_recv() {
                    batch.push(next);
                }
                for (id, payload) in batch.drain(..) {
                    put_frame(&mut output, id, &payload);
                }
                if writer.write_all_buf(&mut output).await.is_err() {
                    return;
                }
                // A stream that fails here fails at the next write.
                let _ = writer.flush().await;
            }
        });
        let table = Arc::clone(&waiting);
        tokio::spawn(async move {
            let mut input = BytesMut::with_capacity(BUFFER);
            while let Ok(1..) = reader.read_buf(&mut input).await {
                while let Some((id, payload)) = take_frame(&mut input) {
                    if let Some(waiting) = table.lock().remove(&id) {
                        // Whoever asked may have stopped waiting.
                        let _ = waiting.send(payload);
                    }
                }
                input.reserve(BUFFER);
            }
        });
        Self {
            waiting,
            queue,
            next: Arc::default(),
        }
    }

    pub(crate) async fn exchange(&self, payload: Bytes) -> anyhow::Result<Bytes> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        self.waiting.lock().insert(id, tell);
        self.queue.send((id, payload))?;
        Ok(told.await?)
    }
}
