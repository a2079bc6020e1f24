//! The check of a schedule, which knows nothing of how schedules are made.

use std::collections::BTreeMap;

use thiserror::Error;

use super::encoder::{EncoderPass, EncoderWork};
use super::kernel::KernelStream;
use super::schedule::{BubbleSchedule, PlacedKernel};
use super::timeline::StepTimeline;

/// A schedule that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ScheduleFlaw {
    /// Micro-batches are not dealt out as the composition says.
    #[error(
        "pipeline {pipeline} of the encoder encodes {encodes} micro-batches, and its part is {part}"
    )]
    Composition {
        /// The pipeline.
        pipeline: usize,
        /// The micro-batches that say that they are its.
        encodes: usize,
        /// Its part.
        part: usize,
    },
    /// A kernel is not where its pipeline and stage are, or has another duration.
    #[error("{0:?} is not where its pipeline and stage are, or is no kernel of these")]
    Misplaced(PlacedKernel),
    /// A kernel is there never, or more than once.
    #[error(
        "kernel {kernel} of stage {stage}, {pass:?}, micro-batch {micro_batch} is placed {times} times"
    )]
    NotOnce {
        /// The micro-batch.
        micro_batch: usize,
        /// The direction.
        pass: EncoderPass,
        /// The stage.
        stage: usize,
        /// The kernel.
        kernel: usize,
        /// The number of times that it is placed.
        times: usize,
    },
    /// A kernel begins before what it needs is there.
    #[error("{kernel:?} begins before {needed_s} s, when what it needs is there")]
    TooEarly {
        /// The kernel.
        kernel: PlacedKernel,
        /// The instant from which on it may begin.
        needed_s: f64,
    },
    /// An output of the encoder comes when the language model has begun with it.
    #[error(
        "micro-batch {micro_batch} is encoded at {ready_s} s, and the language model begins with it at {needed_s} s"
    )]
    TooLate {
        /// The micro-batch.
        micro_batch: usize,
        /// The instant of the output.
        ready_s: f64,
        /// The instant at which it is needed.
        needed_s: f64,
    },
    /// Two kernels occupy the same part of a card at once.
    #[error("on rank {rank}, part {slice}, two kernels of {stream:?} overlap from {begin_s} s on")]
    Overlap {
        /// The rank.
        rank: usize,
        /// The part of its tensor group.
        slice: usize,
        /// The part of the card.
        stream: KernelStream,
        /// The begin of the second one.
        begin_s: f64,
    },
    /// A kernel is outside of the step.
    #[error("{0:?} is outside of the step")]
    Outside(PlacedKernel),
}

impl BubbleSchedule {
    /// Checks that every kernel is placed once, where its stage is and beside nothing that occupies the same; that stages
    /// follow each other; that each output is there when the language model begins with its micro-batch, and that no
    /// backward pass begins before its gradient is there.
    ///
    /// # Errors
    /// The first flaw: see [`ScheduleFlaw`].
    pub fn check(
        &self,
        timeline: &StepTimeline,
        tensor: usize,
        work: &EncoderWork,
    ) -> Result<(), ScheduleFlaw> {
        for (pipeline, part) in self.composition.iter().enumerate() {
            let encodes = self.encoded_by.iter().filter(|it| **it == pipeline).count();
            if encodes != *part {
                return Err(ScheduleFlaw::Composition {
                    pipeline,
                    encodes,
                    part: *part,
                });
            }
        }
        for it in &self.kernels {
            self.check_place(tensor, work, it)?;
        }
        self.check_once(timeline, work)?;
        self.check_order(timeline, work)?;
        self.check_overlaps(timeline, tensor)
    }

    fn check_place(
        &self,
        tensor: usize,
        work: &EncoderWork,
        it: &PlacedKernel,
    ) -> Result<(), ScheduleFlaw> {
        let slices = tensor / self.plan.tensor;
        let rank = it.pipeline / slices * self.plan.stages + it.stage;
        let own = work.kernels(it.stage, it.pass).get(it.kernel);
        let is_own = own
            .is_some_and(|own| own.stream == it.stream && near(it.end_s - it.begin_s, own.seconds));
        let there = it.rank == rank && it.slice == it.pipeline % slices;
        if !is_own || !there || self.encoded_by.get(it.micro_batch) != Some(&it.pipeline) {
            return Err(ScheduleFlaw::Misplaced(*it));
        }
        let end_s = self.step_s - self.ahead_s;
        if it.begin_s < -self.ahead_s - OFF_S || it.end_s > end_s + OFF_S {
            return Err(ScheduleFlaw::Outside(*it));
        }
        Ok(())
    }

    fn check_once(&self, timeline: &StepTimeline, work: &EncoderWork) -> Result<(), ScheduleFlaw> {
        let mut times = BTreeMap::new();
        for it in &self.kernels {
            *times
                .entry((it.micro_batch, it.pass, it.stage, it.kernel))
                .or_insert(0) += 1;
        }
        for micro_batch in 0..timeline.forward_points_s.len() {
            for stage in 0..work.stages.len() {
                for pass in [EncoderPass::Forward, EncoderPass::Backward] {
                    for kernel in 0..work.kernels(stage, pass).len() {
                        let key = (micro_batch, pass, stage, kernel);
                        let times = times.get(&key).copied().unwrap_or_default();
                        if times != 1 {
                            return Err(ScheduleFlaw::NotOnce {
                                micro_batch,
                                pass,
                                stage,
                                kernel,
                                times,
                            });
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Kernels of a micro-batch one behind the other, through all stages there and back, and the language model between.
    fn check_order(&self, timeline: &StepTimeline, work: &EncoderWork) -> Result<(), ScheduleFlaw> {
        let mut all: Vec<&PlacedKernel> = self.kernels.iter().collect();
        let along = |it: &PlacedKernel| match it.pass {
            EncoderPass::Forward => it.stage,
            EncoderPass::Backward => usize::MAX - it.stage,
        };
        all.sort_by_key(|it| (it.micro_batch, it.pass, along(it), it.kernel));
        for (at, it) in all.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| all[before]);
            let before =
                before.filter(|other| (other.micro_batch, other.pass) == (it.micro_batch, it.pass));
            let needed_s = match before {
                Some(before) if before.stage == it.stage => before.end_s,
                Some(before) => before.end_s + work.transfer_s,
                None if it.pass == EncoderPass::Forward => f64::NEG_INFINITY,
                None => timeline.backward_points_s[it.micro_batch] + work.transfer_s,
            };
            if it.begin_s < needed_s - OFF_S {
                return Err(ScheduleFlaw::TooEarly {
                    kernel: **it,
                    needed_s,
                });
            }
        }
        for (micro_batch, needed_s) in timeline.forward_points_s.iter().enumerate() {
            let own = all
                .iter()
                .filter(|it| it.micro_batch == micro_batch && it.pass == EncoderPass::Forward);
            let ready_s = own
                .map(|it| it.end_s + work.transfer_s)
                .fold(f64::NEG_INFINITY, f64::max);
            if ready_s > needed_s + OFF_S {
                return Err(ScheduleFlaw::TooLate {
                    micro_batch,
                    ready_s,
                    needed_s: *needed_s,
                });
            }
        }
        Ok(())
    }

    /// Kernels of each part of a card, the language model's among them.
    fn check_overlaps(&self, timeline: &StepTimeline, tensor: usize) -> Result<(), ScheduleFlaw> {
        for (rank, own) in timeline.ranks.iter().enumerate() {
            for slice in 0..tensor / self.plan.tensor {
                for stream in [KernelStream::Compute, KernelStream::Collective] {
                    let language = own.kernels.iter().filter(|it| it.kernel.stream == stream);
                    let language = language.map(|it| (it.begin_s, it.end_s));
                    let encoder = self
                        .kernels
                        .iter()
                        .filter(|it| (it.rank, it.slice, it.stream) == (rank, slice, stream));
                    let encoder = encoder.map(|it| (it.begin_s, it.end_s));
                    let mut spans: Vec<(f64, f64)> = language.chain(encoder).collect();
                    spans.retain(|(begin, end)| end - begin > OFF_S);
                    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
                    let over = spans.windows(2).find(|it| it[1].0 < it[0].1 - OFF_S);
                    if let Some(over) = over {
                        return Err(ScheduleFlaw::Overlap {
                            rank,
                            slice,
                            stream,
                            begin_s: over[1].0,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= OFF_S
}

/// Seconds by which times may be off: sums of many durations in different orders.
const OFF_S: f64 = 1e-8;
