//! The way in: a system in this process, and the job that a binary is.

mod admin;
#[cfg(feature = "quic")]
mod network;
mod signals;

use std::fmt;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;

use odeon_placement::{QuantityError, Quota, Resources, milli};

pub use admin::Admin;
use signals::{Signals, heeded};

use crate::actor::actor_type::{ActorTypes, check_names};
use crate::actor::engine::{Engine, EngineConfig};
use crate::actor::names;
use crate::actor::panic_hook;
use crate::actor::registry::Registered;
use crate::actor::request::Recipient;
use crate::actor::spawn::Spawn;
use crate::actor::task_context;
use crate::actor::telemetry;
use crate::base::error::{NameError, NeedsError, SystemError};
use crate::base::failure::Failure;
use crate::base::id::{ActorId, ProcessId, Ref};
use crate::base::limits::Limits;
use crate::base::message::Message;
use crate::base::needs::Needs;
use crate::base::supervise::Supervision;
use crate::base::trace::SpanContext;
use crate::net::link::Redial;
use crate::net::quic::{Listen, Quic};
use crate::net::wire::NameRow;
use crate::node::blob::Blobs;
use crate::node::device_manager::{DeviceConfig, Devices, Standby};
use crate::node::inspect::{NodeView, Why};
use crate::node::program::{self, WorkerCommand, WorkerMode};
use crate::node::upgrade::Inheritance;
use crate::node::worker::child::ServeError;
use crate::node::worker::{self, Birth, Role};
use crate::services::{self, SERVICES};

/// A running system as seen from one process. Cheap to clone; [`System::shutdown`] ends it.
#[derive(Clone)]
pub struct System {
    engine: Arc<Engine>,
    admin: Admin,
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

    /// Takes a name in this job from the actor that has it, so that another may have it.
    ///
    /// # Errors
    /// It has no such name, or the node that keeps the names is out of reach.
    pub async fn unregister<A>(&self, name: &str, actor: Ref<A>) -> Result<(), NameError> {
        self.engine.release_name(name, actor.id).await
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
        task_context::within(Some(Arc::clone(&self.engine)), future).await
    }

    /// Waits for a failure that no supervisor could mend. Whoever has it decides what becomes of the program:
    /// [`Job::run`] then returns what `main` does.
    #[odeon_macros::boxed]
    pub async fn failed(&self) -> Failure {
        let mut failed = self.engine.watch_failure();
        let failure = failed.wait_for(Option::is_some).await;
        match failure.ok().and_then(|failure| failure.clone()) {
            Some(failure) => {
                self.engine.note_failure_heard();
                failure
            }
            None => std::future::pending().await,
        }
    }

    /// Makes blobs: bulk bytes in the shared memory of this process.
    #[must_use]
    pub fn blobs(&self) -> Blobs {
        Blobs::new(&self.engine)
    }

    /// The nodes of the cluster that answer: what they have, who holds what of it, and who waits for
    /// room, with the reason.
    #[odeon_macros::boxed]
    pub async fn nodes(&self) -> Vec<NodeView> {
        self.admin.nodes().await
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

    /// The number of this process in the cluster.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.engine.process
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
    own_signals: bool,
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

    /// Leaves SIGINT and SIGTERM to the program; [`Job::run`] obeys them unless told so.
    pub const fn own_signals(mut self) -> Self {
        self.own_signals = true;
        self
    }

    /// Starts the system.
    ///
    /// # Errors
    /// Two actor types of the job have one name, the path of the executable is not known, the address
    /// cannot be listened on, the identity is not one of this node, or what was inherited was another
    /// node's.
    #[odeon_macros::boxed]
    pub async fn start(self) -> Result<System, SystemError> {
        check_names(self.types).map_err(SystemError::Job)?;
        if let Some(birth) = worker::child::driver_birth() {
            return self.connect(birth?).await;
        }
        worker::child::end_if_strayed();
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
            admin: Admin::new(Arc::clone(&engine)),
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
            admin: Admin::new(Arc::clone(&engine)),
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
    /// A program that sets no subscriber of `tracing` hears on standard error of each failure of an
    /// actor, and what its supervisor does about it.
    ///
    /// SIGINT and SIGTERM end the program in order: actors get their `stop`, `main` is dropped where it
    /// waits, and the exit code is 128 and the signal's number. A second one ends it at once. A program
    /// that listens itself says so with [`SystemBuilder::own_signals`].
    ///
    /// # Errors
    /// What `main` returns, a system that could not start, or [`SystemError::Failed`] when a failure
    /// climbed to the top of the tree, so that all actors there have ended, and `main` succeeded all
    /// the same.
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
    /// As [`Job::run`].
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
        panic_hook::install();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|source| SystemError::Io {
                doing: "starting tokio".to_owned(),
                source,
            })?;
        runtime.block_on(async {
            let builder = options(System::builder().job(self));
            let own_signals = builder.own_signals;
            let system = builder.start().await?;
            let signals = (!own_signals).then(Signals::listen).flatten();
            // Whoever has started this program may have a trace of its own to which it belongs.
            let main: Pin<Box<dyn Future<Output = _>>> = match SpanContext::given() {
                Some(given) => Box::pin(telemetry::below(given, main(system.clone()))),
                None => Box::pin(main(system.clone())),
            };
            let outcome = heeded(signals, &system, main).await;
            let failed = system.engine.unheard_failure();
            system.shutdown().await;
            match failed {
                // Whatever `main` thinks of it: half of the program has ended.
                Some(failure) if outcome.is_ok() => Err(SystemError::Failed(failure).into()),
                _ => outcome,
            }
        })
    }

    /// In a process that was started as a worker: serves, and exits when its node releases it or is
    /// gone. Elsewhere: returns at once.
    pub fn serve_if_worker(self) {
        program::enter();
        self.serve();
    }

    /// [`Job::serve_if_worker`] where processes of the executable as it is do not come by.
    pub(crate) fn serve(self) {
        // Nothing here reads it, and it must be in the file all the same.
        std::hint::black_box(self.manifest);
        let Some(birth) = worker::child::birth() else {
            return;
        };
        if matches!(&birth, Ok(birth) if birth.role == Role::Driver) {
            return;
        }
        worker::child::serves();
        panic_hook::install();
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

#[cfg(test)]
mod tests;
