//! Steps replayed with some durations as traced and the others as they would be without stragglers.

use std::fmt;

use super::schedule::{Schedule, schedule};
use super::{LeftOutStep, OperationKind, StepTrace, TraceError, TracedOperation, TracedWorker};
use crate::order::Times;

/// The most seconds by which a message may seem to end before it begins: clocks of workers differ a little.
const CLOCKS_S: f64 = 0.01;

/// A part of a trace's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TracePart {
    /// Those of some kinds.
    Kinds(&'static [OperationKind]),
    /// Those of a stage.
    Stage(usize),
    /// Those of a copy of the model.
    Copy(usize),
    /// Those of some workers.
    Workers(Vec<TracedWorker>),
}

impl fmt::Display for TracePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |names: Vec<String>| names.join(" + ");
        match self {
            Self::Kinds(kinds) => {
                f.write_str(&joined(kinds.iter().map(ToString::to_string).collect()))
            }
            Self::Stage(stage) => write!(f, "stage {stage}"),
            Self::Copy(copy) => write!(f, "copy {copy}"),
            Self::Workers(workers) => {
                f.write_str(&joined(workers.iter().map(ToString::to_string).collect()))
            }
        }
    }
}

impl TracePart {
    fn has(&self, operation: &TracedOperation) -> bool {
        match self {
            Self::Kinds(kinds) => kinds.contains(&operation.kind),
            Self::Stage(stage) => operation.worker.stage == *stage,
            Self::Copy(copy) => operation.worker.copy == *copy,
            Self::Workers(workers) => workers.contains(&operation.worker),
        }
    }
}

/// Operations whose traced durations are kept. All others have their ideal ones.
#[derive(Clone, Copy, Debug)]
pub enum Kept<'a> {
    /// All are kept: the step as it was, without the time between what an operation waits for and its launch.
    All,
    /// None is kept: the step without stragglers.
    None,
    /// These alone: by how much they slow an ideal step down.
    Only(&'a TracePart),
    /// All but these: the step if these were mended.
    AllBut(&'a TracePart),
}

/// A trace with its schedule, and for each operation the traced and the ideal duration.
///
/// An operation that moves data has its transfer for a duration: from the moment at which all of its group had
/// begun. What is before that is waiting, which a replay makes anew. The ideal duration is the mean over all
/// operations of the kind in all steps, and the median for transfers (arXiv 2505.05713).
#[derive(Clone, Debug)]
pub struct WhatIf {
    schedule: Schedule,
    operations: Vec<TracedOperation>,
    steps: Vec<ReplayedStep>,
    /// By the places of operations.
    ideal_s: Vec<f64>,
    left_out: Vec<LeftOutStep>,
}

/// One step's traced times.
#[derive(Clone, Debug)]
struct ReplayedStep {
    number: u64,
    makespan_s: f64,
    /// Durations of passes and transfers, by the places of operations.
    seconds: Vec<f64>,
}

impl WhatIf {
    /// Rebuilds the schedule of a trace, and finds the ideal durations.
    ///
    /// # Errors
    /// [`TraceError::Messages`], [`TraceError::Circle`] and [`TraceError::NoStep`].
    pub fn new(trace: &StepTrace) -> Result<Self, TraceError> {
        let schedule = schedule(trace)?;
        let mut left_out = trace.left_out.clone();
        let mut steps = vec![];
        for step in &trace.steps {
            let mut seconds = step.seconds.clone();
            let mut worst: Option<(f64, u32)> = None;
            for group in &schedule.groups {
                let begins = group.iter().map(|it| step.begins_s[*it as usize]);
                let met = begins.fold(f64::NEG_INFINITY, f64::max);
                for member in group {
                    let transfer = step.end_s(*member as usize) - met;
                    if worst.is_none_or(|worst| transfer < worst.0) {
                        worst = Some((transfer, *member));
                    }
                    seconds[*member as usize] = transfer.max(0.0);
                }
            }
            match worst.filter(|it| it.0 < -CLOCKS_S) {
                None => steps.push(ReplayedStep {
                    number: step.number,
                    makespan_s: step.makespan_s(),
                    seconds,
                }),
                Some((transfer, member)) => left_out.push(LeftOutStep {
                    step: step.number,
                    why: format!(
                        "{} ends {:.3} s before all of its group have begun: the clocks of workers differ",
                        trace.operations[member as usize], -transfer
                    ),
                }),
            }
        }
        left_out.sort_by_key(|it| it.step);
        if steps.is_empty() {
            let LeftOutStep { step, why } = left_out.swap_remove(0);
            return Err(TraceError::NoStep { step, why });
        }
        let ideal_s = ideal(&trace.operations, &steps);
        Ok(Self {
            schedule,
            operations: trace.operations.clone(),
            steps,
            ideal_s,
            left_out,
        })
    }

    /// Seconds of each step with these durations kept.
    #[must_use]
    pub fn seconds(&self, kept: Kept<'_>) -> Vec<f64> {
        let is_kept: Vec<bool> = (self.operations.iter())
            .map(|it| match kept {
                Kept::All => true,
                Kept::None => false,
                Kept::Only(part) => part.has(it),
                Kept::AllBut(part) => !part.has(it),
            })
            .collect();
        let mut times = Times::default();
        let mut seconds = vec![];
        for step in &self.steps {
            let of = |at: usize| match is_kept.get(at) {
                Some(true) => step.seconds[at],
                Some(false) => self.ideal_s[at],
                // A meeting.
                None => 0.0,
            };
            self.schedule.order.replay(of, &mut times);
            seconds.push(times.ends_s.iter().copied().fold(0.0, f64::max));
            if matches!(kept, Kept::None) {
                // All steps are the same.
                return vec![seconds[0]; self.steps.len()];
            }
        }
        seconds
    }

    /// Seconds of each step as it was traced, from its first begin to its last end.
    #[must_use]
    pub fn traced_seconds(&self) -> Vec<f64> {
        self.steps.iter().map(|step| step.makespan_s).collect()
    }

    /// The numbers of the steps.
    #[must_use]
    pub fn steps(&self) -> Vec<u64> {
        self.steps.iter().map(|step| step.number).collect()
    }

    /// Steps that are not looked at, with the reasons.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOutStep] {
        &self.left_out
    }

    /// Whether the trace has operations of some of these kinds.
    pub(super) fn has_any(&self, part: &TracePart) -> bool {
        self.operations.iter().any(|it| part.has(it))
    }

    /// The correlation between seconds of forward and backward passes of the same micro-batches of a stage, over
    /// all steps and copies, without some workers; none where either hardly varies.
    pub(super) fn pass_correlation(&self, stage: usize, without: &[TracedWorker]) -> Option<f64> {
        let of = |kind| {
            let mut places: Vec<(TracedOperation, usize)> = (self.operations.iter().copied())
                .zip(0..)
                .filter(|(it, _)| {
                    it.kind == kind && it.worker.stage == stage && !without.contains(&it.worker)
                })
                .collect();
            places.sort_by_key(|(it, _)| (it.worker.copy, it.chunk, it.number));
            places
        };
        let forward = of(OperationKind::ForwardCompute);
        let backward = of(OperationKind::BackwardCompute);
        let mut pairs = vec![];
        for step in &self.steps {
            let of = forward.iter().zip(&backward);
            pairs.extend(of.map(|(a, b)| (step.seconds[a.1], step.seconds[b.1])));
        }
        correlation(&pairs)
    }
}

/// The ideal durations: means of passes, medians of transfers, over all steps.
fn ideal(operations: &[TracedOperation], steps: &[ReplayedStep]) -> Vec<f64> {
    let mut ideal = vec![0.0; operations.len()];
    for kind in OperationKind::ALL {
        let places: Vec<usize> = (operations.iter().zip(0..))
            .filter(|it| it.0.kind == kind)
            .map(|it| it.1)
            .collect();
        if places.is_empty() {
            continue;
        }
        let all = steps
            .iter()
            .flat_map(|step| places.iter().map(|at| step.seconds[*at]));
        let mut all: Vec<f64> = all.collect();
        let value = match kind.is_communication() {
            true => median(&mut all),
            false => all.iter().sum::<f64>() / all.len() as f64,
        };
        for at in places {
            ideal[at] = value;
        }
    }
    ideal
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let half = numbers.len() / 2;
    match numbers.len() % 2 {
        0 => f64::midpoint(numbers[half - 1], numbers[half]),
        _ => numbers[half],
    }
}

/// Pearson's correlation.
fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let count = pairs.len() as f64;
    let mean_a = pairs.iter().map(|it| it.0).sum::<f64>() / count;
    let mean_b = pairs.iter().map(|it| it.1).sum::<f64>() / count;
    let (mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0);
    for (a, b) in pairs {
        let (a, b) = (a - mean_a, b - mean_b);
        aa += a * a;
        bb += b * b;
        ab += a * b;
    }
    // Less than a hundredth of the mean is the noise of clocks.
    let varies = |sum: f64, mean: f64| (sum / count).sqrt() > 0.01 * mean;
    (varies(aa, mean_a) && varies(bb, mean_b)).then(|| ab / (aa * bb).sqrt())
}
