//! The passes of one direction of an encoder's pipelines, packed before a language model and into its bubbles.
//!
//! Forward passes are packed in the order of time. Backward passes are their mirror image: in turned time they come
//! before the first pass of a language model that runs backwards, and each has to be over by the instant at which its
//! gradient comes.

use super::free_time::{FreeTime, ROUNDING_S, Span, Walk};
use super::kernel::{KernelStream, StageKernel, sum_s};

/// The instants at which outputs of the encoder must be there.
#[derive(Clone, Debug)]
pub(super) enum Deadlines {
    /// The first output of any pipeline has the first instant, and so on: which is which is free.
    InOrder(Vec<f64>),
    /// Each pipeline's outputs have their own, in order.
    Own(Vec<Vec<f64>>),
}

/// One direction.
#[derive(Clone, Debug)]
pub(super) struct Direction<'a> {
    /// The free time of all cards that have a stage of the encoder; a tensor group counts as one.
    pub(super) lanes: &'a [FreeTime],
    /// For each pipeline the lanes of its stages.
    pub(super) pipelines: &'a [Vec<usize>],
    /// The kernels of a micro-batch in each stage, in order.
    pub(super) stages: &'a [Vec<StageKernel>],
    /// Seconds of a message between stages, and to the language model.
    pub(super) transfer_s: f64,
    pub(super) deadlines: &'a Deadlines,
}

/// The passes of all pipelines: the first ones before the language model, the others in its bubbles.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packed {
    /// The passes of each pipeline that are before the language model.
    pub(super) front: Vec<usize>,
    /// Seconds that the encoder begins before the language model's step.
    pub(super) ahead_s: f64,
    /// The pipeline that begins no later because of its own work.
    critical: usize,
    /// For each pipeline the instants at which outputs are there, in order.
    pub(super) outputs_s: Vec<Vec<f64>>,
}

/// A kernel where it was packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedKernel {
    pub(super) pipeline: usize,
    pub(super) stage: usize,
    /// The place of the micro-batch among those of its pipeline.
    pub(super) place: usize,
    pub(super) kernel: usize,
    pub(super) stream: KernelStream,
    pub(super) span: Span,
}

impl Direction<'_> {
    /// All passes before the language model: the coarse phase.
    pub(super) fn coarse(&self, counts: &[usize]) -> Packed {
        let mut packed = self.limits(counts);
        self.pack(counts, &mut packed, &mut |_| {});
        if let Some((late_s, pipeline)) = self.late(&packed.outputs_s) {
            // All of them are as much earlier as the encoder begins.
            (packed.ahead_s, packed.critical) = (packed.ahead_s + late_s, pipeline);
            self.pack(counts, &mut packed, &mut |_| {});
        }
        packed
    }

    /// Moves passes of the pipeline on which the step's begin depends into bubbles, one by one, for as long as that
    /// fits: the fine phase.
    pub(super) fn fine(&self, counts: &[usize], coarse: &Packed) -> Packed {
        let mut best = coarse.clone();
        while best.ahead_s > ROUNDING_S && best.front[best.critical] > 0 {
            let mut front = best.front.clone();
            front[best.critical] -= 1;
            match self.moved(counts, &front) {
                Some(moved) if moved.ahead_s <= best.ahead_s + ROUNDING_S => best = moved,
                _ => break,
            }
        }
        best
    }

    /// The passes with so many before the language model; none if outputs of others come too late.
    fn moved(&self, counts: &[usize], front: &[usize]) -> Option<Packed> {
        let mut packed = self.limits(front);
        // To begin earlier helps outputs of passes before the language model, which makes room for others.
        for _ in 0..EARLIER_MAX {
            self.pack(counts, &mut packed, &mut |_| {});
            let Some((late_s, pipeline)) = self.late(&packed.outputs_s) else {
                return Some(packed);
            };
            (packed.ahead_s, packed.critical) = (packed.ahead_s + late_s, pipeline);
        }
        None
    }

    /// The seconds ahead with which so many passes must begin to be over before the language model's first ones.
    fn limits(&self, front: &[usize]) -> Packed {
        let mut packed = Packed {
            front: front.to_vec(),
            ahead_s: 0.0,
            critical: 0,
            outputs_s: vec![],
        };
        let mut most_s = f64::NEG_INFINITY;
        for (pipeline, count) in front.iter().enumerate().filter(|it| *it.1 > 0) {
            let ahead_s = self.ahead_s(pipeline, *count);
            if ahead_s > most_s {
                (most_s, packed.critical) = (ahead_s, pipeline);
            }
        }
        packed.ahead_s = most_s.max(0.0);
        packed
    }

    /// The least seconds ahead of the step with which so many passes of one pipeline must begin; less than 0
    /// where they may begin behind the begin of the step.
    pub(super) fn ahead_s(&self, pipeline: usize, count: usize) -> f64 {
        let ends_s = self.front_ends(count);
        let lanes = self.pipelines[pipeline].iter();
        let ahead = lanes
            .zip(ends_s)
            .map(|(lane, end_s)| end_s - self.lanes[*lane].first_s);
        ahead.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The ends of so many passes in all stages, from the begin of the first one, each as early as stages come free.
    fn front_ends(&self, count: usize) -> Vec<f64> {
        let seconds: Vec<f64> = self.stages.iter().map(|stage| sum_s(stage)).collect();
        let mut ends_s = vec![0.0_f64; seconds.len()];
        for _ in 0..count {
            let mut arrives_s = 0.0_f64;
            for (stage, end_s) in ends_s.iter_mut().enumerate() {
                if !self.stages[stage].is_empty() {
                    *end_s = end_s.max(arrives_s) + seconds[stage];
                    arrives_s = *end_s + self.transfer_s;
                }
            }
        }
        ends_s
    }

    /// Packs all passes, and fills in the instants of outputs. Tells each kernel, lane by lane in no order.
    pub(super) fn pack(
        &self,
        counts: &[usize],
        packed: &mut Packed,
        tell: &mut dyn FnMut(PackedKernel),
    ) {
        packed.outputs_s.clear();
        for (pipeline, lanes) in self.pipelines.iter().enumerate() {
            let mut outputs_s = vec![];
            let mut walks: Vec<Walk<'_>> = lanes
                .iter()
                .map(|lane| Walk::new(&self.lanes[*lane], -packed.ahead_s))
                .collect();
            for place in 0..counts[pipeline] {
                let is_front = place < packed.front[pipeline];
                let mut arrives_s = -packed.ahead_s;
                for (stage, (walk, kernels)) in walks.iter_mut().zip(self.stages).enumerate() {
                    // What is frozen sends nothing on.
                    if kernels.is_empty() {
                        continue;
                    }
                    walk.now_s = walk.now_s.max(arrives_s);
                    for (kernel, it) in kernels.iter().enumerate() {
                        let span = match is_front {
                            true => (walk.now_s, walk.now_s + it.seconds),
                            false => walk.place(it),
                        };
                        walk.now_s = span.1;
                        tell(PackedKernel {
                            pipeline,
                            stage,
                            place,
                            kernel,
                            stream: it.stream,
                            span,
                        });
                    }
                    arrives_s = walk.now_s + self.transfer_s;
                }
                outputs_s.push(arrives_s);
            }
            packed.outputs_s.push(outputs_s);
        }
    }

    /// The seconds by which the latest output is too late, and its pipeline; none if none is.
    fn late(&self, outputs_s: &[Vec<f64>]) -> Option<(f64, usize)> {
        let late =
            |(deadline, (output, pipeline)): (&f64, (f64, usize))| (output - deadline, pipeline);
        let latest = match self.deadlines {
            Deadlines::InOrder(deadlines) => {
                let all = sorted(outputs_s);
                let all = all
                    .into_iter()
                    .map(|(output, pipeline, _)| (output, pipeline));
                deadlines.iter().zip(all).map(late).reduce(later)
            }
            Deadlines::Own(own) => {
                let pipelines = own.iter().zip(outputs_s).enumerate();
                let all = pipelines.flat_map(|(pipeline, (deadlines, outputs))| {
                    deadlines
                        .iter()
                        .zip(outputs.iter().map(move |it| (*it, pipeline)))
                });
                all.map(late).reduce(later)
            }
        };
        latest.filter(|it| it.0 > ROUNDING_S)
    }
}

fn later(a: (f64, usize), b: (f64, usize)) -> (f64, usize) {
    if b.0 > a.0 { b } else { a }
}

/// All outputs with their pipelines and places there, the first ones first.
pub(super) fn sorted(outputs_s: &[Vec<f64>]) -> Vec<(f64, usize, usize)> {
    let pipelines = outputs_s.iter().enumerate();
    let mut all: Vec<(f64, usize, usize)> = pipelines
        .flat_map(|(pipeline, outputs)| {
            let places = outputs.iter().enumerate();
            places.map(move |(place, output)| (*output, pipeline, place))
        })
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    all
}

/// The times that passes begin earlier to make room for one in a bubble.
const EARLIER_MAX: usize = 4;
