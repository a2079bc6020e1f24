//! Seeded drawing of problems, generated or from a file, and their assignment to splits.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::{
    error::TaskError,
    problem::{Aside, Problem, Split},
};

/// The split to which a problem with this canonical key belongs, for every seed: one in eight is
/// held out.
pub(super) fn split_of(key: &str) -> Split {
    if hash(key).is_multiple_of(PART) {
        Split::HeldOut
    } else {
        Split::Train
    }
}

/// The split to which a problem belongs when these are set aside; `split` is that of
/// [`Aside::HeldOut`]. None for a problem that does not occur.
fn recut(key: &str, split: Split, aside: Aside) -> Option<Split> {
    match (aside, split) {
        (Aside::HeldOut, split) => Some(split),
        (Aside::Choice, Split::HeldOut) => None,
        (Aside::Choice, Split::Train) if (hash(key) / PART).is_multiple_of(PART) => {
            Some(Split::HeldOut)
        }
        (Aside::Choice, Split::Train) => Some(Split::Train),
    }
}

/// The problems of a file by their splits.
#[derive(Clone, Debug, Default)]
pub(super) struct Splits {
    train: Vec<Problem>,
    held_out: Vec<Problem>,
}

impl Splits {
    /// The splits of problems, when these are set aside.
    ///
    /// # Errors
    /// [`TaskError`] when a split is empty.
    pub(super) fn cut(
        task: &'static str,
        problems: Vec<Problem>,
        aside: Aside,
    ) -> Result<Self, TaskError> {
        let mut splits = Self::default();
        for problem in problems {
            let Some(split) = recut(&problem.prompt, problem.split, aside) else {
                continue;
            };
            let part = match split {
                Split::Train => &mut splits.train,
                Split::HeldOut => &mut splits.held_out,
            };
            part.push(Problem { split, ..problem });
        }
        match [Split::Train, Split::HeldOut]
            .into_iter()
            .find(|split| splits.of(*split).is_empty())
        {
            Some(split) => Err(TaskError::TooFewProblems { task, split }),
            None => Ok(splits),
        }
    }

    pub(super) fn of(&self, split: Split) -> &[Problem] {
        match split {
            Split::Train => &self.train,
            Split::HeldOut => &self.held_out,
        }
    }

    pub(super) fn count(&self, split: Split) -> u64 {
        self.of(split).len() as u64
    }
}

/// FNV-1a with a final avalanche, because the low bits are what is used.
pub(super) fn hash(key: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    avalanche(hash)
}

/// The first half of MurmurHash3's last step.
fn avalanche(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

/// Deals one of a split's problems: each once in a pass, and every pass in its own order. The time
/// does not grow with their number.
pub(super) fn deal(problems: &[Problem], seed: u64, index: u64) -> Problem {
    let count = problems.len() as u64;
    let key = avalanche(seed ^ avalanche(index / count));
    let position = shuffled(index % count, count, key);
    Problem {
        index,
        ..problems[position as usize].clone()
    }
}

/// The place of a number below `count` in an order that the key gives: a Feistel network over the
/// next power of four, walked until it is back below `count`.
fn shuffled(place: u64, count: u64, key: u64) -> u64 {
    let bits = (u64::BITS - count.leading_zeros()).div_ceil(2);
    let mask = (1 << bits) - 1;
    let mut place = place;
    loop {
        let (mut left, mut right) = (place >> bits, place & mask);
        for round in 0..ROUNDS {
            let mixed = avalanche(key.wrapping_add(round << 32) ^ avalanche(right ^ round));
            (left, right) = (right, left ^ (mixed & mask));
        }
        place = (left << bits) | right;
        if place < count {
            return place;
        }
    }
}

/// Draws until `sample` gives a problem of the split, when these are set aside.
///
/// `sample` returns the problem's canonical key with it, or `None` to reject the draw. Call
/// [`check_both_splits`] first: it shows that the loop ends, and soon.
pub(super) fn draw(
    seed: u64,
    (split, aside): (Split, Aside),
    index: u64,
    sample: impl Fn(&mut ChaCha8Rng) -> Option<(String, Problem)>,
) -> Problem {
    let mut rng = stream(seed, split, index);
    loop {
        if let Some((key, problem)) = sample(&mut rng)
            && recut(&key, split_of(&key), aside) == Some(split)
        {
            return Problem {
                split,
                index,
                ..problem
            };
        }
    }
}

/// Shows that both splits are reached within a bounded number of draws.
pub(super) fn check_both_splits(
    task: &'static str,
    aside: Aside,
    sample: impl Fn(&mut ChaCha8Rng) -> Option<(String, Problem)>,
) -> Result<(), TaskError> {
    for split in [Split::Train, Split::HeldOut] {
        let mut rng = stream(0, split, 0);
        let fits = |(key, _): (String, _)| recut(&key, split_of(&key), aside) == Some(split);
        let reached = (0..PROBE_DRAWS).any(|_| sample(&mut rng).is_some_and(fits));
        if !reached {
            return Err(TaskError::TooFewProblems { task, split });
        }
    }
    Ok(())
}

/// One generator per problem: problems can be drawn in any order and on any node.
fn stream(seed: u64, split: Split, index: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(index.wrapping_mul(2) | u64::from(split == Split::HeldOut));
    rng
}

/// One problem in so many is held out, and one in so many of the others is for choosing settings.
const PART: u64 = 8;

/// Enough for settings under which one draw in a thousand is usable.
const PROBE_DRAWS: usize = 20_000;

/// Four make a Feistel network with random rounds look random; two more, as these are no such.
const ROUNDS: u64 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own_in_every_order() {
        for count in (1..70).chain([1_000, 4_096, 4_097]) {
            let order = |key| -> Vec<u64> { (0..count).map(|n| shuffled(n, count, key)).collect() };
            let mut places = order(avalanche(count));
            if count > 16 {
                assert_ne!(places, order(avalanche(count + 1)));
            }
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count), "{count}");
        }
    }
}
