//! The bubbles of a pipeline of four stages, each a thread that trains its layers: `cargo bench -p odeon-algorithms
//! --bench pipeline`.
//!
//! A step is run twice under each order of passes. At first all ranks compute at once, on as many processors as there
//! are: the first column of the table is what is seen then. Then they compute one at a time, so that each pass has the
//! processor for itself; what each takes makes the timeline of ranks with a device each. A pass begins there when its
//! rank is free and its rows have come. Beside that stands what the schedule asks for where each pass of a stage takes
//! as long as the mean of its kind, as `odeon pipeline` does.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use odeon_algorithms::model::{
    Batch, Model, ModelConfig, PassGroups, Sequence, StageGroups, StageLetter, StageLinks,
    TokenScores,
};
use odeon_algorithms::train::{
    Peers, PipelineKind, Sharing, StepOperation, StepPeers, StepShape, StepWork, TokenGradients,
    TrainConfig, Trainer, plan,
};
use odeon_gpu::{Cpu, CpuBuffer, PassRanks};
use odeon_replay::{PassKind, PipelineCosts, StageCosts};

const STAGES: usize = 4;
const MICRO_BATCHES: usize = 8;
const TOKENS: usize = 256;
const STEPS: usize = 6;
/// Kinds of passes, by their places in a row of seconds.
const KINDS: [PassKind; 4] = [
    PassKind::Forward,
    PassKind::Backward,
    PassKind::BackwardInput,
    PassKind::BackwardWeight,
];

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Letters with the times at which they were sent.
type Letters = HashMap<StageLetter, (Vec<f32>, f64)>;

/// What all ranks have in common.
struct Pipeline {
    letters: Mutex<Letters>,
    arrived: Condvar,
    /// Who computes, where that is one at a time.
    turn: Mutex<bool>,
    free: Condvar,
    is_in_turns: bool,
    barrier: Barrier,
    sums: Mutex<Vec<Vec<f32>>>,
    begun: Instant,
}

impl Pipeline {
    fn new(is_in_turns: bool) -> Self {
        Self {
            letters: Mutex::default(),
            arrived: Condvar::new(),
            turn: Mutex::new(false),
            free: Condvar::new(),
            is_in_turns,
            barrier: Barrier::new(STAGES),
            sums: Mutex::new(vec![vec![]; STAGES]),
            begun: Instant::now(),
        }
    }

    /// Seconds since it was made.
    fn now_s(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn take_turn(&self) {
        let mut taken = lock(&self.turn);
        while self.is_in_turns && *taken {
            taken = self
                .free
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    fn end_turn(&self) {
        *lock(&self.turn) = false;
        self.free.notify_one();
    }
}

/// The clock of a rank.
#[derive(Clone, Copy, Default)]
struct Lane {
    /// When its pass began to compute.
    from_s: f64,
    /// On its own timeline: when it is free, and when what it waits for has come.
    free_s: f64,
    ready_s: f64,
}

#[derive(Clone)]
struct Rank {
    pipeline: Arc<Pipeline>,
    rank: usize,
    lane: Arc<Mutex<Lane>>,
}

impl std::fmt::Debug for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rank").field(&self.rank).finish()
    }
}

impl Rank {
    fn begin(&self, ready_s: f64) {
        self.pipeline.take_turn();
        let mut lane = lock(&self.lane);
        (lane.from_s, lane.ready_s) = (self.pipeline.now_s(), ready_s);
    }
}

impl StageLinks for Rank {
    fn send(&self, letter: StageLetter, numbers: Vec<f32>) {
        let lane = *lock(&self.lane);
        let spent_s = self.pipeline.now_s() - lane.from_s;
        let sent_s = lane.free_s.max(lane.ready_s) + spent_s;
        let mut letters = lock(&self.pipeline.letters);
        letters.insert(letter, (numbers, sent_s));
        self.pipeline.arrived.notify_all();
    }

    fn receive(&self, letter: StageLetter, _: usize) -> Vec<f32> {
        let mut letters = lock(&self.pipeline.letters);
        let (numbers, sent_s) = loop {
            match letters.remove(&letter) {
                Some(come) => break come,
                None => {
                    let woken = self.pipeline.arrived.wait(letters);
                    letters = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(letters);
        self.begin(sent_s);
        numbers
    }
}

impl PassRanks<Cpu> for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        STAGES
    }

    fn sum(&self, _: &Cpu, numbers: &mut CpuBuffer, range: Range<usize>) {
        let own = &mut numbers.as_mut_slice()[range];
        lock(&self.pipeline.sums)[self.rank] = own.to_vec();
        self.pipeline.barrier.wait();
        let all = lock(&self.pipeline.sums).clone();
        self.pipeline.barrier.wait();
        for (at, number) in own.iter_mut().enumerate() {
            *number = all.iter().map(|of_rank| of_rank[at]).sum();
        }
    }

    fn scatter(&self, _: &Cpu, _: &mut CpuBuffer, _: usize) {
        unreachable!("stages scatter nothing")
    }

    fn gather(&self, _: &Cpu, _: &mut CpuBuffer, _: usize) {
        unreachable!("stages gather nothing")
    }

    fn exchange(&self, _: &Cpu, _: &CpuBuffer, _: &[usize], _: &mut CpuBuffer, _: &[usize]) {
        unreachable!("stages exchange nothing")
    }

    fn tell(&self, _: &Cpu, _: &[u32]) -> Vec<u32> {
        unreachable!("stages tell nothing")
    }
}

/// Nobody has other samples.
enum Nobody {}

impl Peers<Cpu> for Nobody {
    type Error = &'static str;

    fn rank(&self) -> usize {
        match *self {}
    }

    fn sum(&mut self, _: &mut [f32]) -> Result<(), Self::Error> {
        match *self {}
    }

    fn count(&mut self, _: &mut [u64]) -> Result<(), Self::Error> {
        match *self {}
    }

    fn scatter_buffer(
        &mut self,
        _: &Cpu,
        _: &mut CpuBuffer,
        _: &[usize],
    ) -> Result<(), Self::Error> {
        match *self {}
    }

    fn gather_buffer(
        &mut self,
        _: &Cpu,
        _: &mut CpuBuffer,
        _: &[usize],
    ) -> Result<(), Self::Error> {
        match *self {}
    }
}

struct Texts;

impl StepWork for Texts {
    type Error = &'static str;

    fn micro_batches(&self) -> usize {
        MICRO_BATCHES
    }

    fn batch(&mut self, micro: usize) -> Result<Batch, Self::Error> {
        let token = |at: u32| (at * at + 5 * micro as u32) % 499;
        let tokens: Vec<u32> = (0..=TOKENS as u32).map(token).collect();
        let sequence = Sequence {
            tokens: &tokens,
            prompt: 1,
        };
        Batch::pack(&[sequence]).map_err(|_| "a batch cannot be packed")
    }

    fn evaluate(
        &mut self,
        _: usize,
        _: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Self::Error> {
        let each = 1.0 / (MICRO_BATCHES * TOKENS) as f32;
        gradients.logprobs.fill(-each);
        Ok(-f64::from(scores.logprobs.iter().sum::<f32>() * each))
    }
}

/// A pass: its kind, and its begin and end as seen and on the rank's own timeline.
#[derive(Clone, Copy)]
struct Seen {
    kind: PassKind,
    as_seen: (f64, f64),
    timeline: (f64, f64),
}

const fn kind(operation: StepOperation) -> Option<PassKind> {
    match operation {
        StepOperation::StageForward(_) => Some(PassKind::Forward),
        StepOperation::StageBackward(_) => Some(PassKind::Backward),
        StepOperation::StageBackwardInput(_) => Some(PassKind::BackwardInput),
        StepOperation::StageBackwardWeight(_) => Some(PassKind::BackwardWeight),
        _ => None,
    }
}

/// True for a pass that begins with what another rank has sent.
fn receives(kind: PassKind, rank: usize) -> bool {
    match kind {
        PassKind::Forward => rank > 0,
        PassKind::Backward | PassKind::BackwardInput => rank + 1 < STAGES,
        PassKind::BackwardWeight => false,
    }
}

/// Steps of one rank: the passes of each.
fn steps(schedule: PipelineKind, own: &Rank) -> Vec<Vec<Seen>> {
    let config = ModelConfig {
        vocab: 512,
        dim: 192,
        layers: 2 * STAGES,
        heads: 6,
        kv_heads: 6,
        head_dim: 32,
        ffn: 512,
        tied_head: false,
        ..ModelConfig::default()
    };
    let sharing = Sharing {
        stages: STAGES,
        schedule,
        ..Sharing::ALONE
    };
    let model = Model::init(Cpu::new(1), config, 11).expect("a model of these sizes");
    let part = model.into_part(sharing.place(own.rank));
    let mut model = part.expect("as many layers as stages");
    model.meet(PassGroups {
        stages: StageGroups {
            all: Some(Arc::new(own.clone())),
            tied: None,
            links: Some(Arc::new(own.clone())),
        },
        ..PassGroups::default()
    });
    let mut trainer = Trainer::new(model, TrainConfig::default());
    let operations = plan(&StepShape {
        pipeline: trainer.pipeline(schedule),
        ..StepShape::of(&Texts, false, true)
    });
    let mut all = vec![];
    for _ in 0..STEPS {
        own.pipeline.barrier.wait();
        *lock(&own.lane) = Lane::default();
        let (mut at, mut seen) = (0, vec![]);
        // Passes that wait for nobody take their turn before they begin.
        let prepare = |at: usize| match operations.get(at).copied().and_then(kind) {
            Some(kind) if !receives(kind, own.rank) => own.begin(0.0),
            _ => {}
        };
        prepare(0);
        let done = trainer.run(
            &operations,
            &mut Texts,
            StepPeers::<Nobody>::none(),
            &mut |operation| {
                if let Some(kind) = kind(operation) {
                    let to_s = own.pipeline.now_s();
                    own.pipeline.end_turn();
                    let mut lane = lock(&own.lane);
                    let begun_s = lane.free_s.max(lane.ready_s);
                    lane.free_s = begun_s + to_s - lane.from_s;
                    seen.push(Seen {
                        kind,
                        as_seen: (lane.from_s, to_s),
                        timeline: (begun_s, lane.free_s),
                    });
                }
                at += 1;
                prepare(at);
                Ok(())
            },
        );
        done.expect("a step of these ranks");
        all.push(seen);
    }
    all
}

/// The last steps of all ranks, by rank.
fn run(schedule: PipelineKind, is_in_turns: bool) -> Vec<Vec<Vec<Seen>>> {
    let pipeline = Arc::new(Pipeline::new(is_in_turns));
    let threads = (0..STAGES).map(|rank| {
        let own = Rank {
            pipeline: Arc::clone(&pipeline),
            rank,
            lane: Arc::default(),
        };
        thread::spawn(move || steps(schedule, &own))
    });
    let threads: Vec<_> = threads.collect();
    let all = threads.into_iter().map(|it| it.join().expect("a rank"));
    // The first step makes room for everything.
    all.map(|steps| steps[1..].to_vec()).collect()
}

/// The part of the ranks' time in which they make no pass, in the mean of all steps; and the seconds of these.
fn idle(ranks: &[Vec<Vec<Seen>>], of: impl Fn(&Seen) -> (f64, f64)) -> (f64, f64) {
    let (mut busy, mut whole) = (0.0, 0.0);
    for step in 0..STEPS - 1 {
        let passes = || ranks.iter().flat_map(|steps| &steps[step]).map(&of);
        let first = passes().map(|(from, _)| from).fold(f64::INFINITY, f64::min);
        let last = passes().map(|(_, to)| to).fold(0.0, f64::max);
        busy += passes().map(|(from, to)| to - from).sum::<f64>();
        whole += last - first;
    }
    (
        1.0 - busy / (whole * ranks.len() as f64),
        whole / (STEPS - 1) as f64,
    )
}

/// Milliseconds of each kind of pass of a rank.
fn means(steps: &[Vec<Seen>]) -> [f64; 4] {
    KINDS.map(|kind| {
        let own = steps.iter().flatten().filter(|seen| seen.kind == kind);
        let seconds: Vec<f64> = own.map(|seen| seen.timeline.1 - seen.timeline.0).collect();
        seconds.iter().fold(0.0, |sum, it| sum + it) / seconds.len().max(1) as f64 * 1e3
    })
}

fn main() {
    println!("| order | idle here, step | idle with a device each, step | predicted, step |");
    for schedule in [
        PipelineKind::Gpipe,
        PipelineKind::OneForwardOneBackward,
        PipelineKind::ZeroBubbleH1,
        PipelineKind::ZeroBubble,
    ] {
        let (here, here_s) = idle(&run(schedule, false), |seen| seen.as_seen);
        let alone = run(schedule, true);
        let (own, own_s) = idle(&alone, |seen| seen.timeline);
        let of_stages: Vec<[f64; 4]> = alone.iter().map(|steps| means(steps)).collect();
        let costs = of_stages.iter().map(|[forward, both, input, weight]| {
            StageCosts::new(*forward, both / 2.0 + input, both / 2.0 + weight)
        });
        let costs = PipelineCosts {
            stages: costs.collect(),
            ..PipelineCosts::uniform(STAGES, StageCosts::new(1.0, 1.0, 1.0), 0.0)
        };
        let passes = schedule.schedule(STAGES, 1, MICRO_BATCHES);
        let asked = passes.summary(&costs).expect("a schedule that can run");
        println!(
            "| {} | {:.1} %, {:.0} ms | {:.1} %, {:.0} ms | {:.1} %, {:.0} ms |",
            schedule.word(),
            100.0 * here,
            1e3 * here_s,
            100.0 * own,
            1e3 * own_s,
            100.0 * asked.bubble_share,
            asked.makespan_s,
        );
        for (rank, [forward, both, input, weight]) in of_stages.iter().enumerate() {
            println!(
                "  rank {rank}: forward {forward:.1} ms, backward {both:.1}, rows {input:.1}, weights {weight:.1}"
            );
        }
    }
}
