//! Output for people: data on standard output, talk on standard error.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;

/// The bars of this process. What else is written to standard error goes above them.
pub(crate) static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// See [`hush`].
static HUSHED: AtomicBool = AtomicBool::new(false);

/// Standard output takes no more of what a command has to show.
#[derive(Debug)]
pub(crate) struct Unshown(io::Error);

impl Display for Unshown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writing to standard output: {}", self.0)
    }
}

impl std::error::Error for Unshown {}

/// Returns true if a command failed since nobody reads on, as behind `head`: its reader has what it
/// wanted.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    let unshown = error.downcast_ref::<Unshown>();
    unshown.is_some_and(|unshown| unshown.0.kind() == io::ErrorKind::BrokenPipe)
}

/// Standard error, above the bars. What it does not take is lost, which is no reason to fail.
struct AboveBars;

/// Hears what this process logs.
type Ear = Box<dyn Fn(&[u8]) + Send + Sync>;

/// See [`overhear`].
static EAR: OnceLock<Ear> = OnceLock::new();

/// Has what this process logs from now on heard by somebody else, too; the first who asks.
pub(crate) fn overhear(ear: impl Fn(&[u8]) + Send + Sync + 'static) {
    // Nobody asks twice.
    let _ = EAR.set(Box::new(ear));
}

impl Write for AboveBars {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if let Some(ear) = EAR.get() {
            ear(text);
        }
        above_bars(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn above_bars(text: &[u8]) {
    if !HUSHED.load(Ordering::Relaxed) {
        BARS.suspend(|| {
            let mut stderr = io::stderr().lock();
            if stderr.is_terminal() {
                // A worker does not know of the bar that its driver has drawn on this line.
                let _ = stderr.write_all(b"\r\x1b[2K");
            }
            let _ = stderr.write_all(text);
        });
    }
}

/// Talk of the runtime goes to standard error; `ODEON_LOG` chooses how much.
pub(crate) fn start_log() {
    // A voter that is away is news once, not twice a second; a connection that nobody uses any more is
    // none.
    let usual = || EnvFilter::new("warn,openraft=off,hyper=error");
    let filter = EnvFilter::try_from_env("ODEON_LOG").unwrap_or_else(|_| usual());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| AboveBars)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    // What a daemon logs is read later.
    if std::env::args().any(|arg| arg == "--foreground") {
        log.init();
    } else {
        log.without_time().init();
    }
}

/// Ends the log of a run that was stopped half-way: its messages in flight have no receiver any
/// more, which is no news then. Whoever has chosen a log by `ODEON_LOG` gets it to the end.
pub(crate) fn hush() {
    if std::env::var_os("ODEON_LOG").is_none() {
        HUSHED.store(true, Ordering::Relaxed);
    }
}

/// A line of data.
pub(crate) fn line(text: impl Display) -> Result<(), Unshown> {
    writeln!(io::stdout(), "{text}").map_err(Unshown)
}

/// A part of a line of data, seen at once.
pub(crate) fn part(text: &str) -> Result<(), Unshown> {
    let mut stdout = io::stdout().lock();
    let shown = stdout.write_all(text.as_bytes());
    shown.and_then(|()| stdout.flush()).map_err(Unshown)
}

/// A line of talk.
pub(crate) fn say(text: impl Display) {
    BARS.suspend(|| talk(text));
}

/// Prints what a worker has printed, as it has.
pub(crate) fn pass_on(is_talk: bool, text: &[u8]) {
    if is_talk {
        return above_bars(text);
    }
    BARS.suspend(|| {
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(text).and_then(|()| stdout.flush());
    });
}

/// The columns of the terminal that bars are drawn on.
pub(crate) fn columns() -> usize {
    usize::from(console::Term::stderr().size().1)
}

/// Prints to standard error. Text that it does not take is lost, which is no reason to fail.
fn talk(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Why the command failed, on one line, causes included.
pub(crate) fn error(error: &anyhow::Error) {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Many errors name their cause themselves.
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    talk(format_args!("error: {text}"));
}

/// Rows under headings, columns aligned: the first to the left, the others to the right.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> Result<(), Unshown> {
    let mut widths: Vec<usize> = headings
        .iter()
        .map(|heading| heading.chars().count())
        .collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let print = |cells: &[String]| {
        let mut text = String::new();
        for (index, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            if index == 0 {
                text += &format!("{cell:<width$}");
            } else {
                text += &format!("  {cell:>width$}");
            }
        }
        line(text.trim_end())
    };
    print(&headings.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    rows.iter().try_for_each(|row| print(row))
}

/// A list for people: rows under headings, all to the left.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
    /// Columns that go where there is no room for all, the first first.
    expendable: Vec<usize>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(headings: [&str; N]) -> Self {
        let rows = vec![headings.map(ToOwned::to_owned)];
        Self {
            rows,
            expendable: vec![],
        }
    }

    /// The columns that go where a terminal has no room for all, the first first.
    pub(crate) fn expendable(mut self, headings: &[&str]) -> Self {
        let place = |heading: &&str| self.rows[0].iter().position(|it| it == heading);
        self.expendable = headings.iter().filter_map(place).collect();
        self
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    pub(crate) fn print(&self) -> Result<(), Unshown> {
        let width = |n: usize| {
            self.rows
                .iter()
                .map(move |row| row[n].chars().count())
                .max()
        };
        let mut widths: Vec<usize> = (0..N).map(|n| width(n).unwrap_or(0)).collect();
        let mut columns: Vec<usize> = (0..N).collect();
        if let Some(room) = room() {
            for column in &self.expendable {
                if least(columns.iter().map(|n| widths[*n])) <= room {
                    break;
                }
                columns.retain(|n| n != column);
            }
            let mut shown: Vec<usize> = columns.iter().map(|n| widths[*n]).collect();
            narrow(&mut shown, room);
            for (n, width) in columns.iter().zip(shown) {
                widths[*n] = width;
            }
        }
        self.rows.iter().try_for_each(|row| {
            let cells = columns.iter().map(|n| (&row[*n], widths[*n]));
            let text: String = cells
                .map(|(cell, width)| format!("{:<width$}  ", cut(cell, width)))
                .collect();
            line(text.trim_end())
        })
    }
}

/// The columns of the terminal that tables are shown on, as `COLUMNS` or it itself says; none where
/// they go elsewhere.
pub(crate) fn room() -> Option<usize> {
    let terminal = console::Term::stdout();
    let said = std::env::var("COLUMNS").ok();
    let said = said.and_then(|columns| columns.parse().ok());
    let own = || usize::from(terminal.size().1);
    io::stdout().is_terminal().then(|| said.unwrap_or_else(own))
}

/// The least width that columns of these widths take.
fn least(widths: impl ExactSizeIterator<Item = usize>) -> usize {
    let gaps = 2 * widths.len().saturating_sub(1);
    widths.map(|width| width.min(NARROWEST)).sum::<usize>() + gaps
}

/// Takes from the widest column until all fit beside each other, or none has anything to give.
fn narrow(widths: &mut [usize], room: usize) {
    let gaps = 2 * widths.len().saturating_sub(1);
    let mut all: usize = widths.iter().sum::<usize>() + gaps;
    while all > room {
        let widest = widths.iter_mut().max_by_key(|width| **width);
        let Some(widest) = widest.filter(|width| **width > NARROWEST) else {
            return;
        };
        *widest -= 1;
        all -= 1;
    }
}

/// A text that is no wider than this, with a mark where it was cut.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width - 1).chain(['\u{2026}']).collect(),
        false => text.to_owned(),
    }
}

/// A column is not cut to less.
const NARROWEST: usize = 8;

/// By what names are sorted whose numbers count: `node-2` comes before `node-10`.
pub(crate) fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![];
    let mut rest = name;
    while !rest.is_empty() {
        let (text, digits) = rest.split_at(
            rest.find(|c: char| c.is_ascii_digit())
                .unwrap_or(rest.len()),
        );
        let end = digits.find(|c: char| !c.is_ascii_digit());
        let (number, behind) = digits.split_at(end.unwrap_or(digits.len()));
        parts.push((text.to_owned(), number.parse().unwrap_or(0)));
        rest = behind;
    }
    parts
}

/// A word as a shell would have to be given it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.contains(char::is_control) {
        let escaped = word.chars().map(|c| match c {
            '\'' | '\\' => format!("\\{c}"),
            '\n' => "\\n".to_owned(),
            '\t' => "\\t".to_owned(),
            '\r' => "\\r".to_owned(),
            c if c.is_ascii_control() => format!("\\x{:02x}", u32::from(c)),
            c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        });
        return format!("$'{}'", escaped.collect::<String>());
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A span of time up to now, from milliseconds.
pub(crate) fn ago(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// The progress of an upload, on a terminal.
#[derive(Debug, Default)]
pub(crate) struct UploadBar {
    bar: Option<indicatif::ProgressBar>,
}

impl UploadBar {
    pub(crate) fn show(&mut self, bytes: u64, done: u64) {
        if bytes == 0 {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = "{prefix} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
            let style = indicatif::ProgressStyle::with_template(style);
            let style = style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
            let bar = BARS.add(indicatif::ProgressBar::new(bytes).with_style(style));
            bar.set_prefix("uploading");
            bar
        });
        bar.set_position(done);
    }

    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_takes_them() {
        for (word, expect) in [
            ("--steps=100", "--steps=100"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("a\nb'", r"$'a\nb\''"),
            ("\u{1b}[31m", r"$'\x1b[31m'"),
        ] {
            assert_eq!(quoted(word), expect);
        }
    }

    #[test]
    fn numbers_in_names_are_sorted_as_numbers() {
        let mut names = ["node-10", "node-2", "head", "node-2b", "node", "n-1"];
        names.sort_by_cached_key(|name| natural(name));
        let expect = ["head", "n-1", "node", "node-2", "node-2b", "node-10"];
        assert_eq!(names, expect);
    }

    #[test]
    fn the_widest_columns_give_way_to_a_small_terminal() {
        let mut widths = [4, 40, 9, 20];
        narrow(&mut widths, 60);
        assert_eq!(widths.iter().sum::<usize>() + 6, 60);
        assert_eq!((widths[0], widths[2]), (4, 9));
        narrow(&mut widths, 10);
        assert_eq!(widths, [4, 8, 8, 8]);
        assert_eq!(cut("a long name", 8), "a long \u{2026}");
        assert_eq!(cut("name", 4), "name");
    }
}
