//! Ranks that do collectives, by job, as their nodes have read their records.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use odeon::ProcessId;
use odeon_diagnosis::flows::{FlowMember, RankLook, RankWindow};

use super::ClusterView;
use crate::date::Date;

/// The ranks of each job.
#[derive(Debug, Default)]
pub(super) struct FlowRanks(BTreeMap<String, JobRanks>);

/// The ranks of a job in the order in which they were first seen.
#[derive(Debug, Default)]
struct JobRanks {
    windows: Vec<RankWindow>,
    /// The process of each, and its place among the windows.
    places: HashMap<FlowMember, (ProcessId, usize)>,
}

impl ClusterView {
    /// Jobs whose ranks do collectives.
    pub(crate) fn flow_jobs(&self) -> impl Iterator<Item = (&str, &[RankWindow])> {
        let jobs = self.flow_ranks.0.iter();
        jobs.map(|(job, ranks)| (job.as_str(), ranks.windows.as_slice()))
    }

    /// Takes in the ranks of a process at a look.
    pub(crate) fn note_flows(&mut self, process: ProcessId, looks: Vec<RankLook>, at: Date) {
        let job = self.job_of(process).unwrap_or_default().to_owned();
        let JobRanks { windows, places } = self.flow_ranks.0.entry(job).or_default();
        let at = since_1970(at);
        for look in looks {
            let next = (process, windows.len());
            let place = places.entry(look.member).or_insert(next);
            place.0 = process;
            if place.1 == windows.len() {
                windows.push(RankWindow::new(look.member, at));
            }
            windows[place.1].push(at, look);
        }
    }

    /// A process is gone, and its ranks with it.
    pub(super) fn forget_flows(&mut self, process: ProcessId) {
        for JobRanks { windows, places } in self.flow_ranks.0.values_mut() {
            places.retain(|_, (of, _)| *of != process);
            if places.len() == windows.len() {
                continue;
            }
            windows.retain(|it| places.contains_key(&it.member()));
            for (at, window) in windows.iter().enumerate() {
                if let Some(place) = places.get_mut(&window.member()) {
                    place.1 = at;
                }
            }
        }
        self.flow_ranks
            .0
            .retain(|_, ranks| !ranks.windows.is_empty());
    }
}

/// A date as the analysis of flows counts time.
pub(crate) const fn since_1970(date: Date) -> Duration {
    Duration::from_nanos(date.0)
}
