//! State machines of ranks that do collectives in nested groups, one of which has a fault or none.
//!
//! A rank computes for 20 ms, give or take, and then calls along `tp`, `pp` and `dp` and with all others, over and over.
//! A call ends 2 ms after the last of its group has come. Looks are taken once a second, beats every 100 ms at an offset
//! of each rank.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use odeon_collective::{
    Algorithm, CallState, CollectiveCall, ElementType, FlowLabel, FlowMember, FlowPlace,
    FlowProgress, Operation, Reduce,
};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::{GroupLook, RankLook, RankWindow};

/// The sizes of a job's dimensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) tp: usize,
    pub(super) pp: usize,
    pub(super) dp: usize,
}

/// A fault of one rank, from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Injected {
    Nothing,
    /// It computes so many times as long.
    Slow(u32),
    /// The same, and its thread has no processor meanwhile.
    Starved(u32),
    /// Its bytes leave it late in groups of this kind.
    Throttled(usize),
    /// Bytes for it arrive late in groups of this kind.
    Delayed(usize),
    Stopped,
    /// It leaves out one call of this kind.
    Skips(usize),
    /// It calls with all before it calls along `dp`.
    Swaps,
    /// One of its calls of this kind has another size.
    Differs(usize),
}

const KINDS: [&str; 4] = ["tp", "pp", "dp", "all"];
const CALL_S: f64 = 0.002;
const COMPUTE_S: f64 = 0.02;
const LATE_S: f64 = 0.3;

/// A call of a rank.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: f64,
    /// When the last of the group had come.
    ready: f64,
    end: f64,
    sequence: u64,
    state: CallState,
    count: u64,
}

/// A rank that has come to a call, when, and the elements of its call.
type Arrival = (usize, f64, u64);

pub(super) struct SimulatedJob {
    pub(super) shape: Shape,
    pub(super) windows: bool,
    pub(super) fault: Injected,
    pub(super) culprit: usize,
    pub(super) from: f64,
    /// The spread of the times of computing: 0.1 for a tenth.
    pub(super) spread: f64,
    phase: Vec<f64>,
    /// By rank and kind.
    spans: Vec<[Vec<Span>; 4]>,
}

struct RankAt {
    time: f64,
    step: u64,
    place: usize,
    launched: [u64; 4],
    failed: bool,
}

impl SimulatedJob {
    /// A job of ranks of which one has a fault `from` a second on, up to another second.
    pub(super) fn run(
        shape: Shape,
        windows: bool,
        (fault, culprit, from): (Injected, usize, f64),
        spread: f64,
        until: f64,
        seed: u64,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let world = shape.tp * shape.pp * shape.dp;
        let mut job = Self {
            shape,
            windows,
            fault,
            culprit,
            from,
            spread,
            phase: (0..world).map(|_| rng.random_range(0.0..0.1)).collect(),
            spans: vec![Default::default(); world],
        };
        job.play(until, &mut rng);
        job
    }

    fn world(&self) -> usize {
        self.spans.len()
    }

    /// The group of a rank along a dimension: its number, the rank in it, and its ranks.
    fn group(&self, rank: usize, kind: usize) -> (u64, usize, Vec<usize>) {
        let Shape { tp, pp, dp } = self.shape;
        let (t, p, d) = (rank % tp, rank / tp % pp, rank / tp / pp);
        let at = |t: usize, p: usize, d: usize| (d * pp + p) * tp + t;
        let (key, own, ranks): (usize, usize, Vec<usize>) = match kind {
            0 => (at(0, p, d), t, (0..tp).map(|t| at(t, p, d)).collect()),
            1 => (at(t, 0, d), p, (0..pp).map(|p| at(t, p, d)).collect()),
            2 => (at(t, p, 0), d, (0..dp).map(|d| at(t, p, d)).collect()),
            _ => (0, rank, (0..self.world()).collect()),
        };
        ((kind * self.world() + key) as u64, own, ranks)
    }

    fn play(&mut self, until: f64, rng: &mut ChaCha8Rng) {
        let world = self.world();
        let mut ranks: Vec<RankAt> = (0..world)
            .map(|_| RankAt {
                time: 0.0,
                step: 0,
                place: 0,
                launched: [0; 4],
                failed: false,
            })
            .collect();
        let mut came: HashMap<(u64, u64), Vec<Arrival>> = HashMap::new();
        // The step in which what happens once happens.
        let mut once: Option<u64> = None;
        let mut work: VecDeque<usize> = (0..world).collect();
        while let Some(rank) = work.pop_front() {
            let is_culprit = rank == self.culprit;
            let it = &mut ranks[rank];
            if it.time > until || it.failed {
                continue;
            }
            let is_late = is_culprit && it.time >= self.from;
            if it.place == 0 {
                let mut compute = COMPUTE_S * (1.0 + self.spread * rng.random_range(-1.0..1.0));
                if is_late && let Injected::Slow(times) | Injected::Starved(times) = self.fault {
                    compute *= f64::from(times);
                }
                it.time += compute.max(0.0);
                it.step += 1;
                it.place = 1;
                if is_late && once.is_none() {
                    once = Some(it.step);
                }
                work.push_front(rank);
                continue;
            }
            if is_late && self.fault == Injected::Stopped {
                continue;
            }
            let now = is_late && once == Some(it.step);
            let kind = match (self.fault, it.place - 1) {
                (Injected::Swaps, 2) if now => 3,
                (Injected::Swaps, 3) if now => 2,
                (_, kind) => kind,
            };
            it.place = (it.place + 1) % 5;
            if now && self.fault == Injected::Skips(kind) {
                work.push_front(rank);
                continue;
            }
            it.launched[kind] += 1;
            let (sequence, time) = (it.launched[kind], it.time);
            let count = 100 + kind as u64 + u64::from(now && self.fault == Injected::Differs(kind));
            let (group, _, all) = self.group(rank, kind);
            let here = came.entry((group, sequence)).or_default();
            here.push((rank, time, count));
            self.spans[rank][kind].push(Span {
                begin: time,
                ready: f64::INFINITY,
                end: f64::INFINITY,
                sequence,
                state: CallState::UnderWay,
                count,
            });
            if here.len() < all.len() {
                continue;
            }
            let here = came.remove(&(group, sequence)).unwrap();
            let (end, agree) = self.end(kind, &all, &here);
            for member in all {
                ranks[member].time = end;
                ranks[member].failed = !agree;
                work.push_back(member);
            }
        }
    }

    /// Ends a call to which all have come: when, and whether it was the same call.
    fn end(&mut self, kind: usize, all: &[usize], here: &[Arrival]) -> (f64, bool) {
        let ready = here.iter().map(|it| it.1).fold(0.0, f64::max);
        let agree = here.iter().all(|it| it.2 == here[0].2);
        let has_culprit = all.contains(&self.culprit) && ready >= self.from && all.len() > 1;
        let is_slow = has_culprit
            && matches!(self.fault, Injected::Throttled(at) | Injected::Delayed(at) if at == kind);
        let end = ready + CALL_S + if is_slow { LATE_S } else { 0.0 };
        for member in all {
            let span = self.spans[*member][kind].last_mut().unwrap();
            (span.ready, span.end) = (ready, end);
            span.state = if agree {
                CallState::Completed
            } else {
                CallState::Failed
            };
        }
        (end, agree)
    }

    fn progress(&self, rank: usize, kind: usize, span: &Span, at: f64) -> FlowProgress {
        if self.windows {
            return FlowProgress {
                to: None,
                from: None,
                produced: 1,
                sent: 1,
                taken: 0,
            };
        }
        let (_, own, all) = self.group(rank, kind);
        let world = all.len();
        let next = all[(own + 1) % world];
        let moves = at >= span.ready;
        let (sent, taken) = match self.fault {
            Injected::Throttled(it) if it == kind && moves && rank == self.culprit => (5, 5),
            Injected::Delayed(it) if it == kind && moves && next == self.culprit => (9, 5),
            _ if moves => (9, 9),
            _ => {
                let theirs = self.spans[next][kind].get(span.sequence as usize - 1);
                let is_there = theirs.is_some_and(|it| it.begin <= at);
                (9, if is_there { 9 } else { 5 })
            }
        };
        FlowProgress {
            to: Some(((own + 1) % world) as u32),
            from: Some(((own + world - 1) % world) as u32),
            produced: 9,
            sent,
            taken,
        }
    }

    /// The look at a rank that is taken at this second.
    pub(super) fn look(&self, rank: usize, second: u32) -> RankLook {
        let end = f64::from(second);
        let stopped = match self.fault {
            Injected::Stopped if rank == self.culprit => self.from,
            _ => f64::INFINITY,
        };
        let beats: Vec<f64> = (0..10)
            .map(|it| end - 1.0 + f64::from(it) * 0.1 + self.phase[rank])
            .filter(|at| *at < stopped)
            .collect();
        let groups = (0..4).filter_map(|kind| {
            let spans = &self.spans[rank][kind];
            let shown = end.min(stopped);
            let last = spans.iter().rposition(|it| it.begin <= shown)?;
            let mut stages = [0; 4];
            for at in &beats {
                let place = spans.partition_point(|it| it.begin <= *at);
                let under_way = spans[..place].last().filter(|it| it.end > *at);
                if let Some(span) = under_way {
                    stages[self.progress(rank, kind, span, *at).stage() as usize] += 1;
                }
            }
            let (group, own, all) = self.group(rank, kind);
            let it = &spans[last];
            let ended = |it: &&Span| it.state == CallState::Completed && it.end <= end;
            let completed = spans[..=last].iter().filter(ended);
            let call = |it: &Span| CollectiveCall {
                operation: Operation::AllReduce,
                element: ElementType::F32,
                reduce: Some(Reduce::Sum),
                algorithm: Algorithm::Ring,
                peer: 0,
                count: it.count,
                layout: 0,
            };
            Some(GroupLook {
                place: FlowPlace {
                    member: FlowMember {
                        home: 1,
                        serial: rank as u64,
                    },
                    group,
                    label: FlowLabel::new(KINDS[kind]),
                    rank: own as u32,
                    world: all.len() as u32,
                },
                launched: it.sequence,
                completed: completed.filter(|it| it.end > end - 1.0).count() as u32,
                state: if it.end <= shown {
                    it.state
                } else {
                    CallState::UnderWay
                },
                sequence: it.sequence,
                progress: self.progress(rank, kind, it, shown),
                age: Duration::from_secs_f64(end - it.begin),
                stages,
                calls: spans[last.saturating_sub(3)..=last]
                    .iter()
                    .map(|it| (it.sequence, call(it)))
                    .collect(),
            })
        });
        let starves = rank == self.culprit && matches!(self.fault, Injected::Starved(_));
        RankLook {
            member: FlowMember {
                home: 1,
                serial: rank as u64,
            },
            silent: Duration::from_secs_f64((end - stopped).max(0.05)),
            beats: beats.len() as u32,
            starved: Duration::from_secs_f64(if starves && end > self.from { 0.8 } else { 0.0 }),
            lost: 0,
            groups: groups.collect(),
        }
    }

    /// Windows of all ranks before any look.
    pub(super) fn ranks(&self) -> Vec<RankWindow> {
        let member = |serial| FlowMember { home: 1, serial };
        let ranks = 0..self.world() as u64;
        ranks
            .map(|rank| RankWindow::new(member(rank), Duration::ZERO))
            .collect()
    }
}
