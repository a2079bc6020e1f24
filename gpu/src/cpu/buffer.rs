//! Cache-line aligned memory.

use std::fmt;

/// Owned f32 elements that start on a cache line.
#[derive(Default)]
pub struct CpuBuffer {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl CpuBuffer {
    /// `len` zeros.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        Self {
            lines: vec![Line([0.0; 16]); len.div_ceil(16)],
            len,
        }
    }

    /// The elements.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: `Line` is sixteen f32 without padding, and `len` is at most 16 times their count.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// The elements, to write.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl fmt::Debug for CpuBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
