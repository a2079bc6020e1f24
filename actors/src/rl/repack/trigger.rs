//! When to plan, and whether a replica's cache is falling. Pure: time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ReplicaId;
use crate::trajectory::Version;

/// Why a plan is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// There are newer weights, so a replica that is emptied now gains most.
    Update(Version),
    /// The period is over.
    Period,
}

/// Says when to plan: every so often, and right after each update of the trainer.
///
/// Every plan begins a new period, whatever it was made for. Periods that nobody looked in are made
/// up for by one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    period: Duration,
    /// When the period began.
    since: Duration,
    /// The newest weights that it was told of.
    newest: Option<Version>,
    /// The newest weights, when no plan was made since they came.
    update: Option<Version>,
}

impl Trigger {
    /// Begins its first period at `now`. All times are since one fixed moment.
    #[must_use]
    pub const fn new(period: Duration, now: Duration) -> Self {
        Self {
            period,
            since: now,
            newest: None,
            update: None,
        }
    }

    /// The trainer has published `version`. What is not newer than what is known is no news: a
    /// trainer publishes again what a relay has lost.
    pub fn updated(&mut self, version: Version) {
        if self.newest.is_none_or(|newest| version > newest) {
            self.newest = Some(version);
            self.update = Some(version);
        }
    }

    /// The cause to plan now, if there is one. Each is given once.
    #[must_use]
    pub fn due(&mut self, now: Duration) -> Option<Cause> {
        let cause = match self.update.take() {
            Some(version) => Cause::Update(version),
            None if now >= self.next_at() => Cause::Period,
            None => return None,
        };
        self.since = now;
        Some(cause)
    }

    /// When to ask next, unless there is an update before.
    #[must_use]
    pub const fn next_at(&self) -> Duration {
        self.since.saturating_add(self.period)
    }
}

/// Remembers what replicas had in their caches, so that a look knows the one before: C_prev.
///
/// Looks that follow each other closely, as those after an update do, would compare the same with
/// the same and find that nothing falls. So the look before is one that is older by at least
/// `apart`.
#[derive(Clone, Debug)]
pub struct KvTrend {
    apart: Duration,
    kept: BTreeMap<ReplicaId, Kept>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    version: Version,
    at: Duration,
    kv_used: u64,
    before: Option<u64>,
}

impl KvTrend {
    /// Looks count as two when `apart` lies between them. Half of the period of the [`Trigger`] is
    /// enough.
    #[must_use]
    pub const fn new(apart: Duration) -> Self {
        Self {
            apart,
            kept: BTreeMap::new(),
        }
    }

    /// A look at a replica at `now`: bytes in use. Returns those of the look before with the same
    /// weights; other weights begin with an empty cache, and that is no falling.
    #[must_use]
    pub fn look(
        &mut self,
        id: ReplicaId,
        version: Version,
        kv_used: u64,
        now: Duration,
    ) -> Option<u64> {
        let look = Kept {
            version,
            at: now,
            kv_used,
            before: None,
        };
        let kept = self.kept.entry(id).or_insert(look);
        if kept.version != version {
            *kept = look;
        } else if now.saturating_sub(kept.at) >= self.apart && now > kept.at {
            *kept = Kept {
                before: Some(kept.kv_used),
                ..look
            };
        }
        kept.before
    }

    /// It has taken new prompts or is gone: what it had says nothing about what it has.
    pub fn forget(&mut self, id: ReplicaId) {
        self.kept.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_plan_is_due_each_period_and_once_for_periods_that_were_missed() {
        let mut trigger = Trigger::new(s(5), s(100));
        assert_eq!(trigger.due(s(104)), None);
        assert_eq!(trigger.due(s(105)), Some(Cause::Period));
        assert_eq!(trigger.due(s(105)), None);
        assert_eq!(trigger.next_at(), s(110));
        assert_eq!(trigger.due(s(200)), Some(Cause::Period));
        assert_eq!(
            trigger.due(s(204)),
            None,
            "missed periods are not made up one by one"
        );
    }

    #[test]
    fn an_update_is_due_at_once_and_begins_a_period() {
        let mut trigger = Trigger::new(s(5), s(0));
        trigger.updated(0);
        assert_eq!(trigger.due(s(0)), Some(Cause::Update(0)));
        trigger.updated(1);
        trigger.updated(2);
        assert_eq!(
            trigger.due(s(3)),
            Some(Cause::Update(2)),
            "one plan for both"
        );
        assert_eq!(trigger.due(s(5)), None);
        assert_eq!(trigger.due(s(8)), Some(Cause::Period));
        trigger.updated(2);
        trigger.updated(1);
        assert_eq!(
            trigger.due(s(9)),
            None,
            "weights published again are not new"
        );
    }

    #[test]
    fn time_that_stands_or_goes_back_is_no_period() {
        let mut trigger = Trigger::new(s(5), s(10));
        assert_eq!(trigger.due(s(2)), None);
        assert_eq!(trigger.due(s(10)), None);
    }

    #[test]
    fn a_look_right_after_another_still_sees_the_fall() {
        let mut trend = KvTrend::new(s(2));
        assert_eq!(trend.look(1, 0, 90, s(0)), None);
        assert_eq!(trend.look(1, 0, 70, s(5)), Some(90));
        assert_eq!(trend.look(1, 0, 70, s(5)), Some(90), "not with itself");
        assert_eq!(trend.look(1, 0, 69, s(6)), Some(90));
        assert_eq!(trend.look(1, 0, 60, s(7)), Some(70));
    }

    #[test]
    fn new_weights_and_new_prompts_are_no_fall() {
        let mut trend = KvTrend::new(s(2));
        let _ = trend.look(1, 0, 90, s(0));
        assert_eq!(trend.look(1, 1, 5, s(5)), None);
        assert_eq!(trend.look(1, 1, 9, s(10)), Some(5));
        trend.forget(1);
        assert_eq!(trend.look(1, 1, 2, s(15)), None);
    }
}
