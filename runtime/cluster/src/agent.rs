//! A node's agent: it runs the tries of jobs that the node was given, from the first byte that is
//! missing to the last process that ends, and tells the catalog.

mod actor;
mod driving;
mod environments;
pub(crate) mod giving;
mod handoff;
mod idle;
mod preparing;
mod stacks;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use odeon::{Clock, DetachError, DetachedActor, Failure, ProcessId, System, WorkerCommand};
use odeon_artifacts::Shares;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use self::actor::{AgentActor, Clear, JoinTry, ORDER_PATIENCE, reach, unanswered};
pub(crate) use self::actor::{keep, look, order_start, order_stop, order_upgrade};
use self::driving::with_env;
pub(crate) use self::handoff::{AttemptHandoff, Hold};
pub use self::stacks::ProgramStack;
pub(crate) use self::stacks::stacks_at;
use crate::attempts::{AttemptStep, Attempts};
use crate::catalog::{Catalog, WriteError};
use crate::cgroups::Cgroups;
use crate::fact::{Fact, RefusalKind, Written};
use crate::forward::Forward;
use crate::job::{Event, Hosted, Job, JobId, JobSpec, Outcome, State};
use crate::local_only::LocalOnly;
use crate::node_directory;
use crate::orphan_processes;
use crate::resources::{Allotment, JobResources};
use crate::staging::Staging;
use crate::stale_drivers::StaleDrivers;
use crate::tables::NodeState;

/// Where whoever has asked for an upgrade hears that it begins, or why it does not.
pub(crate) type UpgradeAnswer = oneshot::Sender<Result<(), String>>;

/// The part of a node that starts, follows and ends tries. Clones are the same agent.
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
    cgroups: Cgroups,
    book: Mutex<Book>,
    /// The specs of tries with processes here.
    specs: Mutex<BTreeMap<(JobId, u32), JobSpec>>,
    /// Tries of other nodes that may have processes here.
    guests: Mutex<BTreeMap<(JobId, u32), Guest>>,
    /// Orders to this node to become another release.
    orders: mpsc::Sender<UpgradeAnswer>,
    ordered: tokio::sync::Mutex<mpsc::Receiver<UpgradeAnswer>>,
    /// Set while what has ended is left to the next program of this process.
    passes: watch::Sender<bool>,
}

/// A try whose driver runs on another node.
#[derive(Debug, Default)]
struct Guest {
    /// Set once that node knows that there may be processes of it here.
    is_known: bool,
    /// What prepares for it.
    preparing: Vec<AbortHandle>,
}

/// The tries of this node, and how each that runs is told to end.
#[derive(Debug)]
struct Book {
    attempts: Attempts,
    stops: BTreeMap<(JobId, u32), watch::Sender<Option<bool>>>,
    /// Tries whose driver has begun, until the catalog has heard that they are over.
    driven: BTreeMap<(JobId, u32), AttemptHandoff>,
    /// Tries that are over here, until the catalog has heard of it.
    untold: BTreeSet<(JobId, u32)>,
    /// The other nodes on which processes of a try may be, until those are ended.
    places: BTreeMap<(JobId, u32), BTreeSet<String>>,
}

impl Book {
    fn stop(&mut self, job: JobId, attempt: u32, in_order: bool) {
        if let Some(handoff) = self.driven.get_mut(&(job, attempt)) {
            handoff.end = Some(in_order);
        }
        if let Some(stop) = self.stops.get(&(job, attempt)) {
            stop.send_replace(Some(in_order));
        }
    }

    /// No other node joins a try from now on. Those that have.
    fn seal(&mut self, of: (JobId, u32)) -> BTreeSet<String> {
        let places = self.places.remove(&of).unwrap_or_default();
        if let Some(handoff) = self.driven.get_mut(&of) {
            handoff.places.clone_from(&places);
        }
        places
    }
}

/// The name of a node's agent.
fn name_of(node: &str) -> String {
    format!("agent@{node}")
}

/// The try of a tag.
fn try_of(tag: &str) -> Option<(JobId, u32)> {
    let (_, name) = tag.rsplit_once('/')?;
    let (job, attempt) = name.split_once('.')?;
    Some((job.parse().ok()?, attempt.parse().ok()?))
}

/// The longest time that another node may take to say what is left of a job.
const CLEAR_PATIENCE: Duration = Duration::from_secs(10);
/// The longest time that a node may be out of reach from this one alone: by then it knows that too,
/// and has ended the workers of drivers that run here ([`odeon::Limits::link_idle_timeout`]).
const APART_PATIENCE: Duration = Duration::from_secs(15);
/// The time that a process has to say hello whose program is read while it comes. Each piece comes within half a minute,
/// or its reader fails.
const MOUNTED_START: Duration = Duration::from_secs(300);
/// The pause between two looks at what is left of a try.
const CLEAR_PAUSE: Duration = Duration::from_millis(20);
/// The pause between two looks in the catalog whether a detached actor has started.
const DETACH_PAUSE: Duration = Duration::from_millis(20);
/// The pause between two looks in the catalog which tries are over.
const SWEEP_PAUSE: Duration = Duration::from_secs(2);
/// Every so many times it is asked about those of other nodes, too.
const GUEST_SWEEPS: u32 = 4;
/// The pause before a fact is written again that could not be.
const WRITE_PAUSE: Duration = Duration::from_millis(500);

impl Agent {
    pub(crate) async fn begin(
        system: &System,
        node: &str,
        catalog: &Catalog,
        staging: Staging,
        forward: Forward,
        stale_drivers: StaleDrivers,
        cgroups: Cgroups,
    ) -> Result<Self, Failure> {
        let (orders, ordered) = mpsc::channel(1);
        let inner = Inner {
            system: system.clone(),
            node: node.to_owned(),
            catalog: catalog.clone(),
            staging,
            forward,
            stale_drivers,
            cgroups,
            book: Mutex::new(Book {
                attempts: Attempts::new(node, system.process().0),
                stops: BTreeMap::new(),
                driven: BTreeMap::new(),
                untold: BTreeSet::new(),
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
        let actor = system
            .spawn::<AgentActor>(LocalOnly::new(agent.clone()))
            .await;
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
        self.inner.staging.environments().admit((job.id, attempt));
        let agent = self.clone();
        tokio::spawn(async move {
            let outcome = agent.run(&job, attempt, stopped).await;
            agent.settle(&job, attempt, outcome).await;
        });
    }

    /// The driver of a try is over: so is the rest of it, and the catalog hears how.
    async fn settle(&self, job: &Job, attempt: u32, outcome: Outcome) {
        let (id, tag) = (job.id, job.tag(attempt));
        let of = (id, attempt);
        // From here on no other node begins anything of it.
        let places = self.inner.book.lock().seal(of);
        self.dismiss(of);
        self.clear_everywhere(&tag, &places).await;
        let lines = self.inner.forward.flush(of).await;
        self.inner.staging.clear(id, attempt).await;
        self.inner.cgroups.remove(of);
        self.inner.system.admin().reserve(&tag, vec![]);
        self.inner.specs.lock().remove(&of);
        let tells = {
            let mut book = self.inner.book.lock();
            book.stops.remove(&of);
            book.untold.insert(of);
            book.attempts.ended(id, attempt)
        };
        if tells && lines > 0 {
            tracing::warn!(job = %id, lines, "no voter keeps lines of a job's output");
            self.tell(id, Event::Unkept { attempt, lines }).await;
        }
        if tells {
            self.tell(id, Event::Over { attempt, outcome }).await;
        }
        let mut book = self.inner.book.lock();
        book.driven.remove(&of);
        book.untold.remove(&of);
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
                self.dismiss((job, attempt));
                self.inner.staging.clear(job, attempt).await;
            }
            let mut book = self.inner.book.lock();
            for (job, attempt) in book.attempts.sweep(&over) {
                tracing::warn!(%job, attempt, "a try is ended that the cluster has given up");
                book.stop(job, attempt, false);
            }
        }
    }

    /// The longest that a driver which runs here may take to end.
    pub(crate) fn longest_grace(&self) -> Duration {
        let book = self.inner.book.lock();
        let graces = book.driven.values().map(AttemptHandoff::grace);
        graces.max().unwrap_or_default()
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

    /// Has this node and these end the processes of a try, and waits until they are gone. Other nodes
    /// have none, so one that is silent holds up only the ends of what it runs.
    async fn clear_everywhere(&self, tag: &str, places: &BTreeSet<String>) {
        self.inner.system.admin().end_job(tag).await;
        orphan_processes::end(self.mark(tag)).await;
        join_all(places.iter().map(|node| self.clear_at(node, tag))).await;
    }

    /// The mark by which the processes of a try are known here, whatever becomes of their parents.
    fn mark(&self, tag: &str) -> String {
        format!("{tag}@{}", self.inner.system.process())
    }

    /// Tells the node that runs the driver of a try that there will be processes of it here. Gives that node where this
    /// one has not told it before.
    async fn join_try(&self, of: (JobId, u32)) -> Result<Option<String>, String> {
        let is_known = |guest: &Guest| guest.is_known;
        if self.inner.guests.lock().get(&of).is_some_and(is_known) {
            return Ok(None);
        }
        let over = || format!("try {} of {} is over", of.1, of.0);
        let row = self.inner.catalog.job(of.0).await;
        let row = row.map_err(|error| error.to_string())?.ok_or_else(over)?;
        let driver = row.attempt().filter(|attempt| attempt.number == of.1);
        let driver = &driver.ok_or_else(over)?.node;
        if *driver == self.inner.node {
            return Ok(None);
        }
        // Before it is known there: that it is over may be heard before the answer is.
        self.welcome(of, None);
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
        let mut guests = self.inner.guests.lock();
        let guest = guests.get_mut(&of).ok_or_else(over)?;
        let is_first = !std::mem::replace(&mut guest.is_known, true);
        Ok(is_first.then(|| driver.clone()))
    }

    /// A try of another node may begin something here, and this task prepares for it.
    fn welcome(&self, of: (JobId, u32), preparing: Option<AbortHandle>) {
        let mut guests = self.inner.guests.lock();
        guests.entry(of).or_default().preparing.extend(preparing);
        self.inner.staging.environments().admit(of);
    }

    /// A try is over: nothing of it begins here from now on, and what prepares for it ends.
    fn dismiss(&self, of: (JobId, u32)) {
        let mut guests = self.inner.guests.lock();
        for preparing in guests.remove(&of).unwrap_or_default().preparing {
            preparing.abort();
        }
        self.inner.staging.environments().dismiss(of);
    }

    async fn clear_at(&self, node: &str, tag: &str) {
        let mut unreached = Clock::now();
        while self.is_up(node) {
            let now = Clock::now();
            if self
                .inner
                .system
                .admin()
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
        let (job, _) = known;
        let joined = self.join_try(known).await?;
        let spec = self.spec_of(known).await?;
        let ready = self.prepare(known, &spec, &Shares::new("", [])).await;
        let ready = ready.map_err(|error| error.to_string())?;
        self.tell_driver(joined, known, ready.times, ready.note);
        let reserved = match spec.resources.is_empty() {
            true => Allotment::default(),
            false => {
                let row = self.inner.catalog.job(job).await;
                let row = row.map_err(|error| error.to_string())?;
                row.map_or_else(Allotment::default, |row| self.reserved_here(&row))
            }
        };
        let command = self.inner.cgroups.command(known, reserved, &ready.program);
        let command = with_env(command, &spec, ready.environment.as_deref());
        let command = command.env(orphan_processes::VARIABLE, self.mark(tag));
        let command = self.with_place(command).folder(ready.folder);
        Ok(match ready.is_mounted {
            true => command.start_within(MOUNTED_START),
            false => command,
        })
    }

    /// All that the present try of a job has reserved on this node.
    fn reserved_here(&self, job: &Job) -> Allotment {
        let reserved = job.attempt().into_iter().flat_map(|it| &it.reserved);
        let here = reserved.filter(|it| it.node == self.inner.node);
        here.fold(Allotment::default(), |sum, it| sum.plus(it.allotment))
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
            links,
            environment,
            ..
        } = self.spec_of(known).await.map_err(refused)?;
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
            resources: JobResources::default(),
            time_limit_s: None,
            after: vec![],
            array: None,
            links,
            grace_s: None,
            idle_limit_s: None,
            environment,
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

    /// The job of a try as that was begun: a later one may be of another version.
    async fn spec_of(&self, of: (JobId, u32)) -> Result<JobSpec, String> {
        if let Some(spec) = self.inner.specs.lock().get(&of) {
            return Ok(spec.clone());
        }
        let (job, number) = of;
        let found = self
            .inner
            .catalog
            .job(job)
            .await
            .map_err(|e| e.to_string())?;
        let found = found.ok_or_else(|| format!("there is no job {job}"))?;
        if found.attempt().map(|it| it.number) != Some(number) {
            return Err(format!("try {number} of {job} is over"));
        }
        self.inner.specs.lock().insert(of, found.spec.clone());
        Ok(found.spec)
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
