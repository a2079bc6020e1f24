//! The ways to isolate a program, as command lines of tools. Pure, but for the look which tools and
//! folders the machine has.

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use super::mounts::{self, Mount};
use super::script::{BEGIN, BWRAP, CLOSE, DROP, GATE, GATE_AND_WAIT, SET_UP, UNSHARE};
use super::{Isolation, SandboxError, SandboxSpec, Work};

/// A way to isolate programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Namespaces, by `unshare`, `mount`, `pivot_root`, `setpriv` and `prlimit`. What else is
    /// mounted below a folder that is shown can be written by who could write it before.
    UtilLinux,
    /// Namespaces, by `bwrap` of version 0.8 or later. It does not bound how many empty files a
    /// program makes, nor shared memory of System V.
    Bubblewrap,
    /// None: limits alone.
    Limits,
}

/// The way in which programs are run here.
#[derive(Debug)]
pub(super) struct Plan {
    spec: SandboxSpec,
    backend: Backend,
    root: bool,
    bash: bool,
    system: Vec<Mount>,
}

impl Backend {
    /// Those that promise as much, the preferred ones first.
    pub(super) const fn of(isolation: Isolation) -> &'static [Self] {
        match isolation {
            Isolation::Required => &[Self::UtilLinux, Self::Bubblewrap],
            Isolation::Limits => &[Self::Limits],
        }
    }

    /// The tools beside the shell, and the packages that hold them.
    const fn tools(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::UtilLinux => &[
                ("setsid", "util-linux"),
                ("setpriv", "util-linux"),
                ("prlimit", "util-linux"),
                ("unshare", "util-linux"),
                ("pivot_root", "util-linux"),
                ("mount", "mount"),
                ("umount", "mount"),
                ("cp", "coreutils"),
            ],
            Self::Bubblewrap => &[
                ("bwrap", "bubblewrap"),
                ("setsid", "util-linux"),
                ("setpriv", "util-linux"),
                ("prlimit", "util-linux"),
            ],
            Self::Limits => &[
                ("setsid", "util-linux"),
                ("setpriv", "util-linux"),
                ("prlimit", "util-linux"),
                ("rm", "coreutils"),
            ],
        }
    }
}

impl Plan {
    /// Looks what the machine has.
    pub(super) fn new(spec: SandboxSpec, backend: Backend) -> Result<Self, SandboxError> {
        check(&spec)?;
        let has = |tool: &str| {
            PATH.split(':')
                .any(|dir| Path::new(dir).join(tool).exists())
        };
        if let Some((tool, package)) = backend.tools().iter().find(|(tool, _)| !has(tool)) {
            return Err(SandboxError::Missing {
                backend,
                tool,
                path: PATH,
                package,
            });
        }
        let bash = Path::new(BASH).exists();
        if !bash && let Some(open) = passed_on(CLOSED_BY_SH) {
            let why =
                format!("this process passes on the open file {open}: install bash to close it");
            return Err(SandboxError::Refused { backend, why });
        }
        Ok(Self {
            system: mounts::system(&spec.readable),
            bash,
            root: rustix::process::geteuid().is_root(),
            spec,
            backend,
        })
    }

    pub(super) const fn backend(&self) -> Backend {
        self.backend
    }

    pub(super) const fn spec(&self) -> &SandboxSpec {
        &self.spec
    }

    /// The other user that programs run as, if they do not run as that of this process.
    pub(super) const fn other_user(&self) -> Option<u32> {
        if self.root { Some(NOBODY) } else { None }
    }

    /// Lines for `mount` of all that it is to show under `root`.
    pub(super) fn mounts(&self, root: &Path) -> String {
        mounts::table(&self.system, root, &self.spec)
    }

    pub(super) fn system(&self) -> &[Mount] {
        &self.system
    }

    /// Number of processes that a look may find: tools are among them.
    pub(super) const fn processes_seen_max(&self) -> usize {
        self.spec.processes as usize + TOOLS
    }

    /// A program that fails where the sandbox isolates nothing.
    pub(super) fn probe(&self, folder: &Path) -> Work {
        let isolated = match self.backend {
            Backend::Limits => "",
            _ => {
                "test ! -e \"$0\" || { echo the folders of the machine are seen; exit 1; } >&2
                test ! -e /etc/passwd || { echo /etc is seen; exit 1; } >&2
                test \"$$\" -lt 100 || { echo the processes of the machine are seen; exit 1; } >&2"
            }
        };
        let script = format!("{isolated}\nread -r line < file && test \"$line\" = text && : > new");
        let folder = folder.to_string_lossy().into_owned();
        Work {
            program: vec!["sh".to_owned(), "-c".to_owned(), script, folder],
            files: vec![("file".to_owned(), b"text\n".to_vec())],
            stdin: vec![],
        }
    }

    /// The command line for a program whose files are in the folder `run` of `base`. It begins when
    /// it has read a line.
    pub(super) fn command(&self, base: &Path, run: &Path, work: &Work) -> Vec<String> {
        let mut line = words("setsid");
        if self.root {
            line.extend(words("setpriv --reuid=65534 --regid=65534 --clear-groups"));
        }
        let text = |path: &Path| path.to_string_lossy().into_owned();
        match self.backend {
            Backend::UtilLinux => {
                line.extend(words(UNSHARE));
                line.extend(self.script(SET_UP));
                line.extend([text(base), text(run)]);
                line.extend(words(DROP));
            }
            Backend::Bubblewrap => {
                line.extend(self.script(GATE));
                line.extend(words(BWRAP));
                line.extend(self.bound(run, work));
            }
            Backend::Limits => {
                let drop = if self.root {
                    DROP
                } else {
                    "setpriv --no-new-privs"
                };
                line.extend(words(drop));
                line.extend(self.script(GATE_AND_WAIT));
            }
        }
        line.extend(self.limits());
        line.extend(script(BEGIN));
        line.extend(work.program.iter().cloned());
        line
    }

    /// The first of our scripts in a command line.
    fn script(&self, text: &str) -> [String; 4] {
        let mut line = script(&format!("{CLOSE}{text}"));
        if self.bash {
            BASH.clone_into(&mut line[0]);
        }
        line
    }

    /// Options of bubblewrap for all that it shows of the machine.
    fn bound(&self, run: &Path, work: &Work) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut line = vec![];
        for mount in &self.system {
            match mount {
                Mount::Shown(path) => {
                    line.extend(["--ro-bind".to_owned(), text(path), text(path)]);
                }
                Mount::Device(path) => {
                    line.extend(["--dev-bind".to_owned(), text(path), text(path)]);
                }
                Mount::Link(path, to) => {
                    line.extend(["--symlink".to_owned(), text(to), text(path)]);
                }
            }
        }
        let size = self.spec.file_bytes.to_string();
        line.extend(["--size".to_owned(), size]);
        line.extend(words("--tmpfs /work"));
        for (name, _) in &work.files {
            let within = format!("/work/{name}");
            line.extend(["--ro-bind".to_owned(), text(&run.join(name)), within]);
        }
        line.extend(words("--remount-ro / --chdir /work --"));
        line
    }

    /// The command that sets the kernel's limits on every process.
    fn limits(&self) -> Vec<String> {
        let SandboxSpec {
            cpu,
            memory_bytes,
            processes,
            file_bytes,
            ..
        } = &self.spec;
        let seconds = whole_seconds(*cpu);
        // With 1, unlike with 0, a crash is no news for whoever collects them on this machine.
        let mut line = words("prlimit --core=1 --msgqueue=0 --nofile=64");
        line.push(format!("--cpu={seconds}:{}", seconds + 1));
        line.push(format!("--fsize={file_bytes}"));
        // Without a user namespace this would count all processes of the user.
        if self.backend != Backend::Limits {
            line.push(format!("--nproc={}", *processes as usize + TOOLS));
        }
        line.push(format!("--as={memory_bytes}"));
        line
    }

    /// The environment of a program whose folder is this: nothing of ours.
    pub(super) fn env(&self, run: &Path) -> Vec<(&'static str, String)> {
        let home = match self.backend {
            Backend::Limits => run.to_string_lossy().into_owned(),
            _ => "/work".to_owned(),
        };
        let fixed = [
            ("PATH", PATH),
            ("LANG", "C.UTF-8"),
            // The same program does the same each time.
            ("PYTHONHASHSEED", "0"),
            // Libraries that start a thread for each processor would meet the limits.
            ("OMP_NUM_THREADS", "1"),
            ("OPENBLAS_NUM_THREADS", "1"),
        ];
        let mut env: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).into();
        env.extend([("HOME", home.clone()), ("TMPDIR", home)]);
        env
    }
}

impl Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UtilLinux => "util-linux",
            Self::Bubblewrap => "bubblewrap",
            Self::Limits => "limits",
        })
    }
}

fn check(spec: &SandboxSpec) -> Result<(), SandboxError> {
    let positive = [
        ("wall", spec.wall.is_zero()),
        ("cpu", spec.cpu.is_zero()),
        ("processes", spec.processes == 0),
        ("file_bytes", spec.file_bytes == 0),
        ("output_bytes", spec.output_bytes == 0),
    ];
    let what = if let Some((name, _)) = positive.iter().find(|(_, zero)| *zero) {
        format!("{name} is 0, so nothing could run: give it more")
    } else if spec.memory_bytes < MEMORY_BYTES_MIN {
        format!("memory_bytes is below {MEMORY_BYTES_MIN}, in which no interpreter starts")
    } else if let Some(path) = spec
        .readable
        .iter()
        .find(|path| !mounts::can_be_shown(path))
    {
        let taken = mounts::TAKEN.join(", ");
        format!(
            "readable has {}: give absolute paths, none in {taken}",
            path.display()
        )
    } else if let Some(path) = spec.readable.iter().find(|path| !path.exists()) {
        format!("readable has {}, which is not there", path.display())
    } else {
        return Ok(());
    };
    Err(SandboxError::Setting(what))
}

/// A file that this process has open, above this number, and that is not closed when it executes a
/// program.
fn passed_on(above: u32) -> Option<u32> {
    let open = std::fs::read_dir("/proc/self/fdinfo").ok()?.flatten();
    let mut numbers = open.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let info = std::fs::read_to_string(entry.path()).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u64::from_str_radix(flags.trim(), 8).ok()?;
        (number > above && flags & CLOSES == 0).then_some(number)
    });
    numbers.next()
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn script(text: &str) -> [String; 4] {
    ["/bin/sh", "-c", text, "sh"].map(str::to_owned)
}

/// Where tools and programs are.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
const BASH: &str = "/bin/bash";
/// The highest number of an open file that every shell can close.
const CLOSED_BY_SH: u32 = 9;
/// `O_CLOEXEC`, as the kernel shows it.
const CLOSES: u64 = 0o2_000_000;
/// The user that programs run as when this process is root.
const NOBODY: u32 = 65534;
/// Tools that live as long as the program, and count.
const TOOLS: usize = 3;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
