//! Memory of the back-end: f32 numbers, parameters with a bf16 copy beside them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cuda::card::{Arg, Card};
use crate::cuda::elements::{ElementsMut, ElementsRef};
use crate::cuda::queue::Queue;
use crate::cuda::ranges::Ranges;

/// Owned f32 numbers on a card.
pub struct CudaBuffer<C: Card> {
    queue: Option<Arc<Mutex<Queue<C>>>>,
    address: u64,
    len: usize,
    rounded: Option<Rounded>,
}

/// The numbers as bf16, as far as they have been rounded since they last changed.
#[derive(Debug)]
pub(super) struct Rounded {
    pub(super) address: u64,
    pub(super) fresh: Mutex<Ranges>,
}

impl<C: Card> CudaBuffer<C> {
    /// Zeros, with room for a bf16 copy beside them if wanted.
    pub(super) fn zeros(queue: &Arc<Mutex<Queue<C>>>, len: usize, with_rounded: bool) -> Self {
        let mut held = queue.lock();
        held.begin([]);
        let address = held.alloc(4 * len as u64);
        held.zero(address, 4 * len as u64);
        let rounded = (with_rounded && len > 0).then(|| Rounded {
            address: held.alloc(2 * len as u64),
            fresh: Mutex::default(),
        });
        drop(held);
        Self {
            queue: Some(Arc::clone(queue)),
            address,
            len,
            rounded,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn rounded(&self) -> Option<&Rounded> {
        self.rounded.as_ref()
    }

    pub(super) fn view(&self, range: Range<usize>) -> CudaView<'_, C> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} elements",
            self.len
        );
        CudaView {
            buffer: self,
            start: range.start,
            len: range.len(),
        }
    }

    pub(super) fn view_mut(&mut self, range: Range<usize>) -> CudaViewMut<'_, C> {
        if let Some(rounded) = &mut self.rounded {
            rounded.fresh.get_mut().remove(&range);
        }
        CudaViewMut {
            view: self.view(range),
        }
    }
}

impl<C: Card> Default for CudaBuffer<C> {
    fn default() -> Self {
        Self {
            queue: None,
            address: 0,
            len: 0,
            rounded: None,
        }
    }
}

impl<C: Card> fmt::Debug for CudaBuffer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<C: Card> Drop for CudaBuffer<C> {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            let mut queue = queue.lock();
            queue.retire(self.address);
            if let Some(rounded) = &self.rounded {
                queue.retire(rounded.address);
            }
        }
    }
}

/// Shared part of a buffer.
pub struct CudaView<'a, C: Card> {
    buffer: &'a CudaBuffer<C>,
    start: usize,
    len: usize,
}

impl<C: Card> Clone for CudaView<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Card> Copy for CudaView<'_, C> {}

impl<C: Card> fmt::Debug for CudaView<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaView")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<'a, C: Card> CudaView<'a, C> {
    /// As what collectives read.
    #[must_use]
    pub fn elements(self) -> ElementsRef<'a, f32, C> {
        ElementsRef::of(self.buffer.queue.as_ref(), self.address(), self.len)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer.address + 4 * self.start as u64
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    pub(super) fn rounded(&self) -> Option<&Rounded> {
        self.buffer.rounded.as_ref()
    }

    /// The elements from `start` on.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.len, "{range:?} of {} elements", self.len);
        Self {
            buffer: self.buffer,
            start: self.start + range.start,
            len: range.len(),
        }
    }
}

impl<C: Card> From<CudaView<'_, C>> for Arg {
    fn from(view: CudaView<'_, C>) -> Self {
        Self::Pointer(view.address())
    }
}

/// Exclusive part of a buffer.
pub struct CudaViewMut<'a, C: Card> {
    view: CudaView<'a, C>,
}

impl<C: Card> fmt::Debug for CudaViewMut<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}

impl<'a, C: Card> CudaViewMut<'a, C> {
    /// As what collectives write.
    #[must_use]
    pub fn elements(self) -> ElementsMut<'a, f32, C> {
        ElementsMut::of(
            self.view.buffer.queue.as_ref(),
            self.address(),
            self.view.len,
        )
    }

    pub(super) fn len(&self) -> usize {
        self.view.len
    }

    pub(super) fn address(&self) -> u64 {
        self.view.address()
    }
}

impl<C: Card> From<&CudaViewMut<'_, C>> for Arg {
    fn from(view: &CudaViewMut<'_, C>) -> Self {
        Self::Pointer(view.address())
    }
}
