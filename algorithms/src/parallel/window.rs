//! Where a box lies in a buffer, and copying boxes between buffers.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::region::Region;

/// A box of an array that lies in a buffer, row by row, innermost dimension contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Window {
    start_bytes: usize,
    element_bytes: usize,
    shape: Vec<usize>,
    region: Region,
}

/// Why a box was not copied. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The box is not part of the array.
    #[error("the box {region} is not in an array of shape {shape:?}")]
    Outside {
        /// The box.
        region: Region,
        /// The array's extents.
        shape: Vec<usize>,
    },
    /// The array's bytes cannot be counted.
    #[error(
        "an array of shape {shape:?} with {element_bytes} bytes an element, from byte \
         {start_bytes} on, is larger than memory"
    )]
    TooLarge {
        /// Where the array begins.
        start_bytes: usize,
        /// Of one element.
        element_bytes: usize,
        /// The array's extents.
        shape: Vec<usize>,
    },
    /// The boxes have different extents or elements.
    #[error(
        "a box of {from:?} elements of {from_bytes} bytes does not fill one of {to:?} elements \
         of {to_bytes} bytes"
    )]
    Mismatch {
        /// Extents of the source.
        from: Vec<usize>,
        /// Bytes of its elements.
        from_bytes: usize,
        /// Extents of the target.
        to: Vec<usize>,
        /// Bytes of its elements.
        to_bytes: usize,
    },
    /// A buffer ends before the array does.
    #[error("the {which} has {bytes} bytes, and the array in it ends at {end_bytes}")]
    Short {
        /// `source` or `target`.
        which: &'static str,
        /// Bytes of the buffer.
        bytes: usize,
        /// Where the array ends in it.
        end_bytes: usize,
    },
    /// Within one buffer, a copy would overwrite what is still to be copied.
    #[error(
        "a copy from byte {source_at} to byte {target_at} of one buffer is out of order: it would \
         overwrite others"
    )]
    Order {
        /// Where the bytes lie.
        source_at: usize,
        /// Where they belong.
        target_at: usize,
    },
}

/// Bytes that lie next to each other in both buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRun {
    /// Where they begin in the source.
    pub source: usize,
    /// Where they begin in the target.
    pub target: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl Window {
    /// The box `region` of an array of `shape`, with elements of `element_bytes`, that begins at
    /// byte `start_bytes` of a buffer. The box is relative to the array.
    ///
    /// # Errors
    /// [`WindowError::Outside`] or [`WindowError::TooLarge`].
    pub fn new(
        start_bytes: usize,
        element_bytes: usize,
        shape: Vec<usize>,
        region: Region,
    ) -> Result<Self, WindowError> {
        if !region.is_in(&shape) {
            return Err(WindowError::Outside { region, shape });
        }
        let size = |bytes: Option<usize>, &extent: &usize| bytes?.checked_mul(extent.max(1));
        let bytes = shape.iter().fold(Some(element_bytes), size);
        if bytes.is_none_or(|bytes| bytes.checked_add(start_bytes).is_none()) {
            return Err(WindowError::TooLarge {
                start_bytes,
                element_bytes,
                shape,
            });
        }
        Ok(Self::inside(start_bytes, element_bytes, shape, region))
    }

    /// [`Window::new`] where the box is known to be in the array, and the array in memory.
    pub(super) const fn inside(
        start_bytes: usize,
        element_bytes: usize,
        shape: Vec<usize>,
        region: Region,
    ) -> Self {
        Self {
            start_bytes,
            element_bytes,
            shape,
            region,
        }
    }

    /// This box, where its array lies as a box in another one.
    pub(super) fn seen_through(&self, array: &Self) -> Self {
        Self {
            region: self.region.moved_by(&array.region),
            ..array.clone()
        }
    }

    /// Where the array begins in its buffer.
    #[must_use]
    pub const fn start_bytes(&self) -> usize {
        self.start_bytes
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// The array's extents.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The box, relative to the array.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Bytes of the box.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.region.elements() * self.element_bytes
    }

    /// Where the array ends in its buffer.
    #[must_use]
    pub fn end_bytes(&self) -> usize {
        self.start_bytes + self.shape.iter().product::<usize>() * self.element_bytes
    }

    /// The box as ranges of bytes of the buffer, in order, as few as there can be: what another
    /// process reads of it. One after the other, they are the box row by row.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let runs = Runs::new(self, self);
        runs.map(|run| run.source..run.source + run.bytes)
    }

    /// The bytes to copy from this box of one buffer into that of another, as few pieces as there
    /// can be, in order.
    ///
    /// # Errors
    /// [`WindowError::Mismatch`].
    pub fn runs_into(&self, target: &Self) -> Result<impl Iterator<Item = ByteRun>, WindowError> {
        let lengths = |window: &Self| window.region.lengths();
        let (from, to) = (lengths(self), lengths(target));
        if from != to || self.element_bytes != target.element_bytes {
            return Err(WindowError::Mismatch {
                from,
                from_bytes: self.element_bytes,
                to,
                to_bytes: target.element_bytes,
            });
        }
        Ok(Runs::new(self, target))
    }
}

/// Copies a box of one buffer into a box of another.
///
/// # Errors
/// [`WindowError::Mismatch`], or [`WindowError::Short`] when a buffer is not the one that is meant.
pub fn copy_box(
    source: &[u8],
    from: &Window,
    target: &mut [u8],
    to: &Window,
) -> Result<(), WindowError> {
    let runs = from.runs_into(to)?;
    let buffers = [
        ("source", source.len(), from.end_bytes()),
        ("target", target.len(), to.end_bytes()),
    ];
    for (which, bytes, end_bytes) in buffers {
        if bytes < end_bytes {
            return Err(WindowError::Short {
                which,
                bytes,
                end_bytes,
            });
        }
    }
    for run in runs {
        let piece = &source[run.source..run.source + run.bytes];
        target[run.target..run.target + run.bytes].copy_from_slice(piece);
    }
    Ok(())
}

/// Walks the rows of two boxes of the same extents.
#[derive(Debug)]
struct Runs {
    /// The next run, unless there is none.
    next: Option<ByteRun>,
    /// The dimensions outside of a run, innermost first.
    outer: Vec<Walk>,
}

/// One dimension: where the walk is, and what a step is worth.
#[derive(Debug)]
struct Walk {
    at: usize,
    length: usize,
    source_bytes: usize,
    target_bytes: usize,
}

impl Runs {
    /// The innermost dimensions that both boxes fill are contiguous in both arrays, and so is any
    /// range of the dimension around them.
    fn new(source: &Window, target: &Window) -> Self {
        let spans = || source.region.spans().iter().zip(target.region.spans());
        let mut run = ByteRun {
            source: source.start_bytes,
            target: target.start_bytes,
            bytes: source.element_bytes,
        };
        let mut strides = (source.element_bytes, target.element_bytes);
        let mut contiguous = true;
        let mut outer = vec![];
        let shapes = source.shape.iter().zip(&target.shape);
        for ((from, to), (&source_extent, &target_extent)) in spans().zip(shapes).rev() {
            run.source += from.offset * strides.0;
            run.target += to.offset * strides.1;
            if contiguous {
                run.bytes *= from.length;
            } else if from.length != 1 {
                outer.push(Walk {
                    at: 0,
                    length: from.length,
                    source_bytes: strides.0,
                    target_bytes: strides.1,
                });
            }
            contiguous &= from.length == source_extent && from.length == target_extent;
            strides = (strides.0 * source_extent, strides.1 * target_extent);
        }
        let empty = spans().any(|(span, _)| span.length == 0) || run.bytes == 0;
        Self {
            next: (!empty).then_some(run),
            outer,
        }
    }
}

impl Iterator for Runs {
    type Item = ByteRun;

    fn next(&mut self) -> Option<ByteRun> {
        let run = self.next?;
        let mut next = run;
        for walk in &mut self.outer {
            walk.at += 1;
            if walk.at < walk.length {
                next.source += walk.source_bytes;
                next.target += walk.target_bytes;
                self.next = Some(next);
                return Some(run);
            }
            walk.at = 0;
            next.source -= (walk.length - 1) * walk.source_bytes;
            next.target -= (walk.length - 1) * walk.target_bytes;
        }
        self.next = None;
        Some(run)
    }
}

/// A window as it is sent, not checked yet.
#[derive(Serialize, Deserialize)]
struct Raw {
    start_bytes: usize,
    element_bytes: usize,
    shape: Vec<usize>,
    region: Region,
}

impl TryFrom<Raw> for Window {
    type Error = WindowError;

    fn try_from(raw: Raw) -> Result<Self, WindowError> {
        Self::new(raw.start_bytes, raw.element_bytes, raw.shape, raw.region)
    }
}

impl From<Window> for Raw {
    fn from(window: Window) -> Self {
        let Window {
            start_bytes,
            element_bytes,
            shape,
            region,
        } = window;
        Self {
            start_bytes,
            element_bytes,
            shape,
            region,
        }
    }
}
