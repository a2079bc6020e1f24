//! The newest steps of a run, and how much its numbers vary.

use std::collections::VecDeque;

use super::event::RlStep;

/// Windows without a finding after which it begins anew.
pub(super) const QUIET: u64 = 3;

/// Steps that stand for the begin.
pub(super) const BEGIN: u64 = 3;

/// The newest window of steps, and the noise of all.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Steps of a window.
    pub(super) window: usize,
    /// Steps that were told of.
    pub(super) count: u64,
    /// The newest window: the number of each step, and what it told.
    last: VecDeque<(u64, RlStep)>,
    pub(super) reward_noise: Noise,
    pub(super) gap_noise: Noise,
    /// The reward of the first three steps.
    pub(super) begun: f64,
    pub(super) first: Option<Means>,
}

/// Means over a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// The last step of it.
    pub(super) step: u64,
    pub(super) reward: f64,
    pub(super) right: f64,
    pub(super) length: f64,
    pub(super) entropy: Option<f64>,
}

/// The deviation of a step about its neighbours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noise {
    last: Option<f64>,
    squares: f64,
    count: u64,
}

impl Noise {
    fn add(&mut self, number: f64) {
        if let Some(last) = self.last.replace(number) {
            self.squares += (number - last).powi(2);
            self.count += 1;
        }
    }

    pub(super) fn of_a_step(&self) -> f64 {
        (self.squares / 2.0 / self.count.max(1) as f64).sqrt()
    }
}

impl History {
    /// Of a run of so many steps.
    pub(super) fn new(steps: u64) -> Self {
        Self {
            window: (steps / 20).clamp(5, 20) as usize,
            count: 0,
            last: VecDeque::new(),
            reward_noise: Noise::default(),
            gap_noise: Noise::default(),
            begun: 0.0,
            first: None,
        }
    }

    /// Adds a step. Answers the means of the first window and of the newest, once there is one.
    pub(super) fn add(&mut self, step: &RlStep, at: u64) -> Option<(Means, Means)> {
        let numbers = [step.reward, step.right, step.length];
        let before = self.last.back().map_or(0, |(at, _)| *at);
        if at <= before || !numbers.iter().all(|number| number.is_finite()) {
            return None;
        }
        self.count += 1;
        self.reward_noise.add(step.reward);
        self.gap_noise.add(step.reward - step.right);
        if self.count <= BEGIN {
            self.begun += (step.reward - self.begun) / self.count as f64;
        }
        if self.last.len() == self.window {
            self.last.pop_front();
        }
        self.last.push_back((at, *step));
        let now = self.newest()?;
        Some((*self.first.get_or_insert(now), now))
    }

    /// The newest window, when it is whole.
    pub(super) fn newest(&self) -> Option<Means> {
        let (step, _) = self
            .last
            .back()
            .filter(|_| self.last.len() == self.window)?;
        let steps = || self.last.iter().map(|(_, step)| step);
        let mean = |of: fn(&RlStep) -> f64| steps().map(of).sum::<f64>() / self.window as f64;
        let entropies: Option<Vec<f64>> = steps().map(|it| it.entropy).collect();
        Some(Means {
            step: *step,
            reward: mean(|it| it.reward),
            right: mean(|it| it.right),
            length: mean(|it| it.length),
            entropy: entropies.map(|all| all.iter().sum::<f64>() / self.window as f64),
        })
    }

    /// The error of the difference of two windows.
    pub(super) fn error(&self, noise: &Noise) -> f64 {
        noise.of_a_step() * (2.0 / self.window as f64).sqrt()
    }
}

/// The episodes of a finding that is seen in steps: it begins when it was gone for three windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Episodes {
    seen: Option<u64>,
}

impl Episodes {
    /// Notes that it is seen in this step. Returns true where an episode begins.
    pub(super) fn begins(&mut self, at: u64, window: usize) -> bool {
        let before = self.seen.replace(at);
        before.is_none_or(|before| at > before + QUIET * window as u64)
    }

    /// Returns true where what is told of once was seen within the last windows.
    pub(super) fn goes_on(&self, at: u64, window: usize) -> bool {
        let seen = self.seen;
        seen.is_some_and(|seen| at <= seen + QUIET * window as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_remembers_a_window_and_no_more() {
        for steps in [1, 100, 1_000_000_000] {
            let mut history = History::new(steps);
            for at in 1..=1000 {
                let step = RlStep {
                    reward: 0.4,
                    right: 0.4,
                    length: 100.0,
                    entropy: None,
                };
                history.add(&step, at);
            }
            assert!((5..=20).contains(&history.last.len()));
        }
    }
}
