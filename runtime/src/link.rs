//! A link: frames over ordered byte streams, in both directions.
//!
//! A link has one byte stream, or several: for control frames, for calls and replies, for bulk.
//! Control frames overtake waiting calls either way; calls never overtake the questions and facts
//! that were sent before them, since those say where calls go. Over one stream that follows from
//! its order; over two, the sender marks among the calls how much control came before
//! ([`Frame::After`]).
//!
//! Chunks of blobs leave when nothing else waits, from the memory they lie in.
//!
//! The writer batches: it lets every task that is ready queue its frames before it writes, and
//! whatever gathers while one write is under way leaves with the next. A lone frame is written at
//! once from the sender's own thread, which saves two thread hops of its latency.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, watch};

use crate::clock::{Clock, Timestamp};
use crate::current::{Current, Entered};
use crate::engine::Engine;
use crate::error::SystemError;
use crate::id::ProcessId;
use crate::limits::Limits;
use crate::wire::{Chunk, Frame, FrameError, Hello, VERSION};

/// The read half of a byte stream.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// The write half of a byte stream.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Calls are handed to the stream in batches of about this size, so that a control frame waits for
/// one batch at most.
const BATCH_BYTES: usize = 64 << 10;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// Room that is made at once for a long frame.
const READ_BYTES_MAX: usize = 1 << 20;

/// Why a link is closed whose other side ended the stream without a word.
const HUNG_UP: &str = "the other side closed it";

/// The sending side of a link; the receiving side are tasks that feed the engine.
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    /// The node's name at the other end.
    pub(crate) node: String,
    /// A worker process of this node, rather than another node or this worker's own node.
    pub(crate) is_worker: bool,
    /// Carries everything when there is no second stream.
    control: Pipe,
    calls: Option<Pipe>,
    bulk: Option<Pipe>,
    /// Questions and facts sent, and taken in.
    told: AtomicU64,
    heeded: watch::Sender<u64>,
    closed: AtomicBool,
    /// This side closed it, because the other does not do its part.
    given_up: AtomicBool,
    /// It has been closed.
    shut: Notify,
    why: Mutex<Option<String>>,
    /// How many writers are not done.
    writing: watch::Sender<usize>,
    last_heard: AtomicU64,
    /// Asks received and not answered.
    pub(crate) serving: AtomicU32,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The sending end of one byte stream. Queueing never waits for a write: nobody holds both locks
/// while bytes go out.
struct Pipe {
    queue: Mutex<Queue>,
    sink: Mutex<Sink>,
    /// Something waits for the writer task.
    wake: Notify,
    queued_bytes: AtomicU64,
    /// The queue has shrunk.
    room: Notify,
}

/// What waits for the stream.
struct Queue {
    control: BytesMut,
    calls: BytesMut,
    bulk: VecDeque<Chunk>,
    /// How much control the calls were last marked to come after.
    marked: u64,
    /// Somebody writes what waits, or has been woken to do so, and looks again before it stops.
    tended: bool,
}

/// The stream, and what it takes at the moment.
struct Sink {
    /// A batch is under way.
    busy: bool,
    writing: BytesMut,
    /// The rest of the chunk whose head is or was in `writing`.
    chunk: Bytes,
    writer: Writer,
    /// Bytes that the stream has taken.
    written: u64,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.control.is_empty() && self.calls.is_empty() && self.bulk.is_empty()
    }

    /// What waits, apart from bulk, which its receiver bounds.
    fn len(&self) -> u64 {
        (self.control.len() + self.calls.len()) as u64
    }

    /// Hands the next batch to an idle sink, control first. Whether there was any.
    fn load(&mut self, sink: &mut Sink) -> bool {
        if !self.control.is_empty() {
            std::mem::swap(&mut sink.writing, &mut self.control);
        } else if !self.calls.is_empty() {
            let batch = batch_of(&self.calls);
            if batch == self.calls.len() {
                std::mem::swap(&mut sink.writing, &mut self.calls);
            } else {
                sink.writing = self.calls.split_to(batch);
            }
        } else if let Some(chunk) = self.bulk.pop_front() {
            chunk.encode_head(&mut sink.writing);
            sink.chunk = chunk.bytes;
        } else {
            return false;
        }
        sink.busy = true;
        true
    }
}

impl Sink {
    /// Writes the present batch.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while !(self.writing.is_empty() && self.chunk.is_empty()) {
            let head = !self.writing.is_empty();
            let next = if head {
                &self.writing[..]
            } else {
                &self.chunk[..]
            };
            let n = ready!(Pin::new(&mut self.writer).poll_write(cx, next))?;
            if n == 0 {
                return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
            }
            self.written += n as u64;
            if head {
                self.writing.advance(n);
            } else {
                self.chunk.advance(n);
                if self.chunk.is_empty() {
                    // An empty rest would still hold the blob.
                    self.chunk = Bytes::new();
                }
            }
        }
        // Keep the allocation for the next batch.
        self.writing.clear();
        ready!(Pin::new(&mut self.writer).poll_flush(cx))?;
        self.busy = false;
        Poll::Ready(Ok(()))
    }
}

/// The length of the whole frames at the front of `queue` that make up one batch.
fn batch_of(queue: &BytesMut) -> usize {
    let mut end = 0;
    while end < BATCH_BYTES
        && let Some(length) = queue.get(end..).and_then(|rest| rest.first_chunk::<4>())
    {
        end += 4 + u32::from_le_bytes(*length) as usize;
    }
    end
}

impl Pipe {
    fn new(writer: Writer) -> Self {
        let queue = Queue {
            control: BytesMut::new(),
            calls: BytesMut::new(),
            bulk: VecDeque::new(),
            marked: 0,
            tended: false,
        };
        let sink = Sink {
            busy: false,
            writing: BytesMut::new(),
            chunk: Bytes::new(),
            writer,
            written: 0,
        };
        Self {
            queue: Mutex::new(queue),
            sink: Mutex::new(sink),
            wake: Notify::new(),
            queued_bytes: AtomicU64::new(0),
            room: Notify::new(),
        }
    }

    /// Queues what `put` appends; with `alone` it is written at once if the stream is idle.
    fn push(&self, alone: bool, put: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock();
        put(&mut queue);
        let tended = std::mem::replace(&mut queue.tended, true);
        if tended || !alone {
            self.queued_bytes.store(queue.len(), Ordering::Release);
        }
        drop(queue);
        if tended {
            // What waited before has woken the writer, which goes on until nothing waits.
            return;
        }
        let written = alone && self.write_one();
        if !written {
            self.wake.notify_one();
        }
    }

    /// Writes one batch from the caller's own thread. Whether nothing waits now, so that nobody has
    /// to tend the queue.
    fn write_one(&self) -> bool {
        let Some(mut sink) = self.sink.try_lock() else {
            return false;
        };
        let mut cx = Context::from_waker(Waker::noop());
        let began = !sink.busy && self.load(&mut sink);
        began && matches!(sink.poll_write(&mut cx), Poll::Ready(Ok(()))) && self.rest()
    }

    /// Hands the next batch to the sink. Whether there was any; if not, nobody tends the queue now.
    fn load(&self, sink: &mut Sink) -> bool {
        let mut queue = self.queue.lock();
        let loaded = queue.load(sink);
        queue.tended = loaded;
        let left = queue.len();
        drop(queue);
        if self.queued_bytes.swap(left, Ordering::AcqRel) > left {
            self.room.notify_waiters();
        }
        loaded
    }

    /// Stops tending the queue if nothing waits there.
    fn rest(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.tended = !queue.is_empty();
        !queue.tended
    }

    /// Writes one batch. Whether more waits.
    fn poll_batch(&self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        let mut sink = self.sink.lock();
        if !sink.busy && !self.load(&mut sink) {
            return Poll::Ready(Ok(false));
        }
        ready!(sink.poll_write(cx))?;
        Poll::Ready(Ok(!self.rest()))
    }

    /// Ends the stream after what waits, apart from bulk, which has lost its reader.
    fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.queue.lock().bulk.clear();
        while ready!(self.poll_batch(cx))? {}
        Pin::new(&mut self.sink.lock().writer).poll_shutdown(cx)
    }

    /// Bytes that the stream has taken, and whether nothing waits.
    fn progress(&self) -> (u64, bool) {
        let sink = self.sink.lock();
        (sink.written, !sink.busy && self.queue.lock().is_empty())
    }
}

impl Link {
    /// Queues a frame. With `alone` it is written at once if the link is idle. `false` when the
    /// link is closed.
    pub(crate) fn push(&self, frame: &Frame, alone: bool) -> bool {
        if self.is_closed() {
            return false;
        }
        if let Frame::Chunk(chunk) = frame {
            let pipe = self.bulk.as_ref().unwrap_or(&self.control);
            pipe.push(alone, |queue| queue.bulk.push_back(chunk.clone()));
            return true;
        }
        match &self.calls {
            Some(calls) if !frame.is_control() => {
                let told = self.told.load(Ordering::Acquire);
                calls.push(alone, |queue| {
                    if told > queue.marked {
                        queue.marked = told;
                        Frame::After(told).encode(&mut queue.calls);
                    }
                    frame.encode(&mut queue.calls);
                });
            }
            _ => self.control.push(alone, |queue| {
                let lane = if frame.is_control() {
                    &mut queue.control
                } else {
                    &mut queue.calls
                };
                frame.encode(lane);
                if frame.binds_calls() {
                    self.told.fetch_add(1, Ordering::Release);
                }
            }),
        }
        true
    }

    fn pipes(&self) -> impl Iterator<Item = &Pipe> {
        std::iter::once(&self.control)
            .chain(&self.calls)
            .chain(&self.bulk)
    }

    /// The stream that carries calls.
    fn calls(&self) -> &Pipe {
        self.calls.as_ref().unwrap_or(&self.control)
    }

    /// Whether the queue of calls is below its limit.
    pub(crate) fn has_room(&self, limits: &Limits) -> bool {
        self.calls().queued_bytes.load(Ordering::Acquire) < limits.link_queue_bytes_max as u64
    }

    /// Waits until the queue is below its limit, or the link is closed.
    pub(crate) async fn wait_for_room(&self, limits: &Limits) {
        loop {
            let room = self.calls().room.notified();
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
        self.shut.notify_waiters();
        self.calls().room.notify_waiters();
    }

    /// Closes the link to a process that does not do its part.
    fn give_up(&self, why: impl Into<String>) {
        if !self.is_closed() {
            self.given_up.store(true, Ordering::Release);
            self.close(why);
        }
    }

    /// Whether this side closed it, because the other does not do its part.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Resolves when the link is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let shut = self.shut.notified();
            if self.is_closed() {
                return;
            }
            shut.await;
        }
    }

    /// Resolves when the link is closed and its last bytes are written, or given up.
    pub(crate) async fn finished(&self) {
        let mut writing = self.writing.subscribe();
        // The sender is ours, so the wait cannot fail.
        let _ = writing.wait_for(|writers| *writers == 0).await;
    }

    /// Why it was closed.
    pub(crate) fn why(&self) -> String {
        self.why
            .lock()
            .clone()
            .unwrap_or_else(|| "closed".to_owned())
    }

    /// When anything last came from the other side.
    pub(crate) fn last_heard(&self) -> Timestamp {
        Timestamp(self.last_heard.load(Ordering::Relaxed))
    }

    /// How long ago that was.
    pub(crate) fn silent_for(&self) -> std::time::Duration {
        Clock::now().since(self.last_heard())
    }

    fn heard(&self) {
        self.last_heard.store(Clock::now().0, Ordering::Relaxed);
    }

    /// Writes what is queued on one stream until the link closes. The control stream also says that
    /// this side lives, and notices when the other side does not.
    async fn write_loop(&self, pipe: &Pipe, limits: &Limits) {
        let beats = std::ptr::eq(pipe, &raw const self.control);
        let mut beat = tokio::time::interval(limits.heartbeat_interval);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        beat.tick().await;
        let mut progress = (pipe.progress().0, Clock::now());
        let mut pumping = pin!(Self::pump(pipe));
        while !self.is_closed() {
            tokio::select! {
                biased;
                Err(error) = &mut pumping => self.close(error.to_string()),
                () = self.closed() => {}
                _ = beat.tick() => {
                    let silent = self.silent_for();
                    let (written, idle) = pipe.progress();
                    if idle || written != progress.0 {
                        progress = (written, Clock::now());
                    }
                    if silent > limits.link_idle_timeout {
                        self.give_up(format!("silent for {silent:.1?}"));
                    } else if Clock::now().since(progress.1) > limits.link_idle_timeout {
                        self.give_up("not read by the other side");
                    } else if beats {
                        self.push(&Frame::Beat, false);
                    }
                }
            }
        }
        // Say what is left, so that an orderly end is complete.
        let last = std::future::poll_fn(|cx| pipe.poll_finish(cx));
        // The stream may be gone already; there is nothing left to do with the outcome.
        let _ = Clock::timeout(limits.heartbeat_interval, last).await;
    }

    /// Writes what is queued for one stream, batch after batch, until that fails.
    async fn pump(pipe: &Pipe) -> std::io::Result<Infallible> {
        let mut more = false;
        loop {
            if !more {
                pipe.wake.notified().await;
            }
            if pipe.queued_bytes.load(Ordering::Acquire) < BATCH_BYTES as u64 {
                // Tasks that are ready to send come first, so that their frames leave with this
                // write.
                tokio::task::yield_now().await;
            }
            more = std::future::poll_fn(|cx| pipe.poll_batch(cx)).await?;
        }
    }

    /// Waits until so many questions and facts of the other side have been taken in.
    async fn heed(&self, after: u64) {
        let mut heeded = self.heeded.subscribe();
        tokio::select! {
            biased;
            // The sender is ours, so the wait cannot fail.
            _ = heeded.wait_for(|heeded| *heeded >= after) => {}
            () = self.closed() => {}
        }
    }
}

/// Both halves of a new stream with its greeting done.
pub(crate) struct Greeted {
    pub(crate) hello: Hello,
    ours: Hello,
    reader: Reader,
    writer: Writer,
    buffer: BytesMut,
    calls: Option<(Reader, Writer)>,
    bulk: Option<(Reader, Writer)>,
}

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
}

/// Says hello and hears it.
pub(crate) async fn greet(
    mut reader: Reader,
    mut writer: Writer,
    ours: Hello,
    limits: &Limits,
) -> Result<Greeted, SystemError> {
    let io = |doing: &'static str| {
        move |source| SystemError::Io {
            doing: doing.to_owned(),
            source,
        }
    };
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    Frame::Hello(ours.clone()).encode(&mut buffer);
    let exchange = async {
        writer
            .write_all_buf(&mut buffer)
            .await
            .map_err(io("saying hello to a peer"))?;
        writer.flush().await.map_err(io("saying hello to a peer"))?;
        buffer.clear();
        loop {
            match Frame::decode(&mut buffer, limits.message_bytes_max) {
                Ok(Some(Frame::Hello(hello))) => break Ok(hello),
                Ok(Some(_)) => {
                    break Err(SystemError::Refused(
                        "it did not begin with hello".to_owned(),
                    ));
                }
                Ok(None) => {}
                Err(error) => break Err(SystemError::Refused(error.to_string())),
            }
            if reader
                .read_buf(&mut buffer)
                .await
                .map_err(io("hearing a peer's hello"))?
                == 0
            {
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
    if hello.job != ours.job {
        return Err(SystemError::Refused(format!(
            "it belongs to job `{}`, we belong to `{}`",
            hello.job, ours.job
        )));
    }
    Ok(Greeted {
        hello,
        ours,
        reader,
        writer,
        buffer,
        calls: None,
        bulk: None,
    })
}

/// Makes the streams a link of `engine` and serves it until it ends.
pub(crate) fn attach(engine: &Arc<Engine>, greeted: Greeted, is_worker: bool) -> Arc<Link> {
    let Greeted {
        hello,
        ours,
        reader,
        writer,
        buffer,
        calls,
        bulk,
    } = greeted;
    let (calls_reader, calls_writer) = calls.unzip();
    let (bulk_reader, bulk_writer) = bulk.unzip();
    let readers: Vec<_> = std::iter::once((reader, buffer))
        .chain(
            calls_reader
                .into_iter()
                .chain(bulk_reader)
                .map(|reader| (reader, BytesMut::with_capacity(READ_BYTES))),
        )
        .collect();
    let link = Arc::new(Link {
        peer: hello.process,
        node: hello.node.clone(),
        is_worker,
        control: Pipe::new(writer),
        calls: calls_writer.map(Pipe::new),
        bulk: bulk_writer.map(Pipe::new),
        told: AtomicU64::new(0),
        heeded: watch::channel(0).0,
        closed: AtomicBool::new(false),
        given_up: AtomicBool::new(false),
        shut: Notify::new(),
        why: Mutex::new(None),
        writing: watch::channel(readers.len()).0,
        last_heard: AtomicU64::new(Clock::now().0),
        serving: AtomicU32::new(0),
    });
    engine.link_up(&link, &hello, &ours);
    for n in 0..readers.len() {
        let (writing, limits) = (Arc::clone(&link), engine.limits.clone());
        engine.spawn_task(async move {
            if let Some(pipe) = writing.pipes().nth(n) {
                writing.write_loop(pipe, &limits).await;
            }
            writing.writing.send_modify(|writers| *writers -= 1);
        });
    }
    let (serving, serving_engine) = (Arc::clone(&link), Arc::clone(engine));
    let reading = readers
        .into_iter()
        .enumerate()
        .map(|(n, (reader, buffer))| {
            let (engine, link) = (Arc::clone(engine), Arc::clone(&link));
            let (done, over) = tokio::sync::oneshot::channel();
            engine.clone().spawn_task(async move {
                let why = read_loop(&engine, &link, reader, buffer).await;
                if n > 0 && why == HUNG_UP {
                    // The control stream says more, and may be a moment behind.
                    let _ = Clock::timeout(engine.limits.heartbeat_interval, link.closed()).await;
                }
                link.close(why);
                // Nobody may wait for it any more.
                let _ = done.send(());
            });
            over
        });
    let reading = futures::future::join_all(reading);
    engine.spawn_task(async move {
        reading.await;
        serving_engine.link_down(&serving).await;
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
    // What is decoded on the way (handles of blobs) belongs to this engine.
    let mut here = Some(Current::Scope(Arc::clone(engine)));
    loop {
        loop {
            let taken = {
                let _entered = Entered::new(&mut here);
                take_in(engine, link, &mut buffer)
            };
            match taken {
                Ok(None) => break,
                Ok(Some(told)) => link.heed(told).await,
                Err(why) => return why,
            }
        }
        buffer.reserve(missing(&buffer).clamp(READ_BYTES, READ_BYTES_MAX));
        tokio::select! {
            biased;
            read = reader.read_buf(&mut buffer) => match read {
                Ok(0) => return HUNG_UP.to_owned(),
                Ok(_) => link.heard(),
                Err(error) => return error.to_string(),
            },
            () = link.closed() => return link.why(),
        }
    }
}

/// Feeds the whole frames of `buffer` to the engine, up to a mark: then it says how much control
/// the rest comes after.
fn take_in(
    engine: &Arc<Engine>,
    link: &Arc<Link>,
    buffer: &mut BytesMut,
) -> Result<Option<u64>, String> {
    while !link.is_closed() {
        match Frame::decode(buffer, engine.limits.message_bytes_max) {
            Ok(Some(Frame::After(told))) => return Ok(Some(told)),
            Ok(Some(frame)) => {
                let binding = frame.binds_calls();
                engine.receive(link, frame);
                if binding {
                    link.heeded.send_modify(|heeded| *heeded += 1);
                }
            }
            Ok(None) => return Ok(None),
            Err(error) => return Err(bad_frame(link, &error)),
        }
    }
    Err(link.why())
}

/// How much of the frame at the front is not here yet.
fn missing(buffer: &BytesMut) -> usize {
    let length = buffer
        .first_chunk::<4>()
        .map_or(0, |head| u32::from_le_bytes(*head) as usize);
    (4 + length).saturating_sub(buffer.len())
}

fn bad_frame(link: &Link, error: &FrameError) -> String {
    tracing::error!(peer = %link.peer, %error, "a peer sent bytes that are no frame; link closed");
    format!("the other side sent bytes that are no frame: {error}")
}
