//! The text that Prometheus and its kin scrape.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::time::Duration;

use odeon::telemetry::Label;
use odeon_observe::cluster_view::Recorded;
use odeon_observe::{ClusterView, Date};
use parking_lot::Mutex;

use crate::metric::{METRICS, MetricKind, Of};
use crate::numbers::{By, Owner, Spread, Value, bounds_of_times, readings};
use crate::outbox::Counts;
use crate::resource::instance;
use crate::tally::Tally;

/// The type of the text, in the header of an answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Tells what is seen to whoever scrapes. It remembers what actors have done that are forgotten, so
/// that counters never go down.
#[derive(Debug, Default)]
pub struct Exposition(Mutex<Tally>);

/// The time for which a recorded number is told of which nobody knows who records it.
const RECENT: Duration = Duration::from_secs(300);

/// The series of a family: their labels and values.
type Series = BTreeMap<String, Sample>;

/// The value of a series.
enum Sample {
    Plain(f64),
    Spread(Spread),
}

impl Sample {
    fn add(&mut self, more: Self) {
        match (self, more) {
            (Self::Plain(sum), Self::Plain(more)) => *sum += more,
            (Self::Spread(sum), Self::Spread(more)) => sum.add(&more),
            // A family is of one kind.
            _ => {}
        }
    }
}

struct Family {
    kind: MetricKind,
    about: String,
    series: Series,
}

impl Exposition {
    /// The text of what is seen now: of one node, or of all.
    #[must_use]
    pub fn text(
        &self,
        seen: &ClusterView,
        node: Option<&str>,
        counts: Option<&Counts>,
        now: Date,
    ) -> String {
        let mut tally = self.0.lock();
        tally.take(seen, now);
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        for reading in readings(seen, &tally, counts, By::Group, now) {
            if node.is_some_and(|node| node != reading.owner.node) {
                continue;
            }
            let metric = reading.metric;
            let mut labels = owned(&reading.owner, metric.of);
            let own = reading.labels.into_iter();
            labels.extend(own.map(|(name, value)| (name_of(name), value)));
            let family = family_of(metric.name, metric.unit, metric.kind);
            let family = families.entry(family).or_insert_with(|| Family {
                kind: metric.kind,
                about: metric.about.to_owned(),
                series: Series::new(),
            });
            let value = match reading.value {
                Value::Int(value) => Sample::Plain(value as f64),
                Value::Number(value) => Sample::Plain(value),
                Value::Spread(spread) => Sample::Spread(spread),
            };
            match family.series.entry(written(labels)) {
                Entry::Vacant(room) => drop(room.insert(value)),
                Entry::Occupied(mut before) => before.get_mut().add(value),
            }
        }
        drop(tally);
        for recorded in seen.recorded().filter(|it| is_current(seen, it, now)) {
            note(&mut families, seen, recorded, node);
        }
        text_of(&families)
    }
}

/// The name of a family, as the conventions make it from a name and a unit.
#[must_use]
pub fn family_of(name: &str, unit: &str, kind: MetricKind) -> String {
    let mut family = name_of(name);
    let unit = match unit {
        "By" => "bytes",
        "s" => "seconds",
        "ms" => "milliseconds",
        "1" if kind == MetricKind::Gauge => "ratio",
        "%" => "percent",
        "Cel" => "celsius",
        "W" => "watts",
        "J" => "joules",
        "By/s" => "bytes_per_second",
        _ => "",
    };
    let own_unit = unit.is_empty() || family.ends_with(unit);
    if !own_unit {
        family.push('_');
        family.push_str(unit);
    }
    if kind == MetricKind::Counter && !family.ends_with("_total") {
        family.push_str("_total");
    }
    family
}

/// A name with what may not be in one as `_`.
fn name_of(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = name.chars().map(plain).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() {
        return format!("_{name}");
    }
    name
}

/// Whose a number is. `job` and `instance` are Prometheus's own.
fn owned(owner: &Owner, of: Of) -> Vec<(String, String)> {
    let mut labels = vec![("node".to_owned(), owner.node.clone())];
    if matches!(of, Of::Actors | Of::Process) {
        labels.push(("odeon_job".to_owned(), owner.job.clone()));
    }
    if let (Of::Process, Some(process)) = (of, owner.process) {
        labels.push(("process".to_owned(), instance(process)));
    }
    labels
}

/// Returns true where a recorded number is about something that goes on.
fn is_current(seen: &ClusterView, recorded: &Recorded, now: Date) -> bool {
    let (actor, last) = (recorded.actor, recorded.points.back());
    let by_root = || seen.process(actor.home).map(|it| it.ended.is_none());
    let lives = match seen.actors().get(actor) {
        Some(row) => Some(row.ended.is_none()),
        None if actor.is_root() => by_root(),
        None => None,
    };
    lives.unwrap_or_else(|| last.is_some_and(|(at, ..)| now.since(*at) < RECENT))
}

/// Adds a number that a program records, under its own name.
fn note(
    families: &mut BTreeMap<String, Family>,
    seen: &ClusterView,
    recorded: &Recorded,
    only: Option<&str>,
) {
    let Some((.., value)) = recorded.points.back() else {
        return;
    };
    let actor = seen.actors().get(recorded.actor);
    let process = seen.process(actor.map_or(recorded.actor.home, |it| it.view.process));
    let node = process.map_or("", |it| &it.node);
    if only.is_some_and(|only| only != node) {
        return;
    }
    let text = |label: &Label| label.to_string();
    let unit = recorded.labels.iter().find(|(name, _)| name == "unit");
    let unit = unit.map_or_else(String::new, |(_, unit)| text(unit));
    let family = family_of(&recorded.name, &unit, MetricKind::Gauge);
    let is_ours = |metric: &&&crate::metric::Metric| {
        family_of(metric.name, metric.unit, metric.kind) == family
    };
    if METRICS.iter().any(|metric| is_ours(&metric)) {
        // One name has one meaning.
        return;
    }
    let mut labels = vec![
        ("node".to_owned(), node.to_owned()),
        (
            "odeon_job".to_owned(),
            process.map_or_else(String::new, |it| it.job.clone()),
        ),
        ("odeon_actor".to_owned(), seen.title_of(recorded.actor)),
    ];
    for (name, label) in recorded.labels.iter().filter(|(name, _)| name != "unit") {
        let mut name = name_of(name);
        while labels.iter().any(|(known, _)| *known == name) {
            name.push('_');
        }
        labels.push((name, text(label)));
    }
    let family = families.entry(family).or_insert_with(|| Family {
        kind: MetricKind::Gauge,
        about: format!("Recorded by the program as {}", recorded.name),
        series: Series::new(),
    });
    family.series.insert(written(labels), Sample::Plain(*value));
}

/// Labels as they are written.
fn written(mut labels: Vec<(String, String)>) -> String {
    labels.sort();
    let pairs: Vec<_> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true)))
        .collect();
    pairs.join(",")
}

fn escaped(text: &str, quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    match quotes {
        true => text.replace('"', "\\\""),
        false => text,
    }
}

fn text_of(families: &BTreeMap<String, Family>) -> String {
    let mut text = String::new();
    for (name, family) in families {
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::UpDownCounter | MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let about = escaped(&family.about, false);
        // Writing into a String does not fail.
        let _ = write!(text, "# HELP {name} {about}\n# TYPE {name} {kind}\n");
        for (labels, sample) in &family.series {
            match sample {
                Sample::Plain(value) => {
                    let _ = writeln!(text, "{name}{{{labels}}} {}", number(*value));
                }
                Sample::Spread(spread) => write_spread(&mut text, name, labels, spread),
            }
        }
    }
    text
}

fn write_spread(text: &mut String, name: &str, labels: &str, spread: &Spread) {
    let bounds = bounds_of_times().chain([f64::INFINITY]);
    let counts = spread.up_to.iter().chain([&spread.all]);
    for (bound, count) in bounds.zip(counts) {
        let bound = number(bound);
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
    }
    let _ = writeln!(text, "{name}_sum{{{labels}}} {}", number(spread.sum));
    let _ = writeln!(text, "{name}_count{{{labels}}} {}", spread.all);
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_the_suffixes_that_people_expect() {
        for (name, unit, kind, family) in [
            (
                "odeon.actor.busy_time",
                "s",
                MetricKind::Counter,
                "odeon_actor_busy_time_seconds_total",
            ),
            (
                "process.memory.usage",
                "By",
                MetricKind::UpDownCounter,
                "process_memory_usage_bytes",
            ),
            (
                "system.cpu.utilization",
                "1",
                MetricKind::Gauge,
                "system_cpu_utilization_ratio",
            ),
            ("hw.status", "1", MetricKind::UpDownCounter, "hw_status"),
            (
                "odeon.dead_letters",
                "{message}",
                MetricKind::Counter,
                "odeon_dead_letters_total",
            ),
            (
                "rl.step time",
                "s",
                MetricKind::Gauge,
                "rl_step_time_seconds",
            ),
            ("4x", "", MetricKind::Gauge, "_4x"),
        ] {
            assert_eq!(family_of(name, unit, kind), family);
        }
    }

    #[test]
    fn whatever_a_label_holds_stays_inside_its_quotes() {
        let labels = vec![("a".to_owned(), "q\" b\\ n\n".to_owned())];
        assert_eq!(written(labels), r#"a="q\" b\\ n\n""#);
    }
}
