//! Traces of steps: what each worker did when, checked and laid out as one table.

use std::collections::BTreeMap;
use std::fmt;

use super::TraceError;

/// The kind of a traced operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// The forward pass of a micro-batch through the layers of a stage.
    ForwardCompute,
    /// Its backward pass, or the gradients of its inputs alone.
    BackwardCompute,
    /// The gradients of weights of a micro-batch, where a schedule has them apart.
    WeightCompute,
    /// Activations to the next stage.
    ForwardSend,
    /// Activations from the stage before.
    ForwardReceive,
    /// Gradients to the stage before.
    BackwardSend,
    /// Gradients from the next stage.
    BackwardReceive,
    /// Parameters from all copies, before the first pass.
    ParametersAllGather,
    /// Gradients to all copies, after the last pass.
    GradientsReduceScatter,
    /// Sums of the gradients of norms, within a stage's tensor group.
    NormGradientsAllReduce,
    /// Sums of the gradients of a tied embedding, between the first and the last stage.
    EmbeddingGradientsAllReduce,
    /// A collection of garbage by the interpreter of the program.
    GarbageCollection,
    /// The norm of all gradients, over all workers.
    ClipGradients,
    /// The update of the parameters.
    Optimizer,
}

impl OperationKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::ForwardCompute,
        Self::BackwardCompute,
        Self::WeightCompute,
        Self::ForwardSend,
        Self::ForwardReceive,
        Self::BackwardSend,
        Self::BackwardReceive,
        Self::ParametersAllGather,
        Self::GradientsReduceScatter,
        Self::NormGradientsAllReduce,
        Self::EmbeddingGradientsAllReduce,
        Self::GarbageCollection,
        Self::ClipGradients,
        Self::Optimizer,
    ];

    /// The name in files, as the public traces of StragglerAnalysis (arXiv 2505.05713) have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardCompute => "forward-compute",
            Self::BackwardCompute => "backward-compute",
            Self::WeightCompute => "weight-compute",
            Self::ForwardSend => "forward-send",
            Self::ForwardReceive => "forward-recv",
            Self::BackwardSend => "backward-send",
            Self::BackwardReceive => "backward-recv",
            Self::ParametersAllGather => "params-all-gather",
            Self::GradientsReduceScatter => "grads-reduce-scatter",
            Self::NormGradientsAllReduce => "layernorm-grads-all-reduce",
            Self::EmbeddingGradientsAllReduce => "embedding-grads-all-reduce",
            Self::GarbageCollection => "gc",
            Self::ClipGradients => "optimizer-clip-main-grad",
            Self::Optimizer => "optimizer",
        }
    }

    /// The kind of this name in files.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns true for what moves data between workers, so that a part of its time may be waiting for others.
    #[must_use]
    pub const fn is_communication(self) -> bool {
        !matches!(
            self,
            Self::ForwardCompute
                | Self::BackwardCompute
                | Self::WeightCompute
                | Self::GarbageCollection
                | Self::Optimizer
        )
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One worker of a trace: the ranks of a stage of one copy of the model, of which one is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TracedWorker {
    /// The stage of the pipeline.
    pub stage: usize,
    /// The copy of the model: the data-parallel rank.
    pub copy: usize,
}

impl fmt::Display for TracedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stage {} of copy {}", self.stage, self.copy)
    }
}

/// An operation of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TracedOperation {
    /// Its kind.
    pub kind: OperationKind,
    /// Whose it is.
    pub worker: TracedWorker,
    /// The chunk of the stage's layers, 0 where a stage is one chunk or the operation is of none.
    pub chunk: usize,
    /// Its place among those of its kind, worker and chunk in the step, from 0.
    pub number: usize,
}

impl fmt::Display for TracedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.kind, self.number, self.worker)?;
        if self.chunk > 0 {
            write!(f, ", chunk {}", self.chunk)?;
        }
        Ok(())
    }
}

/// One row of a trace: an operation of one step with its times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceRow {
    /// The step's number.
    pub step: u64,
    /// The operation.
    pub operation: TracedOperation,
    /// When it began, in seconds from any moment that all workers of the step share.
    pub begin_s: f64,
    /// Its duration in seconds, waiting included.
    pub seconds: f64,
}

/// A step that the analysis leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutStep {
    /// The step's number.
    pub step: u64,
    /// The reason.
    pub why: String,
}

/// Steps of a run with the same operations in each.
#[derive(Clone, Debug)]
pub struct StepTrace {
    pub(super) operations: Vec<TracedOperation>,
    pub(super) steps: Vec<TracedStep>,
    pub(super) left_out: Vec<LeftOutStep>,
    pub(super) stages: usize,
    pub(super) copies: usize,
    pub(super) chunks: usize,
}

/// The times of one step, by the places of operations.
#[derive(Clone, Debug)]
pub(super) struct TracedStep {
    pub number: u64,
    pub begins_s: Vec<f64>,
    pub seconds: Vec<f64>,
}

impl TracedStep {
    pub(super) fn end_s(&self, at: usize) -> f64 {
        self.begins_s[at] + self.seconds[at]
    }

    /// From its first begin to its last end.
    pub(super) fn makespan_s(&self) -> f64 {
        let begin = self.begins_s.iter().copied().fold(f64::INFINITY, f64::min);
        let ends = (0..self.seconds.len()).map(|at| self.end_s(at));
        ends.fold(f64::NEG_INFINITY, f64::max) - begin
    }
}

type StepRows = BTreeMap<TracedOperation, (f64, f64)>;

impl StepTrace {
    /// Makes a table of rows in any order. Steps whose operations are not those of most steps are left out,
    /// and told by [`left_out`](Self::left_out).
    ///
    /// # Errors
    /// [`TraceError::Empty`], [`TraceError::BadTime`], [`TraceError::Twice`], [`TraceError::NoPasses`].
    pub fn new(rows: impl IntoIterator<Item = TraceRow>) -> Result<Self, TraceError> {
        let mut steps: BTreeMap<u64, StepRows> = BTreeMap::new();
        for row in rows {
            let (step, operation) = (row.step, row.operation);
            if !row.begin_s.is_finite() || !row.seconds.is_finite() || row.seconds < 0.0 {
                return Err(TraceError::BadTime {
                    step,
                    operation,
                    begin_s: row.begin_s,
                    seconds: row.seconds,
                });
            }
            let times = (row.begin_s, row.seconds);
            let rows = steps.entry(step).or_default();
            if rows.insert(operation, times).is_some() {
                return Err(TraceError::Twice { step, operation });
            }
        }
        let (operations, usual) = most_common(&steps).ok_or(TraceError::Empty)?;
        let mut trace = Self {
            stages: over(&operations, |it| it.worker.stage),
            copies: over(&operations, |it| it.worker.copy),
            chunks: over(&operations, |it| it.chunk),
            operations,
            steps: vec![],
            left_out: vec![],
        };
        trace.check_workers()?;
        for (number, rows) in steps {
            match trace.differs(&rows, usual) {
                Some(why) => trace.left_out.push(LeftOutStep { step: number, why }),
                None => trace.steps.push(TracedStep {
                    number,
                    begins_s: rows.values().map(|it| it.0).collect(),
                    seconds: rows.values().map(|it| it.1).collect(),
                }),
            }
        }
        Ok(trace)
    }

    /// Stages of the pipeline.
    #[must_use]
    pub const fn stages(&self) -> usize {
        self.stages
    }

    /// Copies of the model.
    #[must_use]
    pub const fn copies(&self) -> usize {
        self.copies
    }

    /// Chunks of layers a stage.
    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.chunks
    }

    /// Micro-batches of a step, of one copy.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        let first = TracedWorker { stage: 0, copy: 0 };
        let of = |it: &&TracedOperation| {
            it.kind == OperationKind::ForwardCompute && it.worker == first && it.chunk == 0
        };
        self.operations.iter().filter(of).count()
    }

    /// The steps that are looked at.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Steps that are not looked at, with the reasons.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOutStep] {
        &self.left_out
    }

    /// All workers, a stage's copies behind each other.
    pub fn workers(&self) -> impl Iterator<Item = TracedWorker> + use<> {
        let copies = self.copies;
        let stages = 0..self.stages;
        stages.flat_map(move |stage| (0..copies).map(move |copy| TracedWorker { stage, copy }))
    }

    /// Every worker has passes, as many forward as backward, and as the first stage of its copy.
    fn check_workers(&self) -> Result<(), TraceError> {
        let mut passes: BTreeMap<TracedWorker, [usize; 2]> = BTreeMap::new();
        for operation in &self.operations {
            let of = passes.entry(operation.worker).or_default();
            match operation.kind {
                OperationKind::ForwardCompute => of[0] += 1,
                OperationKind::BackwardCompute => of[1] += 1,
                _ => {}
            }
        }
        for worker in self.workers() {
            let [forward, backward] = passes.get(&worker).copied().unwrap_or_default();
            let first = TracedWorker { stage: 0, ..worker };
            let expected = passes.get(&first).map_or(0, |it| it[0]);
            if forward == 0 || forward != backward || forward != expected {
                return Err(TraceError::NoPasses {
                    worker,
                    forward,
                    backward,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Why a step is not like the others.
    fn differs(&self, rows: &StepRows, usual: usize) -> Option<String> {
        if let Some(more) = rows
            .keys()
            .find(|it| self.operations.binary_search(it).is_err())
        {
            return Some(format!("{more} is in this step, and not in {usual} others"));
        }
        let lacks = self.operations.iter().find(|it| !rows.contains_key(it))?;
        Some(format!(
            "{lacks} is not in this step, but in {usual} others"
        ))
    }
}

/// The operations that the most steps have, and how many have them.
fn most_common(steps: &BTreeMap<u64, StepRows>) -> Option<(Vec<TracedOperation>, usize)> {
    let mut sets: BTreeMap<Vec<TracedOperation>, usize> = BTreeMap::new();
    for rows in steps.values() {
        *sets.entry(rows.keys().copied().collect()).or_default() += 1;
    }
    sets.into_iter()
        .max_by_key(|(operations, steps)| (*steps, operations.len()))
}

/// One more than the greatest of all.
fn over(operations: &[TracedOperation], of: impl Fn(&TracedOperation) -> usize) -> usize {
    operations.iter().map(of).max().map_or(0, |most| most + 1)
}
