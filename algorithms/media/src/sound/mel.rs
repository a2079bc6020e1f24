//! Log-mel features of Whisper.

use std::f64::consts::PI;
use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use crate::error::MediaError;

/// Features of sound: for each mel bin the frames one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct MelFeatures {
    /// Mel bins.
    pub bins: usize,
    /// Frames, of ten milliseconds each.
    pub frames: usize,
    /// `bins` rows of `frames` numbers.
    pub numbers: Vec<f32>,
}

impl MelFeatures {
    /// Tokens that Whisper's encoder makes of them: its second convolution takes every other frame.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.frames.div_ceil(2)
    }
}

/// Makes Whisper's features of sound at 16 kHz: windows of 25 ms every 10 ms, mel bins up to 8 kHz on Slaney's scale, logarithms
/// of base ten down to eight below the loudest.
#[derive(Clone)]
pub struct WhisperFeatures {
    fft: Arc<dyn RealToComplex<f32>>,
    window: [f32; WINDOW],
    filters: Vec<MelFilter>,
}

/// The weights of the frequencies of a mel bin, from the first that has one.
#[derive(Clone, Debug)]
struct MelFilter {
    first: usize,
    weights: Vec<f32>,
}

impl std::fmt::Debug for WhisperFeatures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("WhisperFeatures");
        shown
            .field("bins", &self.filters.len())
            .finish_non_exhaustive()
    }
}

impl WhisperFeatures {
    /// Features with so many mel bins: 80 for Whisper's models, 128 for `large-v3`.
    ///
    /// # Errors
    /// Where bins are 0 or more than 512.
    pub fn new(bins: usize) -> Result<Self, MediaError> {
        if !(1..=BINS_MAX).contains(&bins) {
            return Err(MediaError::Argument {
                what: "the number of mel bins",
                is: bins as u64,
                must: "1 to 512",
            });
        }
        Ok(Self {
            fft: RealFftPlanner::new().plan_fft_forward(WINDOW),
            window: std::array::from_fn(|n| {
                let angle = 2.0 * PI * n as f64 / WINDOW as f64;
                (0.5 - 0.5 * angle.cos()) as f32
            }),
            filters: filters(bins),
        })
    }

    /// The features of the first 30 seconds; what is shorter has silence behind it. Always 3,000 frames.
    #[must_use]
    pub fn of_30_seconds(&self, samples: &[f32]) -> MelFeatures {
        let samples = &samples[..samples.len().min(CHUNK)];
        let mut features = MelFeatures {
            bins: self.filters.len(),
            frames: CHUNK / HOP,
            numbers: vec![],
        };
        self.fill(samples, CHUNK, &mut features);
        features
    }

    /// The features of sound of any length from 201 samples on: a frame for each 160 samples.
    ///
    /// # Errors
    /// Where samples are too few to be mirrored at both ends.
    pub fn of_all(&self, samples: &[f32]) -> Result<MelFeatures, MediaError> {
        if samples.len() <= HALF {
            return Err(MediaError::Argument {
                what: "the number of samples",
                is: samples.len() as u64,
                must: "201 at least",
            });
        }
        let mut features = MelFeatures {
            bins: self.filters.len(),
            frames: samples.len() / HOP,
            numbers: vec![],
        };
        self.fill(samples, samples.len(), &mut features);
        Ok(features)
    }

    /// Powers of all frames of samples that go on with silence up to `length`, then their logarithms.
    fn fill(&self, samples: &[f32], length: usize, features: &mut MelFeatures) {
        let frames = features.frames;
        features.numbers = vec![FLOOR; self.filters.len() * frames];
        let mut input = [0.0; WINDOW];
        let mut spectrum = self.fft.make_output_vec();
        let mut scratch = self.fft.make_scratch_vec();
        // Frames side by side, so that rows are written in stretches.
        let mut block = vec![[0.0_f32; BLOCK]; spectrum.len()];
        for first in (0..frames).step_by(BLOCK) {
            let count = BLOCK.min(frames - first);
            // Silence, which the mirror at the end does not end: the floor stands there already.
            if samples.len() + WINDOW <= length && first * HOP >= samples.len() + HALF {
                continue;
            }
            for at in 0..count {
                self.windowed(samples, length, (first + at) * HOP, &mut input);
                let done = self
                    .fft
                    .process_with_scratch(&mut input, &mut spectrum, &mut scratch);
                debug_assert!(done.is_ok(), "lengths are those of the plan");
                for (powers, part) in block.iter_mut().zip(&spectrum) {
                    powers[at] = power(*part);
                }
            }
            for (filter, row) in self
                .filters
                .iter()
                .zip(features.numbers.chunks_exact_mut(frames))
            {
                let powers = &block[filter.first..][..filter.weights.len()];
                let mut sums = [0.0; BLOCK];
                mel(&filter.weights, powers, &mut sums);
                row[first..first + count].copy_from_slice(&sums[..count]);
            }
        }
        let loudest = logarithms(&mut features.numbers);
        scale(&mut features.numbers, loudest - 8.0);
    }

    /// The samples around a place, mirrored at both ends, in the window.
    fn windowed(&self, samples: &[f32], length: usize, middle: usize, input: &mut [f32; WINDOW]) {
        let inside = middle
            .checked_sub(HALF)
            .and_then(|start| samples.get(start..start + WINDOW));
        if let Some(samples) = inside {
            for ((to, sample), weight) in input.iter_mut().zip(samples).zip(&self.window) {
                *to = sample * weight;
            }
            return;
        }
        let last = length as i64 - 1;
        for (n, (to, weight)) in input.iter_mut().zip(&self.window).enumerate() {
            let at = (middle + n) as i64 - HALF as i64;
            let at = last - (last - at.abs()).abs();
            let sample = samples.get(at as usize).copied().unwrap_or(0.0);
            *to = sample * weight;
        }
    }
}

fn power(part: Complex<f32>) -> f32 {
    part.re * part.re + part.im * part.im
}

odeon_simd::simd! {
    /// Weighted sums of powers, for frames side by side.
    fn mel(weights: &[f32], powers: &[[f32; BLOCK]], sums: &mut [f32; BLOCK]) {
        for (weight, powers) in weights.iter().zip(powers) {
            for (sum, power) in sums.iter_mut().zip(powers) {
                *sum += weight * power;
            }
        }
    }

    /// Logarithms of base ten in place, of what is raised to 1e-10; the largest.
    fn logarithms(numbers: &mut [f32]) -> f32 {
        let mut most = [-10.0_f32; 16];
        let (blocks, rest) = numbers.as_chunks_mut::<16>();
        for block in blocks {
            for (number, most) in block.iter_mut().zip(&mut most) {
                *number = log10(number.max(FLOOR));
                *most = most.max(*number);
            }
        }
        let mut all = most.iter().fold(-10.0_f32, |a, b| a.max(*b));
        for number in rest {
            *number = log10(number.max(FLOOR));
            all = all.max(*number);
        }
        all
    }

    /// Raises numbers to the least, and brings them near zero.
    fn scale(numbers: &mut [f32], least: f32) {
        for number in numbers {
            *number = (number.max(least) + 4.0) * 0.25;
        }
    }
}

/// A logarithm without a branch: that of Cephes, within two units of the last place, of a normal number above zero.
#[inline(always)]
fn log10(number: f32) -> f32 {
    // The mantissa from the root of a half on.
    let bits = number.to_bits().wrapping_sub(0x3f35_04f3);
    let exponent = (bits as i32 >> 23) as f32;
    let x = f32::from_bits((bits & 0x007f_ffff) + 0x3f35_04f3) - 1.0;
    let z = x * x;
    let mut y = 7.037_683_6e-2_f32;
    for factor in [
        -1.151_461e-1,
        1.167_699_87e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_7e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        y = y * x + factor;
    }
    let natural = x + (y * x * z - 0.5 * z);
    natural * std::f32::consts::LOG10_E + exponent * std::f32::consts::LOG10_2
}

/// Triangles between neighbours on Slaney's scale, each of area two over its width in hertz.
fn filters(bins: usize) -> Vec<MelFilter> {
    let top = mel_of(NYQUIST);
    let edge = |n: usize| hertz_of(top * n as f64 / (bins + 1) as f64);
    let frequencies = WINDOW / 2 + 1;
    let hertz = |n: usize| NYQUIST * n as f64 / (frequencies - 1) as f64;
    (0..bins)
        .map(|bin| {
            let (low, middle, high) = (edge(bin), edge(bin + 1), edge(bin + 2));
            let weight = |n: usize| {
                let up = (hertz(n) - low) / (middle - low);
                let down = (high - hertz(n)) / (high - middle);
                up.min(down).max(0.0) * 2.0 / (high - low)
            };
            let has = |n: &usize| weight(*n) > 0.0;
            let first = (0..frequencies).find(has).unwrap_or(0);
            let weights = (first..frequencies)
                .take_while(has)
                .map(|n| weight(n) as f32);
            MelFilter {
                first,
                weights: weights.collect(),
            }
        })
        .collect()
}

/// Slaney's scale: straight up to 1 kHz, then by logarithms.
fn mel_of(hertz: f64) -> f64 {
    if hertz < 1000.0 {
        hertz * 3.0 / 200.0
    } else {
        15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4_f64.ln()
    }
}

fn hertz_of(mel: f64) -> f64 {
    if mel < 15.0 {
        mel * 200.0 / 3.0
    } else {
        1000.0 * ((mel - 15.0) * 6.4_f64.ln() / 27.0).exp()
    }
}

const WINDOW: usize = 400;
const HALF: usize = WINDOW / 2;
const HOP: usize = 160;
/// 30 seconds.
const CHUNK: usize = 480_000;
const BLOCK: usize = 16;
const BINS_MAX: usize = 512;
const NYQUIST: f64 = 8000.0;
const FLOOR: f32 = 1e-10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn logarithms_are_those_of_the_standard_library(number in 1e-10_f32..1e12) {
            let (made, expect) = (log10(number), f64::from(number).log10());
            prop_assert!((f64::from(made) - expect).abs() < 1e-6 * expect.abs().max(0.3), "{number}: {made} {expect}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let said = WhisperFeatures::new(0).unwrap_err().to_string();
        assert_eq!(said, "the number of mel bins is 0, and must be 1 to 512");
        let features = WhisperFeatures::new(80).unwrap();
        assert!(features.of_all(&[0.0; 200]).is_err());
        assert_eq!(features.of_all(&[0.0; 201]).unwrap().frames, 1);
    }

    #[test]
    fn what_is_longer_than_30_seconds_is_cut() {
        let features = WhisperFeatures::new(80).unwrap();
        let long: Vec<f32> = (0..500_000).map(|n| (n as f32 * 0.1).sin()).collect();
        let made = features.of_30_seconds(&long);
        assert_eq!((made.bins, made.frames, made.tokens()), (80, 3000, 1500));
        assert_eq!(made.numbers.len(), 240_000);
        assert_eq!(made, features.of_30_seconds(&long[..480_000]));
        assert_eq!(made, features.of_all(&long[..480_000]).unwrap());
    }
}
