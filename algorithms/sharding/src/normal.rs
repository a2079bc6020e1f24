//! Quantiles of the normal distribution, of arithmetic and square roots alone: the same bits on every
//! machine, which the logarithms of systems are not.

/// Coefficients of algorithm AS 241, PPND16 (Wichura 1988, "The percentage points of the normal
/// distribution"), the highest power first: numerator and denominator for the middle, and for the tails.
const MIDDLE: [[f64; 8]; 2] = [
    [
        2509.0809287301227,
        33430.57558358813,
        67265.7709270087,
        45921.95393154987,
        13731.69376550946,
        1971.5909503065513,
        133.14166789178438,
        3.3871328727963665,
    ],
    [
        5226.495278852854,
        28729.085735721943,
        39307.89580009271,
        21213.794301586597,
        5394.196021424751,
        687.1870074920579,
        42.31333070160091,
        1.0,
    ],
];
const TAIL: [[f64; 8]; 2] = [
    [
        0.0007745450142783414,
        0.022723844989269184,
        0.2417807251774506,
        1.2704582524523684,
        3.6478483247632045,
        5.769497221460691,
        4.630337846156546,
        1.4234371107496835,
    ],
    [
        1.0507500716444169e-09,
        0.0005475938084995345,
        0.015198666563616457,
        0.14810397642748008,
        0.6897673349851,
        1.6763848301838038,
        2.053191626637759,
        1.0,
    ],
];

/// The number below which `(word + 0.5) / 2^32` of all numbers of the standard normal distribution lie.
/// The third case of AS 241, beyond 7.5 deviations, is out of reach for 32 bits.
pub(crate) fn quantile(word: u32) -> f64 {
    let below = (f64::from(word) + 0.5) / 2f64.powi(32);
    let from_middle = below - 0.5;
    if from_middle.abs() <= 0.425 {
        return from_middle * ratio(&MIDDLE, 0.180_625 - from_middle * from_middle);
    }
    let tail = below.min(1.0 - below);
    let far = ratio(&TAIL, (-logarithm(tail)).sqrt() - 1.6);
    if from_middle < 0.0 { -far } else { far }
}

fn ratio(of: &[[f64; 8]; 2], at: f64) -> f64 {
    let [above, below] = of.map(|powers| powers.iter().fold(0.0, |sum, factor| sum * at + factor));
    above / below
}

/// The natural logarithm of a positive normal number, by `ln m = 2 atanh((m - 1) / (m + 1))` of its
/// mantissa: to about 1e-15 of itself far from 1.
fn logarithm(value: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    let bits = value.to_bits();
    let exponent = (bits >> MANTISSA_BITS) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << MANTISSA_BITS) - 1) | 1023 << MANTISSA_BITS);
    let small = (mantissa - 1.0) / (mantissa + 1.0);
    let square = small * small;
    // It is below 1/3: the first term that is left out is below 1e-17.
    let series = (0..17)
        .rev()
        .fold(0.0, |sum, nth| sum * square + 1.0 / f64::from(2 * nth + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * small * series
}

#[cfg(test)]
mod tests {
    use super::{logarithm, quantile};

    /// Of Python's `statistics.NormalDist().inv_cdf`, which has its logarithms from the system.
    const KNOWN: [(u32, f64); 6] = [
        (0, -6.337957754553789),
        (1, -6.166429517819749),
        (12345, -4.535422762090429),
        (300000000, -1.4769151384691752),
        (2000000000, -0.08618094900448968),
        (4294967295, 6.337957754553789),
    ];

    #[test]
    fn quantiles_are_those_of_another_implementation() {
        for (word, known) in KNOWN {
            let found = quantile(word);
            assert!(
                (found - known).abs() <= 4e-15 * known.abs(),
                "{word}: {found} {known}"
            );
        }
    }

    #[test]
    fn both_halves_mirror_each_other_and_grow() {
        let words = (0..=u32::MAX / 2).step_by(9_999_991);
        let mut last = f64::NEG_INFINITY;
        for word in words {
            let quantile_here = quantile(word);
            assert!(quantile_here > last && quantile_here < 0.0);
            assert_eq!(quantile_here, -quantile(u32::MAX - word));
            last = quantile_here;
        }
    }

    #[test]
    fn logarithms_are_those_of_the_system() {
        for nth in 1..1000 {
            let value = f64::from(nth) * 7.5e-5;
            let (found, known) = (logarithm(value), value.ln());
            assert!(
                (found - known).abs() <= 1e-15 * known.abs(),
                "{value}: {found} {known}"
            );
        }
    }
}
