//! Ranks about which something is done, and nodes that their jobs avoid, as whoever supervises the ranks records it.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ActorId;
use odeon_diagnosis::{Detector, Severity};

use super::{ACTION_FORBIDDEN, Finding, NODE_AVOIDED, RANK_RECOVERY, STANDBY_MISSING, finding};
use crate::cluster_view::{ClusterView, Recorded};
use crate::date::Date;
use crate::event::Subject;

// All of them have the label `role` where a run has ranks of several roles.

/// For how many seconds a rank was faulty when something was done about it, with the labels `rank` and `node`, where one
/// has taken its number `standby`, and the text `what`; zero when all ranks go on.
const RANK_SERIES: &str = "recovery.rank_s";
/// The reason for which ranks of the job are not placed on a node, with the label `node` and the text `what`:
/// [`FOR_A_FAULT`], 2 since it was left before this try of the job, 3 for a person; zero when it is used again.
const NODE_SERIES: &str = "recovery.node_avoided";
/// One of an action that is not taken by itself about ranks of the job, as a person says, with the label `action` and the
/// text `what`; zero when it may be taken again.
const FORBIDDEN_SERIES: &str = "recovery.forbidden";
/// One where a standby of ranks could not be begun, with the text `what`; zero when all are there.
const STANDBY_SERIES: &str = "recovery.standbys_missing";
/// What was done is a problem for so long at least from when it was heard of, so that people see it where ranks go on at
/// once, or where the process that did it ends.
const SHOWN: Duration = Duration::from_secs(15);
/// What was done longer ago than this when it is heard of is history: to whoever begins to look on.
const HISTORY: Duration = Duration::from_mins(10);

/// Whoever supervises a rank, and the labels of what is told of that.
type RankKey = (ActorId, [String; 4]);

/// Finds ranks about which something is done, nodes that jobs avoid, and standbys that are missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Recoveries {
    /// When the last action about each rank, on each of its nodes, was heard of, with when it was taken. Looks come late
    /// where machines are busy.
    heard: BTreeMap<RankKey, (Date, Date)>,
}

impl Detector<ClusterView> for Recoveries {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        let mut found: Vec<Finding> = vec![];
        let mut known = BTreeMap::new();
        for it in seen.recorded() {
            let process = seen.process(it.actor.home);
            let lives = process.is_none_or(|process| process.ended.is_none());
            let finding = match it.name.as_str() {
                RANK_SERIES => self.of_rank(it, lives, now, &mut known),
                NODE_SERIES if lives => of_node(it),
                FORBIDDEN_SERIES if lives => of_forbidden(it),
                STANDBY_SERIES if lives => of_standby(it),
                _ => None,
            };
            let same = |finding: &Finding| {
                let is = |it: &Finding| {
                    it.since == finding.since && it.cause.sentence == finding.cause.sentence
                };
                found.iter().any(is)
            };
            // One action may be about several ranks.
            found.extend(finding.filter(|it| !same(it)));
        }
        self.heard = known;
        found
    }
}

impl Recoveries {
    /// The last action about a rank, or about all of a job.
    fn of_rank(
        &self,
        it: &Recorded,
        lives: bool,
        now: Date,
        known: &mut BTreeMap<RankKey, (Date, Date)>,
    ) -> Option<Finding> {
        let goes_on = lives && it.points.back()?.2 > 0.0;
        // The newest point of when something was done: those behind it say that it is over.
        let (at, _, lasts) = *it.points.iter().rev().find(|(.., lasts)| *lasts > 0.0)?;
        let names = ["role", "rank", "node", "standby"];
        let labels = names.map(|name| label(it, name).unwrap_or_default());
        let key = (it.actor, labels);
        let before = self.heard.get(&key).filter(|(taken, _)| *taken == at);
        let heard = before.map_or(now, |(_, heard)| *heard);
        known.insert(key, (at, heard));
        if !goes_on && (now.since(heard) >= SHOWN || heard.since(at) >= HISTORY) {
            return None;
        }
        let lasts = Duration::from_secs_f64(lasts);
        let since = Date(at.0.saturating_sub(lasts.as_nanos() as u64));
        let who = vec![Subject::Process(it.actor.home)];
        let what = of_role(it, &it.what.clone()?);
        Some(finding(RANK_RECOVERY, Severity::Warning, since, what, who))
    }
}

/// A rank had a fault there.
const FOR_A_FAULT: f64 = 1.0;

/// A node that a job's ranks have left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftNode {
    /// Which.
    pub node: String,
    /// The job; empty where its process is not known.
    pub job: String,
    /// When they left it.
    pub since: Date,
    /// The fault of them there, in words.
    pub why: String,
}

/// The nodes that jobs have left for a fault and avoid now, but for those that they had left before they began, and those
/// that a person had them leave.
#[must_use]
pub fn left_nodes(seen: &ClusterView) -> Vec<LeftNode> {
    let all = seen.recorded().filter(|it| it.name == NODE_SERIES);
    let left = all.filter_map(|it| {
        let on = it.points.iter().rev().take_while(|(.., on)| *on > 0.0);
        let (since, ..) = *on.last()?;
        if it.points.back()?.2 > FOR_A_FAULT {
            return None;
        }
        let process = seen.process(it.actor.home);
        Some(LeftNode {
            node: label(it, "node")?,
            job: process.map_or_else(String::new, |process| process.job.clone()),
            since,
            why: it.what.clone().unwrap_or_default(),
        })
    });
    left.collect()
}

fn of_node(it: &Recorded) -> Option<Finding> {
    let (at, _, on) = *it.points.back()?;
    if on <= 0.0 {
        return None;
    }
    let (node, what) = (label(it, "node")?, it.what.clone()?);
    let sentence = format!("node {node} is avoided by a job: {what}");
    let since = it.points.iter().rev().take_while(|(.., on)| *on > 0.0);
    let since = since.last().map_or(at, |(at, ..)| *at);
    let who = vec![Subject::Node(node), Subject::Process(it.actor.home)];
    let severity = Severity::Warning;
    Some(finding(NODE_AVOIDED, severity, since, sentence, who))
}

fn of_forbidden(it: &Recorded) -> Option<Finding> {
    let (_, _, on) = *it.points.back()?;
    if on <= 0.0 {
        return None;
    }
    let since = it.points.iter().rev().take_while(|(.., on)| *on > 0.0);
    let at = since.last()?.0;
    let (action, what) = (label(it, "action")?, it.what.clone()?);
    let sentence = format!("{action} is not done by itself about the ranks of a job: {what}");
    let (sentence, action) = (of_role(it, &sentence), of_role(it, &action));
    let who = vec![Subject::Process(it.actor.home)];
    let mut found = finding(ACTION_FORBIDDEN, Severity::Warning, at, sentence, who);
    found.cause.part = action;
    Some(found)
}

/// A sentence about ranks, of the role that they are of.
fn of_role(it: &Recorded, sentence: &str) -> String {
    match label(it, "role") {
        Some(role) => format!("{role}: {sentence}"),
        None => sentence.to_owned(),
    }
}

fn of_standby(it: &Recorded) -> Option<Finding> {
    let (_, _, missing) = *it.points.back()?;
    if missing <= 0.0 {
        return None;
    }
    let since = it.points.iter().rev().take_while(|(.., it)| *it > 0.0);
    let (since, ..) = *since.last()?;
    let sentence = format!(
        "ranks have fewer standbys than they should: {}",
        it.what.clone()?
    );
    let who = vec![Subject::Process(it.actor.home)];
    Some(finding(
        STANDBY_MISSING,
        Severity::Info,
        since,
        sentence,
        who,
    ))
}

fn label(it: &Recorded, name: &str) -> Option<String> {
    let found = it.labels.iter().find(|(known, _)| known == name);
    found.map(|(_, label)| label.to_string())
}

#[cfg(test)]
mod tests {
    use odeon::{ActorId, ProcessId};

    use super::*;

    /// SEMANTICS 179.
    #[test]
    fn what_is_done_about_a_rank_is_a_problem_until_the_ranks_go_on() {
        let driver = ActorId::root(ProcessId(7));
        let mut seen = ClusterView::default();
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut record = |name: &str, labels: &[(&str, &str)], second, value| {
            let labels = labels.iter();
            let labels =
                labels.map(|(name, text)| ((*name).to_owned().into(), (*text).to_owned().into()));
            seen.record(name.to_owned(), driver, labels.collect(), at(second), value);
        };
        let of_rank = [("rank", "2"), ("node", "b"), ("what", "it is made again")];
        record(RANK_SERIES, &of_rank, 100, 30.0);
        let of_node = [("node", "b"), ("what", "made again before")];
        record(NODE_SERIES, &of_node, 100, 1.0);
        record(RANK_SERIES, &of_rank, 102, 0.0);
        let mut recoveries = Recoveries::default();
        let mut told = |seen: &ClusterView, second| {
            let found = recoveries.observe(seen, at(second));
            let found = found.into_iter();
            let told = found.map(|it| (it.cause.rule, it.cause.sentence, it.since));
            let mut told: Vec<_> = told.collect();
            told.sort_unstable();
            told
        };
        let avoided = "node b is avoided by a job: made again before".to_owned();
        let avoided = (NODE_AVOIDED, avoided, at(100));
        let ended = (RANK_RECOVERY, "it is made again".to_owned(), at(70));
        assert_eq!(told(&seen, 103), [avoided.clone(), ended]);
        let left = left_nodes(&seen).into_iter().map(|it| (it.node, it.since));
        assert_eq!(left.collect::<Vec<_>>(), [("b".to_owned(), at(100))]);
        assert_eq!(told(&seen, 118), [avoided]);
        let of_node = [("node", "b"), ("what", "a person has let it back")];
        let labels = of_node.map(|(name, text)| (name.to_owned().into(), text.to_owned().into()));
        let labels = labels.into_iter().collect();
        seen.record(NODE_SERIES.to_owned(), driver, labels, at(120), 0.0);
        assert_eq!(told(&seen, 121), []);
        assert_eq!(left_nodes(&seen), []);
    }

    /// SEMANTICS 188, 200.
    #[test]
    fn nodes_that_a_person_or_an_earlier_try_has_left_are_avoided_for_no_fault() {
        let driver = ActorId::root(ProcessId(7));
        let at = Date(100_000_000_000);
        let mut seen = ClusterView::default();
        for (node, reason) in [("b", FOR_A_FAULT), ("c", 2.0), ("d", 3.0)] {
            let labels = vec![("node".into(), node.into()), ("what".into(), "why".into())];
            seen.record(NODE_SERIES.to_owned(), driver, labels, at, reason);
        }
        let found = Recoveries::default().observe(&seen, at).into_iter();
        assert_eq!(found.filter(|it| it.cause.rule == NODE_AVOIDED).count(), 3);
        let left = left_nodes(&seen).into_iter().map(|it| it.node);
        assert_eq!(left.collect::<Vec<_>>(), ["b"]);
    }

    /// SEMANTICS 201.
    #[test]
    fn what_a_person_forbids_is_a_problem_until_it_is_allowed() {
        let driver = ActorId::root(ProcessId(7));
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let mut told = |second, value, what: &str| {
            let labels = [("action", "end_process"), ("what", what)];
            let labels =
                labels.map(|(name, text)| (name.to_owned().into(), text.to_owned().into()));
            let name = FORBIDDEN_SERIES.to_owned();
            seen.record(
                name,
                driver,
                labels.into_iter().collect(),
                at(second),
                value,
            );
            let found = Recoveries::default().observe(&seen, at(second + 1));
            let found = found.into_iter();
            let told = found.map(|it| (it.cause.rule, it.cause.sentence, it.since));
            told.collect::<Vec<_>>()
        };
        let sentence = "end_process is not done by itself about the ranks of a job: ann forbids it";
        let forbidden = (ACTION_FORBIDDEN, sentence.to_owned(), at(100));
        assert_eq!(told(100, 1.0, "ann forbids it"), [forbidden]);
        assert_eq!(told(105, 0.0, "ann allows end_process again"), []);
    }

    /// SEMANTICS 207.
    #[test]
    fn a_standby_is_missing_until_it_is_there_and_taking_a_number_is_an_event_of_its_own() {
        let driver = ActorId::root(ProcessId(7));
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let record =
            |seen: &mut ClusterView, name: &str, labels: &[(&str, &str)], second, value| {
                let labels = labels.iter();
                let labels = labels
                    .map(|(name, text)| ((*name).to_owned().into(), (*text).to_owned().into()));
                seen.record(name.to_owned(), driver, labels.collect(), at(second), value);
            };
        let mut recoveries = Recoveries::default();
        let mut told = |seen: &ClusterView, second| {
            let found = recoveries.observe(seen, at(second)).into_iter();
            found.map(|it| it.cause.sentence).collect::<Vec<_>>()
        };
        record(&mut seen, STANDBY_SERIES, &[("what", "no room")], 90, 1.0);
        let missing = "ranks have fewer standbys than they should: no room";
        assert_eq!(told(&seen, 91), [missing]);
        record(
            &mut seen,
            STANDBY_SERIES,
            &[("what", "it is ready")],
            95,
            0.0,
        );
        assert_eq!(told(&seen, 96), [] as [&str; 0]);
        // All of this between two looks: the rank is lost, taken, and goes on.
        let lost = [("rank", "2"), ("node", "b"), ("what", "it is made again")];
        let taken = "rank 2 is taken by standby 0 on node b";
        let by = [
            ("rank", "2"),
            ("node", "b"),
            ("standby", "0"),
            ("what", taken),
        ];
        record(&mut seen, RANK_SERIES, &lost, 100, 3.0);
        record(&mut seen, RANK_SERIES, &by, 100, 0.001);
        record(&mut seen, RANK_SERIES, &by, 100, 0.0);
        record(&mut seen, RANK_SERIES, &lost, 101, 0.0);
        let mut both = told(&seen, 102);
        both.sort_unstable();
        assert_eq!(both, ["it is made again", taken]);
        assert_eq!(told(&seen, 110).len(), 2);
        assert_eq!(
            told(&seen, 117),
            [] as [&str; 0],
            "each is shown for as long"
        );
    }

    /// SEMANTICS 179.
    #[test]
    fn what_is_heard_of_late_is_a_problem_too() {
        let driver = ActorId::root(ProcessId(7));
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let record = |seen: &mut ClusterView, second, value| {
            let labels = vec![("rank".into(), "2".into()), ("what".into(), "again".into())];
            seen.record(RANK_SERIES.to_owned(), driver, labels, at(second), value);
        };
        let mut recoveries = Recoveries::default();
        assert_eq!(recoveries.observe(&seen, at(90)), []);
        record(&mut seen, 100, 3.0);
        record(&mut seen, 103, 0.0);
        let mut told = |seen: &ClusterView, second| recoveries.observe(seen, at(second)).len();
        assert_eq!([told(&seen, 130), told(&seen, 144)], [1, 1]);
        assert_eq!(told(&seen, 145), 0);
        record(&mut seen, 150, 3.0);
        record(&mut seen, 151, 0.0);
        assert_eq!([told(&seen, 152), told(&seen, 167)], [1, 0]);
        let later = Recoveries::default().observe(&seen, at(751));
        assert_eq!(later, [], "it is history");
    }

    /// SEMANTICS 179.
    #[test]
    fn each_action_is_an_event_of_its_own() {
        let driver = ActorId::root(ProcessId(7));
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let record = |seen: &mut ClusterView, rank: &'static str, second, value, what: &str| {
            let labels = vec![
                ("rank".into(), rank.into()),
                ("what".into(), what.to_owned().into()),
            ];
            seen.record(RANK_SERIES.to_owned(), driver, labels, at(second), value);
        };
        record(&mut seen, "1", 100, 3.0, "first");
        seen.tick(at(101));
        record(&mut seen, "1", 104, 0.0, "first; all ranks go on");
        seen.tick(at(105));
        record(&mut seen, "1", 110, 3.0, "second");
        record(&mut seen, "2", 110, 3.0, "second");
        seen.tick(at(111));
        record(&mut seen, "0", 115, 3.0, "third");
        seen.tick(at(116));
        let told: Vec<_> = seen
            .events()
            .iter()
            .map(|it| it.sentence.as_str())
            .collect();
        assert_eq!(told, ["first", "second", "third"]);
    }
}
