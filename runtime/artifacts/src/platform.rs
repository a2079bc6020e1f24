//! The platform of a node: the programs that it can run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::elf::Elf;
use crate::executable::version_of;
use crate::{Architecture, Executable, GlibcVersion, Libc};

/// The means of a node to run programs: its architecture and its loaders. It travels with what else
/// a node says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The architecture that it executes.
    pub architecture: Architecture,
    /// The loaders that programs may ask for. Without one it runs programs that are linked
    /// statically, and no others.
    pub loaders: Vec<Loader>,
}

/// A loader, with the C library that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loader {
    /// Its path, which programs name.
    pub interpreter: String,
    /// Whose it is.
    pub libc: Libc,
    /// The newest version of symbols that the library has; `None` for musl, whose have none.
    pub glibc: Option<GlibcVersion>,
    /// Other features of the library by their names (`GLIBC_ABI_DT_RELR`).
    pub glibc_abi: Vec<String>,
}

impl Platform {
    /// That of this machine, read from its files once in a process.
    #[must_use]
    pub fn here() -> &'static Self {
        static HERE: OnceLock<Platform> = OnceLock::new();
        HERE.get_or_init(|| {
            let mut here = Self::under(Path::new("/"), Architecture::here());
            // Systems with their loader elsewhere have at least the one that this program came by.
            let own = Executable::inspect(Path::new("/proc/self/exe")).ok();
            if let Some(own) = own.and_then(|own| own.dynamic) {
                here.add(Path::new("/"), &own.interpreter);
            }
            here
        })
    }

    /// That of a system whose files lie under `root`.
    #[must_use]
    pub fn under(root: &Path, architecture: Architecture) -> Self {
        let mut platform = Self {
            architecture,
            loaders: vec![],
        };
        for interpreter in architecture.loaders() {
            platform.add(root, interpreter);
        }
        platform
    }

    /// Adds a loader if it is there with its library. One without could start nothing.
    fn add(&mut self, root: &Path, interpreter: &str) {
        let known = self.loaders.iter().any(|it| it.interpreter == interpreter);
        let Ok(loader) = fs::canonicalize(inside(root, interpreter)) else {
            return;
        };
        let Some(libc) = Libc::of_loader(interpreter).filter(|_| !known) else {
            return;
        };
        let found = match libc {
            // The loader is the library.
            Libc::Musl => self.library(&loader).map(|_| (None, vec![])),
            Libc::Glibc => folders(root, &loader)
                .iter()
                .find_map(|folder| self.library(&folder.join("libc.so.6")))
                .map(|library| {
                    let newest = library.iter().filter_map(|it| version_of(it)).max();
                    let abi = |it: &String| it.starts_with("GLIBC_ABI_");
                    (newest, library.into_iter().filter(abi).collect())
                })
                .filter(|(newest, _)| newest.is_some()),
        };
        if let Some((glibc, glibc_abi)) = found {
            self.loaders.push(Loader {
                interpreter: interpreter.to_owned(),
                libc,
                glibc,
                glibc_abi,
            });
        }
    }

    /// The versions of symbols that a library of this architecture has for others.
    fn library(&self, path: &Path) -> Option<Vec<String>> {
        let elf = Elf::read(&fs::File::open(path).ok()?).ok()?;
        (Architecture::of(&elf) == self.architecture).then_some(elf.defines)
    }

    /// Checks that a program can be started here, as far as its file says. Whether the libraries of
    /// others that it asks for are there is seen when it starts.
    ///
    /// # Errors
    /// What stands in the way, in a sentence that says what to do.
    pub fn can_run(&self, program: &Executable) -> Result<(), CannotRun> {
        if program.architecture != self.architecture {
            return Err(CannotRun::Architecture {
                program: program.architecture,
                node: self.architecture,
            });
        }
        let Some(dynamic) = &program.dynamic else {
            return Ok(());
        };
        let mut loaders = self.loaders.iter();
        let Some(loader) = loaders.find(|it| it.interpreter == dynamic.interpreter) else {
            return Err(CannotRun::NoLoader {
                interpreter: dynamic.interpreter.clone(),
                node: self.loaders.iter().map(|it| it.libc.to_string()).collect(),
                musl: dynamic.libc == Some(Libc::Musl),
            });
        };
        if let (Some(needs), Some(node)) = (dynamic.glibc, loader.glibc)
            && needs > node
        {
            return Err(CannotRun::Glibc { needs, node });
        }
        if let Some(node) = loader.glibc {
            let lacks = |feature: &&String| !loader.glibc_abi.contains(feature);
            if let Some(needs) = dynamic.glibc_abi.iter().find(lacks) {
                return Err(CannotRun::GlibcAbi {
                    needs: needs.clone(),
                    node,
                });
            }
        }
        Ok(())
    }
}

/// An absolute path under another root.
fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Where a loader looks for its library, nearest first.
fn folders(root: &Path, loader: &Path) -> Vec<PathBuf> {
    let mut folders = vec![];
    folders.extend(loader.parent().map(Path::to_owned));
    configured(root, &inside(root, "/etc/ld.so.conf"), 0, &mut folders);
    for usual in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
        folders.push(inside(root, usual));
    }
    folders
}

/// The folders that a configuration of the loader lists, with those of the files that it includes.
fn configured(root: &Path, file: &Path, depth: u32, folders: &mut Vec<PathBuf>) {
    // What cannot be read the loader does without, too.
    let Ok(text) = fs::read_to_string(file) else {
        return;
    };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('/') {
            folders.push(inside(root, line));
        } else if let Some(pattern) = line.strip_prefix("include ")
            && depth < 4
        {
            for file in matching(root, pattern.trim()) {
                configured(root, &file, depth + 1, folders);
            }
        }
    }
}

/// The files that a pattern names. Only the usual form has a star: at the beginning of the name.
fn matching(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let Some((folder, end)) = pattern.split_once("/*") else {
        return vec![inside(root, pattern)];
    };
    let Ok(entries) = fs::read_dir(inside(root, folder)) else {
        return vec![];
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().ends_with(end))
        .collect();
    files.sort();
    files
}

/// Why a program cannot be started on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CannotRun {
    /// Built for other machines.
    #[error(
        "the program is built for {program} and the node is {node}: \
         build it for {node}, or start it on a node that is {program}"
    )]
    Architecture {
        /// The architecture that the program is built for.
        program: Architecture,
        /// The architecture that the node executes.
        node: Architecture,
    },
    /// The loader that it asks for is not there.
    #[error("{}", no_loader(interpreter, node, *musl))]
    NoLoader {
        /// The loader.
        interpreter: String,
        /// Whose C libraries the node has.
        node: Vec<String>,
        /// Set where the loader is that of musl.
        musl: bool,
    },
    /// Its glibc is newer.
    #[error(
        "the program needs GLIBC_{needs} and the node has glibc {node}: \
         build it on a system with glibc {node} or older, or link it statically with musl"
    )]
    Glibc {
        /// The newest version whose symbols it uses.
        needs: GlibcVersion,
        /// The newest that the node has.
        node: GlibcVersion,
    },
    /// Its glibc has a feature that the node's lacks.
    #[error(
        "the program needs {needs}, which glibc {node} of the node does not have: \
         build it on a system as old as the node, or link it statically with musl"
    )]
    GlibcAbi {
        /// The feature.
        needs: String,
        /// The newest version that the node has.
        node: GlibcVersion,
    },
}

fn no_loader(interpreter: &str, node: &[String], musl: bool) -> String {
    let has = if node.is_empty() {
        "runs only programs that are linked statically".to_owned()
    } else {
        format!("has {}", node.join(" and "))
    };
    let remedy = if musl {
        "link it statically, as Rust does for musl by default"
    } else {
        "link it statically with musl, or build it on a system like that of the node"
    };
    format!("the program asks for the loader {interpreter}, and the node {has}: {remedy}")
}

#[cfg(test)]
mod tests {
    use odeon_skip::{Need, skip};

    use super::*;
    use crate::Dynamic;

    fn version(text: &str) -> GlibcVersion {
        text.parse().unwrap()
    }

    fn node() -> Platform {
        Platform {
            architecture: X86_64,
            loaders: vec![Loader {
                interpreter: GLIBC.into(),
                libc: Libc::Glibc,
                glibc: Some(version("2.31")),
                glibc_abi: vec![],
            }],
        }
    }

    fn program(interpreter: &str, glibc: Option<&str>) -> Executable {
        Executable {
            architecture: X86_64,
            dynamic: Some(Dynamic {
                interpreter: interpreter.into(),
                libc: Libc::of_loader(interpreter),
                glibc: glibc.map(version),
                glibc_abi: vec![],
                libraries: vec![],
            }),
        }
    }

    const X86_64: Architecture = Architecture {
        machine: 62,
        bits: 64,
        little_endian: true,
    };
    const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";
    const MUSL: &str = "/lib/ld-musl-x86_64.so.1";

    #[test]
    fn what_runs_here_can_run_here() {
        let here = Platform::here();
        let own = Executable::inspect(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(here.can_run(&own), Ok(()));
        let shell = Executable::inspect(Path::new("/bin/sh")).unwrap();
        assert_eq!(here.can_run(&shell), Ok(()));
        let json = serde_json::to_string(here).unwrap();
        assert_eq!(&serde_json::from_str::<Platform>(&json).unwrap(), here);
    }

    #[test]
    fn the_version_of_glibc_is_the_one_that_ldd_says() {
        let Ok(said) = std::process::Command::new("ldd").arg("--version").output() else {
            return skip(Need::Ldd, "there is no ldd");
        };
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let first = said.lines().next().unwrap_or_default();
        let Some(version) = first.split(' ').next_back().and_then(|it| it.parse().ok()) else {
            return skip(Need::Glibc, format!("ldd says: {said}"));
        };
        let loaders = &Platform::here().loaders;
        let glibc = loaders.iter().find(|it| it.libc == Libc::Glibc).unwrap();
        // Versions without new symbols have no name of their own.
        assert!(glibc.glibc <= Some(version));
        let old = GlibcVersion {
            minor: version.minor - 2,
            ..version
        };
        assert!(glibc.glibc >= Some(old), "{glibc:?}, ldd says {version}");
    }

    #[test]
    fn what_cannot_run_is_told_in_a_sentence() {
        let check = |program: &Executable, said: &str| {
            let error = node().can_run(program).unwrap_err();
            assert_eq!(error.to_string(), said);
        };
        check(
            &Executable {
                architecture: Architecture {
                    machine: 183,
                    ..X86_64
                },
                dynamic: None,
            },
            "the program is built for aarch64 and the node is x86_64: \
             build it for x86_64, or start it on a node that is aarch64",
        );
        check(
            &program(GLIBC, Some("2.39")),
            "the program needs GLIBC_2.39 and the node has glibc 2.31: \
             build it on a system with glibc 2.31 or older, or link it statically with musl",
        );
        check(
            &program(MUSL, None),
            "the program asks for the loader /lib/ld-musl-x86_64.so.1, and the node has glibc: \
             link it statically, as Rust does for musl by default",
        );
        check(
            &program("/nix/store/x/ld-linux-x86-64.so.2", Some("2.2.5")),
            "the program asks for the loader /nix/store/x/ld-linux-x86-64.so.2, and the node has \
             glibc: link it statically with musl, or build it on a system like that of the node",
        );
        let mut packed = program(GLIBC, Some("2.2.5"));
        let dynamic = packed.dynamic.as_mut().unwrap();
        dynamic.glibc_abi = vec!["GLIBC_ABI_DT_RELR".into()];
        check(
            &packed,
            "the program needs GLIBC_ABI_DT_RELR, which glibc 2.31 of the node does not have: \
             build it on a system as old as the node, or link it statically with musl",
        );
        let mut node = node();
        for program in [
            program(GLIBC, Some("2.31")),
            program(GLIBC, None),
            Executable {
                architecture: X86_64,
                dynamic: None,
            },
        ] {
            assert_eq!(node.can_run(&program), Ok(()));
        }
        node.loaders.clear();
        let error = node.can_run(&program(GLIBC, None)).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("only programs that are linked statically"),
            "{said}"
        );
        let json = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<CannotRun>(&json).unwrap(), error);
    }

    #[test]
    fn the_library_is_found_where_the_loader_is_configured_to_look() {
        let here = Platform::here();
        let Some(loader) = here.loaders.iter().find(|it| it.libc == Libc::Glibc) else {
            return skip(Need::Glibc, "this system has none");
        };
        let real = fs::canonicalize(&loader.interpreter).unwrap();
        let root = tempfile::tempdir().unwrap();
        let put = |from: &Path, to: &str| {
            let to = inside(root.path(), to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        };
        let architecture = Architecture::here();
        put(&real, &loader.interpreter);
        let found = Platform::under(root.path(), architecture);
        assert_eq!(found.loaders, [], "a loader alone starts nothing");
        put(&real.with_file_name("libc.so.6"), "/opt/odd/libc.so.6");
        let configuration = inside(root.path(), "/etc/ld.so.conf.d");
        fs::create_dir_all(&configuration).unwrap();
        fs::write(configuration.join("odd.conf"), "# odd\n/opt/odd # here\n").unwrap();
        let include = "include /etc/ld.so.conf.d/*.conf\n";
        fs::write(inside(root.path(), "/etc/ld.so.conf"), include).unwrap();
        let found = Platform::under(root.path(), architecture);
        assert_eq!(&found.loaders, std::slice::from_ref(loader));
        let other = Architecture {
            machine: 183,
            ..architecture
        };
        assert_eq!(Platform::under(root.path(), other).loaders, []);
    }
}
