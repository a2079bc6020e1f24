//! Element encodings of GGUF tensors.
//!
//! Block layouts are ggml's: a block of 32 weights shares a scale `d`, and in `Q4_1` an offset `m`,
//! each a little-endian `f16`. The sixteen bytes of a four-bit block hold weights 0 to 15 in their
//! low halves and 16 to 31 in their high halves.

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
    /// 18 bytes for 32 weights: `d (q - 8)` with four-bit `q`.
    Q4_0,
    /// 20 bytes for 32 weights: `d q + m` with four-bit `q`.
    Q4_1,
    /// 34 bytes for 32 weights: `d q` with signed eight-bit `q`.
    Q8_0,
}

impl Encoding {
    /// The encoding with ggml's type number, if it is supported.
    #[must_use]
    pub fn from_ggml(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// Number of elements that are stored together.
    #[must_use]
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => 32,
        }
    }

    /// The size of a block in bytes.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }

    /// Decodes whole blocks; bytes after the last whole block are ignored.
    #[must_use]
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let blocks = bytes.chunks_exact(self.block_bytes());
        let mut values = Vec::with_capacity(blocks.len() * self.block_elements());
        for block in blocks {
            match self {
                Self::F32 => {
                    values.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]]));
                }
                Self::F16 => values.push(half_at(block, 0)),
                Self::Bf16 => values.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
                Self::Q4_0 => {
                    let scale = half_at(block, 0);
                    nibbles(&block[2..], |q| scale * (f32::from(q) - 8.0), &mut values);
                }
                Self::Q4_1 => {
                    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
                    nibbles(&block[4..], |q| scale * f32::from(q) + offset, &mut values);
                }
                Self::Q8_0 => {
                    let scale = half_at(block, 0);
                    values.extend(
                        block[2..]
                            .iter()
                            .map(|&q| scale * f32::from(q.cast_signed())),
                    );
                }
            }
        }
        values
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn nibbles(bytes: &[u8], weight: impl Fn(u8) -> f32, values: &mut Vec<f32>) {
    values.extend(bytes.iter().map(|byte| weight(byte & 15)));
    values.extend(bytes.iter().map(|byte| weight(byte >> 4)));
}
