//! Ranks of gangs that hold up the others: they stand still, are slow, or print losses that are no numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ActorId;
use odeon_diagnosis::{Detector, Severity};

use super::{Finding, RANK_NOT_FINITE, RANK_SLOW, RANK_STILL, finding, spoken};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// The numbers that a gang records of a rank in trouble, in seconds since that began, with the labels `rank`, `node` and
/// `pid`, and the text `what`; zero when it is over. Each with its rule.
const SERIES: [(&str, &str); 3] = [
    ("gang.rank_still_s", RANK_STILL),
    ("gang.rank_slow_s", RANK_SLOW),
    ("gang.rank_not_finite_s", RANK_NOT_FINITE),
];

/// Finds ranks of living gangs that hold up the others, as the gangs record it.
#[derive(Clone, Copy, Debug)]
pub(super) struct GangRanks;

impl Detector<ClusterView> for GangRanks {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        in_trouble(seen, now)
    }
}

/// A gang says so much oftener than this. One that began anew says nothing of its last life.
const STALE: Duration = Duration::from_secs(15);

/// The last that a gang has said of a rank.
struct Said {
    at: Date,
    seconds: f64,
    rank: String,
    what: String,
}

fn in_trouble(seen: &ClusterView, now: Date) -> Vec<Finding> {
    // The last that each gang has said of each rank, whatever its process was.
    let mut last: BTreeMap<(&'static str, ActorId, String), Said> = BTreeMap::new();
    for it in seen.recorded() {
        let Some((_, rule)) = SERIES.iter().find(|(name, _)| *name == it.name) else {
            continue;
        };
        let label = |name: &str| -> Option<String> {
            let found = it.labels.iter().find(|(known, _)| known == name);
            found.map(|(_, label)| label.to_string())
        };
        let process = seen.process(it.actor.home);
        let is_over = process.is_some_and(|process| process.ended.is_some());
        let (Some(rank), Some(node), Some(pid), Some((at, _, seconds)), false) = (
            label("rank"),
            label("node"),
            label("pid"),
            it.points.back(),
            is_over,
        ) else {
            continue;
        };
        let said = Said {
            at: *at,
            seconds: *seconds,
            rank: format!("rank {rank}, on node {node} (pid {pid})"),
            what: it.what.clone().unwrap_or_default(),
        };
        let key = (*rule, it.actor, rank);
        match last.get_mut(&key) {
            Some(known) if known.at > said.at => {}
            _ => drop(last.insert(key, said)),
        }
    }
    let goes_on = |said: &Said| said.seconds > 0.0 && now.since(said.at) < STALE;
    let found = last.into_iter().filter(|(_, said)| goes_on(said));
    let found = found.map(|((rule, actor, _), said)| {
        let lasts = Duration::from_secs_f64(said.seconds);
        let since = Date(said.at.0.saturating_sub(lasts.as_nanos() as u64));
        let Said { rank, what, .. } = said;
        let sentence = match rule {
            RANK_STILL => {
                let others = if what.is_empty() { "" } else { ", " };
                let lasts = spoken(lasts);
                format!(
                    "{rank}, stands still: it has neither printed nor worked for {lasts}{others}{what}"
                )
            }
            _ => format!("{rank}, {what}"),
        };
        let who = vec![Subject::Process(actor.home)];
        let mut found = finding(rule, Severity::Warning, since, sentence, who);
        found.cause.part = rank.to_string();
        found
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use odeon::ProcessId;

    use super::*;

    /// SEMANTICS 128.
    #[test]
    fn a_rank_that_stands_still_is_a_problem_until_it_moves() {
        let gang = ActorId::root(ProcessId(7));
        let mut seen = ClusterView::default();
        let mut record = |rank: &str, pid: &str, second: u64, lasts| {
            let labels = [("rank", rank), ("node", "b"), ("pid", pid)];
            let labels =
                labels.map(|(name, text)| (name.to_owned().into(), text.to_owned().into()));
            let (name, at) = (SERIES[0].0.to_owned(), Date(second * 1_000_000_000));
            seen.record(name, gang, labels.into_iter().collect(), at, lasts);
        };
        record("1", "41", 400, 300.0);
        record("1", "41", 405, 0.0);
        record("2", "42", 700, 300.0);
        record("2", "42", 705, 305.0);
        record("3", "43", 700, 300.0);
        // It moves in its next process.
        record("3", "44", 706, 0.0);
        let at = |second: u64| Date(second * 1_000_000_000);
        assert_eq!(in_trouble(&seen, at(730)).len(), 0, "its gang began anew");
        let found = in_trouble(&seen, at(706));
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            one.cause.sentence,
            "rank 2, on node b (pid 42), stands still: it has neither printed nor worked for 5 min"
        );
        assert_eq!(one.since, Date(400 * 1_000_000_000));
    }

    /// SEMANTICS 159.
    #[test]
    fn slow_ranks_and_losses_that_are_no_numbers_are_problems_of_their_own_until_they_are_over() {
        let gang = ActorId::root(ProcessId(7));
        let mut seen = ClusterView::default();
        let mut record = |series: usize, rank: &str, what: &str, second: u64, lasts| {
            let labels = [("rank", rank), ("node", "b"), ("pid", "41"), ("what", what)];
            let labels =
                labels.map(|(name, text)| (name.to_owned().into(), text.to_owned().into()));
            let (name, at) = (SERIES[series].0.to_owned(), Date(second * 1_000_000_000));
            seen.record(name, gang, labels.into_iter().collect(), at, lasts);
        };
        record(1, "1", "is slow", 400, 20.0);
        record(1, "3", "is slow", 400, 20.0);
        record(1, "3", "is slow", 405, 0.0);
        record(2, "1", "printed a loss that is no number", 400, 1.0);
        let found = in_trouble(&seen, Date(405 * 1_000_000_000));
        let found: Vec<_> = found
            .iter()
            .map(|it| {
                (
                    it.cause.rule,
                    it.cause.sentence.as_str(),
                    it.since.0 / 1_000_000_000,
                )
            })
            .collect();
        let expect = [
            (
                RANK_NOT_FINITE,
                "rank 1, on node b (pid 41), printed a loss that is no number",
                399,
            ),
            (RANK_SLOW, "rank 1, on node b (pid 41), is slow", 380),
        ];
        assert_eq!(found, expect);
    }
}
