//! The sending end of one byte stream of a link: what waits for it, what it takes at the moment,
//! and, in a session, what may have to be sent again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use super::Writer;
use super::handoff::StreamHandoff;
use crate::net::session::{BeyondSent, Incoming, Outgoing};
use crate::net::wire::Chunk;

/// Calls are handed to the stream in batches of about this size, so that a control frame waits for
/// one batch at most.
pub(super) const BATCH_BYTES: usize = 64 << 10;

/// The length in bytes from which a buffer is kept where it lies; what is shorter is copied, so
/// that the memory can be written to again.
const OWN_BYTES: usize = 32 << 10;

/// One byte stream. Queueing never waits for a write: nobody holds both locks while bytes go out.
pub(super) struct Pipe {
    queue: Mutex<Queue>,
    sink: Mutex<Sink>,
    /// The count of bytes that have come the other way, in a session.
    pub(super) incoming: Mutex<Incoming>,
    /// Bytes that were read of the last connection and not taken in, without a session.
    unread: Mutex<BytesMut>,
    /// Something waits for the writer task.
    pub(super) wake: Notify,
    queued_bytes: AtomicU64,
    /// Bytes that were sent and are kept.
    kept_bytes: AtomicU64,
    /// Less waits or is kept than before.
    room: Notify,
}

/// Frames that wait for the stream.
pub(super) struct Queue {
    /// Frames of the connection rather than of the session.
    pub(super) passing: BytesMut,
    pub(super) control: BytesMut,
    pub(super) calls: BytesMut,
    pub(super) bulk: VecDeque<Chunk>,
    /// The number of questions, facts and notices that the calls were last marked to come after.
    pub(super) marked: u64,
    /// Somebody writes what waits, or has been woken to do so, and looks again before it stops.
    tended: bool,
}

/// The stream, and what it takes at the moment.
struct Sink {
    /// A batch is under way.
    busy: bool,
    writing: BytesMut,
    /// The rest of the chunk or long batch that follows `writing`.
    chunk: Bytes,
    /// `None` while there is no connection.
    writer: Option<Writer>,
    /// Bytes that the stream has taken.
    written: u64,
    /// Bytes that a session keeps.
    outgoing: Option<Outgoing>,
    /// Set once another program writes on.
    stands: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.passing.is_empty()
            && self.control.is_empty()
            && self.calls.is_empty()
            && self.bulk.is_empty()
    }

    /// Bytes that wait, apart from bulk, which its receiver bounds.
    fn len(&self) -> u64 {
        (self.control.len() + self.calls.len()) as u64
    }

    /// Appends what waits, in the order in which it would leave.
    fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.control);
        bytes.extend_from_slice(&self.calls);
        for chunk in &self.bulk {
            let mut head = BytesMut::new();
            chunk.encode_head(&mut head);
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&chunk.bytes);
        }
    }

    /// Hands the next batch to an idle sink: what has to be sent again, then control first. Returns
    /// true if there was any.
    fn load(&mut self, sink: &mut Sink) -> bool {
        if !self.passing.is_empty() {
            std::mem::swap(&mut sink.writing, &mut self.passing);
        } else if let Some(piece) = sink.outgoing.as_mut().and_then(Outgoing::again) {
            sink.chunk = piece;
        } else if !self.control.is_empty() {
            std::mem::swap(&mut sink.writing, &mut self.control);
            sink.keep();
        } else if !self.calls.is_empty() {
            let batch = batch_of(&self.calls);
            if batch == self.calls.len() {
                std::mem::swap(&mut sink.writing, &mut self.calls);
            } else {
                sink.writing = self.calls.split_to(batch);
            }
            sink.keep();
        } else if let Some(chunk) = self.bulk.pop_front() {
            chunk.encode_head(&mut sink.writing);
            sink.chunk = chunk.bytes;
            sink.keep();
        } else {
            return false;
        }
        sink.busy = true;
        true
    }
}

impl Sink {
    /// Keeps the present batch until the other side has taken it in.
    fn keep(&mut self) {
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        if self.chunk.is_empty() && self.writing.len() >= OWN_BYTES {
            self.chunk = std::mem::take(&mut self.writing).freeze();
        }
        if !self.writing.is_empty() {
            outgoing.keep(Bytes::copy_from_slice(&self.writing));
        }
        if !self.chunk.is_empty() {
            outgoing.keep(self.chunk.clone());
        }
    }

    fn unacknowledged(&self) -> u64 {
        self.outgoing.as_ref().map_or(0, Outgoing::unacknowledged)
    }

    /// Writes the present batch.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Some(writer) = &mut self.writer else {
            return Poll::Ready(Err(std::io::ErrorKind::NotConnected.into()));
        };
        while !(self.writing.is_empty() && self.chunk.is_empty()) {
            let head = !self.writing.is_empty();
            let next = if head {
                &self.writing[..]
            } else {
                &self.chunk[..]
            };
            let n = ready!(Pin::new(&mut *writer).poll_write(cx, next))?;
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
        ready!(Pin::new(writer).poll_flush(cx))?;
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
    /// A stream that keeps what it sends when it is part of a session.
    pub(super) fn new(writer: Writer, in_session: bool) -> Self {
        let outgoing = in_session.then(Outgoing::default);
        Self::made(Some(writer), outgoing)
    }

    /// A stream that another program wrote to before, and did not get so far.
    pub(super) fn going_on(writer: Writer, unwritten: &[u8]) -> Self {
        let pipe = Self::made(Some(writer), None);
        let mut sink = pipe.sink.lock();
        sink.writing.extend_from_slice(unwritten);
        sink.busy = !unwritten.is_empty();
        pipe.queue.lock().tended = sink.busy;
        drop(sink);
        pipe
    }

    /// A stream of a session that has no connection at the moment.
    pub(super) fn unconnected(outgoing: Outgoing, incoming: Incoming, marked: u64) -> Self {
        let mut pipe = Self::made(None, Some(outgoing));
        pipe.incoming = Mutex::new(incoming);
        pipe.queue.get_mut().marked = marked;
        let unacknowledged = pipe.sink.get_mut().unacknowledged();
        pipe.kept_bytes = AtomicU64::new(unacknowledged);
        pipe
    }

    fn made(writer: Option<Writer>, outgoing: Option<Outgoing>) -> Self {
        let queue = Queue {
            passing: BytesMut::new(),
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
            outgoing,
            stands: false,
        };
        Self {
            queue: Mutex::new(queue),
            sink: Mutex::new(sink),
            incoming: Mutex::default(),
            unread: Mutex::default(),
            wake: Notify::new(),
            queued_bytes: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            room: Notify::new(),
        }
    }

    /// Leaves bytes that were read and not taken in; of a session, the other side sends them again.
    pub(super) fn leave_unread(&self, buffer: BytesMut) {
        *self.unread.lock() = buffer;
    }

    pub(super) fn take_unread(&self) -> Vec<u8> {
        std::mem::take(&mut *self.unread.lock()).to_vec()
    }

    /// The bytes that the stream has not taken, without what counts for a connection alone. Nothing
    /// more is written.
    pub(super) fn unwritten(&self) -> Vec<u8> {
        let mut sink = self.sink.lock();
        sink.stands = true;
        let mut bytes = [&*sink.writing, &sink.chunk].concat();
        self.queue.lock().append_to(&mut bytes);
        bytes
    }

    /// The state that another program has to know, in a session. Nothing more is sent.
    pub(super) fn handoff(&self) -> StreamHandoff {
        let mut sink = self.sink.lock();
        sink.stands = true;
        let mut kept = vec![];
        let outgoing = sink.outgoing.as_ref();
        for piece in outgoing.into_iter().flat_map(Outgoing::kept) {
            kept.extend_from_slice(piece);
        }
        let queue = self.queue.lock();
        queue.append_to(&mut kept);
        StreamHandoff {
            taken: self.incoming.lock().taken(),
            acknowledged: outgoing.map_or(0, Outgoing::taken),
            kept,
            marked: queue.marked,
        }
    }

    /// Queues what `put` appends; with `alone` it is written at once if the stream is idle.
    pub(super) fn push(&self, alone: bool, put: impl FnOnce(&mut Queue)) {
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

    /// Writes one batch from the caller's own thread. Returns true if nothing waits now, so that
    /// nobody has to tend the queue.
    fn write_one(&self) -> bool {
        let Some(mut sink) = self.sink.try_lock() else {
            return false;
        };
        let mut cx = Context::from_waker(Waker::noop());
        let may = sink.writer.is_some() && !sink.busy && !sink.stands;
        let began = may && self.load(&mut sink);
        began && matches!(sink.poll_write(&mut cx), Poll::Ready(Ok(()))) && self.rest(&sink)
    }

    /// Hands the next batch to the sink. Returns true if there was any; if not, nobody tends the
    /// queue now.
    fn load(&self, sink: &mut Sink) -> bool {
        let mut queue = self.queue.lock();
        let loaded = queue.load(sink);
        queue.tended = loaded;
        let left = queue.len();
        drop(queue);
        if sink.outgoing.is_some() {
            self.kept_bytes
                .store(sink.unacknowledged(), Ordering::Release);
        }
        if self.queued_bytes.swap(left, Ordering::AcqRel) > left {
            self.room.notify_waiters();
        }
        loaded
    }

    /// Stops tending the queue if nothing waits there.
    fn rest(&self, sink: &Sink) -> bool {
        let behind = sink.outgoing.as_ref().is_some_and(Outgoing::is_behind);
        let mut queue = self.queue.lock();
        queue.tended = behind || !queue.is_empty();
        !queue.tended
    }

    /// Writes one batch. Returns true if more waits.
    pub(super) fn poll_batch(&self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        let mut sink = self.sink.lock();
        if sink.stands {
            return Poll::Pending;
        }
        if !sink.busy && !self.load(&mut sink) {
            return Poll::Ready(Ok(false));
        }
        ready!(sink.poll_write(cx))?;
        Poll::Ready(Ok(!self.rest(&sink)))
    }

    /// Ends the stream after what waits, apart from bulk, which has lost its reader.
    pub(super) fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.queue.lock().bulk.clear();
        while ready!(self.poll_batch(cx))? {}
        match &mut self.sink.lock().writer {
            Some(writer) => Pin::new(writer).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Bytes that the stream has taken, and whether nothing waits.
    pub(super) fn progress(&self) -> (u64, bool) {
        let sink = self.sink.lock();
        (sink.written, !sink.busy && self.queue.lock().is_empty())
    }

    /// The connection is gone, and with it what was under way over it.
    pub(super) fn disconnect(&self) {
        let mut sink = self.sink.lock();
        sink.writer = None;
        sink.writing.clear();
        sink.chunk = Bytes::new();
        sink.busy = false;
        drop(sink);
        self.queue.lock().passing.clear();
    }

    /// The session goes on over another stream, from where the other side says it is.
    pub(super) fn connect(&self, writer: Writer, mark: u64) -> Result<(), BeyondSent> {
        let mut sink = self.sink.lock();
        if let Some(outgoing) = &mut sink.outgoing {
            outgoing.resume(mark)?;
        }
        sink.writer = Some(writer);
        self.note_kept(&sink);
        Ok(())
    }

    /// The other side has taken in so much.
    pub(super) fn acknowledge(&self, mark: u64) -> Result<(), BeyondSent> {
        let mut sink = self.sink.lock();
        if let Some(outgoing) = &mut sink.outgoing {
            outgoing.acknowledge(mark)?;
        }
        self.note_kept(&sink);
        Ok(())
    }

    fn note_kept(&self, sink: &Sink) {
        let left = sink.unacknowledged();
        if self.kept_bytes.swap(left, Ordering::AcqRel) > left {
            self.room.notify_waiters();
        }
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Acquire)
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Acquire)
    }

    /// Returns true if less than so much waits or is kept.
    pub(super) fn has_room(&self, bytes_max: u64) -> bool {
        self.kept_bytes() + self.queued_bytes() < bytes_max
    }

    /// Resolves when there may be room. To be made before one looks.
    pub(super) fn room(&self) -> tokio::sync::futures::Notified<'_> {
        self.room.notified()
    }

    /// Lets go of who waits for room.
    pub(super) fn release(&self) {
        self.room.notify_waiters();
    }
}
