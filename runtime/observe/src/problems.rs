//! Problems of a system: those of the moment, since when they last, and those that are over.
//!
//! A finding of a detector is a problem from when it is first found until it was not found for [`EPISODE`]: one that comes
//! back sooner is the same. Both ends are events, so that whoever kept the events knows the problems that are over, too.

use std::collections::BTreeMap;

use odeon_diagnosis::{Alert, Finding, Observation};

use crate::bounds::{EPISODE, RECALLED};
use crate::date::{Date, spoken};
use crate::detectors::rules::{ACTOR_FAILED, NODE_DOWN, NODE_REFUSED, OF_MOMENTS, problem_rule};
use crate::event::{Event, EventKind, Severity, Subject};

/// A look at a system, of which detectors tell alerts about its parts.
pub(crate) trait System:
    Observation<Subject = Subject, Moment = Date, Cause = Alert>
{
}

impl<O: Observation<Subject = Subject, Moment = Date, Cause = Alert>> System for O {}

/// A problem that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct PastProblem {
    /// The rule that found it.
    pub rule: String,
    /// The first that it was about, with its name for people then, where that is known.
    pub subject: Option<(Subject, Option<String>)>,
    /// The problem in words, as it was found last.
    pub sentence: String,
    /// When it began, as far as is known.
    pub since: Date,
    /// When it was over, to [`EPISODE`].
    pub ended: Date,
}

/// The facts of a finding by which it is the same one when it comes back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Episode {
    rule: &'static str,
    who: Vec<Subject>,
    /// The part of them that it is about, where there may be several.
    part: String,
    /// Its moment, where the rule is one of moments.
    moment: Option<Date>,
}

fn episode_of<S: System>(finding: &Finding<S>) -> Episode {
    let rule = finding.cause.rule;
    Episode {
        rule,
        // Of actors that have failed for good there are ever more: it is one problem of the first.
        who: match rule {
            ACTOR_FAILED => finding.who.iter().take(1).cloned().collect(),
            _ => finding.who.clone(),
        },
        part: finding.cause.part.clone(),
        moment: OF_MOMENTS.contains(&rule).then_some(finding.since),
    }
}

/// A problem, as it was found last.
#[derive(Debug)]
struct Lasting<S: System> {
    finding: Finding<S>,
    /// When that was.
    last: Date,
    /// When it is over, unless it is found again.
    over: Date,
}

/// The problems of a system.
#[derive(Debug)]
pub(crate) struct Problems<S: System> {
    findings: Vec<Finding<S>>,
    /// Also those that have passed a moment ago.
    episodes: BTreeMap<Episode, Lasting<S>>,
}

impl<S: System> Default for Problems<S> {
    fn default() -> Self {
        Self {
            findings: vec![],
            episodes: BTreeMap::new(),
        }
    }
}

impl<S: System> Problems<S> {
    /// Those of the moment, the worst first.
    pub(crate) fn findings(&self) -> &[Finding<S>] {
        &self.findings
    }

    /// Goes on with those that the events of another observer tell of and that were not over then.
    pub(crate) fn recall<'a>(&mut self, events: impl Iterator<Item = &'a Event>, now: Date) {
        let told = events.filter(|it| it.kind == EventKind::Problem);
        for event in told {
            let rule = event.rule.as_deref().and_then(problem_rule);
            let Some(rule) = rule.filter(|rule| !OF_MOMENTS.contains(&rule.name)) else {
                continue;
            };
            let finding = Finding {
                who: event.subject.clone().into_iter().collect(),
                cause: Alert {
                    rule: rule.name,
                    severity: event.severity,
                    sentence: event.sentence.clone(),
                    part: String::new(),
                    evidence: vec![],
                },
                since: event.at,
            };
            let episode = episode_of(&finding);
            if event.since.is_some() {
                self.episodes.remove(&episode);
                continue;
            }
            let lasting = Lasting {
                finding,
                last: now,
                over: now.after(RECALLED),
            };
            self.episodes.insert(episode, lasting);
        }
    }

    /// Takes in what is found at a moment, the worst first. Answers the events of what begins and of what is over; nothing
    /// begins that `has_lasted` knows.
    pub(crate) fn note(
        &mut self,
        mut found: Vec<Finding<S>>,
        now: Date,
        has_lasted: impl Fn(&Finding<S>) -> bool,
    ) -> Vec<Event> {
        let mut events = vec![];
        for finding in &mut found {
            let rule = finding.cause.rule;
            let episode = episode_of(finding);
            self.unite(&episode);
            let before = self.episodes.get(&episode).map(|it| it.finding.since);
            if let Some(before) = before {
                // One that is measured only now began when it was first found.
                finding.since = before.min(finding.since);
                continue;
            }
            let told_elsewhere = [ACTOR_FAILED, NODE_DOWN, NODE_REFUSED].contains(&rule);
            if told_elsewhere || has_lasted(finding) {
                continue;
            }
            events.push(event_of(finding, now));
        }
        for finding in &found {
            let lasting = Lasting {
                finding: finding.clone(),
                last: now,
                over: now.after(EPISODE),
            };
            self.episodes.insert(episode_of(finding), lasting);
        }
        self.episodes.retain(|_, it| {
            let lasts = now < it.over;
            if !lasts {
                events.push(event_of_end(&it.finding, it.last));
            }
            lasts
        });
        self.findings = found;
        events
    }

    /// One that was recalled knows its first subject alone; it goes on as the one that is found.
    fn unite(&mut self, episode: &Episode) {
        if episode.moment.is_none() && !self.episodes.contains_key(episode) {
            let recalled = Episode {
                who: episode.who.iter().take(1).cloned().collect(),
                part: String::new(),
                ..episode.clone()
            };
            if let Some(known) = self.episodes.remove(&recalled) {
                self.episodes.insert(episode.clone(), known);
            }
        }
    }

    /// Those that were found a moment ago and are not now, which may come back.
    pub(crate) fn passing(&self) -> impl Iterator<Item = PastProblem> {
        let is_found =
            |episode: &Episode| self.findings.iter().any(|it| episode_of(it) == *episode);
        let passing = self.episodes.iter().filter(move |(it, _)| !is_found(it));
        passing.map(|(_, Lasting { finding, last, .. })| PastProblem {
            rule: finding.cause.rule.to_owned(),
            subject: finding.who.first().map(|it| (it.clone(), None)),
            sentence: finding.cause.sentence.clone(),
            since: finding.since,
            ended: *last,
        })
    }
}

fn event_of<S: System>(finding: &Finding<S>, at: Date) -> Event {
    Event {
        seq: 0,
        at,
        kind: EventKind::Problem,
        severity: finding.cause.severity,
        subject: finding.who.first().cloned(),
        name: None,
        rule: Some(finding.cause.rule.to_owned()),
        sentence: finding.cause.sentence.clone(),
        chain: vec![],
        since: None,
    }
}

fn event_of_end<S: System>(finding: &Finding<S>, ended: Date) -> Event {
    let lasted = spoken(ended.since(finding.since));
    Event {
        severity: Severity::Info,
        sentence: format!("over after {lasted}{OVER}{}", finding.cause.sentence),
        since: Some(finding.since),
        ..event_of(finding, ended)
    }
}

/// The text between how long a problem lasted and the problem, in the event of its end.
const OVER: &str = ": ";

/// The problem of which an event tells that it is over.
pub(crate) fn past_of(event: &Event) -> Option<PastProblem> {
    let since = event.since?;
    let (_, sentence) = event.sentence.split_once(OVER)?;
    let subject = event.subject.clone();
    Some(PastProblem {
        rule: event.rule.clone()?,
        subject: subject.map(|it| (it, event.name.clone())),
        sentence: sentence.to_owned(),
        since,
        ended: event.at,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster_view::ClusterView;

    fn at(second: u64) -> Date {
        Date(second * 1_000_000_000)
    }

    fn slow(node: &str, since: u64) -> Finding<ClusterView> {
        Finding {
            who: vec![
                Subject::Node(node.to_owned()),
                Subject::Job("j1".to_owned()),
            ],
            cause: Alert {
                rule: "slow_link",
                severity: Severity::Warning,
                sentence: format!("node {node} is far: 120 ms"),
                part: String::new(),
                evidence: vec![],
            },
            since: at(since),
        }
    }

    /// The events with numbers, as they are kept.
    fn told(seen: &mut ClusterView, events: Vec<Event>) -> Vec<Event> {
        events.into_iter().for_each(|it| seen.note(it));
        seen.events().iter().cloned().collect()
    }

    /// SEMANTICS 203.
    #[test]
    fn a_problem_is_over_once_it_is_not_found_for_a_while_and_stays_in_the_history() {
        let mut problems = Problems::default();
        let never = |_: &Finding<ClusterView>| false;
        let begun = problems.note(vec![slow("a", 10)], at(10), never);
        assert_eq!(begun.len(), 1);
        assert_eq!(begun[0].since, None);
        // It is gone for less than a minute, comes back, and is the same.
        assert_eq!(problems.note(vec![], at(40), never), []);
        assert_eq!(problems.note(vec![slow("a", 60)], at(60), never), []);
        assert_eq!(problems.findings()[0].since, at(10));
        assert_eq!(problems.note(vec![], at(100), never), []);
        let passing: Vec<_> = problems.passing().collect();
        assert_eq!((passing[0].since, passing[0].ended), (at(10), at(60)));
        let over = problems.note(vec![], at(121), never);
        let [end] = &over[..] else {
            panic!("{over:?}");
        };
        assert_eq!(end.sentence, "over after 50 s: node a is far: 120 ms");
        assert_eq!((end.at, end.since), (at(60), Some(at(10))));
        assert_eq!(end.severity, Severity::Info);
        let past = past_of(end).unwrap();
        assert_eq!(past.sentence, "node a is far: 120 ms");
        assert_eq!((past.since, past.ended), (at(10), at(60)));
        assert_eq!(problems.passing().count(), 0);
        assert_eq!(problems.note(vec![], at(200), never), []);
        let again = problems.note(vec![slow("a", 300)], at(300), never);
        assert_eq!(again.len(), 1, "it begins anew");
    }

    /// SEMANTICS 203.
    #[test]
    fn the_next_observer_goes_on_with_what_was_not_over_and_tells_its_end() {
        let (mut problems, mut seen) = (Problems::default(), ClusterView::default());
        let never = |_: &Finding<ClusterView>| false;
        let begun = problems.note(vec![slow("a", 10), slow("b", 10)], at(10), never);
        let events = told(&mut seen, begun);
        let over = problems.note(vec![slow("b", 10)], at(80), never);
        assert_eq!(over.len(), 1);
        let events_then = told(&mut seen, over);
        assert_eq!(events_then.len(), events.len() + 1);

        let mut next = Problems::default();
        next.recall(events_then.iter(), at(100));
        let lasts = |found: &Finding<ClusterView>| found.who[0] == Subject::Node("b".to_owned());
        assert_eq!(next.note(vec![slow("b", 105)], at(105), lasts), []);
        assert_eq!(next.findings()[0].since, at(10), "since when it was told");
        let over = next.note(vec![], at(170), never);
        assert_eq!(over.len(), 1, "{over:?}");
        assert_eq!(over[0].sentence, "over after 95 s: node b is far: 120 ms");
        // What nobody finds again is over as well, when those that look for minutes would have found it.
        let mut other = Problems::default();
        other.recall(events_then.iter(), at(100));
        assert_eq!(
            other.note(
                vec![],
                at(100).after(RECALLED).before(Duration::from_secs(1)),
                never
            ),
            []
        );
        assert_eq!(other.note(vec![], at(100).after(RECALLED), never).len(), 1);
    }

    /// SEMANTICS 203.
    #[test]
    fn problems_of_parts_of_one_subject_begin_and_end_each_by_itself() {
        let mut problems = Problems::default();
        let never = |_: &Finding<ClusterView>| false;
        let of_part = |part: &str| {
            let mut found = slow("a", 10);
            found.cause.part = part.to_owned();
            found.cause.sentence = format!("{part} is forbidden");
            found
        };
        let both = vec![of_part("end_process"), of_part("evict_node")];
        assert_eq!(problems.note(both, at(10), never).len(), 2);
        assert_eq!(
            problems.note(vec![of_part("evict_node")], at(60), never),
            []
        );
        let mut ended = vec![];
        for second in [71, 121] {
            let over = problems.note(vec![], at(second), never);
            ended.extend(over.into_iter().map(|it| it.sentence));
        }
        let says = ["end_process", "evict_node"].map(|part| format!("{part} is forbidden"));
        assert!(
            ended.len() == 2 && ended[0].ends_with(&says[0]) && ended[1].ends_with(&says[1]),
            "{ended:?}"
        );
    }
}
