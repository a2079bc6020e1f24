//! What outlives an observer: what has happened, and the actors that have failed.
//!
//! Whoever keeps it takes the [`Lines`] that are new since the last time, and gives them back to the
//! next observer as its [`Past`].

use std::collections::VecDeque;

use odeon::ActorId;
use odeon::inspect::ActorView;
use serde::{Deserialize, Serialize};

use crate::actor::{Ended, LifeRow};
use crate::event::Event;
use crate::observatory::Observatory;

/// An actor that has failed for good, as it is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remnant {
    /// What its process showed of it last.
    pub view: ActorView,
    /// Its name, if it had one.
    pub name: Option<String>,
    /// The job that it belonged to.
    pub job: String,
    /// The node that it was on.
    pub node: String,
    /// Messages that it has handled.
    pub handled: u64,
    /// How it ended.
    pub ended: Ended,
    /// Its lives, the last ones.
    pub lives: VecDeque<LifeRow>,
}

/// What another observer has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// What has happened, oldest first.
    pub events: Vec<Event>,
    /// Who has failed.
    pub failed: Vec<Remnant>,
}

/// How far lines were taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    events: u64,
    change: u64,
}

/// What is new since a mark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// What has happened, oldest first.
    pub events: Vec<Event>,
    /// Who has failed; one that was told before has changed.
    pub failed: Vec<Remnant>,
    /// Those that are not remembered any more.
    pub forgotten: Vec<ActorId>,
}

impl Lines {
    /// Whether nothing is new.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty() && self.failed.is_empty() && self.forgotten.is_empty()
    }
}

impl Observatory {
    /// What is to be kept and is new since the mark, which goes on to here.
    #[must_use]
    pub fn lines_since(&self, mark: &mut Mark) -> Lines {
        let actors = self.actors();
        let changed = actors.iter().filter(|row| row.changed > mark.change);
        let failed = changed.filter_map(|row| {
            let ended = row.ended.clone().filter(|ended| ended.failed)?;
            Some(Remnant {
                view: row.view.clone(),
                name: row.name.clone(),
                job: row.job.clone(),
                node: row.node.clone(),
                handled: row.handled,
                ended,
                lives: row.lives.clone(),
            })
        });
        let forgotten = actors.removed_since(mark.change);
        let lines = Lines {
            events: self.events().after(mark.events).cloned().collect(),
            failed: failed.collect(),
            forgotten: forgotten.into_iter().flatten().collect(),
        };
        *mark = Mark {
            events: self.events().told(),
            change: actors.change(),
        };
        lines
    }

    /// Goes on from what another observer has seen; before anything is looked at. The mark behind it:
    /// none of it is new.
    pub fn recall(&mut self, past: Past) -> Mark {
        self.recall_events(past.events);
        self.recall_failed(past.failed);
        Mark {
            events: self.events().told(),
            change: self.actors().change(),
        }
    }
}

#[cfg(test)]
mod tests {
    use odeon::{Phase, ProcessId, Timestamp};

    use super::*;
    use crate::actor::State;
    use crate::date::Date;
    use crate::event::{EventKind, Severity, Subject};

    fn failed(serial: u64, at: u64) -> Remnant {
        let home = ProcessId(7);
        let id = ActorId { home, serial };
        let view = ActorView {
            id,
            parent: ActorId { home, serial: 0 },
            actor: "demo.Worker".to_owned(),
            process: home,
            incarnation: 3,
            phase: Phase::Over,
            queued: 0,
            room: 8,
            queued_bytes: 0,
            handled: 5,
            failed: 1,
            busy: 9,
            waited: 2,
            changed: Timestamp(1),
            running: None,
            devices: vec![2],
        };
        let life = LifeRow {
            number: 3,
            from: Date(1),
            to: Some(Date(at)),
            cause: Some("out of memory".to_owned()),
            chain: vec!["out of memory".to_owned()],
        };
        Remnant {
            view,
            name: Some(format!("worker-{serial}")),
            job: "team/j1.1".to_owned(),
            node: "n2".to_owned(),
            handled: 40,
            ended: Ended {
                at: Date(at),
                sentence: "out of memory".to_owned(),
                failed: true,
            },
            lives: VecDeque::from([life]),
        }
    }

    fn event(seq: u64) -> Event {
        Event {
            seq,
            at: Date(seq * 10),
            kind: EventKind::Failure,
            severity: Severity::Error,
            subject: Some(Subject::Node("n2".to_owned())),
            sentence: format!("happening {seq}"),
            chain: vec!["why".to_owned()],
        }
    }

    /// SEMANTICS 72.
    #[test]
    fn what_one_observer_kept_the_next_one_shows() {
        let past = Past {
            events: vec![event(41), event(42)],
            failed: vec![failed(1, 100), failed(2, 90)],
        };
        let mut next = Observatory::default();
        let mut mark = next.recall(past.clone());
        next.tick(Date(1_000));
        let told: Vec<_> = next.events().iter().take(2).cloned().collect();
        assert_eq!(told, past.events, "numbers go on where they were");
        let row = next.actors().get(past.failed[0].view.id).unwrap();
        assert_eq!((row.state, row.handled), (State::Failed, 40));
        assert_eq!(row.title(), "worker-1");
        assert_eq!(row.lives, past.failed[0].lives);
        let problem = next.problems().iter().find(|it| it.count == 2).unwrap();
        assert!(problem.sentence.contains("out of memory"), "{problem:?}");
        // What was recalled is not told again, but that the actors are failed now was noted here.
        let lines = next.lines_since(&mut mark);
        assert!(lines.events.iter().all(|it| it.seq > 42), "{lines:?}");
        assert!(next.lines_since(&mut mark).is_empty());
    }

    #[test]
    fn an_actor_that_failed_is_told_once_and_survives_as_json() {
        let mut seen = Observatory::default();
        let one = failed(1, 100);
        let _behind = seen.recall(Past {
            events: vec![event(1)],
            failed: vec![one.clone()],
        });
        let lines = seen.lines_since(&mut Mark::default());
        assert_eq!(lines.failed, std::slice::from_ref(&one));
        let text = serde_json::to_string(&lines.failed[0]).unwrap();
        assert_eq!(serde_json::from_str::<Remnant>(&text).unwrap(), one);
        let text = serde_json::to_string(&lines.events[0]).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event(1));
    }
}
