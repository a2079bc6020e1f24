//! Readings of [metrics](crate::metric) from what is seen: what is not measured is not there, and
//! never a zero.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ProcessId;
use odeon::inspect::Times;
use odeon_observe::node::Node;
use odeon_observe::{ClusterView, Date, bounds};

use crate::metric::{self, Metric};
use crate::outbox::{Counts, Signal};
use crate::resource;
use crate::tally::{Sums, TYPES_MAX, Tally};

/// A number at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) metric: &'static Metric,
    pub(crate) owner: Owner,
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: Value,
}

/// Whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) process: Option<ProcessId>,
    pub(crate) node: String,
    pub(crate) job: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Int(u64),
    Number(f64),
    Spread(Spread),
}

/// Counts of times up to each of [`bounds_of_times`], the count of all of them, and their sum in
/// seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) up_to: Vec<u64>,
    pub(crate) all: u64,
    pub(crate) sum: f64,
}

/// The octaves by which times are told apart: each from about 1 us to 34 s, which are those of
/// [`Times`], so that nothing is guessed.
const OCTAVES: std::ops::RangeInclusive<u32> = 10..=35;

/// The upper bounds, in seconds, under which times are counted.
pub(crate) fn bounds_of_times() -> impl Iterator<Item = f64> {
    OCTAVES.map(|octave| Duration::from_nanos(1u64 << octave).as_secs_f64())
}

impl Spread {
    /// Both together.
    pub(crate) fn add(&mut self, more: &Self) {
        for (count, more) in self.up_to.iter_mut().zip(&more.up_to) {
            *count += more;
        }
        self.all += more.all;
        self.sum += more.sum;
    }

    /// Counts between one bound and the next, as OTLP has them.
    pub(crate) fn apart(&self) -> Vec<u64> {
        let ends = self.up_to.iter().chain([&self.all]);
        let before = [0].into_iter().chain(self.up_to.iter().copied());
        ends.zip(before).map(|(end, before)| end - before).collect()
    }
}

impl From<&Times> for Spread {
    fn from(times: &Times) -> Self {
        let count = |octave| {
            let bound = Duration::from_nanos(1u64 << octave);
            let below = times.up_to().take_while(|(to, _)| *to <= bound);
            below.last().map_or(0, |(_, count)| count)
        };
        Self {
            up_to: OCTAVES.map(count).collect(),
            all: times.count(),
            sum: times.sum().as_secs_f64(),
        }
    }
}

/// The grouping of actors of a type: by process, or together by node and job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Process,
    Group,
}

/// The mark in the place of a type where there are too many: the conventions' own.
pub(crate) const OVERFLOW: &str = "otel.metric.overflow";
/// Links of a node that are told, by the names of their other ends.
const LINKS_MAX: usize = 100;

/// Everything that can be read now.
pub(crate) fn readings(
    seen: &ClusterView,
    tally: &Tally,
    counts: Option<&Counts>,
    by: By,
    now: Date,
) -> Vec<Reading> {
    let mut readings = Readings(vec![]);
    readings.sums(seen, tally, by);
    readings.actors(seen, by);
    readings.processes(seen);
    for node in seen.nodes() {
        readings.node(seen, node, now);
    }
    readings.export(seen, counts);
    readings.0
}

struct Readings(Vec<Reading>);

impl Readings {
    fn add(
        &mut self,
        metric: &'static Metric,
        owner: &Owner,
        labels: Vec<(&'static str, String)>,
        value: Value,
    ) {
        self.0.push(Reading {
            metric,
            owner: owner.clone(),
            labels,
            value,
        });
    }

    fn sums(&mut self, seen: &ClusterView, tally: &Tally, by: By) {
        match by {
            By::Process => {
                for (key, sums) in tally.processes() {
                    let owner = owner_of(seen, key.process, by);
                    self.sum(&owner, key.actor.as_deref(), sums);
                }
            }
            By::Group => {
                for (group, sums) in tally.groups() {
                    let owner = Owner {
                        process: None,
                        node: group.node.clone(),
                        job: group.job.clone(),
                    };
                    self.sum(&owner, group.actor.as_deref(), sums);
                }
            }
        }
    }

    fn sum(&mut self, owner: &Owner, actor: Option<&str>, sums: &Sums) {
        let seconds = |nanos| Value::Number(Duration::from_nanos(nanos).as_secs_f64());
        for (metric, value) in [
            (&metric::HANDLED, Value::Int(sums.handled)),
            (&metric::FAILED, Value::Int(sums.failed)),
            (&metric::RESTARTS, Value::Int(sums.restarts)),
            (&metric::BUSY, seconds(sums.busy)),
            (&metric::WAITED, seconds(sums.waited)),
        ] {
            self.add(metric, owner, vec![typed(actor)], value);
        }
    }

    fn actors(&mut self, seen: &ClusterView, by: By) {
        #[derive(Default)]
        struct Now {
            states: BTreeMap<&'static str, u64>,
            queued: u64,
            deepest: u32,
        }
        let mut all: BTreeMap<Owner, BTreeMap<&str, Now>> = BTreeMap::new();
        for row in seen.actors().iter().filter(|row| row.ended.is_none()) {
            let mut owner = owner_of(seen, row.view.process, by);
            row.job.clone_into(&mut owner.job);
            let types = all.entry(owner).or_default();
            let known = types.contains_key(row.view.actor.as_str()) || types.len() < TYPES_MAX;
            let now = types
                .entry(if known { &row.view.actor } else { "" })
                .or_default();
            *now.states.entry(row.state.word()).or_default() += 1;
            now.queued += u64::from(row.view.queued);
            now.deepest = now.deepest.max(row.view.queued);
        }
        for (owner, types) in all {
            for (actor, now) in types {
                let label = typed((!actor.is_empty()).then_some(actor));
                for (state, count) in now.states {
                    let labels = vec![label.clone(), ("odeon.actor.state", state.to_owned())];
                    self.add(&metric::COUNT, &owner, labels, Value::Int(count));
                }
                let labels = || vec![label.clone()];
                self.add(&metric::QUEUED, &owner, labels(), Value::Int(now.queued));
                let deepest = Value::Int(now.deepest.into());
                self.add(&metric::DEEPEST, &owner, labels(), deepest);
            }
        }
    }

    fn processes(&mut self, seen: &ClusterView) {
        for process in seen.processes().filter(|it| it.ended.is_none()) {
            let owner = owner_of(seen, process.id, By::Process);
            let mut add = |metric, value| self.add(metric, &owner, vec![], value);
            if let Some(usage) = process.usage {
                let cores = seen.node(&process.node).map_or(0, |it| it.machine.cores);
                if let Some(cpu) = usage.cpu.filter(|_| cores > 0) {
                    add(&metric::CPU, Value::Number(cpu / f64::from(cores)));
                }
                add(&metric::MEMORY, Value::Int(usage.resident));
            }
            add(&metric::DEAD, Value::Int(process.dead_letters));
            add(&metric::BLOBS, Value::Int(process.blob_bytes));
            add(&metric::TRACES, Value::Int(process.spans.traces));
            add(&metric::KEPT, Value::Int(process.spans.traces_kept));
            add(&metric::SPANS, Value::Int(process.spans.recorded));
            add(&metric::LOST, Value::Int(process.spans_lost));
            if process.ask_times.count() > 0 {
                let spread = Spread::from(&process.ask_times);
                add(&metric::ASK, Value::Spread(spread));
            }
        }
    }

    fn node(&mut self, seen: &ClusterView, node: &Node, now: Date) {
        let owner = owner_of_node(node);
        let silent = node.gone.is_some() || now.since(node.seen) >= bounds::SUSPECT;
        let mut add = |metric, value| self.add(metric, &owner, vec![], value);
        add(&metric::UP, Value::Int(u64::from(!silent)));
        if silent {
            // What it was like when it was last seen is not what it is like.
            return;
        }
        let machine = &node.machine;
        if let Some(cpu) = machine.cpu {
            add(&metric::NODE_CPU, Value::Number(cpu));
        }
        if machine.cores > 0 {
            add(&metric::CORES, Value::Int(machine.cores.into()));
        }
        if let Some((_, error)) = node.clock {
            add(&metric::CLOCK, Value::Number(error.as_secs_f64()));
        }
        if machine.memory > 0 {
            add(&metric::NODE_LIMIT, Value::Int(machine.memory));
            let labels = vec![("system.memory.state", "used".to_owned())];
            let used = Value::Int(machine.memory_used);
            self.add(&metric::NODE_MEMORY, &owner, labels, used);
        }
        let mut peers: Vec<_> = node.links.iter().filter(|link| !link.is_worker).collect();
        let named = |peer| {
            let known = seen.nodes().find(|node| node.process == peer);
            known.map_or_else(|| resource::instance(peer), |node| node.name.clone())
        };
        peers.sort_by_cached_key(|link| named(link.peer));
        for link in peers.into_iter().take(LINKS_MAX) {
            let labels = || vec![("odeon.peer.name", named(link.peer))];
            if let Some(trip) = link.round_trip {
                let value = Value::Number(trip.as_secs_f64());
                self.add(&metric::TRIP, &owner, labels(), value);
            }
            let resumed = Value::Int(link.resumed.into());
            self.add(&metric::RESUMED, &owner, labels(), resumed);
            let sent = Value::Int(link.sent_bytes);
            self.add(&metric::LINK_SENT, &owner, labels(), sent);
            let unsent = Value::Int(link.queued_bytes);
            self.add(&metric::UNSENT, &owner, labels(), unsent);
        }
        self.devices(node, &owner);
    }

    fn devices(&mut self, node: &Node, owner: &Owner) {
        let Some(view) = &node.hardware else { return };
        let pending = Value::Int(view.waiting.len() as u64);
        self.add(&metric::PENDING, owner, vec![], pending);
        for device in &view.node.devices {
            let labels = || {
                vec![
                    ("hw.id", device.index.to_string()),
                    ("hw.name", device.model.clone()),
                ]
            };
            let grants = view.node.leases().flat_map(|lease| &lease.devices);
            let grants = grants.filter(|grant| grant.index == device.index);
            let (count, granted) = grants.fold((0, 0), |(count, bytes), grant| {
                (count + 1, bytes + grant.memory)
            });
            self.add(&metric::GPU_LEASES, owner, labels(), Value::Int(count));
            if device.memory > 0 {
                let limit = Value::Int(device.memory);
                self.add(&metric::GPU_LIMIT, owner, labels(), limit);
                let granted = Value::Int(granted);
                self.add(&metric::GPU_GRANTED, owner, labels(), granted);
            }
            let reading = view.readings.iter().find(|it| it.index == device.index);
            if let Some(reading) = reading {
                let mut add = |metric, value: Option<Value>| {
                    if let Some(value) = value {
                        self.add(metric, owner, labels(), value);
                    }
                };
                let number = |value: f64| Some(Value::Number(value));
                let used = reading.memory_used.value().copied().map(Value::Int);
                add(&metric::GPU_USED, used);
                add(
                    &metric::GPU_BUSY,
                    reading.busy.value().copied().and_then(number),
                );
                let celsius = reading.celsius.value().copied().map(f64::from);
                add(&metric::GPU_HEAT, celsius.and_then(number));
                add(
                    &metric::GPU_POWER,
                    reading.watts.value().copied().and_then(number),
                );
            }
            let good = device.health == Default::default();
            for (state, is) in [("ok", good), ("failed", !good)] {
                let mut labels = labels();
                labels.push(("hw.type", "gpu".to_owned()));
                labels.push(("hw.state", state.to_owned()));
                let value = Value::Int(u64::from(is));
                self.add(&metric::GPU_STATUS, owner, labels, value);
            }
        }
    }

    fn export(&mut self, seen: &ClusterView, counts: Option<&Counts>) {
        let home = resource::home(seen);
        let node = seen.nodes().find(|node| Some(node.process) == home);
        let Some(owner) = node.map(owner_of_node) else {
            return;
        };
        let missed = seen.missed();
        let (news, points) = (Value::Int(missed.news), Value::Int(missed.points));
        self.add(&metric::NEWS_LOST, &owner, vec![], news);
        self.add(&metric::POINTS_LOST, &owner, vec![], points);
        let Some(counts) = counts else { return };
        for signal in Signal::ALL {
            let own = counts.of(signal);
            let (metric, component) = match signal {
                Signal::Traces => (&metric::SENT_SPANS, "otlp_http_span_exporter"),
                Signal::Logs => (&metric::SENT_LOGS, "otlp_http_log_exporter"),
                Signal::Metrics => (&metric::SENT_POINTS, "otlp_http_metric_exporter"),
            };
            let component = ("otel.component.type", component.to_owned());
            self.add(
                metric,
                &owner,
                vec![component.clone()],
                Value::Int(own.sent),
            );
            for (why, count) in [("rejected", own.rejected), ("queue_full", own.dropped)] {
                let labels = vec![component.clone(), ("error.type", why.to_owned())];
                self.add(metric, &owner, labels, Value::Int(count));
            }
            let queued = Value::Int(own.queued_bytes);
            self.add(&metric::WAITING, &owner, vec![component], queued);
        }
    }
}

fn typed(actor: Option<&str>) -> (&'static str, String) {
    match actor {
        Some(actor) => (metric::TYPE, actor.to_owned()),
        None => (OVERFLOW, "true".to_owned()),
    }
}

fn owner_of(seen: &ClusterView, process: ProcessId, by: By) -> Owner {
    let known = seen.process(process);
    Owner {
        process: (by == By::Process).then_some(process),
        node: known.map_or_else(String::new, |it| it.node.clone()),
        job: known.map_or_else(String::new, |it| it.job.clone()),
    }
}

fn owner_of_node(node: &Node) -> Owner {
    Owner {
        process: Some(node.process),
        node: node.name.clone(),
        job: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_under_each_octave() {
        // Buckets of half octaves: the fourth begins at 1.024 us, and the last has no end.
        let counts: Vec<u32> = (0..54).map(|_| 1).collect();
        let times = serde_json::json!({"first": 0, "counts": counts});
        let spread = Spread::from(&serde_json::from_value::<Times>(times).unwrap());
        assert_eq!(spread.up_to.len(), bounds_of_times().count());
        assert_eq!(spread.up_to[..3], [2, 4, 6]);
        assert_eq!((spread.up_to.last(), spread.all), (Some(&52), 54));
        assert_eq!(bounds_of_times().next(), Some(1.024e-6));
    }
}
