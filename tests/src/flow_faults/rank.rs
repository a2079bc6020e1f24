//! A rank: it computes and calls, and does wrong what it is told to do wrong.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use odeon::Context;
use odeon::collective::{Algorithm, Collective, CollectiveError, Reduce};
use odeon::collective::{Board, Communicator, Membership, Report, Transport, Trouble};
use odeon::group::Seat;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::fault::{Fault, Order};

/// The processor on which the rank is that others disturb.
pub(crate) const PINNED: usize = 0;
/// A step: a wait, as for a device, and work of a processor.
const DEVICE: Duration = Duration::from_millis(40);
const WORK: Duration = Duration::from_millis(2);
/// The same of a rank that is slow.
const SLOW: Duration = Duration::from_millis(500);
/// Elements of a call.
const COUNT: usize = 4096;
/// The piece that a throttled transport sends at a time, and the pause after it.
const PIECE: usize = 2048;
const PAUSE: Duration = Duration::from_millis(30);
/// The time for which bytes are held back that have come.
const HELD: Duration = Duration::from_millis(150);
/// The sleep of a transport, once in so many sends.
const SLEEP: Duration = Duration::from_secs(1);
const SLEEP_ONE_IN: u64 = 16;

/// The number of its process.
#[derive(Clone)]
#[odeon::message(reply = u32)]
pub(crate) struct Pids;

/// Takes the seats of the four kinds and works until it is told to end.
#[derive(Clone)]
#[odeon::message]
pub(crate) struct Train {
    pub(crate) seats: Vec<Seat>,
    pub(crate) windows: bool,
    pub(crate) orders: String,
}

pub(crate) struct Rank {
    rank: odeon::Rank,
}

#[odeon::actor(name = "faults.Rank")]
impl Rank {
    fn start(rank: odeon::Rank) -> Self {
        Self { rank }
    }

    #[handler(message = Pids)]
    fn pid(&mut self, _: Pids) -> u32 {
        std::process::id()
    }

    #[handler(message = Train)]
    async fn train(&mut self, train: Train, cx: &mut Context<Self>) {
        let mut groups = vec![];
        for seat in &train.seats {
            let Ok(comm) = seat.take(cx) else { return };
            let way = Way::default();
            let comm = comm.into_inner();
            // The last group is of all, which would take thirty messages one behind the other.
            let is_all = groups.len() + 1 == train.seats.len();
            let comm = if train.windows || is_all {
                comm
            } else {
                comm.with_algorithm(Algorithm::Ring)
            };
            groups.push((way.clone(), comm.over(|inner| Faulty::new(inner, way))));
        }
        let mut steps = Steps {
            rank: self.rank.index(),
            groups,
            last: 0,
            draw: 1 + self.rank.index() as u64,
        };
        let orders = train.orders;
        let mut steps_on =
            move || while steps.step(Path::new(&orders)).is_ok_and(|goes_on| goes_on) {};
        // A failed call has told what it had to tell. A rank stays where it is then, as a program that hangs.
        odeon::block_in_place(|| {
            steps_on();
            pause(Duration::from_secs(600));
        });
    }
}

/// Waits, and looks at nothing meanwhile.
fn pause(time: Duration) {
    let until = now() + time;
    while let Some(left) = until
        .checked_duration_since(now())
        .filter(|it| !it.is_zero())
    {
        thread::park_timeout(left);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a rank has the time of its machine"
)]
fn now() -> Instant {
    Instant::now()
}

struct Steps<X> {
    rank: usize,
    groups: Vec<(Way, Communicator<Faulty<X>>)>,
    /// The number of the fault that it last did.
    last: u64,
    draw: u64,
}

impl<X: Transport> Steps<X> {
    /// One step; false when it is to end.
    fn step(&mut self, orders: &Path) -> Result<bool, CollectiveError> {
        let (mut fault, mut kind, mut is_new) = (None, 0, false);
        match Order::read(orders) {
            Ok(Order::End) => return Ok(false),
            Ok(Order::Begin {
                number,
                fault: it,
                rank,
                kind: at,
            }) if rank == self.rank => {
                is_new = std::mem::replace(&mut self.last, number) != number;
                (fault, kind) = (Some(it), at);
            }
            _ => {}
        }
        for (number, (way, _)) in self.groups.iter().enumerate() {
            let wrong = match fault {
                Some(Fault::Throttled) if number == kind => THROTTLED,
                Some(Fault::Delayed) if number == kind => DELAYED,
                Some(Fault::Sleeps) => SLEEPS,
                _ => FINE,
            };
            way.0.store(wrong, Ordering::Relaxed);
        }
        let pinned = (fault == Some(Fault::Load)).then_some(PINNED);
        bind(pinned);
        self.draw = self
            .draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let part = 0.8 + 0.4 * (self.draw >> 40) as f64 / (1_u64 << 24) as f64;
        if fault == Some(Fault::Load) {
            // As long as the device takes, where nobody else wants the processor.
            work(DEVICE.mul_f64(part));
        } else {
            pause(DEVICE.mul_f64(part));
        }
        work(WORK);
        if fault == Some(Fault::Slow) {
            pause(SLOW);
        }
        let mut order = [0, 1, 2, 3];
        if is_new && fault == Some(Fault::Swaps) {
            order.swap(2, 3);
        }
        for number in order {
            let at_this = is_new && number == kind;
            if at_this && fault == Some(Fault::Skips) {
                continue;
            }
            let more = usize::from(at_this && fault == Some(Fault::Differs));
            let mut data = vec![1.0; COUNT + more];
            self.groups[number].1.all_reduce(&mut data, Reduce::Mean)?;
        }
        Ok(true)
    }
}

/// Puts this thread on one processor, or on all.
fn bind(processor: Option<usize>) {
    let mut all = CpuSet::new();
    let count = thread::available_parallelism().map_or(1, usize::from);
    match processor {
        Some(one) => all.set(one),
        // As many as there may be.
        None => (0..count.max(64)).for_each(|it| all.set(it)),
    }
    let _ = sched_setaffinity(None, &all);
}

/// Work that takes so much time of a processor.
fn work(time: Duration) {
    let used = || {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
    };
    let until = used() + time;
    while used() < until {
        std::hint::spin_loop();
    }
}

/// Works until its starter is gone.
pub(crate) fn spin(processor: Option<usize>) -> anyhow::Result<()> {
    if processor.is_some() {
        bind(processor);
    }
    thread::spawn(|| {
        // Its end is that of the pipe.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    loop {
        work(WORK);
    }
}

const FINE: u8 = 0;
const THROTTLED: u8 = 1;
const DELAYED: u8 = 2;
const SLEEPS: u8 = 3;

/// The thing that is wrong with a transport at the moment.
#[derive(Clone, Debug, Default)]
struct Way(Arc<AtomicU8>);

/// A transport with which something may be wrong.
#[derive(Debug)]
struct Faulty<X> {
    inner: X,
    way: Way,
    /// Nothing leaves before.
    leaves: Instant,
    /// Nothing is taken before.
    arrives: Instant,
    sends: u64,
}

impl<X> Faulty<X> {
    fn new(inner: X, way: Way) -> Self {
        Self {
            inner,
            way,
            leaves: now(),
            arrives: now(),
            sends: 0,
        }
    }

    fn is(&self, wrong: u8) -> bool {
        self.way.0.load(Ordering::Relaxed) == wrong
    }
}

impl<X: Transport> Transport for Faulty<X> {
    fn membership(&self) -> &Membership {
        self.inner.membership()
    }

    fn send_some(&mut self, to: usize, bytes: &[u8]) -> Result<usize, Trouble> {
        if self.is(SLEEPS) {
            self.sends += 1;
            if self.sends.is_multiple_of(SLEEP_ONE_IN) {
                pause(SLEEP);
            }
        }
        if !self.is(THROTTLED) {
            return self.inner.send_some(to, bytes);
        }
        if now() < self.leaves {
            return Ok(0);
        }
        self.leaves = now() + PAUSE;
        self.inner.send_some(to, &bytes[..bytes.len().min(PIECE)])
    }

    fn receive_some(&mut self, from: usize, into: &mut [u8]) -> Result<usize, Trouble> {
        if self.is(DELAYED) {
            if now() < self.arrives {
                return Ok(0);
            }
            let got = self.inner.receive_some(from, into)?;
            if got > 0 {
                self.arrives = now() + HELD;
            }
            return Ok(got);
        }
        self.inner.receive_some(from, into)
    }

    fn wait(&mut self, to: &[usize], from: &[usize], until: Instant) -> Result<(), Trouble> {
        let held =
            |wrong, moment: Instant| self.is(wrong).then_some(moment).filter(|it| *it > now());
        let (leaves, arrives) = (held(THROTTLED, self.leaves), held(DELAYED, self.arrives));
        let to = if leaves.is_some() { &[] } else { to };
        let from = if arrives.is_some() { &[] } else { from };
        let until = until
            .min(leaves.unwrap_or(until))
            .min(arrives.unwrap_or(until));
        self.inner.wait(to, from, until)
    }

    fn under_way(&self, to: usize) -> usize {
        self.inner.under_way(to)
    }

    fn abort(&mut self, report: &Report) {
        self.inner.abort(report);
    }

    fn board(&mut self) -> Option<&mut dyn Board> {
        self.inner.board()
    }
}
