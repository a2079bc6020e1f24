//! Administration of a system: what runs in it, and how it is ended, killed, moved and replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use odeon_placement::{Quota, View};

use super::System;
use crate::actor::engine::Engine;
use crate::actor::names;
use crate::actor::registry::Registered;
use crate::base::clock::Clock;
use crate::base::error::{AskError, NameError, SystemError};
use crate::base::failure::Failure;
use crate::base::id::{ActorId, ProcessId, Ref};
use crate::base::trace::Span;
use crate::net::link;
use crate::node::detached::protocol::DetachedActor;
use crate::node::device_manager::JobReservation;
use crate::node::device_manager::protocol::SurveyingAll;
use crate::node::driver::Driver;
use crate::node::flows::RankWatch;
use crate::node::inspect::{
    self, ActorView, LinkView, MethodCounts, MethodView, NodeView, ProcessView, Watch,
};
use crate::node::program::WorkerCommand;
use crate::node::upgrade::{Busy, Succession};
use crate::node::worker::Role;

/// The administration of a [`System`], for whoever operates it or tests it: [`System::admin`] gives it.
#[derive(Clone)]
pub struct Admin {
    engine: Arc<Engine>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("process", &self.engine.process)
            .finish_non_exhaustive()
    }
}

impl System {
    /// The administration of this system: its actors, processes, links and quotas, and the acts of
    /// whoever operates it.
    #[must_use]
    pub const fn admin(&self) -> &Admin {
        &self.admin
    }
}

impl Admin {
    pub(crate) const fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
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

    /// The nodes of the cluster that answer: see [`System::nodes`].
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

    /// Looks at ranks that do collectives, wherever they run, again and again.
    #[must_use]
    pub fn watch_ranks(&self) -> RankWatch {
        RankWatch::new(Arc::clone(&self.engine))
    }

    /// Ends the worker process of an actor that this process spawned, for a reason with which its actors fail; what
    /// follows is their supervisors' to say. SIGKILL ends it, also where it is stopped, on whatever node it runs. Returns
    /// false where the actor is in no process of its own at the moment.
    pub fn end_process_of(&self, actor: ActorId, why: &str) -> bool {
        let engine = &self.engine;
        let rows = engine.members.list();
        let row = rows.into_iter().find(|row| row.0 == actor);
        let Some(process) = row.and_then(|row| row.3) else {
            return false;
        };
        if process == engine.process {
            return false;
        }
        let (own, why) = (Arc::clone(engine), why.to_owned());
        engine.begin_task(async move { own.retire(process, None, &why).await });
        true
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
    /// As [`Admin::stop_actor`].
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
            None => Err(AskError::timeout(id, waited)),
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

    /// Messages without an answer that nobody handled.
    #[must_use]
    pub fn dead_letters(&self) -> u64 {
        self.engine
            .dead_letters
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The worker processes of this node: their ids and the operating system's ids. In a job of a
    /// cluster, those of the job that run on its driver's node. Workers that are no processes
    /// ([`WorkerMode::InProcess`](crate::WorkerMode), simulations) have the id of this one.
    #[must_use]
    pub fn workers(&self) -> Vec<(ProcessId, u32)> {
        self.engine.workers().pids()
    }

    /// Which process hosts an actor that this process spawned; `None` while it is placed again.
    #[must_use]
    pub fn process_of<A>(&self, actor: Ref<A>) -> Option<ProcessId> {
        self.engine.members.host_of(actor.id)
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

    /// Tells this node which nodes it places no actor on from now on. Those that are there stay; a node that has not heard
    /// yet may place some.
    pub fn set_refused_nodes(&self, nodes: BTreeSet<String>) {
        self.engine.device_manager().set_refused(nodes);
    }

    /// Tells this node which parts of nodes whole jobs have reserved. It places actors of a job that has
    /// reserved devices, processor time or memory on these alone, and those of others on the rest. What
    /// they hold already they keep; a node that has not heard yet may give away what is reserved.
    pub fn set_reservations(&self, all: Vec<JobReservation>) {
        self.engine.device_manager().set_reservations(all);
    }

    /// Tells this node what a job has reserved whose driver runs here, before it begins; nothing, when
    /// it is over. That counts until [`Admin::set_reservations`] says something of the job.
    pub fn reserve(&self, job: &str, reserved: Vec<JobReservation>) {
        self.engine.device_manager().reserve(job, reserved);
    }

    /// Puts a device of this node back into service after somebody has seen to it. Returns true if
    /// it was out.
    #[odeon_macros::boxed]
    pub async fn repair_device(&self, device: u32) -> bool {
        self.engine.repair_device(device).await
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
    /// `main`; else as [`Admin::start_driver`]. It ends when the actor does: with success, unless
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

    /// Finds an actor by its name in a job, as the engines know the job: [`System::lookup`] finds those of this one's
    /// alone.
    ///
    /// # Errors
    /// Nobody has the name, an actor of another type has it, or it was built from other messages.
    pub async fn lookup_in<A: Registered>(
        &self,
        job: &str,
        name: &str,
    ) -> Result<Ref<A>, NameError> {
        let row = self.engine.find_name(job, name).await?;
        names::check::<A>(&row)?;
        Ok(Ref::from_id(row.id, 0))
    }

    /// Kills a worker process with SIGKILL, as a crash would. Its actors restart by their policies. In a
    /// job of a cluster the driver's node does it, a moment later, for workers of the job on any node.
    /// Returns false when there is no such worker.
    #[must_use = "it may have been gone already"]
    pub fn kill_worker(&self, process: ProcessId) -> bool {
        self.engine.kill_worker(process)
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
    /// the other node takes each of them in with [`Admin::accept_stream`]. When this returns, both
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

    /// Takes in a byte stream that another node's [`Admin::join_over`] has made: a new link, or
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
}
