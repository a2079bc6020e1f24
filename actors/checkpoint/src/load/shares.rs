//! A rank's share of a load: it reads and checks blocks, keeps its own boxes, and gives the others to
//! whom they belong.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, future, stream};
use odeon_algorithms::parallel::{Region, Window};

use super::orders::Orders;
use super::{Failed, compare, text};
use crate::checkpointer::Checkpointer;
use crate::commit::Entry;
use crate::local::Target;
use crate::peers::Kept;
use crate::plan::load::{Block, Copied, Read};
use crate::ranks::written;
use crate::stage::{Stage, StageTime, Watch};
use crate::storage::{OnDisk, Storage};

/// Where the bytes come from.
pub(super) enum Supply {
    Storage(Storage),
    Memory(Option<Arc<Kept>>),
}

/// Blocks that are there to be read, or read.
enum Got {
    Disk(OnDisk),
    Bytes(Bytes),
}

/// A read of a rank on its way through a thread.
struct Job {
    read: Read,
    got: Got,
    shown: String,
    rank: usize,
    target: Arc<dyn Target>,
    /// Memory for blocks, used again.
    scratch: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Checkpointer {
    /// Reads and sends what this rank is to read, and takes what others send.
    pub(super) async fn carry_out(
        &self,
        orders: &mut Orders,
        supply: &Supply,
        target: &Arc<dyn Target>,
    ) -> (Vec<StageTime>, Result<(), Failed>) {
        let ranks = &*self.inner.ranks;
        let rank = ranks.rank();
        let read_bytes = orders.load.read_bytes();
        let receivers: BTreeSet<usize> =
            orders.load.reads.iter().flat_map(Read::receivers).collect();
        let reads = std::mem::take(&mut orders.load.reads);
        let reading = async {
            let watch = Watch::begin(rank);
            let done = self.read_all(reads, orders, supply, target).await;
            if let Err(detail) = &done {
                // Those who wait for something of this rank must not wait for ever.
                let message = refusal(detail);
                let others = receivers.into_iter().filter(|to| *to != rank);
                future::join_all(others.map(|to| ranks.send(to, message.clone()))).await;
            }
            (done, watch.end(Stage::Read, read_bytes))
        };
        let taking = async {
            let watch = Watch::begin(rank);
            let senders = orders.load.senders.iter();
            let taken = senders.map(|(from, messages)| self.take(*from, *messages, target));
            let taken = future::join_all(taken).await;
            let bytes = taken.iter().map(|(bytes, _)| bytes).sum();
            let outcome = taken.into_iter().map(|(_, outcome)| outcome);
            (
                outcome.fold(Ok(()), Result::and),
                watch.end(Stage::Exchange, bytes),
            )
        };
        let ((done, read), (taken, exchanged)) = future::join(reading, taking).await;
        let done = done.map_err(|detail| (rank, detail));
        // What another rank says of itself says more than that this one waited for it.
        (vec![read, exchanged], done.and(taken))
    }

    async fn read_all(
        &self,
        reads: Vec<Read>,
        orders: &Orders,
        supply: &Supply,
        target: &Arc<dyn Target>,
    ) -> Result<(), String> {
        let ranks = &*self.inner.ranks;
        let scratch = Arc::default();
        let done = reads.into_iter().map(|read| {
            let scratch = Arc::clone(&scratch);
            async move {
                let file = orders.files.get(read.file);
                let file = file.ok_or("the plan is of another checkpoint")?;
                let (got, shown) = supply.get(&orders.entry, file, &read).await?;
                let job = Job {
                    read,
                    got,
                    shown,
                    rank: ranks.rank(),
                    target: target.clone(),
                    scratch,
                };
                let messages = tokio::task::spawn_blocking(move || job.run());
                for (to, message) in messages.await.map_err(text)?? {
                    ranks.send(to, message).await.map_err(text)?;
                }
                Ok::<_, String>(())
            }
        });
        let most = self.inner.options.reads.max(1);
        stream::iter(done)
            .buffer_unordered(most)
            .try_collect()
            .await
    }

    /// Takes messages of another rank, and how many bytes these had.
    async fn take(
        &self,
        from: usize,
        messages: usize,
        target: &Arc<dyn Target>,
    ) -> (usize, Result<(), Failed>) {
        let ranks = &*self.inner.ranks;
        let (mut bytes, mut outcome) = (0, Ok(()));
        for _ in 0..messages {
            let message = match ranks.receive(from).await {
                Ok(message) => message,
                Err(lost) => return (bytes, outcome.and_then(|()| Err((from, lost.to_string())))),
            };
            bytes += message.len();
            match Parcel::read(&message) {
                // What cannot be written is taken all the same, so that nobody waits.
                Ok(parcel) if outcome.is_ok() => {
                    outcome = parcel
                        .place(&**target)
                        .map_err(|detail| (ranks.rank(), detail));
                }
                Ok(_) => {}
                Err(detail) => return (bytes, outcome.and(Err((from, detail)))),
            }
        }
        (bytes, outcome)
    }
}

impl Supply {
    async fn get(&self, entry: &Entry, file: &str, read: &Read) -> Result<(Got, String), String> {
        let range = read.start..read.start + read.bytes() as u64;
        match self {
            Self::Storage(storage) => {
                let path = entry.file(file);
                let shown = storage.shown(&path);
                let got = match storage.on_disk(&path) {
                    Some(disk) => Got::Disk(disk),
                    None => Got::Bytes(storage.read(&path, range).await.map_err(text)?),
                };
                Ok((got, shown))
            }
            Self::Memory(kept) => {
                let shown = format!("{entry}/{file} in memory");
                let bytes = kept.as_ref().and_then(|kept| kept.read(file, range));
                let bytes = bytes.ok_or_else(|| format!("{shown} is not there"))?;
                Ok((Got::Bytes(bytes), shown))
            }
        }
    }
}

impl Job {
    /// Checks the blocks, writes what is this rank's own, and makes messages for others.
    fn run(self) -> Result<Vec<(usize, Bytes)>, String> {
        let mut messages = vec![];
        let mut at = 0;
        let mut scratch = vec![];
        if matches!(self.got, Got::Disk(_)) {
            let mut free = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            scratch = free.pop().unwrap_or_default();
        }
        for block in &self.read.blocks {
            let start = self.read.start + at as u64;
            match &self.got {
                Got::Bytes(bytes) => {
                    let bytes = bytes.get(at..at + block.bytes);
                    let bytes = bytes.ok_or_else(|| format!("{} is too short", self.shown))?;
                    self.share(block, bytes, start, &mut messages)?;
                }
                Got::Disk(disk) if let Some((tensor, range)) = self.own(block) => {
                    self.target.fill(tensor, range, &mut |out| {
                        disk.read(start, out).map_err(text)?;
                        compare(out, block.crc, &self.shown, start).map_err(text)
                    })?;
                }
                Got::Disk(disk) => {
                    // A block is small enough to stay in the caches until it is copied out.
                    if scratch.len() < block.bytes {
                        scratch.resize(block.bytes, 0);
                    }
                    disk.read(start, &mut scratch[..block.bytes])
                        .map_err(text)?;
                    self.share(block, &scratch[..block.bytes], start, &mut messages)?;
                }
            }
            at += block.bytes;
        }
        self.scratch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(scratch);
        Ok(messages)
    }

    /// Where a block belongs that is all this rank's own, and lies there as it lies in the file.
    fn own(&self, block: &Block) -> Option<(usize, Range<usize>)> {
        let [delivery] = &*block.wanted else {
            return None;
        };
        let [copy] = &*delivery.copies else {
            return None;
        };
        let first = copy.from.runs_into(&copy.to).ok()?.next()?;
        let whole = delivery.rank == self.rank && first.bytes == block.bytes;
        whole.then(|| (copy.tensor, first.target..first.target + first.bytes))
    }

    fn share(
        &self,
        block: &Block,
        bytes: &[u8],
        start: u64,
        messages: &mut Vec<(usize, Bytes)>,
    ) -> Result<(), String> {
        compare(bytes, block.crc, &self.shown, start).map_err(text)?;
        for delivery in &block.wanted {
            if delivery.rank != self.rank {
                messages.push((delivery.rank, Parcel::pack(&delivery.copies, bytes)));
                continue;
            }
            for copy in &delivery.copies {
                let mut runs = copy.from.runs_into(&copy.to).map_err(text)?;
                self.target.write(copy.tensor, bytes, &mut runs)?;
            }
        }
        Ok(())
    }
}

/// Boxes that one rank has read for another.
struct Parcel<'a> {
    /// Where the boxes belong, one behind the other.
    boxes: Vec<(usize, Window)>,
    bytes: &'a [u8],
}

impl Parcel<'_> {
    fn pack(copies: &[Copied], bytes: &[u8]) -> Bytes {
        let boxes: Vec<(usize, &Window)> =
            copies.iter().map(|copy| (copy.tensor, &copy.to)).collect();
        let head = written(&boxes);
        let sizes = copies.iter().map(|copy| copy.from.bytes());
        let mut message = BytesMut::with_capacity(9 + head.len() + sizes.sum::<usize>());
        message.put_u8(GOOD);
        message.put_u64_le(head.len() as u64);
        message.put_slice(&head);
        for range in copies.iter().flat_map(|copy| copy.from.ranges()) {
            message.put_slice(&bytes[range]);
        }
        message.freeze()
    }

    /// Decodes a parcel; an error is the reason why the sender had nothing to pack.
    fn read(message: &[u8]) -> Result<Parcel<'_>, String> {
        let garbled = || "what it has sent cannot be read".to_owned();
        let (&kind, rest) = message.split_first().ok_or_else(garbled)?;
        if kind != GOOD {
            return Err(String::from_utf8_lossy(rest).into_owned());
        }
        let (length, rest) = rest.split_first_chunk().ok_or_else(garbled)?;
        let length = u64::from_le_bytes(*length) as usize;
        let (head, bytes) = rest.split_at_checked(length).ok_or_else(garbled)?;
        let boxes = serde_json::from_slice(head).map_err(text)?;
        Ok(Parcel { boxes, bytes })
    }

    fn place(&self, target: &dyn Target) -> Result<(), String> {
        let mut start = 0;
        for (tensor, to) in &self.boxes {
            let lengths = to.region().lengths();
            let whole = Region::whole(&lengths);
            let from = Window::new(start, to.element_bytes(), lengths, whole).map_err(text)?;
            let mut runs = from.runs_into(to).map_err(text)?;
            target.write(*tensor, self.bytes, &mut runs)?;
            start += from.bytes();
        }
        Ok(())
    }
}

fn refusal(detail: &str) -> Bytes {
    let mut message = BytesMut::with_capacity(1 + detail.len());
    message.put_u8(BAD);
    message.put_slice(detail.as_bytes());
    message.freeze()
}

const GOOD: u8 = 0;

const BAD: u8 = 1;
