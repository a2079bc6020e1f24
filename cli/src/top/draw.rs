//! The look of the screen: a picture of what is known, in the cells of a terminal.

use odeon_client::View;
use odeon_client::inspect::Head;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::model::{Model, Phase};
use super::panel::{self, Told, WIDE};
use super::rows::{self, GAP, Line, Section};
use super::signs::{Colours, Tone};
use crate::figures::{self, age, count, plural, short};

/// Cells to write into, with what may be used for that.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    colours: Colours,
}

impl Canvas<'_> {
    /// Writes a text as far as there is room for it, and gives where it ended.
    fn put(&mut self, area: Rect, x: u16, y: u16, text: &str, style: Style) -> u16 {
        let (column, row) = (area.x.saturating_add(x), area.y.saturating_add(y));
        let inside = area.intersection(self.buffer.area);
        if row >= inside.bottom() || column >= inside.right() {
            return x;
        }
        let room = usize::from(inside.right() - column);
        let (end, _) = self.buffer.set_stringn(column, row, text, room, style);
        end - area.x
    }

    fn tone(&mut self, area: Rect, x: u16, y: u16, text: &str, tone: Tone) -> u16 {
        let style = tone.style(self.colours);
        self.put(area, x, y, text, style)
    }

    /// Parts beside each other, as many as there is room for.
    fn parts(&mut self, area: Rect, parts: &[(String, Tone)]) {
        let mut x = 0;
        for (text, tone) in parts {
            let gap = if x == 0 { 0 } else { GAP as u16 };
            let end = usize::from(x + gap) + rows::width(text);
            if end > usize::from(area.width) && x > 0 {
                return;
            }
            x = self.tone(area, x + gap, 0, text, *tone);
        }
    }
}

/// Where the parts of the screen are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    head: Rect,
    pages: Rect,
    body: Rect,
    panel: Option<Rect>,
    /// The text that is written, or why nothing is heard.
    note: Option<Rect>,
    foot: Rect,
}

impl Parts {
    /// The body with the panel.
    fn all(&self) -> Rect {
        match self.panel {
            Some(panel) if self.body.width == 0 => panel,
            Some(panel) => self.body.union(panel),
            None => self.body,
        }
    }
}

fn parts(area: Rect, model: &Model) -> Parts {
    let row = |y: u16, height: u16| Rect {
        y: area.y + y.min(area.height),
        height: height.min(area.height.saturating_sub(y)),
        ..area
    };
    let height = area.height;
    // What matters most stays where there is little room.
    let (head, pages, foot) = match height {
        0..=2 => (height.min(1), 0, 0),
        3 => (1, 0, 1),
        _ => (1, 1, 1),
    };
    let has_note = !note(model).0.is_empty() && height >= 3;
    let noted = u16::from(has_note);
    let top = head + pages;
    let body = height.saturating_sub(top + foot + noted);
    let mut parts = Parts {
        head: row(0, head),
        pages: row(head, pages),
        body: row(top, body),
        panel: None,
        note: has_note.then(|| row(top + body, 1)),
        foot: row(height.saturating_sub(foot), foot),
    };
    if model.panel.is_some() {
        let body = parts.body;
        if body.width >= WIDE {
            let beside = body.width * 2 / 5;
            parts.body.width = body.width - beside - 1;
            parts.panel = Some(Rect {
                x: body.x + body.width - beside,
                width: beside,
                ..body
            });
        } else {
            parts.panel = Some(body);
            parts.body = Rect::ZERO;
        }
    }
    parts
}

/// Draws all of it.
pub(crate) fn draw(model: &Model, colours: Colours, area: Rect, buffer: &mut Buffer) {
    let parts = parts(area, model);
    let mut canvas = Canvas { buffer, colours };
    if model.help && usize::from(parts.all().height) < KEYS.len() {
        return help(&mut canvas, area);
    }
    head(&mut canvas, parts.head, model);
    pages(&mut canvas, parts.pages, model);
    if model.help {
        help(&mut canvas, parts.all());
    } else {
        body(&mut canvas, parts.body, model);
        if let Some(area) = parts.panel {
            beside(&mut canvas, area, model);
        }
    }
    if let Some(area) = parts.note {
        let (text, tone) = note(model);
        canvas.tone(area, 0, 0, &text, tone);
    }
    foot(&mut canvas, parts.foot, model);
}

/// The age of what is seen, in words.
fn pulse(model: &Model) -> (String, Tone) {
    let old = (model.now - model.heard_at).max(0.0);
    match &model.phase {
        Phase::Connecting => ("\u{25cc} connecting".to_owned(), Tone::Starting),
        Phase::Live => (format!("\u{25cf} live {:.1} s ago", old / 1e3), Tone::Good),
        Phase::Paused => ("\u{25a1} paused".to_owned(), Tone::Waiting),
        Phase::Stale { since, .. } => (
            format!("! stale for {}", age(model.now - since)),
            Tone::Waiting,
        ),
        Phase::Refused(_) => ("\u{2717} refused".to_owned(), Tone::Failed),
    }
}

fn head(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let (pulse, tone) = pulse(model);
    let room = area.width.saturating_sub(rows::width(&pulse) as u16 + 1);
    let left = Rect {
        width: room,
        ..area
    };
    match &model.shown {
        Some(page) => canvas.parts(left, &numbers(&page.head)),
        None => canvas.parts(left, &[("odeon".to_owned(), Tone::Strong)]),
    }
    let right = match area.width as usize > rows::width(&pulse) {
        true => area.width - rows::width(&pulse) as u16,
        false => 0,
    };
    canvas.tone(area, right, 0, &pulse, tone);
}

/// The whole in a few numbers, the weightiest first.
fn numbers(head: &Head) -> Vec<(String, Tone)> {
    let mut parts = vec![(figures::plain(&head.name), Tone::Strong)];
    let (errors, warnings) = (head.problems.error, head.problems.warning);
    parts.push(match (errors, warnings) {
        (0, 0) => ("\u{2713} no problems".to_owned(), Tone::Good),
        (0, n) => (format!("! {}", plural(n, "problem")), Tone::Waiting),
        (errors, n) => (
            format!("\u{2717} {}", plural(errors + n, "problem")),
            Tone::Failed,
        ),
    });
    if head.actors.failed > 0 {
        let failed = format!("\u{2717} {} failed", count(head.actors.failed));
        parts.push((failed, Tone::Failed));
    }
    parts.push((plural(head.actors.all, "actor"), Tone::Plain));
    parts.push(match head.nodes.up < head.nodes.all {
        true => (
            format!("{} of {} up", head.nodes.up, plural(head.nodes.all, "node")),
            Tone::Failed,
        ),
        false => (plural(head.nodes.all, "node"), Tone::Plain),
    });
    parts.push((plural(head.devices, "device"), Tone::Plain));
    parts.push((format!("{} spans/s", short(head.spans_per_s)), Tone::Dim));
    parts
}

fn title_of(view: View) -> String {
    let word = view.word();
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

fn pages(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let titles = View::ALL.iter().enumerate();
    let titles: Vec<_> = titles
        .map(|(at, view)| (*view, format!("{} {}", at + 1, title_of(*view))))
        .collect();
    let all: usize = titles.iter().map(|(_, title)| rows::width(title) + 2).sum();
    let is_short = all > usize::from(area.width);
    let mut x = 0;
    for (at, (view, title)) in titles.iter().enumerate() {
        let is_here = *view == model.view;
        let text = match (is_here, is_short) {
            (true, _) => format!("[{title}]"),
            (false, true) => format!(" {} ", at + 1),
            (false, false) => format!(" {title} "),
        };
        let style = match is_here {
            true => Style::new().add_modifier(Modifier::BOLD),
            false => Style::new(),
        };
        x = canvas.put(area, x, 0, &text, style);
    }
    let help = "? keys";
    if usize::from(x) + help.len() < usize::from(area.width) {
        canvas.tone(area, area.width - help.len() as u16, 0, help, Tone::Dim);
    }
}

/// The line above the last one: what is written, or what hinders.
fn note(model: &Model) -> (String, Tone) {
    if let Some(input) = &model.input {
        return (format!("/{}\u{2588}", figures::plain(input)), Tone::Strong);
    }
    match &model.phase {
        Phase::Stale { again_at, why, .. } => {
            let left = (again_at - model.now).max(0.0);
            let again = match *again_at == f64::MAX {
                true => "asking again".to_owned(),
                false => format!("asking again in {:.0} s (r: now)", (left / 1e3).ceil()),
            };
            (format!("! {again}: {}", figures::plain(why)), Tone::Waiting)
        }
        Phase::Refused(why) if model.shown.is_some() => {
            (format!("\u{2717} {}", figures::plain(why)), Tone::Failed)
        }
        _ => {
            let missing = model.shown.iter().flat_map(|page| &page.missing);
            let missing: Vec<_> = missing
                .map(|node| format!("{} for {}", node.node, age(model.there() - node.since)))
                .collect();
            let filter = model.asked().filter;
            match (missing.is_empty(), filter.is_empty()) {
                (false, _) => (
                    format!("! not answering: {}", missing.join(", ")),
                    Tone::Waiting,
                ),
                (true, false) => (format!("/{}", figures::plain(&filter)), Tone::Busy),
                (true, true) => (String::new(), Tone::Plain),
            }
        }
    }
}

fn body(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    if model.shown.is_none() {
        let lines = match &model.phase {
            Phase::Refused(why) => vec![(why.clone(), Tone::Failed)],
            Phase::Stale { .. } => vec![("nothing was heard yet".to_owned(), Tone::Waiting)],
            _ => vec![("waiting for what is seen".to_owned(), Tone::Dim)],
        };
        let told = lines.into_iter().map(|(text, tone)| Told {
            indent: 0,
            text: figures::plain(&text),
            tone,
        });
        let told: Vec<_> = told.collect();
        for (y, line) in wrapped(&told, area.width).iter().enumerate() {
            canvas.tone(area, line.indent as u16, y as u16, &line.text, line.tone);
        }
        return;
    }
    let sections = model.sections();
    let lines = rows::lines(&sections);
    let chosen = model.chosen(&sections);
    let place = |line: &Line| matches!(line, Line::Row(_, _, place) if Some(*place) == chosen);
    let at = lines.iter().position(place).unwrap_or(0);
    // The chosen row is in the middle where there are rows on both sides.
    let height = usize::from(area.height);
    let top = at.saturating_sub(height / 2);
    let top = top.min(lines.len().saturating_sub(height));
    let fits = |section: &Section| rows::fit(section, usize::from(area.width));
    let widths: Vec<_> = sections.iter().map(fits).collect();
    for (y, line) in lines.iter().skip(top).take(height).enumerate() {
        let is_chosen = place(line);
        self::line(canvas, area, y as u16, &sections, &widths, *line, is_chosen);
    }
}

fn line(
    canvas: &mut Canvas<'_>,
    area: Rect,
    y: u16,
    sections: &[Section],
    widths: &[Vec<(usize, usize)>],
    line: Line,
    is_chosen: bool,
) {
    match line {
        Line::Blank => {}
        Line::Title(at) => {
            canvas.tone(area, 0, y, &sections[at].title, Tone::Strong);
        }
        Line::Empty(at) => {
            canvas.tone(area, 0, y, &sections[at].empty, Tone::Dim);
        }
        Line::Head(at) => {
            let mut x = 0;
            for column in &widths[at] {
                let text = sections[at].heading(*column);
                x = canvas.tone(area, x, y, &text, Tone::Dim) + GAP as u16;
            }
        }
        Line::Row(at, row, _) => {
            let mut x = 0;
            for column in &widths[at] {
                let section = &sections[at];
                if let Some((text, tone)) = section.cell(&section.rows[row], *column) {
                    x = canvas.tone(area, x, y, &text, tone) + GAP as u16;
                }
            }
            if is_chosen {
                let row = Rect {
                    y: area.y + y,
                    height: 1,
                    ..area
                };
                let style = Style::new().add_modifier(Modifier::REVERSED);
                canvas
                    .buffer
                    .set_style(row.intersection(canvas.buffer.area), style);
            }
        }
    }
}

/// Lines that are no wider than this: words that have no room go on in the next one.
fn wrapped(lines: &[Told], room: u16) -> Vec<Told> {
    let mut narrow = vec![];
    for line in lines {
        let indent = line.indent.min(usize::from(room) / 2);
        let room = usize::from(room).saturating_sub(indent).max(1);
        let mut text = String::new();
        let mut part = |text: String| {
            narrow.push(Told {
                indent,
                text,
                tone: line.tone,
            });
        };
        for word in line.text.split(' ') {
            let mut word = word.to_owned();
            if !text.is_empty() && rows::width(&text) + 1 + rows::width(&word) > room {
                part(std::mem::take(&mut text));
            }
            // A word that has no room in any line is cut.
            while rows::width(&word) > room {
                let mut head = String::new();
                let mut tail = word.chars();
                for c in tail.by_ref() {
                    head.push(c);
                    if rows::width(&head) >= room {
                        break;
                    }
                }
                word = tail.collect();
                part(head);
            }
            if !text.is_empty() {
                text.push(' ');
            }
            text += &word;
        }
        part(text);
    }
    narrow
}

/// Where the text of a panel is, inside of its edge.
fn inside(area: Rect, body: Rect) -> Rect {
    let edge = u16::from(body.width > 0) * 2;
    Rect {
        x: area.x + edge.min(area.width),
        width: area.width.saturating_sub(edge),
        ..area
    }
}

/// The farthest line that the panel can be scrolled to.
pub(super) fn furthest(model: &Model) -> usize {
    let (width, height) = model.size;
    let parts = parts(Rect::new(0, 0, width, height), model);
    let (Some(panel), Some(area)) = (&model.panel, parts.panel) else {
        return 0;
    };
    let room = inside(area, parts.body);
    let lines = wrapped(&panel::lines(panel, model), room.width).len();
    lines.saturating_sub(usize::from(room.height))
}

fn beside(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let Some(panel) = &model.panel else {
        return;
    };
    let is_beside = area.x > 0;
    let body = Rect {
        width: u16::from(is_beside),
        ..area
    };
    if is_beside {
        for y in 0..area.height {
            canvas.tone(area, 0, y, "\u{2502}", Tone::Dim);
        }
    }
    let area = inside(area, body);
    let lines = wrapped(&panel::lines(panel, model), area.width);
    let height = usize::from(area.height);
    let top = panel.scroll.min(lines.len().saturating_sub(height));
    for (y, line) in lines.iter().skip(top).take(height).enumerate() {
        canvas.tone(area, line.indent as u16, y as u16, &line.text, line.tone);
    }
}

/// Draws the foot of a page, which says how far it can be trusted.
fn foot(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let Some(page) = &model.shown else {
        canvas.tone(area, 0, 0, "nothing received yet", Tone::Dim);
        return;
    };
    let noun = match model.view {
        View::Now | View::Problems => "problems",
        View::Cluster => "nodes",
        View::Actors => "actors",
        View::Jobs => "jobs",
        View::Transfers => "copies",
        View::Events => "events",
        View::Runs => "runs",
    };
    let is_narrow = area.width < 80;
    let doubt = |is: bool| if is { Tone::Waiting } else { Tone::Dim };
    let (shown, total) = (page.shown, page.total.max(page.shown));
    let sampled = page.sampled > 1.0;
    let mut parts = vec![];
    let mut part = |long: String, short: String, tone: Tone| {
        parts.push((if is_narrow { short } else { long }, tone));
    };
    part(
        format!("shown {} of {} {noun}", count(shown), count(total)),
        format!("{}/{} {noun}", count(shown), count(total)),
        doubt(shown < total),
    );
    part(
        format!("dropped {}", plural(page.dropped, "span")),
        format!("{} dropped", count(page.dropped)),
        doubt(page.dropped > 0),
    );
    let one_in = format!("1 in {}", short(page.sampled));
    let kept = page.kept_from.map(|from| age(page.captured_at - from));
    let (long, short) = match (sampled, &kept) {
        (true, _) => (format!("sampled {one_in}"), one_in),
        (false, Some(kept)) => (format!("spans kept for {kept}"), format!("kept {kept}")),
        (false, None) => ("spans all kept".to_owned(), "all kept".to_owned()),
    };
    part(long, short, doubt(sampled || kept.is_some()));
    if page.clock_error_us.is_none() && page.head.nodes.all <= 1 {
        part("one clock".to_owned(), "one clock".to_owned(), Tone::Dim);
    } else {
        let error = figures::clock_error(page.clock_error_us);
        let wide = page.clock_error_us.is_none_or(|us| us > 1e3);
        part(format!("clock error {error}"), error, doubt(wide));
    }
    if model.view == View::Actors {
        let sort = format!("sorted by {}", model.order.word());
        part(sort.clone(), sort, Tone::Dim);
    }
    let at = format!("as of {} UTC", figures::clock(page.captured_at));
    part(at.clone(), at, Tone::Dim);
    canvas.parts(area, &parts);
}

/// Keys, and what they do.
const KEYS: [(&str, &str, &str); 12] = [
    ("1 - 8, Tab", "another page", "another page"),
    (
        "\u{2191} \u{2193} j k",
        "choose a row, or scroll what is beside it",
        "choose a row, scroll",
    ),
    ("PgUp PgDn g G", "further", "further"),
    (
        "Enter",
        "more of the row; of an actor, all about it",
        "more of the row",
    ),
    (
        "\u{2190} \u{2192} h l",
        "the same of the row before or after",
        "that of the next row",
    ),
    (
        "Esc",
        "close that, then clear choice and filter",
        "close, then clear",
    ),
    (
        "/",
        "filter: state:failed node:n2 mailbox>100 age>10s",
        "filter: state:failed",
    ),
    (
        "s S",
        "sort actors by the next column, or the one before",
        "sort actors",
    ),
    ("a", "actors of the daemons too", "those of daemons too"),
    ("p, Space", "pause, and go on", "pause, and go on"),
    ("r", "ask again now", "ask again now"),
    ("q, Ctrl-C", "quit", "quit"),
];
/// Where there are fewer columns, keys are told in fewer words.
const HELP_WIDTH: u16 = 64;

fn help(canvas: &mut Canvas<'_>, area: Rect) {
    for (y, (keys, long, short)) in (0..).zip(&KEYS) {
        let keys = rows::padded(keys, 14, false);
        let x = canvas.tone(area, 0, y, &keys, Tone::Strong);
        let what = if area.width < HELP_WIDTH { short } else { long };
        canvas.tone(area, x + 1, y, what, Tone::Plain);
    }
}

/// A page as text, with all of its rows: for those who do not look on.
pub(crate) fn text(model: &Model, width: u16) -> String {
    let rows = rows::lines(&model.sections()).len();
    let area = Rect::new(0, 0, width, (rows as u16).saturating_add(5));
    let mut buffer = Buffer::empty(area);
    draw(model, Colours::None, area, &mut buffer);
    lines_of(&buffer)
}

/// The lines of a picture.
pub(crate) fn lines_of(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y: u16| {
        let mut text = String::new();
        let mut x = 0;
        while x < area.width {
            let symbol = buffer[(area.x + x, area.y + y)].symbol();
            text += symbol;
            // The next cell is behind a wide sign.
            x += (rows::width(symbol) as u16).max(1);
        }
        text.trim_end().to_owned()
    };
    (0..area.height).map(line).collect::<Vec<_>>().join("\n")
}
