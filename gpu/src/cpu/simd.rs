//! Arithmetic for loops that are compiled for several instruction sets, and the exponential without
//! libm.

/// Partial sums of reductions; two AVX-512 registers hide the latency of an addition.
pub(super) const LANES: usize = 32;

/// `a * b + c`, fused where that is one instruction.
#[inline(always)]
pub(super) fn madd<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Sum of `f` over indices, in an order that depends on the length only.
#[inline(always)]
pub(super) fn reduce(len: usize, f: impl Fn(f32, usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = len / LANES * LANES;
    let mut base = 0;
    while base < whole {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane = f(*lane, base + l);
        }
        base += LANES;
    }
    for (l, i) in (whole..len).enumerate() {
        lanes[l] = f(lanes[l], i);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Largest element; minus infinity for none.
#[inline(always)]
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for chunk in whole {
        for l in 0..LANES {
            lanes[l] = if chunk[l] > lanes[l] {
                chunk[l]
            } else {
                lanes[l]
            };
        }
    }
    for (l, v) in rest.iter().enumerate() {
        lanes[l] = if *v > lanes[l] { *v } else { lanes[l] };
    }
    lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// `e^x` with a relative error below 2e-7; clamped to `[e^-87, e^88]`, NaN stays NaN.
///
/// Cody-Waite reduction to `|r| <= ln2/2` and the degree-6 polynomial of Cephes' `expf`.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = madd::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = madd::<FMA>(n, -0.693_359_4, x);
    let r = madd::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    p = madd::<FMA>(p, r, 1.398_199_9e-3);
    p = madd::<FMA>(p, r, 8.333_452e-3);
    p = madd::<FMA>(p, r, 4.166_579_6e-2);
    p = madd::<FMA>(p, r, 1.666_666_5e-1);
    p = madd::<FMA>(p, r, 0.5);
    p = madd::<FMA>(p * r, r, r) + 1.0;
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// Logistic function.
#[inline(always)]
pub(super) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

#[cfg(test)]
mod tests {
    use odeon_simd::simd;

    use super::*;

    simd! {
        fn exp_all(values: &mut [f32]) {
            for v in values {
                *v = exp::<FMA>(*v);
            }
        }
    }

    #[test]
    fn exp_stays_within_its_stated_error_on_the_whole_range() {
        let inputs: Vec<f32> = (-870_000..880_000)
            .step_by(7)
            .map(|i| i as f32 * 1e-4)
            .collect();
        let mut outputs = inputs.clone();
        exp_all(&mut outputs);
        for (x, y) in inputs.iter().zip(&outputs) {
            let want = f64::from(*x).exp();
            assert!((f64::from(*y) / want - 1.0).abs() < 2e-7, "exp({x}) = {y}");
        }
        let mut edge = [f32::NEG_INFINITY, f32::NAN, 0.0];
        exp_all(&mut edge);
        assert!(edge[0] < 1e-37 && edge[1].is_nan() && edge[2] == 1.0);
    }

    #[test]
    fn reductions_cover_every_length() {
        for len in 0..100 {
            assert_eq!(
                reduce(len, |s, i| s + i as f32),
                (len * len.saturating_sub(1) / 2) as f32
            );
            let values: Vec<f32> = (0..len).map(|i| -(i as f32)).collect();
            assert_eq!(max(&values), if len == 0 { f32::NEG_INFINITY } else { 0.0 });
        }
    }
}
