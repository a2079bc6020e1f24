//! Events that people ask about later: failures, restarts, what was lost.

use serde::{Deserialize, Serialize};

use crate::base::clock::{Clock, Timestamp};
use crate::base::failure::{Failure, Reason};
use crate::base::id::{ActorId, Incarnation, ProcessId};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NewsKind {
    /// An actor has failed.
    Failed,
    /// It has begun another life.
    Restarted,
    /// A process has ended that was not to.
    ProcessLost,
    /// A node is linked.
    NodeUp,
    /// A node is gone.
    NodeDown,
    /// A device went out of service, or came back.
    Device,
}

/// One thing that has happened, as the process tells it that decides what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct News {
    /// When, by the clock of that process.
    pub at: Timestamp,
    /// The kind of event.
    pub kind: NewsKind,
    /// The actor that it is about.
    pub actor: Option<ActorId>,
    /// Its type.
    pub actor_type: String,
    /// Which life of it; 0 when it is about none.
    pub incarnation: Incarnation,
    /// The actor does not begin another life.
    #[serde(default)]
    pub ends: bool,
    /// The process that it is about, or that the actor is in.
    pub process: Option<ProcessId>,
    /// The device of the node that it is about.
    #[serde(default)]
    pub device: Option<u32>,
    /// The event and what follows, in words.
    pub sentence: String,
    /// Why: the failure, what led to it, and so on.
    pub chain: Vec<String>,
}

impl News {
    /// News of this kind, about nothing yet.
    pub(crate) fn new(kind: NewsKind, sentence: impl Into<String>) -> Self {
        Self {
            at: Clock::now(),
            kind,
            actor: None,
            actor_type: String::new(),
            incarnation: 0,
            ends: false,
            process: None,
            device: None,
            sentence: sentence.into(),
            chain: vec![],
        }
    }

    pub(crate) fn of(mut self, actor: ActorId, actor_type: &str, life: Incarnation) -> Self {
        self.actor = Some(actor);
        actor_type.clone_into(&mut self.actor_type);
        self.incarnation = life;
        self
    }

    pub(crate) const fn ending(mut self, ends: bool) -> Self {
        self.ends = ends;
        self
    }

    pub(crate) const fn within(mut self, process: ProcessId) -> Self {
        self.process = Some(process);
        self
    }

    pub(crate) const fn on_device(mut self, index: u32) -> Self {
        self.device = Some(index);
        self
    }

    pub(crate) fn because(mut self, reason: &Reason) -> Self {
        self.chain = match reason {
            Reason::Failed(failure) => chain_of(failure),
            other => vec![other.to_string()],
        };
        self
    }
}

/// A failure and what led to it, outermost first.
#[must_use]
pub fn chain_of(failure: &Failure) -> Vec<String> {
    let causes = std::iter::successors(Some(failure), |it| it.cause.as_deref());
    causes.map(|it| it.message.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::failure::FailureKind;

    #[test]
    fn a_chain_goes_down_to_the_first_cause() {
        let deep = Failure::new(FailureKind::Error, "no disk");
        let mut failure = Failure::new(FailureKind::Escalated, "too many restarts");
        failure.cause = Some(Box::new(deep));
        assert_eq!(chain_of(&failure), ["too many restarts", "no disk"]);
    }
}
