//! Parts of a pipeline that make its steps longer than they would be.

use std::collections::BTreeMap;

use odeon::ActorId;
use odeon_diagnosis::{Detector, Severity};
use odeon_replay::{StragglerCause, StragglerReport, TracedWorker, WhatIf};

use super::{Finding, PIPELINE_STRAGGLER, finding};
use crate::bounds::{PIPELINE_EVERY, PIPELINE_STEPS, PIPELINE_STEPS_MIN};
use crate::cluster_view::{ClusterView, Recorded};
use crate::date::Date;
use crate::event::Subject;
use crate::passes::RankPlaces;

/// Finds slow workers, heavy stages and uneven micro-batches of pipelines, by what-if analysis of the last steps of
/// each run. A run is judged anew every [`PIPELINE_EVERY`]; until then its findings go on.
#[derive(Debug, Default)]
pub(super) struct PipelineStragglers {
    /// By job.
    judged: BTreeMap<String, Judged>,
}

/// The last judgement of a run.
#[derive(Debug)]
struct Judged {
    at: Date,
    /// Since when each cause goes on, by who is to blame.
    found: Vec<Finding>,
}

impl Detector<ClusterView> for PipelineStragglers {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        let mut runs: BTreeMap<String, Vec<&Recorded>> = BTreeMap::new();
        for it in seen.recorded().filter(|it| it.rank().is_some()) {
            let row = seen.actors().get(it.actor);
            if row.is_none_or(|row| row.ended.is_none()) {
                let job = row.map_or(String::new(), |row| row.job.clone());
                runs.entry(job).or_default().push(it);
            }
        }
        self.judged.retain(|job, _| runs.contains_key(job));
        for (job, recorded) in runs {
            let before = self.judged.get(&job);
            // A recording that is shown again from its begin is earlier than it was.
            if before.is_some_and(|it| now >= it.at && now.since(it.at) < PIPELINE_EVERY) {
                continue;
            }
            let Some(mut found) = judge(seen, &recorded) else {
                self.judged.remove(&job);
                continue;
            };
            for it in &mut found {
                let same = before.and_then(|old| old.found.iter().find(|old| old.who == it.who));
                it.since = same.map_or(it.since, |old| old.since.min(it.since));
            }
            self.judged.insert(job, Judged { at: now, found });
        }
        let judged = self.judged.values();
        judged.flat_map(|it| it.found.iter().cloned()).collect()
    }
}

/// The stragglers of a run's pipeline in its last steps; none where it has made too few.
fn judge(seen: &ClusterView, recorded: &[&Recorded]) -> Option<Vec<Finding>> {
    let places = RankPlaces::of(recorded)?;
    let (trace, since) = places.traced_steps(seen, PIPELINE_STEPS)?;
    if trace.steps() < PIPELINE_STEPS_MIN {
        return None;
    }
    let report = StragglerReport::new(&trace, &WhatIf::new(&trace).ok()?);
    let causes = report.causes.iter();
    let found = causes.map(|cause| {
        let who: Vec<ActorId> = match cause {
            StragglerCause::Workers { workers, .. } => workers
                .iter()
                .flat_map(|it| places.actors_of(*it))
                .collect(),
            StragglerCause::Stage { stage, .. } | StragglerCause::LastStage { stage, .. } => {
                let copies = 0..report.by_copy.len();
                let workers = copies.map(|copy| TracedWorker {
                    stage: *stage,
                    copy,
                });
                workers.flat_map(|it| places.actors_of(it)).collect()
            }
            // Nobody alone.
            _ => places.actors.values().take(1).copied().collect(),
        };
        let steps = &report.steps;
        let sentence = format!(
            "stragglers make a step {:.2} times as long (steps {} to {}): {cause}",
            report.slowdown(),
            steps[0],
            steps[steps.len() - 1]
        );
        let who = who.into_iter().map(Subject::Actor).collect();
        let mut found = finding(PIPELINE_STRAGGLER, Severity::Warning, since, sentence, who);
        found.cause.evidence = vec![
            ("slowdown".to_owned(), report.slowdown()),
            ("waste".to_owned(), report.waste()),
        ];
        found
    });
    Some(found.collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use odeon::telemetry::Label;
    use odeon::trace::{Outcome, Span, SpanContext, SpanKind};
    use odeon::{ProcessId, Timestamp};

    use super::*;
    use crate::date::Shift;

    fn actor(rank: u64) -> ActorId {
        ActorId::root(ProcessId(rank + 1))
    }

    /// Four ranks on `{dp: 2, pp: 2}`, of which the last takes so many times as long for its passes.
    fn step(seen: &mut ClusterView, step: u64, times: u64) {
        // 1F1B with two micro-batches.
        let orders = [
            [
                ("forward", 0),
                ("forward", 1),
                ("backward", 0),
                ("backward", 1),
            ],
            [
                ("forward", 0),
                ("backward", 0),
                ("forward", 1),
                ("backward", 1),
            ],
        ];
        for rank in 0..4_u64 {
            let mut at = step * 1_000_000_000;
            for (kind, micro_batch) in orders[rank as usize % 2] {
                let ms = if kind == "forward" { 10 } else { 20 };
                let end = at + 1_000_000 * ms * if rank == 3 { times } else { 1 };
                let label = |name: &str, number: i64| (name.to_owned().into(), Label::Int(number));
                let span = Span {
                    context: SpanContext::default(),
                    parent: 0,
                    kind: SpanKind::User,
                    message: format!("{kind} pass").into(),
                    by: actor(rank),
                    actor: actor(rank),
                    queued: Timestamp(at),
                    started: Timestamp(at),
                    ended: Timestamp(end),
                    outcome: Outcome::Ok,
                    labels: vec![
                        label("step", step as i64),
                        label("micro_batch", micro_batch),
                        label("chunk", 0),
                    ],
                };
                seen.note_span(span, ProcessId(rank + 1), Shift::new(Timestamp(0), Date(0)));
                at = end;
            }
        }
    }

    #[test]
    fn a_slow_rank_of_a_pipeline_is_found_with_its_share_and_is_over_when_it_is_quick_again() {
        let mut seen = ClusterView::default();
        for rank in 0..4 {
            let text = |name: &str, text: &str| (name.to_owned().into(), text.to_owned().into());
            let labels = vec![
                ("rank".to_owned().into(), Label::Int(rank)),
                text("mesh", "{dp: 2, pp: 2}"),
                text("schedule", "1f1b"),
            ];
            let labels = labels.into_iter().collect();
            seen.record(
                "train.rank".to_owned(),
                actor(rank as u64),
                labels,
                Date(1),
                0.0,
            );
        }
        let mut detector = PipelineStragglers::default();
        let mut at =
            |seen: &ClusterView, second: u64| detector.observe(seen, Date(second * 1_000_000_000));
        step(&mut seen, 1, 3);
        step(&mut seen, 2, 3);
        assert_eq!(at(&seen, 3), []);
        step(&mut seen, 3, 3);
        step(&mut seen, 4, 3);
        let found = at(&seen, 5);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (&found[0].who[..], found[0].since),
            (&[Subject::Actor(actor(3))][..], Date(1_000_000_000))
        );
        let said = &found[0].cause.sentence;
        assert!(
            said.starts_with("stragglers make a step 1.")
                && said.contains("stage 1 of copy 1 is slow"),
            "{said}"
        );
        // It is quick again, which is seen when it is judged again.
        for number in 5..20 {
            step(&mut seen, number, 1);
        }
        assert_eq!(at(&seen, 6), found);
        let later = 5 + Duration::as_secs(&PIPELINE_EVERY);
        assert_eq!(at(&seen, later), []);
    }
}
