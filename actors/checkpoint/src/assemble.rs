//! Boxes of a checkpoint's tensors, put together from the blocks that hold them.

use bytes::Bytes;
use odeon_algorithms::parallel::{Region, Window, copy_box};

use crate::commit::Entry;
use crate::load::compare;
use crate::local::TensorName;
use crate::manifest::{Manifest, Tensor};
use crate::plan::save::take;
use crate::storage::{Storage, StorageError};

/// Why a box could not be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// A file could not be read, or is damaged.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The checkpoint does not have all of it.
    #[error("tensor `{name}` is not whole: {region} is in no file")]
    Gap {
        /// The tensor.
        name: String,
        /// The region that is missing.
        region: String,
    },
}

/// A checkpoint to read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) entry: &'a Entry,
    pub(crate) manifest: &'a Manifest,
}

impl Stored<'_> {
    /// A box of a tensor, row by row. Reads the blocks that have something of it, one at a time.
    pub(crate) async fn region(
        &self,
        name: &TensorName,
        tensor: &Tensor,
        region: &Region,
    ) -> Result<Vec<u8>, AssembleError> {
        let element_bytes = tensor.element_bytes();
        let mut whole = vec![0; region.elements() * element_bytes];
        let mut open = vec![region.clone()];
        open.retain(|region| region.elements() > 0);
        for piece in &tensor.pieces {
            let mut common = vec![];
            take(&mut open, &piece.region, |part| common.push(part));
            if common.is_empty() {
                continue;
            }
            let file = self.entry.file(&self.manifest.files[piece.file].name);
            for (range, crc) in piece.blocks(element_bytes, self.manifest.block_bytes) {
                let elements = range.start / element_bytes..range.end / element_bytes;
                let mut at = 0;
                let mut copies = vec![];
                for part in Region::of_flat(elements, &piece.region.lengths()) {
                    let part = part.moved_by(&piece.region);
                    for common in common
                        .iter()
                        .filter_map(|common| common.intersection(&part))
                    {
                        let window = |start: usize, array: &Region| {
                            let inner = common.relative_to(array);
                            Window::new(start, element_bytes, array.lengths(), inner)
                                .expect("what both have is in each")
                        };
                        copies.push((window(at, &part), window(0, region)));
                    }
                    at += part.elements() * element_bytes;
                }
                if copies.is_empty() {
                    continue;
                }
                let start = piece.start + range.start as u64;
                let bytes = self.block(&file, start, range.len(), crc).await?;
                for (from, to) in copies {
                    copy_box(&bytes, &from, &mut whole, &to).expect("both are as planned");
                }
            }
        }
        match open.pop() {
            None => Ok(whole),
            Some(open) => Err(AssembleError::Gap {
                name: name.to_string(),
                region: open.to_string(),
            }),
        }
    }

    /// A block of a file, checked.
    pub(crate) async fn block(
        &self,
        file: &str,
        start: u64,
        bytes: usize,
        crc: u32,
    ) -> Result<Bytes, StorageError> {
        let bytes = self.storage.read(file, start..start + bytes as u64).await?;
        compare(&bytes, crc, &self.storage.shown(file), start)?;
        Ok(bytes)
    }
}
