//! The events of a run, in a file of its folder: there when the run is over, however it ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use odeon::Clock;
use odeon_client::inspect as told;
use odeon_observe::Observer;
use parking_lot::Mutex;

use super::dto::Shown;
use super::journal::Journal;
use crate::print;

/// The files in a run's folder, the newer first; each line is an event.
pub(crate) const FILES: [&str; 2] = ["events.jsonl", "events.jsonl.1"];
/// The time that an event may be known and not be in the file.
const PAUSE: Duration = Duration::from_millis(500);

/// Writes down what an observer knows to have happened. Clones write into the same file.
#[derive(Clone, Debug)]
pub(super) struct EventLog(Arc<Mutex<Written>>);

#[derive(Debug)]
struct Written {
    observer: Observer,
    /// Nothing when the disk takes no more.
    journal: Option<Journal>,
    /// The number of events in it.
    told: u64,
}

impl EventLog {
    pub(super) fn new(observer: Observer, folder: &Path) -> io::Result<Self> {
        let journal = Some(Journal::open(folder, FILES)?);
        let written = Written {
            observer,
            journal,
            told: 0,
        };
        Ok(Self(Arc::new(Mutex::new(written))))
    }

    /// Writes what happens, until the future is dropped.
    pub(super) async fn keep(self) {
        loop {
            self.write();
            Clock::sleep(PAUSE).await;
        }
    }

    /// Writes what is new.
    pub(super) fn write(&self) {
        let written = &mut *self.0.lock();
        let Some(journal) = &mut written.journal else {
            return;
        };
        let (observer, told) = (&written.observer, &mut written.told);
        let facts = BTreeMap::new();
        let fresh: Vec<_> = observer.read(|seen| {
            let shown = Shown {
                seen,
                facts: &facts,
                now: observer.now(),
            };
            let fresh = seen.events().after(*told);
            let fresh = fresh.map(|event| shown.event(event)).collect();
            *told = seen.events().told();
            fresh
        });
        let mut lines = fresh.iter().map(serde_json::to_string);
        let outcome = lines.try_for_each(|line| journal.write(&format!("{}\n", line?)));
        if let Err(error) = outcome {
            let path = journal.path().display();
            print::say(format!("{path} takes no more of what happens: {error}"));
            written.journal = None;
        }
    }
}

/// The events of a run whose folder this is, oldest first; nothing where they were not written
/// down.
pub(crate) fn event_log(run: &Path) -> io::Result<Option<Vec<told::Event>>> {
    let mut events = None;
    for name in FILES.iter().rev() {
        let file = match File::open(run.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let events: &mut Vec<_> = events.get_or_insert_default();
        for line in BufReader::new(file).lines() {
            // The last one of a run that was killed may be half written.
            events.extend(serde_json::from_str::<told::Event>(&line?).ok());
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use odeon_observe::Date;
    use odeon_observe::event::{Event, EventKind, Severity};

    use super::*;

    fn event(n: u64) -> Event {
        Event {
            seq: 0,
            at: Date(n),
            kind: EventKind::Job,
            severity: Severity::Info,
            subject: None,
            name: None,
            rule: None,
            sentence: format!("happening {n}"),
            chain: vec![],
            since: None,
        }
    }

    /// SEMANTICS 75.
    #[tokio::test(start_paused = true)]
    async fn what_is_known_to_have_happened_is_in_the_file_half_a_second_later() {
        let folder = tempfile::tempdir().unwrap();
        let observer = Observer::new("run", 1);
        let keeps = EventLog::new(observer.clone(), folder.path()).unwrap();
        let keeping = tokio::spawn(keeps.keep());
        let half = Duration::from_millis(501);
        for n in 1..=5 {
            // At any moment between two looks.
            Clock::sleep(Duration::from_millis(170 * n)).await;
            observer.happened(event(n));
            Clock::sleep(half).await;
            let kept = event_log(folder.path()).unwrap().unwrap();
            let told: Vec<_> = kept.into_iter().map(|it| it.sentence).collect();
            let expected: Vec<_> = (1..=n).map(|n| format!("happening {n}")).collect();
            assert_eq!(told, expected);
        }
        keeping.abort();
    }
}
