//! The length of chunks with which the pipeline is full soon and each hop costs little. Pure.
//!
//! A hop takes `a` seconds to begin a chunk and `b` for each byte. In a line of `n` members, who
//! has the weights first among them, `k` chunks of `M / k` bytes pass `n - 1` hops; a member
//! receives a chunk while it sends the one before. The last chunk starts after `k - 1` others and
//! goes over all hops:
//!
//! ```text
//! T(k) = (n - 2 + k) (a + M b / k)
//! k*   = sqrt((n - 2) M b / a)                    where dT/dk = a - (n - 2) M b / k^2 is 0
//! T*   = (sqrt((n - 2) a) + sqrt(M b))^2          about M b, nearly whatever n
//! ```
//!
//! This is the standard result for a pipelined broadcast along a line (as in Laminar, arXiv
//! 2510.12633, appendix D). Up to two members one chunk is best, since there is nothing to overlap.

use super::CHUNKS_MAX;

/// Costs of a hop, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds before the first byte of a chunk: the paper's a.
    pub startup_s: f64,
    /// Seconds for each byte: b, one over the bandwidth.
    pub seconds_per_byte: f64,
}

/// Bounds on the length of chunks, whatever is best for the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkBounds {
    /// At least, so that a checksum and a message are little beside it.
    pub bytes_min: u64,
    /// At most, since it is what is sent again when it is damaged.
    pub bytes_max: u64,
}

impl Default for ChunkBounds {
    /// From 64 KiB to 64 MiB.
    fn default() -> Self {
        Self {
            bytes_min: 64 << 10,
            bytes_max: 64 << 20,
        }
    }
}

/// Chunks begin at multiples of this, so that no number of the weights lies in two of them. In
/// bytes.
pub const ALIGN_BYTES: u64 = 8;

/// The division of a version into chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chunking {
    /// Bytes of each chunk but the last, which may be shorter.
    pub chunk_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Seconds until the last member has all of them.
    pub expected_s: f64,
}

/// A pace that no link has. Nothing was worked out.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{what} is {value}: it must be finite and not below zero")]
pub struct PaceError {
    /// Which number.
    pub what: &'static str,
    /// Its value.
    pub value: f64,
}

/// Cuts `bytes` for a line of `members`, the first of which has them: for a chain of relays and
/// their trainer, one more than there are relays.
///
/// `M / k` for the best `k`, rounded up to [`ALIGN_BYTES`], within the bounds, and long enough for
/// [`CHUNKS_MAX`].
///
/// # Errors
/// When a number of the pace is negative or not finite.
pub fn chunking(
    members: u64,
    bytes: u64,
    pace: &Pace,
    bounds: &ChunkBounds,
) -> Result<Chunking, PaceError> {
    let count = best_count(members, bytes, pace)?;
    let bytes_min = bounds.bytes_min.max(bytes.div_ceil(u64::from(CHUNKS_MAX)));
    let best = bytes.div_ceil(count).min(bounds.bytes_max).max(bytes_min);
    let aligned = best.max(1).checked_next_multiple_of(ALIGN_BYTES);
    let chunk_bytes = aligned.unwrap_or(best);
    Ok(Chunking {
        chunk_bytes,
        chunks: bytes.div_ceil(chunk_bytes),
        expected_s: expected_s(members, bytes, chunk_bytes, pace),
    })
}

/// The `k` with the least `T(k)`, from 1 to `bytes`: of the two integers around `k*` the better
/// one, since `T` is convex.
///
/// # Errors
/// When a number of the pace is negative or not finite.
pub fn best_count(members: u64, bytes: u64, pace: &Pace) -> Result<u64, PaceError> {
    let Pace {
        startup_s,
        seconds_per_byte,
    } = *pace;
    for (what, value) in [
        ("startup_s", startup_s),
        ("seconds_per_byte", seconds_per_byte),
    ] {
        if !value.is_finite() || value < 0.0 {
            return Err(PaceError { what, value });
        }
    }
    let all_s = bytes as f64 * seconds_per_byte;
    if members <= 2 || all_s == 0.0 {
        return Ok(1);
    }
    // Without a start-up it is infinite, and becomes as many chunks as there are bytes.
    let ideal = ((members - 2) as f64 * all_s / startup_s).sqrt();
    let below = (ideal.floor() as u64).clamp(1, bytes);
    let above = below.saturating_add(1).min(bytes);
    let time = |count| even_s(members, bytes, count, pace);
    Ok(if time(above) < time(below) {
        above
    } else {
        below
    })
}

/// `T(k)` in seconds, as if chunks had fractions of bytes.
#[must_use]
pub fn even_s(members: u64, bytes: u64, count: u64, pace: &Pace) -> f64 {
    let chunk_s = pace.startup_s + bytes as f64 * pace.seconds_per_byte / count as f64;
    (members.max(1) as f64 - 2.0 + count as f64) * chunk_s
}

/// Seconds until the last of `members` has `bytes` in chunks of `chunk_bytes`, the last of which is
/// what is left: it follows the longer ones and takes less on the last hop.
#[must_use]
pub fn expected_s(members: u64, bytes: u64, chunk_bytes: u64, pace: &Pace) -> f64 {
    if members <= 1 || bytes == 0 {
        return 0.0;
    }
    let chunk_bytes = chunk_bytes.clamp(1, bytes);
    let count = bytes.div_ceil(chunk_bytes);
    let last = bytes - (count - 1) * chunk_bytes;
    let seconds = |bytes: u64| pace.startup_s + bytes as f64 * pace.seconds_per_byte;
    if count == 1 {
        return (members - 1) as f64 * seconds(last);
    }
    (members - 2 + count - 1) as f64 * seconds(chunk_bytes) + seconds(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `T*` in seconds: what no number of chunks can be below.
    fn shortest_s(members: u64, bytes: u64, pace: &Pace) -> f64 {
        let hops = members.saturating_sub(2) as f64 * pace.startup_s;
        let all = bytes as f64 * pace.seconds_per_byte;
        (hops.sqrt() + all.sqrt()).powi(2)
    }

    /// 100 GB/s, and ten microseconds to begin.
    const PACE: Pace = Pace {
        startup_s: 10e-6,
        seconds_per_byte: 1e-11,
    };

    /// 72e9 weights in bf16.
    const BYTES: u64 = 144_000_000_000;

    #[test]
    fn a_broadcast_takes_hardly_longer_the_more_relays_there_are() {
        let wide = ChunkBounds {
            bytes_min: 1,
            bytes_max: u64::MAX,
        };
        let times: Vec<f64> = [4, 8, 32, 128, 512]
            .map(|members| chunking(members, BYTES, &PACE, &wide).unwrap().expected_s)
            .to_vec();
        assert!(times.is_sorted());
        assert!(times[0] > 1.44 && times[4] < 1.62, "{times:?}");
        assert!(times[4] < 1.12 * times[0], "{times:?}");
        let at_once = even_s(512, BYTES, 1, &PACE);
        assert!(at_once > 400.0 * times[4], "one after the other: {at_once}");
    }

    #[test]
    fn chunks_of_a_large_model_are_tens_of_megabytes() {
        let chunking = chunking(128, BYTES, &PACE, &ChunkBounds::default()).unwrap();
        assert_eq!(chunking.chunks, 4_260);
        assert!(
            (30_000_000..40_000_000).contains(&chunking.chunk_bytes),
            "{chunking:?}"
        );
        assert!(chunking.chunk_bytes.is_multiple_of(ALIGN_BYTES));
    }

    #[test]
    fn two_members_need_one_chunk_and_bounds_come_first() {
        let wide = ChunkBounds {
            bytes_min: 1,
            bytes_max: u64::MAX,
        };
        for members in 0..=2 {
            let one = chunking(members, BYTES, &PACE, &wide).unwrap();
            assert_eq!((one.chunks, one.chunk_bytes), (1, BYTES));
        }
        let bounded = chunking(2, BYTES, &PACE, &ChunkBounds::default()).unwrap();
        assert_eq!(bounded.chunk_bytes, 64 << 20);
        let small = chunking(64, 5, &PACE, &ChunkBounds::default()).unwrap();
        assert_eq!((small.chunks, small.chunk_bytes), (1, 64 << 10));
    }

    #[test]
    fn extreme_paces_have_chunks_too() {
        let free = Pace {
            startup_s: 0.0,
            ..PACE
        };
        assert_eq!(best_count(8, 1_000, &free), Ok(1_000));
        let endless = Pace {
            seconds_per_byte: 0.0,
            ..PACE
        };
        assert_eq!(best_count(8, 1_000, &endless), Ok(1));
        let many = chunking(
            8,
            BYTES,
            &free,
            &ChunkBounds {
                bytes_min: 1,
                bytes_max: 9,
            },
        )
        .unwrap();
        assert!(many.chunks <= u64::from(CHUNKS_MAX), "{many:?}");
        for value in [-1.0, f64::NAN, f64::INFINITY] {
            let broken = Pace {
                startup_s: value,
                ..PACE
            };
            assert_eq!(best_count(8, 1, &broken).unwrap_err().what, "startup_s");
        }
    }

    proptest! {
        #[test]
        fn no_other_count_is_better(
            members in 0..2_000_u64,
            bytes in 1..1_000_000_000_000_u64,
            startup_s in 1e-7..1e-1,
            seconds_per_byte in 1e-12..1e-6,
            other in 1..10_000_000_u64,
        ) {
            let pace = Pace { startup_s, seconds_per_byte };
            let best = best_count(members, bytes, &pace).unwrap();
            let time = even_s(members, bytes, best, &pace);
            let others = [other, best - 1, best + 1, best / 2, best * 2, 1, bytes];
            for other in others.into_iter().filter(|other| (1..=bytes).contains(other)) {
                let other_s = even_s(members, bytes, other, &pace);
                prop_assert!(time <= other_s * (1.0 + 1e-12), "{} is better than {}", other, best);
            }
            let least = shortest_s(members, bytes, &pace);
            prop_assert!(members <= 1 || time >= least * (1.0 - 1e-9), "{} below {}", time, least);
        }

        /// Small enough to try all of them.
        #[test]
        fn no_count_at_all_is_better(
            members in 0..40_u64,
            bytes in 1..300_u64,
            startup_s in 1e-3..10.0,
            seconds_per_byte in 1e-3..1.0,
        ) {
            let pace = Pace { startup_s, seconds_per_byte };
            let time = |count| even_s(members, bytes, count, &pace);
            let best = time(best_count(members, bytes, &pace).unwrap());
            let least = (1..=bytes).map(time).fold(f64::INFINITY, f64::min);
            prop_assert!(best <= least * (1.0 + 1e-12));
        }

        /// Rounding makes chunks longer by less than the alignment, and time by no larger share.
        #[test]
        fn rounding_to_bytes_costs_no_more_than_it_adds_to_a_chunk(
            members in 2..2_000_u64,
            bytes in 1_000..1_000_000_000_000_u64,
            startup_s in 1e-7..1e-1,
            seconds_per_byte in 1e-12..1e-6,
        ) {
            let pace = Pace { startup_s, seconds_per_byte };
            let bounds = ChunkBounds { bytes_min: 1, bytes_max: u64::MAX };
            let cut = chunking(members, bytes, &pace, &bounds).unwrap();
            let count = best_count(members, bytes, &pace).unwrap();
            prop_assume!(count <= u64::from(CHUNKS_MAX));
            let share = (ALIGN_BYTES + 1) as f64 / (bytes as f64 / count as f64);
            let best = even_s(members, bytes, count, &pace);
            prop_assert!(cut.expected_s <= best * (1.0 + share), "{:?} {}", cut, best);
            let covered = (cut.chunks - 1) * cut.chunk_bytes < bytes;
            prop_assert!(covered && cut.chunks * cut.chunk_bytes >= bytes);
        }
    }
}
