//! Elements that can be reduced, and the loops that reduce them.

use std::fmt;

use bytemuck::Pod;
use half::bf16;
use odeon_simd::simd;

/// A number that collectives move and reduce. Reductions add in f32 and round once, when the
/// result is finished.
pub trait Element: Pod + PartialEq + Default + fmt::Debug + Send + Sync + private::Sealed {
    /// Its name on the wire.
    const TYPE: ElementType;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;
}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
}

/// The type of the elements of a call. Communicators outside of this crate name each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of an f32.
    Bf16,
}

impl ElementType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// The reduction of the elements at one index to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their sum over the number of ranks.
    Mean,
    /// The largest. A NaN wins, so that it is seen.
    Max,
    /// The smallest. A NaN wins, so that it is seen.
    Min,
}

impl Reduce {
    /// The factor on a sum over `world` ranks.
    pub(super) fn scale(self, world: usize) -> f32 {
        match self {
            Self::Mean => 1.0 / world as f32,
            Self::Sum | Self::Max | Self::Min => 1.0,
        }
    }
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
        })
    }
}

/// Combines `from`, f32 as they lie in memory, into `sums`; both hold the same number.
pub(super) fn combine_sums(sums: &mut [f32], from: &[u8], reduce: Reduce) {
    match reduce {
        Reduce::Sum | Reduce::Mean => add(sums, from),
        Reduce::Max => max(sums, from),
        Reduce::Min => min(sums, from),
    }
}

/// Combines `from`, elements of `kind` as they lie in memory, into `sums`.
pub(super) fn combine(sums: &mut [f32], from: &[u8], kind: ElementType, reduce: Reduce) {
    match (kind, reduce) {
        (ElementType::F32, _) => combine_sums(sums, from, reduce),
        (ElementType::Bf16, Reduce::Sum | Reduce::Mean) => add_bf16(sums, from),
        (ElementType::Bf16, Reduce::Max) => max_bf16(sums, from),
        (ElementType::Bf16, Reduce::Min) => min_bf16(sums, from),
    }
}

/// Begins a reduction with `from`, elements of `kind`.
pub(super) fn load(sums: &mut [f32], from: &[u8], kind: ElementType) {
    match kind {
        ElementType::F32 => bytemuck::cast_slice_mut::<f32, u8>(sums).copy_from_slice(from),
        ElementType::Bf16 => widen(sums, from),
    }
}

/// Ends a reduction: scaled and rounded to elements of `kind`.
pub(super) fn finish(into: &mut [u8], sums: &[f32], kind: ElementType, scale: f32) {
    match kind {
        ElementType::F32 => scale_into(into, sums, scale),
        ElementType::Bf16 => round_into(into, sums, scale),
    }
}

/// Reduces the elements of all ranks, in rank order, into `into`. `parts` gives the bytes of a rank
/// between two offsets.
pub(super) fn fold<'a>(
    into: &mut [u8],
    kind: ElementType,
    reduce: Reduce,
    world: usize,
    parts: impl Fn(usize, std::ops::Range<usize>) -> &'a [u8],
) {
    // In blocks that stay in the first-level cache, so that every part is read once from where it is
    // and nothing else leaves the cache.
    const BLOCK: usize = 2048;
    let mut sums = [0.0f32; BLOCK];
    let size = kind.bytes();
    let scale = reduce.scale(world);
    let mut start = 0;
    for block in into.chunks_mut(BLOCK * size) {
        let range = start..start + block.len();
        let sums = &mut sums[..block.len() / size];
        load(sums, parts(0, range.clone()), kind);
        for rank in 1..world {
            combine(sums, parts(rank, range.clone()), kind, reduce);
        }
        finish(block, sums, kind, scale);
        start = range.end;
    }
}

simd! {
    fn add(sums: &mut [f32], from: &[u8]) {
        for (sum, bytes) in sums.iter_mut().zip(from.as_chunks::<4>().0) {
            *sum += f32::from_ne_bytes(*bytes);
        }
    }

    fn max(sums: &mut [f32], from: &[u8]) {
        for (sum, bytes) in sums.iter_mut().zip(from.as_chunks::<4>().0) {
            *sum = larger(*sum, f32::from_ne_bytes(*bytes));
        }
    }

    fn min(sums: &mut [f32], from: &[u8]) {
        for (sum, bytes) in sums.iter_mut().zip(from.as_chunks::<4>().0) {
            *sum = smaller(*sum, f32::from_ne_bytes(*bytes));
        }
    }

    fn add_bf16(sums: &mut [f32], from: &[u8]) {
        for (sum, bytes) in sums.iter_mut().zip(from.as_chunks::<2>().0) {
            *sum += wide(*bytes);
        }
    }

    fn max_bf16(sums: &mut [f32], from: &[u8]) {
        for (sum, bytes) in sums.iter_mut().zip(from.as_chunks::<2>().0) {
            *sum = larger(*sum, wide(*bytes));
        }
    }

    fn min_bf16(sums: &mut [f32], from: &[u8]) {
        for (sum, bytes) in sums.iter_mut().zip(from.as_chunks::<2>().0) {
            *sum = smaller(*sum, wide(*bytes));
        }
    }

    fn widen(sums: &mut [f32], from: &[u8]) {
        for (sum, bytes) in sums.iter_mut().zip(from.as_chunks::<2>().0) {
            *sum = wide(*bytes);
        }
    }

    fn scale_into(into: &mut [u8], sums: &[f32], scale: f32) {
        for (bytes, sum) in into.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
            *bytes = (*sum * scale).to_ne_bytes();
        }
    }

    fn round_into(into: &mut [u8], sums: &[f32], scale: f32) {
        for (bytes, sum) in into.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
            *bytes = narrow(*sum * scale);
        }
    }

    /// `sums *= scale`.
    pub(super) fn scale_sums(sums: &mut [f32], scale: f32) {
        for sum in sums {
            *sum *= scale;
        }
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if b < a || b.is_nan() { b } else { a }
}

#[inline(always)]
fn wide(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
}

/// To the nearest, ties to even; a NaN stays one.
#[inline(always)]
fn narrow(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    let kept = if value.is_nan() { nan } else { rounded };
    (kept as u16).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bf16_is_widened_and_rounded_as_by_the_half_crate(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assert_eq!(u16::from_ne_bytes(narrow(value)), bf16::from_f32(value).to_bits());
            let upper = bf16::from_bits((bits >> 16) as u16);
            prop_assert_eq!(wide(upper.to_bits().to_ne_bytes()).to_bits(), upper.to_bits().wrapping_shl(0) as u32 * 65536);
        }
    }

    #[test]
    fn a_nan_wins_and_signs_are_kept() {
        for kind in [ElementType::F32, ElementType::Bf16] {
            for reduce in [Reduce::Max, Reduce::Min] {
                for nan_at in 0..3 {
                    let parts: Vec<Vec<u8>> = (0..3)
                        .map(|rank| {
                            let value = if rank == nan_at { f32::NAN } else { -1.0 };
                            match kind {
                                ElementType::F32 => value.to_ne_bytes().to_vec(),
                                ElementType::Bf16 => narrow(value).to_vec(),
                            }
                        })
                        .collect();
                    let mut out = vec![0; kind.bytes()];
                    fold(&mut out, kind, reduce, 3, |rank, range| &parts[rank][range]);
                    let mut sum = [0.0];
                    load(&mut sum, &out, kind);
                    assert!(sum[0].is_nan(), "{kind} {reduce} {nan_at}");
                }
            }
        }
        let parts = [(-2.0f32).to_ne_bytes(), (-1.0f32).to_ne_bytes()];
        let mut out = [0; 4];
        fold(&mut out, ElementType::F32, Reduce::Max, 2, |rank, range| {
            &parts[rank][range]
        });
        assert_eq!(f32::from_ne_bytes(out), -1.0);
    }
}
