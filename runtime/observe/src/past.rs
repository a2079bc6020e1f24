//! The past that outlives an observer: what has happened, and the actors that there were.
//!
//! Whoever keeps it takes the [`Lines`] that are new since the last time, and gives them back to the
//! next observer as its [`Past`].

use std::collections::VecDeque;

use odeon::inspect::ActorView;
use odeon::{ActorId, ProcessId};
use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Ended, LifeRow};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Event;

/// An actor as it is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remnant {
    /// The actor as its process showed it last.
    pub view: ActorView,
    /// Its name, if it had one.
    pub name: Option<String>,
    /// The job that it belonged to.
    pub job: String,
    /// The node that it was on.
    pub node: String,
    /// Messages that it has handled.
    pub handled: u64,
    /// Its end, if it had ended.
    pub ended: Option<Ended>,
    /// Its lives, the last ones.
    pub lives: VecDeque<LifeRow>,
}

/// The events and actors that another observer has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// The actors that were there.
    pub actors: Vec<Remnant>,
    /// The place up to which the news of processes were heard that go on: the number of the next.
    pub heard: Vec<(ProcessId, u64)>,
}

/// The place up to which lines were taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    events: u64,
    change: u64,
}

/// The lines that are new since a mark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// The actors that have come, begun another life, gone elsewhere or ended: each as it is now.
    pub actors: Vec<Remnant>,
    /// Those that are not remembered any more; `None` when the actors that are told are all there are.
    pub forgotten: Option<Vec<ActorId>>,
    /// The place up to which the news of all processes were heard that go on.
    pub heard: Vec<(ProcessId, u64)>,
}

impl Lines {
    /// Returns true where nothing is new.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let forgotten = self.forgotten.as_ref().is_some_and(Vec::is_empty);
        self.events.is_empty() && self.actors.is_empty() && forgotten
    }
}

impl ClusterView {
    /// The lines to keep that are new since the mark, which goes on to here.
    #[must_use]
    pub fn lines_since(&self, mark: &mut Mark) -> Lines {
        let actors = self.actors();
        let forgotten = actors.removed_since(mark.change);
        let forgotten: Option<Vec<_>> = forgotten.map(Iterator::collect);
        let since = forgotten.as_ref().map_or(0, |_| mark.change);
        let lines = Lines {
            events: self.events().after(mark.events).cloned().collect(),
            actors: actors.turned_since(since).map(Remnant::of).collect(),
            forgotten,
            heard: self.heard(),
        };
        *mark = Mark {
            events: self.events().told(),
            change: actors.change(),
        };
        lines
    }

    /// Goes on from what another observer has seen; before anything is looked at. The mark behind it:
    /// none of it is new.
    pub fn recall(&mut self, past: Past, now: Date) -> Mark {
        self.take_over(past, now);
        Mark {
            events: self.events().told(),
            change: self.actors().change(),
        }
    }
}

impl Remnant {
    fn of(row: &Actor) -> Self {
        Self {
            view: row.view.clone(),
            name: row.name.clone(),
            job: row.job.clone(),
            node: row.node.clone(),
            handled: row.handled,
            ended: row.ended.clone(),
            lives: row.lives.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use odeon::{Phase, ProcessId, Timestamp};

    use super::*;
    use crate::actor::{Actors, State};
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
            ended: Some(Ended {
                at: Date(at),
                sentence: "out of memory".to_owned(),
                failed: true,
            }),
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
            name: Some("n2".to_owned()),
            rule: None,
            sentence: format!("happening {seq}"),
            chain: vec!["why".to_owned()],
            since: None,
        }
    }

    /// SEMANTICS 72.
    #[test]
    fn what_one_observer_kept_the_next_one_shows() {
        let past = Past {
            events: vec![event(41), event(42)],
            actors: vec![failed(1, 100), failed(2, 90)],
            heard: vec![],
        };
        let mut next = ClusterView::default();
        let mut mark = next.recall(past.clone(), Date(900));
        next.tick(Date(1_000));
        let told: Vec<_> = next.events().iter().take(2).cloned().collect();
        assert_eq!(told, past.events, "numbers go on where they were");
        let row = next.actors().get(past.actors[0].view.id).unwrap();
        assert_eq!((row.state, row.handled), (State::Failed, 40));
        assert_eq!(row.title(), "worker-1");
        assert_eq!(row.lives, past.actors[0].lives);
        let finding = next.findings().iter().find(|it| it.who.len() == 2).unwrap();
        assert!(
            finding.cause.sentence.contains("out of memory"),
            "{finding:?}"
        );
        // What was recalled is not told again, but that the actors are failed now was noted here.
        let lines = next.lines_since(&mut mark);
        assert!(lines.events.iter().all(|it| it.seq > 42), "{lines:?}");
        assert!(next.lines_since(&mut mark).is_empty());
    }

    #[test]
    fn an_actor_that_failed_is_told_once_and_survives_as_json() {
        let mut seen = ClusterView::default();
        let one = failed(1, 100);
        let past = Past {
            events: vec![event(1)],
            actors: vec![one.clone()],
            heard: vec![],
        };
        let mut mark = seen.recall(past, Date(900));
        assert!(seen.lines_since(&mut mark).is_empty());
        let row = seen.actors().get(one.view.id).unwrap();
        assert_eq!(Remnant::of(row), one);
        let lines = seen.lines_since(&mut Mark::default());
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Remnant>(&text).unwrap(), one);
        let text = serde_json::to_string(&lines.events[0]).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event(1));
    }

    #[test]
    fn a_lost_process_takes_those_along_that_were_there_and_not_those_stopped_before() {
        let second = 1_000_000_000;
        let stopped = |serial, at| {
            let mut it = failed(serial, at);
            it.ended.as_mut().unwrap().failed = false;
            it
        };
        let (before, with) = (stopped(1, second), stopped(2, 99 * second));
        let ids = [before.view.id, with.view.id];
        let mut actors = Actors::default();
        actors.recall(vec![before, with], Date(100 * second));
        let why = "its process ended: signal 9 (SIGKILL)";
        actors.lost_with(ProcessId(7), Date(100 * second), why);
        let ended = ids.map(|id| actors.get(id).unwrap().ended.clone().unwrap());
        assert_eq!(
            ended.map(|it| (it.failed, it.sentence == why)),
            [(false, false), (true, true)]
        );
    }
}
