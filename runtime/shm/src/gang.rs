//! Memory in which the ranks of one node do collectives, and waiting in it.
//!
//! ```text
//!  head       identity, and the first report of a fault
//!  members    a line of words for each rank: who it is, its round, its bell
//!  queues     a byte ring from each rank to each other, one writer and one reader
//!  windows    two for each rank: written by it, read by all, odd and even rounds
//! ```
//!
//! Why nobody reads what another is writing:
//! - A window of round `k` is written before its rank announces `k`, and read after. It is written
//!   again in round `k + 2`, for which its rank has seen everybody announce `k + 1`, and whoever
//!   announces that has read what it wanted of round `k`: reading needs the same `&mut` as the next
//!   round.
//! - The bytes of a queue between tail and head belong to the reader, the others to the writer; each
//!   moves its own mark when it is done with the bytes.
//!
//! All processes that have joined are trusted to keep to that, as those that share an
//! [`Arena`](crate::Arena) are trusted to leave sealed regions alone.
//!
//! A rank waits a moment spinning, then asleep on a futex, and looks every few milliseconds whether
//! those it waits for still live.

use std::{
    fmt, io,
    ops::Range,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use odeon_collective::{
    Board, Fault, Membership, REPORT_BYTES_MAX, Report, Transport, Trouble, WINDOW_BYTES_MIN,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
    thread::futex,
};
use serde::{Deserialize, Serialize};

use crate::{
    MapError,
    mapping::Mapping,
    slab::{Purpose, SharedName, create_shared, open_shared},
};

/// Sizes of a [`Gang`]'s memory. It takes real memory as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GangOptions {
    /// Bytes of a window; each rank has two. Default 1 MiB: those of a few ranks fit into the cache
    /// that they share, and the time of a round is small beside that of its copies.
    pub window_bytes: usize,
    /// Bytes of the queue from each rank to each other. Default 128 KiB.
    pub queue_bytes: usize,
}

impl Default for GangOptions {
    fn default() -> Self {
        Self {
            window_bytes: 1 << 20,
            queue_bytes: 128 << 10,
        }
    }
}

/// The memory of a gang, kept by whoever made it until all ranks have joined.
#[derive(Debug)]
pub struct Gang {
    name: GangName,
    shape: Shape,
    mapping: Mapping,
    _fd: OwnedFd,
}

/// The name by which a process of the same machine joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangName {
    /// Process that made the memory.
    pub owner_pid: u32,
    /// The descriptor in that process.
    pub fd: i32,
    /// Random identity, also part of the memfd's name.
    pub gang: u64,
    /// Number of ranks on this node.
    pub world: u32,
    /// See [`GangOptions::window_bytes`].
    pub window_bytes: u64,
    /// See [`GangOptions::queue_bytes`].
    pub queue_bytes: u64,
}

/// Why a rank could not join a gang. The gang is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The memory cannot be had.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Another member has the rank. Each rank joins once.
    #[error("rank {rank} of gang {gang:016x} has joined already")]
    Taken {
        /// The rank.
        rank: usize,
        /// The gang.
        gang: u64,
    },
    /// The membership does not fit the gang.
    #[error("rank {rank} of {world} cannot join a gang of {ranks} on this node")]
    Misfit {
        /// The rank that was given.
        rank: usize,
        /// The number of ranks that was given.
        world: usize,
        /// The number of ranks that the gang has.
        ranks: u32,
    },
}

impl Gang {
    /// Memory for `world` ranks, all that are on this node.
    ///
    /// # Errors
    /// There is no rank, or too many for the sizes; or the system gives no memory or descriptor.
    pub fn create(world: usize, options: GangOptions) -> io::Result<Self> {
        let window = options.window_bytes.max(WINDOW_BYTES_MIN);
        let shape = Shape::new(world, window, options.queue_bytes.max(64)).ok_or_else(|| {
            let why = format!("a gang of {world} ranks with {options:?}");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let (fd, mapping, name) = create_shared(Purpose::Gang, shape.len)?;
        let name = GangName {
            owner_pid: name.owner_pid,
            fd: name.fd,
            gang: name.id,
            world: world as u32,
            window_bytes: shape.window as u64,
            queue_bytes: shape.queue as u64,
        };
        Ok(Self {
            name,
            shape,
            mapping,
            _fd: fd,
        })
    }

    /// The name by which others join, while this is kept.
    #[must_use]
    pub const fn name(&self) -> GangName {
        self.name
    }

    /// Ranks that have not joined yet.
    #[must_use]
    pub fn missing(&self) -> Vec<usize> {
        let joined = |rank: &usize| {
            let word = self.mapping.word(self.shape.member(*rank) + PID);
            word.load(Ordering::Acquire) != 0
        };
        (0..self.shape.world).filter(|rank| !joined(rank)).collect()
    }
}

/// Where everything lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    world: usize,
    window: usize,
    queue: usize,
    marks: usize,
    queues: usize,
    windows: usize,
    len: usize,
}

const PAGE: usize = 4096;
const LINE: usize = 64;
/// Of the head.
const FAULT_STATE: usize = 0;
const FAULT_LEN: usize = 8;
const FAULT_BYTES: usize = LINE;
const MEMBERS: usize = PAGE;
/// Of a member.
const PID: usize = 0;
const BORN: usize = 8;
const LEFT: usize = 16;
const ROUND: usize = LINE;
const ROUND_WAITERS: usize = LINE + 4;
const BELL: usize = 2 * LINE;
const BELL_WAITERS: usize = 2 * LINE + 4;
const MEMBER_BYTES: usize = 4 * LINE;
/// Of a queue's marks, each on a line of its own.
const HEAD_MARK: usize = 0;
const TAIL_MARK: usize = LINE;
const MARKS_BYTES: usize = 2 * LINE;

const _: () = assert!(FAULT_BYTES + REPORT_BYTES_MAX <= PAGE);

impl Shape {
    fn new(world: usize, window: usize, queue: usize) -> Option<Self> {
        u32::try_from(world).ok().filter(|world| *world > 0)?;
        let window = window.checked_next_multiple_of(PAGE)?;
        let queue = queue.checked_next_multiple_of(LINE)?;
        let pairs = world.checked_mul(world)?;
        let up = |end: usize| end.checked_next_multiple_of(PAGE);
        let marks = up(MEMBERS.checked_add(world.checked_mul(MEMBER_BYTES)?)?)?;
        let queues = up(marks.checked_add(pairs.checked_mul(MARKS_BYTES)?)?)?;
        let windows = up(queues.checked_add(pairs.checked_mul(queue)?)?)?;
        let each = window.checked_mul(2)?.checked_mul(world)?;
        // Beyond that it is a mistake.
        let len = windows.checked_add(each).filter(|len| *len <= 1 << 40)?;
        Some(Self {
            world,
            window,
            queue,
            marks,
            queues,
            windows,
            len,
        })
    }

    const fn member(&self, rank: usize) -> usize {
        MEMBERS + rank * MEMBER_BYTES
    }

    const fn marks(&self, from: usize, to: usize) -> usize {
        self.marks + (from * self.world + to) * MARKS_BYTES
    }

    const fn queue(&self, from: usize, to: usize) -> usize {
        self.queues + (from * self.world + to) * self.queue
    }

    const fn window(&self, rank: usize, side: usize) -> Range<usize> {
        let start = self.windows + (2 * rank + side) * self.window;
        start..start + self.window
    }
}

/// A rank's end of a gang: a transport with windows. When it is dropped, the others lose this rank.
pub struct Member {
    membership: Membership,
    /// Where each rank of this node has its lines, queues and windows; others have none.
    slots: Vec<Option<usize>>,
    shape: Shape,
    mapping: Arc<Mapping>,
    round: u32,
    /// Why there are no more rounds: after one that failed, others may still read.
    failed: Option<Trouble>,
    peers: Vec<Peer>,
    spins: u32,
}

/// The known state of another rank's process.
#[derive(Debug)]
enum Peer {
    Unknown,
    /// It ends with this one.
    Here,
    Alive(OwnedFd),
    Gone(String),
}

impl Member {
    /// Joins a gang as the rank of `membership`. The memory has room for the ranks that share its node;
    /// only with those this one can talk.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(name: &GangName, membership: Membership) -> Result<Self, JoinError> {
        let (rank, world) = (membership.rank, membership.world());
        let slots = slots(&membership);
        let near = slots.iter().flatten().count();
        let slot = slots.get(rank).copied().flatten();
        let size = |bytes: u64| usize::try_from(bytes).ok();
        let shape = size(name.window_bytes).zip(size(name.queue_bytes));
        let shape = shape.and_then(|(window, queue)| Shape::new(near, window, queue));
        let (Some(shape), Some(slot), true) = (shape, slot, near == name.world as usize) else {
            let ranks = name.world;
            return Err(JoinError::Misfit { rank, world, ranks });
        };
        let shared = SharedName {
            owner_pid: name.owner_pid,
            fd: name.fd,
            id: name.gang,
        };
        let mapping = open_shared(Purpose::Gang, shared, shape.len)?;
        let (pid, line) = (std::process::id(), shape.member(slot));
        mapping
            .word(line + BORN)
            .store(born(pid), Ordering::Release);
        let (gang, free) = (name.gang, 0);
        mapping
            .word(line + PID)
            .compare_exchange(free, u64::from(pid), Ordering::AcqRel, Ordering::Acquire)
            .map_err(|_| JoinError::Taken { rank, gang })?;
        // Where each rank has a processor, those that it waits for are at work now.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if near <= processors { 4000 } else { 50 };
        Ok(Self {
            membership,
            slots,
            shape,
            mapping: Arc::new(mapping),
            round: 0,
            failed: None,
            peers: (0..world).map(|_| Peer::Unknown).collect(),
            spins,
        })
    }

    /// Where a rank of this node has its part.
    #[track_caller]
    fn slot(&self, rank: usize) -> usize {
        self.slots[rank].expect("ranks of other nodes are reached in another way")
    }

    fn word(&self, rank: usize, offset: usize) -> &AtomicU64 {
        self.mapping
            .word(self.shape.member(self.slot(rank)) + offset)
    }

    fn word32(&self, rank: usize, offset: usize) -> &AtomicU32 {
        let line = self.shape.member(self.slot(rank));
        self.mapping.word32(line + offset)
    }

    fn has_come(&self, rank: usize, round: u32) -> bool {
        let theirs = self.word32(rank, ROUND).load(Ordering::Acquire);
        // Rounds wrap around, and no two ranks are more than one apart.
        theirs.wrapping_sub(round) as i32 >= 0
    }

    /// The ranks of this node.
    fn near(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(rank, slot)| slot.map(|_| rank))
    }

    /// Wakes this rank from any thread, when it waits.
    #[must_use]
    pub fn bell(&self) -> Bell {
        Bell {
            mapping: Arc::clone(&self.mapping),
            line: self.shape.member(self.slot(self.membership.rank)),
        }
    }

    /// [`Transport::wait`], unless `ready` says that something else has come, of which this rank's
    /// [`Bell`] is rung.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn wait_unless(
        &mut self,
        to: &[usize],
        from: &[usize],
        until: Instant,
        ready: impl FnOnce() -> Result<bool, Trouble>,
    ) -> Result<(), Trouble> {
        let rank = self.membership.rank;
        let seen = self.word32(rank, BELL).load(Ordering::SeqCst);
        self.told()?;
        if self.can_move(to, from)? || ready()? {
            return Ok(());
        }
        if let Err(trouble) = self.look_after(to).and_then(|()| self.look_after(from)) {
            // What one did before it went counts, also between the looks at its queue and at itself.
            return if self.can_move(to, from)? {
                Ok(())
            } else {
                Err(trouble)
            };
        }
        self.sleep(
            self.word32(rank, BELL),
            self.word32(rank, BELL_WAITERS),
            seen,
            until,
        );
        Ok(())
    }

    /// True when a queue to one of `to` has room, or one from one of `from` has bytes.
    fn can_move(&self, to: &[usize], from: &[usize]) -> Result<bool, Trouble> {
        let rank = self.membership.rank;
        for other in to {
            if self.queued(rank, *other)? < self.shape.queue {
                return Ok(true);
            }
        }
        for other in from {
            if self.queued(*other, rank)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first report of a fault.
    ///
    /// # Errors
    /// There is one.
    pub fn told(&self) -> Result<(), Trouble> {
        if self.mapping.word(FAULT_STATE).load(Ordering::Acquire) != TOLD {
            return Ok(());
        }
        let len = self.mapping.word(FAULT_LEN).load(Ordering::Relaxed) as usize;
        let len = len.min(REPORT_BYTES_MAX);
        // SAFETY: the state says that the report is written, and it is written once.
        let bytes = unsafe { self.mapping.bytes(FAULT_BYTES..FAULT_BYTES + len) };
        let report = Report::decode(bytes);
        Err(report.map_or_else(
            || {
                let (rank, why) = (self.membership.rank, "a report cannot be read".to_owned());
                Trouble::Found(Fault::Garbled { rank, why })
            },
            Trouble::Told,
        ))
    }

    /// Fails where one of these ranks is gone.
    fn look_after(&mut self, ranks: &[usize]) -> Result<(), Trouble> {
        for rank in ranks {
            if let Some(why) = self.gone(*rank) {
                // What it told before it went says more.
                self.told()?;
                return Err(Trouble::Found(Fault::Lost { rank: *rank, why }));
            }
        }
        Ok(())
    }

    /// Why a rank is gone, if it is.
    fn gone(&mut self, rank: usize) -> Option<String> {
        if self.word(rank, LEFT).load(Ordering::Acquire) != 0 {
            return Some("it has given up its membership".to_owned());
        }
        let pid = self.word(rank, PID).load(Ordering::Acquire) as u32;
        if pid != 0 && matches!(self.peers[rank], Peer::Unknown) {
            let born = self.word(rank, BORN).load(Ordering::Acquire);
            self.peers[rank] = Peer::find(pid, born);
        }
        match &self.peers[rank] {
            Peer::Unknown | Peer::Here => None,
            Peer::Gone(why) => Some(why.clone()),
            Peer::Alive(handle) if !has_exited(handle) => None,
            Peer::Alive(_) => {
                let why = format!("its process {pid} has ended");
                self.peers[rank] = Peer::Gone(why.clone());
                Some(why)
            }
        }
    }

    /// Sleeps until the word is no longer `seen`, it is `until`, or it is time to look around.
    fn sleep(&self, word: &AtomicU32, waiters: &AtomicU32, seen: u32, until: Instant) {
        for spin in 0..self.spins {
            if word.load(Ordering::Acquire) != seen {
                return;
            }
            if self.spins < 100 && spin % 8 == 7 {
                // Those that it waits for need the processor.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        let left = until.saturating_duration_since(now()).min(LOOK_AROUND);
        let Ok(timeout) = Timespec::try_from(left) else {
            return;
        };
        // Announced first: whoever changes the word after this sees the waiter, and who has changed
        // it before is seen by the comparison in the kernel.
        waiters.fetch_add(1, Ordering::SeqCst);
        // Woken, timed out, interrupted or changed meanwhile: the caller looks again in any case.
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
        waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes whoever sleeps on a word, which has been changed.
    fn wake(word: &AtomicU32, waiters: &AtomicU32) {
        if waiters.load(Ordering::SeqCst) > 0 {
            // A word that is mapped cannot fail to wake.
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    fn ring(&self, rank: usize) {
        ring(&self.mapping, self.shape.member(self.slot(rank)));
    }

    /// The marks of the queue between two ranks: bytes written and read so far.
    fn marks(&self, from: usize, to: usize) -> (&AtomicU64, &AtomicU64) {
        let at = self.shape.marks(self.slot(from), self.slot(to));
        (
            self.mapping.word(at + HEAD_MARK),
            self.mapping.word(at + TAIL_MARK),
        )
    }

    /// Bytes in the queue between two ranks.
    fn queued(&self, from: usize, to: usize) -> Result<usize, Trouble> {
        let (head, tail) = self.marks(from, to);
        let head = head.load(Ordering::Acquire);
        let queued = head.wrapping_sub(tail.load(Ordering::Acquire));
        if queued <= self.shape.queue as u64 {
            return Ok(queued as usize);
        }
        let is_own = from == self.membership.rank;
        let rank = if is_own { to } else { from };
        let why = "the marks of its queue are damaged".to_owned();
        Err(Trouble::Found(Fault::Garbled { rank, why }))
    }

    /// Where `len` bytes from a mark on lie, in two pieces at most.
    fn pieces(&self, from: usize, to: usize, mark: u64, len: usize) -> [Range<usize>; 2] {
        let start = self.shape.queue(self.slot(from), self.slot(to));
        let at = (mark % self.shape.queue as u64) as usize;
        let first = len.min(self.shape.queue - at);
        [start + at..start + at + first, start..start + len - first]
    }

    /// Waits until all ranks have come to a round.
    fn meet(&mut self, round: u32, until: Instant) -> Result<(), Trouble> {
        let mut begun = None;
        loop {
            let missing: Vec<usize> = self
                .near()
                .filter(|other| !self.has_come(*other, round))
                .collect();
            // All have come, whatever has become of one since: what it wrote for this round stands.
            let Some(first) = missing.first() else {
                return Ok(());
            };
            self.told()?;
            let begun = *begun.get_or_insert_with(now);
            if let Err(trouble) = self.look_after(&missing) {
                // One may have come, and have gone since, between the looks at its round and at it.
                if missing.iter().any(|other| self.has_come(*other, round)) {
                    continue;
                }
                return Err(trouble);
            }
            if now() >= until {
                let waited = until.saturating_duration_since(begun);
                let ranks = missing;
                return Err(Trouble::Found(Fault::Missing { ranks, waited }));
            }
            let word = self.word32(*first, ROUND);
            let seen = word.load(Ordering::SeqCst);
            if !self.has_come(*first, round) {
                self.sleep(word, self.word32(*first, ROUND_WAITERS), seen, until);
            }
        }
    }
}

/// The ranks of this one's node in their order, by rank.
fn slots(membership: &Membership) -> Vec<Option<usize>> {
    let (me, topology) = (membership.rank, &membership.topology);
    if me >= topology.world() {
        return vec![];
    }
    let mut free = 0..;
    (0..topology.world())
        .map(|rank| topology.near(me, rank).then(|| free.next()).flatten())
        .collect()
}

impl Transport for Member {
    fn membership(&self) -> &Membership {
        &self.membership
    }

    fn send_some(&mut self, to: usize, bytes: &[u8]) -> Result<usize, Trouble> {
        self.told()?;
        let rank = self.membership.rank;
        let len = bytes.len().min(self.shape.queue - self.queued(rank, to)?);
        if len == 0 {
            return Ok(0);
        }
        let (head, _) = self.marks(rank, to);
        let mark = head.load(Ordering::Relaxed);
        let mut rest = &bytes[..len];
        for piece in self.pieces(rank, to, mark, len) {
            let (now, later) = rest.split_at(piece.len());
            // SAFETY: these bytes lie beyond the head, so they are this writer's until it moves it.
            unsafe { self.mapping.bytes_mut(piece) }.copy_from_slice(now);
            rest = later;
        }
        head.store(mark.wrapping_add(len as u64), Ordering::Release);
        self.ring(to);
        Ok(len)
    }

    fn receive_some(&mut self, from: usize, into: &mut [u8]) -> Result<usize, Trouble> {
        self.told()?;
        let rank = self.membership.rank;
        let len = into.len().min(self.queued(from, rank)?);
        if len == 0 {
            return Ok(0);
        }
        let (_, tail) = self.marks(from, rank);
        let mark = tail.load(Ordering::Relaxed);
        let mut rest = &mut into[..len];
        for piece in self.pieces(from, rank, mark, len) {
            let (now, later) = rest.split_at_mut(piece.len());
            // SAFETY: these bytes lie between tail and head, so they are this reader's until it
            // moves the tail.
            now.copy_from_slice(unsafe { self.mapping.bytes(piece) });
            rest = later;
        }
        tail.store(mark.wrapping_add(len as u64), Ordering::Release);
        self.ring(from);
        Ok(len)
    }

    fn wait(&mut self, to: &[usize], from: &[usize], until: Instant) -> Result<(), Trouble> {
        self.wait_unless(to, from, until, || Ok(false))
    }

    fn under_way(&self, to: usize) -> usize {
        self.queued(self.membership.rank, to).unwrap_or(0)
    }

    fn abort(&mut self, report: &Report) {
        let state = self.mapping.word(FAULT_STATE);
        let mine = state.compare_exchange(QUIET, TELLING, Ordering::AcqRel, Ordering::Acquire);
        if mine.is_ok() {
            let bytes = report.encode();
            let len = bytes.len().min(REPORT_BYTES_MAX);
            // SAFETY: the state was quiet, and is this rank's until it says that all is written.
            unsafe { self.mapping.bytes_mut(FAULT_BYTES..FAULT_BYTES + len) }
                .copy_from_slice(&bytes[..len]);
            self.mapping
                .word(FAULT_LEN)
                .store(len as u64, Ordering::Relaxed);
            state.store(TOLD, Ordering::Release);
        }
        for rank in self.near() {
            self.ring(rank);
            Self::wake(self.word32(rank, ROUND), self.word32(rank, ROUND_WAITERS));
        }
    }

    fn board(&mut self) -> Option<&mut dyn Board> {
        let all_near = self.slots.iter().all(Option::is_some);
        all_near.then_some(self as &mut dyn Board)
    }
}

impl Board for Member {
    fn window_bytes(&self) -> usize {
        self.shape.window
    }

    fn round(&mut self, write: &mut dyn FnMut(&mut [u8]), until: Instant) -> Result<(), Trouble> {
        if let Some(trouble) = &self.failed {
            return Err(trouble.clone());
        }
        // Who comes late is not waited for any more, though all others have come.
        self.told()?;
        let (rank, round) = (self.membership.rank, self.round.wrapping_add(1));
        let mine = self.shape.window(self.slot(rank), side(round));
        // SAFETY: all ranks have come to the round before, so nobody reads what was written two
        // rounds before; nobody else writes this rank's windows.
        write(unsafe { self.mapping.bytes_mut(mine) });
        self.round = round;
        self.word32(rank, ROUND).store(round, Ordering::SeqCst);
        Self::wake(self.word32(rank, ROUND), self.word32(rank, ROUND_WAITERS));
        let met = self.meet(round, until);
        self.failed = met.clone().err();
        met
    }

    fn window(&self, rank: usize) -> &[u8] {
        // SAFETY: its rank has announced this round, and writes this window again only after all
        // have announced the next one, which this rank does by a call that ends this borrow.
        unsafe {
            self.mapping
                .bytes(self.shape.window(self.slot(rank), side(self.round)))
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let rank = self.membership.rank;
        self.word(rank, LEFT).store(1, Ordering::Release);
        for other in self.near() {
            self.ring(other);
        }
        Self::wake(self.word32(rank, ROUND), self.word32(rank, ROUND_WAITERS));
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("membership", &self.membership)
            .field("round", &self.round)
            .finish_non_exhaustive()
    }
}

/// A bell that wakes a rank waiting in its gang's memory, from any thread of any process.
pub struct Bell {
    mapping: Arc<Mapping>,
    /// The member's.
    line: usize,
}

impl Bell {
    /// Wakes it.
    pub fn ring(&self) {
        ring(&self.mapping, self.line);
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").finish_non_exhaustive()
    }
}

/// Rings the bell of the member at `line`.
fn ring(mapping: &Mapping, line: usize) {
    let bell = mapping.word32(line + BELL);
    bell.fetch_add(1, Ordering::SeqCst);
    Member::wake(bell, mapping.word32(line + BELL_WAITERS));
}

impl Peer {
    /// A handle of a process that began at `born`; its number may be another's by now.
    fn find(pid: u32, born_at: u64) -> Self {
        if pid == std::process::id() {
            return Self::Here;
        }
        let gone = || Self::Gone(format!("its process {pid} has ended"));
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return gone();
        };
        match pidfd_open(id, PidfdFlags::empty()) {
            Ok(handle) if born(pid) == born_at => Self::Alive(handle),
            Ok(_) | Err(Errno::SRCH) => gone(),
            // Too many descriptors, say: it is tried again, and the deadline holds in any case.
            Err(_) => Self::Unknown,
        }
    }
}

/// A process that has exited and was not reaped yet counts as well.
fn has_exited(handle: &OwnedFd) -> bool {
    let mut exited = [PollFd::new(handle, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut exited, Some(&at_once)), Ok(1..))
}

/// When a process began, in ticks since the machine did; 0 when it is gone.
fn born(pid: u32) -> u64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return 0;
    };
    // The name, in parentheses, may hold anything. The time is the twentieth field after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields
        .split_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok())
        .unwrap_or(0)
}

const fn side(round: u32) -> usize {
    (round % 2) as usize
}

/// States of the report.
const QUIET: u64 = 0;
const TELLING: u64 = 1;
const TOLD: u64 = 2;

/// The longest sleep before it is looked who is gone.
const LOOK_AROUND: Duration = Duration::from_millis(10);

#[expect(
    clippy::disallowed_methods,
    reason = "a call that blocks its thread has a real deadline"
)]
fn now() -> Instant {
    Instant::now()
}
