//! The pages: what each of them shows of what is seen.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};

use odeon::ActorId;
use odeon_client::inspect as told;
use odeon_observe::actor::Actor;
use odeon_observe::event::Event;
use odeon_observe::filter::Filter;
use odeon_observe::series::Point;
use serde::Deserialize;

use super::dto::{Shown, by_badness, is_system, rounded};
use super::refused::Refused;

/// The query of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Which page.
    #[serde(default)]
    pub(super) view: String,
    #[serde(default)]
    pub(super) filter: String,
    #[serde(default)]
    pub(super) sort: String,
    #[serde(default)]
    pub(super) limit: Option<usize>,
    #[serde(default)]
    pub(super) group: String,
    /// Of events: those before this one.
    #[serde(default)]
    pub(super) before: Option<u64>,
}

/// Rows of one answer at most.
const ROWS_MAX: usize = 20_000;
/// Events of one answer at most, and unless more are asked for.
const EVENTS_MAX: usize = 2_000;
const EVENTS_USUAL: usize = 500;
/// Events on the page of what matters now.
const LAST_EVENTS: usize = 20;
/// Copies on the page of transfers.
const COPIES_MAX: usize = 500;

/// The columns that actors can be sorted and grouped by.
const COLUMNS: [&str; 15] = [
    "name", "type", "node", "job", "id", "state", "rate", "mailbox", "busy", "waiting", "restarts",
    "handled", "failed", "since", "age",
];
const GROUPS: [&str; 3] = ["type", "node", "job"];

/// Data, how many rows it has and how many there are.
pub(super) type Counted<T> = (T, usize, usize);

impl Asked {
    /// Rows of one answer.
    pub(super) fn rows(&self) -> usize {
        self.limit.unwrap_or(ROWS_MAX).min(ROWS_MAX)
    }

    /// Checks that actors can be sorted and grouped so.
    pub(super) fn check(&self) -> Result<(), Refused> {
        let known = |word: &str, words: &[&str], what: &str| {
            if word.is_empty() || words.contains(&word) {
                return Ok(());
            }
            let words = words.join(", ");
            Err(Refused::Invalid(format!(
                "actors have no {what} `{word}`: there are {words}"
            )))
        };
        let column = self.sort.strip_prefix('-').unwrap_or(&self.sort);
        known(column, &COLUMNS, "column to sort by")?;
        known(&self.group, &GROUPS, "group")
    }
}

impl Shown<'_> {
    pub(super) fn now_page(&self) -> told::Now {
        let series = self.seen.totals().into_iter().map(|total| told::Series {
            name: total.name.to_owned(),
            title: total.title.to_owned(),
            unit: total.unit.to_owned(),
            points: total.series.fine().map(point).collect(),
        });
        let last = self.seen.events().iter().rev().take(LAST_EVENTS);
        let mut events: Vec<_> = last.map(|event| self.event(event)).collect();
        events.reverse();
        told::Now {
            problems: self
                .seen
                .findings()
                .iter()
                .map(|it| self.problem(it))
                .collect(),
            waiting: self.waiting(),
            nodes: self.seen.nodes().map(|node| self.node(node)).collect(),
            series: series.collect(),
            events,
        }
    }

    pub(super) fn cluster_page(&self) -> told::Cluster {
        let nodes = || self.seen.nodes();
        let links = nodes().filter(|node| node.gone.is_none());
        let links = links.flat_map(|node| node.links.iter().map(|link| self.link(node, link)));
        told::Cluster {
            links: links.collect(),
            nodes: nodes().map(|node| self.node(node)).collect(),
        }
    }

    pub(super) fn actors_page(&self, asked: &Asked) -> Result<Counted<told::Actors>, Refused> {
        let filter = Filter::parse(&asked.filter)?;
        asked.check()?;
        let takes = |actor: &&Actor| filter.takes(actor, is_system(actor), self.now);
        let mut taken: Vec<&Actor> = self.seen.actors().iter().filter(takes).collect();
        if !asked.group.is_empty() {
            let groups = groups(&taken, &asked.group);
            let shown = groups.len();
            let page = told::Actors {
                rows: vec![],
                groups: Some(groups),
            };
            return Ok((page, shown, shown));
        }
        sort(&mut taken, &asked.sort);
        let matching = taken.len();
        taken.truncate(asked.rows());
        let rows: Vec<_> = taken.iter().map(|actor| self.actor(actor)).collect();
        let shown = rows.len();
        Ok((told::Actors { rows, groups: None }, shown, matching))
    }

    /// The changes among the chosen actors since a change, with how many are shown and chosen;
    /// `None` when that is too long ago.
    pub(super) fn actors_delta(
        &self,
        filter: &Filter,
        most: usize,
        sent: &mut HashSet<ActorId>,
        since: u64,
    ) -> Option<Counted<told::ActorsDelta>> {
        let actors = self.seen.actors();
        let mut remove: Vec<_> = actors
            .removed_since(since)?
            .filter(|id| sent.remove(id))
            .map(|id| id.to_string())
            .collect();
        let (mut upsert, mut matching) = (vec![], 0);
        for actor in actors.iter() {
            let id = actor.id();
            let takes = filter.takes(actor, is_system(actor), self.now);
            if !takes {
                if sent.remove(&id) {
                    remove.push(id.to_string());
                }
                continue;
            }
            matching += 1;
            let has = sent.contains(&id);
            let is_news = actor.changed > since || !has;
            if is_news && (has || sent.len() < most) {
                sent.insert(id);
                upsert.push(self.actor(actor));
            }
        }
        Some((told::ActorsDelta { upsert, remove }, sent.len(), matching))
    }

    pub(super) fn events_page(&self, asked: &Asked) -> Counted<told::Events> {
        let limit = asked.limit.unwrap_or(EVENTS_USUAL).min(EVENTS_MAX);
        let all = self.seen.events().iter().count();
        let before = asked.before.unwrap_or(u64::MAX);
        let older = self.seen.events().iter().rev().filter(|it| it.seq < before);
        let told = older.map(|event| self.event(event));
        let taken = told.filter(|event| takes_event(event, &asked.filter));
        let mut events: Vec<_> = taken.take(limit).collect();
        events.reverse();
        let shown = events.len();
        (told::Events { events }, shown, all)
    }

    /// Events after one of this number that the filter takes.
    pub(super) fn events_after(&self, seq: u64, filter: &str) -> Vec<told::Event> {
        let events = self.seen.events().after(seq);
        let told = events.map(|event: &Event| self.event(event));
        told.filter(|event| takes_event(event, filter)).collect()
    }

    pub(super) fn transfers_page(&self) -> Counted<told::Transfers> {
        let copies = |copy: &&odeon_observe::spans::Span| copy.kind == odeon::trace::SpanKind::Copy;
        let ended = self.seen.spans().ended().rev().filter(copies);
        let all = self.seen.spans().ended().filter(copies).count();
        let going = self.seen.spans().going_on().filter(copies);
        let told = going.chain(ended).take(COPIES_MAX);
        let copies: Vec<_> = told.map(|span| self.copy(span)).collect();
        let shown = copies.len();
        let boards = self.boards();
        (told::Transfers { boards, copies }, shown, all.max(shown))
    }
}

pub(super) fn point(point: &Point) -> (f64, f64) {
    (point.at.as_ms(), rounded(point.mean))
}

/// Words that must all be found; `kind:`, `severity:` and `subject:` look in one place only.
pub(crate) fn takes_event(event: &told::Event, filter: &str) -> bool {
    let subject = event.subject.as_ref().map_or("", |it| it.name.as_str());
    let holds = |place: &str, word: &str| place.to_lowercase().contains(word);
    filter.split_whitespace().all(|word| {
        let (negated, word) = match word.strip_prefix('-') {
            Some(rest) if !rest.is_empty() => (true, rest),
            _ => (false, word),
        };
        let word = word.trim_matches('"').to_lowercase();
        let found = match word.split_once(':') {
            Some(("kind", kind)) => event.kind == kind,
            Some(("severity", severity)) => event.severity == severity,
            Some(("subject", name)) => {
                let id = event.subject.as_ref().map_or("", |it| it.id.as_str());
                holds(subject, name) || id.eq_ignore_ascii_case(name)
            }
            _ => holds(&event.sentence, &word) || holds(subject, &word),
        };
        found != negated
    })
}

/// Sorts by a column, `-` before it for the largest first; the worst first without one.
fn sort(actors: &mut [&Actor], by: &str) {
    let (descending, column) = match by.strip_prefix('-') {
        Some(column) => (true, column),
        None => (false, by),
    };
    let number: fn(&Actor) -> f64 = match column {
        "rate" => |it| it.rate,
        "mailbox" => |it| f64::from(it.view.queued),
        "busy" => |it| it.busy,
        "waiting" => |it| it.waiting,
        "restarts" => |it| f64::from(it.restarts()),
        "handled" => |it| it.handled as f64,
        "failed" => |it| it.view.failed as f64,
        "since" => |it| it.since.as_ms(),
        "age" => |it| {
            -it.running_since
                .map_or(f64::MAX, odeon_observe::Date::as_ms)
        },
        "name" | "type" | "node" | "job" | "id" | "state" => {
            let text: fn(&Actor) -> String = match column {
                "name" => |it| it.title(),
                "type" => |it| it.view.actor.clone(),
                "node" => |it| it.node.clone(),
                "job" => |it| it.job.clone(),
                "state" => |it| it.state.word().to_owned(),
                _ => |it| it.view.id.to_string(),
            };
            actors.sort_by_cached_key(|actor| (text(actor), actor.id()));
            if descending {
                actors.reverse();
            }
            return;
        }
        _ => return by_badness(actors),
    };
    actors.sort_by(|a, b| {
        let order = number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal);
        let order = if descending { order.reverse() } else { order };
        order.then(a.id().cmp(&b.id()))
    });
}

fn groups(actors: &[&Actor], by: &str) -> Vec<told::ActorGroup> {
    let mut groups: BTreeMap<String, Vec<&Actor>> = BTreeMap::new();
    for actor in actors {
        let key = match by {
            "node" => actor.node.clone(),
            "job" => actor.job.clone(),
            _ => actor.view.actor.clone(),
        };
        groups.entry(key).or_default().push(actor);
    }
    let group = |(key, rows): (String, Vec<&Actor>)| {
        let queued = || rows.iter().map(|row| u64::from(row.view.queued));
        let worst = rows.iter().map(|row| row.state).max();
        told::ActorGroup {
            key,
            count: rows.len() as u64,
            worst: worst.map_or("idle", |state| state.word()).to_owned(),
            mailbox: told::GroupMailbox {
                sum: queued().sum(),
                max: queued().max().unwrap_or(0),
            },
            rate: rounded(rows.iter().map(|row| row.rate).sum()),
            busy: rounded(rows.iter().map(|row| row.busy).sum::<f64>() / rows.len() as f64),
            failed: rows.iter().map(|row| row.view.failed).sum(),
            restarts: rows.iter().map(|row| u64::from(row.restarts())).sum(),
        }
    };
    groups.into_iter().map(group).collect()
}
