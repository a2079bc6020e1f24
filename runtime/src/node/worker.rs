//! Processes of a node: its workers, and the drivers of jobs that it serves. Each is linked over a
//! unix socket that is its standard input, reaped, and reported when it ends.

pub(crate) mod child;
mod drivers;
mod launch;
pub(crate) mod protocol;
mod service;
mod start;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use odeon_devices::fault::GpuFault;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::actor::engine::component::{Component, Components, LinkEnd};
use crate::actor::engine::{Engine, LEFT};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::failure::{Failure, FailureKind, ProcessExit, signal_name};
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::net::link::{Greeted, Link};
use crate::net::service::Notice;
use crate::net::wire::{Fact, Frame, Hello, codec};
use crate::node::blob::Share;
use crate::node::detached::protocol::DetachedActor;
use crate::node::inspect::ProcessView;
use crate::node::program::{WorkerCommand, WorkerMode};

use protocol::JobWorkers;

/// The variable that turns a process into a worker; its value is a [`Birth`].
const WORKER_ENV: &str = "ODEON_WORKER";

/// The role of a process that a node starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// It hosts actors.
    Worker,
    /// It runs the `main` of a job's program.
    Driver,
    /// It hosts the one actor that the job is there for.
    Host(Box<DetachedActor>),
}

impl Role {
    /// Returns true if the job ends with such a process.
    const fn leads(&self) -> bool {
        matches!(self, Self::Driver | Self::Host(_))
    }
}

/// The facts that a node tells a process that it starts.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Birth {
    pub(crate) role: Role,
    /// The operating system's number of the node.
    node: u32,
    process: ProcessId,
    job: String,
    limits: Limits,
    /// Its part in the node's account of blobs.
    blobs: Option<String>,
    /// The processors that it may run on; any, if empty.
    cpus: Vec<u32>,
    /// The descriptor of the socket to its node; standard input without.
    socket: Option<i32>,
}

/// The part of its machine that a worker process sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Its devices, as CUDA names them.
    pub(crate) visible: String,
    /// The processors near them; any, if empty.
    pub(crate) cpus: Vec<u32>,
}

impl Birth {
    /// As text, for the environment.
    fn write(&self) -> Result<String, SystemError> {
        let bytes = codec::encode(self).map_err(|error| SystemError::Refused(error.to_string()))?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn read(text: &str) -> Option<Self> {
        let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digits).collect();
        codec::decode(&bytes?).ok()
    }
}

/// The workers of a node.
#[derive(Debug)]
pub(crate) struct Workers {
    mode: WorkerMode,
    /// Makes those of a worker inside this process.
    inside: WorkerComponents,
    table: Mutex<HashMap<ProcessId, Worker>>,
    /// True once the ends of processes are left to the next program of this process. While it is
    /// locked nobody sees an end.
    ends_left: Mutex<bool>,
    /// By job and name.
    shared: tokio::sync::Mutex<HashMap<(String, String), ProcessId>>,
    /// Those of the job that this process drives, as its node tells.
    of_job: Mutex<Vec<(ProcessId, u32)>>,
    /// Drivers that the program before this one has started, until somebody asks for them: they may
    /// have ended by then.
    inherited: Mutex<HashMap<ProcessId, InheritedDriver>>,
}

/// The operating system's number of a driver, and its end.
type InheritedDriver = (u32, watch::Receiver<Option<ProcessExit>>);

#[derive(Debug)]
struct Worker {
    job: String,
    /// See [`Role::leads`].
    leads: bool,
    pid: Option<Pid>,
    exit: watch::Receiver<Option<ProcessExit>>,
    inside: Option<Arc<Engine>>,
    /// Why the node itself ends it.
    retired: Option<(Option<GpuFault>, String)>,
    /// Why it ends, as it says itself.
    last_words: Option<String>,
    /// It was told to end in order.
    leaves: bool,
    /// That of a driver which has not said hello.
    greeting: Option<Greeting>,
}

impl Worker {
    /// Its number at the operating system: this process's, for one inside of it.
    fn system_pid(&self) -> u32 {
        self.pid
            .map_or_else(std::process::id, |pid| pid.as_raw_nonzero().get() as u32)
    }
}

/// A socket over which hello was said, and none was heard yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Greeting {
    socket: RawFd,
    said: Hello,
    /// Set while it is being heard.
    is_heard: bool,
}

/// The state of a worker that another program of this process has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerHandoff {
    process: ProcessId,
    job: String,
    leads: bool,
    pid: u32,
    /// Its end, if it has ended.
    exit: Option<ProcessExit>,
    retired: Option<(Option<GpuFault>, String)>,
    last_words: Option<String>,
    greeting: Option<Greeting>,
}

impl WorkerHandoff {
    /// The descriptor that the next program needs, unless it is that of a link.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.greeting.as_ref().map(|greeting| greeting.socket)
    }
}

/// Makes the components of a worker, whose part in the node's account of blobs is told.
pub(crate) type WorkerComponents = fn(ProcessId, &Limits, Option<Share>) -> Components;

/// A worker process by its job and the name that actors share it by.
pub(crate) type SharedWorker = (String, String, ProcessId);

impl Workers {
    pub(crate) fn new(mode: WorkerMode, inside: WorkerComponents) -> Self {
        Self {
            mode,
            inside,
            table: Mutex::default(),
            ends_left: Mutex::new(false),
            shared: tokio::sync::Mutex::default(),
            of_job: Mutex::default(),
            inherited: Mutex::default(),
        }
    }

    /// Returns true if the hello of a driver is being heard.
    pub(crate) fn hears(&self) -> bool {
        let table = self.table.lock();
        let mut greetings = table.values().filter_map(|worker| worker.greeting.as_ref());
        greetings.any(|greeting| greeting.is_heard)
    }

    /// The state that another program of this process has to know: of each worker, without those
    /// that have left their link in order and of which `has_link` holds no more.
    pub(crate) async fn handoff(
        &self,
        has_link: impl Fn(ProcessId) -> bool,
    ) -> (Vec<WorkerHandoff>, Vec<SharedWorker>) {
        let shared = self.shared.lock().await;
        let shared = shared.iter();
        let shared = shared.map(|((job, name), process)| (job.clone(), name.clone(), *process));
        let table = self.table.lock();
        let workers = table.iter().filter_map(|(process, worker)| {
            Some(WorkerHandoff {
                process: *process,
                job: worker.job.clone(),
                leads: worker.leads,
                pid: worker.pid?.as_raw_nonzero().get() as u32,
                exit: worker.exit.borrow().clone(),
                retired: worker.retired.clone(),
                last_words: worker.last_words.clone(),
                greeting: worker.greeting.clone().filter(|_| !has_link(*process)),
            })
        });
        (workers.collect(), shared.collect())
    }

    /// From here on this program sees no process end. Every end that it has seen is noted.
    pub(crate) fn leave_ends(&self) {
        *self.ends_left.lock() = true;
    }

    fn note_greeting(&self, process: ProcessId, greeting: Option<Greeting>) {
        if let Some(worker) = self.table.lock().get_mut(&process) {
            worker.greeting = greeting;
        }
    }

    pub(crate) const fn mode(&self) -> &WorkerMode {
        &self.mode
    }

    /// Returns true if they are engines inside this process.
    pub(crate) fn are_inside(&self) -> bool {
        matches!(self.mode, WorkerMode::InProcess)
    }

    /// The workers with the process ids of the operating system: those that this process has started,
    /// or of the job that it drives.
    pub(crate) fn pids(&self) -> Vec<(ProcessId, u32)> {
        let table = self.table.lock();
        let own = table.iter().map(|(id, worker)| (*id, worker.system_pid()));
        own.chain(self.of_job.lock().iter().copied()).collect()
    }

    /// The node tells which workers the job of this process has.
    fn hear_of_job(&self, workers: Vec<(ProcessId, u32)>) {
        *self.of_job.lock() = workers;
    }

    /// The workers of a driver's job; `None` when the process is no driver.
    fn beside(&self, driver: ProcessId) -> Option<JobWorkers> {
        let table = self.table.lock();
        let job = table.get(&driver).filter(|worker| worker.leads)?;
        let workers = table
            .iter()
            .filter(|(_, worker)| !worker.leads && worker.job == job.job);
        Some(JobWorkers(
            workers
                .map(|(id, worker)| (*id, worker.system_pid()))
                .collect(),
        ))
    }

    /// The process number by which the driver knows a worker. One inside this process has a number
    /// of its own.
    pub(crate) fn pid_of(&self, process: ProcessId) -> Option<u32> {
        let table = self.table.lock();
        table.get(&process).map(|worker| match worker.pid {
            Some(pid) => pid.as_raw_nonzero().get() as u32,
            None => (process.0 >> 33) as u32,
        })
    }

    /// Kills a worker for a reason that its actors are told, and waits until it is gone.
    pub(crate) async fn retire(
        &self,
        engine: &Arc<Engine>,
        process: ProcessId,
        fault: Option<GpuFault>,
        why: &str,
    ) {
        let known = self.table.lock().get_mut(&process).map(|worker| {
            let retired = &mut worker.retired;
            retired.get_or_insert_with(|| (fault, why.to_owned()));
        });
        if known.is_none() {
            return;
        }
        let link = engine.links.get(&process).map(|link| Arc::clone(&link));
        if self.kill(process)
            && let Some(link) = link
        {
            link.close(why);
            link.closed().await;
        }
        while engine.links.contains_key(&process) {
            Clock::sleep(engine.limits.sweep_interval).await;
        }
    }

    /// Returns true if a process of this node runs the `main` of a job, or hosts its detached
    /// actor.
    pub(crate) fn is_driver(&self, process: ProcessId) -> bool {
        let table = self.table.lock();
        table.get(&process).is_some_and(|worker| worker.leads)
    }

    /// Returns true if the end of a process of this node has been seen.
    pub(crate) fn has_exited(&self, process: ProcessId) -> bool {
        let table = self.table.lock();
        table
            .get(&process)
            .is_none_or(|worker| worker.exit.borrow().is_some())
    }

    /// A driver that the program before this one has started; once.
    pub(crate) fn take_inherited(&self, process: ProcessId) -> Option<InheritedDriver> {
        self.inherited.lock().remove(&process)
    }

    /// Sees the end of a process of this node.
    fn exit_seen(&self, process: ProcessId) -> Option<watch::Receiver<Option<ProcessExit>>> {
        let table = self.table.lock();
        table.get(&process).map(|worker| worker.exit.clone())
    }

    /// A process says why it is about to end.
    pub(crate) fn hear_last_words(&self, process: ProcessId, words: String) {
        if let Some(worker) = self.table.lock().get_mut(&process) {
            worker.last_words = Some(words);
        }
    }

    fn take_last_words(&self, process: ProcessId) -> Option<String> {
        self.table.lock().get_mut(&process)?.last_words.take()
    }

    fn is_retired(&self, process: ProcessId) -> bool {
        let table = self.table.lock();
        table
            .get(&process)
            .is_some_and(|worker| worker.retired.is_some())
    }

    /// Returns true if a worker was told to end, so that its end is no news.
    pub(crate) fn leaves(&self, process: ProcessId) -> bool {
        let table = self.table.lock();
        table.get(&process).is_some_and(|worker| worker.leaves)
    }

    /// The end of a worker, waiting a moment for its status; `None` when it is not one of ours.
    pub(crate) async fn exit_of(&self, process: ProcessId) -> Option<ProcessExit> {
        let mut worker = self.table.lock().remove(&process)?;
        let retired = worker.retired.take();
        let exit = self.exit_status(process, worker).await;
        Some(match retired {
            Some((fault, why)) => ProcessExit {
                status: format!("{why} ({})", exit.status),
                fault,
                ..exit
            },
            None => exit,
        })
    }

    async fn exit_status(&self, process: ProcessId, worker: Worker) -> ProcessExit {
        let mut exit = worker.exit;
        if worker.leaves {
            // It has ended its link and is about to end.
            let ended = exit.wait_for(Option::is_some);
            let _ = Clock::timeout(EXIT_PATIENCE, ended).await;
        }
        if let Some(pid) = worker.pid {
            // A worker without its link is of no use, whatever it still does.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        if worker.inside.is_some() {
            return ProcessExit::new(process, "killed");
        }
        // One that hangs in the driver does not end even so.
        let ended = Clock::timeout(EXIT_PATIENCE, exit.wait_for(Option::is_some)).await;
        match ended {
            Some(Ok(exit)) => exit.clone(),
            Some(Err(_)) => None,
            None => Some(ProcessExit::new(process, "killed, but it does not end")),
        }
        .unwrap_or_else(|| ProcessExit::new(process, "ended"))
    }

    /// Ends a worker in order: it may finish what its actors do, then it is killed.
    pub(crate) async fn end(&self, engine: &Arc<Engine>, process: ProcessId) {
        let told = self.table.lock().get_mut(&process).map(|worker| {
            worker.leaves = true;
            (worker.pid, worker.exit.clone(), worker.inside.clone())
        });
        let Some((pid, mut exit, inside)) = told else {
            return;
        };
        if let Some(link) = engine.links.get(&process).map(|link| Arc::clone(&link)) {
            link.push(&Frame::Fact(Fact::Leaving), true);
        }
        if let Some(inside) = inside {
            Box::pin(inside.close()).await;
            return;
        }
        let over = exit.wait_for(Option::is_some);
        if Clock::timeout(engine.limits.stop_grace, over)
            .await
            .is_none()
            && let Some(pid) = pid
        {
            tracing::warn!(worker = %process, "a worker did not end in time and was killed");
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// Ends all processes of a job in order, and waits until they are gone.
    pub(crate) async fn end_job(&self, engine: &Arc<Engine>, job: &str) {
        let of_job =
            |(process, worker): (&ProcessId, &Worker)| (worker.job == job).then_some(*process);
        let processes: Vec<_> = self.table.lock().iter().filter_map(of_job).collect();
        let ending = processes.into_iter().map(|process| async move {
            let group = self.pid_of(process);
            self.end(engine, process).await;
            while self.table.lock().contains_key(&process) {
                Clock::sleep(engine.limits.sweep_interval).await;
            }
            if let Some(group) = group {
                end_group(group).await;
            }
        });
        futures::future::join_all(ending).await;
    }

    /// The processes that this node runs.
    pub(crate) fn list(&self) -> Vec<ProcessView> {
        let table = self.table.lock();
        let views = table.iter().map(|(process, worker)| ProcessView {
            process: *process,
            pid: worker.pid.map(|pid| pid.as_raw_nonzero().get() as u32),
            job: worker.job.clone(),
            is_driver: worker.leads,
        });
        views.collect()
    }

    pub(crate) async fn end_all(&self, engine: &Arc<Engine>) {
        let workers: Vec<_> = self.table.lock().keys().copied().collect();
        futures::future::join_all(workers.into_iter().map(|worker| self.end(engine, worker))).await;
    }

    /// Kills a worker as a crash would: for tests of what follows.
    pub(crate) fn kill(&self, process: ProcessId) -> bool {
        let Some((pid, inside)) = self
            .table
            .lock()
            .get(&process)
            .map(|worker| (worker.pid, worker.inside.clone()))
        else {
            return false;
        };
        if let Some(inside) = inside {
            inside.crash();
        }
        pid.is_none_or(|pid| rustix::process::kill_process_group(pid, Signal::KILL).is_ok())
    }
}

/// Kills what a process that has ended left behind in its group, and waits until it is gone. What
/// had been started by it has become this process's own, if that is a subreaper, and is reaped.
pub(crate) async fn end_group(leader: u32) {
    let Some(group) = Pid::from_raw(leader as i32) else {
        return;
    };
    let gone = async {
        while rustix::process::test_kill_process_group(group).is_ok() {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            while let Ok(Some(_)) = rustix::process::waitpgid(group, WaitOptions::NOHANG) {}
            Clock::sleep(GROUP_PAUSE).await;
        }
    };
    if Clock::timeout(EXIT_PATIENCE, gone).await.is_none() {
        tracing::warn!(group = leader, "processes that a job has left do not end");
    }
}

/// The interval between looks at a group that was killed.
const GROUP_PAUSE: Duration = Duration::from_millis(2);

/// A process that has been started, before it joins.
struct Forked {
    /// Its end, once it has ended.
    ended: watch::Receiver<Option<ProcessExit>>,
    stream: UnixStream,
}

/// A process to be started.
#[derive(Clone, Copy)]
struct Launch<'a> {
    process: ProcessId,
    job: &'a str,
    role: &'a Role,
    command: &'a WorkerCommand,
    binding: Option<&'a Binding>,
}

/// The beginning of the status of a process that a signal has ended.
const SIGNAL: &str = "signal ";

fn killed_by(signal: i32) -> String {
    format!("{SIGNAL}{signal}{}", signal_name(signal))
}

/// How a child of this process has ended that another program has started; `None` while it runs.
fn end_of(pid: u32) -> std::io::Result<Option<(String, Option<i32>)>> {
    let pid = Pid::from_raw(pid as i32).ok_or(std::io::ErrorKind::InvalidInput)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = rustix::process::waitid(WaitId::Pid(pid), options)?;
    Ok(status.map(|status| match status.terminating_signal() {
        Some(signal) => (killed_by(signal), None),
        // As the standard library says it.
        None => {
            let code = status.exit_status().unwrap_or(0);
            (format!("exit status: {code}"), Some(code))
        }
    }))
}

/// The end of a process that nobody could see.
fn unobserved(error: &std::io::Error) -> (String, Option<i32>) {
    (format!("its end could not be observed: {error}"), None)
}

/// A greeted connection, if it is to this process.
fn is_process(greeted: Greeted, process: ProcessId) -> Result<Greeted, SystemError> {
    if greeted.hello.process == process {
        Ok(greeted)
    } else {
        Err(SystemError::Refused("another process answered".to_owned()))
    }
}

async fn has_ended(exit: &mut watch::Receiver<Option<ProcessExit>>) {
    // Whoever reaps it says so before it goes.
    let _ = exit.wait_for(Option::is_some).await;
}

fn not_started(error: impl std::fmt::Display) -> Failure {
    let why = format!("a worker process did not start: {error}");
    Failure::new(FailureKind::NotPlaced, why)
}

impl Component for Workers {
    fn link_up(&self, _engine: &Engine, link: &Link, _hello: &Hello) {
        if let Some(workers) = self.beside(link.peer) {
            link.push(&workers.frame(), false);
        }
    }

    fn link_down<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        link: &'a Arc<Link>,
    ) -> BoxFuture<'a, LinkEnd> {
        Box::pin(self.see_link_end(engine, link))
    }

    fn leave<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, ()> {
        Box::pin(self.end_all(engine))
    }
}

impl Workers {
    /// The end of the process behind a link that has ended, if this node has started it.
    async fn see_link_end(&self, engine: &Arc<Engine>, link: &Link) -> LinkEnd {
        let process = link.peer;
        let pid = self.pid_of(process);
        // A driver that has left may still have something to do. Its last word is lost when this side
        // writes while it hangs up; so one that lives and has hung up counts as leaving, too.
        let hung_up = !link.is_given_up() && !self.has_exited(process);
        let left = self.is_driver(process) && (link.why() == LEFT || hung_up);
        let is_orderly = left || self.leaves(process);
        let exit = match left {
            true => None,
            false => self.exit_of(process).await,
        };
        match (&exit, self.are_inside()) {
            (Some(_), true) => engine.worker_ended(process, pid),
            // Whoever waits for the process sees its end.
            (Some(_), false) => engine.worker_lost(process, pid),
            (None, _) => {}
        }
        if exit.is_some() {
            engine.tell_drivers();
        }
        LinkEnd { exit, is_orderly }
    }
}

impl Engine {
    /// The processes that it has started.
    pub(crate) fn workers(&self) -> &Workers {
        self.component::<Workers>()
    }

    /// Tells the drivers of this node which workers their jobs have.
    fn tell_drivers(&self) {
        for link in self.links.iter() {
            if let Some(workers) = self.workers().beside(link.peer) {
                link.push(&workers.frame(), true);
            }
        }
    }

    /// Kills a worker as a crash would: for tests of what follows. Returns false when there is none. A
    /// driver has its node do it, also where another node runs the worker.
    pub(crate) fn kill_worker(self: &Arc<Self>, process: ProcessId) -> bool {
        if self.workers().kill(process) {
            return true;
        }
        let rows = self.members.list();
        let hosts = self.uplink.get().is_some()
            && process != self.process
            && (rows.iter().any(|row| row.3 == Some(process))
                || self.workers().pids().iter().any(|row| row.0 == process));
        if hosts {
            let engine = Arc::clone(self);
            let killing = async move { engine.retire(process, None, KILLED).await };
            self.begin_task(killing);
        }
        hosts
    }

    async fn launch_new(self: &Arc<Self>, job: &str) -> Result<ProcessId, Failure> {
        let process = ProcessId::random();
        self.launch_as(process, job, None).await?;
        Ok(process)
    }
}

/// Why a worker ends that its driver wants killed.
const KILLED: &str = "killed at the word of its job";
/// The longest time that what a process has said before it ended may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The time that a process that was killed may take to end before that is news of its own.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);

fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> SystemError {
    move |source| SystemError::Io {
        doing: doing.to_owned(),
        source,
    }
}
