//! Token arithmetic: the size to which a picture is brought, and so its patches and tokens, exact to the pixel.

use crate::error::MediaError;

/// The longest side in pixels whose arithmetic is exact: the product of two is a whole number of 52 bits.
pub const SIDE_MAX: u32 = 1 << 26;

/// The largest ratio of sides that [`Sizing::Smart`] accepts.
pub const RATIO_MAX: u32 = 200;

/// A rule for the size to which pictures are brought before they are cut into patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sizing {
    /// Qwen2-VL, Qwen2.5-VL and Qwen3-VL: both sides to the nearest multiple of a token's, the shape kept, and scaled where
    /// that is fewer or more pixels than these. Sides of more than 200 to 1 are refused.
    Smart {
        /// The fewest pixels.
        pixels_min: u64,
        /// The most pixels.
        pixels_max: u64,
    },
    /// Seed1.5-VL (arXiv 2505.07062): native resolution, both sides to the nearest multiple of a token's; the shape, as far as
    /// it fits, where that would be more tokens than these.
    Nearest {
        /// The most tokens.
        tokens_max: u32,
    },
    /// SigLIP: one size for all, whatever the shape.
    Fixed {
        /// Its height in pixels.
        height: u32,
        /// Its width in pixels.
        width: u32,
    },
    /// SigLIP 2 (NaFlex): the largest size of that shape with at most so many patches.
    Largest {
        /// The most patches.
        patches_max: u32,
    },
}

impl Sizing {
    /// Height and width in pixels of what a picture of this height and width becomes, both multiples of `unit`: the side of
    /// a patch, times the patches along a token.
    ///
    /// # Errors
    /// Where a side has no pixels or more than [`SIDE_MAX`], or the ratio is refused.
    pub fn size(&self, height: u32, width: u32, unit: u32) -> Result<(u32, u32), MediaError> {
        check_sides(height, width)?;
        check_unit(unit)?;
        match *self {
            Self::Smart {
                pixels_min,
                pixels_max,
            } => smart_size(1, height, width, unit, 1, [pixels_min, pixels_max]),
            Self::Nearest { tokens_max } => {
                let (rows, columns) = nearest(height, width, unit, tokens_max.max(1));
                Ok((rows * unit, columns * unit))
            }
            Self::Fixed { height, width } => {
                check_sides(height, width)?;
                Ok((height, width))
            }
            Self::Largest { patches_max } => Ok(largest(height, width, unit, patches_max.max(1))),
        }
    }
}

/// Height and width of the frames of a video as Qwen3-VL's processor has them: [`Sizing::Smart`] with the pixels of all
/// frames together between these bounds. Frames smaller than `unit` are made larger first. `frames` counts those that are
/// sampled, and `temporal` those that become one patch.
///
/// # Errors
/// Where a side has no pixels or more than [`SIDE_MAX`], the ratio is refused, or frames are fewer than `temporal`.
pub fn video_size(
    frames: u32,
    height: u32,
    width: u32,
    unit: u32,
    temporal: u32,
    [pixels_min, pixels_max]: [u64; 2],
) -> Result<(u32, u32), MediaError> {
    check_sides(height, width)?;
    check_unit(unit)?;
    if frames < temporal || temporal == 0 || frames > FRAMES_MAX {
        return Err(MediaError::Argument {
            what: "the number of a video's frames",
            is: frames.into(),
            must: "as many as become one patch at least, and 65,536 at most",
        });
    }
    let (mut high, mut wide) = (height, width);
    if height < unit || width < unit {
        let times = |side: u32| f64::from(unit) / f64::from(side);
        let scale = times(height).max(times(width));
        high = (f64::from(height) * scale) as u32;
        wide = (f64::from(width) * scale) as u32;
        check_sides(high, wide)?;
    }
    smart_size(frames, high, wide, unit, temporal, [pixels_min, pixels_max])
}

/// `smart_resize` of Qwen's processors, for one picture or frames, in the same steps of floating point.
fn smart_size(
    frames: u32,
    height: u32,
    width: u32,
    unit: u32,
    temporal: u32,
    [pixels_min, pixels_max]: [u64; 2],
) -> Result<(u32, u32), MediaError> {
    let (high, wide, side) = (f64::from(height), f64::from(width), f64::from(unit));
    if high.max(wide) / high.min(wide) > f64::from(RATIO_MAX) {
        return Err(MediaError::Ratio {
            height,
            width,
            ratio: RATIO_MAX,
        });
    }
    if pixels_min == 0 || pixels_max < pixels_min {
        return Err(MediaError::Argument {
            what: "the most pixels",
            is: pixels_max,
            must: "no fewer than the fewest, and those one at least",
        });
    }
    // Halves go to the even number, as in Python.
    let near = |side: u32, unit: u32| {
        let times = (f64::from(side) / f64::from(unit)).round_ties_even();
        times as u64 * u64::from(unit)
    };
    let (mut rows, mut columns) = (near(height, unit), near(width, unit));
    let of_all = u128::from(near(frames, temporal)) * u128::from(rows) * u128::from(columns);
    let all = f64::from(frames) * high * wide;
    if of_all > pixels_max.into() {
        let beta = (all / pixels_max as f64).sqrt();
        let fewer = |length: f64| ((length / beta / side).floor() * side).max(side) as u64;
        (rows, columns) = (fewer(high), fewer(wide));
    } else if of_all < pixels_min.into() {
        let beta = (pixels_min as f64 / all).sqrt();
        let more = |length: f64| ((length * beta / side).ceil() * side) as u64;
        (rows, columns) = (more(high), more(wide));
    }
    let side = |length: u64| u32::try_from(length).ok().filter(|side| *side <= SIDE_MAX);
    side(rows).zip(side(columns)).ok_or(MediaError::Argument {
        what: "the fewest pixels",
        is: pixels_min,
        must: "such that no side is made longer than 67,108,864 pixels",
    })
}

/// Rows and columns of tokens.
fn nearest(height: u32, width: u32, unit: u32, tokens_max: u32) -> (u32, u32) {
    let nearest = |side: u32| ((u64::from(side) + u64::from(unit) / 2) / u64::from(unit)).max(1);
    let (rows, columns) = (nearest(height), nearest(width));
    if rows * columns <= u64::from(tokens_max) {
        return (rows as u32, columns as u32);
    }
    // As many as keep the shape, but nothing is made larger; where one side is less than a token, the other gives way.
    let scale = f64::from(tokens_max) / (f64::from(height) * f64::from(width));
    let fewer = |side: u32, nearest: u64| {
        let count = (f64::from(side) * scale.sqrt()) as u64;
        count.clamp(1, nearest.min(u64::from(tokens_max))) as u32
    };
    let rows = fewer(height, rows);
    (rows, fewer(width, columns).min(tokens_max / rows))
}

/// The search of SigLIP 2's processor for a scale, in the same steps.
fn largest(height: u32, width: u32, patch: u32, patches_max: u32) -> (u32, u32) {
    let side = f64::from(patch);
    let scaled = |scale: f64, length: u32| {
        let scaled = (f64::from(length) * scale / side).ceil() * side;
        scaled.max(side)
    };
    let (mut low, mut high) = (EPSILON / 10.0, 100.0);
    while high - low >= EPSILON {
        let scale = f64::midpoint(low, high);
        let patches = (scaled(scale, height) / side) * (scaled(scale, width) / side);
        if patches <= f64::from(patches_max) {
            low = scale;
        } else {
            high = scale;
        }
    }
    (scaled(low, height) as u32, scaled(low, width) as u32)
}

fn check_sides(height: u32, width: u32) -> Result<(), MediaError> {
    match [height, width]
        .into_iter()
        .find(|side| !(1..=SIDE_MAX).contains(side))
    {
        None => Ok(()),
        Some(side) => Err(MediaError::Argument {
            what: "a side of a picture",
            is: side.into(),
            must: "1 to 67,108,864 pixels",
        }),
    }
}

fn check_unit(unit: u32) -> Result<(), MediaError> {
    match unit {
        1..=UNIT_MAX => Ok(()),
        _ => Err(MediaError::Argument {
            what: "the side of a token",
            is: unit.into(),
            must: "1 to 4,096 pixels",
        }),
    }
}

const UNIT_MAX: u32 = 4096;
const FRAMES_MAX: u32 = 65_536;
const EPSILON: f64 = 1e-5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn side() -> impl Strategy<Value = u32> {
        prop_oneof![1_u32..300, 1_u32..20_000, 1_u32..=SIDE_MAX]
    }

    proptest! {
        // SEMANTICS 224.
        #[test]
        fn smart_sizes_are_within_their_bounds(
            height in side(), width in side(), unit in 1_u32..64,
            pixels_min in 1_u64..1_000_000, more in 0_u64..20_000_000,
        ) {
            // Room for a token in the middle of the bounds, as every processor has it.
            let pixels_max = pixels_min * 4 + more + 4 * u64::from(unit).pow(2);
            let sizing = Sizing::Smart { pixels_min, pixels_max };
            let long = height.max(width) > u64::from(height.min(width)).saturating_mul(200).min(u64::from(u32::MAX)) as u32;
            match sizing.size(height, width, unit) {
                Err(MediaError::Ratio { .. }) => prop_assert!(long),
                Err(other) => prop_assert!(false, "{other}"),
                Ok((high, wide)) => {
                    prop_assert!(!long);
                    prop_assert!(high >= unit && wide >= unit);
                    prop_assert_eq!((high % unit, wide % unit), (0, 0));
                    let pixels = u64::from(high) * u64::from(wide);
                    prop_assert!(pixels >= pixels_min);
                    // A side that cannot be less than a token may cost more than the bound, as in the original.
                    prop_assert!(pixels <= pixels_max || high == unit || wide == unit);
                }
            }
        }

        // SEMANTICS 224.
        #[test]
        fn other_sizes_are_whole_tokens_and_few_enough(
            height in side(), width in side(), unit in 1_u32..40, most in 1_u32..5000,
        ) {
            let tokens = |sizing: Sizing| {
                let (high, wide) = sizing.size(height, width, unit).unwrap();
                assert_eq!((high % unit, wide % unit), (0, 0));
                u64::from(high / unit) * u64::from(wide / unit)
            };
            let nearest = tokens(Sizing::Nearest { tokens_max: most });
            prop_assert!((1..=u64::from(most)).contains(&nearest));
            let largest = tokens(Sizing::Largest { patches_max: most });
            // The search begins at a millionth: a longer side has more patches at that already, as in the original.
            prop_assert!(largest <= u64::from(most) || height.max(width) > unit * 100_000);
        }

        // SEMANTICS 224.
        #[test]
        fn sizes_of_videos_never_panic(
            frames: u32, height: u32, width: u32, unit: u32, temporal: u32,
            min: u64, max: u64, few in 0_u32..40,
        ) {
            let _ = video_size(frames, height, width, unit, temporal, [min, max]);
            let _ = video_size(few, height >> 8, width >> 8, 28, 2, [1, max]);
            let smart = Sizing::Smart { pixels_min: min, pixels_max: max };
            let _ = smart.size(height, width, unit);
        }
    }

    #[test]
    fn native_sizes_of_known_pictures() {
        let check = |height, width, expect| {
            let sizing = Sizing::Nearest { tokens_max: 1000 };
            let (high, wide) = sizing.size(height, width, 28).unwrap();
            assert_eq!((high / 28, wide / 28), expect, "{height}x{width}");
        };
        check(28, 28, (1, 1));
        check(64, 64, (2, 2));
        check(70, 69, (3, 2));
        check(1, 1, (1, 1));
        check(1, 10_000, (1, 357));
        check(1, 100_000, (1, 1000));
        check(100_000, 1, (1000, 1));
        check(2800, 2800, (31, 31));
        check(SIDE_MAX, SIDE_MAX, (31, 31));
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let smart = Sizing::Smart {
            pixels_min: 3136,
            pixels_max: 1_003_520,
        };
        let said = |height, width| smart.size(height, width, 28).unwrap_err().to_string();
        assert_eq!(
            said(10, 2001),
            "a picture of 2001 x 10 pixels is longer than 200 times its other side: cut it into several"
        );
        assert!(smart.size(10, 2000, 28).is_ok());
        assert_eq!(
            said(0, 5),
            "a side of a picture is 0, and must be 1 to 67,108,864 pixels"
        );
        assert!(said(5, SIDE_MAX + 1).contains("67108865"));
        assert!(smart.size(5, 5, 0).is_err());
        assert!(video_size(1, 100, 100, 28, 2, [1, 1 << 30]).is_err());
    }
}
