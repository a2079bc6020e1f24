//! Numbers that are drawn by what they are for, so that two policies meet the same faults.

use super::scenario::Between;

/// The chances of one fault of one run: each number depends on the seed, the fault, what is drawn and which try it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draws {
    seed: u64,
    fault: u64,
    round: u64,
}

/// What a number is for. Two draws with different ones have nothing to do with each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drawn {
    Gap,
    Class,
    Cause,
    Machine,
    OtherGroup,
    IsSwitch,
    IsNamed,
    IsPlain,
    IsUrgent,
    Latency,
    Detection,
    Localisation,
    IsFound,
    Recurrence,
    Restart,
    Person,
    Pods,
    CopiesLost,
    Replay(u32),
}

impl Draws {
    pub(super) const fn new(seed: u64, fault: u64) -> Self {
        Self {
            seed,
            fault,
            round: 0,
        }
    }

    /// Those of a later try at the same fault.
    pub(super) const fn of_try(self, round: u64) -> Self {
        Self { round, ..self }
    }

    /// A number in (0, 1).
    pub(super) fn uniform(self, of: Drawn) -> f64 {
        let (kind, part) = match of {
            Drawn::Gap => (1, 0),
            Drawn::Class => (2, 0),
            Drawn::Cause => (3, 0),
            Drawn::Machine => (4, 0),
            Drawn::IsSwitch => (5, 0),
            Drawn::IsNamed => (6, 0),
            Drawn::IsPlain => (7, 0),
            Drawn::IsUrgent => (8, 0),
            Drawn::Latency => (9, 0),
            Drawn::Detection => (10, 0),
            Drawn::Localisation => (11, 0),
            Drawn::IsFound => (12, 0),
            Drawn::Recurrence => (13, 0),
            Drawn::Restart => (14, 0),
            Drawn::Pods => (15, 0),
            Drawn::CopiesLost => (16, 0),
            Drawn::Person => (17, 0),
            Drawn::OtherGroup => (19, 0),
            Drawn::Replay(group) => (18, u64::from(group)),
        };
        let words = [self.seed, self.fault, self.round, kind, part];
        ((hash(&words) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns true with this probability.
    pub(super) fn happens(self, of: Drawn, probability: f64) -> bool {
        self.uniform(of) < probability
    }

    /// A number with an exponential distribution of this mean.
    pub(super) fn exponential(self, of: Drawn, mean: f64) -> f64 {
        -mean * self.uniform(of).ln()
    }

    /// A number between two others, all of which are as likely.
    pub(super) fn between(self, of: Drawn, range: Between) -> f64 {
        range.low() + self.uniform(of) * (range.high() - range.low())
    }

    /// A whole number below another one.
    pub(super) fn below(self, of: Drawn, end: u32) -> u32 {
        ((self.uniform(of) * f64::from(end)) as u32).min(end.saturating_sub(1))
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014) over the words, one after the other.
fn hash(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |sum, word| {
        let mut z = (sum ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
