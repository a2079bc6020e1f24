//! Unpacks `brought.zst`: one line of JSON that says what there is and where, and the bytes of all files
//! behind it.

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use serde_json::Value;
use tempfile::TempDir;

/// What there is.
pub(crate) struct Brought {
    /// Of each file of a folder the first byte, and how many.
    pub(crate) folders: BTreeMap<String, BTreeMap<String, [usize; 2]>>,
    /// The cases of the line, by kind.
    pub(crate) cases: Value,
    bytes: Vec<u8>,
}

/// All of it.
pub(crate) static BROUGHT: LazyLock<Brought> = LazyLock::new(|| {
    let packed = include_bytes!("brought.zst");
    let mut decoder = zstd::Decoder::new(&packed[..]).unwrap();
    decoder.window_log_max(27).unwrap();
    let mut bytes = vec![];
    std::io::copy(&mut decoder, &mut bytes).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let cases: Value = serde_json::from_slice(&bytes[..end]).unwrap();
    let folders = serde_json::from_value(cases["folders"].clone()).unwrap();
    Brought {
        folders,
        cases,
        bytes: bytes.split_off(end + 1),
    }
});

/// A folder with its files on the disk.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// Unpacks one, of the kind `models` or `tokenizers`.
    pub(crate) fn of(kind: &str, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (file, [at, length]) in &BROUGHT.folders[&format!("{kind}/{name}")] {
            let bytes = &BROUGHT.bytes[*at..at + length];
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        Self(folder)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}
