//! Random numbers by their place: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy
//! as 1, 2, 3"). Pure.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// The four words of a counter, under a key. Words and halves of the key count from the lowest bits on.
#[must_use]
pub fn philox(key: u64, counter: u128) -> [u32; 4] {
    let counter = [0, 32, 64, 96].map(|shift| [(counter >> shift) as u32]);
    philox_lanes(key, counter).map(|[word]| word)
}

/// The same of several counters at once, each in a lane of the words: for loops that [`simd!`](crate::simd)
/// compiles.
#[inline(always)]
#[must_use]
pub fn philox_lanes<const LANES: usize>(
    key: u64,
    counters: [[u32; LANES]; 4],
) -> [[u32; LANES]; 4] {
    let mut words = counters;
    let mut keys = [key as u32, (key >> 32) as u32];
    for _ in 0..ROUNDS {
        let [mut a, mut b, mut c, mut d] = words;
        for lane in 0..LANES {
            let first = u64::from(a[lane]) * u64::from(MULTIPLIERS[0]);
            let second = u64::from(c[lane]) * u64::from(MULTIPLIERS[1]);
            a[lane] = (second >> 32) as u32 ^ b[lane] ^ keys[0];
            b[lane] = second as u32;
            c[lane] = (first >> 32) as u32 ^ d[lane] ^ keys[1];
            d[lane] = first as u32;
        }
        words = [a, b, c, d];
        for (key, step) in keys.iter_mut().zip(KEY_STEPS) {
            *key = key.wrapping_add(step);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{philox, philox_lanes};

    /// The last two are of the authors' Random123 (`kat_vectors`).
    #[test]
    fn known_counters_give_known_words() {
        assert_eq!(
            philox(0, 0),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox(u64::MAX, u128::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                0x299f_31d0_a409_3822,
                0x0370_7344_1319_8a2e_85a3_08d3_243f_6a88
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn lanes_have_the_words_of_their_counters() {
        let counters = [[7, u32::MAX, 0], [1, 2, 3], [4, 5, 6], [0, 9, u32::MAX]];
        let words = philox_lanes(0x0123_4567_89ab_cdef, counters);
        for lane in 0..3 {
            let counter = counters.iter().rev();
            let counter = counter.fold(0, |sum, word| sum << 32 | u128::from(word[lane]));
            assert_eq!(
                words.map(|word| word[lane]),
                philox(0x0123_4567_89ab_cdef, counter)
            );
        }
    }
}
