//! Events, in one stream.

use std::collections::VecDeque;

use odeon::{ActorId, ProcessId};
pub use odeon_diagnosis::Severity;
use serde::{Deserialize, Deserializer, Serialize};

use crate::bounds::EVENTS_MAX;
use crate::date::Date;

/// The subject of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Subject {
    /// An actor.
    Actor(ActorId),
    /// A node, by name.
    Node(String),
    /// A device: its node and its number there.
    Device(String, u32),
    /// A job.
    Job(String),
    /// A process.
    Process(ProcessId),
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EventKind {
    /// Something has failed.
    Failure,
    /// An actor has begun another life.
    Restart,
    /// A process was first seen.
    Started,
    /// A process or an actor has ended in order.
    Stopped,
    /// A node came or went.
    Node,
    /// A device went out of service, or came back.
    Device,
    /// A detector found something.
    Problem,
    /// Of a job, as its cluster tells it.
    Job,
}

impl EventKind {
    /// Its name, as it is shown, filtered by and exported under.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Restart => "restart",
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Node => "node",
            Self::Device => "device",
            Self::Problem => "problem",
            Self::Job => "job",
        }
    }
}

/// One thing that has happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Counts up.
    pub seq: u64,
    /// When.
    pub at: Date,
    /// Its kind.
    pub kind: EventKind,
    /// Its severity.
    pub severity: Severity,
    /// The thing that it is about.
    pub subject: Option<Subject>,
    /// The name of that thing for people, as it was then.
    #[serde(default)]
    pub name: Option<String>,
    /// The rule that found it, if it is a finding.
    #[serde(default, alias = "lint", deserialize_with = "rule")]
    pub rule: Option<String>,
    /// The event, in words.
    pub sentence: String,
    /// Why, outermost first.
    pub chain: Vec<String>,
    /// Of the end of a problem: when that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Date>,
}

/// The name of a rule; earlier releases wrote it as `RestartLoop`.
fn rule<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let told = Option::<String>::deserialize(from)?;
    let words = |name: String| {
        let mut words = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase() && !words.is_empty() {
                words.push('_');
            }
            words.push(letter.to_ascii_lowercase());
        }
        words
    };
    Ok(told.map(words))
}

/// The last events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Events {
    kept: VecDeque<Event>,
    told: u64,
}

impl Events {
    /// Adds one; its number is given here.
    pub fn tell(&mut self, mut event: Event) {
        self.told += 1;
        event.seq = self.told;
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(event);
    }

    /// Goes on behind these, which have their numbers.
    pub(crate) fn recall(&mut self, mut events: Vec<Event>) {
        events.drain(..events.len().saturating_sub(EVENTS_MAX));
        self.told = events.last().map_or(0, |event| event.seq);
        self.kept = events.into();
    }

    /// Number of events so far, forgotten ones too.
    #[must_use]
    pub const fn told(&self) -> u64 {
        self.told
    }

    /// All that are kept, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.kept.iter()
    }

    /// Those after the one of this number.
    pub fn after(&self, seq: u64) -> impl Iterator<Item = &Event> {
        // Some may be missing between those that were recalled.
        let skip = self.kept.partition_point(|event| event.seq <= seq);
        self.kept.iter().skip(skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_numbers_stay() {
        let mut events = Events::default();
        for n in 0..EVENTS_MAX + 10 {
            events.tell(Event {
                seq: 0,
                at: Date(n as u64),
                kind: EventKind::Node,
                severity: Severity::Info,
                subject: None,
                name: None,
                rule: None,
                sentence: String::new(),
                chain: vec![],
                since: None,
            });
        }
        assert_eq!(events.iter().next().unwrap().seq, 11);
        let told = events.told();
        assert_eq!(
            events.after(told - 2).map(|it| it.seq).collect::<Vec<_>>(),
            [told - 1, told]
        );
        assert_eq!(
            events.after(3).next().unwrap().seq,
            11,
            "what is forgotten is left out"
        );
    }
}
