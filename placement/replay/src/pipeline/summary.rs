//! The summary of a schedule: its makespan, bubbles, and activations in flight.

use super::{PipelineCosts, PipelineSchedule, ScheduleError};
use crate::graph::{Lane, Replay};

/// One rank of a [`PipelineSummary`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankSummary {
    /// Seconds in which it computes.
    pub busy_s: f64,
    /// The begin of its first pass, in seconds from the begin of the step.
    pub begin_s: f64,
    /// The end of its last pass.
    pub end_s: f64,
    /// The part of the makespan in which it does not compute, from 0 to 1.
    pub bubble_share: f64,
    /// The most forward passes whose activations it holds at once.
    pub in_flight_max: usize,
    /// The most bytes of activations that it holds at once.
    pub memory_max: u64,
}

/// The replay of a schedule in a few numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSummary {
    /// Seconds until the last pass is over, and what is scattered behind it.
    pub makespan_s: f64,
    /// The part of all ranks' time in which they do not compute, from 0 to 1.
    pub bubble_share: f64,
    /// The ranks, in order.
    pub ranks: Vec<RankSummary>,
}

impl PipelineSummary {
    /// The bubble as a part of the time that the busiest rank computes, as papers give it: GPipe and 1F1B have
    /// `(p - 1) / m` where all stages cost the same. 0 where nothing costs anything.
    #[must_use]
    pub fn bubble_of_ideal(&self) -> f64 {
        let busy_s = self
            .ranks
            .iter()
            .map(|rank| rank.busy_s)
            .fold(0.0, f64::max);
        share(self.makespan_s - busy_s, busy_s)
    }
}

impl PipelineSchedule {
    /// The replay of this schedule with these costs, in a few numbers.
    ///
    /// # Errors
    /// Those of [`graph`](Self::graph) and of its replay.
    pub fn summary(&self, costs: &PipelineCosts) -> Result<PipelineSummary, ScheduleError> {
        let replay = self.graph(costs)?.replay()?;
        let makespan_s = replay.makespan_s();
        let (mut ranks, mut begin) = (vec![], 0);
        for (rank, in_flight_max) in self.in_flight_max().into_iter().enumerate() {
            // The graph has the passes first, rank by rank; each rank has some.
            let end = begin + self.ranks[rank].len();
            ranks.push(of_rank(&replay, rank, begin..end, in_flight_max));
            begin = end;
        }
        let busy_s: f64 = ranks.iter().map(|rank| rank.busy_s).sum();
        let all_s = makespan_s * ranks.len() as f64;
        Ok(PipelineSummary {
            makespan_s,
            bubble_share: share((all_s - busy_s).max(0.0), all_s),
            ranks,
        })
    }
}

fn of_rank(
    replay: &Replay,
    rank: usize,
    passes: std::ops::Range<usize>,
    in_flight_max: usize,
) -> RankSummary {
    let used = replay.lane(Lane::compute(rank)).unwrap_or_default();
    RankSummary {
        busy_s: used.busy_s,
        begin_s: replay.begins_s()[passes.start],
        end_s: replay.ends_s()[passes.end - 1],
        bubble_share: share(used.idle_s, replay.makespan_s()),
        in_flight_max,
        memory_max: replay.memory_max(rank),
    }
}

/// A part of a whole; 0 of nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
