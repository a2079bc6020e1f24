//! The streams that this process writes for others to read, and what it knows of processes whose streams it
//! reads.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_bytes::ByteBuf;
use tokio::sync::Notify;

use super::life::Local;
use super::protocol::{Batch, StreamEnd, StreamHandle};
use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::failure::ProcessExit;
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::base::message::Wire;
use crate::net::wire::codec;

/// Bytes of a batch from which on no more is added to it: as much as a few frames.
const BATCH_BYTES: usize = 64 << 10;
/// Replies of a batch.
const BATCH_REPLIES: usize = 256;

/// The streams of a process.
#[derive(Default)]
pub(crate) struct Shelf {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    last: u64,
    streams: BTreeMap<u64, Shelved>,
    /// Those that nobody has come for, with the end of the time for it. The first is due first, since all have as
    /// long.
    awaited: BTreeMap<u64, Timestamp>,
    /// Processes that write what is read here.
    origins: BTreeMap<ProcessId, Weak<Origin>>,
}

/// A stream that waits for its reader.
struct Shelved {
    stream: Arc<Shared>,
    /// The process that reads it, once it has come.
    reader: Option<ProcessId>,
}

/// A process that writes streams which are read here.
#[derive(Default)]
pub(super) struct Origin {
    /// How it ended.
    pub(super) exit: OnceLock<ProcessExit>,
}

/// A stream, which its reader asks for one batch at a time.
pub(super) struct Shared {
    source: tokio::sync::Mutex<Option<Box<dyn AnyStream>>>,
    /// Nobody reads it any more.
    dropped: Notify,
}

/// A stream whatever its replies are.
trait AnyStream: Send + Sync {
    /// Some replies, at least one unless it has ended.
    fn batch<'a>(&'a mut self, limits: &'a Limits) -> BoxFuture<'a, Batch>;
}

impl<T: Wire> AnyStream for Local<T> {
    fn batch<'a>(&'a mut self, limits: &'a Limits) -> BoxFuture<'a, Batch> {
        Box::pin(async move {
            let (mut batch, mut bytes) = (Batch::default(), 0);
            let mut next = self.replies.recv().await;
            loop {
                let Some(reply) = next else {
                    batch.end = Some(match Arc::clone(&self.life).over().await {
                        None => StreamEnd::Finished,
                        Some(AskError::Died(down)) => StreamEnd::Died(down),
                        Some(error) => StreamEnd::BadReply(error.to_string()),
                    });
                    return batch;
                };
                match encode(&reply, limits.message_bytes_max) {
                    Ok(encoded) => {
                        bytes += encoded.len();
                        batch.replies.push(encoded);
                    }
                    Err(why) => {
                        batch.end = Some(StreamEnd::BadReply(why));
                        return batch;
                    }
                }
                if bytes >= BATCH_BYTES || batch.replies.len() == BATCH_REPLIES {
                    return batch;
                }
                match self.replies.try_recv() {
                    Ok(reply) => next = Some(reply),
                    // The end comes with the next question.
                    Err(_) => return batch,
                }
            }
        })
    }
}

fn encode<T: Wire>(reply: &T, limit: usize) -> Result<ByteBuf, String> {
    let encoded = codec::arriving(1, || codec::encode(reply)).map_err(|error| error.to_string())?;
    match encoded.len() <= limit {
        true => Ok(ByteBuf::from(encoded)),
        false => Err(format!(
            "it has {} bytes, the limit is {limit}",
            encoded.len()
        )),
    }
}

impl Shared {
    /// Some replies, or the end.
    pub(super) async fn next(&self, limits: &Limits) -> Batch {
        let mut source = self.source.lock().await;
        let unknown = Batch {
            end: Some(StreamEnd::Unknown),
            ..Batch::default()
        };
        let Some(stream) = source.as_mut() else {
            return unknown;
        };
        tokio::select! {
            biased;
            () = self.dropped.notified() => {
                *source = None;
                unknown
            }
            batch = stream.batch(limits) => batch,
        }
    }
}

/// Puts a stream onto the shelf of its process, from where whoever has its handle reads it.
pub(super) fn put<T: Wire>(stream: Local<T>) -> StreamHandle {
    let cell = Arc::clone(&stream.life.cell);
    let shelf = cell.engine.component::<Shelf>();
    let due = Clock::now().after(cell.engine.limits.blob_transit);
    let number = shelf.put(Box::new(stream), due);
    StreamHandle {
        process: cell.engine.process,
        number,
        actor: cell.id,
    }
}

impl Shelf {
    fn put(&self, stream: Box<dyn AnyStream>, due: Timestamp) -> u64 {
        let mut book = self.book.lock();
        book.last += 1;
        let number = book.last;
        let stream = Arc::new(Shared {
            source: tokio::sync::Mutex::new(Some(stream)),
            dropped: Notify::new(),
        });
        let reader = None;
        book.streams.insert(number, Shelved { stream, reader });
        book.awaited.insert(number, due);
        number
    }

    /// The handle of a stream has arrived in a process, which reads it from now on.
    pub(super) fn arrived(&self, number: u64, reader: ProcessId) {
        let mut book = self.book.lock();
        book.awaited.remove(&number);
        if let Some(shelved) = book.streams.get_mut(&number) {
            shelved.reader = Some(reader);
        }
    }

    /// The stream of a number, for its reader.
    pub(super) fn find(&self, number: u64, reader: ProcessId) -> Option<Arc<Shared>> {
        let book = self.book.lock();
        let shelved = book.streams.get(&number)?;
        let is_theirs = shelved.reader.is_none_or(|known| known == reader);
        is_theirs.then(|| Arc::clone(&shelved.stream))
    }

    /// It has come to its end.
    pub(super) fn forget(&self, number: u64) {
        let mut book = self.book.lock();
        book.awaited.remove(&number);
        let forgotten = book.streams.remove(&number);
        drop(book);
        drop(forgotten);
    }

    /// Its reader reads no more.
    pub(super) fn drop_for(&self, number: u64, reader: ProcessId) {
        self.drop_all(|at, shelved| at == number && shelved.reader == Some(reader));
    }

    fn drop_all(&self, is_over: impl Fn(u64, &Shelved) -> bool) {
        let mut book = self.book.lock();
        let over = book
            .streams
            .extract_if(.., |number, shelved| is_over(*number, shelved));
        let over: Vec<Shelved> = over.map(|(_, shelved)| shelved).collect();
        drop(book);
        for shelved in over {
            // Whoever waits for its next reply has the stream, and drops it.
            shelved.stream.dropped.notify_one();
        }
    }

    /// A process whose stream is read here.
    pub(super) fn origin(&self, process: ProcessId) -> Arc<Origin> {
        let mut book = self.book.lock();
        if let Some(origin) = book.origins.get(&process).and_then(Weak::upgrade) {
            return origin;
        }
        let origin = Arc::new(Origin::default());
        book.origins.retain(|_, origin| origin.strong_count() > 0);
        book.origins.insert(process, Arc::downgrade(&origin));
        origin
    }
}

impl Component for Shelf {
    fn sweep(&self, _: &Arc<Engine>, now: Timestamp) {
        let mut due = vec![];
        {
            let mut book = self.book.lock();
            while let Some(first) = book.awaited.first_entry().filter(|it| *it.get() <= now) {
                due.push(first.remove_entry().0);
            }
        }
        if !due.is_empty() {
            self.drop_all(|number, _| due.binary_search(&number).is_ok());
        }
    }

    fn process_down(&self, _: &Arc<Engine>, exit: &ProcessExit) {
        self.drop_all(|_, shelved| shelved.reader == Some(exit.process));
        let origin = self.book.lock().origins.remove(&exit.process);
        if let Some(origin) = origin.and_then(|origin| origin.upgrade()) {
            // The first news stands.
            let _ = origin.exit.set(exit.clone());
        }
    }

    fn close(&self) {
        self.drop_all(|_, _| true);
    }
}
