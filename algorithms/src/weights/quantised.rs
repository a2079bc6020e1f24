//! Element encodings of GGUF tensors.
//!
//! Block layouts are ggml's. A block of 32 weights shares a scale `d`, and in `Q4_1` and `Q5_1` an
//! offset `m`, each a little-endian `f16`; its nibbles hold weights 0 to 15 in the low halves and 16 to
//! 31 in the high ones. A K-block of 256 weights has a scale, and for some an offset, of whose small
//! multiples there is one for each 16 or 32 weights.

use half::{bf16, f16};

/// The storage format of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// The upper half of 32-bit floating point.
    Bf16,
    /// 64-bit floating point, rounded.
    F64,
    /// 18 bytes for 32 weights: `d (q - 8)` with four-bit `q`.
    Q4_0,
    /// 20 bytes for 32 weights: `d q + m` with four-bit `q`.
    Q4_1,
    /// 22 bytes for 32 weights: `d (q - 16)` with five-bit `q`.
    Q5_0,
    /// 24 bytes for 32 weights: `d q + m` with five-bit `q`.
    Q5_1,
    /// 34 bytes for 32 weights: `d q` with signed eight-bit `q`.
    Q8_0,
    /// 84 bytes for 256 weights: two-bit `q`, multiples of scale and offset of four bits.
    Q2K,
    /// 110 bytes for 256 weights: three-bit `q`, multiples of the scale of six bits.
    Q3K,
    /// 144 bytes for 256 weights: four-bit `q`, multiples of scale and offset of six bits.
    Q4K,
    /// 176 bytes for 256 weights: five-bit `q`, multiples of scale and offset of six bits.
    Q5K,
    /// 210 bytes for 256 weights: six-bit `q`, multiples of the scale of eight bits.
    Q6K,
}

impl Encoding {
    /// The encoding with ggml's type number.
    ///
    /// # Errors
    /// The name of one that is not supported.
    pub fn from_ggml(kind: u32) -> Result<Self, String> {
        Ok(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            28 => Self::F64,
            30 => Self::Bf16,
            other => {
                let named = OTHERS.iter().find(|(number, _)| *number == other);
                return Err(named.map_or_else(
                    || format!("encoding number {other} of ggml"),
                    |(_, name)| format!("encoding {name}"),
                ));
            }
        })
    }

    /// Number of elements that are stored together.
    #[must_use]
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::F64 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// The size of a block in bytes.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Decodes whole blocks; bytes after the last whole block are ignored.
    #[must_use]
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let blocks = bytes.chunks_exact(self.block_bytes());
        let mut values = Vec::with_capacity(blocks.len() * self.block_elements());
        blocks.for_each(|block| self.block(block, &mut values));
        values
    }

    fn block(self, block: &[u8], values: &mut Vec<f32>) {
        let at = |at| half_at(block, at);
        match self {
            Self::F64 => values.push(f64::from_le_bytes(first(block)) as f32),
            Self::F32 => values.push(f32::from_le_bytes(first(block))),
            Self::F16 => values.push(at(0)),
            Self::Bf16 => values.push(bf16::from_le_bytes(first(block)).to_f32()),
            Self::Q4_0 => nibbles(&block[2..], 0, |q| at(0) * (f32::from(q) - 8.0), values),
            Self::Q4_1 => nibbles(&block[4..], 0, |q| at(0) * f32::from(q) + at(2), values),
            Self::Q5_0 => {
                let high = u32::from_le_bytes(first(&block[2..]));
                let weight = |q| at(0) * (f32::from(q) - 16.0);
                nibbles(&block[6..], high, weight, values);
            }
            Self::Q5_1 => {
                let high = u32::from_le_bytes(first(&block[4..]));
                nibbles(&block[8..], high, |q| at(0) * f32::from(q) + at(2), values);
            }
            Self::Q8_0 => {
                let all = block[2..].iter();
                values.extend(all.map(|q| at(0) * f32::from(q.cast_signed())));
            }
            Self::Q2K => q2_k(block, values),
            Self::Q3K => q3_k(block, values),
            Self::Q4K => {
                let (scales, low) = block[4..].split_at(12);
                pairs_k([at(0), at(2)], scales, low, &[0; 32], values);
            }
            Self::Q5K => {
                let (scales, rest) = block[4..].split_at(12);
                let (high, low) = rest.split_at(32);
                pairs_k([at(0), at(2)], scales, low, high, values);
            }
            Self::Q6K => q6_k(block, values),
        }
    }
}

/// Types of ggml that are not read.
const OTHERS: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Weights of nibbles, each with a fifth bit out of `high`.
fn nibbles(bytes: &[u8], high: u32, weight: impl Fn(u8) -> f32, values: &mut Vec<f32>) {
    let fifth = |at: usize| (((high >> at) & 1) << 4) as u8;
    let low = bytes.iter().enumerate();
    values.extend(low.map(|(at, byte)| weight(byte & 15 | fifth(at))));
    let high = bytes.iter().zip(bytes.len()..);
    values.extend(high.map(|(byte, at)| weight(byte >> 4 | fifth(at))));
}

/// Multiples of scales and offsets [16], `q` [64], scale, offset.
fn q2_k(block: &[u8], values: &mut Vec<f32>) {
    let (scale, offset) = (half_at(block, 80), half_at(block, 82));
    let mut multiples = block[..16].iter();
    for half in block[16..80].chunks_exact(32) {
        for shift in [0, 2, 4, 6] {
            for (bytes, multiple) in half.chunks_exact(16).zip(&mut multiples) {
                let scale = scale * f32::from(multiple & 15);
                let offset = offset * f32::from(multiple >> 4);
                let weights = bytes.iter().map(|byte| f32::from((byte >> shift) & 3));
                values.extend(weights.map(|q| scale * q - offset));
            }
        }
    }
}

/// High bits [32], low bits [64], multiples of the scale [12], scale.
fn q3_k(block: &[u8], values: &mut Vec<f32>) {
    let scale = half_at(block, 108);
    let packed = &block[96..108];
    // Four low bits of sixteen multiples in eight bytes, and their two high bits in four.
    let multiple = |number: usize| {
        let low = match number < 8 {
            true => packed[number] & 15,
            false => packed[number - 8] >> 4,
        };
        let high = (packed[8 + number % 4] >> (2 * (number / 4))) & 3;
        f32::from(low | high << 4) - 32.0
    };
    let mut number = 0;
    for (half, bytes) in block[32..96].chunks_exact(32).enumerate() {
        for shift in 0..4 {
            let bit = 1_u8 << (4 * half + shift);
            for part in [0, 16] {
                let scale = scale * multiple(number);
                number += 1;
                let high = &block[part..part + 16];
                let weights = bytes[part..part + 16].iter().zip(high).map(|(low, high)| {
                    let missing = if high & bit == 0 { 4.0 } else { 0.0 };
                    f32::from((low >> (2 * shift)) & 3) - missing
                });
                values.extend(weights.map(|q| scale * q));
            }
        }
    }
}

/// Weights of eight groups of 32, two in each 32 bytes of nibbles, with a fifth bit out of `high`.
fn pairs_k(
    [scale, offset]: [f32; 2],
    packed: &[u8],
    low: &[u8],
    high: &[u8],
    values: &mut Vec<f32>,
) {
    // Six bits of each: those of the first four by themselves, those of the others in two parts.
    let multiples = |group: usize| match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => (
            packed[group + 4] & 15 | (packed[group - 4] >> 6) << 4,
            packed[group + 4] >> 4 | (packed[group] >> 6) << 4,
        ),
    };
    for group in 0..8 {
        let (of_scale, of_offset) = multiples(group);
        let scale = scale * f32::from(of_scale);
        let offset = offset * f32::from(of_offset);
        let bytes = low[32 * (group / 2)..].iter().zip(high);
        let weights = bytes.map(|(byte, high)| {
            let nibble = (byte >> (4 * (group % 2))) & 15;
            f32::from(nibble | ((high >> group) & 1) << 4)
        });
        values.extend(weights.map(|q| scale * q - offset));
    }
}

/// Low nibbles [128], high pairs of bits [64], multiples of the scale [16], scale.
fn q6_k(block: &[u8], values: &mut Vec<f32>) {
    let scale = half_at(block, 208);
    let multiples = &block[192..208];
    for half in 0..2 {
        let low = &block[64 * half..][..64];
        let high = &block[128 + 32 * half..][..32];
        for quarter in 0..4 {
            let nibbles = &low[32 * (quarter % 2)..][..32];
            for (at, (nibble, high)) in nibbles.iter().zip(high).enumerate() {
                let nibble = (nibble >> (4 * (quarter / 2))) & 15;
                let q = f32::from(nibble | ((high >> (2 * quarter)) & 3) << 4) - 32.0;
                let multiple = multiples[8 * half + 2 * quarter + at / 16].cast_signed();
                values.push(scale * f32::from(multiple) * q);
            }
        }
    }
}
