//! Records of collectives: the log of a process, what a node reads of those of its processes, and looks at the ranks of a
//! job from whoever supervises them.

pub(crate) mod protocol;
mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use odeon_diagnosis::flows::{FlowSummary, RankLook};
use odeon_shm::{FlowLog, FlowLogName, FlowReader};
use parking_lot::Mutex;

pub use self::protocol::NodeRanks;
use self::protocol::{LookingAtRanks, NamingFlowLog, RanksRequest};
use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::clock::{Clock, Timestamp};
use crate::base::id::ProcessId;
use crate::node::gang::protocol::Domains;

/// The log of an engine, from its first communicator on.
#[derive(Debug, Default)]
pub(crate) struct OwnFlowLog(OnceLock<Option<FlowLog>>);

impl Component for OwnFlowLog {}

impl Engine {
    /// Where its communicators are recorded; nowhere if the system gives no memory for it.
    pub(crate) fn flow_log(&self) -> Option<&FlowLog> {
        let log = self.component::<OwnFlowLog>().0.get_or_init(|| {
            let created = FlowLog::create();
            created
                .inspect_err(|why| tracing::warn!(%why, "collectives are not recorded"))
                .ok()
        });
        log.as_ref()
    }

    /// The name of its log, where it has one.
    pub(crate) fn flow_log_name(&self) -> Option<FlowLogName> {
        let log = self.component::<OwnFlowLog>().0.get();
        log.and_then(Option::as_ref).map(FlowLog::name)
    }
}

/// Readers of the logs of a node's processes.
#[derive(Debug, Default)]
pub(crate) struct FlowReaders(BTreeMap<ProcessId, OpenLog>);

#[derive(Debug)]
struct OpenLog {
    name: FlowLogName,
    reader: FlowReader,
    summary: FlowSummary,
}

impl FlowReaders {
    /// A process has shown the name of its log. One that cannot be opened is tried again at the next look.
    pub(crate) fn know(&mut self, process: ProcessId, name: Option<FlowLogName>) {
        let Some(name) = name else {
            return;
        };
        if self.0.get(&process).is_none_or(|open| open.name != name)
            && let Ok(reader) = FlowReader::open(&name)
        {
            let summary = FlowSummary::default();
            let open = OpenLog {
                name,
                reader,
                summary,
            };
            self.0.insert(process, open);
        }
    }

    /// Forgets the logs of processes that are gone.
    pub(crate) fn keep(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.0.retain(|process, _| is_there(*process));
    }

    /// The ranks of each process since the reading before.
    pub(crate) fn read(&mut self) -> Vec<(ProcessId, Vec<RankLook>)> {
        let all = self.0.iter_mut();
        let ranks = all.map(|(process, open)| (*process, open.summary.look(&open.reader.read())));
        ranks.filter(|(_, ranks)| !ranks.is_empty()).collect()
    }
}

/// Readers of a node for those who look at some of its ranks, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct RankReaders(Mutex<BTreeMap<u64, (Timestamp, FlowReaders)>>);

impl Component for RankReaders {}

/// Those who look at ranks that a node remembers, and the time for which it remembers one that stays away.
const READERS_MAX: usize = 64;
const ABSENCE_MAX: Duration = Duration::from_secs(60);
/// Time that a process may take to name its log. One that is stopped was asked before.
const NAME_PATIENCE: Duration = Duration::from_millis(500);

impl RankReaders {
    /// The readers of somebody, who has them until they are put back.
    fn take(&self, subscriber: u64) -> FlowReaders {
        let now = Clock::now();
        let mut all = self.0.lock();
        all.retain(|_, (last, _)| now.since(*last) < ABSENCE_MAX);
        all.remove(&subscriber).map(|it| it.1).unwrap_or_default()
    }

    fn put_back(&self, subscriber: u64, readers: FlowReaders) {
        let mut all = self.0.lock();
        while all.len() >= READERS_MAX {
            let oldest = all.iter().min_by_key(|(_, (last, _))| *last);
            let Some(oldest) = oldest.map(|(subscriber, _)| *subscriber) else {
                break;
            };
            all.remove(&oldest);
        }
        // Another look may have begun meanwhile, with none of those that this one had.
        let (last, known) = all.entry(subscriber).or_default();
        *last = Clock::now();
        known.0.extend(readers.0);
    }
}

impl Engine {
    /// Looks at ranks of this node's processes. A process is asked for the name of its log until it has told that.
    async fn look_at_ranks(self: &Arc<Self>, request: RanksRequest) -> NodeRanks {
        let RanksRequest {
            subscriber,
            processes,
        } = request;
        let readers = self.component::<RankReaders>();
        let mut own = readers.take(subscriber);
        let unknown = processes.iter().filter(|it| !own.0.contains_key(it));
        let asked = unknown.map(async |process| {
            let name = if *process == self.process {
                self.flow_log_name()
            } else {
                let asked = self.request::<NamingFlowLog>(*process, &(), Some(NAME_PATIENCE));
                asked.await.flatten()
            };
            (*process, name)
        });
        for (process, name) in join_all(asked).await {
            own.know(process, name);
        }
        let started = self.workers().list();
        let is_there = |it| it == self.process || started.iter().any(|view| view.process == it);
        own.keep(|it| is_there(it) && processes.contains(&it));
        let mut ranks = own.read();
        readers.put_back(subscriber, own);
        let without: Vec<_> = processes
            .into_iter()
            .filter(|it| is_there(*it) && ranks.iter().all(|(known, _)| known != it))
            .collect();
        ranks.extend(without.into_iter().map(|process| (process, vec![])));
        NodeRanks {
            node: self.node.clone(),
            ranks,
        }
    }
}

/// Looks at ranks that do collectives, wherever their processes run, again and again: as whoever supervises them, without
/// asking these processes for anything but the name of their logs.
#[derive(Debug)]
pub struct RankWatch {
    engine: Arc<Engine>,
    subscriber: u64,
    /// The node of each process.
    nodes: BTreeMap<ProcessId, ProcessId>,
}

impl RankWatch {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            subscriber: crate::base::random::number(),
            nodes: BTreeMap::new(),
        }
    }

    /// Looks at the ranks in these processes, and gives what this watch has not seen before, by node; also which processes
    /// are there without any. Nodes that do not answer within `patience` are left out, and so are processes that have never
    /// said where they are.
    #[odeon_macros::boxed]
    pub async fn look(
        &mut self,
        processes: &BTreeSet<ProcessId>,
        patience: Duration,
    ) -> Vec<NodeRanks> {
        let engine = &self.engine;
        self.nodes.retain(|process, _| processes.contains(process));
        let new = processes.iter().filter(|it| !self.nodes.contains_key(it));
        let found = join_all(new.map(async |process| {
            let node = if *process == engine.process {
                Some(engine.domain())
            } else {
                engine
                    .request::<Domains>(*process, &(), Some(patience))
                    .await
            };
            (*process, node)
        }));
        for (process, node) in found.await {
            if let Some(node) = node {
                self.nodes.insert(process, node);
            }
        }
        let mut by_node: BTreeMap<ProcessId, Vec<ProcessId>> = BTreeMap::new();
        for (process, node) in &self.nodes {
            by_node.entry(*node).or_default().push(*process);
        }
        let asked = by_node.into_iter().map(async |(node, processes)| {
            let request = RanksRequest {
                subscriber: self.subscriber,
                processes,
            };
            let asked = engine.request::<LookingAtRanks>(node, &request, Some(patience));
            asked.await
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}
