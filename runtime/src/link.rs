//! A link: frames over any ordered byte stream, in both directions.
//!
//! Control frames overtake waiting calls. The writer batches: whatever gathers while one write is
//! under way leaves with the next. A lone frame is written at once from the sender's own thread,
//! which saves two thread hops of its latency.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::clock::{Clock, Timestamp};
use crate::engine::Engine;
use crate::error::SystemError;
use crate::id::ProcessId;
use crate::limits::Limits;
use crate::wire::{Frame, FrameError, Hello, VERSION};

/// The read half of a byte stream.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// The write half of a byte stream.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The sending side of a link; the receiving side is a task that feeds the engine.
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    /// The node's name at the other end.
    pub(crate) node: String,
    /// A worker process of this node, rather than another node or this worker's own node.
    pub(crate) is_worker: bool,
    out: Mutex<Outgoing>,
    /// Something waits for the writer task.
    wake: Notify,
    /// The queue has shrunk.
    room: Notify,
    queued_bytes: AtomicU64,
    closed: AtomicBool,
    why: Mutex<Option<String>>,
    last_heard: AtomicU64,
    /// Asks received and not answered.
    pub(crate) serving: AtomicU32,
}

struct Outgoing {
    control: BytesMut,
    calls: BytesMut,
    writing: BytesMut,
    writer: Writer,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer).field("node", &self.node).finish_non_exhaustive()
    }
}

impl Outgoing {
    fn is_idle(&self) -> bool {
        self.control.is_empty() && self.calls.is_empty() && self.writing.is_empty()
    }

    /// Writes what waits, control first, until the stream takes no more.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            if self.writing.is_empty() {
                let next =
                    if self.control.is_empty() { &mut self.calls } else { &mut self.control };
                if next.is_empty() {
                    return Pin::new(&mut self.writer).poll_flush(cx);
                }
                std::mem::swap(&mut self.writing, next);
            }
            match Pin::new(&mut self.writer).poll_write(cx, &self.writing) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
                }
                Poll::Ready(Ok(n)) => {
                    self.writing.advance(n);
                    if self.writing.is_empty() {
                        // Keep the allocation for the next batch.
                        self.writing.clear();
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn len(&self) -> u64 {
        (self.control.len() + self.calls.len() + self.writing.len()) as u64
    }
}

impl Link {
    /// Queues a frame. With `alone` it is written at once if the link is idle. `false` when the link
    /// is closed.
    pub(crate) fn push(&self, frame: &Frame, alone: bool) -> bool {
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        let mut out = self.out.lock();
        let idle = out.is_idle();
        let lane = if frame.is_control() { &mut out.control } else { &mut out.calls };
        frame.encode(lane);
        if alone && idle {
            let mut cx = Context::from_waker(Waker::noop());
            if matches!(out.poll_drain(&mut cx), Poll::Ready(Ok(()))) {
                return true;
            }
        }
        self.queued_bytes.store(out.len(), Ordering::Release);
        drop(out);
        self.wake.notify_one();
        true
    }

    /// Whether the queue is below its limit.
    pub(crate) fn has_room(&self, limits: &Limits) -> bool {
        self.queued_bytes.load(Ordering::Acquire) < limits.link_queue_bytes_max as u64
    }

    /// Waits until the queue is below its limit, or the link is closed.
    pub(crate) async fn wait_for_room(&self, limits: &Limits) {
        loop {
            let room = self.room.notified();
            if self.has_room(limits) || self.is_closed() {
                return;
            }
            room.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the link; the first reason is kept.
    pub(crate) fn close(&self, why: impl Into<String>) {
        self.why.lock().get_or_insert(why.into());
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
        self.room.notify_waiters();
    }

    /// Why it was closed.
    pub(crate) fn why(&self) -> String {
        self.why.lock().clone().unwrap_or_else(|| "closed".to_owned())
    }

    fn heard(&self) {
        self.last_heard.store(Clock::now().0, Ordering::Relaxed);
    }

    /// Writes what is queued, and a sign of life when nothing is, until the link closes.
    async fn write_loop(&self, limits: &Limits) {
        let mut beat = tokio::time::interval(limits.heartbeat_interval);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        beat.tick().await;
        while !self.is_closed() {
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                _ = beat.tick() => {
                    let heard = Timestamp(self.last_heard.load(Ordering::Relaxed));
                    let silent = Clock::now().since(heard);
                    if silent > limits.link_idle_timeout {
                        self.close(format!("silent for {silent:.1?}"));
                        break;
                    }
                    self.push(&Frame::Beat, false);
                }
            }
            let drained = std::future::poll_fn(|cx| {
                if self.is_closed() {
                    return Poll::Ready(Ok(()));
                }
                let mut out = self.out.lock();
                let poll = out.poll_drain(cx);
                self.queued_bytes.store(out.len(), Ordering::Release);
                drop(out);
                self.room.notify_waiters();
                poll
            });
            // While the stream is full, the other side must still be heard to be alive.
            match Clock::timeout(limits.link_idle_timeout, drained).await {
                Some(Ok(())) => {}
                Some(Err(error)) => self.close(error.to_string()),
                None => self.close("the other side does not read"),
            }
        }
        // Say what is left, so that an orderly end is complete.
        let last = std::future::poll_fn(|cx| {
            let mut out = self.out.lock();
            std::task::ready!(out.poll_drain(cx))?;
            Pin::new(&mut out.writer).poll_shutdown(cx)
        });
        // The stream may be gone already; there is nothing left to do with the outcome.
        let _ = Clock::timeout(limits.heartbeat_interval, last).await;
    }
}

/// Both halves of a new stream with its greeting done.
pub(crate) struct Greeted {
    pub(crate) hello: Hello,
    reader: Reader,
    writer: Writer,
    buffer: BytesMut,
}

/// Says hello and hears it.
pub(crate) async fn greet(
    mut reader: Reader,
    mut writer: Writer,
    ours: Hello,
    limits: &Limits,
) -> Result<Greeted, SystemError> {
    let io = |doing: &'static str| move |source| SystemError::Io { doing: doing.to_owned(), source };
    let mut buffer = BytesMut::with_capacity(64 << 10);
    let job = ours.job.clone();
    Frame::Hello(ours).encode(&mut buffer);
    let exchange = async {
        writer.write_all_buf(&mut buffer).await.map_err(io("saying hello to a peer"))?;
        writer.flush().await.map_err(io("saying hello to a peer"))?;
        buffer.clear();
        loop {
            match Frame::decode(&mut buffer, limits.message_bytes_max) {
                Ok(Some(Frame::Hello(hello))) => break Ok(hello),
                Ok(Some(_)) => {
                    break Err(SystemError::Refused("it did not begin with hello".to_owned()));
                }
                Ok(None) => {}
                Err(error) => break Err(SystemError::Refused(error.to_string())),
            }
            if reader.read_buf(&mut buffer).await.map_err(io("hearing a peer's hello"))? == 0 {
                break Err(SystemError::Refused("it hung up".to_owned()));
            }
        }
    };
    let hello = Clock::timeout(limits.worker_start_timeout, exchange)
        .await
        .ok_or_else(|| SystemError::Refused("it did not say hello in time".to_owned()))??;
    if hello.version != VERSION {
        return Err(SystemError::Refused(format!(
            "it speaks version {}, we speak {VERSION}: use the same release on both sides",
            hello.version
        )));
    }
    if hello.job != job {
        return Err(SystemError::Refused(format!(
            "it belongs to job `{}`, we belong to `{job}`",
            hello.job
        )));
    }
    Ok(Greeted { hello, reader, writer, buffer })
}

/// Makes the stream a link of `engine` and serves it until it ends.
pub(crate) fn attach(engine: &Arc<Engine>, greeted: Greeted, is_worker: bool) -> Arc<Link> {
    let Greeted { hello, reader, writer, buffer } = greeted;
    let link = Arc::new(Link {
        peer: hello.process,
        node: hello.node.clone(),
        is_worker,
        out: Mutex::new(Outgoing {
            control: BytesMut::new(),
            calls: BytesMut::new(),
            writing: BytesMut::new(),
            writer,
        }),
        wake: Notify::new(),
        room: Notify::new(),
        queued_bytes: AtomicU64::new(0),
        closed: AtomicBool::new(false),
        why: Mutex::new(None),
        last_heard: AtomicU64::new(Clock::now().0),
        serving: AtomicU32::new(0),
    });
    engine.link_up(&link, &hello);
    let (writing, limits) = (Arc::clone(&link), engine.limits.clone());
    engine.spawn_task(async move { writing.write_loop(&limits).await });
    let (reading, reader_engine) = (Arc::clone(&link), Arc::clone(engine));
    engine.spawn_task(async move {
        let why = read_loop(&reader_engine, &reading, reader, buffer).await;
        reading.close(why);
        reader_engine.link_down(&reading).await;
    });
    link
}

/// Feeds frames to the engine until the stream ends; returns why it did.
async fn read_loop(
    engine: &Arc<Engine>,
    link: &Arc<Link>,
    mut reader: Reader,
    mut buffer: BytesMut,
) -> String {
    loop {
        loop {
            match Frame::decode(&mut buffer, engine.limits.message_bytes_max) {
                Ok(Some(frame)) => engine.receive(link, frame),
                Ok(None) => break,
                Err(error) => return bad_frame(link, &error),
            }
        }
        if link.is_closed() {
            return link.why();
        }
        buffer.reserve(64 << 10);
        let closed = async {
            while !link.is_closed() {
                link.room.notified().await;
            }
        };
        tokio::select! {
            biased;
            read = reader.read_buf(&mut buffer) => match read {
                Ok(0) => return "the other side closed it".to_owned(),
                Ok(_) => link.heard(),
                Err(error) => return error.to_string(),
            },
            () = closed => return link.why(),
        }
    }
}

fn bad_frame(link: &Link, error: &FrameError) -> String {
    tracing::error!(peer = %link.peer, %error, "a peer sent bytes that are no frame; link closed");
    format!("the other side sent bytes that are no frame: {error}")
}
