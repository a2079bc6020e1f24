//! A node's agent: it runs the tries of jobs that the node was given, from the first byte that is
//! missing to the last process that ends, and tells the catalog.

pub(crate) mod giving;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use odeon::{
    AskError, Blob, Clock, DetachError, DetachedActor, Driver, Failure, Later, ProcessExit,
    ProcessId, Ref, System, WorkerCommand,
};
use odeon_artifacts::Digest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::attempts::{AttemptStep, Attempts};
use crate::catalog::{Catalog, WriteError};
use crate::fact::{Fact, RefusalKind, Written};
use crate::forward::Forward;
use crate::job::{Event, Hosted, Job, JobId, JobSpec, Outcome, State};
use crate::json::Json;
use crate::node_directory::{self, Unreached};
use crate::orphan_processes;
use crate::seat::Seat;
use crate::staging::{Staging, StagingError};
use crate::stale_drivers::StaleDrivers;
use crate::tables::NodeState;

/// Where whoever has asked for an upgrade hears that it begins, or why it does not.
pub(crate) type UpgradeAnswer = oneshot::Sender<Result<(), String>>;

/// See the module. Clones are the same agent.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    system: System,
    node: String,
    catalog: Catalog,
    staging: Staging,
    forward: Forward,
    stale_drivers: StaleDrivers,
    book: Mutex<Book>,
    /// The specs of jobs with processes here.
    specs: Mutex<BTreeMap<JobId, JobSpec>>,
    /// Tries of other nodes that may have processes here, as those know.
    guests: Mutex<BTreeSet<(JobId, u32)>>,
    /// Orders to this node to become another release.
    orders: mpsc::Sender<UpgradeAnswer>,
    ordered: tokio::sync::Mutex<mpsc::Receiver<UpgradeAnswer>>,
    /// Set while what has ended is left to the next program of this process.
    passes: watch::Sender<bool>,
}

/// The tries of this node, and how each that runs is told to end.
#[derive(Debug)]
struct Book {
    attempts: Attempts,
    stops: BTreeMap<(JobId, u32), watch::Sender<Option<bool>>>,
    /// Tries whose driver runs.
    driven: BTreeMap<(JobId, u32), TryEstate>,
    /// The other nodes on which processes of a try may be, until those are ended.
    places: BTreeMap<(JobId, u32), BTreeSet<String>>,
}

/// A try as the next program of this process has to know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TryEstate {
    job: Job,
    attempt: u32,
    driver: ProcessId,
    pid: u32,
    /// Set once its driver was asked to end; true for in order.
    end: Option<bool>,
    /// The driver's exit, with true where it was asked to end.
    exit: Option<(ProcessExit, bool)>,
    /// The other nodes on which processes of it may be.
    places: BTreeSet<String>,
}

impl TryEstate {
    const fn of(&self) -> (JobId, u32) {
        (self.job.id, self.attempt)
    }

    /// The operating system's number of its driver.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }
}

/// While it lives no try begins.
#[derive(Debug)]
pub(crate) struct Hold {
    agent: Agent,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.agent.inner.book.lock().attempts.hold(false);
    }
}

impl Book {
    fn stop(&mut self, job: JobId, attempt: u32, in_order: bool) {
        if let Some(estate) = self.driven.get_mut(&(job, attempt)) {
            estate.end = Some(in_order);
        }
        if let Some(stop) = self.stops.get(&(job, attempt)) {
            stop.send_replace(Some(in_order));
        }
    }
}

/// The name of a node's agent.
fn name_of(node: &str) -> String {
    format!("agent@{node}")
}

/// The name by which the engines know a try: the processes and names of each try are apart from all
/// others.
fn tag(job: &Job, attempt: u32) -> String {
    format!("{}/{}.{attempt}", job.spec.namespace, job.id)
}

/// The try of a tag.
fn try_of(tag: &str) -> Option<(JobId, u32)> {
    let (_, name) = tag.rsplit_once('/')?;
    let (job, attempt) = name.split_once('.')?;
    Some((job.parse().ok()?, attempt.parse().ok()?))
}

/// The time that a driver has to end in order.
const GRACE: Duration = Duration::from_secs(10);
/// The longest time that another node may take to say what is left of a job.
const CLEAR_PATIENCE: Duration = Duration::from_secs(10);
/// The longest time that a node may take to hear an order; it is told again later.
const ORDER_PATIENCE: Duration = Duration::from_secs(4);
/// The longest time that a node may be out of reach from this one alone: by then it knows that too,
/// and has ended the workers of drivers that run here ([`odeon::Limits::link_idle_timeout`]).
const APART_PATIENCE: Duration = Duration::from_secs(15);
/// The longest time that a node may take to say whether it becomes another release.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(30);
/// The longest time that a voter may take to fetch a bundle.
const KEEP_PATIENCE: Duration = Duration::from_secs(300);
/// The pause between two looks at what is left of a try.
const CLEAR_PAUSE: Duration = Duration::from_millis(20);
/// The longest wait for the last lines of an ended process: what it has started may hold its output
/// open.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two looks in the catalog whether a detached actor has started.
const DETACH_PAUSE: Duration = Duration::from_millis(20);
/// The pause between two looks in the catalog which tries are over.
const SWEEP_PAUSE: Duration = Duration::from_secs(2);
/// Every so many times it is asked about those of other nodes, too.
const GUEST_SWEEPS: u32 = 4;
/// The pause before a fact is written again that could not be.
const WRITE_PAUSE: Duration = Duration::from_millis(500);
/// Variables of the daemon that jobs see.
const INHERITED: [&str; 6] = [
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
];

impl Agent {
    pub(crate) async fn begin(
        system: &System,
        node: &str,
        catalog: &Catalog,
        staging: Staging,
        forward: Forward,
        stale_drivers: StaleDrivers,
    ) -> Result<Self, Failure> {
        let (orders, ordered) = mpsc::channel(1);
        let inner = Inner {
            system: system.clone(),
            node: node.to_owned(),
            catalog: catalog.clone(),
            staging,
            forward,
            stale_drivers,
            book: Mutex::new(Book {
                attempts: Attempts::new(node, system.process().0),
                stops: BTreeMap::new(),
                driven: BTreeMap::new(),
                places: BTreeMap::new(),
            }),
            guests: Mutex::default(),
            specs: Mutex::default(),
            orders,
            ordered: ordered.into(),
            passes: watch::channel(false).0,
        };
        let agent = Self {
            inner: Arc::new(inner),
        };
        let failed = |error: &dyn std::fmt::Display| Failure::error(error);
        let actor = system.spawn::<AgentActor>(Seat::new(agent.clone())).await;
        let actor = actor.map_err(|error| failed(&error))?;
        let named = node_directory::register(system, &name_of(node), actor).await;
        named.map_err(|error| failed(&error))?;
        Ok(agent)
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.inner.staging
    }

    /// Begins a try, unless there is a reason not to.
    fn start(&self, job: Job) {
        let mut book = self.inner.book.lock();
        let step = book.attempts.begin(&job);
        let AttemptStep::Begin { attempt } = step else {
            return self.take(&mut book, job.id, step);
        };
        let (stop, stopped) = watch::channel(None);
        book.stops.insert((job.id, attempt), stop);
        book.places.insert((job.id, attempt), BTreeSet::new());
        drop(book);
        let agent = self.clone();
        tokio::spawn(async move {
            let outcome = agent.run(&job, attempt, stopped).await;
            agent.settle(&job, attempt, outcome).await;
        });
    }

    /// The driver of a try is over: so is the rest of it, and the catalog hears how.
    async fn settle(&self, job: &Job, attempt: u32, outcome: Outcome) {
        let (id, tag) = (job.id, tag(job, attempt));
        // From here on no other node begins anything of it.
        let places = self.inner.book.lock().places.remove(&(id, attempt));
        self.clear_everywhere(&tag, &places.unwrap_or_default())
            .await;
        self.inner.forward.flush((id, attempt)).await;
        self.inner.staging.clear(id, attempt).await;
        let tells = {
            let mut book = self.inner.book.lock();
            book.stops.remove(&(id, attempt));
            book.attempts.ended(id, attempt)
        };
        if tells {
            self.tell(id, Event::Over { attempt, outcome }).await;
        }
    }

    /// Goes on with tries of this life of the node, which the program before this one has begun.
    pub(crate) fn inherit(&self, tries: Vec<TryEstate>) {
        for estate in tries {
            let (job, attempt) = estate.of();
            let mut book = self.inner.book.lock();
            book.attempts.inherit(job, attempt, estate.end);
            let (stop, stopped) = watch::channel(estate.end);
            book.stops.insert((job, attempt), stop);
            book.places.insert((job, attempt), estate.places.clone());
            drop(book);
            let mut specs = self.inner.specs.lock();
            specs.insert(job, estate.job.spec.clone());
            drop(specs);
            let agent = self.clone();
            tokio::spawn(async move {
                let job = estate.job.clone();
                let outcome = match (
                    &estate.exit,
                    agent.inner.system.inherited_driver(estate.driver),
                ) {
                    (Some((exit, was_asked)), _) => {
                        Driver::end_group(estate.pid).await;
                        agent.inner.stale_drivers.forget(estate.pid);
                        agent.outcome(&job, attempt, exit, *was_asked).await
                    }
                    (None, Some(driver)) => agent.drive(estate, driver, stopped).await,
                    (None, None) => Outcome::Failed {
                        code: None,
                        why: "its end was not seen while the node was upgraded".to_owned(),
                    },
                };
                agent.settle(&job, attempt, outcome).await;
            });
        }
    }

    /// Begins no try from now on, while what this gives lives, when nothing is in the way of handing
    /// on those that run.
    pub(crate) async fn hold(&self, patience: Duration) -> Result<Hold, String> {
        self.inner.book.lock().attempts.hold(true);
        let hold = Hold {
            agent: self.clone(),
        };
        let deadline = Clock::now().after(patience);
        loop {
            let Some(why) = self.unsteady() else {
                return Ok(hold);
            };
            if deadline.left(Clock::now()).is_zero() {
                return Err(why);
            }
            Clock::sleep(CLEAR_PAUSE).await;
        }
    }

    /// Why the tries of this node cannot be handed on.
    fn unsteady(&self) -> Option<String> {
        if let Some((job, _)) = self.inner.staging.tries().first() {
            return Some(format!("{job} reads its files while they come"));
        }
        let book = self.inner.book.lock();
        let running = book.attempts.running();
        let other = running.iter().find(|of| !book.driven.contains_key(of));
        other.map(|(job, _)| format!("{job} begins or ends here"))
    }

    /// From now on the end of a driver is left to the next program of this process.
    pub(crate) fn pass_on(&self) {
        self.inner.passes.send_replace(true);
    }

    /// The tries that the next program of this process goes on with. The engine knows a driver, or this
    /// does how it ended.
    pub(crate) async fn estate(&self) -> Vec<TryEstate> {
        loop {
            let tries: Vec<TryEstate> = {
                let book = self.inner.book.lock();
                let tries = book.driven.values().map(|estate| TryEstate {
                    places: book.places.get(&estate.of()).cloned().unwrap_or_default(),
                    ..estate.clone()
                });
                tries.collect()
            };
            let processes = self.inner.system.processes();
            let runs = |it: &TryEstate| processes.iter().any(|row| row.process == it.driver);
            let is_known = |it: &TryEstate| it.exit.is_some() || runs(it);
            if tries.iter().all(is_known) {
                return tries;
            }
            Clock::sleep(CLEAR_PAUSE).await;
        }
    }

    /// Resolves when somebody asks this node to become another release, and waits to hear of it.
    pub(crate) async fn upgrade_ordered(&self) -> UpgradeAnswer {
        match self.inner.ordered.lock().await.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Ends a try.
    fn stop(&self, job: JobId, attempt: u32, in_order: bool) {
        let mut book = self.inner.book.lock();
        let step = book.attempts.finish(job, attempt, in_order);
        self.take(&mut book, job, step);
    }

    /// Has done what is to be done about a try, other than begin it.
    fn take(&self, book: &mut Book, job: JobId, step: AttemptStep) {
        match step {
            AttemptStep::Nothing | AttemptStep::Begin { .. } => {}
            AttemptStep::End { attempt, in_order } => book.stop(job, attempt, in_order),
            AttemptStep::NeverRan { attempt } => {
                let agent = self.clone();
                tokio::spawn(async move {
                    let outcome = Outcome::Stopped {
                        by: "its node, before it began".to_owned(),
                    };
                    agent.tell(job, Event::Over { attempt, outcome }).await;
                });
            }
        }
    }

    /// Kills tries of which the catalog knows that they are over, now and then: the node may have
    /// been taken for lost.
    pub(crate) async fn sweep(self) {
        for n in 0u32.. {
            Clock::sleep(SWEEP_PAUSE).await;
            let running = self.inner.book.lock().attempts.running();
            // What other nodes have begun here they end, unless they are gone.
            let mut known = match n % GUEST_SWEEPS {
                0 => self.inner.staging.kept().await,
                _ => self.inner.staging.tries(),
            };
            known.retain(|of| !running.contains(of));
            let all = [&*running, &*known].concat();
            if all.is_empty() {
                continue;
            }
            let Some(over) = self.inner.catalog.over(&all).await else {
                continue;
            };
            for (job, attempt) in known.into_iter().filter(|of| over.contains(of)) {
                self.inner.staging.clear(job, attempt).await;
                self.inner.guests.lock().remove(&(job, attempt));
            }
            let mut book = self.inner.book.lock();
            for (job, attempt) in book.attempts.sweep(&over) {
                tracing::warn!(%job, attempt, "a try is ended that the cluster has given up");
                book.stop(job, attempt, false);
            }
        }
    }

    /// Ends all tries that run here, and waits until none of their processes is left. That they are
    /// over the catalog hears when the node says that it leaves.
    pub(crate) async fn end_all(&self) {
        {
            let mut book = self.inner.book.lock();
            for (job, attempt) in book.attempts.close() {
                book.stop(job, attempt, true);
            }
        }
        while !self.inner.book.lock().attempts.is_empty() {
            Clock::sleep(CLEAR_PAUSE).await;
        }
    }

    async fn run(
        &self,
        job: &Job,
        attempt: u32,
        mut stop: watch::Receiver<Option<bool>>,
    ) -> Outcome {
        let stopped = || Outcome::Stopped {
            by: "its node, before it began".to_owned(),
        };
        let staging = self.inner.staging.bring(job.spec.bundle, (job.id, attempt));
        let staged = tokio::select! {
            biased;
            _ = stop.wait_for(Option::is_some) => return stopped(),
            staged = staging => staged,
        };
        let staged = staged.and_then(|staged| {
            let folder = self.inner.staging.folder_for(job.id, attempt, &staged)?;
            Ok((staged, folder))
        });
        let (staged, folder) = match staged {
            Ok(ready) => ready,
            Err(error) => return refused(&error),
        };
        let command = with_env(WorkerCommand::new(&staged.program), &job.spec);
        let command = command.env(orphan_processes::VARIABLE, self.mark(&tag(job, attempt)));
        let mut command = self.with_place(command).folder(folder);
        for arg in &job.spec.args {
            command = command.arg(arg);
        }
        let tag = tag(job, attempt);
        self.inner.specs.lock().insert(job.id, job.spec.clone());
        let system = &self.inner.system;
        let driver = match &job.spec.hosts {
            None => system.start_driver(&tag, &command),
            Some(hosted) => match DetachedActor::from_text(&hosted.order) {
                Some(actor) => system.start_host(&tag, &command, actor),
                None => {
                    let why = "this release cannot read how its actor is spawned".to_owned();
                    return Outcome::Refused { why };
                }
            },
        };
        let driver = match driver {
            Ok(driver) => driver,
            Err(failure) => {
                let why = failure.to_string();
                return Outcome::Failed { code: None, why };
            }
        };
        let pid = driver.pid().unwrap_or(0);
        self.inner.stale_drivers.note(pid, &self.mark(&tag));
        let estate = TryEstate {
            job: job.clone(),
            attempt,
            driver: driver.process(),
            pid,
            end: None,
            exit: None,
            places: BTreeSet::new(),
        };
        self.drive(estate, driver, stop).await
    }

    /// Follows the driver of a try to its end.
    async fn drive(
        &self,
        estate: TryEstate,
        mut driver: Driver,
        stop: watch::Receiver<Option<bool>>,
    ) -> Outcome {
        let (of, pid, process) = (estate.of(), estate.pid, estate.driver);
        let (job, attempt) = (estate.job.clone(), estate.attempt);
        let tag = tag(&job, attempt);
        let system = &self.inner.system;
        self.inner.book.lock().driven.insert(of, estate);
        let (over, is_over) = oneshot::channel::<()>();
        let started = async {
            if let Some(hosted) = &job.spec.hosts {
                // It runs when it can be found.
                tokio::select! {
                    () = system.hosted(&tag, &hosted.name, process) => {}
                    _ = is_over => return,
                }
            }
            self.tell(job.id, Event::Started { attempt, pid }).await;
        };
        let exit = async {
            let end = follow(&mut driver, stop).await;
            drop(over);
            {
                let mut book = self.inner.book.lock();
                if !*self.inner.passes.borrow() {
                    book.driven.remove(&of);
                } else if let Some(estate) = book.driven.get_mut(&of) {
                    estate.exit = Some(end.clone());
                }
            }
            if *self.inner.passes.borrow() {
                std::future::pending::<()>().await;
            }
            Driver::end_group(pid).await;
            self.inner.stale_drivers.forget(pid);
            end
        };
        let ((), (exit, was_asked)) = tokio::join!(started, exit);
        self.outcome(&job, attempt, &exit, was_asked).await
    }

    /// The outcome of a try whose driver is gone.
    async fn outcome(
        &self,
        job: &Job,
        attempt: u32,
        exit: &ProcessExit,
        was_asked: bool,
    ) -> Outcome {
        let of = (job.id, attempt);
        self.inner.forward.drain(of, OUTPUT_PATIENCE).await;
        let said = self.inner.forward.said((job.id, attempt));
        let said = said.map(|said| format!("it said last: {said}"));
        // What it could not read is the reason for what it says about that.
        let lacked = self.inner.staging.trouble((job.id, attempt));
        outcome_of(exit, was_asked, lacked, said)
    }

    /// Has this node and these end the processes of a try, and waits until they are gone. Other nodes
    /// have none, so one that is silent holds up only the ends of what it runs.
    async fn clear_everywhere(&self, tag: &str, places: &BTreeSet<String>) {
        self.inner.system.end_job(tag).await;
        orphan_processes::end(self.mark(tag)).await;
        join_all(places.iter().map(|node| self.clear_at(node, tag))).await;
    }

    /// The mark by which the processes of a try are known here, whatever becomes of their parents.
    fn mark(&self, tag: &str) -> String {
        format!("{tag}@{}", self.inner.system.process())
    }

    /// Tells the node that runs the driver of a try that there will be processes of it here.
    async fn join_try(&self, of: (JobId, u32)) -> Result<(), String> {
        if self.inner.guests.lock().contains(&of) {
            return Ok(());
        }
        let over = || format!("try {} of {} is over", of.1, of.0);
        let row = self.inner.catalog.job(of.0).await;
        let row = row.map_err(|error| error.to_string())?.ok_or_else(over)?;
        let driver = row.attempt().filter(|attempt| attempt.number == of.1);
        let driver = &driver.ok_or_else(over)?.node;
        if *driver == self.inner.node {
            return Ok(());
        }
        let agent = reach(&self.inner.system, driver).await?;
        let join = JoinTry {
            job: of.0.0,
            attempt: of.1,
            node: self.inner.node.clone(),
        };
        let asked = agent.ask(join).timeout(ORDER_PATIENCE).await;
        let joined = asked.map_err(|error| unanswered(driver, &error))?;
        if !joined {
            return Err(over());
        }
        self.inner.guests.lock().insert(of);
        Ok(())
    }

    async fn clear_at(&self, node: &str, tag: &str) {
        let mut unreached = Clock::now();
        while self.is_up(node) {
            let now = Clock::now();
            if self
                .inner
                .system
                .links()
                .iter()
                .any(|link| link.node == node)
            {
                unreached = now;
            } else if now.since(unreached) > APART_PATIENCE {
                tracing::warn!(
                    node,
                    tag,
                    "a node is out of reach from here: it ends by itself what it runs for this one"
                );
                return;
            }
            let left = match reach(&self.inner.system, node).await {
                Ok(agent) => {
                    let tag = tag.to_owned();
                    let asked = agent.ask(Clear { tag }).timeout(CLEAR_PATIENCE);
                    asked.await.unwrap_or(1)
                }
                Err(_) => 1,
            };
            if left == 0 {
                return;
            }
            Clock::sleep(CLEAR_PAUSE).await;
        }
    }

    fn is_up(&self, node: &str) -> bool {
        let nodes = self.inner.catalog.nodes();
        let row = nodes.iter().find(|row| row.spec.name == node);
        row.is_some_and(|row| row.state == NodeState::Up)
    }

    /// Tells the catalog what happened to a job, until it listens.
    async fn tell(&self, job: JobId, event: Event) {
        loop {
            let event = event.clone();
            match self.inner.catalog.write_own(Fact::Job { job, event }).await {
                Ok(_) => return,
                Err(WriteError::Refused(refusal)) => {
                    tracing::info!(%job, %refusal, "the catalog knows better");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%job, %error, "the catalog was not told yet");
                    Clock::sleep(WRITE_PAUSE).await;
                }
            }
        }
    }

    /// The command that starts a worker of a job here.
    async fn worker(&self, tag: &str) -> Result<WorkerCommand, String> {
        let known = try_of(tag).ok_or_else(|| format!("`{tag}` is no try of a job"))?;
        let (job, attempt) = known;
        self.join_try(known).await?;
        let spec = self.spec_of(job).await?;
        let words = |error: StagingError| error.to_string();
        let staged = self.inner.staging.bring(spec.bundle, known).await;
        let staged = staged.map_err(words)?;
        let folder = self.inner.staging.folder_for(job, attempt, &staged);
        let folder = folder.map_err(words)?;
        let command = with_env(WorkerCommand::new(&staged.program), &spec);
        let command = command.env(orphan_processes::VARIABLE, self.mark(tag));
        Ok(self.with_place(command).folder(folder))
    }

    /// Takes in the job that hosts a detached actor of another job, and waits until that has started.
    async fn detach(
        &self,
        tag: &str,
        actor: DetachedActor,
        or_existing: bool,
    ) -> Result<(), DetachError> {
        let name = actor.name().to_owned();
        let refused = |why: String| DetachError::Refused {
            name: name.clone(),
            why,
        };
        let known = try_of(tag).ok_or_else(|| refused(format!("`{tag}` is no try of a job")))?;
        let JobSpec {
            namespace,
            bundle,
            env,
            priority,
            ..
        } = self.spec_of(known.0).await.map_err(refused)?;
        let spec = JobSpec {
            name: name.clone(),
            namespace: namespace.clone(),
            bundle,
            args: vec![],
            env,
            priority,
            retries: 0,
            node: None,
            hosts: Some(Hosted {
                name: name.clone(),
                actor: actor.actor().to_owned(),
                kept: actor.is_kept(),
                order: actor.to_text().map_err(refused)?,
            }),
        };
        let by = known.0.to_string();
        let job = match self
            .inner
            .catalog
            .write_for(Fact::JobSubmitted { spec, by })
            .await
        {
            Ok(Written::Job(job)) => job,
            Ok(Written::Done) => return Err(refused("the catalog knows no such job".to_owned())),
            Err(WriteError::Refused(refusal)) if refusal.kind == RefusalKind::Conflict => {
                return match or_existing {
                    true => Ok(()),
                    false => Err(DetachError::Taken { name, namespace }),
                };
            }
            Err(error) => return Err(refused(error.to_string())),
        };
        loop {
            let row = self.inner.catalog.job(job).await;
            let row = row.map_err(|error| refused(error.to_string()))?;
            match row.map(|row| row.state) {
                Some(State::Running { .. }) => return Ok(()),
                Some(State::Ended { outcome, .. }) => return Err(refused(outcome.to_string())),
                Some(_) => Clock::sleep(DETACH_PAUSE).await,
                None => return Err(refused("it is over, and forgotten".to_owned())),
            }
        }
    }

    /// Tells a process which node it is on, and by which host others reach that.
    fn with_place(&self, command: WorkerCommand) -> WorkerCommand {
        let nodes = self.inner.catalog.nodes();
        let row = nodes.iter().find(|row| row.spec.name == self.inner.node);
        let address = row.and_then(|row| row.spec.address.parse::<SocketAddr>().ok());
        let command = command.env("ODEON_NODE", &self.inner.node);
        match address {
            Some(address) => command.env("ODEON_NODE_ADDRESS", address.ip().to_string()),
            None => command,
        }
    }

    async fn spec_of(&self, job: JobId) -> Result<JobSpec, String> {
        if let Some(spec) = self.inner.specs.lock().get(&job) {
            return Ok(spec.clone());
        }
        let found = self
            .inner
            .catalog
            .job(job)
            .await
            .map_err(|e| e.to_string())?;
        let spec = found.ok_or_else(|| format!("there is no job {job}"))?.spec;
        self.inner.specs.lock().insert(job, spec.clone());
        Ok(spec)
    }
}

/// Follows a driver to its end, and brings that about when it is asked for. Whether it was.
async fn follow(
    driver: &mut Driver,
    mut stop: watch::Receiver<Option<bool>>,
) -> (ProcessExit, bool) {
    let asked = tokio::select! {
        biased;
        exit = driver.ended() => return (exit, false),
        asked = stop.wait_for(Option::is_some) => asked.map_or(Some(false), |asked| *asked),
    };
    if asked == Some(true) {
        tokio::select! {
            biased;
            exit = driver.stop(GRACE) => return (exit, true),
            _ = stop.wait_for(|stop| *stop == Some(false)) => {}
        }
    }
    (driver.stop(Duration::ZERO).await, true)
}

fn with_env(command: WorkerCommand, spec: &JobSpec) -> WorkerCommand {
    let mut command = command.bare();
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            command = command.env(name, value);
        }
    }
    for (name, value) in &spec.env {
        command = command.env(name, value);
    }
    command
}

/// The outcome of a try. One that was told to end was stopped, also if it took that well; by whom,
/// the job's row says. One that fails lacked a part of its files, or has said why as a rule.
fn outcome_of(
    exit: &ProcessExit,
    was_asked: bool,
    lacked: Option<String>,
    said: Option<String>,
) -> Outcome {
    let with = |why: Option<String>| match why {
        Some(why) => format!("{}; {why}", exit.status),
        None => exit.status.clone(),
    };
    match exit.code {
        _ if was_asked => Outcome::Stopped {
            by: "its node".to_owned(),
        },
        Some(0) => Outcome::Succeeded,
        Some(code) => Outcome::Failed {
            code: Some(code),
            why: with(lacked.or(said)),
        },
        None => Outcome::Failed {
            code: signal_of(&exit.status),
            why: with(lacked),
        },
    }
}

/// The exit code that shells give for a process that a signal has ended: 128 and the number of the
/// signal.
fn signal_of(status: &str) -> Option<i32> {
    let number = status.strip_prefix("signal ")?.split(' ').next()?;
    number.parse::<i32>().ok().map(|number| 128 + number)
}

fn refused(error: &StagingError) -> Outcome {
    let why = error.to_string();
    if error.is_final() {
        Outcome::Refused { why }
    } else {
        Outcome::Failed { code: None, why }
    }
}

impl odeon::Programs for Agent {
    fn worker<'a>(
        &'a self,
        job: &'a str,
    ) -> futures::future::BoxFuture<'a, Result<WorkerCommand, String>> {
        Box::pin(Self::worker(self, job))
    }

    fn detach<'a>(
        &'a self,
        job: &'a str,
        actor: DetachedActor,
        or_existing: bool,
    ) -> futures::future::BoxFuture<'a, Result<(), DetachError>> {
        Box::pin(Self::detach(self, job, actor, or_existing))
    }

    fn take_output(&self, job: &str, process: ProcessId, output: odeon::Output) {
        if let Some(of) = try_of(job) {
            self.inner.forward.take(of, process, output);
        }
    }
}

/// The agent as other nodes reach it.
#[derive(Debug)]
pub(crate) struct AgentActor {
    agent: Agent,
}

#[odeon::actor(name = "odeon.cluster.Agent")]
impl AgentActor {
    async fn start(agent: Seat<Agent>) -> Result<Self, Failure> {
        let agent = agent.take()?;
        Ok(Self { agent })
    }

    /// Begins the present try of a job.
    #[handler]
    async fn begin(&mut self, job: Json<Job>) {
        self.agent.start(job.0);
    }

    /// Ends a try of a job, in order or not.
    #[handler]
    async fn finish(&mut self, job: u64, attempt: u32, in_order: bool) {
        self.agent.stop(JobId(job), attempt, in_order);
    }

    /// Another node is about to have processes of a try whose driver runs here. Whether it may.
    #[handler]
    async fn join_try(&mut self, job: u64, attempt: u32, node: String) -> bool {
        let mut book = self.agent.inner.book.lock();
        let places = book.places.get_mut(&(JobId(job), attempt));
        places.map(|places| places.insert(node)).is_some()
    }

    /// Begins to end all processes of a job on this node, and answers how many are left; one, while
    /// what they have printed is on its way.
    #[handler]
    async fn clear(&mut self, tag: String) -> u64 {
        let system = self.agent.inner.system.clone();
        let left = system.processes().iter().filter(|it| it.job == tag).count();
        if left > 0 {
            let tag = tag.clone();
            tokio::spawn(async move { system.end_job(&tag).await });
        } else if let Some((job, attempt)) = try_of(&tag) {
            if self.agent.inner.forward.is_unsettled((job, attempt)) {
                return 1;
            }
            orphan_processes::end(self.agent.mark(&tag)).await;
            self.agent.inner.guests.lock().remove(&(job, attempt));
            self.agent.inner.specs.lock().remove(&job);
            self.agent.inner.staging.clear(job, attempt).await;
        }
        left as u64
    }

    /// Has this node become the program that lies where its own did. The answer comes when nothing is
    /// in the way any more.
    #[handler]
    fn upgrade(&mut self) -> Later<Result<(), String>> {
        let orders = self.agent.inner.orders.clone();
        Later::new(async move {
            let (answer, answered) = oneshot::channel();
            let busy = || Err("an upgrade is under way".to_owned());
            match orders.try_send(answer) {
                Ok(()) => answered.await.unwrap_or_else(|_| busy()),
                Err(_) => busy(),
            }
        })
    }

    /// Fetches a bundle from a node, and keeps it until the catalog says whether it is needed.
    #[handler]
    fn keep(&mut self, digest: Json<Digest>, from: String) -> Later<Result<(), String>> {
        let staging = self.agent.inner.staging.clone();
        Later::new(async move {
            let kept = staging.keep(digest.0, &[from]).await;
            kept.map_err(|error| error.to_string())
        })
    }

    /// The pieces of a bundle, if they are known here.
    #[handler]
    async fn bundle(&mut self, digest: Json<Digest>) -> Option<Blob> {
        self.agent.inner.staging.give_bundle(digest.0).await
    }

    /// Which pieces of a bundle are read first, if that is known here.
    #[handler]
    async fn heat(&mut self, digest: Json<Digest>) -> Option<Blob> {
        self.agent.inner.staging.give_heat(digest.0).await
    }

    /// The bytes of these pieces, as far as they are here.
    #[handler]
    async fn pieces(&mut self, digests: Json<Vec<Digest>>) -> Vec<Option<Blob>> {
        self.agent.inner.staging.give(&digests.0).await
    }
}

/// The agent of a node.
async fn reach(system: &System, node: &str) -> Result<Ref<AgentActor>, String> {
    let found = node_directory::reach(system, node, &name_of(node)).await;
    found.map_err(|unreached| unreached.to_string())
}

/// Says of the node why an ask failed.
fn unanswered(node: &str, error: &AskError) -> String {
    Unreached::asked(node, error).to_string()
}

/// Tells a node's agent to begin or end a try.
pub(crate) async fn order_start(system: &System, node: &str, job: Job) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let told = agent.ask(Begin { job: Json(job) }).timeout(ORDER_PATIENCE);
    told.await.map_err(|error| unanswered(node, &error))
}

/// Tells a node's agent to end a try.
pub(crate) async fn order_stop(
    system: &System,
    node: &str,
    job: JobId,
    attempt: u32,
    in_order: bool,
) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let finish = Finish {
        job: job.0,
        attempt,
        in_order,
    };
    let told = agent.ask(finish).timeout(ORDER_PATIENCE);
    told.await.map_err(|error| unanswered(node, &error))
}

/// Has a node become the program that lies where its own did.
///
/// # Errors
/// Why it does not.
pub(crate) async fn order_upgrade(system: &System, node: &str) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let asked = agent.ask(Upgrade {}).timeout(UPGRADE_PATIENCE);
    asked.await.map_err(|error| unanswered(node, &error))?
}

/// Has a node keep a bundle that `from` has.
pub(crate) async fn keep(
    system: &System,
    node: &str,
    digest: Digest,
    from: &str,
) -> Result<(), String> {
    let agent = reach(system, node).await?;
    let (digest, from) = (Json(digest), from.to_owned());
    let asked = agent.ask(Keep { digest, from }).timeout(KEEP_PATIENCE);
    asked.await.map_err(|error| unanswered(node, &error))?
}
