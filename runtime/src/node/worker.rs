//! Processes of a node: its workers, and the drivers of jobs that it serves. Each is linked over a
//! unix socket that is its standard input, reaped, and reported when it ends.

pub(crate) mod protocol;
mod service;

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use odeon_devices::fault::GpuFault;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;

use crate::actor::actor_type::ActorTypes;
use crate::actor::engine::component::{Component, Components, LinkEnd};
use crate::actor::engine::{Engine, EngineConfig, LEFT};
use crate::actor::placing::{Ask, Granted, Launched};
use crate::actor::service_row::ServiceRow;
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::failure::{Failure, FailureKind, ProcessExit, signal_name};
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::net::link::{self, Greeted, Link};
use crate::net::wire::{Fact, Frame, Hello, codec};
use crate::node::blob::Share;
use crate::node::detached::protocol::DetachedActor;
use crate::node::inspect::ProcessView;
use crate::node::program::{Output, WorkerCommand, WorkerMode};
use odeon_shm::take_open;

use crate::actor::placing::{DismissRequest, Dismissing, LaunchOrder, Launching};
use protocol::LeaseLaunching;

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
    /// By job and name.
    shared: tokio::sync::Mutex<HashMap<(String, String), ProcessId>>,
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
            shared: tokio::sync::Mutex::default(),
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

    /// The process ids of the workers that run as processes.
    pub(crate) fn pids(&self) -> Vec<(ProcessId, u32)> {
        let table = self.table.lock();
        table
            .iter()
            .filter_map(|(id, worker)| Some((*id, worker.pid?.as_raw_nonzero().get() as u32)))
            .collect()
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

/// Waits until a child of this process ends that another program has started, and says how it did.
async fn end_of(pid: u32) -> std::io::Result<(String, Option<i32>)> {
    let pid = Pid::from_raw(pid as i32).ok_or(std::io::ErrorKind::InvalidInput)?;
    // Before the first look, so that no end is missed.
    let mut children = tokio::signal::unix::signal(SignalKind::child())?;
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        if let Some(status) = rustix::process::waitid(WaitId::Pid(pid), options)? {
            return Ok(match status.terminating_signal() {
                Some(signal) => (killed_by(signal), None),
                // As the standard library says it.
                None => {
                    let code = status.exit_status().unwrap_or(0);
                    (format!("exit status: {code}"), Some(code))
                }
            });
        }
        // More than one end may be told at once, so this only says when to look again.
        let _ = children.recv().await;
    }
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
        LinkEnd { exit, is_orderly }
    }
}

impl Engine {
    /// The processes that it has started.
    pub(crate) fn workers(&self) -> &Workers {
        self.component::<Workers>()
    }

    /// A worker process as ordered: by its lease, the shared one of that name, or a new one.
    pub(crate) async fn launch_here(
        self: &Arc<Self>,
        order: LaunchOrder,
    ) -> Result<Launched, Failure> {
        if let Some(ask) = &order.ask {
            return self.launch_scheduled(ask, order.claim).await;
        }
        let process = self.launch_unleased(order).await?;
        Ok(Launched {
            process,
            lease: None,
            devices: vec![],
        })
    }

    /// Finds room, and a process there. A claim that is over, or whose process has died at once, is
    /// no reason to give up: there may be other room.
    async fn launch_scheduled(
        self: &Arc<Self>,
        ask: &Ask,
        claim: Option<Granted>,
    ) -> Result<Launched, Failure> {
        if ask.again
            && let Some(spare) = self.take_spare(ask).await
        {
            return Ok(spare);
        }
        let mut claim = claim;
        for _ in 0..CLAIMS_MAX {
            let granted = match claim.take() {
                Some(granted) => granted,
                None => {
                    let granted = self.schedule(std::slice::from_ref(ask)).await?;
                    *granted.first().ok_or_else(|| {
                        Failure::new(FailureKind::NotPlaced, "it asks for no place")
                    })?
                }
            };
            let launched = if granted.node == self.process {
                self.launch_leased(granted.lease).await?
            } else {
                self.launched_by(granted).await?
            };
            match launched {
                Some(launched) => return Ok(launched),
                None => tracing::debug!(holder = ask.holder, "a claim was over, looking again"),
            }
        }
        let why = format!("{CLAIMS_MAX} claims in a row were over before they could be used");
        Err(Failure::new(FailureKind::NotPlaced, why))
    }

    /// Has another node start the process of a lease of its own.
    async fn launched_by(&self, granted: Granted) -> Result<Option<Launched>, Failure> {
        let (node, lease) = (granted.node, granted.lease);
        let answer = self.request::<LeaseLaunching>(node, &lease, None).await;
        answer.unwrap_or_else(|| {
            let why = "the node was lost before it gave a worker process";
            Err(Failure::new(FailureKind::NodeLost, why))
        })
    }

    async fn launch_unleased(self: &Arc<Self>, order: LaunchOrder) -> Result<ProcessId, Failure> {
        if let Some(node) = &order.node
            && *node != self.node
        {
            return self.launch_there(node, &order).await;
        }
        let Some(name) = order.shared else {
            return self.launch_new(&order.job).await;
        };
        let name = (order.job.clone(), name);
        let mut shared = self.workers().shared.lock().await;
        if let Some(process) = shared
            .get(&name)
            .filter(|process| self.links.contains_key(process))
        {
            return Ok(*process);
        }
        let process = self.launch_new(&order.job).await?;
        shared.insert(name, process);
        Ok(process)
    }

    /// A worker process of another node.
    async fn launch_there(&self, node: &str, order: &LaunchOrder) -> Result<ProcessId, Failure> {
        let mut known = vec![format!("`{}` (this one)", self.node)];
        let mut found = None;
        for link in self.links.iter().filter(|link| !link.is_worker) {
            if link.node == node {
                found = Some(link.peer);
            }
            known.push(format!("`{}`", link.node));
        }
        let Some(peer) = found else {
            known[1..].sort_unstable();
            let known = known.join(", ");
            let why = format!("no node `{node}` is joined; known nodes: {known}");
            return Err(Failure::new(FailureKind::NotPlaced, why));
        };
        match self.request::<Launching>(peer, order, None).await {
            Some(launched) => launched.map(|launched| launched.process),
            None => {
                let why = format!("node `{node}` was lost before it gave a worker process");
                Err(Failure::new(FailureKind::NodeLost, why))
            }
        }
    }

    /// Ends a worker process that is not needed any more, or gives back an actor's lease in one; or
    /// has the node do it that runs it.
    pub(crate) async fn release_here(self: &Arc<Self>, process: ProcessId, lease: Option<Granted>) {
        match lease {
            Some(granted) if granted.node == self.process => {
                return self.release_lease(granted.lease).await;
            }
            Some(_) => {}
            None if self.runs(process) => return self.workers().end(self, process).await,
            None => {}
        }
        let through = match lease {
            Some(granted) => Some(granted.node),
            None => self.node_of(process),
        };
        if let Some(node) = through {
            // No answer means that the node is gone, and its workers with it.
            let release = DismissRequest::Release { process, lease };
            let _ = self.request::<Dismissing>(node, &release, None).await;
        }
    }

    /// The node's part in [`Engine::retire`]: ends the process, or has the node do it that runs it.
    pub(crate) async fn retire_for(
        self: &Arc<Self>,
        process: ProcessId,
        fault: Option<GpuFault>,
        why: String,
    ) {
        if self.runs(process) {
            return self.retire_here(process, fault, &why).await;
        }
        if let Some(node) = self.node_of(process) {
            let retire = DismissRequest::Retire {
                process,
                fault,
                why,
            };
            // No answer means that the node is gone, and its workers with it.
            let _ = self.request::<Dismissing>(node, &retire, None).await;
        }
    }

    /// Returns true if a process is a worker of this node.
    fn runs(&self, process: ProcessId) -> bool {
        self.workers().table.lock().contains_key(&process)
    }

    /// The neighbour behind which a worker runs.
    fn node_of(&self, process: ProcessId) -> Option<ProcessId> {
        let link = self.next_link(process)?;
        (link.peer != process).then_some(link.peer)
    }

    async fn launch_new(self: &Arc<Self>, job: &str) -> Result<ProcessId, Failure> {
        let process = ProcessId::random();
        self.launch_as(process, job, None).await?;
        Ok(process)
    }

    /// Starts the process that leads a job.
    pub(crate) fn launch_driver(
        self: &Arc<Self>,
        job: &str,
        role: &Role,
        command: &WorkerCommand,
    ) -> Result<(ProcessId, watch::Receiver<Option<ProcessExit>>), Failure> {
        self.check_room()?;
        let process = ProcessId::random();
        let launch = Launch {
            process,
            job,
            role,
            command,
            binding: None,
        };
        let forked = self.begin_process(&launch);
        if forked.is_err() {
            self.blobs().unshare(process);
        }
        let Forked { ended, stream } = forked?;
        let said = Hello {
            job: job.to_owned(),
            ..self.hello()
        };
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.follow_driver(process, stream, said).await });
        Ok((process, ended))
    }

    /// Greets a driver, when it joins, and sees its end.
    async fn follow_driver(self: Arc<Self>, process: ProcessId, stream: UnixStream, said: Hello) {
        let Some(mut over) = self.workers().exit_seen(process) else {
            return;
        };
        let mut stream = stream;
        let greeting = async {
            link::say_hello(&mut stream, &said).await?;
            self.hear_driver(process, stream, said).await
        };
        tokio::select! {
            greeted = greeting => if let Err(error) = greeted {
                tracing::info!(%process, %error, "a driver did not join");
            },
            () = has_ended(&mut over) => {}
        }
        self.see_driver_out(process, over).await;
    }

    /// Hears the hello of a driver, whenever it says it, and links it.
    async fn hear_driver(
        self: &Arc<Self>,
        process: ProcessId,
        stream: UnixStream,
        said: Hello,
    ) -> Result<(), SystemError> {
        let socket = stream.as_raw_fd();
        let greeting = |is_heard| {
            let said = said.clone();
            Some(Greeting {
                socket,
                said,
                is_heard,
            })
        };
        self.workers().note_greeting(process, greeting(false));
        tokio::select! {
            biased;
            () = self.serving.stands_still() => return std::future::pending().await,
            readable = stream.readable() => readable.map_err(io("waiting for a driver"))?,
        }
        self.workers().note_greeting(process, greeting(true));
        let (reader, writer) = stream.into_split();
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let greeted = link::greet_back(reader, writer, said, &self.limits).await;
        let linked = greeted.and_then(|greeted| {
            let greeted = is_process(greeted, process)?.over_socket(socket);
            link::attach(&self.as_owner(), greeted, true);
            Ok(())
        });
        self.workers().note_greeting(process, None);
        linked
    }

    /// Takes a driver off the table when it has ended.
    async fn see_driver_out(
        self: &Arc<Self>,
        process: ProcessId,
        mut over: watch::Receiver<Option<ProcessExit>>,
    ) {
        // One that never joined leaves no link whose end would tell, and the end of a link that was
        // left in order says nothing of the process. It may come after that of the process.
        has_ended(&mut over).await;
        while self.links.contains_key(&process) {
            Clock::sleep(self.limits.sweep_interval).await;
        }
        self.workers().exit_of(process).await;
    }

    /// Goes on with processes that the program before this one has started, whose links are restored.
    pub(crate) async fn inherit_workers(
        self: &Arc<Self>,
        workers: Vec<WorkerHandoff>,
        shared: Vec<SharedWorker>,
    ) {
        let rows = shared.into_iter();
        let rows = rows.map(|(job, name, process)| ((job, name), process));
        self.workers().shared.lock().await.extend(rows);
        for handoff in workers {
            self.inherit_worker(handoff);
        }
    }

    fn inherit_worker(self: &Arc<Self>, handoff: WorkerHandoff) {
        let WorkerHandoff {
            process,
            job,
            leads,
            pid,
            exit,
            retired,
            last_words,
            greeting,
        } = handoff;
        let is_over = exit.is_some();
        let (tell, exit) = watch::channel(exit);
        self.workers().table.lock().insert(
            process,
            Worker {
                job,
                leads,
                pid: Pid::from_raw(pid as i32),
                exit: exit.clone(),
                inside: None,
                retired,
                last_words,
                greeting: None,
                leaves: false,
            },
        );
        let engine = Arc::clone(self);
        if is_over {
            let over = Arc::clone(self);
            self.spawn_task(async move { over.end_link_of(process).await });
        } else {
            self.spawn_task(async move { engine.reap_inherited(process, pid, tell).await });
        }
        if !leads {
            return;
        }
        let row = (pid, exit.clone());
        self.workers().inherited.lock().insert(process, row);
        let engine = Arc::clone(self);
        self.spawn_task(async move {
            let mut over = exit;
            if let Some(greeting) = greeting {
                tokio::select! {
                    greeted = engine.go_on_hearing(process, greeting) => if let Err(error) = greeted {
                        tracing::info!(%process, %error, "a driver did not join");
                    },
                    () = has_ended(&mut over) => {}
                }
            }
            engine.see_driver_out(process, over).await;
        });
    }

    /// Hears the hello of a driver that the program before this one has waited for.
    async fn go_on_hearing(
        self: &Arc<Self>,
        process: ProcessId,
        greeting: Greeting,
    ) -> Result<(), SystemError> {
        let socket = take_open(greeting.socket).map_err(io("taking over a socket"))?;
        let socket = std::os::unix::net::UnixStream::from(socket);
        let stream = socket
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(socket));
        let stream = stream.map_err(io("taking over a socket"))?;
        self.hear_driver(process, stream, greeting.said).await
    }

    /// Waits for the end of a process that the program before this one has started.
    async fn reap_inherited(
        self: Arc<Self>,
        process: ProcessId,
        pid: u32,
        tell: watch::Sender<Option<ProcessExit>>,
    ) {
        let (status, code) = match end_of(pid).await {
            Ok(end) => end,
            Err(error) => (format!("its end could not be observed: {error}"), None),
        };
        self.reaped(process, pid, status, code, tell).await;
    }

    /// Checks that this node may start another process.
    fn check_room(&self) -> Result<(), Failure> {
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
    async fn start_process(
        self: &Arc<Self>,
        launch: Launch<'_>,
    ) -> Result<watch::Receiver<Option<ProcessExit>>, Failure> {
        let Launch { process, job, .. } = launch;
        let Forked { mut ended, stream } = self.begin_process(&launch)?;
        let seen = ended.clone();
        let greeting = self.greet_process(job, process, stream);
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
        self.worker_lost(process, pid);
        Err(match exit {
            // Nothing is wrong with the program: another process may do better.
            Some(exit) if retired || killed => exit.into(),
            Some(exit) => not_started(format!("{refused} ({})", exit.status)),
            None => not_started(refused),
        })
    }

    /// Starts a process, whose end is awaited from here on.
    fn begin_process(self: &Arc<Self>, launch: &Launch<'_>) -> Result<Forked, Failure> {
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
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.reap(process, child, tell).await });
        Ok(Forked {
            ended: exit_seen,
            stream,
        })
    }

    /// Says hello to a process of this node and hears that it is the one that was started.
    async fn greet_process(
        &self,
        job: &str,
        process: ProcessId,
        stream: UnixStream,
    ) -> Result<Greeted, SystemError> {
        let socket = stream.as_raw_fd();
        let (reader, writer) = stream.into_split();
        let hello = Hello {
            job: job.to_owned(),
            ..self.hello()
        };
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let greeted = link::greet(reader, writer, hello, &self.limits).await?;
        Ok(is_process(greeted, process)?.over_socket(socket))
    }

    /// A new process, with our end of the socket that is its standard input.
    fn fork(self: &Arc<Self>, launch: &Launch<'_>) -> Result<(Child, UnixStream), SystemError> {
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
        let child = child
            .env(WORKER_ENV, birth.write()?)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(io(&format!("starting {}", command.program().display())))?;
        ours.set_nonblocking(true)
            .map_err(io("preparing a socket"))?;
        let stream = UnixStream::from_std(ours).map_err(io("preparing a socket"))?;
        Ok((child, stream))
    }

    /// Waits for a worker's end and reports it.
    async fn reap(
        self: Arc<Self>,
        process: ProcessId,
        mut child: Child,
        tell: watch::Sender<Option<ProcessExit>>,
    ) {
        let pid = child.id();
        let ended = tokio::select! {
            biased;
            // The next program of this process waits for it.
            () = self.serving.stands_still() => return std::future::pending().await,
            ended = child.wait() => ended,
        };
        let (status, code) = match ended {
            Ok(status) => match status.signal() {
                Some(signal) => (killed_by(signal), None),
                None => (status.to_string(), status.code()),
            },
            Err(error) => (format!("its end could not be observed: {error}"), None),
        };
        self.reaped(process, pid.unwrap_or(0), status, code, tell)
            .await;
    }

    /// A process of this node has ended.
    async fn reaped(
        self: &Arc<Self>,
        process: ProcessId,
        pid: u32,
        status: String,
        code: Option<i32>,
        tell: watch::Sender<Option<ProcessExit>>,
    ) {
        let status = match self.workers().take_last_words(process) {
            Some(words) => format!("{words} ({status})"),
            None => status,
        };
        self.worker_ended(process, Some(pid).filter(|pid| *pid > 0));
        let exit = ProcessExit::new(process, status);
        tell.send_replace(Some(ProcessExit { code, ..exit }));
        self.end_link_of(process).await;
    }

    /// Ends the link to a process that has ended.
    async fn end_link_of(&self, process: ProcessId) {
        // The link ends by itself when the process's last words are read; a grandchild that holds the
        // socket must not keep it open.
        if let Some(link) = self.links.get(&process).map(|link| Arc::clone(&link)) {
            let _ = Clock::timeout(LAST_WORDS, link.closed()).await;
            link.close("the worker process has ended");
        }
    }

    /// A worker as a second engine in this process.
    async fn start_inside(self: &Arc<Self>, process: ProcessId) -> Result<(), SystemError> {
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

    /// Ends at once without a word, as a killed process would.
    pub(crate) fn crash(self: &Arc<Self>) {
        for link in self.links.iter() {
            link.close("killed");
        }
        for cell in self.cells.iter() {
            cell.order(crate::actor::cell::Control::Halt {
                reason: crate::base::failure::Reason::Unknown,
                keep_mail: false,
                done: None,
            });
        }
    }
}

impl Birth {
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

/// The longest time that what a process has said before it ended may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The time that a process that was killed may take to end before that is news of its own.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);

/// Claims in a row that may be over before they are used.
const CLAIMS_MAX: usize = 8;

/// The facts that the node told this process, when it was started as a driver; once.
///
/// # Errors
/// The variable was not set by a node of the same build.
pub(crate) fn driver_birth() -> Option<Result<Birth, SystemError>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let birth = birth()?;
    let drives = birth
        .as_ref()
        .map_or(true, |birth| birth.role == Role::Driver);
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

fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> SystemError {
    move |source| SystemError::Io {
        doing: doing.to_owned(),
        source,
    }
}

/// Joins the node that started this process, and ends with it.
pub(crate) async fn connect(
    birth: Birth,
    types: ActorTypes,
    services: &'static [ServiceRow],
    components: WorkerComponents,
) -> Result<(Arc<Engine>, Arc<Link>), SystemError> {
    end_with(birth.node).map_err(io("asking to end with the node"))?;
    let socket = std::os::fd::AsFd::as_fd(&std::io::stdin())
        .try_clone_to_owned()
        .map_err(io("taking over the socket of the node"))?;
    // Nothing that an actor starts may inherit the socket.
    let null = std::fs::File::open("/dev/null").map_err(io("opening /dev/null"))?;
    rustix::stdio::dup2_stdin(&null).map_err(|errno| io("closing standard input")(errno.into()))?;
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
    let (reader, writer) = stream.into_split();
    let greeted = link::greet(Box::new(reader), Box::new(writer), engine.hello(), &limits).await?;
    engine.uplink.get_or_init(|| greeted.hello.process);
    let link = link::attach(&engine.as_owner(), greeted, false);
    Ok((engine, link))
}
