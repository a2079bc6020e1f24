//! Ranks of a training run and the passes of its pipeline, as they record them.

use std::collections::BTreeMap;

use odeon::ActorId;
use odeon::telemetry::Label;
use odeon::trace::SpanKind;
use odeon_mesh::{DP, EP, FSDP, Mesh, PP};
use odeon_replay::{
    OperationKind, Pass, PassKind, StepTrace, TraceRow, TracedOperation, TracedWorker,
};

use crate::cluster_view::{ClusterView, Recorded};
use crate::date::Date;
use crate::spans::Span;

/// The number that a rank records of itself, with the labels `rank`, `mesh` and, of a pipeline, `schedule`.
const RANK: &str = "train.rank";

/// The kinds of passes, with the names of their spans.
const PASSES: [(PassKind, &str); 4] = [
    (PassKind::Forward, "forward pass"),
    (PassKind::Backward, "backward pass"),
    (PassKind::BackwardInput, "input gradient pass"),
    (PassKind::BackwardWeight, "weight gradient pass"),
];

/// A pass of a micro-batch through a stage of a rank, as it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordedPass {
    /// The pass.
    pub pass: Pass,
    /// The step.
    pub step: u64,
    /// When it began.
    pub from: Date,
    /// When it was over.
    pub to: Date,
}

impl RecordedPass {
    /// The pass that a span tells of, if it does.
    #[must_use]
    pub fn of(span: &Span) -> Option<Self> {
        let number = |name: &str| -> Option<usize> { span.label(name)?.parse().ok() };
        let kind = PASSES.iter().find(|(_, name)| *name == &*span.name)?.0;
        (span.kind == SpanKind::User).then_some(())?;
        Some(Self {
            pass: Pass::new(kind, number("micro_batch")?, number("chunk")?),
            step: number("step")? as u64,
            from: span.start,
            to: span.end?,
        })
    }

    /// Its time in milliseconds.
    #[must_use]
    pub fn ms(&self) -> f64 {
        self.to.since(self.from).as_secs_f64() * 1e3
    }
}

/// The ranks of a run, as they have told of themselves: on the mesh that was told last.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlaces {
    /// The mesh.
    pub mesh: Mesh,
    /// The order of passes, of a pipeline.
    pub schedule: Option<String>,
    /// The actor of each rank, the newest.
    pub actors: BTreeMap<usize, ActorId>,
}

impl RankPlaces {
    /// Those among the numbers of a run.
    #[must_use]
    pub fn of(recorded: &[&Recorded]) -> Option<Self> {
        let places = recorded.iter().filter(|it| it.name == RANK);
        let places = places.filter_map(|it| Some((it.points.back()?.0, *it)));
        let mut places: Vec<(Date, &Recorded)> = places.collect();
        places.sort_by_key(|(at, _)| *at);
        let (_, newest) = places.last()?;
        let mesh = newest.label("mesh")?;
        let mut actors = BTreeMap::new();
        for (_, place) in &places {
            let of_mesh = place.label("mesh") == Some(mesh);
            if let Some(rank) = place.rank().filter(|_| of_mesh) {
                actors.insert(rank, place.actor);
            }
        }
        Some(Self {
            mesh: mesh.to_string().parse().ok()?,
            schedule: newest.label("schedule").map(ToString::to_string),
            actors,
        })
    }

    /// The last steps of a pipeline of which anything is kept, at most so many and the one that goes on: the passes of
    /// one rank of each stage and copy, and when the first of them began. None where no step is whole.
    #[must_use]
    pub fn traced_steps(&self, seen: &ClusterView, steps_max: usize) -> Option<(StepTrace, Date)> {
        self.schedule.as_ref()?;
        let workers = self.workers();
        let mut steps: BTreeMap<u64, Vec<(TracedWorker, RecordedPass)>> = BTreeMap::new();
        for span in seen.spans().ended().rev() {
            let Some((worker, pass)) = workers.get(&span.by).zip(RecordedPass::of(span)) else {
                continue;
            };
            if steps.len() > steps_max && !steps.contains_key(&pass.step) {
                break;
            }
            steps.entry(pass.step).or_default().push((*worker, pass));
        }
        let start = steps.values().flatten().map(|(_, pass)| pass.from).min()?;
        let row = |(worker, it): &(TracedWorker, RecordedPass)| TraceRow {
            step: it.step,
            operation: TracedOperation {
                kind: match it.pass.kind {
                    PassKind::Forward => OperationKind::ForwardCompute,
                    PassKind::Backward | PassKind::BackwardInput => OperationKind::BackwardCompute,
                    PassKind::BackwardWeight => OperationKind::WeightCompute,
                },
                worker: *worker,
                chunk: it.pass.chunk,
                number: it.pass.micro_batch,
            },
            begin_s: it.from.since(start).as_secs_f64(),
            seconds: it.ms() / 1e3,
        };
        let trace = StepTrace::new(steps.values().flatten().map(row)).ok()?;
        Some((trace, start))
    }

    /// The first rank of each stage and copy, by its actor.
    fn workers(&self) -> BTreeMap<ActorId, TracedWorker> {
        let mut first: BTreeMap<TracedWorker, usize> = BTreeMap::new();
        for rank in (0..self.mesh.len()).rev() {
            first.insert(self.place(rank), rank);
        }
        let first = first.into_iter();
        let told = first.filter_map(|(worker, rank)| Some((*self.actors.get(&rank)?, worker)));
        told.collect()
    }

    /// The actors of a worker: of the ranks that share its stage and copy.
    #[must_use]
    pub fn actors_of(&self, worker: TracedWorker) -> Vec<ActorId> {
        let ranks = self.actors.iter();
        let own = ranks.filter(|(rank, _)| self.place(**rank) == worker);
        own.map(|(_, actor)| *actor).collect()
    }

    /// The stage and the copy of a rank.
    fn place(&self, rank: usize) -> TracedWorker {
        // Ranks along these have other samples.
        let copy = [DP, FSDP, EP].iter().fold(0, |copy, dim| {
            copy * self.mesh.size(dim) + self.mesh.coordinate(rank, dim)
        });
        TracedWorker {
            stage: self.mesh.coordinate(rank, PP),
            copy,
        }
    }
}

impl Recorded {
    /// The label of this name.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&Label> {
        let mut labels = self.labels.iter();
        labels.find(|(it, _)| it == name).map(|(_, label)| label)
    }

    /// The label `rank`, where it is a number.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self.label("rank")? {
            Label::Int(rank) => usize::try_from(*rank).ok(),
            _ => None,
        }
    }
}
