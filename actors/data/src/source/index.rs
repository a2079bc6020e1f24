//! The index of a source's files: their names, and the blocks in them. Kept in memory as small as
//! it can be, and on a disk by what the files are.

use std::{fs, io::Write, path::Path};

use super::{
    format::Block,
    left_out::LeftOut,
    storage::{Listed, Stamp},
};

/// Files, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// The common begin of all names.
    root: String,
    /// The rest of them, one after the other.
    names: String,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Where its name ends.
    end: u32,
    stamp: Stamp,
}

impl Files {
    pub(crate) fn new(listed: &[Listed]) -> Self {
        let first = listed.first().map_or("", |file| &file.name);
        let last = listed.last().map_or("", |file| &file.name);
        let common = first
            .char_indices()
            .zip(last.chars())
            .take_while(|((_, a), b)| a == b)
            .last()
            .map_or(0, |((at, c), _)| at + c.len_utf8());
        // The names are sorted, yet others may follow them.
        let common = listed.iter().fold(common, |common, file| {
            let own = first
                .bytes()
                .zip(file.name.bytes())
                .take_while(|(a, b)| a == b);
            common.min(own.count())
        });
        let common = (0..=common)
            .rev()
            .find(|&at| first.is_char_boundary(at))
            .unwrap_or(0);
        let mut files = Self {
            root: first[..common].to_owned(),
            ..Self::default()
        };
        files.entries.reserve_exact(listed.len());
        for file in listed {
            files.names.push_str(&file.name[common..]);
            files.entries.push(Entry {
                end: files.names.len() as u32,
                stamp: file.stamp,
            });
        }
        files.names.shrink_to_fit();
        files
    }

    pub(crate) fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn name(&self, file: u32) -> String {
        let file = file as usize;
        let start = file
            .checked_sub(1)
            .map_or(0, |before| self.entries[before].end);
        let own = &self.names[start as usize..self.entries[file].end as usize];
        format!("{}{own}", self.root)
    }

    pub(crate) fn stamp(&self, file: u32) -> Stamp {
        self.entries[file as usize].stamp
    }

    fn memory(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<Entry>();
        self.root.capacity() + self.names.capacity() + entries
    }
}

/// The blocks of files, what of them is left out, and what they have in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) blocks: Vec<Block>,
    /// The account of what of the files cannot be read.
    pub(crate) left_out: LeftOut,
    /// Of each file that is read as such: a hash of what is in it, as far as it was read.
    pub(crate) digests: Vec<Digest>,
    /// The number of blocks that the source had each time before more came.
    pub(crate) earlier: Vec<u32>,
}

/// A hash of what is in a file.
pub(crate) type Digest = [u8; 16];

impl Index {
    /// Reads the index that was kept under a key; none if there is none, or a damaged one.
    pub(crate) fn kept(folder: &Path, key: &blake3::Hash) -> Option<Self> {
        let bytes = fs::read(path(folder, key)).ok()?;
        Self::decode(&bytes)
    }

    /// Keeps it. That it cannot be kept is no reason not to go on.
    pub(crate) fn keep(&self, folder: &Path, key: &blake3::Hash) {
        let kept = || {
            fs::create_dir_all(folder)?;
            let mut partial = tempfile::NamedTempFile::new_in(folder)?;
            partial.write_all(&self.encode())?;
            partial.persist(path(folder, key))?;
            std::io::Result::Ok(())
        };
        if let Err(error) = kept() {
            tracing::warn!(folder = %folder.display(), %error, "an index is not kept");
        }
    }

    pub(crate) fn memory(&self, files: &Files) -> usize {
        let told = self.left_out.first.iter();
        let told: usize = told.map(|damage| damage.file.capacity() + 128).sum();
        let digests = self.digests.capacity() * size_of::<Digest>();
        files.memory() + self.blocks.capacity() * size_of::<Block>() + digests + told
    }

    /// The blocks as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend((self.blocks.len() as u32).to_le_bytes());
        for block in &self.blocks {
            out.extend(block.start.to_le_bytes());
            for number in [block.len, block.file, block.part, block.records] {
                out.extend(number.to_le_bytes());
            }
        }
        out.extend((self.digests.len() as u32).to_le_bytes());
        out.extend(self.digests.as_flattened());
        out.extend((self.earlier.len() as u32).to_le_bytes());
        for blocks in &self.earlier {
            out.extend(blocks.to_le_bytes());
        }
        let left_out = serde_json::to_vec(&self.left_out).expect("strings and numbers are JSON");
        out.extend_from_slice(&left_out);
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, hash) = bytes.split_last_chunk::<32>()?;
        if blake3::hash(body) != *hash {
            return None;
        }
        let body = body.strip_prefix(MAGIC)?;
        let (count, body) = body.split_first_chunk()?;
        let blocks = u32::from_le_bytes(*count) as usize * ENCODED_BLOCK;
        let (blocks, body) = body.split_at_checked(blocks)?;
        let (count, body) = body.split_first_chunk()?;
        let digests = u32::from_le_bytes(*count) as usize * size_of::<Digest>();
        let (digests, body) = body.split_at_checked(digests)?;
        let (count, body) = body.split_first_chunk()?;
        let earlier = u32::from_le_bytes(*count) as usize * size_of::<u32>();
        let (earlier, left_out) = body.split_at_checked(earlier)?;
        let block = |bytes: &[u8; ENCODED_BLOCK]| {
            let number = |at: usize| {
                u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            };
            Block {
                start: u64::from(number(0)) | u64::from(number(4)) << 32,
                len: number(8),
                file: number(12),
                part: number(16),
                records: number(20),
            }
        };
        Some(Self {
            blocks: blocks.as_chunks().0.iter().map(block).collect(),
            left_out: serde_json::from_slice(left_out).ok()?,
            digests: digests.as_chunks().0.to_vec(),
            earlier: earlier
                .as_chunks()
                .0
                .iter()
                .map(|it| u32::from_le_bytes(*it))
                .collect(),
        })
    }
}

fn path(folder: &Path, key: &blake3::Hash) -> std::path::PathBuf {
    folder.join(format!("{}.index", &key.to_hex()[..32]))
}

const MAGIC: &[u8] = b"odeon index 3\n";
const ENCODED_BLOCK: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fault::{SkipReason, Skipped};

    #[test]
    fn files_have_their_names_and_stamps() {
        let check = |names: &[&str]| {
            let listed: Vec<Listed> = (0..)
                .zip(names)
                .map(|(size, &name)| Listed {
                    name: name.into(),
                    stamp: Stamp { size, version: 3 },
                })
                .collect();
            let files = Files::new(&listed);
            assert_eq!(files.count() as usize, names.len());
            for (number, file) in (0..).zip(&listed) {
                assert_eq!(files.name(number), file.name);
                assert_eq!(files.stamp(number), file.stamp);
            }
        };
        check(&[]);
        check(&["/a/b"]);
        check(&["/a/b", "/a/bc", "/a/bd/e"]);
        check(&["/a/b", "/a/c", ""]);
        check(&["/ä1", "/ö2", "/ä"]);
        check(&["/ä", "/ä", "/å"]);
    }

    #[test]
    fn an_index_comes_back_from_its_bytes_and_from_no_others() {
        let index = Index {
            blocks: (0..5)
                .map(|n| Block {
                    start: u64::from(n) << 40 | 7,
                    len: n + 1,
                    file: n + 2,
                    part: n + 3,
                    records: n + 4,
                })
                .collect(),
            left_out: LeftOut {
                files: 1,
                first: vec![Skipped::at("a", 7, SkipReason::Bad("cut off".into()))],
                ..LeftOut::default()
            },
            digests: vec![[3; 16], [4; 16]],
            earlier: vec![2, 3],
        };
        let bytes = index.encode();
        assert_eq!(Index::decode(&bytes).unwrap(), index);
        for at in 0..bytes.len() {
            assert_eq!(Index::decode(&bytes[..at]), None);
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(Index::decode(&other), None);
        }
    }
}
