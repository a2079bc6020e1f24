//! Bytes between nodes: fetched in ranges by the node that wants them, with a bounded window, a
//! checksum on each chunk, and another try for a bad one.
//!
//! Only nodes fetch and serve. A worker asks its node to bring a blob and maps the node's copy, so
//! that bytes cross to a machine once and never pass through a worker's link. The chunks leave from
//! the mapped memory itself, behind everything else that waits for the link.

mod plan;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, mpsc, oneshot};

use self::plan::{Plan, Taken};
use super::handle::Handle;
use super::protocol::{Bringing, LendRequest, Lending, ReadOrder};
use super::store::Own;
use super::{Blob, BlobError};
use crate::actor::engine::Engine;
use crate::actor::service_row::Asked;
use crate::base::clock::Clock;
use crate::base::id::{ActorId, ProcessId};
use crate::base::trace::{Outcome, Span, SpanContext, SpanKind};
use crate::net::service::Answered;
use crate::net::wire::codec;
use crate::net::wire::{Chunk, Frame};

/// Bytes under one checksum. Small enough that another frame waits well under a millisecond behind
/// one, large enough that a chunk's own cost does not matter.
const CHUNK_BYTES: usize = 256 << 10;

/// The most that a peer may ask us to send as one chunk.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Chunks that are asked for at once.
const RANGE_CHUNKS: u64 = 4;

/// Chunks that are on their way at a time: some round trips of bandwidth.
const WINDOW_CHUNKS: u64 = 64;

/// Bad copies of one chunk before the fetch fails.
const TRIES_MAX: u32 = 4;

/// Blobs that a process receives and sends as a node.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Fetches under way, by the number that their chunks carry: from which node, and where to.
    fetches: Mutex<HashMap<u64, (ProcessId, mpsc::Sender<Chunk>)>>,
    /// Blobs that others fetch from here.
    served: Mutex<HashMap<(ProcessId, u64), Served>>,
    /// Copies that were fetched, while anyone has them.
    copies: Mutex<HashMap<(ProcessId, u64), Weak<Own>>>,
}

type Served = Arc<OnceCell<Bytes>>;

impl Streams {
    /// A chunk has come; returns true if somebody fetches it.
    pub(super) fn take(&self, chunk: &Chunk) -> bool {
        let fetch = self.fetches.lock().get(&chunk.transfer).cloned();
        let Some((_, fetch)) = fetch else {
            return false;
        };
        // Full only when the sender sends what was not asked for; what is lost times out.
        let _ = fetch.try_send(chunk.clone());
        true
    }

    pub(super) fn process_down(&self, process: ProcessId) {
        self.served
            .lock()
            .retain(|(reader, _), _| *reader != process);
        // The end of its channel ends a fetch; chunks that were on their way are lost.
        self.fetches.lock().retain(|_, (node, _)| *node != process);
    }

    /// A reader needs nothing more.
    pub(super) fn finish(&self, reader: ProcessId, transfer: u64) {
        self.served.lock().remove(&(reader, transfer));
    }

    fn copy_of(&self, handle: &Handle) -> Option<Arc<Own>> {
        self.copies
            .lock()
            .get(&(handle.owner, handle.serial()))?
            .upgrade()
    }

    fn keep_copy(&self, handle: &Handle, copy: &Arc<Own>) {
        let mut copies = self.copies.lock();
        copies.retain(|_, copy| copy.strong_count() > 0);
        copies.insert((handle.owner, handle.serial()), Arc::downgrade(copy));
    }
}

/// Makes a copy of another node's blob on this one.
pub(super) async fn bring(engine: &Arc<Engine>, origin: Handle) -> Result<Blob, BlobError> {
    let node = engine.domain();
    if node == engine.process {
        return fetch(engine, origin).await.map(Blob::own);
    }
    // As long as the node lives it will answer: its own waits are bounded.
    match engine.request::<Bringing>(node, &origin, None).await {
        Some(outcome) => outcome.map(|copy| Blob::arrived(engine, copy)),
        None => Err(BlobError::Gone {
            owner: origin.owner,
            why: "this node is gone".to_owned(),
        }),
    }
}

/// The node's side of [`bring`] for one of its workers.
pub(super) async fn bring_for(engine: &Arc<Engine>, origin: Handle) -> Result<Handle, BlobError> {
    let adrift = Handle {
        ticket: 0,
        pinned_until: 0,
        ..origin
    };
    let blob = Blob::arrived(engine, adrift);
    let copy = match &blob.keep {
        super::Keep::Own(own) => Arc::clone(own),
        super::Keep::Foreign(lease) => match &lease.brought(engine).await?.keep {
            super::Keep::Own(own) => Arc::clone(own),
            _ => return Err(engine.blobs().freed()),
        },
        super::Keep::Adrift(_) => return Err(engine.blobs().freed()),
    };
    Ok(codec::arriving(1, || copy.depart()))
}

async fn fetch(engine: &Arc<Engine>, origin: Handle) -> Result<Arc<Own>, BlobError> {
    if let Some(copy) = engine.blobs().streams.copy_of(&origin) {
        return Ok(copy);
    }
    let len = usize::try_from(origin.region.len).unwrap_or(usize::MAX);
    let store = Arc::clone(engine.blobs());
    let writer = tokio::task::spawn_blocking(move || store.writer(len)).await;
    let mut writer = writer.unwrap_or(Err(BlobError::NoSystem))?;
    let mut fetch = Fetch::new(engine, origin);
    let waited = engine.limits.ask_timeout;
    let mut answers = FuturesUnordered::new();
    while !fetch.plan.is_complete() {
        while let Some((first, count)) = fetch.plan.ask() {
            answers.push(fetch.read(first, count)?);
        }
        let step = async {
            tokio::select! {
                biased;
                chunk = fetch.chunks.recv() => chunk.map(Ok),
                Some(answer) = answers.next() => Some(Err(answer)),
            }
        };
        match Clock::timeout(waited, step).await {
            Some(Some(Ok(chunk))) => {
                if let Some(again) = fetch.write(&chunk, &mut writer)? {
                    answers.push(fetch.read(again, 1)?);
                }
            }
            Some(Some(Err(Ok(Ok(outcome))))) => outcome?,
            Some(Some(Err(_)) | None) => {
                let why = "the way to its node was lost".to_owned();
                return Err(BlobError::Gone {
                    owner: origin.owner,
                    why,
                });
            }
            None => {
                return Err(BlobError::Timeout {
                    owner: origin.owner,
                    waited,
                });
            }
        }
    }
    let own = writer.seal_own();
    engine.blobs().streams.keep_copy(&origin, &own);
    Ok(own)
}

/// A fetch under way; its drop tells the other node.
struct Fetch<'a> {
    engine: &'a Arc<Engine>,
    origin: Handle,
    transfer: u64,
    chunk_bytes: usize,
    chunks: mpsc::Receiver<Chunk>,
    plan: Plan,
    span: Span,
}

impl<'a> Fetch<'a> {
    fn new(engine: &'a Arc<Engine>, origin: Handle) -> Self {
        let transfer = crate::base::random::number();
        let chunk_bytes = CHUNK_BYTES.min(engine.limits.message_bytes_max).max(1);
        let (sender, chunks) = mpsc::channel(2 * WINDOW_CHUNKS as usize);
        engine
            .blobs()
            .streams
            .fetches
            .lock()
            .insert(transfer, (origin.domain, sender));
        let plan = Plan::new(origin.region.len.div_ceil(chunk_bytes as u64));
        Self {
            engine,
            origin,
            transfer,
            chunk_bytes,
            chunks,
            plan,
            span: begin_span(engine, &origin),
        }
    }

    /// Asks for chunks. The answer says why they will not come.
    fn read(
        &self,
        first: u64,
        count: u64,
    ) -> Result<oneshot::Receiver<Answered<Lending>>, BlobError> {
        let read = LendRequest::Read(ReadOrder {
            origin: self.origin,
            transfer: self.transfer,
            first,
            count,
            chunk_bytes: self.chunk_bytes as u64,
        });
        let asked = self
            .engine
            .begin_request::<Lending>(self.origin.domain, &read);
        asked.ok_or_else(|| BlobError::Gone {
            owner: self.origin.owner,
            why: "no way leads to its node".to_owned(),
        })
    }

    /// Writes a good chunk to its place; gives the index of a bad one that shall be sent again.
    fn write(&mut self, chunk: &Chunk, to: &mut [u8]) -> Result<Option<u64>, BlobError> {
        let start = usize::try_from(chunk.index)
            .unwrap_or(usize::MAX)
            .saturating_mul(self.chunk_bytes);
        let end = start.saturating_add(self.chunk_bytes).min(to.len());
        let place = to
            .get_mut(start..end)
            .filter(|place| place.len() == chunk.bytes.len());
        let good = place.is_some() && crc32fast::hash(&chunk.bytes) == chunk.checksum;
        match self.plan.take(chunk.index, good) {
            Taken::New => {
                if let Some(place) = place {
                    place.copy_from_slice(&chunk.bytes);
                }
                Ok(None)
            }
            Taken::Unasked => Ok(None),
            Taken::Again => {
                tracing::warn!(from = %self.origin.domain, index = chunk.index, "a bad chunk");
                Ok(Some(chunk.index))
            }
            Taken::TooBad => Err(BlobError::Corrupt {
                owner: self.origin.owner,
                offset: start as u64,
                tries: TRIES_MAX,
            }),
        }
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        self.engine
            .blobs()
            .streams
            .fetches
            .lock()
            .remove(&self.transfer);
        let done = LendRequest::Fetched {
            transfer: self.transfer,
        };
        self.engine.tell::<Lending>(self.origin.domain, &done);
        let tracer = &self.engine.tracer;
        tracer.close(self.span.context.span_id);
        self.span.ended = Clock::now();
        self.span.outcome = Outcome::of(self.plan.is_complete());
        if tracer.is_on() {
            tracer.record(self.span.clone());
        }
    }
}

/// The span of a copy that begins, shown while it goes on.
fn begin_span(engine: &Engine, origin: &Handle) -> Span {
    let (now, parent) = (Clock::now(), SpanContext::current());
    let root = ActorId::root(engine.process);
    let span = Span {
        context: engine.tracer.begin(parent, now),
        parent: parent.span_id,
        kind: SpanKind::Copy,
        by: root,
        actor: root,
        message: "copy of a blob".into(),
        queued: now,
        started: now,
        ended: now,
        outcome: Outcome::Ok,
        labels: vec![
            ("bytes".into(), origin.region.len.into()),
            ("owner".into(), origin.owner.to_string().into()),
            ("blob".into(), origin.serial().to_string().into()),
        ],
    };
    if engine.tracer.is_on() {
        engine.tracer.open(span.clone());
    }
    span
}

impl Engine {
    /// Sends chunks of a blob of this node to another node.
    pub(super) fn serve_read(self: &Arc<Self>, asked: Asked<Lending>, order: ReadOrder) {
        let reader = asked.from;
        let ReadOrder {
            origin,
            transfer,
            first,
            count,
            chunk_bytes,
        } = order;
        // Entered at once, so that the end of the transfer, which may come soon, finds it.
        let served = Arc::clone(
            self.blobs()
                .streams
                .served
                .lock()
                .entry((reader, transfer))
                .or_default(),
        );
        let engine = Arc::clone(self);
        self.spawn_task(async move {
            let opening = || async {
                let adrift = Handle {
                    ticket: 0,
                    pinned_until: 0,
                    ..origin
                };
                Blob::arrived(&engine, adrift).open().await.map(Bytes::from)
            };
            match served.get_or_try_init(opening).await {
                Ok(bytes) => {
                    let chunk_bytes = chunk_bytes.clamp(1, CHUNK_BYTES_MAX as u64);
                    engine.send_chunks(reader, transfer, bytes, first, count, chunk_bytes);
                    asked.answer(&engine, &Ok(()));
                }
                Err(error) => asked.answer(&engine, &Err(error)),
            }
        });
    }

    fn send_chunks(
        &self,
        to: ProcessId,
        transfer: u64,
        bytes: &Bytes,
        first: u64,
        count: u64,
        chunk_bytes: u64,
    ) {
        let len = bytes.len() as u64;
        for index in first..first.saturating_add(count) {
            let Some(start) = index.checked_mul(chunk_bytes).filter(|start| *start < len) else {
                return;
            };
            let end = (start + chunk_bytes).min(len);
            let bytes = bytes.slice(start as usize..end as usize);
            let checksum = crc32fast::hash(&bytes);
            self.send_to(
                to,
                &Frame::Chunk(Chunk {
                    transfer,
                    to,
                    index,
                    checksum,
                    bytes,
                }),
            );
        }
    }
}
