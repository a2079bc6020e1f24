//! Findings of a run's own steps that go on, as whoever looks on hears of them.

use std::collections::BTreeMap;

use odeon::telemetry::{self, Gauge};
use odeon_diagnosis::Severity;
use odeon_diagnosis::run::Watch;

/// The findings of which was recorded that they go on.
#[derive(Debug, Default)]
pub(crate) struct GoingOn(BTreeMap<&'static str, Severity>);

impl GoingOn {
    /// Records the findings that go on at a step, each with the step at which it began, and zero for those that do not any
    /// more. At each step: one who begins to look on hears of it, too.
    pub(crate) fn record(&mut self, watch: &Watch, at: u64) {
        let mut now = BTreeMap::new();
        for found in watch.going_on(at) {
            let rule = found.cause.rule;
            if now.insert(rule, found.cause.severity).is_none() {
                gauge(rule, found.cause.severity, found.since.max(1) as f64)
                    .with("what", found.cause.sentence.clone())
                    .record();
            }
        }
        let over = self.0.iter().filter(|(rule, _)| !now.contains_key(*rule));
        for (rule, severity) in over {
            gauge(rule, *severity, 0.0).record();
        }
        self.0 = now;
    }
}

fn gauge(rule: &'static str, severity: Severity, since: f64) -> Gauge {
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning | Severity::Info => "warning",
    };
    telemetry::gauge("run.finding", since)
        .with("rule", rule)
        .with("severity", severity)
}
