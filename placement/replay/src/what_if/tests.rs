//! Traces of made-up runs, whose stragglers are known.

use proptest::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;

/// What makes a run slow.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Injected {
    Nothing,
    /// One worker takes so many times as long for its passes.
    SlowWorker(f64),
    /// The last stage does.
    HeavyLastStage(f64),
    /// Lengths of sequences with a long tail.
    Lengths,
    /// Now and then a worker collects garbage for so many seconds.
    Garbage(f64),
}

/// A run of 1F1B with messages and an optimizer, as its own simulation has it: by what each worker does next.
struct Run {
    stages: usize,
    copies: usize,
    micro_batches: usize,
    steps: u64,
    injected: Injected,
    seed: u64,
    with_messages: bool,
}

/// The slow worker.
const SLOW: TracedWorker = TracedWorker { stage: 1, copy: 2 };
const TRANSFER_S: f64 = 0.01;

impl Run {
    fn new(injected: Injected, seed: u64) -> Self {
        Self {
            stages: 4,
            copies: 8,
            micro_batches: 8,
            steps: 5,
            injected,
            seed,
            with_messages: true,
        }
    }

    /// Whether the passes of a worker in the order of 1F1B are forward, with their micro-batches.
    fn passes(&self, stage: usize) -> Vec<(bool, usize)> {
        let ahead = (self.stages - stage - 1).min(self.micro_batches);
        let mut passes: Vec<(bool, usize)> = (0..ahead).map(|it| (true, it)).collect();
        for micro in 0..self.micro_batches {
            if ahead + micro < self.micro_batches {
                passes.push((true, ahead + micro));
            }
            passes.push((false, micro));
        }
        passes
    }

    /// The rows, and the seconds of each step.
    fn rows(&self) -> (Vec<TraceRow>, Vec<f64>) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let (mut rows, mut seconds) = (vec![], vec![]);
        for step in 0..self.steps {
            let mut ends = vec![];
            for copy in 0..self.copies {
                ends.extend(self.copy_of(step, copy, &mut rng, &mut rows));
            }
            // The clip of gradients begins when all have come to it.
            let met = ends.iter().map(|it| it.1).fold(0.0, f64::max);
            for (worker, end) in ends {
                let mut row = |kind, begin_s, seconds| {
                    let operation = TracedOperation {
                        kind,
                        worker,
                        chunk: 0,
                        number: 0,
                    };
                    rows.push(TraceRow {
                        step,
                        operation,
                        begin_s,
                        seconds,
                    });
                };
                row(OperationKind::ClipGradients, end, met + 0.1 - end);
                row(OperationKind::Optimizer, met + 0.1, 0.5);
            }
            seconds.push(met + 0.6);
        }
        (rows, seconds)
    }

    /// The rows of a copy up to the clip, and when its workers come there.
    fn copy_of(
        &self,
        step: u64,
        copy: usize,
        rng: &mut ChaCha8Rng,
        rows: &mut Vec<TraceRow>,
    ) -> Vec<(TracedWorker, f64)> {
        let micro_batches = self.micro_batches;
        // Drawn whatever is injected, so that runs with and without it are the same but for that.
        let lengths: Vec<f64> = (0..micro_batches)
            .map(|_| {
                let tail = 0.3 / rng.random_range(0.05..1.0_f64);
                if self.injected == Injected::Lengths {
                    tail
                } else {
                    1.0
                }
            })
            .collect();
        let noise: Vec<f64> = (0..2 * micro_batches * self.stages)
            .map(|_| rng.random_range(0.99..1.01))
            .collect();
        let garbage: Vec<f64> = (0..self.stages)
            .map(|_| {
                let falls = rng.random_bool(0.1);
                match self.injected {
                    Injected::Garbage(seconds) if falls => seconds,
                    _ => 0.0,
                }
            })
            .collect();
        let orders: Vec<Vec<(bool, usize)>> = (0..self.stages).map(|it| self.passes(it)).collect();
        let mut done: Vec<[Vec<Option<f64>>; 2]> =
            vec![[vec![None; micro_batches], vec![None; micro_batches]]; self.stages];
        let mut next = vec![0; self.stages];
        let mut free = vec![0.0; self.stages];
        // When the last message of a direction was over at a worker, and since when it waits for the next.
        let mut posted = vec![[0.0_f64; 2]; self.stages];
        let mut sent = vec![[0.0_f64; 2]; self.stages];
        let mut row = |kind, stage, number, begin_s: f64, end_s: f64| {
            let operation = TracedOperation {
                kind,
                worker: TracedWorker { stage, copy },
                chunk: 0,
                number,
            };
            rows.push(TraceRow {
                step,
                operation,
                begin_s,
                seconds: end_s - begin_s,
            });
        };
        while next
            .iter()
            .zip(&orders)
            .any(|(next, order)| *next < order.len())
        {
            for stage in 0..self.stages {
                let Some((forward, micro)) = orders[stage].get(next[stage]).copied() else {
                    continue;
                };
                let way = usize::from(!forward);
                let from = match forward {
                    true => stage.checked_sub(1),
                    false => Some(stage + 1).filter(|it| *it < self.stages),
                };
                let mut begin: f64 = free[stage];
                if let Some(from) = from {
                    let Some(over) = done[from][way][micro] else {
                        continue;
                    };
                    let send = over.max(sent[from][way]);
                    let receive = posted[stage][way];
                    let met = match self.with_messages {
                        true => send.max(receive) + TRANSFER_S,
                        false => over,
                    };
                    if self.with_messages {
                        let kinds = match forward {
                            true => (OperationKind::ForwardSend, OperationKind::ForwardReceive),
                            false => (OperationKind::BackwardSend, OperationKind::BackwardReceive),
                        };
                        row(kinds.0, from, micro, send, met);
                        row(kinds.1, stage, micro, receive, met);
                    }
                    sent[from][way] = met;
                    posted[stage][way] = met;
                    begin = begin.max(met);
                }
                let worker = TracedWorker { stage, copy };
                let mut seconds = if forward { 1.0 } else { 2.0 } * lengths[micro];
                seconds *= noise[(stage * micro_batches + micro) * 2 + way];
                match self.injected {
                    Injected::SlowWorker(times) if worker == SLOW => seconds *= times,
                    Injected::HeavyLastStage(times) if stage + 1 == self.stages => seconds *= times,
                    _ => {}
                }
                let kind = match forward {
                    true => OperationKind::ForwardCompute,
                    false => OperationKind::BackwardCompute,
                };
                row(kind, stage, micro, begin, begin + seconds);
                free[stage] = begin + seconds;
                posted[stage][way] = posted[stage][way].max(begin + seconds);
                done[stage][way][micro] = Some(begin + seconds);
                next[stage] += 1;
            }
        }
        (0..self.stages)
            .map(|stage| {
                let end = free[stage] + garbage[stage];
                row(OperationKind::GarbageCollection, stage, 0, free[stage], end);
                (TracedWorker { stage, copy }, end)
            })
            .collect()
    }

    fn report(&self) -> (StragglerReport, Vec<f64>) {
        let (rows, seconds) = self.rows();
        let trace = StepTrace::new(rows).unwrap();
        assert!(trace.left_out().is_empty());
        let what_if = WhatIf::new(&trace).unwrap();
        let replayed = what_if.seconds(Kept::All);
        for (replayed, true_seconds) in replayed.iter().zip(&seconds) {
            assert!(
                (replayed - true_seconds).abs() < 1e-9,
                "{replayed} {true_seconds}"
            );
        }
        (StragglerReport::new(&trace, &what_if), seconds)
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A replay with all durations as traced is the run itself, with messages and without. SEMANTICS 151.
    #[test]
    fn a_replay_as_traced_takes_as_long_as_the_run(
        stages in 1..6_usize,
        copies in 1..5_usize,
        micro_batches in 1..9_usize,
        seed in any::<u64>(),
        which in 0..4_usize,
        with_messages in any::<bool>(),
    ) {
        let injected = [Injected::Nothing, Injected::SlowWorker(2.0), Injected::Lengths, Injected::Garbage(5.0)];
        let run = Run { stages, copies, micro_batches, with_messages, ..Run::new(injected[which], seed) };
        let (report, seconds) = run.report();
        prop_assert!((report.replayed_s - mean(&seconds)).abs() < 1e-9);
        prop_assert!((report.launch_slowdown() - 1.0).abs() < 1e-9);
        prop_assert_eq!(report.by_worker.len(), stages * copies);
    }
}

/// The first cause that is told.
fn told(report: &StragglerReport) -> Injected {
    match report.causes.first() {
        None => Injected::Nothing,
        Some(StragglerCause::Workers { workers, .. }) => {
            assert_eq!(*workers, [SLOW]);
            Injected::SlowWorker(0.0)
        }
        Some(StragglerCause::Stage { .. } | StragglerCause::LastStage { .. }) => {
            Injected::HeavyLastStage(0.0)
        }
        Some(StragglerCause::SequenceLengths { .. }) => Injected::Lengths,
        Some(StragglerCause::GarbageCollection { .. }) => Injected::Garbage(0.0),
    }
}

/// Of 20 runs with each cause all are told by it, and none without one; the slowdown is near the true one, which is
/// that of the same run without the cause. `cargo test -p odeon-replay causes -- --nocapture` prints the table of
/// docs/diagnosis.md.
#[test]
fn causes_that_were_put_in_are_told_with_about_their_slowdown() {
    let rows = [
        (Injected::Nothing, 0.01),
        (Injected::SlowWorker(1.3), 0.02),
        (Injected::SlowWorker(2.0), 0.05),
        (Injected::SlowWorker(4.0), 0.12),
        (Injected::HeavyLastStage(1.5), 0.15),
        (Injected::HeavyLastStage(2.0), 0.25),
        (Injected::Lengths, 0.20),
        (Injected::Garbage(12.0), 0.06),
    ];
    for (injected, bound) in rows {
        let (mut truth, mut found, mut error) = (0.0, 0.0, 0.0_f64);
        for seed in 0..20 {
            let (report, seconds) = Run::new(injected, seed).report();
            let (_, without) = Run::new(Injected::Nothing, seed).rows();
            let slowdown = mean(&seconds) / mean(&without);
            let kind = std::mem::discriminant(&injected);
            assert_eq!(
                std::mem::discriminant(&told(&report)),
                kind,
                "{injected:?} {seed} {report:?}"
            );
            truth += slowdown / 20.0;
            found += report.slowdown() / 20.0;
            error = error.max((report.slowdown() / slowdown - 1.0).abs());
        }
        println!("{injected:?}: {truth:.2} true, {found:.2} found, {error:.3} at most off");
        assert!(error < bound, "{injected:?}: {error}");
    }
}

fn row(
    step: u64,
    kind: OperationKind,
    worker: (usize, usize),
    number: usize,
    at: (f64, f64),
) -> TraceRow {
    let (stage, copy) = worker;
    let worker = TracedWorker { stage, copy };
    let operation = TracedOperation {
        kind,
        worker,
        chunk: 0,
        number,
    };
    let (begin_s, seconds) = at;
    TraceRow {
        step,
        operation,
        begin_s,
        seconds,
    }
}

/// Two stages with one micro-batch, without messages.
fn small(step: u64, last_s: f64) -> Vec<TraceRow> {
    use OperationKind::{BackwardCompute, ForwardCompute};
    vec![
        row(step, ForwardCompute, (0, 0), 0, (0.0, 1.0)),
        row(step, ForwardCompute, (1, 0), 0, (1.0, 1.0)),
        row(step, BackwardCompute, (1, 0), 0, (2.0, last_s)),
        row(step, BackwardCompute, (0, 0), 0, (2.0 + last_s, 1.0)),
    ]
}

#[test]
fn a_part_is_mended_by_its_mean() {
    let rows = (0..2).flat_map(|step| small(step, 1.0 + 2.0 * step as f64));
    let trace = StepTrace::new(rows).unwrap();
    let what_if = WhatIf::new(&trace).unwrap();
    assert_eq!(what_if.seconds(Kept::All), [4.0, 6.0]);
    // A mean backward pass takes (1 + 1 + 3 + 1) / 4 seconds.
    assert_eq!(what_if.seconds(Kept::None), [5.0, 5.0]);
    let last = TracePart::Stage(1);
    assert_eq!(what_if.seconds(Kept::Only(&last)), [4.5, 6.5]);
    assert_eq!(what_if.seconds(Kept::AllBut(&last)), [4.5, 4.5]);
}

/// SEMANTICS 151.
#[test]
fn steps_that_are_not_whole_and_clocks_that_differ_are_left_out_and_told() {
    use OperationKind::{ForwardReceive, ForwardSend};
    let mut rows: Vec<TraceRow> = (0..4).flat_map(|step| small(step, 1.0)).collect();
    rows.remove(0);
    for step in 0..4 {
        rows.push(row(step, ForwardSend, (0, 0), 0, (1.0, 0.0)));
        // The clock of the second is behind by a second in one step.
        let early = if step == 2 { 1.0 } else { 0.0 };
        rows.push(row(step, ForwardReceive, (1, 0), 0, (0.5 - early, 0.5)));
    }
    let trace = StepTrace::new(rows).unwrap();
    let what_if = WhatIf::new(&trace).unwrap();
    let told: Vec<(u64, &str)> = what_if
        .left_out()
        .iter()
        .map(|it| (it.step, &*it.why))
        .collect();
    assert_eq!(
        told,
        [
            (
                0,
                "forward-compute 0 of stage 0 of copy 0 is not in this step, but in 3 others"
            ),
            (
                2,
                "forward-recv 0 of stage 1 of copy 0 ends 1.000 s before all of its group have begun: the clocks of \
                 workers differ"
            ),
        ]
    );
    assert_eq!(what_if.steps(), [1, 3]);
}

#[test]
fn messages_that_do_not_fit_the_passes_and_orders_that_cannot_be_are_refused() {
    use OperationKind::{BackwardCompute, ForwardCompute, ForwardSend};
    let mut rows = small(0, 1.0);
    rows.push(row(0, ForwardSend, (0, 0), 0, (1.0, 0.1)));
    let refused = |rows: Vec<TraceRow>| {
        WhatIf::new(&StepTrace::new(rows).unwrap())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(rows),
        "stage 1 of copy 0 has 0 forward-recv operations for 1 passes that need one: trace all of them or, of all \
         workers, none"
    );
    // The first stage claims to have gone backward before it went forward.
    let rows = vec![
        row(0, BackwardCompute, (0, 0), 0, (0.0, 1.0)),
        row(0, ForwardCompute, (0, 0), 0, (1.0, 1.0)),
        row(0, ForwardCompute, (1, 0), 0, (2.0, 1.0)),
        row(0, BackwardCompute, (1, 0), 0, (3.0, 1.0)),
    ];
    assert!(refused(rows).contains("no worker can go on"));
}
