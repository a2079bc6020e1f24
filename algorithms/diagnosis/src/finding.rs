//! Observations, findings and detectors.

use std::fmt::{self, Debug, Display};

/// A look at something that detectors judge.
pub trait Observation {
    /// Those who can be to blame.
    type Subject: Clone + Debug + PartialEq;
    /// A moment, as this kind of look counts time.
    type Moment: Copy + Debug + PartialEq;
    /// Causes of findings.
    type Cause: FindingCause + Clone + Debug + PartialEq;
}

/// A cause of a finding, with its evidence. Its text names the limit that was passed.
pub trait FindingCause: Display {
    /// The action to take.
    fn action(&self) -> Action;
}

/// One rule, and what it remembers of the looks so far.
pub trait Detector<O: Observation + ?Sized>: Debug + Send + Sync {
    /// Judges the next look, which was taken at this moment. Whether a finding that goes on is answered
    /// again is said by each detector.
    fn observe(&mut self, seen: &O, at: O::Moment) -> Vec<Finding<O>>;
}

/// Something that is wrong.
pub struct Finding<O: Observation + ?Sized> {
    /// Those who are to blame; nobody where it is of the whole.
    pub who: Vec<O::Subject>,
    /// The cause, with its evidence.
    pub cause: O::Cause,
    /// Since when, as far as is known.
    pub since: O::Moment,
}

impl<O: Observation + ?Sized> Clone for Finding<O> {
    fn clone(&self) -> Self {
        Self {
            who: self.who.clone(),
            cause: self.cause.clone(),
            since: self.since,
        }
    }
}

impl<O: Observation + ?Sized> Debug for Finding<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finding")
            .field("who", &self.who)
            .field("cause", &self.cause)
            .field("since", &self.since)
            .finish()
    }
}

impl<O: Observation + ?Sized> PartialEq for Finding<O> {
    fn eq(&self, other: &Self) -> bool {
        self.who == other.who && self.cause == other.cause && self.since == other.since
    }
}

/// The severity of a finding or an event.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Worth a look.
    Warning,
    /// Something does not work.
    Error,
}

/// The action to take after a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Tell people: nothing else is done.
    Tell,
    /// Give it no more work, until it is over.
    Avoid,
    /// End the call under way with an error on all ranks.
    EndCall,
    /// End the processes that are to blame; their supervisors start others.
    EndProcess,
    /// Take the device out of use, and end the processes on it.
    QuarantineDevice,
    /// Take the node for lost: what ran on it is started elsewhere.
    LoseNode,
    /// End the processes that are to blame, and start others elsewhere: their node is avoided from then on.
    EvictNode,
    /// Place processes again on a node that was avoided.
    ReturnNode,
    /// Have the nodes replay steps in groups, to find the one that is to blame.
    GroupTest,
    /// Go back to the version of the program that was there before.
    RollBack,
    /// Stop what the finding is about: a person has to look at it.
    StopForPerson,
}

impl Action {
    /// Its name, as reports and the API have it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tell => "tell",
            Self::Avoid => "avoid",
            Self::EndCall => "end_call",
            Self::EndProcess => "end_process",
            Self::QuarantineDevice => "quarantine_device",
            Self::LoseNode => "lose_node",
            Self::EvictNode => "evict_node",
            Self::ReturnNode => "return_node",
            Self::GroupTest => "group_test",
            Self::RollBack => "roll_back",
            Self::StopForPerson => "stop_for_person",
        }
    }
}

/// A number that a finding stands on: its name with the unit, and its value.
pub type Evidence = (String, f64);

/// A cause that only people can judge: they are told, and nothing else is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// The name of the rule, as reports and the API have it.
    pub rule: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The cause in words, with the limit.
    pub sentence: String,
    /// The part of those to blame that it is about, where there may be several at once: an action, a rank; else empty.
    pub part: String,
    /// The numbers of the sentence that machines may want.
    pub evidence: Vec<Evidence>,
}

impl Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl FindingCause for Alert {
    fn action(&self) -> Action {
        Action::Tell
    }
}
