//! Schedules against the best of all placements of all kernels, for tiny steps: 2 stages, 3 micro-batches.

use std::collections::BTreeSet;

use super::{PLANNER, plan};
use crate::{
    BubbleKind, BubblePlanner, Compositions, EncoderPlan, EncoderWork, KernelStream, LanguageStep,
    PipelineSchedule, StageKernel, StageKernels, StepTimeline,
};

/// Instants before the begin of the language model's step that are tried, in eighths of a second.
const BEFORE: i32 = 24;

/// One direction of a tiny step in eighths of a second: what is free on each card, and until when outputs must be there.
struct Tiny {
    /// For each card and stream, whether each eighth is free; the first one is [`BEFORE`].
    free: Vec<[Vec<bool>; 2]>,
    deadlines: Vec<i32>,
    stages: Vec<Vec<(usize, i32)>>,
}

fn eighths(seconds: f64) -> i32 {
    let eighths = seconds * 8.0;
    assert_eq!(eighths, eighths.round(), "{seconds}");
    eighths as i32
}

impl Tiny {
    fn forward(timeline: &StepTimeline, work: &EncoderWork) -> Self {
        let end = eighths(timeline.step_s);
        let free = timeline.ranks.iter().map(|rank| {
            let mut free = [
                vec![false; (BEFORE + end) as usize],
                vec![true; (BEFORE + end) as usize],
            ];
            free[0][..BEFORE as usize].fill(true);
            for bubble in &rank.bubbles {
                let span = eighths(bubble.begin_s) + BEFORE..eighths(bubble.end_s) + BEFORE;
                for at in span {
                    free[0][at as usize] = true;
                    free[1][at as usize] = bubble.kind != BubbleKind::Tensor;
                }
            }
            free
        });
        let mut deadlines: Vec<i32> = timeline
            .forward_points_s
            .iter()
            .map(|it| eighths(*it))
            .collect();
        deadlines.sort_unstable();
        Self {
            free: free.collect(),
            deadlines,
            stages: work
                .stages
                .iter()
                .map(|it| Self::kernels(&it.forward))
                .collect(),
        }
    }

    /// The way back in turned time. Gradients may go to any pipeline, which makes it only easier.
    fn backward(timeline: &StepTimeline, work: &EncoderWork) -> Self {
        let end = timeline.step_s;
        let mut turned = timeline.clone();
        for rank in &mut turned.ranks {
            for bubble in &mut rank.bubbles {
                (bubble.begin_s, bubble.end_s) = (end - bubble.end_s, end - bubble.begin_s);
            }
        }
        turned.forward_points_s = timeline
            .backward_points_s
            .iter()
            .map(|it| end - it)
            .collect();
        let back = |it: &StageKernels| Self::kernels(&it.backward).into_iter().rev().collect();
        Self {
            stages: work.stages.iter().map(back).collect(),
            ..Self::forward(&turned, work)
        }
    }

    fn kernels(kernels: &[StageKernel]) -> Vec<(usize, i32)> {
        let kernel = |it: &StageKernel| {
            (
                usize::from(it.stream == KernelStream::Collective),
                eighths(it.seconds),
            )
        };
        kernels.iter().map(kernel).collect()
    }

    /// The least eighths that the encoder must begin ahead of the language model's step.
    fn least_ahead(&self, micro_batches: usize) -> i32 {
        let depth = self.stages.len();
        let pipelines = self.free.len() / depth;
        let is_enough = |ahead: i32| {
            Compositions::new(micro_batches, pipelines).any(|counts| {
                let outputs = counts.iter().enumerate().map(|(pipeline, count)| {
                    let mut lanes = self.free[pipeline * depth..(pipeline + 1) * depth].to_vec();
                    let mut found = BTreeSet::new();
                    self.place(
                        &mut lanes,
                        -ahead,
                        *count,
                        (0, 0, -ahead),
                        &mut vec![],
                        &mut found,
                    );
                    found
                });
                let all = outputs.fold(BTreeSet::from([vec![]]), |all: BTreeSet<Vec<i32>>, own| {
                    let both = all
                        .iter()
                        .flat_map(|a| own.iter().map(move |b| [&a[..], &b[..]].concat()));
                    both.collect()
                });
                all.into_iter().any(|mut outputs| {
                    outputs.sort_unstable();
                    outputs
                        .iter()
                        .zip(&self.deadlines)
                        .all(|(output, deadline)| output <= deadline)
                })
            })
        };
        (0..=BEFORE).find(|ahead| is_enough(*ahead)).unwrap()
    }

    /// Places the kernels of so many micro-batches of one pipeline in every way, from a stage and kernel on, and collects
    /// the instants of outputs.
    fn place(
        &self,
        lanes: &mut [[Vec<bool>; 2]],
        begin: i32,
        left: usize,
        (stage, kernel, from): (usize, usize, i32),
        outputs: &mut Vec<i32>,
        found: &mut BTreeSet<Vec<i32>>,
    ) {
        if left == 0 {
            found.insert(outputs.clone());
            return;
        }
        if stage == self.stages.len() {
            // Micro-batches are alike: outputs in order are enough.
            if outputs.last().is_none_or(|last| *last <= from) {
                outputs.push(from);
                self.place(lanes, begin, left - 1, (0, 0, begin), outputs, found);
                outputs.pop();
            }
            return;
        }
        let Some((stream, units)) = self.stages[stage].get(kernel).copied() else {
            self.place(lanes, begin, left, (stage + 1, 0, from), outputs, found);
            return;
        };
        let latest = self.deadlines.last().copied().unwrap() - units;
        for at in from..=latest {
            let span = (at + BEFORE) as usize..(at + units + BEFORE) as usize;
            if lanes[stage][stream][span.clone()].iter().all(|free| *free) {
                lanes[stage][stream][span.clone()].fill(false);
                self.place(
                    lanes,
                    begin,
                    left,
                    (stage, kernel + 1, at + units),
                    outputs,
                    found,
                );
                lanes[stage][stream][span].fill(true);
            }
        }
    }
}

fn tiny(seed: usize, plan: EncoderPlan) -> (LanguageStep, EncoderWork) {
    let pick = |at: usize, of: usize| (seed / 3_usize.pow(at as u32)) % of;
    let eighths = |count: usize| count as f64 / 8.0;
    let pass = |compute: usize, tensor: usize| {
        let kernels = [
            StageKernel::collective(eighths(tensor)),
            StageKernel::compute(eighths(compute)),
        ];
        kernels.to_vec()
    };
    let language = |rank: usize| StageKernels {
        forward: pass(1 + pick(rank, 2), 1 + pick(4, 2)),
        backward: pass(2 + pick(2 + rank, 2), 1 + pick(4, 2)),
    };
    let stage = StageKernels {
        forward: vec![StageKernel::compute(eighths(1 + pick(5, 3)))],
        backward: vec![StageKernel::compute(eighths(1 + pick(6, 3)))],
    };
    let step = LanguageStep {
        schedule: PipelineSchedule::one_forward_one_backward(2, 3).unwrap(),
        stages: vec![language(0), language(1)],
        transfer_s: 0.0,
        gather_s: eighths(pick(7, 3)),
        scatter_s: eighths(pick(8, 3)),
        before_s: 0.0,
        behind_s: 0.0,
    };
    let work = EncoderWork {
        plan,
        stages: vec![stage; plan.stages],
        transfer_s: 0.0,
        bytes: 0,
    };
    (step, work)
}

#[test]
fn no_placement_of_kernels_beats_the_schedules_by_much() {
    let (mut equal, mut count, mut worst) = (0, 0, 1.0_f64);
    for seed in (0..3_usize.pow(9)).step_by(211) {
        for plan in [plan(1, 1), plan(2, 1)] {
            let (step, work) = tiny(seed, plan);
            let timeline = step.deferred_timeline().unwrap();
            let schedule = PLANNER.schedule(&timeline, &work).unwrap();
            schedule.check(&timeline, 1, &work).unwrap();
            let ahead = Tiny::forward(&timeline, &work).least_ahead(3);
            let behind = Tiny::backward(&timeline, &work).least_ahead(3);
            let ours = eighths(schedule.step_s);
            let least = eighths(timeline.step_s) + ahead + behind;
            assert!(ours >= least, "{seed} {plan}: {ours} {least}");
            equal += usize::from(ours == least);
            count += 1;
            worst = worst.max(f64::from(ours) / f64::from(least));
        }
    }
    println!(
        "the bound of all placements in {equal} of {count} cases, {worst:.3} times it at worst"
    );
    assert!(equal * 10 >= count * 7 && worst < 1.2);
}

#[test]
fn climbing_finds_nearly_what_all_compositions_have() {
    let (mut equal, mut count, mut worst) = (0, 0, 1.0_f64);
    for seed in (0..3_usize.pow(9)).step_by(97) {
        let (mut step, work) = tiny(seed, plan(1, 1));
        step.schedule = PipelineSchedule::one_forward_one_backward(4, 9).unwrap();
        step.stages = [step.stages.clone(), step.stages].concat();
        let timeline = step.deferred_timeline().unwrap();
        let with = |compositions_max| {
            let planner = BubblePlanner {
                compositions_max,
                ..PLANNER
            };
            planner.schedule(&timeline, &work).unwrap().step_s
        };
        // There are 56 compositions.
        let (all, some) = (with(56), with(24));
        assert!(some >= all - 1e-9);
        equal += usize::from(some <= all + 1e-9);
        count += 1;
        worst = worst.max(some / all);
    }
    println!(
        "the best of all compositions in {equal} of {count} cases, {worst:.3} times it at worst"
    );
    assert!(equal * 10 >= count * 9 && worst < 1.05);
}
