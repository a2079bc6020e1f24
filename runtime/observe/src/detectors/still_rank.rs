//! Ranks of gangs that stand still.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ActorId;
use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding, spoken};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// The number that a gang records of a rank that has neither printed nor worked, in seconds, with the labels
/// `rank`, `node` and `pid`; zero when that is over.
const STILL: &str = "gang.rank_still_s";

/// Finds ranks of living gangs that stand still while others work, as the gangs record it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StillRanks;

impl Detector<ClusterView> for StillRanks {
    fn observe(&mut self, seen: &ClusterView, _now: Date) -> Vec<Finding> {
        still(seen)
    }
}

fn still(seen: &ClusterView) -> Vec<Finding> {
    // The last that each gang has said of each rank, whatever its process was.
    let mut last: BTreeMap<(ActorId, String), (Date, f64, String)> = BTreeMap::new();
    for it in seen.recorded().filter(|it| it.name == STILL) {
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
        let where_it_is = format!("rank {rank}, on node {node} (pid {pid})");
        let known = last.entry((it.actor, rank));
        let known = known.or_insert_with(|| (*at, *seconds, where_it_is.clone()));
        if known.0 <= *at {
            *known = (*at, *seconds, where_it_is);
        }
    }
    let found = last
        .into_iter()
        .filter(|(_, (_, seconds, _))| *seconds > 0.0);
    let found = found.map(|((actor, _), (at, seconds, rank))| {
        let lasts = Duration::from_secs_f64(seconds);
        let since = Date(at.0.saturating_sub(lasts.as_nanos() as u64));
        let sentence = format!(
            "{rank}, stands still: it has neither printed nor worked for {}",
            spoken(lasts)
        );
        let who = vec![Subject::Process(actor.home)];
        finding("rank_still", Severity::Warning, since, sentence, who)
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
            let (name, at) = (STILL.to_owned(), Date(second * 1_000_000_000));
            seen.record(name, gang, labels.into_iter().collect(), at, lasts);
        };
        record("1", "41", 400, 300.0);
        record("1", "41", 405, 0.0);
        record("2", "42", 700, 300.0);
        record("2", "42", 705, 305.0);
        record("3", "43", 700, 300.0);
        // It moves in its next process.
        record("3", "44", 706, 0.0);
        let found = still(&seen);
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            one.cause.sentence,
            "rank 2, on node b (pid 42), stands still: it has neither printed nor worked for 5 min"
        );
        assert_eq!(one.since, Date(400 * 1_000_000_000));
    }
}
