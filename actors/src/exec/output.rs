//! Output of a program: on to the log of the process that hosts it, line by line. The last lines
//! are remembered for the failure, and a text may be waited for.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;

/// The last lines that a program has said on its standard error. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Tail {
    fn push(&self, line: &[u8]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = &line[..line.len().min(TAIL_LINE_BYTES)];
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).into_owned());
    }

    /// In words, behind how it ended; empty when it has said nothing.
    pub(super) fn words(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("; it said last:\n  {}", lines.join("\n  "))
    }
}

/// Where lines go beside the log.
#[derive(Debug)]
pub(super) struct Ears {
    /// Remembers them.
    pub(super) tail: Option<Tail>,
    /// Becomes true with the first line that contains the text.
    pub(super) awaited: Option<(String, watch::Sender<bool>)>,
}

/// Carries lines from a program to a log until the program has closed its end.
pub(super) async fn carry<W: Write + Send + 'static>(
    source: impl AsyncRead + Unpin,
    log: W,
    prefix: &str,
    ears: Ears,
) -> Option<W> {
    let mut source = BufReader::new(source);
    let mut line = prefix.as_bytes().to_vec();
    let mut log = Some(log);
    loop {
        line.truncate(prefix.len());
        // The end of a program's output is no news of its own: how it ended is told elsewhere.
        if !read_line(&mut source, &mut line).await.unwrap_or(false) {
            return log;
        }
        let said = &line[prefix.len()..];
        if let Some(tail) = &ears.tail {
            tail.push(said);
        }
        if let Some((text, seen)) = &ears.awaited
            && String::from_utf8_lossy(said).contains(text)
        {
            seen.send_replace(true);
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        // A log that takes no more is no reason to let the program wait.
        if let Some(taker) = log.take() {
            (line, log) = write(taker, line, prefix).await;
        }
    }
}

/// Writes a line in one piece, so that those of several programs do not mix; whoever reads the log
/// may be slow, so not on a thread of the runtime.
async fn write<W: Write + Send + 'static>(
    mut log: W,
    line: Vec<u8>,
    prefix: &str,
) -> (Vec<u8>, Option<W>) {
    let written = tokio::task::spawn_blocking(move || {
        let written = log.write_all(&line).and_then(|()| log.flush());
        (line, written.is_ok().then_some(log))
    });
    let lost = |_| (prefix.as_bytes().to_vec(), None);
    written.await.unwrap_or_else(lost)
}

/// Adds a line with its end, or a part of one that is too long. Returns true if there was any.
async fn read_line(
    source: &mut (impl AsyncBufReadExt + Unpin),
    line: &mut Vec<u8>,
) -> std::io::Result<bool> {
    let before = line.len();
    loop {
        let held = source.fill_buf().await?;
        if held.is_empty() {
            return Ok(line.len() > before);
        }
        let room = LINE_BYTES_MAX - (line.len() - before);
        let held = &held[..held.len().min(room)];
        let end = held.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(held.len(), |end| end + 1);
        line.extend_from_slice(&held[..taken]);
        source.consume(taken);
        if end.is_some() || line.len() - before >= LINE_BYTES_MAX {
            return Ok(true);
        }
    }
}

/// The longest line that goes on in one piece.
const LINE_BYTES_MAX: usize = 16 << 10;
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
        let (log, words, seen) = carried(b"", "x").await;
        assert!(log.is_empty() && words.is_empty() && !seen);
    }

    #[tokio::test]
    async fn what_is_no_text_or_too_long_goes_on_and_costs_no_more() {
        let mut text = vec![b'x'; LINE_BYTES_MAX + 10];
        text.extend_from_slice(b"\n\xff\xfe\n");
        let (log, words, _) = carried(&text, "").await;
        assert_eq!(log.len(), text.len() + 1);
        assert!(log.ends_with(b"\n\xff\xfe\n"));
        assert!(words.len() < 3 * TAIL_LINE_BYTES, "{}", words.len());
        let many = b"line\n".repeat(100);
        let (_, words, _) = carried(&many, "").await;
        assert_eq!(words.matches("line").count(), TAIL_LINES);
    }
}
