//! The policy has become certain of what is often wrong.

use super::event::{RunEvent, finding};
use super::history::{Episodes, History};
use super::run_detector;
use crate::{Detector, Finding};

/// Part of the first entropy below which a policy is certain.
const CERTAIN: f64 = 0.1;

/// Where so much is right, a policy may be certain.
const SOLVED: f64 = 0.9;

/// Finds that a policy explores no more.
#[derive(Clone, Debug)]
pub struct EntropyCollapse {
    history: History,
    /// Since when it is certain, without a break, and in how many steps.
    certain: Option<(u64, usize)>,
    episodes: Episodes,
}

impl EntropyCollapse {
    /// In a run of so many steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        Self {
            history: History::new(steps),
            certain: None,
            episodes: Episodes::default(),
        }
    }
}

run_detector!(EntropyCollapse, |it, at| it
    .episodes
    .goes_on(at, it.history.window));

impl Detector<RunEvent> for EntropyCollapse {
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        let RunEvent::Step(step) = seen else {
            return vec![];
        };
        let Some((first, now)) = self.history.add(step, at) else {
            return vec![];
        };
        let Some((was, is)) = first.entropy.zip(now.entropy) else {
            return vec![];
        };
        if is >= CERTAIN * was || now.right >= SOLVED {
            self.certain = None;
            return vec![];
        }
        let (since, steps) = self.certain.get_or_insert((at, 0));
        *steps += 1;
        let (since, steps, window) = (*since, *steps, self.history.window);
        if steps < window || !self.episodes.begins(at, window) {
            return vec![];
        }
        let sentence = format!(
            "the policy explores no more: its entropy is {is:.3} nats, which was {was:.3}, and \
             {:.1} % of its replies are right",
            100.0 * now.right
        );
        let evidence = vec![
            ("entropy_first_nats", was),
            ("entropy_now_nats", is),
            ("right", now.right),
        ];
        vec![finding("entropy_collapse", since, sentence, evidence)]
    }
}
