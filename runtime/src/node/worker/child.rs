//! The process that a node has started: it reads what it is there for, joins, serves, and ends with its
//! node.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::signal::unix::SignalKind;

use super::{Birth, LAST_WORDS, Role, WORKER_ENV, WorkerComponents, io};
use crate::actor::actor_type::ActorTypes;
use crate::actor::engine::{Engine, EngineConfig};
use crate::actor::service_row::ServiceRow;
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::failure::Failure;
use crate::net::link::{self, Link, socket};
use crate::node::program;

impl Birth {
    /// Returns true where the node that wrote it has started this process itself.
    fn is_of_parent(&self) -> bool {
        let parent = rustix::process::getppid();
        parent.is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == self.node)
    }

    /// Keeps this process to the processors near its devices. Its memory then comes from there
    /// too, since the kernel takes it where a page is first touched.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn bind(&self) -> Result<(), SystemError> {
        if self.cpus.is_empty() {
            return Ok(());
        }
        let io = |errno: rustix::io::Errno| SystemError::Io {
            doing: format!("binding the process to the processors {:?}", self.cpus),
            source: errno.into(),
        };
        let allowed = rustix::thread::sched_getaffinity(None).map_err(io)?;
        let mut set = rustix::thread::CpuSet::new();
        let near = self.cpus.iter().map(|cpu| *cpu as usize);
        let near =
            near.filter(|cpu| *cpu < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(*cpu));
        near.for_each(|cpu| set.set(cpu));
        if set.count() == 0 {
            tracing::warn!(cpus = ?self.cpus, "this process may run on none that are near its devices");
            return Ok(());
        }
        rustix::thread::sched_setaffinity(None, &set).map_err(io)
    }
}

/// The facts that the node told this process, when it was started as a driver; once. A program that a driver
/// starts inherits what the driver was told, and is none.
///
/// # Errors
/// The variable was not set by a node of the same build.
pub(crate) fn driver_birth() -> Option<Result<Birth, SystemError>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let birth = birth()?;
    let drives = birth.as_ref().map_or(true, |birth| {
        birth.role == Role::Driver && birth.is_of_parent()
    });
    (drives && !TAKEN.swap(true, Ordering::AcqRel)).then_some(birth)
}

/// The facts that the node told this process, when it was started by one.
///
/// # Errors
/// The variable was not set by a node of the same build.
pub(crate) fn birth() -> Option<Result<Birth, SystemError>> {
    let text = std::env::var(WORKER_ENV).ok()?;
    Some(Birth::read(&text).ok_or_else(|| {
        let why = format!("{WORKER_ENV} is set, but not by a node of this build: unset it");
        SystemError::Refused(why)
    }))
}

/// Ends this process if it was started as a worker and does something else: a program that goes on as if
/// it had been started by people would start workers, too, and those more.
pub(crate) fn end_if_strayed() {
    let is_worker = matches!(birth(), Some(Ok(birth)) if birth.role != Role::Driver);
    if is_worker && !SERVES.load(Ordering::Acquire) {
        let _ = writeln!(std::io::stderr(), "Error: {}", program::NO_ENTRY);
        std::process::exit(STRAYED);
    }
}

/// Set once this process serves as a worker.
static SERVES: AtomicBool = AtomicBool::new(false);

/// This process serves as a worker from now on.
pub(crate) fn serves() {
    SERVES.store(true, Ordering::Release);
}

/// The exit code of a process that was started as a worker and does something else.
pub(crate) const STRAYED: i32 = 97;

/// A worker must not outlive its node, even one that is killed: a thread waits for the end of that.
/// (The parent's death signal would come with the end of the thread that started this process.)
fn end_with(node: u32) -> std::io::Result<()> {
    let pid = Pid::from_raw(node as i32).ok_or(std::io::ErrorKind::InvalidInput)?;
    let opened = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    if rustix::process::getppid() != Some(pid) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    let waiting = move || {
        let mut ends = [PollFd::new(&opened, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut ends, None) {}
        // Nobody is left who could be told.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    };
    std::thread::Builder::new()
        .name("odeon-node-watch".to_owned())
        .stack_size(64 << 10)
        .spawn(waiting)
        .map(drop)
}

/// Serves as a worker until the node releases it or is gone, or as the host of an actor until that
/// is over or the node asks for its end.
pub(crate) async fn serve(
    mut birth: Birth,
    types: ActorTypes,
    services: &'static [ServiceRow],
    components: WorkerComponents,
) -> Result<(), ServeError> {
    let role = std::mem::replace(&mut birth.role, Role::Worker);
    let (engine, link) = Box::pin(connect(birth, types, services, components)).await?;
    let outcome = match role {
        Role::Host(actor) => {
            let mut asked = tokio::signal::unix::signal(SignalKind::terminate())
                .map_err(io("waiting for signals"))?;
            tokio::select! {
                biased;
                hosted = engine.host_detached(*actor) => hosted,
                _ = asked.recv() => Ok(()),
                () = link.closed() => Ok(()),
            }
        }
        Role::Worker | Role::Driver => {
            link.closed().await;
            Ok(())
        }
    };
    if link.is_closed() {
        // What was left with the node is on its way, and nothing else waits for it.
        let _written = Clock::timeout(LAST_WORDS, link.finished()).await;
    }
    engine.close().await;
    Ok(outcome?)
}

/// Why a process that a node has started ends without success.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// It could not serve.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The actor that it was there for has failed.
    #[error(transparent)]
    Hosted(#[from] Failure),
}

/// What is standard input, which is empty from then on.
fn stdin_taken() -> std::io::Result<OwnedFd> {
    let taken = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(taken)
}

/// Joins the node that started this process, and ends with it.
pub(crate) async fn connect(
    birth: Birth,
    types: ActorTypes,
    services: &'static [ServiceRow],
    components: WorkerComponents,
) -> Result<(Arc<Engine>, Arc<Link>), SystemError> {
    end_with(birth.node).map_err(io("asking to end with the node"))?;
    // Nothing that an actor starts may inherit the socket.
    let socket = match birth.socket {
        Some(socket) => odeon_shm::take_open(socket),
        None => stdin_taken(),
    };
    let socket = socket.map_err(io("taking over the socket of the node"))?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket
        .set_nonblocking(true)
        .map_err(io("preparing the socket"))?;
    let stream = UnixStream::from_std(socket).map_err(io("preparing the socket"))?;
    let limits = birth.limits;
    let share = birth.blobs.and_then(|share| share.parse().ok());
    let engine = Engine::start(EngineConfig {
        process: birth.process,
        job: birth.job,
        node: match birth.role {
            Role::Worker => format!("worker-{}", std::process::id()),
            Role::Driver | Role::Host(_) => format!("driver-{}", std::process::id()),
        },
        limits: limits.clone(),
        types,
        services,
        components: components(birth.process, &limits, share),
    });
    let (reader, writer) = socket::ends(stream).map_err(io("preparing the socket"))?;
    let greeted = link::greet(Box::new(reader), Box::new(writer), engine.hello(), &limits).await?;
    engine.uplink.get_or_init(|| greeted.hello.process);
    let link = link::attach(&engine.as_owner(), greeted, false);
    Ok((engine, link))
}
