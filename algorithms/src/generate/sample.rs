//! Draws a token from a row of probabilities.

use super::Sampling;

/// A drawn token, and the probability of all that could have been drawn: 1 for the whole vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Draw {
    pub(super) token: usize,
    pub(super) mass: f64,
}

/// A uniform number in [0, 1) for draw `index` of a sequence: SplitMix64 (Steele et al. 2014) over
/// seed and index, so draws need no state.
pub(super) fn uniform(seed: u64, index: u64) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let start = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let z = mix(start.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws from `probs`, which sum to about one; `order` is scratch memory.
pub(super) fn draw(probs: &[f32], sampling: &Sampling, uniform: f64, order: &mut Vec<u32>) -> Draw {
    if sampling.temperature == 0.0 {
        return Draw {
            token: most_likely(probs),
            mass: 1.0,
        };
    }
    if sampling.top_p >= 1.0 {
        let total: f64 = probs.iter().map(|&p| f64::from(p)).sum();
        let token = pick(probs.iter().copied().enumerate(), uniform * total);
        return Draw { token, mass: 1.0 };
    }
    order.clear();
    order.extend(0..probs.len() as u32);
    // Ties are broken by the token, so that the order is always the same.
    let prob = |t: u32| probs[t as usize];
    order.sort_unstable_by(|&a, &b| prob(b).total_cmp(&prob(a)).then(a.cmp(&b)));
    let mut mass = 0.0;
    let mut kept = 0;
    for &token in order.iter() {
        mass += f64::from(prob(token));
        kept += 1;
        if mass >= f64::from(sampling.top_p) {
            break;
        }
    }
    let nucleus = order[..kept].iter().map(|&t| (t as usize, prob(t)));
    let token = pick(nucleus, uniform * mass);
    Draw { token, mass }
}

/// The first token at which the running sum passes `target`; rounding can make that none, then the
/// last token with a probability.
fn pick(tokens: impl Iterator<Item = (usize, f32)>, target: f64) -> usize {
    let mut sum = 0.0;
    let mut last = 0;
    for (token, p) in tokens {
        if p > 0.0 {
            last = token;
            sum += f64::from(p);
            if sum > target {
                break;
            }
        }
    }
    last
}

fn most_likely(probs: &[f32]) -> usize {
    let mut best = 0;
    for (token, p) in probs.iter().enumerate() {
        if *p > probs[best] {
            best = token;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: &Sampling) -> [f64; 4] {
        let probs = [0.1, 0.5, 0.15, 0.25];
        let mut counts = [0.0; 4];
        let mut order = Vec::new();
        for i in 0..40_000 {
            let Draw { token, .. } = draw(&probs, sampling, uniform(3, i), &mut order);
            counts[token] += 1.0 / 40_000.0;
        }
        counts
    }

    fn near(got: [f64; 4], want: [f64; 4]) {
        // Five standard deviations of a frequency over 40,000 draws.
        assert!(
            got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.0125),
            "{got:?}"
        );
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_probability() {
        near(frequencies(&Sampling::default()), [0.1, 0.5, 0.15, 0.25]);
        let nucleus = Sampling {
            top_p: 0.7,
            ..Sampling::default()
        };
        near(frequencies(&nucleus), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]);
        let greedy = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        near(frequencies(&greedy), [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn the_mass_is_that_of_the_truncated_distribution() {
        let nucleus = Sampling {
            top_p: 0.7,
            ..Sampling::default()
        };
        let Draw { token, mass } = draw(&[0.1, 0.5, 0.15, 0.25], &nucleus, 0.99, &mut Vec::new());
        assert_eq!(token, 3);
        assert!((mass - 0.75).abs() < 1e-6);
    }
}
