//! Signs that a run of reinforcement learning goes wrong, from what its steps tell.
//!
//! A [`Watch`] is told the numbers of each step, remembers a bounded part of them and says when a sign
//! begins, and why. It reads no clock and draws nothing: the same steps give the same signs.
//!
//! The *noise* of a number is the deviation of a step about its neighbours: the root of half the mean
//! square of what it changes from step to step, which a slow trend hardly moves. A *window* is `w` steps
//! in a row, a twentieth of the run but 5 to 20; means over two windows differ by the noise times
//! `sqrt(2 / w)` where nothing has happened, here called the *error*.
//!
//! | sign | rule | source |
//! | --- | --- | --- |
//! | reward hacking | since the first window, or since that in which most was right, what is trained on has risen by more than 0.05 and five errors; what is right by less than a quarter of that; and their distance has grown by more than 0.1 and five errors | the shape is that of Gao et al. 2022, arXiv 2210.10760 |
//! | the same, held out | held-out problems right have fallen from their best by more than 0.05 and five binomial errors, while what is trained on has risen by more than 0.05 and five errors | as above |
//! | length collapse | the mean length of a window is below 0.6 of that of the first, `w` steps in a row | Balanced Actor Initialization, arXiv 2509.00309 |
//! | hockey stick | in the first tenth of the run (or two windows) a window's reward is below that of the first three steps by more than two noises, four errors and 0.02, and later windows have come back by as much | as above |
//! | entropy collapse | the entropy of a window is below a tenth of that of the first, `w` steps in a row, while less than 0.9 are right | DAPO, arXiv 2503.14476 |
//!
//! A sign that goes on is told once; again when it was gone for three windows, or of held-out problems
//! in an evaluation. Of runs in which nothing
//! happens but independent noise, fewer than one in a hundred is told of, over 400 steps.

use std::collections::VecDeque;
use std::fmt;

/// The numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// Its number, from 1.
    pub step: u64,
    /// Mean of what is trained on.
    pub reward: f64,
    /// Part of the replies that the checker calls right.
    pub right: f64,
    /// Mean length of a reply, in tokens.
    pub length: f64,
    /// Mean entropy of a token, in nats; `None` in steps in which the policy does not learn.
    pub entropy: Option<f64>,
}

/// A sign that a run goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Sign {
    /// The reward that is trained on rises, and the part that is right does not.
    RewardHacking {
        /// Since the window that ended with this step,
        since: u64,
        /// what is trained on has changed by so much,
        reward: f64,
        /// and the part that is right by so much.
        right: f64,
    },
    /// The reward that is trained on rises, and held-out problems are answered worse.
    HeldOutFalls {
        /// The reward that is trained on has changed by so much
        reward: f64,
        /// since so much of the held-out problems was right,
        best: f64,
        /// which is so much of them now.
        now: f64,
    },
    /// Replies have become much shorter.
    LengthCollapse {
        /// From this mean length, in tokens,
        first: f64,
        /// to this.
        now: f64,
    },
    /// The reward fell right after the begin, and comes back.
    HockeyStick {
        /// From this
        first: f64,
        /// to this in the window that ended
        low: f64,
        /// with this step;
        at: u64,
        /// it has come back to this.
        now: f64,
    },
    /// The policy has become certain of what is often wrong.
    EntropyCollapse {
        /// From this mean entropy, in nats,
        first: f64,
        /// to this,
        now: f64,
        /// when this part is right.
        right: f64,
    },
}

impl Sign {
    /// Its name in reports. Both ways to notice that a reward is hacked have one.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RewardHacking { .. } | Self::HeldOutFalls { .. } => "reward_hacking",
            Self::LengthCollapse { .. } => "length_collapse",
            Self::HockeyStick { .. } => "hockey_stick",
            Self::EntropyCollapse { .. } => "entropy_collapse",
        }
    }

    const fn kind(&self) -> usize {
        match self {
            Self::RewardHacking { .. } => 0,
            Self::HeldOutFalls { .. } => 1,
            Self::LengthCollapse { .. } => 2,
            Self::HockeyStick { .. } => 3,
            Self::EntropyCollapse { .. } => 4,
        }
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RewardHacking {
                since,
                reward,
                right,
            } => write!(
                f,
                "the reward is hacked: since step {since} it has changed by {reward:+.3}, and the part \
                 of the replies that is right by {right:+.3}"
            ),
            Self::HeldOutFalls { reward, best, now } => write!(
                f,
                "the reward is hacked: {:.1} % of the held-out problems were right and {:.1} % are, \
                 while the reward has changed by {reward:+.3}",
                100.0 * best,
                100.0 * now
            ),
            Self::LengthCollapse { first, now } => write!(
                f,
                "replies have become short: {now:.1} tokens, where the first had {first:.1}"
            ),
            Self::HockeyStick {
                first,
                low,
                at,
                now,
            } => write!(
                f,
                "the reward fell from {first:.3} to {low:.3} by step {at}, and has come back to \
                 {now:.3}"
            ),
            Self::EntropyCollapse { first, now, right } => write!(
                f,
                "the policy explores no more: its entropy is {now:.3} nats, which was {first:.3}, and \
                 {:.1} % of its replies are right",
                100.0 * right
            ),
        }
    }
}

/// Looks out for the signs in the steps of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Watch {
    /// Steps of a window.
    window: usize,
    /// Steps in which a fall counts as one at the begin.
    early: u64,
    /// The newest window.
    last: VecDeque<Facts>,
    /// Steps that were told of.
    count: u64,
    reward_noise: Noise,
    gap_noise: Noise,
    /// The reward of the first three steps.
    begun: f64,
    first: Option<Means>,
    /// The window in which most was right.
    best: Option<Means>,
    /// Among the first windows, that with the least reward.
    low: Option<Means>,
    /// Steps in a row with short replies.
    short: usize,
    /// Steps in a row with little entropy.
    certain: usize,
    held_out: Option<HeldOut>,
    /// Set when the last evaluation showed that they are answered worse.
    fell: bool,
    /// When each kind of sign was last seen in a step.
    seen: [Option<u64>; KINDS],
}

/// The best answers to held-out problems.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HeldOut {
    right: f64,
    /// The reward that was trained on at that time; `None` before the first window.
    reward: Option<f64>,
}

/// Means over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Means {
    step: u64,
    reward: f64,
    right: f64,
    length: f64,
    entropy: Option<f64>,
}

/// The deviation of a step about its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Noise {
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

    fn of_a_step(&self) -> f64 {
        (self.squares / 2.0 / self.count.max(1) as f64).sqrt()
    }
}

impl Watch {
    /// For a run of so many steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        let window = (steps / 20).clamp(5, 20);
        Self {
            window: window as usize,
            early: (steps / 10).max(2 * window),
            last: VecDeque::new(),
            count: 0,
            reward_noise: Noise::default(),
            gap_noise: Noise::default(),
            begun: 0.0,
            first: None,
            best: None,
            low: None,
            short: 0,
            certain: 0,
            held_out: None,
            fell: false,
            seen: [None; KINDS],
        }
    }

    /// Adds a step, and returns the signs that begin with it. One that is told of again, as after a
    /// restart, adds nothing, and neither does one with a number that is none.
    pub fn step(&mut self, facts: &Facts) -> Vec<Sign> {
        let numbers = [facts.reward, facts.right, facts.length];
        let before = self.last.back().map_or(0, |last| last.step);
        if facts.step <= before || !numbers.iter().all(|number| number.is_finite()) {
            return vec![];
        }
        self.count += 1;
        self.reward_noise.add(facts.reward);
        self.gap_noise.add(facts.reward - facts.right);
        if self.count <= BEGIN {
            self.begun += (facts.reward - self.begun) / self.count as f64;
        }
        if self.last.len() == self.window {
            self.last.pop_front();
        }
        self.last.push_back(*facts);
        let Some(now) = self.now() else {
            return vec![];
        };
        let first = *self.first.get_or_insert(now);
        let held_out = self.held_out.as_mut();
        if let Some(reward) = held_out.map(|best| &mut best.reward) {
            reward.get_or_insert(now.reward);
        }
        let found = [
            self.hacked(first, now),
            self.collapsed(first, now),
            self.came_back(now),
            self.explores_no_more(first, now),
        ];
        if self.best.is_none_or(|best| now.right > best.right) {
            self.best = Some(now);
        }
        let found: Vec<Sign> = found.into_iter().flatten().collect();
        found.into_iter().filter(|sign| self.begins(sign)).collect()
    }

    /// Adds an evaluation, and returns the sign that begins with it: of so many held-out problems
    /// so many are right.
    pub fn held_out(&mut self, correct: u64, problems: u64) -> Vec<Sign> {
        if problems == 0 {
            return vec![];
        }
        let right = correct as f64 / problems as f64;
        let reward = self.now().map(|now| now.reward);
        let Some(best) = self.held_out.filter(|best| right <= best.right) else {
            self.held_out = Some(HeldOut { right, reward });
            self.fell = false;
            return vec![];
        };
        let (Some(before), Some(now)) = (best.reward, reward) else {
            return vec![];
        };
        let mean = f64::midpoint(right, best.right);
        let error = (2.0 * mean * (1.0 - mean) / problems as f64).sqrt();
        let (rise, fall) = (now - before, best.right - right);
        let rises = rise > RISE.max(ERRORS * self.error(&self.reward_noise));
        let falls = rises && fall > RISE.max(ERRORS * error);
        let begins = falls && !self.fell;
        self.fell = falls;
        let sign = Sign::HeldOutFalls {
            reward: rise,
            best: best.right,
            now: right,
        };
        begins.then_some(sign).into_iter().collect()
    }

    /// The newest window, when it is whole.
    fn now(&self) -> Option<Means> {
        let last = self
            .last
            .back()
            .filter(|_| self.last.len() == self.window)?;
        let mean =
            |of: fn(&Facts) -> f64| self.last.iter().map(of).sum::<f64>() / self.window as f64;
        let entropies: Option<Vec<f64>> = self.last.iter().map(|it| it.entropy).collect();
        Some(Means {
            step: last.step,
            reward: mean(|it| it.reward),
            right: mean(|it| it.right),
            length: mean(|it| it.length),
            entropy: entropies.map(|all| all.iter().sum::<f64>() / self.window as f64),
        })
    }

    /// The error of the difference of two windows.
    fn error(&self, noise: &Noise) -> f64 {
        noise.of_a_step() * (2.0 / self.window as f64).sqrt()
    }

    fn hacked(&self, first: Means, now: Means) -> Option<Sign> {
        // Before that nobody knows the noise.
        if self.count < 3 * self.window as u64 {
            return None;
        }
        let rise_min = RISE.max(ERRORS * self.error(&self.reward_noise));
        let gap_min = GAP.max(ERRORS * self.error(&self.gap_noise));
        let since = |then: Means| {
            let (reward, right) = (now.reward - then.reward, now.right - then.right);
            let hacked = reward > rise_min && reward - right > gap_min && right < reward / 4.0;
            hacked.then_some(Sign::RewardHacking {
                since: then.step,
                reward,
                right,
            })
        };
        since(first).or_else(|| self.best.and_then(since))
    }

    fn collapsed(&mut self, first: Means, now: Means) -> Option<Sign> {
        if now.length < SHORT * first.length {
            self.short += 1;
        } else {
            self.short = 0;
        }
        (self.short >= self.window).then_some(Sign::LengthCollapse {
            first: first.length,
            now: now.length,
        })
    }

    fn came_back(&mut self, now: Means) -> Option<Sign> {
        let noise = self.reward_noise.of_a_step();
        let error = noise * (1.0 / BEGIN as f64 + 1.0 / self.window as f64).sqrt();
        let much = (2.0 * noise).max(4.0 * error).max(DIP);
        if now.step <= self.early && self.low.is_none_or(|low| now.reward < low.reward) {
            self.low = Some(now);
        }
        let low = self.low?;
        let fell = self.begun - low.reward > much;
        let rose = now.reward - low.reward > much;
        (fell && rose).then_some(Sign::HockeyStick {
            first: self.begun,
            low: low.reward,
            at: low.step,
            now: now.reward,
        })
    }

    fn explores_no_more(&mut self, first: Means, now: Means) -> Option<Sign> {
        let (Some(before), Some(entropy)) = (first.entropy, now.entropy) else {
            return None;
        };
        if entropy < CERTAIN * before && now.right < SOLVED {
            self.certain += 1;
        } else {
            self.certain = 0;
        }
        (self.certain >= self.window).then_some(Sign::EntropyCollapse {
            first: before,
            now: entropy,
            right: now.right,
        })
    }

    /// Returns true when a sign of a step that is seen now was gone before. A hockey stick is one
    /// for ever.
    fn begins(&mut self, sign: &Sign) -> bool {
        let now = self.last.back().map_or(0, |last| last.step);
        let before = self.seen[sign.kind()].replace(now);
        let gone = |before: u64| now > before + QUIET * self.window as u64;
        match sign {
            Sign::HockeyStick { .. } => before.is_none(),
            _ => before.is_none_or(gone),
        }
    }
}

const KINDS: usize = 5;

/// Windows without a sign after which it begins anew.
const QUIET: u64 = 3;

/// Steps that stand for the begin.
const BEGIN: u64 = 3;

/// Errors that are no chance.
const ERRORS: f64 = 5.0;

/// Less of a rise is nothing, whatever its noise.
const RISE: f64 = 0.05;

/// Less of a distance is nothing.
const GAP: f64 = 0.1;

/// Less of a fall at the begin is nothing.
const DIP: f64 = 0.02;

/// Part of the first length below which replies are short.
const SHORT: f64 = 0.6;

/// Part of the first entropy below which a policy is certain.
const CERTAIN: f64 = 0.1;

/// Where so much is right, a policy may be certain.
const SOLVED: f64 = 0.9;

#[cfg(test)]
mod tests;
