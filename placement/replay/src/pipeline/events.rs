//! The event graph of a schedule: its passes, the messages between neighbours, and collectives of replicas.

use std::fmt;

use super::{Pass, PassKind, PipelineCosts, PipelineSchedule, ScheduleError};
use crate::graph::{EventGraph, GraphOperation, Lane, LaneStream};

/// An operation of a pipeline's graph. Its lane says which rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineOperation {
    /// The pass.
    Pass(Pass),
    /// The message to the neighbour with what this pass made.
    Send(Pass),
    /// The message from the neighbour with what this pass needs.
    Receive(Pass),
    /// The gathering of the parameters of this chunk, among the replicas of its rank.
    Gather(usize),
    /// The reduction and scattering of its gradients among them.
    Scatter(usize),
}

impl fmt::Display for PipelineOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass(pass) => pass.fmt(f),
            Self::Send(pass) => write!(f, "send after the {pass}"),
            Self::Receive(pass) => write!(f, "receive for the {pass}"),
            Self::Gather(chunk) => write!(f, "gathering of the parameters of chunk {chunk}"),
            Self::Scatter(chunk) => write!(f, "scattering of the gradients of chunk {chunk}"),
        }
    }
}

impl PipelineSchedule {
    /// The event graph of this schedule with these costs.
    ///
    /// Passes run on [`Lane::compute`] of their ranks, and come first in the graph: rank by rank, in order.
    /// A message takes its seconds on [`Lane::send`] of who made it. Computation goes on behind it; the next
    /// message of that rank waits until it has left. A receive is posted before anything comes, so it takes
    /// no time of its own on [`Lane::receive`]. Receives lie in the order of the passes that need them, which
    /// therefore holds none of these up. Stages of one rank need no message.
    ///
    /// Where replicas share parameters or gradients, a rank gathers those of its chunks in the order of their first
    /// passes, which wait, and scatters those in the order of their last ones, all on its lane for collectives: passes
    /// of other chunks go on meanwhile.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); costs that do not fit: see [`ScheduleError`].
    pub fn graph(
        &self,
        costs: &PipelineCosts,
    ) -> Result<EventGraph<PipelineOperation>, ScheduleError> {
        self.check()?;
        costs.check(self.stages())?;
        let mut graph = EventGraph::new();
        let mut numbers = vec![];
        for (rank, passes) in self.ranks.iter().enumerate() {
            numbers.push(graph.operations().len());
            for pass in passes {
                let operation = self.priced(rank, *pass, costs);
                graph.add(operation)?;
            }
        }
        self.collectives(&mut graph, &numbers, costs)?;
        if self.ranks.len() == 1 {
            return Ok(graph);
        }
        // The message of each stage and micro-batch: with the activation, and with the gradient.
        let mut sent = vec![[None; 2]; self.stages() * self.micro_batches];
        for (rank, passes) in self.ranks.iter().enumerate() {
            for (place, pass) in passes.iter().enumerate() {
                let stage = self.stage(rank, pass.chunk);
                let Some(kind) = self.message(stage, pass.kind) else {
                    continue;
                };
                let name = PipelineOperation::Send(*pass);
                let send = GraphOperation::new(name, Lane::send(rank), costs.transfer_s);
                let send = graph.add(send)?;
                graph.wait(send, numbers[rank] + place)?;
                sent[stage * self.micro_batches + pass.micro_batch][kind] = Some(send);
            }
        }
        for (rank, passes) in self.ranks.iter().enumerate() {
            for (place, pass) in passes.iter().enumerate() {
                let stage = self.stage(rank, pass.chunk);
                let (from, kind) = match pass.kind {
                    PassKind::Forward => (stage.checked_sub(1), 0),
                    PassKind::Backward | PassKind::BackwardInput => (Some(stage + 1), 1),
                    PassKind::BackwardWeight => continue,
                };
                // There is none from a stage before the first or behind the last.
                let message = from.and_then(|from| {
                    let sent = sent.get(from * self.micro_batches + pass.micro_batch)?;
                    sent[kind]
                });
                let Some(send) = message else {
                    continue;
                };
                let name = PipelineOperation::Receive(*pass);
                let receive = graph.add(GraphOperation::new(name, Lane::receive(rank), 0.0))?;
                graph.wait(receive, send)?;
                graph.wait(numbers[rank] + place, receive)?;
            }
        }
        Ok(graph)
    }

    /// The collectives of all ranks: before the first pass of each chunk, and behind its last one.
    fn collectives(
        &self,
        graph: &mut EventGraph<PipelineOperation>,
        numbers: &[usize],
        costs: &PipelineCosts,
    ) -> Result<(), ScheduleError> {
        for (rank, passes) in self.ranks.iter().enumerate() {
            let stream = LaneStream::Collective;
            let lane = Lane { rank, stream };
            let mut ends: Vec<(usize, usize)> = vec![(0, 0); self.chunks];
            let mut firsts = vec![];
            for (place, pass) in passes.iter().enumerate() {
                if !firsts.iter().any(|(_, chunk)| *chunk == pass.chunk) {
                    firsts.push((place, pass.chunk));
                }
                ends[pass.chunk] = (place, pass.chunk);
            }
            if costs.gather_s > 0.0 {
                for (place, chunk) in firsts {
                    let name = PipelineOperation::Gather(chunk);
                    let gather = graph.add(GraphOperation::new(name, lane, costs.gather_s))?;
                    graph.wait(numbers[rank] + place, gather)?;
                }
            }
            if costs.scatter_s > 0.0 {
                ends.sort_unstable();
                for (place, chunk) in ends {
                    let name = PipelineOperation::Scatter(chunk);
                    let scatter = graph.add(GraphOperation::new(name, lane, costs.scatter_s))?;
                    graph.wait(scatter, numbers[rank] + place)?;
                }
            }
        }
        Ok(())
    }

    /// A pass as an operation with its seconds and bytes.
    fn priced(
        &self,
        rank: usize,
        pass: Pass,
        costs: &PipelineCosts,
    ) -> GraphOperation<PipelineOperation> {
        let stage = &costs.stages[self.stage(rank, pass.chunk)];
        let name = PipelineOperation::Pass(pass);
        let operation = GraphOperation::new(name, Lane::compute(rank), stage.seconds(pass.kind));
        match pass.kind {
            PassKind::Forward => operation.taking(stage.activation_bytes),
            PassKind::Backward => operation.freeing(stage.activation_bytes),
            PassKind::BackwardInput => operation.freeing(stage.activation_bytes - stage.kept_bytes),
            PassKind::BackwardWeight => operation.freeing(stage.kept_bytes),
        }
    }

    /// The kind of message that follows a pass: 0 with an activation, 1 with a gradient.
    const fn message(&self, stage: usize, kind: PassKind) -> Option<usize> {
        match kind {
            PassKind::Forward if stage + 1 < self.stages() => Some(0),
            PassKind::Backward | PassKind::BackwardInput if stage > 0 => Some(1),
            _ => None,
        }
    }
}
