//! Another rate of samples: sums of neighbours, weighted by a windowed sinc.

/// Brings samples from one rate to another, as they come.
///
/// The weights are those of a low-pass at 0.95 of half the lower rate, over 64 of its samples to each side, in a window of
/// Kaiser (beta 10). What lies below 0.9 of half the lower rate stays within 0.01 dB; what is above that half and would be heard
/// as something else is 90 dB down. Nothing is delayed: the first sample stays the first.
#[derive(Clone, Debug)]
pub struct Resampler {
    /// The rates in lowest terms.
    from: u64,
    to: u64,
    /// Weights for each place of an output sample between two input samples; `taps` for each.
    weights: Vec<f32>,
    taps: usize,
    /// Places between two input samples.
    places: u64,
    /// Input that later samples still need.
    held: Vec<f32>,
    /// Input samples that are no longer held, or were never there: half the weights lie before the first.
    passed: i64,
    taken: u64,
    given: u64,
}

impl Resampler {
    /// From `from` samples a second to `to`.
    ///
    /// # Panics
    /// Where a rate is 0.
    #[must_use]
    pub fn new(from: u32, to: u32) -> Self {
        assert!(from > 0 && to > 0, "a rate of samples is above 0");
        let both = divisor(from.into(), to.into());
        let (from, to) = (u64::from(from) / both, u64::from(to) / both);
        // Input samples in one of the lower rate.
        let stretch = (from as f64 / to as f64).max(1.0);
        let half = (ZEROS * stretch).ceil() as usize;
        let (taps, places) = (half * 2, to.min(PLACES_MAX));
        let mut weights = vec![];
        if from != to {
            // One more, since some lie between two.
            weights.reserve((places as usize + 1) * taps);
            for place in 0..=places {
                let within = place as f64 / places as f64;
                let at = |tap: usize| (tap as f64 + 1.0 - half as f64 - within) / stretch;
                let row: Vec<f64> = (0..taps).map(|tap| weight(at(tap))).collect();
                // So that silence above zero stays where it is.
                let sum: f64 = row.iter().sum();
                weights.extend(row.iter().map(|weight| (weight / sum) as f32));
            }
        }
        Self {
            from,
            to,
            weights,
            taps,
            places,
            held: vec![0.0; half - 1],
            passed: 1 - half as i64,
            taken: 0,
            given: 0,
        }
    }

    /// Takes samples, and puts behind `out` those that can be told by now.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.taken += samples.len() as u64;
        if self.from == self.to {
            out.extend_from_slice(samples);
            return;
        }
        self.held.extend_from_slice(samples);
        self.make(u64::MAX, out);
    }

    /// Puts the last samples behind `out`: as many in all as the duration has at the new rate, rounded up.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        if self.from == self.to {
            return;
        }
        let all = (u128::from(self.taken) * u128::from(self.to)).div_ceil(self.from.into());
        self.held.extend(std::iter::repeat_n(0.0, self.taps));
        self.make(all as u64, out);
    }

    /// Makes samples up to that number, as far as their neighbours are here.
    fn make(&mut self, end: u64, out: &mut Vec<f32>) {
        while self.given < end {
            let at = u128::from(self.given) * u128::from(self.from);
            let (whole, rest) = (at / u128::from(self.to), (at % u128::from(self.to)) as u64);
            let first = whole as i64 + 1 - (self.taps / 2) as i64 - self.passed;
            let first = first as usize;
            let Some(held) = self.held.get(first..first + self.taps) else {
                break;
            };
            let weights = |place: u64| &self.weights[place as usize * self.taps..][..self.taps];
            let made = if self.places == self.to {
                weighted(held, weights(rest))
            } else {
                let place = rest * self.places / self.to;
                let within = (rest * self.places % self.to) as f32 / self.to as f32;
                let before = weighted(held, weights(place));
                before + (weighted(held, weights(place + 1)) - before) * within
            };
            out.push(made);
            self.given += 1;
        }
        // What no later sample needs goes.
        let next = u128::from(self.given) * u128::from(self.from) / u128::from(self.to);
        let needed = next as i64 + 1 - (self.taps / 2) as i64 - self.passed;
        let gone = (needed.max(0) as usize).min(self.held.len());
        self.held.drain(..gone);
        self.passed += gone as i64;
    }
}

odeon_simd::simd! {
    /// The sum of products, in the same order on every processor.
    fn weighted(samples: &[f32], weights: &[f32]) -> f32 {
        let mut sums = [0.0_f32; 16];
        let (samples, rest) = samples.as_chunks::<16>();
        let (weights, few) = weights.as_chunks::<16>();
        for (samples, weights) in samples.iter().zip(weights) {
            for ((sum, sample), weight) in sums.iter_mut().zip(samples).zip(weights) {
                *sum += sample * weight;
            }
        }
        let rest: f32 = rest.iter().zip(few).map(|(sample, weight)| sample * weight).sum();
        sums.iter().sum::<f32>() + rest
    }
}

/// The weight at a distance in samples of the lower rate.
fn weight(at: f64) -> f64 {
    let part = at / ZEROS;
    if part.abs() >= 1.0 {
        return 0.0;
    }
    let angle = std::f64::consts::PI * at * CUT;
    let sinc = if angle == 0.0 {
        1.0
    } else {
        angle.sin() / angle
    };
    sinc * bessel(BETA * (1.0 - part * part).sqrt())
}

/// The modified Bessel function of order zero, by its series.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..64 {
        term *= (x / (2.0 * f64::from(k))).powi(2);
        sum += term;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Samples of the lower rate on each side.
const ZEROS: f64 = 64.0;

/// Where the low-pass cuts, as a part of half the lower rate.
const CUT: f64 = 0.95;
const BETA: f64 = 10.0;

/// More places between two samples are taken between the nearest two of these.
const PLACES_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use proptest::prelude::*;

    use super::*;

    fn all(from: u32, to: u32, samples: &[f32]) -> Vec<f32> {
        let (mut resampler, mut out) = (Resampler::new(from, to), vec![]);
        resampler.push(samples, &mut out);
        resampler.finish(&mut out);
        out
    }

    fn sine(hertz: f64, rate: u32, count: usize) -> Vec<f32> {
        let at = |n: usize| (TAU * hertz * n as f64 / f64::from(rate)).sin() as f32;
        (0..count).map(at).collect()
    }

    fn decibels(part: f64) -> f64 {
        20.0 * part.max(1e-12).log10()
    }

    /// The largest sample in the middle, away from both ends.
    fn loudest(samples: &[f32]) -> f64 {
        let middle = &samples[samples.len() / 4..samples.len() * 3 / 4];
        middle
            .iter()
            .fold(0.0, |most, sample| f64::from(sample.abs()).max(most))
    }

    // SEMANTICS 226.
    #[test]
    fn what_is_heard_stays_and_what_would_be_another_tone_goes() {
        let rates = [
            8000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000, 44_101, 15_999,
        ];
        for from in rates {
            let lower = f64::from(from.min(16_000)) / 2.0;
            for part in [0.02, 0.3, 0.6, 0.8, 0.9] {
                let hertz = lower * part;
                let made = all(from, 16_000, &sine(hertz, from, from as usize / 4));
                let expect = sine(hertz, 16_000, made.len());
                let apart: Vec<f32> = made.iter().zip(&expect).map(|(a, b)| a - b).collect();
                let apart = decibels(loudest(&apart));
                assert!(apart < -65.0, "{from} at {part}: {apart:.1} dB");
            }
            if from > 16_000 {
                for part in [1.0, 1.05, 1.3] {
                    let hertz = lower * part;
                    if hertz >= f64::from(from) / 2.0 {
                        continue;
                    }
                    let left = decibels(loudest(&all(
                        from,
                        16_000,
                        &sine(hertz, from, from as usize / 4),
                    )));
                    assert!(left < -90.0, "{from} at {part}: {left:.1} dB");
                }
            }
        }
    }

    // SEMANTICS 226.
    #[test]
    fn a_constant_stays_one_and_the_duration_is_kept() {
        for (from, to) in [
            (44_100, 16_000),
            (8000, 16_000),
            (48_000, 16_000),
            (16_000, 44_100),
            (44_101, 16_000),
        ] {
            let made = all(from, to, &vec![0.5; 20_000]);
            let count = (20_000 * u64::from(to)).div_ceil(u64::from(from));
            assert_eq!(made.len() as u64, count);
            let apart = loudest(&made.iter().map(|sample| sample - 0.5).collect::<Vec<f32>>());
            assert!(apart < 2e-6, "{from} to {to}: {apart}");
        }
        assert_eq!(all(16_000, 16_000, &[0.1, -0.7]), [0.1, -0.7]);
        assert!(all(44_100, 16_000, &[]).is_empty());
    }

    proptest! {
        // SEMANTICS 226.
        #[test]
        fn it_is_the_same_however_samples_come(
            samples in prop::collection::vec(-1.0_f32..1.0, 0..3000),
            cuts in prop::collection::vec(0_usize..700, 0..12),
            rates in prop::sample::select(vec![(44_100, 16_000), (8000, 16_000), (48_000, 16_000), (16_001, 16_000)]),
        ) {
            let once = all(rates.0, rates.1, &samples);
            let (mut resampler, mut out) = (Resampler::new(rates.0, rates.1), vec![]);
            let mut rest = &samples[..];
            for cut in cuts {
                let (part, more) = rest.split_at(cut.min(rest.len()));
                resampler.push(part, &mut out);
                rest = more;
            }
            resampler.push(rest, &mut out);
            resampler.finish(&mut out);
            prop_assert_eq!(once, out);
        }
    }
}
