//! Ranks that take much longer than the others.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ActorId;
use odeon::telemetry::Label;
use odeon_diagnosis::{Detector, Severity};

use super::{Finding, STRAGGLER, finding, spoken};
use crate::bounds::{STRAGGLER_LATELY, STRAGGLER_RANKS, STRAGGLER_STEPS, STRAGGLES};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// The name of the number that ranks record of the stages of their steps, in seconds, with the
/// labels `rank` and `stage`.
const STAGE_SECONDS: &str = "train.stage_s";

/// Finds ranks that take much longer for a stage of their steps than the others of their group, as they record it
/// under `train.stage_s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stragglers;

impl Detector<ClusterView> for Stragglers {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        stragglers(seen, now)
    }
}

/// The last value that a rank recorded of a stage: the mean of its last steps, and when.
struct Pace<'a> {
    rank: &'a Label,
    actor: ActorId,
    seconds: f64,
    at: Date,
}

/// Ranks that take much longer for a stage of their steps than the others of their group, as they
/// record it under `train.stage_s`.
fn stragglers(seen: &ClusterView, now: Date) -> Vec<Finding> {
    let mut groups: BTreeMap<(ActorId, String), Vec<Pace<'_>>> = BTreeMap::new();
    for it in seen.recorded().filter(|it| it.name == STAGE_SECONDS) {
        let label = |name: &str| {
            let found = it.labels.iter().find(|(known, _)| known == name);
            found.map(|(_, label)| label)
        };
        let (Some(rank), Some(stage)) = (label("rank"), label("stage")) else {
            continue;
        };
        let living = seen
            .actors()
            .get(it.actor)
            .filter(|row| row.ended.is_none());
        let (Some(row), Some((at, ..))) = (living, it.points.back()) else {
            continue;
        };
        let last = it.points.iter().rev().take(STRAGGLER_STEPS);
        let last: Vec<_> = last.map(|(.., seconds)| *seconds).collect();
        let pace = Pace {
            rank,
            actor: it.actor,
            seconds: last.iter().sum::<f64>() / last.len() as f64,
            at: *at,
        };
        let group = (row.view.parent, stage.to_string());
        groups.entry(group).or_default().push(pace);
    }
    let groups = groups.into_iter();
    let findings = groups.flat_map(|((_, stage), paces)| behind(seen, now, &stage, paces));
    findings.collect()
}

/// Those of one group and stage that take too long.
fn behind(seen: &ClusterView, now: Date, stage: &str, mut paces: Vec<Pace<'_>>) -> Vec<Finding> {
    // One that has stopped recording is not at work any more.
    paces.retain(|pace| now.since(pace.at) < STRAGGLER_LATELY);
    if paces.len() < STRAGGLER_RANKS {
        return vec![];
    }
    let mut seconds: Vec<_> = paces.iter().map(|pace| pace.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let late = paces
        .iter()
        .filter(|pace| pace.seconds > median * STRAGGLES);
    late.map(|pace| {
        let spoken = |seconds: f64| spoken(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
        let sentence = format!(
            "rank {} ({}) takes {} for {stage} where the median of {} ranks takes {} (limit 2 times \
             the median, over {STRAGGLER_STEPS} steps)",
            pace.rank,
            seen.title_of(pace.actor),
            spoken(pace.seconds),
            paces.len(),
            spoken(median)
        );
        let subject = vec![Subject::Actor(pace.actor)];
        finding(STRAGGLER, Severity::Warning, pace.at, sentence, subject)
    })
    .collect()
}
