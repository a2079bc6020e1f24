//! The timeline of a language model's step on one pipeline, kernel by kernel, and its bubbles by their causes.

use std::collections::BTreeMap;
use std::fmt;

use super::error::BubbleError;
use super::kernel::{KernelStream, StageKernel, StageKernels, sum_s};
use crate::{
    EventGraph, GraphOperation, Lane, LaneStream, Pass, PassKind, PipelineCosts, PipelineOperation,
    PipelineSchedule, Replay, StageCosts,
};

/// The cause for which a rank does not compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BubbleKind {
    /// It waits for parameters that replicas gather.
    GatherParameters,
    /// It waits for its first forward pass.
    WarmUp,
    /// It waits for others' passes between two of its own.
    Between,
    /// Its passes are over, and those of others are not.
    CoolDown,
    /// All passes are over, and gradients are reduced and scattered.
    ScatterGradients,
    /// A collective of its tensor group runs inside a pass.
    Tensor,
}

impl BubbleKind {
    /// All kinds, in the order in which a step meets them; those inside of passes last.
    pub const ALL: [Self; 6] = [
        Self::GatherParameters,
        Self::ScatterGradients,
        Self::WarmUp,
        Self::CoolDown,
        Self::Between,
        Self::Tensor,
    ];
}

impl fmt::Display for BubbleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GatherParameters => "gathering of parameters",
            Self::WarmUp => "warm-up",
            Self::Between => "between passes",
            Self::CoolDown => "cool-down",
            Self::ScatterGradients => "scattering of gradients",
            Self::Tensor => "collectives of tensor groups",
        })
    }
}

/// A stretch in which a rank does not compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bubble {
    /// Its cause.
    pub kind: BubbleKind,
    /// Its begin, in seconds from the begin of the step.
    pub begin_s: f64,
    /// Its end.
    pub end_s: f64,
}

/// A kernel of the language model with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedKernel {
    /// The place of its pass in the rank's list.
    pub pass: usize,
    /// The kernel.
    pub kernel: StageKernel,
    /// Its begin, in seconds from the begin of the step.
    pub begin_s: f64,
    /// Its end.
    pub end_s: f64,
}

/// The kernels and bubbles of one rank. Bubbles and kernels that compute fill the step without overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTimeline {
    /// The kernels, in order.
    pub kernels: Vec<TimedKernel>,
    /// The bubbles, in order.
    pub bubbles: Vec<Bubble>,
}

/// A step of a language model on one pipeline: its schedule, and the kernels of each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct LanguageStep {
    /// The order of passes, with whole backward passes.
    pub schedule: PipelineSchedule,
    /// The kernels of a micro-batch in each stage: rank `r` of `p` has the stages `r`, `p + r` and so on.
    pub stages: Vec<StageKernels>,
    /// Seconds of a message between neighbours.
    pub transfer_s: f64,
    /// Seconds in which replicas gather the parameters of one chunk, before its first pass.
    pub gather_s: f64,
    /// Seconds in which they reduce and scatter its gradients, behind its last pass.
    pub scatter_s: f64,
    /// Seconds in which they gather parameters before any pass, where that is not chunk by chunk.
    pub before_s: f64,
    /// Seconds in which they reduce and scatter gradients behind all passes of a rank.
    pub behind_s: f64,
}

/// The timeline of a [`LanguageStep`].
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeline {
    /// The end of the step, in seconds.
    pub step_s: f64,
    /// The ranks, in order.
    pub ranks: Vec<RankTimeline>,
    /// For each micro-batch the begin of its forward pass through the first stage: its input must be there.
    pub forward_points_s: Vec<f64>,
    /// For each micro-batch the end of its backward pass through the first stage: the gradient by its input is there.
    pub backward_points_s: Vec<f64>,
}

impl LanguageStep {
    /// The timeline with each pass as early as it can be.
    ///
    /// # Errors
    /// Kernels or seconds that do not fit: see [`BubbleError`].
    pub fn timeline(&self) -> Result<StepTimeline, BubbleError> {
        let graph = self.graph()?;
        let replay = graph.replay()?;
        Ok(self.timed(&graph, &replay))
    }

    /// The timeline with each micro-batch begun as late as neither the step's end nor any gradient for the encoder is
    /// later: the adjusted dependency points of Optimus.
    ///
    /// # Errors
    /// Those of [`timeline`](Self::timeline).
    pub fn deferred_timeline(&self) -> Result<StepTimeline, BubbleError> {
        let mut graph = self.graph()?;
        let latest_s = self.latest_begins_s(&graph)?;
        // A lane of its own, on which the end of each wait is the instant at which a micro-batch may begin.
        let lane = self.lane_behind(1, 0);
        let mut now_s = 0.0;
        for (number, pass) in self.first_stage(PassKind::Forward) {
            let until_s = latest_s[number].max(now_s);
            let name = PipelineOperation::Receive(pass);
            let wait = graph.add(GraphOperation::new(name, lane, until_s - now_s))?;
            graph.wait(number, wait)?;
            now_s = until_s;
        }
        let replay = graph.replay()?;
        Ok(self.timed(&graph, &replay))
    }

    /// The latest begins of all operations with which no backward pass through the first stage is over later.
    fn latest_begins_s(
        &self,
        graph: &EventGraph<PipelineOperation>,
    ) -> Result<Vec<f64>, BubbleError> {
        let replay = graph.replay()?;
        let mut pinned = graph.clone();
        for (at, (number, pass)) in self.first_stage(PassKind::Backward).into_iter().enumerate() {
            // What follows each of them lasts until the end of the step.
            let left_s = replay.makespan_s() - replay.ends_s()[number];
            let lane = self.lane_behind(3, at);
            let rest = GraphOperation::new(PipelineOperation::Send(pass), lane, left_s);
            let rest = pinned.add(rest)?;
            pinned.wait(rest, number)?;
        }
        Ok(pinned.latest_begins_s()?)
    }

    /// A lane that no rank has: so many times behind those of all ranks.
    fn lane_behind(&self, times: usize, rank: usize) -> Lane {
        Lane {
            rank: times * (self.schedule.ranks().len() + 1) + rank,
            stream: LaneStream::Receive,
        }
    }

    pub(super) fn graph(&self) -> Result<EventGraph<PipelineOperation>, BubbleError> {
        let passes = self.schedule.ranks().iter().flatten();
        let mut kinds = passes.map(|pass| pass.kind);
        if kinds.any(|kind| !matches!(kind, PassKind::Forward | PassKind::Backward)) {
            return Err(BubbleError::GradientsApart);
        }
        if self.stages.len() != self.schedule.stages() {
            return Err(BubbleError::WrongStages {
                of: LANGUAGE,
                given: self.stages.len(),
                stages: self.schedule.stages(),
            });
        }
        for (stage, kernels) in self.stages.iter().enumerate() {
            kernels.check(LANGUAGE, stage)?;
        }
        let costs =
            |it: &StageKernels| StageCosts::new(sum_s(&it.forward), sum_s(&it.backward), 0.0);
        let costs = PipelineCosts {
            stages: self.stages.iter().map(costs).collect(),
            transfer_s: self.transfer_s,
            gather_s: self.gather_s,
            scatter_s: self.scatter_s,
        };
        let mut graph = self.schedule.graph(&costs)?;
        self.apart(&mut graph)?;
        Ok(graph)
    }

    /// Adds the collectives of replicas that are not chunk by chunk, each on a lane of its own.
    fn apart(&self, graph: &mut EventGraph<PipelineOperation>) -> Result<(), BubbleError> {
        let (ranks, mut first) = (self.schedule.ranks(), 0);
        for (rank, passes) in ranks.iter().enumerate() {
            let last = first + passes.len() - 1;
            let stream = LaneStream::Collective;
            let lane = |times: usize| Lane {
                rank: times * (ranks.len() + 1) + rank,
                stream,
            };
            if self.before_s != 0.0 {
                let name = PipelineOperation::Gather(0);
                let gather = graph.add(GraphOperation::new(name, lane(1), self.before_s))?;
                graph.wait(first, gather)?;
            }
            if self.behind_s != 0.0 {
                let name = PipelineOperation::Scatter(0);
                let scatter = graph.add(GraphOperation::new(name, lane(2), self.behind_s))?;
                graph.wait(scatter, last)?;
            }
            first = last + 1;
        }
        Ok(())
    }

    /// The passes of a kind through the first stage in their order, with their numbers in the graph, which has the passes
    /// first, rank by rank.
    fn first_stage(&self, kind: PassKind) -> Vec<(usize, Pass)> {
        let passes = self.schedule.ranks()[0].iter().copied().enumerate();
        passes
            .filter(|(_, pass)| pass.kind == kind && pass.chunk == 0)
            .collect()
    }

    fn timed(&self, graph: &EventGraph<PipelineOperation>, replay: &Replay) -> StepTimeline {
        let (mut gathered_s, mut passed_s) = (BTreeMap::new(), 0.0_f64);
        for (operation, end_s) in graph.operations().iter().zip(replay.ends_s()) {
            match operation.name {
                PipelineOperation::Gather(chunk) => {
                    // What is gathered for all chunks has a lane behind those of the ranks.
                    let rank = operation.lane.rank % (self.schedule.ranks().len() + 1);
                    let gathered_s = gathered_s.entry((rank, chunk)).or_insert(0.0_f64);
                    *gathered_s = gathered_s.max(*end_s);
                }
                PipelineOperation::Pass(_) => passed_s = passed_s.max(*end_s),
                _ => {}
            }
        }
        let micro_batches = self.schedule.micro_batches();
        let mut timeline = StepTimeline {
            step_s: replay.makespan_s(),
            ranks: vec![],
            forward_points_s: vec![0.0; micro_batches],
            backward_points_s: vec![0.0; micro_batches],
        };
        let mut number = 0;
        for (rank, passes) in self.schedule.ranks().iter().enumerate() {
            let mut own = RankTimeline::default();
            let mut over_s = 0.0;
            for (place, pass) in passes.iter().enumerate() {
                let (begin_s, end_s) = (replay.begins_s()[number], replay.ends_s()[number]);
                let gathered_s = gathered_s.get(&(rank, pass.chunk)).copied();
                let gathered_s = gathered_s.unwrap_or(0.0).clamp(over_s, begin_s.max(over_s));
                let waits = if place == 0 {
                    BubbleKind::WarmUp
                } else {
                    BubbleKind::Between
                };
                own.idle(BubbleKind::GatherParameters, over_s, gathered_s);
                own.idle(waits, gathered_s, begin_s);
                let stage = self.schedule.stage(rank, pass.chunk);
                own.run(place, self.kernels(stage, pass.kind), begin_s, end_s);
                if stage == 0 && pass.kind == PassKind::Forward {
                    timeline.forward_points_s[pass.micro_batch] = begin_s;
                } else if stage == 0 {
                    timeline.backward_points_s[pass.micro_batch] = end_s;
                }
                over_s = end_s;
                number += 1;
            }
            own.idle(BubbleKind::CoolDown, over_s, passed_s);
            own.idle(BubbleKind::ScatterGradients, passed_s, timeline.step_s);
            timeline.ranks.push(own);
        }
        timeline
    }

    fn kernels(&self, stage: usize, kind: PassKind) -> &[StageKernel] {
        match kind {
            PassKind::Forward => &self.stages[stage].forward,
            _ => &self.stages[stage].backward,
        }
    }
}

impl StepTimeline {
    /// Seconds of the bubbles of each kind, as the mean of some ranks, in the order of [`BubbleKind::ALL`].
    #[must_use]
    pub fn bubbles_s(&self, ranks: std::ops::Range<usize>) -> [f64; 6] {
        let ranks = &self.ranks[ranks];
        BubbleKind::ALL.map(|kind| {
            let bubbles = ranks.iter().flat_map(|rank| &rank.bubbles);
            let of_kind = bubbles.filter(|bubble| bubble.kind == kind);
            let sum_s: f64 = of_kind.map(|bubble| bubble.end_s - bubble.begin_s).sum();
            sum_s / ranks.len().max(1) as f64
        })
    }
}

impl RankTimeline {
    fn idle(&mut self, kind: BubbleKind, begin_s: f64, end_s: f64) {
        if end_s > begin_s {
            self.bubbles.push(Bubble {
                kind,
                begin_s,
                end_s,
            });
        }
    }

    /// Lays the kernels of a pass behind each other. The last one ends with the pass.
    fn run(&mut self, pass: usize, kernels: &[StageKernel], begin_s: f64, pass_end_s: f64) {
        let mut now_s = begin_s;
        for (place, kernel) in kernels.iter().enumerate() {
            let is_last = place + 1 == kernels.len();
            let end_s = if is_last {
                pass_end_s
            } else {
                now_s + kernel.seconds
            };
            if kernel.stream == KernelStream::Collective {
                self.idle(BubbleKind::Tensor, now_s, end_s);
            }
            self.kernels.push(TimedKernel {
                pass,
                kernel: *kernel,
                begin_s: now_s,
                end_s,
            });
            now_s = end_s;
        }
    }
}

/// The language model, in errors.
const LANGUAGE: &str = "the language model";
