//! Names and shapes of the views into one flat buffer of parameters.

use std::collections::HashMap;
use std::ops::Range;

/// One named tensor inside a flat buffer, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Name, unique in its layout.
    pub name: String,
    /// Extent of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// Where it lies, in elements.
    pub range: Range<usize>,
}

/// The order, names and shapes of the tensors in a flat buffer without gaps.
///
/// Two buffers with equal layouts can be copied, summed, broadcast and checksummed as one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    entries: Vec<TensorEntry>,
    index: HashMap<String, usize>,
    len: usize,
}

impl Layout {
    /// An empty layout.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a tensor and returns its place, in elements.
    ///
    /// # Panics
    /// If the name is taken: a layout is written by code, not by input.
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize]) -> Range<usize> {
        let name = name.into();
        let range = self.len..self.len + shape.iter().product::<usize>();
        let previous = self.index.insert(name.clone(), self.entries.len());
        assert!(previous.is_none(), "tensor {name} is in the layout twice");
        self.len = range.end;
        self.entries.push(TensorEntry {
            name,
            shape: shape.to_vec(),
            range: range.clone(),
        });
        range
    }

    /// Elements in the buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true when it names no tensor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The tensors in buffer order.
    #[must_use]
    pub fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    /// The tensor of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.index.get(name).map(|&i| &self.entries[i])
    }
}
