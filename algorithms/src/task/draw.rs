//! Seeded drawing of generated problems, and their assignment to splits.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Problem, Split, TaskError};

/// The split to which a problem with this canonical key belongs, for every seed: one in eight is
/// held out.
pub(super) fn split_of(key: &str) -> Split {
    // FNV-1a with a final avalanche (MurmurHash3's), because the low bits are what is used.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    if hash.is_multiple_of(8) {
        Split::HeldOut
    } else {
        Split::Train
    }
}

/// Draws until `sample` gives a problem of the split.
///
/// `sample` returns the problem's canonical key with it, or `None` to reject the draw. Call
/// [`check_both_splits`] first: it shows that the loop ends, and soon.
pub(super) fn draw(
    seed: u64,
    split: Split,
    index: u64,
    sample: impl Fn(&mut ChaCha8Rng) -> Option<(String, Problem)>,
) -> Problem {
    let mut rng = stream(seed, split, index);
    loop {
        if let Some((key, problem)) = sample(&mut rng)
            && split_of(&key) == split
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
    sample: impl Fn(&mut ChaCha8Rng) -> Option<(String, Problem)>,
) -> Result<(), TaskError> {
    for split in [Split::Train, Split::HeldOut] {
        let mut rng = stream(0, split, 0);
        let reached = (0..PROBE_DRAWS)
            .any(|_| sample(&mut rng).is_some_and(|(key, _)| split_of(&key) == split));
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

/// Enough for settings under which one draw in a thousand is usable.
const PROBE_DRAWS: usize = 20_000;
