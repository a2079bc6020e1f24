//! Output of this node's processes, on its way to the voters' logs.

mod waiting;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use odeon::upgrade::take_open;
use odeon::{Clock, Output, PrintedLine, PrintedLines, ProcessId, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, watch};

use crate::job::JobId;
use crate::logs::archive::Archive;
use crate::logs::{LogLine, Stream};
use crate::unix::Unix;
use waiting::{DRIVER, Printed, QueueEstate, Waiting};

pub(crate) use waiting::Try;

/// Reads what processes print and brings it to the voters. Clones share what waits.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    waiting: Arc<Mutex<Waiting>>,
    /// Something waits.
    filled: Arc<Notify>,
    /// Something has left, or a process has closed an output.
    moved: Arc<Notify>,
    /// Lines that are on their way to the voters.
    leaving: Arc<Mutex<Vec<(JobId, LogLine)>>>,
    /// Set while nothing is read any more, so that the next program of this process reads on.
    frozen: watch::Sender<bool>,
    outputs: Arc<Mutex<Outputs>>,
}

/// The outputs of processes, while the next program of this process is about to read on.
#[derive(Debug, Default)]
struct Outputs {
    /// Number of outputs that are read.
    read: usize,
    left: Vec<OutputEstate>,
}

/// The printed output that the next program of this process has to know of.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutputHandoff {
    queues: Vec<QueueEstate>,
    outputs: Vec<OutputEstate>,
}

/// An output of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OutputEstate {
    of: Try,
    process: String,
    stream: Stream,
    fd: RawFd,
    /// Bytes that were read of it and are no line that waits.
    unread: Vec<u8>,
}

impl OutputHandoff {
    /// The descriptors that must stay open.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        self.outputs.iter().map(|output| output.fd).collect()
    }
}

/// The longest line; a longer one comes in pieces that say that they are.
const LINE_BYTES_MAX: usize = 256 << 10;
/// The longest time with fewer than most of the voters until those that are there suffice.
const SAFE_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two looks whether all outputs are left.
const STOP_PAUSE: Duration = Duration::from_millis(5);
/// The pause before another try when too few voters keep any.
const PAUSE: Duration = Duration::from_millis(500);

impl Forward {
    /// That of a node, in this life of it.
    pub(crate) fn new(node: &str, life: ProcessId) -> Self {
        Self {
            waiting: Arc::new(Mutex::new(Waiting::new(node, life.0))),
            filled: Arc::default(),
            moved: Arc::default(),
            leaving: Arc::default(),
            frozen: watch::channel(false).0,
            outputs: Arc::default(),
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
        let output = |stream, fd: &dyn AsRawFd| OutputEstate {
            of,
            process: process.clone(),
            stream,
            fd: fd.as_raw_fd(),
            unread: vec![],
        };
        self.begin(output(Stream::Out, &stdout), stdout);
        self.begin(output(Stream::Err, &stderr), stderr);
    }

    /// Goes on with what the program before this one in this process has left.
    pub(crate) fn inherit(&self, handoff: OutputHandoff) -> std::io::Result<()> {
        let OutputHandoff { queues, outputs } = handoff;
        self.waiting.lock().inherit(queues, Clock::now());
        for output in outputs {
            let source = Receiver::from_owned_fd(take_open(output.fd)?)?;
            self.waiting.lock().open(output.of, 1, Clock::now());
            self.begin(output, source);
        }
        self.filled.notify_one();
        Ok(())
    }

    /// Reads no more, and says what the next program of this process has to know.
    pub(crate) async fn freeze(&self) -> OutputHandoff {
        self.frozen.send_replace(true);
        loop {
            let (moved, settled) = (self.moved.notified(), {
                let outputs = self.outputs.lock();
                outputs.read == outputs.left.len()
            });
            if settled {
                break;
            }
            // Each says when it has stopped; a look now and then is as good.
            let _ = Clock::timeout(STOP_PAUSE, moved).await;
        }
        let leaving = std::mem::take(&mut *self.leaving.lock());
        OutputHandoff {
            queues: self.waiting.lock().handoff(&leaving),
            outputs: std::mem::take(&mut self.outputs.lock().left),
        }
    }

    fn begin(&self, output: OutputEstate, source: impl AsyncRead + Unpin + Send + 'static) {
        self.outputs.lock().read += 1;
        let forward = self.clone();
        tokio::spawn(async move {
            let of = output.of;
            forward.read(output, source).await;
            forward.outputs.lock().read -= 1;
            forward.waiting.lock().closed(of);
            forward.moved.notify_waiters();
        });
    }

    /// Reads an output to its end.
    async fn read(&self, mut output: OutputEstate, source: impl AsyncRead + Unpin) {
        let mut frozen = self.frozen.subscribe();
        let unread = std::io::Cursor::new(std::mem::take(&mut output.unread));
        let mut lines = PrintedLines::new(unread.chain(source), LINE_BYTES_MAX);
        let of = output.of;
        loop {
            let line = tokio::select! {
                biased;
                () = stopped(&mut frozen) => return self.leave(output, lines.unread()).await,
                line = lines.next() => line,
            };
            match line {
                Ok(None) => break,
                Ok(Some(line)) => {
                    let printed = Printed {
                        at: Unix::now(),
                        process: output.process.clone(),
                        stream: output.stream,
                        text: String::from_utf8_lossy(&line.text).into_owned(),
                        changes: line.changes,
                    };
                    tokio::select! {
                        biased;
                        () = self.push(of, printed) => {}
                        () = stopped(&mut frozen) => {
                            return self.leave(output, again(line, lines.unread())).await;
                        }
                    }
                }
                Err(error) => {
                    let (job, process) = (of.0, output.process);
                    tracing::warn!(%job, process, %error, "the output of a process cannot be read");
                    break;
                }
            }
        }
    }

    /// Leaves an output to the next program of this process, and keeps it open until then.
    async fn leave(&self, output: OutputEstate, unread: Vec<u8>) {
        self.outputs
            .lock()
            .left
            .push(OutputEstate { unread, ..output });
        self.moved.notify_waiters();
        std::future::pending::<()>().await;
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

    /// The number of lines that a try has printed here.
    pub(crate) fn lines(&self, of: Try) -> u64 {
        self.waiting.lock().lines(of)
    }

    /// The last words of the driver of a try on its standard error.
    pub(crate) fn said(&self, of: Try) -> Option<String> {
        self.waiting.lock().said(of)
    }

    /// Waits until all that a try has printed here is kept, whose processes are gone; not for ever.
    /// Gives the number of lines that are not.
    pub(crate) async fn flush(&self, of: Try) -> u64 {
        self.until(|waiting, now| waiting.unsettled(of, now)).await;
        let mut waiting = self.waiting.lock();
        let unkept = waiting.unkept(of);
        waiting.over(of);
        unkept
    }

    /// Returns true where there is something to wait for of what a try has printed here, whose
    /// processes are gone.
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
            let lines = serde_json::to_string(&batch);
            *self.leaving.lock() = batch;
            match lines {
                Ok(lines) => keep(&archive, &lines, &mut short_since).await,
                Err(error) => tracing::error!(%error, "lines of jobs cannot be written"),
            }
            self.leaving.lock().clear();
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

/// Resolves when nothing is to be read any more.
async fn stopped(frozen: &mut watch::Receiver<bool>) {
    // The sender is held by who waits, so the wait cannot fail.
    let _ = frozen.wait_for(|frozen| *frozen).await;
}

/// What is to be read again: a line that nobody has taken, and what stands behind it.
fn again(line: PrintedLine, unread: Vec<u8>) -> Vec<u8> {
    // How a changing line stands is in what stands behind it, too.
    if line.changes {
        return unread;
    }
    let end = line.end();
    let mut text = line.text;
    text.push(end);
    text.extend(unread);
    text
}
