//! Compiled kernels on disk.
//!
//! An entry is found by what it was made from, and believed only if its checksum is right: a
//! damaged one is made again. Entries are written beside their place and moved there, so that
//! processes which start together see a whole entry or none.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of this machine's user for what can be made again: the variable's value, or the
/// folder of that name below `odeon` in `$XDG_CACHE_HOME`, `~/.cache` or, without a home, the
/// folder for temporary files.
pub(super) fn folder(variable: &str, name: &str) -> PathBuf {
    let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = given(variable) {
        return folder.into();
    }
    let base = given("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| given("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(env::temp_dir);
    base.join("odeon").join(name)
}

/// Compiled kernels by what they were made from.
#[derive(Clone, Debug)]
pub struct KernelCache {
    folder: PathBuf,
}

/// The inputs that compiled kernels are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheKey<'a> {
    /// Name of the source.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Architecture and further options of the compiler.
    pub options: &'a [String],
    /// Version of the compiler.
    pub version: (i32, i32),
}

/// First bytes of an entry.
const MAGIC: &[u8; 8] = b"odeonk01";
const HEADER: usize = 24;

impl CacheKey<'_> {
    fn file_name(&self) -> String {
        let mut hash = Fnv::new();
        hash.add(self.text.as_bytes());
        for option in self.options {
            hash.add(option.as_bytes());
        }
        hash.add(&self.version.0.to_le_bytes());
        hash.add(&self.version.1.to_le_bytes());
        format!("{}-{:032x}.cubin", self.name, hash.0)
    }
}

impl KernelCache {
    /// The user's cache: `$ODEON_KERNEL_CACHE`, or `odeon/kernels` in the user's cache folder.
    #[must_use]
    pub fn of_user() -> Self {
        Self::at(folder("ODEON_KERNEL_CACHE", "kernels"))
    }

    /// A cache in this folder, which need not exist.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The compiled kernels that were kept for this key; nothing when they are not there, or not
    /// whole.
    #[must_use]
    pub fn get(&self, key: CacheKey<'_>) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.folder.join(key.file_name())).ok()?;
        let (header, content) = bytes.split_at_checked(HEADER)?;
        if header != Self::header(content) {
            return None;
        }
        Some(bytes.split_off(HEADER))
    }

    /// Keeps what was made.
    ///
    /// # Errors
    ///
    /// The file system's. The cache is as before.
    pub fn put(&self, key: CacheKey<'_>, content: &[u8]) -> io::Result<()> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.folder)?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}-{serial}", std::process::id());
        let beside = self.folder.join(name);
        let mut bytes = Self::header(content).to_vec();
        bytes.extend_from_slice(content);
        let done = fs::write(&beside, bytes)
            .and_then(|()| fs::rename(&beside, self.folder.join(key.file_name())));
        if done.is_err() {
            // It may not be there; the first error is the one to tell.
            drop(fs::remove_file(&beside));
        }
        done
    }

    fn header(content: &[u8]) -> [u8; HEADER] {
        let mut hash = Fnv::new();
        hash.add(content);
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..].copy_from_slice(&hash.0.to_le_bytes());
        header
    }
}

/// FNV-1a of 128 bits, the length of each part in it: the same in every build, which the standard
/// library's hasher need not be.
struct Fnv(u128);

impl Fnv {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u128::from(*byte))
                .wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'a>(text: &'a str, options: &'a [String], version: (i32, i32)) -> CacheKey<'a> {
        CacheKey {
            name: "rows",
            text,
            options,
            version,
        }
    }

    #[test]
    fn an_entry_is_found_by_everything_it_was_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(folder.path().join("not/there/yet"));
        let (a, b) = (["sm_90a".to_owned()], ["sm_80".to_owned()]);
        assert_eq!(cache.get(key("text", &a, (13, 2))), None);
        cache.put(key("text", &a, (13, 2)), b"made").unwrap();
        assert_eq!(cache.get(key("text", &a, (13, 2))).unwrap(), b"made");
        for other in [
            key("texT", &a, (13, 2)),
            key("text", &b, (13, 2)),
            key("text", &a, (12, 9)),
        ] {
            assert_eq!(cache.get(other), None);
        }
        let left = fs::read_dir(cache.folder()).unwrap().count();
        assert_eq!(left, 1, "nothing but the entry is left");
    }

    #[test]
    fn a_damaged_entry_is_as_if_it_were_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(folder.path());
        let key = key("text", &[], (13, 2));
        cache.put(key, &[7; 1000]).unwrap();
        let path = folder.path().join(key.file_name());
        let whole = fs::read(&path).unwrap();
        for cut in [0, 5, HEADER - 1, HEADER, 500, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(cache.get(key), None, "cut at {cut}");
        }
        for at in [0, 9, HEADER, 700] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get(key), None, "damaged at {at}");
        }
        cache.put(key, b"again").unwrap();
        assert_eq!(cache.get(key).unwrap(), b"again");
    }
}
