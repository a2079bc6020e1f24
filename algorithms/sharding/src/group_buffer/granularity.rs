//! Blocks beside a cut along another dimension, and the arithmetic of common multiples.

use super::error::BlockError;

/// The block of a tensor that is also cut evenly along dimension `dim` behind the first one, by tensor
/// parallelism say: the least common multiple of the block that its user wants and of one slice, the
/// elements of all indices of `dim` and of the dimensions behind it. `shape` is that of the part that
/// lies in the buffer, after the cut along `dim`; all sizes are in elements of it.
///
/// A ragged cut between whole slices takes as many indices of the dimensions in front of `dim` from each
/// part along `dim`, so the two cuts may be undone in either order. A multiple of the stride of `dim`
/// alone, which is shorter by the size of `dim`, would cut through the slice.
///
/// # Errors
/// [`BlockError`]: a block or a dimension of nothing, no such dimension, or sizes that overflow.
pub fn block_beside_shard(block: usize, shape: &[usize], dim: usize) -> Result<usize, BlockError> {
    if block == 0 {
        return Err(BlockError::NoBlock);
    }
    if dim == 0 || dim >= shape.len() {
        let dims = shape.len();
        return Err(BlockError::NoDim { dim, dims });
    }
    if let Some(dim) = shape.iter().position(|size| *size == 0) {
        return Err(BlockError::EmptyDim { dim });
    }
    let sizes = shape[dim..].iter();
    let slice = sizes.fold(1usize, |slice, size| slice.saturating_mul(*size));
    let fits = (slice < usize::MAX).then_some(slice);
    fits.and_then(|slice| lcm(block, slice))
        .ok_or(BlockError::TooLarge { block, slice })
}

/// The greatest common divisor.
pub(super) const fn gcd(a: usize, b: usize) -> usize {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The least common multiple of two numbers above 0; `None` where it overflows.
pub(super) fn lcm(a: usize, b: usize) -> Option<usize> {
    (a / gcd(a, b)).checked_mul(b)
}
