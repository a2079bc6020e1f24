//! The files that make up a program.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Digest, ListError, Listing, ListingError, Piece};

/// The files that a node needs to start a program: each has a name, and one of them is started.
///
/// Its name is that of its canonical encoding ([`encode`](Self::encode)), so it does not depend on
/// the order in which the files were given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct Bundle {
    entry: String,
    files: BTreeMap<String, BundleFile>,
    digest: Digest,
}

/// One file of a [`Bundle`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleFile {
    /// Set where the file may be executed.
    pub executable: bool,
    /// The pieces of its content.
    pub listing: Listing,
}

impl Bundle {
    /// The longest path, in bytes.
    pub const PATH_BYTES_MAX: usize = 1_024;
    /// The longest name between two slashes, as file systems have it.
    pub const NAME_BYTES_MAX: usize = 255;
    /// The most files. More than a program has, and few enough to write one by one.
    pub const FILES_MAX: usize = 16_384;
    /// The most pieces of all files: on average 128 GiB of them.
    pub const PIECES_MAX: usize = 1 << 19;

    /// A bundle of `files`, of which `entry` is started.
    ///
    /// Paths are relative to the folder that the bundle is put into, with slashes between names.
    ///
    /// # Errors
    /// When a path leads elsewhere, occurs twice or is also a folder of another one, when the entry
    /// is not among the files or may not be executed, or when there is too much of anything.
    pub fn new(
        entry: impl Into<String>,
        files: impl IntoIterator<Item = (String, BundleFile)>,
    ) -> Result<Self, BundleError> {
        let entry = entry.into();
        let mut named = BTreeMap::new();
        let mut pieces = 0;
        for (path, file) in files {
            check_path(&path)?;
            pieces += file.listing.pieces().len();
            if pieces > Self::PIECES_MAX {
                return Err(BundleError::Pieces);
            }
            if named.insert(path.clone(), file).is_some() {
                return Err(BundleError::Twice(path));
            }
            if named.len() > Self::FILES_MAX {
                return Err(BundleError::Files);
            }
        }
        for path in named.keys() {
            let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
            if let Some(folder) = folders.into_iter().find(|it| named.contains_key(*it)) {
                return Err(BundleError::AlsoAFolder {
                    file: folder.to_owned(),
                    path: path.clone(),
                });
            }
        }
        match named.get(&entry) {
            None => return Err(BundleError::NoEntry(entry)),
            Some(file) if !file.executable => return Err(BundleError::EntryNotExecutable(entry)),
            Some(_) => {}
        }
        let mut bundle = Self {
            entry,
            files: named,
            digest: Digest::of(b""),
        };
        bundle.digest = Digest::of(&bundle.encode());
        Ok(bundle)
    }

    /// The bundle of a program that is one file, which keeps its name.
    ///
    /// # Errors
    /// When the file cannot be read, or its name cannot be that of a file in a bundle.
    pub fn of_program(path: &Path) -> Result<Self, OfProgramError> {
        let listing = Listing::of_file(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let file = BundleFile {
            executable: true,
            listing,
        };
        Ok(Self::new(name.clone(), [(name.into_owned(), file)])?)
    }

    /// The name of this bundle.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// The path of the file that is started.
    #[must_use]
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// The files by path, in the order of paths.
    pub fn files(&self) -> impl Iterator<Item = (&str, &BundleFile)> {
        self.files.iter().map(|(path, file)| (path.as_str(), file))
    }

    /// The file at this path.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&BundleFile> {
        self.files.get(path)
    }

    /// The pieces of all files. One may occur several times.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.files.values().flat_map(|file| file.listing.pieces())
    }

    /// Bytes of all files together when they lie in their folder.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.listing.bytes()).sum()
    }

    /// The canonical encoding, which is also how a store keeps a bundle.
    ///
    /// `odeon-bundle\x01`, the entry, the number of files, and each file in the order of paths: path, a byte
    /// for whether it may be executed, digest, bytes, the number of pieces, and of each piece digest
    /// and bytes. A text is its length and its bytes. Numbers are `u32`, the bytes of a file `u64`,
    /// little-endian.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = HEAD.to_vec();
        let number = |out: &mut Vec<u8>, n: usize| {
            // All counts and lengths have a bound below this.
            let n = u32::try_from(n).expect("a bundle's counts are bounded");
            out.extend_from_slice(&n.to_le_bytes());
        };
        let text = |out: &mut Vec<u8>, text: &str| {
            number(out, text.len());
            out.extend_from_slice(text.as_bytes());
        };
        text(&mut out, &self.entry);
        number(&mut out, self.files.len());
        for (path, file) in &self.files {
            text(&mut out, path);
            out.push(u8::from(file.executable));
            out.extend_from_slice(file.listing.digest().as_bytes());
            out.extend_from_slice(&file.listing.bytes().to_le_bytes());
            number(&mut out, file.listing.pieces().len());
            for piece in file.listing.pieces() {
                out.extend_from_slice(piece.digest.as_bytes());
                out.extend_from_slice(&piece.bytes.to_le_bytes());
            }
        }
        out
    }

    /// Reads what [`encode`](Self::encode) wrote, and nothing else.
    ///
    /// # Errors
    /// When the bytes end early or go on, or what they say cannot be meant.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = Rest(bytes);
        if rest.take(HEAD.len())? != HEAD {
            return Err(DecodeError::Head);
        }
        let entry = rest.text()?;
        // Nothing is made room for by what a count says.
        let mut files = vec![];
        for _ in 0..rest.number()? {
            let path = rest.text()?;
            let executable = match rest.array::<1>()? {
                [0] => false,
                [1] => true,
                _ => return Err(DecodeError::NotCanonical),
            };
            let digest = Digest::from_bytes(rest.array()?);
            let bytes = u64::from_le_bytes(rest.array()?);
            let mut pieces = vec![];
            for _ in 0..rest.number()? {
                pieces.push(Piece {
                    digest: Digest::from_bytes(rest.array()?),
                    bytes: rest.number()?,
                });
            }
            let listing = Listing::new(digest, bytes, pieces)?;
            let file = BundleFile {
                executable,
                listing,
            };
            files.push((path, file));
        }
        if !rest.0.is_empty() || !files.is_sorted_by_key(|(path, _)| path) {
            return Err(DecodeError::NotCanonical);
        }
        Ok(Self::new(entry, files)?)
    }
}

/// The first bytes of an encoded bundle. The last byte is the version.
const HEAD: &[u8] = b"odeon-bundle\x01";

/// Bytes that are still to be decoded.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(DecodeError::CutOff)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError::CutOff)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, DecodeError> {
        let len = self.number()? as usize;
        let bytes = self.take(len)?.to_vec();
        String::from_utf8(bytes).map_err(|_| DecodeError::NotText)
    }
}

/// Checks that a file may have this path in a bundle.
pub(crate) fn check_path(path: &str) -> Result<(), BundleError> {
    let refuse = |why| {
        Err(BundleError::Path {
            path: path.chars().take(80).collect(),
            why,
        })
    };
    if path.is_empty() {
        return refuse("it is empty");
    }
    if path.len() > Bundle::PATH_BYTES_MAX {
        return refuse("it has more than 1024 bytes");
    }
    if path.starts_with('/') {
        return refuse("it is absolute");
    }
    // A terminal that shows the path must not obey it, and other systems part names there.
    if path.chars().any(|c| c.is_control() || c == '\\') {
        return refuse("it holds a control character or a backslash");
    }
    for name in path.split('/') {
        match name {
            "" => return refuse("a name in it is empty"),
            "." | ".." => return refuse("it holds . or .. as a name"),
            _ if name.len() > Bundle::NAME_BYTES_MAX => {
                return refuse("a name in it has more than 255 bytes");
            }
            _ => {}
        }
    }
    Ok(())
}

/// As it travels.
#[derive(Serialize, Deserialize)]
struct Unchecked {
    entry: String,
    files: Vec<(String, BundleFile)>,
}

impl TryFrom<Unchecked> for Bundle {
    type Error = BundleError;

    fn try_from(bundle: Unchecked) -> Result<Self, BundleError> {
        Self::new(bundle.entry, bundle.files)
    }
}

impl From<Bundle> for Unchecked {
    fn from(bundle: Bundle) -> Self {
        Self {
            entry: bundle.entry,
            files: bundle.files.into_iter().collect(),
        }
    }
}

/// A bundle that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A path that no file may have.
    #[error("{path:?} cannot be the path of a file in a bundle: {why}")]
    Path {
        /// Its beginning.
        path: String,
        /// The rule that the path breaks.
        why: &'static str,
    },
    /// Two files of one path.
    #[error("{0:?} occurs twice in the bundle")]
    Twice(String),
    /// A file that would have to be a folder too.
    #[error("{file:?} is a file of the bundle and cannot also be a folder of {path:?}")]
    AlsoAFolder {
        /// The file.
        file: String,
        /// The file that would lie in it.
        path: String,
    },
    /// The file to start is not there.
    #[error("the entry {0:?} is not among the files of the bundle")]
    NoEntry(String),
    /// The file to start may not be executed.
    #[error("the entry {0:?} of the bundle is not marked as executable")]
    EntryNotExecutable(String),
    /// Too many files.
    #[error("a bundle has at most {} files", Bundle::FILES_MAX)]
    Files,
    /// Too many pieces.
    #[error("the files of a bundle have at most {} pieces", Bundle::PIECES_MAX)]
    Pieces,
}

/// A program that cannot be bundled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfProgramError {
    /// The file cannot be cut into pieces.
    #[error(transparent)]
    List(#[from] ListError),
    /// Its name will not do.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// Bytes that are no encoded bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They begin otherwise: another thing, or another version.
    #[error("not a bundle that this version reads")]
    Head,
    /// They end early.
    #[error("the encoded bundle is cut off")]
    CutOff,
    /// They say the same as another encoding.
    #[error("the bundle is not encoded in its canonical form")]
    NotCanonical,
    /// A path is not UTF-8.
    #[error("a path of the bundle is not UTF-8")]
    NotText,
    /// A listing cannot be meant.
    #[error(transparent)]
    Listing(#[from] ListingError),
    /// The bundle cannot be meant.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(content: &[u8]) -> BundleFile {
        BundleFile {
            executable: true,
            listing: Listing::of(content).unwrap(),
        }
    }

    fn bundle(paths: &[&str]) -> Result<Bundle, BundleError> {
        let files = paths.iter().map(|path| ((*path).to_owned(), file(b"x")));
        Bundle::new(paths[0], files)
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        let long = "a/".repeat(600);
        let name = "n".repeat(256);
        for path in [
            "", "/bin/sh", "..", "../x", "a/../b", "a/./b", ".", "a//b", "a/", "a\\b", "a\nb",
            "a\0b", &long, &name,
        ] {
            let error = bundle(&[path]).unwrap_err();
            assert!(
                matches!(error, BundleError::Path { .. }),
                "{path:?}: {error}"
            );
        }
        for path in ["a", "...", ".hidden", "lib/libfoo.so.1", "ä b"] {
            assert_eq!(bundle(&[path]).unwrap().entry(), path);
        }
    }

    #[test]
    fn bundles_that_cannot_be_meant_are_refused() {
        assert_eq!(
            bundle(&["a", "b", "a"]),
            Err(BundleError::Twice("a".into()))
        );
        // The name between them in order does not hide it.
        let error = bundle(&["a/b/c", "a.txt", "a"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#""a" is a file of the bundle and cannot also be a folder of "a/b/c""#
        );
        assert_eq!(
            Bundle::new("b", [("a".into(), file(b""))]),
            Err(BundleError::NoEntry("b".into()))
        );
        let mut data = file(b"");
        data.executable = false;
        assert_eq!(
            Bundle::new("a", [("a".into(), data)]),
            Err(BundleError::EntryNotExecutable("a".into()))
        );
        let many = (0..=Bundle::FILES_MAX).map(|n| (format!("f{n}"), file(b"")));
        assert_eq!(Bundle::new("f0", many), Err(BundleError::Files));
    }

    #[test]
    fn a_bundle_is_encoded_as_written_down() {
        // Another encoding would give every bundle another name.
        let bundle = Bundle::new("run", [("run".into(), file(b"x"))]).unwrap();
        let (one, x) = (1_u32.to_le_bytes(), Digest::of(b"x"));
        let expected = [
            b"odeon-bundle\x01\x03\0\0\0run" as &[u8],
            &one,
            b"\x03\0\0\0run\x01",
            x.as_bytes(),
            &1_u64.to_le_bytes(),
            &one,
            x.as_bytes(),
            &one,
        ];
        assert_eq!(bundle.encode(), expected.concat());
        assert_eq!(bundle.digest(), Digest::of(&expected.concat()));
    }

    #[test]
    fn a_program_is_bundled_under_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train");
        std::fs::write(&path, b"program").unwrap();
        let bundle = Bundle::of_program(&path).unwrap();
        assert_eq!(bundle.entry(), "train");
        assert_eq!(bundle.bytes(), 7);
        let error = Bundle::of_program(folder.path()).unwrap_err();
        assert!(matches!(error, OfProgramError::List(_)), "{error}");
    }

    fn files() -> impl Strategy<Value = Vec<(String, BundleFile)>> {
        let name = prop::sample::select(vec!["a", "b", "ab", "c.so", "d"]);
        let path = prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
        let content = prop::collection::vec(any::<u8>(), 0..40);
        let file = (any::<bool>(), content).prop_map(|(executable, content)| BundleFile {
            executable,
            ..file(&content)
        });
        prop::collection::vec((path, file), 0..6)
    }

    proptest! {
        #[test]
        fn the_name_of_a_bundle_does_not_depend_on_order(
            (files, shuffled) in files().prop_flat_map(|files| {
                (Just(files.clone()), Just(files).prop_shuffle())
            }),
        ) {
            let with_entry = |files: Vec<_>| {
                Bundle::new("run", files.into_iter().chain([("run".into(), file(b"e"))]))
            };
            let (bundle, other) = (with_entry(files), with_entry(shuffled));
            prop_assert_eq!(bundle.is_ok(), other.is_ok());
            let (Ok(bundle), Ok(other)) = (bundle, other) else {
                return Ok(());
            };
            prop_assert_eq!(bundle.digest(), other.digest());
            prop_assert_eq!(&Bundle::decode(&bundle.encode()).unwrap(), &bundle);
            let json = serde_json::to_string(&bundle).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bundle>(&json).unwrap(), bundle);
        }

        #[test]
        fn a_damaged_encoding_is_no_bundle_of_the_same_name(
            at in any::<prop::sample::Index>(), flip in 1_u8.., cut in any::<bool>(),
        ) {
            let bundle = bundle(&["run", "lib/a", "lib/b"]).unwrap();
            let mut bytes = bundle.encode();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= flip;
            }
            if let Ok(other) = Bundle::decode(&bytes) {
                prop_assert_ne!(other.digest(), bundle.digest());
                prop_assert_eq!(other.encode(), bytes);
            }
        }
    }
}
