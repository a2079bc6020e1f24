//! Findings of a run's own steps that go on, as whoever looks on hears of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use odeon::telemetry::{self, Gauge};
use odeon_diagnosis::Severity;
use odeon_diagnosis::run::Watch;

/// The findings of which was recorded that they go on.
#[derive(Debug, Default)]
pub(crate) struct GoingOn(BTreeMap<&'static str, (Severity, String)>);

impl GoingOn {
    /// Records the findings that go on at a step, each with the step at which it began, and zero for those that do not any
    /// more. At each step: one who begins to look on hears of it, too.
    pub(crate) fn record(&mut self, watch: &Watch, at: u64) {
        let mut now = BTreeMap::new();
        for found in watch.going_on(at) {
            let (rule, since) = (found.cause.rule, found.since.max(1) as f64);
            let told = (found.cause.severity, found.cause.sentence.clone());
            if let Entry::Vacant(new) = now.entry(rule) {
                gauge(rule, new.insert(told), since).record();
            }
        }
        let over = self.0.iter().filter(|(rule, _)| !now.contains_key(*rule));
        for (rule, told) in over {
            gauge(rule, told, 0.0).record();
        }
        self.0 = now;
    }
}

fn gauge(rule: &'static str, (severity, what): &(Severity, String), since: f64) -> Gauge {
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning | Severity::Info => "warning",
    };
    telemetry::gauge("run.finding", since)
        .with("rule", rule)
        .with("severity", severity)
        .with("what", what.clone())
}
