//! The names and the layout that files have for the tensors of a network.

use std::borrow::Cow;

use super::gpt2;

/// A tensor of a file, made of one of the network or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// Names and shapes of the network's tensors in it, one behind the other along their first
    /// dimension.
    pub parts: Vec<(String, Vec<usize>)>,
    /// True when the file has the transpose of the network's matrix.
    pub transposed: bool,
}

/// The tensors of a file with these of a network, names and shapes, for models of this
/// `model_type`. All but those of GPT-2 are as the network has them.
#[must_use]
pub fn file_tensors(
    model_type: &str,
    tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
) -> Vec<FileTensor> {
    if model_type == "gpt2" {
        return gpt2::file_tensors(tensors);
    }
    let same = |(name, shape): (String, Vec<usize>)| FileTensor {
        name: name.clone(),
        parts: vec![(name, shape)],
        transposed: false,
    };
    tensors.into_iter().map(same).collect()
}

impl FileTensor {
    /// Its shape in the file.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.parts[0].1.clone();
        shape[0] = self.parts.iter().map(|(_, shape)| shape[0]).sum();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// Takes one of its parts out of its bytes, `width` of them an element.
    ///
    /// # Panics
    /// If there are fewer bytes than its shape has elements, or fewer parts.
    #[must_use]
    pub fn part<'a>(&self, number: usize, bytes: &'a [u8], width: usize) -> Cow<'a, [u8]> {
        let before = self.parts[..number].iter();
        let first: usize = before.map(|(_, shape)| shape[0]).sum();
        let (rows, cols) = matrix(&self.parts[number].1);
        if !self.transposed {
            let bytes = &bytes[first * cols * width..][..rows * cols * width];
            return Cow::Borrowed(bytes);
        }
        let all: usize = self.parts.iter().map(|(_, shape)| shape[0]).sum();
        let mut own = Vec::with_capacity(rows * cols * width);
        for row in 0..rows {
            for col in 0..cols {
                let at = (col * all + first + row) * width;
                own.extend_from_slice(&bytes[at..at + width]);
            }
        }
        Cow::Owned(own)
    }

    /// Its bytes from those of its parts, in their order.
    ///
    /// # Panics
    /// If a part has another number of bytes than its shape says.
    #[must_use]
    pub fn joined<'a>(&self, mut parts: Vec<Cow<'a, [u8]>>, width: usize) -> Cow<'a, [u8]> {
        if !self.transposed {
            return match parts.len() {
                1 => parts.swap_remove(0),
                _ => Cow::Owned(parts.concat()),
            };
        }
        let all: usize = self.parts.iter().map(|(_, shape)| shape[0]).sum();
        let (_, cols) = matrix(&self.parts[0].1);
        let mut bytes = vec![0; all * cols * width];
        let mut first = 0;
        for (part, (_, shape)) in parts.iter().zip(&self.parts) {
            let (rows, cols) = matrix(shape);
            assert_eq!(part.len(), rows * cols * width, "a part of its shape");
            for (element, value) in part.chunks_exact(width).enumerate() {
                let at = ((element % cols) * all + first + element / cols) * width;
                bytes[at..at + width].copy_from_slice(value);
            }
            first += rows;
        }
        Cow::Owned(bytes)
    }
}

/// Rows, and elements of each.
fn matrix(shape: &[usize]) -> (usize, usize) {
    (shape[0], shape[1..].iter().product())
}
