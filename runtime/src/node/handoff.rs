//! Succession of a node's engine: its passage from one program to the next in the same process.
//!
//! ```text
//!  serves ── hold ──> holds ── nothing under way ──> freeze ── links stand still ──> handoff
//!    ^                  │
//!    └── go on ─────────┘  something takes too long
//! ```
//!
//! While it holds, questions that take time are kept instead of begun; frames still pass. What is
//! handed on is what the processes of this node and other nodes rely on: links to the byte, ways,
//! names, processes, leases, questions. The node's own actors end before.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actor::engine::Engine;
use crate::actor::engine::ways::Way;
use crate::actor::names::NameTable;
use crate::base::clock::{Clock, ClockMark};
use crate::base::error::SystemError;
use crate::base::id::{ActorId, ProcessId};
use crate::net::link::{self, Link, LinkHandoff, Redial};
use crate::net::service::Question;
use crate::net::wire::{NameRow, VERSION};
use crate::node::blob::AccountHandoff;
use crate::node::device_manager::Leases;
use crate::node::worker::{SharedWorker, WorkerHandoff};

/// The state of an engine that the next program has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HandoffState {
    /// Of the frames and questions in it.
    pub(crate) version: u32,
    pub(crate) process: ProcessId,
    pub(crate) job: String,
    pub(crate) node: String,
    pub(crate) clock: ClockMark,
    last_serial: u64,
    links: Vec<LinkHandoff>,
    routes: Vec<(ProcessId, ProcessId, u8)>,
    names: Vec<NameRow>,
    forwards: Vec<(ProcessId, u64, ProcessId, ActorId)>,
    workers: Vec<WorkerHandoff>,
    shared: Vec<SharedWorker>,
    accounts: Vec<AccountHandoff>,
    leases: Option<Leases>,
    questions: Vec<Question>,
}

impl HandoffState {
    /// The descriptors that must stay open.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let links = self.links.iter().filter_map(LinkHandoff::descriptor);
        let greetings = self.workers.iter().filter_map(WorkerHandoff::descriptor);
        let accounts = self.accounts.iter().map(AccountHandoff::descriptor);
        links.chain(greetings).chain(accounts)
    }
}

/// The interval at which an engine that holds looks for things under way.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// The longest time that links that end may take to be over.
const END_PATIENCE: Duration = Duration::from_secs(10);

impl Engine {
    /// Begins nothing more that takes time, and waits until nothing of it is under way.
    ///
    /// # Errors
    /// What still is, after so long. Then it goes on.
    pub(crate) async fn hold(self: &Arc<Self>, patience: Duration) -> Result<(), Vec<String>> {
        self.serving.hold();
        // Who waits for room has asked for it in a question, which is kept.
        self.device_manager().stir();
        let quiet = async {
            while !self.under_way().is_empty() {
                Clock::sleep(LOOK_PAUSE).await;
            }
        };
        if Clock::timeout(patience, quiet).await.is_some() {
            return Ok(());
        }
        let busy = self.under_way();
        self.go_on();
        Err(busy)
    }

    /// Begins what was kept, and whatever comes.
    pub(crate) fn go_on(self: &Arc<Self>) {
        let kept = self.serving.go_on();
        self.serve_kept(kept);
    }

    /// The things under way that cannot be handed on, in words.
    fn under_way(&self) -> Vec<String> {
        let mut all = self.serving.under_way();
        match self.blobs().lent() {
            0 => {}
            n => all.push(format!("{n} blobs of this node that other processes hold")),
        }
        match self.gangs().forming() {
            0 => {}
            n => all.push(format!("{n} gangs that form")),
        }
        if self.links.iter().any(|link| !link.can_pass()) {
            all.push("a link over a stream that somebody else has made".to_owned());
        }
        all
    }

    /// Ends the actors of this process, has everything else stand still, and says what the next program
    /// has to know. Nothing begins again in this one.
    pub(crate) async fn freeze(self: &Arc<Self>) -> HandoffState {
        self.end_children(ActorId::root(self.process)).await;
        let mut answering = self.answering.subscribe();
        let answered = answering.wait_for(|tasks| *tasks == 0);
        drop(Clock::timeout(END_PATIENCE, answered).await);
        let settled = async {
            self.freeze_links().await;
            while self.workers().hears() {
                Clock::sleep(LOOK_PAUSE).await;
            }
            // Those that are linked meanwhile.
            self.freeze_links().await;
        };
        if Clock::timeout(END_PATIENCE, settled).await.is_none() {
            tracing::warn!("not all links stand still");
        }
        self.serving.stand_still();
        self.workers().leave_ends();
        let links: Vec<Arc<Link>> = self.links.iter().map(|link| Arc::clone(&link)).collect();
        let links: Vec<LinkHandoff> = links.iter().filter_map(|link| link.handoff()).collect();
        let linked: BTreeSet<ProcessId> = links.iter().map(LinkHandoff::peer).collect();
        let (workers, shared) = self
            .workers()
            .handoff(|process| linked.contains(&process))
            .await;
        let ways = self.ways.all().into_iter();
        let ways = ways.map(|(process, way)| (process, way.through, way.hops));
        let forwards = self.forwards.iter();
        let forwards = forwards.map(|entry| {
            let ((from, call), (neighbour, actor)) = (*entry.key(), *entry.value());
            (from, call, neighbour, actor)
        });
        HandoffState {
            version: VERSION,
            process: self.process,
            job: self.job.clone(),
            node: self.node.clone(),
            clock: Clock::mark(),
            last_serial: self.members.last_serial(),
            links,
            routes: ways.collect(),
            names: self.component::<NameTable>().all(),
            forwards: forwards.collect(),
            workers,
            shared,
            accounts: self.blobs().handoff(),
            leases: self.leases_book(),
            questions: self.serving.take_kept(),
        }
    }

    /// Has all links stand still; those that end are waited for.
    async fn freeze_links(&self) {
        let links: Vec<Arc<Link>> = self.links.iter().map(|link| Arc::clone(&link)).collect();
        futures::future::join_all(links.iter().map(|link| link.freeze())).await;
        while self.links.iter().any(|link| link.is_closed()) {
            Clock::sleep(LOOK_PAUSE).await;
        }
    }

    /// Goes on where the engine of the program before this one in this process has stopped. Nothing has
    /// been begun here yet.
    ///
    /// # Errors
    /// What was handed on is not there.
    pub(crate) async fn inherit(
        self: &Arc<Self>,
        handoff: HandoffState,
        redial: Option<&Redial<'_>>,
    ) -> Result<(), SystemError> {
        let failed = |source| SystemError::Io {
            doing: "going on where another program has stopped".to_owned(),
            source,
        };
        self.members.go_on_after(handoff.last_serial);
        self.pending.begin_elsewhere();
        self.requests.begin_elsewhere();
        self.blobs().inherit(handoff.accounts).map_err(failed)?;
        for (process, through, hops) in handoff.routes {
            self.ways.inherit(process, Way { hops, through });
        }
        for (from, call, neighbour, actor) in handoff.forwards {
            self.forwards.insert((from, call), (neighbour, actor));
        }
        self.component::<NameTable>().inherit(&handoff.names);
        // Before the links, whose ends are those of processes.
        self.inherit_workers(handoff.workers, handoff.shared).await;
        if let Some(book) = handoff.leases {
            self.inherit_book(book).await;
        }
        let owner = self.as_owner();
        let links = handoff.links.into_iter();
        let links = links.map(|link| link::restore(&owner, redial, link));
        let links: Vec<_> = links.collect::<Result<_, _>>().map_err(failed)?;
        for link in links {
            link.begin(&owner);
        }
        self.serve_kept(handoff.questions);
        Ok(())
    }
}
