//! The safetensors files that a rank writes: which box lies where. Pure, so that whoever knows what
//! a rank writes knows its files.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde::Serialize;

use crate::local::{Local, LocalTensor};
use crate::plan::save::{Item, Write};

/// A file, before its bytes are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlan {
    /// Its name in the checkpoint's folder.
    pub(crate) name: String,
    /// Its header, with its length before it.
    pub(crate) header: Vec<u8>,
    /// The boxes, one behind the other.
    pub(crate) boxes: Vec<Placed>,
    /// Bytes of all boxes.
    pub(crate) data_bytes: usize,
}

/// A box in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) write: Write,
    pub(crate) dtype: Dtype,
    /// Extents of the whole tensor.
    pub(crate) shape: Vec<usize>,
    /// Where it begins behind the header.
    pub(crate) start: usize,
}

/// An entry of a header.
#[derive(Serialize)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl FilePlan {
    /// The files in which a rank writes these boxes; a file ends behind the box with which it is as
    /// large as `file_bytes`. `None` when the rank has no such boxes.
    pub(crate) fn all(
        rank: usize,
        items: &[Item],
        local: &Local,
        file_bytes: usize,
    ) -> Option<Vec<Self>> {
        let tensors: Vec<&LocalTensor> = local.tensors().map(|(.., tensor)| tensor).collect();
        let writes = Item::writes(items, local)?;
        let mut groups: Vec<Vec<Write>> = vec![];
        let mut filled = usize::MAX;
        for write in writes {
            if filled >= file_bytes {
                groups.push(vec![]);
                filled = 0;
            }
            filled += write.bytes;
            groups.last_mut()?.push(write);
        }
        let file = |(index, writes)| {
            let name = format!("rank-{rank:05}-{index:03}.safetensors");
            Self::new(name, writes, &tensors)
        };
        Some(groups.into_iter().enumerate().map(file).collect())
    }

    fn new(name: String, mut writes: Vec<Write>, tensors: &[&LocalTensor]) -> Self {
        // With wider elements first each is aligned without gaps.
        writes.sort_by_key(|write| usize::MAX - tensors[write.tensor].element_bytes());
        let mut start = 0;
        let placed = writes.into_iter().map(|write| {
            let tensor = tensors[write.tensor];
            let placed = Placed {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                start,
                write,
            };
            start = placed.end();
            placed
        });
        let boxes: Vec<Placed> = placed.collect();
        Self {
            name,
            header: header(boxes.iter().map(Placed::entry)),
            data_bytes: boxes.last().map_or(0, Placed::end),
            boxes,
        }
    }

    /// All of its bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.header.len() + self.data_bytes
    }
}

impl Placed {
    const fn end(&self) -> usize {
        self.start + self.write.bytes
    }

    /// Named as the tensor, with the box where it is not all of it: `actor/model/w[0:2, 4:8]`.
    fn entry(&self) -> (String, Dtype, Vec<usize>, usize) {
        let Write { name, region, .. } = &self.write;
        let lengths = region.lengths();
        let name = if lengths == self.shape {
            name.to_string()
        } else {
            format!("{name}{region}")
        };
        (name, self.dtype, lengths, self.write.bytes)
    }
}

/// A header for tensors that lie one behind the other, with its length before it.
pub(crate) fn header(
    tensors: impl IntoIterator<Item = (String, Dtype, Vec<usize>, usize)>,
) -> Vec<u8> {
    let mut end = 0;
    let entries = tensors.into_iter().map(|(name, dtype, shape, bytes)| {
        let start = end;
        end += bytes;
        let entry = Entry {
            dtype,
            shape,
            data_offsets: (start, end),
        };
        (name, entry)
    });
    let entries: BTreeMap<String, Entry> = entries.collect();
    let mut text = serde_json::json!({ "__metadata__": { "format": "pt" } });
    if let Some(all) = text.as_object_mut() {
        for (name, entry) in entries {
            all.insert(name, serde_json::json!(entry));
        }
    }
    let mut text = text.to_string().into_bytes();
    // So that the tensors begin at a multiple of eight.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// CRC-32 of each block.
pub(crate) fn crcs<'a>(bytes: &'a [u8], block_bytes: usize) -> impl Iterator<Item = u32> + use<'a> {
    bytes.chunks(block_bytes).map(crc32fast::hash)
}
