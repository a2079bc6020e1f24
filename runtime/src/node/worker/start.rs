//! The start of a process: a socket pair, hello, and its end awaited; or an engine inside this process.

use std::future::{Future, poll_fn};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use odeon_shm::keep_open;
use parking_lot::Mutex;
use rustix::process::Pid;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::watch;

use super::child::STRAYED;
use super::{
    Binding, Birth, Forked, LAST_WORDS, Launch, Role, SIGNAL, WORKER_ENV, Worker, has_ended,
    is_process, killed_by, not_started, unobserved,
};
use crate::actor::engine::{Engine, EngineConfig};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::failure::{Failure, FailureKind, ProcessExit};
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::net::link::{self, Greeted, socket};
use crate::net::wire::Hello;
use crate::node::program::{NO_ENTRY, Output, WorkerMode};

impl Engine {
    /// Checks that this node may start another process.
    pub(super) fn check_room(&self) -> Result<(), Failure> {
        let not_placed = |why: String| Failure::new(FailureKind::NotPlaced, why);
        let running = self.workers().table.lock().len();
        if running >= self.limits.workers_max {
            return Err(not_placed(format!(
                "node `{}` runs {running} worker processes, its limit",
                self.node
            )));
        }
        if self.is_closing() {
            return Err(not_placed(format!("node `{}` is shutting down", self.node)));
        }
        Ok(())
    }

    /// Starts a worker process under a number that it has already.
    pub(crate) async fn launch_as(
        self: &Arc<Self>,
        process: ProcessId,
        job: &str,
        binding: Option<&Binding>,
    ) -> Result<(), Failure> {
        self.check_room()?;
        let found;
        let command = match &self.workers().mode {
            WorkerMode::Processes(command) => Some(command),
            WorkerMode::Jobs(programs) => {
                found = programs.worker(job).await.map_err(not_started)?;
                Some(&found)
            }
            WorkerMode::InProcess => None,
        };
        let started = match command {
            Some(command) => {
                command.check().map_err(not_started)?;
                let launch = Launch {
                    process,
                    job,
                    role: &Role::Worker,
                    command,
                    binding,
                };
                self.start_process(launch).await.map(drop)
            }
            None => self.start_inside(process).await.map_err(not_started),
        };
        if started.is_err() {
            self.blobs().unshare(process);
        }
        started
    }

    /// Starts a process and links it. Resolves when it has said hello; the receiver, when it has
    /// ended.
    pub(super) async fn start_process(
        self: &Arc<Self>,
        launch: Launch<'_>,
    ) -> Result<watch::Receiver<Option<ProcessExit>>, Failure> {
        let Launch {
            process,
            job,
            command,
            ..
        } = launch;
        let Forked { mut ended, stream } = self.begin_process(&launch)?;
        let seen = ended.clone();
        let within = command.start_timeout(self.limits.worker_start_timeout);
        let greeting = self.greet_process(job, process, stream, within);
        let refused = tokio::select! {
            greeting = greeting => match greeting {
                Ok(greeted) => {
                    link::attach(&self.as_owner(), greeted, true);
                    return Ok(seen);
                }
                Err(error) => error,
            },
            () = has_ended(&mut ended) => {
                SystemError::Refused("it ended before it said hello".to_owned())
            }
        };
        // One that hung up has ended as a rule, and how says more.
        let _ = Clock::timeout(self.limits.heartbeat_interval, has_ended(&mut ended)).await;
        let killed = ended
            .borrow()
            .as_ref()
            .is_some_and(|exit| exit.status.starts_with(SIGNAL));
        let retired = self.workers().is_retired(process);
        let pid = self.workers().pid_of(process);
        let exit = self.workers().exit_of(process).await;
        self.tell_drivers();
        self.worker_lost(process, pid);
        Err(match exit {
            // Nothing is wrong with the program: another process may do better.
            Some(exit) if retired || killed => exit.into(),
            Some(exit) if exit.code == Some(STRAYED) => not_started(NO_ENTRY),
            Some(exit) => not_started(format!("{refused} ({})", exit.status)),
            None => not_started(refused),
        })
    }

    /// Starts a process, whose end is awaited from here on.
    pub(super) fn begin_process(self: &Arc<Self>, launch: &Launch<'_>) -> Result<Forked, Failure> {
        let Launch {
            process, job, role, ..
        } = *launch;
        let (mut child, stream) = self.fork(launch).map_err(not_started)?;
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            let output = Output {
                is_driver: role.leads(),
                stdout,
                stderr,
            };
            self.workers().mode.take_output(job, process, output);
        }
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let (tell, exit) = watch::channel(None);
        let exit_seen = exit.clone();
        self.workers().table.lock().insert(
            process,
            Worker {
                job: job.to_owned(),
                leads: role.leads(),
                pid,
                exit,
                inside: None,
                retired: None,
                last_words: None,
                leaves: false,
                greeting: None,
            },
        );
        self.tell_drivers();
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.reap(process, child, tell).await });
        Ok(Forked {
            ended: exit_seen,
            stream,
        })
    }

    /// Says hello to a process of this node and hears that it is the one that was started.
    pub(super) async fn greet_process(
        &self,
        job: &str,
        process: ProcessId,
        stream: UnixStream,
        within: Duration,
    ) -> Result<Greeted, SystemError> {
        let fd = stream.as_raw_fd();
        let (reader, writer) = socket::ends(stream).map_err(|source| SystemError::Io {
            doing: "preparing a socket".to_owned(),
            source,
        })?;
        let hello = Hello {
            job: job.to_owned(),
            ..self.hello()
        };
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let limits = Limits {
            worker_start_timeout: within,
            ..self.limits.clone()
        };
        let greeted = link::greet(reader, writer, hello, &limits).await?;
        Ok(is_process(greeted, process)?.over_socket(fd))
    }

    /// A new process, with our end of the socket to it. That is its standard input, but for a driver, whose
    /// program may be none of ours: a script that reads its input finds the end of it.
    pub(super) fn fork(
        self: &Arc<Self>,
        launch: &Launch<'_>,
    ) -> Result<(Child, UnixStream), SystemError> {
        let Launch {
            process,
            job,
            role,
            command,
            binding,
        } = *launch;
        let io = |doing: &str| {
            let doing = doing.to_owned();
            move |source| SystemError::Io { doing, source }
        };
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(io("making a socket pair"))?;
        let theirs = OwnedFd::from(theirs);
        let drives = matches!(role, Role::Driver);
        let birth = Birth {
            role: role.clone(),
            node: std::process::id(),
            process,
            job: job.to_owned(),
            limits: self.limits.clone(),
            blobs: self
                .blobs()
                .share(process, job)
                .map(|share| share.to_string()),
            cpus: binding.map_or_else(Vec::new, |binding| binding.cpus.clone()),
            socket: drives.then(|| theirs.as_raw_fd()),
        };
        let mut child = command.command();
        if self.workers().mode.takes_output() {
            child.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if let Some(binding) = binding {
            // By the order of the bus, as the management library counts.
            child.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
            child.env("CUDA_VISIBLE_DEVICES", &binding.visible);
        }
        child
            .env(WORKER_ENV, birth.write()?)
            .process_group(0)
            .kill_on_drop(true);
        // Of two that start at once none has the socket of the other.
        static STARTING: Mutex<()> = Mutex::new(());
        let starting = STARTING.lock();
        let child = match drives {
            true => {
                keep_open(theirs.as_raw_fd()).map_err(io("preparing a socket"))?;
                let child = child.stdin(Stdio::null()).spawn();
                drop(theirs);
                child
            }
            false => child.stdin(Stdio::from(theirs)).spawn(),
        };
        drop(starting);
        let child = child.map_err(io(&format!("starting {}", command.program().display())))?;
        ours.set_nonblocking(true)
            .map_err(io("preparing a socket"))?;
        let stream = UnixStream::from_std(ours).map_err(io("preparing a socket"))?;
        Ok((child, stream))
    }

    /// Waits for a worker's end and reports it.
    pub(super) async fn reap(
        self: Arc<Self>,
        process: ProcessId,
        mut child: Child,
        tell: watch::Sender<Option<ProcessExit>>,
    ) {
        let pid = child.id().unwrap_or(0);
        let mut wait = pin!(child.wait());
        poll_fn(|cx| {
            let left = self.workers().ends_left.lock();
            if *left {
                // The next program of this process waits for it.
                return Poll::Pending;
            }
            let end = match ready!(wait.as_mut().poll(cx)) {
                Ok(status) => match status.signal() {
                    Some(signal) => (killed_by(signal), None),
                    None => (status.to_string(), status.code()),
                },
                Err(error) => unobserved(&error),
            };
            self.note_end_of(process, pid, end, &tell);
            Poll::Ready(())
        })
        .await;
        self.end_link_of(process).await;
    }

    /// A process of this node has ended.
    pub(super) fn note_end_of(
        self: &Arc<Self>,
        process: ProcessId,
        pid: u32,
        (status, code): (String, Option<i32>),
        tell: &watch::Sender<Option<ProcessExit>>,
    ) {
        let status = match self.workers().take_last_words(process) {
            Some(words) => format!("{words} ({status})"),
            None => status,
        };
        self.worker_ended(process, Some(pid).filter(|pid| *pid > 0));
        let exit = ProcessExit::new(process, status);
        tell.send_replace(Some(ProcessExit { code, ..exit }));
    }

    /// Ends the link to a process that has ended.
    pub(super) async fn end_link_of(&self, process: ProcessId) {
        // The link ends by itself when the process's last words are read; a grandchild that holds the
        // socket must not keep it open.
        if let Some(link) = self.links.get(&process).map(|link| Arc::clone(&link)) {
            let _ = Clock::timeout(LAST_WORDS, link.closed()).await;
            link.close("the worker process has ended");
        }
    }

    /// A worker as a second engine in this process.
    pub(super) async fn start_inside(
        self: &Arc<Self>,
        process: ProcessId,
    ) -> Result<(), SystemError> {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        let share = self.blobs().share(process, &self.job);
        let worker = Self::start(EngineConfig {
            process,
            job: self.job.clone(),
            node: self.node.clone(),
            limits: self.limits.clone(),
            types: self.types,
            services: self.services,
            components: (self.workers().inside)(process, &self.limits, share),
        });
        worker.can_crash();
        let (_tell, exit) = watch::channel(None);
        let row = Worker {
            job: self.job.clone(),
            leads: false,
            pid: None,
            exit,
            inside: Some(Arc::clone(&worker)),
            retired: None,
            last_words: None,
            leaves: false,
            greeting: None,
        };
        self.workers().table.lock().insert(process, row);
        worker.uplink.get_or_init(|| self.process);
        let (theirs_read, theirs_write) = tokio::io::split(theirs);
        let (ours_read, ours_write) = tokio::io::split(ours);
        let (up, down) = tokio::join!(
            link::greet(
                Box::new(theirs_read),
                Box::new(theirs_write),
                worker.hello(),
                &self.limits
            ),
            link::greet(
                Box::new(ours_read),
                Box::new(ours_write),
                self.hello(),
                &self.limits
            ),
        );
        link::attach(&worker.as_owner(), up?, false);
        link::attach(&self.as_owner(), down?, true);
        Ok(())
    }
}
