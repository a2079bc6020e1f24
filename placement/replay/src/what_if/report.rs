//! The report of a what-if analysis: how much slower stragglers make a run, and which part of it is to blame.

use std::fmt;

use super::{Kept, OperationKind, StepTrace, TracePart, TracedWorker, WhatIf};

/// A run is told to have stragglers from this slowdown on (arXiv 2505.05713).
pub const STRAGGLING: f64 = 1.1;
/// The share of workers that are mended together, for `M_W`.
const WORST_SHARE: f64 = 0.03;
/// A part explains a slowdown that it brings back by half.
const EXPLAINS: f64 = 0.5;
/// Passes go with the lengths of sequences from this correlation on.
const CORRELATES: f64 = 0.9;

/// A slowdown by one part of the operations.
#[derive(Clone, Debug, PartialEq)]
pub struct PartSlowdown {
    /// The part.
    pub part: TracePart,
    /// Times by which this part alone slows an ideal step down. Under 1 for a part that is quicker than the mean.
    pub slowdown: f64,
    /// The same in each step.
    pub by_step: Vec<f64>,
    /// Mean seconds of a step if this part alone were ideal.
    pub mended_s: f64,
}

/// The part of a slowdown that goes when some workers are mended together.
#[derive(Clone, Debug, PartialEq)]
pub struct MendedShare {
    /// The workers.
    pub workers: Vec<TracedWorker>,
    /// Mean seconds of a step then.
    pub mended_s: f64,
    /// `(T - mended) / (T - T_ideal)`: 1 if all of the slowdown goes. May be more, or less than 0.
    pub share: f64,
}

/// A cause of a slowdown.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StragglerCause {
    /// Some workers are slow.
    Workers {
        /// These.
        workers: Vec<TracedWorker>,
        /// The share of the slowdown that they explain.
        share: f64,
    },
    /// Micro-batches differ in how long they take forward and backward alike: in the lengths of sequences.
    SequenceLengths {
        /// The least correlation of a stage.
        correlation: f64,
    },
    /// A stage is slow where there is one copy alone: its layers or its machine.
    Stage {
        /// The stage.
        stage: usize,
        /// The share of the slowdown that it explains.
        share: f64,
    },
    /// The last stage has more to do than the others, as one with the loss often has.
    LastStage {
        /// The stage.
        stage: usize,
        /// The share of the slowdown that it explains.
        share: f64,
    },
    /// Collections of garbage at different moments.
    GarbageCollection {
        /// Their slowdown alone.
        slowdown: f64,
    },
}

impl fmt::Display for StragglerCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { workers, share } => {
                let names: Vec<String> = workers.iter().map(ToString::to_string).collect();
                let (verb, whose) = match workers.len() {
                    1 => ("is", "its machine"),
                    _ => ("are", "their machines"),
                };
                write!(
                    f,
                    "{} {verb} slow, which explains {:.0} % of the slowdown: replace {whose}",
                    names.join(", "),
                    share.min(1.0) * 100.0
                )
            }
            Self::Stage { stage, share } => write!(
                f,
                "stage {stage} is slower than the others, which explains {:.0} % of the slowdown: move layers from it to \
                 others, or replace its machine",
                share.min(1.0) * 100.0
            ),
            Self::SequenceLengths { correlation } => write!(
                f,
                "micro-batches differ in length: forward and backward passes go together by {correlation:.3}: \
                 balance the squares of sequence lengths over micro-batches and copies"
            ),
            Self::LastStage { stage, share } => write!(
                f,
                "the last stage, {stage}, is heavier than the others, which explains {:.0} % of the slowdown: \
                 move layers from it to others",
                share.min(1.0) * 100.0
            ),
            Self::GarbageCollection { slowdown } => write!(
                f,
                "workers collect garbage at different moments, which makes a step {slowdown:.2} times as long: \
                 collect at a step that all share"
            ),
        }
    }
}

/// The result of a what-if analysis. Seconds are means over the steps, of one step.
#[derive(Clone, Debug)]
pub struct StragglerReport {
    /// The steps' numbers.
    pub steps: Vec<u64>,
    /// As traced.
    pub traced_s: f64,
    /// Replayed with traced durations, without delays of launches.
    pub replayed_s: f64,
    /// Replayed with ideal durations.
    pub ideal_s: f64,
    /// The slowdown of each step.
    pub by_step: Vec<f64>,
    /// Slowdowns by kinds of operations, the greatest first. Both ends of messages are one kind.
    pub by_kind: Vec<PartSlowdown>,
    /// Slowdowns by stages, in order.
    pub by_stage: Vec<PartSlowdown>,
    /// Slowdowns by copies, in order.
    pub by_copy: Vec<PartSlowdown>,
    /// An estimate of each worker's slowdown: the lesser of its stage's and its copy's. The greatest first.
    pub by_worker: Vec<(TracedWorker, f64)>,
    /// The slowest 3 % of workers: `M_W`.
    pub slowest_workers: MendedShare,
    /// All workers of the last stage: `M_S`.
    pub last_stage: MendedShare,
    /// The correlation of forward and backward passes in each stage, without the slowest workers where these
    /// explain the slowdown; none where passes hardly vary.
    pub pass_correlation: Vec<Option<f64>>,
    /// Causes that explain a slowdown of [`STRAGGLING`] or more, the strongest first.
    pub causes: Vec<StragglerCause>,
}

/// Kinds that are looked at together.
const PARTS: [&[OperationKind]; 12] = [
    &[OperationKind::ForwardCompute],
    &[OperationKind::BackwardCompute],
    &[OperationKind::WeightCompute],
    &[OperationKind::ForwardSend, OperationKind::ForwardReceive],
    &[OperationKind::BackwardSend, OperationKind::BackwardReceive],
    &[OperationKind::ParametersAllGather],
    &[OperationKind::GradientsReduceScatter],
    &[OperationKind::NormGradientsAllReduce],
    &[OperationKind::EmbeddingGradientsAllReduce],
    &[OperationKind::GarbageCollection],
    &[OperationKind::ClipGradients],
    &[OperationKind::Optimizer],
];

impl StragglerReport {
    /// Analyses a trace.
    #[must_use]
    pub fn new(trace: &StepTrace, what_if: &WhatIf) -> Self {
        let replayed = what_if.seconds(Kept::All);
        let ideal_s = what_if.seconds(Kept::None)[0];
        let replayed_s = mean(&replayed);
        let part = |part: TracePart| {
            let alone = what_if.seconds(Kept::Only(&part));
            PartSlowdown {
                slowdown: mean(&alone) / ideal_s,
                by_step: alone.iter().map(|it| it / ideal_s).collect(),
                mended_s: mean(&what_if.seconds(Kept::AllBut(&part))),
                part,
            }
        };
        let kinds = PARTS.into_iter().map(TracePart::Kinds);
        let kinds = kinds.filter(|it| what_if.has_any(it)).map(part);
        let mut by_kind: Vec<PartSlowdown> = kinds.collect();
        by_kind.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
        let stages = (0..trace.stages()).map(TracePart::Stage);
        let by_stage: Vec<PartSlowdown> = stages.map(part).collect();
        let copies = (0..trace.copies()).map(TracePart::Copy);
        let by_copy: Vec<PartSlowdown> = copies.map(part).collect();
        let worker = |it: TracedWorker| {
            let (stage, copy) = (&by_stage[it.stage], &by_copy[it.copy]);
            (it, stage.slowdown.min(copy.slowdown))
        };
        let mut by_worker: Vec<(TracedWorker, f64)> = trace.workers().map(worker).collect();
        by_worker.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mended = |workers: Vec<TracedWorker>| {
            let part = TracePart::Workers(workers.clone());
            let mended_s = mean(&what_if.seconds(Kept::AllBut(&part)));
            let lost = replayed_s - ideal_s;
            MendedShare {
                workers,
                mended_s,
                share: match lost.abs() > 1e-9 * replayed_s {
                    true => (replayed_s - mended_s) / lost,
                    false => 0.0,
                },
            }
        };
        let slowest = (by_worker.len() as f64 * WORST_SHARE).ceil() as usize;
        let slowest = by_worker[..slowest].iter().map(|it| it.0).collect();
        let last = trace.stages() - 1;
        let mut report = Self {
            steps: what_if.steps(),
            traced_s: mean(&what_if.traced_seconds()),
            replayed_s,
            ideal_s,
            by_step: replayed.iter().map(|it| it / ideal_s).collect(),
            slowest_workers: mended(slowest),
            last_stage: mended(trace.workers().filter(|it| it.stage == last).collect()),
            by_kind,
            by_stage,
            by_copy,
            by_worker,
            pass_correlation: vec![],
            causes: vec![],
        };
        let without = match report.slowest_workers.share >= EXPLAINS {
            true => &report.slowest_workers.workers[..],
            false => &[],
        };
        report.pass_correlation = (0..trace.stages())
            .map(|stage| what_if.pass_correlation(stage, without))
            .collect();
        report.causes = report.find_causes();
        report
    }

    /// `T / T_ideal`.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.replayed_s / self.ideal_s
    }

    /// The share of the devices' time that is lost to stragglers: `1 - T_ideal / T`.
    #[must_use]
    pub fn waste(&self) -> f64 {
        1.0 - self.ideal_s / self.replayed_s
    }

    /// Times by which a traced step is longer than its replay: by the time between what operations wait for and their
    /// launches.
    #[must_use]
    pub fn launch_slowdown(&self) -> f64 {
        self.traced_s / self.replayed_s
    }

    fn find_causes(&self) -> Vec<StragglerCause> {
        let mut causes = vec![];
        if self.slowdown() < STRAGGLING {
            return causes;
        }
        let MendedShare { workers, share, .. } = &self.slowest_workers;
        let by_workers = *share >= EXPLAINS && self.by_worker.len() > 1;
        if by_workers {
            causes.push(match (&workers[..], self.by_copy.len()) {
                ([one], 1) => StragglerCause::Stage {
                    stage: one.stage,
                    share: *share,
                },
                _ => StragglerCause::Workers {
                    workers: workers.clone(),
                    share: *share,
                },
            });
        }
        let correlations = self.pass_correlation.iter().copied();
        let least = correlations.flatten().reduce(f64::min);
        if let Some(correlation) = least.filter(|it| *it >= CORRELATES && !by_workers) {
            causes.push(StragglerCause::SequenceLengths { correlation });
        }
        // Slow workers of the last stage are named already.
        let stage = self.by_stage.len() - 1;
        let share = self.last_stage.share;
        let are_named = by_workers && workers.iter().any(|it| it.stage == stage);
        if share >= EXPLAINS && stage > 0 && !are_named {
            causes.push(StragglerCause::LastStage { stage, share });
        }
        let garbage = TracePart::Kinds(&[OperationKind::GarbageCollection]);
        let of_garbage = self.by_kind.iter().find(|it| it.part == garbage);
        if let Some(slowdown) = of_garbage.map(|it| it.slowdown)
            && (slowdown - 1.0) >= EXPLAINS * (self.slowdown() - 1.0)
        {
            causes.push(StragglerCause::GarbageCollection { slowdown });
        }
        causes
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}
