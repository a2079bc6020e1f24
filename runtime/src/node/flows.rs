//! Records of collectives: the log of a process, and what a node reads of those of its processes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use odeon_diagnosis::flows::{FlowSummary, RankLook};
use odeon_shm::{FlowLog, FlowLogName, FlowReader};

use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::id::ProcessId;

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
