//! Rows under headings: what a page shows, and how it fits a terminal.

use odeon_client::View;
use ratatui::text::Span;

use super::signs::{self, Tone};
use crate::figures;

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    /// The text that is shown where there are none.
    pub(crate) empty: String,
}

/// A column of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// It is not made narrower.
    least: usize,
    /// It is not made wider.
    most: usize,
    to_the_right: bool,
    /// The larger, the sooner it is left out where there is no room.
    spare: u8,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Another one for each row of a page, the same while the row is about the same.
    pub(crate) key: String,
    pub(crate) cells: Vec<Cell>,
    pub(crate) opens: Opens,
}

/// The target that a row leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opens {
    /// All about an actor, by its id.
    Actor(String),
    /// More about the row itself.
    More,
    /// A page, with a filter.
    Page(View, String),
}

/// The text in a column of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self::toned(text, Tone::Plain)
    }

    pub(crate) fn toned(text: impl AsRef<str>, tone: Tone) -> Self {
        let text = figures::plain(text.as_ref());
        Self { text, tone }
    }

    /// A state with its sign and its tone.
    pub(crate) fn state(word: &str) -> Self {
        Self::toned(signs::worded(word), signs::of(word).1)
    }
}

impl Column {
    /// Text, to the left.
    pub(crate) const fn text(title: &'static str, least: usize, most: usize) -> Self {
        Self {
            title,
            least,
            most,
            to_the_right: false,
            spare: 0,
        }
    }

    /// A number, to the right. It is not cut: a part of it would be another one.
    pub(crate) const fn number(title: &'static str) -> Self {
        Self {
            to_the_right: true,
            ..Self::text(title, 16, 16)
        }
    }

    /// A length of time, which is not cut.
    pub(crate) const fn time(title: &'static str) -> Self {
        Self::text(title, 12, 12)
    }

    /// The larger, the sooner it is left out.
    pub(crate) const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

/// A line of a page, as it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Blank,
    /// Of the section of this place.
    Title(usize),
    Head(usize),
    Empty(usize),
    /// A row of a section, and its place among all rows of the page.
    Row(usize, usize, usize),
}

/// The lines of a page, one below the other.
pub(crate) fn lines(sections: &[Section]) -> Vec<Line> {
    let (mut lines, mut place) = (vec![], 0);
    for (at, section) in sections.iter().enumerate() {
        if at > 0 {
            lines.push(Line::Blank);
        }
        if !section.title.is_empty() {
            lines.push(Line::Title(at));
        }
        if section.rows.is_empty() {
            lines.push(Line::Empty(at));
            continue;
        }
        if section
            .columns
            .iter()
            .any(|column| !column.title.is_empty())
        {
            lines.push(Line::Head(at));
        }
        for row in 0..section.rows.len() {
            lines.push(Line::Row(at, row, place));
            place += 1;
        }
    }
    lines
}

/// All rows of a page, in their order.
pub(crate) fn all(sections: &[Section]) -> impl Iterator<Item = &Row> {
    sections.iter().flat_map(|section| &section.rows)
}

/// The width of a text on a terminal, in columns.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The number of blank columns between two.
pub(crate) const GAP: usize = 2;

/// Text that is cut to this can be read.
const READABLE: usize = 24;

/// The columns for which there is room, each with its width.
///
/// Those that are not spare are as wide as they need to be, if that can be; then as many others as have
/// room to be read; and where some is left, one more that is cut.
pub(crate) fn fit(section: &Section, room: usize) -> Vec<(usize, usize)> {
    let of = |at: usize| &section.columns[at];
    let cells = |at: usize| section.rows.iter().filter_map(move |row| row.cells.get(at));
    let natural = |at: usize| {
        let widest = cells(at).map(|cell| width(&cell.text)).max();
        let widest = widest.unwrap_or(0).max(width(of(at).title));
        widest.min(of(at).most)
    };
    let all = |widths: &[(usize, usize)]| {
        let gaps = GAP * widths.len().saturating_sub(1);
        widths.iter().map(|(_, width)| width).sum::<usize>() + gaps
    };
    let columns = 0..section.columns.len();
    let is_used = |at: &usize| section.rows.is_empty() || cells(*at).any(|it| !it.text.is_empty());
    let natural: Vec<_> = columns
        .filter(is_used)
        .map(|at| (at, natural(at)))
        .collect();
    // What has no room to be read goes first.
    let readable = |(at, width): &(usize, usize)| {
        let enough = usize::midpoint(of(*at).least, of(*at).most).min(READABLE);
        (*at, (*width).min(enough))
    };
    let mut widths = natural.clone();
    let spare = |widths: &[(usize, usize)]| {
        let spare = (0..widths.len()).filter(|place| of(widths[*place].0).spare > 0);
        spare.max_by_key(|place| of(widths[*place].0).spare)
    };
    while all(&widths.iter().map(readable).collect::<Vec<_>>()) > room
        && let Some(place) = spare(&widths)
    {
        widths.remove(place);
    }
    shrink(section, &mut widths, room);
    let mut others: Vec<_> = natural
        .into_iter()
        .filter(|(at, _)| widths.iter().all(|it| it.0 != *at))
        .collect();
    others.sort_by_key(|(at, _)| of(*at).spare);
    for (at, natural) in others {
        let left = room.saturating_sub(all(&widths) + GAP);
        if !widths.is_empty() && left >= natural.min(of(at).least) {
            widths.push((at, natural.min(left)));
        }
    }
    widths.sort_unstable();
    widths
}

/// Takes from the widest until all have room, and leaves out what cannot give any.
fn shrink(section: &Section, widths: &mut Vec<(usize, usize)>, room: usize) {
    loop {
        let gaps = GAP * widths.len().saturating_sub(1);
        let all: usize = widths.iter().map(|(_, width)| width).sum::<usize>() + gaps;
        if all <= room || widths.is_empty() {
            return;
        }
        let is_last = widths.len() == 1;
        let gives = |(at, width): &&mut (usize, usize)| *width > section.columns[*at].least;
        match widths
            .iter_mut()
            .filter(gives)
            .max_by_key(|(_, width)| *width)
        {
            Some((at, width)) => {
                let spare = *width - section.columns[*at].least;
                *width -= spare.min(all - room).min((spare / 2).max(1));
            }
            None if is_last => widths[0].1 = room,
            None => {
                // The last of those that may go first.
                let last = widths.iter().enumerate();
                let last = last.max_by_key(|(_, (at, _))| section.columns[*at].spare);
                let place = last.map_or(0, |(place, _)| place);
                widths.remove(place);
            }
        }
    }
}

/// A text that is this wide, with a mark where it was cut.
pub(crate) fn padded(text: &str, room: usize, to_the_right: bool) -> String {
    let own = width(text);
    if own > room {
        return cut(text, room);
    }
    let space = " ".repeat(room - own);
    match to_the_right {
        true => space + text,
        false => text.to_owned() + &space,
    }
}

/// A text that is no wider than this, filled up where a wide sign has no room.
fn cut(text: &str, room: usize) -> String {
    let Some(room) = room.checked_sub(1) else {
        return String::new();
    };
    let (mut short, mut used) = (String::new(), 0);
    for c in text.chars() {
        let own = width(c.encode_utf8(&mut [0; 4]));
        if used + own > room {
            break;
        }
        short.push(c);
        used += own;
    }
    short.push('\u{2026}');
    short + &" ".repeat(room - used)
}

impl Section {
    /// The cell of a row in a column, as wide as the column.
    pub(crate) fn cell(&self, row: &Row, (at, room): (usize, usize)) -> Option<(String, Tone)> {
        let cell = row.cells.get(at)?;
        let text = padded(&cell.text, room, self.columns[at].to_the_right);
        Some((text, cell.tone))
    }

    /// The heading of a column, as wide as the column.
    pub(crate) fn heading(&self, (at, room): (usize, usize)) -> String {
        let column = &self.columns[at];
        padded(column.title, room, column.to_the_right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section() -> Section {
        let row = |name: &str, number: &str, text: &str| Row {
            key: name.to_owned(),
            cells: vec![Cell::new(name), Cell::new(number), Cell::new(text)],
            opens: Opens::More,
        };
        Section {
            title: String::new(),
            columns: vec![
                Column::text("name", 4, 20),
                Column::number("rate").spare(1),
                Column::text("doing", 6, 40).spare(2),
            ],
            rows: vec![
                row("worker", "12", "Collect, waits for the store"),
                row("b", "3", ""),
            ],
            empty: String::new(),
        }
    }

    #[test]
    fn a_narrow_terminal_takes_room_first_and_columns_then() {
        let section = section();
        let names = |room| -> Vec<usize> { fit(&section, room).iter().map(|it| it.0).collect() };
        assert_eq!(names(120), [0, 1, 2]);
        assert_eq!(names(20), [0, 1, 2], "cut");
        assert_eq!(names(14), [0, 1], "what is spare goes first");
        assert_eq!(names(6), [0]);
        for room in 0..60 {
            let widths = fit(&section, room);
            let gaps = GAP * widths.len().saturating_sub(1);
            assert!(
                widths.iter().map(|it| it.1).sum::<usize>() + gaps <= room,
                "{room}"
            );
        }
    }

    #[test]
    fn what_is_cut_has_a_mark_and_wide_signs_keep_the_columns() {
        assert_eq!(padded("name", 6, false), "name  ");
        assert_eq!(padded("12", 4, true), "  12");
        assert_eq!(padded("a long name", 6, false), "a lon\u{2026}");
        assert_eq!(
            padded("\u{6f22}\u{5b57}\u{6f22}", 4, false),
            "\u{6f22}\u{2026} "
        );
        assert_eq!(padded("abc", 0, false), "");
    }
}
