//! Output of a program: on to the log of the process that hosts it, line by line. The last lines
//! are remembered for the failure, and a text may be waited for.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use odeon::{Clock, PrintedLine, PrintedLines};
use odeon_diagnosis::gang::{LineProgress, NumberKind, OddNumber};
use tokio::io::AsyncRead;
use tokio::sync::watch;

/// The last lines that a program has said on its standard error. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<Last>>);

#[derive(Debug, Default)]
struct Last {
    /// Each with whether it is to be written over.
    lines: VecDeque<(String, bool)>,
    /// The moment of the last line that begins the report of an error, in microseconds since 1970.
    error_at_us: Option<u64>,
}

impl Tail {
    fn push(&self, line: &PrintedLine) {
        let text = &line.text[..line.text.len().min(TAIL_LINE_BYTES)];
        let text = String::from_utf8_lossy(text).into_owned();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ERRORS.iter().any(|it| text.starts_with(it)) {
            last.error_at_us = Some(Clock::unix_time().as_micros() as u64);
        }
        let lines = &mut last.lines;
        if lines.back().is_some_and(|(_, changes)| *changes) {
            lines.pop_back();
        }
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back((text, line.changes));
    }

    /// In words, behind how it ended; empty when it has said nothing.
    pub(super) fn words(&self) -> String {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.lines.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = last.lines.iter().map(|(line, _)| line.as_str()).collect();
        format!("{SAID_LAST}  {}", lines.join("\n  "))
    }

    /// The moment in which it began to report its last error, in microseconds since 1970; nothing where it has
    /// reported none.
    pub(super) fn error_at_us(&self) -> Option<u64> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.error_at_us
    }
}

/// Progress of a program by the lines that it prints. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(Arc<Mutex<Progress>>);

/// The progress that lines have told of.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Number of lines.
    pub(super) lines: u64,
    /// The last step that one has named.
    pub(super) step: Option<u64>,
    /// The last loss, where it is no number.
    pub(super) odd_number: Option<OddNumber>,
}

impl Told {
    pub(super) fn so_far(&self) -> Progress {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.clone()
    }

    fn hear(&self, line: &PrintedLine) {
        let text = &line.text[..line.text.len().min(TOLD_BYTES)];
        let line = LineProgress::of(&String::from_utf8_lossy(text));
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.lines += 1;
        told.step = line.step.or(told.step);
        match line.number {
            Some((name, NumberKind::NotFinite)) if told.odd_number.is_none() => {
                told.odd_number = Some(OddNumber {
                    name,
                    step: told.step,
                    at_us: Clock::unix_time().as_micros() as u64,
                });
            }
            Some((name, NumberKind::Finite)) => {
                told.odd_number.take_if(|odd| odd.name == name);
            }
            _ => {}
        }
    }
}

/// Where lines go beside the log.
#[derive(Debug)]
pub(super) struct Ears {
    /// Remembers them.
    pub(super) tail: Option<Tail>,
    /// Becomes true with the first line that contains the text.
    pub(super) awaited: Option<(String, watch::Sender<bool>)>,
    /// Hears of progress.
    pub(super) told: Told,
}

/// Carries lines from a program to a log until the program has closed its end.
pub(super) async fn carry<W: Write + Send + 'static>(
    source: impl AsyncRead + Unpin,
    log: W,
    prefix: &str,
    ears: Ears,
) -> Option<W> {
    let mut lines = PrintedLines::new(source, LINE_BYTES_MAX);
    let mut log = Some(log);
    // The end of a program's output is no news of its own: how it ended is told elsewhere.
    while let Ok(Some(line)) = lines.next().await {
        ears.told.hear(&line);
        if let Some(tail) = &ears.tail {
            tail.push(&line);
        }
        if let Some((text, seen)) = &ears.awaited
            && String::from_utf8_lossy(&line.text).contains(text)
        {
            seen.send_replace(true);
        }
        // A log that takes no more is no reason to let the program wait.
        if let Some(taker) = log.take() {
            let text = [prefix.as_bytes(), &line.text, &[line.end()]].concat();
            log = write(taker, text).await;
        }
    }
    log
}

/// Writes a line in one piece, so that those of several programs do not mix; whoever reads the log
/// may be slow, so not on a thread of the runtime.
async fn write<W: Write + Send + 'static>(mut log: W, line: Vec<u8>) -> Option<W> {
    let written = tokio::task::spawn_blocking(move || {
        let written = log.write_all(&line).and_then(|()| log.flush());
        written.is_ok().then_some(log)
    });
    written.await.unwrap_or(None)
}

/// The longest line that goes on in one piece. With its prefix it is one for the log of a cluster, too.
const LINE_BYTES_MAX: usize = 192 << 10;
/// The text between how a program ended and its last lines.
pub(super) const SAID_LAST: &str = "; it said last:\n";
/// The first lines of errors that end a program, by Python and by C++.
const ERRORS: [&str; 3] = [
    "Traceback (most recent call last)",
    "Fatal Python error",
    "terminate called",
];
/// Bytes of a line in which progress is looked for.
const TOLD_BYTES: usize = 1000;
/// Lines that a failure tells.
const TAIL_LINES: usize = 8;
/// Bytes of each.
const TAIL_LINE_BYTES: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    async fn carried(text: &[u8], prefix: &str) -> (Vec<u8>, String, bool) {
        let tail = Tail::default();
        let (seen, awaited) = watch::channel(false);
        let ears = Ears {
            tail: Some(tail.clone()),
            awaited: Some(("listening on".to_owned(), seen)),
            told: Told::default(),
        };
        let log = carry(text, vec![], prefix, ears).await;
        (log.unwrap(), tail.words(), *awaited.borrow())
    }

    #[tokio::test]
    async fn lines_go_on_with_their_rank_and_the_last_are_remembered() {
        let (log, words, seen) = carried(b"a\n\nlistening on 80\nb", "[rank 2] ").await;
        let expect = "[rank 2] a\n[rank 2] \n[rank 2] listening on 80\n[rank 2] b\n";
        assert_eq!(String::from_utf8(log).unwrap(), expect);
        assert_eq!(words, "; it said last:\n  a\n  \n  listening on 80\n  b");
        assert!(seen);
        assert_eq!(words.split_once(SAID_LAST).unwrap().0, "");
        let (log, words, seen) = carried(b"", "x").await;
        assert!(log.is_empty() && words.is_empty() && !seen);
    }

    #[tokio::test]
    async fn what_is_no_text_or_too_long_goes_on_and_costs_no_more() {
        let mut text = vec![b'x'; LINE_BYTES_MAX + 10];
        text.extend_from_slice(b"\n\xff\xfe\n");
        let (log, words, _) = carried(&text, "").await;
        let lines: Vec<&[u8]> = log.split(|byte| *byte == b'\n').collect();
        assert!(lines[0].ends_with(b"x [this line goes on]"));
        assert_eq!(lines[1], b"[the line before goes on] xxxxxxxxxx");
        assert_eq!(lines[2..], [b"\xff\xfe".as_slice(), b""]);
        assert!(words.len() < 4 * TAIL_LINE_BYTES, "{}", words.len());
        let many = b"line\n".repeat(100);
        let (_, words, _) = carried(&many, "").await;
        assert_eq!(words.matches("line").count(), TAIL_LINES);
    }

    #[tokio::test]
    async fn lines_tell_of_steps_and_of_a_loss_that_is_no_number_until_it_is_one_again() {
        let told = Told::default();
        let hear = async |text: &'static [u8]| {
            let ears = Ears {
                tail: None,
                awaited: None,
                told: told.clone(),
            };
            carry(text, vec![], "", ears).await.unwrap();
            told.so_far()
        };
        let begun = hear(b"hello\nstep 3 loss 2.1\n").await;
        assert_eq!(
            (begun.lines, begun.step, begun.odd_number),
            (2, Some(3), None)
        );
        let odd = hear(b"step 4 loss nan\nstep 5 loss nan\nlr 0.1\n").await;
        let number = odd.odd_number.unwrap();
        assert_eq!((number.name.as_str(), number.step), ("loss", Some(4)));
        assert_eq!(hear(b"step 6 loss 2.0\n").await.odd_number, None);
    }

    #[tokio::test]
    async fn a_line_that_changes_goes_on_as_one_and_is_remembered_once() {
        let (log, words, _) = carried(b"\r  0%\r 50%\r100%\nend\n", "> ").await;
        let log = String::from_utf8(log).unwrap();
        assert_eq!(log.lines().last(), Some("> end"));
        assert!(
            log.contains(">   0%\r") && log.contains("> 100%\n"),
            "{log}"
        );
        assert_eq!(words, "; it said last:\n  100%\n  end");
    }
}
