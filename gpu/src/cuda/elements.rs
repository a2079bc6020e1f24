//! Numbers in a card's memory by their type alone: what collectives read and write.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cuda::buffer::CudaBuffer;
use crate::cuda::card::Card;
use crate::cuda::handle::Cuda;
use crate::cuda::queue::Queue;
use odeon_collective::Element;

/// Numbers that lie one after the other in a card's memory. Always behind a reference to whoever
/// holds the memory: a [`CudaArray`], or a view of a [`CudaBuffer`].
pub struct Elements<T, C: Card> {
    queue: Option<Arc<Mutex<Queue<C>>>>,
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element, C: Card> Elements<T, C> {
    fn of(queue: Option<&Arc<Mutex<Queue<C>>>>, address: u64, len: usize) -> Self {
        Self {
            queue: queue.cloned(),
            address,
            len,
            element: PhantomData,
        }
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true when there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn address(&self) -> u64 {
        self.address
    }

    /// Returns true when they lie in memory of the card behind this queue, or there are none.
    pub(super) fn are_on(&self, queue: &Arc<Mutex<Queue<C>>>) -> bool {
        self.is_empty()
            || self
                .queue
                .as_ref()
                .is_some_and(|held| Arc::ptr_eq(held, queue))
    }

    /// Some of them.
    ///
    /// # Panics
    /// If there are not as many.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> ElementsRef<'_, T, C> {
        let address = self.place(&range);
        ElementsRef::of(self.queue.as_ref(), address, range.len())
    }

    /// Some of them, to be written.
    ///
    /// # Panics
    /// If there are not as many.
    #[must_use]
    pub fn part_mut(&mut self, range: Range<usize>) -> ElementsMut<'_, T, C> {
        let address = self.place(&range);
        ElementsMut::of(self.queue.as_ref(), address, range.len())
    }

    fn place(&self, range: &Range<usize>) -> u64 {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} elements",
            self.len
        );
        self.address + (range.start * size_of::<T>()) as u64
    }

    /// Writes all of them, after what was begun before.
    ///
    /// # Panics
    /// If the numbers differ, or if the card has failed.
    pub fn write(&mut self, values: &[T]) {
        assert_eq!(self.len, values.len(), "as many elements on both sides");
        if let Some(queue) = self.queue.as_ref().filter(|_| self.len > 0) {
            queue
                .lock()
                .upload(self.address, bytemuck::cast_slice(values));
        }
    }

    /// The values when everything that was begun before has happened.
    ///
    /// # Panics
    /// If the card has failed.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.len];
        if let Some(queue) = self.queue.as_ref().filter(|_| self.len > 0) {
            let bytes = bytemuck::cast_slice_mut(&mut values);
            queue.lock().download(self.address, bytes);
        }
        values
    }
}

impl<T, C: Card> fmt::Debug for Elements<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elements")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// [`Elements`] of memory that is borrowed.
#[derive(Debug)]
pub struct ElementsRef<'a, T, C: Card> {
    elements: Elements<T, C>,
    memory: PhantomData<&'a ()>,
}

impl<T: Element, C: Card> ElementsRef<'_, T, C> {
    pub(super) fn of(queue: Option<&Arc<Mutex<Queue<C>>>>, address: u64, len: usize) -> Self {
        Self {
            elements: Elements::of(queue, address, len),
            memory: PhantomData,
        }
    }
}

impl<T, C: Card> Deref for ElementsRef<'_, T, C> {
    type Target = Elements<T, C>;

    fn deref(&self) -> &Elements<T, C> {
        &self.elements
    }
}

/// [`Elements`] of memory that is borrowed to be written.
#[derive(Debug)]
pub struct ElementsMut<'a, T, C: Card> {
    elements: Elements<T, C>,
    memory: PhantomData<&'a mut ()>,
}

impl<T: Element, C: Card> ElementsMut<'_, T, C> {
    pub(super) fn of(queue: Option<&Arc<Mutex<Queue<C>>>>, address: u64, len: usize) -> Self {
        Self {
            elements: Elements::of(queue, address, len),
            memory: PhantomData,
        }
    }
}

impl<T, C: Card> Deref for ElementsMut<'_, T, C> {
    type Target = Elements<T, C>;

    fn deref(&self) -> &Elements<T, C> {
        &self.elements
    }
}

impl<T, C: Card> DerefMut for ElementsMut<'_, T, C> {
    fn deref_mut(&mut self) -> &mut Elements<T, C> {
        &mut self.elements
    }
}

/// Numbers of any element type in memory of their own.
#[derive(Debug)]
pub struct CudaArray<T, C: Card> {
    elements: Elements<T, C>,
    /// Holds the memory, in words of four bytes.
    memory: CudaBuffer<C>,
}

impl<T: Element, C: Card> CudaArray<T, C> {
    /// Zeros.
    ///
    /// # Panics
    /// If the card has not the memory, or has failed.
    #[must_use]
    pub fn zeros(cuda: &Cuda<C>, len: usize) -> Self {
        let words = (len * size_of::<T>()).div_ceil(4);
        let memory = CudaBuffer::zeros(&cuda.queue, words, false);
        Self {
            elements: Elements::of(Some(&cuda.queue), memory.address(), len),
            memory,
        }
    }

    /// Bytes of the card that it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        4 * self.memory.len() as u64
    }
}

impl<T, C: Card> Deref for CudaArray<T, C> {
    type Target = Elements<T, C>;

    fn deref(&self) -> &Elements<T, C> {
        &self.elements
    }
}

impl<T, C: Card> DerefMut for CudaArray<T, C> {
    fn deref_mut(&mut self) -> &mut Elements<T, C> {
        &mut self.elements
    }
}
