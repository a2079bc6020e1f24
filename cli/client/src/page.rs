//! Pages of what is seen: which there are, what is asked of them, and how changes are applied.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::inspect::{
    Actors, ActorsDelta, Cluster, Envelope, Event, Events, Jobs, Now, Problems, Runs, Transfers,
};

/// A page by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// The page of what matters now.
    Now,
    /// The nodes.
    Cluster,
    /// The actors.
    Actors,
    /// The jobs.
    Jobs,
    /// Bytes that travelled.
    Transfers,
    /// The events.
    Events,
    /// The workloads.
    Runs,
    /// The problems, and those that are over.
    Problems,
}

impl View {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 8] = [
        Self::Now,
        Self::Cluster,
        Self::Actors,
        Self::Jobs,
        Self::Transfers,
        Self::Events,
        Self::Runs,
        Self::Problems,
    ];

    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Problems => "problems",
            Self::Cluster => "cluster",
            Self::Actors => "actors",
            Self::Jobs => "jobs",
            Self::Transfers => "transfers",
            Self::Events => "events",
            Self::Runs => "runs",
        }
    }

    /// Returns true if rows of it are chosen by a filter.
    #[must_use]
    pub const fn is_filtered(self) -> bool {
        matches!(self, Self::Actors | Self::Events)
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for View {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|view| view.word() == word);
        let words = Self::ALL.map(Self::word).join(", ");
        found.ok_or_else(|| format!("there is no page `{word}`: pages are {words}"))
    }
}

/// The query of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Which.
    pub view: View,
    /// Words that must hold for its rows.
    pub filter: String,
    /// The column by which rows are chosen, `-` before it for the largest first.
    pub sort: String,
    /// The most rows.
    pub limit: Option<usize>,
}

impl Asked {
    /// All of a page.
    #[must_use]
    pub const fn all(view: View) -> Self {
        Self {
            view,
            filter: String::new(),
            sort: String::new(),
            limit: None,
        }
    }
}

/// The contents of a page.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Page {
    /// See [`View::Now`].
    Now(Now),
    /// See [`View::Problems`].
    Problems(Problems),
    /// See [`View::Cluster`].
    Cluster(Cluster),
    /// See [`View::Actors`].
    Actors(Actors),
    /// See [`View::Jobs`].
    Jobs(Jobs),
    /// See [`View::Transfers`].
    Transfers(Transfers),
    /// See [`View::Events`].
    Events(Events),
    /// See [`View::Runs`].
    Runs(Runs),
}

impl Page {
    /// Which it is.
    #[must_use]
    pub const fn view(&self) -> View {
        match self {
            Self::Now(_) => View::Now,
            Self::Problems(_) => View::Problems,
            Self::Cluster(_) => View::Cluster,
            Self::Actors(_) => View::Actors,
            Self::Jobs(_) => View::Jobs,
            Self::Transfers(_) => View::Transfers,
            Self::Events(_) => View::Events,
            Self::Runs(_) => View::Runs,
        }
    }
}

/// An update of a page in a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// All of it.
    Whole(Box<Envelope<Page>>),
    /// Changes among its actors.
    Actors(Box<Envelope<ActorsDelta>>),
    /// Events that are new.
    Events(Box<Envelope<Events>>),
}

/// Events that a page keeps while more come.
const EVENTS_KEPT: usize = 5_000;

impl<T> Envelope<T> {
    /// The same of other data.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Envelope<U> {
        Envelope {
            epoch: self.epoch,
            seq: self.seq,
            captured_at: self.captured_at,
            shown: self.shown,
            total: self.total,
            dropped: self.dropped,
            forgotten: self.forgotten,
            kept_from: self.kept_from,
            sampled: self.sampled,
            clock_error_us: self.clock_error_us,
            missing: self.missing,
            head: self.head,
            data: change(self.data),
        }
    }
}

impl Envelope<Page> {
    /// This page, after what a stream has said of it. What is said of another page changes nothing.
    #[must_use]
    pub fn after(self, update: Update) -> Self {
        match (self.data, update) {
            (_, Update::Whole(page)) => *page,
            (Page::Actors(mut page), Update::Actors(update)) => update.map(|delta| {
                apply(&mut page, delta);
                Page::Actors(page)
            }),
            (Page::Events(page), Update::Events(update)) => {
                let all = update.map(|more| merged(page.events, more.events));
                Self {
                    // It counts what came, and not what is here now.
                    shown: all.data.len() as u64,
                    ..all.map(|events| Page::Events(Events { events }))
                }
            }
            (data, Update::Actors(_) | Update::Events(_)) => Self { data, ..self },
        }
    }
}

/// Rows that are there are replaced where they are, new ones come last.
fn apply(page: &mut Actors, delta: ActorsDelta) {
    let removed: HashSet<String> = delta.remove.into_iter().collect();
    page.rows.retain(|row| !removed.contains(&row.id));
    let rows = page.rows.iter().enumerate();
    let places: HashMap<String, usize> = rows.map(|(at, row)| (row.id.clone(), at)).collect();
    for row in delta.upsert {
        match places.get(&row.id) {
            Some(at) => page.rows[*at] = row,
            None => page.rows.push(row),
        }
    }
}

/// Each event once, the newest last.
fn merged(mut known: Vec<Event>, fresh: Vec<Event>) -> Vec<Event> {
    let last = known.last().map(|event| event.seq);
    let fresh = fresh.into_iter().filter(|event| Some(event.seq) > last);
    known.extend(fresh);
    let spare = known.len().saturating_sub(EVENTS_KEPT);
    known.drain(..spare);
    known
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inspect::ActorRow;

    fn row(id: &str, handled: u64) -> ActorRow {
        serde_json::from_value(json!({
            "id": id, "name": null, "type": "T", "job": null, "node": "n", "process": "1",
            "devices": [], "parent": null, "system": false, "state": "idle", "since": 0.0,
            "mailbox": {"len": 0, "max": 1, "bytes": 0}, "received": handled, "handled": handled,
            "failed": 0, "restarts": 0, "incarnation": 1, "rate": 0.0, "busy": 0.0,
            "waiting": 0.0, "current": null, "waits_on": null, "ended": null,
        }))
        .unwrap()
    }

    fn envelope<T>(seq: u64, data: T) -> Envelope<T> {
        let head = json!({
            "name": "r", "nodes": {"up": 1, "all": 1}, "devices": 0, "actors": {"all": 1, "failed": 0},
            "problems": {"error": 0, "warning": 0}, "spans_per_s": 0.0, "replay": null,
        });
        Envelope {
            epoch: "1".to_owned(),
            seq,
            captured_at: 0.0,
            shown: 0,
            total: 0,
            dropped: 0,
            forgotten: 0,
            kept_from: None,
            sampled: 1.0,
            clock_error_us: None,
            missing: vec![],
            head: serde_json::from_value(head).unwrap(),
            data,
        }
    }

    fn event(seq: u64) -> Event {
        Event {
            seq,
            at: 0.0,
            kind: "node".to_owned(),
            severity: "info".to_owned(),
            subject: None,
            sentence: String::new(),
            chain: vec![],
        }
    }

    #[test]
    fn changed_actors_replace_their_rows_and_removed_ones_go() {
        let rows = vec![row("a", 1), row("b", 1), row("c", 1)];
        let page = envelope(1, Page::Actors(Actors { rows, groups: None }));
        let delta = ActorsDelta {
            upsert: vec![row("c", 2), row("d", 1)],
            remove: vec!["a".to_owned()],
        };
        let page = page.after(Update::Actors(Box::new(envelope(2, delta))));
        assert_eq!(page.seq, 2);
        let Page::Actors(actors) = page.data else {
            panic!("{page:?}");
        };
        assert_eq!(actors.rows, [row("b", 1), row("c", 2), row("d", 1)]);
    }

    #[test]
    fn events_that_come_twice_are_shown_once() {
        let page = |seqs: &[u64]| Events {
            events: seqs.iter().copied().map(event).collect(),
        };
        let known = envelope(1, Page::Events(page(&[1, 2])));
        let more = known.after(Update::Events(Box::new(envelope(2, page(&[2, 3])))));
        assert_eq!(more.data, Page::Events(page(&[1, 2, 3])));
        assert_eq!(more.shown, 3);
        let many: Vec<u64> = (4..=5_010).collect();
        let more = more.after(Update::Events(Box::new(envelope(3, page(&many)))));
        let Page::Events(kept) = more.data else {
            panic!("{more:?}");
        };
        assert_eq!((kept.events.len(), kept.events[0].seq), (5_000, 11));
    }

    #[test]
    fn what_is_said_of_another_page_changes_nothing() {
        let page = envelope(1, Page::Jobs(Jobs { jobs: vec![] }));
        let more = envelope(
            2,
            Events {
                events: vec![event(1)],
            },
        );
        assert_eq!(page.clone().after(Update::Events(Box::new(more))), page);
    }
}
