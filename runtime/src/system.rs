//! The way in: a system in this process, and the job that a binary is.

#[cfg(feature = "quic")]
mod network;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use odeon_placement::{QuantityError, Quota, Resources, View, milli};

use crate::actor::actor_type::ActorTypes;
use crate::actor::engine::{Engine, EngineConfig};
use crate::actor::names;
use crate::actor::registry::Registered;
use crate::actor::request::Recipient;
use crate::actor::spawn::Spawn;
use crate::actor::task_context::{Current, Entered};
use crate::actor::telemetry;
use crate::base::clock::Clock;
use crate::base::error::{AskError, NameError, NeedsError, SystemError};
use crate::base::failure::Failure;
use crate::base::id::{ActorId, ProcessId, Ref};
use crate::base::limits::Limits;
use crate::base::message::Message;
use crate::base::needs::Needs;
use crate::base::supervise::Supervision;
use crate::base::trace::{Span, SpanContext};
use crate::net::link;
use crate::net::link::Redial;
use crate::net::quic::{Listen, Quic};
use crate::net::wire::NameRow;
use crate::node::blob::Blobs;
use crate::node::detached::protocol::DetachedActor;
use crate::node::device_manager::protocol::SurveyingAll;
use crate::node::device_manager::{DeviceConfig, Devices, Standby};
use crate::node::driver::Driver;
use crate::node::inspect::{
    self, ActorView, LinkView, MethodCounts, MethodView, NodeView, ProcessView, Watch, Why,
};
use crate::node::program::{WorkerCommand, WorkerMode};
use crate::node::upgrade::{Busy, Inheritance, Succession};
use crate::node::worker::child::ServeError;
use crate::node::worker::{self, Birth, Role};
use crate::services::{self, SERVICES};

/// A running system as seen from one process. Cheap to clone; [`System::shutdown`] ends it.
#[derive(Clone)]
pub struct System {
    engine: Arc<Engine>,
    supervision: Supervision,
    quic: Option<Arc<Quic>>,
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("System")
            .field("process", &self.engine.process)
            .field("node", &self.engine.node)
            .finish_non_exhaustive()
    }
}

impl System {
    /// An embedded system in this process. It starts worker processes from the running executable
    /// when an actor asks for isolation, which needs a [`Job`] in `main`.
    ///
    /// # Errors
    /// The path of the executable is not known.
    #[odeon_macros::boxed]
    pub async fn local() -> Result<Self, SystemError> {
        Self::builder().start().await
    }

    /// Options first.
    pub fn builder() -> SystemBuilder {
        SystemBuilder::default()
    }

    /// Spawns an actor at the top of the tree.
    pub fn spawn<A: Registered>(&self, args: A::Args) -> Spawn<A> {
        Spawn::new(
            &self.engine,
            ActorId::root(self.engine.process),
            self.supervision,
            args,
        )
    }

    /// Gives an actor a name in this job.
    ///
    /// # Errors
    /// The name is taken, or the node that keeps the names is out of reach.
    pub async fn register<A: Registered>(
        &self,
        name: &str,
        actor: Ref<A>,
    ) -> Result<(), NameError> {
        self.engine.register_name::<A>(name, actor.id).await
    }

    /// Finds an actor by its name in this job.
    ///
    /// # Errors
    /// Nobody has the name, or an actor of another type has it.
    pub async fn lookup<A: Registered>(&self, name: &str) -> Result<Ref<A>, NameError> {
        let found = self.engine.lookup_name::<A>(name).await;
        found.map(|id| Ref::from_id(id, 0))
    }

    /// Finds a detached actor ([`Spawn::detached`]), which may be of another job and of another
    /// build: `name` in the namespace of this job, or `namespace/name`. A program that runs in no
    /// cluster is alone in its namespace.
    ///
    /// The reference is good until the process that hosts the actor is lost. Then the actor begins
    /// anew elsewhere, and is to be bound again.
    ///
    /// # Errors
    /// Nobody has the name, an actor of another type has it, or it was built from other messages:
    /// each one that differs is named.
    pub async fn bind<A: Registered>(&self, name: &str) -> Result<Ref<A>, NameError> {
        let found = self.engine.find_detached(name, names::check::<A>);
        found.await.map(|id| Ref::from_id(id, 0))
    }

    /// [`System::bind`] for one message alone, whichever actor takes it: the program need not know
    /// its type.
    ///
    /// # Errors
    /// Nobody has the name, or whoever has it takes no such message.
    pub async fn bind_message<M: Message>(&self, name: &str) -> Result<Recipient<M>, NameError> {
        let check = |row: &NameRow| names::check_messages(row, &[(M::NAME, M::METHOD)]);
        let found = self.engine.find_detached(name, check);
        found.await.map(Recipient::from_id)
    }

    /// Runs `future` so that references used in it send from this system. Needed only where one
    /// process runs several systems and the actors live in another.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        let mut home = Some(Current::Scope {
            engine: Some(Arc::clone(&self.engine)),
            span: SpanContext::current(),
        });
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            let _entered = Entered::new(&mut home);
            future.as_mut().poll(cx)
        })
        .await
    }

    /// Waits for a failure that no supervisor could mend.
    #[odeon_macros::boxed]
    pub async fn failed(&self) -> Failure {
        let mut failed = self.engine.watch_failure();
        let failure = failed.wait_for(Option::is_some).await;
        match failure.ok().and_then(|failure| failure.clone()) {
            Some(failure) => failure,
            None => std::future::pending().await,
        }
    }

    /// The actors hosted in this process and its workers.
    #[odeon_macros::boxed]
    pub async fn actors(&self) -> Vec<ActorView> {
        let mut watch = self.watch();
        let mut views = vec![];
        loop {
            let sight = watch.look(self.engine.limits.stop_grace).await;
            let more = sight.more(usize::MAX);
            let shown = sight.processes.into_iter().map(|process| process.sight);
            views.extend(shown.flat_map(|sight| sight.actors));
            if !more {
                views.sort_unstable_by_key(|view| view.id);
                return views;
            }
        }
    }

    /// Looks at this node, its workers and the drivers of its jobs, again and again.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(Arc::clone(&self.engine))
    }

    /// The work of an actor by kind of message in the process that hosts it now; `None` when that
    /// is not this node's or does not answer.
    #[odeon_macros::boxed]
    pub async fn methods_of(&self, actor: ActorId, process: ProcessId) -> Option<Vec<MethodView>> {
        if process == self.engine.process {
            return inspect::methods(&self.engine, actor);
        }
        let patience = Some(self.engine.limits.stop_grace);
        let asked = self
            .engine
            .request::<MethodCounts>(process, &actor, patience);
        asked.await?
    }

    /// Stops an actor for good, and all below it, by its number: for whoever looks on and has no
    /// [`Ref`]. Resolves when it has ended, or when `patience` is over.
    ///
    /// # Errors
    /// Nobody is there who could do it, or it takes longer; then the end goes on.
    #[odeon_macros::boxed]
    pub async fn stop_actor(&self, id: ActorId, patience: Duration) -> Result<(), AskError> {
        let engine = Arc::clone(&self.engine);
        self.within(id, patience, async move { engine.stop_actor(id).await })
            .await
    }

    /// Ends the present life of an actor as a failure of its own would: its supervisor begins the next
    /// one, or does what else its policy says. Resolves when the life has ended.
    ///
    /// # Errors
    /// As [`System::stop_actor`].
    #[odeon_macros::boxed]
    pub async fn fail_actor(
        &self,
        id: ActorId,
        failure: Failure,
        patience: Duration,
    ) -> Result<(), AskError> {
        let engine = Arc::clone(&self.engine);
        let failing = async move { engine.fail_actor(id, failure).await };
        self.within(id, patience, failing).await
    }

    /// Waits for what goes on by itself.
    async fn within(
        &self,
        id: ActorId,
        waited: Duration,
        ending: impl Future<Output = Result<(), AskError>> + Send + 'static,
    ) -> Result<(), AskError> {
        let (tell, told) = tokio::sync::oneshot::channel();
        self.engine.begin_task(async move {
            // Whoever ordered it may have stopped waiting.
            let _ = tell.send(ending.await);
        });
        match Clock::timeout(waited, told).await {
            Some(outcome) => outcome.unwrap_or(Err(AskError::Unreachable(id))),
            None => Err(AskError::Timeout { actor: id, waited }),
        }
    }

    /// The links of this process to other nodes and to its workers: how quick they are, how far the
    /// clocks are apart, what waits.
    #[must_use]
    pub fn links(&self) -> Vec<LinkView> {
        inspect::links(&self.engine)
    }

    /// Finished spans of this process, oldest first.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.engine.tracer.spans()
    }

    /// Makes blobs: bulk bytes in the shared memory of this process.
    #[must_use]
    pub fn blobs(&self) -> Blobs {
        Blobs::new(&self.engine)
    }

    /// Messages without an answer that nobody handled.
    #[must_use]
    pub fn dead_letters(&self) -> u64 {
        self.engine
            .dead_letters
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The worker processes of this node: their ids and the operating system's ids.
    #[must_use]
    pub fn workers(&self) -> Vec<(ProcessId, u32)> {
        self.engine.workers().pids()
    }

    /// Which process hosts an actor that this process spawned; `None` while it is placed again.
    #[must_use]
    pub fn process_of<A>(&self, actor: Ref<A>) -> Option<ProcessId> {
        self.engine
            .members
            .list()
            .into_iter()
            .find(|row| row.0 == actor.id)
            .and_then(|row| row.3)
    }

    /// The nodes of the cluster that answer: what they have, who holds what of it, and who waits for
    /// room, with the reason.
    #[odeon_macros::boxed]
    pub async fn nodes(&self) -> Vec<NodeView> {
        let snapshots = match self.engine.uplink.get() {
            None => self.engine.snapshots().await,
            Some(node) => {
                let patience = Some(self.engine.limits.ask_timeout);
                let asked = self.engine.request::<SurveyingAll>(*node, &(), patience);
                asked.await.unwrap_or_default()
            }
        };
        let view = View::new(snapshots.iter().map(|(_, snapshot)| snapshot.node.clone()));
        let views = snapshots.into_iter().map(|(process, snapshot)| NodeView {
            process,
            // With what is free worked out.
            node: view
                .node(&snapshot.node.name)
                .cloned()
                .unwrap_or(snapshot.node),
            actors: snapshot.actors,
            waiting: snapshot.waiting,
            readings: vec![],
        });
        views.collect()
    }

    /// Why an actor is where it is, or what it waits for; `None` for one that needs nothing, or has
    /// ended.
    pub async fn why<A>(&self, actor: Ref<A>) -> Option<Why> {
        self.nodes()
            .await
            .into_iter()
            .find_map(|view| view.why(actor.id))
    }

    /// Keeps so many worker processes with these needs ready, for actors that name them as their
    /// [`standby`](Needs::standby). Returns at once; [`Standby::ready`] tells how many there are.
    ///
    /// # Errors
    /// A quantity that is none.
    pub fn standby(&self, size: u32, needs: Needs) -> Result<Standby, NeedsError> {
        match needs.wrong {
            Some(wrong) => Err(wrong),
            None => Ok(Standby::start(&self.engine, size, needs)),
        }
    }

    /// Sets the most that jobs may hold whose actors this node places, by their names; `namespace/`
    /// stands for all jobs whose names begin so, together. What they hold already they keep. Nodes
    /// that place at the same moment may each give what is left; they see it at their next look.
    pub fn set_quotas(&self, quotas: BTreeMap<String, Quota>) {
        self.engine.device_manager().set_quotas(quotas);
    }

    /// The most that jobs may hold whose actors this node places.
    #[must_use]
    pub fn quotas(&self) -> BTreeMap<String, Quota> {
        self.engine.device_manager().quotas().clone()
    }

    /// Puts a device of this node back into service after somebody has seen to it. Returns true if
    /// it was out.
    #[odeon_macros::boxed]
    pub async fn repair_device(&self, device: u32) -> bool {
        self.engine.repair_device(device).await
    }

    /// The number of this process in the cluster.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.engine.process
    }

    /// The processes that this node has started, for whichever job.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessView> {
        self.engine.workers().list()
    }

    /// Starts a process that runs the `main` of a job's program, linked to this node as if it were a
    /// worker: what it spawns elsewhere is placed by the nodes, in processes that
    /// [`WorkerMode::Jobs`](crate::WorkerMode) starts.
    ///
    /// # Errors
    /// The process cannot be started, or the node runs as many as it may.
    pub fn start_driver(&self, job: &str, command: &WorkerCommand) -> Result<Driver, Failure> {
        self.launch(job, &Role::Driver, command)
    }

    /// A driver that the program before this one in this process has started, and that may have ended
    /// meanwhile; once.
    #[must_use]
    pub fn inherited_driver(&self, process: ProcessId) -> Option<Driver> {
        let (pid, ended) = self.engine.workers().take_inherited(process)?;
        Some(Driver::new(process, Some(pid), ended))
    }

    /// Starts a process of a job's program that hosts a detached actor in place of running its
    /// `main`; else as [`System::start_driver`]. It ends when the actor does: with success, unless
    /// the actor has failed.
    ///
    /// # Errors
    /// The process cannot be started, or the node runs as many as it may.
    pub fn start_host(
        &self,
        job: &str,
        command: &WorkerCommand,
        actor: DetachedActor,
    ) -> Result<Driver, Failure> {
        self.launch(job, &Role::Host(Box::new(actor)), command)
    }

    fn launch(&self, job: &str, role: &Role, command: &WorkerCommand) -> Result<Driver, Failure> {
        let _runtime = self.engine.enter();
        let (process, ended) = self.engine.launch_driver(job, role, command)?;
        let pid = self.engine.workers().pid_of(process);
        Ok(Driver::new(process, pid, ended))
    }

    /// Resolves when the detached actor of this job and name can be found in the process that hosts
    /// it.
    #[odeon_macros::boxed]
    pub async fn hosted(&self, job: &str, name: &str, host: ProcessId) {
        self.engine.when_hosted(job, name, host).await;
    }

    /// Ends the processes of a job on this node: each may finish what its actors do, then it is
    /// killed. Resolves when they are gone.
    #[odeon_macros::boxed]
    pub async fn end_job(&self, job: &str) {
        self.engine.workers().end_job(&self.engine, job).await;
    }

    /// Kills a worker process with SIGKILL, as a crash would. Its actors restart by their policies.
    #[must_use = "it may have been gone already"]
    pub fn kill_worker(&self, process: ProcessId) -> bool {
        self.engine.workers().kill(process)
    }

    /// Links this system to another node over a byte stream that the caller has made and trusts;
    /// the other side does the same with its end. The link ends with the stream. For tests and
    /// transports of one's own.
    ///
    /// # Errors
    /// The other side is no node of the same job and version, or does not answer.
    pub async fn join_stream<R, W>(&self, reader: R, writer: W) -> Result<ProcessId, SystemError>
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let engine = &self.engine;
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let greeted = link::greet(reader, writer, engine.hello(), &engine.limits).await?;
        Ok(link::attach(&engine.as_owner(), greeted, false).peer)
    }

    /// Links this system to another node over byte streams that `dial` makes and the caller trusts;
    /// the other node takes each of them in with [`System::accept_stream`]. When this returns, both
    /// have the link. It outlives a stream that breaks or falls silent: `dial` then makes another. For
    /// tests, simulation and transports of one's own.
    ///
    /// # Errors
    /// No stream could be made, or the other side is no node of the same job and version.
    pub async fn join_over<D, F, R, W>(&self, dial: D) -> Result<ProcessId, SystemError>
    where
        D: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = std::io::Result<(R, W)>> + Send + 'static,
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let dial = link::stream::StreamDial(move || {
            let stream = dial();
            async {
                let (reader, writer) = stream.await?;
                let halves: (link::Reader, link::Writer) = (Box::new(reader), Box::new(writer));
                Ok(halves)
            }
        });
        link::stream::join(&self.engine.as_owner(), Arc::new(dial)).await
    }

    /// Takes in a byte stream that another node's [`System::join_over`] has made: a new link, or
    /// the next stream of one that there is.
    ///
    /// # Errors
    /// The other side is no node of the same job and version, does not answer, or means a link that
    /// has ended.
    pub async fn accept_stream<R, W>(&self, reader: R, writer: W) -> Result<ProcessId, SystemError>
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let heard = link::hear(reader, writer, &self.engine.limits).await?;
        link::stream::accept(&self.engine.as_owner(), heard).await
    }

    /// Has this node begin nothing new that takes time, so that another program can take its place in
    /// this process: see [`crate::node::upgrade`].
    ///
    /// # Errors
    /// What is under way that cannot be handed on, when it has not ended after `patience`.
    #[odeon_macros::boxed]
    pub async fn hand_over(&self, patience: Duration) -> Result<Succession, Busy> {
        Succession::begin(&self.engine, patience).await
    }

    #[cfg(test)]
    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Ends everything in order: actors (youngest first), worker processes, links.
    #[odeon_macros::boxed]
    pub async fn shutdown(self) {
        self.engine.close().await;
        if let Some(quic) = &self.quic {
            quic.close().await;
        }
    }
}

/// Options of a [`System`].
#[derive(Debug, Default)]
#[must_use]
pub struct SystemBuilder {
    quota: Option<Quota>,
    job: Option<String>,
    node: Option<String>,
    types: ActorTypes,
    limits: Limits,
    workers: Option<WorkerMode>,
    supervision: Supervision,
    listen: Option<Listen>,
    hardware: DeviceConfig,
    inherited: Option<Inheritance>,
}

impl SystemBuilder {
    /// The job that names are scoped by, and its actor types.
    pub fn job(mut self, job: Job) -> Self {
        self.job = Some(job.name.to_owned());
        self.types = job.types;
        self
    }

    /// The node's name; unless told otherwise, that of its identity or else of the host.
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.node = Some(name.into());
        self
    }

    /// The bounds to live within.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the way in which workers are run; as processes of the running executable unless told
    /// otherwise.
    pub fn workers(mut self, mode: WorkerMode) -> Self {
        self.workers = Some(mode);
        self
    }

    /// Sets the supervision, at the top of the tree, of what [`System::spawn`] makes.
    pub const fn supervision(mut self, supervision: Supervision) -> Self {
        self.supervision = supervision;
        self
    }

    /// Where the devices of this node come from; NVIDIA's management library unless told otherwise,
    /// which is looked for when the first actor needs something. Without the feature `gpu` there is
    /// no such library, and a node has the devices that it is told here.
    pub fn devices(mut self, devices: impl Devices + 'static) -> Self {
        self.hardware.devices = Some(Box::new(devices));
        self
    }

    /// Sets the resources that this node gives to actors beside devices; all that the machine has,
    /// unless told otherwise.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.hardware.offer.resources = Some(resources);
        self
    }

    /// A quantity of the cluster's own that this node has, such as licences: see
    /// [`Needs::resource`](crate::Needs::resource).
    ///
    /// # Errors
    /// It is no quantity.
    pub fn resource(
        mut self,
        name: impl Into<String>,
        quantity: f64,
    ) -> Result<Self, QuantityError> {
        let milli = milli(quantity)?;
        self.hardware.offer.custom.push((name.into(), milli));
        Ok(self)
    }

    /// Adds a label that actors may select this node by: see [`Needs::label`](crate::Needs::label).
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.hardware.offer.labels.insert(key.into(), value.into());
        self
    }

    /// The most that the actors which this node places may hold together, on all nodes.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// Goes on where the program before this one in this process has stopped: it is the same node to
    /// all others, and has the same worker processes.
    pub fn inherit(mut self, inheritance: Inheritance) -> Self {
        self.inherited = Some(inheritance);
        self
    }

    /// Starts the system.
    ///
    /// # Errors
    /// The path of the executable is not known, the address cannot be listened on, the identity is
    /// not one of this node, or what was inherited was another node's.
    #[odeon_macros::boxed]
    pub async fn start(self) -> Result<System, SystemError> {
        if let Some(birth) = worker::child::driver_birth() {
            return self.connect(birth?).await;
        }
        let workers = match self.workers {
            Some(mode) => mode,
            None => WorkerMode::Processes(WorkerCommand::current_exe()?),
        };
        let issued = self.listen.as_ref().map(|listen| listen.node().to_owned());
        let node = self.node.or_else(|| issued.clone()).unwrap_or_else(|| {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        });
        if let Some(issued) = issued.filter(|issued| *issued != node) {
            let why = format!("the identity was issued to node `{issued}`, this is `{node}`");
            return Err(SystemError::Security(why));
        }
        let quic = match self.listen {
            Some(listen) => Some(listen.bind(&self.limits)?),
            None => None,
        };
        let job = self.job.unwrap_or_else(|| "default".to_owned());
        let handoff = self.inherited.map(|inheritance| inheritance.handoff);
        if let Some(handoff) = &handoff
            && (&handoff.node, &handoff.job) != (&node, &job)
        {
            let why = format!(
                "what was inherited is of node `{}` of `{}`, this is `{node}` of `{job}`",
                handoff.node, handoff.job
            );
            return Err(SystemError::Refused(why));
        }
        let mut hardware = self.hardware;
        let quota = self.quota.map(|quota| (job.clone(), quota));
        hardware.offer.quotas.extend(quota);
        let process = handoff
            .as_ref()
            .map_or_else(ProcessId::random, |handoff| handoff.process);
        let engine = Engine::start(EngineConfig {
            process,
            job,
            node,
            components: services::of_node(process, &self.limits, workers, hardware),
            limits: self.limits,
            types: self.types,
            services: SERVICES,
        });
        if let Some(handoff) = handoff {
            let redial = quic.as_ref().map(redial_of);
            Box::pin(engine.inherit(handoff, redial.as_deref())).await?;
        }
        if let Some(quic) = &quic {
            quic.serve(&engine.as_owner());
        }
        Ok(System {
            engine,
            supervision: self.supervision,
            quic,
        })
    }
}

impl SystemBuilder {
    /// A system under the node that started this process. Where it listens, what it starts workers
    /// from and what it may use are up to that node.
    async fn connect(self, birth: Birth) -> Result<System, SystemError> {
        let (engine, _link) = Box::pin(worker::child::connect(
            birth,
            self.types,
            SERVICES,
            services::of_worker,
        ))
        .await?;
        Ok(System {
            engine,
            supervision: self.supervision,
            quic: None,
        })
    }
}

/// Dials addresses again over QUIC.
fn redial_of(quic: &Arc<Quic>) -> Box<Redial<'_>> {
    Box::new(move |to| quic.redial(to))
}

/// A binary's actors: made by [`job!`](crate::job), run in `main`. The same binary is the driver
/// and the worker, so their type tables match by construction.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    name: &'static str,
    types: ActorTypes,
    manifest: &'static [u8],
}

impl Job {
    /// See [`job!`](crate::job), which makes the manifest too.
    #[must_use]
    pub const fn new(name: &'static str, types: ActorTypes, manifest: &'static [u8]) -> Self {
        Self {
            name,
            types,
            manifest,
        }
    }

    /// The names of its actor types.
    pub fn actors(&self) -> impl Iterator<Item = &'static str> {
        self.types.iter().map(|row| row().name())
    }

    /// Runs `main` with a system: one under the node of a cluster, when that has started the process.
    /// In a process that was started as a worker, serves instead and never returns to the caller's
    /// program.
    ///
    /// # Errors
    /// What `main` returns, or a system that could not start.
    pub fn run<T, E, F>(self, main: impl FnOnce(System) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<SystemError>,
    {
        self.run_with(|builder| builder, main)
    }

    /// [`Job::run`] with options. In a process that a cluster's node has started, those that say how
    /// a node is run do not count.
    ///
    /// # Errors
    /// What `main` returns, or a system that could not start.
    pub fn run_with<T, E, F>(
        self,
        options: impl FnOnce(SystemBuilder) -> SystemBuilder,
        main: impl FnOnce(System) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<SystemError>,
    {
        self.serve_if_worker();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|source| SystemError::Io {
                doing: "starting tokio".to_owned(),
                source,
            })?;
        runtime.block_on(async {
            let system = options(System::builder().job(self)).start().await?;
            // Whoever has started this program may have a trace of its own to which it belongs.
            let outcome = match SpanContext::given() {
                Some(given) => telemetry::below(given, main(system.clone())).await,
                None => main(system.clone()).await,
            };
            system.shutdown().await;
            outcome
        })
    }

    /// In a process that was started as a worker: serves, and exits when its node releases it or is
    /// gone. Elsewhere: returns at once.
    pub fn serve_if_worker(self) {
        // Nothing here reads it, and it must be in the file all the same.
        std::hint::black_box(self.manifest);
        let Some(birth) = worker::child::birth() else {
            return;
        };
        if matches!(&birth, Ok(birth) if birth.role == Role::Driver) {
            return;
        }
        let birth = birth.and_then(|birth| birth.bind().map(|()| birth));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // With one alone, a handler that blocks would silence the process.
            .worker_threads(
                std::thread::available_parallelism()
                    .map_or(2, usize::from)
                    .clamp(2, 4),
            )
            .enable_all()
            .build();
        let served = runtime
            .map_err(|source| {
                ServeError::from(SystemError::Io {
                    doing: "starting tokio".to_owned(),
                    source,
                })
            })
            .and_then(|runtime| {
                let served = runtime.block_on(worker::child::serve(
                    birth?,
                    self.types,
                    SERVICES,
                    services::of_worker,
                ));
                // A handler that blocks its thread must not keep the process.
                runtime.shutdown_background();
                served
            });
        match &served {
            Ok(()) => {}
            // In the log of the job, as what a driver says about its end.
            Err(ServeError::Hosted(failure)) => {
                let _ = writeln!(std::io::stderr(), "Error: {failure}");
            }
            Err(ServeError::System(error)) => {
                tracing::error!(%error, "the worker process failed");
            }
        }
        std::process::exit(i32::from(served.is_err()));
    }
}
