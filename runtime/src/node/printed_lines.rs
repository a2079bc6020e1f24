//! Output of a program, line by line as it is printed. A line that is longer than it may be comes in
//! pieces that say that they are pieces, and a line that the program writes over (`\r`, as progress
//! bars do) comes as it stands now and then, and as it is at last.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use crate::base::clock::{Clock, Timestamp};

/// Reads the lines that a program prints. Safe to cancel: nothing that was read is lost.
#[derive(Debug)]
pub struct PrintedLines<R> {
    source: BufReader<R>,
    bytes_max: usize,
    /// The line so far, without what was given of it in pieces.
    text: Vec<u8>,
    /// Set where a piece of this line was given.
    goes_on: bool,
    /// Set where `\r` stands behind the text: a line's end, or what follows is written over it.
    returned: bool,
    /// Set where the text was written over another.
    is_state: bool,
    /// Since when the text has something that was not given.
    unshown: Option<Timestamp>,
    /// When a state was given last.
    shown: Option<Timestamp>,
}

/// A line that a program has printed, or a piece or a state of one; without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintedLine {
    /// Its bytes. A piece says that it is one.
    pub text: Vec<u8>,
    /// Set where this is how the line stands for now: the program writes over it.
    pub changes: bool,
}

impl PrintedLine {
    /// The byte that ends it where it is written on.
    #[must_use]
    pub const fn end(&self) -> u8 {
        if self.changes { b'\r' } else { b'\n' }
    }
}

impl<R: AsyncRead + Unpin> PrintedLines<R> {
    /// The lines of a source, in pieces of so many bytes at most.
    pub fn new(source: R, bytes_max: usize) -> Self {
        Self {
            source: BufReader::with_capacity(READ_BYTES, source),
            bytes_max: bytes_max.max(CHARACTER_BYTES_MAX),
            text: vec![],
            goes_on: false,
            returned: false,
            is_state: false,
            unshown: None,
            shown: None,
        }
    }

    /// The next line; `None` at the end of the source.
    ///
    /// # Errors
    /// The source cannot be read.
    pub async fn next(&mut self) -> io::Result<Option<PrintedLine>> {
        loop {
            let filled = match self.state_due() {
                None => Some(self.source.fill_buf().await.map(<[u8]>::len)),
                Some(pause) => {
                    let filled = Clock::timeout(pause, self.source.fill_buf()).await;
                    filled.map(|filled| filled.map(<[u8]>::len))
                }
            };
            match filled.transpose()? {
                None => return Ok(Some(self.state())),
                Some(0) => return Ok(self.last()),
                Some(_) => {
                    if let Some(line) = self.take() {
                        return Ok(Some(line));
                    }
                }
            }
        }
    }

    /// Bytes that were read and are in no line yet.
    #[must_use]
    pub fn unread(&self) -> Vec<u8> {
        let mut unread = self.text.clone();
        unread.extend(self.returned.then_some(b'\r'));
        unread.extend_from_slice(self.source.buffer());
        unread
    }

    /// How long to wait for more before the line is given as it stands; `None` for one that the
    /// program does not write over.
    fn state_due(&self) -> Option<Duration> {
        let since = self.unshown.filter(|_| self.returned || self.is_state)?;
        Some(STATE_PAUSE.saturating_sub(Clock::now().since(since)))
    }

    /// Goes on by what the buffer holds.
    fn take(&mut self) -> Option<PrintedLine> {
        let held = self.source.buffer();
        if std::mem::take(&mut self.returned) {
            if held.first() == Some(&b'\n') {
                self.source.consume(1);
                return Some(self.whole());
            }
            let state = self.written_over();
            if state.is_some() {
                return state;
            }
        }
        let held = self.source.buffer();
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let room = self.bytes_max - self.text.len();
        if room == 0 && !held.first().is_some_and(is_end) {
            return Some(self.piece());
        }
        let end = held.iter().position(is_end);
        let taken = end.unwrap_or(held.len()).min(room);
        let ended = end.filter(|end| *end == taken).map(|end| held[end]);
        self.text.extend_from_slice(&held[..taken]);
        if taken > 0 {
            self.unshown.get_or_insert_with(Clock::now);
        }
        self.source.consume(taken + usize::from(ended.is_some()));
        match ended {
            Some(b'\n') => Some(self.whole()),
            Some(_) => {
                self.returned = true;
                None
            }
            None => None,
        }
    }

    /// The program writes over the line from here on. Of states that follow each other fast, some
    /// are given.
    fn written_over(&mut self) -> Option<PrintedLine> {
        let now = Clock::now();
        let is_due = self
            .shown
            .is_none_or(|shown| now.since(shown) >= STATE_PAUSE);
        let state = self.unshown.is_some() && is_due;
        let state = state.then(|| self.state());
        self.text.clear();
        self.unshown = None;
        self.goes_on = false;
        self.is_state = true;
        state
    }

    fn state(&mut self) -> PrintedLine {
        self.unshown = None;
        self.shown = Some(Clock::now());
        PrintedLine {
            text: self.marked(&self.text),
            changes: true,
        }
    }

    fn piece(&mut self) -> PrintedLine {
        let rest = self.text.split_off(cut(&self.text));
        let mut text = self.marked(&self.text);
        text.extend_from_slice(PIECE_GOES_ON);
        self.text = rest;
        self.goes_on = true;
        PrintedLine {
            text,
            changes: false,
        }
    }

    fn whole(&mut self) -> PrintedLine {
        let text = self.marked(&self.text);
        self.text.clear();
        self.goes_on = false;
        self.is_state = false;
        self.unshown = None;
        PrintedLine {
            text,
            changes: false,
        }
    }

    /// The line that has no end.
    fn last(&mut self) -> Option<PrintedLine> {
        self.returned = false;
        let is_something = !self.text.is_empty() || self.goes_on;
        is_something.then(|| self.whole())
    }

    /// Text with the mark of what goes on from the piece before it.
    fn marked(&self, text: &[u8]) -> Vec<u8> {
        let mark = if self.goes_on { PIECE_OF } else { b"" };
        [mark, text].concat()
    }
}

/// Where a text is cut, so that no character of UTF-8 is.
fn cut(text: &[u8]) -> usize {
    let last = text.len().saturating_sub(CHARACTER_BYTES_MAX - 1)..text.len();
    let begins = last.rev().find(|at| text[*at] & 0xc0 != 0x80);
    match begins {
        Some(at) if std::str::from_utf8(&text[at..]).is_err() && at > 0 => at,
        _ => text.len(),
    }
}

/// The mark at the end of a piece that another follows.
const PIECE_GOES_ON: &[u8] = b" [this line goes on]";
/// The mark at the beginning of a piece that follows another.
const PIECE_OF: &[u8] = b"[the line before goes on] ";
/// The least time between two states of a line.
const STATE_PAUSE: Duration = Duration::from_millis(250);
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes of a character.
const CHARACTER_BYTES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn read(text: &[u8], bytes_max: usize) -> Vec<(String, bool)> {
        let mut lines = PrintedLines::new(text, bytes_max);
        let mut read = vec![];
        while let Some(line) = lines.next().await.unwrap() {
            read.push((
                String::from_utf8_lossy(&line.text).into_owned(),
                line.changes,
            ));
        }
        assert_eq!(lines.next().await.unwrap(), None);
        read
    }

    fn whole(texts: &[&str]) -> Vec<(String, bool)> {
        texts.iter().map(|it| ((*it).to_owned(), false)).collect()
    }

    #[tokio::test]
    async fn lines_are_whole_and_a_longer_one_comes_in_pieces_that_say_so() {
        assert_eq!(read(b"a\n\nb\r\nc", 8).await, whole(&["a", "", "b", "c"]));
        assert_eq!(read(b"12345678\nab\n", 8).await, whole(&["12345678", "ab"]));
        let pieces = [
            "12345678 [this line goes on]",
            "[the line before goes on] 9",
            "b",
        ];
        assert_eq!(read(b"123456789\nb\n", 8).await, whole(&pieces));
        // No character is cut.
        let pieces = [
            "123456\u{e9} [this line goes on]",
            "[the line before goes on] 89",
        ];
        assert_eq!(read("123456\u{e9}89".as_bytes(), 8).await, whole(&pieces));
        let pieces = [
            "1234567 [this line goes on]",
            "[the line before goes on] \u{e9}9",
        ];
        assert_eq!(read("1234567\u{e9}9".as_bytes(), 8).await, whole(&pieces));
    }

    /// SEMANTICS 62.
    #[tokio::test]
    async fn a_progress_bar_is_seen_as_it_stands_and_at_last_as_one_line() {
        let (mut program, output) = tokio::io::duplex(1 << 10);
        let mut lines = PrintedLines::new(output, 1 << 10);
        program.write_all(b"begin\n\r  0%").await.unwrap();
        let state = |text: &str, changes| {
            let text = text.as_bytes().to_vec();
            Some(PrintedLine { text, changes })
        };
        assert_eq!(lines.next().await.unwrap(), state("begin", false));
        // It stands there, though nothing follows.
        assert_eq!(lines.next().await.unwrap(), state("  0%", true));
        program.write_all(b"\r 20%").await.unwrap();
        assert_eq!(lines.next().await.unwrap(), state(" 20%", true));
        // Of many that follow each other at once, the last counts.
        let fast: String = (21..=100).map(|at| format!("\r{at:3}%")).collect();
        program.write_all(fast.as_bytes()).await.unwrap();
        program.write_all(b"\nend\n").await.unwrap();
        drop(program);
        let mut rest = vec![];
        while let Some(line) = lines.next().await.unwrap() {
            rest.push((String::from_utf8(line.text).unwrap(), line.changes));
        }
        assert!(rest.len() < 10, "{rest:?}");
        assert_eq!(rest[rest.len() - 2..], whole(&["100%", "end"]));
    }

    proptest! {
        #[test]
        fn nothing_of_a_line_is_lost_however_long_it_is(
            lines in prop::collection::vec("[a-z\u{e9}\u{1f600}]{0,40}", 0..8), bytes_max in 4_usize..20,
        ) {
            let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let pieces = runtime.block_on(read(text.as_bytes(), bytes_max));
            let mut joined = String::new();
            for (piece, _) in pieces {
                let piece = piece.strip_prefix("[the line before goes on] ").unwrap_or(&piece);
                match piece.strip_suffix(" [this line goes on]") {
                    Some(piece) => joined.push_str(piece),
                    None => joined.extend([piece, "\n"]),
                }
            }
            prop_assert_eq!(joined, text);
        }
    }
}
