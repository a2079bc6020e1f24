//! How old the policy behind a trajectory may be when it is trained on.
//!
//! The trainer's version counts its updates; a trajectory carries the version of the weights that
//! sampled it. The difference is the trajectory's staleness. A bound of 0 is synchronous training,
//! 1 is one-step off-policy, and no bound relies on clipping alone (as in Laminar,
//! arXiv 2510.12633, where staleness stays small by itself).

use serde::{Deserialize, Serialize};

/// The largest staleness that is trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StalenessBound {
    /// At most this many updates; 0 is synchronous.
    AtMost(u64),
    /// Whatever comes.
    #[default]
    Unbounded,
}

/// The decision on one trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// Train on it.
    Fresh {
        /// How many updates it is behind.
        staleness: u64,
    },
    /// Too old: drop it, and sample its prompt again.
    Stale {
        /// How many updates it is behind.
        staleness: u64,
    },
    /// Sampled by weights that this trainer has not made: it was restored from an older
    /// checkpoint. Drop it.
    FromTheFuture,
}

impl StalenessBound {
    /// Decides on a trajectory of `trajectory_version` for an update from `trainer_version`.
    #[must_use]
    pub fn admit(self, trainer_version: u64, trajectory_version: u64) -> Admission {
        match trainer_version.checked_sub(trajectory_version) {
            None => Admission::FromTheFuture,
            Some(staleness) if self.allows(staleness) => Admission::Fresh { staleness },
            Some(staleness) => Admission::Stale { staleness },
        }
    }

    /// Whether a rollout may begin a trajectory now: whether it would still be fresh when all
    /// `queued` trajectories before it, at `batch` an update, have been trained on.
    ///
    /// # Panics
    /// When `batch` is 0.
    #[must_use]
    pub fn may_begin(
        self,
        trainer_version: u64,
        rollout_version: u64,
        queued: u64,
        batch: u64,
    ) -> bool {
        assert!(batch > 0, "an update takes at least one trajectory");
        match (trainer_version + queued / batch).checked_sub(rollout_version) {
            Some(staleness) => self.allows(staleness),
            None => false,
        }
    }

    fn allows(self, staleness: u64) -> bool {
        match self {
            Self::AtMost(bound) => staleness <= bound,
            Self::Unbounded => true,
        }
    }
}

impl Admission {
    /// Whether the trajectory is trained on.
    #[must_use]
    pub fn is_fresh(self) -> bool {
        matches!(self, Self::Fresh { .. })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_trajectory_is_fresh_up_to_the_bound(
            trainer in 0_u64..1000, behind in 0_u64..1000, bound in 0_u64..10,
        ) {
            let Some(version) = trainer.checked_sub(behind) else { return Ok(()) };
            let bounded = StalenessBound::AtMost(bound).admit(trainer, version);
            prop_assert_eq!(bounded.is_fresh(), behind <= bound);
            prop_assert!(StalenessBound::Unbounded.admit(trainer, version).is_fresh());
            let future = StalenessBound::Unbounded.admit(version, trainer + 1);
            prop_assert_eq!(future, Admission::FromTheFuture);
        }

        /// Plays a rollout that begins only when allowed, and a trainer that takes in order.
        #[test]
        fn what_may_begin_is_never_stale_when_its_turn_comes(
            bound in 0_u64..4, batch in 1_u64..5, steps in prop::collection::vec(any::<bool>(), 1..80),
        ) {
            let bound = StalenessBound::AtMost(bound);
            let (mut trainer, mut queue) = (0_u64, std::collections::VecDeque::new());
            for rollout_turn in steps {
                if rollout_turn && bound.may_begin(trainer, trainer, queue.len() as u64, batch) {
                    queue.push_back(trainer);
                }
                if queue.len() as u64 >= batch {
                    for version in queue.drain(..batch as usize) {
                        prop_assert!(bound.admit(trainer, version).is_fresh());
                    }
                    trainer += 1;
                }
            }
        }
    }

    #[test]
    fn a_bound_of_zero_is_synchronous() {
        let bound = StalenessBound::AtMost(0);
        assert!(bound.may_begin(5, 5, 3, 4));
        assert!(
            !bound.may_begin(5, 5, 4, 4),
            "the batch of this version is full"
        );
        assert!(
            !bound.may_begin(5, 4, 0, 4),
            "the rollout must load the new weights first"
        );
        assert_eq!(bound.admit(5, 4), Admission::Stale { staleness: 1 });
    }
}
