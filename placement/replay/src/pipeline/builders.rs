//! Builders of schedules that need no costs: GPipe, 1F1B and interleaved 1F1B.

use super::{Pass, PassKind, PipelineSchedule, ScheduleError};

impl PipelineSchedule {
    /// All forward passes, then all backward passes, of `stages` ranks with one stage each (GPipe,
    /// arXiv 1811.06965).
    ///
    /// With equal costs the bubble is `(p - 1) / m` of the ideal time, and each rank has all `m` micro-batches
    /// in flight.
    ///
    /// # Errors
    /// [`ScheduleError::Empty`].
    pub fn gpipe(stages: usize, micro_batches: usize) -> Result<Self, ScheduleError> {
        Self::one_by_one(stages, micro_batches, |_| micro_batches)
    }

    /// One forward and one backward pass by turns, after as many forward passes as there are ranks behind
    /// (1F1B; PipeDream-Flush in arXiv 2006.09503).
    ///
    /// With equal costs the bubble is `(p - 1) / m` of the ideal time. Rank `r` has `min(p - r, m)` micro-batches
    /// in flight.
    ///
    /// # Errors
    /// [`ScheduleError::Empty`].
    pub fn one_forward_one_backward(
        stages: usize,
        micro_batches: usize,
    ) -> Result<Self, ScheduleError> {
        Self::one_by_one(stages, micro_batches, |rank| stages - 1 - rank)
    }

    /// One forward and one backward pass by turns, of ranks with several chunks each (Megatron-LM's interleaved
    /// 1F1B, arXiv 2104.04473).
    ///
    /// Micro-batches go through the chunks in groups. Megatron's groups have `p` micro-batches, so that their
    /// number must be a multiple of that. Here `m / p` groups, rounded down, share what is left over, the first
    /// ones one more each, and warm-up is longer in proportion: no group is smaller than `p`, and none is larger
    /// than the one before it, which is what keeps ranks from waiting for each other. Fewer than `p`
    /// micro-batches are one group.
    ///
    /// With equal costs and `m >= p` the bubble is `(p - 1) / (v m)` of the ideal time, for any `m`. Rank `r` has
    /// `min(m v, 2 (p - 1 - r) + (v - 1) g + 1)` passes in flight, with `g` the size of the first group; each holds
    /// a `v`-th of the rank's activations of a micro-batch.
    ///
    /// # Errors
    /// [`ScheduleError::Empty`].
    pub fn interleaved(
        stages: usize,
        micro_batches: usize,
        chunks: usize,
    ) -> Result<Self, ScheduleError> {
        not_empty(stages, micro_batches, chunks)?;
        let groups = group_sizes(stages, micro_batches);
        let mut forwards = vec![];
        let mut begin = 0;
        for size in &groups {
            for chunk in 0..chunks {
                let group = begin..begin + size;
                forwards.extend(group.map(|it| Pass::new(PassKind::Forward, it, chunk)));
            }
            begin += size;
        }
        let backwards = forwards.iter().map(|pass| Pass {
            kind: PassKind::Backward,
            chunk: chunks - 1 - pass.chunk,
            ..*pass
        });
        let backwards: Vec<Pass> = backwards.collect();
        let ahead = (chunks - 1) * groups[0];
        let rank = |rank| by_turns(&forwards, &backwards, 2 * (stages - 1 - rank) + ahead);
        Ok(Self {
            micro_batches,
            chunks,
            ranks: (0..stages).map(rank).collect(),
        })
    }

    /// Passes of ranks with one stage each, with so many forward passes ahead on each rank.
    fn one_by_one(
        stages: usize,
        micro_batches: usize,
        ahead: impl Fn(usize) -> usize,
    ) -> Result<Self, ScheduleError> {
        not_empty(stages, micro_batches, 1)?;
        let all = |kind| (0..micro_batches).map(move |it| Pass::new(kind, it, 0));
        let forwards: Vec<Pass> = all(PassKind::Forward).collect();
        let backwards: Vec<Pass> = all(PassKind::Backward).collect();
        let rank = |rank| by_turns(&forwards, &backwards, ahead(rank));
        Ok(Self {
            micro_batches,
            chunks: 1,
            ranks: (0..stages).map(rank).collect(),
        })
    }
}

/// Refuses a pipeline without passes.
pub(super) const fn not_empty(
    stages: usize,
    micro_batches: usize,
    chunks: usize,
) -> Result<(), ScheduleError> {
    if stages == 0 || micro_batches == 0 || chunks == 0 {
        return Err(ScheduleError::Empty {
            stages,
            micro_batches,
            chunks,
        });
    }
    Ok(())
}

/// Forward passes ahead, then one of each by turns, then the backward passes that are left.
fn by_turns(forwards: &[Pass], backwards: &[Pass], ahead: usize) -> Vec<Pass> {
    let (warm_up, steady) = forwards.split_at(ahead.min(forwards.len()));
    let (by_turns, cool_down) = backwards.split_at(steady.len());
    let pairs = steady
        .iter()
        .zip(by_turns)
        .flat_map(|(forward, backward)| [*forward, *backward]);
    let passes = warm_up.iter().copied().chain(pairs);
    passes.chain(cool_down.iter().copied()).collect()
}

/// The sizes of the groups in which micro-batches go through the chunks: none smaller than `stages` where there
/// are as many, none larger than the one before it.
fn group_sizes(stages: usize, micro_batches: usize) -> Vec<usize> {
    let groups = (micro_batches / stages).max(1);
    let (size, larger) = (micro_batches / groups, micro_batches % groups);
    (0..groups)
        .map(|group| size + usize::from(group < larger))
        .collect()
}
