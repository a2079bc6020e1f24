//! Bounded queues of bytes between ranks: alone, a gang in one process; with a pump at each end,
//! whatever carries bytes between processes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::communicator::now;
use super::error::{Fault, Report};
use super::schedule::Topology;
use super::transport::{Board, Membership, Transport, Trouble};

/// Bytes that a queue holds before its writer has to wait: several blocks, so that both sides work.
pub const QUEUE_BYTES: usize = 256 << 10;

/// All ranks of a gang in this process, in rank order.
#[must_use]
pub fn gang(topology: &Topology, generation: u64) -> Vec<Queues> {
    gang_with(topology, generation, QUEUE_BYTES, None)
}

/// [`gang`] with windows of this size, as where ranks share memory.
#[must_use]
pub fn gang_with_board(topology: &Topology, generation: u64, window_bytes: usize) -> Vec<Queues> {
    gang_with(topology, generation, QUEUE_BYTES, Some(window_bytes))
}

/// [`gang`] with queues of this size.
#[must_use]
pub fn gang_of_queues(topology: &Topology, generation: u64, queue_bytes: usize) -> Vec<Queues> {
    gang_with(topology, generation, queue_bytes.max(1), None)
}

fn gang_with(
    topology: &Topology,
    generation: u64,
    queue_bytes: usize,
    window_bytes: Option<usize>,
) -> Vec<Queues> {
    static GANGS: AtomicU64 = AtomicU64::new(1);
    let world = topology.world();
    let gang = GANGS.fetch_add(1, Ordering::Relaxed);
    let bells: Vec<Arc<Bell>> = (0..world).map(|_| Arc::default()).collect();
    let pipes: Vec<Vec<Arc<Pipe>>> = (0..world)
        .map(|from| {
            (0..world)
                .map(|to| {
                    Pipe::new(
                        queue_bytes,
                        Arc::clone(&bells[from]),
                        Arc::clone(&bells[to]),
                    )
                })
                .collect()
        })
        .collect();
    let boards = window_bytes.map(|bytes| Arc::new(Boards::new(world, bytes)));
    (0..world)
        .map(|rank| Queues {
            membership: Membership {
                rank,
                generation,
                gang,
                topology: topology.clone(),
            },
            bell: Arc::clone(&bells[rank]),
            out: pipes[rank].clone(),
            incoming: pipes.iter().map(|row| Arc::clone(&row[rank])).collect(),
            board: boards.as_ref().map(|boards| BoardEnd::new(boards, rank)),
        })
        .collect()
}

/// A signal that wakes one thread, and the first report that it was told.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<Rung>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    times: u64,
    told: Option<Report>,
}

impl Bell {
    pub(super) fn ring(&self) {
        self.rung.lock().times += 1;
        self.wake.notify_all();
    }

    /// Keeps the first report.
    pub(super) fn tell(&self, report: &Report) {
        let mut rung = self.rung.lock();
        rung.told.get_or_insert_with(|| report.clone());
        rung.times += 1;
        drop(rung);
        self.wake.notify_all();
    }

    pub(super) fn told(&self) -> Option<Report> {
        self.rung.lock().told.clone()
    }

    pub(super) fn times(&self) -> u64 {
        self.rung.lock().times
    }

    /// Waits until it was rung more than `times`.
    pub(super) fn wait(&self, times: u64, until: Option<Instant>) {
        let mut rung = self.rung.lock();
        while rung.times == times {
            match until {
                Some(until) => {
                    if self.wake.wait_until(&mut rung, until).timed_out() {
                        return;
                    }
                }
                None => self.wake.wait(&mut rung),
            }
        }
    }
}

/// Bytes from one side to the other.
pub(super) struct Pipe {
    state: Mutex<State>,
    capacity: usize,
    /// Rung when there is room.
    writer: Arc<Bell>,
    /// Rung when there are bytes.
    reader: Arc<Bell>,
}

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    closed: Option<String>,
}

impl Pipe {
    pub(super) fn new(capacity: usize, writer: Arc<Bell>, reader: Arc<Bell>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            capacity,
            writer,
            reader,
        })
    }

    /// Takes what there is room for; the reason when it is closed.
    pub(super) fn write_some(&self, bytes: &[u8]) -> Result<usize, String> {
        let mut state = self.state.lock();
        if let Some(why) = &state.closed {
            return Err(why.clone());
        }
        let taken = bytes.len().min(self.capacity - state.bytes.len());
        state.bytes.extend(&bytes[..taken]);
        drop(state);
        if taken > 0 {
            self.reader.ring();
        }
        Ok(taken)
    }

    /// Gives what there is; the reason when it is closed and empty.
    pub(super) fn read_some(&self, into: &mut [u8]) -> Result<usize, String> {
        let mut state = self.state.lock();
        let given = into.len().min(state.bytes.len());
        if given == 0 {
            return match &state.closed {
                Some(why) => Err(why.clone()),
                None => Ok(0),
            };
        }
        let (front, back) = state.bytes.as_slices();
        let first = given.min(front.len());
        into[..first].copy_from_slice(&front[..first]);
        into[first..given].copy_from_slice(&back[..given - first]);
        state.bytes.drain(..given);
        drop(state);
        self.writer.ring();
        Ok(given)
    }

    /// No more bytes; those that are there can still be read.
    pub(super) fn close(&self, why: &str) {
        let mut state = self.state.lock();
        state.closed.get_or_insert_with(|| why.to_owned());
        drop(state);
        self.writer.ring();
        self.reader.ring();
    }

    fn len(&self) -> usize {
        self.state.lock().bytes.len()
    }

    fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.closed.is_some() || state.bytes.len() < self.capacity
    }

    fn has_bytes(&self) -> bool {
        let state = self.state.lock();
        state.closed.is_some() || !state.bytes.is_empty()
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// A rank's queues to and from all others. When it is dropped, the others lose this rank.
#[derive(Debug)]
pub struct Queues {
    membership: Membership,
    bell: Arc<Bell>,
    out: Vec<Arc<Pipe>>,
    incoming: Vec<Arc<Pipe>>,
    board: Option<BoardEnd>,
}

impl Queues {
    /// From pipes whose other ends pumps serve.
    pub(super) const fn from_pipes(
        membership: Membership,
        bell: Arc<Bell>,
        out: Vec<Arc<Pipe>>,
        incoming: Vec<Arc<Pipe>>,
    ) -> Self {
        Self {
            membership,
            bell,
            out,
            incoming,
            board: None,
        }
    }

    fn trouble(&self) -> Result<(), Trouble> {
        match self.bell.told() {
            Some(report) => Err(Trouble::Told(report)),
            None => Ok(()),
        }
    }
}

fn lost(rank: usize, why: String) -> Trouble {
    Fault::Lost { rank, why }.found()
}

impl Transport for Queues {
    fn membership(&self) -> &Membership {
        &self.membership
    }

    fn send_some(&mut self, to: usize, bytes: &[u8]) -> Result<usize, Trouble> {
        self.trouble()?;
        self.out[to].write_some(bytes).map_err(|why| lost(to, why))
    }

    fn receive_some(&mut self, from: usize, into: &mut [u8]) -> Result<usize, Trouble> {
        self.trouble()?;
        if into.is_empty() {
            return Ok(0);
        }
        let pipe = &self.incoming[from];
        pipe.read_some(into).map_err(|why| lost(from, why))
    }

    fn wait(&mut self, to: &[usize], from: &[usize], until: Instant) -> Result<(), Trouble> {
        let times = self.bell.times();
        self.trouble()?;
        let ready = to.iter().any(|to| self.out[*to].has_room())
            || from.iter().any(|from| self.incoming[*from].has_bytes());
        if !ready {
            self.bell.wait(times, Some(until));
        }
        Ok(())
    }

    fn under_way(&self, to: usize) -> usize {
        self.out[to].len()
    }

    fn abort(&mut self, report: &Report) {
        for (rank, pipe) in self.out.iter().enumerate() {
            if rank != self.membership.rank {
                pipe.reader.tell(report);
            }
        }
        if let Some(end) = &self.board {
            end.all.tell(report);
        }
    }

    fn board(&mut self) -> Option<&mut dyn Board> {
        self.board.as_mut().map(|board| board as &mut dyn Board)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        const WHY: &str = "it has given up its membership";
        for pipe in self.out.iter().chain(&self.incoming) {
            pipe.close(WHY);
        }
        if let Some(end) = &self.board {
            end.all.state.lock().left[end.rank] = true;
            end.all.moved.notify_all();
        }
    }
}

/// The windows of a gang in one process.
#[derive(Debug)]
struct Boards {
    state: Mutex<BoardState>,
    moved: Condvar,
    window_bytes: usize,
}

#[derive(Debug)]
struct BoardState {
    rounds: Vec<u64>,
    left: Vec<bool>,
    /// Of odd and of even rounds, by rank.
    windows: [Vec<Arc<[u8]>>; 2],
    told: Option<Report>,
}

impl Boards {
    fn new(world: usize, window_bytes: usize) -> Self {
        let empty: Vec<Arc<[u8]>> = vec![Arc::from([]); world];
        Self {
            state: Mutex::new(BoardState {
                rounds: vec![0; world],
                left: vec![false; world],
                windows: [empty.clone(), empty],
                told: None,
            }),
            moved: Condvar::new(),
            window_bytes,
        }
    }

    fn tell(&self, report: &Report) {
        self.state.lock().told.get_or_insert_with(|| report.clone());
        self.moved.notify_all();
    }
}

/// One rank's end of them.
#[derive(Debug)]
struct BoardEnd {
    all: Arc<Boards>,
    rank: usize,
    seen: Vec<Arc<[u8]>>,
}

impl BoardEnd {
    fn new(all: &Arc<Boards>, rank: usize) -> Self {
        Self {
            all: Arc::clone(all),
            rank,
            seen: vec![],
        }
    }
}

impl Board for BoardEnd {
    fn window_bytes(&self) -> usize {
        self.all.window_bytes
    }

    fn round(&mut self, write: &mut dyn FnMut(&mut [u8]), until: Instant) -> Result<(), Trouble> {
        let mut window = vec![0; self.all.window_bytes];
        write(&mut window);
        let begun = now();
        let mut state = self.all.state.lock();
        // Who comes late is not waited for any more, though all others have come.
        if let Some(report) = &state.told {
            return Err(Trouble::Told(report.clone()));
        }
        state.rounds[self.rank] += 1;
        let round = state.rounds[self.rank];
        let side = usize::from(round.is_multiple_of(2));
        state.windows[side][self.rank] = window.into();
        self.all.moved.notify_all();
        loop {
            let missing: Vec<usize> = (0..state.rounds.len())
                .filter(|rank| state.rounds[*rank] < round)
                .collect();
            if missing.is_empty() {
                self.seen.clone_from(&state.windows[side]);
                return Ok(());
            }
            if let Some(report) = &state.told {
                return Err(Trouble::Told(report.clone()));
            }
            if let Some(rank) = missing.iter().find(|rank| state.left[**rank]) {
                return Err(lost(*rank, "it has given up its membership".to_owned()));
            }
            if self.all.moved.wait_until(&mut state, until).timed_out() && now() >= until {
                let waited = until.saturating_duration_since(begun);
                return Err(Fault::Missing {
                    ranks: missing,
                    waited,
                }
                .found());
            }
        }
    }

    fn window(&self, rank: usize) -> &[u8] {
        &self.seen[rank]
    }
}
