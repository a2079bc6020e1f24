//! Requirements of a program on its node, read from the program's file without running it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Architecture;
use crate::elf::{self, Elf};

/// A program for Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    /// The architecture that it is built for.
    pub architecture: Architecture,
    /// The loader and libraries that it needs; `None` when it brings all with it (linked
    /// statically).
    pub dynamic: Option<Dynamic>,
}

/// The loader and libraries that a program asks the system for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dynamic {
    /// The path of the loader that it wants. The kernel starts no other.
    pub interpreter: String,
    /// Whose loader that is; `None` when its name does not say.
    pub libc: Option<Libc>,
    /// The newest version of glibc whose symbols it uses.
    pub glibc: Option<GlibcVersion>,
    /// Other features of glibc by their names (`GLIBC_ABI_DT_RELR`), which have no order.
    pub glibc_abi: Vec<String>,
    /// The libraries that it wants, in its order. Whether a node has them is seen when it starts.
    pub libraries: Vec<String>,
}

/// Whose C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Libc {
    /// GNU's, whose symbols have versions.
    Glibc,
    /// Musl.
    Musl,
}

impl Libc {
    /// As the name of the loader has it.
    pub(crate) fn of_loader(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next()?;
        if name.starts_with("ld-musl-") {
            Some(Self::Musl)
        } else if name.starts_with("ld-linux") || name.starts_with("ld64.so.") {
            Some(Self::Glibc)
        } else {
            None
        }
    }
}

impl fmt::Display for Libc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
        })
    }
}

impl Executable {
    /// Reads what the program in this file needs. It is not run, and little of it is read.
    ///
    /// # Errors
    /// When no program for Linux is there, and what is there instead.
    pub fn inspect(path: &Path) -> Result<Self, InspectError> {
        inspect(path).map_err(|fault| InspectError {
            path: path.to_owned(),
            fault,
        })
    }
}

fn inspect(path: &Path) -> Result<Executable, NotAProgram> {
    // Before it is opened: that would wait for whoever writes into a pipe.
    let found = std::fs::metadata(path)?;
    if found.is_dir() {
        return Err(NotAProgram::Folder);
    }
    if !found.is_file() {
        return Err(NotAProgram::Special);
    }
    let mut file = File::open(path)?;
    let mut head = vec![];
    (&mut file).take(512).read_to_end(&mut head)?;
    if !head.starts_with(b"\x7fELF") {
        return Err(instead_of_elf(&head));
    }
    let elf = Elf::read(&file).map_err(|fault| match fault {
        elf::Fault::Truncated => NotAProgram::Truncated { bytes: found.len() },
        elf::Fault::Malformed(what) => NotAProgram::Malformed { what },
    })?;
    match elf.kind {
        elf::Kind::Core => return Err(NotAProgram::Core),
        elf::Kind::Object => return Err(NotAProgram::Object),
        elf::Kind::Other => {
            return Err(NotAProgram::Malformed {
                what: "what it says that it is",
            });
        }
        // A library has no loader and is not marked as a program, whatever it has as entry.
        elf::Kind::Dynamic if elf.interpreter.is_none() && !elf.pie => {
            return Err(NotAProgram::Library);
        }
        elf::Kind::Dynamic | elf::Kind::Executable => {}
    }
    if elf.entry == 0 {
        return Err(NotAProgram::NoEntry);
    }
    let architecture = Architecture::of(&elf);
    let glibc = elf.needs.iter().filter_map(|it| version_of(it)).max();
    let glibc_abi = elf
        .needs
        .iter()
        .filter(|it| it.starts_with("GLIBC_ABI_"))
        .cloned()
        .collect();
    let dynamic = elf.interpreter.map(|interpreter| Dynamic {
        libc: Libc::of_loader(&interpreter),
        interpreter,
        glibc,
        glibc_abi,
        libraries: elf.libraries,
    });
    Ok(Executable {
        architecture,
        dynamic,
    })
}

/// The version in the name of a version of symbols, if it is one of glibc.
pub(crate) fn version_of(symbols: &str) -> Option<GlibcVersion> {
    symbols.strip_prefix("GLIBC_")?.parse().ok()
}

/// Identifies a file that is not ELF by its first bytes.
fn instead_of_elf(head: &[u8]) -> NotAProgram {
    if head.is_empty() {
        return NotAProgram::Empty;
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let interpreter = String::from_utf8_lossy(line).trim().to_owned();
        return NotAProgram::Script { interpreter };
    }
    if head.starts_with(b"MZ") {
        return NotAProgram::OtherSystem { system: "Windows" };
    }
    let mach_o = [
        [0xfe, 0xed, 0xfa, 0xce],
        [0xfe, 0xed, 0xfa, 0xcf],
        [0xce, 0xfa, 0xed, 0xfe],
        [0xcf, 0xfa, 0xed, 0xfe],
        [0xca, 0xfe, 0xba, 0xbe],
    ];
    if mach_o.iter().any(|magic| head.starts_with(magic)) {
        return NotAProgram::OtherSystem { system: "macOS" };
    }
    let text = |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace();
    if head.iter().all(text) {
        return NotAProgram::Text;
    }
    NotAProgram::Unknown
}

/// A version of glibc, such as 2.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GlibcVersion {
    /// 2, for a long time.
    pub major: u16,
    /// Goes up twice a year.
    pub minor: u16,
    /// Of old versions only, else 0.
    pub patch: u16,
}

impl fmt::Display for GlibcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch > 0 {
            write!(f, ".{}", self.patch)?;
        }
        Ok(())
    }
}

impl FromStr for GlibcVersion {
    type Err = GlibcVersionError;

    fn from_str(text: &str) -> Result<Self, GlibcVersionError> {
        let error = || GlibcVersionError(text.chars().take(40).collect());
        let mut numbers = [0; 3];
        let mut parts = text.split('.');
        for (at, number) in numbers.iter_mut().enumerate() {
            match parts.next() {
                Some(part) => *number = part.parse().map_err(|_| error())?,
                None if at < 2 => return Err(error()),
                None => {}
            }
        }
        if parts.next().is_some() {
            return Err(error());
        }
        let [major, minor, patch] = numbers;
        Ok(Self {
            major,
            minor,
            patch,
        })
    }
}

impl TryFrom<String> for GlibcVersion {
    type Error = GlibcVersionError;

    fn try_from(text: String) -> Result<Self, GlibcVersionError> {
        text.parse()
    }
}

impl From<GlibcVersion> for String {
    fn from(version: GlibcVersion) -> Self {
        version.to_string()
    }
}

/// Not two or three numbers with dots between them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version of glibc")]
pub struct GlibcVersionError(String);

/// A file that is not a program for Linux.
#[derive(Debug, thiserror::Error)]
#[error("{} {fault}", path.display())]
pub struct InspectError {
    /// The file.
    pub path: PathBuf,
    /// The reason why it is not a program.
    pub fault: NotAProgram,
}

/// The reason why a file is not a program for Linux.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotAProgram {
    /// It is not there, or may not be read.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A folder.
    #[error("is a folder: give the path of the program in it")]
    Folder,
    /// A socket, a pipe or a device.
    #[error("is not a regular file")]
    Special,
    /// It has no bytes.
    #[error("is empty: the build that should have written it may have failed")]
    Empty,
    /// A script.
    #[error(
        "is a script for {interpreter:?}, not a native program: \
         give the program that the script starts"
    )]
    Script {
        /// The interpreter that its first line asks for.
        interpreter: String,
    },
    /// Text.
    #[error("is text, not a native program")]
    Text,
    /// A program of another system.
    #[error("is a program for {system}: build it for Linux")]
    OtherSystem {
        /// Which.
        system: &'static str,
    },
    /// A core file.
    #[error("is the memory of a process that ended, not a program")]
    Core,
    /// An object file, as compilers write them before they link.
    #[error("is an object file that was not linked into a program yet")]
    Object,
    /// A shared library.
    #[error("is a shared library: give the program that uses it")]
    Library,
    /// A program that does not say where it begins.
    #[error("has no entry point, so nothing can start it")]
    NoEntry,
    /// Parts of it are missing.
    #[error("ends after {bytes} bytes, before parts that it announces: it was not copied whole")]
    Truncated {
        /// Bytes that the file has.
        bytes: u64,
    },
    /// ELF that contradicts itself.
    #[error("is damaged: {what} cannot be")]
    Malformed {
        /// Where.
        what: &'static str,
    },
    /// None of these.
    #[error("is not a native program")]
    Unknown,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use odeon_skip::{Need, skip};
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::noise::noise;

    fn inspect_bytes(bytes: &[u8]) -> Result<Executable, NotAProgram> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        inspect(&path)
    }

    fn own() -> PathBuf {
        std::env::current_exe().unwrap()
    }

    /// Compiles a program with these options; `None`, with a printed reason, where there is no C
    /// compiler.
    fn compiled(options: &[&str]) -> Option<(TempDir, PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let (source, path) = (folder.path().join("a.c"), folder.path().join("a"));
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut command = Command::new("cc");
        let ran = command.arg(&source).arg("-o").arg(&path).args(options);
        match ran.output() {
            Ok(done) if done.status.success() => Some((folder, path)),
            Ok(done) => {
                let why = String::from_utf8_lossy(&done.stderr);
                skip(Need::CCompiler, format!("cc {options:?}: {why}"));
                None
            }
            Err(error) => {
                skip(Need::CCompiler, format!("cc: {error}"));
                None
            }
        }
    }

    #[test]
    fn this_program_is_what_it_was_built_as() {
        let found = Executable::inspect(&own()).unwrap();
        assert_eq!(found.architecture, Architecture::here());
        let dynamic = found.dynamic.clone();
        if cfg!(target_env = "gnu") {
            let dynamic = dynamic.expect("Rust links glibc dynamically");
            assert_eq!(dynamic.libc, Some(Libc::Glibc));
            assert!(dynamic.libraries.contains(&"libc.so.6".to_owned()));
            // Rust itself uses symbols of 2.17.
            assert!(
                dynamic.glibc >= Some("2.14".parse().unwrap()),
                "{dynamic:?}"
            );
        }
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Executable>(&json).unwrap(), found);
    }

    #[test]
    fn the_version_of_glibc_is_the_one_that_readelf_finds() {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let found = Executable::inspect(&shell).unwrap();
        assert_eq!(found.architecture, Architecture::here());
        let Ok(listed) = Command::new("readelf").arg("-VW").arg(&shell).output() else {
            return skip(Need::Readelf, "there is no readelf");
        };
        let listed = String::from_utf8(listed.stdout).unwrap();
        let needs = listed.rsplit("Version needs").next().unwrap();
        let versions = needs.split("Name: ").skip(1);
        let newest = versions
            .filter_map(|rest| version_of(rest.split_whitespace().next()?))
            .max();
        assert_eq!(found.dynamic.and_then(|dynamic| dynamic.glibc), newest);
    }

    #[test]
    fn programs_linked_statically_need_nothing() {
        for options in [&["-static"], &["-static-pie"]] {
            if let Some((_folder, path)) = compiled(options) {
                let found = Executable::inspect(&path).unwrap();
                assert_eq!(found.dynamic, None, "{options:?}");
                assert_eq!(found.architecture, Architecture::here());
            }
        }
    }

    #[test]
    fn what_is_not_a_program_is_named() {
        let check = |bytes: &[u8], expected: &str| {
            let said = inspect_bytes(bytes).unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        };
        check(b"", "is empty");
        check(
            b"#!/usr/bin/env python3\nprint()",
            "is a script for \"/usr/bin/env python3\"",
        );
        check("just text, schön\n".as_bytes(), "is text");
        check(b"MZ\x90\0\x03\0", "is a program for Windows");
        check(b"\xcf\xfa\xed\xfe\x0c\0\0\x01", "is a program for macOS");
        check(&noise(1, 999), "is not a native program");
        check(b"\x7fELF", "ends after 4 bytes");
        check(b"\x7fELF\x05\x01\x01\0\0\0\0\0\0\0\0\0", "is damaged");

        let folder = tempfile::tempdir().unwrap();
        let said = Executable::inspect(folder.path()).unwrap_err().to_string();
        let name = folder.path().display();
        assert!(said.starts_with(&format!("{name} is a folder")), "{said}");
        let none = inspect(&folder.path().join("none")).unwrap_err();
        assert!(matches!(none, NotAProgram::Read(_)), "{none}");
        let device = inspect(Path::new("/dev/null")).unwrap_err();
        assert!(matches!(device, NotAProgram::Special), "{device}");
    }

    #[test]
    fn libraries_and_objects_are_not_programs() {
        if let Some((_folder, path)) = compiled(&["-shared", "-fPIC"]) {
            let fault = inspect(&path).unwrap_err();
            assert!(matches!(fault, NotAProgram::Library), "{fault}");
        }
        if let Some((_folder, path)) = compiled(&["-c"]) {
            let fault = inspect(&path).unwrap_err();
            assert!(matches!(fault, NotAProgram::Object), "{fault}");
        }
    }

    /// The shell with some bytes changed.
    fn patched(at: usize, value: &[u8]) -> Result<Executable, NotAProgram> {
        let mut bytes = fs::read(fs::canonicalize("/bin/sh").unwrap()).unwrap();
        bytes[at..at + value.len()].copy_from_slice(value);
        inspect_bytes(&bytes)
    }

    #[test]
    fn headers_are_believed() {
        // Where ELF keeps its type, its machine and its entry.
        let (kind, machine, entry) = (16, 18, 24);
        let number = |n: u16| n.to_ne_bytes();
        let found = patched(machine, &number(183)).unwrap();
        assert_eq!(found.architecture.to_string(), "aarch64");
        let found = patched(machine, &number(9_999)).unwrap();
        let said = found.architecture.to_string();
        assert_eq!(said, "machine 9999 of ELF (64 bits, little-endian)");
        let fault = patched(kind, &number(4)).unwrap_err();
        assert!(matches!(fault, NotAProgram::Core), "{fault}");
        let fault = patched(kind, &number(77)).unwrap_err();
        assert!(matches!(fault, NotAProgram::Malformed { .. }), "{fault}");
        let fault = patched(entry, &[0; 8]).unwrap_err();
        assert!(matches!(fault, NotAProgram::NoEntry), "{fault}");
    }

    #[test]
    fn a_program_that_was_not_copied_whole_is_told() {
        let bytes = fs::read(fs::canonicalize("/bin/sh").unwrap()).unwrap();
        for len in [5, 63, 64, 500, 5_000, bytes.len() / 2, bytes.len() - 1] {
            let fault = inspect_bytes(&bytes[..len]).unwrap_err();
            let told = matches!(fault, NotAProgram::Truncated { bytes } if bytes == len as u64);
            assert!(told, "{len}: {fault}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let version = |text: &str| text.parse::<GlibcVersion>().unwrap();
        assert!(version("2.4") < version("2.31"));
        assert!(version("2.3") < version("2.3.4"));
        assert_eq!(version("2.3.4").to_string(), "2.3.4");
        for text in ["", "2", "2.", "2.x", "2.1.2.3", "PRIVATE", "2.99999"] {
            assert!(text.parse::<GlibcVersion>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn damaged_programs_are_read_to_an_end(
            damage in prop::collection::vec((0_usize..6_000, any::<u8>()), 1..20),
        ) {
            let mut bytes = fs::read(fs::canonicalize("/bin/sh").unwrap()).unwrap();
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            // Whatever it says, it says something.
            drop(inspect_bytes(&bytes));
        }
    }
}
