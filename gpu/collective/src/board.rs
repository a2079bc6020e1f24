//! Operations over windows that all ranks can read: each rank writes its elements once, and reads
//! what it needs of the others' where it lies.
//!
//! All ranks see the heads of all windows, so everybody knows everything about a mismatch. Windows
//! are smaller than large buffers, which then go through them in rounds and stay in the cache there.

use std::ops::Range;
use std::time::Instant;

use super::element::{self, Element, Reduce};
use super::error::Fault;
use super::flow::Recording;
use super::run::{HEADER_BYTES, Header};
use super::schedule::{CollectiveTask, parts};
use super::transport::{Board, Trouble};

/// Bytes before the elements of a window, in whole cache lines.
const HEAD: usize = HEADER_BYTES.next_multiple_of(LINE);
const LINE: usize = 64;

/// Bytes up to which every rank reduces everything: one round instead of two.
const ONE_ROUND_BYTES: usize = 32 << 10;

/// A call that is carried out in rounds.
pub(super) struct Rounds<'a> {
    pub(super) board: &'a mut dyn Board,
    pub(super) header: &'a Header,
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) until: Instant,
    pub(super) recording: Recording<'a>,
}

impl Rounds<'_> {
    pub(super) fn carry_out<T: Element>(
        &mut self,
        task: CollectiveTask<'_>,
        reduce: Option<Reduce>,
        input: Option<&[T]>,
        data: &mut [T],
    ) -> Result<(), Trouble> {
        let reduce = reduce.unwrap_or(Reduce::Sum);
        let input: &[u8] = bytemuck::cast_slice(input.unwrap_or_default());
        let size = size_of::<T>();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        match task {
            CollectiveTask::AllReduce { .. }
                if self.world == 2 || bytes.len() <= ONE_ROUND_BYTES =>
            {
                self.all_reduce_by_all::<T>(bytes, reduce)
            }
            CollectiveTask::AllReduce { .. } => self.all_reduce_in_slices::<T>(bytes, reduce),
            CollectiveTask::Broadcast { root, .. } => self.broadcast(bytes, root),
            CollectiveTask::AllGather { counts } => {
                self.all_gather(input, &in_bytes(counts, size), bytes)
            }
            CollectiveTask::ReduceScatter { counts } => {
                self.reduce_scatter::<T>(input, &in_bytes(counts, size), bytes, reduce)
            }
            CollectiveTask::AllToAll { to, from } => {
                self.all_to_all(input, &in_bytes(to, size), bytes, &in_bytes(from, size))
            }
            CollectiveTask::Barrier => self.round(0, |_| {}).map(drop),
        }
    }

    /// Bytes of elements in a window, in whole cache lines.
    fn room(&self) -> usize {
        (self.board.window_bytes() - HEAD) / LINE * LINE
    }

    /// Writes this rank's head and elements, waits for all, and compares the heads. Gives the
    /// largest of their last words.
    fn round(&mut self, last: u64, mut write: impl FnMut(&mut [u8])) -> Result<u64, Trouble> {
        let head = self.header.encode(last);
        let mut write = |window: &mut [u8]| {
            window[..HEADER_BYTES].copy_from_slice(&head);
            write(&mut window[HEAD..]);
        };
        self.recording.advance(|progress| {
            progress.produced += 1;
            progress.sent += 1;
        });
        self.board.round(&mut write, self.until)?;
        self.recording
            .advance(|progress| progress.taken = progress.sent);
        let mut largest = 0;
        let mut calls = vec![];
        for rank in 0..self.world {
            let mut bytes = [0; HEADER_BYTES];
            bytes.copy_from_slice(&self.board.window(rank)[..HEADER_BYTES]);
            match self.header.check(rank, &bytes) {
                Ok(last) => largest = largest.max(last),
                Err(Fault::Mismatch { calls: both }) => calls.extend(both),
                Err(fault) => return Err(fault.found()),
            }
        }
        if calls.is_empty() {
            return Ok(largest);
        }
        calls.sort_by_key(|(rank, ..)| *rank);
        calls.dedup();
        Err(Fault::Mismatch { calls }.found())
    }

    fn payload(&self, rank: usize) -> &[u8] {
        &self.board.window(rank)[HEAD..]
    }

    /// One round for each chunk: every rank reduces all of it.
    fn all_reduce_by_all<T: Element>(
        &mut self,
        data: &mut [u8],
        reduce: Reduce,
    ) -> Result<(), Trouble> {
        let room = self.room();
        for chunk in pieces(data.len(), room) {
            self.round(0, |window| {
                window[..chunk.len()].copy_from_slice(&data[chunk.clone()]);
            })?;
            element::fold(
                &mut data[chunk],
                T::TYPE,
                reduce,
                self.world,
                |rank, part| &self.payload(rank)[part],
            );
        }
        Ok(())
    }

    /// Every rank reduces its slice of a chunk, and copies the others' slices in the round after,
    /// in which the next chunk is written.
    fn all_reduce_in_slices<T: Element>(
        &mut self,
        data: &mut [u8],
        reduce: Reduce,
    ) -> Result<(), Trouble> {
        let slice = self.room() / (self.world + 1) / LINE * LINE;
        let chunks: Vec<_> = pieces(data.len(), slice * self.world).collect();
        let slice_of = |chunk: &Range<usize>, rank: usize| {
            // Even parts, in whole lines, so that no rank is idle in the last chunk.
            let each = chunk.len().div_ceil(self.world).next_multiple_of(LINE);
            let start = (chunk.start + rank * each).min(chunk.end);
            start..(start + each).min(chunk.end)
        };
        let rank = self.rank;
        let slices: Vec<Vec<Range<usize>>> = chunks
            .iter()
            .map(|chunk| (0..self.world).map(|rank| slice_of(chunk, rank)).collect())
            .collect();
        for turn in 0..=chunks.len() {
            let reduced = turn.checked_sub(1).map(|turn| &slices[turn]);
            let fresh = chunks.get(turn);
            self.round(0, |window| {
                let (first, rest) = window.split_at_mut(slice);
                if let Some(slices) = reduced {
                    let mine = slices[rank].clone();
                    first[..mine.len()].copy_from_slice(&data[mine]);
                }
                if let Some(chunk) = fresh {
                    rest[..chunk.len()].copy_from_slice(&data[chunk.clone()]);
                }
            })?;
            for (other, part) in reduced.into_iter().flatten().enumerate() {
                if other != rank {
                    data[part.clone()].copy_from_slice(&self.payload(other)[..part.len()]);
                }
            }
            if let Some(chunk) = fresh {
                let mine = slices[turn][rank].clone();
                let at = slice + mine.start - chunk.start;
                element::fold(
                    &mut data[mine],
                    T::TYPE,
                    reduce,
                    self.world,
                    |rank, part| &self.payload(rank)[at + part.start..at + part.end],
                );
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), Trouble> {
        let room = self.room();
        for chunk in pieces(data.len(), room) {
            let is_root = self.rank == root;
            self.round(0, |window| {
                if is_root {
                    window[..chunk.len()].copy_from_slice(&data[chunk.clone()]);
                }
            })?;
            if !is_root {
                data[chunk.clone()].copy_from_slice(&self.payload(root)[..chunk.len()]);
            }
        }
        Ok(())
    }

    fn all_gather(
        &mut self,
        input: &[u8],
        counts: &[usize],
        data: &mut [u8],
    ) -> Result<(), Trouble> {
        let room = self.room();
        let parts = parts(counts);
        data[parts[self.rank].clone()].copy_from_slice(input);
        for turn in pieces(counts.iter().copied().max().unwrap_or(0), room) {
            self.round(0, |window| copy_part(window, input, 0..input.len(), &turn))?;
            for rank in (0..self.world).filter(|rank| *rank != self.rank) {
                let part = within(&parts[rank], &turn);
                let len = part.len();
                data[part].copy_from_slice(&self.payload(rank)[..len]);
            }
        }
        Ok(())
    }

    fn reduce_scatter<T: Element>(
        &mut self,
        input: &[u8],
        counts: &[usize],
        data: &mut [u8],
        reduce: Reduce,
    ) -> Result<(), Trouble> {
        let lane = self.lane();
        let parts = parts(counts);
        for turn in pieces(counts.iter().copied().max().unwrap_or(0), lane) {
            self.round(0, |window| {
                for (lane, part) in window.chunks_exact_mut(lane).zip(&parts) {
                    copy_part(lane, input, part.clone(), &turn);
                }
            })?;
            let start = self.rank * lane;
            let into = &mut data[within(&(0..counts[self.rank]), &turn)];
            element::fold(into, T::TYPE, reduce, self.world, |rank, part| {
                &self.payload(rank)[start + part.start..start + part.end]
            });
        }
        Ok(())
    }

    fn all_to_all(
        &mut self,
        input: &[u8],
        to: &[usize],
        data: &mut [u8],
        from: &[usize],
    ) -> Result<(), Trouble> {
        let (lane, rank) = (self.lane(), self.rank);
        let (outgoing, incoming) = (parts(to), parts(from));
        data[incoming[rank].clone()].copy_from_slice(&input[outgoing[rank].clone()]);
        // No rank knows what the others have for each other, so they tell how far they have to go.
        let mut whole = to.iter().chain(from).copied().max().unwrap_or(0) as u64;
        let mut start = 0;
        loop {
            let turn = start..start + lane;
            whole = self.round(whole, |window| {
                let (lengths, lanes) = window.split_at_mut(to.len() * 8);
                for (word, len) in lengths.chunks_exact_mut(8).zip(to) {
                    word.copy_from_slice(&(*len as u64).to_le_bytes());
                }
                for (lane, part) in lanes.chunks_exact_mut(lane).zip(&outgoing) {
                    copy_part(lane, input, part.clone(), &turn);
                }
            })?;
            for (other, part) in incoming.iter().enumerate() {
                let window = self.payload(other);
                let mut theirs = [0; 8];
                theirs.copy_from_slice(&window[rank * 8..rank * 8 + 8]);
                let theirs = u64::from_le_bytes(theirs);
                if theirs != part.len() as u64 {
                    return Err(self.header.lengths(other, theirs, part.len()).found());
                }
                let into = within(part, &turn);
                let at = to.len() * 8 + rank * lane;
                if other != rank {
                    let len = into.len();
                    data[into].copy_from_slice(&window[at..at + len]);
                }
            }
            start = turn.end;
            if start as u64 >= whole {
                return Ok(());
            }
        }
    }

    /// Bytes of a window for each rank that it is for, after a word for each.
    fn lane(&self) -> usize {
        ((self.room() - self.world * 8) / self.world / LINE * LINE).max(LINE)
    }
}

fn in_bytes(counts: &[usize], size: usize) -> Vec<usize> {
    counts.iter().map(|count| count * size).collect()
}

/// `len` in pieces of `each`; one that is empty for nothing, since all ranks must meet once.
fn pieces(len: usize, each: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..len.max(1)).step_by(each);
    starts.map(move |start| start..(start + each).min(len))
}

/// The bytes of `part` that this turn is about.
fn within(part: &Range<usize>, turn: &Range<usize>) -> Range<usize> {
    let at = |offset: usize| (part.start + offset).min(part.end);
    at(turn.start)..at(turn.end)
}

/// Puts what of `part` this turn is about to the front of `window`.
fn copy_part(window: &mut [u8], input: &[u8], part: Range<usize>, turn: &Range<usize>) {
    let part = within(&part, turn);
    window[..part.len()].copy_from_slice(&input[part]);
}
