//! The schedule of an encoder in the bubbles of a language model's step, as data.

use super::encoder::{EncoderPass, EncoderPlan, EncoderWork};
use super::error::BubbleError;
use super::free_time::{FreeTime, ROUNDING_S, Span};
use super::kernel::{KernelStream, StageKernel};
use super::packing::{Deadlines, Direction, Packed, PackedKernel, sorted};
use super::timeline::StepTimeline;

/// A kernel of the encoder with its place and time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacedKernel {
    /// The rank of the language model's pipeline on whose cards it runs.
    pub rank: usize,
    /// The part of the rank's tensor group, from 0, where the encoder's groups are smaller.
    pub slice: usize,
    /// The encoder's pipeline.
    pub pipeline: usize,
    /// The stage of that.
    pub stage: usize,
    /// The micro-batch, by the language model's numbers.
    pub micro_batch: usize,
    /// The direction.
    pub pass: EncoderPass,
    /// Its place among the kernels of the pass in this stage.
    pub kernel: usize,
    /// The part of the card that it occupies.
    pub stream: KernelStream,
    /// Its begin in seconds from the begin of the language model's step; less than 0 for what is before that.
    pub begin_s: f64,
    /// Its end.
    pub end_s: f64,
    /// The number of the language model's kernels on this rank that begin before it: an engine that goes by order
    /// launches it behind these.
    pub behind: usize,
}

/// A message between the encoder and the first rank of the language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderTransfer {
    /// The micro-batch.
    pub micro_batch: usize,
    /// The direction: activations to the language model, or gradients back.
    pub pass: EncoderPass,
    /// The encoder's pipeline.
    pub pipeline: usize,
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives.
    pub to: usize,
}

/// An encoder's step in the bubbles of a language model's.
#[derive(Clone, Debug, PartialEq)]
pub struct BubbleSchedule {
    /// The encoder's plan.
    pub plan: EncoderPlan,
    /// The number of micro-batches of each pipeline of the encoder.
    pub composition: Vec<usize>,
    /// For each micro-batch of the language model the pipeline that encodes it.
    pub encoded_by: Vec<usize>,
    /// Seconds that the encoder begins before the language model's step.
    pub ahead_s: f64,
    /// Seconds that it ends behind that.
    pub behind_s: f64,
    /// Seconds of all of it.
    pub step_s: f64,
    /// The part of the encoder's arithmetic that is in bubbles of the language model, from 0 to 1.
    pub hidden: f64,
    /// Seconds with all forward passes before the language model, and all backward passes behind it.
    pub coarse_step_s: f64,
    /// The hidden part then.
    pub coarse_hidden: f64,
    /// The kernels, in the order of time on each card.
    pub kernels: Vec<PlacedKernel>,
    /// The messages, in the order of micro-batches, first with activations and then with gradients.
    pub transfers: Vec<EncoderTransfer>,
}

/// An encoder's pipelines on the cards of a language model's.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    timeline: &'a StepTimeline,
    work: &'a EncoderWork,
    /// Parts of a rank's tensor group.
    slices: usize,
    lanes: Vec<FreeTime>,
    pipelines: Vec<Vec<usize>>,
    forward: Vec<Vec<StageKernel>>,
    /// The kernels of backward passes in turned time.
    backward: Vec<Vec<StageKernel>>,
    forward_points: Deadlines,
    /// Micro-batches in the order in which the language model begins them.
    order: Vec<usize>,
}

/// Both directions of a composition.
#[derive(Clone, Debug)]
pub(super) struct Both {
    pub(super) counts: Vec<usize>,
    forward: Packed,
    backward: Packed,
    encoded_by: Vec<usize>,
}

impl Both {
    /// Seconds by which the step is longer than the language model's.
    pub(super) fn longer_s(&self) -> f64 {
        self.forward.ahead_s + self.backward.ahead_s
    }
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        timeline: &'a StepTimeline,
        tensor: usize,
        work: &'a EncoderWork,
    ) -> Result<Self, BubbleError> {
        work.check()?;
        let pipelines = work.plan.pipelines(timeline.ranks.len(), tensor)?;
        let micro_batches = timeline.forward_points_s.len();
        if micro_batches < pipelines {
            return Err(BubbleError::TooFewMicroBatches {
                micro_batches,
                pipelines,
                plan: work.plan,
            });
        }
        let slices = tensor / work.plan.tensor;
        let ranks = timeline.ranks.iter();
        let lanes = ranks.flat_map(|rank| vec![FreeTime::of(rank, timeline.step_s); slices]);
        let pipelines = (0..pipelines).map(|it| {
            let (block, slice) = (it / slices, it % slices);
            let ranks = block * work.plan.stages..(block + 1) * work.plan.stages;
            ranks.map(|rank| rank * slices + slice).collect()
        });
        let turned = |kernels: &[StageKernel]| kernels.iter().rev().copied().collect();
        let mut order: Vec<usize> = (0..micro_batches).collect();
        let points = &timeline.forward_points_s;
        order.sort_by(|a, b| points[*a].total_cmp(&points[*b]).then(a.cmp(b)));
        let forward_points = order.iter().map(|it| points[*it]).collect();
        Ok(Self {
            timeline,
            work,
            slices,
            lanes: lanes.collect(),
            pipelines: pipelines.collect(),
            forward: work.stages.iter().map(|it| it.forward.clone()).collect(),
            backward: work.stages.iter().map(|it| turned(&it.backward)).collect(),
            forward_points: Deadlines::InOrder(forward_points),
            order,
        })
    }

    pub(super) fn pipelines(&self) -> usize {
        self.pipelines.len()
    }

    pub(super) fn micro_batches(&self) -> usize {
        self.order.len()
    }

    /// Seconds by which the step is longer with so many micro-batches on one pipeline and none on others, all before and
    /// behind the language model; less than 0 where there is room for more.
    pub(super) fn alone_s(&self, pipeline: usize, count: usize) -> f64 {
        let lanes = self.turned(&[]);
        let points = Deadlines::Own(vec![]);
        let backwards = self.backwards(&lanes, &points);
        self.forwards().ahead_s(pipeline, count) + backwards.ahead_s(pipeline, count)
    }

    /// All forward passes before the language model and all backward passes behind it.
    pub(super) fn coarse(&self, counts: &[usize]) -> Both {
        let forward = self.forwards().coarse(counts);
        let encoded_by = self.encoded_by(&forward);
        let points = self.backward_points(&encoded_by);
        let lanes = self.turned(&[]);
        let backward = self.backwards(&lanes, &points).coarse(counts);
        Both {
            counts: counts.to_vec(),
            forward,
            backward,
            encoded_by,
        }
    }

    /// As many passes in bubbles as fit, of the pipelines on which the step's seconds depend.
    pub(super) fn fine(&self, coarse: &Both) -> Both {
        let counts = &coarse.counts;
        let forwards = self.forwards();
        let mut forward = forwards.fine(counts, &coarse.forward);
        let encoded_by = self.encoded_by(&forward);
        let mut kernels = vec![];
        forwards.pack(counts, &mut forward, &mut |it| kernels.push(it));
        let points = self.backward_points(&encoded_by);
        let lanes = self.turned(&kernels);
        let backwards = self.backwards(&lanes, &points);
        let backward = backwards.fine(counts, &backwards.coarse(counts));
        Both {
            counts: counts.clone(),
            forward,
            backward,
            encoded_by,
        }
    }

    /// The part of the encoder's arithmetic that lies within the language model's step.
    pub(super) fn hidden(&self, both: &Both) -> f64 {
        let (mut inside_s, mut all_s) = (0.0, 0.0);
        for it in self.kernels(both) {
            if it.stream == KernelStream::Compute {
                all_s += it.end_s - it.begin_s;
                let inside = it.end_s.min(self.timeline.step_s) - it.begin_s.max(0.0);
                inside_s += inside.max(0.0);
            }
        }
        if all_s > 0.0 { inside_s / all_s } else { 1.0 }
    }

    pub(super) fn schedule(&self, coarse: &Both, fine: &Both) -> BubbleSchedule {
        let step_s = |both: &Both| self.timeline.step_s + both.longer_s();
        BubbleSchedule {
            plan: self.work.plan,
            composition: fine.counts.clone(),
            encoded_by: fine.encoded_by.clone(),
            ahead_s: fine.forward.ahead_s,
            behind_s: fine.backward.ahead_s,
            step_s: step_s(fine),
            hidden: self.hidden(fine),
            coarse_step_s: step_s(coarse),
            coarse_hidden: self.hidden(coarse),
            kernels: self.kernels(fine),
            transfers: self.transfers(&fine.encoded_by),
        }
    }

    fn forwards(&self) -> Direction<'_> {
        Direction {
            lanes: &self.lanes,
            pipelines: &self.pipelines,
            stages: &self.forward,
            transfer_s: self.work.transfer_s,
            deadlines: &self.forward_points,
        }
    }

    fn backwards<'b>(&'b self, lanes: &'b [FreeTime], points: &'b Deadlines) -> Direction<'b> {
        Direction {
            lanes,
            pipelines: &self.pipelines,
            stages: &self.backward,
            transfer_s: self.work.transfer_s,
            deadlines: points,
        }
    }

    /// For each micro-batch the pipeline whose output it is: outputs are taken in the order in which they come.
    fn encoded_by(&self, forward: &Packed) -> Vec<usize> {
        let mut encoded_by = vec![0; self.order.len()];
        for (micro_batch, (_, pipeline, _)) in self.order.iter().zip(sorted(&forward.outputs_s)) {
            encoded_by[*micro_batch] = pipeline;
        }
        encoded_by
    }

    /// The micro-batches of each pipeline, in the order of forward passes.
    fn micro_batches_of(&self, encoded_by: &[usize]) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]; self.pipelines.len()];
        for micro_batch in &self.order {
            all[encoded_by[*micro_batch]].push(*micro_batch);
        }
        all
    }

    /// The micro-batches of each pipeline in the order of backward passes in turned time: the last gradient first.
    fn turned_micro_batches_of(&self, encoded_by: &[usize]) -> Vec<Vec<usize>> {
        let points = &self.timeline.backward_points_s;
        let mut all = self.micro_batches_of(encoded_by);
        for own in &mut all {
            own.sort_by(|a, b| points[*b].total_cmp(&points[*a]).then(b.cmp(a)));
        }
        all
    }

    /// The instants, in turned time, at which the backward passes of each pipeline must be over, so that none begins
    /// before its own gradient is there.
    fn backward_points(&self, encoded_by: &[usize]) -> Deadlines {
        let points = &self.timeline.backward_points_s;
        let turned = |own: Vec<usize>| {
            let points = own.into_iter().map(|it| self.timeline.step_s - points[it]);
            points.collect()
        };
        let all = self.turned_micro_batches_of(encoded_by);
        Deadlines::Own(all.into_iter().map(turned).collect())
    }

    /// The free time that forward passes leave, in turned time.
    fn turned(&self, forward: &[PackedKernel]) -> Vec<FreeTime> {
        let mut used: Vec<Vec<(KernelStream, Span)>> = vec![vec![]; self.lanes.len()];
        for it in forward {
            used[self.pipelines[it.pipeline][it.stage]].push((it.stream, it.span));
        }
        let lanes = self.lanes.iter().zip(used);
        lanes
            .map(|(lane, used)| lane.without(&used).turned(self.timeline.step_s))
            .collect()
    }

    /// The kernels of both directions, in the order of time on each card.
    fn kernels(&self, both: &Both) -> Vec<PlacedKernel> {
        let mut all = vec![];
        let mut packed = both.forward.clone();
        let own = self.micro_batches_of(&both.encoded_by);
        let mut forward = vec![];
        self.forwards().pack(&both.counts, &mut packed, &mut |it| {
            forward.push(it);
        });
        for it in &forward {
            let micro_batch = own[it.pipeline][it.place];
            all.push(self.placed(it, micro_batch, EncoderPass::Forward, it.kernel, it.span));
        }
        let own = self.turned_micro_batches_of(&both.encoded_by);
        let points = self.backward_points(&both.encoded_by);
        let lanes = self.turned(&forward);
        let mut packed = both.backward.clone();
        let backwards = self.backwards(&lanes, &points);
        backwards.pack(&both.counts, &mut packed, &mut |it| {
            let span = (
                self.timeline.step_s - it.span.1,
                self.timeline.step_s - it.span.0,
            );
            let kernel = self.backward[it.stage].len() - 1 - it.kernel;
            let micro_batch = own[it.pipeline][it.place];
            all.push(self.placed(&it, micro_batch, EncoderPass::Backward, kernel, span));
        });
        all.sort_by(|a, b| {
            let at = |it: &PlacedKernel| (it.rank, it.slice);
            let order = |it: &PlacedKernel| (it.pass, it.kernel);
            let by_time = a
                .begin_s
                .total_cmp(&b.begin_s)
                .then(a.end_s.total_cmp(&b.end_s));
            at(a)
                .cmp(&at(b))
                .then(by_time)
                .then(order(a).cmp(&order(b)))
        });
        all
    }

    fn placed(
        &self,
        it: &PackedKernel,
        micro_batch: usize,
        pass: EncoderPass,
        kernel: usize,
        (begin_s, end_s): Span,
    ) -> PlacedKernel {
        let lane = self.pipelines[it.pipeline][it.stage];
        let rank = lane / self.slices;
        let kernels = &self.timeline.ranks[rank].kernels;
        PlacedKernel {
            rank,
            slice: lane % self.slices,
            pipeline: it.pipeline,
            stage: it.stage,
            micro_batch,
            pass,
            kernel,
            stream: it.stream,
            begin_s,
            end_s,
            behind: kernels.partition_point(|own| own.begin_s < begin_s - ROUNDING_S),
        }
    }

    fn transfers(&self, encoded_by: &[usize]) -> Vec<EncoderTransfer> {
        let trained = self.backward.iter().any(|kernels| !kernels.is_empty());
        let back = trained.then_some(EncoderPass::Backward);
        let mut all = vec![];
        for pass in [Some(EncoderPass::Forward), back].into_iter().flatten() {
            for (micro_batch, pipeline) in encoded_by.iter().enumerate() {
                let last = self.pipelines[*pipeline]
                    .last()
                    .copied()
                    .unwrap_or_default();
                let encoder = last / self.slices;
                let (from, to) = match pass {
                    EncoderPass::Forward => (encoder, 0),
                    EncoderPass::Backward => (0, encoder),
                };
                all.push(EncoderTransfer {
                    micro_batch,
                    pass,
                    pipeline: *pipeline,
                    from,
                    to,
                });
            }
        }
        all
    }
}
