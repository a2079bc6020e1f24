//! The one global metadata file of a checkpoint: which bytes of which file are which box of which
//! tensor, and what they must add up to. A checkpoint is there when this file is.
//!
//! Two lines of JSON. The first says what the second is, and what its bytes must hash to; a
//! manifest that lost a byte is no manifest. Numbers in it are checked before anybody uses them.

use std::collections::BTreeMap;
use std::ops::Range;

use odeon_algorithms::parallel::{Region, Span};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::local::{LocalTensor, TensorName, bytes_of, element_bytes};
use crate::stage::StageTime;

/// The name of the file.
pub const MANIFEST: &str = "manifest.json";

/// The contents of a checkpoint, and the files in which they lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its number: each checkpoint of a place has a greater one than those before.
    pub sequence: u64,
    /// The step of the training that it is of.
    pub step: u64,
    /// Number of ranks that saved it.
    pub ranks: usize,
    /// Each piece is checked in blocks of so many bytes; the last is shorter.
    pub block_bytes: usize,
    /// The files with the tensors' bytes. Elsewhere a file is its place in this list.
    pub files: Vec<File>,
    /// The tensors: by role, by state, by name.
    pub roles: BTreeMap<String, BTreeMap<String, BTreeMap<String, Tensor>>>,
    /// Number of readers that each data loader had. Their states are blobs.
    #[serde(default)]
    pub loaders: BTreeMap<String, usize>,
    /// Whatever else there is, by name.
    #[serde(default)]
    pub blobs: BTreeMap<String, Blob>,
    /// Time that each stage took on each rank, up to the moment at which this was written.
    #[serde(default)]
    pub stages: Vec<StageTime>,
}

/// A safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// All of its bytes.
    pub bytes: u64,
    /// Bytes before those of the tensors.
    pub header_bytes: u64,
    /// CRC-32 of those.
    pub header_crc: u32,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its elements, named as in safetensors.
    pub dtype: Dtype,
    /// Its extents, outermost first.
    pub shape: Vec<usize>,
    /// The boxes that it is put together of. Together they are all of it.
    pub pieces: Vec<Piece>,
}

/// A box of a tensor that lies in a file, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RawPiece", into = "RawPiece")]
pub struct Piece {
    /// Which box.
    pub region: Region,
    /// In which file, by its place in the list.
    pub file: usize,
    /// At which byte of it.
    pub start: u64,
    /// CRC-32 of each block.
    pub crcs: Vec<u32>,
}

/// Bytes that are no tensor, in a file of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// The file's name in the checkpoint's folder.
    pub file: String,
    /// Number of bytes.
    pub bytes: u64,
    /// CRC-32 of each block.
    pub crcs: Vec<u32>,
}

/// Why a manifest cannot be used. Another checkpoint may be sound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It is another kind of file.
    #[error("{file} at byte 0: this is no manifest of a checkpoint: {detail}")]
    Foreign {
        /// The file.
        file: String,
        /// The error, in words.
        detail: String,
    },
    /// It was written by a later release.
    #[error("{file} at byte 0: format {found} is newer than {FORMAT}, which this release reads")]
    Newer {
        /// The file.
        file: String,
        /// Its format.
        found: u64,
    },
    /// It is cut off.
    #[error("{file} at byte {found}: ends here, and should have {expected} bytes")]
    Truncated {
        /// The file.
        file: String,
        /// Bytes that it should have.
        expected: usize,
        /// Bytes that it has.
        found: usize,
    },
    /// Some byte of it is another.
    #[error("{file} from byte {offset} on: damaged: {detail}")]
    Damaged {
        /// The file.
        file: String,
        /// Where what is damaged begins.
        offset: usize,
        /// The damage, in words.
        detail: String,
    },
    /// It is whole and says what cannot be.
    #[error("{file}: {detail}")]
    Impossible {
        /// The file.
        file: String,
        /// The contradiction, in words.
        detail: String,
    },
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u64,
    bytes: usize,
    blake3: String,
}

/// As pairs of numbers, which is shorter.
#[derive(Serialize, Deserialize)]
struct RawPiece {
    at: Vec<usize>,
    size: Vec<usize>,
    file: usize,
    start: u64,
    crc: Vec<u32>,
}

impl Manifest {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).expect("names are text, so it is JSON");
        let head = Head {
            format: KIND.into(),
            version: FORMAT,
            bytes: body.len() + 1,
            blake3: blake3::hash(&body).to_hex().to_string(),
        };
        let mut bytes = serde_json::to_vec(&head).expect("it is JSON");
        bytes.push(b'\n');
        bytes.extend(body);
        bytes.push(b'\n');
        bytes
    }

    /// Reads the bytes of a file, of which errors tell by the name `file`.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn decode(bytes: &[u8], file: &str) -> Result<Self, ManifestError> {
        let file = || file.to_owned();
        let foreign = |detail: String| ManifestError::Foreign {
            file: file(),
            detail,
        };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| foreign("its first line does not end".into()))?;
        let head: Head =
            serde_json::from_slice(&bytes[..end]).map_err(|error| foreign(error.to_string()))?;
        if head.format != KIND {
            return Err(foreign(format!("it is of format `{}`", head.format)));
        }
        if head.version > FORMAT {
            return Err(ManifestError::Newer {
                file: file(),
                found: head.version,
            });
        }
        let body = &bytes[end + 1..];
        let damaged = |offset: usize, detail: String| ManifestError::Damaged {
            file: file(),
            offset,
            detail,
        };
        if body.len() < head.bytes {
            return Err(ManifestError::Truncated {
                file: file(),
                expected: (end + 1).saturating_add(head.bytes),
                found: bytes.len(),
            });
        }
        let Some(text) = body
            .strip_suffix(b"\n")
            .filter(|_| body.len() == head.bytes)
        else {
            let at = end + 1 + body.len().min(head.bytes).saturating_sub(1);
            return Err(damaged(at, "it does not end where it should".into()));
        };
        // The first line is not in the hash, so it has to be as it is written.
        let again = serde_json::to_vec(&head).expect("it is JSON");
        if head.version != FORMAT || again != bytes[..end] {
            return Err(damaged(0, "the first line is not as it is written".into()));
        }
        let found = blake3::hash(text).to_hex();
        if found.as_str() != head.blake3 {
            let detail = format!("BLAKE3 is {found} where {} is recorded", head.blake3);
            return Err(damaged(end + 1, detail));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(|error| {
            damaged(
                end + 1 + error.column().saturating_sub(1),
                error.to_string(),
            )
        })?;
        manifest
            .check()
            .map_err(|detail| ManifestError::Impossible {
                file: file(),
                detail,
            })?;
        Ok(manifest)
    }

    /// The tensors in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorName, &Tensor)> {
        self.roles.iter().flat_map(|(role, states)| {
            states.iter().flat_map(move |(state, tensors)| {
                tensors.iter().map(move |(name, tensor)| {
                    let name = TensorName {
                        role: role.clone(),
                        state: state.clone(),
                        tensor: name.clone(),
                    };
                    (name, tensor)
                })
            })
        })
    }

    /// A tensor, if there is one of that name.
    #[must_use]
    pub fn tensor(&self, role: &str, state: &str, name: &str) -> Option<&Tensor> {
        self.roles.get(role)?.get(state)?.get(name)
    }

    /// Bytes of all files, without this one.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let blobs = self.blobs.values().map(|blob| blob.bytes);
        blobs.chain(self.files.iter().map(|file| file.bytes)).sum()
    }

    /// A tensor to which pieces are added; it is there then.
    pub(crate) fn entry(
        &mut self,
        name: &TensorName,
        dtype: Dtype,
        shape: &[usize],
    ) -> &mut Tensor {
        let states = self.roles.entry(name.role.clone()).or_default();
        let tensors = states.entry(name.state.clone()).or_default();
        tensors
            .entry(name.tensor.clone())
            .or_insert_with(|| Tensor {
                dtype,
                shape: shape.to_vec(),
                pieces: vec![],
            })
    }

    /// Tensors without elements, which are in no file.
    pub(crate) fn add_empty(&mut self, empty: &[(TensorName, LocalTensor)]) {
        for (name, tensor) in empty {
            self.entry(name, tensor.dtype, &tensor.shape);
        }
    }

    /// Has pieces in the order of their offsets, whoever wrote them.
    pub(crate) fn sort(&mut self) {
        let states = self.roles.values_mut().flat_map(BTreeMap::values_mut);
        for tensor in states.flat_map(BTreeMap::values_mut) {
            tensor.pieces.sort_by(|a, b| a.region.cmp(&b.region));
        }
    }

    /// That all numbers mean something, so that nobody has to ask again.
    fn check(&self) -> Result<(), String> {
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(BLOCK_UNIT) {
            return Err(format!("blocks of {} bytes", self.block_bytes));
        }
        let names = self.files.iter().map(|file| &file.name);
        for name in names.chain(self.blobs.values().map(|blob| &blob.file)) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
                return Err(format!("`{name}` is no name of a file in its folder"));
            }
        }
        for (name, tensor) in self.tensors() {
            let element_bytes = element_bytes(tensor.dtype)
                .filter(|bytes| bytes_of(&tensor.shape, *bytes).is_some());
            let Some(element_bytes) = element_bytes else {
                return Err(format!(
                    "tensor `{name}` cannot have shape {:?}",
                    tensor.shape
                ));
            };
            for piece in &tensor.pieces {
                let inside = piece.region.is_in(&tensor.shape) && piece.region.elements() > 0;
                let bytes = if inside {
                    piece.bytes(element_bytes)
                } else {
                    0
                };
                let end = piece.start.checked_add(bytes as u64);
                let file = self.files.get(piece.file);
                let fits = file.is_some_and(|file| {
                    piece.start >= file.header_bytes && end.is_some_and(|end| end <= file.bytes)
                });
                if !inside || !fits || piece.crcs.len() != bytes.div_ceil(self.block_bytes) {
                    let region = &piece.region;
                    return Err(format!(
                        "tensor `{name}` cannot have its box {region} there"
                    ));
                }
            }
        }
        for (name, blob) in &self.blobs {
            if blob.crcs.len() as u64 != blob.bytes.div_ceil(self.block_bytes as u64) {
                return Err(format!("blob `{name}` has too few or too many checksums"));
            }
        }
        Ok(())
    }
}

impl Tensor {
    /// Bytes of one element.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        element_bytes(self.dtype).unwrap_or_default()
    }

    /// Bytes of all of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element_bytes()
    }
}

impl Piece {
    /// Bytes of the box.
    #[must_use]
    pub fn bytes(&self, element_bytes: usize) -> usize {
        self.region.elements() * element_bytes
    }

    /// The blocks, each with its bytes of the box and what these must add up to.
    pub fn blocks(
        &self,
        element_bytes: usize,
        block_bytes: usize,
    ) -> impl Iterator<Item = (Range<usize>, u32)> {
        let bytes = self.bytes(element_bytes);
        self.crcs.iter().enumerate().map(move |(index, crc)| {
            let start = index * block_bytes;
            (start..(start + block_bytes).min(bytes), *crc)
        })
    }
}

impl From<RawPiece> for Piece {
    fn from(raw: RawPiece) -> Self {
        // Other lengths than those of the shape are refused with the rest.
        let pairs = raw.at.iter().zip(&raw.size);
        let spans = pairs.map(|(&offset, &length)| Span { offset, length });
        Self {
            region: Region::new(spans.collect()),
            file: raw.file,
            start: raw.start,
            crcs: raw.crc,
        }
    }
}

impl From<Piece> for RawPiece {
    fn from(piece: Piece) -> Self {
        let spans = piece.region.spans();
        Self {
            at: spans.iter().map(|span| span.offset).collect(),
            size: spans.iter().map(|span| span.length).collect(),
            file: piece.file,
            start: piece.start,
            crc: piece.crcs,
        }
    }
}

/// The format that this release writes, and the newest that it reads.
pub const FORMAT: u64 = 1;

const KIND: &str = "odeon-checkpoint";

/// No element is cut by a block.
pub(crate) const BLOCK_UNIT: usize = 16;
