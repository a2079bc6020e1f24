//! The way back to the version of the program before, as a rung: when it is taken.
//!
//! A fault that came with a new program is mended by none of the rungs before. So a version that has not come to work is
//! given up when its ranks have begun again in their places and fail again, and a young one where the job would stop for a
//! person. One that has worked for long is not to blame for what comes then.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ladder, OrderError, OrderedAction, OrderedBy, RankFinding, Restarted, Rung, named};
use crate::Action;

/// A version of a program that has another one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct YoungVersion {
    /// Its number.
    pub number: u32,
    /// That of the one before it.
    pub before: u32,
    /// Set where it has come to work.
    pub at_work: bool,
    /// The time until which it counts as young, as the ladder counts time: what begins later is no fault of it.
    pub until: Duration,
}

impl YoungVersion {
    /// The time for which a version counts as young.
    pub const YOUNG: Duration = Duration::from_hours(24);
}

impl Ladder {
    /// A step is done, so that its version has come to work.
    pub const fn came_to_work(&mut self) {
        if let Some(version) = &mut self.policy.version {
            version.at_work = true;
        }
    }

    /// Restarts of the budget that ranks are to blame for.
    fn of_ranks(&self) -> impl Iterator<Item = &Restarted> {
        let restarts = self.restarts.iter();
        restarts.filter(|it| it.counts && !it.who.is_empty())
    }

    /// Returns true for a version that is given up, since it has not come to work and its ranks have begun again as often
    /// as they do in their places.
    pub(super) fn is_never_at_work(&self) -> bool {
        let on_trial = self.policy.version.is_some_and(|it| !it.at_work);
        on_trial
            && self.of_ranks().count() as u32 >= self.policy.in_place
            && self.forbids(OrderedAction::RollBack).is_none()
    }

    /// The rung back from a version that has not come to work, or that a person has ordered.
    pub(super) fn back(&mut self, found: &RankFinding, ordered: Option<&OrderedBy>) -> Rung {
        self.stopped = true;
        let does = match (&self.policy.version, ordered) {
            (Some(version), None) => format!(
                "the job goes back to version {}, since version {} has not come to work and its ranks have begun again",
                version.before, version.number
            ),
            (Some(version), Some(_)) => format!("the job goes back to version {}", version.before),
            (None, _) => "the job goes back to the version before".to_owned(),
        };
        let why = match ordered {
            Some(by) => format!("{}; {does}", by.says("asked for it")),
            None => format!("{}: {}; {does}", named(&found.who), found.cause),
        };
        Rung {
            action: Action::RollBack,
            evicted: vec![],
            innocent: vec![],
            why,
        }
    }

    /// What is done where ranks are not to begin again, and in words: the job goes back to the version before, where its own
    /// is younger than what is wrong, and else stops for a person.
    pub(super) fn given_up(
        &mut self,
        found: &RankFinding,
        now: Duration,
        why: &str,
    ) -> (Action, String) {
        self.stopped = true;
        let stops = format!("the job stops for a person, {why}");
        let Some(version) = self.policy.version else {
            return (Action::StopForPerson, stops);
        };
        // A node that is lost with its ranks says nothing about a version.
        let first = self.of_ranks().next().map(|it| it.at);
        let first = first.or_else(|| (!found.who.is_empty()).then_some(now));
        if first.is_none_or(|first| first > version.until) {
            return (Action::StopForPerson, stops);
        }
        if let Some(forbidden) = self.forbids(OrderedAction::RollBack) {
            let does = format!(
                "{stops}; it does not go back to version {}: {forbidden}",
                version.before
            );
            return (Action::StopForPerson, does);
        }
        let does = format!(
            "the job goes back to version {}, {why}, and version {} is younger than that",
            version.before, version.number
        );
        (Action::RollBack, does)
    }

    /// The rung back that a person has ordered.
    pub(super) fn back_by_order(&mut self, by: &OrderedBy) -> Result<Rung, OrderError> {
        if self.policy.version.is_none() {
            return Err(OrderError::NoVersionBefore);
        }
        let nobody = RankFinding {
            who: vec![],
            cause: super::RankCause {
                fault: super::RankFault::Still,
                what: String::new(),
            },
            since: Duration::ZERO,
        };
        Ok(self.back(&nobody, Some(by)))
    }
}

#[cfg(test)]
mod tests;
