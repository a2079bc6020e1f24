//! Output of a run's worker processes, passed on to the terminal, and the log of its own process:
//! kept, in memory for the pages and in a file of the run's folder for later.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use odeon::{Output, ProcessId};
use odeon_client::inspect as told;
use odeon_cluster::logs::Stream;
use odeon_cluster::unix::Unix;
use parking_lot::{Condvar, Mutex};

use super::journal::Journal;
use crate::print;

/// The kept lines of a run. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputLog(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    kept: Mutex<Kept>,
    /// An output has been read to its end.
    closed: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<told::LogLine>,
    bytes: usize,
    /// The number of lines so far.
    all: u64,
    /// Outputs that are still read.
    open: usize,
    file: Option<Journal>,
}

/// The files in a run's folder, the newer first.
pub(crate) const FILES: [&str; 2] = ["output.log", "output.log.1"];
/// The most lines that are kept in memory.
const LINES_MAX: usize = 10_000;
const BYTES_MAX: usize = 8 << 20;
/// The longest line; the rest of it counts as the next.
const LINE_BYTES_MAX: u64 = 16 << 10;

impl OutputLog {
    /// Keeps them in this folder, too.
    pub(crate) fn in_folder(folder: &Path) -> io::Result<Self> {
        let output_log = Self::default();
        output_log.0.kept.lock().file = Some(Journal::open(folder, FILES)?);
        Ok(output_log)
    }

    /// Reads what a process prints until it has ended. Threads of their own do: what is printed last
    /// is there also when nothing else of this program runs any more.
    pub(crate) fn take(&self, process: ProcessId, output: Output) {
        let Output { stdout, stderr, .. } = output;
        for (stream, pipe) in [
            (Stream::Out, stdout.into_owned_fd()),
            (Stream::Err, stderr.into_owned_fd()),
        ] {
            match pipe.and_then(|pipe| self.read(process, stream, pipe)) {
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%process, %error, "what the process prints is not read");
                }
            }
        }
    }

    fn read(&self, process: ProcessId, stream: Stream, pipe: OwnedFd) -> io::Result<()> {
        let output_log = self.clone();
        let reading = Reading::begin(self.clone());
        let body = move || {
            let _until_here = reading;
            let mut pipe = BufReader::new(File::from(pipe));
            let mut text = vec![];
            while let Ok(1..) = pipe
                .by_ref()
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut text)
            {
                print::pass_on(stream == Stream::Err, &text);
                output_log.add(process, stream, &text);
                text.clear();
            }
        };
        let name = format!("prints of {process}");
        thread::Builder::new().name(name).spawn(body).map(drop)
    }

    /// A line that this process has logged.
    pub(crate) fn logged(&self, process: ProcessId, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let plain = console::strip_ansi_codes(&text);
        self.add(process, Stream::Err, plain.as_bytes());
    }

    fn add(&self, process: ProcessId, stream: Stream, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let text = text.trim_end_matches(['\n', '\r']);
        let at = Unix::now();
        let word = super::dto::stream_word(stream);
        let mut kept = self.0.kept.lock();
        if let Some(file) = &mut kept.file
            && let Err(error) = file.write(&format!("{at} {process} {word} {text}\n"))
        {
            let path = file.path().display().to_string();
            kept.file = None;
            // Not as a log: that would be printed here.
            print::say(format!(
                "{path} takes no more of what processes print: {error}"
            ));
        }
        kept.all += 1;
        kept.bytes += text.len();
        kept.lines.push_back(told::LogLine {
            at: at.0 as f64,
            node: String::new(),
            process: process.to_string(),
            stream: word.to_owned(),
            text: text.to_owned(),
        });
        while kept.lines.len() > LINES_MAX || kept.bytes > BYTES_MAX {
            let Some(oldest) = kept.lines.pop_front() else {
                return;
            };
            kept.bytes -= oldest.text.len();
        }
    }

    /// The lines after so many, and how many there have been then.
    pub(super) fn after(&self, seen: u64) -> (Vec<told::LogLine>, u64) {
        let kept = self.0.kept.lock();
        let first = kept.all - kept.lines.len() as u64;
        let skip = seen.saturating_sub(first) as usize;
        (kept.lines.iter().skip(skip).cloned().collect(), kept.all)
    }

    /// Waits until the outputs of all processes are read to their ends. What a process has started
    /// itself may hold one open; that is not waited for.
    pub(crate) fn end(&self) {
        let mut kept = self.0.kept.lock();
        let closed = |kept: &mut Kept| kept.open > 0;
        self.0
            .closed
            .wait_while_for(&mut kept, closed, END_PATIENCE);
    }
}

/// The time that outputs are read on when their processes have ended.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// An output that is read, until it is dropped.
struct Reading(OutputLog);

impl Reading {
    fn begin(output_log: OutputLog) -> Self {
        output_log.0.kept.lock().open += 1;
        Self(output_log)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let shared = &self.0.0;
        shared.kept.lock().open -= 1;
        shared.closed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use odeon::Clock;

    use super::*;

    fn printed(output_log: &OutputLog, stream: Stream, text: &[u8]) {
        let (reader, mut writer) = io::pipe().unwrap();
        output_log
            .read(ProcessId(7), stream, OwnedFd::from(reader))
            .unwrap();
        writer.write_all(text).unwrap();
        drop(writer);
        output_log.end();
    }

    /// SEMANTICS 75.
    #[test]
    fn lines_are_kept_with_whose_they_are_and_the_last_needs_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let output_log = OutputLog::in_folder(folder.path()).unwrap();
        printed(&output_log, Stream::Out, b"one\r\ntwo \xff");
        printed(&output_log, Stream::Err, b"three\n");
        let (lines, seen) = output_log.after(0);
        let told: Vec<_> = lines
            .iter()
            .map(|it| (it.stream.as_str(), it.text.as_str()))
            .collect();
        assert_eq!(
            told,
            [("out", "one"), ("out", "two \u{fffd}"), ("err", "three")]
        );
        assert!(
            lines
                .iter()
                .all(|it| it.process == ProcessId(7).to_string())
        );
        assert_eq!((seen, output_log.after(2).0.len()), (3, 1));
        let file = fs::read_to_string(folder.path().join(FILES[0])).unwrap();
        assert_eq!(file.lines().count(), 3, "{file}");
        assert!(file.lines().all(|line| line.starts_with("20")), "{file}");
        // The next try of the run goes on in it.
        drop(output_log);
        let output_log = OutputLog::in_folder(folder.path()).unwrap();
        printed(&output_log, Stream::Out, b"four\n");
        let file = fs::read_to_string(folder.path().join(FILES[0])).unwrap();
        assert_eq!(file.lines().count(), 4, "{file}");
    }

    /// SEMANTICS 75.
    #[test]
    fn a_line_is_kept_while_its_process_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let output_log = OutputLog::in_folder(folder.path()).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        output_log
            .read(ProcessId(7), Stream::Out, OwnedFd::from(reader))
            .unwrap();
        let kept = || fs::read_to_string(folder.path().join(FILES[0])).unwrap();
        for n in 1..=3 {
            writeln!(writer, "line {n}").unwrap();
            let begun = Clock::now();
            while kept().lines().count() < n || output_log.after(0).1 < n as u64 {
                let waited = Clock::now().since(begun);
                assert!(waited < Duration::from_secs(60), "{}", kept());
                thread::yield_now();
            }
        }
    }

    /// SEMANTICS 75.
    #[test]
    fn the_oldest_lines_go_first_and_a_long_one_is_cut() {
        let output_log = OutputLog::default();
        let long = "x".repeat(LINE_BYTES_MAX as usize + 5);
        let text = format!("{}{long}\n", "short\n".repeat(LINES_MAX));
        printed(&output_log, Stream::Err, text.as_bytes());
        let (lines, seen) = output_log.after(0);
        assert_eq!((lines.len(), seen), (LINES_MAX, LINES_MAX as u64 + 2));
        let last: Vec<_> = lines.iter().rev().map(|it| it.text.len()).take(2).collect();
        assert_eq!(last, [5, LINE_BYTES_MAX as usize]);
    }
}
