//! Programs that nobody trusts, run to their end within limits: what a model has written, to see
//! whether it is right.
//!
//! ```text
//!  Sandbox ── holds a pipe ──> guard: ends all programs when the pipe ends
//!    run ── starts ──> setsid, other user, new namespaces, new root ──> gate
//!      ├─ tells the guard, opens the gate ──────> limits ──> program
//!      ├─ looks at what all its processes take
//!      └─ ends them, reads what was printed, removes the folder
//! ```
//!
//! The tools are those of the system (util-linux, or bubblewrap), so nothing here is unsafe code
//! and nothing needs a daemon. [`Isolation`] says what each level promises.
//!
//! Not covered by any level: faults of the kernel itself, what programs learn from the time that
//! things take, and other load on the machine, which makes a program slower. What runs is real, so
//! a sandbox belongs in no simulation.
//!
//! ```no_run
//! use odeon_actors::sandbox::{End, Isolation, Sandbox, SandboxSpec, Work};
//!
//! # async fn example() -> Result<(), odeon_actors::sandbox::SandboxError> {
//! let sandbox = Sandbox::open(SandboxSpec::default(), Isolation::Required).await?;
//! let ran = sandbox
//!     .run(Work {
//!         program: ["python3", "main.py"].map(str::to_owned).to_vec(),
//!         files: vec![("main.py".to_owned(), b"print(2 * int(input()))".to_vec())],
//!         stdin: b"21\n".to_vec(),
//!     })
//!     .await?;
//! assert_eq!((ran.end, ran.stdout.bytes.as_slice()), (End::Exited(0), &b"42\n"[..]));
//! # Ok(())
//! # }
//! ```

mod backend;
mod capture;
mod folder;
mod guard;
mod life;
mod mounts;
mod script;
mod usage;

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::backend::Backend;
use self::backend::Plan;
pub use self::capture::Captured;
use self::folder::Folder;
use self::guard::Guard;

/// Isolation of programs from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Isolation {
    /// Namespaces. A program
    ///
    /// - sees the system's programs and libraries, read-only, and its own folder; no file of a
    ///   user, no `/proc`, `/sys` or `/home`, and of `/etc` only where libraries are;
    /// - has no network, not even a loopback device that is up;
    /// - sees and signals no process but its own, and none of those outlives it;
    /// - has no capability and gains none, whatever it executes, and is not root outside;
    /// - has a folder in memory of [`SandboxSpec::file_bytes`] in all;
    /// - can have [`SandboxSpec::processes`] processes and threads, by the kernel's count.
    ///
    /// Where the machine does not allow this, a sandbox is not opened.
    Required,
    /// Limits alone, for machines without namespaces. Time, memory, the size of each file and of
    /// what is printed are bounded as above, nothing of this environment is passed on, and the
    /// folder is an own one, removed at the end. When this process is root, programs are user
    /// 65534.
    ///
    /// Not promised: a program **reads what its user can read, writes where that user can write,
    /// has the network**, and can signal processes of that user. What leaves its session lives on.
    /// Processes are counted from time to time. Use it for programs that are clumsy, not hostile.
    Limits,
}

/// Limits of a program. All are for one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSpec {
    /// Time by the clock, setting up included.
    pub wall: Duration,
    /// Time of processors, of all processes together. The kernel ends a process that takes as many
    /// whole seconds, and a look at all of them ends them moments after it was too much.
    pub cpu: Duration,
    /// Memory. The kernel refuses a process more addresses than these; a look at all of them ends
    /// them when together they hold more. Not seen is what none of them has mapped: files in memory
    /// (`memfd`), each of [`SandboxSpec::file_bytes`] at most, 64 open in a process.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u32,
    /// The size of a file, and where there are namespaces that of all files together.
    pub file_bytes: u64,
    /// Bytes that it may print, on its output and on its standard error each. More ends it.
    pub output_bytes: usize,
    /// More folders that it may read, for an interpreter that is not under `/usr`. Their files can
    /// be read by whatever is run.
    pub readable: Vec<PathBuf>,
}

/// A program to run, with its files and its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The program, by its name or absolute path, and its arguments.
    pub program: Vec<String>,
    /// Files in its folder: plain names, and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// Its standard input.
    pub stdin: Vec<u8>,
}

/// The result of a program that was run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The end of the program.
    pub end: End,
    /// Its standard output.
    pub stdout: Captured,
    /// Its standard error.
    pub stderr: Captured,
    /// Time that it took by the clock, setting up included.
    pub wall: Duration,
    /// Time for which it kept processors busy, as last looked at: nothing for one that ends soon.
    pub cpu: Duration,
}

/// The way in which a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal, or with a code of 128 and as much, which a shell can not tell apart.
    Signalled(i32),
    /// It took too long.
    TimedOut(Clockwork),
    /// It took too much memory: it was seen to hold more than it may, or it failed and its last
    /// words were that it was refused some. A program that says nothing of it has [`End::Exited`].
    OutOfMemory,
    /// It printed too much.
    OutputTooLong,
    /// It was seen to have too many processes. Under [`Isolation::Required`] the kernel refuses
    /// them before, and the program ends as it likes.
    TooManyProcesses,
    /// It could not be started, which is no fault of the program, and nothing of it has run.
    NotStarted(String),
}

/// Which time a program took too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clockwork {
    /// That of the clock.
    Wall,
    /// That of processors.
    Cpu,
}

/// Why there is no sandbox, or nothing was run in it. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// A setting can not be met.
    #[error("a sandbox: {0}")]
    Setting(String),
    /// A tool of the system is not there.
    #[error("{backend}: there is no `{tool}` in {path}: install the package `{package}`")]
    Missing {
        /// The backend that needs it.
        backend: Backend,
        /// The tool that is missing.
        tool: &'static str,
        /// Where it was looked for.
        path: &'static str,
        /// The package that holds it, by its name in Debian and most others.
        package: &'static str,
    },
    /// The tools are there, but the machine does not let them.
    #[error("{backend}: {why}")]
    Refused {
        /// The backend that was tried.
        backend: Backend,
        /// Message of the tools.
        why: String,
    },
    /// No way to isolate programs works here.
    #[error(
        "this machine does not let programs be isolated: {tried}. Allow user namespaces (sysctl \
         user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 on old Debian, \
         kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; in Docker `--security-opt \
         seccomp=unconfined --security-opt systempaths=unconfined`), install util-linux or \
         bubblewrap, or ask for Isolation::Limits by its name, which promises less"
    )]
    NoIsolation {
        /// The backends that were tried, and the error of each.
        tried: String,
    },
    /// A file of a [`Work`] has a name that is no plain name.
    #[error("`{0}` is no name for a file of a program: use one without folders")]
    FileName(String),
    /// The folder for a run could not be made.
    #[error("the folder {} for programs: {source}; free space or set TMPDIR", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The runtime has ended under way, and with it the program.
    #[error("the runtime has ended before the program did")]
    RuntimeEnded,
    /// The guard, which ends programs when this process dies, is not there: it was killed, or did
    /// not start.
    #[error("the guard of the sandbox is gone ({0}): open the sandbox anew")]
    Unguarded(std::io::Error),
}

/// Runs programs within limits. Clones are the same; any number of runs may be under way. When the
/// last is dropped, and when this process is killed, what runs is ended and its folder removed.
#[derive(Clone, Debug)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    plan: Plan,
    folder: Folder,
    guard: Guard,
}

impl Default for SandboxSpec {
    /// Ten seconds, five of a processor, 512 MiB, 32 processes, files of 16 MiB and as much as a
    /// megabyte printed.
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(10),
            cpu: Duration::from_secs(5),
            memory_bytes: 512 << 20,
            processes: 32,
            file_bytes: 16 << 20,
            output_bytes: 1 << 20,
            readable: vec![],
        }
    }
}

impl Sandbox {
    /// Opens a sandbox with the strongest way of isolation that this machine allows, after having
    /// tried it.
    ///
    /// # Errors
    /// [`SandboxError`] when none works that promises what was asked for, or a setting is amiss.
    #[odeon::boxed]
    pub async fn open(spec: SandboxSpec, isolation: Isolation) -> Result<Self, SandboxError> {
        let mut tried = vec![];
        for backend in Backend::of(isolation) {
            match Self::with(spec.clone(), *backend).await {
                Err(error @ (SandboxError::Missing { .. } | SandboxError::Refused { .. }))
                    if isolation == Isolation::Required =>
                {
                    tried.push(error.to_string());
                }
                opened => return opened,
            }
        }
        let tried = tried.join("; ");
        Err(SandboxError::NoIsolation { tried })
    }

    /// Opens a sandbox with this way of isolation and no other.
    ///
    /// # Errors
    /// [`SandboxError`] when it does not work here, or a setting is amiss.
    #[odeon::boxed]
    pub async fn with(spec: SandboxSpec, backend: Backend) -> Result<Self, SandboxError> {
        let plan = Plan::new(spec, backend)?;
        let folder = Folder::new(&plan)?;
        let guard = Guard::start(folder.path())?;
        let inner = Inner {
            plan,
            folder,
            guard,
        };
        let sandbox = Self {
            inner: Arc::new(inner),
        };
        let probe = sandbox.inner.plan.probe(sandbox.inner.folder.path());
        let ran = sandbox.run(probe).await?;
        if ran.end == End::Exited(0) {
            return Ok(sandbox);
        }
        let words = format!("{} {}", ran.end, ran.stderr.to_string().trim());
        Err(SandboxError::Refused {
            backend,
            why: words.trim_end().to_owned(),
        })
    }

    /// The backend that isolates programs.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.inner.plan.backend()
    }

    /// Limits of programs.
    #[must_use]
    pub fn spec(&self) -> &SandboxSpec {
        self.inner.plan.spec()
    }

    /// Runs a program to its end. When this is dropped, the program is ended.
    ///
    /// # Errors
    /// [`SandboxError`]; what the program does is none.
    #[odeon::boxed]
    pub async fn run(&self, work: Work) -> Result<Ran, SandboxError> {
        self.run_holding(work, ()).await
    }

    /// As [`Sandbox::run`], with something that is kept until nothing is left of the program, even
    /// when this is dropped before: a permit, for one.
    ///
    /// # Errors
    /// [`SandboxError`]; what the program does is none.
    pub async fn run_holding<T: Send + 'static>(
        &self,
        work: Work,
        hold: T,
    ) -> Result<Ran, SandboxError> {
        life::run(Arc::clone(&self.inner), work, hold).await
    }
}

impl Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signalled(signal) => write!(f, "ended by signal {signal}"),
            Self::TimedOut(Clockwork::Wall) => f.write_str("took too long"),
            Self::TimedOut(Clockwork::Cpu) => f.write_str("took too much processor time"),
            Self::OutOfMemory => f.write_str("took too much memory"),
            Self::OutputTooLong => f.write_str("printed too much"),
            Self::TooManyProcesses => f.write_str("started too many processes"),
            Self::NotStarted(why) => write!(f, "was not started: {why}"),
        }
    }
}

#[cfg(test)]
mod tests;
