//! The search for an encoder's plan: how it is cut, and how micro-batches are dealt out to its pipelines.

use std::collections::BTreeSet;

use super::compositions::{Compositions, composition_count};
use super::encoder::{EncoderPlan, EncoderWork, not_zero};
use super::error::BubbleError;
use super::free_time::ROUNDING_S;
use super::schedule::{Bench, Both, BubbleSchedule};
use super::timeline::StepTimeline;

/// The search of Optimus (arXiv 2408.03505): all plans that fit, and for each the compositions of
/// micro-batches over the encoder's pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BubblePlanner {
    /// Cards of a tensor group of the language model.
    pub tensor: usize,
    /// Bytes that a card has.
    pub card_bytes: u64,
    /// Bytes of them that the language model takes.
    pub language_bytes: u64,
    /// Compositions of a plan that are scheduled at most.
    ///
    /// Where there are more, the search begins with two: the one that deals out micro-batches one by one to the pipeline
    /// with the shortest coarse step, and the most even one. From each it moves a micro-batch from a pipeline to another
    /// for as long as that gains, so it may miss the best one.
    pub compositions_max: usize,
}

/// One plan of the encoder, and the seconds of its best schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedEncoder {
    /// The plan.
    pub plan: EncoderPlan,
    /// Its pipelines.
    pub pipelines: usize,
    /// Bytes on a card, with those of the language model.
    pub bytes: u64,
    /// The number of compositions that there are.
    pub compositions: u64,
    /// Those that were scheduled; 0 for a plan that does not fit, or with fewer micro-batches than pipelines.
    pub scheduled: usize,
    /// Seconds of the best one.
    pub step_s: Option<f64>,
}

impl BubblePlanner {
    /// The schedule of one plan: the quickest of all compositions that are tried.
    ///
    /// Takes time in proportion to these, to micro-batches squared and to kernels.
    ///
    /// # Errors
    /// A plan that does not divide, too few micro-batches, kernels without sense: see [`BubbleError`].
    pub fn schedule(
        &self,
        timeline: &StepTimeline,
        work: &EncoderWork,
    ) -> Result<BubbleSchedule, BubbleError> {
        Ok(self.searched(timeline, work)?.0)
    }

    /// The quickest schedule of all plans that fit, and what became of each.
    ///
    /// # Errors
    /// [`BubbleError::Memory`] if none fits, and those of [`schedule`](Self::schedule) for plans that do.
    pub fn plan(
        &self,
        timeline: &StepTimeline,
        works: &[EncoderWork],
    ) -> Result<(BubbleSchedule, Vec<PlannedEncoder>), BubbleError> {
        let (mut best, mut all): (Option<BubbleSchedule>, Vec<PlannedEncoder>) = (None, vec![]);
        let micro_batches = timeline.forward_points_s.len();
        let mut few = None;
        for work in works {
            let pipelines = work.plan.pipelines(timeline.ranks.len(), self.tensor)?;
            let mut planned = PlannedEncoder {
                plan: work.plan,
                pipelines,
                bytes: self.language_bytes.saturating_add(work.bytes),
                compositions: composition_count(micro_batches, pipelines),
                scheduled: 0,
                step_s: None,
            };
            if planned.bytes <= self.card_bytes {
                match self.searched(timeline, work) {
                    Ok((schedule, scheduled)) => {
                        planned.scheduled = scheduled;
                        planned.step_s = Some(schedule.step_s);
                        let is_better =
                            |best: &BubbleSchedule| schedule.step_s < best.step_s - ROUNDING_S;
                        if best.as_ref().is_none_or(is_better) {
                            best = Some(schedule);
                        }
                    }
                    Err(error @ BubbleError::TooFewMicroBatches { .. }) => few = Some(error),
                    Err(error) => return Err(error),
                }
            }
            all.push(planned);
        }
        let least = all.iter().min_by_key(|it| it.bytes);
        let least = least.ok_or(BubbleError::NoPlan)?;
        let none = few.unwrap_or(BubbleError::Memory {
            plan: least.plan,
            needed: least.bytes,
            there: self.card_bytes,
        });
        Ok((best.ok_or(none)?, all))
    }

    /// The best schedule of a plan, and the number of compositions that were tried.
    fn searched(
        &self,
        timeline: &StepTimeline,
        work: &EncoderWork,
    ) -> Result<(BubbleSchedule, usize), BubbleError> {
        not_zero("the tensor group", self.tensor)?;
        if self.compositions_max == 0 {
            return Err(BubbleError::NoTrials(0));
        }
        let bench = Bench::new(timeline, self.tensor, work)?;
        let count = composition_count(bench.micro_batches(), bench.pipelines());
        let (best, tried) = match count <= self.compositions_max as u64 {
            true => all(&bench),
            false => climbed(&bench, self.compositions_max),
        };
        let coarse = bench.coarse(&best.counts);
        Ok((bench.schedule(&coarse, &best), tried))
    }
}

/// Schedules all compositions. The first of those that are alike is taken.
fn all(bench: &Bench<'_>) -> (Both, usize) {
    let (mut best, mut tried): (Option<Both>, usize) = (None, 0);
    for counts in Compositions::new(bench.micro_batches(), bench.pipelines()) {
        let fine = bench.fine(&bench.coarse(&counts));
        let is_better = |best: &Both| fine.longer_s() < best.longer_s() - ROUNDING_S;
        if best.as_ref().is_none_or(is_better) {
            best = Some(fine);
        }
        tried += 1;
    }
    let best = best.unwrap_or_else(|| bench.fine(&bench.coarse(&dealt(bench))));
    (best, tried)
}

/// Climbs from two compositions to better ones.
fn climbed(bench: &Bench<'_>, most: usize) -> (Both, usize) {
    let mut seen = BTreeSet::new();
    let first = climb(bench, dealt(bench), most, &mut seen);
    let even = even(bench);
    if seen.len() >= most || seen.contains(&even) {
        return (first, seen.len());
    }
    let second = climb(bench, even, most, &mut seen);
    let is_better = second.longer_s() < first.longer_s() - ROUNDING_S;
    (if is_better { second } else { first }, seen.len())
}

/// Climbs from a composition to better ones, for as long as fewer than so many have been scheduled.
fn climb(
    bench: &Bench<'_>,
    from: Vec<usize>,
    most: usize,
    seen: &mut BTreeSet<Vec<usize>>,
) -> Both {
    let mut best = bench.fine(&bench.coarse(&from));
    seen.insert(from);
    loop {
        let mut near: Vec<Both> = neighbours(&best.counts)
            .filter(|counts| !seen.contains(counts))
            .map(|counts| bench.coarse(&counts))
            .collect();
        near.sort_by(|a, b| a.longer_s().total_cmp(&b.longer_s()));
        let left = most.saturating_sub(seen.len());
        let better = near.into_iter().take(left).find_map(|coarse| {
            seen.insert(coarse.counts.clone());
            let fine = bench.fine(&coarse);
            (fine.longer_s() < best.longer_s() - ROUNDING_S).then_some(fine)
        });
        match better {
            Some(better) => best = better,
            None => return best,
        }
    }
}

/// As many micro-batches on each pipeline, but for one more on the last ones.
fn even(bench: &Bench<'_>) -> Vec<usize> {
    let (all, pipelines) = (bench.micro_batches(), bench.pipelines());
    let more = pipelines - all % pipelines;
    (0..pipelines)
        .map(|it| all / pipelines + usize::from(it >= more))
        .collect()
}

/// Micro-batches dealt out one by one, each to the pipeline with which the coarse step stays shortest.
fn dealt(bench: &Bench<'_>) -> Vec<usize> {
    let mut counts = vec![1; bench.pipelines()];
    for _ in bench.pipelines()..bench.micro_batches() {
        let with = (0..counts.len()).map(|pipeline| {
            counts[pipeline] += 1;
            let longer_s = bench.alone_s(pipeline, counts[pipeline]);
            counts[pipeline] -= 1;
            (longer_s, pipeline)
        });
        let shortest = with.min_by(|a, b| a.0.total_cmp(&b.0));
        counts[shortest.map_or(0, |it| it.1)] += 1;
    }
    counts
}

/// Compositions in which one pipeline has one micro-batch more, and another one less.
fn neighbours(counts: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..counts.len()).flat_map(move |from| {
        let others = (0..counts.len()).filter(move |to| *to != from && counts[from] > 1);
        others.map(move |to| {
            let mut counts = counts.to_vec();
            counts[from] -= 1;
            counts[to] += 1;
            counts
        })
    })
}
