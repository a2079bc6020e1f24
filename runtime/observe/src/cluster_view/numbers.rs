//! Numbers over time: of the whole, as each tick samples them, and those that programs record.

use std::collections::{BTreeMap, VecDeque};

use odeon::ActorId;
use odeon::inspect::Times;
use odeon::telemetry::{Label, Labels};

use super::{ClusterView, LATELY};
use crate::SYSTEM_JOB;
use crate::actor::Actor;
use crate::bounds::{RANK_POINTS_MAX, RANK_SERIES_MAX, SERIES_MAX, SERIES_POINTS_MAX};
use crate::date::Date;
use crate::node::Process;
use crate::series::Series;

/// Numbers of the whole over time.
#[derive(Debug, Default)]
pub(super) struct Totals {
    messages: Series,
    bytes: Series,
    p99_ask_ms: Series,
    deepest_mailbox: Series,
    spans: Series,
    last: Option<Sample>,
    pub(super) bytes_copied: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Date,
    handled: u64,
    bytes: u64,
    spans: u64,
}

/// The numbers that programs record. Those of ranks are many and short, so that they have room of their own.
#[derive(Debug)]
pub(super) struct RecordedNumbers {
    of_ranks: SeriesTable,
    others: SeriesTable,
}

impl Default for RecordedNumbers {
    fn default() -> Self {
        Self {
            of_ranks: SeriesTable::new(RANK_SERIES_MAX, RANK_POINTS_MAX),
            others: SeriesTable::new(SERIES_MAX, SERIES_POINTS_MAX),
        }
    }
}

/// Recorded numbers up to a bound.
#[derive(Debug)]
struct SeriesTable {
    rows: BTreeMap<RecordedKey, Recorded>,
    series_max: usize,
    points_max: usize,
}

/// The label of numbers that are of one of many ranks.
const RANK: &str = "rank";

/// The label of text about a number, which may be another at each point and so tells no numbers apart.
const WHAT: &str = "what";

/// The key of a recorded number: its name, the actor, and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RecordedKey {
    name: String,
    actor: ActorId,
    labels: String,
}

/// A number that a program records, over time.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its name.
    pub name: String,
    /// The actor that records it.
    pub actor: ActorId,
    /// The labels that tell it apart; `step` is left out, it is the place on the axis, and so is `what`.
    pub labels: Labels,
    /// The text with its last point, of the label `what`.
    pub what: Option<String>,
    /// When, at which step if it says so, and how much.
    pub points: VecDeque<(Date, Option<f64>, f64)>,
    /// Number of points so far, forgotten ones too.
    pub told: u64,
}

/// A number of the whole over time.
#[derive(Clone, Copy, Debug)]
pub struct Total<'a> {
    /// Its name in the API.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The number over time.
    pub series: &'a Series,
}

impl SeriesTable {
    const fn new(series_max: usize, points_max: usize) -> Self {
        Self {
            rows: BTreeMap::new(),
            series_max,
            points_max,
        }
    }

    /// Returns true if there is room for a point of this series, after the one went that has said nothing for longest,
    /// if that is long; those that go on stay.
    fn has_room(&mut self, key: &RecordedKey, at: Date) -> bool {
        if self.rows.len() < self.series_max || self.rows.contains_key(key) {
            return true;
        }
        let last = |it: &Recorded| it.points.back().map(|(at, ..)| *at);
        let oldest = self.rows.iter().min_by_key(|(_, it)| last(it));
        let idle = oldest.filter(|(_, it)| last(it).is_none_or(|it| at.since(it) >= LATELY));
        let idle = idle.map(|(key, _)| key.clone());
        idle.is_some_and(|idle| self.rows.remove(&idle).is_some())
    }
}

impl ClusterView {
    /// The numbers that programs record about their work.
    pub fn recorded(&self) -> impl Iterator<Item = &Recorded> {
        let RecordedNumbers { of_ranks, others } = &self.recorded;
        others.rows.values().chain(of_ranks.rows.values())
    }

    /// Numbers of the whole over time.
    #[must_use]
    pub fn totals(&self) -> [Total<'_>; 4] {
        let total = |name, title, unit, series| Total {
            name,
            title,
            unit,
            series,
        };
        let totals = &self.totals;
        [
            total("messages", "messages handled", "/s", &totals.messages),
            total("bytes", "bytes copied between nodes", "B/s", &totals.bytes),
            total(
                "ask_p99",
                "99th percentile of asks",
                "ms",
                &totals.p99_ask_ms,
            ),
            total(
                "mailbox",
                "deepest mailbox",
                "messages",
                &totals.deepest_mailbox,
            ),
        ]
    }

    /// Spans recorded in a second, of late.
    #[must_use]
    pub fn spans_per_s(&self) -> f64 {
        self.totals.spans.last().unwrap_or(0.0)
    }

    pub(crate) fn record(
        &mut self,
        name: String,
        actor: ActorId,
        labels: Labels,
        at: Date,
        value: f64,
    ) {
        let step = labels.iter().find(|(name, _)| name == "step");
        let step = step.and_then(|(_, label)| match label {
            Label::Int(value) => Some(*value as f64),
            Label::Number(value) => Some(*value),
            Label::Text(_) => None,
        });
        let what = labels.iter().find(|(name, _)| name == WHAT);
        let what = what.map(|(_, text)| text.to_string());
        let labels: Labels = labels
            .into_iter()
            .filter(|(name, _)| name != "step" && name != WHAT)
            .collect();
        let text: Vec<_> = labels
            .iter()
            .map(|(name, label)| format!("{name}={label}"))
            .collect();
        let key = RecordedKey {
            name: name.clone(),
            actor,
            labels: text.join(","),
        };
        let table = match labels.iter().any(|(name, _)| name == RANK) {
            true => &mut self.recorded.of_ranks,
            false => &mut self.recorded.others,
        };
        if !table.has_room(&key, at) {
            self.missed.points += 1;
            return;
        }
        let row = table.rows.entry(key).or_insert_with(|| Recorded {
            name,
            actor,
            labels,
            what: None,
            points: VecDeque::new(),
            told: 0,
        });
        row.what = what;
        row.told += 1;
        if row.points.len() == table.points_max {
            row.points.pop_front();
        }
        row.points.push_back((at, step, value));
    }

    pub(super) fn sample(&mut self, now: Date) {
        // What looks and keeps order is not what people run.
        let actors = || self.actors.iter().filter(|row| row.job != SYSTEM_JOB);
        let handled = actors().map(Actor::handled_here).sum();
        let spans = self.processes.values().map(Process::spans_here).sum();
        let sample = Sample {
            at: now,
            handled,
            bytes: self.totals.bytes_copied,
            spans,
        };
        let deepest = actors().map(|row| row.view.queued).max();
        let living = self.processes.values();
        let living = living.filter(|it| it.ended.is_none() && it.job != SYSTEM_JOB);
        let asks = living.fold(Times::default(), |all, it| {
            all.merge(it.recent_asks.times())
        });
        let totals = &mut self.totals;
        let Some(last) = totals.last else {
            totals.last = Some(sample);
            return;
        };
        let passed = now.since(last.at).as_secs_f64();
        if passed < 0.9 {
            return;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed;
        totals.messages.add(now, rate(handled, last.handled));
        totals.bytes.add(now, rate(sample.bytes, last.bytes));
        totals.spans.add(now, rate(spans, last.spans));
        totals
            .deepest_mailbox
            .add(now, f64::from(deepest.unwrap_or(0)));
        if let Some(p99) = asks.quantile(0.99) {
            totals.p99_ask_ms.add(now, p99.as_secs_f64() * 1e3);
        }
        totals.last = Some(sample);
    }
}

#[cfg(test)]
mod tests {
    use odeon::ProcessId;

    use super::*;

    #[test]
    fn text_about_a_number_makes_no_series() {
        let mut seen = ClusterView::default();
        let actor = ActorId::root(ProcessId(7));
        for (second, what) in [(1, "is slow"), (2, "is slow; it stands at load")] {
            let labels = vec![
                ("rank".into(), Label::Int(2)),
                (WHAT.into(), what.to_owned().into()),
            ];
            seen.record(
                "gang.rank_slow_s".to_owned(),
                actor,
                labels,
                Date(second),
                1.0,
            );
        }
        let [one] = &seen.recorded().collect::<Vec<_>>()[..] else {
            panic!("another text is another series");
        };
        assert_eq!((one.points.len(), one.labels.len()), (2, 1));
        assert_eq!(one.what.as_deref(), Some("is slow; it stands at load"));
    }

    #[test]
    fn numbers_of_ranks_take_no_room_of_others_and_are_kept_for_the_last_steps() {
        let mut seen = ClusterView::default();
        let actor = ActorId {
            home: ProcessId(1),
            serial: 2,
        };
        let rank = |rank: usize| vec![("rank".into(), rank.into())];
        for number in 0..SERIES_MAX + 10 {
            seen.record("train.wait_s".to_owned(), actor, rank(number), Date(1), 0.5);
        }
        for number in 0..SERIES_POINTS_MAX + 10 {
            let at = Date(number as u64);
            seen.record("train.loss".to_owned(), actor, vec![], at, 1.0);
            seen.record("train.wait_s".to_owned(), actor, rank(0), at, 0.5);
        }
        assert_eq!(seen.missed.points, 0);
        let of = |name: &str| {
            seen.recorded()
                .filter(|it| it.name == name)
                .collect::<Vec<_>>()
        };
        assert_eq!(of("train.wait_s").len(), SERIES_MAX + 10);
        let loss = of("train.loss")[0];
        assert_eq!(loss.points.len(), SERIES_POINTS_MAX);
        assert_eq!(of("train.wait_s")[0].points.len(), RANK_POINTS_MAX);
        assert_eq!(of("train.wait_s")[0].told as usize, SERIES_POINTS_MAX + 11);
    }
}
