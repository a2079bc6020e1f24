//! The reward fell right after the begin, and comes back.

use super::event::{RunEvent, finding};
use super::history::{BEGIN, History, Means, QUIET};
use super::run_detector;
use crate::{Detector, Finding};

/// Less of a fall at the begin is nothing.
const DIP: f64 = 0.02;

/// Finds that the reward fell at the begin and has come back. That is told once of a run.
#[derive(Clone, Debug)]
pub struct HockeyStick {
    history: History,
    /// Steps in which a fall counts as one at the begin.
    early: u64,
    /// Among the first windows, that with the least reward.
    low: Option<Means>,
    told: Option<u64>,
}

impl HockeyStick {
    /// In a run of so many steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        let history = History::new(steps);
        Self {
            early: (steps / 10).max(2 * history.window as u64),
            history,
            low: None,
            told: None,
        }
    }
}

run_detector!(HockeyStick, |it, at| it
    .told
    .is_some_and(|told| at <= told + QUIET * it.history.window as u64));

impl Detector<RunEvent> for HockeyStick {
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        let RunEvent::Step(step) = seen else {
            return vec![];
        };
        let Some((_, now)) = self.history.add(step, at) else {
            return vec![];
        };
        if now.step <= self.early && self.low.is_none_or(|low| now.reward < low.reward) {
            self.low = Some(now);
        }
        let Some(low) = self.low.filter(|_| self.told.is_none()) else {
            return vec![];
        };
        let noise = self.history.reward_noise.of_a_step();
        let error = noise * (1.0 / BEGIN as f64 + 1.0 / self.history.window as f64).sqrt();
        let much = (2.0 * noise).max(4.0 * error).max(DIP);
        let (first, least, last) = (self.history.begun, low.reward, now.reward);
        if first - least <= much || last - least <= much {
            return vec![];
        }
        self.told = Some(at);
        let sentence = format!(
            "the reward fell from {first:.3} to {least:.3} by step {}, and has come back to {last:.3}",
            low.step
        );
        let evidence = vec![
            ("reward_first", first),
            ("reward_low", least),
            ("reward_now", last),
        ];
        vec![finding("hockey_stick", low.step, sentence, evidence)]
    }
}
