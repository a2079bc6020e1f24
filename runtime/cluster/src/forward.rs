//! What the processes of this node print, on its way to the voters' logs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, Failure, Output, ProcessId, System};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::Notify;

use crate::catalog::Catalog;
use crate::job::JobId;
use crate::json::Json;
use crate::logs::{LogLine, Logs, Stream};
use crate::named;
use crate::seat::Seat;
use crate::unix::Unix;

/// See the module. Clones share what waits.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    node: String,
    waiting: Arc<Mutex<Waiting>>,
    /// Something waits.
    filled: Arc<Notify>,
    /// Something has left, or a process has closed an output.
    moved: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<(JobId, LogLine)>,
    bytes: usize,
    /// Lines that found no room, by job.
    lost: BTreeMap<JobId, u64>,
    /// Lines under way, by job.
    leaving: BTreeMap<JobId, usize>,
    /// Outputs that are open, by job.
    open: BTreeMap<JobId, usize>,
}

/// Bytes that wait here at most; what comes then is lost, and counted.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Bytes of one message.
const BATCH_BYTES: usize = 256 << 10;
/// The longest line; a longer one is cut.
const LINE_BYTES_MAX: usize = 16 << 10;
/// How long a voter may take to keep some lines.
const KEEP_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait when no voter keeps any.
const PAUSE: Duration = Duration::from_millis(500);

/// The name of the actor at a voter that keeps logs.
fn keeper(node: &str) -> String {
    format!("logs@{node}")
}

impl Forward {
    pub(crate) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            waiting: Arc::default(),
            filled: Arc::default(),
            moved: Arc::default(),
        }
    }

    /// Reads what a process prints until it has ended.
    pub(crate) fn take(&self, job: JobId, process: ProcessId, output: Output) {
        let process = if output.is_driver {
            "driver".to_owned()
        } else {
            process.to_string()
        };
        *self.waiting.lock().open.entry(job).or_default() += 2;
        let Output { stdout, stderr, .. } = output;
        let (out, err) = (self.clone(), self.clone());
        let name = process.clone();
        tokio::spawn(async move { out.read(job, name, Stream::Out, stdout).await });
        tokio::spawn(async move { err.read(job, process, Stream::Err, stderr).await });
    }

    async fn read(
        &self,
        job: JobId,
        process: String,
        stream: Stream,
        source: impl AsyncRead + Unpin,
    ) {
        let mut reader = BufReader::new(source);
        let mut text = vec![];
        loop {
            text.clear();
            match read_line(&mut reader, &mut text).await {
                Ok(false) => break,
                Ok(true) => self.push(
                    job,
                    LogLine {
                        at: Unix::now(),
                        node: self.node.clone(),
                        process: process.clone(),
                        stream,
                        text: String::from_utf8_lossy(&text).into_owned(),
                    },
                ),
                Err(error) => {
                    tracing::warn!(%job, process, %error, "the output of a process cannot be read");
                    break;
                }
            }
        }
        let mut waiting = self.waiting.lock();
        if let Some(open) = waiting.open.get_mut(&job) {
            *open -= 1;
            if *open == 0 {
                waiting.open.remove(&job);
            }
        }
        drop(waiting);
        self.moved.notify_waiters();
    }

    fn push(&self, job: JobId, line: LogLine) {
        let mut waiting = self.waiting.lock();
        let bytes = line.text.len() + LINE_OVERHEAD;
        if waiting.bytes + bytes > WAITING_BYTES_MAX {
            *waiting.lost.entry(job).or_default() += 1;
            return;
        }
        waiting.bytes += bytes;
        waiting.lines.push_back((job, line));
        drop(waiting);
        self.filled.notify_one();
    }

    /// Waits until the outputs of a job's processes here are read to their ends, or the time is up.
    pub(crate) async fn drain(&self, job: JobId, patience: Duration) {
        let read = self.until(|waiting| !waiting.open.contains_key(&job));
        let _ = Clock::timeout(patience, read).await;
    }

    /// Waits until what a job has printed here is kept.
    pub(crate) async fn flush(&self, job: JobId) {
        let kept = self.until(|waiting| {
            let waits = waiting.lines.iter().any(|(of, _)| *of == job);
            !waits && !waiting.leaving.contains_key(&job)
        });
        // It is kept when a voter is there again; the job's end should not wait for that.
        let _ = Clock::timeout(KEEP_PATIENCE, kept).await;
    }

    async fn until(&self, fact: impl Fn(&Waiting) -> bool) {
        loop {
            let moved = self.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            if fact(&self.waiting.lock()) {
                return;
            }
            moved.await;
        }
    }

    /// Sends on what waits, for ever.
    pub(crate) async fn run(self, system: System, catalog: Catalog) {
        loop {
            let batch = self.next_batch();
            if batch.is_empty() {
                self.filled.notified().await;
                continue;
            }
            while !send(&system, &catalog, &batch).await {
                Clock::sleep(PAUSE).await;
            }
            self.waiting.lock().leaving.clear();
            self.moved.notify_waiters();
        }
    }

    fn next_batch(&self) -> Vec<(JobId, LogLine)> {
        let mut waiting = self.waiting.lock();
        let mut batch = vec![];
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some((job, line)) = waiting.lines.pop_front()
        {
            bytes += line.text.len() + LINE_OVERHEAD;
            *waiting.leaving.entry(job).or_default() += 1;
            batch.push((job, line));
        }
        waiting.bytes -= bytes;
        for (job, lost) in std::mem::take(&mut waiting.lost) {
            let line = LogLine {
                at: Unix::now(),
                node: self.node.clone(),
                process: "node".to_owned(),
                stream: Stream::Err,
                text: format!("{lost} lines were lost here: more was printed than could be kept"),
            };
            batch.push((job, line));
        }
        batch
    }
}

/// What a line costs beside its text.
const LINE_OVERHEAD: usize = 128;

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

/// Gives lines to every voter. Whether one at least has kept them.
async fn send(system: &System, catalog: &Catalog, lines: &[(JobId, LogLine)]) -> bool {
    let voters = catalog.voters();
    let keeping = voters.iter().map(|voter| async move {
        let found = system.lookup::<LogKeeper>(&keeper(voter)).await.ok()?;
        let lines = Json(lines.to_vec());
        let asked = found.ask(Keep { lines }).timeout(KEEP_PATIENCE).await;
        asked.ok().filter(|kept| *kept)
    });
    let kept = futures::future::join_all(keeping).await;
    kept.iter().any(Option::is_some)
}

/// The actor of a voter that keeps logs.
#[derive(Debug)]
pub(crate) struct LogKeeper {
    logs: Arc<Logs>,
}

#[odeon::actor(name = "odeon.cluster.LogKeeper")]
impl LogKeeper {
    async fn start(logs: Seat<Arc<Logs>>) -> Result<Self, Failure> {
        let logs = logs.take()?;
        Ok(Self { logs })
    }

    /// Keeps lines of jobs. Whether it could.
    #[handler]
    async fn keep(&mut self, lines: Json<Vec<(JobId, LogLine)>>) -> bool {
        let logs = Arc::clone(&self.logs);
        let kept = tokio::task::spawn_blocking(move || {
            let mut by_job: BTreeMap<JobId, Vec<LogLine>> = BTreeMap::new();
            for (job, line) in lines.0 {
                by_job.entry(job).or_default().push(line);
            }
            let mut all = by_job.iter();
            all.try_for_each(|(job, lines)| logs.append(*job, lines))
        });
        match kept.await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the output of jobs cannot be kept");
                false
            }
            Err(_) => false,
        }
    }
}

/// Spawns the actor of a voter that keeps logs.
pub(crate) async fn keep_logs(
    system: &System,
    node: &str,
    logs: &Arc<Logs>,
) -> Result<(), Failure> {
    let spawned = system.spawn::<LogKeeper>(Seat::new(Arc::clone(logs))).await;
    let actor = spawned.map_err(|error| Failure::error(&error))?;
    let named = named::register(system, &keeper(node), actor).await;
    named.map_err(|error| Failure::error(&error))
}
