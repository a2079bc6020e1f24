//! The passes of a pipeline in one of its last steps, from the spans that its ranks record.

use std::collections::BTreeMap;

use odeon::ActorId;
use odeon_algorithms::train::PipelineKind;
use odeon_client::inspect as told;
use odeon_mesh::PP;
use odeon_observe::Date;
use odeon_observe::passes::RecordedPass;
use odeon_replay::{PassKind, PipelineCosts, StageCosts};

use super::dto::{Shown, rounded};
use super::mesh::RanksSeen;

/// Spans that are looked through for the last step that is whole.
const SPANS_MAX: usize = 50_000;
/// Steps of which passes are gathered until then: the newest is not over yet.
const STEPS_MAX: usize = 4;
/// Passes of a step up to which they are drawn.
const PASSES_MAX: usize = 8_192;

/// The word for a pass.
const fn word(kind: PassKind) -> &'static str {
    match kind {
        PassKind::Forward => "forward",
        PassKind::Backward => "backward",
        PassKind::BackwardInput => "input",
        PassKind::BackwardWeight => "weight",
    }
}

/// The passes of a step by rank.
type Lanes = BTreeMap<usize, Vec<RecordedPass>>;

impl Shown<'_> {
    /// Those of the first pipeline.
    pub(super) fn pipeline(&self, seen: &RanksSeen<'_>) -> Option<told::Pipeline> {
        let schedule = seen.places.schedule.as_deref()?;
        let kinds = PipelineKind::ALL.into_iter();
        let kind = kinds.into_iter().find(|kind| kind.word() == schedule)?;
        let ranks = seen.places.mesh.group(0, &[PP]).ok()?;
        let actors = ranks
            .iter()
            .map(|rank| Some((*seen.places.actors.get(rank)?, *rank)));
        let (step, lanes) = self.last_step(&actors.collect::<Option<_>>()?)?;
        drawn(step, &lanes, kind)
    }

    /// The last step of which all passes of all these ranks were seen.
    fn last_step(&self, ranks: &BTreeMap<ActorId, usize>) -> Option<(u64, Lanes)> {
        let mut steps: BTreeMap<u64, Lanes> = BTreeMap::new();
        for span in self.seen.spans().ended().rev().take(SPANS_MAX) {
            let Some((rank, pass)) = ranks.get(&span.by).zip(RecordedPass::of(span)) else {
                continue;
            };
            if steps.len() == STEPS_MAX && !steps.contains_key(&pass.step) {
                break;
            }
            let lanes = steps.entry(pass.step).or_default();
            lanes.entry(*rank).or_default().push(pass);
        }
        let is_whole = |lanes: &Lanes| lanes.len() == ranks.len() && is_whole(lanes);
        steps.into_iter().rfind(|(_, lanes)| is_whole(lanes))
    }
}

/// The numbers of micro-batches, and of stages of a rank.
fn counts(lanes: &Lanes) -> (u64, u64) {
    let passes = || lanes.values().flatten();
    let micro_batches = passes().map(|it| it.pass.micro_batch as u64 + 1).max();
    let chunks = passes().map(|it| it.pass.chunk as u64 + 1).max();
    (micro_batches.unwrap_or(0), chunks.unwrap_or(0))
}

/// Returns true if each rank has each micro-batch through each stage of its, forward and backward in one or in two.
fn is_whole(lanes: &Lanes) -> bool {
    let (micro_batches, chunks) = counts(lanes);
    let mut kinds: Vec<PassKind> = lanes.values().flatten().map(|it| it.pass.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let all = match kinds.as_slice() {
        [PassKind::Forward, PassKind::Backward] => 2 * micro_batches * chunks,
        [
            PassKind::Forward,
            PassKind::BackwardInput,
            PassKind::BackwardWeight,
        ] => 3 * micro_batches * chunks,
        _ => return false,
    };
    lanes.values().all(|passes| passes.len() as u64 == all)
}

fn drawn(step: u64, lanes: &Lanes, kind: PipelineKind) -> Option<told::Pipeline> {
    let passes = || lanes.values().flatten();
    if passes().count() > PASSES_MAX {
        return None;
    }
    let start = passes().map(|it| it.from).min()?;
    let end = passes().map(|it| it.to).max()?;
    let ms = end.since(start).as_secs_f64() * 1e3;
    let idle = |busy: f64, of: f64| rounded((1.0 - busy / of.max(f64::MIN_POSITIVE)).max(0.0));
    let lane = |(rank, passes): (&usize, &Vec<RecordedPass>)| {
        let mut passes = passes.clone();
        passes.sort_by_key(|it| it.from);
        let since = |at: Date| rounded(at.since(start).as_secs_f64() * 1e3);
        told::PipelineLane {
            rank: *rank as u64,
            idle_share: idle(passes.iter().map(RecordedPass::ms).sum(), ms),
            passes: passes
                .iter()
                .map(|it| {
                    let word = word(it.pass.kind).to_owned();
                    (
                        since(it.from),
                        since(it.to),
                        word,
                        it.pass.micro_batch as u64,
                        it.pass.chunk as u64,
                    )
                })
                .collect(),
        }
    };
    let (micro_batches, chunks) = counts(lanes);
    Some(told::Pipeline {
        step,
        start: start.as_ms(),
        ms: rounded(ms),
        schedule: kind.word().to_owned(),
        micro_batches,
        chunks,
        idle_share: idle(
            passes().map(RecordedPass::ms).sum(),
            ms * lanes.len() as f64,
        ),
        schedule_idle_share: rounded(ideal(lanes, kind)?),
        lanes: lanes.iter().map(lane).collect(),
    })
}

/// The share of time without a pass where each takes as long as the mean of its kind.
fn ideal(lanes: &Lanes, kind: PipelineKind) -> Option<f64> {
    let (micro_batches, chunks) = counts(lanes);
    let mean = |kind: PassKind| {
        let own = || lanes.values().flatten().filter(|it| it.pass.kind == kind);
        own().map(RecordedPass::ms).sum::<f64>() / own().count().max(1) as f64
    };
    // A backward pass in one has both gradients.
    let backward = mean(PassKind::Backward) / 2.0;
    let stage = StageCosts::new(
        mean(PassKind::Forward),
        backward + mean(PassKind::BackwardInput),
        backward + mean(PassKind::BackwardWeight),
    );
    let costs = PipelineCosts::uniform(lanes.len() * chunks as usize, stage, 0.0);
    let schedule = kind.schedule(lanes.len(), chunks as usize, micro_batches as usize);
    schedule.summary(&costs).ok().map(|it| it.bubble_share)
}

#[cfg(test)]
mod tests {
    use odeon_replay::Pass;

    use super::*;

    /// The passes of two ranks with two micro-batches: 1 ms forward, 2 ms backward, in the order of 1F1B.
    fn lanes() -> Lanes {
        let kinds = [PassKind::Forward, PassKind::Backward];
        let pass = |kind: u64, micro_batch, from: u64| RecordedPass {
            pass: Pass::new(kinds[kind as usize], micro_batch, 0),
            step: 7,
            from: Date(1_000_000 * (100 + from)),
            to: Date(1_000_000 * (101 + from + kind)),
        };
        let first = vec![pass(0, 0, 0), pass(0, 1, 1), pass(1, 0, 4), pass(1, 1, 7)];
        let second = vec![pass(0, 0, 1), pass(1, 0, 2), pass(0, 1, 4), pass(1, 1, 5)];
        BTreeMap::from([(0, first), (2, second)])
    }

    #[test]
    fn bubbles_are_gaps_between_passes_as_the_schedule_has_them() {
        let told = drawn(7, &lanes(), PipelineKind::OneForwardOneBackward).unwrap();
        assert_eq!((told.ms, told.micro_batches, told.chunks), (9.0, 2, 1));
        // Each computes 6 of 9 ms, which is (p - 1) / (m + p - 1).
        assert_eq!(told.idle_share, 0.3333);
        assert_eq!(told.schedule_idle_share, 0.3333);
        assert_eq!(told.lanes[1].rank, 2);
        assert_eq!(
            told.lanes[1].passes[1],
            (2.0, 4.0, "backward".to_owned(), 0, 0)
        );
    }

    #[test]
    fn a_step_is_drawn_when_all_of_its_passes_were_seen() {
        assert!(is_whole(&lanes()));
        let mut cut = lanes();
        cut.get_mut(&2).unwrap().pop();
        assert!(!is_whole(&cut));
    }
}
