//! The panel beside a page: more of the row that was opened.

use odeon_client::Page;
use odeon_client::inspect::{ActorDetail, Envelope, Event, Job, Quantiles, Run};

use super::model::{Model, Panel};
use super::rows::{self, Opens};
use super::signs::{self, Tone};
use crate::figures::{self, age, bytes, count, percent, plural, short, span};

/// A line, and how far it is to the right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) indent: usize,
    pub(super) text: String,
    pub(super) tone: Tone,
}

/// Lines that are put together.
#[derive(Default)]
struct Teller(Vec<Told>);

impl Teller {
    fn put(&mut self, indent: usize, tone: Tone, text: impl AsRef<str>) {
        let text = figures::plain(text.as_ref());
        self.0.push(Told { indent, text, tone });
    }

    fn say(&mut self, text: impl AsRef<str>) {
        self.put(0, Tone::Plain, text);
    }

    fn title(&mut self, text: impl AsRef<str>) {
        self.put(0, Tone::Plain, "");
        self.put(0, Tone::Strong, text);
    }

    fn below(&mut self, text: impl AsRef<str>) {
        self.put(2, Tone::Plain, text);
    }
}

/// Spans and lives of an actor that are shown.
const SPANS: usize = 12;
const LIVES: usize = 8;

/// The lines of a panel.
pub(super) fn lines(panel: &Panel, model: &Model) -> Vec<Told> {
    let mut teller = Teller::default();
    match (&panel.of, &panel.detail) {
        (Opens::Actor(id), None) => teller.put(0, Tone::Dim, format!("asking for {id}")),
        (Opens::Actor(_), Some(Ok(detail))) => actor(&mut teller, detail, model),
        (Opens::Actor(_), Some(Err(why))) => teller.put(0, Tone::Failed, why),
        _ => more(&mut teller, &panel.key, model),
    }
    teller.0
}

fn actor(teller: &mut Teller, page: &Envelope<ActorDetail>, model: &Model) {
    let detail = &page.data;
    let row = &detail.row;
    // What it shows is as old as itself.
    let now = page.captured_at;
    let ago = |since: f64| age(now - since);
    teller.put(0, Tone::Strong, signs::title(row));
    let (_, tone) = signs::of(&row.state);
    teller.put(
        0,
        tone,
        format!("{} for {}", signs::worded(&row.state), ago(row.since)),
    );
    if let Some(ended) = &row.ended {
        teller.put(
            0,
            tone,
            format!("{}, {} ago", ended.sentence, ago(ended.at)),
        );
    }
    if let Some(current) = &row.current {
        teller.say(format!(
            "handles {} for {}",
            current.message,
            ago(current.since)
        ));
    }
    if !detail.chain.is_empty() {
        let tone = if detail.circle {
            Tone::Failed
        } else {
            Tone::Waiting
        };
        teller.title(if detail.circle {
            "Waits in a circle"
        } else {
            "Waits for"
        });
        for (depth, link) in detail.chain.iter().enumerate() {
            let how = match link.how.as_str() {
                "room" => "room at ",
                _ => "",
            };
            let message = match link.message.as_str() {
                "" => String::new(),
                message => format!(" to {message}"),
            };
            let text = format!("{how}{}{message}, {}", link.subject.name, ago(link.since));
            teller.put(2 + depth.min(8), tone, text);
        }
        if detail.circle {
            teller.put(2, tone, "they wait for each other");
        }
    }
    teller.title("Place");
    let above: Vec<_> = detail.lineage.iter().map(|it| it.name.as_str()).collect();
    teller.below(format!("type {}", row.r#type));
    teller.below(format!("id {}", row.id));
    teller.below(format!(
        "under {}",
        above[..above.len().saturating_sub(1)].join(" > ")
    ));
    let devices = row.devices.iter().map(|device| format!(", {device}"));
    let devices = devices.collect::<String>();
    teller.below(format!("on {}, process {}{devices}", row.node, row.process));
    if let Some(placement) = &detail.placement {
        teller.below(&placement.sentence);
    }
    if let Some(job) = &row.job {
        teller.below(format!("job {job}"));
    }
    teller.title("Messages");
    let mailbox = &row.mailbox;
    teller.below(format!(
        "{} received, {} handled, {} failed, {}/s; {} of {} in its mailbox, {}",
        count(row.received),
        count(row.handled),
        count(row.failed),
        short(row.rate),
        count(u64::from(mailbox.len)),
        count(u64::from(mailbox.max)),
        bytes(mailbox.bytes as f64)
    ));
    let (busy, waiting) = (percent(row.busy), percent(row.waiting));
    teller.below(format!("busy {busy}, waiting {waiting}"));
    let (handled, others): (Vec<_>, Vec<_>) = detail
        .messages
        .iter()
        .partition(|it| it.count + it.failed > 0);
    for message in handled {
        let tone = if message.failed > 0 {
            Tone::Failed
        } else {
            Tone::Plain
        };
        let failed = match message.failed {
            0 => String::new(),
            n => format!(", {} failed", count(n)),
        };
        teller.put(
            2,
            tone,
            format!("{} {}{failed}", message.name, count(message.count)),
        );
        teller.put(
            4,
            Tone::Dim,
            format!("handled in {}", quantiles(&message.handling_us)),
        );
        teller.put(
            4,
            Tone::Dim,
            format!("in the mailbox {}", quantiles(&message.waiting_us)),
        );
    }
    if !others.is_empty() {
        let names: Vec<_> = others.iter().map(|it| it.name.as_str()).collect();
        teller.put(2, Tone::Dim, format!("none yet: {}", names.join(", ")));
    }
    if detail.children.count > 0 {
        let states = detail.children.by_state.iter();
        let states: Vec<_> = states
            .map(|(state, n)| format!("{} {}", signs::of(state).0, plural_state(*n, state)))
            .collect();
        teller.title(plural(detail.children.count, "actor") + " below it");
        teller.below(states.join(", "));
    }
    lives(teller, detail, now);
    spans(teller, detail, model, now);
}

fn plural_state(n: u64, state: &str) -> String {
    format!("{} {state}", count(n))
}

fn lives(teller: &mut Teller, detail: &ActorDetail, now: f64) {
    if detail.lives.len() > 1 || detail.lives.iter().any(|life| life.cause.is_some()) {
        teller.title(plural(detail.lives.len() as u64, "life").replace("lifes", "lives"));
    }
    for life in detail.lives.iter().rev().take(LIVES) {
        let lasted = span((life.to.unwrap_or(now) - life.from).max(0.0));
        match (&life.cause, life.to) {
            (Some(cause), _) => {
                let text = format!(
                    "{} {} after {lasted}: {cause}",
                    signs::of("failed").0,
                    life.number
                );
                teller.put(2, Tone::Failed, text);
                life.chain
                    .iter()
                    .for_each(|cause| teller.put(6, Tone::Dim, format!("because {cause}")));
            }
            (None, Some(_)) => teller.below(format!("{} ended after {lasted}", life.number)),
            (None, None) if detail.lives.len() > 1 => {
                teller.below(format!("{} for {lasted}", life.number));
            }
            (None, None) => {}
        }
    }
}

fn spans(teller: &mut Teller, detail: &ActorDetail, model: &Model, now: f64) {
    if detail.spans.is_empty() {
        return;
    }
    teller.title("Last spans");
    for it in detail.spans.iter().take(SPANS) {
        let took = span((it.end.unwrap_or(now) - it.start).max(0.0));
        let (tone, fate) = match (it.ok, it.end) {
            (false, _) => (Tone::Failed, " failed"),
            (true, None) => (Tone::Busy, " goes on"),
            (true, Some(_)) => (Tone::Plain, ""),
        };
        teller.put(2, tone, format!("{} {} {took}{fate}", it.kind, it.name));
        if model.size.0 >= WIDE {
            teller.put(4, Tone::Dim, format!("trace {}", it.trace));
        }
    }
}

/// Where a page has room for a panel beside it.
pub(super) const WIDE: u16 = 100;

fn quantiles(of: &Quantiles) -> String {
    match (of.p50, of.p99) {
        (Some(half), Some(most)) => {
            format!("p50 {}, p99 {}", span(half / 1e3), span(most / 1e3))
        }
        _ => "not measured".to_owned(),
    }
}

/// More of a row that is on the page itself.
fn more(teller: &mut Teller, key: &str, model: &Model) {
    let sections = model.sections();
    let Some(row) = rows::all(&sections).find(|row| row.key == key) else {
        teller.put(0, Tone::Dim, "it is not there any more");
        return;
    };
    let page = model.shown.as_ref().map(|page| &page.data);
    let number = key.strip_prefix("event ").and_then(|seq| seq.parse().ok());
    let events = match page {
        Some(Page::Events(page)) => page.events.as_slice(),
        Some(Page::Now(page)) => page.events.as_slice(),
        _ => &[],
    };
    if let Some(found) = events.iter().find(|it| Some(it.seq) == number) {
        return event(teller, found, model);
    }
    match page {
        Some(Page::Jobs(page)) => {
            let found = page.jobs.iter().find(|it| format!("job {}", it.id) == key);
            if let Some(found) = found {
                return job(teller, found, model.there());
            }
        }
        Some(Page::Runs(page)) => {
            let mut words = key.split(' ').skip(1);
            let id = words.next();
            if let Some(found) = page.runs.iter().find(|it| Some(it.id.as_str()) == id) {
                return run(teller, found);
            }
        }
        _ => {}
    }
    // All of what stands in the row, which may have been cut there.
    let section = sections.iter().find(|section| section.rows.contains(row));
    for (at, cell) in row.cells.iter().enumerate() {
        let title = section.and_then(|section| section.columns.get(at));
        let title = title.map_or("", |column| column.title);
        match (title, cell.text.as_str()) {
            (_, "") => {}
            ("", text) => teller.put(0, cell.tone, text),
            (title, text) => teller.put(0, cell.tone, format!("{title}: {text}")),
        }
    }
}

fn event(teller: &mut Teller, event: &Event, model: &Model) {
    let (sign, tone) = signs::of(&event.severity);
    let at = figures::clock(event.at);
    teller.put(0, tone, format!("{sign} {} {}", event.severity, event.kind));
    teller.put(
        0,
        Tone::Dim,
        format!("{at} UTC, {} ago", age(model.there() - event.at)),
    );
    teller.say("");
    teller.say(&event.sentence);
    for cause in &event.chain {
        teller.put(2, tone, format!("because {cause}"));
    }
    if let Some(subject) = &event.subject {
        teller.say("");
        teller.put(0, Tone::Dim, format!("{} {}", subject.kind, subject.name));
        if subject.id != subject.name {
            teller.put(0, Tone::Dim, format!("id {}", subject.id));
        }
    }
}

fn job(teller: &mut Teller, job: &Job, now: f64) {
    let (_, tone) = signs::of(&job.state);
    teller.put(0, Tone::Strong, format!("{} {}", job.id, job.name));
    teller.put(
        0,
        tone,
        format!("{} for {}", signs::worded(&job.state), age(now - job.since)),
    );
    let arguments = job.arguments.iter().map(|word| crate::print::quoted(word));
    let words: Vec<_> = std::iter::once(job.program.clone())
        .chain(arguments)
        .collect();
    teller.say(words.join(" "));
    teller.say(format!(
        "by {}, namespace {}, priority {}",
        job.by, job.namespace, job.priority
    ));
    if !job.needs.is_empty() {
        teller.say(format!("needs {}", job.needs));
    }
    if let Some(refusal) = &job.refusal {
        teller.title("Why it waits");
        teller.put(2, Tone::Waiting, &refusal.sentence);
        for row in &refusal.rows {
            teller.below(format!(
                "{}: {}; asked {}, free {}",
                row.node, row.why, row.asked, row.free
            ));
        }
    }
    if let Some(exit) = &job.exit {
        teller.title("How it ended");
        teller.put(2, tone, &exit.sentence);
        exit.chain
            .iter()
            .for_each(|cause| teller.put(4, tone, format!("because {cause}")));
    }
    teller.title("Life");
    for phase in &job.phases {
        let lasted = phase.ms.map_or_else(|| age(now - phase.at), span);
        teller.below(format!("{} {lasted}", phase.name));
    }
}

fn run(teller: &mut Teller, run: &Run) {
    teller.put(0, Tone::Strong, &run.name);
    teller.put(0, signs::of(&run.state).1, signs::worded(&run.state));
    for (what, text) in [("recipe", &run.recipe), ("folder", &run.folder)] {
        if !text.is_empty() {
            teller.say(format!("{what} {text}"));
        }
    }
    for curve in &run.curves {
        let values: Vec<f64> = curve.points.iter().map(|(_, value)| *value).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        teller.title(&curve.title);
        if values.is_empty() {
            teller.below("no points yet");
            continue;
        }
        teller.put(2, Tone::Busy, figures::spark(&values, 36));
        let show = |value| figures::value(value, &curve.unit);
        teller.below(format!("from {} to {}", show(low), show(high)));
    }
}
