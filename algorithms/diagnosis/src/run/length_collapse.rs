//! Replies have become much shorter.

use super::event::{RunEvent, finding};
use super::history::{Episodes, History};
use super::run_detector;
use crate::{Detector, Finding};

/// Part of the first length below which replies are short.
const SHORT: f64 = 0.6;

/// Finds that replies have become short.
#[derive(Clone, Debug)]
pub struct LengthCollapse {
    history: History,
    /// Since when they are, without a break, and in how many steps.
    short: Option<(u64, usize)>,
    episodes: Episodes,
}

impl LengthCollapse {
    /// In a run of so many steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        Self {
            history: History::new(steps),
            short: None,
            episodes: Episodes::default(),
        }
    }
}

run_detector!(LengthCollapse, |it, at| it
    .episodes
    .goes_on(at, it.history.window));

impl Detector<RunEvent> for LengthCollapse {
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        let RunEvent::Step(step) = seen else {
            return vec![];
        };
        let Some((first, now)) = self.history.add(step, at) else {
            return vec![];
        };
        if now.length >= SHORT * first.length {
            self.short = None;
            return vec![];
        }
        let (since, steps) = self.short.get_or_insert((at, 0));
        *steps += 1;
        let (since, steps, window) = (*since, *steps, self.history.window);
        if steps < window || !self.episodes.begins(at, window) {
            return vec![];
        }
        let (was, is) = (first.length, now.length);
        let sentence =
            format!("replies have become short: {is:.1} tokens, where the first had {was:.1}");
        let evidence = vec![("tokens_first", was), ("tokens_now", is)];
        vec![finding("length_collapse", since, sentence, evidence)]
    }
}
