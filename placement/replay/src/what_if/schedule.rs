//! The schedule of a trace: what each operation waits for, and which operations begin together.
//!
//! ```text
//!  all-gather of a chunk -> its first forward pass     passes of a worker run in the order in which they began
//!  pass -> its send      receive -> its pass           sends, and receives, of one direction in their order
//!  pass -> the next receive of its direction           last pass -> garbage -> norms -> embedding ->
//!                                                      reduce-scatter -> clip -> optimizer
//!
//!  together: a send and its receive; gathers and scatters of all copies of a stage; the embedding's sum of the
//!  first and last stage of a copy; the clip of all
//! ```
//!
//! That is the schedule of the what-if analysis of arXiv 2505.05713, as its public traces and results show it.

use std::collections::BTreeMap;

use super::{OperationKind, StepTrace, TraceError, TracedOperation, TracedWorker};
use crate::order::{ReplayOrder, WaitingCircle};

/// The order of a trace's operations, with a meeting behind them for each group that begins together.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub order: ReplayOrder,
    /// The operations of each group.
    pub groups: Vec<Vec<u32>>,
}

/// A direction of passes through the pipeline.
struct Direction {
    pass: OperationKind,
    send: OperationKind,
    receive: OperationKind,
    /// From stage 0 to the last.
    is_forward: bool,
}

const DIRECTIONS: [Direction; 2] = [
    Direction {
        pass: OperationKind::ForwardCompute,
        send: OperationKind::ForwardSend,
        receive: OperationKind::ForwardReceive,
        is_forward: true,
    },
    Direction {
        pass: OperationKind::BackwardCompute,
        send: OperationKind::BackwardSend,
        receive: OperationKind::BackwardReceive,
        is_forward: false,
    },
];

/// Operations after the last pass, in their order.
const TAIL: [OperationKind; 6] = [
    OperationKind::GarbageCollection,
    OperationKind::NormGradientsAllReduce,
    OperationKind::EmbeddingGradientsAllReduce,
    OperationKind::GradientsReduceScatter,
    OperationKind::ClipGradients,
    OperationKind::Optimizer,
];

/// Finds the schedule of a trace's steps.
pub(super) fn schedule(trace: &StepTrace) -> Result<Schedule, TraceError> {
    let mut builder = Builder::new(trace);
    for worker in trace.workers() {
        builder.passes(worker);
        builder.gathers(worker);
        builder.tail(worker);
        for direction in &DIRECTIONS {
            builder.own_messages(worker, direction)?;
        }
    }
    for worker in trace.workers() {
        for direction in &DIRECTIONS {
            builder.crossing(worker, direction);
        }
    }
    builder.collectives();
    builder.finish()
}

/// Operations of a kind of a worker, in their order.
type ByKind = BTreeMap<(TracedWorker, OperationKind), Vec<u32>>;

struct Builder<'a> {
    trace: &'a StepTrace,
    of: ByKind,
    /// All passes of a worker, in the order in which they began in the first step.
    passes: BTreeMap<TracedWorker, Vec<u32>>,
    arrows: Vec<(u32, u32)>,
    groups: Vec<Vec<u32>>,
}

impl<'a> Builder<'a> {
    fn new(trace: &'a StepTrace) -> Self {
        let mut of = ByKind::new();
        let mut passes: BTreeMap<TracedWorker, Vec<u32>> = BTreeMap::new();
        for (number, operation) in (0..).zip(&trace.operations) {
            let list = of.entry((operation.worker, operation.kind)).or_default();
            list.push(number);
            if is_pass(operation.kind) {
                passes.entry(operation.worker).or_default().push(number);
            }
        }
        let begins = |number: &u32| trace.steps[0].begins_s[*number as usize];
        for list in passes.values_mut() {
            list.sort_by(|a, b| begins(a).total_cmp(&begins(b)).then(a.cmp(b)));
        }
        for ((_, kind), list) in &mut of {
            // Messages are numbered; passes of several chunks are not numbered together.
            if is_pass(*kind) {
                list.sort_by(|a, b| begins(a).total_cmp(&begins(b)).then(a.cmp(b)));
            }
        }
        Self {
            trace,
            of,
            passes,
            arrows: vec![],
            groups: vec![],
        }
    }

    fn operation(&self, number: u32) -> &TracedOperation {
        &self.trace.operations[number as usize]
    }

    fn of(&self, worker: TracedWorker, kind: OperationKind) -> &[u32] {
        self.of.get(&(worker, kind)).map_or(&[], Vec::as_slice)
    }

    /// One after the other.
    fn chain(&mut self, numbers: &[u32]) {
        let pairs = numbers.windows(2).map(|it| (it[1], it[0]));
        self.arrows.extend(pairs);
    }

    fn passes(&mut self, worker: TracedWorker) {
        let passes = self.passes[&worker].clone();
        self.chain(&passes);
    }

    /// The gathers of parameters, each before the first forward pass of its chunk.
    fn gathers(&mut self, worker: TracedWorker) {
        let gathers = self.of(worker, OperationKind::ParametersAllGather).to_vec();
        self.chain(&gathers);
        for gather in gathers {
            let chunk = self.operation(gather).chunk;
            let forward = self.of(worker, OperationKind::ForwardCompute).iter();
            let first = forward
                .copied()
                .find(|it| self.operation(*it).chunk == chunk);
            self.arrows.extend(first.map(|first| (first, gather)));
        }
    }

    /// The operations after the last pass.
    fn tail(&mut self, worker: TracedWorker) {
        let mut chain: Vec<u32> = self.passes[&worker].last().copied().into_iter().collect();
        for kind in TAIL {
            chain.extend_from_slice(self.of(worker, kind));
        }
        self.chain(&chain);
    }

    /// Passes of a worker that hand something on, or that need something.
    fn crossing_passes(&self, worker: TracedWorker, direction: &Direction, out: bool) -> Vec<u32> {
        let trace = self.trace;
        let stages = trace.stages * trace.chunks;
        let crosses = |number: &u32| {
            let stage = self.operation(*number).chunk * trace.stages + worker.stage;
            match direction.is_forward == out {
                true => stage + 1 < stages,
                false => stage > 0,
            }
        };
        let passes = self.of(worker, direction.pass).iter().copied();
        passes.filter(crosses).collect()
    }

    /// The messages of a worker: each send behind its pass, each receive before its pass and behind the pass
    /// before that.
    fn own_messages(
        &mut self,
        worker: TracedWorker,
        direction: &Direction,
    ) -> Result<(), TraceError> {
        for (kind, out) in [(direction.send, true), (direction.receive, false)] {
            let messages = self.of(worker, kind).to_vec();
            let passes = self.crossing_passes(worker, direction, out);
            if !self.has_messages(direction) {
                continue;
            }
            if messages.len() != passes.len() {
                return Err(TraceError::Messages {
                    worker,
                    kind,
                    found: messages.len(),
                    passes: passes.len(),
                });
            }
            self.chain(&messages);
            let pairs = messages.iter().copied().zip(passes.iter().copied());
            if out {
                self.arrows.extend(pairs);
            } else {
                self.arrows
                    .extend(pairs.map(|(message, pass)| (pass, message)));
                let later = messages.iter().copied().skip(1).zip(passes);
                self.arrows.extend(later);
            }
        }
        Ok(())
    }

    fn has_messages(&self, direction: &Direction) -> bool {
        let of = |it: &(TracedWorker, OperationKind)| {
            it.1 == direction.send || it.1 == direction.receive
        };
        self.of.keys().any(of)
    }

    /// From a worker to the next of a direction: messages that begin together, or, where none were traced, passes
    /// behind passes.
    fn crossing(&mut self, worker: TracedWorker, direction: &Direction) {
        let stages = self.trace.stages;
        let stage = match direction.is_forward {
            true => (worker.stage + 1) % stages,
            false => (worker.stage + stages - 1) % stages,
        };
        let next = TracedWorker { stage, ..worker };
        if self.has_messages(direction) {
            let sent = self.of(worker, direction.send).iter();
            let received = self.of(next, direction.receive).iter();
            let pairs: Vec<Vec<u32>> = sent.zip(received).map(|it| vec![*it.0, *it.1]).collect();
            self.groups.extend(pairs);
        } else {
            let out = self.crossing_passes(worker, direction, true);
            let into = self.crossing_passes(next, direction, false);
            self.arrows.extend(into.into_iter().zip(out));
        }
    }

    /// Collectives, whose members begin together.
    fn collectives(&mut self) {
        let mut groups: BTreeMap<(OperationKind, usize, usize, usize), Vec<u32>> = BTreeMap::new();
        for (number, it) in (0..).zip(&self.trace.operations) {
            let (stage, copy) = (it.worker.stage, it.worker.copy);
            let of = match it.kind {
                OperationKind::ParametersAllGather | OperationKind::GradientsReduceScatter => {
                    (it.kind, stage, it.chunk, it.number)
                }
                OperationKind::EmbeddingGradientsAllReduce => (it.kind, copy, 0, it.number),
                OperationKind::ClipGradients => (it.kind, 0, 0, it.number),
                _ => continue,
            };
            groups.entry(of).or_default().push(number);
        }
        self.groups.extend(groups.into_values());
    }

    /// Meetings are operations of no duration behind all others: they wait for what their members wait for.
    fn finish(self) -> Result<Schedule, TraceError> {
        let operations = self.trace.operations.len();
        let mut meetings: Vec<Option<u32>> = vec![None; operations];
        for (meeting, members) in (operations as u32..).zip(&self.groups) {
            for member in members {
                meetings[*member as usize] = Some(meeting);
            }
        }
        let waiting = self.arrows.iter();
        let waiting = waiting.map(|(at, over)| (meetings[*at as usize].unwrap_or(*at), *over));
        let members = (0..).zip(&meetings);
        let members = members.filter_map(|(at, meeting)| Some((at, (*meeting)?)));
        let order = ReplayOrder::new(operations + self.groups.len(), waiting.chain(members));
        let order = order.map_err(|WaitingCircle(waits)| {
            let stuck = waits
                .iter()
                .zip(&self.trace.operations)
                .find(|it| *it.0 > 0);
            let worker = stuck.map_or(TracedWorker { stage: 0, copy: 0 }, |it| it.1.worker);
            TraceError::Circle { worker }
        })?;
        Ok(Schedule {
            order,
            groups: self.groups,
        })
    }
}

fn is_pass(kind: OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::ForwardCompute
            | OperationKind::BackwardCompute
            | OperationKind::WeightCompute
    )
}
