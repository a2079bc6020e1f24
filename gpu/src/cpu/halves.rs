//! Numbers as bf16, two in each f32 of a buffer.

use odeon_simd::simd;

/// The upper half of a number, rounded to the nearest and of two that are as near to the even one.
#[inline(always)]
fn rounded(number: f32) -> u32 {
    let bits = number.to_bits();
    let upper = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // One that is not a number stays so, and is never rounded to infinity.
    match number.is_nan() {
        true => (bits >> 16) | 0x40,
        false => upper,
    }
}

simd! {
    /// Two numbers in each of `dst`, the first in its low half.
    pub(super) fn narrow(src: &[f32], dst: &mut [f32]) {
        for (pair, [low, high]) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
            *pair = f32::from_bits(rounded(*low) | (rounded(*high) << 16));
        }
    }

    /// The other way round.
    pub(super) fn widen(src: &[f32], dst: &mut [f32]) {
        for ([low, high], pair) in dst.as_chunks_mut::<2>().0.iter_mut().zip(src) {
            let bits = pair.to_bits();
            *low = f32::from_bits(bits << 16);
            *high = f32::from_bits(bits & 0xffff_0000);
        }
    }
}
