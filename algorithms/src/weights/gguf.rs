//! The GGUF container, versions 2 and 3: typed metadata and tensors.
//!
//! Every length in a file is untrusted: it is compared with what is left of the file before
//! anything is allocated or read.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    fs::File,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use super::{error::LoadError, loaded::LoadedTensor, quantised::Encoding};
use crate::lfs;

/// An open GGUF file, mapped into memory, or the parts of one that was split.
pub struct Gguf {
    path: PathBuf,
    /// One a part.
    files: Vec<Mmap>,
    metadata: BTreeMap<String, GgufValue>,
    tensors: BTreeMap<String, GgufTensor>,
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// An integer of any width and signedness.
    Integer(i128),
    /// A floating-point number of either width.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text; bytes that are not UTF-8 are replaced.
    String(String),
    /// Values of one kind.
    Array(Vec<Self>),
}

/// Where a tensor is, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// The extents, outermost first (the file has them innermost first).
    pub shape: Vec<usize>,
    /// The storage format of its elements.
    pub encoding: Encoding,
    /// The part that has it, from 0.
    file: usize,
    /// The first byte in that.
    start: usize,
    /// The length in bytes.
    length: usize,
}

impl Gguf {
    /// Maps a file and reads its directory. Tensors are decoded when asked for. Of a file that was split
    /// (`split.count`) the first part is given, and the others lie beside it under its name.
    ///
    /// The file must not be changed while it is open: other programs that cut it off would end
    /// this process (SIGBUS). Replace files by renaming instead.
    ///
    /// # Errors
    /// [`LoadError`] when the file cannot be read, is damaged, or has tensors of another encoding; or it
    /// is another part than the first, or a part is not there or of another file.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let mut whole = Self::open_alone(path)?;
        let parts = whole.integer(SPLIT_COUNT).unwrap_or(1);
        if parts <= 1 {
            return Ok(whole);
        }
        let unsupported = |path: &Path, detail: String| LoadError::Unsupported {
            path: path.into(),
            detail,
        };
        let number = whole.integer(SPLIT_NUMBER).unwrap_or(0) + 1;
        let parts_max = i64::from(PARTS_MAX);
        let named = name_of_part(path, number, parts).filter(|_| parts <= parts_max);
        let Some(named) = named else {
            let detail = format!(
                "part {number} of {parts} of a model that was split (`split.count`), under a name that \
                 does not end with `-{number:05}-of-{parts:05}.gguf`: one part alone"
            );
            return Err(unsupported(path, detail));
        };
        if number != 1 {
            let first = named(1);
            let detail = format!(
                "part {number} of {parts} of a model that was split: name the first, {}; one part alone",
                first.display()
            );
            return Err(unsupported(path, detail));
        }
        for number in 2..=parts {
            let path = named(number);
            let part = Self::open_alone(&path)?;
            let of = (part.integer(SPLIT_NUMBER), part.integer(SPLIT_COUNT));
            if of != (Some(number - 1), Some(parts)) {
                let detail = format!("a file that says it is no part {number} of {parts},");
                return Err(unsupported(&path, detail));
            }
            let file = whole.files.len();
            whole.files.extend(part.files);
            for (name, tensor) in part.tensors {
                let tensor = GgufTensor { file, ..tensor };
                if whole.tensors.insert(name.clone(), tensor).is_some() {
                    let detail = format!("tensor `{name}` is in an earlier part, too");
                    return Err(LoadError::Damaged { path, detail });
                }
            }
        }
        match whole.integer("split.tensors.count") {
            Some(count) if count != whole.tensors.len() as i64 => Err(LoadError::Damaged {
                path: path.into(),
                detail: format!(
                    "its parts have {} tensors in all, and it says {count}",
                    whole.tensors.len()
                ),
            }),
            _ => Ok(whole),
        }
    }

    /// Opens one file.
    fn open_alone(path: &Path) -> Result<Self, LoadError> {
        let read = |source| LoadError::Read {
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        // SAFETY: the mapping is private and read-only. Soundness needs that nobody writes to the
        // file meanwhile, which the documentation of this function demands; files that this
        // project writes are renamed into place complete and never changed.
        let bytes = unsafe { Mmap::map(&file) }.map_err(read)?;
        let (metadata, tensors) = read_directory(&bytes).map_err(|fault| match fault {
            Fault::Pointer => LoadError::Pointer { path: path.into() },
            Fault::Damaged(detail) => LoadError::Damaged {
                path: path.into(),
                detail,
            },
            Fault::Unsupported(detail) => LoadError::Unsupported {
                path: path.into(),
                detail,
            },
        })?;
        Ok(Self {
            path: path.into(),
            files: vec![bytes],
            metadata,
            tensors,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All metadata by key.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.metadata
    }

    /// All tensors by their GGUF names.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, GgufTensor> {
        &self.tensors
    }

    /// Decodes a tensor, or returns `None` when the file has none of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<LoadedTensor> {
        let tensor = self.tensors.get(name)?;
        let values = tensor
            .encoding
            .decode(&self.files[tensor.file][tensor.start..][..tensor.length]);
        Some(LoadedTensor {
            shape: tensor.shape.clone(),
            values,
        })
    }

    /// The text under a key.
    #[must_use]
    pub fn string(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            GgufValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// The integer under a key.
    #[must_use]
    pub fn integer(&self, key: &str) -> Option<i64> {
        match self.metadata.get(key)? {
            GgufValue::Integer(number) => i64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The floating-point number under a key.
    #[must_use]
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key)? {
            GgufValue::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// The texts under a key.
    #[must_use]
    pub fn strings(&self, key: &str) -> Option<Vec<&str>> {
        let GgufValue::Array(values) = self.metadata.get(key)? else {
            return None;
        };
        values
            .iter()
            .map(|value| match value {
                GgufValue::String(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// The integers under a key.
    #[must_use]
    pub fn integers(&self, key: &str) -> Option<Vec<i64>> {
        let GgufValue::Array(values) = self.metadata.get(key)? else {
            return None;
        };
        values
            .iter()
            .map(|value| match value {
                GgufValue::Integer(number) => i64::try_from(*number).ok(),
                _ => None,
            })
            .collect()
    }
}

impl Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("path", &self.path)
            .field("files", &self.files.len())
            .field("metadata", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

/// The way in which the parts of a file are named, where this one of them is named so.
fn name_of_part(path: &Path, number: i64, parts: i64) -> Option<impl Fn(i64) -> PathBuf + use<>> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-{number:05}-of-{parts:05}.gguf"))?;
    let (folder, stem) = (path.with_file_name(""), stem.to_owned());
    Some(move |number| folder.join(format!("{stem}-{number:05}-of-{parts:05}.gguf")))
}

/// Why the directory cannot be used; the path is added by the caller.
enum Fault {
    Pointer,
    Damaged(String),
    Unsupported(String),
}

type Directory = (BTreeMap<String, GgufValue>, BTreeMap<String, GgufTensor>);

fn read_directory(bytes: &[u8]) -> Result<Directory, Fault> {
    let mut reader = Reader { bytes, at: 0 };
    if lfs::is_pointer(bytes) {
        return Err(Fault::Pointer);
    }
    if reader.take(4)? != MAGIC {
        return Err(Fault::Damaged("it does not begin with \"GGUF\"".into()));
    }
    let version = reader.u32()?;
    if [2, 3].contains(&version.swap_bytes()) {
        return Err(Fault::Unsupported(
            "the byte order of other machines (convert it with `gguf-convert-endian`)".to_owned(),
        ));
    }
    // The second lies as the third does.
    if ![2, 3].contains(&version) {
        return Err(Fault::Unsupported(format!("GGUF version {version}")));
    }
    let tensor_count = reader.count(TENSOR_BYTES_MIN)?;
    let value_count = reader.count(VALUE_BYTES_MIN)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..value_count {
        let key = reader.text()?;
        let kind = reader.u32()?;
        let value = reader.value(kind, 0)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(Fault::Damaged(format!("key `{key}` occurs twice")));
        }
    }
    let mut tensors = BTreeMap::new();
    for _ in 0..tensor_count {
        let name = reader.text()?;
        let tensor = reader.tensor(&name)?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(Fault::Damaged(format!("tensor `{name}` occurs twice")));
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => ALIGNMENT_DEFAULT,
        Some(GgufValue::Integer(n @ 1..=ALIGNMENT_MAX)) if n.count_ones() == 1 => *n as usize,
        Some(other) => return Err(Fault::Damaged(format!("alignment {other:?}"))),
    };
    // Offsets in the directory count from the aligned end of the directory.
    let data = reader.at.next_multiple_of(alignment);
    for (name, tensor) in &mut tensors {
        let start = tensor.start.checked_add(data);
        let end = start.and_then(|start| start.checked_add(tensor.length));
        match (start, end) {
            (Some(start), Some(end)) if end <= bytes.len() => tensor.start = start,
            _ => {
                let detail = format!("tensor `{name}` reaches beyond the end of the file");
                return Err(Fault::Damaged(detail));
            }
        }
    }
    Ok((metadata, tensors))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let Some(taken) = self.bytes[self.at..].get(..length) else {
            return Err(Fault::Damaged(format!(
                "it ends inside the directory, at byte {}",
                self.at
            )));
        };
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads how many items follow, each of which takes at least `item_bytes`.
    fn count(&mut self, item_bytes: usize) -> Result<usize, Fault> {
        let count = self.u64()?;
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left / item_bytes => Ok(count),
            _ => Err(Fault::Damaged(format!(
                "{count} items at byte {} do not fit",
                self.at - 8
            ))),
        }
    }

    fn text(&mut self) -> Result<String, Fault> {
        let length = self.count(1)?;
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<GgufValue, Fault> {
        Ok(match kind {
            0 => GgufValue::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => GgufValue::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => GgufValue::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => GgufValue::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => GgufValue::Integer(self.u32()?.into()),
            5 => GgufValue::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => GgufValue::Float(f32::from_le_bytes(self.array()?).into()),
            7 => GgufValue::Bool(self.array::<1>()? != [0]),
            8 => GgufValue::String(self.text()?),
            9 if depth < DEPTH_MAX => {
                let kind = self.u32()?;
                let count = self.count(1)?;
                let values = (0..count).map(|_| self.value(kind, depth + 1));
                GgufValue::Array(values.collect::<Result<_, _>>()?)
            }
            10 => GgufValue::Integer(self.u64()?.into()),
            11 => GgufValue::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            _ => {
                return Err(Fault::Damaged(format!(
                    "value of kind {kind} at byte {}",
                    self.at
                )));
            }
        })
    }

    /// Reads an entry of the directory; its start is still relative to the data.
    fn tensor(&mut self, name: &str) -> Result<GgufTensor, Fault> {
        let damaged = |detail: &str| Fault::Damaged(format!("tensor `{name}` {detail}"));
        let rank = self.u32()?;
        if !(1..=RANK_MAX).contains(&rank) {
            return Err(damaged("has an impossible rank"));
        }
        let mut shape = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            shape.push(usize::try_from(self.u64()?).map_err(|_| damaged("is too large"))?);
        }
        let kind = self.u32()?;
        let encoding = Encoding::from_ggml(kind)
            .map_err(|encoding| Fault::Unsupported(format!("{encoding} of tensor `{name}`")))?;
        let start = usize::try_from(self.u64()?).map_err(|_| damaged("starts too far"))?;
        if !shape[0].is_multiple_of(encoding.block_elements()) {
            return Err(damaged("has rows that end inside a block"));
        }
        let elements = shape
            .iter()
            .try_fold(1_usize, |product, &extent| product.checked_mul(extent));
        let length = elements
            .and_then(|n| (n / encoding.block_elements()).checked_mul(encoding.block_bytes()))
            .ok_or_else(|| damaged("is too large"))?;
        shape.reverse();
        Ok(GgufTensor {
            shape,
            encoding,
            file: 0,
            start,
            length,
        })
    }
}

const SPLIT_COUNT: &str = "split.count";
const SPLIT_NUMBER: &str = "split.no";
/// More than their names have room for.
const PARTS_MAX: u32 = 99_999;
const MAGIC: &[u8] = b"GGUF";
const ALIGNMENT_DEFAULT: usize = 32;
const ALIGNMENT_MAX: i128 = 1 << 20;
const RANK_MAX: u32 = 4;
/// Arrays inside arrays are allowed by the format; nobody writes more than two.
const DEPTH_MAX: usize = 4;
/// An empty name, a rank, one extent, a kind and an offset.
const TENSOR_BYTES_MIN: usize = 8 + 4 + 8 + 4 + 8;
/// An empty key, a kind and one byte.
const VALUE_BYTES_MIN: usize = 8 + 4 + 1;
