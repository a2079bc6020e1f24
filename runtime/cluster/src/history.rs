//! Events that a node has seen, kept on its disk: they are there again when its daemon is.
//!
//! One file holds the last events, the actors that there are and that have ended, within the bounds of
//! [`odeon_observe::bounds`], and how far processes were heard, so that nothing is told twice. What was
//! seen within the last second before a crash may be missing. A file that cannot be read is put aside,
//! and a disk that takes nothing more is told of once: looking goes on either way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use odeon::ProcessId;
use odeon_observe::bounds::EVENTS_MAX;
use odeon_observe::past::{Lines, Mark, Past};
use odeon_observe::{Observer, today};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Events by their numbers, as JSON.
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
/// Actors, by the words of their ids, as JSON.
const ACTORS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("actors");
/// The place up to which the news of processes were heard: the number of the next, by that of the
/// process.
const HEARD: TableDefinition<'_, u64, u64> = TableDefinition::new("heard");
/// Bytes of the file that its cache in memory may have.
const CACHE_BYTES: usize = 1 << 20;
const FILE: &str = "history.redb";

/// The file of a node's events; none where the disk does not take them.
#[derive(Debug)]
pub(crate) struct History {
    path: PathBuf,
    /// Nothing is kept without it.
    file: Option<Arc<Database>>,
    mark: Mark,
    /// That the disk takes nothing was told.
    told: bool,
}

/// Why the file cannot be read or written.
#[derive(Debug, Error)]
enum HistoryError {
    #[error(transparent)]
    File(#[from] redb::Error),
    #[error("a row cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the thread that writes has ended")]
    Thread,
}

macro_rules! from_redb {
    ($($kind:ident),*) => {$(
        impl From<redb::$kind> for HistoryError {
            fn from(error: redb::$kind) -> Self {
                Self::File(error.into())
            }
        }
    )*};
}

from_redb!(
    DatabaseError,
    TransactionError,
    TableError,
    StorageError,
    CommitError
);

impl History {
    /// Opens the file of a node's folder and has the observer remember what it says.
    pub(crate) async fn open(folder: &Path, observer: &Observer) -> Self {
        let path = folder.join(FILE);
        let place = path.clone();
        let opened = tokio::task::spawn_blocking(move || open(&place)).await;
        let (file, past) = match opened {
            Ok(Ok((file, past))) => (Some(Arc::new(file)), past),
            Ok(Err(error)) => {
                tracing::warn!(%error, path = %path.display(), "history is not kept");
                (None, Past::default())
            }
            Err(_) => (None, Past::default()),
        };
        let mark = observer.write(|seen| seen.recall(past, today()));
        Self {
            path,
            file,
            mark,
            told: false,
        }
    }

    /// Keeps what is new.
    pub(crate) async fn keep(&mut self, observer: &Observer) {
        let Some(file) = self.file.clone() else {
            return;
        };
        let before = self.mark;
        let lines = observer.read(|seen| seen.lines_since(&mut self.mark));
        if lines.is_empty() {
            return;
        }
        let written = tokio::task::spawn_blocking(move || write(&file, &lines)).await;
        match written.unwrap_or(Err(HistoryError::Thread)) {
            Ok(()) => self.told = false,
            Err(error) => {
                // The next try has it all.
                self.mark = before;
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(%error, path = %self.path.display(), "history is not kept for now");
                }
            }
        }
    }
}

/// Opens the file, or puts aside what is none and begins anew.
fn open(path: &Path) -> Result<(Database, Past), HistoryError> {
    let begun = begin(path).and_then(|file| {
        let past = read(&file)?;
        Ok((file, past))
    });
    match begun {
        Ok(begun) => Ok(begun),
        Err(error) if path.exists() => {
            let aside = path.with_extension(format!("damaged-{}", today().0 / 1_000_000_000));
            tracing::warn!(%error, aside = %aside.display(), "the history cannot be read, and is put aside");
            std::fs::rename(path, &aside).map_err(|error| HistoryError::File(error.into()))?;
            Ok((begin(path)?, Past::default()))
        }
        Err(error) => Err(error),
    }
}

fn begin(path: &Path) -> Result<Database, HistoryError> {
    let file = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create(path)?;
    let writing = file.begin_write()?;
    writing.open_table(EVENTS)?;
    writing.open_table(ACTORS)?;
    writing.open_table(HEARD)?;
    writing.commit()?;
    Ok(file)
}

fn read(file: &Database) -> Result<Past, HistoryError> {
    /// A row of another release may not be readable any more.
    fn row<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        serde_json::from_slice(bytes).ok()
    }
    let reading = file.begin_read()?;
    let mut past = Past::default();
    for entry in reading.open_table(EVENTS)?.iter()? {
        past.events.extend(row(entry?.1.value()));
    }
    for entry in reading.open_table(ACTORS)?.iter()? {
        past.actors.extend(row(entry?.1.value()));
    }
    for entry in reading.open_table(HEARD)?.iter()? {
        let (process, next) = entry?;
        past.heard.push((ProcessId(process.value()), next.value()));
    }
    Ok(past)
}

fn write(file: &Database, lines: &Lines) -> Result<(), HistoryError> {
    fn json(row: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(row)
    }
    let writing = file.begin_write()?;
    {
        let mut events = writing.open_table(EVENTS)?;
        for event in &lines.events {
            events.insert(event.seq, json(event)?.as_slice())?;
        }
        let last = lines.events.last().map_or(0, |event| event.seq);
        let oldest = last.saturating_sub(EVENTS_MAX as u64);
        if oldest > 0 {
            events.retain_in(..=oldest, |_, _| false)?;
        }
        let mut actors = writing.open_table(ACTORS)?;
        if lines.forgotten.is_none() {
            actors.retain(|_, _| false)?;
        }
        for actor in &lines.actors {
            actors.insert(actor.view.id.to_string().as_str(), json(actor)?.as_slice())?;
        }
        for actor in lines.forgotten.iter().flatten() {
            actors.remove(actor.to_string().as_str())?;
        }
        let mut heard = writing.open_table(HEARD)?;
        heard.retain(|process, _| lines.heard.iter().any(|it| it.0.0 == process))?;
        for (process, next) in &lines.heard {
            heard.insert(process.0, next)?;
        }
    }
    writing.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use odeon_observe::Date;
    use odeon_observe::event::{Event, EventKind, Severity};

    use super::*;

    fn lines(numbers: std::ops::RangeInclusive<u64>) -> Lines {
        let event = |seq| Event {
            seq,
            at: Date(seq),
            kind: EventKind::Node,
            severity: Severity::Info,
            subject: None,
            name: None,
            rule: None,
            sentence: format!("happening {seq}"),
            chain: vec![],
            since: None,
        };
        Lines {
            events: numbers.map(event).collect(),
            forgotten: Some(vec![]),
            heard: vec![(ProcessId(4), 9)],
            ..Lines::default()
        }
    }

    /// SEMANTICS 72.
    #[test]
    fn what_was_kept_is_there_again_and_what_is_none_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let (file, past) = open(&path).unwrap();
        assert_eq!(past, Past::default());
        write(&file, &lines(1..=20)).unwrap();
        // The oldest go first.
        let most = EVENTS_MAX as u64;
        write(&file, &lines(most + 8..=most + 8)).unwrap();
        drop(file);
        let (file, past) = open(&path).unwrap();
        let told: Vec<_> = past.events.iter().map(|it| it.seq).collect();
        let mut expected: Vec<_> = (9..=20).collect();
        expected.push(most + 8);
        assert_eq!(told, expected);
        assert_eq!(past.heard, [(ProcessId(4), 9)]);
        drop(file);
        std::fs::write(&path, "no history").unwrap();
        let (file, past) = open(&path).unwrap();
        assert_eq!(past, Past::default());
        write(&file, &lines(1..=1)).unwrap();
        let aside = std::fs::read_dir(folder.path()).unwrap();
        let names = aside.map(|it| it.unwrap().file_name().into_string().unwrap());
        assert!(names.into_iter().any(|it| it.contains("damaged")));
    }
}
