//! The reward that is trained on rises, and held-out problems are answered worse.

use super::event::{ERRORS, RISE, RunEvent, finding};
use super::history::History;
use super::run_detector;
use crate::{Detector, Finding};

/// Finds that a reward is hacked, by problems that are not trained on.
#[derive(Clone, Debug)]
pub struct HeldOut {
    history: History,
    best: Option<Best>,
    /// The last step of an evaluation.
    evaluated: Option<u64>,
    /// Set when the last evaluation showed that they are answered worse.
    fell: bool,
}

/// The best answers to held-out problems.
#[derive(Clone, Copy, Debug)]
struct Best {
    step: u64,
    right: f64,
    /// The reward that was trained on at that time; `None` before the first window.
    reward: Option<f64>,
}

impl HeldOut {
    /// In a run of so many steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        Self {
            history: History::new(steps),
            best: None,
            evaluated: None,
            fell: false,
        }
    }

    fn evaluated(&mut self, correct: u64, problems: u64, at: u64) -> Option<Finding<RunEvent>> {
        if problems == 0 || self.evaluated.is_some_and(|before| at <= before) {
            return None;
        }
        self.evaluated = Some(at);
        let right = correct as f64 / problems as f64;
        let reward = self.history.newest().map(|now| now.reward);
        let Some(best) = self.best.filter(|best| right <= best.right) else {
            self.best = Some(Best {
                step: at,
                right,
                reward,
            });
            self.fell = false;
            return None;
        };
        let (before, now) = best.reward.zip(reward)?;
        let mean = f64::midpoint(right, best.right);
        let error = (2.0 * mean * (1.0 - mean) / problems as f64).sqrt();
        let (rise, fall) = (now - before, best.right - right);
        let noise = self.history.error(&self.history.reward_noise);
        let rises = rise > RISE.max(ERRORS * noise);
        let falls = rises && fall > RISE.max(ERRORS * error);
        let begins = falls && !self.fell;
        self.fell = falls;
        let sentence = format!(
            "the reward is hacked: {:.1} % of the held-out problems were right and {:.1} % are, \
             while the reward has changed by {rise:+.3}",
            100.0 * best.right,
            100.0 * right
        );
        let evidence = vec![
            ("reward_change", rise),
            ("right_best", best.right),
            ("right_now", right),
        ];
        begins.then(|| finding("reward_hacking", best.step, sentence, evidence))
    }
}

run_detector!(HeldOut, |it, at| it.fell
    && it.evaluated.is_some_and(|last| last <= at));

impl Detector<RunEvent> for HeldOut {
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        match seen {
            RunEvent::Step(step) => {
                if let Some((_, now)) = self.history.add(step, at)
                    && let Some(best) = &mut self.best
                {
                    best.reward.get_or_insert(now.reward);
                }
                vec![]
            }
            RunEvent::Evaluated { correct, problems } => {
                let found = self.evaluated(*correct, *problems, at);
                found.into_iter().collect()
            }
            RunEvent::Losses(_) | RunEvent::Repeated(_) => vec![],
        }
    }
}
