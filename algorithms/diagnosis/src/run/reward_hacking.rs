//! The reward that is trained on rises, and the part that is right does not.

use super::event::{ERRORS, RISE, RunEvent, finding};
use super::history::{Episodes, History, Means};
use super::run_detector;
use crate::{Detector, Finding};

/// Less of a distance is nothing.
const GAP: f64 = 0.1;

/// Finds that a reward is hacked, by the replies that are trained on.
#[derive(Clone, Debug)]
pub struct RewardHacking {
    history: History,
    /// The window in which most was right.
    best: Option<Means>,
    episodes: Episodes,
}

impl RewardHacking {
    /// In a run of so many steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        Self {
            history: History::new(steps),
            best: None,
            episodes: Episodes::default(),
        }
    }

    fn since(&self, then: Means, now: Means) -> Option<Finding<RunEvent>> {
        let History {
            reward_noise,
            gap_noise,
            ..
        } = &self.history;
        let rise_min = RISE.max(ERRORS * self.history.error(reward_noise));
        let gap_min = GAP.max(ERRORS * self.history.error(gap_noise));
        let (reward, right) = (now.reward - then.reward, now.right - then.right);
        let hacked = reward > rise_min && reward - right > gap_min && right < reward / 4.0;
        let since = then.step;
        let sentence = || {
            format!(
                "the reward is hacked: since step {since} it has changed by {reward:+.3}, and the part \
                 of the replies that is right by {right:+.3}"
            )
        };
        hacked.then(|| {
            let evidence = vec![("reward_change", reward), ("right_change", right)];
            finding("reward_hacking", since, sentence(), evidence)
        })
    }
}

run_detector!(RewardHacking, |it, at| it
    .episodes
    .goes_on(at, it.history.window));

impl Detector<RunEvent> for RewardHacking {
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        let RunEvent::Step(step) = seen else {
            return vec![];
        };
        let Some((first, now)) = self.history.add(step, at) else {
            return vec![];
        };
        let mut found = None;
        // Before that nobody knows the noise.
        if self.history.count >= 3 * self.history.window as u64 {
            let best = || self.best.and_then(|best| self.since(best, now));
            found = self.since(first, now).or_else(best);
        }
        if self.best.is_none_or(|best| now.right > best.right) {
            self.best = Some(now);
        }
        let window = self.history.window;
        let found = found.filter(|_| self.episodes.begins(at, window));
        found.into_iter().collect()
    }
}
