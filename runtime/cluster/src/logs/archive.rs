//! The logs of all voters, as a node reaches them: it has lines kept there, and reads them as one.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use odeon::{Clock, Failure, Later, System, Timestamp};
use parking_lot::Mutex;

use super::{Cursor, LogLine, Logs, Merged, Page, merge};
use crate::catalog::Catalog;
use crate::job::JobId;
use crate::json::Json;
use crate::local_only::LocalOnly;
use crate::node_directory;

/// The logs of jobs at all voters, read as one. Clones are the same archive.
#[derive(Clone, Debug)]
pub struct Archive {
    system: System,
    node: String,
    catalog: Catalog,
    logs: Arc<Logs>,
    /// Voters that did not answer a reader, and since when.
    silent: Arc<Mutex<BTreeMap<String, Timestamp>>>,
}

/// A log as the voters that answer have it.
#[derive(Debug)]
pub struct Reading {
    /// As one.
    pub merged: Merged,
    /// Voters that do not answer: what they alone have is not there.
    pub silent: Vec<String>,
}

/// Number of voters that have kept some lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) by: usize,
    pub(crate) of: usize,
}

/// The longest time that a voter may take to keep some lines.
const KEEP_PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for the others when most voters have kept them.
const REST_PATIENCE: Duration = Duration::from_millis(200);
/// The longest time that a voter may take to give some.
const READ_PATIENCE: Duration = Duration::from_secs(2);
/// The time for which one that did not answer is left alone, unless something is missing.
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes of one voter's page.
const PAGE_BYTES_MAX: usize = 512 << 10;

/// The name of the actor at a voter that keeps logs.
fn name_of(node: &str) -> String {
    format!("logs@{node}")
}

impl Archive {
    /// That of a node, whose own logs these are. Other nodes reach them.
    pub(crate) async fn begin(
        system: &System,
        node: &str,
        catalog: &Catalog,
        logs: Arc<Logs>,
    ) -> Result<Self, Failure> {
        let keeper = system.spawn::<LogKeeper>(LocalOnly::new(Arc::clone(&logs)));
        let keeper = keeper.await.map_err(|error| Failure::error(&error))?;
        let named = node_directory::register(system, &name_of(node), keeper).await;
        named.map_err(|error| Failure::error(&error))?;
        Ok(Self {
            system: system.clone(),
            node: node.to_owned(),
            catalog: catalog.clone(),
            logs,
            silent: Arc::default(),
        })
    }

    /// The logs of this node.
    #[must_use]
    pub const fn logs(&self) -> &Arc<Logs> {
        &self.logs
    }

    /// Gives lines, encoded, to every voter.
    pub(crate) async fn keep(&self, lines: &str) -> Kept {
        let voters = self.catalog.voters();
        let mut kept = Kept {
            by: 0,
            of: voters.len(),
        };
        let asked = voters.iter().map(|voter| async move {
            let found = self
                .system
                .lookup::<LogKeeper>(&name_of(voter))
                .await
                .ok()?;
            let lines = lines.to_owned();
            let asked = found.ask(Keep { lines }).timeout(KEEP_PATIENCE);
            asked.await.ok().filter(|kept| *kept)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut patience = KEEP_PATIENCE;
        while let Some(Some(answer)) = Clock::timeout(patience, asked.next()).await {
            kept.by += usize::from(answer.is_some());
            if kept.is_safe() {
                patience = REST_PATIENCE;
            }
        }
        kept
    }

    /// Lines of a job behind a cursor.
    ///
    /// # Errors
    /// This node's disk does not give them.
    #[odeon::boxed]
    pub async fn read(&self, job: JobId, cursor: &Cursor) -> io::Result<Reading> {
        let (mut pages, silent) = self.pages(job, cursor, SILENCE).await?;
        let merged = merge(cursor, pages.clone());
        if !merged.lacks() {
            return Ok(Reading { merged, silent });
        }
        // A voter that was asked before another may have had a line a moment later: it was kept before
        // any line behind it was sent to anybody, so it is there now.
        let (again, silent) = self.pages(job, cursor, Duration::ZERO).await?;
        pages.extend(again);
        let merged = merge(cursor, pages);
        Ok(Reading { merged, silent })
    }

    /// Behind all lines of a job that are kept.
    ///
    /// # Errors
    /// This node's disk does not tell.
    #[odeon::boxed]
    pub async fn end(&self, job: JobId) -> io::Result<Cursor> {
        let logs = Arc::clone(&self.logs);
        let mut end = blocking(move || logs.end(job)).await?;
        let others = self.others();
        let ends = others.iter().map(|voter| async move {
            let found = self
                .system
                .lookup::<LogKeeper>(&name_of(voter))
                .await
                .ok()?;
            let asked = found.ask(End { job: job.0 }).timeout(READ_PATIENCE);
            asked.await.ok()?.parse::<Cursor>().ok()
        });
        for known in join_all(ends).await.into_iter().flatten() {
            end.join(&known);
        }
        Ok(end)
    }

    fn others(&self) -> Vec<String> {
        let voters = self.catalog.voters().into_iter();
        voters.filter(|voter| *voter != self.node).collect()
    }

    /// The page of each voter behind a cursor, and the voters that did not answer, now or a moment
    /// ago.
    async fn pages(
        &self,
        job: JobId,
        cursor: &Cursor,
        silence: Duration,
    ) -> io::Result<(Vec<Page>, Vec<String>)> {
        let (logs, from) = (Arc::clone(&self.logs), cursor.clone());
        let own = blocking(move || logs.read(job, &from, PAGE_BYTES_MAX));
        let voters = self.others();
        let given = voters
            .iter()
            .map(|voter| self.page(voter, job, cursor, silence));
        let (own, given) = tokio::join!(own, join_all(given));
        let (mut pages, mut silent) = (vec![own?], vec![]);
        for (voter, page) in voters.into_iter().zip(given) {
            match page {
                Some(page) => pages.push(page),
                None => silent.push(voter),
            }
        }
        Ok((pages, silent))
    }

    async fn page(
        &self,
        voter: &str,
        job: JobId,
        cursor: &Cursor,
        silence: Duration,
    ) -> Option<Page> {
        let since = self.silent.lock().get(voter).copied();
        if since.is_some_and(|since| Clock::now().since(since) < silence) {
            return None;
        }
        let asked = async {
            let found = self
                .system
                .lookup::<LogKeeper>(&name_of(voter))
                .await
                .ok()?;
            let give = Give {
                job: job.0,
                after: cursor.to_string(),
            };
            let Json(page) = found.ask(give).timeout(READ_PATIENCE).await.ok()?;
            page
        };
        let page = Clock::timeout(READ_PATIENCE, asked).await.flatten();
        let mut silent = self.silent.lock();
        match page {
            Some(_) => silent.remove(voter),
            None => silent.insert(voter.to_owned(), Clock::now()),
        };
        page
    }
}

impl Kept {
    /// Returns true where most voters have them.
    pub(crate) const fn is_safe(self) -> bool {
        self.by * 2 > self.of
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// The actor of a voter that keeps logs.
#[derive(Debug)]
pub(crate) struct LogKeeper {
    logs: Arc<Logs>,
}

#[odeon::actor(name = "odeon.cluster.LogKeeper")]
impl LogKeeper {
    async fn start(logs: LocalOnly<Arc<Logs>>) -> Result<Self, Failure> {
        let logs = logs.take()?;
        Ok(Self { logs })
    }

    /// Keeps lines of jobs. Returns true if it could.
    #[handler]
    async fn keep(&mut self, lines: String) -> bool {
        let logs = Arc::clone(&self.logs);
        let kept = blocking(move || {
            let lines: Vec<(JobId, LogLine)> = serde_json::from_str(&lines)?;
            let mut by_job: BTreeMap<JobId, Vec<LogLine>> = BTreeMap::new();
            for (job, line) in lines {
                by_job.entry(job).or_default().push(line);
            }
            let mut all = by_job.iter();
            all.try_for_each(|(job, lines)| logs.append(*job, lines))
        });
        let kept = kept.await;
        if let Err(error) = &kept {
            tracing::warn!(%error, "the output of jobs cannot be kept");
        }
        kept.is_ok()
    }

    /// Lines of a job behind a cursor; nothing if they cannot be read.
    #[handler]
    fn give(&mut self, job: u64, after: String) -> Later<Json<Option<Page>>> {
        let logs = Arc::clone(&self.logs);
        Later::new(async move {
            let page = blocking(move || {
                let cursor = after.parse::<Cursor>().map_err(io::Error::other)?;
                logs.read(JobId(job), &cursor, PAGE_BYTES_MAX)
            });
            let page = page.await;
            if let Err(error) = &page {
                tracing::warn!(%error, "the output of a job cannot be read");
            }
            Json(page.ok())
        })
    }

    /// Behind all lines of a job that are here.
    #[handler]
    async fn end(&mut self, job: u64) -> String {
        let end = self.logs.end(JobId(job));
        end.unwrap_or_default().to_string()
    }
}
