//! Programs that processes are started from: the node's own, or, on a node that serves a cluster,
//! those of its jobs.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::process::{ChildStderr, ChildStdout, Command};

use crate::base::error::SystemError;
use crate::base::id::ProcessId;
use crate::node::detached::protocol::{DetachError, DetachedActor};

/// The command that starts a process of a program.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
    bare: bool,
    start_within: Option<Duration>,
    /// Set for the running executable as it is: what it does as a worker is what this process has
    /// done when it began.
    is_own: bool,
    taker: Option<Taker>,
}

/// Takes what processes print.
#[derive(Clone)]
struct Taker(Arc<dyn Fn(ProcessId, Output) + Send + Sync>);

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taker")
    }
}

/// Set once this process has gone through the entry of workers.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// This process goes through the entry of workers, as those that it starts from its own executable will.
pub(crate) fn enter() {
    ENTERED.store(true, Ordering::Release);
}

/// The fault of a program whose processes would not become workers, and the way to mend it.
pub(crate) const NO_ENTRY: &str = "this program has no entry for worker processes: \
    in `main`, run the job with `odeon::job![..].run(..)`, or call its `serve_if_worker()` first of all; \
    in a test, put `#[odeon::test(actors(..))]` in place of `#[tokio::test]`";

impl WorkerCommand {
    /// The running executable, without arguments.
    ///
    /// # Errors
    /// The operating system does not tell where it is.
    pub fn current_exe() -> Result<Self, SystemError> {
        let program = std::env::current_exe().map_err(|source| SystemError::Io {
            doing: "finding the executable to start workers from".to_owned(),
            source,
        })?;
        let command = Self::new(program);
        Ok(Self {
            is_own: true,
            ..command
        })
    }

    /// Another executable; it must run the same [`Job`](crate::Job).
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: vec![],
            env: vec![],
            folder: None,
            bare: false,
            start_within: None,
            is_own: false,
            taker: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        // Whoever passes arguments says where they lead.
        self.is_own = false;
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// In this folder, rather than that of the node.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Without the variables of the node; only with those that are set here.
    #[must_use]
    pub const fn bare(mut self) -> Self {
        self.bare = true;
        self
    }

    /// Gives a process this long to say hello, where that is more than [`Limits`](crate::Limits) allow: for a program
    /// whose file is still on its way while it begins.
    #[must_use]
    pub const fn start_within(mut self, time: Duration) -> Self {
        self.start_within = Some(time);
        self
    }

    /// The time that a process has to say hello.
    pub(crate) fn start_timeout(&self, usual: Duration) -> Duration {
        self.start_within.map_or(usual, |time| time.max(usual))
    }

    /// Hands what each process prints to `take`, inside tokio, rather than to where this process
    /// prints. Whoever takes it reads it to its end, or the process waits when the pipe is full. On
    /// a node that serves a cluster, [`Programs`] take it.
    #[must_use]
    pub fn output(mut self, take: impl Fn(ProcessId, Output) + Send + Sync + 'static) -> Self {
        self.taker = Some(Taker(Arc::new(take)));
        self
    }

    /// Checks that a process which it starts serves as a worker, as far as that can be known.
    ///
    /// # Errors
    /// What to write.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self.is_own && !ENTERED.load(Ordering::Acquire) {
            true => Err(NO_ENTRY),
            false => Ok(()),
        }
    }

    /// The executable.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// As the operating system's command.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if self.bare {
            command.env_clear();
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The way in which a node runs its workers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WorkerMode {
    /// Each is an operating system process of one program.
    Processes(WorkerCommand),
    /// Each is a second engine inside this process, over a memory link: no isolation from crashes,
    /// no start-up cost. For simulation and for places that may not start processes.
    InProcess,
    /// Each is a process of the program of its job: the node serves a cluster.
    Jobs(Arc<dyn Programs>),
}

impl WorkerMode {
    /// Returns true if somebody takes what processes print.
    pub(crate) const fn takes_output(&self) -> bool {
        match self {
            Self::Processes(command) => command.taker.is_some(),
            Self::InProcess => false,
            Self::Jobs(_) => true,
        }
    }

    /// Hands on what a process of a job prints.
    pub(crate) fn take_output(&self, job: &str, process: ProcessId, output: Output) {
        match self {
            Self::Processes(WorkerCommand {
                taker: Some(taker), ..
            }) => (taker.0)(process, output),
            Self::Processes(_) | Self::InProcess => {}
            Self::Jobs(programs) => programs.take_output(job, process, output),
        }
    }
}

/// The programs of jobs, on a node that serves many.
pub trait Programs: fmt::Debug + Send + Sync {
    /// The command that starts a worker process of this job here. It may take time: the program may
    /// have to be fetched first.
    ///
    /// # Errors
    /// Why there is none, in words.
    fn worker<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Result<WorkerCommand, String>>;

    /// Has the cluster host a detached actor of this job's program from now on, or finds out that it
    /// does, where that will do. Resolves when the actor has started.
    ///
    /// # Errors
    /// Its name is taken, or the cluster does not host it.
    fn detach<'a>(
        &'a self,
        job: &'a str,
        actor: DetachedActor,
        or_existing: bool,
    ) -> BoxFuture<'a, Result<(), DetachError>>;

    /// Takes what a process of this job prints, until it has ended.
    fn take_output(&self, job: &str, process: ProcessId, output: Output);
}

/// The ends of a process's standard output and standard error.
#[derive(Debug)]
pub struct Output {
    /// True if the job ends with the process: it runs the job's `main`, or hosts its detached
    /// actor.
    pub is_driver: bool,
    /// Standard output.
    pub stdout: ChildStdout,
    /// Standard error.
    pub stderr: ChildStderr,
}
