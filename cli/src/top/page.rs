//! The pages: which rows each of them has.

use std::cmp::Ordering;

use odeon_client::inspect::{
    ActorRow, Cluster, Envelope, Event, Jobs, Link, Memory, Node, Now, Problem, Problems, Run,
    Subject, Transfers, Waiting,
};
use odeon_client::{Page, View};

use super::model::{Model, Order};
use super::rows::{Cell, Column, Opens, Row, Section};
use super::signs::{self, Tone};
use super::{machines, mesh};
use crate::figures::{self, age, bytes, count, measured, percent, short};

/// Places of a curve in a row.
const CURVE: usize = 40;

/// The sections of a page.
pub(super) fn sections(page: &Envelope<Page>, model: &Model) -> Vec<Section> {
    let now = model.there();
    match &page.data {
        Page::Now(page) => of_now(page, now),
        Page::Cluster(page) => of_cluster(page, now),
        Page::Actors(page) => vec![actors(&page.rows, model)],
        Page::Jobs(page) => vec![jobs(page, now)],
        Page::Transfers(page) => transfers(page, now),
        Page::Events(page) => vec![Section {
            empty: nothing("has happened", model.filter()),
            ..events(String::new(), page.events.iter().rev(), now)
        }],
        Page::Problems(page) => problems(page, now),
        Page::Runs(page) => match page.runs.as_slice() {
            [] => vec![Section {
                title: String::new(),
                columns: vec![],
                rows: vec![],
                empty: "nothing has told of a run: see \"Telling more\" in docs/inspection.md"
                    .to_owned(),
            }],
            runs => runs.iter().flat_map(|it| run(it, now)).collect(),
        },
    }
}

fn nothing(what: &str, filter: &str) -> String {
    match filter {
        "" => format!("nothing {what} yet"),
        filter => format!("nothing {what} for which `{filter}` holds: Esc clears the filter"),
    }
}

pub(super) fn row(key: String, cells: Vec<Cell>, opens: Opens) -> Row {
    Row { key, cells, opens }
}

pub(super) fn cell(text: impl AsRef<str>) -> Cell {
    Cell::new(text)
}

pub(super) fn dim(text: impl AsRef<str>) -> Cell {
    Cell::toned(text, Tone::Dim)
}

/// The target that a subject leads to.
pub(super) fn about(subject: Option<&Subject>) -> Opens {
    match subject {
        Some(subject) if subject.kind == "actor" => Opens::Actor(subject.id.clone()),
        _ => Opens::More,
    }
}

fn of_now(page: &Now, now: f64) -> Vec<Section> {
    let numbers = page.series.iter().map(|series| {
        let values: Vec<f64> = series.points.iter().map(|(_, value)| *value).collect();
        let last = values.last().copied();
        let last = last.map_or_else(|| "-".to_owned(), |it| figures::value(it, &series.unit));
        let cells = vec![
            cell(&series.title),
            cell(last),
            Cell::toned(figures::spark(&values, CURVE), Tone::Busy),
        ];
        row(format!("number {}", series.name), cells, Opens::More)
    });
    let mut sections = vec![
        Section {
            title: "Problems".to_owned(),
            columns: vec![
                Column::text("", 7, 9),
                Column::text("", 12, 200),
                Column::time("").spare(1),
            ],
            rows: page.problems.iter().map(|it| problem(it, now)).collect(),
            empty: "\u{2713} nothing is wrong".to_owned(),
        },
        Section {
            title: "Numbers".to_owned(),
            columns: vec![
                Column::text("", 10, 30),
                Column::number(""),
                Column::text("", 8, CURVE).spare(1),
            ],
            rows: numbers.collect(),
            empty: "no numbers yet".to_owned(),
        },
        nodes(&page.nodes, now),
        events("Last events".to_owned(), page.events.iter().rev(), now),
    ];
    if !page.waiting.is_empty() {
        sections.insert(1, waiting(&page.waiting, now));
    }
    sections
}

/// The actors that wait, each with whom it waits for, to the end.
fn waiting(of: &[Waiting], now: f64) -> Section {
    let rows = of.iter().map(|it| {
        let mut words = it.subject.name.clone();
        for link in &it.chain {
            words += &format!(" > {}", link.subject.name);
            if !link.message.is_empty() {
                words += &format!(" ({})", link.message);
            }
        }
        let (state, tone) = match it.deadlock {
            true => ("error", Tone::Failed),
            false => ("waiting", Tone::Waiting),
        };
        let cells = vec![
            Cell::state(state),
            Cell::toned(words, tone),
            dim(age(now - it.since)),
        ];
        let opens = Opens::Actor(it.subject.id.clone());
        row(format!("waiting {}", it.subject.id), cells, opens)
    });
    Section {
        title: "Waiting".to_owned(),
        columns: vec![
            Column::text("", 7, 9),
            Column::text("", 12, 200),
            Column::time("").spare(1),
        ],
        rows: rows.collect(),
        empty: String::new(),
    }
}

fn problem(of: &Problem, now: f64) -> Row {
    let key = format!(
        "problem {} {:?}",
        of.rule,
        of.subjects.first().map(|it| &it.id)
    );
    let cells = vec![
        Cell::state(&of.severity),
        Cell::toned(&of.sentence, signs::of(&of.severity).1),
        dim(age(now - of.since)),
    ];
    row(key, cells, about(of.subjects.first()))
}

/// Those of now, each with what is done and what people can do, and those that are over.
fn problems(page: &Problems, now: f64) -> Vec<Section> {
    let columns = || {
        vec![
            Column::text("", 7, 9),
            Column::text("", 12, 200),
            Column::time("").spare(1),
        ]
    };
    let shown = page.now.iter().flat_map(|it| {
        let first = problem(&it.problem, now);
        let more = [("done", &it.problem.done), ("you can", &it.problem.advice)];
        let more: Vec<_> = more
            .iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(word, text)| {
                let opens = about(it.problem.subjects.first());
                row(
                    format!("{} {word}", first.key),
                    vec![dim(word), dim(text), dim("")],
                    opens,
                )
            })
            .collect();
        std::iter::once(first).chain(more)
    });
    let past = page.past.iter().map(|it| {
        let lasted = format!("{}, for {}", age(now - it.ended), age(it.ended - it.since));
        let cells = vec![Cell::state("over"), cell(&it.sentence), dim(lasted)];
        let key = format!("past {} {}", it.rule, it.since);
        row(key, cells, about(it.subject.as_ref()))
    });
    vec![
        Section {
            title: "Problems".to_owned(),
            columns: columns(),
            rows: shown.collect(),
            empty: "\u{2713} nothing is wrong".to_owned(),
        },
        Section {
            title: "Over".to_owned(),
            columns: columns(),
            rows: past.collect(),
            empty: "nothing was wrong".to_owned(),
        },
    ]
}

fn memory(of: &Memory) -> String {
    format!("{} / {}", measured(&of.used, bytes), bytes(of.total as f64))
}

fn nodes(nodes: &[Node], now: f64) -> Section {
    let rows = nodes.iter().map(|node| {
        let mut roles = vec![];
        if node.leads {
            roles.push("leads");
        }
        if node.votes {
            roles.push("votes");
        }
        let clock = node.clock.as_ref();
        let cells = vec![
            cell(&node.name),
            Cell::state(&node.state),
            dim(age(now - node.since)),
            cell(measured(&node.cpu, |part| {
                format!("{} of {}", percent(part), node.cores)
            })),
            cell(memory(&node.memory)),
            cell(count(node.devices.len() as u64)),
            cell(count(node.actors)),
            cell(count(node.processes.len() as u64)),
            cell(measured(&node.rtt_us, |us| figures::span(us / 1e3))),
            cell(clock.map_or_else(String::new, |it| figures::clock_error(Some(it.error_us)))),
            dim(roles.join(", ")),
            dim(&node.address),
            dim(&node.version),
        ];
        let opens = Opens::Page(View::Actors, format!("node:{}", quoted(&node.name)));
        row(format!("node {}", node.name), cells, opens)
    });
    Section {
        title: "Nodes".to_owned(),
        columns: vec![
            Column::text("node", 6, 30),
            Column::text("state", 6, 12),
            Column::time("for").spare(4),
            Column::text("cpu", 6, 14).spare(1),
            Column::text("memory", 10, 24).spare(2),
            Column::number("devices").spare(5),
            Column::number("actors").spare(1),
            Column::number("processes").spare(6),
            Column::number("round trip").spare(7),
            Column::number("clock").spare(8),
            Column::text("", 5, 14).spare(9),
            Column::text("address", 8, 24).spare(10),
            Column::text("release", 5, 12).spare(11),
        ],
        rows: rows.collect(),
        empty: "no node is seen yet".to_owned(),
    }
}

/// A value of a filter, as one word.
pub(super) fn quoted(name: &str) -> String {
    match name.contains(char::is_whitespace) {
        true => format!("\"{name}\""),
        false => name.to_owned(),
    }
}

fn events<'a>(title: String, events: impl Iterator<Item = &'a Event>, now: f64) -> Section {
    let rows = events.map(|event| {
        let tone = signs::of(&event.severity).1;
        let cells = vec![
            dim(figures::clock(event.at)),
            dim(age(now - event.at)),
            Cell::toned(
                format!("{} {}", signs::of_severity(&event.severity), event.kind),
                tone,
            ),
            cell(&event.sentence),
        ];
        row(format!("event {}", event.seq), cells, Opens::More)
    });
    Section {
        title,
        columns: vec![
            Column::text("at (UTC)", 8, 8).spare(3),
            Column::time("ago").spare(2),
            Column::text("kind", 9, 12).spare(1),
            Column::text("what", 12, 300),
        ],
        rows: rows.collect(),
        empty: "nothing has happened yet".to_owned(),
    }
}

fn of_cluster(page: &Cluster, now: f64) -> Vec<Section> {
    let devices = page
        .nodes
        .iter()
        .flat_map(|node| &node.devices)
        .map(|device| {
            let holders = device.leases.iter();
            let holders = holders.map(|it| format!("{} {}", it.holder.name, percent(it.share)));
            let cells = vec![
                cell(&device.id),
                Cell::state(&device.state),
                cell(&device.name),
                cell(measured(&device.utilisation, percent)),
                cell(memory(&device.memory)),
                cell(holders.collect::<Vec<_>>().join(", ")),
            ];
            let opens = Opens::Page(View::Actors, format!("device:{}", quoted(&device.id)));
            row(format!("device {}", device.id), cells, opens)
        });
    let devices = Section {
        title: "Devices".to_owned(),
        columns: vec![
            Column::text("device", 6, 30),
            Column::text("state", 6, 10),
            Column::text("model", 6, 24).spare(3),
            Column::number("in use").spare(2),
            Column::text("memory", 8, 24).spare(1),
            Column::text("held by", 8, 60).spare(1),
        ],
        rows: devices.collect(),
        empty: "no device is seen".to_owned(),
    };
    let processes = page
        .nodes
        .iter()
        .flat_map(|node| &node.processes)
        .map(|process| {
            let cells = vec![
                cell(&process.id),
                cell(&process.node),
                cell(
                    process
                        .pid
                        .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                ),
                cell(&process.kind),
                Cell::state(&process.state),
                dim(age(now - process.started)),
                cell(measured(&process.cpu, percent)),
                cell(measured(&process.rss, bytes)),
                cell(count(process.actors)),
                cell(process.job.as_deref().unwrap_or_default()),
            ];
            let opens = Opens::Page(View::Actors, format!("process:{}", quoted(&process.id)));
            row(format!("process {}", process.id), cells, opens)
        });
    let processes = Section {
        title: "Processes".to_owned(),
        columns: vec![
            Column::text("process", 7, 24),
            Column::text("node", 6, 24).spare(1),
            Column::number("pid"),
            Column::text("kind", 6, 10).spare(2),
            Column::text("state", 6, 12).spare(5),
            Column::time("for").spare(4),
            Column::number("cpu").spare(1),
            Column::number("memory").spare(1),
            Column::number("actors").spare(2),
            Column::text("job", 4, 24).spare(3),
        ],
        rows: processes.collect(),
        empty: "no process is seen".to_owned(),
    };
    let links = Section {
        title: "Links".to_owned(),
        columns: vec![
            Column::text("from", 6, 24),
            Column::text("to", 6, 24),
            Column::number("round trip"),
            Column::number("queued").spare(1),
            Column::number("in flight").spare(3),
            Column::number("resumed").spare(2),
            Column::number("silent for").spare(2),
            Column::text("last break", 8, 60).spare(4),
        ],
        rows: page.links.iter().map(link).collect(),
        empty: "no links: there is one node".to_owned(),
    };
    let mut sections = vec![nodes(&page.nodes, now)];
    if !devices.rows.is_empty() {
        sections.push(devices);
    }
    sections.extend([processes, links]);
    sections
}

fn link(of: &Link) -> Row {
    let cells = vec![
        cell(&of.from),
        cell(&of.to),
        cell(measured(&of.rtt_us, |us| figures::span(us / 1e3))),
        cell(bytes(of.queued_bytes as f64)),
        cell(bytes(of.unacknowledged_bytes as f64)),
        cell(count(u64::from(of.resumed))),
        cell(figures::span(of.silent_ms)),
        dim(of.last_break.as_deref().unwrap_or_default()),
    ];
    row(format!("link {} {}", of.from, of.to), cells, Opens::More)
}

fn actors(actors: &[ActorRow], model: &Model) -> Section {
    let now = model.there();
    let rows = actors.iter().map(|actor| {
        let (doing, since) = signs::doing(actor);
        let tone = match actor.state.as_str() {
            "failed" => Tone::Failed,
            "waiting" => Tone::Waiting,
            _ => Tone::Plain,
        };
        let full = f64::from(actor.mailbox.len) >= 0.8 * f64::from(actor.mailbox.max.max(1));
        let mailbox = match full {
            true => Tone::Waiting,
            false => Tone::Plain,
        };
        let cells = vec![
            Cell::state(&actor.state),
            cell(signs::title(actor)),
            Cell::toned(count(u64::from(actor.mailbox.len)), mailbox),
            cell(format!("{}/s", short(actor.rate))),
            cell(percent(actor.busy)),
            Cell::toned(doing, tone),
            cell(since.map_or_else(String::new, |since| age(now - since))),
            cell(match actor.restarts {
                0 => String::new(),
                n => n.to_string(),
            }),
            dim(&actor.node),
            dim(&actor.process),
            dim(actor.devices.join(" ")),
            dim(&actor.r#type),
            dim(&actor.id),
        ];
        row(
            format!("actor {}", actor.id),
            cells,
            Opens::Actor(actor.id.clone()),
        )
    });
    let mut columns = vec![
        Column::text("state", 8, 12),
        Column::text("name", 8, 36),
        Column::number("mailbox").spare(2),
        Column::number("rate").spare(1),
        Column::number("busy").spare(4),
        Column::text("doing", 10, 50).spare(1),
        Column::time("for").spare(3),
        Column::number("restarts").spare(5),
        Column::text("node", 6, 20).spare(6),
        Column::text("process", 4, 16).spare(7),
        Column::text("device", 6, 16).spare(8),
        Column::text("type", 8, 36).spare(9),
        Column::text("id", 5, 20).spare(10),
    ];
    // What they are sorted by stays in sight.
    for column in &mut columns {
        if column.title == model.order.word() {
            *column = column.spare(0);
        }
    }
    Section {
        title: String::new(),
        columns,
        rows: rows.collect(),
        empty: match model.filter() {
            "" => "no actors run; a shows those of the daemons".to_owned(),
            filter => format!("no actor matches `{filter}`: Esc clears the filter"),
        },
    }
}

/// The worse, the higher.
fn badness(state: &str) -> usize {
    let states = [
        "stopped",
        "idle",
        "busy",
        "starting",
        "waiting",
        "restarting",
        "failed",
    ];
    states.iter().position(|it| *it == state).unwrap_or(0)
}

/// Sorts actors as people have asked for it.
pub(super) fn sort(rows: &mut [ActorRow], order: Order) {
    let number = |row: &ActorRow| match order {
        Order::State => badness(&row.state) as f64,
        Order::Rate => row.rate,
        Order::Mailbox => f64::from(row.mailbox.len),
        Order::Busy => row.busy,
        Order::Age => row.current.as_ref().map_or(f64::MIN, |it| -it.since),
        Order::Restarts => f64::from(row.restarts),
        Order::Name | Order::Type | Order::Node => 0.0,
    };
    let word = |row: &ActorRow| match order {
        Order::Name => signs::title(row),
        Order::Type => row.r#type.clone(),
        Order::Node => row.node.clone(),
        _ => String::new(),
    };
    let by_id = |a: &ActorRow, b: &ActorRow| (a.id.len(), &a.id).cmp(&(b.id.len(), &b.id));
    rows.sort_by(|a, b| {
        let numbers = number(b).partial_cmp(&number(a));
        let numbers = numbers.unwrap_or(Ordering::Equal);
        let words = || word(a).cmp(&word(b));
        numbers.then_with(words).then_with(|| by_id(a, b))
    });
}

fn jobs(page: &Jobs, now: f64) -> Section {
    let rows = page.jobs.iter().map(|job| {
        let why = job.refusal.as_ref().map(|it| &it.sentence);
        let why = why.or_else(|| job.exit.as_ref().map(|it| &it.sentence));
        let cells = vec![
            cell(&job.id),
            cell(&job.name),
            Cell::state(&job.state),
            dim(age(now - job.since)),
            cell(job.node.as_deref().unwrap_or_default()),
            cell(count(job.actors)),
            cell(format!("{} of {}", job.attempt, job.attempts)),
            dim(&job.by),
            cell(&job.needs),
            cell(why.map_or("", String::as_str)),
        ];
        row(format!("job {}", job.id), cells, Opens::More)
    });
    Section {
        title: String::new(),
        columns: vec![
            Column::text("job", 4, 10),
            Column::text("name", 8, 30).spare(1),
            Column::text("state", 8, 14),
            Column::time("for").spare(2),
            Column::text("node", 6, 20).spare(3),
            Column::number("actors").spare(4),
            Column::text("try", 6, 10).spare(6),
            Column::text("by", 4, 16).spare(7),
            Column::text("needs", 6, 30).spare(5),
            Column::text("why", 10, 80).spare(1),
        ],
        rows: rows.collect(),
        empty: "no jobs: odeon submit sends one to a cluster; a run of this machine has none"
            .to_owned(),
    }
}

fn transfers(page: &Transfers, now: f64) -> Vec<Section> {
    let boards = page.boards.iter().map(|board| {
        let newest = board.versions.last();
        let whole = board.rows.iter().filter(|row| {
            let last = row.cells.last();
            last.is_some_and(|cell| ["whole", "used"].contains(&cell.state.as_str()))
        });
        let cells = vec![
            cell(&board.name),
            cell(&board.source.name),
            cell(newest.map_or_else(|| "-".to_owned(), ToString::to_string)),
            cell(format!("{} of {}", whole.count(), board.rows.len())),
        ];
        row(format!("board {}", board.id), cells, Opens::More)
    });
    let boards = Section {
        title: "Who has which version".to_owned(),
        columns: vec![
            Column::text("what", 8, 40),
            Column::text("from", 8, 30).spare(1),
            Column::number("newest"),
            Column::text("have it", 8, 20),
        ],
        rows: boards.collect(),
        empty: "nothing is published".to_owned(),
    };
    let copies = page.copies.iter().map(|copy| {
        let state = match (copy.ok, copy.end) {
            (false, _) => "failed",
            (true, None) => "running",
            (true, Some(_)) => "ok",
        };
        let took = copy.end.unwrap_or(now) - copy.start;
        let cells = vec![
            Cell::state(state),
            dim(age(now - copy.start)),
            cell(&copy.from.name),
            cell(&copy.to.name),
            cell(bytes(copy.bytes as f64)),
            cell(figures::span(took.max(0.0))),
            cell(measured(&copy.gb_per_s, |rate| {
                format!("{} GB/s", short(rate))
            })),
            dim(&copy.route),
            dim(&copy.what),
            Cell::toned(copy.error.as_deref().unwrap_or_default(), Tone::Failed),
        ];
        row(format!("copy {}", copy.id), cells, Opens::More)
    });
    let copies = Section {
        title: "Copies".to_owned(),
        columns: vec![
            Column::text("state", 4, 10),
            Column::time("ago").spare(2),
            Column::text("from", 8, 30),
            Column::text("to", 8, 30),
            Column::number("bytes"),
            Column::number("took").spare(1),
            Column::number("rate").spare(1),
            Column::text("route", 6, 14).spare(4),
            Column::text("what", 6, 30).spare(5),
            Column::text("why", 6, 40).spare(3),
        ],
        rows: copies.collect(),
        empty: "nothing was copied between nodes".to_owned(),
    };
    vec![boards, copies]
}

/// One workload: what it is at, and its curves.
fn run(run: &Run, now: f64) -> Vec<Section> {
    let progress = run.progress.as_ref().map_or_else(String::new, |it| {
        format!(", {} of {} {}", short(it.done), short(it.of), it.unit)
    });
    let state = signs::worded(&run.state);
    let title = format!(
        "{}: {state} for {}{progress}",
        figures::plain(&run.name),
        age(run.ended.unwrap_or(now) - run.started)
    );
    let facts = run
        .facts
        .iter()
        .map(|fact| (fact.name.clone(), figures::value(fact.value, &fact.unit)));
    let store = run.store.as_ref().map(|it| {
        let store = format!(
            "{} of {} rows, {} wait, {} in use",
            count(it.rows),
            count(it.most),
            count(it.waiting),
            count(it.in_use)
        );
        ("store".to_owned(), store)
    });
    let sources = run.sources.iter().map(|it| {
        let source = format!(
            "{} {}, {} of {} ready",
            short(it.rate),
            it.unit,
            short(it.buffer),
            short(it.buffer_max)
        );
        (it.name.clone(), source)
    });
    let facts = facts.chain(store).chain(sources).map(|(name, value)| {
        let key = format!("fact {} {name}", run.id);
        row(key, vec![cell(name), cell(value)], Opens::More)
    });
    let curves = run.curves.iter().map(|curve| {
        let values: Vec<f64> = curve.points.iter().map(|(_, value)| *value).collect();
        let last = curve.points.last();
        let cells = vec![
            cell(&curve.title),
            cell(last.map_or_else(
                || "-".to_owned(),
                |(_, it)| figures::value(*it, &curve.unit),
            )),
            dim(match (curve.x.as_str(), last) {
                ("step", Some((step, _))) => format!("step {}", short(*step)),
                _ => String::new(),
            }),
            Cell::toned(figures::spark(&values, CURVE), Tone::Busy),
        ];
        row(
            format!("curve {} {}", run.id, curve.name),
            cells,
            Opens::More,
        )
    });
    let rollouts = run.rollouts.iter().map(|rollout| {
        let cells = vec![
            cell(&rollout.name),
            cell(
                rollout
                    .version
                    .map_or_else(|| "-".to_owned(), |it| it.to_string()),
            ),
            cell(format!(
                "{} under way; last minute: {} done, {} dropped",
                rollout.going, rollout.done, rollout.dropped
            )),
        ];
        let key = format!("rollout {} {}", run.id, rollout.subject.id);
        row(key, cells, about(Some(&rollout.subject)))
    });
    let section = |title: String, columns: Vec<Column>, rows: Vec<Row>, empty: &str| Section {
        title,
        columns,
        rows,
        empty: empty.to_owned(),
    };
    let facts = section(
        title,
        vec![Column::text("", 8, 30), Column::text("", 8, 60)],
        facts.collect(),
        "it has told no numbers yet",
    );
    let curves = section(
        String::new(),
        vec![
            Column::text("curve", 8, 30),
            Column::number("last"),
            Column::text("at", 4, 14).spare(2),
            Column::text("", 8, CURVE).spare(1),
        ],
        curves.collect(),
        "no curves yet",
    );
    let rollouts = section(
        String::new(),
        vec![
            Column::text("rollout", 8, 30),
            Column::number("version"),
            Column::text("trajectories", 8, 50).spare(1),
        ],
        rollouts.collect(),
        "",
    );
    let mut sections = vec![facts, curves];
    if !rollouts.rows.is_empty() {
        sections.push(rollouts);
    }
    sections.extend(mesh::sections(run));
    sections.extend(machines::sections(run));
    sections
}
