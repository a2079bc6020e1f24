//! A schedule as the event graph of who carries it out by order, whatever kernels take.

use std::fmt;

use super::encoder::{EncoderPass, EncoderWork};
use super::error::BubbleError;
use super::kernel::KernelStream;
use super::schedule::{BubbleSchedule, PlacedKernel};
use super::timeline::LanguageStep;
use crate::{EventGraph, GraphOperation, Lane, LaneStream, Pass, PassKind, PipelineOperation};

/// An operation of an executed schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExecutedKernel {
    /// A kernel of the language model: its rank, its pass and its place among the kernels of that.
    Language(usize, Pass, usize),
    /// A message or a collective of replicas of the language model.
    LanguageMessage(PipelineOperation),
    /// A kernel of the encoder.
    Encoder(PlacedKernel),
    /// A message of the encoder behind its kernels, or to them.
    EncoderMessage(usize),
}

impl fmt::Display for ExecutedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Language(_, pass, kernel) => write!(f, "kernel {kernel} of the {pass}"),
            Self::LanguageMessage(it) => it.fmt(f),
            Self::Encoder(it) => write!(
                f,
                "kernel {} of micro-batch {} in stage {} of the encoder",
                it.kernel, it.micro_batch, it.stage
            ),
            Self::EncoderMessage(micro_batch) => {
                write!(f, "message of the encoder with micro-batch {micro_batch}")
            }
        }
    }
}

impl BubbleSchedule {
    /// The event graph of this schedule, carried out by order: each card runs the language model's kernels and the
    /// encoder's in the order of the plan, and none waits for an instant. `seconds` is told each kernel with what it takes
    /// by the plan, and says what it takes.
    ///
    /// With the plan's own seconds its makespan is no more than [`step_s`](Self::step_s). Replayed with others it shows
    /// what the plan is worth where kernels take longer or shorter.
    ///
    /// # Errors
    /// A schedule that does not fit the step: see [`BubbleError`].
    pub fn graph(
        &self,
        step: &LanguageStep,
        tensor: usize,
        work: &EncoderWork,
        seconds: &mut dyn FnMut(&ExecutedKernel, f64) -> f64,
    ) -> Result<EventGraph<ExecutedKernel>, BubbleError> {
        let mut execution = Execution {
            schedule: self,
            step,
            work,
            slices: tensor / self.plan.tensor.max(1),
            graph: EventGraph::new(),
            seconds,
        };
        execution.run()?;
        Ok(execution.graph)
    }
}

/// The first and the last kernels of a pass, or the operation of a message twice.
type Ends = (Vec<usize>, Vec<usize>);

struct Execution<'a> {
    schedule: &'a BubbleSchedule,
    step: &'a LanguageStep,
    work: &'a EncoderWork,
    slices: usize,
    graph: EventGraph<ExecutedKernel>,
    seconds: &'a mut dyn FnMut(&ExecutedKernel, f64) -> f64,
}

impl Execution<'_> {
    fn run(&mut self) -> Result<(), BubbleError> {
        let passes = self.step.graph()?;
        let mut ends: Vec<Ends> = vec![];
        let mut encoder = vec![None; self.schedule.kernels.len()];
        let mut number = 0;
        for rank in 0..self.step.schedule.ranks().len() {
            let count = self.step.schedule.ranks()[rank].len();
            ends.extend(self.rank(rank, &mut encoder)?);
            number += count;
        }
        for operation in &passes.operations()[number..] {
            let name = ExecutedKernel::LanguageMessage(operation.name);
            // Lanes of the language model's messages are behind those of cards.
            let lane = self.message_lane(operation.lane);
            let at = self.add(name, lane, operation.seconds)?;
            ends.push((vec![at], vec![at]));
        }
        for (operation, over) in passes.arrows() {
            for first in &ends[operation].0 {
                for last in &ends[over].1 {
                    self.graph.wait(*first, *last)?;
                }
            }
        }
        self.encoder_waits(&encoder, &ends)
    }

    fn message_lane(&self, lane: Lane) -> Lane {
        let cards = self.step.schedule.ranks().len() * self.slices;
        Lane {
            rank: cards + lane.rank,
            ..lane
        }
    }

    fn add(
        &mut self,
        name: ExecutedKernel,
        lane: Lane,
        planned_s: f64,
    ) -> Result<usize, BubbleError> {
        let seconds = (self.seconds)(&name, planned_s);
        Ok(self.graph.add(GraphOperation::new(name, lane, seconds))?)
    }

    /// The kernels of one rank, on all cards of its group: those of both models in the order of the plan. Returns the ends
    /// of the language model's passes.
    fn rank(
        &mut self,
        rank: usize,
        encoder: &mut [Option<usize>],
    ) -> Result<Vec<Ends>, BubbleError> {
        let mut own: Vec<usize> = (0..self.schedule.kernels.len())
            .filter(|at| self.schedule.kernels[*at].rank == rank)
            .collect();
        let kernels = &self.schedule.kernels;
        own.sort_by(|a, b| {
            let (a, b) = (&kernels[*a], &kernels[*b]);
            a.behind
                .cmp(&b.behind)
                .then(a.begin_s.total_cmp(&b.begin_s))
                .then(a.end_s.total_cmp(&b.end_s))
        });
        let mut own = own.into_iter().peekable();
        let (mut ends, mut before, mut count) = (vec![], vec![], 0);
        for pass in self.step.schedule.ranks()[rank].clone() {
            let stage = &self.step.stages[self.step.schedule.stage(rank, pass.chunk)];
            let kernels = match pass.kind {
                PassKind::Forward => stage.forward.clone(),
                _ => stage.backward.clone(),
            };
            let mut of_pass: Ends = (vec![], vec![]);
            for (place, kernel) in kernels.iter().enumerate() {
                while let Some(at) = own.next_if(|at| self.schedule.kernels[*at].behind <= count) {
                    encoder[at] = Some(self.encoder_kernel(at)?);
                }
                let name = ExecutedKernel::Language(rank, pass, place);
                let took_s = (self.seconds)(&name, kernel.seconds);
                let mut all = vec![];
                for slice in 0..self.slices {
                    let lane = self.lane(rank, slice, kernel.stream);
                    let at = self.graph.add(GraphOperation::new(name, lane, took_s))?;
                    for before in &before {
                        self.graph.wait(at, *before)?;
                    }
                    all.push(at);
                }
                if place == 0 {
                    of_pass.0.clone_from(&all);
                }
                before = all;
                count += 1;
            }
            of_pass.1.clone_from(&before);
            ends.push(of_pass);
        }
        for at in own {
            encoder[at] = Some(self.encoder_kernel(at)?);
        }
        Ok(ends)
    }

    fn lane(&self, rank: usize, slice: usize, stream: KernelStream) -> Lane {
        let stream = match stream {
            KernelStream::Compute => LaneStream::Compute,
            KernelStream::Collective => LaneStream::Collective,
        };
        Lane {
            rank: rank * self.slices + slice,
            stream,
        }
    }

    fn encoder_kernel(&mut self, at: usize) -> Result<usize, BubbleError> {
        let it = self.schedule.kernels[at];
        let lane = self.lane(it.rank, it.slice, it.stream);
        self.add(ExecutedKernel::Encoder(it), lane, it.end_s - it.begin_s)
    }

    /// Adds the waits of the encoder's kernels, and those of the language model for its outputs.
    fn encoder_waits(
        &mut self,
        encoder: &[Option<usize>],
        ends: &[Ends],
    ) -> Result<(), BubbleError> {
        let mut order: Vec<usize> = (0..encoder.len()).collect();
        let kernels = &self.schedule.kernels;
        let along = |it: &PlacedKernel| match it.pass {
            EncoderPass::Forward => it.stage,
            EncoderPass::Backward => usize::MAX - it.stage,
        };
        order.sort_by_key(|at| {
            let it = &kernels[*at];
            (it.micro_batch, it.pass, along(it), it.kernel)
        });
        let firsts = self.first_passes();
        let mut before: Option<usize> = None;
        for at in order {
            let Some(number) = encoder[at] else { continue };
            let it = self.schedule.kernels[at];
            let (forward, backward) = firsts[it.micro_batch];
            let same = before.map(|before| self.schedule.kernels[before]);
            let same =
                same.filter(|other| (other.micro_batch, other.pass) == (it.micro_batch, it.pass));
            match (before.and_then(|before| encoder[before]), same) {
                (Some(before), Some(other)) if other.stage == it.stage => {
                    self.graph.wait(number, before)?;
                }
                (Some(before), Some(_)) => self.message(it, &[before], &[number])?,
                _ if it.pass == EncoderPass::Backward => {
                    self.message(it, &ends[backward].1, &[number])?;
                }
                _ => {}
            }
            let own = &self.work.stages;
            let last_stage = own.iter().rposition(|stage| !stage.forward.is_empty());
            let is_last =
                Some(it.stage) == last_stage && it.kernel + 1 == own[it.stage].forward.len();
            if it.pass == EncoderPass::Forward && is_last {
                self.message(it, &[number], &ends[forward].0)?;
            }
            before = Some(at);
        }
        Ok(())
    }

    /// A message of the encoder. None holds another one up: each has a lane of its own.
    fn message(
        &mut self,
        it: PlacedKernel,
        behind: &[usize],
        before: &[usize],
    ) -> Result<(), BubbleError> {
        let rank =
            self.graph.operations().len() + 2 * self.step.schedule.ranks().len() * self.slices;
        let name = ExecutedKernel::EncoderMessage(it.micro_batch);
        let at = self.add(name, Lane::send(rank), self.work.transfer_s)?;
        for behind in behind {
            self.graph.wait(at, *behind)?;
        }
        for before in before {
            self.graph.wait(*before, at)?;
        }
        Ok(())
    }

    /// For each micro-batch the places, among all passes, of those through the first stage: forward and backward.
    fn first_passes(&self) -> Vec<(usize, usize)> {
        let mut all = vec![(0, 0); self.step.schedule.micro_batches()];
        for (at, pass) in self.step.schedule.ranks()[0].iter().enumerate() {
            match pass.kind {
                _ if pass.chunk > 0 => {}
                PassKind::Forward => all[pass.micro_batch].0 = at,
                _ => all[pass.micro_batch].1 = at,
            }
        }
        all
    }
}
