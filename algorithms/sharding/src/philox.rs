//! Random numbers by their place: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy
//! as 1, 2, 3"). Pure.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// The four words of a counter, under a key. Words and halves of the key count from the lowest bits on.
#[must_use]
pub fn philox(key: u64, counter: u128) -> [u32; 4] {
    let mut words = [0, 32, 64, 96].map(|shift| (counter >> shift) as u32);
    let mut keys = [key as u32, (key >> 32) as u32];
    for _ in 0..ROUNDS {
        let [first, second] = [(words[0], MULTIPLIERS[0]), (words[2], MULTIPLIERS[1])]
            .map(|(word, multiplier)| u64::from(word) * u64::from(multiplier));
        words = [
            (second >> 32) as u32 ^ words[1] ^ keys[0],
            second as u32,
            (first >> 32) as u32 ^ words[3] ^ keys[1],
            first as u32,
        ];
        for (key, step) in keys.iter_mut().zip(KEY_STEPS) {
            *key = key.wrapping_add(step);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::philox;

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
}
