//! A chunk as what has changed since another version. Pure and exact.
//!
//! After a step with a small rate most weights in bf16 are the same to the bit, since the change is
//! less than half of the last place. So only the words that differ travel, with how many lie
//! between them. In f32 nearly all differ, and then the chunk travels as it is: [`encode`] says so.
//!
//! What comes out is checked like any chunk, by its length and checksum. A receiver without the
//! version, or with other bytes of it, asks for the chunk in full.
//!
//! Words are sent as they are and not as a difference: without a compressor behind it the
//! difference is no shorter.

use odeon::serde::{Deserialize, Serialize};

/// The bytes of one number of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
#[non_exhaustive]
pub enum Word {
    /// bf16 and f16.
    Two,
    /// f32.
    Four,
}

/// A chunk as what differs from the chunk at the same place of another version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
#[non_exhaustive]
pub enum Delta {
    /// Nothing does: all bytes were compared.
    Same,
    /// Some words do. A byte with the length of a word, then runs: how many words are the same, how
    /// many are not, and those. Both numbers are LEB128. What follows the last run is the same.
    Words(Vec<u8>),
}

/// Why a delta cannot be put together with this chunk. Nothing was made: ask for it in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// It ends within a run, or a number in it is none.
    #[error("the delta ends too early or is damaged")]
    Broken,
    /// It reaches beyond the end of the chunk, so it was made against another.
    #[error("the delta is longer than the chunk that it was put to")]
    Beyond,
}

/// Encodes the difference of `next` from `base`; `None` when that is not shorter than `next`
/// itself, or they are not equally long.
#[must_use]
pub fn encode(base: &[u8], next: &[u8], word: Word) -> Option<Delta> {
    if base.len() != next.len() {
        return None;
    }
    if base == next {
        return Some(Delta::Same);
    }
    match word {
        Word::Two => runs::<2>(base, next),
        Word::Four => runs::<4>(base, next),
    }
    .map(Delta::Words)
}

/// The words of `N` bytes that differ; `None` when that is not shorter.
fn runs<const N: usize>(base: &[u8], next: &[u8]) -> Option<Vec<u8>> {
    let ((old, old_rest), (new, new_rest)) = (base.as_chunks::<N>(), next.as_chunks::<N>());
    let mut runs = vec![N as u8];
    let mut at = 0;
    loop {
        let from = at + same_words(&old[at..], &new[at..]);
        let to = from + changed_words(&old[from..], &new[from..]);
        if from == to {
            break;
        }
        put_number(&mut runs, from - at);
        put_number(&mut runs, to - from);
        runs.extend_from_slice(new[from..to].as_flattened());
        if runs.len() >= next.len() {
            return None;
        }
        at = to;
    }
    // What is left is the last word, though it is shorter.
    if old_rest != new_rest {
        put_number(&mut runs, new.len() - at);
        put_number(&mut runs, 1);
        runs.extend_from_slice(new_rest);
    }
    (runs.len() < next.len()).then_some(runs)
}

/// Number of words that are the same, from the beginning. Compares several at a time, as long as
/// it can.
fn same_words<const N: usize>(old: &[[u8; N]], new: &[[u8; N]]) -> usize {
    const BLOCK: usize = 16;
    let (old_blocks, _) = old.as_flattened().as_chunks::<BLOCK>();
    let (new_blocks, _) = new.as_flattened().as_chunks::<BLOCK>();
    let same = old_blocks.iter().zip(new_blocks);
    let skipped = same.take_while(|(old, new)| old == new).count() * BLOCK / N;
    let rest = old[skipped..].iter().zip(&new[skipped..]);
    skipped + rest.take_while(|(old, new)| old == new).count()
}

fn changed_words<const N: usize>(old: &[[u8; N]], new: &[[u8; N]]) -> usize {
    let words = old.iter().zip(new);
    words.take_while(|(old, new)| old != new).count()
}

impl Delta {
    /// The chunk that this was made of, when `base` is the one that it was made against.
    ///
    /// # Errors
    /// When it cannot have been made against `base`. Bytes that come out may still be others than
    /// were meant: the checksum of the chunk tells.
    pub fn apply(&self, base: &[u8]) -> Result<Vec<u8>, DeltaError> {
        let mut bytes = base.to_vec();
        let Self::Words(runs) = self else {
            return Ok(bytes);
        };
        let (step, mut runs) = match runs.split_first() {
            Some((step @ (2 | 4), runs)) => (usize::from(*step), runs),
            _ => return Err(DeltaError::Broken),
        };
        let mut at = 0_usize;
        while !runs.is_empty() {
            let start = after(at, take_number(&mut runs)?, step)?;
            // The last word of a chunk may be shorter.
            let end = after(start, take_number(&mut runs)?, step)?.min(bytes.len());
            let room = bytes.get_mut(start..end).ok_or(DeltaError::Beyond)?;
            let words = runs.split_off(..room.len()).ok_or(DeltaError::Broken)?;
            room.copy_from_slice(words);
            at = end;
        }
        Ok(bytes)
    }

    /// The bytes that travel for it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Same => &[SAME],
            Self::Words(runs) => runs,
        }
    }

    /// From what has travelled.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match bytes {
            [SAME] => Self::Same,
            runs => Self::Words(runs.to_vec()),
        }
    }
}

/// In the place of the length of a word: there are none.
const SAME: u8 = 0;

fn after(at: usize, words: usize, step: usize) -> Result<usize, DeltaError> {
    let end = words
        .checked_mul(step)
        .and_then(|bytes| bytes.checked_add(at));
    end.ok_or(DeltaError::Beyond)
}

/// LEB128: seven bits a byte, the lowest first; all bytes but the last have the highest bit.
fn put_number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number off the front: nine bytes at most, so that it fits.
fn take_number(bytes: &mut &[u8]) -> Result<usize, DeltaError> {
    let mut number = 0_u64;
    for shift in (0..63).step_by(7) {
        let byte = *bytes.split_off_first().ok_or(DeltaError::Broken)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return usize::try_from(number).map_err(|_| DeltaError::Broken);
        }
    }
    Err(DeltaError::Broken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `len` bytes, and the same with every `every`-th word of two bytes changed.
    fn pair(len: usize, every: usize) -> (Vec<u8>, Vec<u8>) {
        let base: Vec<u8> = (0..len).map(|at| (at * 31 % 251) as u8).collect();
        let mut next = base.clone();
        for byte in next.iter_mut().step_by(2 * every) {
            *byte ^= 0x01;
        }
        (base, next)
    }

    #[test]
    fn what_is_the_same_costs_nothing() {
        let (base, _) = pair(10_000, 1);
        let delta = encode(&base, &base, Word::Two).unwrap();
        assert_eq!(delta, Delta::Same);
        assert_eq!(delta.bytes().len(), 1);
        assert_eq!(delta.apply(&base), Ok(base));
    }

    #[test]
    fn few_changed_words_are_short_and_many_are_refused() {
        for (every, share) in [(100, 0.021), (20, 0.101), (5, 0.401)] {
            let (base, next) = pair(100_000, every);
            let delta = encode(&base, &next, Word::Two).unwrap();
            assert_eq!(delta.apply(&base).as_ref(), Ok(&next));
            let bytes = delta.bytes().len() as f64 / next.len() as f64;
            assert!(bytes < share, "{bytes} with one in {every}");
        }
        let (base, next) = pair(100_000, 2);
        assert_eq!(encode(&base, &next, Word::Two), None);
        assert_eq!(encode(&base, &next[1..], Word::Two), None);
    }

    #[test]
    fn a_delta_that_does_not_fit_is_refused_in_words() {
        let (base, next) = pair(1_000, 50);
        let delta = encode(&base, &next, Word::Two).unwrap();
        assert_eq!(delta.apply(&base[..900]), Err(DeltaError::Beyond));
        let Delta::Words(runs) = delta else {
            panic!("some words differ");
        };
        let cut = Delta::Words(runs[..runs.len() - 1].to_vec());
        assert_eq!(cut.apply(&base), Err(DeltaError::Broken));
        for broken in [vec![], vec![3, 0, 1, 9], vec![2, 0x80], vec![2; 1]] {
            let whole = broken == [2];
            let applied = Delta::Words(broken).apply(&base);
            assert_eq!(applied.is_ok(), whole);
        }
        let far = Delta::Words([&[2][..], &[0xff; 8], &[0x7f, 1]].concat());
        assert_eq!(far.apply(&base), Err(DeltaError::Beyond));
    }

    proptest! {
        #[test]
        fn what_is_put_together_is_the_same_to_the_bit(
            base in prop::collection::vec(any::<u8>(), 0..400),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
            word in prop_oneof![Just(Word::Two), Just(Word::Four)],
        ) {
            let mut next = base.clone();
            for (at, byte) in changes {
                if !next.is_empty() {
                    let at = at.index(next.len());
                    next[at] = byte;
                }
            }
            if let Some(delta) = encode(&base, &next, word) {
                prop_assert!(delta == Delta::Same || delta.bytes().len() < next.len());
                prop_assert_eq!(Delta::from_bytes(delta.bytes()), delta.clone());
                prop_assert_eq!(delta.apply(&base), Ok(next));
            }
        }

        #[test]
        fn whatever_comes_is_read_or_refused(
            runs in prop::collection::vec(any::<u8>(), 0..60),
            base in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            if let Ok(bytes) = Delta::Words(runs).apply(&base) {
                prop_assert_eq!(bytes.len(), base.len());
            }
        }
    }
}
