//! What the processes of this node print, on its way to the voters' logs.

mod waiting;

use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, Output, ProcessId, Timestamp};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::Notify;

use crate::logs::Stream;
use crate::logs::archive::Archive;
use crate::unix::Unix;
use waiting::{DRIVER, Printed, Waiting};

pub(crate) use waiting::Try;

/// See the module. Clones share what waits.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    waiting: Arc<Mutex<Waiting>>,
    /// Something waits.
    filled: Arc<Notify>,
    /// Something has left, or a process has closed an output.
    moved: Arc<Notify>,
}

/// The longest line; a longer one is cut.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Bytes that are read of an output at once.
const READ_BYTES: usize = 64 << 10;
/// How long fewer than most of the voters may be there until those that are do.
const SAFE_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait when too few voters keep any.
const PAUSE: Duration = Duration::from_millis(500);

impl Forward {
    /// That of a node, in this life of it.
    pub(crate) fn new(node: &str, life: ProcessId) -> Self {
        Self {
            waiting: Arc::new(Mutex::new(Waiting::new(node, life.0))),
            filled: Arc::default(),
            moved: Arc::default(),
        }
    }

    /// Reads what a process prints until it has ended.
    pub(crate) fn take(&self, of: Try, process: ProcessId, output: Output) {
        let process = if output.is_driver {
            DRIVER.to_owned()
        } else {
            process.to_string()
        };
        self.waiting.lock().open(of, 2, Clock::now());
        let Output { stdout, stderr, .. } = output;
        let (out, err) = (self.clone(), self.clone());
        let name = process.clone();
        tokio::spawn(async move { out.read(of, name, Stream::Out, stdout).await });
        tokio::spawn(async move { err.read(of, process, Stream::Err, stderr).await });
    }

    async fn read(&self, of: Try, process: String, stream: Stream, source: impl AsyncRead + Unpin) {
        let mut reader = BufReader::with_capacity(READ_BYTES, source);
        let mut text = vec![];
        loop {
            text.clear();
            match read_line(&mut reader, &mut text).await {
                Ok(false) => break,
                Ok(true) => {
                    let printed = Printed {
                        at: Unix::now(),
                        process: process.clone(),
                        stream,
                        text: String::from_utf8_lossy(&text).into_owned(),
                    };
                    self.push(of, printed).await;
                }
                Err(error) => {
                    let job = of.0;
                    tracing::warn!(%job, process, %error, "the output of a process cannot be read");
                    break;
                }
            }
        }
        self.waiting.lock().closed(of);
        self.moved.notify_waiters();
    }

    /// Has a line wait, when there is room. Meanwhile nothing is read, so the process waits too.
    async fn push(&self, of: Try, mut printed: Printed) {
        loop {
            let moved = self.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            let pushed = self.waiting.lock().push(of, printed, Clock::now());
            match pushed {
                Ok(()) => return self.filled.notify_one(),
                Err((back, at_most)) => {
                    printed = back;
                    // Either is a reason to look again.
                    let _ = Clock::timeout(at_most, moved).await;
                }
            }
        }
    }

    /// Waits until the outputs of a try's processes here are read to their ends, or the time is up.
    pub(crate) async fn drain(&self, of: Try, patience: Duration) {
        let read = self.until(|waiting, _| (waiting.is_open(of)).then_some(patience));
        let _ = Clock::timeout(patience, read).await;
    }

    /// What the driver of a try has last said on its standard error.
    pub(crate) fn said(&self, of: Try) -> Option<String> {
        self.waiting.lock().said(of)
    }

    /// Waits until all that a try has printed here is kept, whose processes are gone; not for ever.
    pub(crate) async fn flush(&self, of: Try) {
        self.until(|waiting, now| waiting.unsettled(of, now)).await;
        self.waiting.lock().over(of);
    }

    /// Whether there is something to wait for of what a try has printed here, whose processes are
    /// gone.
    pub(crate) fn is_unsettled(&self, of: Try) -> bool {
        let mut waiting = self.waiting.lock();
        let unsettled = waiting.unsettled(of, Clock::now()).is_some();
        if !unsettled {
            waiting.over(of);
        }
        unsettled
    }

    /// Waits until there is nothing to wait for: looks again when something has moved, or after what
    /// it says.
    async fn until(&self, left: impl Fn(&mut Waiting, Timestamp) -> Option<Duration>) {
        loop {
            let moved = self.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            let Some(at_most) = left(&mut self.waiting.lock(), Clock::now()) else {
                return;
            };
            // Either is a reason to look again.
            let _ = Clock::timeout(at_most, moved).await;
        }
    }

    /// Sends on what waits, for ever.
    pub(crate) async fn run(self, archive: Archive) {
        let mut short_since = None;
        loop {
            let batch = self.waiting.lock().next_batch();
            if batch.is_empty() {
                self.filled.notified().await;
                continue;
            }
            match serde_json::to_string(&batch) {
                Ok(lines) => keep(&archive, &lines, &mut short_since).await,
                Err(error) => tracing::error!(%error, "lines of jobs cannot be written"),
            }
            self.waiting.lock().kept(Clock::now());
            self.moved.notify_waiters();
        }
    }
}

/// Has lines kept by most voters; by those that are there, when most have been away for a while.
async fn keep(archive: &Archive, lines: &str, short_since: &mut Option<Timestamp>) {
    loop {
        let kept = archive.keep(lines).await;
        if kept.is_safe() {
            *short_since = None;
            return;
        }
        let now = Clock::now();
        let since = *short_since.get_or_insert(now);
        if kept.by > 0 && now.since(since) > SAFE_PATIENCE {
            return;
        }
        Clock::sleep(PAUSE).await;
    }
}

/// Reads one line without its end, cut when it is too long. Whether there was one.
async fn read_line(
    reader: &mut (impl AsyncBufReadExt + Unpin),
    text: &mut Vec<u8>,
) -> std::io::Result<bool> {
    let mut any = false;
    loop {
        let buffer = reader.fill_buf().await?;
        if buffer.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        let room = LINE_BYTES_MAX.saturating_sub(text.len());
        text.extend_from_slice(&part[..part.len().min(room)]);
        let used = end.map_or(part.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            if text.last() == Some(&b'\r') {
                text.pop();
            }
            return Ok(true);
        }
    }
}
