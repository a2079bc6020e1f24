//! Ranks that do collectives, by job, as their nodes have read their records.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ProcessId;
use odeon_diagnosis::flows::{FlowJob, FlowRanks, RankLook};

use super::ClusterView;
use crate::date::Date;

/// The ranks of each job.
pub(super) type JobFlows = BTreeMap<String, FlowRanks<ProcessId>>;

impl ClusterView {
    /// Jobs whose ranks do collectives.
    pub(crate) fn flow_jobs(&self) -> impl Iterator<Item = (&str, FlowJob<'_>)> {
        let jobs = self.flow_ranks.iter();
        jobs.map(|(job, ranks)| (job.as_str(), ranks.job()))
    }

    /// Takes in the ranks of a process at a look.
    pub(crate) fn note_flows(&mut self, process: ProcessId, looks: Vec<RankLook>, at: Date) {
        let job = self.job_of(process).unwrap_or_default().to_owned();
        let ranks = self.flow_ranks.entry(job).or_default();
        ranks.note(process, looks, since_1970(at));
    }

    /// A process is gone, and its ranks with it.
    pub(super) fn forget_flows(&mut self, process: ProcessId) {
        self.flow_ranks.retain(|_, ranks| {
            ranks.forget(process);
            !ranks.job().ranks.is_empty()
        });
    }
}

/// A date as the analysis of flows counts time.
pub(crate) const fn since_1970(date: Date) -> Duration {
    Duration::from_nanos(date.0)
}
